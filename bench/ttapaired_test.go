package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
)

// leveled makes runs of a method with seeds 1, 2, …, with levels at times · 1, 2, … ; they end at 500 s.
func leveled(scenario, method string, levels int, times ...float64) (rs []TTAResult) {
	for i, t := range times {
		r := TTAResult{Task: "t", Arch: ArchPS, Scenario: scenario, Bound: 0.5, Method: method, Seed: uint64(i + 1), Seconds: 500}
		for k := range levels {
			r.Levels = append(r.Levels, t*float64(k+1))
		}
		rs = append(rs, r)
	}
	return rs
}

// A level that only one reached counts at the end of the longer run; one that neither did does not count.
func TestCompareRuns(t *testing.T) {
	one := func(levels ...float64) TTAResult { return TTAResult{Levels: levels, Seconds: 100} }
	for name, x := range map[string]struct {
		a, b TTAResult
		want float64
		late int
		ok   bool
	}{
		"both":     {one(10, 20), one(20, 20), math.Log(0.5) / 2, 0, true},
		"only b":   {one(10), one(10, 20), math.Log(5) / 2, 1, true},
		"only a":   {one(10, 50), TTAResult{Levels: []float64{10}, Seconds: 200}, math.Log(0.25) / 2, -1, true},
		"diverged": {TTAResult{}, one(50), math.Log(2), 1, true},
		"neither":  {one(), one(), 0, 0, false},
	} {
		log, late, ok := compareRuns(x.a, x.b, byLevels)
		if math.Abs(log-x.want) > 1e-12 || late != x.late || ok != x.ok {
			t.Errorf("%s: %v, %d late, %v; want %v, %d, %v", name, log, late, ok, x.want, x.late, x.ok)
		}
	}
}

// With as many scenarios for each seed the interval is that of the seeds' means: what two scenarios of a seed have in
// common makes it no narrower. Below five clusters there is no interval.
func TestPool(t *testing.T) {
	var xs []seen
	means := []float64{0.1, -0.2, 0.3, 0, 0.05, -0.1}
	for i, m := range means {
		xs = append(xs, seen{"s", uint64(i), m + 0.01, 0}, seen{"t", uint64(i), m - 0.01, 1})
	}
	p := pool(xs)
	mean, half := Interval(means)
	if math.Abs(p.Ratio-math.Exp(mean)) > 1e-12 || math.Abs(p.Low-math.Exp(mean-half)) > 1e-12 || math.Abs(p.High-math.Exp(mean+half)) > 1e-12 {
		t.Errorf("%+v, want %v, %v to %v", p, math.Exp(mean), math.Exp(mean-half), math.Exp(mean+half))
	}
	if p.Seeds != 6 || p.Scenarios != 2 || p.Late != 6 || !math.IsNaN(p.Wide) {
		t.Errorf("%+v", p)
	}
	if q := pool(xs[:8]); !math.IsNaN(q.Low) || math.IsNaN(q.Ratio) {
		t.Errorf("of four seeds: %+v", q)
	}
}

// The baseline that is chosen on the one half of the seeds is judged on the other one; the least is that of the runs
// that judge. So of two that differ by luck alone the least is before both, the chosen one is not.
func TestAgainstChosen(t *testing.T) {
	rs := slices.Concat(
		leveled("s", "auto", 12, 10, 10, 10, 10),
		leveled("s", "lgc", 12, 10, 20, 10, 20), // good with the first and third seed
		leveled("s", "lb-bsp", 12, 21, 10, 21, 10),
		leveled("s", "zeno++@best", 12, 1, 1, 1, 1),
	)
	p := NewTTAPairs(rs)
	others := p.baselines(false)
	if !slices.Equal(others, []string{"lgc", "lb-bsp"}) || !slices.Equal(p.baselines(true), []string{"zeno++@best"}) {
		t.Fatalf("baselines %v and %v", others, p.baselines(true))
	}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("lgc", p.Against("auto", "lgc", p.Scenarios, byLevels).Ratio, math.Sqrt(0.5))
	chosen, names := p.AgainstChosen("auto", others, p.Scenarios, false, byLevels)
	if len(names) != 2 {
		t.Errorf("chosen: %v", names)
	}
	near("chosen on other seeds", chosen.Ratio, math.Sqrt(10.0/20*10/21))
	near("the least", p.AgainstLeast("auto", others, p.Scenarios, byLevels).Ratio, math.Sqrt(0.5))
}

// The share of the bound has the bounds of the ratio, turned round.
func TestShare(t *testing.T) {
	p := NewTTAPairs(slices.Concat(leveled("s", "ssgd", 12, 10, 10, 10, 10, 10), leveled("s", "auto", 12, 6, 7, 8, 7, 7)))
	r := p.Against("auto", "ssgd", p.Scenarios, byLevels)
	share, low, high := p.Share("s")
	if math.Abs(share-(1-r.Ratio)/0.5) > 1e-12 || !(low < share && share < high) || math.Abs(high-(1-r.Low)/0.5) > 1e-12 {
		t.Errorf("%v, %v to %v, of %+v", share, low, high, r)
	}
}

// Times for all samples are beside those to levels, and what fewer exchanges save is marked as such.
func TestTTAPairsReport(t *testing.T) {
	rs := slices.Concat(sending(400, leveled("s", "ssgd", 12, 10, 10)), sending(100, leveled("s", "auto", 12, 5, 5)), sending(100, leveled("s", "local-sgd:steps=4", 12, 4, 4)))
	for i := range rs {
		if rs[i].Seconds = 100; rs[i].Method == "auto" {
			rs[i].Seconds = 25
		}
	}
	var b strings.Builder
	if err := TTAMarkdown(&b, rs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| ssgd |  | 0.500 | 0.250 |", "| local-sgd:steps=4 |  | 1.250 | 0.250 |", "| by local-sgd:steps=4 |", "| s | 0.50 | 0.500 | 0.250 | – | 1.00, fewer exchanges | 1.250 |",
		"| – | –, fewer exchanges | 0.500 | 0.250 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// There are at least ten scenarios that judge, of 4 to 16 workers, and where a network is shared the times of two of a
// rack have a correlation of 0.3 to 0.6.
func TestHeld(t *testing.T) {
	fewest, most := 1000, 0
	for _, name := range spread([]string{held}) {
		s, err := openScenario(name, "")
		if err != nil {
			t.Fatal(err)
		}
		if s.name != name || !s.held || s.bound < 0 || s.bound > 0.9 {
			t.Errorf("%s: %+v", name, s)
		}
		fewest, most = min(fewest, s.workers), max(most, s.workers)
		if name != "held-5" && name != "held-6" {
			continue
		}
		c, err := s.cluster(1, ArchPS)
		if err != nil {
			t.Fatal(err)
		}
		const steps, shared = 2000, 6
		var times [shared][]float64
		for k := range int64(steps) {
			for w := range shared {
				times[w] = append(times[w], c.Times.Spend(star.Worker(w), k, time.Duration(k)*time.Second, 1).Total().Seconds())
			}
		}
		sum, n := 0.0, 0.0
		for v := range shared {
			for w := range v {
				sum, n = sum+correlation(times[v], times[w]), n+1
			}
		}
		if mean := sum / n; mean < 0.3 || mean > 0.6 {
			t.Errorf("%s: the mean correlation is %.2f", name, mean)
		}
	}
	if fewest > 4 || most < 16 || len(TTAHeld()) < 10 {
		t.Errorf("%d scenarios of %d to %d workers", len(TTAHeld()), fewest, most)
	}
}

func correlation(x, y []float64) float64 {
	mx, my := 0.0, 0.0
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(y))
	}
	var xy, xx, yy float64
	for i := range x {
		xy, xx, yy = xy+(x[i]-mx)*(y[i]-my), xx+(x[i]-mx)*(x[i]-mx), yy+(y[i]-my)*(y[i]-my)
	}
	return xy / math.Sqrt(xx*yy)
}
