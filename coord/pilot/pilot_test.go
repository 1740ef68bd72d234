package pilot

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/coord"
	"star/coord/advice"
	"star/modes"
	"star/runlog"
)

const ms = time.Millisecond

// ssgd tells a pilot of rounds of synchronous training in which all workers but the slow one take 100 ms, and returns
// what it says. It stops at the first change.
func ssgd(p *Pilot, rounds int, from time.Duration, slow star.Worker, factor int) (said []advice.Remark, at time.Duration) {
	at = from
	for range rounds {
		step := int64(at / (100 * ms))
		for w := range star.Worker(4) {
			t := 100 * ms
			if w == slow {
				t *= time.Duration(factor)
			}
			r := star.Record{Worker: w, Step: step, Basis: step, At: at + t, Compute: t, Samples: 32, Wait: 100*ms*time.Duration(factor) - t}
			said = append(said, keep(p.Tell(runlog.Line{T: at + t, Entry: runlog.Record{Record: r}}))...)
		}
		at += 100 * ms * time.Duration(factor)
		out := keep(p.Tell(runlog.Line{T: at, Entry: runlog.Fire{Version: step + 1, Workers: []star.Worker{0, 1, 2, 3}, Staleness: make([]int64, 4), Samples: 128 * (step + 1)}}))
		said = append(said, out...)
		for _, r := range out {
			if r.Change != nil {
				return said, at
			}
		}
	}
	return said, at
}

// keep copies what is valid until the next call only.
func keep(rs []advice.Remark) []advice.Remark { return append([]advice.Remark(nil), rs...) }

func begin(t *testing.T, c Config) *Pilot {
	t.Helper()
	c.Workers, c.Batch, c.Plan = 4, 32, modes.SSGD(4)
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Tell(runlog.Line{Entry: runlog.Train{Workers: 4, Params: 1000, Limit: 1e6}})
	return p
}

// A worker that is three times slower: the pilot says so, and wants another mode, with the reason in one line.
func TestSlowWorker(t *testing.T) {
	for _, ring := range []bool{false, true} {
		p := begin(t, Config{Ring: ring})
		said, _ := ssgd(p, 20, 0, 2, 3)
		var change *advice.Change
		for _, r := range said {
			if r.Change != nil {
				change = r.Change
			}
		}
		if change == nil {
			t.Fatalf("ring %v: no change in 20 rounds: %+v", ring, said)
		}
		if change.Predicted < 0.3 || !strings.Contains(change.Why, "worker 2 takes 3.0") {
			t.Errorf("%+v", change)
		}
		if ring {
			if err := coord.RingPlan(change.Plan); err != nil {
				t.Errorf("%v: %v", change.Plan, err)
			}
		}
	}
}

// A person at the keyboard takes over, and gives back.
func TestManual(t *testing.T) {
	p := begin(t, Config{})
	p.Tell(runlog.Line{Entry: runlog.Plan{Plan: "x=3", From: "ssgd", Why: "star ctl"}})
	said, at := ssgd(p, 30, 0, 2, 3)
	verdict := false
	for _, r := range said {
		if r.Change != nil {
			t.Errorf("a change although star ctl decides: %+v", r.Change)
		}
		verdict = verdict || r.Verdict != nil && r.Verdict.Worker == 2 && r.Verdict.Event == "slow"
	}
	if !verdict {
		t.Error("nobody said that worker 2 is slow")
	}
	if got := p.controller.Plan().String(); got != "x=3" {
		t.Errorf("the controller believes in %s", got)
	}
	p.Tell(runlog.Line{T: at, Entry: runlog.Plan{Plan: "ssgd", From: "x=3", Why: "star ctl"}})
	p.Tell(runlog.Line{T: at, Entry: runlog.Plan{Plan: "ssgd", From: "ssgd", Why: "star ctl mode auto"}})
	if said, _ := ssgd(p, 40, at, 2, 3); !changes(said) {
		t.Error("no change after star ctl mode auto")
	}
}

// A worker that takes half as long again is slow, but not where that is allowed; a mode that does not save as much as
// it must is not taken.
func TestThresholds(t *testing.T) {
	for name, c := range map[string]struct {
		set              []runlog.Set
		verdict, changes bool
	}{
		"as they are": {nil, true, true},
		"ratio":       {[]runlog.Set{{Name: advice.VerdictRatio, Value: 3}}, false, true},
		"least":       {[]runlog.Set{{Name: advice.VerdictLeast, Value: 3600}}, false, true},
		"certainty":   {[]runlog.Set{{Name: advice.VerdictCertainty, Value: 50}}, false, true},
		"gain":        {[]runlog.Set{{Name: advice.ModeGain, Value: 0.9}}, true, false},
		"and back":    {[]runlog.Set{{Name: advice.ModeGain, Value: 0.9}, {Name: advice.ModeGain, Value: 0.07}}, true, true},
		"dwell":       {[]runlog.Set{{Name: advice.ModeDwell, Value: 10_000}}, true, true}, // not of the first mode
	} {
		p := begin(t, Config{})
		for _, l := range c.set {
			p.Tell(runlog.Line{Entry: l})
			if got := p.Thresholds()[l.Name]; got != float64(l.Value) {
				t.Errorf("%s: %s is %v", name, l.Name, got)
			}
		}
		said, at := ssgd(p, 20, 0, 2, 3)
		changed := changes(said)
		p.Tell(runlog.Line{T: at, Entry: runlog.Plan{Plan: "x=4", From: "ssgd", Why: "star ctl"}}) // no more changes
		more, _ := ssgd(p, 20, at, 2, 3)
		verdict := false
		for _, r := range append(said, more...) {
			verdict = verdict || r.Verdict != nil && r.Verdict.Event == "slow"
		}
		if verdict != c.verdict || changed != c.changes {
			t.Errorf("%s: verdict %v, changes %v", name, verdict, changed)
		}
	}
	p := begin(t, Config{})
	for _, x := range advice.Thresholds {
		v, has := p.Thresholds()[x.Name]
		if mine := x.Name != advice.EvalEvery && x.Name != advice.CheckpointEvery; has != mine || has && (v < x.Least || v > x.Most) {
			t.Errorf("%s: %v, %v", x.Name, v, has)
		}
	}
}

func changes(rs []advice.Remark) bool {
	for _, r := range rs {
		if r.Change != nil {
			return true
		}
	}
	return false
}

// No worker is slow: the pilot says nothing but what iterations may take: the first ones, the next ones, and once it is
// known.
func TestCalm(t *testing.T) {
	p := begin(t, Config{})
	if said, _ := ssgd(p, 100, 0, 2, 1); len(said) != 3 || said[0].Deadlines == nil || said[1].Deadlines == nil || said[2].Deadlines == nil {
		t.Errorf("%+v", said)
	}
}

// Records that cannot be: a notice, and no change on their word.
func TestImpossible(t *testing.T) {
	p := begin(t, Config{})
	notices := 0
	for k := range int64(40) {
		at := time.Duration(k) * 300 * ms
		for w := range star.Worker(4) {
			r := star.Record{Worker: w, Step: k, Basis: k, At: at, Compute: -time.Second, Samples: 32}
			for _, s := range p.Tell(runlog.Line{T: at, Entry: runlog.Record{Record: r}}) {
				if s.Text != "" {
					notices++
				}
			}
		}
		if said := p.Tell(runlog.Line{T: at, Entry: runlog.Fire{Version: k + 1, Workers: []star.Worker{0, 1, 2, 3}, Samples: 128 * (k + 1)}}); changes(said) {
			t.Fatalf("%+v", said)
		}
	}
	if notices == 0 {
		t.Error("nobody said that the records cannot be")
	}
}

// A worker that is gone is not waited for in any plan that is wanted.
func TestGone(t *testing.T) {
	p := begin(t, Config{})
	p.Tell(runlog.Line{Entry: runlog.Leave{Worker: 2}})
	for k := range int64(60) {
		at := time.Duration(k+1) * 100 * ms
		for _, w := range []star.Worker{0, 1, 3} {
			p.Tell(runlog.Line{T: at, Entry: runlog.Record{Record: star.Record{Worker: w, Step: k, Basis: k, At: at, Compute: 100 * ms, Samples: 32}}})
		}
		if said := p.Tell(runlog.Line{T: at, Entry: runlog.Fire{Version: k + 1, Workers: []star.Worker{0, 1, 3}, Samples: 96 * (k + 1)}}); changes(said) {
			t.Fatalf("nobody who is left is slow: %+v", said)
		}
	}
}

// A decision that is refused is not in force; one that is granted late is.
func TestAdmission(t *testing.T) {
	p, err := New(Config{Workers: 4, Batch: 32, Plan: modes.SSGD(4)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		e    runlog.Admission
		want string
	}{
		{runlog.Admission{Plan: "x=3", Now: "ssgd", Granted: true, After: 4}, "x=3"},
		{runlog.Admission{Plan: "asgd", Now: "x=3", After: 9}, "x=3"},
		{runlog.Admission{Plan: "x=3", Now: "ssgd", After: 4}, "ssgd"},
	} {
		p.Tell(runlog.Line{T: time.Minute, Entry: c.e})
		if got := p.controller.Plan().String(); got != c.want {
			t.Errorf("after %+v the controller believes in %s, want %s", c.e, got, c.want)
		}
	}
	// What follows a forced change is still the pilot's.
	p.Tell(runlog.Line{T: time.Minute, Entry: runlog.Plan{Plan: "ssgd", From: "x=3", Why: "back", Forced: true}})
	if p.manual {
		t.Error("a forced change counts as somebody's at the keyboard")
	}
}

// What iterations may take is passed on, and again when it has changed; a worker that is late then is left behind,
// although no update was made.
func TestLate(t *testing.T) {
	p := begin(t, Config{})
	said, at := ssgd(p, 60, 0, 2, 1)
	var last []time.Duration
	for _, r := range said {
		if r.Deadlines != nil {
			last = r.Deadlines
		}
		if r.Change != nil {
			t.Fatalf("changed: %v", r.Change)
		}
	}
	if len(last) != 4 || last[2] != 150*ms {
		t.Fatalf("deadlines %v, want half more than 100ms", last)
	}
	step := int64(at / (100 * ms))
	for _, w := range []star.Worker{0, 1, 3} {
		p.Tell(runlog.Line{T: at + 100*ms, Entry: runlog.Record{Record: star.Record{Worker: w, Step: step, Basis: step, At: at + 100*ms, Compute: 100 * ms, Samples: 32}}})
	}
	if rs := p.Tell(runlog.Line{T: at + 150*ms, Entry: runlog.Late{Worker: 2, Waited: 0.15, Deadline: 0.15}}); len(rs) != 0 {
		t.Errorf("a little late: %v", rs)
	}
	var change *advice.Change
	for _, r := range p.Tell(runlog.Line{T: at + 10*time.Second, Entry: runlog.Late{Worker: 2, Waited: 10, Deadline: 9.6}}) {
		if r.Change != nil {
			change = r.Change
		}
	}
	if change == nil || change.Plan.Equal(modes.SSGD(4)) {
		t.Errorf("10 s late: %+v", change)
	}
}

// A worker that was slow in the first iteration gets a deadline for the second, and being late then is reason enough
// for a plan; an iteration like the others' is no reason.
func TestLateTheSecondTime(t *testing.T) {
	for _, late := range []bool{true, false} {
		p := begin(t, Config{})
		tell := func(at time.Duration, e runlog.Entry) []advice.Remark {
			return keep(p.Tell(runlog.Line{T: at, Entry: e}))
		}
		record := func(w star.Worker, step int64, at, took time.Duration) []advice.Remark {
			return tell(at, runlog.Record{Record: star.Record{Worker: w, Step: step, Basis: step, At: at, Compute: took, Samples: 32}})
		}
		allFour := []star.Worker{0, 1, 2, 3}
		deadline := func(rs []advice.Remark) (d time.Duration) {
			for _, r := range rs {
				if r.Deadlines != nil {
					d = r.Deadlines[2]
				}
			}
			return d
		}
		first := time.Duration(0)
		for _, w := range []star.Worker{0, 1, 3, 2} {
			took := 600 * ms
			if w == 2 {
				took *= 3
			}
			first = max(first, deadline(record(w, 0, took, took)))
		}
		if first != 1100*ms {
			t.Errorf("a deadline of %v in the first round", first)
		}
		if d := deadline(tell(1800*ms, runlog.Fire{Version: 1, Workers: allFour, Staleness: make([]int64, 4), Samples: 128})); d != 0 { // 1 s, which is nearly the same
			t.Fatalf("a deadline of %v", d)
		}
		for _, w := range []star.Worker{0, 1, 3} {
			record(w, 1, 2400*ms, 600*ms)
		}
		var said []advice.Remark
		if late {
			said = tell(2801*ms, runlog.Late{Worker: 2, Waited: 1.001, Deadline: 1})
		} else {
			record(2, 1, 2450*ms, 650*ms)
			said = tell(2850*ms, runlog.Fire{Version: 2, Workers: allFour, Staleness: make([]int64, 4), Samples: 256})
			if d := deadline(said); d != 0 { // 975 ms, which is nearly the same
				t.Errorf("a deadline of %v after an iteration like the others'", d)
			}
		}
		if got := slices.ContainsFunc(said, func(r advice.Remark) bool { return r.Change != nil }); got != late {
			t.Errorf("late: %v, and a change: %v", late, got)
		}
	}
}

// What rounds of SSGD say of staleness comes from the records and from the noise that the coordinator measures: both
// must be there.
func TestCourseIsHeard(t *testing.T) {
	for _, c := range []struct {
		mixed, silent, known bool
	}{{false, false, true}, {true, false, false}, {false, true, false}} {
		p := begin(t, Config{})
		g := 1.0
		for v := int64(1); v <= 10; v++ {
			at := time.Duration(v) * 100 * ms
			for w := range star.Worker(4) {
				r := star.Record{Worker: w, Step: v - 1, Basis: v - 1, At: at, Compute: 100 * ms, Samples: 32, Norm2: g * g}
				if v > 1 && !c.silent {
					r.Telemetry.Set(star.GradChange, (g/0.9-g)*(g/0.9-g))
				}
				p.Tell(runlog.Line{T: at, Entry: runlog.Record{Record: r}})
			}
			p.Tell(runlog.Line{T: at, Entry: runlog.Fire{Version: v, Workers: []star.Worker{0, 1, 2, 3}, Staleness: make([]int64, 4), Samples: 128 * v}})
			p.Tell(runlog.Line{T: at, Entry: runlog.Noise{Version: v, Grad2: runlog.Number(g * g), Var: 1, Scale: 1, Mixed: c.mixed}})
			g *= 0.9
		}
		_, θ, ok := p.course.Bound()
		if ok != c.known || ok && math.Abs(θ-0.1) > 1e-9 {
			t.Errorf("%+v: %v, %v: want 0.1", c, θ, ok)
		}
	}
}
