package trace

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"star/internal/unpack"
)

// Columns are the names that a step log has for what an Import needs. The zero value finds them.
type Columns struct {
	// Rank names the worker's number, from 0; empty: rank, global_rank or worker, whichever exists.
	// RankOfFile uses the place of the file among all files instead, for logs that each worker
	// writes for itself.
	Rank string

	// Step names the step's number; empty: step, global_step, iteration or iter.
	Step string

	// Time names the step's duration; empty: seconds, duration, step_time, elapsed, time, each of
	// them with the ending _s or _ms, or ms.
	Time string

	// Unit is that of Time; zero means milliseconds where its name is ms or ends in _ms, and seconds else.
	Unit time.Duration
}

// RankOfFile is what Columns.Rank is where no column has the rank.
const RankOfFile = "file"

// ParseColumns reads rank=NAME,step=NAME,seconds=NAME, where seconds may be milliseconds and each part may be left out.
func ParseColumns(parts []string) (c Columns, err error) {
	for _, part := range parts {
		key, name, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			return c, fmt.Errorf("%q: want rank=NAME, step=NAME, seconds=NAME or milliseconds=NAME", part)
		}
		to := map[string]*string{"rank": &c.Rank, "step": &c.Step, "seconds": &c.Time, "milliseconds": &c.Time}[key]
		switch {
		case to == nil:
			return c, fmt.Errorf("%q: %s is not rank, step, seconds or milliseconds", part, key)
		case *to != "":
			return c, fmt.Errorf("%q: there is %s already", part, *to)
		}
		*to = name
		switch key {
		case "seconds":
			c.Unit = time.Second
		case "milliseconds":
			c.Unit = time.Millisecond
		}
	}
	return c, nil
}

var (
	rankNames = []string{"rank", "global_rank", "worker"}
	stepNames = []string{"step", "global_step", "iteration", "iter"}
	timeNames = func() []string {
		var names []string
		for _, n := range []string{"seconds", "duration", "step_time", "elapsed", "time"} {
			names = append(names, n, n+"_s", n+"_ms")
		}
		return append(names, "ms")
	}()
)

// find is the name of a column among those that are there, or the empty string.
func find(wanted string, usual []string, there func(string) bool) string {
	if wanted != "" {
		usual = []string{wanted}
	}
	for _, n := range usual {
		if there(n) {
			return n
		}
	}
	return ""
}

// unit is that of a column of times.
func (c Columns) unit(name string) time.Duration {
	switch {
	case c.Unit != 0:
		return c.Unit
	case name == "ms" || strings.HasSuffix(name, "_ms"):
		return time.Millisecond
	}
	return time.Second
}

// Import makes a trace of what the workers of a job logged of their steps: CSV with a header, or one JSON object
// on each line, with a rank, a step and how long it took. One file may have all workers, or each its own.
type Import struct {
	Columns Columns

	// Drop leaves out steps that some ranks lack. Without it only the last one may be incomplete,
	// since a job ends in the middle of a step; others are errors.
	Drop bool

	// Notices say what was left out.
	Notices []string

	files []string
	rows  []logged
}

// logged is one row.
type logged struct {
	rank       int32
	file, line int32
	step       int64
	seconds    float64
}

const (
	maxStep = 1 << 53       // what a JSON number holds
	maxTime = 1_000_000_000 // seconds
	maxLog  = 1 << 20       // bytes of a line
)

// Read reads one more file, plain or gzip. Errors begin with name:line. A last line without its end is left out:
// it may have been cut.
func (m *Import) Read(r io.Reader, name string) error {
	br, err := unpack.Reader(r)
	if err != nil {
		return corrupt{fmt.Sprintf("%s: %v", name, err)}
	}
	file := int32(len(m.files))
	m.files = append(m.files, name)
	line, before, others := int32(0), len(m.rows), 0
	fail := func(format string, a ...any) error {
		return corrupt{fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, a...))}
	}
	var take func(text string) (map[string]string, error)
	var table *csvTable
	for {
		text, end, err := readLine(br)
		if err != nil && !errors.Is(err, io.EOF) {
			line++
			return fail("%v", err)
		}
		if text == "" && errors.Is(err, io.EOF) {
			break
		}
		line++
		if t := strings.TrimSpace(text); t == "" || strings.HasPrefix(t, "#") {
			continue
		}
		if !end {
			m.Notices = append(m.Notices, fmt.Sprintf("%s:%d: the last line has no end and is left out: it may have been cut", name, line))
			break
		}
		if take == nil {
			if strings.HasPrefix(text, "{") {
				take = object
			} else {
				if table, err = newTable(text, m.Columns); err != nil {
					return fail("%v", err)
				}
				take = table.row
				continue
			}
		}
		fields, err := take(text)
		if err != nil {
			return fail("%v", err)
		}
		row, ok, err := m.row(fields, int(file))
		switch {
		case err != nil:
			return fail("%v", err)
		case !ok:
			others++
			continue
		case len(m.rows) >= maxEntries:
			return fail("more than %d rows", maxEntries)
		}
		row.file, row.line = file, line
		m.rows = append(m.rows, row)
	}
	if len(m.rows) == before {
		return fail("no rows: want a rank, a step and how long it took on each line, as CSV with a header or as JSON")
	}
	if others > 0 {
		m.Notices = append(m.Notices, fmt.Sprintf("%s: %d lines that do not say how long a step took are left out", name, others))
	}
	return nil
}

// readLine reads a line and says whether it had an end.
func readLine(br *bufio.Reader) (text string, end bool, err error) {
	var b []byte
	for {
		part, err := br.ReadSlice('\n')
		b = append(b, part...)
		switch {
		case len(b) > maxLog:
			return "", false, fmt.Errorf("a line of more than %d bytes, which no step log has", maxLog)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return string(b), false, err
		}
		return strings.TrimRight(string(b), "\r\n"), true, nil
	}
}

// object is a line of JSON as the text of its fields.
func object(text string) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("not a JSON object: %v", err)
	}
	fields := make(map[string]string, len(raw))
	for k, v := range raw {
		fields[k] = strings.Trim(string(v), `"`)
	}
	return fields, nil
}

// csvTable is the header of a CSV file.
type csvTable struct {
	comma rune
	names []string
}

func newTable(text string, c Columns) (*csvTable, error) {
	t := &csvTable{comma: ','}
	if !strings.Contains(text, ",") && strings.Contains(text, "\t") {
		t.comma = '\t'
	}
	names, err := t.split(strings.TrimPrefix(text, "\ufeff"))
	if err != nil {
		return nil, err
	}
	for i, n := range names {
		names[i] = strings.TrimSpace(n)
		if slices.Contains(names[:i], names[i]) {
			return nil, fmt.Errorf("the header has %s twice", names[i])
		}
	}
	t.names = names
	there := func(n string) bool { return slices.Contains(names, n) }
	for _, x := range []struct {
		what, key, wanted string
		usual             []string
	}{{"the rank", "rank", c.Rank, rankNames}, {"the step", "step", c.Step, stepNames}, {"the time", "seconds", c.Time, timeNames}} {
		if x.what == "the rank" && c.Rank == RankOfFile {
			continue
		}
		if find(x.wanted, x.usual, there) == "" {
			want := strings.Join(x.usual, ", ")
			if x.wanted != "" {
				want = x.wanted
			}
			return nil, fmt.Errorf("the header has no column for %s: want %s, or say --columns %s=NAME; found %.200q", x.what, want, x.key, text)
		}
	}
	return t, nil
}

func (t *csvTable) split(text string) ([]string, error) {
	if !strings.Contains(text, `"`) {
		return strings.Split(text, string(t.comma)), nil
	}
	r := csv.NewReader(strings.NewReader(text))
	r.Comma = t.comma
	fields, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("not a line of CSV: %w", errors.Unwrap(err))
	}
	return fields, nil
}

func (t *csvTable) row(text string) (map[string]string, error) {
	values, err := t.split(text)
	if err != nil {
		return nil, err
	}
	if len(values) != len(t.names) {
		return nil, fmt.Errorf("%d columns, want %d as in the header", len(values), len(t.names))
	}
	fields := make(map[string]string, len(values))
	for i, v := range values {
		fields[t.names[i]] = strings.TrimSpace(v)
	}
	return fields, nil
}

// row makes fields a row. False: they do not say how long a step took.
func (m *Import) row(fields map[string]string, file int) (l logged, ok bool, err error) {
	there := func(n string) bool { v, ok := fields[n]; return ok && v != "" && v != "null" }
	took := find(m.Columns.Time, timeNames, there)
	if took == "" {
		return l, false, nil
	}
	step := find(m.Columns.Step, stepNames, there)
	if step == "" {
		return l, false, fmt.Errorf("it has %s but no step", took)
	}
	n, err := strconv.ParseFloat(fields[step], 64)
	if err != nil || n != math.Trunc(n) || n < 0 || n > maxStep {
		return l, false, fmt.Errorf("%s is %.40q, want a whole number of at least 0", step, fields[step])
	}
	l.step = int64(n)
	if m.Columns.Rank == RankOfFile {
		l.rank = int32(file)
	} else {
		rank := find(m.Columns.Rank, rankNames, there)
		if rank == "" {
			return l, false, fmt.Errorf("it has %s but no rank; if each worker has a file of its own, say --columns rank=%s", took, RankOfFile)
		}
		n, err := strconv.ParseFloat(fields[rank], 64)
		if err != nil || n != math.Trunc(n) || n < 0 || n >= maxWorkers {
			return l, false, fmt.Errorf("%s is %.40q, want a whole number from 0 to %d", rank, fields[rank], maxWorkers-1)
		}
		l.rank = int32(n)
	}
	l.seconds, err = strconv.ParseFloat(fields[took], 64)
	if unit := m.Columns.unit(took); err == nil {
		l.seconds *= unit.Seconds()
	}
	if err != nil || !(l.seconds > 0) || l.seconds > maxTime {
		return l, false, fmt.Errorf("%s is %.40q, want a number above 0", took, fields[took])
	}
	return l, true, nil
}

// Add adds what else is known of a step: for logs of other kinds. place says where it was found.
func (m *Import) Add(rank int, step int64, seconds float64, place string) error {
	if len(m.files) == 0 || m.files[len(m.files)-1] != place {
		m.files = append(m.files, place)
	}
	switch {
	case rank < 0 || rank >= maxWorkers || step < 0:
		return corrupt{fmt.Sprintf("%s: rank %d in step %d", place, rank, step)}
	case !(seconds > 0) || seconds > maxTime:
		return corrupt{fmt.Sprintf("%s: rank %d took %v s in step %d, want a number above 0", place, rank, seconds, step)}
	case len(m.rows) >= maxEntries:
		return corrupt{fmt.Sprintf("%s: more than %d rows", place, maxEntries)}
	}
	m.rows = append(m.rows, logged{rank: int32(rank), step: step, seconds: seconds, file: int32(len(m.files) - 1)})
	return nil
}

// place is where a row was found.
func (m *Import) place(l logged) string {
	if l.line == 0 {
		return m.files[l.file]
	}
	return fmt.Sprintf("%s:%d", m.files[l.file], l.line)
}

// Trace makes a trace of what was read. Its steps are those of the log in their order, counted from 0. Ranks
// without rows, steps in which one is missing, and rows for the same step and rank are errors that name them.
func (m *Import) Trace(name string) (*Trace, error) {
	if len(m.rows) == 0 {
		return nil, corrupt{fmt.Sprintf("%s: no rows", name)}
	}
	slices.SortStableFunc(m.rows, func(a, b logged) int { return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.rank, b.rank)) })
	workers := 0
	for i, l := range m.rows {
		workers = max(workers, int(l.rank)+1)
		if i > 0 && l.step == m.rows[i-1].step && l.rank == m.rows[i-1].rank {
			return nil, corrupt{fmt.Sprintf("%s: step %d of rank %d is already at %s: want each step of a rank once", m.place(l), l.step, l.rank, m.place(m.rows[i-1]))}
		}
	}
	seen := make([]bool, workers)
	for _, l := range m.rows {
		seen[l.rank] = true
	}
	if w := missing(seen); w < workers {
		return nil, corrupt{fmt.Sprintf("%s: rank %d has no rows, but there is a rank %d: want rows of ranks 0 to %d", strings.Join(m.files, ", "), w, workers-1, workers-1)}
	}

	// How far steps are apart is by how far the closest are: logs often have every tenth one.
	apart := int64(math.MaxInt64)
	for i := 1; i < len(m.rows); i++ {
		if d := m.rows[i].step - m.rows[i-1].step; d > 0 {
			apart = min(apart, d)
		}
	}
	t := &Trace{Name: name, Workers: workers}
	var all, durations []float64
	var kept []logged
	dropped, first := 0, ""
	for rows, last := m.rows, int64(-1); len(rows) > 0; {
		n := 1
		for n < len(rows) && rows[n].step == rows[0].step {
			n++
		}
		step := rows[0].step
		gap := ""
		if n < workers {
			clear(seen)
			for _, l := range rows[:n] {
				seen[l.rank] = true
			}
			gap = fmt.Sprintf("step %d has no rank %d", step, missing(seen))
		}
		if last >= 0 && step-last > apart && !m.Drop {
			return nil, corrupt{fmt.Sprintf("%s: step %d follows step %d, but others are %d apart: steps are missing (--gaps drop goes on without them)", m.place(rows[0]), step, last, apart)}
		}
		switch {
		case gap == "":
			kept = append(kept, rows[:n]...)
			for _, l := range rows[:n] {
				durations = append(durations, l.seconds)
			}
		case m.Drop:
			if dropped++; first == "" {
				first = gap
			}
		case n == len(rows) && len(kept) > 0:
			m.Notices = append(m.Notices, fmt.Sprintf("%s: the last one, %s, and is left out", m.place(rows[0]), gap))
		default:
			return nil, corrupt{fmt.Sprintf("%s: %s: want one row of each of ranks 0 to %d (--gaps drop goes on without such steps)", m.place(rows[0]), gap, workers-1)}
		}
		last = step
		rows = rows[n:]
	}
	if dropped > 0 {
		m.Notices = append(m.Notices, fmt.Sprintf("%s: left out %d steps that some ranks lack, the first because %s", name, dropped, first))
	}
	if len(kept) == 0 {
		return nil, corrupt{fmt.Sprintf("%s: no step has all ranks 0 to %d", name, workers-1)}
	}
	all = slices.Sorted(slices.Values(durations))
	job := middle(all)
	t.Steps = len(durations) / workers
	t.Median = time.Duration(max(1, math.Round(job*1e9)))
	t.slowdown, t.rel = make([]float32, len(durations)), make([]float32, len(durations))
	for s := range t.Steps {
		of := durations[s*workers : (s+1)*workers]
		usual := middle(slices.Sorted(slices.Values(of)))
		for w, d := range of {
			i := s*workers + w
			t.slowdown[i], t.rel[i] = float32(d/usual), float32(d/job)
			if x := max(t.slowdown[i], t.rel[i]); x > MaxSlowdown || t.slowdown[i] == 0 || t.rel[i] == 0 {
				return nil, corrupt{fmt.Sprintf("%s: %v s, which is %.3g of the median of its step and %.3g of the job's: want above 0 and at most %d", m.place(kept[i]), d, d/usual, d/job, MaxSlowdown)}
			}
		}
	}
	return t, nil
}

// middle is the median of sorted numbers.
func middle(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// WriteTo writes the trace as Read reads it, with durations in seconds; a trace that knows no Median writes them
// as multiples of it.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	bw := bufio.NewWriter(w)
	unit, said := 1.0, "the job's median"
	if t.Median > 0 {
		unit, said = t.Median.Seconds(), "seconds"
	}
	n, err := fmt.Fprintf(bw, "# %s: %d workers, %d steps; duration in %s, slowdown = duration / median of the step, rel = duration / median of the job (%v)\n%s\n",
		strings.Map(printable, filepath.Base(t.Name)), t.Workers, t.Steps, said, t.Median, header)
	total := int64(n)
	for i := 0; i < len(t.rel) && err == nil; i++ {
		n, err = fmt.Fprintf(bw, "%d,%d,%.6g,%.6g,%.6g\n", i/t.Workers, i%t.Workers, float64(t.rel[i])*unit, t.slowdown[i], t.rel[i])
		total += int64(n)
	}
	return total, cmp.Or(err, bw.Flush())
}

// printable keeps a name on its line.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}
