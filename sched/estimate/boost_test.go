package estimate

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// rows makes rows of uniform features, and what a function and noise make of them.
func rows(n, features int, noise float64, y func(x []float64) float64) (t Table) {
	r := rand.New(rand.NewPCG(3, uint64(n)))
	for range n {
		x := make([]float64, features)
		for j := range x {
			x[j] = r.Float64()
		}
		t.X, t.Y = append(t.X, x), append(t.Y, y(x)+noise*r.NormFloat64())
	}
	return t
}

// explains is the share of the variance of other rows that a model explains.
func explains(of Table, predict func([]float64) float64) float64 {
	mean := sum(of.Y) / float64(len(of.Y))
	var left, all float64
	for i, x := range of.X {
		d, a := of.Y[i]-predict(x), of.Y[i]-mean
		left, all = left+d*d, all+a*a
	}
	return 1 - left/all
}

// A tree by hand: of 1, 1, 5, 9 at 0, 1, 2, 3 the first cut leaves 8 of 44 squares, the one below it none.
func TestTree(t *testing.T) {
	tree, err := Grow(Table{[][]float64{{0}, {1}, {2}, {3}}, []float64{1, 1, 5, 9}}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for x, want := range map[float64]float64{-5: 1, 1.4: 1, 1.6: 5, 2.4: 5, 2.6: 9, 99: 9} {
		if got := tree.Predict([]float64{x}); got != want {
			t.Errorf("at %v: %v, want %v", x, got, want)
		}
	}
	// The second cut saves 8 squares of 4 rows, 2; the first one 36, 9.
	for _, c := range []struct {
		alpha  float64
		leaves int
		at3    float64
	}{{1.9, 3, 9}, {2, 2, 7}, {2.1, 2, 7}, {8.9, 2, 7}, {9.1, 1, 4}} {
		tree, _ := Grow(Table{[][]float64{{0}, {1}, {2}, {3}}, []float64{1, 1, 5, 9}}, Limits{})
		if tree.Prune(c.alpha); tree.Leaves() != c.leaves || tree.Predict([]float64{3}) != c.at3 {
			t.Errorf("pruned by %v: %d leaves, %v at 3; want %d, %v", c.alpha, tree.Leaves(), tree.Predict([]float64{3}), c.leaves, c.at3)
		}
	}
}

func TestBadTables(t *testing.T) {
	for name, bad := range map[string]Table{
		"empty": {}, "no values": {X: [][]float64{{1}}}, "ragged": {[][]float64{{1}, {1, 2}}, []float64{1, 2}}, "no features": {[][]float64{{}}, []float64{1}},
		"NaN": {[][]float64{{math.NaN()}}, []float64{1}}, "infinite": {[][]float64{{1}}, []float64{math.Inf(1)}},
	} {
		_, a := Grow(bad, Limits{})
		_, b := Boost(bad, Boosting{})
		_, c := Explain(bad, 1, Boosting{})
		_, d := GrowClasses(bad, 2, Limits{})
		if a == nil || b == nil || c == nil || d == nil {
			t.Errorf("%s: %v, %v, %v, %v", name, a, b, c, d)
		}
	}
	if _, err := GrowClasses(Table{[][]float64{{1}}, []float64{2}}, 2, Limits{}); err == nil {
		t.Error("class 2 of 0 and 1 is taken")
	}
	one := Table{[][]float64{{1}, {1}}, []float64{3, 5}} // nothing to cut
	tree, _ := Grow(one, Limits{})
	b, _ := Boost(one, Boosting{})
	e, _ := Explain(one, 3, Boosting{})
	if x := []float64{7}; tree.Predict(x) != 4 || b.Predict(x) != 4 || e.Predict(x) != 4 {
		t.Errorf("of a constant feature: %v, %v, %v, want the mean", tree.Predict(x), b.Predict(x), e.Predict(x))
	}
}

// One cut, by hand: rate 1 and one round give the two means; rate 0.5 and two rounds three bestQuadrants of them.
func TestBoostByHand(t *testing.T) {
	step := Table{[][]float64{{0}, {0}, {1}, {1}}, []float64{1, 3, 5, 7}}
	for _, c := range []struct {
		s    Boosting
		want float64
	}{{Boosting{1, 1}, 6}, {Boosting{1, .5}, 5}, {Boosting{2, .5}, 5.5}} {
		b, _ := Boost(step, c.s)
		e, _ := Explain(step, 0, c.s)
		if x := []float64{1}; b.Predict(x) != c.want || e.Predict(x) != c.want {
			t.Errorf("%+v: trees %v, functions %v, want %v", c.s, b.Predict(x), e.Predict(x), c.want)
		}
	}
}

// A sum of functions is taken apart again: one that grows, one with a hump, none.
func TestExplainAdditive(t *testing.T) {
	f := func(v float64) float64 { return 3 * v }
	g := func(v float64) float64 { return math.Sin(2 * math.Pi * v) }
	truth := func(x []float64) float64 { return 10 + f(x[0]) + g(x[1]) }
	of := rows(4000, 3, .3, truth)
	m, err := Explain(of, 0, Boosting{})
	if err != nil {
		t.Fatal(err)
	}
	for j := range 3 {
		mean := 0.
		for _, x := range of.X {
			mean += m.Contribution(j, x[j]) / float64(len(of.X))
		}
		if math.Abs(mean) > 1e-9 {
			t.Errorf("the function of feature %d is %v on average, want 0", j, mean)
		}
	}
	for v := .05; v < 1; v += .1 {
		for j, want := range []float64{f(v) - 1.5, g(v), 0} {
			if got := m.Contribution(j, v); math.Abs(got-want) > .15 {
				t.Errorf("feature %d at %.2f: %.3f, want %.3f", j, v, got, want)
			}
		}
		if m.Contribution(0, v+.05) < m.Contribution(0, v-.05) {
			t.Errorf("the function that grows falls at %.2f", v)
		}
	}
	if other := rows(1000, 3, 0, truth); explains(other, m.Predict) < .98 {
		t.Errorf("%.3f of the variance is explained, want .98", explains(other, m.Predict))
	}
}

// What only two features together tell needs their pair, and of all pairs it is found.
func TestExplainPairs(t *testing.T) {
	truth := func(x []float64) float64 {
		if (x[1] > .5) != (x[3] > .25) {
			return 2 + x[0]
		}
		return x[0]
	}
	learn, other := rows(3000, 5, .2, truth), rows(999, 5, 0, truth)
	alone, _ := Explain(learn, 0, Boosting{})
	m, err := Explain(learn, 2, Boosting{})
	if err != nil {
		t.Fatal(err)
	}
	if p := m.Pairs[0]; p.A != 1 || p.B != 3 {
		t.Errorf("the first pair is %d, %d, want 1, 3", p.A, p.B)
	}
	b, _ := Boost(learn, Boosting{})
	if a, p, g := explains(other, alone.Predict), explains(other, m.Predict), explains(other, b.Predict); a > .6 || p < .95 || g < .95 {
		t.Errorf("functions of one feature explain %.3f, with pairs %.3f, trees %.3f; want less than .6, .95 and more", a, p, g)
	}
}

// A best round that comes within patience of the one before is found, a later one is not.
func TestBestRounds(t *testing.T) {
	for _, c := range []struct{ second, want int }{{1 + patience, 1 + patience}, {2 + patience, 1}} {
		n := 0
		// the first round and the second best one leave 1 and 0, those between 2
		got := bestRounds(Table{Y: []float64{10}}, 0, 1000, func() []float64 {
			switch n++; n {
			case 1:
				return []float64{9}
			case 2:
				return []float64{-1}
			case c.second:
				return []float64{2}
			case c.second + 1:
				return []float64{-2}
			}
			return []float64{0}
		})
		if got != c.want {
			t.Errorf("the second best round is %d: %d rounds, want %d", c.second, got, c.want)
		}
	}
}

// Where there is nothing to learn, models stop before they learn the noise.
func TestBoostStops(t *testing.T) {
	learn, other := rows(1000, 4, 1, func([]float64) float64 { return 5 }), rows(1000, 4, 1, func([]float64) float64 { return 5 })
	b, _ := Boost(learn, Boosting{})
	m, _ := Explain(learn, 2, Boosting{})
	if g, e := explains(other, b.Predict), explains(other, m.Predict); g < -.05 || e < -.05 {
		t.Errorf("of noise trees explain %.3f, functions %.3f, want about 0", g, e)
	}
}

// The code of a row is of those before it: a and b have 5 and 2 beside nothing, the second a 3.5, their mean, beside 2.
func TestCodes(t *testing.T) {
	rows, codes, mean := TargetCodes([]string{"a", "b", "a"}, []float64{2, 5, 8})
	if want := map[string]float64{"a": 5, "b": 5}; mean != 5 || !reflect.DeepEqual(codes, want) || !reflect.DeepEqual(rows, []float64{5, 2, 2.75}) {
		t.Errorf("%v, %v, %v", rows, codes, mean)
	}
}

// A new job is predicted from ended jobs: of the same user and name, else with as many GPUs, else of the user, else of
// others.
func TestHistory(t *testing.T) {
	got := History([]PastJob{
		{"ann", "a", 1, 0, 100},
		{"ann", "a", 1, 50, 40},  // nothing has ended
		{"ann", "a", 1, 95, 80},  // the second one has
		{"ann", "a", 1, 200, 10}, // 40, then 100 (70), then 80 (75)
		{"ann", "b", 1, 200, 10}, // the same, for a name that is new
		{"ann", "b", 4, 200, 10}, // and a number
		{"bob", "", 2, 190, 10},  // others: in the order of time it comes before those
		{"bob", "", 1, 200, 10},  // of the user
		{"cat", "", 1, 200, 10},  // others with one GPU
		{"cat", "", 8, 200, 10},  // others
	})
	want := []float64{0, 0, 40, 75, 75, 75, 75, 10, 75, 42.5}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
