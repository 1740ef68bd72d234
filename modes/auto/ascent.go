package auto

import (
	"math"
	"slices"
)

// ascent follows the training loss in rounds, as many gradients as there are workers, and detects growth after a change
// of plan. Prices rest on what a quadratic does, and on measurements; a loss that grows says that they were wrong,
// whatever the reason.
type ascent struct {
	sum    float64
	n      int
	rounds ring    // mean losses
	first  float64 // the first of them
	most   float64 // of them, before the change; 0: not known
	middle float64 // their median
	high   int     // rounds in a row since then that were above all before, and by half above the median
}

const (
	ascend = 5   // rounds in a row that are not chance
	taller = 1.5 // factor to the median before
	little = 0.1 // of the first loss: below it, as at the end of training, a loss may vary by a factor of ten
)

// observe takes in the loss of a gradient, one of so many workers.
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

// changed tells of a change of plan: what comes is compared with what was.
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
