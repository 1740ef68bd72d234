package price

import (
	"math"
	"slices"

	"star"
	"star/modes"
)

// rings prices a ring with its r slowest members as riders, for every r that makes a difference.
func (s *search) rings() {
	n := len(s.ws)
	best, at := math.Inf(1), 0
	tried := make(map[int]bool)
	try := func(r int) {
		// A worker as fast as the slowest member would ride in every round: the plan is that of fewer riders.
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

// ringPlan makes the chosen workers riders, and all others members, those that have left included.
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

// ringFlow is a ring of the m fastest with rounds of t, and the others as riders. A rider that takes τ is in every
// ⌈τ/t⌉-th round. Riders with the same number of rounds ride together, others meet in the common multiples.
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

// rounds is ⌈τ/t⌉, at most a million, without rounding errors.
func rounds(τ, t float64) int { return int(min(max(math.Ceil(τ/t-1e-9), 1), 1e6)) }

func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// ringWaits is ringFlow for a ring that waits for riders: a round ends when its members have arrived and, within the
// wait, all riders.
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
