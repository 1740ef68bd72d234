package estimate

// Boosted is a sum of small trees, each of which predicts what those before it have left.
//
// Source: Friedman, Greedy Function Approximation: A Gradient Boosting Machine, Annals of Statistics 2001, for squares.
type Boosted struct {
	mean  float64
	rate  float64
	trees []*Tree
}

// Steps say how models are boosted.
type Steps struct {
	Most int     // rounds at most; 0: 500 (Boost), 2000 (Explain)
	Rate float64 // share of a tree's answer that counts; 0: 0.1 (Boost), 0.05 (Explain)
}

func (s Steps) or(most int, rate float64) Steps {
	if s.Most == 0 {
		s.Most = most
	}
	if s.Rate == 0 {
		s.Rate = rate
	}
	return s
}

// A fifth of the rows says when to stop: every fifth one. After patience rounds without a new best on them there are no more, and the model is made of
// all rows with as many rounds as were best.
const (
	judges   = 5
	patience = 50
)

// parted is a table without its judges, and they. Where there are too few rows to spare any, all are both.
func parted(t Table) (learn, judge Table) {
	if len(t.X) < 10*judges {
		return t, t
	}
	for i := range t.X {
		to := &learn
		if i%judges == judges-1 {
			to = &judge
		}
		to.X, to.Y = append(to.X, t.X[i]), append(to.Y, t.Y[i])
	}
	return learn, judge
}

// rounds is how many rounds are best for the judges: each predicts their values a little better, or not. Step makes a round of what the learners lack, and returns
// what it adds to each of the judges' predictions.
func rounds(judge Table, mean float64, most int, step func() []float64) int {
	lack := make([]float64, len(judge.Y))
	for i, y := range judge.Y {
		lack[i] = y - mean
	}
	least, best := squares(lack), 0
	for n := 1; n <= most && n-best <= patience; n++ {
		for i, d := range step() {
			lack[i] -= d
		}
		if s := squares(lack); s < least*(1-1e-9) {
			least, best = s, n
		}
	}
	return best
}

func squares(v []float64) (s float64) {
	for _, x := range v {
		s += x * x
	}
	return s
}

// Boost makes trees of three levels.
func Boost(t Table, s Steps) (*Boosted, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	s = s.or(500, .1)
	learn, judge := parted(t)
	m := begin(learn, s.Rate)
	n := rounds(judge, m.mean, s.Most, func() []float64 {
		tree := m.next()
		added := make([]float64, len(judge.X))
		for i, x := range judge.X {
			added[i] = s.Rate * tree.Predict(x)
		}
		return added
	})
	if len(learn.X) < len(t.X) {
		m = begin(t, s.Rate)
		for range n {
			m.next()
		}
	}
	m.trees = m.trees[:n]
	return &m.Boosted, nil
}

// boosting is a Boosted that is being made.
type boosting struct {
	Boosted
	b    *binned
	x    [][]float64
	lack [][]float64
}

func begin(t Table, rate float64) *boosting {
	m := &boosting{b: binning(t.X, mostBins), x: t.X, lack: make([][]float64, len(t.Y))}
	m.rate, m.mean = rate, sum(t.Y)/float64(len(t.Y))
	for i, y := range t.Y {
		m.lack[i] = []float64{y - m.mean}
	}
	return m
}

func (m *boosting) next() *Tree {
	tree := grow(m.b, m.lack, Limits{Depth: 3, Leaf: 1 + len(m.x)/200})
	for i, x := range m.x {
		m.lack[i][0] -= m.rate * tree.Predict(x)
	}
	m.trees = append(m.trees, tree)
	return tree
}

// Predict is what the model says of a row.
func (m *Boosted) Predict(x []float64) float64 {
	y := m.mean
	for _, t := range m.trees {
		y += m.rate * t.Predict(x)
	}
	return y
}
