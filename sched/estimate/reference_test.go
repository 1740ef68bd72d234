package estimate

import (
	"math"
	"testing"
)

// Trees and boosted trees are those of scikit-learn 1.9.1 on the same rows: leaves of DecisionTreeClassifier and
// DecisionTreeRegressor with ccp_alpha, and what is lacking after rounds of
// GradientBoostingRegressor(learning_rate=0.1, max_depth=3).
func TestAsScikitLearn(t *testing.T) {
	var classes, numbers Table
	for i := range 120 {
		x := []float64{float64(i*37%101) / 101, float64(i*53%89) / 89, float64(i * 29 % 7)}
		c := 2.
		switch {
		case i%10 == 0:
			c = float64(i / 10 % 3)
		case x[0] <= .4:
			c = 0
		case x[1] <= .6:
			c = 1
		}
		classes.X, classes.Y = append(classes.X, x), append(classes.Y, c)
		numbers.X, numbers.Y = append(numbers.X, x), append(numbers.Y, 10*x[0]+math.Sin(6*x[1])+float64(i*17%13)/13)
	}
	for _, c := range []struct {
		alpha         float64
		leaves, right int
	}{{0, 9, 120}, {.01, 9, 120}, {.02, 8, 119}, {.05, 3, 110}, {.2, 3, 110}} {
		tree, err := GrowClasses(classes, 3, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		tree.Prune(c.alpha)
		right := 0
		for i, x := range classes.X {
			if tree.Class(x) == int(classes.Y[i]) {
				right++
			}
		}
		if tree.Leaves() != c.leaves || right != c.right {
			t.Errorf("classes, pruned by %v: %d leaves, %d right; want %d, %d", c.alpha, tree.Leaves(), right, c.leaves, c.right)
		}
	}
	lacks := func(predict func([]float64) float64) (s float64) {
		for i, x := range numbers.X {
			d := predict(x) - numbers.Y[i]
			s += d * d
		}
		return s
	}
	for _, c := range []struct {
		alpha  float64
		leaves int
		lacks  float64
	}{{.005, 29, 10.602384770031673}, {.02, 17, 23.217520253212005}, {.1, 7, 74.08615625531328}, {.5, 4, 119.38378324474937}} {
		tree, _ := Grow(numbers, Limits{})
		if tree.Prune(c.alpha); tree.Leaves() != c.leaves || math.Abs(lacks(tree.Predict)/c.lacks-1) > 1e-9 {
			t.Errorf("numbers, pruned by %v: %d leaves, %v lacking; want %d, %v", c.alpha, tree.Leaves(), lacks(tree.Predict), c.leaves, c.lacks)
		}
	}
	for k, want := range map[int]float64{1: 860.2923285469117, 10: 158.92385713591992, 50: 3.429037549918763} {
		m := newBooster(numbers, .1)
		for range k {
			m.addTree()
		}
		if got := lacks(m.Predict); math.Abs(got/want-1) > 1e-6 {
			t.Errorf("after %d rounds %v is lacking, want %v", k, got, want)
		}
	}
}
