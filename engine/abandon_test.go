package engine_test

import (
	"testing"

	"star"
	"star/engine"
	"star/modes"
)

// What is given up is to be done again, whatever the plan: a checkpoint made then has each sample in one place, and nothing is under way.
func TestAbandon(t *testing.T) {
	plans := map[string]string{"ssgd": "ssgd", "asgd": "asgd", "a queue": "ssgd queue=4", "kept": "kbatch-async=3", "local": "ssgd local=2"}
	for name, mode := range plans {
		for arch := range 2 {
			plan, err := modes.Parse(mode, 3)
			if err != nil {
				t.Fatal(err)
			}
			c := engine.Config{Plan: plan, Workers: 3, Shards: 1 - arch, Batch: 8, Limit: 1000, MaxParams: 10, Ring: new(engine.RingConfig)}
			var e engine.Engine = engine.NewRing(c)
			if arch == 0 {
				e = engine.NewShards(c)
			} else if e.Fits(plan) != nil {
				continue
			}
			e.Begin()
			if arch == 0 {
				for w := range star.Worker(2) { // the third is behind
					k := e.Worker(w)
					e.Stored(0, w, k.Step)
					if _, _, err := e.Arrive(star.Record{Worker: w, Step: k.Step, Samples: k.Count}, false); err != nil {
						t.Fatal(err)
					}
				}
			}
			if e.Drained() {
				t.Fatalf("%s: nothing is under way", name)
			}
			e.Abandon()
			e.Finish()
			e.Save()
			p, ok := e.Saved()
			sum := p.Samples
			for _, s := range p.Redo {
				sum += int64(s.Count)
			}
			if !ok || !e.Drained() || sum != p.Cursor || p.Cursor == 0 || e.Live() != 3 {
				t.Errorf("%s, architecture %d: %+v, %v, drained %v, %d live", name, arch, p, ok, e.Drained(), e.Live())
			}
		}
	}
}
