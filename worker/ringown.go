package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"star/allreduce"
	"star/internal/kernel"
	"star/job/process"
	"star/ps/rule"
	"star/train"
	"star/train/optim"
)

// A ring with a model that makes the updates itself (train.Updater): every member makes the same one, from
// the same mean gradient, or steps of its own between two outer steps. The state of its optimizer is opaque
// bytes; for other members and for checkpoints it is cut into vectors of the length of the parameters.

// stepOwn has the model make an update with the mean gradient. norm is the gradient's norm;
// negative: not measured.
func (w *ringWorker) stepOwn(ctx context.Context, norm float64) error {
	if w.job.Clip > 0 && norm > w.job.Clip {
		kernel.Scale(float32(w.job.Clip/norm), w.grad)
	}
	// even if the ring fails: a started update of the model must complete
	return w.updates.Update(context.WithoutCancel(ctx), w.samples)
}

// programSteps is an optimizer of local steps ([rule.Solo]) that the model makes itself.
type programSteps struct {
	model train.Updater
	// ctx and at are of the next step: at is its position in the sample stream.
	ctx context.Context
	at  int64
	err error // of the last step
}

// Step implements [rule.Optimizer], of the model's parameters with its gradient: the rate is the program's.
func (p *programSteps) Step(_, _ []float32, _ float64) {
	p.err = p.model.Update(context.WithoutCancel(p.ctx), p.at)
}

// state returns the state of the optimizer, and of outer steps.
func (w *ringWorker) state(ctx context.Context) (optim.State, error) {
	if w.updates == nil {
		return process.RuleState(w.rule, nil), nil
	}
	b, err := w.updates.State(ctx)
	st := optim.State{Name: optim.Own, Steps: w.version, Slots: slotsOf(b, len(w.params))}
	for _, s := range w.outward.OuterSlots(len(w.params)) {
		st.Slots = append(st.Slots, optim.Slot(s))
	}
	return st, err
}

// setState sets the state of the optimizer. A state of another optimizer is an error. A program's
// own optimizer receives the whole state even if ctx ends meanwhile.
func (w *ringWorker) setState(ctx context.Context, st optim.State) error {
	if w.updates == nil {
		return process.SetRuleState(w.rule, st)
	}
	if st.Name != optim.Own {
		return fmt.Errorf("cannot restore the optimizer: the state is that of %q, and the program has its own; resume as the job before, or start without the state", st.Name)
	}
	slots, outer := inner(st.Slots)
	b, err := bytesOf(slots)
	if err == nil {
		err = w.outward.SetOuterSlots(outer)
	}
	if err != nil {
		return err
	}
	return w.updates.SetState(context.WithoutCancel(ctx), b)
}

// begins reports whether all members take version 0 from one of them: models in other processes need
// not have started with the same parameters.
func (w *ringWorker) begins(highest int64) bool {
	_, elsewhere := w.model.(train.Measured)
	return highest == 0 && elsewhere
}

// asMany returns slots, or as many slots as root has: the state of a model's own optimizer may have
// grown. All members run the same operation.
func (w *ringWorker) asMany(ctx context.Context, place, root int, slots []optim.Slot) ([]optim.Slot, error) {
	if w.updates == nil {
		return slots, nil
	}
	own, _ := inner(slots)
	n := []int64{int64(len(own))}
	if err := allreduce.Broadcast(ctx, w.group, root, n); err != nil || place == root {
		return slots, err
	}
	if n[0] < 1 || n[0] > maxOwnSlots {
		return nil, fmt.Errorf("%w: worker %d sent an invalid number of optimizer vectors: %d", errRing, w.ring.Members[root], n[0])
	}
	own = make([]optim.Slot, n[0])
	for i := range own {
		own[i] = optim.Slot{Name: ownSlot(i), Data: w.params} // for its length
	}
	return own, nil
}

// outerSlots returns slots of an optimizer's state with those of outer steps: as many as root has, with
// the rule of its outer steps. outer is this member's rule and length that of root's. All members run
// the same operation.
func (w *ringWorker) outerSlots(ctx context.Context, place, root int, slots []optim.Slot, outer string, length int64) ([]optim.Slot, error) {
	if place != root {
		slots, _ = inner(slots)
	}
	if length == 0 {
		return slots, nil
	}
	if length < 0 || length > maxOuterText {
		return nil, fmt.Errorf("%w: worker %d sent an invalid length for its rule of outer steps: %d", errRing, w.ring.Members[root], length)
	}
	text := packBytes([]byte(outer))
	if place != root {
		text = make([]int64, (length+7)/8)
	}
	if err := allreduce.Broadcast(ctx, w.group, root, text); err != nil || place == root {
		return slots, err
	}
	o, err := rule.ParseOuter(string(unpackBytes(text)[:length]))
	if err != nil {
		return nil, fmt.Errorf("%w: worker %d sent its rule of outer steps: %w", errRing, w.ring.Members[root], err)
	}
	for _, s := range rule.OuterSlots(o, len(w.params)) {
		slots = append(slots, optim.Slot(s))
	}
	return slots, nil
}

// inner returns the slots of an optimizer's state without those of outer steps, and these.
func inner(slots []optim.Slot) (own []optim.Slot, outer []rule.Slot) {
	for _, s := range slots {
		if _, ok, _ := rule.OuterSlot(s.Name); ok {
			outer = append(outer, rule.Slot(s))
		} else {
			own = append(own, s)
		}
	}
	return own, outer
}

// maxOuterText bounds the text of a rule of outer steps.
const maxOuterText = 64

// maxOwnSlots is large enough for models with an optimizer state much longer than their few
// parameters.
const maxOwnSlots = 1 << 16

// ownSlot names the i-th vector of the bytes of an optimizer's state.
func ownSlot(i int) string { return fmt.Sprintf("own_%05d", i) }

// slotsOf returns b, preceded by its length in 8 bytes, as vectors of n elements.
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

// bytesOf is the inverse of slotsOf.
func bytesOf(slots []optim.Slot) ([]byte, error) {
	var b []byte
	for i, s := range slots {
		if s.Name != ownSlot(i) {
			return nil, fmt.Errorf("cannot read the optimizer state: vector %.100q instead of %s", strings.TrimSpace(s.Name), ownSlot(i))
		}
		for _, x := range s.Data {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	}
	if len(b) < 8 || binary.LittleEndian.Uint64(b) > uint64(len(b)-8) {
		return nil, fmt.Errorf("cannot read the optimizer state: %d bytes are fewer than their length field says", len(b))
	}
	return b[8 : 8+binary.LittleEndian.Uint64(b)], nil
}
