package workload

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"

	"star/sched"
)

// columns are those of our own format, in order.
var columns = []string{"job_id", "vc", "submit", "gpus", "duration", "deadline", "estimate", "history"}

// StarTrace reads jobs in our own format: job_id, submit, gpus and duration; vc, deadline (s of the same clock; empty: none), estimate and history
// (predicted durations, s) where they are known.
func StarTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "submit", "gpus", "duration")
	var jobs []*sched.Job
	seen := map[string]int{}
	for t.next() {
		j := &sched.Job{ID: t.id(seen), VC: t.text("vc"), Submit: t.number("submit", 0), GPUs: t.whole("gpus", 1), Duration: t.number("duration", 0), Deadline: never}
		for _, c := range []struct {
			name string
			to   *float64
		}{{"deadline", &j.Deadline}, {"estimate", &j.Estimate}, {"history", &j.History}} {
			if t.has(c.name) && t.text(c.name) != "" {
				*c.to = t.number(c.name, 0)
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, t.err
}

// Write writes jobs in our own format.
func Write(w io.Writer, jobs []*sched.Job) error {
	out := csv.NewWriter(w)
	out.Write(columns)
	for _, j := range jobs {
		out.Write([]string{j.ID, j.VC, number(j.Submit), strconv.Itoa(j.GPUs), number(j.Duration), number(j.Deadline), known(j.Estimate), known(j.History)})
	}
	out.Flush()
	return out.Error()
}

// Outcomes writes the table of jobs that star sched sim --jobs has.
type Outcomes struct{ out *csv.Writer }

// NewOutcomes writes the header.
func NewOutcomes(w io.Writer) *Outcomes {
	o := &Outcomes{csv.NewWriter(w)}
	o.out.Write([]string{"job_id", "submit", "start", "end", "jct", "queue", "preemptions", "declined", "met_deadline", "gpus", "vc", "policy", "why"})
	return o
}

// Write writes what became of the jobs under a policy.
func (o *Outcomes) Write(policy string, jobs []sched.Outcome) error {
	for _, j := range jobs {
		queue := number(j.Queue)
		if math.IsNaN(j.Start) {
			queue = ""
		}
		o.out.Write([]string{j.ID, number(j.Submit), number(j.Start), number(j.End), number(j.JCT()), queue, strconv.Itoa(j.Preemptions),
			fmt.Sprint(j.Declined()), fmt.Sprint(!j.Declined() && j.Met()), strconv.Itoa(j.GPUs), j.VC, policy, j.Why})
	}
	o.out.Flush()
	return o.out.Error()
}

// number is a finite number as short as can be; "" else.
func number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func known(v float64) string {
	if v == 0 {
		return ""
	}
	return number(v)
}

// Short reads the short form of a cluster: n16g8 is 16 nodes of 8 GPUs, 5gpu+3cpu are 5 machines with a GPU and 3 without. False: it is none.
func Short(text string) (c sched.Cluster, ok bool) {
	var rest string
	if n, _ := fmt.Sscanf(text+" .", "%dgpu+%dcpu %s", &c.Nodes, &c.Plain, &rest); n == 3 && rest == "." && c.Nodes >= 0 && c.Plain >= 0 && c.Nodes+c.Plain > 0 {
		c.GPUs = 1
		return c, true
	}
	c = sched.Cluster{}
	n, _ := fmt.Sscanf(text+" .", "n%dg%d %s", &c.Nodes, &c.GPUs, &rest)
	return c, n == 3 && rest == "." && c.Nodes > 0 && c.GPUs > 0 && c.GPUs <= 64
}
