package foreign

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"

	"star/train"
)

var (
	_ train.Turned      = (*Model)(nil)
	_ train.Experienced = (*Model)(nil)
	_ train.Curious     = (*Model)(nil)
)

// maxStateSize bounds the state of a program's optimizer, in bytes: eight vectors of the maximum
// number of parameters.
const maxStateSize = 8 * 4 * maxElements

// Update has the program's own optimizer make a step with the gradient in shared memory
// (train.Updater). Errors are those of Grad.
func (m *Model) Update(ctx context.Context, samples int64) error {
	m.step++
	if err := m.c.send(Frame{Kind: KindUpdate, A: m.step, B: uint64(samples), C: m.turn}); err != nil {
		return m.lost(err)
	}
	f, err := m.after(ctx, "an update")
	if err == nil && (f.Kind != KindUpdated || f.A != m.step) {
		err = errProtocol("%v of step %d, expected updated of step %d", f.Kind, f.A, m.step)
	}
	return err
}

// State returns the state of the program's own optimizer, in the program's own format. Errors are
// those of Grad, and a state larger than maxStateSize.
func (m *Model) State(ctx context.Context) ([]byte, error) {
	m.step++
	if err := m.c.send(Frame{Kind: KindRecall, A: m.step}); err != nil {
		return nil, m.lost(err)
	}
	var state []byte
	for {
		f, err := m.after(ctx, "its optimizer state")
		switch {
		case err != nil:
			return nil, err
		case f.Kind != KindState || f.A != m.step || f.B > maxStateSize || uint64(len(state)+len(f.Body)) > f.B || len(f.Body) == 0 && f.B > 0:
			return nil, errProtocol("%v of step %d with %d bytes after %d of %d, expected state of step %d", f.Kind, f.A, len(f.Body), len(state), f.B, m.step)
		}
		if state = append(state, f.Body...); uint64(len(state)) == f.B {
			return state, nil
		}
	}
}

// SetState sets the state of the program's own optimizer to what State returned on another worker.
// Errors are those of Grad.
func (m *Model) SetState(ctx context.Context, state []byte) error {
	m.step++
	for at := 0; ; {
		part := state[at:min(at+maxState, len(state))]
		if err := m.c.send(Frame{Kind: KindState, A: m.step, B: uint64(len(state)), Body: part}); err != nil {
			return m.lost(err)
		}
		if at += len(part); at == len(state) {
			break
		}
	}
	f, err := m.after(ctx, "a new optimizer state")
	if err == nil && (f.Kind != KindUpdated || f.A != m.step) {
		err = errProtocol("%v of step %d, expected updated of step %d", f.Kind, f.A, m.step)
	}
	return err
}

// Experience returns the state of the program's optimizer, from which the job's optimizer starts
// (train.Experienced). Errors are those of Grad.
func (m *Model) Experience(ctx context.Context) (*train.Experience, error) {
	st := m.about.State
	if st == nil {
		return nil, nil
	}
	var rule struct{ Name string }
	if err := json.Unmarshal(m.about.Optimizer, &rule); err != nil {
		return nil, errProtocol("the optimizer is not JSON: %v", err)
	}
	b, err := m.State(ctx)
	if err != nil {
		return nil, err
	}
	n := len(m.params)
	if len(b) != 4*n*len(st.Slots) {
		return nil, errProtocol("%d bytes of optimizer state, expected %d vectors of %d float32", len(b), len(st.Slots), n)
	}
	e := &train.Experience{Rule: rule.Name, Steps: st.Steps, Slots: map[string][]float32{}}
	for _, name := range st.Slots {
		v := make([]float32, n)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		e.Slots[name], b = v, b[4*n:]
	}
	return e, nil
}

// Asks sets the function that answers the program's questions (train.Curious).
func (m *Model) Asks(recall func(ctx context.Context) (*train.Experience, error)) { m.recall = recall }

// Flags of answers to a Recall of the program, in C.
const (
	// recalledError: the body says why the state is missing. Otherwise C is the number of updates of
	// the optimizer.
	recalledError = 1 << 63
)

// tell answers a Recall of the program with the state of the job's optimizer, vectors in order of
// their names, or with the reason why it is missing. An error: the program has ended.
func (m *Model) tell(ctx context.Context, f Frame) error {
	e, err := (*train.Experience)(nil), errors.New("there is no job")
	if m.recall != nil {
		e, err = m.recall(ctx)
	}
	return m.remind(f.A, e, err)
}

// Over sends the program, if it wants it, the final state of the job's optimizer (train.Curious).
func (m *Model) Over(ctx context.Context) {
	if !m.about.Remembers || m.recall == nil {
		return
	}
	if e, err := m.recall(ctx); err == nil {
		m.remind(0, e, nil) // if it has ended, the next request fails
	}
}

// remind sends an optimizer's state to the program, or the reason why it is missing.
func (m *Model) remind(step uint64, e *train.Experience, err error) error {
	if err != nil {
		why := []byte(err.Error())
		why = why[:min(len(why), maxState)]
		return m.c.send(Frame{Kind: KindState, A: step, B: uint64(len(why)), C: recalledError, Body: why})
	}
	size, names := 0, slices.Sorted(maps.Keys(e.Slots))
	for _, name := range names {
		size += 4 * len(e.Slots[name])
	}
	sent := Frame{Kind: KindState, A: step, B: uint64(size), C: uint64(e.Steps)}
	if size == 0 {
		return m.c.send(sent)
	}
	for _, name := range names {
		for v := e.Slots[name]; len(v) > 0; {
			n := min(len(v), maxState/4)
			sent.Body = sent.Body[:0]
			for _, x := range v[:n] {
				sent.Body = binary.LittleEndian.AppendUint32(sent.Body, math.Float32bits(x))
			}
			if err := m.c.send(sent); err != nil {
				return err
			}
			v = v[n:]
		}
	}
	return nil
}

// after waits for the answer to the last request, and skips those to gradients that were given up.
func (m *Model) after(ctx context.Context, what string) (f Frame, err error) {
	for f, err = m.answer(ctx, what); err == nil && f.A < m.step; {
		f, err = m.answer(ctx, what)
	}
	return f, err
}
