package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"star"
	"star/ps/replica"
)

// Workers report the squared length of their gradients (norm2 = |g|²). The noise scale, and with it the
// choice of modes, follows from it. So the engine compares it with what shards measured of the pushed
// gradient: Σ Sum2 over the shards. Both are of the same elements: shards clip after the sum, and a
// worker takes the norm after all parts and local steps of its batch. They differ by rounding only.
// Where the two are of different vectors, nothing is compared:
//
//   - The gradient went through a codec. Shards measure the decoded Q(g + e), and e, the error feedback of
//     earlier gradients, has no bound that they know. The coordinator does not use these norms in updates
//     of several gradients (Config.Lossy), and in those of one only as far as pgns.Pair bounds them.
//   - Shards do not measure (--poison off), or found it not finite.
//   - It came in a tree's report: shards measure the mean r = Σ pᵢ·gᵢ, pᵢ = bᵢ/Σb, from which no single
//     wrong worker can be found. The triangle inequality remains,
//     2·max pᵢ|gᵢ| − Σ pᵢ|gᵢ| ≤ |r| ≤ Σ pᵢ|gᵢ|, and pgns.Update checks every update with it, as it checks
//     the rounds of a ring, where members measure the sum and agree on it. So worker j can report at most
//     (|r| + Σ_{i≠j} pᵢ|gᵢ|) / pⱼ, or the update is not used for the noise.
//
// A single worker with a wrong report is disconnected before its second report counts. If most other
// workers were found wrong too, the shard is the likely cause: then the gradient's length is ignored.

// sameLength is the relative difference, of the smaller one, that two measurements of one |g|² may
// have: a shard's is accurate to 10⁻⁵ (transport.ReadSquares), a worker's, in float64, to n·2⁻⁵³ for n
// elements, which is 10⁻⁶ for 2³³ of them; ten times that.
const sameLength = 1e-4

// alike reports whether two squared norms can be of one vector.
func alike(a, b float64) bool { return math.Abs(a-b) <= sameLength*min(a, b) }

// agree reports whether two copies of a shard measured the same of a slice: the same length, or both
// that it is not finite.
func agree(a, b float64) bool {
	notFinite := func(x float64) bool { return x-x != 0 }
	return notFinite(a) && notFinite(b) || alike(a, b)
}

// belied is a member that reported a false length. It is the error that its eviction names.
type belied struct {
	server bool
	rank   int
	worker star.Worker // that computed the gradient
	step   int64

	// |g|², or of a slice: as reported, and as measured.
	said, is float64
}

// Error says what was reported and what others measured.
func (b *belied) Error() string {
	if b.server {
		return fmt.Sprintf("reported a squared norm of %.6g for its slice of the gradient of worker %d, step %d; others measured %.6g",
			b.said, b.worker, b.step, b.is)
	}
	return fmt.Sprintf("reported a squared norm of %.6g for its gradient of step %d; the shards measured %.6g", b.said, b.step, b.is)
}

// expel evicts a member that reported a false length.
func (l *Shards) expel(b belied) {
	l.out = append(l.out, Ready{Evict: &Eviction{Server: b.server, Rank: b.rank, Why: &b}})
}

// arbitrate resolves disagreements between copies of shards on the gradient of w. A server is wrong if
// the worker's length is right without that server's report, or if the server contradicts several that
// agree. With no wrong server or more than one, the slice counts as not finite if any copy says so, and
// otherwise as not measured.
func (l *Shards) arbitrate(w star.Worker) {
	a := &l.states[w]
	if len(a.disputed) == 0 {
		return
	}
	own := !a.coded && (a.group == nil || len(a.group.in) == 1)
	var wrong []belied
	var whole float64 // |g|² without the wrong server's report
	for _, shard := range slices.Sorted(maps.Keys(a.disputed)) {
		for _, s := range a.disputed[shard] {
			if slices.ContainsFunc(wrong, func(b belied) bool { return b.rank == s.Server }) {
				continue
			}
			if total, is, several, ok := a.without(s.Server, shard); ok && (several || own && !a.unknown && len(a.bad) == 0 && alike(total, a.norm2)) {
				wrong, whole = append(wrong, belied{true, s.Server, w, a.step, s.Sum2, is}), total
			}
		}
	}
	if len(wrong) == 1 {
		a.sum2 = whole
		l.expel(wrong[0])
	} else {
		for shard, sums := range a.disputed {
			if slices.ContainsFunc(sums, func(s replica.Sum) bool { return s.Sum2-s.Sum2 != 0 }) {
				a.bad = append(a.bad, shard)
			}
		}
		slices.Sort(a.bad)
		a.unknown = true
	}
	a.disputed = nil
}

// without is the squared norm of a gradient, and of a disputed slice of it, without the reports of a
// server. Not ok: the other copies disagree as well, or did not measure. several: in each such slice
// several others agree.
func (a *workerState) without(server, shard int) (total, slice float64, several, ok bool) {
	total, several = a.sum2, true
	for at, sums := range a.disputed {
		var others []replica.Sum
		for _, s := range sums {
			if s.Server != server {
				others = append(others, s)
			}
		}
		for _, s := range others {
			if !(s.Sum2 >= 0) || !agree(s.Sum2, others[0].Sum2) {
				return 0, 0, false, false
			}
		}
		several = several && len(others) > 1
		total += others[0].Sum2
		if at == shard {
			slice = others[0].Sum2
		}
	}
	return total, slice, several, true
}

// weigh compares a worker's report on its complete gradient with what shards have measured.
func (l *Shards) weigh(w star.Worker) {
	a := &l.states[w]
	if !l.weighs || l.shards == 0 || a.coded || a.unknown || len(a.bad) > 0 || a.group != nil && len(a.group.in) > 1 {
		return
	}
	// A skipped gradient is pushed as zeros, and its norm is reported as NaN.
	if a.honest = alike(a.norm2, a.sum2) || a.norm2 != a.norm2 && a.sum2 == 0; a.honest {
		a.weighed = true
		return
	}
	right, wrong := 0, 0
	for v := range l.states {
		if b := &l.states[v]; b.live && b.weighed && star.Worker(v) != w {
			if b.honest {
				right++
			} else {
				wrong++
			}
		}
	}
	if a.weighed = true; right > wrong {
		l.expel(belied{false, int(w), w, a.step, a.norm2, a.sum2})
	}
	a.norm2, a.change, a.last.samples = math.NaN(), -1, 0
}
