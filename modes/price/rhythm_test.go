package price

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star/modes"
)

// Plans that the Barrier is run for have the pace of a run that is much longer.
func TestPaceIsOfTheLongRun(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 3 {
		n := 4 + r.IntN(5)
		var times []time.Duration
		for range n {
			times = append(times, time.Duration(50+r.IntN(1951))*time.Millisecond)
		}
		for _, mode := range []string{
			"backup=1", "ssp=2", "kbatch=3", "kbatch-async=2", fmt.Sprintf("kbatch=%d", n), fmt.Sprintf("groups=0-%d:2+%d", n-2, n-1), fmt.Sprintf("groups=0-2:2/3-%d:1", n-1),
		} {
			p, err := modes.Parse(mode, n)
			if err != nil {
				t.Fatal(err)
			}
			long, err := Simulate(p, times, 10_000, 50_000)
			if err != nil {
				t.Fatal(err)
			}
			pc := pace(t, p, times)
			if !near(pc.Interval.Seconds(), long.Interval.Seconds(), .005) || !near(pc.Gradients, long.Gradients, .005) || math.Abs(pc.Staleness-long.Staleness) > .05 ||
				!near(pc.Spread, long.Spread, .005) || math.Abs(pc.Dropped-long.Dropped) > .005 {
				t.Errorf("%v, %v: %+v, in the long run %+v", mode, times, pc, long)
			}
			for w := range pc.Shares {
				if math.Abs(pc.Shares[w]-long.Shares[w]) > .005 {
					t.Errorf("%v, %v: worker %d has %.4f of the gradients, %.4f in the long run", mode, times, w, pc.Shares[w], long.Shares[w])
				}
			}
		}
	}
}

// Times as long as may be fit; what does not is an error that says so.
func TestFarTimes(t *testing.T) {
	times := []time.Duration{1, MaxTime, MaxTime - 1, MaxTime / 3}
	for _, mode := range []string{"x=2", "x=3", "ssgd", "backup=1", "kbatch=3", "groups=0-2:2+3"} {
		p, err := modes.Parse(mode, 4)
		if err != nil {
			t.Fatal(err)
		}
		if pc := pace(t, p, times); pc.Interval <= 0 || pc.Interval > MaxTime {
			t.Errorf("%s: %+v", mode, pc)
		}
		if _, err := Of(p, Forecast{Times: times, Batch: 1}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if _, err := Candidates(Forecast{Times: times, Batch: 1}); err != nil {
		t.Error(err)
	}
	for _, x := range []struct {
		skip, updates int
		want          string
	}{
		{0, 1100, "after 1065 updates 2558399h59m59.999999999s have passed, which is the limit"},
		{1100, 1, "have passed, which is the limit"},
		{0, 2e9, "simulate 2000000000 updates after 0: at most 1000000000 in all"},
		{math.MaxInt, math.MaxInt, "at most 1000000000 in all"},
		{-1, 1, "at least one after at least none"},
	} {
		_, err := Simulate(modes.SSGD(4), times, x.skip, x.updates)
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%d updates after %d: %v, want %q", x.updates, x.skip, err, x.want)
		}
	}
}
