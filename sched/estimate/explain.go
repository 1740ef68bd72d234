package estimate

import (
	"cmp"
	"slices"
)

// Explained is a sum of functions of one feature, and of pairs of features, which can be inspected.
//
// Source: Lou, Caruana, Gehrke, Hooker, Accurate Intelligible Models with Pairwise Interactions, KDD 2013 (GA2M, with
// FAST to find the pairs), as in Lucid's estimator (explainable boosting): in each round, each feature's function
// changes a little, in turn.
type Explained struct {
	Mean  float64
	Edges [][]float64 // between the steps of each feature's function
	// Shapes are its values, with mean 0 over the rows: each round adds means of the residuals, which sum to 0.
	Shapes [][]float64
	Pairs  []Pair
}

// Pair is a function of two features.
type Pair struct {
	A, B   int
	Edges  [2][]float64
	Values [][]float64 // by step of A, then of B
}

const (
	shapeBins      = 64  // steps of a function
	shapeCuts      = 2   // cuts of a feature's function per round
	pairBins       = 32  // steps of each feature in a pair
	mostPairRounds = 500 // Boosting.Rounds for pairs
)

// Explain fits functions of all features, and of the most useful pairs of features.
func Explain(t Table, pairs int, s Boosting) (*Explained, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	s = s.or(2000, .05)
	train, validation := split(t)
	m := newExplainer(train)
	n := bestRounds(validation, m.Mean, s.Rounds, func() []float64 { return m.round(validation.X, s.Rate) })
	m = newExplainer(t)
	for range n {
		m.round(nil, s.Rate)
	}
	if pairs > 0 && len(t.X[0]) > 1 {
		m.pairUp(pairs)
		for range m.pairRounds(train, validation, s.Rate) {
			m.roundPairs(nil, s.Rate)
		}
	}
	return &m.Explained, nil
}

// pairRounds returns how many rounds the functions of pairs improve the validation rows, with those of single features
// fixed.
func (m *explainer) pairRounds(train, validation Table, rate float64) int {
	trial := newExplainer(train)
	trial.Shapes, trial.Mean, trial.Edges = m.Shapes, m.Mean, m.Edges
	for i, x := range train.X {
		trial.residual[i] = train.Y[i] - trial.Predict(x)
	}
	rest := Table{validation.X, make([]float64, len(validation.Y))}
	for i, x := range validation.X {
		rest.Y[i] = validation.Y[i] - trial.Predict(x)
	}
	for _, p := range m.Pairs {
		trial.Pairs = append(trial.Pairs, newPair(p.A, p.B, p.Edges))
	}
	return bestRounds(rest, 0, mostPairRounds, func() []float64 { return trial.roundPairs(validation.X, rate) })
}

// explainer builds an Explained.
type explainer struct {
	Explained
	b        *binned
	x        [][]float64
	residual []float64 // residual by row
}

func newExplainer(t Table) *explainer {
	m := &explainer{b: binning(t.X, shapeBins), x: t.X, residual: make([]float64, len(t.Y))}
	m.Mean, m.Edges = sum(t.Y)/float64(len(t.Y)), m.b.edges
	for i, y := range t.Y {
		m.residual[i] = y - m.Mean
	}
	for _, e := range m.Edges {
		m.Shapes = append(m.Shapes, make([]float64, len(e)+1))
	}
	return m
}

// round updates the function of each feature and returns the change of the predictions of other rows.
func (m *explainer) round(other [][]float64, rate float64) []float64 {
	added := make([]float64, len(other))
	for j := range m.Shapes {
		change := m.bestSteps(j)
		for k, c := range change {
			m.Shapes[j][k] += rate * c
		}
		for i, k := range m.b.bin[j] {
			m.residual[i] -= rate * change[k]
		}
		for i, x := range other {
			added[i] += rate * change[binOf(m.Edges[j], x[j])]
		}
	}
	return added
}

// bestSteps returns the function of a feature with shapeCuts cuts that approximates the residuals best, cut by cut.
func (m *explainer) bestSteps(j int) []float64 {
	bins := len(m.Shapes[j])
	n, s := make([]float64, bins+1), make([]float64, bins+1) // over all bins below
	for i, k := range m.b.bin[j] {
		n[k+1]++
		s[k+1] += m.residual[i]
	}
	for k := range bins {
		n[k+1] += n[k]
		s[k+1] += s[k]
	}
	worth := func(from, to int) float64 {
		if n[to] == n[from] {
			return 0
		}
		return (s[to] - s[from]) * (s[to] - s[from]) / (n[to] - n[from])
	}
	cuts := []int{0, bins}
	for range shapeCuts {
		at, where, most := 0, 0, 0.
		for c := range len(cuts) - 1 {
			for k := cuts[c] + 1; k < cuts[c+1]; k++ {
				if g := worth(cuts[c], k) + worth(k, cuts[c+1]) - worth(cuts[c], cuts[c+1]); g > most {
					at, where, most = k, c+1, g
				}
			}
		}
		if most == 0 {
			break
		}
		cuts = slices.Insert(cuts, where, at)
	}
	change := make([]float64, bins)
	for c := range len(cuts) - 1 {
		if rows := n[cuts[c+1]] - n[cuts[c]]; rows > 0 {
			for k := cuts[c]; k < cuts[c+1]; k++ {
				change[k] = (s[cuts[c+1]] - s[cuts[c]]) / rows
			}
		}
	}
	return change
}

func newPair(a, b int, edges [2][]float64) Pair {
	p := Pair{A: a, B: b, Edges: edges}
	for range len(edges[0]) + 1 {
		p.Values = append(p.Values, make([]float64, len(edges[1])+1))
	}
	return p
}

// pairUp chooses the pairs for which one cut of each feature explains most of the residuals.
func (m *explainer) pairUp(most int) {
	coarse := binning(m.x, pairBins)
	type found struct {
		p     Pair
		worth float64
	}
	var all []found
	for a := range coarse.edges {
		for b := a + 1; b < len(coarse.edges); b++ {
			p := newPair(a, b, [2][]float64{coarse.edges[a], coarse.edges[b]})
			if _, worth := m.bestQuadrants(&p); worth > 1e-12 {
				all = append(all, found{p, worth})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.worth, a.worth) })
	for _, f := range all[:min(most, len(all))] {
		m.Pairs = append(m.Pairs, f.p)
	}
}

// quadrants is a function of a pair with one cut of each feature.
type quadrants struct {
	cut    [2]int        // the first steps above the cuts
	values [2][2]float64 // below and above the cut of A, then of B
}

func (q *quadrants) at(i, j int) float64 {
	var above [2]int
	if i >= q.cut[0] {
		above[0] = 1
	}
	if j >= q.cut[1] {
		above[1] = 1
	}
	return q.values[above[0]][above[1]]
}

// bestQuadrants returns the function of a pair that approximates the residuals best, and by how much it reduces their
// squares.
func (m *explainer) bestQuadrants(p *Pair) (best quadrants, most float64) {
	na, nb := len(p.Edges[0])+1, len(p.Edges[1])+1
	type cell struct{ n, s float64 }
	below := make([][]cell, na+1) // sums over all earlier steps
	for i := range below {
		below[i] = make([]cell, nb+1)
	}
	for r, x := range m.x {
		i, j := p.steps(x)
		c := &below[i+1][j+1]
		c.n, c.s = c.n+1, c.s+m.residual[r]
	}
	for i := 1; i <= na; i++ {
		for j := 1; j <= nb; j++ {
			c, up, left, both := &below[i][j], below[i-1][j], below[i][j-1], below[i-1][j-1]
			c.n, c.s = c.n+up.n+left.n-both.n, c.s+up.s+left.s-both.s
		}
	}
	between := func(i, j [2]int) cell {
		c, up, left, both := below[i[1]][j[1]], below[i[0]][j[1]], below[i[1]][j[0]], below[i[0]][j[0]]
		return cell{c.n - up.n - left.n + both.n, c.s - up.s - left.s + both.s}
	}
	for i := 1; i < na; i++ {
		for j := 1; j < nb; j++ {
			q, worth := quadrants{cut: [2]int{i, j}}, 0.
			for a, rows := range [2][2]int{{0, i}, {i, na}} {
				for b, columns := range [2][2]int{{0, j}, {j, nb}} {
					if c := between(rows, columns); c.n > .5 {
						q.values[a][b] = c.s / c.n
						worth += c.s * c.s / c.n
					}
				}
			}
			if worth > most {
				best, most = q, worth
			}
		}
	}
	return best, most
}

// roundPairs is round for the functions of pairs.
func (m *explainer) roundPairs(other [][]float64, rate float64) []float64 {
	added := make([]float64, len(other))
	for k := range m.Pairs {
		p := &m.Pairs[k]
		change, worth := m.bestQuadrants(p)
		if worth == 0 {
			continue
		}
		for i := range p.Values {
			for j := range p.Values[i] {
				p.Values[i][j] += rate * change.at(i, j)
			}
		}
		for r, x := range m.x {
			m.residual[r] -= rate * change.at(p.steps(x))
		}
		for r, x := range other {
			added[r] += rate * change.at(p.steps(x))
		}
	}
	return added
}

// steps returns the steps of a row.
func (p *Pair) steps(x []float64) (i, j int) {
	return binOf(p.Edges[0], x[p.A]), binOf(p.Edges[1], x[p.B])
}

// Contribution returns what a feature's function adds for a value.
func (m *Explained) Contribution(feature int, v float64) float64 {
	return m.Shapes[feature][binOf(m.Edges[feature], v)]
}

// Predict returns the model's prediction for a row.
func (m *Explained) Predict(x []float64) float64 {
	y := m.Mean
	for j, v := range x {
		y += m.Contribution(j, v)
	}
	for _, p := range m.Pairs {
		i, j := p.steps(x)
		y += p.Values[i][j]
	}
	return y
}
