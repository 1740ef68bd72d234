package compress

import "testing"

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	const n = 70000
	grad, dst := randoms(n, 1), make([]float32, n)
	for _, c := range codecs(t, n) {
		f := NewFeedback(c, n)
		msg := make([]byte, 0, c.MaxBytes(n))
		step := func() {
			msg = f.Encode(msg[:0], grad)
			if c.Decode(dst, msg) != nil || c.DecodeAdd(dst, 0.5, msg) != nil {
				t.Fatal("a message was refused")
			}
		}
		step()
		if a := testing.AllocsPerRun(5, step); a != 0 {
			t.Errorf("%s: %v allocations per step", c.Name(), a)
		}
	}
	a := averagers(t, 1, n, []Matrix{{0, 200, 350}}, 4)[0]
	for name, g := range map[string][]float32{"a gradient": grad, "zeros": make([]float32, n)} {
		round := func() { a.Project(g); a.Refine(); a.Reconstruct(dst) }
		round()
		if x := testing.AllocsPerRun(5, round); x != 0 {
			t.Errorf("Averager of %s: %v allocations per round", name, x)
		}
	}
}
