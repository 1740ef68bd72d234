package ps

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/ps/rule"
	"star/transport/wire"
)

// Models 1 and 3, a gradient of 2 at the first, η = 0.1: (1.8, 2).
func TestGossipStep(t *testing.T) {
	g := rule.NewGossip(descent(0.1), 2, 1, rule.Complete)
	g.Sent(0, []float32{1})
	g.Sent(1, []float32{3})
	next := []float32{0}
	g.Update(next, []float32{2}, 0, []rule.Gradient{{Worker: 0, Weight: 0.5, Vec: []float32{2}}}, 0)
	near(t, "x0", float64(g.Model(0)[0]), 1.8, 1e-6)
	near(t, "x1", float64(g.Model(1)[0]), 2, 1e-6)
	near(t, "mean", float64(next[0]), 1.9, 1e-6)

	// With the norm taken first, and clipped to half.
	g.Sent(0, []float32{1})
	g.Sent(1, []float32{3})
	g.Then.Clip = 1
	dir := g.Combine([]float32{2}, 0, []rule.Gradient{{Worker: 0, Weight: 0.5, Vec: []float32{2}}})
	g.Step(next, dir, 0, 2)
	near(t, "clipped x0", float64(g.Model(0)[0]), 1.9, 1e-6)
}

// A partner is another worker, every worker has its turn with every other, and on a ring only with adjacent workers.
func TestPartners(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for _, graph := range []rule.Graph{rule.Complete, rule.Circle} {
			for w := range star.Worker(n) {
				met := map[star.Worker]int{}
				for v := range int64(400) {
					met[graph.Partner(v, w, n)]++
				}
				want := n - 1
				if graph == rule.Circle {
					want = min(2, n-1)
				}
				if n == 1 {
					if len(met) != 1 || met[0] != 400 {
						t.Fatalf("a worker alone averages with %v", met)
					}
					continue
				}
				if len(met) != want || met[w] > 0 {
					t.Errorf("%s, worker %d of %d averages with %v", graph, w, n, met)
				}
				for j, k := range met {
					next, before := star.Worker((int(w)+1)%n), star.Worker((int(w)+n-1)%n)
					if graph == rule.Circle && j != next && j != before {
						t.Errorf("worker %d of %d averages with %d", w, n, j)
					}
					if k < 400/want/3 {
						t.Errorf("%s, worker %d of %d averages with %d only %d times of 400", graph, w, n, j, k)
					}
				}
			}
		}
	}
}

// In any order of arrival, each worker is sent its own model, which is what a plain loop over models makes of the same
// gradients; the parameters are their mean; two shards of the same job choose the same pairs.
func TestGossipModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "workers")
		graph := rapid.SampledFrom([]rule.Graph{rule.Complete, rule.Circle}).Draw(t, "graph")
		const lr = 0.25
		c := newScalar(t, rule.NewGossip(descent(lr), n, 1, graph), 4)
		xs := slices.Repeat([]float32{4}, n)
		for v := range int64(rapid.IntRange(1, 30).Draw(t, "updates")) {
			w := star.Worker(rapid.IntRange(0, n-1).Draw(t, "w"))
			grad := float32(rapid.IntRange(-8, 8).Draw(t, "g"))
			c.fire(1/float32(n), []wire.Gradient{c.push(w, v, 1, grad)})
			if j := graph.Partner(v+1, w, n); j != w {
				m := (xs[w] + xs[j]) / 2
				xs[w], xs[j] = m, m
			}
			xs[w] -= lr * grad
			mean := float32(0)
			for i, x := range xs {
				mean += x
				if got := c.s.Model(star.Worker(i)); len(got) != 1 || got[0] != x {
					t.Fatalf("update %d: worker %d is sent %v, want %v", v, i, got, x)
				}
			}
			if got := c.s.Params()[0] - mean/float32(n); got > 1e-5 || got < -1e-5 {
				t.Fatalf("update %d: the parameters are %v off the mean", v, got)
			}
			if rapid.IntRange(0, 9).Draw(t, "asks") == 0 { // it goes on from the mean
				i := rapid.IntRange(0, n-1).Draw(t, "who")
				c.s.Read(star.Worker(i))
				xs[i] = c.s.Params()[0]
			}
		}
	})
}

// A shard that moves takes the models along; a checkpoint does not have them.
func TestGossipMoves(t *testing.T) {
	a, b := rule.NewGossip(descent(0.1), 3, 2, rule.Circle), rule.NewGossip(descent(0.1), 3, 2, rule.Circle)
	a.Sent(0, []float32{1, 2})
	a.Sent(2, []float32{5, 6})
	if err := b.SetSlots(a.Slots(2)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.Model(0), []float32{1, 2}) || b.Model(1) != nil || !slices.Equal(b.Model(2), []float32{5, 6}) || len(a.Lasting(2)) != 0 {
		t.Errorf("%v moved as %v", a.Slots(2), b.Slots(2))
	}
	if err := b.SetSlots([]rule.Slot{{Name: "ad-psgd.model.3", Data: []float32{1, 2}}}); err == nil {
		t.Error("the model of a worker that there is not")
	}
}
