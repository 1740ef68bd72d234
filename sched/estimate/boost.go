package estimate

// Boosted is a sum of small trees; each tree predicts the residuals of those before it.
//
// Source: Friedman, Greedy Function Approximation: A Gradient Boosting Machine, Annals of Statistics 2001, for squares.
type Boosted struct {
	mean  float64
	rate  float64
	trees []*Tree
}

// Boosting configures a model that is built in rounds.
type Boosting struct {
	Rounds int     // largest number; 0: 500 (Boost), 2000 (Explain)
	Rate   float64 // learning rate; 0: 0.1 (Boost), 0.05 (Explain)
}

// or replaces zeros by defaults.
func (s Boosting) or(rounds int, rate float64) Boosting {
	if s.Rounds == 0 {
		s.Rounds = rounds
	}
	if s.Rate == 0 {
		s.Rate = rate
	}
	return s
}

// Every fifth row is for validation and determines when to stop: after patience rounds without a new best on these
// rows. Then the model is built from all rows with the best number of rounds.
const (
	validationFold = 5
	patience       = 50
)

// split separates a table into training and validation rows. If there are too few rows, both have all.
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

// bestRounds returns after how many rounds, up to most, the validation rows are predicted best. A round returns what it
// adds to the prediction of each row.
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

// Boost builds trees of three levels.
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

// booster builds a Boosted.
type booster struct {
	Boosted
	b        *binned
	x        [][]float64
	residual [][]float64 // by row, one number each, as trees expect
}

func newBooster(t Table, rate float64) *booster {
	m := &booster{b: binning(t.X, mostBins), x: t.X, residual: make([][]float64, len(t.Y))}
	m.rate, m.mean = rate, sum(t.Y)/float64(len(t.Y))
	for i, y := range t.Y {
		m.residual[i] = []float64{y - m.mean}
	}
	return m
}

// addTree adds a tree of the residuals.
func (m *booster) addTree() *Tree {
	tree := grow(m.b, m.residual, Limits{Depth: 3, Leaf: 1 + len(m.x)/200})
	for i, x := range m.x {
		m.residual[i][0] -= m.rate * tree.Predict(x)
	}
	m.trees = append(m.trees, tree)
	return tree
}

// Predict returns the model's prediction for a row.
func (m *Boosted) Predict(x []float64) float64 {
	y := m.mean
	for _, t := range m.trees {
		y += m.rate * t.Predict(x)
	}
	return y
}
