package watch

import (
	"math"
	"testing"
	"time"

	"star"
)

// recalled is a history of three ranks that compute 40 ms, where rank 2 takes longer by more. The exchange of the last
// rank takes last(step).
func recalled(steps int, more time.Duration, last func(step int) time.Duration) *history {
	h := &history{n: 3, batch: 16}
	for s := range steps {
		records := make([]star.Record, 3)
		for w := range records {
			records[w] = star.Record{Worker: star.Worker(w), Compute: 40 * time.Millisecond, Wait: last(s) + more, Samples: 16}
		}
		records[2].Compute, records[2].Wait = records[2].Compute+more, last(s)
		h.add(records)
	}
	return h
}

// What a host makes of an exchange now and then is not what it takes in STAR, and is saved.
func TestSavingsOfExchanges(t *testing.T) {
	always := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	busy := func(s int) time.Duration {
		if s%5 == 0 {
			return 2 * time.Millisecond
		}
		return 22 * time.Millisecond
	}
	for _, x := range []struct {
		name     string
		h        *history
		of       string
		from, to float64 // of the time
	}{
		{"even, quiet", recalled(100, 0, always(2*time.Millisecond)), "asgd", -0.1, 0.02},
		{"even, exchanges that are always long", recalled(100, 0, always(22*time.Millisecond)), "asgd", -0.1, 0.02},
		{"even, exchanges that are long on a busy host", recalled(100, 0, busy), "asgd", 0.2, 0.28}, // 16 ms of 58
		{"one slow, quiet", recalled(100, 40*time.Millisecond, always(2*time.Millisecond)), "asgd", 0.3, 0.4},
		{"one slow, busy", recalled(100, 40*time.Millisecond, busy), "asgd", 0.4, 0.5},
	} {
		ps := x.h.since(0)
		g := x.h.gain(x.h.observed(ps, false), x.h.observed(ps, true), x.of, len(ps), 48)
		if math.IsInf(g, 0) || g < x.from || g > x.to {
			t.Errorf("%s: %s saves %.3f, want %.2f to %.2f", x.name, x.of, g, x.from, x.to)
		}
	}
	if s := recalled(100, 0, always(2*time.Millisecond)).savings(0); s != nothing {
		t.Errorf("of an even job it says %q", s)
	}
}

// At the end of a job without a slow rank there is nothing that STAR would save.
func TestSavingsWithoutAnybodySlow(t *testing.T) {
	j := newJob(t, 3)
	for s := range int64(100) {
		for r := range 3 {
			took := 0.042
			if s%5 > 0 {
				took = 0.062
			}
			j.head.Take(Row{Kind: "step", Rank: r, PID: 100 + r, Host: "node-a", Step: s, Took: took, Wait: took - 0.04, Samples: 32}, time.Duration(s)*70*time.Millisecond+time.Duration(r))
		}
	}
	j.head.End(10*time.Second, "")
	j.says("100 steps in", "; no rank was slower than the others: STAR would save nothing")
}
