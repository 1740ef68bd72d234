package modes

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
)

// Parts of 2 samples of 12, which take 1, 1 and 3 s: at 0 s three are taken, at 1 s two more, at 2 s the last one. The slow worker has one, and nobody waits for more than its end.
func TestQueueByHand(t *testing.T) {
	ws := []taker{{2, time.Second, 0}, {2, time.Second, 0}, {2, 3 * time.Second, 500 * time.Millisecond}}
	var q queue
	lasts, samples := q.round(ws, 12)
	if lasts != 3500*time.Millisecond || samples != 12 || !slices.Equal(q.taken, []float64{6, 4, 2}) {
		t.Fatalf("a round of %v samples, %v, takes %v; want 12, [6 4 2], 3.5s", samples, q.taken, lasts)
	}
}

// Graham's bound (1966): a round is over, at the latest, when B samples are done at the speed of all together, and one part more.
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
		plan := SSGD(n)
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

// One worker three times as slow: SSGD takes 3 s for a round, a queue takes what all together need, and the slow one's last part. Nothing is stale.
func TestQueuePrice(t *testing.T) {
	f := Forecast{Times: ms(1000, 1000, 1000, 1000, 1000, 1000, 1000, 3000), Batch: 16, Noise: 500, Queue: 8, Fits: slices.Repeat([]Fit{{Fixed: 0.1, PerSample: 0.05}}, 8), MaxShare: 16}
	got := candidates(t, f)
	i := slices.IndexFunc(got, func(c Candidate) bool { return c.Kind == KindQueue && c.Plan.Shares == nil })
	if i < 0 {
		t.Fatal("no queue among the candidates")
	}
	c := got[i]
	again, err := c.Plan.Price(f)
	if err != nil || again.Cost != c.Cost {
		t.Fatalf("the candidate costs %v, its plan by itself %v, %v", c.Cost, again.Cost, err)
	}
	over, err := c.Plan.PriceOver(History{ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(1000), ms(3000)}, f)
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

// A queue is of one group and nothing else.
func TestQueueAlone(t *testing.T) {
	for _, s := range []string{"asgd queue=4", "x=2 queue=4", "groups=0,1+2 queue=4", "backup=1 queue=4", "groups=0,1 held=2 queue=4", "ssgd local=2 queue=4", "ssgd micro=2 cap=none queue=4", "ssgd tree=auto queue=4"} {
		if _, err := Parse(s, 3); err == nil || !strings.Contains(err.Error(), "it goes with shares, and with nothing else") {
			t.Errorf("Parse(%q): %v", s, err)
		}
	}
}

// Under a queue everybody takes the same time, and the slow one has fewer samples. That a share of it would take longer is still seen.
func TestQueueFits(t *testing.T) {
	plan := SSGD(3)
	plan.Queue = 8
	c, err := NewController(ControllerConfig{Workers: 3, Batch: 16, Queue: 8}, plan)
	if err != nil {
		t.Fatal(err)
	}
	samples := []int{20, 20, 8}
	for step := range int64(20) {
		for w, k := range samples {
			k := k + int(step)%2*k/4 // in the same time
			took := map[int]time.Duration{0: 1125, 1: 1125, 2: 1350}[w] * time.Millisecond
			c.Observe(star.Record{Worker: star.Worker(w), Step: step, Samples: k, Compute: took, Push: 100 * time.Millisecond})
		}
	}
	f, _, ok := c.Forecast(time.Minute)
	want := ms(900, 900, 2500) // about: 0.1 s and 16 samples
	for w := range want {
		if d := f.Times[w] - want[w]; !ok || d < -want[w]/8 || d > want[w]/8 {
			t.Fatalf("an equal share is expected to take %v, %v; want %v", f.Times, ok, want)
		}
	}
}
