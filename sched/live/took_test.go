package live

import (
	"math"
	"testing"
)

// A service learns how long its jobs take to start, also across its own restart, and then admits no job that this would
// make late.
func TestTook(t *testing.T) {
	w := newWorld(t, "ef-admission", 1, Host{Name: "a", Slots: 1})
	w.learns = true
	run := func(name string, samples int64, deadline float64) (state State) {
		t.Helper()
		if err := w.submit(Spec{Name: name, Samples: samples, Max: 1, Rates: map[int]float64{1: 100}, Deadline: deadline}); err != nil {
			t.Fatal(err)
		}
		for range 4000 {
			w.settle()
			if j := w.q.Job(name); !j.Active() && len(j.Members) == 0 {
				return j.State
			}
			w.step(func(string) float64 { return 1 })
		}
		t.Fatalf("%s does not end:\n%s", name, w.trail.String())
		return ""
	}
	if got := run("first", 1000, 11); got != Done { // 10 s of work, and nothing is known of its start
		t.Fatalf("the first job is %s", got)
	}
	if j := w.q.Job("first"); j.Ended <= j.Due {
		t.Errorf("it was to be late, and has ended at %v, before %v", j.Ended, j.Due)
	}
	took := w.q.Took(tookStart)
	if took < 2 || took > 3 || w.q.Took(tookResume) != took {
		t.Errorf("a start took %v s, a resume %v; workers join after 2 s", took, w.q.Took(tookResume))
	}
	w.restart()
	if got := w.q.Took(tookStart); got != took {
		t.Errorf("after a restart a start takes %v s", got)
	}
	if got := run("second", 1000, 11); got != Declined {
		t.Errorf("the same again is %s", got)
	}
	if got := run("third", 1000, math.Ceil(10+took)+1); got != Done {
		t.Errorf("one that has time to start is %s", got)
	} else if j := w.q.Job("third"); j.Ended > j.Due+1 {
		t.Errorf("it ends at %v, after %v", j.Ended, j.Due)
	}
	for i := range 3 * mostTook {
		w.q.learn(tookEnd, float64(i))
	}
	if got := w.q.Took(tookEnd); got != 2.5*mostTook-0.5 {
		t.Errorf("the median of the newest is %v", got)
	}
}

// What a start takes begins with the decision: the time that another job takes to leave is in it.
func TestTookWithTheOthersLeave(t *testing.T) {
	w := newWorld(t, "srtf", 1, Host{Name: "a", Slots: 1})
	w.learns = true
	for _, s := range []Spec{{Name: "long", Samples: 100_000, Rates: map[int]float64{1: 100}}, {Name: "short", Samples: 500, Rates: map[int]float64{1: 100}}} {
		if err := w.submit(s); err != nil {
			t.Fatal(err)
		}
		for i := 0; len(w.q.took[tookStart]) < 1 || s.Name == "short" && len(w.q.took[tookStart]) < 2; i++ {
			if i > 4000 {
				t.Fatalf("%s does not start:\n%s", s.Name, w.trail.String())
			}
			w.settle()
			w.step(func(string) float64 { return 1 })
		}
	}
	if took := w.q.took[tookStart]; took[1] <= took[0] {
		t.Errorf("a start on a free place took %v s, and one for which another job had to stop %v", took[0], took[1])
	}
}

// What a job has left is counted as of now, not as of the last line of its log that was read, and a worker that is to
// come not before it can be there.
func TestLeft(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 2}})
	if err := q.Schedule("ef-admission", 1, 0); err != nil {
		t.Fatal(err)
	}
	for _, e := range []Event{
		{Kind: KindSubmit, Job: "a", Spec: &Spec{Name: "a", Samples: 10_000, Workers: 1, Min: 1, Max: 2, Rates: map[int]float64{1: 100, 2: 200}}},
		{Kind: KindTook, Job: "a", What: tookResize, Took: 2}, {Kind: KindTook, Job: "a", What: tookEnd, Took: 0.5},
		{Kind: KindDecide, Job: "a", Workers: 1}, {Kind: KindBegin, Job: "a", Life: 1}, {Kind: KindAdd, Job: "a", Member: 1, Host: "h"},
	} {
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	j := q.Job("a")
	is := func(now, left, lag float64) {
		t.Helper()
		if l, g := q.left(j, now), q.lag(j, now); math.Abs(l-left) > 1e-9 || math.Abs(g-lag) > 1e-9 {
			t.Errorf("at %v: %v left, lag %v; want %v and %v", now, l, g, left, lag)
		}
	}
	is(5, 10_000, 0.5)
	q.Joined(j, 0, 9, 10)
	q.Started(j, 9.5, 10, 10.5)
	q.Seen(j, 1000, 10, 10.5)
	is(10, 9000, 0.5)
	is(11, 8900, 0.5)
	is(30, 8800, 0.5) // it may stand still
	for _, e := range []Event{{At: 11, Kind: KindDecide, Job: "a", Workers: 2}, {At: 12, Kind: KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1}} {
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	is(11.5, 8850, 0.5+1.5/2)
	is(14, 8800, 0.5)
	q.Joined(j, 1, 12.5, 13)
	is(11.5, 8700, 0.5)
}
