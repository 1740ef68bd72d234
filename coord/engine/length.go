package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"star"
	"star/ps/replica"
)

// What a worker says of the length of its gradient (norm2 = |g|²), from which the noise scale and
// with it the choice of modes follow, is held against what shards have measured of the one that it
// pushed: Σ Sum2 over the shards. Both are of the same elements. Clipping happens behind the sum,
// in the shards, and whatever is done to a batch (parts, local steps) is over when the norm is
// taken. So they differ by rounding only, and nothing is compared where they are of something else:
//
//   - The gradient went through a codec. Shards measure what is decoded, Q(g + e), and e, what was left out of earlier gradients, has no bound that they know. The coordinator
//     makes no use of these norms in updates of several gradients (Config.Lossy), and in those of one no more than pgns.Pair lets two norms say.
//   - Shards do not measure (--poison off), or found it not finite.
//   - It came up a tree: shards measure the mean r = Σ pᵢ·gᵢ of a report, pᵢ = bᵢ/Σb. Then nobody can say who of those in it was wrong. All that is left is the triangle inequality,
//     2·max pᵢ|gᵢ| − Σ pᵢ|gᵢ| ≤ |r| ≤ Σ pᵢ|gᵢ|, and pgns.Update holds every update to it, as it does the rounds of a ring, where members have measured the sum and agree
//     on it. So worker j can say of its own length (|r| + Σ_{i≠j} pᵢ|gᵢ|) / pⱼ at most, or the update says nothing of noise.
//
// Who is alone with a word that is not so loses its connection, before a second one counts. Where
// most others were found wrong, too, it is rather the shard that is, and nothing is learnt.

// sameLength is by how much, of the smaller, two measurements of one |g|² may differ: a shard's is
// good to 10⁻⁵ (wire.ReadSquares), a worker's, in float64, to n·2⁻⁵³ for n elements, which is 10⁻⁶
// for 2³³ of them; ten times that.
const sameLength = 1e-4

// alike says whether two squared norms are of one vector.
func alike(a, b float64) bool { return math.Abs(a-b) <= sameLength*min(a, b) }

// agree says whether copies of a shard say the same of a slice that they have measured: how long it
// is, or that it is not finite.
func agree(a, b float64) bool {
	none := func(x float64) bool { return x-x != 0 }
	return none(a) && none(b) || alike(a, b)
}

// belied is a member whose word was not so.
type belied struct {
	server   bool
	rank     int
	worker   star.Worker // whose gradient it is
	step     int64
	said, is float64 // |g|², or of a slice
}

// Error says who has said what, and what others have measured.
func (b *belied) Error() string {
	if b.server {
		return fmt.Sprintf("says that its slice of the gradient of worker %d, step %d, has a squared norm of %.6g, and it is %.6g", b.worker, b.step, b.said, b.is)
	}
	return fmt.Sprintf("says that its gradient of step %d has a squared norm of %.6g, and the shards hold one of %.6g", b.step, b.said, b.is)
}

// expel has a member leave.
func (l *Shards) expel(b belied) {
	l.out = append(l.out, Ready{Evict: &Eviction{Server: b.server, Rank: b.rank, Why: &b}})
}

// arbitrate settles what copies of shards do not say alike of the gradient of w. A server is wrong
// if without its word the worker's is right, or if it is alone against several that agree. Where
// that is no server or more than one, the slice counts as not finite if anybody says so, and else
// as not measured.
func (l *Shards) arbitrate(w star.Worker) {
	a := &l.states[w]
	if len(a.disputed) == 0 {
		return
	}
	own := !a.coded && (a.group == nil || len(a.group.in) == 1)
	var wrong []belied
	var whole float64 // |g|² without that word
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

// without is the squared norm of a gradient, and of a slice of it that copies do not say alike, if
// the word of a server does not count. Not ok: then others do not agree, either, or nobody has
// measured it. several: in each such slice several others agree.
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

// weigh holds the word of a worker on its gradient, which has arrived whole, against what shards have measured.
func (l *Shards) weigh(w star.Worker) {
	a := &l.states[w]
	if !l.weighs || l.shards == 0 || a.coded || a.unknown || len(a.bad) > 0 || a.group != nil && len(a.group.in) > 1 {
		return
	}
	// A gradient that was skipped is pushed as zeros, and its norm is none.
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
