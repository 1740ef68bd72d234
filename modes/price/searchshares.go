package price

import (
	"math"

	"star/modes"
)

// withShares gives the workers from place from on, in order of speed, their shares; the others keep equal ones.
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

// share distributes the samples of the workers [from, to) in order of speed so that they finish together, and returns
// the time of the slowest of them. If that saves less than 1 % the shares are nil. guess: some of the fits are
// guesses.
//
// All finish at T with b_i = (T − a_i)/c_i, at least minShare of an equal share and at most MaxShare; T is the time for
// which these add up. The remainder of rounding goes where it costs least.
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

// open is a worker that may get one sample more, or one less, and its finishing time with that, or now.
type open struct {
	t  float64
	at int
}

// opens is a heap: with step 1 the worker that finishes first is at the top, with −1 the last; of equal ones the first.
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
