package price

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

func ms(vs ...int) []time.Duration {
	ts := make([]time.Duration, len(vs))
	for i, v := range vs {
		ts[i] = time.Duration(v) * time.Millisecond
	}
	return ts
}

func near(a, b, rel float64) bool { return math.Abs(a-b) <= rel*math.Abs(b) }

func pace(t interface {
	Helper()
	Fatal(...any)
}, p modes.Plan, times []time.Duration) Pace {
	t.Helper()
	pc, err := PaceOf(p, times)
	if err != nil {
		t.Fatal(err)
	}
	return pc
}

// STAR artefact, static_x_mode.py, as run: the mean of the first 1000 updates from
// a standing start, in milliseconds, for x = 1..N. Its x = 1 and x = N are closed
// forms. The first row's limits are whole numbers.
var published = []struct {
	times    []time.Duration
	interval []float64
}{
	{ms(100, 200, 300, 400), []float64{48, 100.1, 200.1, 400}},
	{ms(600, 600, 600, 600, 600, 600, 600, 1200), []float64{80, 171.6, 300, 400.2, 600, 600, 600, 1200}},
	{ms(100, 110, 120, 130, 140, 150, 160, 400), []float64{17.338212, 37.34, 59.78, 89.32, 115.03, 133.35, 153.34, 400}},
}

func TestPublishedIntervals(t *testing.T) {
	for _, r := range published {
		n := len(r.times)
		for x := 1; x <= n; x++ {
			want := r.interval[x-1]
			pc := pace(t, modes.XOrder(n, x), r.times)
			if got := pc.Interval.Seconds() * 1000; !near(got, want, 0.01) {
				t.Errorf("%v, x=%d: interval %.3f ms in the long run, published %.3f", r.times, x, got, want)
			}
			if s := float64(n)/float64(x) - 1; !near(pc.Staleness, s, 0.01) && math.Abs(pc.Staleness-s) > 1e-9 {
				t.Errorf("%v, x=%d: staleness %.4f, want N/x-1 = %.4f", r.times, x, pc.Staleness, s)
			}
			if x == 1 || x == n {
				continue
			}
			pc, err := Simulate(modes.XOrder(n, x), r.times, 0, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if got := pc.Interval.Seconds() * 1000; !near(got, want, 0.005) {
				t.Errorf("%v, x=%d: the first 1000 updates take %.3f ms each, published %.3f", r.times, x, got, want)
			}
		}
	}
}

// The transient of (100, 200, 300, 400): the first update of x = 2 takes 200 ms and
// all others 100 ms, so that 1000 take 100.1 ms each, exactly.
func TestTransientIsExact(t *testing.T) {
	pc, err := Simulate(modes.XOrder(4, 2), ms(100, 200, 300, 400), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if want := 100100 * time.Microsecond; pc.Interval != want {
		t.Errorf("got %v, want %v", pc.Interval, want)
	}
	pc, err = Simulate(modes.XOrder(4, 2), ms(100, 200, 300, 400), 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if want := 100 * time.Millisecond; pc.Interval != want {
		t.Errorf("after the first: got %v, want %v", pc.Interval, want)
	}
}

func TestContributionShares(t *testing.T) {
	times := ms(100, 200, 300, 400)
	for _, c := range []struct {
		plan modes.Plan
		want []float64
		tol  float64
	}{
		{modes.XOrder(4, 1), []float64{.48, .24, .16, .12}, 1e-9},
		{modes.ASGD(4), []float64{.48, .24, .16, .12}, 1e-9},
		{modes.XOrder(4, 3), []float64{1. / 3, 1. / 3, 1. / 6, 1. / 6}, .01},
		{modes.SSGD(4), []float64{.25, .25, .25, .25}, 1e-9},
	} {
		got := pace(t, c.plan, times).Shares
		for w := range got {
			if !near(got[w], c.want[w], c.tol) {
				t.Errorf("%v: shares %.4f, want %.4f", c.plan, got, c.want)
				break
			}
		}
	}
}

// Each group runs at the pace of its slowest; riders come along for nothing; the
// backup worker's gradients are thrown away.
func TestPaceOfGroups(t *testing.T) {
	times := ms(100, 200, 300, 590)
	pc := pace(t, modes.Grouped([]star.Worker{0, 1}, []star.Worker{2, 3}), times)
	// 1/200 and 1/590 updates a millisecond.
	if !near(pc.Interval.Seconds(), 1/(1/.2+1/.59), 1e-6) || !near(pc.Gradients, 2, 1e-9) {
		t.Errorf("two groups: %+v", pc)
	}
	if want := 4./2 - 1; !near(pc.Staleness, want, 1e-9) {
		t.Errorf("two groups: staleness %v, want %v", pc.Staleness, want)
	}

	ride, err := modes.Parse("groups=0-2+3", 4)
	if err != nil {
		t.Fatal(err)
	}
	pc = pace(t, ride, times)
	// The rider takes two rounds of 300 ms, so it is in every second update.
	if !near(pc.Interval.Seconds(), 0.3, 1e-6) || !near(pc.Gradients, 3.5, .01) || !near(pc.Shares[3], .5/3.5, .01) {
		t.Errorf("rider: %+v", pc)
	}
	if want := 4/3.5 - 1; !near(pc.Staleness, want, .02) {
		t.Errorf("rider: staleness %v, want %v", pc.Staleness, want)
	}

	pc = pace(t, modes.Backup(4, 1), times)
	// Worker 3 comes after 590 ms, when the others are at their second update: its
	// gradient is one update late. Released then, it is late again, for ever.
	if !near(pc.Interval.Seconds(), 0.3, 1e-6) || pc.Gradients != 3 || pc.Staleness != 0 || pc.Shares[3] != 0 || !near(pc.Dropped, 1/.59/(10+1/.59), .01) {
		t.Errorf("backup: %+v", pc)
	}
}

// The interval is rounded to nanoseconds, not cut.
func TestIntervalIsRounded(t *testing.T) {
	times := ms(100, 100, 100, 100, 100, 100)
	if got := pace(t, modes.ASGD(6), times).Interval; got != 16666667 {
		t.Errorf("a sixth of 100 ms is %d ns, want 16666667", got)
	}
}

// An update takes x gradients, and worker w makes at most one every τ_w, so
// I ≥ x / Σ 1/τ: x-order never beats ASGD at gradients per second.
func TestWorkBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := drawTimes(t)
		x := rapid.IntRange(1, len(times)).Draw(t, "x")
		work := 0.0
		for _, τ := range times {
			work += 1 / τ.Seconds()
		}
		if got, least := pace(t, modes.XOrder(len(times), x), times).Interval.Seconds(), float64(x)/work; got < least*0.99 {
			t.Fatalf("%v x=%d: interval %v below the bound %v", times, x, got, least)
		}
	})
}

func drawTimes(t *rapid.T) []time.Duration {
	n := rapid.IntRange(1, 9).Draw(t, "n")
	times := make([]time.Duration, n)
	for i := range times {
		times[i] = time.Duration(rapid.Int64Range(1000, 20000).Draw(t, "τ")) * time.Microsecond
	}
	return times
}

// drawGroups draws a plan of groups with any quorums, which may drop what is late, or which are in a tree.
func drawGroups(t *rapid.T, n int) modes.Plan {
	order := rapid.Permutation(modes.SSGD(n).Groups[0].Members).Draw(t, "order")
	k := rapid.IntRange(1, n).Draw(t, "groups")
	p := modes.Plan{Groups: make([]modes.Group, k)}
	for i, w := range order {
		p.Groups[i%k].Members = append(p.Groups[i%k].Members, w)
	}
	tree := rapid.IntRange(0, 3).Draw(t, "tree") == 0
	for i := range p.Groups {
		g := &p.Groups[i]
		g.Quorum = len(g.Members)
		if rapid.Bool().Draw(t, "partial") {
			g.Quorum = rapid.IntRange(1, len(g.Members)).Draw(t, "quorum")
		}
		g.DropLate = rapid.IntRange(0, 2).Draw(t, "drop") == 0
	}
	if tree { // the first member of each group is the parent of the others
		p.Parents = make([]star.Worker, n)
		for _, g := range p.Groups {
			for _, w := range g.Members {
				p.Parents[w] = g.Members[0]
			}
			p.Parents[g.Members[0]] = modes.Direct
		}
	}
	if err := p.Validate(n); err != nil {
		t.Fatalf("drew a plan that is not valid: %v", err)
	}
	return p
}

// Where there is a closed form the simulation agrees with it.
func TestClosedFormAgreesWithSimulation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := drawTimes(t)
		n := len(times)
		p := drawGroups(t, n)
		want, ok := closedForm(p, times)
		if !ok {
			t.Skip("no closed form")
		}
		got, err := Simulate(p, times, 50*n, 2000*n)
		if err != nil {
			t.Fatal(err)
		}
		if !near(got.Interval.Seconds(), want.Interval.Seconds(), .01) || !near(got.Gradients, want.Gradients, .01) ||
			math.Abs(got.Staleness-want.Staleness) > .01+.01*want.Staleness {
			t.Fatalf("%v on %v: closed form %+v, simulation %+v", p, times, want, got)
		}
		for w := range times {
			if math.Abs(got.Shares[w]-want.Shares[w]) > .01 {
				t.Fatalf("%v on %v: shares %v, simulation %v", p, times, want.Shares, got.Shares)
			}
		}
	})
}

// Scaling all times scales the interval and nothing else.
func TestPaceScales(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := drawTimes(t)
		n := len(times)
		x := rapid.IntRange(1, n).Draw(t, "x")
		a := pace(t, modes.XOrder(n, x), times)
		k := time.Duration(rapid.IntRange(2, 50).Draw(t, "k"))
		scaled := slices.Clone(times)
		for i := range scaled {
			scaled[i] *= k
		}
		b := pace(t, modes.XOrder(n, x), scaled)
		if !near(b.Interval.Seconds(), float64(k)*a.Interval.Seconds(), 1e-4) || math.Abs(b.Staleness-a.Staleness) > 1e-9 || !near(b.Shares[0], a.Shares[0], 1e-9) {
			t.Fatalf("times %v and %d times them: %+v, %+v", times, k, a, b)
		}
	})
}

// Renaming workers renames their shares. Gradients that arrive at the same
// instant are taken by rank, and which of two goes first can lead into another
// rhythm, so these times are odd enough never to meet.
func TestPacePermutes(t *testing.T) {
	times := []time.Duration{101000101, 211000349, 307000017, 401000773, 503000239, 601000907, 701000051}
	back := slices.Clone(times)
	slices.Reverse(back)
	for x := 1; x <= len(times); x++ {
		a, b := pace(t, modes.XOrder(7, x), times), pace(t, modes.XOrder(7, x), back)
		slices.Reverse(b.Shares)
		if !near(a.Interval.Seconds(), b.Interval.Seconds(), 1e-9) {
			t.Errorf("x=%d: interval %v, reversed %v", x, a.Interval, b.Interval)
		}
		for w := range a.Shares {
			if !near(a.Shares[w], b.Shares[w], 1e-9) {
				t.Errorf("x=%d: shares %v, reversed %v", x, a.Shares, b.Shares)
				break
			}
		}
	}
}

func TestPaceRefuses(t *testing.T) {
	for _, c := range []struct {
		plan  modes.Plan
		times []time.Duration
	}{
		{modes.SSGD(2), ms(100)},
		{modes.SSGD(2), ms(100, 0)},
		{modes.SSGD(2), ms(100, -5)},
		{modes.SSGD(2), []time.Duration{1, math.MaxInt64}},
		{modes.Plan{}, nil},
	} {
		if _, err := PaceOf(c.plan, c.times); err == nil {
			t.Errorf("%v with %v: no error", c.plan, c.times)
		}
	}
	if _, err := Simulate(modes.SSGD(1), ms(1), -1, 5); err == nil {
		t.Error("skip -1: no error")
	}
	if _, err := Simulate(modes.SSGD(1), ms(1), 0, 0); err == nil {
		t.Error("no updates: no error")
	}
}

func BenchmarkPace(b *testing.B) {
	times := make([]time.Duration, 64)
	for i := range times {
		times[i] = time.Duration(100+3*i) * time.Millisecond
	}
	for b.Loop() {
		if _, err := PaceOf(modes.XOrder(64, 48), times); err != nil {
			b.Fatal(err)
		}
	}
}

// A worker waits for the others of its report: x = 1 over pairs is as slow as the slower
// of each.
func TestPaceOfTrees(t *testing.T) {
	for _, c := range []struct {
		mode     string
		times    []time.Duration
		interval time.Duration
		grads    float64
	}{
		{"tree=0(1),2(3)", ms(100, 200, 300, 400), 400 * time.Millisecond, 4},
		{"x=1 tree=0(1),2(3)", ms(100, 200, 300, 400), 133333 * time.Microsecond, 2}, // 1/(1/200 + 1/400)
		{"groups=0,1/2,3 tree=0(1)", ms(100, 200, 300, 400), 133333 * time.Microsecond, 2},
		{"x=1 tree=0(1)", ms(100, 200, 400), 133333 * time.Microsecond, 5. / 3},
	} {
		p, err := modes.Parse(c.mode, len(c.times))
		if err != nil {
			t.Fatal(err)
		}
		got := pace(t, p, c.times)
		if !near(got.Interval.Seconds(), c.interval.Seconds(), 0.01) || !near(got.Gradients, c.grads, 0.01) {
			t.Errorf("%s: %v with %.3f gradients, want %v with %.3f", c.mode, got.Interval, got.Gradients, c.interval, c.grads)
		}
	}
}
