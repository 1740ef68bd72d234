package allreduce

import (
	"testing"
	"time"
)

// What a rank has learned from waits that took so long. Where a wait exceeds its patience the rank has slept.
func TestPatience(t *testing.T) {
	const us = time.Microsecond
	repeat := func(n int, d time.Duration) (ds []time.Duration) {
		for range n {
			ds = append(ds, d)
		}
		return ds
	}
	for _, c := range []struct {
		name  string
		waits []time.Duration
		next  time.Duration // patience at the end, of the waits between those that are tried in full
	}{
		{"what comes at once keeps it", repeat(50, us), 400 * us},
		{"what never comes in time uses it up", repeat(70, time.Second), 0},
		{"one look in full that pays is enough", append(repeat(71, time.Second), 100*us), 200 * us},
		{"and it stays with who needs 100 µs to wake up", append(repeat(71, time.Second), repeat(8, 100*us)...), 400 * us},
		{"never more than the most", append(repeat(71, time.Second), 399*us), 400 * us},
		{"one that is late halves it", append(repeat(8, us), time.Second), 200 * us},
	} {
		p := patience{most: 400 * us, now: 400 * us}
		for _, d := range c.waits {
			if d <= p.next() {
				p.paid(d)
			} else {
				p.failed()
			}
		}
		if p.now != c.next {
			t.Errorf("%s: %v, want %v", c.name, p.now, c.next)
		}
	}
}

func TestCrowdedPatience(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		ranks, processors int
		want              time.Duration
	}{{3, 2, 200 * us}, {4, 2, 200 * us}, {5, 2, 600 * us}, {8, 2, 1200 * us}, {2, 1, 200 * us}, {64, 2, 2000 * us}} {
		if got := crowdedPatience(c.ranks, c.processors); got != c.want {
			t.Errorf("%d ranks on %d processors: %v, want %v", c.ranks, c.processors, got, c.want)
		}
	}
}
