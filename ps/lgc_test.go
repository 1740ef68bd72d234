package ps

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/ps/rule"
	"star/transport/wire"
)

// lgcRound plays a round: the gradients of the first, then what the others had.
func lgcRound(c *scalar, n int, first, late []float32) float64 {
	basis := c.ver
	var use []wire.Gradient
	for i, g := range first {
		use = append(use, c.push(star.Worker(i), basis, 1, g))
	}
	w := c.fire(1/float32(len(first)), use)
	for i, g := range late {
		l := c.push(star.Worker(len(first)+i), basis, 1, g)
		l.Weight = float32(n-len(first)) / float32(n)
		c.fire(0, nil, l)
	}
	return w
}

// N = 4, K = 2, η = 0.1, w = 0: R0 F{1,3} S{5,9}; R1 F{2,4} S{6,8}; R2 F{1,1}.
func TestLiveCompensation(t *testing.T) {
	c := newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 0)
	for i, r := range []struct {
		first, late []float32
		want        float64
	}{
		{[]float32{1, 3}, []float32{5, 9}, -0.2},
		{[]float32{2, 4}, []float32{6, 8}, -0.75},
		{[]float32{1, 1}, nil, -1.05},
		{[]float32{1, 1}, nil, -1.15}, // no worker had anything in R2: no compensation
	} {
		near(t, fmt.Sprintf("round %d", i), lgcRound(c, 4, r.first, r.late), r.want, 1e-6)
	}
}

// What is older than one round is not used, nor what has no samples.
func TestLiveCompensationIsOneRoundOld(t *testing.T) {
	c := newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 0)
	lgcRound(c, 4, []float32{1, 3}, nil)
	lgcRound(c, 4, []float32{1, 3}, nil)
	before := c.s.Params()[0]
	old := c.push(2, 0, 1, 100)
	old.Weight = 0.5
	none := c.push(3, 1, 0, 100)
	none.Weight = 0.5
	c.fire(0, nil, old, none)
	near(t, "w", lgcRound(c, 4, []float32{1, 1}, nil), float64(before)-0.1, 1e-6)
}

// With Sizes the factor is n_S/(n_F + n_S): F{1,3} of 2 samples each, S{5} of 2 and {9} of 1: gS = 19/3, 3/7·(19/3 − 2)
// = 13/7.
func TestLiveCompensationBySamples(t *testing.T) {
	c := newScalar(t, &rule.LiveCompensated{Then: descent(0.1), Sizes: true}, 0)
	c.fire(0.5, []wire.Gradient{c.push(0, 0, 2, 1), c.push(1, 0, 2, 3)})
	c.fire(0, nil, c.push(2, 0, 2, 5), c.push(3, 0, 1, 9))
	near(t, "w", c.fire(0.5, []wire.Gradient{c.push(0, 1, 2, 2), c.push(1, 1, 2, 4)}), -0.2-0.1*(3+13./7), 1e-6)
}

// f_i = (w − c_i)²/2 with c = 0, 1, 4, 7, and workers 2 and 3 always late: all of them agree on 3, the first two alone
// on 0.5.
func TestLiveCompensationFixedPoint(t *testing.T) {
	c := newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 0)
	for range 400 {
		w := c.s.Params()[0]
		lgcRound(c, 4, []float32{w, w - 1}, []float32{w - 4, w - 7})
	}
	near(t, "with compensation", float64(c.s.Params()[0]), 3, 1e-4)
	c = newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 0)
	for range 400 {
		w := c.s.Params()[0]
		lgcRound(c, 4, []float32{w, w - 1}, nil)
	}
	near(t, "without", float64(c.s.Params()[0]), 0.5, 1e-4)
	c = newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 0)
	for range 400 {
		w := c.s.Params()[0]
		lgcRound(c, 4, []float32{w, w - 1, w - 4, w - 7}, nil)
	}
	near(t, "of all", float64(c.s.Params()[0]), 3, 1e-4)
}

// K = N: bit for bit what the optimiser alone makes of it.
func TestLiveCompensationOfAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "workers")
		a, b := newScalar(t, &rule.LiveCompensated{Then: descent(0.1)}, 1), newScalar(t, descent(0.1), 1)
		for range 5 {
			g := rapid.SliceOfN(rapid.Float32Range(-3, 3), n, n).Draw(t, "g")
			if x, y := lgcRound(a, n, g, nil), lgcRound(b, n, g, nil); x != y {
				t.Fatalf("%v, want %v", x, y)
			}
		}
	})
}

// For any first members, and any gradients of the others: the sum of the members' terms is what the servers make of it.
func TestLiveTerms(t *testing.T) {
	// F_0 = ranks 0, 1 and S_0 = 2, 3; F_1 = ranks 0, 2 with 2 and 4: (2+4)/2 + (5+9)/4 − (2/8)·(1+3) = 5.5.
	ms := make([]rule.LiveTerm, 4)
	for i, g := range []float32{1, 3, 5, 9} {
		ms[i].Keep([]float32{g}, i < 2)
	}
	sum, x := float32(0), []float32{0}
	for i, g := range [][]float32{{2}, nil, {4}, nil} {
		ms[i].Term(x, g, 4, 2, 2, 2)
		sum += x[0]
	}
	near(t, "u", float64(sum), 5.5, 1e-6)

	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "members")
		c := newScalar(t, &rule.LiveCompensated{Then: descent(1)}, 0)
		ms := make([]rule.LiveTerm, n)
		lastFirst, lastLive := 0, 0
		for round := range 4 {
			order := rapid.Permutation(ranks(n)).Draw(t, "order")
			k := rapid.IntRange(1, n).Draw(t, "k")
			g := rapid.SliceOfN(rapid.Float32Range(-3, 3), n, n).Draw(t, "g")
			first := order[:k]
			u := 0.0
			for w := range n {
				var mine []float32
				if slices.Contains(first, w) {
					mine = g[w : w+1]
				}
				x := []float32{5}
				ms[w].Term(x, mine, n, k, lastFirst, lastLive)
				u += float64(x[0])
			}
			before, basis := float64(c.s.Params()[0]), c.ver
			var use []wire.Gradient
			for _, w := range first {
				use = append(use, c.push(star.Worker(w), basis, 1, g[w]))
			}
			got := before - c.fire(1/float32(k), use)
			if math.Abs(got-u) > 1e-4 {
				t.Fatalf("round %d: the servers step by %v, the ring by %v", round, got, u)
			}
			lastFirst, lastLive = k, 0
			for w := range n {
				switch {
				case slices.Contains(first, w):
					ms[w].Keep(g[w:w+1], true)
				case rapid.Bool().Draw(t, "had a block"):
					ms[w].Keep(g[w:w+1], false)
					late := c.push(star.Worker(w), basis, 1, g[w])
					late.Weight = float32(n-k) / float32(n)
					c.fire(0, nil, late)
					lastLive++
				default:
					ms[w].Keep(nil, false)
				}
			}
		}
	})
}

func ranks(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
