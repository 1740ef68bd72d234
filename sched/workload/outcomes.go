package workload

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"star/sched"
)

// Outcomes writes the table of jobs of star sched sim --jobs.
type Outcomes struct{ out *csv.Writer }

// NewOutcomes writes the header.
func NewOutcomes(w io.Writer) *Outcomes {
	o := &Outcomes{csv.NewWriter(w)}
	o.out.Write([]string{"job_id", "submit", "start", "end", "jct", "queue", "preemptions", "declined", "met_deadline", "gpus", "vc", "policy", "why"})
	return o
}

// Write writes the outcomes of the jobs under a policy.
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

// ReadOutcomes reads what Outcomes has written. Policies are in order of their first line, jobs in order of lines;
// tables of the originals without a column policy have the policy "".
func ReadOutcomes(r io.Reader) ([]Schedule, error) {
	t := newTable(r)
	t.need("job_id", "submit", "start", "end", "declined", "met_deadline")
	var all []Schedule
	index := map[string]int{}
	seen := map[string]map[string]int{}
	maybe := func(name string) float64 {
		if t.text(name) == "" {
			return math.NaN()
		}
		return t.number(name, -never)
	}
	for t.next() {
		policy := t.text("policy")
		i, ok := index[policy]
		if !ok {
			i = len(all)
			index[policy], seen[policy] = i, map[string]int{}
			all = append(all, Schedule{Policy: policy})
		}
		o := sched.Outcome{Job: &sched.Job{ID: t.idAmong(seen[policy]), Submit: t.number("submit", -never), Deadline: never}, Start: maybe("start"), End: maybe("end")}
		if t.has("preemptions") {
			o.Preemptions = t.whole("preemptions", 0)
		}
		if t.flag("declined") {
			o.Why = cmp.Or(t.text("why"), "declined")
		}
		if !t.flag("met_deadline") {
			o.Deadline = -never
		}
		if o.End < o.Submit || o.Start < o.Submit || o.End < o.Start {
			t.fail(t.line, "job %s is submitted at %v, starts at %v and ends at %v: want times in this order", o.ID, o.Submit, o.Start, o.End)
		}
		all[i].Jobs = append(all[i].Jobs, o)
	}
	if t.err == nil && len(all) == 0 {
		t.fail(1, "want a header and at least one job")
	}
	return all, t.err
}

// flag parses true or false.
func (t *table) flag(name string) bool {
	v, err := strconv.ParseBool(strings.TrimSpace(t.text(name)))
	if err != nil {
		t.fail(t.line, "%s is %q: want true or false", name, t.text(name))
	}
	return v
}
