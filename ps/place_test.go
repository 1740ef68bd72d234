package ps

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<40).Draw(t, "n")
		k := rapid.IntRange(1, int(min(n, 1024))).Draw(t, "k")
		rs, err := Split(n, k)
		if err != nil {
			t.Fatal(err)
		}
		if len(rs) != k {
			t.Fatalf("%d ranges, want %d", len(rs), k)
		}
		at := int64(0)
		for i, r := range rs {
			if r.From != at {
				t.Fatalf("range %d begins at %d, want %d", i, r.From, at)
			}
			if d := r.To - r.From - n/int64(k); d < 0 || d > 1 {
				t.Fatalf("range %d has %d elements of %d/%d", i, r.To-r.From, n, k)
			}
			at = r.To
		}
		if at != n {
			t.Fatalf("ranges end at %d, want %d", at, n)
		}
	})
}

func TestSplitRejects(t *testing.T) {
	for _, c := range []struct {
		n int64
		k int
	}{{0, 1}, {3, 4}, {10, 0}, {10, -1}} {
		if rs, err := Split(c.n, c.k); err == nil {
			t.Errorf("Split(%d, %d) = %v, want an error", c.n, c.k, rs)
		}
	}
}
