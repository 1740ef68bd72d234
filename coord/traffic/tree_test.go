package traffic

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"star"
	"star/modes"
)

// three are workers on three hosts.
func three() (ms []Member) {
	for w := range 3 {
		ms = append(ms, Member{Worker: w, Host: fmt.Sprint("host", w), Reachable: true})
	}
	return ms
}

// An automatic tree depends on the computing time, not the transfers: the slowest worker's if all wait for all; and on
// the rest of the rate at which each worker can send.
func TestTreeLoad(t *testing.T) {
	for _, c := range []struct {
		together bool
		cycle    time.Duration
	}{
		{true, 300 * time.Millisecond},
		{false, 163636363}, // 3 / (1/0.1 + 1/0.2 + 1/0.3) s
	} {
		a := NewTree(modes.TreeRule{Capacity: 1}, 3, nil)
		members := three()
		members[2].Reachable = false
		for i := range enough {
			for w := range 3 {
				if _, ok := a.load(members, 4000, c.together); ok {
					t.Fatalf("known after %d records of worker %d", i, w)
				}
				a.Observe(&star.Record{
					Worker: star.Worker(w), Compute: time.Duration(w+1) * 90 * time.Millisecond, Load: time.Duration(w+1) * 10 * time.Millisecond,
					Push: 10 * time.Millisecond, Wait: time.Second, NetOut: float64(w+1) * 4000, NetIn: 4000,
				})
			}
		}
		l, ok := a.load(members, 4000, c.together)
		if d := l.Cycle - c.cycle; !ok || d < -time.Microsecond || d > time.Microsecond || l.Bytes != 4000 || l.Others != 1 || !slices.Equal(l.Able, []bool{true, true, false}) {
			t.Errorf("together %v: %+v, %v; want a cycle of %v", c.together, l, ok, c.cycle)
		}
		for w, rate := range []float64{4e5, 8e5, 12e5} {
			use := (float64(w+1)*4000 + 4000) / (1.01 + float64(w+1)*0.1)
			if d := l.Spare[w] - (rate - use); d < -1 || d > 1 {
				t.Errorf("together %v: worker %d has %v to spare, want %v", c.together, w, l.Spare[w], rate-use)
			}
		}
		if l, ok := a.load(members[:2], 4000, c.together); !ok || l.Others != 0 || l.Hosts[2] != "" {
			t.Errorf("together %v, after a death: %+v, %v", c.together, l, ok)
		}
	}
}

// The rate of pushes is not the capacity of a link: a short push is mostly waiting. The estimate of a worker's kernel
// is better; for a worker on the shards' host there is no link.
func TestTreeCapacity(t *testing.T) {
	for _, c := range []struct {
		rates []float64 // by worker, as the kernels say; 0: nothing
		want  float64
	}{
		{[]float64{0, 0, 0}, 2 * 100e6},
		{[]float64{0, 3e9, 1e9}, 2 * 3e9},
		{[]float64{0, 20e6, 30e6}, 2 * 100e6},
		{[]float64{9e9, 0, 0}, 2 * 100e6},
	} {
		a := NewTree(modes.TreeRule{}, 3, nil)
		members := three()
		members[0].Beside = true
		for w := range 3 {
			r := star.Record{Worker: star.Worker(w)}
			if c.rates[w] > 0 {
				r.Telemetry.Set(star.LinkRate, c.rates[w])
			}
			a.Observe(&r)
		}
		way := func(workers int) float64 {
			if workers != 2 {
				t.Errorf("the rate of %d workers is asked for, want 2", workers)
			}
			return 100e6
		}
		if !a.capacity(members, way) || math.Abs(a.keeper.Rule.Capacity/c.want-1) > 1e-6 {
			t.Errorf("kernels say %v: the links carry %g, want %g", c.rates, a.keeper.Rule.Capacity, c.want)
		}
		if a := NewTree(modes.TreeRule{}, 3, nil); a.capacity(members, func(int) float64 { return 0 }) {
			t.Error("the capacity is known without a measurement")
		}
	}
}

// A tree is built when the workers need more than the links carry without one, and not before all are measured; a job
// without trees has none.
func TestTreeFollowsTheLoad(t *testing.T) {
	a := NewTree(modes.TreeRule{Capacity: 1e4}, 3, nil)
	plan := modes.SSGD(3)
	none := func(int) float64 { return 0 }
	why := ""
	for i := range 600 {
		at := time.Duration(i) * time.Second
		for w := range 3 {
			a.Observe(&star.Record{Worker: star.Worker(w), Compute: 100 * time.Millisecond, Push: time.Millisecond, NetOut: 4000, NetIn: 4000})
		}
		if _, why = a.Look(at, int64(1000*i), int64(100*i), plan, three(), 4000, none); why != "" {
			break
		}
	}
	if why == "" || a.Parents() == nil {
		t.Fatalf("no tree: %q, %v", why, a.Parents())
	}
	var off Tree
	off.Observe(&star.Record{Worker: 2})
	if off.Enabled() || off.Parents() != nil {
		t.Error("the zero value makes trees")
	}
	if b := NewTree(modes.TreeRule{}, 3, a.Parents()); !slices.Equal(b.Parents(), a.Parents()) {
		t.Error("a coordinator that takes over does not go on with the tree")
	}
}
