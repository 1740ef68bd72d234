package estimate

// Explained is a sum of functions of one feature, and of some pairs of features, which can be looked at.
//
// Source: Lou, Caruana, Gehrke, Hooker, Accurate Intelligible Models with Pairwise Interactions, KDD 2013 (GA2M, with FAST to find the pairs), as in Lucid's
// estimator (explainable boosting): features take turns, each round changes each function a little.
type Explained struct {
	Mean   float64
	Edges  [][]float64 // between the steps of each feature's function
	Shapes [][]float64 // its values, with mean 0 over the rows
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
	shapeCuts      = 2   // of a feature's function in one round
	pairBins       = 32  // steps of each feature in a pair
	mostPairRounds = 500 // as Steps.Most, of pairs
)

// Explain makes functions of all features, and of the most useful pairs of features.
func Explain(t Table, pairs int, s Steps) (*Explained, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	s = s.or(2000, .05)
	learn, judge := parted(t)
	m := explain(learn)
	n := rounds(judge, m.Mean, s.Most, func() []float64 { return m.turn(judge.X, s.Rate) })
	m = explain(t)
	for range n {
		m.turn(nil, s.Rate)
	}
	m.center()
	if pairs > 0 && len(t.X[0]) > 1 {
		m.pairUp(pairs)
		for range m.pairRounds(learn, judge, s.Rate) {
			m.turnPairs(nil, s.Rate)
		}
	}
	return &m.Explained, nil
}

// pairRounds is how many rounds the functions of pairs are good for, with those of one feature as they are.
func (m *explaining) pairRounds(learn, judge Table, rate float64) int {
	trial := explain(learn)
	trial.Shapes, trial.Mean, trial.Edges = m.Shapes, m.Mean, m.Edges
	for i, x := range learn.X {
		trial.lack[i] = learn.Y[i] - trial.Predict(x)
	}
	rest := Table{judge.X, make([]float64, len(judge.Y))}
	for i, x := range judge.X {
		rest.Y[i] = judge.Y[i] - trial.Predict(x)
	}
	for _, p := range m.Pairs {
		trial.Pairs = append(trial.Pairs, newPair(p.A, p.B, p.Edges))
	}
	return rounds(rest, 0, mostPairRounds, func() []float64 { return trial.turnPairs(judge.X, rate) })
}

// explaining is an Explained that is being made.
type explaining struct {
	Explained
	b    *binned
	x    [][]float64
	lack []float64
}

func explain(t Table) *explaining {
	m := &explaining{b: binning(t.X, shapeBins), x: t.X, lack: make([]float64, len(t.Y))}
	m.Mean, m.Edges = sum(t.Y)/float64(len(t.Y)), m.b.edges
	for i, y := range t.Y {
		m.lack[i] = y - m.Mean
	}
	for _, e := range m.Edges {
		m.Shapes = append(m.Shapes, make([]float64, len(e)+1))
	}
	return m
}

// turn changes the function of each feature, and returns by how much that changes the predictions of other rows.
func (m *explaining) turn(other [][]float64, rate float64) []float64 {
	added := make([]float64, len(other))
	for j := range m.Shapes {
		change := m.steps(j)
		for k, c := range change {
			m.Shapes[j][k] += rate * c
		}
		for i, k := range m.b.bin[j] {
			m.lack[i] -= rate * change[k]
		}
		for i, x := range other {
			added[i] += rate * change[place(m.Edges[j], x[j])]
		}
	}
	return added
}

// steps is the function of a feature with so many cuts that comes nearest to what is lacking, cut by cut.
func (m *explaining) steps(j int) []float64 {
	bins := len(m.Shapes[j])
	n, s := make([]float64, bins+1), make([]float64, bins+1) // of all bins below
	for i, k := range m.b.bin[j] {
		n[k+1]++
		s[k+1] += m.lack[i]
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
		cuts = append(cuts[:where], append([]int{at}, cuts[where:]...)...)
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

// center moves the mean of each function to Mean.
func (m *explaining) center() {
	for j, shape := range m.Shapes {
		mean := 0.
		for _, k := range m.b.bin[j] {
			mean += shape[k] / float64(len(m.x))
		}
		for k := range shape {
			shape[k] -= mean
		}
		m.Mean += mean
	}
}

func newPair(a, b int, edges [2][]float64) Pair {
	p := Pair{A: a, B: b, Edges: edges}
	for range len(edges[0]) + 1 {
		p.Values = append(p.Values, make([]float64, len(edges[1])+1))
	}
	return p
}

// pairUp chooses the pairs of which one cut of each feature explains most of what is lacking.
func (m *explaining) pairUp(most int) {
	coarse := binning(m.x, pairBins)
	type found struct {
		p     Pair
		worth float64
	}
	var all []found
	for a := range coarse.edges {
		for b := a + 1; b < len(coarse.edges); b++ {
			p := newPair(a, b, [2][]float64{coarse.edges[a], coarse.edges[b]})
			if _, worth := m.quarters(p); worth > 1e-12 {
				all = append(all, found{p, worth})
			}
		}
	}
	for range min(most, len(all)) {
		best := 0
		for i := range all {
			if all[i].worth > all[best].worth {
				best = i
			}
		}
		m.Pairs = append(m.Pairs, all[best].p)
		all[best].worth = -1
	}
}

// quarters is the function of a pair with one cut of each feature that comes nearest to what is lacking: its four values by the cuts, and how many squares it explains.
func (m *explaining) quarters(p Pair) (change func(i, j int) float64, most float64) {
	na, nb := len(p.Edges[0])+1, len(p.Edges[1])+1
	type cell struct{ n, s float64 }
	below := make([]cell, (na+1)*(nb+1)) // sums over all cells before
	for r, x := range m.x {
		c := &below[(place(p.Edges[0], x[p.A])+1)*(nb+1)+place(p.Edges[1], x[p.B])+1]
		c.n, c.s = c.n+1, c.s+m.lack[r]
	}
	for i := 1; i <= na; i++ {
		for j := 1; j <= nb; j++ {
			c, up, left, both := &below[i*(nb+1)+j], below[(i-1)*(nb+1)+j], below[i*(nb+1)+j-1], below[(i-1)*(nb+1)+j-1]
			c.n, c.s = c.n+up.n+left.n-both.n, c.s+up.s+left.s-both.s
		}
	}
	all := below[na*(nb+1)+nb]
	var ci, cj int
	var means [2][2]float64
	for i := 1; i < na; i++ {
		for j := 1; j < nb; j++ {
			q, r, d := below[i*(nb+1)+j], below[i*(nb+1)+nb], below[na*(nb+1)+j]
			parts := [2][2]cell{{q, {r.n - q.n, r.s - q.s}}, {{d.n - q.n, d.s - q.s}, {all.n - r.n - d.n + q.n, all.s - r.s - d.s + q.s}}}
			worth := 0.
			var mean [2][2]float64
			for a := range 2 {
				for b := range 2 {
					if c := parts[a][b]; c.n > .5 {
						mean[a][b] = c.s / c.n
						worth += c.s * c.s / c.n
					}
				}
			}
			if worth > most {
				ci, cj, means, most = i, j, mean, worth
			}
		}
	}
	return func(i, j int) float64 {
		a, b := 0, 0
		if i >= ci {
			a = 1
		}
		if j >= cj {
			b = 1
		}
		return means[a][b]
	}, most
}

// turnPairs is turn for the functions of pairs.
func (m *explaining) turnPairs(other [][]float64, rate float64) []float64 {
	added := make([]float64, len(other))
	for k := range m.Pairs {
		p := &m.Pairs[k]
		change, worth := m.quarters(*p)
		if worth == 0 {
			continue
		}
		for i := range p.Values {
			for j := range p.Values[i] {
				p.Values[i][j] += rate * change(i, j)
			}
		}
		at := func(x []float64) float64 { return rate * change(place(p.Edges[0], x[p.A]), place(p.Edges[1], x[p.B])) }
		for r, x := range m.x {
			m.lack[r] -= at(x)
		}
		for r, x := range other {
			added[r] += at(x)
		}
	}
	return added
}

// Part is what a feature's function adds for a value.
func (m *Explained) Part(feature int, v float64) float64 {
	return m.Shapes[feature][place(m.Edges[feature], v)]
}

// Predict is what the model says of a row.
func (m *Explained) Predict(x []float64) float64 {
	y := m.Mean
	for j, v := range x {
		y += m.Part(j, v)
	}
	for _, p := range m.Pairs {
		y += p.Values[place(p.Edges[0], x[p.A])][place(p.Edges[1], x[p.B])]
	}
	return y
}
