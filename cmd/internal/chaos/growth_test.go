package chaos

import (
	"testing"
	"time"
)

func TestQuarters(t *testing.T) {
	for _, c := range []struct {
		xs   []int64
		most int
		want [2]int64
	}{
		// four of coming up, then 100 5 6 … 1 8 7
		{[]int64{9, 9, 9, 9, 100, 5, 6, 50, 60, 70, 80, 90, 95, 1, 8, 7}, 99, [2]int64{6, 7}},
		{[]int64{9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 1, [2]int64{2, 11}}, // one of coming up
		{[]int64{3, 1, 1, 7}, 0, [2]int64{3, 7}},
	} {
		if got := Quarters(c.xs, c.most); got != c.want {
			t.Errorf("%v: %v, want %v", c.xs, got, c.want)
		}
	}
}

func TestFlat(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name string
		h    Holding
		want string // what is broken; empty: nothing
	}{
		{"all stays", Holding{"ps 0", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 20}, [2]int64{50, 50}}, ""},
		{"less at the end", Holding{"ps 0", time.Hour, [2]int64{40 * mib, 20 * mib}, [2]int64{20, 2}, [2]int64{50, 5}}, ""},
		{"5 % more memory", Holding{"ps 0", time.Hour, [2]int64{100 * mib, 105 * mib}, [2]int64{20, 20}, [2]int64{50, 50}}, ""},
		{"6 % more memory", Holding{"ps 0", time.Hour, [2]int64{100 * mib, 106 * mib}, [2]int64{20, 20}, [2]int64{50, 50}}, "ps 0: memory from 100.0 to 106.0 MiB in 1h0m0s"},
		{"an old process has no slack", Holding{"ps 0", 10 * time.Minute, [2]int64{40 * mib, 43 * mib}, [2]int64{20, 20}, [2]int64{50, 50}}, "ps 0: memory from 40.0 to 43.0 MiB in 10m0s"},
		{"a young one has", Holding{"ps 0", time.Minute, [2]int64{40 * mib, 58 * mib}, [2]int64{20, 20}, [2]int64{50, 50}}, ""},
		{"but not without end", Holding{"ps 0", time.Minute, [2]int64{40 * mib, 58*mib + 1}, [2]int64{20, 20}, [2]int64{50, 50}}, "ps 0: memory from 40.0 to 58.0 MiB in 1m0s"},
		{"two workers come", Holding{"ps 0", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 26}, [2]int64{50, 66}}, ""},
		{"descriptors are left", Holding{"ps 1", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 27}, [2]int64{50, 50}}, "ps 1: from 20 to 27 descriptors in 1h0m0s"},
		{"goroutines are left", Holding{"worker 1", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 20}, [2]int64{50, 67}}, "worker 1: from 50 to 67 goroutines in 1h0m0s"},
		{"it said nothing at first", Holding{"ps 0", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 20}, [2]int64{0, 50}}, "ps 0 does not say how many goroutines it has"},
		{"it said nothing at last", Holding{"ps 0", time.Hour, [2]int64{40 * mib, 40 * mib}, [2]int64{20, 20}, [2]int64{50, 0}}, "ps 0 does not say how many goroutines it has"},
	} {
		fine := Holding{"fine", time.Minute, [2]int64{mib, mib}, [2]int64{2, 2}, [2]int64{5, 5}}
		got := Flat([]Holding{fine, c.h}, 2)
		if got.OK != (c.want == "") || c.want != "" && got.Detail != c.want {
			t.Errorf("%s: %v, %s", c.name, got.OK, got.Detail)
		}
	}
	leaks := Holding{"leaks", time.Hour, [2]int64{mib, 2 * mib}, [2]int64{2, 200}, [2]int64{5, 500}}
	if got := Flat([]Holding{leaks, leaks}, 2); got.OK || got.Detail != "leaks: memory from 1.0 to 2.0 MiB in 1h0m0s (and 5 more)" {
		t.Error(got)
	}
	if got := Flat(nil, 2); !got.OK || got.Detail != "no process lived long enough to tell" {
		t.Error(got)
	}
	old := Holding{"old", time.Hour, [2]int64{100 * mib, 102 * mib}, [2]int64{2, 2}, [2]int64{5, 5}}
	if got := Flat([]Holding{old, {"young", time.Minute, [2]int64{mib, mib}, [2]int64{2, 2}, [2]int64{5, 5}}}, 2); got.Detail != "2 processes, the oldest lived for 1h0m0s; memory grew by 2.0 % at most" {
		t.Error(got)
	}
}
