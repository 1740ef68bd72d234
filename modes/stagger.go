package modes

import (
	"cmp"
	"slices"
	"time"
)

// Pushes that reach the servers' link together share it: each takes as long as all of them. One after
// the other, the last is there at the same moment, and every other one sooner. So a push waits while
// the link is predicted to be busy with others, and never longer: whatever waits, the link
// works. With pushes of one size the k-th is then complete no later than without, for every k, so that no
// barrier fires later, and those of x-order and of asynchronous modes sooner. Where everybody waits for
// everybody nobody gains but by a link that is used more evenly, and a wrong prediction could cost:
// there the last one begins at once, and all are complete at the same moment as without.
//
// (Ours. What the order of service changes and what it does not: L. Kleinrock, Queueing Systems II,
// 1976, chapter 4.)

// Ready is a worker whose push is to be fitted in.
type Ready struct {
	At time.Duration // when it will have computed its gradient

	// Last says that its push must not wait: everybody waits for it.
	Last bool
}

// Stagger says how long each of ws waits with its push, of which one takes so long if it has the link
// for itself, beside those of others that begin at the times of begun. Whoever is ready first goes
// first. If one of the others begins behind the first of ws, nobody waits: that one cannot be told to wait any
// more, and would take from who waited for others already.
func Stagger(took time.Duration, begun []time.Duration, ws []Ready) []time.Duration {
	delays := make([]time.Duration, len(ws))
	order := make([]int, len(ws))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ws[a].At, ws[b].At) })
	if len(ws) == 0 || len(begun) > 0 && slices.Max(begun) > ws[order[0]].At {
		return delays
	}
	begun = slices.Clone(begun)
	slices.Sort(begun)
	for _, i := range order {
		at := ws[i].At
		if !ws[i].Last {
			var free time.Duration // when what has begun is through
			for _, b := range begun {
				if b > at {
					break
				}
				free = max(free, b) + took
				at = max(at, free)
			}
		}
		delays[i] = at - ws[i].At
		k, _ := slices.BinarySearch(begun, at)
		begun = slices.Insert(begun, k, at)
	}
	return delays
}
