package coord

import (
	"math"
	"testing"
	"time"

	"star/modes"
	"star/transport/wire"
)

// The noise scale of two workers with batches of 4. |g|² and the squared norm of the
// mean give, by (15) and (16) of docs/theory.md, what is wanted.
func TestNoiseScale(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    Config
		norm2  float64 // of each worker's gradient
		change float64 // from each of its gradients to the next
		part   float64 // of each of two shards, of the sum
		want   NoiseStatus
		report bool
	}{
		// S = 8·4.5 − 8·4 = 4
		{"reported", Config{}, 4.5, 2, 2, NoiseStatus{Scale: 4 / 3.5, Grad2: 3.5, Var: 4, Observations: 10}, true},
		// The shards' exact norm is 5: S = 8·26 − 8·25 = 8
		{"with clipping", Config{Norm: true}, 26, 8, 0, NoiseStatus{Scale: 8. / 24, Grad2: 24, Var: 8, Observations: 10}, false},
		{"updates of one", Config{Plan: modes.ASGD(2)}, 4.5, 0, 2, NoiseStatus{}, false},
		{"lossy", Config{Lossy: true}, 4.5, 2, 2, NoiseStatus{}, false},
		{"not finite", Config{}, math.NaN(), 2, 2, NoiseStatus{}, true},
		// Two consecutive gradients that differ by 2: |ḡ|² = 4.5 − 2/4, and so the same. Each worker's first has none before
		// it.
		{"pairs", Config{Plan: modes.ASGD(2)}, 4.5, 2, 2, NoiseStatus{Scale: 4 / 3.5, Grad2: 3.5, Var: 4, Mixed: true, Observations: 18}, false},
		{"pairs, lossy", Config{Plan: modes.ASGD(2), Lossy: true}, 4.5, 2, 2, NoiseStatus{Scale: 4 / 3.5, Grad2: 3.5, Var: 4, Mixed: true, Observations: 18}, false},
		// |ḡ|² = 26 − 8/4, S = 8·26 − 8·24
		{"pairs, with clipping", Config{Plan: modes.ASGD(2), Norm: true}, 26, 8, 0, NoiseStatus{Scale: 16. / 22, Grad2: 22, Var: 16, Mixed: true, Observations: 18}, false},
		{"pairs, not finite", Config{Plan: modes.ASGD(2)}, math.NaN(), 2, 2, NoiseStatus{}, false},
	} {
		c.cfg.MaxWorkers, c.cfg.Steps = 2, 10
		play(t, c.cfg, func(w *world) {
			w.sum2 = c.part
			s := w.server(0, 2, false)
			for i := range 2 {
				w.worker(i, func(f *fakeWorker) {
					f.norm2, f.change = c.norm2, c.change
					f.dies = func(phase string, r wire.Release) bool { // it stays; but the last batch is over
						if r.Action == wire.Finish && i == 0 && phase == "evaluating" {
							// Real workers wait for the parameters, and so for the shards' sums. These do
							// not, but time passes only when all goroutines are blocked.
							time.Sleep(time.Millisecond)
							got := w.status().Noise
							if !close9(got.Scale, c.want.Scale) || !close9(got.Grad2, c.want.Grad2) || !close9(got.Var, c.want.Var) ||
								got.Observations != c.want.Observations || got.Mixed != c.want.Mixed {
								t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
							}
						}
						return false
					}
				})
			}
			w.finished(time.Hour)
			for _, f := range s.seen() {
				if f.Report != c.report {
					t.Errorf("%s: fire %+v", c.name, f)
				}
			}
			lines := w.lines("noise")
			if len(lines) != int(c.want.Observations) {
				t.Fatalf("%s: %d lines in the run log, want %d", c.name, len(lines), c.want.Observations)
			}
			for _, m := range lines {
				if !close9(m["scale"].(float64), c.want.Scale) || !close9(m["var"].(float64), c.want.Var) {
					t.Errorf("%s: %v", c.name, m)
				}
			}
		})
	}
}

func close9(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }
