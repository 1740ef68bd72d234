package modes

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
)

// With groups that continue as soon as they are complete: any order of arrival, for 1 to 9 workers, does what a plain
// list does. No gradient is used twice or lost, and no worker ever waits.
func TestBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "workers")
		k := rapid.IntRange(1, 14).Draw(t, "k")
		drop := rapid.Bool().Draw(t, "drop")
		p := Batches(n, k, drop)
		if q, err := Parse(p.String(), n); err != nil || !q.Equal(p) {
			t.Fatalf("%v came back as %v, %v", p, q, err)
		}
		b := NewBarrier(p, n, 0)
		var bank []star.Worker
		version, last := int64(0), int64(0)
		basis, gone := make([]int64, n), make([]bool, n)
		want := func(got []Firing, want ...Firing) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("%v, want %v", got, want)
			}
			for i, w := range want {
				g := got[i]
				if g.Version != w.Version || g.Banked != w.Banked || !slices.Equal(g.Workers, w.Workers) || !slices.Equal(g.Dropped, w.Dropped) || !slices.Equal(g.NonBlocking, w.NonBlocking) {
					t.Fatalf("%+v, want %+v", g, w)
				}
			}
		}
		update := func(again ...star.Worker) Firing {
			version++
			last = version
			f := Firing{Version: version, Workers: slices.Clone(bank), NonBlocking: again, Banked: true}
			bank = bank[:0]
			return f
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w := star.Worker(rapid.IntRange(0, n-1).Draw(t, "w"))
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0, 1: // it goes, or comes back
				if gone[w] {
					b.Join(w)
					gone[w], basis[w] = false, version
					continue
				}
				gone[w] = true
				leave := b.Leave
				if rapid.Bool().Draw(t, "retires") {
					leave = b.Retire
				} else {
					bank = slices.DeleteFunc(bank, func(v star.Worker) bool { return v == w })
				}
				if got := leave(w); !slices.Contains(gone, false) && len(bank) > 0 {
					want(got, update())
				} else {
					want(got)
				}
			default:
				if gone[w] {
					continue
				}
				got := b.Arrive(w)
				if drop && basis[w] < last {
					want(got, Firing{Version: version, Dropped: []star.Worker{w}})
				} else if bank = append(bank, w); len(bank) >= k {
					want(got, update(w))
				} else {
					want(got, Firing{Version: version, NonBlocking: []star.Worker{w}})
				}
				basis[w] = version
				var out []star.Worker
				for v := range got[0].Released() {
					out = append(out, v)
				}
				if !slices.Equal(out, []star.Worker{w}) {
					t.Fatalf("%+v releases %v, want %d", got[0], out, w)
				}
			}
			if b.Version() != version || len(b.Waiting()) > 0 {
				t.Fatalf("version %d, want %d; %v wait", b.Version(), version, b.Waiting())
			}
		}
	})
}
