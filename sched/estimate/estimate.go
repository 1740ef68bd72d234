// Package estimate predicts how long a job takes, from the time of its first epochs, as AlloX's estimator does, or from
// other jobs (Explain, Boost, Grow, History), and how fast it is on a number of workers (Curve).
//
// Source: Le et al., AlloX, EuroSys 2020, and the time writer that measures jobs for it: a line of text with the
// seconds until the first epoch (the model is built, the framework loaded), those of each epoch, and those after the
// last one (the model is saved).
package estimate

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"star/sched/workload"
)

const before, after = "<TIME_WRITTER_OUTPUT>[", "]</TIME_WRITTER_OUTPUT>"

// EpochTimes is the seconds of a job: before the first epoch, of each epoch, and after the last one.
type EpochTimes struct {
	Before float64
	Epochs []float64
	After  float64
}

// ReadEpochTimes finds the measurements in a job's output; each is a line or part of one. Errors name the line.
func ReadEpochTimes(r io.Reader) (all []EpochTimes, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<26)
	last := 1
	for n := 1; lines.Scan(); n++ {
		last = n
		_, text, ok := strings.Cut(lines.Text(), before)
		if !ok {
			continue
		}
		text, _, ok = strings.Cut(text, after)
		if !ok {
			return nil, workload.Wrong(n, "want %q after the numbers", after)
		}
		var s []float64
		for _, cell := range strings.Split(text, ",") {
			v, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
			if err != nil || !(v >= 0) || math.IsInf(v, 0) {
				return nil, workload.Wrong(n, "%q is not a time: want seconds of at least 0", strings.TrimSpace(cell))
			}
			s = append(s, v)
		}
		if len(s) < 3 {
			return nil, workload.Wrong(n, "%d times: want three or more, before, of each epoch, and after", len(s))
		}
		all = append(all, EpochTimes{s[0], s[1 : len(s)-1], s[len(s)-1]})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, workload.Wrong(last, "the file ends without a line that has %s…%s: run the job with the time writer", before, after)
	}
	return all, nil
}

// String returns the line that ReadEpochTimes reads, byte for byte the time writer's: numbers are formatted as in
// Python.
func (t EpochTimes) String() string {
	cells := []string{python(t.Before)}
	for _, e := range t.Epochs {
		cells = append(cells, python(e))
	}
	return before + strings.Join(append(cells, python(t.After)), ", ") + after
}

// python formats a float as Python does.
func python(v float64) string {
	if v != 0 && (v < 1e-4 || v >= 1e16) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// sum adds in the same order on all machines, so that models are identical.
func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// Detailed returns how long a job of that many epochs takes, s: the mean of the measured epochs for each, plus the
// times before and after them.
func (t EpochTimes) Detailed(epochs int) float64 {
	return sum(t.Epochs)/float64(len(t.Epochs))*float64(epochs) + t.Before + t.After
}

// Linear returns how long a job of that many epochs takes, s, by a line through two points, as if the job had been
// measured twice from outside: after the first n epochs, 0 < n < len(Epochs), and at its end. The time after the last
// epoch counts as part of the epochs between.
//
//	slope = (B-A)/(b-n),  A+slope·(epochs-n)
func (t EpochTimes) Linear(epochs, n int) float64 {
	a := t.Before + sum(t.Epochs[:n])
	b := t.Before + sum(t.Epochs) + t.After
	slope := (b - a) / float64(len(t.Epochs)-n)
	return a + slope*float64(epochs-n)
}

// Noise returns the relative errors of estimates: their mean difference from the truth, and their standard deviation.
func Noise(estimates []float64, truth float64) (bias, sigma float64) {
	mean, deviation := stat.PopMeanStdDev(estimates, nil)
	return (mean - truth) / truth, deviation / mean
}
