package bench

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The half widths are those of the tabulated quantiles 12.7062, 2.7764 and 2.20099, times the standard error.
func TestInterval(t *testing.T) {
	for _, x := range []struct {
		xs         []float64
		mean, half float64
	}{
		{[]float64{1, 3}, 2, 12.7062},
		{[]float64{1, 2, 3, 4, 5}, 3, 1.9632},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 6.5, 2.2909},
	} {
		mean, half := Interval(x.xs)
		if math.Abs(mean-x.mean) > 1e-9 || math.Abs(half-x.half) > 5e-4 {
			t.Errorf("%v: %v ± %v, want %v ± %v", x.xs, mean, half, x.mean, x.half)
		}
	}
	if _, half := Interval([]float64{4}); !math.IsNaN(half) {
		t.Errorf("one value: ± %v", half)
	}
}

// A benchmark that was interrupted in the middle of a line goes on where it was, and the result is that of one run
// without interruption, whatever runs at the same time.
func TestTTAInSittings(t *testing.T) {
	if testing.Short() {
		t.Skip("18 jobs in virtual time")
	}
	dir := t.TempDir()
	scenario := filepath.Join(dir, "slow.yaml")
	if err := os.WriteFile(scenario, []byte("workers: 3\ntimes: {2: 1800ms}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "runs.jsonl")
	var mu sync.Mutex
	made := 0
	cfg := TTAConfig{
		Own:    &TTATask{Name: "own", Model: "softmax", Dataset: "digits:n=300,test=100", Round: 12, Rounds: 20, Target: 0.3, Loss: [2]float64{2.2, 1.5}, Tests: 50, Rates: []float64{0.1, 0.2}},
		Arches: []string{ArchPS, ArchRing}, Scenarios: []string{scenario}, Methods: []string{"ssgd", "auto", "lgc", "zeno++", "rider-1", "x=2@best"}, Seeds: 2, Jobs: 2,
		Progress: func(TTAResult, bool, int, int) { mu.Lock(); made++; mu.Unlock() },
	}
	first, err := TTA(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 2*5+2*4 { // zeno++ and x=2 have no ring, rider-1 nothing else
		t.Fatalf("%d runs", len(first))
	}
	for _, r := range first {
		if r.Samples < 12*20 || r.Updates == 0 || r.Bytes <= 0 || r.Scenario != "slow" || math.Abs(r.Bound-0.57) > 0.01 {
			t.Errorf("%+v", r)
		}
		if r.Method == "ssgd" && r.Arch == ArchPS && r.Bytes != 2*4*int64(r.Params)*3*r.Updates || r.Method == "ssgd" && r.Arch == ArchRing && r.Bytes != 2*4*int64(r.Params)*2*r.Updates {
			t.Errorf("%s: %d bytes in %d updates of %d parameters by 3 workers", r.Arch, r.Bytes, r.Updates, r.Params)
		}
	}
	cfg.Out, cfg.Jobs = out, 1
	if _, err := TTA(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	half := bytes.Join(lines[:len(lines)/2], nil)
	if err := os.WriteFile(out, append(half, lines[len(lines)/2][:40]...), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := TTA(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range first {
		a, b := first[i], again[i]
		if a.Reached != b.Reached || a.Reached && *a.TTA != *b.TTA {
			t.Errorf("%s, seed %d: time %v and %v", a.Method, a.Seed, a.TTA, b.TTA)
		}
		a.TTA, b.TTA = nil, nil
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%+v\n%+v", a, b)
		}
	}
	now, err := os.ReadFile(out)
	if err != nil || !bytes.HasPrefix(now, half) || bytes.Count(now, []byte("\n")) != len(lines)-1 {
		t.Errorf("the journal has %d lines, and had %d (%v)", bytes.Count(now, []byte("\n")), len(lines)-1, err)
	}
	if err := os.WriteFile(out, append(half, "{\"key\":\"a\"}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := TTA(t.Context(), cfg); !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), fmt.Sprintf("runs.jsonl:%d", len(lines)/2+1)) {
		t.Errorf("a line that is no run: %v", err)
	}
}

// An update of six of eight gradients is as long with firing as with n at 4/3 of the rate. The journal keeps runs with
// firing apart. An update of LGC is always a mean.
func TestTTAUpdateScale(t *testing.T) {
	dir := t.TempDir()
	run := func(method, scale string, times float64) TTAResult {
		rs, err := TTA(t.Context(), TTAConfig{
			Own:    &TTATask{Name: "own", Model: "softmax", Dataset: "digits:n=300,test=100", Round: 32, Rounds: 20, Target: 0.3, Loss: [2]float64{2.2, 1.5}, Tests: 50},
			Arches: []string{ArchPS}, Scenarios: []string{"one-3x"}, Methods: []string{method}, Rates: []float64{0.03}, RateTimes: times,
			Optimizer: "dana", Momentum: 0.9, UpdateScale: scale, Seeds: 1, Out: filepath.Join(dir, "runs.jsonl"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return rs[0]
	}
	for _, method := range []string{"backup=2", "x=6"} {
		n, firing, longer := run(method, "", 1), run(method, "firing", 1), run(method, "n", 4.0/3)
		if len(firing.Levels) == 0 || len(firing.Levels) != len(longer.Levels) || reflect.DeepEqual(firing.Levels, n.Levels) {
			t.Fatalf("%s: levels at %v, with firing at %v, at 4/3 of the rate at %v", method, n.Levels, firing.Levels, longer.Levels)
		}
		for k := range firing.Levels {
			if math.Abs(firing.Levels[k]/longer.Levels[k]-1) > 1e-3 {
				t.Errorf("%s: level %d at %g s with firing, at %g s at 4/3 of the rate", method, k, firing.Levels[k], longer.Levels[k])
			}
		}
	}
	if a, b := run("lgc", "", 1), run("lgc", "firing", 1); !reflect.DeepEqual(a.Levels, b.Levels) {
		t.Errorf("lgc: levels at %v and %v", a.Levels, b.Levels)
	}
}

// A learning rate is the best only if all of its runs arrive, beyond the given ones if the best is at the end, the
// smaller of two that are alike; what cannot be the best is given up.
func TestFindRate(t *testing.T) {
	for name, x := range map[string]struct {
		times map[float64][]float64 // of three runs; 0: it does not arrive
		want  float64
		runs  int // that are made
	}{
		"the least mean":              {map[float64][]float64{1: {50, 50, 50}, 2: {30, 40, 35}, 4: {60, 9, 9}, 8: {90, 90, 90}}, 4, 12},
		"between":                     {map[float64][]float64{1: {50, 50, 50}, 2: {30, 40, 35}, 2.828: {20, 20, 20}, 4: {60, 60, 9}, 8: {90, 90, 90}}, 2.828, 14},
		"the edge of what is stable":  {map[float64][]float64{1: {50, 50, 50}, 2: {40, 40, 40}, 4: {20, 20, 0}, 8: {0, 0, 0}}, 2, 12},
		"alike":                       {map[float64][]float64{1: {50, 50, 50}, 2: {41, 41, 41}, 4: {40, 40, 40}, 8: {60, 60, 60}}, 2, 13},
		"beyond the largest":          {map[float64][]float64{1: {90, 90, 90}, 2: {80, 80, 80}, 4: {70, 70, 70}, 8: {40, 40, 40}, 16: {20, 20, 20}, 32: {0, 0, 0}}, 16, 18},
		"below the smallest":          {map[float64][]float64{0.25: {50, 50, 50}, 0.5: {30, 30, 30}, 1: {40, 40, 40}, 2: {0, 50, 50}, 4: {0, 0, 0}, 8: {0, 0, 0}}, 0.5, 13},
		"none with all":               {map[float64][]float64{1: {0, 0, 90}, 2: {0, 60, 70}, 4: {0, 0, 0}, 8: {0, 0, 9}}, 2, 18},
		"a sum that is no more to do": {map[float64][]float64{1: {40, 40, 40}, 2: {100, 1, 1}, 4: {121, 1, 1}, 8: {119, 2, 1}}, 2, 10},
	} {
		runs := 0
		got, _, err := findRate([]float64{4, 1, 8, 2}, func(rate float64, best tried) (tried, error) {
			return attempt(3, best, true, func(k int, limit float64) (TTAResult, error) {
				runs++
				sec := 0.0
				if all := x.times[rate]; all != nil {
					sec = all[k]
				}
				if sec == 0 || limit > 0 && sec > limit {
					return TTAResult{}, nil
				}
				return TTAResult{Levels: slices.Repeat([]float64{sec}, ttaLevels)}, nil
			})
		})
		if err != nil || got != x.want || runs != x.runs {
			t.Errorf("%s: rate %g after %d runs, %v; want %g after %d", name, got, runs, err, x.want, x.runs)
		}
	}
}

// runs makes results of a method with the given times; 0: not reached.
func runs(scenario, method string, bound, accuracy float64, times ...float64) (rs []TTAResult) {
	for i, s := range times {
		r := TTAResult{Task: "t", Arch: ArchPS, Scenario: scenario, Bound: bound, Method: method, Seed: uint64(i + 1), Accuracy: accuracy, Seconds: 500}
		if s > 0 {
			r.TTA, r.Reached = &s, true
		}
		rs = append(rs, r)
	}
	return rs
}

// sending sets the bytes of each run.
func sending(bytes int64, rs []TTAResult) []TTAResult {
	for i := range rs {
		rs[i].Bytes = bytes
	}
	return rs
}

// Goals are met at their limits and not beyond; a run that does not arrive meets no goal.
func TestTTAGoals(t *testing.T) {
	const saves, geo, behind, accuracy, still, hindsight = 0, 1, 2, 3, 4, 5
	join := func(parts ...[]TTAResult) (rs []TTAResult) {
		for _, p := range parts {
			rs = append(rs, p...)
		}
		return rs
	}
	for name, x := range map[string]struct {
		rs  []TTAResult
		met map[int]bool // not in it: not measured
	}{
		"good": {
			join(runs("slow", "ssgd", 0.5, 0.9, 100, 100), runs("slow", "x=7", 0.5, 0.9, 64, 64), runs("slow", "auto", 0.5, 0.896, 60, 70), runs("slow", "lb-bsp", 0.5, 0.9, 76, 78), runs("slow", "zeno++:rho=1", 0.5, 0.9, 0, 10),
				runs("calm", "ssgd", 0.04, 0.9, 100, 100), runs("calm", "auto", 0.04, 0.9, 101, 100.5)),
			map[int]bool{saves: true, geo: true, behind: true, accuracy: true, still: true, hindsight: true},
		},
		"tooSlow": {
			join(runs("slow", "ssgd", 0.5, 0.9, 100, 100), runs("slow", "auto", 0.5, 0.894, 65, 66), runs("slow", "lgc", 0.5, 0.9, 62, 62)),
			map[int]bool{saves: false, geo: false, behind: false, accuracy: false, hindsight: true},
		},
		"lost": {
			join(runs("slow", "ssgd", 0.5, 0.9, 100, 100), runs("slow", "auto", 0.5, 0.9, 50, 0), runs("slow", "lgc", 0.5, 0.9, 62, 62)),
			map[int]bool{saves: false, geo: false, behind: false, accuracy: true, hindsight: false},
		},
		"localSGD": { // ahead of auto, so it counts as the best baseline
			join(runs("slow", "ssgd", 0.5, 0.9, 100, 100), runs("slow", "auto", 0.5, 0.9, 50, 52), runs("slow", "lgc", 0.5, 0.9, 90, 90), runs("slow", "post-local-sgd:steps=4", 0.5, 0.9, 48, 48)),
			map[int]bool{saves: true, geo: false, behind: false, accuracy: true, hindsight: true},
		},
		"fewerExchanges": { // more than all of the bound is not what the bound is of
			join(sending(400, runs("push", "ssgd", 0.1, 0.9, 100, 100)), sending(100, runs("push", "auto", 0.1, 0.9, 40, 40)),
				sending(400, runs("slow", "ssgd", 0.5, 0.9, 100, 100)), sending(400, runs("slow", "auto", 0.5, 0.9, 80, 80))),
			map[int]bool{saves: false, accuracy: true, hindsight: true},
		},
		"noBaseline": {
			join(runs("calm", "ssgd", 0.04, 0.9, 100, 100), runs("calm", "auto", 0.04, 0.9, 102, 102)),
			map[int]bool{accuracy: true, still: false, hindsight: true},
		},
	} {
		for i, g := range TTAGoals(x.rs) {
			met, measured := x.met[i]
			if g.Measured != measured || measured && g.Met != met {
				t.Errorf("%s: %s: measured %v, met %v (%s); want %v, %v", name, g.Name, g.Measured, g.Met, g.Detail, measured, met)
			}
			if name == "fewerExchanges" && i == saves && strings.Contains(g.Detail, "push") {
				t.Errorf("%s: %s", g.Name, g.Detail)
			}
		}
	}
	c := TTACases(runs("slow", "ssgd", 0.5, 0.9, 100, 0))[0]
	if !math.IsInf(c.SSGD.Mean, 1) || c.SSGD.Arrived != 1 || len(TTAMeasures(runs("slow", "ssgd", 0.5, 0.9, 100, 0))) != 0 {
		t.Errorf("a run that did not arrive counts: %+v", c.SSGD)
	}
}

// A difference counts where each value is outside of where the other one mostly lies; without scatter, where it is a
// fifth or more.
func TestVerdict(t *testing.T) {
	for _, x := range []struct {
		old, now Measure
		want     string
	}{
		{Measure{Value: 10, Low: 9, High: 11}, Measure{Value: 8, Low: 7.5, High: 9.5}, "faster"},
		{Measure{Value: 10, Low: 9, High: 11}, Measure{Value: 8, Low: 7.5, High: 10.5}, "within noise"},
		{Measure{Value: 10, Low: 7, High: 11}, Measure{Value: 8, Low: 7.5, High: 9.5}, "within noise"},
		{Measure{Value: 8, Low: 7.5, High: 9.5}, Measure{Value: 10, Low: 9, High: 11}, "slower"},
		{Measure{Value: 10}, Measure{Value: 8.4}, "within noise"},
		{Measure{Value: 10}, Measure{Value: 8.3}, "faster"},
		{Measure{Value: 10}, Measure{Value: 12.1}, "slower"},
	} {
		if got := Verdict(x.old, x.now); got != x.want {
			t.Errorf("%+v, then %+v: %s, want %s", x.old, x.now, got, x.want)
		}
	}
	cs := CompareMeasures([]Measure{{Name: "a", Value: 2}}, []Measure{{Name: "a", Value: 1}, {Name: "b", Value: 1}})
	if cs[0].Ratio != 2 || cs[0].Verdict != "faster" || cs[1].Old != nil || cs[1].Verdict != "new" {
		t.Errorf("%+v", cs)
	}
}
