package straggler

// Confusion counts predictions against the truth.
type Confusion struct {
	TruePositive, FalsePositive, TrueNegative, FalseNegative int
}

// Add counts one prediction.
func (c *Confusion) Add(predicted, truth bool) {
	switch {
	case predicted && truth:
		c.TruePositive++
	case predicted:
		c.FalsePositive++
	case truth:
		c.FalseNegative++
	default:
		c.TrueNegative++
	}
}

// ratio is a/(a+b), and 0 of nothing.
func ratio(a, b int) float64 {
	if a+b == 0 {
		return 0
	}
	return float64(a) / float64(a+b)
}

// Accuracy is the share of right predictions.
func (c *Confusion) Accuracy() float64 {
	return ratio(c.TruePositive+c.TrueNegative, c.FalsePositive+c.FalseNegative)
}

// Precision is the share of predicted stragglers that were some.
func (c *Confusion) Precision() float64 { return ratio(c.TruePositive, c.FalsePositive) }

// Recall is the share of stragglers that were predicted.
func (c *Confusion) Recall() float64 { return ratio(c.TruePositive, c.FalseNegative) }

// FalsePositiveRate is the share of the others that were predicted to be
// stragglers: FP/(FP+TN).
func (c *Confusion) FalsePositiveRate() float64 { return ratio(c.FalsePositive, c.TrueNegative) }
