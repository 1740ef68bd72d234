package price

import (
	"math"
	"slices"
	"time"

	"star/modes"
)

// Exhaustive is the number of workers up to which every x and every number of riders is a candidate. Above it they are
// those of [grid], and numbers close to the best one.
const Exhaustive = 64

// grid is 1..n, or about 50 numbers of them, dense at both ends.
func grid(n int) []int {
	var ks []int
	if n <= Exhaustive {
		for k := 1; k <= n; k++ {
			ks = append(ks, k)
		}
		return ks
	}
	for k := 1; k <= n/2; k += 1 + k/5 {
		ks = append(ks, k, n-k)
	}
	ks = append(ks, n/2, n)
	slices.Sort(ks)
	return slices.Compact(ks)
}

// Candidates prices all plans that can be the best, cheapest first: SSGD, ASGD, static x-order with every x; the best
// partition into groups, and that of Ward clustering at 50 ms; a ring without its slowest members, by every number; a
// tree; a queue; local steps where exchanges dominate; and where it makes a difference each with shares by speed. With
// a ring only those that a ring can run. Above 64 workers x and the number of riders are those of a grid, and numbers
// close to its best.
func Candidates(f Forecast) ([]Candidate, error) {
	p, err := f.problem()
	if err != nil {
		return nil, err
	}
	return (&search{problem: p, all: true, most: math.Inf(1)}).sorted(), nil
}

// Promising is the Candidates with a lower bound below most times the cost of the cheapest one, and perhaps others.
// Their intervals are rough, so a caller should price the best ones again with [Over].
func Promising(f Forecast, most float64) ([]Candidate, error) {
	p, err := f.problem()
	if err != nil {
		return nil, err
	}
	return p.promising(most), nil
}

func (p *problem) promising(most float64) []Candidate {
	return (&search{problem: p, all: true, most: most, rough: true}).sorted()
}

// sorted runs s, with all.
func (s *search) sorted() []Candidate {
	s.run()
	slices.SortStableFunc(s.found, func(a, b Candidate) int { return int(a.Cost - b.Cost) })
	return s.found
}

// search is the state of a search through the candidates.
type search struct {
	*problem
	all    bool        // keep all; else only the best
	most   float64     // with all: candidates that cannot cost less than this multiple of the best are skipped
	least  float64     // with all: the lowest cost so far; 0: none yet
	found  []Candidate // all, or the best at [0]
	rough  bool        // intervals need not be exact
	rhythm rhythm      // reused
	ns     []time.Duration
	rest   opens // reused
}

func (s *search) add(c Candidate) {
	switch {
	case s.all:
		if k := c.Cost.Seconds(); s.least == 0 || k < s.least {
			s.least = k
		}
		if !slices.ContainsFunc(s.found, func(d Candidate) bool { return d.Kind == c.Kind && d.Plan.Equal(c.Plan) }) {
			s.found = append(s.found, c)
		}
	case len(s.found) == 0:
		s.found = append(s.found, c)
	case c.Cost < s.found[0].Cost:
		s.found[0] = c
	}
}

// worth reports whether a candidate that costs at least as much as f can be kept.
func (s *search) worth(f flow) bool {
	if s.all {
		return s.least == 0 || math.IsInf(s.most, 1) || s.cost(f) < s.most*s.least
	}
	if len(s.found) == 0 || s.cost(f) < s.found[0].Cost.Seconds() {
		return true
	}
	return false
}

func (s *search) run() {
	n := len(s.ws)
	s.ssgd()
	s.queue()
	s.local()
	s.tree()
	s.rings()
	if s.f.Ring || n == 1 {
		return
	}
	s.partition(KindGroups, s.bestGroups(s.e), true)
	// This line is a lower bound of the strain of plans, from 1 without staleness to its value with all gradients
	// stale.
	if s.f.Steepness > bearable {
		s.partition(KindGroups, s.bestGroups(max(s.e, 1-bearable/s.f.Steepness)), true)
	}
	s.partition(KindGroups, ward(s.t, wardDistance), false)
	s.asgd()
	s.orders()
}

// ssgd waits for all, with equal shares and with shares by speed.
func (s *search) ssgd() {
	n := len(s.ws)
	flowOf := func(t float64) flow { return s.undropped(s.B/t, 1/t, s.B, float64(n)) }
	c := s.candidate(KindSSGD, modes.SSGD(s.n), flowOf(s.t[n-1]))
	c.X = n
	s.add(c)
	if shares, t, guess := s.share(0, n); shares != nil {
		c = s.candidate(KindSSGD, s.withShares(modes.SSGD(s.n), 0, shares), flowOf(t))
		c.X = n
		s.add(c.Guessed(guess))
	}
}

func (s *search) asgd() {
	c := s.candidate(KindASGD, modes.ASGD(s.n), s.undropped(s.b*s.maxRate, s.maxRate, s.b, 1))
	c.X = 1
	s.add(c)
}

// orders prices static x-order.
func (s *search) orders() {
	n := len(s.ws)
	best, at := math.Inf(1), 0
	tried := make(map[int]bool)
	try := func(x int) {
		if x < 2 || x >= n || tried[x] {
			return
		}
		tried[x] = true
		own := float64(x) * s.b
		if !s.worth(s.undropped(s.b*s.maxRate, s.maxRate/float64(x), own, float64(x))) { // (9)
			return
		}
		i := s.order(x)
		f := s.undropped(own/i, 1/i, own, float64(x))
		c := s.candidate(KindStatic, modes.XOrder(s.n, x), f)
		c.X = x
		s.add(c)
		if k := s.cost(f); k < best {
			best, at = k, x
		}
	}
	for _, x := range grid(n) {
		try(x)
	}
	if n > Exhaustive && at > 0 {
		for x := at - 4; x <= at+4; x++ {
			try(x)
		}
	}
}

// order is the mean interval of static x-order in the long run. If candidates are only ordered, as by the controller,
// which prices the best again over the history, it plays only enough gradients for the slowest worker to arrive often.
func (s *search) order(x int) float64 {
	n := len(s.byRank)
	most := settles
	switch {
	case s.rough && n > Exhaustive:
		most = 10 * n
	case s.rough:
		most = max(24*n, 32000/n)
	}
	ns := s.ns[:0]
	for _, t := range s.byRank {
		ns = append(ns, max(Seconds(t), 1))
	}
	s.ns = ns
	return s.rhythm.play(ns, x, max(most, 8*x), nil)
}

// partition prices groups, given as the ends of runs of workers in order of speed.
func (s *search) partition(kind string, ends []int, shares bool) {
	if len(ends) < 2 || len(ends) == len(s.ws) {
		return // that is SSGD or ASGD
	}
	var plan modes.Plan
	var rate, updates, squares, rate2, updates2, squares2 float64
	var given [][]int
	guess, differs, from := false, false, 0
	for _, to := range ends {
		g := slices.Clone(s.ws[from:to])
		slices.Sort(g)
		plan.Groups = append(plan.Groups, modes.Group{Members: g, Quorum: len(g)})
		size, f := float64(to-from)*s.b, 1/s.t[to-1]
		rate, updates, squares = rate+f*size, updates+f, squares+f*size*size
		k, t, q := s.share(from, to)
		if k != nil {
			f, differs = 1/t, true
			guess = guess || q
		}
		given = append(given, k)
		rate2, updates2, squares2 = rate2+f*size, updates2+f, squares2+f*size*size
		from = to
	}
	last := &plan.Groups[len(plan.Groups)-1]
	last.Members = append(last.Members, s.gone...)
	last.Quorum = len(last.Members)
	s.add(s.candidate(kind, plan, s.undropped(rate, updates, squares/rate, rate/updates/s.b)))
	if !shares || !differs {
		return
	}
	plan, from = plan.Clone(), 0
	for i, to := range ends {
		if given[i] != nil {
			plan = s.withShares(plan, from, given[i])
		}
		from = to
	}
	c := s.candidate(kind, plan, s.undropped(rate2, updates2, squares2/rate2, rate2/updates2/s.b))
	s.add(c.Guessed(guess))
}

// bestGroups is the partition of the lowest cost. Groups are runs in order of speed: with given sizes, exchanging a
// slow member of a fast group for a fast one of a slow group makes one of them faster and none slower. A plan of
// groups makes
//
//	Σ_g f_g·S_g/B·(1 − e·((S_g + φ)/2B + 1 − S_g/B))                     (21)
//
// progress per second. The staleness of a group is what the others apply, so it separates into terms of each group
// alone, and dynamic programming over the ends of groups finds the best partition. stale replaces e where it is the
// price of staleness.
func (s *search) bestGroups(stale float64) []int {
	n := len(s.ws)
	value := make([]float64, n+1)
	back := make([]int, n+1)
	for to := 1; to <= n; to++ {
		value[to] = math.Inf(-1)
		for from := range to {
			size := float64(to-from) * s.b
			v := value[from] + size/s.B*(1-s.e*(size+s.φ)/(2*s.B)-stale*(1-size/s.B))/s.t[to-1]
			if v > value[to] {
				value[to], back[to] = v, from
			}
		}
	}
	var ends []int
	for to := n; to > 0; to = back[to] {
		ends = append(ends, to)
	}
	slices.Reverse(ends)
	return ends
}
