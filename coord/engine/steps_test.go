package engine

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// Under SSP, with workers that are held, with steps of their own and with parts left out: every order of arrivals
// ends the job, no worker is released twice, and every sample is applied, or known to be dropped.
func TestStepsComeToTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		const batch = 6
		plans := []modes.Plan{}
		for _, text := range []string{"ssp=0", "ssp=2", "asgd", "ssgd", "ssgd local=3", "ssp=1 local=2", "ssgd micro=3 cap=1s", "asgd micro=6 cap=1s",
			"ssgd local=3 outer=nesterov", "ssgd local=20samples steps=speed outer=nesterov", "ssgd local=6 outer=nesterov fragments=3", "ssgd local=8 steps=speed outer=nesterov fragments=2", "x=2 grace=1s local=5 steps=speed outer=delayed", "asgd local=2 outer=lookahead(0.5,1)", "x=2 grace=1s", "groups=0-2:1,3:1 grace=1s local=2 outer=nesterov(0,1)"} {
			if p, err := modes.Parse(text, n); err == nil {
				plans = append(plans, p)
			}
		}
		if n > 1 {
			p := modes.SSGD(n - 1)
			p.Excluded = []star.Worker{star.Worker(n - 1)}
			plans = append(plans, p)
			p = modes.ASGD(n - 1)
			p.Excluded, p.MaxLead = []star.Worker{star.Worker(n - 1)}, 1
			plans = append(plans, p)
		}
		limit := int64(rapid.IntRange(1, 300).Draw(t, "limit"))
		l := newShards(rapid.SampledFrom(plans).Draw(t, "plan"), n, 0, batch, limit)
		out := map[star.Worker]int{} // samples of what each computes
		steps := map[star.Worker]int64{}
		sent := map[star.Worker]int{}
		parts := map[star.Worker]bool{}
		applied, dropped := int64(0), int64(0)
		var graces []int64
		mean := map[star.Worker]int{}
		ahead := map[star.Worker]wire.Piece{} // what each may compute before it is released for it
		carry := func(os []Ready) {
			for _, o := range os {
				if o.Grace.Number > 0 {
					graces = append(graces, o.Grace.Number)
				}
				sum := 0.0 // of the shares of a round; in an outer step the mean of older steps counts once for each
				for _, g := range o.Fire.Gradients {
					sum += float64(g.Weight) / float64(mean[g.Worker])
				}
				if o.Fire.Outer != "" && (o.Fire.Local > 0 || o.Fire.NormFirst || o.Noise.Gradients != nil || !(sum > 0 && sum < 1+1e-5)) {
					t.Fatalf("%v: an outer step %+v with weights of %v", l.plan, o.Fire, sum)
				}
				for _, g := range o.Fire.Gradients {
					applied += int64(sent[g.Worker])
				}
				for _, g := range o.Fire.Dropped {
					dropped += int64(sent[g.Worker])
				}
				for _, r := range o.Releases {
					if _, busy := out[r.Worker]; busy {
						t.Fatalf("worker %d released twice", r.Worker)
					}
					if e, ok := ahead[r.Worker]; ok && e != (wire.Piece{Start: r.Start, Count: r.Count}) {
						t.Fatalf("%v: worker %d has the batch %+v and is released with %+v", l.plan, r.Worker, e, r)
					}
					delete(ahead, r.Worker)
					if len(r.Ahead) > 0 {
						ahead[r.Worker] = r.Ahead[0]
					}
					if (r.Fragments > 0) != (len(r.Ahead) > 0) || r.Fragments > 0 && r.Fragment != int(r.Version)%r.Fragments {
						t.Fatalf("%v: released with %+v", l.plan, r)
					}
					out[r.Worker], parts[r.Worker] = r.Count, r.Micro > 0
					if mean[r.Worker] = 1; r.Outer == "" {
						mean[r.Worker] = max(1, r.Local)
					}
				}
			}
		}
		carry(l.Begin(nil))
		for turn := 0; !l.Drained(); turn++ {
			if turn > 2000 {
				t.Fatalf("%v: still not at the end", l.plan)
			}
			if len(graces) > 0 && (len(out) == 0 || rapid.IntRange(0, 4).Draw(t, "lapse") == 0) {
				k := graces[0]
				graces = graces[1:]
				carry(l.Lapse(k))
				continue
			}
			if len(out) == 0 {
				t.Fatalf("%v: nobody computes, and it is not the end", l.plan)
			}
			if rapid.IntRange(0, 19).Draw(t, "change") == 0 {
				carry(l.Install(rapid.SampledFrom(plans).Draw(t, "plan")))
				continue
			}
			var busy []star.Worker
			for w := range out {
				busy = append(busy, w)
			}
			slices.Sort(busy)
			w := rapid.SampledFrom(busy).Draw(t, "w")
			k := out[w]
			if parts[w] {
				k = rapid.IntRange(1, k).Draw(t, "done")
				dropped += int64(out[w] - k)
			}
			delete(out, w)
			sent[w] = k
			l.states[w].pace = rapid.Float64Range(0, 5).Draw(t, "pace")
			os, err := l.arrive(w, steps[w], k)
			if err != nil {
				t.Fatal(err)
			}
			steps[w]++
			carry(os)
		}
		if applied != l.used || applied+dropped != limit || dropped != l.waste {
			t.Fatalf("%v: %d samples applied and %d dropped of %d; the engine says %d and %d", l.plan, applied, dropped, limit, l.used, l.waste)
		}
	})
}

// The weight of what a worker has learned in some steps is that of one step, also when the plan changes meanwhile;
// with parts left out it is that of the samples that are there, over those of a whole round.
func TestWeightsOfSteps(t *testing.T) {
	plan := func(text string) modes.Plan {
		p, err := modes.Parse(text, 2)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	l := newShards(plan("ssgd local=4"), 2, 0, 10, 1000)
	var got []float32
	step := func(w star.Worker, step int64, samples int) {
		t.Helper()
		os, err := l.arrive(w, step, samples)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range os {
			for _, g := range o.Fire.Gradients {
				got = append(got, g.Weight)
			}
		}
	}
	l.Begin(nil)
	step(0, 0, 40)
	l.Install(plan("ssgd local=2"))
	step(1, 0, 40)
	step(0, 1, 20)
	step(1, 1, 20)
	for i, w := range got {
		if w != 0.5 {
			t.Errorf("weight %d is %v, want 0.5", i, w)
		}
	}
	l = newShards(plan("ssgd micro=5 cap=1s"), 2, 0, 10, 1000)
	l.Begin(nil)
	got = nil
	step(0, 0, 10)
	step(1, 0, 4)
	if len(got) != 2 || got[0] != 0.5 || math.Abs(float64(got[1])-0.2) > 1e-7 {
		t.Errorf("weights %v, want 0.5 and 0.2", got)
	}
	for _, bad := range []int{0, 11} {
		if _, err := l.arrive(0, 1, bad); err == nil {
			t.Errorf("%d samples of 10 are taken", bad)
		}
	}
	l.Install(plan("ssgd"))
	step(0, 1, 7) // released with parts
	if p := l.plan; p.Micro != 0 || p.ComputeDeadline != time.Duration(0) {
		t.Errorf("plan %v", p)
	}
}

// A batch that others have left has as many local steps as it is enough for, so that no step is made with a few samples
// at the rate of a whole mini-batch.
func TestStepsOfSmallBatches(t *testing.T) {
	p, err := modes.Parse("ssgd local=4 outer=nesterov fragments=2", 3)
	if err != nil {
		t.Fatal(err)
	}
	redo := []Span{{0, 3}, {3, 17}, {20, 10}, {30, 11}}
	want := []string{"0+3 in 1 ahead 3+17 in 2", "20+10 in 1 ahead 30+11 in 2", "50+20 in 2 ahead 70+20 in 2"}
	l := NewShards(Config{Plan: p, Workers: 3, Batch: 10, Limit: 1000, From: Progress{Samples: 9, Cursor: 50, Redo: redo}})
	for i, r := range l.Begin(nil)[0].Releases {
		got := fmt.Sprintf("%d+%d in %d ahead %d+%d in %d", r.Start, r.Count, r.Local, r.Ahead[0].Start, r.Ahead[0].Count, r.AheadLocal)
		if got != want[i] {
			t.Errorf("worker %d: %s, want %s", i, got, want[i])
		}
	}
}

// In a job that may get a plan of local steps, releases of gradients tell workers to keep the parameters; one step
// of a worker's own is a gradient.
func TestOwnStepsMayFollow(t *testing.T) {
	for _, c := range []struct {
		plan            string
		strides, follow bool
		local, count    int
	}{
		{"ssgd", true, true, 1, 10}, {"ssgd", true, false, 0, 10}, {"ssgd", false, true, 0, 10},
		{"ssgd local=4", true, true, 4, 40}, {"ssgd local=1", true, true, 1, 10}, {"ssgd local=1", true, false, 0, 10}, {"ssgd local=1", false, true, 1, 10},
	} {
		p, err := modes.Parse(c.plan, 2)
		if err != nil {
			t.Fatal(err)
		}
		l := NewShards(Config{Plan: p, Workers: 2, Batch: 10, Limit: 1000, Strides: c.strides, Follow: c.follow})
		r := l.Begin(nil)[0].Releases[0]
		if r.Local != c.local || r.Count != c.count {
			t.Errorf("%+v: released with local %d, %d samples", c, r.Local, r.Count)
		}
		var fire Ready
		for w := range star.Worker(2) {
			os, err := l.arrive(w, 0, c.count)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range os {
				fire = o
			}
		}
		if want := c.local &^ 1; fire.Fire.Local != want {
			t.Errorf("%+v: an update of %d steps", c, fire.Fire.Local)
		}
	}
}

// The weight of a distance is its share of the samples of a round, whatever the steps of its worker and the plan
// that it was begun under; a gradient among them counts as one step.
func TestWeightsOfDistances(t *testing.T) {
	plan := func(text string) modes.Plan {
		p, err := modes.Parse(text, 2)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	l := newShards(plan("ssgd"), 2, 0, 10, 10000)
	var last Ready
	counts := map[star.Worker]int{}
	carry := func(os []Ready) {
		for _, o := range os {
			if o.Fire.Seq > 0 {
				last = o
			}
			for _, r := range o.Releases {
				counts[r.Worker] = r.Count
				if r.Outer != l.outer {
					t.Errorf("released for the outer step %q under %v", r.Outer, l.plan)
				}
			}
		}
	}
	step := func(w star.Worker, step int64) {
		t.Helper()
		os, err := l.arrive(w, step, counts[w])
		if err != nil {
			t.Fatal(err)
		}
		carry(os)
	}
	wants := func(outer string, weights ...float64) {
		t.Helper()
		if last.Fire.Outer != outer || len(last.Fire.Gradients) != len(weights) {
			t.Fatalf("an update %+v, want the outer step %q of %d", last.Fire, outer, len(weights))
		}
		for i, g := range last.Fire.Gradients {
			if math.Abs(float64(g.Weight)-weights[i]) > 1e-6 {
				t.Errorf("weight %d is %v, want %v", i, g.Weight, weights[i])
			}
		}
	}
	carry(l.Begin(nil))
	step(0, 0)
	carry(l.Install(plan("ssgd local=6 steps=speed outer=nesterov")))
	step(1, 0)
	wants("", 0.5, 0.5) // both began with gradients
	l.states[0].pace, l.states[1].pace = 1, 3
	step(0, 1)
	l.states[0].pace, l.states[1].pace = 1, 3
	step(1, 1)
	wants("nesterov(0.9,0.7)", 0.5, 0.5) // paces were unknown when they were released
	if counts[0] != 60 || counts[1] != 20 {
		t.Errorf("batches of %v samples, want 6 and 2 steps of 10", counts)
	}
	step(0, 2)
	step(1, 2)
	wants("nesterov(0.9,0.7)", 0.75, 0.25)
	// One of them is under way when the plan has gradients again, and its distance comes with a gradient.
	carry(l.Install(plan("asgd")))
	step(0, 3)
	wants("nesterov(0.9,0.7)", 60./80)
	carry(l.Install(plan("ssgd")))
	step(0, 4)
	step(1, 3)
	wants("nesterov(0.9,0.7)", 10./30, 20./30)
	step(0, 5)
	step(1, 4)
	wants("", 0.5, 0.5)
}

// A distance that is not finite is left out, and its worker is named. Long ones are judged by distances, not by the
// gradients before them.
func TestPoisonedDistance(t *testing.T) {
	p, err := modes.Parse("ssgd local=8 outer=nesterov", 2)
	if err != nil {
		t.Fatal(err)
	}
	l := NewShards(Config{Plan: modes.SSGD(2), Workers: 2, Shards: 1, Batch: 10, Limit: 1 << 20, Guard: true})
	count := 10
	round := func(step int64, sums ...float64) (last Ready) {
		t.Helper()
		for w, sum := range sums {
			if _, err := l.Stored(0, star.Worker(w), step, replica.Sum{Sum2: sum}); err != nil {
				t.Fatal(err)
			}
			_, os, err := l.Arrive(star.Record{Worker: star.Worker(w), Step: step, Samples: count, Norm2: sum}, false)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range os {
				if o.Fire.Seq > 0 {
					last = o
				}
			}
		}
		return last
	}
	l.Begin(nil)
	step := int64(0)
	for ; step < 40; step++ {
		if step == 39 {
			l.Install(p)
		}
		round(step, 1, 1)
	}
	count = 80
	for ; step < 60; step++ {
		if o := round(step, 1e9, 1e9); len(o.Poison) > 0 || o.Fire.Outer == "" {
			t.Fatalf("step %d: %+v", step, o.Poison)
		}
	}
	o := round(step, 1e9, math.NaN())
	if len(o.Poison) != 1 || o.Poison[0].Worker != 1 || o.Poison[0].Cause != poison.NotFinite || o.Fire.Gradients[1].Weight != 0 || o.Fire.Gradients[0].Weight != 0.5 {
		t.Errorf("%+v, %+v", o.Poison, o.Fire.Gradients)
	}
}
