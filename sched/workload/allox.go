package workload

import (
	"bufio"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// AlloXTrace reads jobs in the format of AlloX's simulator. Each has a line "# ID", a line "1 ID 1 SUBMIT QUEUE", a
// line "stage -1 CORES MEMORY SECONDS GPUS MEMORY SECONDS 1 ERROR ERROR" with its needs without a GPU, then with one,
// and the relative errors of estimates of these times; and a line "0". Cores and memory are ignored: each job has one
// machine.
func AlloXTrace(r io.Reader) ([]*sched.Job, error) {
	l := newLines(r)
	var jobs []*sched.Job
	seen := map[string]int{}
	for {
		id, ok := l.comment()
		if !ok {
			break
		}
		if first := seen[id]; first > 0 {
			l.fail("job %q occurs twice, first in line %d: rename one", id, first)
		}
		seen[id] = l.line
		head := l.words("1 ID 1 SUBMIT QUEUE", 5)
		j := &sched.Job{ID: id, Submit: l.number(head[3], 0), Deadline: never, GPUs: 1, User: head[4], Either: new(sched.Either)}
		if head[1] != id {
			l.fail("the job is %q here and %q in the line before: make them the same", head[1], id)
		}
		if head[0] != "1" || head[2] != "1" {
			l.fail("is %q: want 1 first, and 1 before SUBMIT", l.text)
		}
		stage := l.words("stage -1 CORES MEMORY SECONDS GPUS MEMORY SECONDS 1 ERROR ERROR", 11)
		if v, err := strconv.ParseFloat(stage[1], 64); stage[0] != "stage" || err != nil || v != -1 { // also -1.0
			l.fail("begins with %q: want \"stage -1\"", stage[0]+" "+stage[1])
		}
		if l.number(stage[5], 0) > 1 {
			l.fail("wants %s GPUs: want 1", stage[5])
		}
		j.Either.Duration = [2]float64{l.number(stage[7], 0), l.number(stage[4], 0)}
		j.Either.Error = [2]float64{l.number(stage[10], -1), l.number(stage[9], -1)}
		j.Duration = j.Either.Duration[0]
		if end := l.words("0: a job has one stage", 1)[0]; end != "0" {
			l.fail("is %q: want 0: a job has one stage", end)
		}
		jobs = append(jobs, j)
	}
	return jobs, l.err
}

// AlloXQueues reads the names of queues in order. Each has a line "# ID", a line that begins with its name, and lines
// of numbers, which must give all queues the same weight, 1.
func AlloXQueues(r io.Reader) (names []string, err error) {
	l := newLines(r)
	for {
		if _, ok := l.comment(); !ok {
			return names, l.err
		}
		name := l.words("QUEUE START", 2)[0]
		if slices.Contains(names, name) {
			l.fail("queue %q occurs twice: remove one", name)
		}
		names = append(names, name)
		if weight := l.words("WEIGHT", 1)[0]; l.number(weight, 0) != 1 {
			l.fail("the weight is %s: want 1, others are not supported", weight)
		}
		for !l.at("#") && l.next() {
			l.number(l.text, math.Inf(-1))
		}
	}
}

// lines reads the non-empty lines of a text. The first error stays.
type lines struct {
	scan *bufio.Scanner
	line int
	text string // of the current line
	held bool   // next returns the current line again
	err  error
}

func newLines(r io.Reader) *lines { return &lines{scan: bufio.NewScanner(r)} }

func (l *lines) fail(format string, args ...any) {
	if l.err == nil {
		l.err = Wrong(l.line, format, args...)
	}
}

// next reads a line. It returns false at the end or after an error.
func (l *lines) next() bool {
	if l.held {
		l.held = false
		return true
	}
	for l.err == nil && l.scan.Scan() {
		l.line++
		if l.text = strings.TrimSpace(l.scan.Text()); l.text != "" {
			return true
		}
	}
	if err := l.scan.Err(); err != nil && l.err == nil {
		l.line++
		l.fail("%v", err)
	}
	return false
}

// at reports whether the next line begins with prefix.
func (l *lines) at(prefix string) bool {
	l.held = l.next()
	return l.held && strings.HasPrefix(l.text, prefix)
}

// comment reads a line "# ID". ok is false at the end.
func (l *lines) comment() (id string, ok bool) {
	if !l.next() {
		return "", false
	}
	id, ok = strings.CutPrefix(l.text, "#")
	if id = strings.TrimSpace(id); !ok || id == "" {
		l.fail("is %q: want # and a name", l.text)
		return "", false
	}
	return id, true
}

// words reads a line of n words.
func (l *lines) words(what string, n int) []string {
	if !l.next() {
		l.line++
		l.fail("is missing: want %s", what)
	}
	w := strings.Fields(l.text)
	if len(w) != n {
		l.fail("has %d words: want %d, %s", len(w), n, what)
		return make([]string, n)
	}
	return w
}

// number parses a finite number of at least low.
func (l *lines) number(text string, low float64) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < low {
		l.fail("%q: want a number of at least %v", text, low)
		return 0
	}
	return v
}
