package workload

import (
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// columns are the columns of our own format that are always written, in order.
var columns = []string{"job_id", "vc", "submit", "gpus", "duration", "deadline", "estimate", "history"}

// more are the columns that are written if a job has a value: how to format it, and how to read it.
var more = []struct {
	name string
	text func(*sched.Job) string
	read func(t *table, name string, j *sched.Job)
}{
	{"model", func(j *sched.Job) string { return j.Model }, func(t *table, n string, j *sched.Job) { j.Model = t.text(n) }},
	{"dataset", func(j *sched.Job) string { return j.Dataset }, func(t *table, n string, j *sched.Job) { j.Dataset = t.text(n) }},
	{"batch", func(j *sched.Job) string { return known(float64(j.Batch)) }, func(t *table, n string, j *sched.Job) { j.Batch = t.whole(n, 0) }},
	{"amp", func(j *sched.Job) string { return flag(j.AMP) }, func(t *table, n string, j *sched.Job) { j.AMP = t.bit(n) }},
	{"memory", func(j *sched.Job) string { return known(j.Memory) }, func(t *table, n string, j *sched.Job) { j.Memory = t.number(n, 0) }},
	{"score", func(j *sched.Job) string { return known(float64(j.Score)) }, func(t *table, n string, j *sched.Job) { j.Score = t.score(n) }},
	{"best_effort", func(j *sched.Job) string { return flag(j.BestEffort) }, func(t *table, n string, j *sched.Job) { j.BestEffort = t.bit(n) }},
	{"noise_scale", func(j *sched.Job) string { return known(j.Noise) }, func(t *table, n string, j *sched.Job) { j.Noise = t.number(n, 0) }},
	{"iterations", func(j *sched.Job) string { return known(j.Iterations) }, func(t *table, n string, j *sched.Job) { j.Iterations = t.number(n, 0) }},
	{"rates", func(j *sched.Job) string { return list(j.Rates) }, func(t *table, n string, j *sched.Job) { j.Rates = t.list(n, t.text(n)) }},
	{"batches", batchesText, nil},
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

// StarTrace reads jobs in our own format: job_id, submit, gpus and duration; vc, deadline (s of the same clock; empty:
// none), estimate and history (predicted durations, s) if they are known, and what else policies use:
// docs/scheduling.md lists the columns.
func StarTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "submit", "gpus", "duration")
	var jobs []*sched.Job
	batches := map[string][]sched.Batch{} // parsed once: there are few, and they are long
	for t.next() {
		j := &sched.Job{ID: t.id(), VC: t.text("vc"), Submit: t.number("submit", 0), GPUs: t.whole("gpus", 1), Duration: t.number("duration", 0), Deadline: never}
		for _, c := range []struct {
			name string
			to   *float64
			low  float64
		}{{"deadline", &j.Deadline, 0}, {"estimate", &j.Estimate, 0}, {"history", &j.History, -never}} {
			if t.text(c.name) != "" {
				*c.to = t.number(c.name, c.low)
			}
		}
		for _, c := range more {
			if c.read != nil && t.text(c.name) != "" {
				c.read(t, c.name, j)
			}
		}
		if text := t.text("batches"); text != "" {
			if batches[text] == nil {
				batches[text] = t.batches(text)
			}
			j.Batches = batches[text]
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

// flag formats true as 1 and false as "".
func flag(is bool) string {
	if is {
		return "1"
	}
	return ""
}

// of formats a value of a job's Either, "" without one.
func of(text func(*sched.Either) string) func(*sched.Job) string {
	return func(j *sched.Job) string {
		if j.Either == nil {
			return ""
		}
		return text(j.Either)
	}
}

// list formats numbers, separated by slashes.
func list(v []float64) string {
	var texts []string
	for _, x := range v {
		texts = append(texts, number(x))
	}
	return strings.Join(texts, "/")
}

// list parses numbers of at least 0.
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

// batchesText formats 64:1.5/2.9;128:0.8/1.6: iterations/s on 1, 2, 4 … GPUs with each batch size.
func batchesText(j *sched.Job) string {
	var texts []string
	for _, b := range j.Batches {
		texts = append(texts, strconv.Itoa(b.Samples)+":"+list(b.Rates))
	}
	return strings.Join(texts, ";")
}

func (t *table) batches(text string) (all []sched.Batch) {
	for part := range strings.SplitSeq(text, ";") {
		samples, rates, _ := strings.Cut(part, ":")
		n, err := strconv.Atoi(strings.TrimSpace(samples))
		if err != nil || n < 1 {
			t.fail(t.line, "batches is %q: want such as 64:1.5/2.9;128:0.8/1.6, iterations/s on 1, 2, … GPUs with each batch size", text)
			return nil
		}
		all = append(all, sched.Batch{Samples: n, Rates: t.list("batches", rates)})
	}
	return all
}

// number formats a finite number as short as possible; others as "".
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
