package live

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// However workers come and go, no place has two at a time, places that are free are taken first, and a job's steps
// count its workers.
func TestHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewHistory()
		type worker struct {
			job, host string
			id        int
		}
		var there []worker
		at, id := 0., 0
		most := map[string]int{}
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			at += float64(rapid.IntRange(0, 3).Draw(t, "later"))
			if len(there) > 0 && rapid.Bool().Draw(t, "ends") {
				i := rapid.IntRange(0, len(there)-1).Draw(t, "who")
				h.Add(Event{At: at, Kind: KindGone, Job: there[i].job, Member: there[i].id})
				there = slices.Delete(there, i, i+1)
			} else {
				id++
				w := worker{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "job"), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "host"), id}
				there = append(there, w)
				h.Add(Event{At: at, Kind: KindAdd, Job: w.job, Host: w.host, Member: id})
				n := 0
				for _, o := range there {
					if o.host == w.host {
						n++
					}
				}
				most[w.host] = max(most[w.host], n)
			}
			for _, job := range []string{"a", "b", "c"} {
				n := 0.
				for _, w := range there {
					if w.job == job {
						n++
					}
				}
				if s := h.Steps(job); len(s) > 0 && s[len(s)-1].GPUs != n || len(s) == 0 && n > 0 {
					t.Fatalf("job %s has %v workers, and steps %v", job, n, s)
				}
			}
		}
		still := 0
		for i, a := range h.Stays {
			if a.Place >= most[a.Host] {
				t.Fatalf("place %d of %s, which never had more than %d", a.Place, a.Host, most[a.Host])
			}
			if math.IsInf(a.To, 1) {
				still++
			}
			for _, b := range h.Stays[:i] {
				if a.Host == b.Host && a.Place == b.Place && a.From < b.To && b.From < a.To {
					t.Fatalf("%+v and %+v", a, b)
				}
			}
		}
		if still != len(there) {
			t.Fatalf("%d are there, %d in the history", len(there), still)
		}
	})
}

// A long history keeps the stays that have not ended, and the newest entries.
func TestLongHistory(t *testing.T) {
	h := NewHistory()
	h.Add(Event{Kind: KindAdd, Job: "first", Host: "h", Member: 1})
	for i := range 3 * mostStays {
		h.Add(Event{At: float64(i), Kind: KindAdd, Job: "j", Host: "h", Member: i})
		h.Add(Event{At: float64(i) + .5, Kind: KindGone, Job: "j", Member: i})
		h.Add(Event{At: float64(i), Kind: KindDecide, Job: "j", Why: "so"})
	}
	if n := len(h.Stays); n < mostStays || n > 2*mostStays || h.Stays[0].Job != "first" || h.Stays[n-1].From != 3*mostStays-1 || len(h.Decided) != mostDecided {
		t.Errorf("%d stays, the first of %s, the last from %v; %d decisions", n, h.Stays[0].Job, h.Stays[n-1].From, len(h.Decided))
	}
}
