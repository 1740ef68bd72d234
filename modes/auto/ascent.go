package auto

import (
	"math"
	"slices"
)

// ascent follows the training loss in rounds of as many gradients as workers, and detects growth after a change of
// plan. Prices rest on a quadratic model and on measurements; a growing loss means that they were wrong, for any
// reason.
type ascent struct {
	sum    float64
	n      int
	rounds ring    // mean losses
	first  float64 // the first of them
	most   float64 // of them, before the change; 0: not known
	middle float64 // their median
	high   int     // rounds in a row since then that were above all before, and above the median by half
}

const (
	ascend = 5   // rounds in a row that are not chance
	taller = 1.5 // factor to the median before
	little = 0.1 // of the first loss: below it, as at the end of training, a loss may vary by a factor of ten
)

// observe takes the loss of a gradient; the job has the given number of workers.
func (a *ascent) observe(loss float64, workers int) {
	if math.IsNaN(loss) {
		loss = math.Inf(1)
	}
	a.sum += loss
	if a.n++; a.n < workers {
		return
	}
	mean := a.sum / float64(a.n)
	a.sum, a.n = 0, 0
	switch {
	case a.most == 0 || mean <= a.most || mean <= taller*a.middle || mean <= little*a.first:
		a.high = 0
	default:
		a.high++
	}
	if a.first == 0 && !math.IsInf(mean, 1) {
		a.first = mean
	}
	a.rounds.add(mean)
}

// changed records a change of plan: later losses are compared with those before it.
func (a *ascent) changed() {
	a.most, a.middle, a.high = 0, 0, 0
	a.sum, a.n = 0, 0
	if vs := a.rounds.vals; len(vs) > 0 {
		a.most, a.middle = slices.Max(vs), median(vs)
	}
}

// grows reports whether the loss has grown since the change.
func (a *ascent) grows() bool { return a.high >= ascend }

// latest is the mean loss of the last round.
func (a *ascent) latest() float64 {
	vs := a.rounds.inOrder()
	return vs[len(vs)-1]
}
