package price

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

func candidates(t interface {
	Helper()
	Fatal(...any)
}, f Forecast) []Candidate {
	t.Helper()
	cs, err := Candidates(f)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// The intervals of the artefact's exact simulation, as in TestPublishedIntervals, by the
// events that the price is made from.
func TestOrderIntervals(t *testing.T) {
	for _, r := range published {
		f := Forecast{Times: r.times, Batch: 128, Noise: 1000}
		for _, c := range candidates(t, f) {
			if c.Plan.Shares != nil || c.X == 0 {
				continue
			}
			if got, want := c.Interval.Seconds()*1000, r.interval[c.X-1]; !near(got, want, 0.01) {
				t.Errorf("%v, %s x=%d: interval %.3f ms, published %.3f", r.times, c.Kind, c.X, got, want)
			}
			if want := float64(len(r.times))/float64(c.X) - 1; !near(c.Staleness, want, 1e-9) {
				t.Errorf("%v, x=%d: staleness %v, want %v", r.times, c.X, c.Staleness, want)
			}
		}
	}
}

// With exact intervals and 1 + φ/S alone, x = 1 is always the cheapest: the reason for a
// price of staleness. STAR artefact, R, epoch 0: 948.5, 1103.1, 1385.6, 1486.4, 1902.7,
// 1685.6, 1530.5, 2828.4.
func TestWithoutStaleness(t *testing.T) {
	want := []float64{948.5, 1103.1, 1385.6, 1486.4, 1902.7, 1685.6, 1530.5, 2828.4}
	f := Forecast{Times: published[1].times, Batch: 128, Noise: 2054.9639 / 1.47883332}
	for _, c := range candidates(t, f) {
		if c.X == 0 || c.Plan.Shares != nil {
			continue
		}
		if got := c.Interval.Seconds() * c.Updates * 1000; !near(got, want[c.X-1], .01) {
			t.Errorf("x=%d: %.1f, want %.1f", c.X, got, want[c.X-1])
		}
	}
}

func drawIterations(t *rapid.T, n int) []time.Duration {
	ts := make([]time.Duration, n)
	for i := range ts {
		ts[i] = time.Duration(rapid.IntRange(50, 2000).Draw(t, "ms")) * time.Millisecond
	}
	return ts
}

// longRun is the mean interval of x-order, in seconds, over a very long time, in the simplest possible way: it searches
// all workers for the next arrival.
func longRun(times []time.Duration, x, gradients int) float64 {
	due := slices.Clone(times)
	arrived := make([]bool, len(times))
	var from, now time.Duration
	updates := 0
	for k := 0; k < gradients; {
		for range x {
			first := -1
			for w := range due {
				if !arrived[w] && (first < 0 || due[w] < due[first]) {
					first = w
				}
			}
			arrived[first], now = true, due[first]
			k++
		}
		for w, there := range arrived {
			if there {
				arrived[w], due[w] = false, now+times[w]
			}
		}
		if k < gradients/3 {
			from = now
		} else {
			updates++
		}
	}
	return (now - from).Seconds() / float64(updates)
}

// The intervals of candidates and of Pace are those of the long run, and so are the shares.
func TestIntervalsOfX(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	cases := [][]time.Duration{
		ms(1154, 1906, 1644, 624, 1624, 1767, 709, 1380, 74), // x = 4: 525.9 after a thousand gradients, 496.5 in the end
		ms(101, 103, 107, 109, 113, 127, 131, 400),           // x = 3: 52.877, and 53.5
	}
	for range intervalCases {
		var times []time.Duration
		for range 3 + r.IntN(7) {
			times = append(times, time.Duration(50+r.IntN(1951))*time.Millisecond+time.Duration(r.IntN(2)*r.IntN(1e6)))
		}
		cases = append(cases, times)
	}
	for _, times := range cases {
		for _, c := range candidates(t, Forecast{Times: times, Batch: 128, Noise: 480}) {
			if c.Kind != KindStatic || c.Plan.Shares != nil {
				continue
			}
			want := longRun(times, c.X, 300_000)
			if got := c.Interval.Seconds(); !near(got, want, .005) {
				t.Errorf("%v, x = %d: interval %.4f ms, %.4f in the long run", times, c.X, 1e3*got, 1e3*want)
			}
			pc := pace(t, c.Plan, times)
			if got := pc.Interval.Seconds(); !near(got, want, .005) {
				t.Errorf("%v, x = %d: pace %.4f ms, %.4f in the long run", times, c.X, 1e3*got, 1e3*want)
			}
			sum, most := 0.0, float64(c.X)/want
			for w, share := range pc.Shares {
				sum += share
				if share*most > 1.005/times[w].Seconds() || share < 0 {
					t.Errorf("%v, x = %d: worker %d brings %.4f gradients a second", times, c.X, w, share*most)
				}
			}
			if !near(sum, 1, 1e-9) || !near(pc.Staleness, float64(len(times))/float64(c.X)-1, 1e-9) {
				t.Errorf("%v, x = %d: %+v", times, c.X, pc)
			}
		}
	}
}

// intervalCases are tried at random besides the two that are known.
const intervalCases = 25

// Every candidate is a valid plan, its cost is the product of its parts, and the decision is
// the cheapest of them; Price of its plan by the Barrier says the same.
func TestCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		f := Forecast{
			Times: drawIterations(t, n), Batch: rapid.SampledFrom([]int{1, 7, 128}).Draw(t, "batch"),
			Noise: rapid.SampledFrom([]float64{0, 10, 480, 1e6}).Draw(t, "noise"), Rate: rapid.SampledFrom([]float64{0, .1, 1}).Draw(t, "rate"),
			Ring: rapid.Bool().Draw(t, "ring"),
		}
		if rapid.Bool().Draw(t, "fits") {
			for _, τ := range f.Times {
				part := rapid.Float64Range(0, 1).Draw(t, "part")
				f.Fits = append(f.Fits, Fit{Fixed: part * τ.Seconds(), PerSample: (1 - part) * τ.Seconds() / float64(f.Batch)})
			}
		}
		cs := candidates(t, f)
		if cs[0].Cost > cs[len(cs)-1].Cost {
			t.Error("not in order of cost")
		}
		for _, c := range cs {
			if err := c.Plan.Validate(n); err != nil {
				t.Fatalf("%v: %v", c.Plan, err)
			}
			if back, err := modes.Parse(c.Plan.String(), n); err != nil || !back.Equal(c.Plan) {
				t.Errorf("%v parses as %v (%v)", c.Plan, back, err)
			}
			if f.Ring && c.Kind != KindSSGD && c.Kind != KindRing {
				t.Errorf("%v for a ring", c.Plan)
			}
			if got := c.Interval.Seconds() * c.Updates * c.Penalty; !near(got, c.Cost.Seconds(), 1e-6) {
				t.Errorf("%v: the parts make %v, cost %v", c.Plan, got, c.Cost)
			}
			if c.Penalty < 1-1e-9 && c.Kind != KindRing && c.Samples >= float64(n*f.Batch) {
				t.Errorf("%v: penalty %v", c.Plan, c.Penalty)
			}
			sum := 0
			for w := range n {
				sum += c.Plan.Share(star.Worker(w), f.Batch)
			}
			if sum != n*f.Batch {
				t.Errorf("%v: %d samples in a round, want %d", c.Plan, sum, n*f.Batch)
			}
			if ties(f.Times) {
				continue // arrivals that meet may be taken in another order
			}
			g, err := Of(c.Plan, f)
			tol := .03
			if c.Kind == KindStatic {
				tol = .3 // some times keep step with each other; TestIntervalsOfX says how seldom
			}
			if err != nil || g.Kind != c.Kind && c.Plan.Shares == nil && n > 1 || !near(g.Interval.Seconds(), c.Interval.Seconds(), tol) && c.Plan.Shares == nil {
				t.Errorf("%v: by the Barrier %+v, as candidate %+v (%v)", c.Plan, g, c, err)
			}
			if (c.Kind == KindGroups || c.Kind == KindRing) && c.Plan.Shares == nil && !meets(c.Plan, f.Times) && !near(g.Samples, c.Samples, .03) {
				t.Errorf("%v: updates of %v samples by the Barrier, %v as candidate", c.Plan, g.Samples, c.Samples)
			}
		}
		d, err := Cheapest{}.Decide(f)
		if err != nil || d.Cost != cs[0].Cost || d.Why == "" {
			t.Errorf("decided %+v, the cheapest is %v at %v (%v)", d, cs[0].Plan, cs[0].Cost, err)
		}
	})
}

// meets says whether a rider arrives at the very instant of a round.
func meets(p modes.Plan, ts []time.Duration) bool {
	var round time.Duration
	for _, w := range p.Groups[0].Members {
		round = max(round, ts[w])
	}
	return slices.ContainsFunc(p.Groups[0].Riders, func(w star.Worker) bool { return ts[w]%round == 0 })
}

func ties(ts []time.Duration) bool {
	s := slices.Clone(ts)
	slices.Sort(s)
	return len(slices.Compact(s)) < len(ts)
}

// Without stragglers SSGD is the cheapest, whatever noise and learning rate: a mode can
// only gain by not waiting.
func TestNobodyIsSlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "n")
		f := Forecast{
			Times: make([]time.Duration, n), Batch: rapid.IntRange(1, 512).Draw(t, "batch"),
			Noise: math.Exp(rapid.Float64Range(-3, 14).Draw(t, "log noise")), Rate: rapid.Float64Range(MinRate, 1).Draw(t, "rate"),
		}
		for i := range f.Times {
			f.Times[i] = 600 * time.Millisecond
		}
		d, err := Cheapest{}.Decide(f)
		if err != nil || !d.Plan.Equal(modes.SSGD(n)) {
			t.Errorf("%v (%v)", d, err)
		}
	})
}

// Scaling all times scales every cost; renumbering workers renumbers the plan.
func TestCostSymmetries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		f := Forecast{Times: drawIterations(t, n), Batch: 64, Noise: 300}
		if ties(f.Times) {
			t.Skip()
		}
		a := candidates(t, f)
		g := f
		g.Times = slices.Clone(f.Times)
		for i := range g.Times {
			g.Times[i] *= 3
		}
		b := candidates(t, g)
		h := f
		h.Times = slices.Clone(f.Times)
		slices.Reverse(h.Times)
		c := candidates(t, h)
		costs := map[string]time.Duration{}
		for _, x := range b {
			costs[x.Plan.String()] = x.Cost
		}
		for _, x := range a {
			y, ok := costs[x.Plan.String()]
			if ok && !near(y.Seconds(), 3*x.Cost.Seconds(), 1e-6) { // clusters at 50 ms are others
				t.Errorf("%v costs %v, with tripled times %v", x.Plan, x.Cost, y)
			}
		}
		// In x-order, the rank decides which of two simultaneous arrivals goes first.
		static := func(x Candidate) bool { return x.Kind == KindStatic }
		a, c = slices.DeleteFunc(a, static), slices.DeleteFunc(c, static)
		if len(c) != len(a) {
			t.Fatalf("%d candidates, with reversed ranks %d", len(a), len(c))
		}
		for i := range a {
			if !near(c[i].Cost.Seconds(), a[i].Cost.Seconds(), 1e-6) {
				t.Errorf("%v costs %v, with reversed ranks %v", a[i].Plan, a[i].Cost, c[i].Cost)
			}
		}
	})
}

// The groups of the dynamic program cost no more than any other partition, contiguous or not.
func TestBestGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		f := Forecast{Times: drawIterations(t, n), Batch: 32, Noise: rapid.SampledFrom([]float64{1, 100, 3000}).Draw(t, "noise"), Rate: rapid.Float64Range(MinRate, 1).Draw(t, "rate")}
		p, err := f.problem()
		if err != nil {
			t.Fatal(err)
		}
		price := func(sets [][]star.Worker) float64 {
			c, err := Of(modes.Grouped(sets...), f)
			if err != nil {
				t.Fatal(err)
			}
			return c.Cost.Seconds()
		}
		var mine [][]star.Worker
		from := 0
		for _, to := range p.bestOf() {
			mine = append(mine, p.ws[from:to])
			from = to
		}
		got := price(mine)
		var all func(w int, sets [][]star.Worker)
		all = func(w int, sets [][]star.Worker) {
			if w == n {
				if c := price(sets); c < got*(1-1e-6) {
					t.Fatalf("%v costs %v, %v only %v", mine, got, sets, c)
				}
				return
			}
			for i := range sets {
				next := slices.Clone(sets)
				next[i] = append(slices.Clone(sets[i]), star.Worker(w))
				all(w+1, next)
			}
			all(w+1, append(slices.Clone(sets), []star.Worker{star.Worker(w)}))
		}
		all(0, nil)
	})
}

func (p *problem) bestOf() []int { return (&search{problem: p}).bestGroups(p.e) }

// Clusters of the published rule: Ward linkage below 50 ms, by scikit-learn, as run.
func TestWard(t *testing.T) {
	for _, c := range []struct {
		times []time.Duration
		want  string
	}{
		{ms(100, 130, 200), "[[0 1] [2]]"},
		{ms(100, 149, 1000), "[[0 1] [2]]"},
		{ms(100, 150, 1000), "[[0] [1] [2]]"}, // exactly 50
		{ms(100, 120, 145, 300), "[[0 1 2] [3]]"},
		{ms(1, 21, 46, 76), "[[0 1] [2 3]]"},
		{ms(600, 603, 607, 612, 700, 705, 711, 1800), "[[0 1 2 3] [4 5 6] [7]]"},
		{ms(600, 600, 600, 600, 600, 600, 600, 600), "[[0 1 2 3 4 5 6 7]]"},
	} {
		if got := fmt.Sprint(wardSets(c.times)); got != c.want {
			t.Errorf("%v: %s, want %s", c.times, got, c.want)
		}
	}
}

// STAR artefact, heuristics as run with the defects repaired that keep them from running
// (N = 8, batches of 128, φ of the tables at 1024).
func TestPublishedHeuristic(t *testing.T) {
	const r0, r9, v9 = 2054.9639 / 1.47883332, 1098.8660888671875 / 1.5720531940460205, 31538.689453125 / 6.224503517150879
	one := published[1].times
	up := ms(100, 200, 300, 400, 500, 600, 700, 800)
	for _, c := range []struct {
		name    string
		times   []time.Duration
		noise   float64
		x       int
		best    float64
		static  []float64
		least   int
		dynamic float64
	}{
		{"R 0", one, r0, 7, 204.0700, []float64{948.49, 514.25, 369.50, 297.12, 253.70, 224.75, 204.07, 2828.42}, 7, 1381.869},
		{"R 9", one, r9, 7, 142.4108, []float64{516.88, 298.44, 225.63, 189.22, 167.38, 152.81, 142.41, 2019.14}, 7, 938.756},
		{"R 0 up", up, r0, 1, 436.2308, []float64{436.23, 937.36, 1177.09, 1351.47, 1499.71, 1634.88, 1762.58, 1885.61}, 1, 436.231},
		{"V 9", one, v9, 7, 532.3982, []float64{3246.79, 1663.39, 1135.60, 871.70, 713.36, 607.80, 532.40, 7137.73}, 7, 3690.415},
	} {
		r, err := Publish(Forecast{Times: c.times, Batch: 128, Noise: c.noise})
		if err != nil {
			t.Fatal(err)
		}
		if r.X != c.x || math.Abs(1000*r.Best-c.best) > 2e-4 || r.Least != c.least || math.Abs(1000*r.Dynamic-c.dynamic) > 1e-3 {
			t.Errorf("%s: x %d, T* %.4f, argmin %d, T_dyn %.3f; want %d, %.4f, %d, %.3f", c.name, r.X, 1000*r.Best, r.Least, 1000*r.Dynamic, c.x, c.best, c.least, c.dynamic)
		}
		for i, want := range c.static {
			if math.Abs(1000*r.Static[i]-want) > .0051 {
				t.Errorf("%s: T_%d %.4f, want %.2f", c.name, i+1, 1000*r.Static[i], want)
			}
		}
	}
	for _, c := range []struct {
		times  []time.Duration
		first  string
		hybrid int
	}{
		{ms(600, 600, 600, 600, 600, 600, 600, 600), "ssgd", 8},
		{ms(600, 600, 600, 600, 600, 600, 600, 700), "asgd", 7},
		{one, "asgd", 7},
		{ms(600, 600, 600, 600, 600, 600, 600, 3000), "asgd", 7},
		{up, "asgd", 1},
	} {
		for _, noise := range []float64{r0, r9, v9} {
			r, err := Publish(Forecast{Times: c.times, Batch: 128, Noise: noise})
			if err != nil || r.First != c.first || r.Hybrid != c.hybrid {
				t.Errorf("%v, φ %.0f: first heuristic %s, hybrid %d; want %s, %d (%v)", c.times, noise, r.First, r.Hybrid, c.first, c.hybrid, err)
			}
		}
	}
}

// The samples that rounding leaves of a round go, one by one, to the worker that finishes first with it, or come from
// the worker that finishes last, as in a search over all workers each time.
func TestSharesAreGreedy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "n")
		f := Forecast{Batch: rapid.IntRange(1, 40).Draw(t, "batch"), MaxShare: rapid.IntRange(0, 80).Draw(t, "most")}
		for range n {
			f.Times = append(f.Times, time.Duration(rapid.IntRange(100, 400).Draw(t, "ms"))*time.Millisecond)
			fixed := rapid.SampledFrom([]float64{0, .1, .5, 1}).Draw(t, "fixed")
			f.Fits = append(f.Fits, Fit{Fixed: fixed, PerSample: (1 - fixed) / float64(f.Batch)})
		}
		p, err := f.problem()
		if err != nil {
			t.Fatal(err)
		}
		s := &search{problem: p}
		shares, took, _ := s.share(0, n)
		if shares == nil {
			return
		}
		sum, slowest := 0, 0.0
		least, most := max(int(math.Ceil(p.b*minShare)), 1), max(f.MaxShare, f.Batch)
		if f.MaxShare == 0 {
			most = 2 * f.Batch
		}
		finish := func(i, k int) float64 { return p.fit[i].Fixed + p.fit[i].PerSample*float64(k) }
		for i, k := range shares {
			if k < least || k > most {
				t.Errorf("share %d of %v is not in %d..%d", i, shares, least, most)
			}
			sum += k
			slowest = max(slowest, finish(i, k))
		}
		if sum != n*f.Batch || slowest != took {
			t.Errorf("%v: %d samples in %v s, want %d, and it says %v s", shares, sum, slowest, n*f.Batch, took)
		}
		// No worker could hand a sample to another one that would still finish sooner than the first does now.
		for i, k := range shares {
			for j, l := range shares {
				if i != j && k > least && l < most && finish(j, l+1) < finish(i, k)*(1-1e-9) && p.fit[i].PerSample > 0 {
					t.Errorf("%v: worker %d with one more is finished before worker %d (%v, fits %v)", shares, j, i, p.t, p.fit)
				}
			}
		}
	})
}

// Shares by speed: if computation is slow, all workers finish together; if the network is slow, there is nothing to
// gain.
func TestShares(t *testing.T) {
	f := Forecast{Times: ms(600, 600, 600, 1200), Batch: 100, Noise: 200, Rate: 0.2, Fits: []Fit{
		{Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .012},
	}}
	d, err := Cheapest{}.Decide(f)
	// T = 400/(3/.006 + 1/.012) s
	if want := "ssgd shares=115,114,114,57"; err != nil || d.Plan.String() != want {
		t.Errorf("%v, want %s (%v)", d.Plan, want, err)
	}
	f.Fits[3] = Fit{Fixed: 1.2}
	for i := range 3 {
		f.Fits[i] = Fit{Fixed: 0.6}
	}
	for _, c := range candidates(t, f) {
		if c.Plan.Shares != nil {
			t.Errorf("%v, although nothing depends on samples", c.Plan)
		}
	}
	f.Fits = nil
	for _, c := range candidates(t, f) {
		if (c.Plan.Shares != nil) != c.Guess {
			t.Errorf("%v: guess %v", c.Plan, c.Guess)
		}
	}
	// A bound on the share of one worker.
	f.Fits = []Fit{{Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .006}, {Fixed: 0, PerSample: .012}}
	f.MaxShare = 105
	for _, c := range candidates(t, f) {
		for _, k := range c.Plan.Shares {
			if k > 105 {
				t.Errorf("%v exceeds the bound", c.Plan)
			}
		}
	}
}

// Times that were measured with uneven shares are those of equal ones, by the fit.
func TestSharesOfNow(t *testing.T) {
	even := Forecast{Times: ms(600, 1200), Batch: 100, Noise: 1000, Fits: []Fit{{Fixed: .1, PerSample: .005}, {Fixed: .2, PerSample: .01}}}
	uneven := even
	uneven.Shares = []int{130, 70}
	uneven.Times = ms(100+650, 200+700)
	a, b := candidates(t, even), candidates(t, uneven)
	for i := range a {
		if a[i].Plan.String() != b[i].Plan.String() || !near(a[i].Cost.Seconds(), b[i].Cost.Seconds(), 1e-6) {
			t.Errorf("%v at %v, and from uneven shares %v at %v", a[i].Plan, a[i].Cost, b[i].Plan, b[i].Cost)
		}
	}
}

// Workers that are gone have no say, and every plan has a place for them.
func TestGoneWorkers(t *testing.T) {
	f := Forecast{Times: ms(600, 0, 600, 1500, 0, 300), Batch: 10, Noise: 500}
	g := Forecast{Times: ms(600, 600, 1500, 300), Batch: 10, Noise: 500}
	a, b := candidates(t, f), candidates(t, g)
	if len(a) != len(b) {
		t.Fatalf("%d candidates, without the gone %d", len(a), len(b))
	}
	for i := range a {
		if err := a[i].Plan.Validate(6); err != nil || a[i].Cost != b[i].Cost {
			t.Errorf("%v at %v, without the gone %v at %v (%v)", a[i].Plan, a[i].Cost, b[i].Plan, b[i].Cost, err)
		}
	}
}

// A ring that waits for its riders for as long as they take is SSGD.
func TestRiderWait(t *testing.T) {
	f := Forecast{Times: ms(600, 600, 600, 1300), Batch: 10, Noise: 500, Ring: true, RiderWait: 700 * time.Millisecond}
	var ssgd, ring Candidate
	for _, c := range candidates(t, f) {
		switch {
		case c.Kind == KindSSGD && c.Plan.Shares == nil:
			ssgd = c
		case c.Plan.String() == "groups=0-2+3":
			ring = c
		}
	}
	if ring.Cost != ssgd.Cost || ring.Staleness != 0 {
		t.Errorf("ring %+v, ssgd %+v", ring, ssgd)
	}
	f.RiderWait = 100 * time.Millisecond // 600, then at 1300 with the rider: 600 + 100 too early, 1200 + 100 in time
	for _, c := range candidates(t, f) {
		if c.Plan.String() == "groups=0-2+3" && !near(c.Interval.Seconds(), (.7+.6)/2, .02) {
			t.Errorf("a wait of 100 ms: interval %v", c.Interval)
		}
	}
}

// A tree pays where the servers' links are what takes the time.
func TestTreeCandidate(t *testing.T) {
	f := Forecast{Times: ms(1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000), Batch: 10, Noise: 500,
		LinkBytes: 50e6, LinkRate: 1e9} // 100 ms for each of 9
	cs := candidates(t, f)
	if c := cs[0]; c.Kind != KindTree || c.Plan.Reports(9) != 3 || !near(c.Interval.Seconds(), 1-.6+.2, 1e-9) {
		t.Errorf("%+v", c)
	}
	f.LinkRate = 0
	for _, c := range candidates(t, f) {
		if c.Kind == KindTree {
			t.Errorf("%v, although nothing is known of the link", c.Plan)
		}
	}
}

func TestForecastIsChecked(t *testing.T) {
	ok := Forecast{Times: ms(1, 2), Batch: 1}
	for name, change := range map[string]func(*Forecast){
		"nobody":      func(f *Forecast) { f.Times = nil },
		"all gone":    func(f *Forecast) { f.Times = ms(0, 0) },
		"negative":    func(f *Forecast) { f.Times = ms(1, -1) },
		"endless":     func(f *Forecast) { f.Times = []time.Duration{1, math.MaxInt64} },
		"no batch":    func(f *Forecast) { f.Batch = 0 },
		"noise NaN":   func(f *Forecast) { f.Noise = math.NaN() },
		"noise inf":   func(f *Forecast) { f.Noise = math.Inf(1) },
		"noise < 0":   func(f *Forecast) { f.Noise = -1 },
		"rate NaN":    func(f *Forecast) { f.Rate = math.NaN() },
		"rate > 1":    func(f *Forecast) { f.Rate = 1.5 },
		"shares":      func(f *Forecast) { f.Shares = []int{1} },
		"share of 0":  func(f *Forecast) { f.Shares = []int{1, 0} },
		"fits":        func(f *Forecast) { f.Fits = make([]Fit, 3) },
		"fit NaN":     func(f *Forecast) { f.Fits = []Fit{{Fixed: math.NaN(), PerSample: 1}, {}} },
		"fit < 0":     func(f *Forecast) { f.Fits = []Fit{{Fixed: -1, PerSample: 1}, {}} },
		"wait":        func(f *Forecast) { f.RiderWait = -1 },
		"link":        func(f *Forecast) { f.LinkRate = math.NaN() },
		"link's size": func(f *Forecast) { f.LinkBytes = -1 },
	} {
		f := ok
		change(&f)
		if _, err := Candidates(f); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := (Cheapest{}).Decide(f); err == nil {
			t.Errorf("%s: decided", name)
		}
	}
}

func benchmarkDecide(b *testing.B, n int) {
	f := Forecast{Times: make([]time.Duration, n), Batch: 128, Noise: 480}
	for i := range f.Times { // a few stragglers, and no two workers are quite alike
		f.Times[i] = time.Duration(600+i*37%101) * time.Millisecond
		if i%16 == 7 {
			f.Times[i] *= 2
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (Cheapest{}).Decide(f); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecide8(b *testing.B)   { benchmarkDecide(b, 8) }
func BenchmarkDecide64(b *testing.B)  { benchmarkDecide(b, 64) }
func BenchmarkDecide512(b *testing.B) { benchmarkDecide(b, 512) }

// Each ring occurs once: a worker that rides along with every round might as well be waited for.
func TestRingsDiffer(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		times []time.Duration
		want  []string // of the rings without shares, those with the fewest riders first
	}{
		{[]time.Duration{s, s, s, s}, nil},
		{[]time.Duration{s, s, s, 2 * s}, []string{"groups=0-2+3"}},
		{[]time.Duration{2 * s, s, 3 * s, s}, []string{"groups=0,1,3+2", "groups=1,3+0,2"}},
		{[]time.Duration{s, 2 * s, 2 * s, 2 * s}, []string{"groups=0+1-3"}},
		{[]time.Duration{s, 2 * s, 3 * s, 4 * s}, []string{"groups=0-2+3", "groups=0,1+2,3", "groups=0+1-3"}},
	} {
		var rings []Candidate
		for _, k := range candidates(t, Forecast{Times: c.times, Batch: 64, Noise: 1000}) {
			if k.Kind == KindRing && k.Plan.Shares == nil {
				rings = append(rings, k)
			}
		}
		slices.SortFunc(rings, func(a, b Candidate) int { return len(a.Plan.Groups[0].Riders) - len(b.Plan.Groups[0].Riders) })
		var got []string
		for _, k := range rings {
			got = append(got, k.Plan.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.times, got, c.want)
		}
	}
	// Of more than 64 not every number is tried, and the one where speeds part is found.
	times := make([]time.Duration, 300)
	for w := range times {
		if times[w] = s; w >= 223 {
			times[w] = 5 * s
		}
	}
	var rings []string
	for _, k := range candidates(t, Forecast{Times: times, Batch: 64, Noise: 1000}) {
		if k.Kind == KindRing && k.Plan.Shares == nil {
			rings = append(rings, k.Plan.String())
		}
	}
	if !slices.Equal(rings, []string{"groups=0-222+223-299"}) {
		t.Errorf("%q", rings)
	}
}

// wardSets is the clustering of times at the published threshold of 50 ms, fastest first.
func wardSets(times []time.Duration) [][]star.Worker {
	f := Forecast{Times: times, Batch: 1}
	p, err := f.problem()
	if err != nil {
		return nil
	}
	var sets [][]star.Worker
	from := 0
	for _, to := range ward(p.t, wardDistance) {
		sets = append(sets, slices.Sorted(slices.Values(p.ws[from:to])))
		from = to
	}
	return sets
}

// TestCandidatesOfWholeBatches: without a queue, and with shares of at most a batch, no candidate cuts or resizes a
// batch, however slow a worker is.
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
