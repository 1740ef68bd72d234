package workload

import (
	"cmp"
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strings"

	"star/sched"
)

// Events writes what happened under policies, in order, as CSV: time, policy, job_id, event, gpus, deadline, why
// (sched.Outcome.Reason).
type Events struct {
	out      *csv.Writer
	clusters map[string]sched.Cluster
}

// NewEvents writes the header. clusters gives, by virtual cluster, which nodes were absent; nil: none.
func NewEvents(w io.Writer, clusters map[string]sched.Cluster) *Events {
	e := &Events{csv.NewWriter(w), clusters}
	e.out.Write([]string{"time", "policy", "job_id", "event", "gpus", "deadline", "why"})
	return e
}

// event is a line of the file.
type event struct {
	at             float64
	order          int // among events at one time: 0 returns GPUs, 2 receives some
	what           string
	gpus, deadline float64
	of             *sched.Outcome
	step           int // index of the job's step; -1: none
}

// gain returns which jobs get more GPUs at the time of the first event, by virtual cluster.
func gain(all []event) map[string][]string {
	more := map[string][]string{}
	for _, v := range all {
		if v.at != all[0].at {
			break
		}
		if v.order == 2 {
			more[v.of.VC] = append(more[v.of.VC], v.of.ID)
		}
	}
	return more
}

// Write writes the events of a policy. At equal times, returned GPUs come first, then submissions, then assigned GPUs,
// so that a running sum never exceeds the cluster.
func (e *Events) Write(policy string, out []sched.Outcome) error {
	var all []event
	for i := range out {
		o := &out[i]
		all = append(all, event{o.Submit, 1, "submit", 0, o.Deadline, o, -1})
		if o.Declined() {
			all = append(all, event{o.Submit, 1, "decline", 0, never, o, -1})
			continue
		}
		had := 0.
		for i, s := range o.Steps {
			what := "resize"
			switch {
			case s.GPUs == 0 && i == len(o.Steps)-1 && s.At >= o.End:
				what = "end"
			case s.GPUs == 0:
				what = "preempt"
			case had == 0 && i == 0:
				what = "start"
			case had == 0:
				what = "resume"
			}
			all = append(all, event{s.At, 1 + cmp.Compare(s.GPUs, had), what, s.GPUs, never, o, i})
			had = s.GPUs
		}
		if len(o.Steps) == 0 && !math.IsNaN(o.End) { // it took no time
			all = append(all, event{o.End, 1, "end", 0, never, o, -1})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), a.order-b.order) })
	var more map[string][]string
	for i, v := range all {
		if i == 0 || v.at != all[i-1].at {
			more = gain(all[i:])
		}
		why := ""
		switch {
		case v.what == "decline":
			why = v.of.Why
		case v.step >= 0 && v.order == 0:
			why = v.of.Reason(policy, v.step, more[v.of.VC], e.clusters[v.of.VC])
		case v.step >= 0:
			why = v.of.Reason(policy, v.step, nil, e.clusters[v.of.VC])
		}
		if err := e.out.Write([]string{number(v.at), policy, v.of.ID, v.what, number(v.gpus), number(v.deadline), why}); err != nil {
			return err
		}
	}
	e.out.Flush()
	return e.out.Error()
}

// eventsHeader is what the header of a file of events begins with.
const eventsHeader = "time,policy,job_id,event,gpus"

// IsEvents reports whether a file that begins with this text contains events.
func IsEvents(begin string) bool {
	return strings.HasPrefix(strings.TrimPrefix(begin, "\ufeff"), eventsHeader)
}

// Schedule is what happened to jobs under a policy.
type Schedule struct {
	Policy string
	Jobs   []sched.Outcome // in order of submission; with Submit, Deadline, Start, End, Preemptions, Why and Steps
	// Last is, for each job, why it has its GPUs, had its last ones, or was declined; "": unknown.
	Last []string
}

// ReadEvents reads what Events has written. Policies are in order of their first event.
func ReadEvents(r io.Reader) ([]Schedule, error) {
	t := newTable(r)
	t.need(strings.Split(eventsHeader, ",")...)
	type under struct {
		last float64 // time
		jobs map[string]*sched.Outcome
		said map[string]string // the last reason, by job
		came []*sched.Outcome
	}
	var names []string
	policies := map[string]*under{}
	for t.next() {
		at, policy, id, gpus := t.number("time", -never), t.text("policy"), t.text("job_id"), t.number("gpus", 0)
		u := policies[policy]
		if u == nil {
			u = &under{last: at, jobs: map[string]*sched.Outcome{}, said: map[string]string{}}
			policies[policy], names = u, append(names, policy)
		}
		if at < u.last {
			t.fail(t.line, "time is %v, and the line before has %v: sort the lines of a policy by time", at, u.last)
		}
		u.last = at
		o := u.jobs[id]
		if t.text("event") != "submit" {
			t.event(o, at, id, gpus)
			if why := t.text("why"); why != "" {
				u.said[id] = why
			}
			continue
		}
		if o != nil || id == "" {
			t.fail(t.line, "job_id %q is submitted twice under %s, or has no name: give each job a name of its own", id, policy)
		}
		o = &sched.Outcome{Job: &sched.Job{ID: id, Submit: at, Deadline: never}, Start: math.NaN(), End: math.NaN()}
		if t.text("deadline") != "" {
			o.Deadline = t.number("deadline", -never)
		}
		u.jobs[id], u.came = o, append(u.came, o)
	}
	var all []Schedule
	for _, name := range names {
		h := Schedule{Policy: name}
		for _, o := range policies[name].came {
			h.Jobs, h.Last = append(h.Jobs, *o), append(h.Last, cmp.Or(policies[name].said[o.ID], o.Why))
		}
		all = append(all, h)
	}
	return all, t.err
}

// event reads what happened to a job after its submission; o is nil if it was not submitted.
func (t *table) event(o *sched.Outcome, at float64, id string, gpus float64) {
	what := t.text("event")
	switch {
	case o == nil:
		t.fail(t.line, "job %q has event %q before it was submitted: add its line submit", id, what)
		return
	case o.Declined() || !math.IsNaN(o.End):
		t.fail(t.line, "job %q has event %q after it has ended, or was declined: remove the line", id, what)
		return
	}
	switch what {
	case "start", "resume", "resize":
		if gpus == 0 {
			t.fail(t.line, "gpus is 0, and the event is %s: want more than 0", what)
		}
		if math.IsNaN(o.Start) {
			o.Start = at
		}
	case "preempt":
		o.Preemptions++
		gpus = 0
	case "end":
		o.End, gpus = at, 0
	case "decline":
		o.Why = cmp.Or(t.text("why"), "declined")
		return
	default:
		t.fail(t.line, "event is %q: want submit, start, resize, preempt, resume, end or decline", what)
	}
	had := 0.
	if n := len(o.Steps); n > 0 {
		had = o.Steps[n-1].GPUs
	}
	if gpus != had {
		o.Steps = append(o.Steps, sched.Step{At: at, GPUs: gpus})
	}
}
