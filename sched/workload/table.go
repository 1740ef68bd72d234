// Package workload reads the inputs of schedulers: traces of jobs in the formats of the originals, clusters,
// throughputs and estimates. Errors name the line and say what to write there.
package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrInput is wrapped by all errors about the contents of an input.
var ErrInput = errors.New("bad input")

// inputError is an error of a line.
type inputError struct{ msg string }

func (e *inputError) Error() string { return e.msg }
func (e *inputError) Unwrap() error { return ErrInput }

// Bad returns an error about whole files that wraps ErrInput.
func Bad(format string, args ...any) error { return &inputError{fmt.Sprintf(format, args...)} }

// Wrong returns an error about a line that wraps ErrInput.
func Wrong(line int, format string, args ...any) error {
	return &inputError{fmt.Sprintf("line %d: ", line) + fmt.Sprintf(format, args...)}
}

// FormatOf guesses the format of a trace from its beginning: star, elasticflow, lucid, muri, allox, helios or philly;
// "" if it is unknown.
func FormatOf(begin string) string {
	line, jobs, more := strings.Cut(begin, "\n")
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "# ") {
		return "allox"
	}
	if strings.HasPrefix(line, "[") {
		return "philly"
	}
	columns, submit := map[string]bool{}, 0
	for i, h := range strings.Split(line, ",") {
		h = strings.TrimPrefix(strings.TrimSpace(h), "\ufeff")
		if columns[h] = true; h == "submit_time" {
			submit = i
		}
	}
	switch {
	case columns["submit"] && columns["gpus"]:
		return "star"
	case columns["gpu_num"] && columns["submit_time"] && columns["node_num"]:
		return "helios"
	case columns["gpu_num"] && columns["submit_time"]:
		if first, _, _ := strings.Cut(jobs, "\n"); more { // both have these columns, but other times
			return clockOf(first, submit)
		}
		return "lucid"
	case columns["iteration_time"] && columns["num_gpu"]:
		return "muri"
	case columns["num_gpu"] && (columns["iteration"] || columns["num_iteration"]):
		return "elasticflow"
	}
	return ""
}

// clockOf tells Helios's and Lucid's times in a cell of a line apart; "" if it is neither.
func clockOf(line string, cell int) string {
	cells := strings.Split(line, ",")
	if cell >= len(cells) {
		return ""
	}
	text := strings.TrimSpace(cells[cell])
	if _, err := date(text); err == nil {
		return "helios"
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return "lucid"
	}
	return ""
}

// table is CSV with a header. The first error stays, and later reads return zeros.
type table struct {
	csv    *csv.Reader
	column map[string]int
	row    []string
	line   int
	seen   map[string]int // line of each job's name
	err    error
}

// newTable reads the header.
func newTable(r io.Reader) *table {
	t := &table{csv: csv.NewReader(r), column: map[string]int{}, seen: map[string]int{}}
	t.csv.ReuseRecord = true
	t.csv.TrimLeadingSpace = true
	header, err := t.csv.Read()
	switch {
	case err == io.EOF:
		t.fail(1, "the file is empty: want a header with the names of the columns")
	case err != nil:
		t.broken(err)
	}
	if len(header) == 1 && strings.ContainsAny(header[0], ";\t") {
		t.fail(1, "there is one column, %q: separate columns by commas", header[0])
	}
	for i, h := range header {
		h = strings.TrimPrefix(strings.TrimSpace(h), "\ufeff")
		if _, twice := t.column[h]; twice {
			t.fail(1, "column %q occurs twice: rename or remove one", h)
		}
		t.column[h] = i
	}
	return t
}

func (t *table) fail(line int, format string, args ...any) {
	if t.err == nil {
		t.err = Wrong(line, format, args...)
	}
}

// broken sets the error of reading a row.
func (t *table) broken(err error) {
	var row *csv.ParseError
	if errors.As(err, &row) {
		t.fail(row.Line, "%v, in byte %d of it: put a cell with quotes in it in quotes, and double those", row.Err, row.Column)
	} else if t.err == nil {
		t.err = &inputError{err.Error()}
	}
}

// has reports whether there is a column.
func (t *table) has(name string) bool { _, ok := t.column[name]; return ok }

// one returns which of several equivalent columns the table has, or the first name if it has none. Having more than one
// is an error.
func (t *table) one(names ...string) string {
	have := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !t.has(n) })
	switch len(have) {
	case 0:
		return names[0]
	case 1:
		return have[0]
	}
	t.fail(1, "columns %q and %q mean the same, in two dialects: remove one", have[0], have[1])
	return have[0]
}

// need fails unless all these columns exist.
func (t *table) need(names ...string) {
	for _, n := range names {
		if !t.has(n) {
			t.fail(1, "column %q is missing: add it to the header and to each line", n)
		}
	}
}

// next reads a row. It returns false at the end or after an error.
func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	var err error
	t.row, err = t.csv.Read()
	if err == io.EOF {
		return false
	}
	if errors.Is(err, csv.ErrFieldCount) {
		t.line, _ = t.csv.FieldPos(0)
		t.fail(t.line, "it has %d cells, and the header has %d: give each column one, empty if the value is unknown", len(t.row), len(t.column))
		return false
	}
	if err != nil {
		t.broken(err)
		return false
	}
	t.line, _ = t.csv.FieldPos(0)
	return true
}

// text returns a cell, or "" if there is no such column.
func (t *table) text(name string) string {
	i, ok := t.column[name]
	if !ok {
		return ""
	}
	return strings.Clone(t.row[i])
}

// largest is the largest time at which a float64 resolves an eighth of a second (2^53 / 8, rounded down).
const largest = 1e15

// number returns a finite number of at least low.
func (t *table) number(name string, low float64) float64 {
	text := strings.TrimSpace(t.text(name))
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && t.err == nil {
		if format := FormatOf(strings.Join(t.row, ",")); format != "" {
			t.fail(t.line, "is a header again, of the format %s: want one trace, with one header", format)
		}
	}
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < low {
		if math.IsInf(low, -1) {
			t.fail(t.line, "%s is %q: want a number", name, text)
			return 0
		}
		t.fail(t.line, "%s is %q: want a number of at least %v", name, text, low)
		return low
	}
	if math.Abs(v) > largest {
		t.fail(t.line, "%s is %q: want %v at most", name, text, largest)
		return 0
	}
	return v
}

// positive returns a finite number above 0.
func (t *table) positive(name string) float64 {
	v := t.number(name, 0)
	if v == 0 {
		t.fail(t.line, "%s is %q: want a number above 0", name, strings.TrimSpace(t.text(name)))
	}
	return v
}

// whole returns an integer of at least low.
func (t *table) whole(name string, low int) int {
	v := t.number(name, float64(low))
	if v != math.Trunc(v) {
		t.fail(t.line, "%s is %v: want a whole number", name, v)
	}
	return int(v)
}

// bit returns whether a cell is 1; 0 is false.
func (t *table) bit(name string) bool { return t.upTo(name, 1) == 1 }

// score returns how much another job on the same GPUs slows a job: 0, 1 or 2.
func (t *table) score(name string) int { return t.upTo(name, 2) }

// upTo returns an integer from 0 to most.
func (t *table) upTo(name string, most int) int {
	v := t.whole(name, 0)
	if v > most {
		t.fail(t.line, "%s is %d: want %d at most", name, v, most)
	}
	return v
}

// Epoch is the origin of the clock of Lucid's traces, and of all traces for ReadForecasts.
var Epoch = time.Date(2020, 4, 1, 0, 0, 0, 0, time.UTC)

// date parses a time such as 2020-09-01 00:10:00, in s since Epoch.
func date(text string) (float64, error) {
	at, err := time.Parse(time.DateTime, text)
	if err != nil {
		return 0, fmt.Errorf("%q: want such as 2020-09-01 00:10:00", text)
	}
	return float64(at.Unix() - Epoch.Unix()), nil
}

// date returns a cell with a time, in s since Epoch.
func (t *table) date(name string) float64 {
	at, err := date(t.text(name))
	if err != nil {
		t.fail(t.line, "%s is %v", name, err)
	}
	return at
}

var never = math.Inf(1)

// id returns the job's name, which must be unique in the file.
func (t *table) id() string { return t.idAmong(t.seen) }

// idAmong returns the job's name, which must not be in seen.
func (t *table) idAmong(seen map[string]int) string {
	id := strings.TrimSpace(t.text("job_id"))
	if first := seen[id]; first > 0 {
		t.fail(t.line, "job_id %q occurs twice, first in line %d: rename one", id, first)
	}
	if id == "" {
		t.fail(t.line, "job_id is empty: give each job a name of its own")
	}
	seen[id] = t.line
	return id
}
