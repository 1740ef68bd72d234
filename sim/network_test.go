package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/allreduce"
	"star/modes"
	"star/train/optim"
)

// Rates are feasible, and max-min fair: an activity that has less than it could use shares a full resource, and no
// other activity there has more.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f fluid
		for range rapid.IntRange(1, 4).Draw(t, "resources") {
			f.resource(float64(rapid.IntRange(1, 20).Draw(t, "capacity")))
		}
		for range rapid.IntRange(1, 8).Draw(t, "activities") {
			a := &activity{left: 1, most: math.Inf(1), weight: float64(rapid.IntRange(1, 4).Draw(t, "weight"))}
			for r := range f.capacity {
				if rapid.Bool().Draw(t, "uses") {
					a.uses = append(a.uses, r)
				}
			}
			if len(a.uses) == 0 || rapid.Bool().Draw(t, "capped") {
				a.most = float64(rapid.IntRange(1, 10).Draw(t, "most"))
			}
			f.active = append(f.active, a)
		}
		f.share()
		used := make([]float64, len(f.capacity))
		for _, a := range f.active {
			if !(a.rate > 0) || a.rate > a.most*(1+1e-9) {
				t.Fatalf("rate %v of at most %v", a.rate, a.most)
			}
			for _, r := range a.uses {
				used[r] += a.rate
			}
		}
		for r, u := range used {
			if u > f.capacity[r]*(1+1e-9) {
				t.Fatalf("resource %d: %v of %v", r, u, f.capacity[r])
			}
		}
		for i, a := range f.active {
			limited := a.rate > a.most*(1-1e-9)
			for _, r := range a.uses {
				full := used[r] > f.capacity[r]*(1-1e-9)
				for _, b := range f.active {
					full = full && (!slices.Contains(b.uses, r) || b.rate/b.weight <= a.rate/a.weight*(1+1e-9))
				}
				limited = limited || full
			}
			if !limited {
				t.Fatalf("activity %d has %v and could have more: %v of %v used", i, a.rate, used, f.capacity)
			}
		}
	})
}

// apart has a host for every worker, and one for the servers, with the given links.
func apart(workers, servers int, bandwidth float64, latency time.Duration) *Network {
	n := &Network{}
	for w := range workers {
		n.Hosts = append(n.Hosts, Host{Workers: []star.Worker{star.Worker(w)}, Bandwidth: bandwidth, Latency: latency})
	}
	if servers > 0 {
		n.Hosts = append(n.Hosts, Host{Servers: servers, Bandwidth: bandwidth, Latency: latency})
	}
	return n
}

// What an iteration takes, worked out by hand. Gradients are 1 MB, links carry 100 MB/s, computing takes 100 ms.
func TestNetworkTimes(t *testing.T) {
	const mb = 1_000_000
	slow := apart(2, 1, 100*mb, 0)
	slow.Update = 5e-9 // 5 ms for a gradient
	squeezed := apart(1, 1, 100*mb, 0)
	squeezed.Squeeze = []Squeeze{{Host: 0, From: 0, To: 10 * ms, Factor: 2}}
	core := apart(2, 1, 100*mb, 0)
	core.Core = 10 * mb
	for name, test := range map[string]struct {
		net     *Network
		workers int
		updates float64
		want    time.Duration // until the last of the given number of updates
	}{
		"one worker pulls, computes, pushes":                    {apart(1, 1, 100*mb, ms), 1, 1, (12 + 100 + 12) * ms},
		"the next one needs word to and from the shard":         {apart(1, 1, 100*mb, ms), 1, 2, 2 * (12 + 100 + 12) * ms},
		"two share the server's link":                           {apart(2, 1, 100*mb, 0), 2, 1, (20 + 100 + 20) * ms},
		"two shards on one host are no quicker":                 {apart(2, 2, 100*mb, 0), 2, 1, (20 + 100 + 20) * ms},
		"two shards on two hosts are":                           {&Network{Hosts: []Host{{Workers: []star.Worker{0, 1}}, {Servers: 1, Bandwidth: 100 * mb}, {Servers: 1, Bandwidth: 100 * mb}}}, 2, 1, (10 + 100 + 10) * ms},
		"a shard hears from the coordinator, and the other way": {&Network{Hosts: []Host{{Workers: []star.Worker{0}}, {Servers: 1}, {Servers: 1, Latency: 5 * ms}}}, 1, 1, (5 + 5 + 100 + 5 + 5) * ms},
		"nothing crosses a link within a host":                  {&Network{Hosts: []Host{{Workers: []star.Worker{0, 1}, Servers: 1, Bandwidth: 1}}}, 2, 3, 300 * ms},
		"the shard takes its time, once for every gradient":     {slow, 2, 2, (20+100+20)*ms + (10+20+100+20)*ms},
		"two on one processor":                                  {&Network{Hosts: []Host{{Workers: []star.Worker{0, 1}, Servers: 1, CPUs: 1}}}, 2, 1, 200 * ms},
		"two on one of which others want as much":               {&Network{Hosts: []Host{{Workers: []star.Worker{0}, Servers: 1, CPUs: 1, Others: 1}}}, 1, 1, 200 * ms},
		"two of two threads on three processors":                {&Network{Hosts: []Host{{Workers: []star.Worker{0, 1}, Servers: 1, CPUs: 3}}, Threads: 2}, 2, 3, 400 * ms},
		"somebody else uses half of the link for 10 ms":         {squeezed, 1, 1, (15 + 100 + 10) * ms},
		"the middle of the network is narrower than its ends":   {core, 2, 1, (200 + 100 + 200) * ms},
	} {
		times := Steady{Iteration: slices.Repeat([]time.Duration{100 * ms}, test.workers)}
		r, err := Run(Config{Times: times, Learner: &counter{}, Batch: 4, Network: test.net, Bytes: mb, Target: test.updates})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := r.Time - test.want; d < 0 || d > time.Microsecond {
			t.Errorf("%s: %v, want %v", name, r.Time, test.want)
		}
	}
}

// A shard makes one update after the other, in their order, and sends when it is through; a worker that has left
// meanwhile gets nothing.
func TestShardsQueue(t *testing.T) {
	for name, test := range map[string]struct {
		servers  int
		gone     []Failure
		order    []star.Worker
		arrivals []time.Duration
	}{
		// Gradients arrive at 100, 101 and 102 ms, and their updates take 50 ms each: at 150, 200 and 250 ms the
		// workers begin again.
		"three at once": {1, nil, []star.Worker{0, 1, 2, 0, 1, 2, 0, 1, 2}, []time.Duration{100, 101, 102, 250, 301, 352, 400, 452, 504}},
		// Each of two shards has half as much to do, beside the other.
		"two shards": {2, nil, []star.Worker{0, 1, 2, 0, 1, 2}, []time.Duration{100, 101, 102, 225, 251, 277}},
		// Worker 1 leaves in the middle of its update, and is back before that is made: the parameters that it gets are those
		// after the third, at 250 ms.
		"one leaves": {1, []Failure{{Worker: 1, At: 160 * ms, Back: 170 * ms}}, []star.Worker{0, 1, 2, 0, 1, 2, 0}, []time.Duration{100, 101, 102, 250, 351, 352, 400}},
	} {
		l := &told{}
		pilot := &when{}
		net := apart(3, test.servers, 0, 0)
		net.Update = 50e-9
		_, err := Run(Config{Times: steady(100*ms, 101*ms, 102*ms), Plan: modes.ASGD(3), Learner: l, Pilot: pilot, Batch: 4, Network: net, Bytes: 1_000_000,
			Failures: test.gone, Target: float64(len(test.order))})
		if err != nil {
			t.Fatal(err)
		}
		var order []star.Worker
		for _, g := range l.applied {
			order = append(order, g.Worker)
		}
		late := func(at, want time.Duration) bool { return at < want || at > want+time.Microsecond }
		for i := range test.arrivals {
			if late(pilot.at[i], test.arrivals[i]*ms) || order[i] != test.order[i] {
				t.Errorf("%s: updates of %v at %v, want %v at %v", name, order, pilot.at, test.order, test.arrivals)
				break
			}
		}
	}
}

// when notes when updates are made.
type when struct {
	Script
	at []time.Duration
}

func (p *when) Fired(at time.Duration, _ int64, _ []Gradient, _ Outcome) { p.at = append(p.at, at) }

// A network that limits nothing changes nothing, whatever runs on it.
func TestIdleNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(t, "n")
		times := make([]time.Duration, n)
		for i := range times {
			times[i] = time.Duration(rapid.IntRange(50_000, 400_000).Draw(t, "µs")) * time.Microsecond
		}
		method := rapid.SampledFrom([]string{"ssgd", "asgd", "x=2", "backup=1", "ssp=2", "lgc:blocks=4,k=2", "dropcompute:micro=4,cap=90ms", "local-sgd:steps=3", "lb-bsp:predictor=last", "auto"}).Draw(t, "method")
		fails := rapid.Bool().Draw(t, "fails")
		run := func(net *Network) Result {
			c := Config{Times: Varied{Times: Steady{Iteration: times, Fixed: 0.2}, Sigma: 0.2, Seed: 7}, Learner: NewQuadratic(4, 5, 0.1, 0.1, 1), Batch: 16, Latency: ms,
				Limit: 3 * time.Second, Network: net, Bytes: 1000}
			if fails {
				c.Failures = []Failure{{Worker: 0, At: 1234567 * time.Microsecond, Back: 2345678 * time.Microsecond}}
			}
			if err := c.Use(method, optim.Config{}); err != nil {
				t.Fatal(err)
			}
			r, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		a, b := run(nil), run(apart(n, 2, 0, 0))
		onTheWay := n // at the end, one transfer of each worker
		if fails {
			onTheWay++ // and that of the worker that was lost
		}
		if a.Updates != b.Updates || a.Samples != b.Samples || a.Dropped != b.Dropped || math.Abs(a.Staleness-b.Staleness) > 1e-9 || math.Abs(a.Bytes-b.Bytes) > 1000*float64(onTheWay) || len(a.Switches) != len(b.Switches) {
			t.Fatalf("%s: %+v; with a network %+v", method, a, b)
		}
	})
}

// An exchange on equal links takes what the model of package allreduce says that its schedule takes.
func TestExchangeAgrees(t *testing.T) {
	const bytes, bandwidth = 1_000_000, 100e6
	for _, n := range []int{2, 4, 8} {
		for _, a := range []allreduce.Algorithm{allreduce.AlgorithmRing, allreduce.AlgorithmHalving, allreduce.AlgorithmDoubling} {
			r, err := Run(Config{Times: Steady{Iteration: slices.Repeat([]time.Duration{100 * ms}, n)}, Learner: &counter{}, Batch: 4, Network: apart(n, 0, bandwidth, ms),
				Ring: &Ring{Algorithm: a}, Bytes: bytes, Target: 2})
			if err != nil {
				t.Fatal(err)
			}
			m := allreduce.Model{Alpha: 2e-3, Beta: 1 / bandwidth}
			want := 200*ms + time.Duration(m.Seconds(a, n, bytes)*1e9)
			if d := r.Time - want; d < -time.Microsecond || d > time.Microsecond {
				t.Errorf("%v among %d: %v, want %v", a, n, r.Time, want)
			}
		}
	}
}

// Every schedule ends, for every number of members, also when one leaves in the middle, and riders come along.
func TestExchangeEnds(t *testing.T) {
	for n := 2; n < 10; n++ {
		for a := range schedules {
			p := modes.SSGD(n)
			if n > 3 {
				p = modes.Ring(n, star.Worker(n-1))
			}
			times := Steady{Iteration: slices.Repeat([]time.Duration{100 * ms}, n)}
			times.Iteration[n-1] = 150 * ms
			c := Config{Times: times, Plan: p, Learner: &counter{}, Batch: 4, Network: apart(n, 0, 100e6, ms), Ring: &Ring{Algorithm: a}, Bytes: 1_000_000, Target: 20}
			for _, at := range []time.Duration{50 * ms, 103 * ms, 110 * ms, 151 * ms} {
				c.Failures = []Failure{{Worker: 1, At: at, Back: time.Second}}
				c.Learner = &counter{}
				r, err := Run(c)
				if err != nil || !r.Reached {
					t.Fatalf("%v among %d, one of whom is gone at %v: %+v, %v", a, n, at, r, err)
				}
			}
		}
	}
}

// Without a network an exchange takes what the model says.
func TestRingByModel(t *testing.T) {
	m := &allreduce.Model{Alpha: 1e-3, Beta: 1e-8}
	r, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms), Learner: &counter{}, Batch: 4, Ring: &Ring{Model: m, Algorithm: allreduce.AlgorithmRing}, Bytes: 3_000_000, Target: 3})
	if err != nil {
		t.Fatal(err)
	}
	if want := 300*ms + 2*(4*ms+40*ms); r.Time != want || r.Bytes != 3*4*3e6 {
		t.Errorf("three updates in %v, %v bytes; want %v", r.Time, r.Bytes, want)
	}
}

// The job no longer waits for a worker that is gone, and its computed work is lost; when it is back it goes on with the
// current parameters.
func TestFailure(t *testing.T) {
	l := &told{}
	r, err := Run(Config{Times: steady(100*ms, 100*ms, 300*ms), Learner: l, Batch: 4, Target: 8, Failures: []Failure{{Worker: 2, At: 450 * ms, Back: 720 * ms}}})
	if err != nil {
		t.Fatal(err)
	}
	// Updates at 300 of all; at 450, when it is gone, of the two; at 550, 650 and 750 of the two, since the third is not
	// there or waited for only from its return on: 720 + 300 = 1020. Then of all.
	var of []int
	for _, g := range l.applied {
		if g.Worker == 0 {
			of = append(of, 0)
		}
		of[len(of)-1]++
	}
	if want := []int{3, 2, 2, 2, 3, 3, 3, 3}; !slices.Equal(of, want) || r.Time != 1920*ms {
		t.Errorf("updates of %v gradients until %v, want %v", of, r.Time, want)
	}
}

// Bytes are those of every push and every pull.
func TestBytes(t *testing.T) {
	for _, net := range []*Network{nil, apart(2, 3, 0, 0)} {
		r, err := Run(Config{Times: steady(100*ms, 200*ms), Plan: modes.ASGD(2), Learner: &counter{}, Batch: 4, Bytes: 300, Limit: 450 * ms, Network: net})
		if err != nil {
			t.Fatal(err)
		}
		if want := 300.0 * (4 + 2 + 5 + 3); r.Bytes != want { // pushes of both, pulls of both
			t.Errorf("%v bytes, want %v", r.Bytes, want)
		}
	}
}

// With private links the simulated bound is the one of the formula, in which iterations include pull and push.
func TestFirstOrder(t *testing.T) {
	times := Steady{Iteration: []time.Duration{100 * ms, 100 * ms, 100 * ms, 300 * ms}}
	whole := Steady{Iteration: []time.Duration{122 * ms, 122 * ms, 122 * ms, 322 * ms}}
	net := apart(4, 0, 100e6, ms/4)
	for range 4 { // a quarter of a gradient, and of the parameters, to each of four shards
		net.Hosts = append(net.Hosts, Host{Servers: 1, Latency: ms / 4})
	}
	got, err := FirstOrder(Config{Times: times, Network: net, Bytes: 1_000_000, Batch: 4, Latency: ms}, 400)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Bound(whole, 400)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(got-want) > 0.01 {
		t.Errorf("%v, want %v", got, want)
	}
	ring, err := FirstOrder(Config{Times: times, Ring: &Ring{Algorithm: allreduce.AlgorithmRing, Model: &allreduce.Model{Alpha: 1e-3 / 6}}, Bytes: 1000, Batch: 4}, 400)
	if err != nil {
		t.Fatal(err)
	}
	if want, err = Bound(Steady{Iteration: []time.Duration{101 * ms, 101 * ms, 101 * ms, 301 * ms}}, 400); err != nil || math.Abs(ring-want) > 0.005 {
		t.Errorf("in a ring %v, want %v, %v", ring, want, err)
	}
}

func TestNetworkRejects(t *testing.T) {
	w := func(ws ...star.Worker) []star.Worker { return ws }
	for want, n := range map[string]*Network{
		"worker 1 is on no host":        {Hosts: []Host{{Workers: w(0), Servers: 1}}},
		"worker 1 is on two hosts":      {Hosts: []Host{{Workers: w(0, 1), Servers: 1}, {Workers: w(1)}}},
		"worker 2 is not in 0..1":       {Hosts: []Host{{Workers: w(0, 1, 2), Servers: 1}}},
		"no host has a server":          {Hosts: []Host{{Workers: w(0, 1)}}},
		"none may be negative":          {Hosts: []Host{{Workers: w(0, 1), Servers: 1, CPUs: math.NaN()}}},
		"infinite":                      {Hosts: []Host{{Workers: w(0, 1), Servers: 1, Bandwidth: math.Inf(1)}}},
		"squeeze 0: host 1":             {Hosts: []Host{{Workers: w(0, 1), Servers: 1}}, Squeeze: []Squeeze{{Host: 1, To: 1, Factor: 2}}},
		"want numbers of at least 0":    {Hosts: []Host{{Workers: w(0, 1), Servers: 1}}, Update: -1},
		"at least 1 is needed":          {Hosts: []Host{{Workers: w(0, 1), Servers: 1}}},
		"servers: an all-reduce":        {Hosts: []Host{{Workers: w(0, 1), Servers: 1}}},
		"an all-reduce has one ring":    {Hosts: []Host{{Workers: w(0, 1)}}},
		"want auto, ring":               {Hosts: []Host{{Workers: w(0, 1)}}},
		"worker 7, of 2, is gone from ": {Hosts: []Host{{Workers: w(0, 1), Servers: 1}}},
	} {
		c := Config{Times: steady(100*ms, 100*ms), Learner: &counter{}, Batch: 4, Network: n, Bytes: 100, Target: 1}
		switch want {
		case "at least 1 is needed":
			c.Bytes = 0
		case "servers: an all-reduce":
			c.Ring = &Ring{}
		case "an all-reduce has one ring":
			c.Ring, c.Plan = &Ring{}, modes.ASGD(2)
		case "want auto, ring":
			c.Ring = &Ring{Algorithm: allreduce.AlgorithmHierarchy}
		case "worker 7, of 2, is gone from ":
			c.Failures = []Failure{{Worker: 7}}
		}
		if _, err := Run(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// The same cluster gives the same run.
func TestNetworkDeterminism(t *testing.T) {
	run := func() string {
		net := apart(6, 3, 50e6, 100*time.Microsecond)
		net.Hosts[1].CPUs, net.Hosts[1].Others = 2, 1.5
		c := Config{Times: Varied{Times: steady(100*ms, 110*ms, 120*ms, 130*ms, 140*ms, 300*ms), Sigma: 0.2, Seed: 1}, Learner: NewQuadratic(8, 10, 0.1, 0.2, 1), Batch: 32,
			Network: net, Bytes: 1_000_000, Limit: 15 * time.Second, Failures: []Failure{{Worker: 3, At: 5 * time.Second, Back: 7 * time.Second}}}
		if err := c.Use("auto", optim.Config{}); err != nil {
			t.Fatal(err)
		}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%+v", r)
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s\nthen %s", a, b)
	}
}
