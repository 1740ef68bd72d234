package whatif

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
	"star/runlog"
	"star/sim"
)

const ms = time.Millisecond

// log writes the lines of a run in which everything is as told.
type log struct {
	b strings.Builder
	n int
}

func begin(arch, plan string, workers int) *log { return beginWith(arch, plan, workers, "") }

// beginWith has more settings.
func beginWith(arch, plan string, workers int, settings string) *log {
	l := new(log)
	l.add(`{"type":"start","format":1,"program":"star","config":{"arch":%q,"batch":10%s}}`, arch, settings)
	l.add(`{"type":"train","t":1,"workers":%d,"shards":1,"version":0,"limit":1000,"plan":%q}`, workers, plan)
	return l
}

func (l *log) add(format string, a ...any) {
	l.n++
	fmt.Fprintf(&l.b, format+"\n", a...)
}

// record says that w arrived at t seconds with its step on a version.
func (l *log) record(t float64, w, step, basis int, more string) {
	l.add(`{"type":"record","t":%v,"worker":%d,"step":%d,"basis":%d,"samples":10%s}`, t, w, step, basis, more)
}

func (l *log) fire(t float64, version, samples int, workers, stale string) {
	l.add(`{"type":"fire","t":%v,"seq":%d,"version":%d,"workers":[%s],"staleness":[%s],"samples":%d}`, t, version, version, workers, stale, samples)
}

func (l *log) read() (*Run, error) {
	r := New("run.jsonl")
	s, err := runlog.Read(strings.NewReader(l.b.String()), "run.jsonl", r.Add)
	if err != nil {
		return nil, err
	}
	return r.Run(s)
}

// two is a run of two workers over four updates; the second worker takes three times as long.
func two() *log {
	l := begin("ps", "ssgd", 2)
	for k := range 4 {
		at := 1 + 0.31*float64(k)
		l.record(at+0.1, 0, k, k, `,"load":0.01,"compute":0.06,"push":0.004,"pull":0.02`)
		l.record(at+0.3, 1, k, k, `,"compute":0.3`)
		l.fire(at+0.31, k+1, 20*(k+1), "0,1", "0,0")
		l.add(`{"type":"noise","t":%v,"version":%d,"grad2":1,"var":1,"scale":%d}`, at+0.31, k+1, 10*(k+1))
	}
	return l
}

func TestRun(t *testing.T) {
	r, err := two().read()
	if err != nil {
		t.Fatal(err)
	}
	if r.Updates != 4 || r.Samples != 80 || r.Took != 1240*ms || r.Latency.Round(ms) != 10*ms || r.Noise != 30 || r.Staleness != 0 || r.Round != 20 {
		t.Errorf("%+v", r)
	}
	times, err := r.Times(nil)
	if err != nil {
		t.Fatal(err)
	}
	// 100 ms: 60 compute, 30 come before, and 10 after; half the samples are 30 less.
	if got := times.Spend(0, 2, 0, 0.5); got.Total().Round(ms) != 70*ms || got.Load.Round(ms) != 30*ms || got.Compute.Round(ms) != 30*ms {
		t.Errorf("half a share of worker 0: %v", got)
	}
	if p, err := r.Progress(100); err != nil || math.Abs(p-4) > 1e-9 {
		t.Errorf("progress %v, want 4 updates of SSGD", p)
	}
	again, err := r.Again()
	if err != nil || (again.Time-r.Took).Abs() > 11*ms { // the last update's latency
		t.Errorf("simulated %v, was %v; %v", again.Time, r.Took, err)
	}
	only, err := r.Times([]star.Worker{1})
	if err != nil || only.Workers() != 1 || only.Spend(0, 0, 0, 1).Total().Round(ms) != 100*ms {
		t.Errorf("without worker 1: %v, %v", only, err)
	}
	if _, err := r.Times([]star.Worker{0, 1}); err == nil || !strings.Contains(err.Error(), "is left") {
		t.Errorf("without anybody: %v", err)
	}
}

// What is asynchronous, and changes, is simulated as it was; staleness costs progress.
func TestChange(t *testing.T) {
	l := begin("ps", "ssgd", 2)
	l.record(1.1, 0, 0, 0, `,"compute":0.1`)
	l.record(1.3, 1, 0, 0, `,"compute":0.3`)
	l.fire(1.3, 1, 20, "0,1", "0,0")
	l.add(`{"type":"plan","t":1.3,"plan":"asgd","from":"ssgd","why":"so"}`)
	for k := range 3 {
		at := 1.3 + 0.1*float64(k+1)
		if k == 2 {
			l.record(at, 1, 1, 1, `,"compute":0.3`)
			l.fire(at, 4, 50, "1", "2")
			at += 0.0000001
		}
		l.record(at, 0, k+1, []int{1, 2, 3}[k], `,"compute":0.1`)
		l.fire(at, []int{2, 3, 5}[k], []int{30, 40, 60}[k], "0", []string{"0", "0", "1"}[k])
	}
	r, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Changes) != 1 || r.Changes[0].After != 1 || r.Changes[0].Plan.String() != "asgd" || math.Abs(r.Staleness-0.5) > 1e-12 {
		t.Errorf("%+v", r)
	}
	again, err := r.Again()
	if err != nil || (again.Time-600*ms).Abs() > ms || again.Updates != 5 || len(again.Switches) != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	// One update of SSGD, then four of half the samples, of staleness 0, 0, 2 and 1, in which one, half and half a round
	// were applied since: (19) with B = φ = 20 and θ = 0.1, so v = 0.05. Means are those of the last 32 rounds.
	worth, weight, size, behind := 0.0, 0.0, 0.0, 0.0
	for _, u := range []struct{ samples, behind float64 }{{20, 0}, {10, 0}, {10, 0}, {10, 1}, {10, 0.5}} {
		keep := math.Exp(-u.samples / 20 / 32)
		weight, size, behind = keep*weight+u.samples, keep*size+u.samples*u.samples, keep*behind+u.samples*u.behind
		worth += u.samples / 20 * (1 - 0.05*((size/weight+20)/40+behind/weight)) / (1 - 0.05*(20+20)/40)
	}
	want := worth
	if p, err := r.Progress(20); err != nil || math.Abs(p-want) > 1e-9 {
		t.Errorf("progress %v, want %v", p, want)
	}
}

// What modes cost is what star plan and the controller say for the log's own optimiser: with momentum, asynchronous
// modes are dear.
func TestPriceOfTheOptimiser(t *testing.T) {
	const noise = 60
	for _, x := range []struct {
		settings string
		momentum float64 // as star plan --momentum
	}{
		{`,"optimizer":"momentum","momentum":0.9`, 0.9},
		{`,"optimizer":"nesterov","momentum":0.5`, 0.5},
		{`,"optimizer":"sgd","momentum":0.9`, 0}, // the value is present, and ignored
		{`,"optimizer":"adam","momentum":0.9`, 0.9},
		{``, 0},
	} {
		l := beginWith("ps", "ssgd", 4, x.settings)
		took := []time.Duration{97 * ms, 98 * ms, 99 * ms, 101 * ms}
		for k := range 40 {
			at := 1 + 0.101*float64(k)
			for w, d := range took {
				l.record(at+d.Seconds(), w, k, k, fmt.Sprintf(`,"compute":%v`, d.Seconds()-0.001))
			}
			l.fire(at+0.101, k+1, 40*(k+1), "0,1,2,3", "0,0,0,0")
		}
		r, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		if p, err := r.Progress(noise); err != nil || math.Abs(p-40) > 1e-9 {
			t.Errorf("%s: progress %v, %v; want 40 updates of SSGD", x.settings, p, err)
		}
		times, err := r.Times(nil)
		if err != nil {
			t.Fatal(err)
		}
		f := price.Forecast{Times: took, Batch: 10, Noise: noise, Steepness: price.PriorSteepness(x.momentum)}
		cost := func(p modes.Plan) (seen, priced float64) {
			learner, err := r.Learner(noise)
			if err != nil {
				t.Fatal(err)
			}
			res, err := sim.Run(sim.Config{Times: times, Plan: p, Learner: learner, Batch: 10, Target: 2000, Limit: time.Hour})
			if err != nil || !res.Reached {
				t.Fatal(res, err)
			}
			c, err := price.Of(p, f)
			if err != nil {
				t.Fatal(err)
			}
			return res.Time.Seconds(), c.Cost.Seconds()
		}
		seen, priced := cost(modes.SSGD(4))
		for _, p := range []modes.Plan{modes.XOrder(4, 3), modes.XOrder(4, 2), modes.ASGD(4)} {
			if a, b := cost(p); math.Abs(a/seen/(b/priced)-1) > 0.01 {
				t.Errorf("%s: %v takes %.3f of ssgd, priced %.3f", x.settings, p, a/seen, b/priced)
			}
		}
		if a, _ := cost(modes.ASGD(4)); (a > 2*seen) != (x.momentum == 0.9) {
			t.Errorf("%s: asgd takes %.3f of ssgd", x.settings, a/seen)
		}
	}
	l := beginWith("ps", "ssgd", 1, `,"optimizer":"momentum","momentum":1`)
	if _, err := l.read(); err == nil || !strings.Contains(err.Error(), "run.jsonl:1: the configuration has a momentum of 1, want") {
		t.Error(err)
	}
}

// In an all-reduce what counts as the exchange is that of the rank that waited least.
func TestExchange(t *testing.T) {
	l := begin("allreduce", "ssgd", 2)
	l.record(1.35, 1, 0, 0, `,"compute":0.3,"push":0.05`)
	l.record(1.35, 0, 0, 0, `,"compute":0.1,"push":0.25`)
	l.fire(1.35, 1, 20, "1,0", "0,0")
	r, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	times, _ := r.Times(nil)
	if a, b := times.Spend(0, 0, 0, 1), times.Spend(1, 0, 0, 1); a.Total().Round(ms) != 150*ms || b.Total().Round(ms) != 350*ms || a.Push != b.Push {
		t.Errorf("%v, %v", a, b)
	}
}

// A worker that the plan holds back begins when it was released, not when its update was made.
func TestHeldBack(t *testing.T) {
	l := begin("ps", "ssp=0", 2)
	l.record(1.1, 0, 0, 0, `,"compute":0.1`)
	l.fire(1.1, 1, 10, "0", "0")
	l.record(1.3, 1, 0, 0, `,"compute":0.3`)
	l.fire(1.3, 2, 20, "1", "1")
	l.record(1.4, 0, 1, 1, `,"compute":0.1,"wait":0.2`)
	l.fire(1.4, 3, 30, "0", "1")
	r, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	times, err := r.Times(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := times.Spend(0, 1, 0, 1).Total().Round(ms); got != 100*ms {
		t.Errorf("the second iteration takes %v, want 100ms", got)
	}
}

func TestRejects(t *testing.T) {
	for _, x := range []struct {
		name string
		make func() *log
		want string
	}{
		{"no update", func() *log { return begin("ps", "ssgd", 2) }, "run.jsonl:2: the log ends before the first update"},
		{"a version is missing", func() *log { l := two(); l.record(3, 0, 4, 4, ""); l.fire(3, 6, 100, "0", "0"); return l }, "run.jsonl:20: version 6, want 5: an update is missing"},
		{"a step twice", func() *log { l := two(); l.record(3, 0, 3, 4, ""); return l }, "run.jsonl:19: record: step 3 of worker 0 after its step 3 in line 15: want each step once"},
		{"a gap", func() *log { l := two(); l.record(3, 0, 5, 4, ""); return l }, "run.jsonl:19: record: step 5 of worker 0 after its step 3 in line 15: steps are missing"},
		{"an unknown version", func() *log { l := two(); l.record(3, 0, 4, 9, ""); return l }, "run.jsonl:19: record: worker 0 computed on version 9, but there is no line of type fire"},
		{"before its release", func() *log { l := two(); l.record(2, 0, 4, 4, ""); return l }, "run.jsonl:19: record: worker 0 arrived at 2s with a gradient on version 4, which was made at 2.24s"},
		{"a negative time", func() *log { l := two(); l.record(3, 0, 4, 4, `,"compute":-1`); return l }, "run.jsonl:19: record: compute is -1 s, want 0 to 1e+09"},
		{"fewer samples", func() *log { l := two(); l.record(3, 0, 4, 4, ""); l.fire(3, 5, 7, "0", "0"); return l }, "run.jsonl:20: 7 samples, want at least 80"},
		{"no batch", func() *log { l := new(log); l.add(`{"type":"start","format":1,"config":{}}`); return l }, "run.jsonl:1: the configuration has a batch of 0"},
		{"a plan", func() *log { return begin("ps", "x=9", 2) }, "run.jsonl:2: plan: "},
	} {
		_, err := x.make().read()
		if e := (*runlog.Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
	l := two()
	l.add(`{"type":"leave","t":2.5,"worker":1,"peer":"p","why":"gone"}`)
	l.record(3, 0, 4, 4, `,"compute":0.1`)
	l.fire(3, 5, 90, "0", "0")
	r, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Times(nil); err == nil || !strings.HasPrefix(err.Error(), "run.jsonl:19: worker 1 leaves: what it would have taken is not known; leave it out (--without w1)") {
		t.Error(err)
	}
	if _, err := r.Times([]star.Worker{1}); err != nil {
		t.Error(err)
	}
	l = begin("ps", "x=1", 2)
	l.record(2, 0, 0, 0, "")
	l.fire(2, 1, 10, "0", "0")
	if r, err = l.read(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Again(); err == nil || !strings.Contains(err.Error(), "worker 1 has no records, want some of workers 0 to 1") {
		t.Error(err)
	}
}

func FuzzRun(f *testing.F) {
	f.Add(two().b.String())
	f.Fuzz(func(t *testing.T, text string) {
		r := New("a")
		s, err := runlog.Read(strings.NewReader(text), "a", r.Add)
		if err == nil {
			var run *Run
			if run, err = r.Run(s); err == nil && run.Updates < 100 {
				var res sim.Result
				if res, err = run.Again(); err == nil && res.Time < 0 {
					t.Fatalf("%+v", res)
				}
				if p, err := run.Progress(10); err != nil || !(p >= 0) {
					t.Fatalf("progress %v, %v", p, err)
				}
				return
			}
		}
		if e := (*runlog.Error)(nil); err != nil && !errors.As(err, &e) && !strings.HasPrefix(err.Error(), "sim: ") {
			t.Fatal(err)
		}
	})
}
