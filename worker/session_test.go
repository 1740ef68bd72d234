package worker

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"star/train"
)

// loop trains with a loop of its own. Before a step it asks whether to leave.
func loop(ctx context.Context, c Config, leave func(step int) bool) (steps int, err error) {
	m := c.Model
	s, err := Join(ctx, c, Vectors{Params: m.Params(), Layout: m.Layout()})
	if err != nil {
		return 0, err
	}
	for {
		step, err := s.Next()
		if err == io.EOF {
			return steps, s.Close()
		}
		if err != nil {
			return steps, errors.Join(err, s.Close())
		}
		if step.Evaluation {
			r, err := m.Eval(ctx, step.Batch)
			if err != nil {
				return steps, err
			}
			s.Evaluated(r)
			continue
		}
		steps++
		if leave(steps) {
			s.Leave()
		}
		loss, err := m.Grad(ctx, step.Gradient, step.Batch)
		if err != nil {
			return steps, err
		}
		s.Exchange(loss)
	}
}

// A worker that owns its loop is like the others, to the bit, with servers, in a ring, with parts of batches and with
// steps of its own.
func TestSessionIsRun(t *testing.T) {
	for _, c := range []struct {
		mode string
		args []string
	}{
		{"ssgd", nil}, {"tree=0(1)", nil}, {"ssgd local=2", []string{"--optimizer", "sgd"}}, {"ssgd", []string{"--arch", "allreduce"}},
	} {
		ours := func(ctx context.Context, rank int, c Config) error {
			if rank != 1 {
				return Run(ctx, c)
			}
			n, err := loop(ctx, c, func(int) bool { return false })
			if err == nil && n < 12 {
				t.Errorf("%d steps", n)
			}
			return err
		}
		want := run(t, func(ctx context.Context, _ int, c Config) error { return Run(ctx, c) }, c.mode, 12, c.args...)
		got := run(t, ours, c.mode, 12, c.args...)
		if want.Samples == 0 || got.Samples != want.Samples || got.TestLoss != want.TestLoss || got.TestAccuracy != want.TestAccuracy {
			t.Errorf("%s %v: %+v, and with a session %+v", c.mode, c.args, want, got)
		}
	}
}

// A worker that leaves may go, and the others go on without it; so may one that closes the session at once.
func TestSessionLeaves(t *testing.T) {
	for name, leave := range map[string]func(context.Context, Config) error{
		"leaves": func(ctx context.Context, c Config) error {
			n, err := loop(ctx, c, func(step int) bool { return step == 3 })
			if n < 3 || n > 8 {
				t.Errorf("%d steps of one that leaves in its third", n)
			}
			return err
		},
		"closes": func(ctx context.Context, c Config) error {
			s, err := Join(ctx, c, Vectors{Params: c.Model.Params(), Layout: c.Model.Layout()})
			if err != nil {
				return err
			}
			if _, err := s.Next(); err != nil {
				return err
			}
			if _, err := s.Next(); err == nil {
				t.Error("a step while another one is in hand")
			}
			if err := s.Close(); !errors.Is(err, ErrClosed) {
				t.Errorf("closed: %v", err)
			}
			if _, err := s.Next(); !errors.Is(err, ErrClosed) {
				t.Errorf("a step of a session that is closed: %v", err)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, func(ctx context.Context, rank int, c Config) error {
				if rank == 1 {
					return leave(ctx, c)
				}
				return Run(ctx, c)
			}, "ssgd", 30)
			if r.Samples < 2*30*4 {
				t.Errorf("%d samples; want at least those of two workers", r.Samples)
			}
		})
	}
}

// A model that says nothing of itself is distinguished by its name, layout and parameters.
func TestHash(t *testing.T) {
	v := Vectors{Params: []float32{1, 2, 3}, Layout: []train.TensorSpec{{Name: "w", Shape: []int{3}}}}
	hash := func(name string, v Vectors) string { return hashOf(name, &rendezvous{Vectors: v}) }
	seen := []string{hash("a", v)}
	if hash("a", v) != seen[0] || len(seen[0]) != 32 {
		t.Errorf("hash %q and %q", seen[0], hash("a", v))
	}
	other := v
	other.Params = []float32{1, 2, 4}
	shape := v
	shape.Layout = []train.TensorSpec{{Name: "w", Shape: []int{1, 3}}}
	for _, h := range []string{hash("b", v), hash("a", other), hash("a", shape)} {
		if slices.Contains(seen, h) {
			t.Errorf("%q again", h)
		}
		seen = append(seen, h)
	}
}
