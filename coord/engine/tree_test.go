package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/transport/wire"
)

// orchard plays workers, shards and the network between them against a scheduler. What the
// coordinator and the workers say to each other keeps its order for each pair, as on a
// connection; everything else can overtake everything.
type orchard struct {
	t      *rapid.T
	l      *Shards
	trees  []*climber
	shards int

	toCoord [][]any                // by worker: Bundle, Arrive, Fault, or nil: the connection ended
	holds   []map[sheet]bool       // by shard: pushes that are stored, and not fired
	word    []stored               // of shards, not yet read
	flying  []passing              // bundles between workers
	content map[sheet][]wire.Share // of pushes
	seq     int64
	spans   map[wire.Share]Span // of gradients, by worker, step and samples
	used    map[int64]int
	lost    map[int64]int
}

type sheet struct {
	w    star.Worker
	step int64
}

type stored struct {
	shard int
	sheet
}

// passing is a bundle between two workers.
type passing struct {
	to  star.Worker
	msg wire.Bundle
}

// climber is a worker.
type climber struct {
	w        star.Worker
	dead     bool
	inbox    []any // Branch with its Release, Release, Detach
	step     int64 // of the gradient in hand
	rel      *wire.Release
	branch   wire.Branch // of the release in hand
	computed bool
	sent     bool
	detached bool
	without  map[wire.Child]bool // children not to wait for
	got      map[wire.Child]wire.Bundle
}

func (o *orchard) carry(os []Ready) {
	counted(o.t, o.l)
	for i := range os {
		od := &os[i]
		o.applied(od)
		for _, d := range od.Detached {
			c := o.trees[d.Worker]
			c.inbox = append(c.inbox, d.Msg)
		}
		linked := map[star.Worker]wire.Branch{}
		for _, b := range od.Branches {
			c := o.trees[b.Worker]
			c.inbox = append(c.inbox, b)
			linked[b.Worker] = b
		}
		named := map[star.Worker]bool{}
		for _, g := range slices.Concat(od.Fire.Gradients, od.Fire.Dropped) {
			named[g.Worker] = true
		}
		for _, w := range od.Fire.Quiet {
			if !named[w] {
				o.t.Fatalf("fire %d is quiet about worker %d, which it does not name", od.Fire.Seq, w)
			}
			delete(named, w)
		}
		out := map[star.Worker]bool{}
		for _, r := range od.Releases {
			out[r.Worker] = true
			ways := 0
			for _, ok := range []bool{r.Pull, named[r.Worker], linked[r.Worker].Relay} {
				if ok {
					ways++
				}
			}
			if ways != 1 {
				o.t.Fatalf("worker %d has %d ways to get the parameters: pull %v, sent %v, relay %v", r.Worker, ways, r.Pull, named[r.Worker], linked[r.Worker].Relay)
			}
			delete(named, r.Worker)
			c := o.trees[r.Worker]
			c.inbox = append(c.inbox, r)
			a := &o.l.states[r.Worker]
			o.spans[wire.Share{Worker: r.Worker, Step: a.step, Samples: r.Count}] = Span{r.Start, r.Count}
		}
		if len(named) > 0 {
			o.t.Fatalf("fire %d sends parameters to %v, who are not released", od.Fire.Seq, named)
		}
		for w, b := range linked {
			if !out[w] || b.Parent >= 0 && (!out[star.Worker(b.Parent)] || !slices.Contains(linked[star.Worker(b.Parent)].Children, wire.Child{Worker: w, Step: b.Step})) {
				o.t.Fatalf("worker %d is linked to %d, and these are released: %v", w, b.Parent, out)
			}
			for _, v := range b.Children {
				if linked[v.Worker].Parent != int(w) || linked[v.Worker].Step != v.Step {
					o.t.Fatalf("worker %d has the child %v, which has %+v", w, v, linked[v.Worker])
				}
			}
		}
	}
}

// applied takes what a Fire uses off the shards; each of them must hold it.
func (o *orchard) applied(od *Ready) {
	f := &od.Fire
	if f.Seq == 0 {
		return
	}
	if o.seq++; f.Seq != o.seq {
		o.t.Fatalf("fire %d came after fire %d", f.Seq, o.seq-1)
	}
	if f.Samples != int64(len(o.used)) {
		o.t.Fatalf("fire %d after %d samples, there were %d", f.Seq, f.Samples, len(o.used))
	}
	weights := map[star.Worker]float32{}
	for _, g := range od.Members {
		weights[g.Worker] = g.Weight
	}
	in := 0
	for _, g := range f.Gradients {
		s := sheet{g.Worker, g.Step}
		var weight float32
		for _, m := range o.content[s] {
			in++
			c, ok := weights[m.Worker]
			if !ok {
				o.t.Fatalf("fire %d has the push of worker %d with the gradient of worker %d, but not that", f.Seq, g.Worker, m.Worker)
			}
			weight += c
			o.count(o.used, m)
		}
		if d := weight - g.Weight; d > 1e-5 || d < -1e-5 {
			o.t.Fatalf("fire %d: the push of worker %d has weight %v, its gradients have %v", f.Seq, g.Worker, g.Weight, weight)
		}
		for k, h := range o.holds {
			if !h[s] {
				o.t.Fatalf("fire %d names step %d of worker %d, which shard %d does not hold", f.Seq, g.Step, g.Worker, k)
			}
			delete(h, s)
		}
	}
	if in != len(od.Members) {
		o.t.Fatalf("fire %d applies %d gradients, its pushes have %d", f.Seq, len(od.Members), in)
	}
	for _, g := range f.Dropped {
		for k, h := range o.holds {
			if s := (sheet{g.Worker, g.Step}); !h[s] {
				o.t.Fatalf("fire %d drops step %d of worker %d, which shard %d does not hold", f.Seq, g.Step, g.Worker, k)
			}
			delete(h, sheet{g.Worker, g.Step})
		}
	}
	for _, g := range od.Dropped {
		o.count(o.lost, wire.Share{Worker: g.Worker, Step: g.Step, Samples: o.l.states[g.Worker].count})
	}
}

func (o *orchard) count(m map[int64]int, s wire.Share) {
	at, ok := o.spans[s]
	if !ok {
		// A drop reads the account, which may be of the next batch already.
		for k, v := range o.spans {
			if k.Worker == s.Worker && k.Step == s.Step {
				at, ok = v, true
			}
		}
	}
	if !ok {
		o.t.Fatalf("no such gradient: %+v", s)
	}
	for i := range at.Count {
		m[at.Start+int64(i)]++
	}
}

// accounted: at every moment a checkpoint would have each position handed out so far either
// applied, or dropped, or to be done again.
func (o *orchard) accounted() {
	times := map[int64]int{}
	for _, s := range o.l.progress().Redo {
		for i := range s.Count {
			times[s.Start+int64(i)]++
		}
	}
	for q := range o.l.cursor {
		if n := times[q] + o.used[q] + o.lost[q]; n != 1 {
			o.t.Fatalf("position %d is used %d times, dropped %d times and to be done again %d times", q, o.used[q], o.lost[q], times[q])
		}
	}
}

// own is the gradient in hand.
func (c *climber) own() wire.Share {
	return wire.Share{Worker: c.w, Step: c.step, Samples: c.rel.Count}
}

// push puts the gradients in ms on the way to every shard.
func (o *orchard) push(c *climber, ms []wire.Share) {
	s := sheet{c.w, c.step}
	o.content[s] = ms
	for k := range o.shards {
		o.word = append(o.word, stored{k, s})
	}
}

func (o *orchard) say(c *climber, m any) { o.toCoord[c.w] = append(o.toCoord[c.w], m) }

// hear reads one message of the coordinator.
func (o *orchard) hear(c *climber) {
	m := c.inbox[0]
	c.inbox = c.inbox[1:]
	switch m := m.(type) {
	case wire.Release:
		if c.rel != nil {
			c.step++
		}
		c.rel, c.computed, c.sent, c.detached = &m, false, false, false
		c.branch = wire.Branch{Parent: -1}
	case wire.Detach:
		if m.Worker != c.w {
			c.without[wire.Child(m)] = true
			return
		}
		if c.rel == nil || m.Step != c.step {
			o.t.Fatalf("worker %d is detached at step %d, it is at %d", c.w, m.Step, c.step)
		}
		c.detached = true
		if c.sent {
			o.push(c, []wire.Share{c.own()})
		}
	}
}

// ready says whether c has everything that it hands on.
func (c *climber) ready() bool {
	if c.detached {
		return true
	}
	for _, v := range c.branch.Children {
		if _, ok := c.got[v]; !ok && !c.without[v] {
			return false
		}
	}
	return true
}

// hand hands the gradient over.
func (o *orchard) hand(c *climber, fails bool) {
	c.sent = true
	ms := []wire.Share{c.own()}
	if !c.detached {
		for _, v := range c.branch.Children {
			for _, s := range c.got[v].Members {
				if !slices.Contains(c.branch.Below, wire.Below{Child: v.Worker, Worker: s.Worker, Step: s.Step, Samples: s.Samples}) {
					o.t.Fatalf("worker %d has %+v from worker %d, and a branch that knows of %+v below", c.w, s, v.Worker, c.branch.Below)
				}
			}
			ms = append(ms, c.got[v].Members...)
		}
	}
	b := wire.Bundle{Worker: c.w, Step: c.step, Members: ms}
	switch {
	case c.detached || c.branch.Parent < 0 && len(c.branch.Children) == 0:
		o.push(c, ms)
	case c.branch.Parent < 0:
		o.say(c, b)
		o.push(c, ms)
	default:
		up := star.Worker(c.branch.Parent)
		if fails {
			o.say(c, wire.Fault{Worker: c.w, Generation: c.step, Suspect: int(up)})
		}
		if !fails || rapid.Bool().Draw(o.t, "came anyway") {
			o.flying = append(o.flying, passing{up, b})
		}
	}
	o.say(c, wire.Arrive{Record: star.Record{Worker: c.w, Step: c.step, Samples: c.rel.Count}})
}

// read has the coordinator read one message of worker w.
func (o *orchard) read(w int) {
	m := o.toCoord[w][0]
	o.toCoord[w] = o.toCoord[w][1:]
	var os []Ready
	var err error
	switch m := m.(type) {
	case wire.Bundle:
		os, err = o.l.Reported(m)
	case wire.Arrive:
		os, err = o.l.arrive(star.Worker(w), m.Record.Step, m.Record.Samples)
	case wire.Fault:
		os = o.l.unreachable(star.Worker(w), m.Generation)
	case nil:
		os = o.l.Leave(star.Worker(w))
	}
	if err != nil {
		o.t.Fatal(err)
	}
	o.carry(os)
}

// Whatever dies, fails and changes, and in whatever order the coordinator learns of it: every position of the stream is
// applied once, unless the plan drops it; a Fire names what every shard holds; no worker waits for ever.
func TestTreeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "workers")
		o := &orchard{
			t: t, shards: rapid.IntRange(1, 2).Draw(t, "shards"), toCoord: make([][]any, n), content: map[sheet][]wire.Share{},
			spans: map[wire.Share]Span{}, used: map[int64]int{}, lost: map[int64]int{},
		}
		plan := func() modes.Plan {
			text := rapid.SampledFrom([]string{"ssgd", "ssgd", "x=1", "x=2", "backup=1"}).Draw(t, "mode")
			p, err := modes.Parse(text, n)
			if err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 4).Draw(t, "flat") > 0 {
				p.Parents = make([]star.Worker, n)
				order := rapid.Permutation(ranks(n)).Draw(t, "order")
				for i, w := range order {
					p.Parents[w] = modes.Direct
					if k := rapid.IntRange(-1, i-1).Draw(t, "parent"); k >= 0 {
						p.Parents[w] = star.Worker(order[k])
					}
				}
			}
			return p
		}
		limit := rapid.Int64Range(1, 80).Draw(t, "limit")
		o.l = newShards(plan(), n, o.shards, rapid.IntRange(1, 4).Draw(t, "batch"), limit)
		o.l.reachable = make([]bool, n)
		for w := range n {
			o.l.reachable[w] = rapid.IntRange(0, 9).Draw(t, "door") > 0
			o.trees = append(o.trees, &climber{w: star.Worker(w), without: map[wire.Child]bool{}, got: map[wire.Child]wire.Bundle{}})
		}
		for range o.shards {
			o.holds = append(o.holds, map[sheet]bool{})
		}
		o.carry(o.l.Begin(nil))
		alive := n
		for {
			type act struct {
				name string
				do   func()
			}
			var acts []act
			add := func(name string, do func()) { acts = append(acts, act{name, do}) }
			for w, c := range o.trees {
				if len(o.toCoord[w]) > 0 {
					add(fmt.Sprint("read ", w), func() { o.read(w) })
				}
				if c.dead {
					continue
				}
				if len(c.inbox) > 0 {
					add(fmt.Sprint("hear ", w), func() {
						if b, ok := c.inbox[0].(wire.Branch); ok {
							c.inbox = c.inbox[1:]
							o.hear(c) // its release comes right behind it
							c.branch = b
							if b.Step != c.step {
								t.Fatalf("worker %d at step %d has a branch for step %d", c.w, c.step, b.Step)
							}
							return
						}
						o.hear(c)
					})
				}
				if c.rel != nil && !c.computed {
					add(fmt.Sprint("compute ", w), func() { c.computed = true })
				}
				if c.rel != nil && c.computed && !c.sent && c.ready() {
					add(fmt.Sprint("hand ", w), func() { o.hand(c, rapid.IntRange(0, 15).Draw(t, "fails") == 0) })
				}
			}
			for i := range o.flying {
				f := o.flying[i]
				add(fmt.Sprint("land on ", f.to), func() {
					o.flying = slices.Delete(o.flying, i, i+1)
					if c := o.trees[f.to]; !c.dead {
						c.got[wire.Child{Worker: f.msg.Worker, Step: f.msg.Step}] = f.msg
					}
				})
			}
			for i := range o.word {
				s := o.word[i]
				add(fmt.Sprint("store ", s), func() {
					o.word = slices.Delete(o.word, i, i+1)
					o.holds[s.shard][s.sheet] = true
					os, err := o.l.Stored(s.shard, s.w, s.step, one)
					if err != nil {
						t.Fatal(err)
					}
					o.carry(os)
				})
			}
			o.accounted()
			if len(acts) == 0 {
				break
			}
			switch k := rapid.IntRange(0, 60).Draw(t, "what"); {
			case k == 0:
				o.carry(o.l.Install(plan()))
			case k == 1 && alive > 1:
				c := o.trees[rapid.IntRange(0, n-1).Draw(t, "dies")]
				if c.dead {
					continue
				}
				alive--
				c.dead = true
				said := o.toCoord[c.w] // what is still on the way may be cut off
				o.toCoord[c.w] = append(said[:rapid.IntRange(0, len(said)).Draw(t, "heard")], nil)
				if rapid.Bool().Draw(t, "torn") { // so may a push, at any shard
					o.word = slices.DeleteFunc(o.word, func(s stored) bool { return s.w == c.w && rapid.Bool().Draw(t, "tears") })
				}
			default:
				acts[rapid.IntRange(0, len(acts)-1).Draw(t, "act")].do()
			}
		}
		if !o.l.Drained() {
			var waits []string
			for _, w := range o.l.Lacking() {
				waits = append(waits, o.l.HoldsUp(w))
			}
			t.Fatalf("nothing moves any more, and the engine waits for %s", strings.Join(waits, ", "))
		}
		for q := range limit {
			if got := o.used[q] + o.lost[q]; got != 1 {
				t.Fatalf("position %d was used %d times and dropped %d times", q, o.used[q], o.lost[q])
			}
		}
		if int64(len(o.used)) != o.l.used || int64(len(o.lost)) != o.l.waste {
			t.Fatalf("the engine counts %d used and %d dropped, there were %d and %d", o.l.used, o.l.waste, len(o.used), len(o.lost))
		}
		if p := o.l.progress(); len(p.Redo) > 0 {
			t.Fatalf("at the end this is still to be done: %v", p.Redo)
		}
	})
}

func TestTreesThatCannotBe(t *testing.T) {
	plan := func(text string) modes.Plan {
		p, err := modes.Parse(text, 4)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		mode, says string
		rule       modes.TreeRule
	}{
		{"tree=auto", "", modes.TreeRule{}}, // measured
		{"tree=auto", "", modes.TreeRule{Capacity: 1}},
		{"groups=0,1/2,3 tree=auto", "one group", modes.TreeRule{Capacity: 1}},
		{"ring-minus=3 tree=auto", "riders", modes.TreeRule{Capacity: 1}},
		{"groups=0,1/2,3 tree=0(1)", "", modes.TreeRule{}},
	} {
		err := TreePlan(plan(c.mode))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s with %+v: %v, want %q", c.mode, c.rule, err, c.says)
		}
	}
	for _, mode := range []string{"tree=0(1)", "tree=auto"} {
		if err := RingPlan(plan(mode)); err == nil || !strings.Contains(err.Error(), "--arch ps") {
			t.Errorf("all-reduce with %s: %v", mode, err)
		}
	}
	for w, refused := range []bool{true, true, false, false} {
		err := TreeNeeds(plan("tree=0(1),2"), w, wire.Hello{})
		if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("worker %d", w)) {
			t.Errorf("worker %d that cannot be reached: %v, want it refused: %v", w, err, refused)
		}
		if err := TreeNeeds(plan("tree=0(1),2"), w, wire.Hello{Addr: "10.0.0.1:5"}); err != nil {
			t.Errorf("worker %d that can be reached: %v", w, err)
		}
	}
}
