package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"star/allreduce"
	"star/internal/kernel"
	"star/train"
	"star/train/optim"
)

// A ring whose model makes the updates itself (train.Updater): every member makes the same one, of
// the same mean gradient. What its optimiser remembers is bytes to us; where vectors are wanted,
// for other members and in checkpoints, it is cut into some of the length of the parameters.

// stepOwn has the model make an update with the mean gradient, of which norm is the norm; negative:
// nobody wants to know.
func (w *ringWorker) stepOwn(ctx context.Context, norm float64) error {
	if w.job.Clip > 0 && norm > w.job.Clip {
		kernel.Scale(float32(w.job.Clip/norm), w.grad)
	}
	return w.updates.Update(context.WithoutCancel(ctx), w.samples) // whatever becomes of the ring: what the model was told to do it does
}

// state is what the optimiser remembers.
func (w *ringWorker) state(ctx context.Context) (optim.State, error) {
	if w.updates == nil {
		return w.opt.State(), nil
	}
	b, err := w.updates.State(ctx)
	return optim.State{Name: optim.Own, Steps: w.version, Slots: slotsOf(b, len(w.params))}, err
}

// setState gives the optimiser what it remembers. A state of another optimiser is an error. The
// program's own gets the whole of it even if ctx ends meanwhile.
func (w *ringWorker) setState(ctx context.Context, st optim.State) error {
	if w.updates == nil {
		return w.opt.SetState(st)
	}
	if st.Name != optim.Own {
		return fmt.Errorf("the state is that of %q, and the program has an optimiser of its own: resume as the job before, or start without the state", st.Name)
	}
	b, err := bytesOf(st.Slots)
	if err != nil {
		return err
	}
	return w.updates.SetState(context.WithoutCancel(ctx), b)
}

// begins says whether all members take version 0 from one of them: models in other processes need
// not have begun with the same parameters.
func (w *ringWorker) begins(highest int64) bool {
	_, elsewhere := w.model.(train.Measured)
	return highest == 0 && elsewhere
}

// asMany is slots, or as many as root has: what an optimiser of a model's own remembers may have
// grown. It is the same operation on all members.
func (w *ringWorker) asMany(ctx context.Context, place, root int, slots []optim.Slot) ([]optim.Slot, error) {
	if w.updates == nil {
		return slots, nil
	}
	n := []int64{int64(len(slots))}
	if err := allreduce.Broadcast(ctx, w.group, root, n); err != nil || place == root {
		return slots, err
	}
	if n[0] < 1 || n[0] > maxOwnSlots {
		return nil, fmt.Errorf("%w: worker %d says that its optimiser remembers %d vectors", errRing, w.ring.Members[root], n[0])
	}
	own := make([]optim.Slot, n[0])
	for i := range own {
		own[i] = optim.Slot{Name: ownSlot(i), Data: w.params} // for its length
	}
	return own, nil
}

// maxOwnSlots is for models of a few parameters, whose optimiser says more about itself than they have.
const maxOwnSlots = 1 << 16

// ownSlot is the name of the i-th vector that has what an optimiser says of itself in bytes.
func ownSlot(i int) string { return fmt.Sprintf("own_%05d", i) }

// slotsOf is b, behind its length in 8 bytes, in vectors of n elements.
func slotsOf(b []byte, n int) (slots []optim.Slot) {
	whole := append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...)
	for len(whole) > 0 {
		v := make([]float32, n)
		for i := range v {
			var word [4]byte
			whole = whole[copy(word[:], whole):]
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(word[:]))
			if len(whole) == 0 {
				break
			}
		}
		slots = append(slots, optim.Slot{Name: ownSlot(len(slots)), Data: v})
	}
	return slots
}

// bytesOf is the reverse.
func bytesOf(slots []optim.Slot) ([]byte, error) {
	var b []byte
	for i, s := range slots {
		if s.Name != ownSlot(i) {
			return nil, fmt.Errorf("what the optimiser remembers has %.100q in the place of %s", strings.TrimSpace(s.Name), ownSlot(i))
		}
		for _, x := range s.Data {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	}
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return nil, fmt.Errorf("what the optimiser remembers has %d bytes, which are not as many as they say", len(b))
	}
	return b[8 : 8+binary.LittleEndian.Uint64(b)], nil
}
