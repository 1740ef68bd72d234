// Package trace reads recorded jobs: how long every worker took in every step. They drive
// stragglers on purpose (--straggler-trace) and the simulator.
package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"star"
	"star/internal/unpack"
)

// Trace is a recorded job: the time of every worker in every step.
type Trace struct {
	Name    string // of the file, without its folder
	Workers int
	Steps   int

	// Median is the job's median time of a step. Zero: not known, since the files of this kind do not name their unit.
	Median time.Duration

	slowdown, rel []float32 // [step*Workers + worker]
}

// header is the first line of a trace that is not a comment.
const header = "step,worker,duration,slowdown,rel"

// ErrCorrupt is in the error of a file that is no trace.
var ErrCorrupt = errors.New("not a straggler trace")

// corrupt marks an error with ErrCorrupt and says no more than it does.
type corrupt struct{ msg string }

func (c corrupt) Error() string        { return c.msg }
func (c corrupt) Is(target error) bool { return target == ErrCorrupt }

const (
	maxLine    = 4096     // bytes
	maxEntries = 16 << 20 // of a trace: 128 MiB; a gzip bomb ends here
	maxWorkers = 1 << 16

	// MaxSlowdown bounds what a trace may say of one iteration.
	MaxSlowdown = 1000
)

// Slowdown is how much longer a worker computed in a step than the step's median
// worker. After the last step the trace begins again.
func (t *Trace) Slowdown(w star.Worker, step int64) float64 {
	return float64(t.slowdown[int(step%int64(t.Steps))*t.Workers+int(w)])
}

// Relative is the time of a worker in a step as a multiple of the job's median time. After the
// last step the trace begins again.
func (t *Trace) Relative(w star.Worker, step int64) float64 {
	return float64(t.rel[int(step%int64(t.Steps))*t.Workers+int(w)])
}

// Open reads a trace from a file, plain or gzip.
func Open(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("straggler trace: %w", err)
	}
	defer f.Close()
	return Read(f, path)
}

// Read reads a trace, plain or gzip. It is CSV with the columns step, worker, duration, slowdown, rel. Lines that
// begin with # are comments. Steps count from 0, and each has every worker once, in any order; steps come one
// after the other. slowdown is the duration divided by the median over the workers of the step, rel by the median
// of the job; both are above 0. The last line ends like the others: one that does not may have been cut. The
// duration itself has no unit that is known here; it is checked and not kept. Errors begin with name:line.
func Read(r io.Reader, name string) (*Trace, error) {
	br, err := unpack.Reader(r)
	if err != nil {
		return nil, corrupt{fmt.Sprintf("%s: %v", name, err)}
	}
	return read(br, name)
}

func read(r io.Reader, name string) (*Trace, error) {
	t := &Trace{Name: filepath.Base(name)}
	line := 0
	fail := func(format string, a ...any) (*Trace, error) {
		return nil, corrupt{fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, a...))}
	}

	var seen []bool // of the present step
	count := 0      // workers seen in it
	step := 0
	begun := false // the header has been read
	end := &lastByte{r: r}
	sc := bufio.NewScanner(end)
	sc.Buffer(make([]byte, 0, maxLine), maxLine)
	for sc.Scan() {
		line++
		text := strings.TrimSuffix(sc.Text(), "\r")
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if !begun {
			if text != header {
				return fail("want the header %s, found %.80q", header, text)
			}
			begun = true
			continue
		}
		e, err := entry(text)
		if err != nil {
			return fail("%v", err)
		}
		if e.step == step+1 {
			// The first step says how many workers there are.
			if step == 0 {
				t.Workers = len(seen)
			}
			if count < len(seen) {
				return fail("step %d begins, but step %d has no worker %d", e.step, step, missing(seen))
			}
			step, count = e.step, 0
			clear(seen)
		}
		switch {
		case e.step < step:
			return fail("step %d after step %d: steps must come in order", e.step, step)
		case e.step > step:
			return fail("step %d after step %d: a step is missing", e.step, step)
		case step > 0 && e.worker >= t.Workers:
			return fail("worker %d in step %d, but step 0 has only workers 0 to %d", e.worker, step, t.Workers-1)
		case e.worker < len(seen) && seen[e.worker]:
			return fail("worker %d twice in step %d: want each worker once in a step", e.worker, step)
		case len(t.slowdown) >= maxEntries:
			return fail("more than %d lines: not a trace of this kind", maxEntries)
		}
		for e.worker >= len(seen) { // step 0 only
			seen = append(seen, false)
			t.slowdown, t.rel = append(t.slowdown, 0), append(t.rel, 0)
		}
		if step > 0 && count == 0 {
			t.slowdown = append(t.slowdown, make([]float32, t.Workers)...)
			t.rel = append(t.rel, make([]float32, t.Workers)...)
		}
		seen[e.worker] = true
		count++
		t.slowdown[step*t.Workers+e.worker] = float32(e.slowdown)
		t.rel[step*t.Workers+e.worker] = float32(e.rel)
	}
	if err := sc.Err(); err != nil {
		line++
		if errors.Is(err, bufio.ErrTooLong) {
			return fail("a line of more than %d bytes", maxLine)
		}
		return fail("%v", err)
	}
	switch {
	case !begun:
		return fail("want the header %s, found the end of the file", header)
	case len(seen) == 0:
		return fail("no steps")
	case count < len(seen):
		return fail("the file ends, but step %d has no worker %d", step, missing(seen))
	case end.last != '\n':
		return fail("the last line has no end: it may have been cut; want a line break at the end of the file")
	}
	t.Workers, t.Steps = len(seen), step+1
	return t, nil
}

// lastByte remembers the last byte that was read.
type lastByte struct {
	r    io.Reader
	last byte
}

func (l *lastByte) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if n > 0 {
		l.last = p[n-1]
	}
	return n, err
}

type row struct {
	step, worker int
	slowdown     float64
	rel          float64
}

func entry(text string) (row, error) {
	var e row
	columns := strings.Split(text, ",")
	names := strings.Split(header, ",")
	if len(columns) != len(names) {
		return e, fmt.Errorf("%d columns, want %d: %s", len(columns), len(names), header)
	}
	for i, max := range []int{maxEntries, maxWorkers} {
		n, err := strconv.ParseUint(columns[i], 10, 31)
		if err != nil || int(n) >= max {
			return e, fmt.Errorf("%s %q is not a number from 0 to %d", names[i], columns[i], max-1)
		}
		if i == 0 {
			e.step = int(n)
		} else {
			e.worker = int(n)
		}
	}
	for i := 2; i < len(columns); i++ {
		f, err := strconv.ParseFloat(columns[i], 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return e, fmt.Errorf("%s %q is not a finite number of at least 0", names[i], columns[i])
		}
		if i == 2 {
			continue
		}
		if f <= 0 || f > MaxSlowdown {
			return e, fmt.Errorf("%s %v is not above 0 and at most %d", names[i], f, MaxSlowdown)
		}
		if i == 3 {
			e.slowdown = f
		} else {
			e.rel = f
		}
	}
	return e, nil
}

// missing is the first worker that has not been seen.
func missing(seen []bool) int {
	for w, ok := range seen {
		if !ok {
			return w
		}
	}
	return len(seen)
}
