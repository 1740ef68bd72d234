package daemon

import (
	"math"
	"strings"
	"testing"

	"star/runlog"
)

// What a run came to, as a person reads it: no number of what there was not.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		result runlog.Result
		want   string
	}{
		{runlog.Result{Model: "lenet", Dataset: "digits", Mode: "ring-minus=3", Samples: 64, Updates: 2, Steps: 8, Wall: 2, SamplesPerS: 32, TrainLoss: 0.5, TestLoss: 0.25, TestAccuracy: 0.75, Evaluated: true, RunLog: "r", Checkpoint: "c"},
			`trained   lenet on digits: 64 samples in 2 updates, 2s (32 samples/s)
mode      ring-minus=3, staleness 0.00 mean, 0 max, 0 switches
loss      0.5000 in training, 0.2500 on the test set
accuracy  75.00 %
files     r
          c
`},
		{runlog.Result{Model: "lenet", Dataset: "digits", Mode: "ssgd", Baseline: "k-sync:k=2", TrainLoss: runlog.Number(math.NaN()), TestLoss: 0.25, Evaluated: true, RunLog: "r", Notes: []string{"nothing is left"}},
			`evaluated lenet on digits: nothing was trained
note      nothing is left
baseline  k-sync:k=2
mode      ssgd, staleness 0.00 mean, 0 max, 0 switches
loss      0.2500 on the test set
accuracy  0.00 %
files     r
`},
		{runlog.Result{Model: "lenet", Dataset: "digits", Mode: "ssgd", Steps: 1, Updates: 1, Samples: 32, TrainLoss: runlog.Number(math.Inf(1)), RunLog: "r", Error: "x"},
			`ended     lenet on digits: 32 samples in 1 updates, 0s (0 samples/s)
mode      ssgd, staleness 0.00 mean, 0 max, 0 switches
loss      not finite in training
files     r
`},
	} {
		var b strings.Builder
		if err := Report(&b, c.result, false); err != nil || b.String() != c.want {
			t.Errorf("%v\n%s\nwant\n%s", err, b.String(), c.want)
		}
	}
}
