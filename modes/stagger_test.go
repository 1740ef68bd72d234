package modes

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// shared is when pushes that begin at those times are complete, in that order of completion, on a link
// that all share evenly: each alone takes one unit.
func shared(begin []float64) []float64 {
	type push struct {
		at, left float64
		on       bool
	}
	var all []push
	for _, b := range begin {
		all = append(all, push{at: b, left: 1})
	}
	var ends []float64
	now := 0.
	for len(all) > 0 {
		next := math.Inf(1) // that begins
		active := 0
		least := math.Inf(1)
		for i, p := range all {
			if all[i].on = p.at <= now; !all[i].on {
				next = min(next, p.at)
			} else {
				active++
				least = min(least, p.left)
			}
		}
		if active == 0 {
			now = next
			continue
		}
		step := min(next-now, least*float64(active))
		if now += step; now+1e-12 >= next {
			now = next // exactly
		}
		for i := range all {
			if all[i].on {
				all[i].left -= step / float64(active)
			}
		}
		all = slices.DeleteFunc(all, func(p push) bool {
			if p.left < 1e-9 {
				ends = append(ends, now)
				return true
			}
			return false
		})
	}
	return ends
}

// Whatever waits, the k-th push is complete no later than without waiting, for every k: so no barrier fires later,
// whatever its quorum. With a last one, which does not wait, that holds for the barrier of all.
func TestStaggerDelaysNoBarrier(t *testing.T) {
	const took = time.Second
	rapid.Check(t, func(t *rapid.T) {
		ready := rapid.SliceOfN(rapid.IntRange(0, 8000), 1, 12).Draw(t, "ready") // ms
		inFlight := rapid.SliceOfN(rapid.IntRange(0, 4000), 0, 3).Draw(t, "in flight")
		before := rapid.Bool().Draw(t, "with a last one")
		var plain, paced []float64
		var begun []time.Duration
		for _, ms := range inFlight {
			at := time.Duration(ms) * time.Millisecond
			begun = append(begun, at)
			plain, paced = append(plain, at.Seconds()), append(paced, at.Seconds())
		}
		var ws []Ready
		latest := slices.Max(ready)
		for _, ms := range ready {
			ws = append(ws, Ready{At: time.Duration(ms) * time.Millisecond, Last: before && ms == latest})
		}
		for i, d := range Stagger(took, begun, ws) {
			if d < 0 || ws[i].Last && d > 0 {
				t.Fatalf("worker %d waits %v", i, d)
			}
			plain = append(plain, ws[i].At.Seconds())
			paced = append(paced, (ws[i].At + d).Seconds())
		}
		without, with := shared(plain), shared(paced)
		for k := range without {
			if before && k < len(without)-1 {
				continue
			}
			if with[k] > without[k]+1e-6 {
				t.Fatalf("push %d of %d is complete at %.6f, without waiting at %.6f\nbegun at %v and at %v", k+1, len(with), with[k], without[k], paced, plain)
			}
		}
	})
}

func TestStagger(t *testing.T) {
	s := func(sec ...float64) (ws []Ready) {
		for _, v := range sec {
			ws = append(ws, Ready{At: time.Duration(v * float64(time.Second))})
		}
		return ws
	}
	last := s(1, 1, 1)
	last[2].Last = true
	for _, c := range []struct {
		name  string
		begun []time.Duration
		ws    []Ready
		want  string
	}{
		{"alone", nil, s(3), "[0s]"},
		{"out of each other's way", nil, s(3, 1, 2), "[0s 0s 0s]"},
		{"all at once", nil, s(1, 1, 1), "[0s 1s 2s]"},
		{"the last one does not wait", nil, last, "[0s 1s 0s]"},
		{"first ready, first served", nil, s(1.5, 1, 1.25), "[1.5s 0s 750ms]"},
		{"those share the link", []time.Duration{0, 500 * time.Millisecond}, s(1), "[1s]"},
		{"nobody waits if one comes later", []time.Duration{2 * time.Second, time.Second}, s(1.5, 4), "[0s 0s]"},
		{"behind what has begun", []time.Duration{time.Second, time.Second}, s(1.5, 4), "[1.5s 0s]"},
		{"before what comes later", []time.Duration{2 * time.Second}, s(1.5), "[0s]"},
	} {
		if got := fmt.Sprint(Stagger(time.Second, c.begun, c.ws)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
