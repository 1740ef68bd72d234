package baseline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

func TestApportion(t *testing.T) {
	for _, c := range []struct {
		total       int
		speeds      []float64
		least, most int
		want        []int
	}{
		{512, []float64{3, 1, 2, 2}, 1, 512, []int{192, 64, 128, 128}},
		{128, []float64{5, 3, 2}, 1, 128, []int{64, 38, 26}},
		{100, []float64{1, 1, 1}, 1, 100, []int{34, 33, 33}},
		{100, []float64{8, 1, 1}, 1, 50, []int{50, 25, 25}},
		{100, []float64{98, 1, 1}, 10, 100, []int{80, 10, 10}},
		{12, []float64{0, math.NaN(), 2, math.Inf(1)}, 1, 12, []int{3, 3, 3, 3}},
		{9, []float64{0, 0, 0}, 1, 9, []int{3, 3, 3}},
	} {
		got, err := Apportion(c.total, c.speeds, c.least, slices.Repeat([]int{c.most}, len(c.speeds)))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%d by %v within %d..%d: %v, %v, want %v", c.total, c.speeds, c.least, c.most, got, err, c.want)
		}
	}
	// Each has a bound of its own: 100 by 8 : 1 : 1 are 80, 10, 10; the first holds 30, and of the 70 others the last
	// holds 20.
	got, err := Apportion(100, []float64{8, 1, 1}, 1, []int{30, 100, 20})
	if err != nil || !slices.Equal(got, []int{30, 50, 20}) {
		t.Error(got, err)
	}
	for want, c := range map[string]struct {
		total, least int
		most         []int
	}{
		"3 workers hold 3 to 150 samples, and have to hold 151":                             {151, 1, []int{50, 50, 50}},
		"3 workers hold 30 to 150 samples, and have to hold 29":                             {29, 10, []int{50, 50, 50}},
		"worker 1 is to have at least 10 and at most 9 samples":                             {60, 10, []int{50, 9, 50}},
		"2 bounds for 3 workers":                                                            {60, 10, []int{50, 9}},
		"9223372036854775807 samples for 3 workers of at least 1 each: want 0 to":           {math.MaxInt, 1, []int{math.MaxInt, math.MaxInt, math.MaxInt}},
		"worker 0 is to have at least 1 and at most 9223372036854775807 samples":            {60, 1, []int{math.MaxInt, math.MaxInt, math.MaxInt}},
		"60 samples for 3 workers of at least 9223372036854775807 each: want 0 to":          {60, math.MaxInt, []int{50, 50, 50}},
		"-1 samples for 3 workers of at least 0 each: want 0 to 1099511627776, and at most": {-1, 0, []int{50, 50, 50}},
	} {
		if got, err := Apportion(c.total, []float64{1, 2, 3}, c.least, c.most); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want %q", got, err, want)
		}
	}
}

// With cap_i of its own no worker is ever given more than its memory holds, from the first plan on, and a round stays
// whole while they hold it.
func TestBalanceKeepsEachCap(t *testing.T) {
	spec, err := Parse("lb-bsp:max=100/40/20,predictor=last")
	if err != nil {
		t.Fatal(err)
	}
	m, err := spec.Make(Job{Workers: 3, Batch: 32})
	if err != nil || !slices.Equal(m.Plan.Shares, []int{38, 38, 20}) {
		t.Fatal(m.Plan.Shares, err)
	}
	fire := func(speeds ...float64) []int {
		for w, v := range speeds {
			if v > 0 {
				m.Scheme.Observe(star.Record{Worker: star.Worker(w), Samples: 1000, Compute: time.Duration(1000 / v * float64(time.Second))})
			}
		}
		d, _ := m.Scheme.Fired(Update{})
		return d.Plan.Shares
	}
	if got := fire(1, 100, 100); !slices.Equal(got, []int{36, 40, 20}) {
		t.Errorf("the fast ones hold little: %v", got)
	}
	m.Scheme.Leave(0)
	if got := fire(0, 100, 100); !slices.Equal(got, []int{36, 40, 20}) && got != nil {
		t.Errorf("with worker 0 gone the others hold 60 of 64: %v", got)
	}
	tuned, err := Parse("lb-bsp:device=gpu,max=60/40/32,window=1,delta=8")
	if err != nil {
		t.Fatal(err)
	}
	if m, err = tuned.Make(Job{Workers: 3, Batch: 32}); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		d, ok := m.Scheme.Fired(Update{})
		for w := range 3 {
			m.Scheme.Observe(star.Record{Worker: star.Worker(w), Samples: 32, Compute: time.Duration(3-w) * time.Second})
		}
		if ok && (d.Plan.Shares[0] > 60 || d.Plan.Shares[1] > 40 || d.Plan.Shares[2] > 32) {
			t.Errorf("gpu: %v", d.Plan.Shares)
		}
	}
}

// Of two workers the detector flags none, however slow one is, and the user that starts the job gets a warning.
func TestNobodyOfTwoIsSlow(t *testing.T) {
	for n, want := range map[int]bool{2: false, 3: true} {
		d := NewThroughput(n, 5, 3, 0.9)
		found := false
		for range 20 {
			for w := range n {
				speed := 100.0
				if w == 1 {
					speed = 1
				}
				d.Observe(star.Worker(w), speed)
			}
			found = found || len(d.Judge(func(star.Worker) bool { return true })) > 0
		}
		spec, err := Parse("sync-switch:online=greedy")
		if err != nil {
			t.Fatal(err)
		}
		m, err := spec.Make(Job{Workers: n, Batch: 8})
		if err != nil || found != want || (m.Notice == "") != want {
			t.Errorf("%d workers: found %v, notice %q, %v", n, found, m.Notice, err)
		}
	}
}

// At all speeds the total and the bounds are kept, and a faster worker gets no less.
func TestApportionKeepsTheTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		least := rapid.IntRange(1, 20).Draw(t, "least")
		most := least + rapid.IntRange(0, 200).Draw(t, "room")
		total := rapid.IntRange(n*least, n*most).Draw(t, "total")
		speeds := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e6), n, n).Draw(t, "speeds")
		got, err := Apportion(total, speeds, least, slices.Repeat([]int{most}, n))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for i, b := range got {
			sum += b
			if b < least || b > most {
				t.Fatalf("%v within %d..%d", got, least, most)
			}
			for j := range got {
				if speeds[i] > speeds[j] && got[i] < got[j] {
					t.Fatalf("%v gives worker %d less than %d, which is slower: %v", speeds, i, j, got)
				}
			}
		}
		if sum != total {
			t.Fatalf("%v are %d samples, want %d", got, sum, total)
		}
	})
}

// Weights by batch size: what a plan with shares gives (coord's scale n), and the pre-scaled form for a plain mean.
func TestWeights(t *testing.T) {
	b, err := Apportion(512, []float64{3, 1, 2, 2}, 1, []int{512, 512, 512, 512})
	if err != nil {
		t.Fatal(err)
	}
	g := []float64{1, 5, 2, 3}
	weighted, scaled := 0.0, 0.0
	for i := range b {
		weighted += float64(b[i]) / 512 * g[i]
		scaled += float64(b[i]) / 128 * g[i] / 4
	}
	if weighted != 2.25 || scaled != 2.25 {
		t.Errorf("%v and %v, want 2.25", weighted, scaled)
	}
}

func TestEMA(t *testing.T) {
	for a, want := range map[float64]float64{0.2: 82, 0.5: 62.5, 1: 50} {
		e := EMA{Weight: a}
		for _, v := range []float64{100, 100, 50, 50} {
			e.Observe(v)
		}
		if math.Abs(e.Predict()-want) > 1e-12 {
			t.Errorf("a = %v: %v, want %v", a, e.Predict(), want)
		}
	}
}

func TestNARXForward(t *testing.T) {
	n := NARX{W1: [][]float64{{.5, .4, -.1, .2, 0}, {-.3, .1, .2, 0, .1}}, B1: []float64{.1, -.2}, W2: []float64{1.2, -.7}, B2: .3}
	out, hidden := n.Forward([]float64{.8, .9, .5, .6, .6})
	for i, want := range []float64{0.7305938961, -0.1877462059, 1.3081350194} {
		if got := append(hidden, out)[i]; math.Abs(got-want) > 1e-10 {
			t.Errorf("value %d is %.10f, want %.10f", i, got, want)
		}
	}
}

// The gradient of the squared error, by differences: a step of Adam goes against it.
func TestNARXLearns(t *testing.T) {
	f := newForesight(3, 0.2)
	// Processor time that is free decides the speed: the network can know, a moving average cannot.
	late, early := 0.0, 0.0
	for k := range 4000 {
		cpu := 0.3 + 0.6*math.Abs(math.Sin(float64(k)*1.7))
		if k > 100 {
			e := 0.0
			if d := f.last - 200*f.cpus[len(f.cpus)-1]; f.said {
				e = d * d
			}
			if k < 600 {
				early += e / 500
			} else if k >= 3500 {
				late += e / 500
			}
		}
		f.observe(200*cpu, cpu, 0.5)
	}
	if !(late < early) || math.IsNaN(late) {
		t.Errorf("mean squared error %v at first, %v in the end", early, late)
	}
}

// GPUs that take max(50, m·b + 10): the moves of the spec, and where they end.
func TestTuner(t *testing.T) {
	slope := []int{1, 1, 1, 2}
	tu := NewTuner([]int{128, 128, 128, 128}, 1, []int{1 << 20, 1 << 20, 1 << 20, 1 << 20}, 5, 5)
	moves := map[int][]int{5: {133, 128, 128, 123}, 10: {133, 133, 128, 118}, 15: {133, 133, 133, 113}, 20: {138, 133, 133, 108}}
	times := func() []time.Duration {
		var ts []time.Duration
		for i, b := range tu.shares {
			ts = append(ts, time.Duration(max(50, slope[i]*b+10)))
		}
		return ts
	}
	k := 0
	for !tu.holds && k < 1000 {
		k += tu.Window()
		tu.Step(times())
		if want, ok := moves[k]; ok && !slices.Equal(tu.shares, want) {
			t.Errorf("iteration %d: %v, want %v", k, tu.shares, want)
		}
	}
	if want := []int{146, 147, 146, 73}; k != 170 || !slices.Equal(tu.shares, want) {
		t.Errorf("stops at %d with %v, want 170 with %v", k, tu.shares, want)
	}
	if got := fmt.Sprint(times()); got != "[156ns 157ns 156ns 156ns]" {
		t.Errorf("times %s", got)
	}
	// Another worker becomes slow: after two windows the tuner restarts.
	slope[0] = 3
	if tu.Step(times()) || !tu.holds {
		t.Error("one bad window is enough")
	}
	if !tu.Step(times()) || tu.holds || tu.Window() != 5 || tu.shares[0] != 141 {
		t.Errorf("after two bad windows: %v, window %d, holds %v", tu.shares, tu.Window(), tu.holds)
	}
}

func TestWorkload(t *testing.T) {
	for _, c := range []struct {
		units    int64
		n        int
		p        float64
		bsp, asp int64
		total    int64
	}{
		{64000, 8, .0625, 500, 60000, 60500},
		{64000, 8, .05, 400, 60800, 61200},
		{128000, 8, .125, 2000, 112000, 114000},
		{64000, 16, .5, 2000, 32000, 34000},
	} {
		if b, a, s := Workload(c.units, c.n, c.p); b != c.bsp || a != c.asp || s != c.total {
			t.Errorf("%+v: %d, %d, %d", c, b, a, s)
		}
	}
}

func TestSwitchPoint(t *testing.T) {
	for _, c := range []struct {
		target float64
		got    map[float64]float64
		want   float64
	}{
		{.7462, map[float64]float64{.5: .7425, .25: .7505, .125: .7460, .0625: .7325}, .125},
		{.9188, map[float64]float64{.5: .9202, .25: .9186, .125: .9130, .0625: .9102}, .0625},
		{.9, map[float64]float64{.5: math.NaN(), .75: math.NaN(), .875: .8, .9375: .8}, 1},
	} {
		got := SwitchPoint(c.target, .01, 4, func(p float64) float64 {
			a, ok := c.got[p]
			if !ok {
				t.Errorf("%v: asked for %v", c.target, p)
			}
			return a
		})
		if got != c.want {
			t.Errorf("%v: %v, want %v", c.target, got, c.want)
		}
	}
}

func TestThreshold(t *testing.T) {
	parts := make([][][]time.Duration, 4)
	for w := range parts {
		parts[w] = make([][]time.Duration, 3)
		for s := range parts[w] {
			parts[w][s] = slices.Repeat([]time.Duration{100 * time.Millisecond}, 8)
		}
	}
	for m := range 8 {
		parts[3][0][m] = 150 * time.Millisecond
	}
	for m := 4; m < 8; m++ {
		parts[1][1][m] = 300 * time.Millisecond
	}
	parts[0][2][7] = 900 * time.Millisecond
	at, dropped := Threshold(parts, 4550*time.Millisecond)
	if math.Abs(at.Seconds()-0.7005025125628142) > 1e-9 || math.Abs(dropped-0.1770833) > 1e-6 {
		t.Errorf("%v drops %v, want 0.7005025125628142 s and 0.1770833", at.Seconds(), dropped)
	}
}

func TestParse(t *testing.T) {
	for _, e := range Entries() {
		s, err := Parse(e.Name)
		if err != nil {
			t.Errorf("%s: %v", e.Name, err)
			continue
		}
		again, err := Parse(s.String())
		if err != nil || again.String() != s.String() {
			t.Errorf("%s came back as %s, %v", s, again, err)
		}
		for _, set := range e.Settings {
			if set.Source != "paper" && set.Source != "ours" {
				t.Errorf("%s: the default of %s is from %q", e.Name, set.Name, set.Source)
			}
			if set.Default != "" {
				if err := set.check(set.Default); err != nil {
					t.Errorf("%s: the default of %s: %v", e.Name, set.Name, err)
				}
			}
		}
		for n := 1; n <= 9; n++ {
			m, err := s.Make(Job{Workers: n, Batch: 32})
			if strings.HasPrefix(e.Name, "artefact-") && n != 4 {
				if err == nil {
					t.Errorf("%s for %d workers", e.Name, n)
				}
				continue
			}
			if n == 1 && e.Name == "backup" {
				if err == nil {
					t.Error("one worker that is not waited for")
				}
				continue
			}
			if err != nil {
				t.Errorf("%s for %d workers: %v", e.Name, n, err)
				continue
			}
			if err := m.Plan.Validate(n); err != nil {
				t.Errorf("%s for %d workers: %v", e.Name, n, err)
			}
		}
	}
	for text, says := range map[string]string{
		"":                                  "unknown: want one of ad-psgd",
		"lbbsp":                             "sync-switch",
		"ssp:3":                             "not key=value",
		"ssp:s=3":                           "one of slack",
		"ssp:slack=-1":                      "want 0 to",
		"ssp:slack=x":                       "whole number",
		"ssp:slack=1,slack=2":               "twice",
		"lb-bsp:device=tpu":                 "one of cpu, gpu",
		"sync-switch:switch=NaN":            "want 0 to 1",
		"dropcompute:cap=1":                 "a duration",
		"dropcompute:cap=2h":                "want 0 to 3600 s",
		"easgd:beta=half":                   "a number",
		"ssp:" + strings.Repeat("y", 1<<16): "…",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) || len(err.Error()) > 600 {
			t.Errorf("%.40q: %v, want %q", text, err, says)
		}
	}
	for text, says := range map[string]string{
		"lb-bsp:min=33": "min=33", "lb-bsp:max=31": "max=31", "lb-bsp:max=64/64": "want one, or one for each of 4 workers", "lb-bsp:max=32/32/32/31": "4 workers hold 4 to 127 samples, and have to hold 128", "backup:b=4": "fewer than the 4", "k-sync:k=5": "at most the 4", "dropcompute:micro=33": "only 32",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _, err := s.Make(Job{Workers: 4, Batch: 32}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// cluster runs a scheme's plans on the Barrier; each arrival is of one of the computing workers, chosen by pick.
type cluster struct {
	b       *modes.Barrier
	m       Made
	n       int
	batch   int
	out     []bool
	given   []int // samples of the batch in hand
	step    []int64
	applied int64
	limit   int64
	plans   []modes.Plan
	whys    []string
	updates []int // gradients of each
	speed   func(w star.Worker, step int64) time.Duration
}

func begin(m Made, n, batch int, limit int64) *cluster {
	c := &cluster{b: modes.NewBarrier(m.Plan, n, 0), m: m, n: n, batch: batch, out: make([]bool, n), given: make([]int, n), step: make([]int64, n), limit: limit,
		speed: func(star.Worker, int64) time.Duration { return 100 * time.Millisecond }}
	for w := range n {
		c.release(star.Worker(w))
	}
	return c
}

func (c *cluster) release(w star.Worker) {
	c.out[w] = true
	c.given[w] = c.b.Plan().Share(w, c.batch) * max(1, c.b.Plan().Local)
}

func (c *cluster) arrive(w star.Worker) {
	c.out[w] = false
	if c.m.Scheme != nil {
		t := c.speed(w, c.step[w]) * time.Duration(c.given[w]) / time.Duration(c.batch)
		c.m.Scheme.Observe(star.Record{Worker: w, Step: c.step[w], Compute: t, Samples: c.given[w]})
	}
	c.step[w]++
	c.carry(c.b.Arrive(w))
}

func (c *cluster) carry(fs []modes.Firing) {
	type fired struct{ ws []star.Worker }
	var made []fired
	for _, f := range fs {
		for _, w := range f.Workers {
			c.applied += int64(c.given[w])
		}
		if len(f.Workers) > 0 {
			made = append(made, fired{slices.Clone(f.Workers)})
			c.updates = append(c.updates, len(f.Workers))
		}
		for w := range f.Released() {
			c.release(w)
		}
	}
	for _, f := range made {
		if c.m.Scheme == nil {
			continue
		}
		if d, ok := c.m.Scheme.Fired(Update{Workers: f.ws, Samples: c.applied, Limit: c.limit}); ok {
			c.plans, c.whys = append(c.plans, d.Plan), append(c.whys, d.Why)
			c.carry(c.b.Install(d.Plan))
		}
	}
}

// Every scheme makes progress for 1 to 9 workers, in any order of arrival and after any departures: while a worker
// lives, a worker computes, and when all computing workers have arrived often enough there are updates.
func TestProgress(t *testing.T) {
	texts := []string{"lb-bsp:device=gpu,window=1", "lb-bsp:predictor=ema,change=0", "sync-switch:online=greedy,window=1,hits=1,switch=0.8", "sync-switch:online=elastic,window=1,hits=1,switch=0.8", "dropcompute:after=2", "ssp:slack=0", "easgd:sync=yes"}
	for _, e := range Entries() {
		texts = append(texts, e.Name)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		s, err := Parse(rapid.SampledFrom(texts).Draw(t, "scheme"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Make(Job{Workers: n, Batch: 16})
		if err != nil {
			t.Skip(err)
		}
		c := begin(m, n, 16, 16*int64(n)*20)
		slow := star.Worker(rapid.IntRange(0, n-1).Draw(t, "slow"))
		c.speed = func(w star.Worker, _ int64) time.Duration {
			if w == slow {
				return time.Second
			}
			return 100 * time.Millisecond
		}
		for range 60 {
			var busy []star.Worker
			for w, out := range c.out {
				if out && c.b.Live(star.Worker(w)) {
					busy = append(busy, star.Worker(w))
				}
			}
			if len(busy) == 0 {
				for w := range n {
					if c.b.Live(star.Worker(w)) {
						t.Fatalf("%s, %v: nobody computes, %v wait", s, c.b.Plan(), c.b.Waiting())
					}
				}
				return
			}
			w := rapid.SampledFrom(busy).Draw(t, "w")
			if rapid.IntRange(0, 39).Draw(t, "leaves") == 0 {
				if c.m.Scheme != nil {
					c.m.Scheme.Leave(w)
				}
				c.carry(c.b.Leave(w))
				continue
			}
			c.arrive(w)
		}
		// In turns: each round has an update.
		for range 3 {
			before := c.b.Version()
			passes := 2
			for _, g := range c.b.Plan().Groups {
				if g.NonBlocking {
					passes = max(passes, g.Quorum) // one worker may have to bring them all
				}
			}
			for range passes {
				for w := range star.Worker(n) {
					if c.out[w] && c.b.Live(w) {
						c.arrive(w)
					}
				}
			}
			lives := false
			for w := range star.Worker(n) {
				lives = lives || c.b.Live(w)
			}
			if lives && c.b.Version() == before {
				t.Fatalf("%s, %v: rounds without an update; %v wait for %v", s, c.b.Plan(), c.b.Waiting(), c.b.Missing())
			}
		}
	})
}

// LB-BSP gives a worker that is three times slower a third of what the others get, and the sum stays.
func TestBalance(t *testing.T) {
	for _, text := range []string{"lb-bsp:predictor=last", "lb-bsp:predictor=ema", "lb-bsp"} {
		s, _ := Parse(text)
		m, err := s.Make(Job{Workers: 4, Batch: 40})
		if err != nil {
			t.Fatal(err)
		}
		c := begin(m, 4, 40, 1<<30)
		c.speed = func(w star.Worker, _ int64) time.Duration {
			if w == 2 {
				return 300 * time.Millisecond
			}
			return 100 * time.Millisecond
		}
		for range 60 {
			for w := range star.Worker(4) {
				c.arrive(w)
			}
		}
		got := c.b.Plan().Shares
		if want := []int{48, 48, 16, 48}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		for _, p := range c.plans {
			sum := 0
			for _, b := range p.Shares {
				sum += b
			}
			if sum != 160 {
				t.Errorf("%s: %v has %d samples, want 160", text, p, sum)
			}
		}
	}
}

// Sync-Switch goes to ASGD at its part of the samples, with every policy; no update of BSP is partial.
func TestSyncSwitch(t *testing.T) {
	const n, batch, rounds = 4, 8, 100
	for _, c := range []struct {
		online string
		want   []string
	}{
		{"ignore", []string{"asgd"}},
		{"greedy", []string{"asgd", "ssgd", "asgd"}},
		{"elastic", []string{"groups=0-2 held=3", "asgd"}},
	} {
		s, err := Parse("sync-switch:switch=0.5,online=" + c.online)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Make(Job{Workers: n, Batch: batch})
		if err != nil {
			t.Fatal(err)
		}
		k := begin(m, n, batch, n*batch*rounds)
		k.speed = func(w star.Worker, step int64) time.Duration { // worker 3 is slow for a while
			if w == 3 && step >= 10 && step < 25 {
				return 300 * time.Millisecond
			}
			return 100 * time.Millisecond
		}
		bsp := int64(0)
		for k.applied < k.limit {
			before, synchronous := k.applied, k.b.Plan().Groups[0].Quorum > 1
			for w := range star.Worker(n) {
				if k.out[w] {
					k.arrive(w)
				}
			}
			if synchronous {
				bsp += k.applied - before
			}
		}
		var got []string
		for _, p := range k.plans {
			got = append(got, p.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v\n\t%s", c.online, got, c.want, strings.Join(k.whys, "\n\t"))
		}
		if half := k.limit / 2; bsp < half || bsp > half+2*n*batch {
			t.Errorf("%s: BSP has trained %d samples of %d", c.online, bsp, k.limit)
		}
		for i, g := range k.updates {
			if g != 1 && g != n && !(c.online == "elastic" && g == n-1) {
				t.Errorf("%s: update %d of %d gradients", c.online, i, g)
			}
		}
	}
}
