package estimate

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"star/sched/workload"
)

// TestEstimates computes by hand what the two methods estimate for a job of 100 epochs after 4 measured ones.
func TestEstimates(t *testing.T) {
	job := EpochTimes{10, []float64{2, 2, 3, 3}, 5}
	if got := job.Detailed(100); got != 2.5*100+15 {
		t.Errorf("detailed says %v", got)
	}
	// After one epoch 12 s, at the end 25 s: 13/3 s for each of 99 epochs more.
	if got, want := job.Linear(100, 1), 12+13./3*99; math.Abs(got-want) > 1e-9 {
		t.Errorf("linear says %v, want %v", got, want)
	}
	// Both are exact for a job with equal epochs, linear only if nothing comes after.
	job = EpochTimes{10, []float64{2, 2, 2, 2}, 0}
	if l, d := job.Linear(100, 3), job.Detailed(100); l != 210 || d != 210 {
		t.Errorf("an even job: linear %v, detailed %v, want 210", l, d)
	}
	// AlexNet with the first linear configuration: a mean of 259,276 s of 243,920.8, published as .0630.
	if bias, sigma := Noise([]float64{259276 - 100, 259276 + 100}, 243920.8); math.Abs(bias-.0630) > 5e-5 || math.Abs(sigma-100./259276) > 1e-12 {
		t.Errorf("noise is %v, %v", bias, sigma)
	}
}

// TestText reads what was written, and what Python writes.
func TestText(t *testing.T) {
	job := EpochTimes{10, []float64{.1, 2.5e-5, 1e16, 123456789012345}, 0}
	const want = "<TIME_WRITTER_OUTPUT>[10.0, 0.1, 2.5e-05, 1e+16, 123456789012345.0, 0.0]</TIME_WRITTER_OUTPUT>"
	if job.String() != want {
		t.Errorf("wrote %s, want %s", job, want)
	}
	all, err := ReadEpochTimes(strings.NewReader("loss 3\n" + want + "\nx <TIME_WRITTER_OUTPUT>[1, 2, 3]</TIME_WRITTER_OUTPUT> y\n"))
	if err != nil || !reflect.DeepEqual(all, []EpochTimes{job, {1, []float64{2}, 3}}) {
		t.Errorf("read %v, %v", all, err)
	}
	for bad, why := range map[string]string{
		"loss 3\n":                       "line 1: the file ends without",
		"\n<TIME_WRITTER_OUTPUT>[1, 2, ": "line 2: want",
		"<TIME_WRITTER_OUTPUT>[1, 2]</TIME_WRITTER_OUTPUT>":      "line 1: 2 times: want three",
		"<TIME_WRITTER_OUTPUT>[1, nan, 2]</TIME_WRITTER_OUTPUT>": `line 1: "nan" is not a time`,
		"<TIME_WRITTER_OUTPUT>[1, -1, 2]</TIME_WRITTER_OUTPUT>":  `line 1: "-1" is not a time`,
		"<TIME_WRITTER_OUTPUT>[1, inf, 2]</TIME_WRITTER_OUTPUT>": `line 1: "inf" is not a time`,
	} {
		if _, err := ReadEpochTimes(strings.NewReader(bad)); !errors.Is(err, workload.ErrInput) || !strings.HasPrefix(err.Error(), why) {
			t.Errorf("%q: %v, want %s", bad, err, why)
		}
	}
}
