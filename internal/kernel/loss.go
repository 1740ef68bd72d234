package kernel

import (
	"fmt"
	"math"
)

// Loss is what SoftmaxXent found.
type Loss struct {
	Sum     float64 // of the cross-entropy over the counted rows, in nats
	Correct int     // rows with the largest logit at the label
	Count   int     // rows that count: label not -1
}

// Mean is Sum over Count; 0 if no row counts.
func (l Loss) Mean() float64 {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / float64(l.Count)
}

// SoftmaxXent is the cross-entropy of softmax(logits) against labels, for logits
// of len(labels) × cols, and writes into dx the gradient of the mean loss over
// the rows that count. A label of -1 takes its row out: no loss, no gradient. dx
// may be nil (no gradient) or logits itself.
//
// Each row is shifted by its own maximum, so no finite logits overflow. A NaN or
// +Inf in a row makes the loss and that row's gradient NaN. A label outside
// [-1, cols) panics: check labels where they are read.
func SoftmaxXent(dx, logits []float32, labels []int32, cols int) Loss {
	rows := len(labels)
	atLeast("SoftmaxXent", "logits", len(logits), rows*cols)
	if dx != nil {
		atLeast("SoftmaxXent", "dx", len(dx), rows*cols)
	}
	var l Loss
	for r, y := range labels {
		if y < -1 || int(y) >= cols {
			panic(fmt.Sprintf("kernel: SoftmaxXent: label %d of row %d is outside [-1, %d)", y, r, cols))
		}
		if y >= 0 {
			l.Count++
		}
	}
	var scratch *work
	if dx == nil {
		scratch = getWork()
		defer putWork(scratch)
	}
	scale := float32(1) / float32(max(l.Count, 1))
	for r, y := range labels {
		x := logits[r*cols : (r+1)*cols]
		var d []float32
		if dx != nil {
			d = dx[r*cols : (r+1)*cols]
		} else {
			d = scratch.floats(cols)
		}
		if y < 0 {
			if dx != nil {
				clear(d)
			}
			continue
		}
		best, top := argMax(x)
		if best == int(y) {
			l.Correct++
		}
		truth := x[y]
		sum := expShift(d, x, top)
		l.Sum += math.Log(sum) - float64(truth-top)
		if dx == nil {
			continue
		}
		vScale(scale*float32(1/sum), d)
		d[y] -= scale
	}
	return l
}

// argMax is the index and value of the largest number in x; -1 and −Inf if no number is above −Inf. NaN is not a
// number.
func argMax(x []float32) (int, float32) {
	best, top := -1, float32(math.Inf(-1))
	for i, v := range x {
		if v > top {
			best, top = i, v
		}
	}
	return best, top
}

// expShift writes exp(x − top) into d and returns its sum.
func expShift(d, x []float32, top float32) float64 {
	vAddScalar(d, x, -top)
	vExp(d, d)
	return vSum(d)
}

func addScalarGo(dst, x []float32, s float32) {
	for i, v := range x {
		dst[i] = v + s
	}
}
