package auto

import "time"

const (
	dearest = 12 // rounds that it may cost not to return to SSGD

	equal = 0.01 // costs that differ by no more are as good as the same, and SSGD is the simplest plan
)

// homing is the way back to SSGD, and what leaving it has cost.
type homing struct {
	since   time.Duration // since when SSGD is wanted while another plan is in force; 0: it is not
	counted time.Duration // up to which stayed is counted
	stayed  float64       // seconds that it has cost since then not to be in SSGD

	// switchCost is the seconds that were lost in SSGD before it was left, in as many rounds as it takes to see that a
	// worker is slow.
	switchCost float64

	relapses int  // returns to SSGD after which it was left again
	back     bool // SSGD is the plan in force because it was returned to
}

// early reports whether SSGD, which is wanted, should wait. A worker that was slow may be slow again, and to find that
// out would cost switchCost once more. So the plan in force stays until staying has cost as much: whatever comes, no
// more than twice is lost of what would be lost with foresight (ski rental: A. R. Karlin, M. S. Manasse, L. Rudolph,
// D. D. Sleator, Competitive Snoopy Caching, Algorithmica 1988). Where SSGD was left again before, it also waits for a
// longer dwell, until staying has cost twelve rounds.
func (h *homing) early(at, slowest, dwell time.Duration, home, present float64) bool {
	if h.since == 0 {
		h.since, h.stayed, h.counted = at, 0, at
	}
	h.stayed += (at - h.counted).Seconds() * max(1-home/present, equal)
	h.counted = at
	return h.stayed < h.switchCost || h.relapses > 0 && h.stayed < dearest*slowest.Seconds() && at-h.since < dwell<<h.relapses
}
