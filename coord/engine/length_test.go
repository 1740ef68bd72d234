package engine

import (
	"math"
	"slices"
	"strings"
	"testing"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// scale is a scheduler that holds workers to their word.
func scale(workers, shards int) *Shards {
	l := newShards(modes.SSGD(workers), workers, shards, 4, 1<<20)
	l.guard, l.weighs = new(poison.Norms), true
	l.Begin(nil)
	return l
}

// said has each worker report the length of its gradient, and servers those of its slices. It returns the processes
// with a false report, and the norms of the update.
func (l *Shards) said(t *testing.T, step int64, said []float64, held func(w star.Worker, shard int) []replica.Sum) (lied []string, norms []float64) {
	t.Helper()
	for w, norm2 := range said {
		l.states[w].norm2, l.states[w].change = norm2, 1
		for shard := range l.shards {
			if _, err := l.Stored(shard, star.Worker(w), step, held(star.Worker(w), shard)...); err != nil {
				t.Fatal(err)
			}
		}
		orders, err := l.arrive(star.Worker(w), step, 4)
		if err != nil {
			t.Fatal(err)
		}
		who, orders := liars(orders)
		lied = append(lied, who...)
		for _, o := range orders {
			for _, g := range o.Noise.Gradients {
				norms = append(norms, g.Norm2)
			}
		}
	}
	return lied, norms
}

// The length that a worker reports for its gradient is checked against what two shards have measured: 2 and 2.
func TestWordsOnLength(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		said, second []float64 // in two rounds
		held         []float64 // what the shards say; nil: 2 and 2
		coded        bool
		belied       [2]string
		learns       bool // from the first round
	}{
		"right":                              {said: []float64{4, 4, 4}, learns: true},
		"right but for rounding":             {said: []float64{4, 4, 4.0003}, learns: true},
		"twice of it":                        {said: []float64{4, 4, 8}, belied: [2]string{"w2"}},
		"half of it":                         {said: []float64{4, 4, 2}, belied: [2]string{"w2"}},
		"nothing":                            {said: []float64{4, 4, 0}, belied: [2]string{"w2"}},
		"none":                               {said: []float64{4, 4, nan}, belied: [2]string{"w2"}},
		"the first, of whom little is known": {said: []float64{8, 4, 4}, second: []float64{8, 4, 4}, belied: [2]string{"", "w0"}},
		"all of them, so it is a shard":      {said: []float64{8, 8, 8}, second: []float64{8, 8, 8}},
		"it was skipped":                     {said: []float64{nan, nan, nan}, held: []float64{0, 0}},
		"nobody measures":                    {said: []float64{8, 4, 4}, held: []float64{-1, -1}, learns: true},
		"one shard does not":                 {said: []float64{8, 4, 4}, held: []float64{2, -1}, learns: true},
		"a codec":                            {said: []float64{8, 4, 4}, coded: true, learns: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := scale(3, 2)
			held := c.held
			if held == nil {
				held = []float64{2, 2}
			}
			for w := range l.states {
				l.states[w].coded = c.coded
			}
			for step, said := range [][]float64{c.said, c.second} {
				if said == nil {
					continue
				}
				belied, norms := l.said(t, int64(step), said, func(_ star.Worker, shard int) []replica.Sum { return []replica.Sum{{Sum2: held[shard]}} })
				if got := strings.Join(belied, " "); got != c.belied[step] {
					t.Errorf("round %d: belied are %q, want %q", step, got, c.belied[step])
				}
				learns := !slices.ContainsFunc(norms, func(n float64) bool { return n != n })
				if step == 0 && (learns != c.learns || len(norms) != 3) {
					t.Errorf("the norms that count are %v", norms)
				}
			}
		})
	}
}

// What copies of shards report of one gradient, for which the worker reports 4, and which process loses its place for
// that.
func TestCopiesThatDoNotAgree(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		said   float64
		held   [2]map[int]float64 // by shard: of servers
		belied string
		bad    bool // it is left out
		coded  bool
	}{
		"they do":                              {4, [2]map[int]float64{{0: 2, 1: 2}, {0: 2, 1: 2}}, "", false, false},
		"but for rounding":                     {4, [2]map[int]float64{{0: 2, 1: 2.00003}, {0: 2, 1: 2}}, "", false, false},
		"a follower has more":                  {4, [2]map[int]float64{{0: 2, 1: 3}, {0: 2, 1: 2}}, "s1", false, false},
		"a primary has more":                   {4, [2]map[int]float64{{0: 3, 1: 2}, {0: 2, 1: 2}}, "s0", false, false},
		"it is not finite, says one":           {4, [2]map[int]float64{{0: 2, 1: nan}, {0: 2, 1: 2}}, "s1", false, false},
		"it is infinite, says one":             {4, [2]map[int]float64{{0: 2, 1: inf}, {0: 2, 1: 2}}, "s1", false, false},
		"one is wrong in both":                 {4, [2]map[int]float64{{0: 2, 1: 5}, {0: 2, 1: 0}}, "s1", false, false},
		"one does not measure":                 {4, [2]map[int]float64{{0: 2, 1: -1}, {0: 2, 1: 2}}, "", false, false},
		"the worker is wrong, too":             {9, [2]map[int]float64{{0: 2, 1: 3}, {0: 2, 1: 2}}, "", false, false},
		"the worker is, and one says NaN":      {9, [2]map[int]float64{{0: 2, 1: nan}, {0: 2, 1: 2}}, "", true, false},
		"nobody knows, behind a codec":         {4, [2]map[int]float64{{0: 2, 1: 3}, {0: 2, 1: 2}}, "", false, true},
		"most know, behind a codec":            {4, [2]map[int]float64{{0: 2, 1: 3, 2: 2}, {0: 2, 1: 2, 2: 2}}, "s1", false, true},
		"most know, and the worker is wrong":   {9, [2]map[int]float64{{0: 2, 1: nan, 2: 2}, {0: 2, 1: 2, 2: 2}}, "s1", false, false},
		"it is not finite, say all of shard 0": {4, [2]map[int]float64{{0: nan, 1: inf}, {0: 2, 1: 2}}, "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := scale(1, 2)
			l.states[0].coded = c.coded
			l.states[0].norm2 = c.said
			var out []Ready
			for shard, held := range c.held {
				var sums []replica.Sum
				for server := range 3 {
					if v, ok := held[server]; ok {
						sums = append(sums, replica.Sum{Server: server, Sum2: v})
					}
				}
				if _, err := l.Stored(shard, 0, 0, sums...); err != nil {
					t.Fatal(err)
				}
			}
			out, err := l.arrive(0, 0, 4)
			if err != nil {
				t.Fatal(err)
			}
			lied, out := liars(out)
			if got := strings.Join(lied, " "); got != c.belied {
				t.Errorf("belied are %q, want %q", got, c.belied)
			}
			if len(out) == 0 || len(out[0].Members) != 1 || (out[0].Members[0].Weight == 0) != c.bad {
				t.Errorf("the update is %+v", out)
			}
		})
	}
}

// No parent in a tree is sent what it was not told may come: those that are too many to be named report for themselves.
func TestMoreBelowThanCanBeNamed(t *testing.T) {
	const n = wire.MaxBelow + 76
	plan := modes.SSGD(n)
	plan.Parents = make([]star.Worker, n)
	for w := range plan.Parents {
		plan.Parents[w] = star.Worker((w+1)/2 - 1) // two children each
	}
	plan.Parents[0] = modes.Direct
	l := newShards(plan, n, 1, 4, 1<<30)
	l.reachable = make([]bool, n)
	for w := range l.reachable {
		l.reachable[w] = true
	}
	branches, named := 0, map[star.Worker]bool{}
	for _, o := range l.Begin(nil) {
		for _, b := range o.Branches {
			branches++
			if len(b.Below) > wire.MaxBelow || len(b.Children) > 0 && len(b.Below) == 0 {
				t.Fatalf("worker %d has %d below it, of whom %d are named", b.Worker, len(b.Children), len(b.Below))
			}
			if b.Parent < 0 {
				for _, s := range b.Below {
					named[s.Worker] = true
				}
			}
			for _, c := range b.Children {
				if !slices.Contains(b.Below, wire.Below{Child: c.Worker, Worker: c.Worker, Step: c.Step, Samples: 4}) {
					t.Fatalf("worker %d was not told what worker %d brings", b.Worker, c.Worker)
				}
			}
			if len(b.AppendTo(nil)) > wire.MaxHeader {
				t.Fatalf("the branch of worker %d takes %d bytes", b.Worker, len(b.AppendTo(nil)))
			}
		}
	}
	if len(named) < wire.MaxBelow {
		t.Errorf("%d workers are below others", len(named))
	}
}
