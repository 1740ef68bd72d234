package poison

import (
	"math"
	"slices"

	"star/internal/kernel"
)

// Sampling. Coordinates are taken in blocks, which cost one cache miss for many.
const (
	sampleBlock = 64
	sampleLeast = 512  // of shorter vectors all are taken
	sampleMost  = 4096 // coordinates
	samplePart  = 8    // else one of this many
)

// Sampler copies the same coordinates out of several vectors of one length.
type Sampler struct {
	n      int
	blocks int
	offset int // of each block in its stretch
}

// NewSampler samples vectors of n elements. Its choice moves with the round: a coordinate that is
// always zero does not stay in it.
func NewSampler(n int, round int64) Sampler {
	s := Sampler{n: n}
	if n <= sampleLeast {
		return s
	}
	s.blocks = min(max(n/samplePart, sampleLeast), sampleMost) / sampleBlock
	room := n/s.blocks - sampleBlock
	s.offset = int(uint64(round) * 0x9e3779b97f4a7c15 >> 33 % uint64(room+1))
	return s
}

// Len is the number of coordinates.
func (s Sampler) Len() int {
	if s.blocks == 0 {
		return s.n
	}
	return s.blocks * sampleBlock
}

// Copy copies from part, which is elements [at, at+len(part)) of a vector, those that are in the sample to their places
// in dst, of Len elements.
func (s Sampler) Copy(dst, part []float32, at int) {
	if s.blocks == 0 {
		copy(dst[at:], part)
		return
	}
	stretch := s.n / s.blocks
	first := max(0, (at-s.offset-sampleBlock+1+stretch-1)/stretch)
	for b := first; b < s.blocks; b++ {
		from := b*stretch + s.offset
		to := from + sampleBlock
		if from >= at+len(part) {
			return
		}
		a, z := max(from, at), min(to, at+len(part))
		if a < z {
			copy(dst[b*sampleBlock+a-from:], part[a-at:z-at])
		}
	}
}

// Statistics of cosines.
const (
	signWindow = 1024 // updates
	signLeast  = 64
	signEvery  = 16 // how often it is asked
	signLimit  = -7 // Student's t: with 63 degrees of freedom, one in 10^9
)

// Signs is the known direction of one worker's gradients. The zero value is unknown.
type Signs struct {
	recent  [signWindow]float64 // cosines; a ring
	n       int                 // seen since the last change
	flipped bool
}

// Flipped reports whether the worker's gradients are reversed.
func (s *Signs) Flipped() bool { return s.flipped }

// Observe adds the cosine of the worker's gradient with the mean of the others, and reports whether Flipped has
// changed, and the mean that caused it. A worker is flipped when its mean over the last 64, 128, … or 1024
// updates is below −floor beyond doubt, and no longer when they are positive as much. See [Floor].
func (s *Signs) Observe(cos, floor float64) (changed bool, mean float64) {
	if !s.keep(cos) {
		return false, 0
	}
	return s.judge(func(int) float64 { return floor })
}

// keep puts a cosine into the window. It reports true when it is time to judge.
func (s *Signs) keep(cos float64) bool {
	if cos-cos != 0 {
		return false
	}
	s.recent[s.n%signWindow] = cos
	s.n++
	return s.n%signEvery == 0
}

// mean is the mean of the last k cosines, or of all where there are fewer; 0 without any.
func (s *Signs) mean(k int) (mean float64) {
	k = min(k, s.n, signWindow)
	for i := 1; i <= k; i++ {
		mean += s.recent[(s.n-i)%signWindow]
	}
	return mean / float64(max(k, 1))
}

// judge is Observe's second half; floor may depend on how many updates are looked at.
func (s *Signs) judge(floor func(k int) float64) (changed bool, mean float64) {
	sign := 1.0
	if s.flipped {
		sign = -1
	}
	sum, sum2 := 0.0, 0.0
	for k := 1; k <= min(s.n, signWindow); k++ {
		v := sign * s.recent[(s.n-k)%signWindow]
		sum, sum2 = sum+v, sum2+v*v
		if k < signLeast || k&(k-1) != 0 {
			continue
		}
		mean = sum / float64(k)
		variance := max(sum2/float64(k)-mean*mean, 1e-12) * float64(k) / float64(k-1)
		limit := signLimit * math.Sqrt(variance/float64(k))
		if mean >= limit {
			continue
		}
		if s.flipped || mean+floor(k) < limit {
			s.flipped, s.n = !s.flipped, 0
			return true, sign * mean
		}
	}
	return false, 0
}

// Floor is how far below zero the mean cosine of two sound gradients can lie: that over own samples with that over
// others samples, all drawn from a set of that many samples without one of them twice, as the batches of an epoch are.
// At a stationary point the gradients of all samples add up to zero, so what one batch has, the others lack:
//
//	cos = −√(own·others / ((all−own)·(all−others)))
//
// which follows from the covariance −σ²/(N−1) of two draws without replacement from N (W. G. Cochran: Sampling
// Techniques, 3rd ed., 1977, section 2.5) and the variance σ²/n·(N−n)/(N−1) of a mean of n. It is 0 where the number of
// all samples is not known (0), and at most 1.
func Floor(own, others, all int) float64 {
	if all <= 0 || own <= 0 || others <= 0 {
		return 0
	}
	if own+others >= all {
		return 1
	}
	a, b, n := float64(own), float64(others), float64(all)
	return math.Sqrt(a * b / ((n - a) * (n - b)))
}

// alike is how many times as negative as that of the others a worker's mean cosine must be: if all gradients point
// against each other a little (Floor), batches of nine times the size make a difference of three times.
const alike = 3

// Angles watches the directions of all workers with gradients of the same versions. The zero value is ready to use.
type Angles struct {
	signs []Signs

	round   int64
	samples [][]float32
	sum     []float32
	means   []float64
	turns   []Turn
}

// Turn reports that a worker's gradients became reversed, or ceased to be.
type Turn struct {
	Worker  int
	Flipped bool
	Cosine  float64 // mean
}

// Gradient is one of those that are compared.
type Gradient struct {
	Worker int
	Vec    []float32

	// Void gradients were taken back: they are not part of the mean of the others.
	Void bool
}

// Observe adds the gradients of one version, all of one length, and returns the workers with a change. It needs three
// gradients that are not void. The result is valid until the next call.
func (a *Angles) Observe(gs []Gradient) []Turn {
	a.turns = a.turns[:0]
	others := 0
	for _, g := range gs {
		if a.counts(g) {
			others++
		}
	}
	if others < 2 || len(gs) < 3 {
		return nil
	}
	s := NewSampler(len(gs[0].Vec), a.round)
	a.round++
	m := s.Len()
	for len(a.samples) < len(gs) {
		a.samples = append(a.samples, nil)
	}
	a.sum = grow(a.sum, m)
	clear(a.sum)
	for i, g := range gs {
		a.samples[i] = grow(a.samples[i], m)
		s.Copy(a.samples[i], g.Vec, 0)
		if a.counts(g) {
			kernel.Add(a.sum, a.samples[i])
		}
	}
	sum2 := kernel.SumSq(a.sum)
	judge := false
	for i, g := range gs {
		n := others
		if a.counts(g) {
			n--
		}
		if n < 2 || g.Void && !a.flipped(g.Worker) {
			continue
		}
		cos := Cosine(a.samples[i], a.sum, sum2, a.counts(g))
		for len(a.signs) <= g.Worker {
			a.signs = append(a.signs, Signs{})
		}
		if a.signs[g.Worker].keep(cos) {
			judge = true
		}
	}
	if !judge {
		return nil
	}
	for _, g := range gs {
		if g.Worker >= len(a.signs) || g.Void && !a.flipped(g.Worker) || a.signs[g.Worker].n%signEvery != 0 {
			continue
		}
		changed, mean := a.signs[g.Worker].judge(func(k int) float64 { return a.against(g.Worker, k) })
		if changed {
			a.turns = append(a.turns, Turn{g.Worker, a.signs[g.Worker].flipped, mean})
		}
	}
	return a.turns
}

// against is the floor for one worker: alike times how far below zero the median of the others' mean cosines is, over
// their last k updates. A worker that is reversed among sound ones leaves theirs at zero or above, also where two of
// five are reversed.
func (a *Angles) against(worker, k int) float64 {
	a.means = a.means[:0]
	for w := range a.signs {
		if s := &a.signs[w]; w != worker && s.n > 0 && !s.flipped {
			a.means = append(a.means, s.mean(k))
		}
	}
	n := len(a.means)
	if n == 0 {
		return 0
	}
	slices.Sort(a.means)
	return max(0, -alike*(a.means[(n-1)/2]+a.means[n/2])/2)
}

// counts reports whether a gradient is one of those that a worker is compared with.
func (a *Angles) counts(g Gradient) bool { return !g.Void && !a.flipped(g.Worker) }

func (a *Angles) flipped(w int) bool { return w < len(a.signs) && a.signs[w].flipped }

func grow(v []float32, n int) []float32 {
	if cap(v) < n {
		return make([]float32, n)
	}
	return v[:n]
}

// Cosine is that between own and the others, where sum is the sum of the others, with own in it if included, and sum2
// its squared norm. It is NaN if either is zero.
func Cosine(own, sum []float32, sum2 float64, included bool) float64 {
	own2, dot := kernel.SumSq(own), kernel.Dot(own, sum)
	if included {
		sum2 += own2 - 2*dot
		dot -= own2
	}
	return dot / math.Sqrt(max(own2*sum2, 0))
}
