package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/modes"
)

// uneven workers take times of their own, to the nanosecond, in proportion to their samples.
type uneven struct {
	n    int
	seed uint64
}

func (u uneven) Workers() int { return u.n }
func (u uneven) Spend(w star.Worker, step int64, _ time.Duration, share float64) Spent {
	r := rand.New(rand.NewPCG(u.seed+uint64(w), uint64(step)))
	return Spent{Compute: time.Duration(share * (1 + float64(w)*0.3 + 2*r.Float64()) * 1e8), Push: time.Duration(r.IntN(5e6))}
}

// noted is a Learner and a Pilot that notes which workers' gradients make which version, and when, and changes the plan
// at some versions.
type noted struct {
	plans map[int64]modes.Plan
	now   int64
	said  []string
}

func (*noted) Begin(int, int)                     {}
func (*noted) Release(star.Worker, int)           {}
func (n *noted) Update(int64, []Gradient) Outcome { return Outcome{} }
func (n *noted) Keep(*Gradient) error             { return nil }
func (n *noted) Forget(star.Worker)               {}
func (n *noted) Drop(v int64, g Gradient, _ float64) error {
	n.said = append(n.said, fmt.Sprintf("version %d is without worker %d's", v, g.Worker))
	return nil
}

func (n *noted) Observe(r star.Record) {
	n.said = append(n.said, fmt.Sprintf("worker %d: %d samples by %v in %v, after %v of waiting", r.Worker, r.Samples, r.At, r.Compute, r.Wait))
}

func (n *noted) Fired(at time.Duration, v int64, gs []Gradient, _ Outcome) {
	n.now = v
	var of []string
	for _, g := range gs {
		of = append(of, fmt.Sprintf("%d of %d on %d (%d)", g.Samples, g.Worker, g.Basis, g.Local))
	}
	slices.Sort(of)
	n.said = append(n.said, fmt.Sprintf("%v: version %d: %v", at, v, of))
}

func (n *noted) Decide(time.Duration) (modes.Plan, string, bool) {
	p, ok := n.plans[n.now]
	n.now = -1
	return p, "it is time", ok
}

// The engine of coordinators makes the same versions of the same workers' gradients at the same nanosecond as the
// Barrier alone, in any sequence of plans and with any workers that leave and come back: so every statement about one
// holds for the other.
func TestEngineDecidesLikeTheBarrier(t *testing.T) {
	plans := []string{"ssgd", "asgd", "x=2", "x=3", "backup=1", "ssp=1", "groups=0,1/2,3", "groups=0-2+3", "groups=0-1+2,3", "groups=0,1 held=2,3", "backup=1 micro=3 cap=1h", "ssgd micro=4 cap=250ms", "x=2 micro=2 cap=1h"}
	still := slices.Concat(plans, []string{"ssgd shares=6,3,5,2", "ssgd local=3", "asgd local=2", "kbatch=2", "kbatch-async=3", "groups=0-2:2*/3"})
	rapid.Check(t, func(t *rapid.T) {
		gone := rapid.Bool().Draw(t, "somebody leaves")
		list := still
		if gone { // the others do its batch, and make as many samples of it as the worker itself would have
			list = plans
		}
		plan := func(what string) modes.Plan {
			text := rapid.SampledFrom(list).Draw(t, what)
			p, err := modes.Parse(text, 4)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		c := Config{Times: uneven{4, rapid.Uint64().Draw(t, "seed")}, Plan: plan("plan"), Batch: 12, Limit: 20 * time.Second, Cancel: rapid.Bool().Draw(t, "cancel"),
			Latency: time.Duration(rapid.IntRange(0, 2e6).Draw(t, "latency"))}
		changes := map[int64]modes.Plan{}
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			changes[int64(rapid.IntRange(1, 60).Draw(t, "at"))] = plan("to")
		}
		for range rapid.IntRange(0, 3).Draw(t, "failures") {
			if gone {
				f := Failure{Worker: star.Worker(rapid.IntRange(0, 2).Draw(t, "who")), At: time.Duration(rapid.IntRange(1, 15e9).Draw(t, "leaves"))}
				f.Back = f.At + time.Duration(rapid.IntRange(1, 5e9).Draw(t, "for"))
				c.Failures = append(c.Failures, f)
			}
		}
		said := func(byEngine bool) []string {
			n := &noted{plans: changes}
			c := c
			c.Engine, c.Learner, c.Pilot = byEngine, n, n
			r, err := Run(c)
			if err != nil {
				t.Fatal(err)
			}
			return append(n.said, fmt.Sprintf("%.6f of the time is waiting, %d dropped, staleness %.6f", r.Waiting, r.Dropped, r.Staleness))
		}
		barrier, engine := said(false), said(true)
		if len(barrier) < 20 {
			t.Fatalf("only %d updates", len(barrier))
		}
		for i := range barrier {
			if i >= len(engine) || barrier[i] != engine[i] {
				t.Fatalf("%d: the Barrier says %s, the engine %s", i, barrier[i], slices.Concat(engine, []string{"nothing"})[min(i, len(engine))])
			}
		}
	})
}

// versions are the times of the first updates of a cluster.
func versions(t *testing.T, c Config) (at []time.Duration) {
	t.Helper()
	n := &timed{}
	c.Learner, c.Pilot = n, n
	if _, err := Run(c); err != nil {
		t.Fatal(err)
	}
	return n.at
}

type timed struct {
	noted
	at []time.Duration
}

func (n *timed) Fired(at time.Duration, _ int64, gs []Gradient, _ Outcome) {
	if len(gs) == 4 {
		n.at = append(n.at, at)
	}
}

// A worker with children waits for them, and sends once. Here pushing takes 10 ms, or 20 ms, to whomever.
func TestTree(t *testing.T) {
	times := Steady{Iteration: []time.Duration{100 * ms, 100 * ms, 200 * ms, 100 * ms}, Fixed: 0.1}
	for text, want := range map[string][]time.Duration{
		"ssgd":               {200 * ms, 401 * ms},
		"ssgd tree=0(1,2)":   {210 * ms, 421 * ms},
		"ssgd tree=0(1(2))":  {220 * ms, 441 * ms},
		"ssgd tree=2(0,1,3)": {200 * ms, 401 * ms},
	} {
		at := versions(t, Config{Times: times, Plan: planOf(t, text), Batch: 4, Latency: ms, Limit: 500 * ms})
		if !slices.Equal(at, want) {
			t.Errorf("%s: versions at %v, want %v", text, at, want)
		}
	}
}

// Over links of 100 MB/s a vector of 10 MB takes 100 ms, and four of them 400 ms over the server's. In a tree of two
// pairs the server's link carries two; a child gets its parameters, 100 ms later than its parent, computes for 100 ms,
// and brings its gradient in 100 ms.
func TestTreeOverLinks(t *testing.T) {
	for text, want := range map[string][]time.Duration{
		"ssgd":                {900 * ms, 1800 * ms, 2700 * ms},
		"ssgd tree=0(1),2(3)": {800 * ms, 1500 * ms, 2200 * ms}, // at first the server sends to all workers
	} {
		at := versions(t, Config{Times: steady(100*ms, 100*ms, 100*ms, 100*ms), Plan: planOf(t, text), Batch: 4, Bytes: 10e6,
			Network: apart(4, 1, 100e6, 0), Limit: 2800 * ms})
		for i := range at {
			at[i] = at[i].Round(ms)
		}
		if !slices.Equal(at[:3], want) {
			t.Errorf("%s: versions at %v, want %v", text, at, want)
		}
	}
}

// If a parent dies before it has passed parameters on, its child gets them from the server.
func TestParentDiesWhileItPulls(t *testing.T) {
	n := &once{seen: map[[2]int64]bool{}}
	if _, err := Run(Config{Times: steady(100*ms, 100*ms, 100*ms, 100*ms), Plan: planOf(t, "ssgd tree=0(1),2(3)"), Batch: 4, Bytes: 10e6, Learner: n, Pilot: n,
		Network: apart(4, 1, 100e6, 0), Failures: []Failure{{Worker: 0, At: 850 * ms}}, Limit: 4 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if n.last[0] != 800*ms || n.last[1] < 3*time.Second {
		t.Errorf("the last gradients are of %v", n.last)
	}
}

// Whichever worker of a tree dies, and whichever tree follows, no gradient is used twice, and no worker waits for ever.
func TestTreesGoOn(t *testing.T) {
	plans := []string{"ssgd", "ssgd tree=0(1,2)", "ssgd tree=0(1(2(3)))", "x=2 tree=3(0,1)", "ssgd tree=1(0,2),3", "asgd", "groups=0,1/2,3 tree=0(1),3(2)"}
	rapid.Check(t, func(t *rapid.T) {
		plan := func(what string) modes.Plan {
			p, err := modes.Parse(rapid.SampledFrom(plans).Draw(t, what), 4)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		n := &once{noted: noted{plans: map[int64]modes.Plan{}}, seen: map[[2]int64]bool{}}
		c := Config{Times: uneven{4, rapid.Uint64().Draw(t, "seed")}, Plan: plan("plan"), Engine: true, Batch: 4, Limit: 40 * time.Second, Learner: n, Pilot: n, Bytes: 1e6,
			Latency: time.Duration(rapid.IntRange(0, 2e6).Draw(t, "latency"))}
		if rapid.Bool().Draw(t, "links") {
			c.Network = apart(4, 2, 20e6, ms)
		}
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			n.plans[int64(rapid.IntRange(1, 40).Draw(t, "at"))] = plan("to")
		}
		for range rapid.IntRange(0, 5).Draw(t, "failures") {
			f := Failure{Worker: star.Worker(rapid.IntRange(0, 3).Draw(t, "who")), At: time.Duration(rapid.IntRange(1, 20e9).Draw(t, "leaves"))}
			f.Back = f.At + time.Duration(rapid.IntRange(1, 5e9).Draw(t, "for"))
			c.Failures = append(c.Failures, f)
		}
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		for w, last := range n.last {
			if last < 35*time.Second { // an iteration takes 3 s at most
				t.Fatalf("the last gradient of worker %d is of %v; %q", w, last, n.said[max(0, len(n.said)-3):])
			}
		}
	})
}

type once struct {
	noted
	seen map[[2]int64]bool
	last [4]time.Duration
}

func (o *once) Update(v int64, gs []Gradient) Outcome {
	for _, g := range gs {
		k := [2]int64{int64(g.Worker), g.Step}
		if o.seen[k] || g.Basis >= v {
			return Outcome{Err: fmt.Errorf("version %d of step %d of worker %d, which was used, or is of version %d", v, g.Step, g.Worker, g.Basis)}
		}
		o.seen[k] = true
	}
	return Outcome{}
}

func (o *once) Fired(at time.Duration, v int64, gs []Gradient, out Outcome) {
	o.noted.Fired(at, v, gs, out)
	for _, g := range gs {
		o.last[g.Worker] = at
	}
}
