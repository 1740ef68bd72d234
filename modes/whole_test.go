package modes

import (
	"strings"
	"testing"
	"time"
)

func TestWithWholeBatches(t *testing.T) {
	const batch = 32
	for _, c := range []struct{ in, want, says string }{
		{in: "ssgd", want: "ssgd"},
		{in: "x=2", want: "x=2"},
		{in: "asgd", want: "asgd"},
		{in: "ssgd local=4", want: "ssgd local=4"},
		{in: "ssgd queue=8", want: "ssgd"},
		{in: "ssgd shares=32,32,32", want: "ssgd shares=32,32,32"},
		{in: "ssgd queue=8 shares=32,32,16", says: "worker 2 mini-batches of 16 samples, which must have 32"},
		{in: "ssgd shares=64,32,32", says: "worker 0 mini-batches of 64 samples"},
		{in: "x=2 micro=4 cap=10ms", says: "micro=4 cuts mini-batches"},
	} {
		p, err := Parse(c.in, 3)
		if err != nil {
			t.Fatal(err)
		}
		switch q, err := p.WithWholeBatches(batch); {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: error %v, want one with %q", c.in, err, c.says)
			}
		case err != nil || q.String() != c.want:
			t.Errorf("%s: %v, %v; want %s", c.in, q, err, c.want)
		}
	}
}

// TestCandidatesOfWholeBatches: without a queue, and with shares of at most a batch, no candidate cuts or resizes a batch, however slow a worker is.
func TestCandidatesOfWholeBatches(t *testing.T) {
	for _, ring := range []bool{false, true} {
		for _, slow := range []time.Duration{1, 2, 3, 10} {
			ms := time.Millisecond
			f := Forecast{Times: []time.Duration{100 * ms, 110 * ms, 120 * ms, 100 * slow * ms}, Batch: 32, MaxShare: 32, Noise: 1000, Ring: ring, Local: 8}
			cs, err := Candidates(f)
			if err != nil {
				t.Fatal(err)
			}
			if len(cs) < 2 {
				t.Errorf("ring %v, %vx slower: %d candidates", ring, int(slow), len(cs))
			}
			for _, c := range cs {
				if q, err := c.Plan.WithWholeBatches(32); err != nil || !q.Equal(c.Plan) {
					t.Errorf("ring %v, %vx slower: candidate %v: %v", ring, int(slow), c.Plan, err)
				}
			}
		}
	}
}
