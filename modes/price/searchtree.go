package price

import (
	"star"
	"star/modes"
)

// tree prices SSGD through a tree of two levels. Gradients and parameters use the servers' links one after the other,
// 2·|w|/C seconds for each worker that reports for itself; with k of them the servers finish sooner, and each of the k
// receives ⌈N/k⌉ − 1 others instead, over a link like the servers'.
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
