package coord

import (
	"math"
	"strings"
	"testing"

	"star/coord/architecture"
	"star/coord/engine"
	"star/coord/membership"
	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// Programs that exchange their gradients end the job themselves: the configured end is only for progress. Rounds are
// means over all workers, even if another mode is requested.
func TestExchange(t *testing.T) {
	for _, exchange := range []bool{true, false} {
		c := &Coordinator{cfg: Config{MaxWorkers: 2, Batch: 4, Steps: 3, Plan: modes.SSGD(2)}}
		c.members.Terms.Set(wire.Hello{}, session.Enrolment{Samples: 40, Exchange: exchange})
		limit, want := c.job().Limit(c.cfg.Plan), int64(24)
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
			if err := c.members.Terms.Permit(p, c.cfg.MaxWorkers); (err != nil) != (exchange && spec != "ssgd") || err != nil && !strings.Contains(err.Error(), "use --mode ssgd or auto") {
				t.Errorf("exchange=%v: mode %s: %v", exchange, spec, err)
			}
		}
		p := modes.SSGD(2)
		p.Shares = []int{2, 6}
		if err := c.members.Terms.Permit(p, c.cfg.MaxWorkers); (err != nil) != exchange {
			t.Errorf("exchange=%v: shares: %v", exchange, err)
		}
	}
}

// Programs that make several updates for each batch: only in a ring, the same on all workers, and from a checkpoint
// between two batches.
func TestTurns(t *testing.T) {
	for _, turns := range []int{0, 1, 2} {
		c := &Coordinator{cfg: Config{MaxWorkers: 2, Batch: 4, Steps: 3, Plan: modes.SSGD(2)}, arch: architecture.Of(&Config{Ring: new(RingConfig)})}
		c.members.Terms.Set(wire.Hello{}, session.Enrolment{Samples: 40, Turns: turns})
		several := turns > 1
		if got := c.job().Limit(c.cfg.Plan); got != 24 {
			t.Errorf("%d turns: three steps end at %d samples, want 24", turns, got)
		}
		for _, spec := range []string{"ssgd", "x=1 micro=2 cap=1s", "ring-minus=1", "ssgd queue=8"} {
			p, err := modes.Parse(spec, 2)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.members.Terms.Permit(p, c.cfg.MaxWorkers); (err != nil) != (several && spec != "ssgd") || err != nil && !strings.Contains(err.Error(), "use --mode ssgd or auto") {
				t.Errorf("%d turns: mode %s: %v", turns, spec, err)
			}
		}
		for version := range int64(4) {
			c.cfg.Resume.Version = version
			if err := c.members.Terms.Turns(c.arch.Sharded(), c.cfg.Resume.Version); (err != nil) != (several && version%2 != 0) {
				t.Errorf("%d turns, resumed at version %d: %v", turns, version, err)
			}
		}
		c.cfg.Resume.Version, c.arch = 0, architecture.Of(&Config{})
		if err := c.members.Terms.Turns(c.arch.Sharded(), c.cfg.Resume.Version); (err != nil) != several {
			t.Errorf("%d turns with servers: %v", turns, err)
		}
		other := *c.members.Terms.Enrolled()
		other.Turns = 3
		if why, _ := c.members.Terms.Check(new(membership.Rules), nil, c.members.Terms.Hello(), &other, true); !strings.Contains(why, "3 updates for each batch") {
			t.Errorf("%d turns: a worker with 3: %q", turns, why)
		}
	}
}
