package engine_test

import (
	"slices"
	"testing"

	"star"
	"star/coord/engine"
	"star/modes"
)

// What is given up is to be done again, whatever the plan: a checkpoint made then has each sample in one place, and
// nothing is under way.
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
			} else if engine.RingPlan(plan) != nil {
				continue
			}
			e.Begin(nil)
			if arch == 0 {
				for w := range star.Worker(2) { // the third is behind
					k := e.View().Worker(w)
					e.(engine.ShardEngine).Stored(0, w, k.Step)
					if _, _, err := e.Arrive(star.Record{Worker: w, Step: k.Step, Samples: k.Count}, false); err != nil {
						t.Fatal(err)
					}
				}
			}
			if e.View().Drained() {
				t.Fatalf("%s: nothing is under way", name)
			}
			e.End(engine.Abandon)
			e.End(engine.Finish)
			e.Save()
			p := e.View().Saved
			if p == nil {
				t.Fatalf("%s, architecture %d: it is not known what the checkpoint must contain", name, arch)
			}
			sum := p.Samples
			for _, s := range p.Redo {
				sum += int64(s.Count)
			}
			if !e.View().Drained() || sum != p.Cursor || p.Cursor == 0 || e.View().Live() != 3 {
				t.Errorf("%s, architecture %d: %+v, drained %v, %d live", name, arch, *p, e.View().Drained(), e.View().Live())
			}
		}
	}
}

// What a checkpoint had left to be done again past the end of this job is in the next one once.
func TestAbandonBeforeTheCursor(t *testing.T) {
	from := engine.Progress{Version: 3, Samples: 80, Cursor: 110, Redo: []engine.Span{{Start: 60, Count: 20}, {Start: 100, Count: 10}}}
	c := engine.Config{Plan: modes.SSGD(2), Workers: 2, Shards: 1, Batch: 8, Limit: 100, MaxParams: 10, Ring: new(engine.RingConfig), From: from}
	for _, e := range []engine.Engine{engine.NewShards(c), engine.NewRing(c)} {
		e.Begin(nil)
		e.End(engine.Abandon)
		e.Save()
		p := *e.View().Saved
		sum := p.Samples
		for _, s := range p.Redo {
			sum += int64(s.Count)
		}
		if sum != p.Cursor || p.Cursor != from.Cursor {
			t.Errorf("%T: %+v", e, p)
		}
	}
}

// A rest of one sample joins the batch before it, at the end of the stream and of what is to be done again; each sample
// is handed out once.
func TestNoRestOfOne(t *testing.T) {
	for _, c := range []struct {
		limit int64
		batch int
		want  []int
	}{
		{33, 8, []int{8, 8, 8, 9}}, {34, 8, []int{8, 8, 8, 8, 2}}, {32, 8, []int{8, 8, 8, 8}}, {9, 8, []int{9}}, {1, 8, []int{1}}, {3, 2, []int{3}}, {3, 1, []int{1, 1, 1}},
	} {
		e := engine.NewShards(engine.Config{Plan: modes.SSGD(1), Workers: 1, Shards: 1, Batch: c.batch, Limit: c.limit, Whole: true})
		var got []int
		orders := e.Begin(nil)
		for at := int64(0); len(orders) > 0 && len(got) < 10; {
			rs := orders[len(orders)-1].Releases
			if len(rs) == 0 {
				break
			}
			if got = append(got, rs[0].Count); rs[0].Start != at {
				t.Errorf("%d of %d: batch %d begins at %d, want %d", c.limit, c.batch, len(got), rs[0].Start, at)
			}
			at += int64(rs[0].Count)
			e.Stored(0, 0, e.Worker(0).Step)
			var err error
			if _, orders, err = e.Arrive(star.Record{Step: e.Worker(0).Step, Samples: rs[0].Count}, false); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, c.want) || e.View().Used != c.limit {
			t.Errorf("%d samples in batches of %d: %v, want %v", c.limit, c.batch, got, c.want)
		}
	}
}
