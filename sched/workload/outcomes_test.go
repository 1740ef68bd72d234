package workload

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"star/sched"
)

// TestOutcomes writes a job that ended in time, one that was late, one that is not done, one that never began and one
// that was declined, and reads them again.
func TestOutcomes(t *testing.T) {
	nan := math.NaN()
	out := []sched.Outcome{
		{Job: &sched.Job{ID: "a", Submit: 1, GPUs: 2, VC: "v", Deadline: 9}, Start: 2, End: 9, Queue: 3, Preemptions: 1},
		{Job: &sched.Job{ID: "b", Submit: 1, GPUs: 1, Deadline: 8}, Start: 2, End: 9, Queue: 1},
		{Job: &sched.Job{ID: "c", Submit: 1, GPUs: 1, Deadline: never}, Start: 2, End: nan, Queue: 1},
		{Job: &sched.Job{ID: "d", Submit: 1, GPUs: 1, Deadline: never}, Start: nan, End: nan},
		{Job: &sched.Job{ID: "e", Submit: 1, GPUs: 1, Deadline: never}, Start: nan, End: nan, Why: "too late, by 5 s"},
	}
	var b bytes.Buffer
	if err := NewOutcomes(&b).Write("edf", out); err != nil {
		t.Fatal(err)
	}
	const want = `job_id,submit,start,end,jct,queue,preemptions,declined,met_deadline,gpus,vc,policy,why
a,1,2,9,8,3,1,false,true,2,v,edf,
b,1,2,9,8,1,0,false,false,1,,edf,
c,1,2,,,1,0,false,false,1,,edf,
d,1,,,,,0,false,false,1,,edf,
e,1,,,,,0,true,false,1,,edf,"too late, by 5 s"
`
	if b.String() != want {
		t.Errorf("wrote\n%s, want\n%s", b.String(), want)
	}
	got, err := ReadOutcomes(&b)
	if err != nil || len(got) != 1 || got[0].Policy != "edf" || len(got[0].Jobs) != len(out) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, o := range got[0].Jobs {
		w := out[i]
		same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
		if o.ID != w.ID || o.Submit != w.Submit || !same(o.Start, w.Start) || !same(o.End, w.End) || o.Preemptions != w.Preemptions || o.Why != w.Why || o.Met() != w.Met() {
			t.Errorf("read %+v of %+v, was %+v of %+v", o, o.Job, w, w.Job)
		}
	}
}

// TestOutcomesWrong says what is wrong in a table of jobs, and where.
func TestOutcomesWrong(t *testing.T) {
	const head = "job_id,submit,start,end,declined,met_deadline,policy\n"
	for text, want := range map[string]string{
		head:                                                  "line 1: want a header and at least one job",
		"job_id,submit,start,end\n":                           `line 1: column "declined" is missing`,
		head + "a,5,4,9,false,true,p\n":                       "line 2: job a is submitted at 5, starts at 4 and ends at 9: want times in this order",
		head + "a,5,7,6,false,true,p\n":                       "line 2: job a is submitted at 5, starts at 7 and ends at 6",
		head + "a,5,,4,false,true,p\n":                        "line 2: job a is submitted at 5",
		head + "a,5,7,9,maybe,true,p\n":                       `line 2: declined is "maybe": want true or false`,
		head + "a,5,7,9,false,,p\n":                           `line 2: met_deadline is ""`,
		head + "a,5,7,x,false,true,p\n":                       `line 2: end is "x"`,
		head + "a,5,7,9,false,true,p\na,5,7,9,false,true,p\n": `line 3: job_id "a" occurs twice, first in line 2`,
	} {
		if _, err := ReadOutcomes(strings.NewReader(text)); !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	// of each policy once
	got, err := ReadOutcomes(strings.NewReader(head + "a,5,7,9,false,true,p\na,5,7,9,false,true,q\n"))
	if err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAllocateUntil lets jobs that still have GPUs keep them until the given time, or the last change.
func TestAllocateUntil(t *testing.T) {
	out := []sched.Outcome{{Job: &sched.Job{ID: "a"}, Steps: []sched.Step{{At: 1, GPUs: 2}, {At: 5, GPUs: 1}}}}
	for until, want := range map[float64]float64{3: 5, 8: 8} {
		all, _ := Allocate(out, until)
		if last := all[len(all)-1]; len(all) != 2 || last.From != 5 || last.To != want || !reflect.DeepEqual(last.Rows, []int{0}) {
			t.Errorf("until %v: %+v, want the second one from 5 to %v", until, all, want)
		}
	}
}

// TestDisturbed is from the first submission until 100 days after the last one.
func TestDisturbed(t *testing.T) {
	if from, until := Disturbed([]*sched.Job{{Submit: 50}, {Submit: 7}, {Submit: 30}}); from != 7 || until != 50+100*24*3600 {
		t.Errorf("from %v until %v", from, until)
	}
}
