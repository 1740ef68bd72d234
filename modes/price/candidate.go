package price

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"star"
	"star/modes"
)

// Kinds of candidates.
const (
	KindSSGD   = "ssgd"
	KindASGD   = "asgd"
	KindStatic = "static" // static x-order
	KindGroups = "groups" // dynamic x-order
	KindRing   = "ring"   // with riders
	KindTree   = "tree"   // SSGD through a tree
	KindQueue  = "queue"  // who is through with a part of the round takes the next one
	KindLocal  = "local"  // SSGD whose workers make several steps by themselves between two exchanges
)

// Candidate is a plan with its price.
//
// Cost is the expected time for the progress of one update with an exact gradient, by
// SSGD at the learning rate of the job:
//
//	Cost = Interval · Updates · Penalty                                  (22)
//
// Updates is 1 + φ/S with S the samples of an update: how many updates the noise makes
// necessary, were each at its own best learning rate. Penalty is what staleness and a
// learning rate that is not the update's best cost; of SSGD it is 1. So the cost of
// SSGD is max τ·(1 + φ/B). docs/theory.md derives it.
type Candidate struct {
	Kind      string
	Plan      modes.Plan
	X         int           // gradients in an update, for ssgd, asgd and static
	Interval  time.Duration // mean time between updates
	Staleness float64       // mean updates between reading and applying, of a gradient
	Samples   float64       // S: of the update that a sample is in, on average
	Updates   float64
	Penalty   float64
	Cost      time.Duration

	applied float64 // mean samples of an update
	flow    flow    // what the price is of

	// Guess says that the plan has shares that rest on [SplitPrior], not on measurements.
	// Its penalty has [GuessCharge] in it.
	Guess bool
}

func sortBy(at []int, less func(i, j int) bool) {
	sort.Slice(at, func(a, b int) bool { return less(at[a], at[b]) })
}

func (p *problem) candidate(kind string, plan modes.Plan, f flow) Candidate {
	c := Candidate{
		Kind: kind, Plan: plan, Staleness: max(f.stale, 0), Samples: f.own, Updates: 1 + p.φ/f.own,
		Interval: Seconds(1 / f.updates), Cost: Seconds(p.cost(f)),
	}
	c.Penalty = p.cost(f) * f.updates / c.Updates
	c.applied, c.flow = f.rate/f.updates, f
	return c
}

// Seconds is s as a Duration, rounded, and at most half of the longest one.
func Seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second)+0.5, float64(math.MaxInt64/2)))
}

// Guessed is c with [GuessCharge] if its shares are a guess.
func (c Candidate) Guessed(guess bool) Candidate {
	if c.Guess = guess; guess {
		c.Cost = Seconds(c.Cost.Seconds() * GuessCharge)
		c.Penalty *= GuessCharge
	}
	return c
}

// Exhaustive is the number of workers up to which every x and every number of riders is a
// candidate. Beyond it they are those of [grid], and the neighbours of the best.
const Exhaustive = 64

// grid is 1..n, or about 50 of them, dense at both ends.
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

// Candidates prices every plan that comes into question, cheapest first: SSGD, ASGD,
// static x-order with every x; the best partition into groups, and that of Ward clustering
// at 50 ms; a ring without its slowest members, by every number; a tree; a queue; local steps where exchanges dominate; and where it makes
// a difference each with shares by speed. With a ring only those that a ring can run.
// Beyond 64 workers x and the number of riders are tried on a grid, and around its best.
func Candidates(f Forecast) ([]Candidate, error) {
	p, err := f.problem()
	if err != nil {
		return nil, err
	}
	return (&search{problem: p, all: true, most: math.Inf(1)}).sorted(), nil
}

// Promising are the Candidates with a lower bound below most times the cost of the cheapest one, and perhaps others.
// Their intervals are rough, so that a caller should price the best ones again with [Over].
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

// search goes through the candidates.
type search struct {
	*problem
	all    bool        // keep all; else only the best
	most   float64     // with all: what has no chance to cost less than so many times the best is left out
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

// worth says whether a candidate that is at best as cheap as f has a chance.
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
	if s.f.Steepness > bearable { // the line that the strain of plans is above, from 1 where nothing is stale to what it is where everything is
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
		if !s.worth(s.undropped(s.b*s.maxRate, s.maxRate/float64(x), own, float64(x))) { // (8)
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

// order is the mean interval of static x-order in the long run. Where candidates are only put in order, as by the controller, which plays them anew over what was seen, no more
// gradients are looked at than make the slowest worker come often.
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

// bestGroups is the partition of the lowest cost. Groups are runs in order of speed: with
// the sizes given, exchanging a slow member of a fast group for a fast one of a slow group
// makes one of them faster and none slower. A plan of groups makes
//
//	Σ_g f_g·S_g/B·(1 − e·((S_g + φ)/2B + 1 − S_g/B))                     (26)
//
// progress in a second; staleness has come apart into terms of each group alone, because
// what one group applies is what the others are behind by. So the best partition is found by
// dynamic programming over the ends of groups. stale stands for e where it is the price of staleness.
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

// rings prices a ring without its r slowest members, who ride, for every r that makes a difference.
func (s *search) rings() {
	n := len(s.ws)
	best, at := math.Inf(1), 0
	tried := make(map[int]bool)
	try := func(r int) {
		// Who is as fast as the slowest member would ride along with every round: the plan is that of fewer riders.
		for ; r > 0 && r < n && rounds(s.t[n-r], s.t[n-r-1]) == 1; r-- {
		}
		if r < 1 || r >= n || tried[r] {
			return
		}
		tried[r] = true
		m := n - r
		riders := slices.Clone(s.ws[m:])
		slices.Sort(riders)
		plan := s.ringPlan(riders)
		for _, by := range [2]bool{false, true} {
			t := s.t[m-1]
			var shares []int
			guess := false
			if by {
				if shares, t, guess = s.share(0, m); shares == nil {
					return
				}
				plan = s.withShares(plan, 0, shares)
			}
			most := s.b * (float64(m)/t + s.sumRates(m))
			if !s.worth(flow{rate: most, own: s.B}) {
				continue
			}
			f := s.ringFlow(m, t)
			c := s.candidate(KindRing, plan, f)
			s.add(c.Guessed(by && guess))
			if k := s.cost(f); k < best {
				best, at = k, r
			}
		}
	}
	for _, r := range grid(n) {
		try(r)
	}
	if n > Exhaustive && at > 0 {
		for r := at - 4; r <= at+4; r++ {
			try(r)
		}
	}
}

func (s *search) sumRates(from int) (sum float64) {
	for _, t := range s.t[from:] {
		sum += 1 / t
	}
	return sum
}

// ringPlan has riders ride, and everybody else, the gone too, wait.
func (s *search) ringPlan(riders []star.Worker) modes.Plan {
	g := modes.Group{Riders: riders}
	for w := range star.Worker(s.n) {
		if _, rides := slices.BinarySearch(riders, w); !rides {
			g.Members = append(g.Members, w)
		}
	}
	g.Quorum = len(g.Members)
	return modes.Plan{Groups: []modes.Group{g}}
}

// ringFlow is a ring of the m fastest, whose round takes t, with the others as riders. A
// rider that takes τ goes along with every ⌈τ/t⌉-th round. Those that take equally many
// rounds go together, others meet when their numbers do.
func (s *search) ringFlow(m int, t float64) flow {
	if wait := s.f.RiderWait.Seconds(); wait > 0 {
		return s.ringWaits(m, t, wait)
	}
	count := map[int]float64{}
	for _, τ := range s.t[m:] {
		count[rounds(τ, t)]++
	}
	mean, square := float64(m), 0.0 // gradients in an update
	for k, c := range count {
		mean += c / float64(k)
	}
	square = float64(m) * (2*mean - float64(m)) // E (m + R)² = m² + 2m·E R + E R²
	for k, c := range count {
		for l, d := range count {
			square += c * d / float64(lcm(k, l))
		}
	}
	return s.undropped(mean*s.b/t, 1/t, square/mean*s.b, mean)
}

// rounds is ⌈τ/t⌉, at most a million, not counting what is only rounding.
func rounds(τ, t float64) int { return int(min(max(math.Ceil(τ/t-1e-9), 1), 1e6)) }

func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// ringWaits is ringFlow for a ring that waits for riders: a round ends when its members
// are there and, within the wait, all riders.
func (s *search) ringWaits(m int, t, wait float64) flow {
	due := slices.Clone(s.t[m:])
	const warm, rounds = 16, 80
	var now, begun, gradients, squares float64
	for k := range warm + rounds {
		end := now + t
		last := 0.0
		for _, d := range due {
			last = max(last, d)
		}
		if last > end {
			end = min(last, end+wait)
		}
		size := float64(m)
		for i, d := range due {
			if d <= end {
				size++
				due[i] = end + s.t[m+i]
			}
		}
		if now = end; k < warm {
			begun = now
			continue
		}
		gradients, squares = gradients+size, squares+size*size
	}
	f := (now - begun) / rounds
	return s.undropped(gradients/rounds*s.b/f, 1/f, squares/gradients*s.b, gradients/rounds)
}

// tree prices SSGD through a tree of two levels. Gradients and parameters go over the
// servers' links one after the other, 2·|w|/C seconds for each worker that reports for
// itself; with k of them the servers are done sooner, and each of the k takes
// ⌈N/k⌉ − 1 others' instead, on a link like the servers'.
func (s *search) tree() {
	n := len(s.ws)
	u := 0.0
	if s.f.LinkRate > 0 {
		u = 2 * float64(s.f.LinkBytes) / s.f.LinkRate
	}
	if u == 0 || s.f.Ring || n < 3 {
		return
	}
	for _, k := range grid(n / 2) {
		below := (n + k - 1) / k // with the parent
		t := s.t[n-1] - float64(n-k)*u + float64(below-1)*u
		if t <= 0 || t >= s.t[n-1] {
			continue
		}
		plan := modes.SSGD(s.n)
		plan.Parents = make([]star.Worker, s.n)
		for w := range plan.Parents {
			plan.Parents[w] = modes.Direct
		}
		for i, w := range s.ws[k:] {
			plan.Parents[w] = s.ws[i%k] // the fastest have time for others
		}
		c := s.candidate(KindTree, plan, s.undropped(s.B/t, 1/t, s.B, float64(n)))
		c.X = n
		s.add(c)
	}
}

// withShares gives the workers from place from on in order of speed their shares; the
// others keep equal ones.
func (s *search) withShares(plan modes.Plan, from int, shares []int) modes.Plan {
	if plan.Shares == nil {
		plan.Shares = make([]int, s.n)
		for w := range plan.Shares {
			plan.Shares[w] = s.f.Batch
		}
	}
	for i, k := range shares {
		plan.Shares[s.ws[from+i]] = k
	}
	return plan
}

// share spreads the samples of the workers [from, to) in order of speed so that they finish
// together, and returns the time that the slowest of them then takes. Where that saves
// less than 1 % the shares are nil. guess: some of the fits are guesses.
//
// All finish at T with b_i = (T − a_i)/c_i, at least minShare of an equal share and at most MaxShare; T is
// where these add up. What rounding leaves goes where it costs least.
func (s *search) share(from, to int) (shares []int, t float64, guess bool) {
	fit := s.fit[from:to]
	n := len(fit)
	most := float64(s.f.MaxShare)
	if most == 0 {
		most = 2 * s.b
	}
	if most = max(most, s.b); n < 2 {
		return nil, 0, false
	}
	least := math.Ceil(max(s.b*minShare, 1))
	sum := float64(n) * s.b
	of := func(i int, t float64) float64 {
		if fit[i].PerSample <= 0 {
			return most
		}
		return min(max((t-fit[i].Fixed)/fit[i].PerSample, least), most)
	}
	at := func(t float64) (x float64) {
		for i := range fit {
			x += of(i, t)
		}
		return x
	}
	lo, hi := 0.0, s.t[to-1]
	for range 40 {
		if mid := (lo + hi) / 2; at(mid) < sum {
			lo = mid
		} else {
			hi = mid
		}
	}
	shares = make([]int, n)
	left := int(sum)
	for i := range fit {
		shares[i] = int(of(i, hi) + 1e-6)
		left -= shares[i]
		guess = guess || s.guess[from+i]
	}
	finish := func(i, k int) float64 { return fit[i].Fixed + fit[i].PerSample*float64(k) }
	if left != 0 { // rounding: one to most of them, where it costs least
		step := sign(left)
		h := s.rest[:0]
		for i := range fit {
			if k := shares[i] + step; float64(k) >= least && float64(k) <= most {
				h = append(h, open{finish(i, max(k, shares[i])), i})
			}
		}
		if h.sort(step); len(h) == 0 {
			return nil, 0, false
		}
		for ; left != 0; left -= step {
			i := h[0].at
			shares[i] += step
			switch k := shares[i] + step; {
			case float64(k) >= least && float64(k) <= most:
				h[0].t = finish(i, max(k, shares[i]))
			case len(h) == 1:
				if left != step {
					return nil, 0, false
				}
			default:
				h[0] = h[len(h)-1]
				h = h[:len(h)-1]
			}
			h.sift(0, step)
		}
		s.rest = h[:0]
	}
	for i, k := range shares {
		t = max(t, finish(i, k))
	}
	if t > 0.99*s.t[to-1] {
		return nil, 0, false
	}
	return shares, t, guess
}

// open is a worker that may be given a sample more, or one less, and when it is finished then, or now.
type open struct {
	t  float64
	at int
}

// opens is a heap: with step 1 who is finished first is at the top, with −1 who is last; of equals the first.
type opens []open

func (h opens) before(i, j, step int) bool {
	if h[i].t != h[j].t {
		return (h[i].t < h[j].t) == (step > 0)
	}
	return h[i].at < h[j].at
}

func (h opens) sort(step int) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.sift(i, step)
	}
}

func (h opens) sift(i, step int) {
	for {
		down := 2*i + 1
		if down >= len(h) {
			return
		}
		if down+1 < len(h) && h.before(down+1, down, step) {
			down++
		}
		if !h.before(down, i, step) {
			return
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

func sign(k int) int {
	if k < 0 {
		return -1
	}
	return 1
}

// Of is the price of one plan under f, by the Barrier in virtual time where there is no
// closed form. Riders, dropping and trees count as they run.
func Of(p modes.Plan, f Forecast) (Candidate, error) {
	q, err := f.problem()
	if err != nil {
		return Candidate{}, err
	}
	if len(q.gone) > 0 {
		return Candidate{}, fmt.Errorf("modes: the price of %v: worker %d is gone: give its time, or ask for a plan without it", p, q.gone[0])
	}
	times := make([]time.Duration, q.n)
	sizes := make([]float64, q.n)
	for i, w := range q.ws {
		b := float64(p.Share(w, f.Batch))
		sizes[w] = b
		times[w] = max(Seconds(q.fit[i].Fixed+q.fit[i].PerSample*b), 1)
	}
	if p.Local > 0 && p.SameGroups(modes.SSGD(q.n)) {
		return q.candidate(KindLocal, p, q.localFlow(p)), nil
	}
	pc, err := PaceOf(p, times)
	if err != nil {
		return Candidate{}, err
	}
	if p.Queue > 0 { // pc has its shares, but the fits say more
		return q.candidate(KindQueue, p, q.queueFlow(p)), nil
	}
	mean := 0.0 // samples of a gradient
	for w, share := range pc.Shares {
		mean += share * sizes[w]
	}
	own := pc.Spread * mean
	fl := flow{rate: pc.Gradients * mean / pc.Interval.Seconds(), updates: 1 / pc.Interval.Seconds(), own: own, stale: pc.Staleness}
	if pc.Dropped > 0 {
		fl.behind = pc.Staleness * pc.Gradients * mean / q.B
	} else {
		fl.behind = max(1-own/q.B, 0)
	}
	return q.candidate(kindOf(p), p, fl), nil
}

// kindOf is the kind of candidate that p is.
func kindOf(p modes.Plan) string {
	n := p.Workers()
	switch {
	case p.HasTree() || p.AutoTree:
		return KindTree
	case p.Queue > 0:
		return KindQueue
	case p.Local > 0:
		return KindLocal
	case p.SameGroups(modes.SSGD(n)):
		return KindSSGD
	case p.SameGroups(modes.ASGD(n)):
		return KindASGD
	case len(p.Groups) == 1 && len(p.Groups[0].Riders) > 0:
		return KindRing
	case len(p.Groups) == 1:
		return KindStatic
	}
	return KindGroups
}

// Rate is the samples that a candidate applies in a second.
func (c Candidate) Rate() float64 { return c.applied / c.Interval.Seconds() }

// CostUnder is what c costs in seconds if f says what updates are worth; infinite if f is not valid.
func (c Candidate) CostUnder(f Forecast) float64 {
	p, err := f.problem()
	if err != nil {
		return math.Inf(1)
	}
	return p.cost(c.flow)
}

// Scaled is c where all its updates come at rate times the speed at which they were priced.
func (c Candidate) Scaled(rate float64) Candidate {
	c.flow.rate, c.flow.updates = c.flow.rate*rate, c.flow.updates*rate
	c.Interval, c.Cost = Seconds(c.Interval.Seconds()/rate), Seconds(c.Cost.Seconds()/rate)
	return c
}
