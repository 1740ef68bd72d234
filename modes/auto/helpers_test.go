package auto

import (
	"math"
	"slices"
	"testing"
	"time"

	"star/modes"
	"star/modes/price"
)

// puller is a worker that takes parts from a queue of samples: the size of a part, its time, and the time of an
// iteration beside its parts.
type puller struct {
	size        float64
	part, fixed time.Duration
}

// playQueue is a round of a queue of total samples: when it is over, its samples, and those of each worker. Every
// worker takes a part at once; a worker that has finished one takes another until total samples are taken.
func playQueue(ws []puller, total float64) (lasts time.Duration, samples float64, taken []float64) {
	due := make([]time.Duration, len(ws))
	for i, w := range ws {
		due[i] = w.part
		taken = append(taken, w.size)
		samples += w.size
	}
	for range ws {
		for {
			at := slices.Min(due)
			i := slices.Index(due, at)
			if samples >= total {
				lasts, due[i] = max(lasts, at+ws[i].fixed), math.MaxInt64
				break
			}
			due[i] += ws[i].part
			taken[i] += ws[i].size
			samples += ws[i].size
		}
	}
	return lasts, samples, taken
}

// kindOfPlan is the kind of candidate that p is priced as.
func kindOfPlan(t *testing.T, p modes.Plan) string {
	t.Helper()
	h := make(price.History, p.Workers())
	for w := range h {
		h[w] = []time.Duration{time.Second}
	}
	k, err := price.Over(p, h, price.Forecast{Batch: 64})
	if err != nil {
		t.Fatal(err)
	}
	return k.Kind
}
