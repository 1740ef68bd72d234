package price_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// Steepness finds the ν of a parameter that swings about its optimum: gradients with noise, momentum, and what (22)
// makes of them when the exact gradients are known.
func TestSteepness(t *testing.T) {
	for _, c := range []struct{ nu, mu, noise float64 }{
		{.1, 0, 1}, {1, 0, 1}, {1.5, 0, .1}, {1, .5, 1}, {3, .5, .3}, {1, .9, .1}, {4, .9, 1}, {12, .9, .3}, {25, .9, 1}, {12, .95, 1},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var w, v, last, scatter, square, change float64
		const rounds = 400000
		sigma := 1.0 // of the mean gradient of a round
		for k := range rounds {
			g := c.nu * w // in units in which η/(1 − μ) is 1
			noisy := g + sigma*r.NormFloat64()
			if k > 1000 {
				scatter += sigma * sigma
				square += g * g
				change += g*g - last*noisy
			}
			last = noisy
			v = c.mu*v + (1-c.mu)*noisy
			w -= v
		}
		// (25) with φ/B as it is here, tr Σ/B/|G|².
		const round = 1 << 20
		got := price.Steepness(change/square, scatter/square*round, round, c.mu)
		if math.Abs(got/c.nu-1) > 0.05 {
			t.Errorf("momentum %v: ν %v is measured as %.3f, with φ/B %.2f", c.mu, c.nu, got, scatter/square)
		}
	}
	if got := price.Steepness(1e6, 0, 1, .9); math.Abs(got-38) > 1e-9 {
		t.Errorf("what diverges even in SSGD is said to have ν %v, want the 38 that it bears", got)
	}
}

// memory says which workers' gradients the memory of a step contains.
type memory bool

const (
	ofAll  memory = false // heavy ball: one velocity, which fades with every update
	ofEach memory = true  // DANA: a velocity for each worker, and Nesterov's step
)

// edge is the largest ν at which a parameter does not swing more and more widely, when p runs with these times and
// momentum: with heavy ball (23) of SSGD, about (24) of all that is stale.
func edge(p modes.Plan, times []time.Duration, mu float64, of memory) float64 {
	n := len(times)
	stable := func(nu float64) bool {
		r := rand.New(rand.NewPCG(3, 4))
		b := modes.NewBarrier(p, n, 0)
		due, read := make([]float64, n), make([]float64, n)
		took := func(w int) float64 { return times[w].Seconds() * math.Exp(.05*r.NormFloat64()) }
		for w := range due {
			due[w], read[w] = took(w), 1
		}
		w, v, size := 1.0, make([]float64, n), 0.0
		step := func(f *modes.Firing) {
			g := 0.0
			for _, k := range f.Workers {
				own := (1 - mu) * nu * read[k] / float64(n)
				if g += own; of == ofEach {
					v[k] = mu*v[k] + own
					g += mu * v[k]
				}
			}
			if of == ofAll {
				v[0] = mu*v[0] + g
				g = v[0]
			}
			w -= g
		}
		for range 1500 * n {
			next := 0
			for i, at := range due {
				if at < due[next] {
					next = i
				}
			}
			now := due[next]
			due[next] = math.Inf(1)
			for _, f := range b.Arrive(star.Worker(next)) {
				step(&f)
				for k := range f.Released() {
					read[k], due[k] = w, now+took(int(k))
				}
			}
			if m := max(math.Abs(w), most(v)); m > 1e9 || m < 1e-9 { // scale all of it
				size += math.Log(m)
				w /= m
				for k := range read {
					read[k] /= m
					v[k] /= m
				}
				if size < -400 {
					return true
				}
			}
		}
		return size+math.Log(max(math.Abs(w), most(v))) < 0
	}
	lo, hi := .05, 100.0
	for range 12 {
		if m := math.Sqrt(lo * hi); stable(m) {
			lo = m
		} else {
			hi = m
		}
	}
	return lo
}

// most is the largest of |v|.
func most(v []float64) (m float64) {
	for _, x := range v {
		m = max(m, math.Abs(x))
	}
	return m
}

// What plans bear: SSGD (23), others between (24) and a third more than that where they are a quarter of a round late
// or more. The table in bench/RESULTS.md.
func TestEdges(t *testing.T) {
	const n = 8
	times := make([]time.Duration, n)
	for w := range times {
		times[w] = 600 * time.Millisecond
	}
	times[6] *= 3
	if testing.Verbose() { // the table
		for _, mu := range []float64{0, .5, .9, .95} {
			for _, mode := range []string{"ssgd", "groups=0-5,7+6", "x=7", "x=6", "x=4", "x=2", "asgd"} {
				p, err := modes.Parse(mode, n)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("momentum %-4v  %-14s  heavy ball %5.1f  dana %5.1f", mu, mode, edge(p, times, mu, ofAll), edge(p, times, mu, ofEach))
			}
		}
	}
	for _, mu := range []float64{0, .5, .9} {
		if got, want := edge(modes.SSGD(n), times, mu, ofAll), 2*(1+mu)/(1-mu); math.Abs(got/want-1) > 0.02 {
			t.Errorf("momentum %v: SSGD bears %.2f, want %.2f", mu, got, want)
		}
	}
	for _, x := range []int{6, 4, 2, 1} {
		d := 1 - float64(x)/n
		if got := edge(modes.XOrder(n, x), times, .9, ofAll); got*d < 1 || got*d > 4./3 {
			t.Errorf("x=%d bears %.2f, which is %.2f/d; want 1 to 1.33", x, got, got*d)
		}
	}
	// With a velocity for each worker staleness takes a third of what is borne at most, and mostly nothing.
	for _, mu := range []float64{.5, .9} {
		nesterov := 2 * (1 + mu) / ((1 + 2*mu) * (1 - mu)) // (28): z² − (1 + μ)(1 − ηλ)·z + μ·(1 − ηλ) has the root −1 there
		for mode, part := range map[string]float64{"ssgd": .98, "groups=0-5,7+6": 1, "x=7": 1, "x=6": 1, "x=4": .9, "x=2": .7, "asgd": .6} {
			p, err := modes.Parse(mode, n)
			if err != nil {
				t.Fatal(err)
			}
			if got := edge(p, times, mu, ofEach) / nesterov; got < part || mode == "ssgd" && got > 1.02 {
				t.Errorf("momentum %v: %s bears %.2f of Nesterov's limit in SSGD, want %v or more", mu, mode, got, part)
			}
		}
	}
	for mode, least := range map[string]float64{"x=7": 25, "groups=0-5,7+6": 25} { // which waits for all but one
		p, err := modes.Parse(mode, n)
		if err != nil {
			t.Fatal(err)
		}
		if got := edge(p, times, .9, ofAll); got < least {
			t.Errorf("%s bears %.2f, want more than %v", mode, got, least)
		}
	}
}

// With momentum a plan that is hardly ever stale is chosen where without it ASGD would be, and it brings nearly as
// much. Without stragglers SSGD is the cheapest all the same, and where noise dominates, or steps are small, ASGD is.
func TestMomentumMakesStalenessDear(t *testing.T) {
	one := []time.Duration{600 * time.Millisecond, 610 * time.Millisecond, 1830 * time.Millisecond, 620 * time.Millisecond}
	steep := price.PriorSteepness(.9)
	for _, c := range []struct {
		name   string
		times  []time.Duration
		nu     float64
		behind float64 // most rounds
		least  float64 // the cost relative to SSGD is at most this
		asgd   bool
	}{
		{"without momentum", one, 0, 1, .5, true},
		{"little of it", one, price.PriorSteepness(.3), 1, .5, true},
		{"momentum", one, steep, .31, .55, false},
		{"measured to be small", one, 2, 1, .5, true},
		{"nobody is slow", []time.Duration{6e8, 6e8, 6e8, 6e8}, steep, 0, 1, false},
	} {
		f := price.Forecast{Times: c.times, Batch: 32, Noise: 1e4, Steepness: c.nu}
		cs, err := price.Candidates(f)
		if err != nil {
			t.Fatal(err)
		}
		best, cost := cs[0], 0.0
		for _, k := range cs {
			if k.Kind == price.KindSSGD && k.Plan.Shares == nil {
				cost = k.Cost.Seconds()
			}
		}
		if d := 1 - best.Samples/float64(32*len(c.times)); d > c.behind+1e-9 || best.Cost.Seconds() > c.least*cost+1e-9 || (best.Kind == price.KindASGD) != c.asgd {
			t.Errorf("%s: %v, %.2f rounds late, at %.2f of SSGD's cost; want at most %.2f late and %.2f, ASGD: %v", c.name, best.Plan, d, best.Cost.Seconds()/cost, c.behind, c.least, c.asgd)
		}
		d, err := price.Cheapest{}.Decide(f)
		if err != nil || !d.Plan.Equal(best.Plan) {
			t.Errorf("%s: decided %v, %v; the cheapest candidate is %v", c.name, d.Plan, err, best.Plan)
		}
	}
}

// Many workers, two of them slow: the groups that are found are those of the best partition under the strain, not the
// one of the least waiting.
func TestGroupsUnderStrain(t *testing.T) {
	times := make([]time.Duration, 12)
	for w := range times {
		times[w] = time.Duration(600+5*w) * time.Millisecond
	}
	times[3], times[9] = 1900*time.Millisecond, 3100*time.Millisecond
	cost := func(nu float64) float64 {
		cs, err := price.Candidates(price.Forecast{Times: times, Batch: 16, Noise: 200, Steepness: nu})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if c.Kind == price.KindGroups && c.Plan.Shares == nil {
				return c.Cost.Seconds()
			}
		}
		t.Fatal("no groups")
		return 0
	}
	if free, steep := cost(0), cost(30); steep > 1.6*free {
		t.Errorf("groups cost %.3f s under strain, %.3f without: they were chosen without regard to it", steep, free)
	}
}

// (26) beside what LeNet paid at three learning rates (bench/RESULTS.md): within a quarter below and a third above,
// where it is known.
func TestStrain(t *testing.T) {
	const n, batch = 8, 16
	same := make([]time.Duration, n)
	for w := range same {
		same[w] = 600 * time.Millisecond
	}
	for _, row := range []struct {
		nu   float64
		paid map[int]float64 // samples beside SSGD's, by x
	}{
		{7.0, map[int]float64{7: 1.00, 6: 1.03, 4: 1.20, 2: 1.46, 1: 1.34}},
		{13.3, map[int]float64{7: 1.04, 6: 1.14, 4: 1.61, 2: 2.18, 1: 2.27}},
		{14.2, map[int]float64{7: .99, 6: 1.16, 4: 2.32}},
	} {
		for x, paid := range row.paid {
			cost := func(nu float64) float64 {
				c, err := price.Of(modes.XOrder(n, x), price.Forecast{Times: same, Batch: batch, Steepness: nu})
				if err != nil {
					t.Fatal(err)
				}
				return c.Cost.Seconds()
			}
			if h := cost(row.nu) / cost(0); h < paid*3/4 || h > paid*4/3 {
				t.Errorf("ν = %v, x=%d: %.2f; LeNet paid %.2f", row.nu, x, h, paid)
			}
		}
	}
}
