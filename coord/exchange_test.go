package coord

import (
	"math"
	"strings"
	"testing"

	"star/engine"
	"star/modes"
)

// Programs whose gradients are exchanged end the job themselves: what the configuration says of its
// end is for progress. Rounds are means over all workers, also if others are asked for.
func TestExchange(t *testing.T) {
	for _, exchange := range []bool{true, false} {
		c := &Coordinator{cfg: Config{Workers: 2, Batch: 4, Steps: 3, Plan: modes.SSGD(2)}}
		c.enrolled = &Enrolment{Samples: 40, Exchange: exchange}
		limit, want := c.limit(c.cfg.Plan), int64(24)
		if exchange {
			want = math.MaxInt64
		}
		if limit != want {
			t.Errorf("exchange=%v: the job ends at %d samples, want %d", exchange, limit, want)
		}
		c.engine = engine.NewRing(engine.Config{Plan: c.cfg.Plan, Workers: 2, Batch: 4, Limit: limit, Ring: &engine.RingConfig{}})
		if got := c.expected(); got != 24 {
			t.Errorf("exchange=%v: %d samples are expected, want 24", exchange, got)
		}
		for _, spec := range []string{"ssgd", "x=1 micro=2 cap=1s", "ring-minus=1", "ssgd queue=8"} {
			p, err := modes.Parse(spec, 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.exchanges(p); (err != nil) != (exchange && spec != "ssgd") || err != nil && !strings.Contains(err.Error(), "give --mode ssgd or auto") {
				t.Errorf("exchange=%v: mode %s: %v", exchange, spec, err)
			}
		}
		p := modes.SSGD(2)
		p.Shares = []int{2, 6}
		if err := c.exchanges(p); (err != nil) != exchange {
			t.Errorf("exchange=%v: shares: %v", exchange, err)
		}
	}
}
