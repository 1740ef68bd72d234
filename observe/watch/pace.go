package watch

import (
	"star"
	"star/coord/measure"
)

// If all ranks slow down together, none is slower than the others: the job is compared with its own past.

func (h *Head) beginPace() {
	h.pace = measure.NewPace(len(h.ranks), true)
	for w, r := range h.ranks {
		h.pace.Join(star.Worker(w), r.Host)
	}
}

// comparePace prints and logs that all ranks together are slower than before, or no longer are.
func (h *Head) comparePace(r *star.Record) {
	for _, line := range h.pace.Observe(h.last, r) {
		h.log.Write(h.last, line)
		h.say(line.Says)
	}
}
