package engine

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

// Under SSP, with workers that are held, with steps of their own and with parts left out: every order of arrivals ends
// the job, no worker is released twice, and every sample is applied, or known to be dropped.
func TestStepsComeToTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		const batch = 6
		plans := []modes.Plan{}
		for _, text := range []string{"ssp=0", "ssp=2", "asgd", "ssgd", "ssgd local=3", "ssp=1 local=2", "ssgd micro=3 cap=1s", "asgd micro=6 cap=1s"} {
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
		carry := func(os []Ready) {
			for _, o := range os {
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
					out[r.Worker], parts[r.Worker] = r.Count, r.Micro > 0
				}
			}
		}
		carry(l.Begin(nil))
		for turn := 0; !l.Drained(); turn++ {
			if turn > 2000 {
				t.Fatalf("%v: still not at the end", l.plan)
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

// The weight of what a worker has learned in some steps is that of one step, also when the plan changes meanwhile; with
// parts left out it is that of the samples that are there, over those of a whole round.
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

// In a job that may get a plan of local steps, releases of gradients tell workers to keep the parameters; one step of a
// worker's own is a gradient.
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
