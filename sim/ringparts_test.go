package sim

import (
	"fmt"
	"testing"
	"time"

	"star/train/optim"
)

// A ring that exchanges fragments trains as servers do that exchange them: all evaluations are the same. Computing
// hides the exchange, so rounds of 3.2 s of computing and 3 s of exchange take 3.2 s.
func TestRingExchangesFragments(t *testing.T) {
	run := func(arch, mode string) (*Trained, Result) {
		text := "arch: " + arch + "\nworkers: 4\niteration: 100ms\nbytes: 4e6\nhosts:\n"
		if arch == "ps" {
			text += "  - {servers: 1}\n"
		}
		for w := range 4 {
			text += fmt.Sprintf("  - {name: h%d, workers: %d, bandwidth: 2e6}\n", w, w)
		}
		s, err := ParseScenario("links", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Config(nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		l := &Trained{Task: line{}}
		c.Learner, c.Batch, c.Limit, c.Target = l, 8, 200*time.Second, 2
		if err := c.Use(mode, optim.Config{Name: optim.Momentum, LR: 0.001}); err != nil {
			t.Fatal(err)
		}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		return l, r
	}
	for _, c := range []struct {
		mode    string
		updates int64
		bytes   float64 // of an update
	}{
		{"ssgd local=32 outer=nesterov(0.5,0.7)", 32, 24e6},
		{"ssgd local=32 outer=nesterov(0.5,0.7) fragments=4", 250, 6e6},
		{"ssgd local=32 outer=nesterov(0.5,0.7) fragments=8", 500, 3e6},
	} {
		ring, r := run("allreduce", c.mode)
		servers, _ := run("ps", c.mode)
		n := min(len(ring.Evaluations), len(servers.Evaluations))
		if n < 20 {
			t.Fatalf("%s: %d evaluations", c.mode, n)
		}
		for i := range n {
			if ring.Evaluations[i] != servers.Evaluations[i] {
				t.Fatalf("%s: evaluation %d: ring %v, servers %v", c.mode, i, ring.Evaluations[i], servers.Evaluations[i])
			}
		}
		if r.Updates < c.updates-2 || r.Updates > c.updates {
			t.Errorf("%s: %d updates, want %d", c.mode, r.Updates, c.updates)
		}
		if b := r.Bytes / float64(r.Updates); b < 0.95*c.bytes || b > 1.05*c.bytes {
			t.Errorf("%s: %.3g bytes for an update, want %.3g", c.mode, b, c.bytes)
		}
	}
}
