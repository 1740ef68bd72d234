package net

import "star/internal/kernel"

// softmaxLoss is the mean softmax cross-entropy of rows of scores, with its
// gradient; see kernel.SoftmaxXent.
type softmaxLoss struct {
	cols   int
	d      []float32 // gradient of the scores; nil in evaluation mode
	scores []float32 // the last ones, until the graph runs again
	found  kernel.Loss
}

func newSoftmaxLoss(rows, cols int, train bool) *softmaxLoss {
	l := &softmaxLoss{cols: cols}
	if train {
		l.d = make([]float32, rows*cols)
	}
	return l
}

func (l *softmaxLoss) forward(scores []float32, labels []int32) float64 {
	l.scores = scores
	l.found = kernel.SoftmaxXent(l.d, scores, labels, l.cols)
	return l.found.Mean()
}

func (l *softmaxLoss) gradient() []float32 { return l.d }
