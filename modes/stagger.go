package modes

import (
	"cmp"
	"slices"
	"time"
)

// Pushes that reach the servers' link at the same time share it: each takes as long as all of them
// together. One after the other, the last one ends at the same time, and all others end sooner. So a push
// waits while the link is predicted to be busy with others, and never longer: the link is never idle while
// a push waits. With pushes of one size the k-th is then complete no later than without waits, for every k.
// So no barrier fires later, and those of x-order and of asynchronous modes fire sooner. Where all workers
// wait for all, the only gain is a more even use of the link, and a wrong prediction could cost time:
// there the last push begins at once, and all are complete at the same time as without.
//
// (Our own. For the effect of the order of service: L. Kleinrock, Queueing Systems II, 1976, chapter 4.)

// Ready is a worker with a push to be scheduled.
type Ready struct {
	At time.Duration // predicted end of its computation

	// Last: its push must not wait, because all workers wait for it.
	Last bool
}

// Stagger returns how long the push of each of ws waits. A push alone on the link takes took, and pushes of
// other workers begin at the times of begun. Pushes go in the order of Ready.At. If one of the others
// begins after the first of ws, no push waits: the other cannot be delayed any more, and would take the link
// from a worker that has already waited.
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
	// begun is the times at which pushes begin, in order; each push that is scheduled is added to it.
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
