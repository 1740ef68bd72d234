package coord

import (
	"testing"

	"pgregory.net/rapid"

	"star"
)

// The last so many, in order: against a list that is cut.
func TestRecollection(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		workers := rapid.IntRange(1, 3).Draw(r, "workers")
		m := newRecollection(workers)
		var all []star.Record
		for i := range rapid.IntRange(0, 250).Draw(r, "records") {
			x := star.Record{Worker: star.Worker(i % workers), Step: int64(i)}
			m.add(&x)
			all = append(all, x)
		}
		want := all[max(0, len(all)-rememberEach*workers):]
		got := m.records()
		if len(got) != len(want) {
			r.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i].Step != want[i].Step {
				r.Fatalf("record %d is of step %d, want %d", i, got[i].Step, want[i].Step)
			}
		}
	})
}
