package estimate

// Boosted is a sum of small trees, each of which predicts what those before it have left.
//
// Source: Friedman, Greedy Function Approximation: A Gradient Boosting Machine, Annals of Statistics 2001, for squares.
type Boosted struct {
	mean  float64
	rate  float64
	trees []*Tree
}

// Boosting are the settings of a model that is made in rounds.
type Boosting struct {
	Rounds int     // at most; 0: 500 (Boost), 2000 (Explain)
	Rate   float64 // the learning rate: the share of a round's answer that counts; 0: 0.1 (Boost), 0.05 (Explain)
}

// or has what is 0 be as said.
func (s Boosting) or(rounds int, rate float64) Boosting {
	if s.Rounds == 0 {
		s.Rounds = rounds
	}
	if s.Rate == 0 {
		s.Rate = rate
	}
	return s
}

// Every fifth row is for validation: it says when to stop. After patience rounds without a new best on these rows there are no more, and the model is made of all rows with as many
// rounds as were best.
const (
	validationFold = 5
	patience       = 50
)

// split is a table without its rows for validation, and these. Where there are too few rows to spare any, all are both.
func split(t Table) (train, validation Table) {
	if len(t.X) < 10*validationFold {
		return t, t
	}
	for i := range t.X {
		to := &train
		if i%validationFold == validationFold-1 {
			to = &validation
		}
		to.X, to.Y = append(to.X, t.X[i]), append(to.Y, t.Y[i])
	}
	return train, validation
}

// bestRounds is after how many rounds, of most, the rows for validation are predicted best. A round returns what it adds to the prediction of each.
func bestRounds(validation Table, mean float64, most int, round func() []float64) int {
	residual := make([]float64, len(validation.Y))
	for i, y := range validation.Y {
		residual[i] = y - mean
	}
	least, best := squares(residual), 0
	for n := 1; n <= most && n-best <= patience; n++ {
		for i, d := range round() {
			residual[i] -= d
		}
		if s := squares(residual); s < least*(1-1e-9) {
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
func Boost(t Table, s Boosting) (*Boosted, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	s = s.or(500, .1)
	train, validation := split(t)
	m := newBooster(train, s.Rate)
	n := bestRounds(validation, m.mean, s.Rounds, func() []float64 {
		tree := m.addTree()
		added := make([]float64, len(validation.X))
		for i, x := range validation.X {
			added[i] = s.Rate * tree.Predict(x)
		}
		return added
	})
	if len(train.X) < len(t.X) {
		m = newBooster(t, s.Rate)
		for range n {
			m.addTree()
		}
	}
	m.trees = m.trees[:n]
	return &m.Boosted, nil
}

// booster is a Boosted that is being made.
type booster struct {
	Boosted
	b        *binned
	x        [][]float64
	residual [][]float64 // by row, of one number, as trees want it
}

func newBooster(t Table, rate float64) *booster {
	m := &booster{b: binning(t.X, mostBins), x: t.X, residual: make([][]float64, len(t.Y))}
	m.rate, m.mean = rate, sum(t.Y)/float64(len(t.Y))
	for i, y := range t.Y {
		m.residual[i] = []float64{y - m.mean}
	}
	return m
}

// addTree makes a tree of what is lacking.
func (m *booster) addTree() *Tree {
	tree := grow(m.b, m.residual, Limits{Depth: 3, Leaf: 1 + len(m.x)/200})
	for i, x := range m.x {
		m.residual[i][0] -= m.rate * tree.Predict(x)
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
