package workload

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// Written events are read back: which job had how many GPUs when, deadlines, and why a job was declined.
func TestEvents(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	jobs := []*sched.Job{{ID: "large", Submit: 7, GPUs: 99, Duration: 1, Deadline: never}}
	for i := range 60 {
		j := &sched.Job{ID: "<" + string(rune('a'+i%26)) + strings.Repeat(`",`, i/26), Submit: float64(r.IntN(500)) / 4, GPUs: 1 + r.IntN(4), Duration: float64(1 + r.IntN(90)), Deadline: never}
		if i%3 == 0 {
			j.Deadline = j.Submit + 2*j.Duration
		}
		jobs = append(jobs, j)
	}
	var b bytes.Buffer
	e := NewEvents(&b, nil)
	outs := map[string][]sched.Outcome{"srtf": sched.Simulate(jobs, sched.Cluster{Nodes: 2, GPUs: 4}, sched.SRTF()), "fifo": sched.Simulate(jobs, sched.Cluster{Nodes: 2, GPUs: 4}, sched.FIFO())}
	for _, p := range []string{"srtf", "fifo"} {
		if err := e.Write(p, outs[p]); err != nil {
			t.Fatal(err)
		}
	}
	if !IsEvents(b.String()) {
		t.Errorf("begins with %.40q", b.String())
	}
	got, err := ReadEvents(&b)
	if err != nil || len(got) != 2 || got[0].Policy != "srtf" || got[1].Policy != "fifo" {
		t.Fatalf("%v, %+v", err, got)
	}
	same := func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }
	for _, h := range got {
		if len(h.Jobs) != len(jobs) {
			t.Errorf("%s: %d jobs, want %d", h.Policy, len(h.Jobs), len(jobs))
		}
		for i, x := range h.Jobs {
			if last := h.Last[i]; x.Declined() && last != x.Why || !x.Declined() && !strings.HasPrefix(last, "starts on ") && !strings.HasPrefix(last, "goes on with ") {
				t.Errorf("%s: the last reason of job %s is %q", h.Policy, x.ID, last)
			}
			w := outs[h.Policy][slices.IndexFunc(jobs, func(j *sched.Job) bool { return j.ID == x.ID })]
			if x.Submit != w.Submit || !same(x.Deadline, w.Deadline) || !same(x.Start, w.Start) || !same(x.End, w.End) || x.Preemptions != w.Preemptions || x.Why != w.Why || !slices.Equal(x.Steps, w.Steps) {
				t.Errorf("%s: job %s is %+v, was %+v", h.Policy, x.ID, x, w)
			}
		}
	}
}

// A job that took no time has an end, and no GPUs.
func TestEventsOfNoTime(t *testing.T) {
	var b bytes.Buffer
	out := sched.Simulate([]*sched.Job{{ID: "none", Submit: 7, GPUs: 1, Deadline: never}}, sched.Cluster{Nodes: 1, GPUs: 4}, sched.FIFO())
	if err := NewEvents(&b, nil).Write("fifo", out); err != nil {
		t.Fatal(err)
	}
	got, err := ReadEvents(&b)
	if err != nil || got[0].Jobs[0].End != 7 || len(got[0].Jobs[0].Steps) != 0 {
		t.Errorf("%v, %+v", err, got)
	}
}

// What is wrong in a file of events is said with its line.
func TestEventsWrong(t *testing.T) {
	const head = "time,policy,job_id,event,gpus\n0,p,a,submit,0\n"
	for text, want := range map[string]string{
		"time,policy,job_id,gpus\n":                           `line 1: column "event" is missing`,
		head + "1,p,a,begin,1\n":                              `line 3: event is "begin"`,
		head + "1,p,b,start,1\n":                              `line 3: job "b" has event "start" before it was submitted`,
		head + "1,p,a,submit,0\n":                             `line 3: job_id "a" is submitted twice`,
		head + "1,p,a,start,0\n":                              `line 3: gpus is 0`,
		head + "1,p,a,start,x\n":                              `line 3: gpus is "x"`,
		head + "5,p,a,start,1\n4,p,a,end,0\n":                 `line 4: time is 4, and the line before has 5`,
		head + "5,p,a,start,1\n6,p,a,end,0\n7,p,a,resize,2\n": `line 5: job "a" has event "resize" after it has ended`,
		"time,policy,job_id,event,gpus\nnan,p,a,submit,0\n":   `line 2: time is "nan"`,
		"time,policy,job_id,event,gpus\n0,p,a,submit\n":       `it has 4 cells, and the header has 5`,
	} {
		if _, err := ReadEvents(strings.NewReader(text)); err == nil || !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The event of a job that gives up GPUs names the jobs that have more at that time, in its own virtual cluster alone.
func TestEventsSayForWhom(t *testing.T) {
	o := func(id, vc string, steps ...sched.Step) sched.Outcome {
		return sched.Outcome{Job: &sched.Job{ID: id, VC: vc, GPUs: 2, Deadline: never}, End: 99, Steps: steps}
	}
	var b bytes.Buffer
	err := NewEvents(&b, nil).Write("srtf", []sched.Outcome{o("a", "x", sched.Step{At: 1, GPUs: 2}, sched.Step{At: 5}), o("b", "x", sched.Step{At: 5, GPUs: 2}), o("c", "y", sched.Step{At: 5, GPUs: 2}), o("d", "x", sched.Step{At: 7, GPUs: 2})})
	for _, want := range []string{"5,srtf,a,preempt,0,,gives up its 2 GPUs: least time left first; more for b\n", "5,srtf,b,start,2,,starts on 2 GPUs after 5 s: least time left first\n"} {
		if err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%v, %s, want %s", err, b.String(), want)
		}
	}
}
