package sim

import (
	"testing"
	"time"

	"star"
	"star/modes"
)

// records keeps what a pilot is records.
type records struct{ all []star.Record }

func (h *records) Observe(r star.Record)                         { h.all = append(h.all, r) }
func (*records) Fired(time.Duration, int64, []Gradient, Outcome) {}
func (*records) Decide(time.Duration) (modes.Plan, string, bool) { return modes.Plan{}, "", false }

func partsOf(t *testing.T, r *star.Record) time.Duration {
	t.Helper()
	v, ok := r.Telemetry.Get(star.Parts)
	if !ok || v < 1 {
		t.Fatalf("worker %d, step %d: a record of %v parts", r.Worker, r.Step, v)
	}
	return time.Duration(v)
}

// The computing time of a worker follows from the parts and the samples in its record: of 100 ms, 10 in pushing, a part
// costs 9 ms by itself and 81/32 ms for each sample. That holds for each engine that decides, and over links.
func TestPartsTakeTheirTime(t *testing.T) {
	queue := modes.SSGD(3)
	queue.Queue = 8
	times := Steady{Iteration: []time.Duration{100 * ms, 100 * ms, 300 * ms}, Fixed: 0.1, Part: 0.1}
	links := &Network{Hosts: []Host{{Workers: []star.Worker{0, 1, 2}, Servers: 1, CPUs: 8}}, Threads: 1}
	for name, c := range map[string]Config{
		"the Barrier":       {Plan: queue},
		"an engine":         {Plan: queue, Engine: true},
		"a ring":            {Plan: queue, Ring: new(Ring)},
		"links":             {Plan: queue, Network: links},
		"links, an engine":  {Plan: queue, Network: links, Engine: true},
		"everybody its own": {Plan: modes.SSGD(3)},
		"by an engine":      {Plan: modes.SSGD(3), Engine: true},
	} {
		h := &records{}
		c.Times, c.Batch, c.Pilot, c.Limit, c.Bytes = times, 32, h, 5*time.Second, 1000
		c.Learner = &Tally{Noise: 1000}
		if _, err := Run(c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(h.all) < 50 {
			t.Fatalf("%s: %d records", name, len(h.all))
		}
		most := time.Duration(0)
		for i := range h.all {
			r := &h.all[i]
			factor := time.Duration(1)
			if r.Worker == 2 {
				factor = 3
			}
			parts := partsOf(t, r)
			most = max(most, parts)
			want := factor * (parts*9*ms + time.Duration(r.Samples)*81*ms/32)
			if d := (r.Compute - want).Abs(); d > 20*parts {
				t.Fatalf("%s: worker %d computes %d samples in %d parts for %v, want %v", name, r.Worker, r.Samples, parts, r.Compute, want)
			}
		}
		if queued := c.Plan.Queue > 0; queued != (most > 3) {
			t.Errorf("%s: at most %d parts", name, most)
		}
	}
}
