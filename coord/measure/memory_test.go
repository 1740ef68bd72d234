package measure

import (
	"testing"

	"pgregory.net/rapid"

	"star"
)

// The memory has the last records, in order: compared with a list that is cut.
func TestMemoryKeepsTheLast(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		workers := rapid.IntRange(1, 3).Draw(r, "workers")
		m := NewMemory(workers)
		var all []star.Record
		for i := range rapid.IntRange(0, 250).Draw(r, "records") {
			x := star.Record{Worker: star.Worker(i % workers), Step: int64(i)}
			m.Add(&x)
			all = append(all, x)
		}
		want := all[max(0, len(all)-rememberEach*workers):]
		got := m.Records()
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

// Of the records of the job before, those of ranks that this job has are kept, with times before its beginning.
func TestRecall(t *testing.T) {
	m := NewMemory(2)
	before := []star.Record{{Worker: 0, At: 5}, {Worker: 2, At: 90}, {Worker: 1, At: 8}, {Worker: -1, At: 90}}
	got := m.Recall(before, 2)
	if len(got) != 2 || got[0].At != -3 || got[1].At != 0 || got[1].Worker != 1 || before[0].At != 5 {
		t.Errorf("%+v", got)
	}
	if kept := m.Records(); len(kept) != 2 || kept[0].At != -3 {
		t.Errorf("kept %+v", kept)
	}
	if got := m.Recall(before[1:2], 2); got != nil {
		t.Errorf("of other ranks: %+v", got)
	}
}
