package sched

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"star/internal/settings"
	"star/job"
	"star/sched/estimate"
	"star/sched/schedsim"
	"star/sched/workload"
)

// predictMethods are the models of star sched estimate --predict.
var predictMethods = []string{"ebm", "gbm", "tree", "history"}

// jobTable is a trace of jobs as text.
type jobTable struct {
	file   string
	header []string
	rows   [][]string
	lines  []int // of rows
}

func readJobTable(file string) (*jobTable, error) {
	t := &jobTable{file: file}
	err := schedsim.ReadInput(file, func(r io.Reader) error {
		in := csv.NewReader(r)
		for {
			row, err := in.Read()
			if err == io.EOF {
				break
			} else if err != nil {
				return fmt.Errorf("%w: %w", err, workload.ErrInput)
			}
			line, _ := in.FieldPos(0)
			t.rows, t.lines = append(t.rows, row), append(t.lines, line)
		}
		if len(t.rows) < 2 {
			return workload.Wrong(1, "want a header and at least one job")
		}
		t.header, t.rows, t.lines = t.rows[0], t.rows[1:], t.lines[1:]
		for i, h := range t.header {
			t.header[i] = strings.TrimPrefix(strings.TrimSpace(h), "\ufeff")
		}
		return nil
	})
	return t, err
}

// readJobTables reads the table to learn from, and the table of the jobs to predict.
func readJobTables(trainFile, predictFile string) (train, to *jobTable, err error) {
	if train, err = readJobTable(trainFile); err == nil {
		to, err = readJobTable(predictFile)
	}
	return train, to, err
}

// wrong is the error for a line of the file.
func (t *jobTable) wrong(line int, format string, args ...any) error {
	return job.FileError(fmt.Errorf("%s: %w", t.file, workload.Wrong(line, format, args...)), workload.ErrInput)
}

// column is where the first one is of some names that mean the same; -1: nowhere.
func (t *jobTable) column(names ...string) int {
	return slices.IndexFunc(t.header, func(h string) bool { return slices.Contains(names, h) })
}

// values are the numbers of a column.
func (t *jobTable) values(column int) (v []float64, err error) {
	for i, row := range t.rows {
		x, err := strconv.ParseFloat(strings.TrimSpace(row[column]), 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
			return nil, t.wrong(t.lines[i], "%s is %q: want a number of at least 0", t.header[column], row[column])
		}
		v = append(v, x)
	}
	return v, nil
}

// numbers is a column that a file must have.
func (t *jobTable) numbers(names ...string) ([]float64, error) {
	c := t.column(names...)
	if c < 0 {
		return nil, t.wrong(1, "column %q is missing: add it to the header and to each line", names[0])
	}
	return t.values(c)
}

// notFeatures are columns that are not features of a job: its name, predicted values, and values that are unknown
// before the job has run.
var notFeatures = []string{"job_id", "order", "duration", "estimate", "history", "ebm_priority", "lgb_priority", "deadline", "submit", "submit_time", "state"}

// predict learns from one trace how long jobs take, and writes another one with its predictions: in the columns by
// which lucid and qssf order jobs.
func predict(w, says io.Writer, method, trainFile, predictFile string) error {
	train, to, err := readJobTables(trainFile, predictFile)
	if err != nil {
		return err
	}
	var estimates []float64
	if method == "history" {
		estimates, err = historyOf(train, to)
	} else {
		estimates, err = predictDurations(method, train, to, says)
	}
	if err != nil {
		return err
	}
	if truth, err := to.numbers("duration"); err == nil {
		past, err := train.numbers("duration")
		if err != nil {
			return err
		}
		rank, factor := quality(estimates, truth)
		correlation := fmt.Sprintf("%.3f", rank)
		if math.IsNaN(rank) {
			correlation = "unknown, since all take the same, or are thought to,"
		}
		slices.Sort(past)
		_, plain := quality(slices.Repeat([]float64{past[len(past)/2]}, len(truth)), truth)
		fmt.Fprintf(says, "%s: rank correlation %s with the durations of %d jobs, half of them within a factor of %.2f (%.2f if the median of %s were said of all)\n", method, correlation, len(truth), factor, plain, train.file)
	}
	if to.column("gpu_num") >= 0 {
		return to.write(w, estimates, "ebm_priority", "lgb_priority")
	}
	return to.write(w, estimates, "estimate", "history")
}

// write writes the table with predictions in columns of these names.
func (t *jobTable) write(w io.Writer, estimates []float64, names ...string) error {
	header := slices.Clone(t.header)
	at := make([]int, len(names))
	for k, n := range names {
		if at[k] = slices.Index(header, n); at[k] < 0 {
			at[k], header = len(header), append(header, n)
		}
	}
	out := csv.NewWriter(w)
	out.Write(header)
	for i, row := range t.rows {
		row = append(slices.Clone(row), make([]string, len(header)-len(row))...)
		for _, k := range at {
			row[k] = strconv.FormatFloat(math.Round(estimates[i]*10)/10, 'f', -1, 64)
		}
		out.Write(row)
	}
	out.Flush()
	return out.Error()
}

// historyOf is for each job the expectation from the user's earlier jobs, those of the first trace and those that have
// ended before.
func historyOf(train, to *jobTable) ([]float64, error) {
	var past []estimate.PastJob
	for _, t := range []*jobTable{train, to} {
		user, name := t.column("user"), t.column("name", "jobname")
		if user < 0 {
			return nil, t.wrong(1, "column \"user\" is missing: add the owner of each job")
		}
		submit, err := t.numbers("submit", "submit_time")
		duration, err2 := t.numbers("duration")
		gpus, err3 := t.numbers("gpus", "gpu_num")
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, err
		}
		for i, row := range t.rows {
			p := estimate.PastJob{User: row[user], GPUs: int(gpus[i]), Submit: submit[i], Duration: duration[i]}
			if name >= 0 {
				p.Name = strings.TrimRight(row[name], "0123456789_-") // names with a number are of jobs that are alike
			}
			past = append(past, p)
		}
	}
	return estimate.History(past)[len(train.rows):], nil
}

// predictDurations predicts the durations of the jobs in the second trace with a model of the first one. It learns
// logarithms, since durations are spread over orders of magnitude.
func predictDurations(method string, train, to *jobTable, says io.Writer) ([]float64, error) {
	duration, err := train.numbers("duration")
	if err != nil {
		return nil, err
	}
	submit, err := train.numbers("submit", "submit_time")
	if err != nil {
		return nil, err
	}
	when, err := to.numbers("submit", "submit_time")
	if err != nil {
		return nil, err
	}
	order := make([]int, len(train.rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(submit[a], submit[b]) })
	names := []string{"hour", "weekday"}
	var table estimate.Table
	rows := make([][]float64, len(to.rows))
	calendar := func(s float64) []float64 {
		return []float64{math.Mod(s, 86400) / 3600, math.Mod(math.Floor(s/86400), 7)}
	}
	for _, i := range order {
		table.X, table.Y = append(table.X, calendar(submit[i])), append(table.Y, math.Log(max(1, duration[i])))
	}
	for i := range rows {
		rows[i] = calendar(when[i])
	}
	for _, c := range train.shared(to) {
		names = append(names, c.name)
		if c.known != nil {
			for k, i := range order {
				table.X[k] = append(table.X[k], c.known[i])
			}
			addColumn(rows, c.new)
			continue
		}
		var texts []string
		for _, i := range order {
			texts = append(texts, train.rows[i][c.at])
		}
		own, codes, mean := estimate.TargetCodes(texts, table.Y)
		addColumn(table.X, own)
		for i := range rows {
			v, ok := codes[to.rows[i][c.other]]
			if !ok {
				v = mean
			}
			rows[i] = append(rows[i], v)
		}
	}
	say, err := fitDurations(method, table, names, says)
	if err != nil {
		return nil, err
	}
	estimates := make([]float64, len(rows))
	for i, x := range rows {
		estimates[i] = math.Exp(say(x))
	}
	return estimates, nil
}

// fitDurations learns a table, and returns what predicts a row.
func fitDurations(method string, t estimate.Table, names []string, says io.Writer) (func([]float64) float64, error) {
	switch method {
	case "gbm":
		m, err := estimate.Boost(t, estimate.Boosting{})
		if err != nil {
			return nil, err
		}
		return m.Predict, nil
	case "tree":
		m, err := estimate.Grow(t, estimate.Limits{Leaf: 5})
		if err != nil {
			return nil, err
		}
		m.Prune(.01)
		fmt.Fprintf(says, "tree: %d leaves\n", m.Leaves())
		return m.Predict, nil
	}
	m, err := estimate.Explain(t, min(10, len(names)*(len(names)-1)/2), estimate.Boosting{})
	if err != nil {
		return nil, err
	}
	var parts []string
	for j, shape := range m.Shapes {
		if low, high := slices.Min(shape), slices.Max(shape); high > low {
			parts = append(parts, fmt.Sprintf("%s %.2f to %.2f times", names[j], math.Exp(low), math.Exp(high)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing that is known of it says more"}
	}
	fmt.Fprintf(says, "ebm: a job takes %.0f s; %s\n", math.Exp(m.Mean), strings.Join(parts, ", "))
	for _, p := range m.Pairs {
		var low, high float64
		for _, row := range p.Values {
			low, high = min(low, slices.Min(row)), max(high, slices.Max(row))
		}
		if high-low > .05 {
			fmt.Fprintf(says, "ebm: %s and %s together %.2f to %.2f times\n", names[p.A], names[p.B], math.Exp(low), math.Exp(high))
		}
	}
	return m.Predict, nil
}

// sharedColumn is a feature that both of two tables have, with its numbers if it has nothing else.
type sharedColumn struct {
	name       string
	at, other  int // where it is
	known, new []float64
}

// shared returns the features that both tables have, without those that are constant in t: nothing can be learned from
// them.
func (t *jobTable) shared(to *jobTable) (all []sharedColumn) {
	for at, name := range t.header {
		c := sharedColumn{name: name, at: at, other: to.column(name)}
		if c.other < 0 || slices.Contains(notFeatures, name) || !slices.ContainsFunc(t.rows, func(row []string) bool { return row[at] != t.rows[0][at] }) {
			continue
		}
		known, err := t.values(at)
		new, err2 := to.values(c.other)
		if err == nil && err2 == nil {
			c.known, c.new = known, new
		}
		all = append(all, c)
	}
	return all
}

// addColumn adds a feature to rows.
func addColumn(rows [][]float64, v []float64) {
	for i := range rows {
		rows[i] = append(rows[i], v[i])
	}
}

// quality is Spearman's rank correlation of estimates and truth, and the factor within which half of the estimates are.
func quality(estimates, truth []float64) (rank, factor float64) {
	var off []float64
	for i := range truth {
		off = append(off, math.Abs(math.Log(max(1, estimates[i]))-math.Log(max(1, truth[i]))))
	}
	slices.Sort(off)
	return stat.Correlation(rankOf(estimates), rankOf(truth), nil), math.Exp(off[len(off)/2])
}

// rankOf are the places of values in their order, from 1; equals have the mean of theirs.
func rankOf(v []float64) []float64 {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(v[a], v[b]) })
	r := make([]float64, len(v))
	for i := 0; i < len(order); {
		k := i
		for k < len(order) && v[order[k]] == v[order[i]] {
			k++
		}
		for _, at := range order[i:k] {
			r[at] = float64(i+1+k) / 2
		}
		i = k
	}
	return r
}

// validPredict returns an error for invalid settings of --predict.
func validPredict(s *settings.Set, args []string, train, to, what, method string) error {
	if err := refuse(s, "is for the logs of one job: --predict learns of other jobs", "epochs", "first", "truth", "times"); err != nil {
		return err
	}
	if err := refuse(s, "--predict writes a trace as CSV: leave it out", "json"); err != nil {
		return err
	}
	switch {
	case len(args) > 0:
		return &settings.UsageError{Msg: "star sched estimate: --predict learns of --train; logs are for --epochs"}
	case train == "":
		return s.Invalid("train", errors.New("is required: a trace of jobs with known durations"))
	case to == "":
		return s.Invalid("predict", errors.New("is required: a trace of the jobs to predict"))
	case what == "score" && method != "tree" && schedsim.Flagged(s, "method"):
		return s.Invalid("method", errors.New("scores are classes: a tree says which, leave it out"))
	case what == "submissions" && method != "ebm":
		return s.Invalid("method", errors.New("submissions are learned by ebm, as in Lucid: leave it out"))
	}
	return nil
}
