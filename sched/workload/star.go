package workload

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// columns are those of our own format that are always written, in order.
var columns = []string{"job_id", "vc", "submit", "gpus", "duration", "deadline", "estimate", "history"}

// more are the columns that are written where a job has something there: what it says of a job, and how it is read.
var more = []struct {
	name string
	text func(*sched.Job) string
	read func(t *table, name string, j *sched.Job)
}{
	{"model", func(j *sched.Job) string { return j.Model }, func(t *table, n string, j *sched.Job) { j.Model = t.text(n) }},
	{"dataset", func(j *sched.Job) string { return j.Dataset }, func(t *table, n string, j *sched.Job) { j.Dataset = t.text(n) }},
	{"batch", func(j *sched.Job) string { return known(float64(j.Batch)) }, func(t *table, n string, j *sched.Job) { j.Batch = t.whole(n, 0) }},
	{"amp", func(j *sched.Job) string { return flag(j.AMP) }, func(t *table, n string, j *sched.Job) { j.AMP = t.whole(n, 0) != 0 }},
	{"memory", func(j *sched.Job) string { return known(j.Memory) }, func(t *table, n string, j *sched.Job) { j.Memory = t.number(n, 0) }},
	{"score", func(j *sched.Job) string { return known(float64(j.Score)) }, func(t *table, n string, j *sched.Job) { j.Score = t.whole(n, 0) }},
	{"best_effort", func(j *sched.Job) string { return flag(j.BestEffort) }, func(t *table, n string, j *sched.Job) { j.BestEffort = t.whole(n, 0) != 0 }},
	{"noise_scale", func(j *sched.Job) string { return known(j.Noise) }, func(t *table, n string, j *sched.Job) { j.Noise = t.number(n, 0) }},
	{"iterations", func(j *sched.Job) string { return known(j.Iterations) }, func(t *table, n string, j *sched.Job) { j.Iterations = t.number(n, 0) }},
	{"rates", func(j *sched.Job) string { return list(j.Rates) }, func(t *table, n string, j *sched.Job) { j.Rates = t.list(n, t.text(n)) }},
	{"batches", batchesText, batchesRead},
	{"stages", func(j *sched.Job) string {
		if j.Stages == nil {
			return ""
		}
		return list(j.Stages[:])
	}, func(t *table, n string, j *sched.Job) {
		j.Stages = new(sched.Stages)
		if got := t.list(n, t.text(n)); copy(j.Stages[:], got) != len(j.Stages) || len(got) != len(j.Stages) {
			t.fail(t.line, "%s is %q: want %d times, such as 0.1/0.2/0.1/0", n, t.text(n), len(j.Stages))
		}
	}},
	{"restart", func(j *sched.Job) string { return known(j.Restart) }, func(t *table, n string, j *sched.Job) { j.Restart = t.number(n, 0) }},
	{"user", func(j *sched.Job) string { return j.User }, func(t *table, n string, j *sched.Job) { j.User = t.text(n) }},
	{"plain_duration", of(func(e *sched.Either) string { return number(e.Duration[1]) }), func(t *table, n string, j *sched.Job) {
		j.Either = &sched.Either{Duration: [2]float64{j.Duration, t.number(n, 0)}}
		for name, to := range map[string]*float64{"error": &j.Either.Error[0], "plain_error": &j.Either.Error[1]} {
			if t.text(name) != "" {
				*to = t.number(name, -1)
			}
		}
	}},
	{"error", of(func(e *sched.Either) string { return known(e.Error[0]) }), nil},
	{"plain_error", of(func(e *sched.Either) string { return known(e.Error[1]) }), nil},
}

// StarTrace reads jobs in our own format: job_id, submit, gpus and duration; vc, deadline (s of the same clock; empty: none), estimate and history
// (predicted durations, s) where they are known, and what else policies look at: docs/scheduling.md lists the columns.
func StarTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "submit", "gpus", "duration")
	var jobs []*sched.Job
	seen := map[string]int{}
	batches := map[string][]sched.Batch{}
	for t.next() {
		j := &sched.Job{ID: t.id(seen), VC: t.text("vc"), Submit: t.number("submit", 0), GPUs: t.whole("gpus", 1), Duration: t.number("duration", 0), Deadline: never}
		for _, c := range []struct {
			name string
			to   *float64
			low  float64
		}{{"deadline", &j.Deadline, 0}, {"estimate", &j.Estimate, 0}, {"history", &j.History, -never}} {
			if t.has(c.name) && t.text(c.name) != "" {
				*c.to = t.number(c.name, c.low)
			}
		}
		for _, c := range more {
			text := t.text(c.name)
			if text == "" || c.read == nil {
				continue
			}
			if c.name == "batches" { // few, and as long as a line
				if all, ok := batches[text]; ok {
					j.Batches = all
					continue
				}
			}
			if c.read(t, c.name, j); c.name == "batches" {
				batches[text] = j.Batches
			}
		}
		if j.Rates != nil && j.Batch == 0 {
			t.fail(t.line, "rates is %q, without batch: give the samples of all GPUs together in an iteration", t.text("rates"))
		}
		if j.Rates != nil && j.Iterations == 0 {
			t.fail(t.line, "rates is %q, and iterations %q: want a number above 0", t.text("rates"), t.text("iterations"))
		}
		jobs = append(jobs, j)
	}
	return jobs, t.err
}

// Write writes jobs in our own format, with all that is known of them.
func Write(w io.Writer, jobs []*sched.Job) error {
	out := csv.NewWriter(w)
	header := slices.Clone(columns)
	var texts []func(*sched.Job) string
	for _, c := range more {
		if slices.ContainsFunc(jobs, func(j *sched.Job) bool { return c.text(j) != "" }) {
			header, texts = append(header, c.name), append(texts, c.text)
		}
	}
	out.Write(header)
	for _, j := range jobs {
		row := []string{j.ID, j.VC, number(j.Submit), strconv.Itoa(j.GPUs), number(j.Duration), number(j.Deadline), known(j.Estimate), known(j.History)}
		for _, text := range texts {
			row = append(row, text(j))
		}
		out.Write(row)
	}
	out.Flush()
	return out.Error()
}

// flag is 1, or "" for no.
func flag(is bool) string {
	if is {
		return "1"
	}
	return ""
}

// of is what Either of a job says, if it has one.
func of(text func(*sched.Either) string) func(*sched.Job) string {
	return func(j *sched.Job) string {
		if j.Either == nil {
			return ""
		}
		return text(j.Either)
	}
}

// list is numbers with strokes between them.
func list(v []float64) string {
	var texts []string
	for _, x := range v {
		texts = append(texts, number(x))
	}
	return strings.Join(texts, "/")
}

// list reads numbers of at least 0.
func (t *table) list(name, text string) (v []float64) {
	for part := range strings.SplitSeq(text, "/") {
		x, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(x >= 0) || math.IsInf(x, 1) {
			t.fail(t.line, "%s is %q: want numbers of at least 0 with / between them", name, text)
			return nil
		}
		v = append(v, x)
	}
	return v
}

// batchesText is 64:1.5/2.9;128:0.8/1.6: iterations/s on 1, 2, 4 … GPUs with each batch size.
func batchesText(j *sched.Job) string {
	var texts []string
	for _, b := range j.Batches {
		texts = append(texts, strconv.Itoa(b.Samples)+":"+list(b.Rates))
	}
	return strings.Join(texts, ";")
}

func batchesRead(t *table, name string, j *sched.Job) {
	for part := range strings.SplitSeq(t.text(name), ";") {
		samples, rates, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(strings.TrimSpace(samples))
		if err != nil || n < 1 {
			t.fail(t.line, "%s is %q: want such as 64:1.5/2.9;128:0.8/1.6, iterations/s on 1, 2, … GPUs with each batch size", name, t.text(name))
			return
		}
		j.Batches = append(j.Batches, sched.Batch{Samples: n, Rates: t.list(name, rates)})
	}
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

// ReadOutcomes reads what Outcomes has written. Policies are in the order in which they come, jobs in that of the lines; those of the originals' tables that have no column
// policy are of the policy "".
func ReadOutcomes(r io.Reader) ([]Happened, error) {
	t := newTable(r)
	t.need("job_id", "submit", "start", "end", "declined", "met_deadline")
	var all []Happened
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
			all = append(all, Happened{Policy: policy})
		}
		o := sched.Outcome{Job: &sched.Job{ID: t.id(seen[policy]), Submit: t.number("submit", -never), Deadline: never}, Start: maybe("start"), End: maybe("end")}
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

// flag is true or false.
func (t *table) flag(name string) bool {
	v, err := strconv.ParseBool(strings.TrimSpace(t.text(name)))
	if err != nil {
		t.fail(t.line, "%s is %q: want true or false", name, t.text(name))
	}
	return v
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
