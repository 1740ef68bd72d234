package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	nouns "star"
	"star/coord"
	"star/coord/advice"
	"star/pgns"
	"star/runlog"
	"star/sim"
)

// Switches of two runs are paired in order, as many as can be, if the plan is the same and they are near.
func TestAgreed(t *testing.T) {
	at := func(texts ...string) (out []fidelitySwitch) {
		for i, p := range texts {
			if p != "" {
				out = append(out, fidelitySwitch{Samples: int64(100 * i), Plan: p})
			}
		}
		return out
	}
	for _, c := range []struct {
		a, b []fidelitySwitch
		want int
	}{
		{at(), at("asgd"), 0},
		{at("asgd", "ssgd"), at("asgd", "ssgd"), 2},
		{at("asgd", "ssgd"), at("ssgd", "asgd"), 1},         // in order
		{at("asgd", "", "", "ssgd"), at("ssgd"), 0},         // too far
		{at("asgd", "ssgd", "asgd"), at("x=2", "asgd"), 1},  // one of a pair each
		{at("asgd", "ssgd", "x=2"), at("ssgd", "x=2"), 2},   // the first has no partner
		{at("", "asgd", "ssgd"), at("asgd", "", "ssgd"), 2}, // both are late or early
	} {
		if got := agreed(c.a, c.b, 100); got != c.want {
			t.Errorf("%v and %v: %d, want %d", c.a, c.b, got, c.want)
		}
		same := 0
		for _, s := range c.a {
			if s.Same {
				same++
			}
		}
		if same != c.want {
			t.Errorf("%v: %d are marked, want %d", c.a, same, c.want)
		}
	}
}

// A run that was not of a trace in its own times cannot be compared, and says so.
func TestFidelityNeedsATrace(t *testing.T) {
	_, err := fidelity(t.Context(), "../testdata/explain.jsonl.gz")
	if err == nil || !strings.Contains(err.Error(), "--straggler-iteration") || !strings.HasPrefix(err.Error(), "../testdata/explain.jsonl.gz: ") {
		t.Errorf("error %v", err)
	}
}

// follower is a pilot that knows how long iterations may take, and keeps the lines that it gets.
type follower struct {
	deadlines []time.Duration
	late      []runlog.Late
	records   []nouns.Record
}

func (e *follower) Tell(l runlog.Line) []advice.Remark {
	switch x := l.Entry.(type) {
	case runlog.Train:
		return []advice.Remark{{Deadlines: e.deadlines}}
	case runlog.Late:
		e.late = append(e.late, x)
	case runlog.Record:
		e.records = append(e.records, x.Record)
	}
	return nil
}

// The pilot of a simulated job learns at each deadline which workers are late, as that of a real one does, and gets
// with gradients what their workers say of them.
func TestLived(t *testing.T) {
	const s = time.Second
	pilot := &follower{deadlines: []time.Duration{s, 0, time.Millisecond}}
	l, err := newLived(pilot, &seenRun{Workers: 3, Batch: 4, limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	task := &replayedTask{ahead: make([]early, 3)}
	task.ahead[2] = early{samples: 4, norm2: 9, change: 16, known: true}
	l.task = task
	for _, x := range []struct{ at, next time.Duration }{
		{0, coord.Patience}, {coord.Patience, 2 * coord.Patience}, {2 * coord.Patience, s}, {s, 2 * s},
	} {
		l.Decide(x.at)
		if next := l.Next(x.at); next != x.next {
			t.Errorf("at %v the next deadline is at %v, want %v", x.at, next, x.next)
		}
	}
	patience := runlog.SecondsOf(coord.Patience)
	want := []runlog.Late{{Worker: 2, Waited: patience, Deadline: patience}, {Worker: 2, Waited: 2 * patience, Deadline: 2 * patience},
		{Worker: 0, Waited: 1, Deadline: 1}, {Worker: 2, Waited: 1, Deadline: 1}}
	if !slices.Equal(pilot.late, want) {
		t.Errorf("told of %v, want %v", pilot.late, want)
	}
	l.Observe(nouns.Record{Worker: 2, Samples: 4})
	l.Observe(nouns.Record{Worker: 0, Samples: 3})
	if next := l.Next(s); next != 0 {
		t.Errorf("with all gradients there or not known, the next deadline is at %v", next)
	}
	if v, ok := pilot.records[0].Telemetry.Get(nouns.GradChange); !ok || v != 16 || pilot.records[0].Norm2 != 9 {
		t.Errorf("record %+v, want what was foreseen", pilot.records[0])
	}
	if _, ok := pilot.records[1].Telemetry.Get(nouns.GradChange); ok || pilot.records[1].Norm2 != 0 {
		t.Errorf("record %+v, of which nothing was foreseen", pilot.records[1])
	}
	l.Fired(3*s, 1, []sim.Gradient{{Worker: 2, Samples: 4}}, sim.Outcome{})
	if next := l.Next(3 * s); next != 3*s+coord.Patience {
		t.Errorf("after the release at 3s the next deadline is at %v", next)
	}
}

// A gradient that was foreseen is the one that is worked out, with its norm and how it differs from the one before.
func TestForesee(t *testing.T) {
	r := &seenRun{Workers: 1, Batch: 8, Model: "softmax", Dataset: "digits:n=100,test=20", Seed: 3}
	task, err := newReplayedTask(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer task.model.Close()
	params := task.Params()
	plain := [2][]float32{make([]float32, len(params)), make([]float32, len(params))}
	for k := range plain {
		if err := task.Gradient(plain[k], params, int64(8*k), 8); err != nil {
			t.Fatal(err)
		}
	}
	task.ahead, task.turns = make([]early, 1), make([]pgns.Change, 1)
	got := make([]float32, len(params))
	for k := range plain {
		task.foresee(0, params, int64(8*k), 8)
		// without parameters it cannot be computed again
		if err := task.Gradient(got, nil, int64(8*k), 8); err != nil || !slices.Equal(got, plain[k]) {
			t.Fatalf("gradient %d is not the one that was foreseen (%v)", k, err)
		}
		norm2 := 0.0
		for _, x := range got {
			norm2 += float64(x) * float64(x)
		}
		if g := task.ahead[0]; g.norm2 != norm2 || g.known != (k == 1) || k == 1 && !(g.change > 0) {
			t.Errorf("gradient %d: %v, %v (%v), want a norm of %v", k, g.norm2, g.change, g.known, norm2)
		}
	}
}
