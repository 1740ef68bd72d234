package price

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

// Parts of 2 samples of 12; they take 1, 1 and 3 s: at 0 s three are taken, at 1 s two more, at 2 s the last one. The
// slow worker has one, and no worker waits for more than its end.
func TestQueueByHand(t *testing.T) {
	ws := []taker{{2, time.Second, 0}, {2, time.Second, 0}, {2, 3 * time.Second, 500 * time.Millisecond}}
	var q queue
	lasts, samples := q.round(ws, 12)
	if lasts != 3500*time.Millisecond || samples != 12 || !slices.Equal(q.taken, []float64{6, 4, 2}) {
		t.Fatalf("a round of %v samples, %v, takes %v; want 12, [6 4 2], 3.5s", samples, q.taken, lasts)
	}
}

// Graham's bound (1966): a round is over, at the latest, when B samples are done at the speed of all together, and one
// part more.
func TestQueueBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		f := Forecast{Batch: rapid.IntRange(4, 64).Draw(t, "batch"), Noise: 100, Queue: 4}
		for range n {
			f.Times = append(f.Times, time.Duration(rapid.IntRange(50, 900).Draw(t, "ms"))*time.Millisecond)
			f.Fits = append(f.Fits, Fit{Fixed: 0.01, PerSample: 0.001})
		}
		p, err := f.problem()
		if err != nil {
			t.Fatal(err)
		}
		plan := modes.SSGD(n)
		plan.Queue = 4
		if rapid.Bool().Draw(t, "shares") {
			for range n {
				plan.Shares = append(plan.Shares, rapid.IntRange(1, 99).Draw(t, "share"))
			}
		}
		ws, total := p.takers(plan, func(i int, _ star.Worker) float64 { return p.t[i] })
		rate, part, fixed, size := 0.0, 0.0, 0.0, 0.0
		for _, w := range ws {
			rate += w.size / w.part.Seconds()
			part, fixed, size = max(part, w.part.Seconds()), max(fixed, w.fixed.Seconds()), max(size, w.size)
		}
		lasts, samples := new(queue).round(ws, total)
		least := 0.0
		for _, w := range ws {
			least += w.size
		}
		if lasts.Seconds() > total/rate+part+fixed+1e-6 || samples < total || samples >= max(total, least)+size {
			t.Fatalf("%v of %v: %v samples in %v; want %v, up to a part more, in %v s and a part of %v s and %v s", plan, f.Times, samples, lasts, total, total/rate, part, fixed)
		}
	})
}

// One worker three times as slow: SSGD takes 3 s for a round, a queue takes what all together need, and the slow one's
// last part. Nothing is stale.
func TestQueuePrice(t *testing.T) {
	f := Forecast{Times: ms(1000, 1000, 1000, 1000, 1000, 1000, 1000, 3000), Batch: 16, Noise: 500, Queue: 8, Fits: slices.Repeat([]Fit{{Fixed: 0.1, PerSample: 0.05}}, 8), MaxShare: 16}
	got := candidates(t, f)
	i := slices.IndexFunc(got, func(c Candidate) bool { return c.Kind == KindQueue && c.Plan.Shares == nil })
	if i < 0 {
		t.Fatal("no queue among the candidates")
	}
	c := got[i]
	again, err := Of(c.Plan, f)
	if err != nil || again.Cost != c.Cost {
		t.Fatalf("the candidate costs %v, its plan by itself %v, %v", c.Cost, again.Cost, err)
	}
	over, err := Over(c.Plan, History{ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(3000)}, f)
	if err != nil || math.Abs(over.Cost.Seconds()/c.Cost.Seconds()-1) > 1e-6 {
		t.Fatalf("over what was seen it costs %v, %v, and by averages %v", over.Cost, err, c.Cost)
	}
	if c.Staleness != 0 || c.Interval < 1090*time.Millisecond || c.Interval > 1800*time.Millisecond || c.Samples < 128 {
		t.Fatalf("an update of %v samples each %v, staleness %v; want 128 in 1.09 to 1.8 s, none", c.Samples, c.Interval, c.Staleness)
	}
	f.Queue = 0
	if slices.ContainsFunc(candidates(t, f), func(c Candidate) bool { return c.Kind == KindQueue }) {
		t.Fatal("a queue is a candidate where there is none")
	}
}

// A queue's price knows parts: where each of 8 costs a tenth of an iteration fewer of them are cheaper, and where they
// cost nothing more of them are.
func TestQueueOfDearParts(t *testing.T) {
	for _, c := range []struct {
		q, whole float64
		parts    int // 0: no queue is better than SSGD with shares
	}{{0, 0.1, 8}, {0.02, 0.1, 8}, {0.15, 0.1, 2}} {
		f := Forecast{Times: ms(100, 100, 100, 300), Batch: 32, Noise: 1000, Queue: 8, Parts: true}
		for _, d := range f.Times {
			s := d.Seconds()
			f.Fits = append(f.Fits, Fit{Fixed: c.q * s, PerSample: (1 - c.q) * s / 32, Part: c.q * s})
		}
		best := Candidate{}
		for _, k := range candidates(t, f) {
			if k.Kind == KindQueue && k.Plan.Shares == nil && (best.Kind == "" || k.Cost < best.Cost) {
				best = k
			}
		}
		if best.Plan.Queue != c.parts {
			t.Errorf("where a part costs %g of an iteration a queue of %d parts is the cheapest, want %d", c.q, best.Plan.Queue, c.parts)
		}
	}
}

// A part of 4 samples of 32 that costs 10 ms and 1 ms for each sample takes 14 ms, and an iteration 5 ms beside its
// parts.
func TestTakersOfDearParts(t *testing.T) {
	f := Forecast{Times: ms(47, 94), Batch: 32, Noise: 1000, Queue: 8, Parts: true, Fits: []Fit{{Fixed: 0.015, PerSample: 0.001, Part: 0.01}, {Fixed: 0.015, PerSample: 0.001, Part: 0.01}}}
	p, err := f.problem()
	if err != nil {
		t.Fatal(err)
	}
	plan := modes.SSGD(2)
	plan.Queue = 8
	ws, total := p.takers(plan, func(i int, _ star.Worker) float64 { return p.t[i] })
	for w, times := range []time.Duration{1, 2} {
		if got, want := ws[w], (taker{size: 4, part: times * 14 * time.Millisecond, fixed: times * 5 * time.Millisecond}); got.size != want.size || (got.part-want.part).Abs() > 2 || (got.fixed-want.fixed).Abs() > 2 || total != 64 {
			t.Errorf("worker %d takes %+v of %v, want %+v of 64", w, got, total, want)
		}
	}
	f.Fits[0].Part = 0.02
	if _, err := Candidates(f); err == nil || !strings.Contains(err.Error(), "worker 0") {
		t.Errorf("a part that takes more than what is fixed: %v", err)
	}
}
