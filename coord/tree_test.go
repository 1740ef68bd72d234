package coord

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/transport/wire"
)

// What an automatic tree goes by: the computation, not the transfers; of the slowest where
// all wait for all; and what each worker has left of the rate at which it can send.
func TestTreeLoad(t *testing.T) {
	for _, c := range []struct {
		mode  string
		cycle time.Duration
	}{
		{"ssgd", 300 * time.Millisecond},
		{"x=2", 163636363}, // 3 / (1/0.1 + 1/0.2 + 1/0.3) s
	} {
		p, err := modes.Parse(c.mode, 3)
		if err != nil {
			t.Fatal(err)
		}
		co := &Coordinator{arch: servers{}, cfg: Config{Workers: 3, Tree: modes.TreeRule{Capacity: 1}}, membership: membership{hello: wire.Hello{Params: 1000}},
			applying: applying{engine: engine.NewShards(engine.Config{Plan: p, Workers: 3, Shards: 1, Batch: 1, Limit: 1, Reachable: []bool{true, true, false}})}}
		for w := range 3 {
			co.workers = append(co.workers, &peer{rank: w, hello: wire.Hello{Host: fmt.Sprint("host", w)}, at: fmt.Sprint("host", w)})
		}
		a := newAutoTree(modes.TreeRule{Capacity: 1}, 3)
		for i := range enough {
			for w := range 3 {
				if _, ok := co.treeLoad(a); ok {
					t.Fatalf("known after %d records of worker %d", i, w)
				}
				a.observe(star.Record{
					Worker: star.Worker(w), Compute: time.Duration(w+1) * 90 * time.Millisecond, Load: time.Duration(w+1) * 10 * time.Millisecond,
					Push: 10 * time.Millisecond, Wait: time.Second, NetOut: float64(w+1) * 4000, NetIn: 4000,
				})
			}
		}
		l, ok := co.treeLoad(a)
		if d := l.Cycle - c.cycle; !ok || d < -time.Microsecond || d > time.Microsecond || l.Bytes != 4000 || l.Others != 1 || !slices.Equal(l.Able, []bool{true, true, false}) {
			t.Errorf("%s: %+v, %v; want a cycle of %v", c.mode, l, ok, c.cycle)
		}
		for w, rate := range []float64{4e5, 8e5, 12e5} {
			use := (float64(w+1)*4000 + 4000) / (1.01 + float64(w+1)*0.1)
			if d := l.Spare[w] - (rate - use); d < -1 || d > 1 {
				t.Errorf("%s: worker %d has %v to spare, want %v", c.mode, w, l.Spare[w], rate-use)
			}
		}
		co.workers[2] = nil // gone
		if l, ok := co.treeLoad(a); !ok || l.Others != 0 || l.Hosts[2] != "" {
			t.Errorf("%s, after a death: %+v, %v", c.mode, l, ok)
		}
	}
}

// What pushes got of a link is not what it carries: most of a short push is waiting. The kernel of a worker knows better; of a worker beside the
// shards it knows nothing of a link.
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
		co := &Coordinator{arch: servers{}, cfg: Config{Workers: 3}, applying: applying{auto: newAutoTree(modes.TreeRule{}, 3)}, membership: membership{servers: []*peer{{at: "host0"}}}, placing: placing{owner: []int{0}}}
		for w := range 3 {
			co.workers = append(co.workers, &peer{rank: w, at: fmt.Sprint("host", w)})
			r := star.Record{Worker: star.Worker(w)}
			if c.rates[w] > 0 {
				r.Telemetry.Set(star.LinkRate, c.rates[w])
			}
			co.auto.observe(r)
		}
		for i := range 4 * metered {
			at := time.Duration(i) * time.Second
			co.meter.add(span{at, at + time.Millisecond, 1e5}, 3)
		}
		if !co.capacity() || math.Abs(co.auto.keeper.Rule.Capacity/c.want-1) > 1e-6 {
			t.Errorf("kernels say %v: the links carry %g, want %g", c.rates, co.auto.keeper.Rule.Capacity, c.want)
		}
	}
}

// A job that waits for a tree says so in the words that it was given, before there is one and when there is none any more.
func TestWordsOfAutomaticTrees(t *testing.T) {
	for given, want := range map[string][2]string{
		"tree=auto":      {"tree=auto", "ssgd tree=0(1-3)"},
		"ssgd tree=auto": {"ssgd tree=auto", "ssgd tree=0(1-3)"},
		"":               {"ssgd", "ssgd tree=0(1-3)"}, // a pilot's
		"ssgd":           {"ssgd", "ssgd tree=0(1-3)"}, // as the answer to star ctl mode says it, before the tree is given up
		"tree=0(1,2,3)":  {"ssgd", "tree=0(1,2,3)"},
	} {
		c := &Coordinator{arch: servers{}, cfg: Config{Workers: 4}, piloting: piloting{given: given}, applying: applying{auto: newAutoTree(modes.TreeRule{}, 4)}}
		tree, err := modes.Parse("tree=0(1,2,3)", 4)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{c.words(modes.SSGD(4)), c.words(tree)}; got != want {
			t.Errorf("given %q: %q, want %q", given, got, want)
		}
	}
}
