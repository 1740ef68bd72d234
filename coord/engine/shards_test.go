package engine

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// one is what a server says of a slice of length 1.
var one = replica.Sum{Sum2: 1}

// rig plays workers and shards against a scheduler.
type rig struct {
	t      failer
	l      *Shards
	out    map[star.Worker]wire.Release // batches that workers compute
	used   map[int64]int                // how often each position was applied
	lost   map[int64]int                // … was dropped by the plan
	threw  map[star.Worker]bool         // its last gradient was dropped, and it does not know
	given  map[[2]int64]Span            // by worker and step: of gradients that are complete or on the way
	steps  map[star.Worker]int64
	shards int
	seq    int64
}

// failer is *testing.T or *rapid.T.
type failer interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

func newRig(t failer, plan modes.Plan, n, shards, batch int, limit int64) *rig {
	r := &rig{t: t, l: newShards(plan, n, shards, batch, limit), shards: shards,
		out: map[star.Worker]wire.Release{}, used: map[int64]int{}, lost: map[int64]int{}, threw: map[star.Worker]bool{},
		given: map[[2]int64]Span{}, steps: map[star.Worker]int64{}}
	r.carry(r.l.Begin(nil))
	return r
}

func (r *rig) carry(os []Ready) {
	counted(r.t, r.l)
	for _, o := range os {
		r.check(&o)
		for _, g := range o.Fire.Gradients {
			if s := r.given[[2]int64{int64(g.Worker), g.Step}]; len(o.Members) == len(o.Fire.Gradients) && r.l.plan.Local == 0 {
				if want := float32(float64(s.Count) / float64(r.round())); g.Weight != want {
					r.t.Fatalf("fire %d gives the gradient of worker %d, over %d of the %d samples of a round, the weight %v, want %v", o.Fire.Seq, g.Worker, s.Count, r.round(), g.Weight, want)
				}
			}
			r.count(r.used, g)
		}
		for _, g := range o.Fire.Dropped {
			if o.Silent { // of an earlier attempt
				continue
			}
			if r.l.states[g.Worker].live {
				r.count(r.lost, g)
				r.threw[g.Worker] = true
			}
		}
		for _, rel := range o.Releases {
			if _, busy := r.out[rel.Worker]; busy {
				r.t.Fatalf("worker %d released twice", rel.Worker)
			}
			if rel.Dropped != r.threw[rel.Worker] {
				r.t.Fatalf("worker %d is told that its last gradient was dropped: %v", rel.Worker, rel.Dropped)
			}
			r.threw[rel.Worker] = false
			r.out[rel.Worker] = rel
		}
	}
}

// round is the samples of one iteration of all live workers: a gradient counts for its part of them, whatever the mode,
// and while the mode changes.
func (r *rig) round() (n int) {
	for w, a := range r.l.states {
		if a.live {
			n += r.l.plan.Share(star.Worker(w), r.l.batch)
		}
	}
	return n
}

// check compares an order with what a shard and a worker make of it: after the update a shard sends parameters to every
// worker that the Fire names and that is not Quiet, and a worker that gets none must ask for them.
func (r *rig) check(o *Ready) {
	sent := map[star.Worker]bool{}
	last := wire.Gradient{Worker: -1}
	for _, g := range o.Fire.Gradients {
		sent[g.Worker] = true
		if g.Worker < last.Worker || g.Worker == last.Worker && g.Step <= last.Step {
			r.t.Fatalf("fire %d adds the gradient of worker %d, step %d after that of worker %d, step %d", o.Fire.Seq, g.Worker, g.Step, last.Worker, last.Step)
		}
		last = g
	}
	for _, g := range o.Fire.Dropped {
		sent[g.Worker] = true
	}
	for _, w := range o.Fire.Quiet {
		if !sent[w] {
			r.t.Fatalf("fire %d is quiet about worker %d, which it does not name", o.Fire.Seq, w)
		}
		delete(sent, w)
	}
	for _, rel := range o.Releases {
		if rel.Pull == (sent[rel.Worker] || r.shards == 0) {
			r.t.Fatalf("worker %d is released with pull %v, and fire %d sends it parameters: %v", rel.Worker, rel.Pull, o.Fire.Seq, sent[rel.Worker])
		}
		if o.Fire.Seq > 0 && rel.Version != o.Fire.Version {
			r.t.Fatalf("fire %d makes version %d and releases with version %d", o.Fire.Seq, o.Fire.Version, rel.Version)
		}
		delete(sent, rel.Worker)
	}
	if len(sent) > 0 {
		r.t.Fatalf("fire %d sends parameters to %v, who are not released", o.Fire.Seq, sent)
	}
	if o.Fire.Seq > 0 {
		if o.Fire.Seq != r.seq+1 || o.Fire.Samples != int64(len(r.used)) {
			r.t.Fatalf("fire %d of %d samples came after fire %d and %d samples", o.Fire.Seq, o.Fire.Samples, r.seq, len(r.used))
		}
		r.seq++
	}
}

func (r *rig) count(m map[int64]int, g wire.Gradient) {
	key := [2]int64{int64(g.Worker), g.Step}
	s, ok := r.given[key]
	if !ok {
		r.t.Fatalf("fire names step %d of worker %d, which is not there", g.Step, g.Worker)
	}
	delete(r.given, key)
	for i := range s.Count {
		m[s.Start+int64(i)]++
	}
}

// push completes the gradient of w, with its messages in the given order of
// shards; the worker's own arrival comes after the k-th of them.
func (r *rig) push(w star.Worker, order []int, k int) {
	rel := r.out[w]
	delete(r.out, w)
	step := r.steps[w]
	r.given[[2]int64{int64(w), step}] = Span{rel.Start, rel.Count}
	r.steps[w]++
	for i := range len(order) + 1 {
		if i == k {
			os, err := r.l.arrive(w, step, rel.Count)
			if err != nil {
				r.t.Fatal(err)
			}
			r.carry(os)
		}
		if i < len(order) {
			os, err := r.l.Stored(order[i], w, step, one)
			if err != nil {
				r.t.Fatal(err)
			}
			r.carry(os)
		}
	}
}

// However a job lives, every position of the stream is applied exactly once,
// unless the plan drops it, and the job drains.
func TestEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "workers")
		shards := rapid.IntRange(0, 3).Draw(t, "shards")
		batch := rapid.IntRange(1, 5).Draw(t, "batch")
		limit := rapid.Int64Range(1, 120).Draw(t, "limit")
		var shares []int
		if rapid.Bool().Draw(t, "uneven") {
			shares = rapid.SliceOfN(rapid.IntRange(1, 5), n, n).Draw(t, "shares")
		}
		grouping := func(label string) modes.Plan {
			switch rapid.IntRange(0, 6).Draw(t, label) {
			case 5:
				return modes.Batches(n, rapid.IntRange(1, 9).Draw(t, "batches"), rapid.Bool().Draw(t, "drops"))
			case 0:
				return modes.SSGD(n)
			case 1:
				return modes.ASGD(n)
			case 4:
				p := modes.ASGD(n)
				p.MaxLead = rapid.IntRange(1, 3).Draw(t, "ahead")
				return p
			case 2:
				return modes.Backup(n, rapid.IntRange(0, n-1).Draw(t, "b"))
			case 3:
				var a, b []star.Worker
				for w := range n {
					if w%2 == 0 {
						a = append(a, star.Worker(w))
					} else {
						b = append(b, star.Worker(w))
					}
				}
				if len(b) == 0 {
					return modes.Grouped(a)
				}
				return modes.Grouped(a, b)
			}
			return modes.XOrder(n, rapid.IntRange(1, n).Draw(t, "x"))
		}
		plan := func(label string) modes.Plan {
			p := grouping(label)
			p.Shares = shares
			return p
		}
		r := newRig(t, plan("plan"), n, shards, batch, limit)
		alive := n
		for len(r.out) > 0 {
			var ws []star.Worker
			for w := range r.out {
				ws = append(ws, w)
			}
			slices.Sort(ws)
			w := rapid.SampledFrom(ws).Draw(t, "worker")
			switch act := rapid.IntRange(0, 12).Draw(t, "act"); {
			case act == 0:
				r.carry(r.l.Install(plan("to")))
			case act == 1 && alive > 1:
				// Any live worker may die, whatever it is doing.
				v := star.Worker(rapid.IntRange(0, n-1).Draw(t, "dies"))
				if !r.l.states[v].live {
					continue
				}
				alive--
				delete(r.out, v)
				if rapid.Bool().Draw(t, "its program fails") {
					r.l.Blame(v, true, "")
				}
				os := r.l.Leave(v)
				maps.DeleteFunc(r.given, func(k [2]int64, _ Span) bool { return k[0] == int64(v) })
				r.carry(os)
			case act == 2 && alive < n:
				v := star.Worker(rapid.IntRange(0, n-1).Draw(t, "returns"))
				if r.l.states[v].live {
					continue
				}
				alive++
				os := r.l.Join(v, true)
				if s := r.l.states[v].step; s <= r.steps[v]-1 {
					t.Fatalf("worker %d, which had made step %d, returns with step %d", v, r.steps[v]-1, s)
				}
				r.steps[v], r.threw[v] = r.l.states[v].step, false
				r.carry(os)
			default:
				order := rapid.Permutation(ranks(shards)).Draw(t, "order")
				r.push(w, order, rapid.IntRange(0, shards).Draw(t, "k"))
			}
		}
		if !r.l.Drained() {
			t.Fatal("nobody computes, but the engine is not drained")
		}
		for _, a := range r.l.View().Aside {
			for q := range int64(a.Count) {
				r.lost[a.Start+q]++
			}
		}
		for q := range limit {
			if got := r.used[q] + r.lost[q]; got != 1 {
				t.Fatalf("position %d was used %d times and dropped %d times", q, r.used[q], r.lost[q])
			}
		}
		if int64(len(r.used)) != r.l.used || int64(len(r.lost)) != r.l.waste {
			t.Fatalf("the engine counts %d used and %d dropped, there were %d and %d", r.l.used, r.l.waste, len(r.used), len(r.lost))
		}
	})
}

func ranks(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// A firing waits for the last shard, not for the worker's word.
func TestArrivedMeansStored(t *testing.T) {
	l := newShards(modes.ASGD(2), 2, 2, 4, 100)
	l.Begin(nil)
	for _, step := range []struct {
		do   func() ([]Ready, error)
		want int
	}{
		{func() ([]Ready, error) { return l.arrive(0, 0, 4) }, 0},
		{func() ([]Ready, error) { return l.Stored(1, 0, 0, one) }, 0},
		{func() ([]Ready, error) { return l.Stored(1, 0, 0, one) }, 0}, // said twice counts once
		{func() ([]Ready, error) { return l.Stored(0, 0, 7, one) }, 0}, // of another step
		{func() ([]Ready, error) { return l.Stored(0, 0, 0, one) }, 1},
	} {
		os, err := step.do()
		if err != nil || len(os) != step.want {
			t.Fatalf("got %d orders and %v, want %d", len(os), err, step.want)
		}
	}
}

func TestRefusedArrivals(t *testing.T) {
	for name, do := range map[string]func(*Shards) error{
		"wrong step":    func(l *Shards) error { _, err := l.arrive(0, 7, 4); return err },
		"wrong samples": func(l *Shards) error { _, err := l.arrive(0, 0, 5); return err },
		"fewer samples": func(l *Shards) error { _, err := l.arrive(0, 0, 3); return err },
		"twice": func(l *Shards) error {
			l.arrive(0, 0, 4)
			_, err := l.arrive(0, 0, 4)
			return err
		},
		"gone":    func(l *Shards) error { l.Leave(0); _, err := l.arrive(0, 0, 4); return err },
		"shard":   func(l *Shards) error { _, err := l.Stored(9, 0, 0, one); return err },
		"of whom": func(l *Shards) error { _, err := l.Stored(0, 9, 0, one); return err },
	} {
		l := newShards(modes.SSGD(2), 2, 1, 4, 100)
		l.Begin(nil)
		if do(l) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWeights(t *testing.T) {
	plan := modes.ASGD(4)
	plan.Shares = []int{1, 2, 3, 2}
	for _, c := range []struct {
		scale Scale
		want  float32
	}{{ScaleRound, 3. / 8}, {ScaleFiring, 1}, {ScaleDamped, 3. / 8 / 2}} {
		l := newShards(plan, 4, 0, 9, 100)
		l.scale = c.scale
		l.Begin(nil)
		l.arrive(0, 0, 1) // version 1
		os, err := l.arrive(2, 0, 3)
		if err != nil || len(os) != 1 {
			t.Fatal(err, os)
		}
		if got := os[0].Fire.Gradients[0].Weight; got != c.want {
			t.Errorf("%s: weight %v, want %v", c.scale, got, c.want)
		}
	}
}

// With ScaleWorkers the weight of a gradient does not depend on how many workers are left.
func TestWeightsOfFewer(t *testing.T) {
	for scale, want := range map[Scale][2]float32{ScaleRound: {1. / 4, 1. / 2}, ScaleWorkers: {1. / 3, 1. / 3}} {
		l := newShards(modes.ASGD(4), 4, 0, 9, 1000)
		l.scale, l.planned = scale, 3
		l.Begin(nil)
		for i, leave := range []bool{false, true} {
			if leave {
				l.Leave(2)
				l.Leave(3)
			}
			os, err := l.arrive(0, int64(i), 9)
			if err != nil || len(os) != 1 {
				t.Fatal(err, os)
			}
			if got := os[0].Fire.Gradients[0].Weight; got != want[i] {
				t.Errorf("%s, workers have left %v: weight %v, want %v", scale, leave, got, want[i])
			}
		}
	}
}

// A checkpoint remembers the batches that are out.
func TestProgressRemembersWhatIsOut(t *testing.T) {
	l := newShards(modes.ASGD(2), 2, 0, 4, 100)
	l.Begin(nil)
	l.arrive(1, 0, 4)
	p := l.progress()
	want := []Span{{0, 4}, {8, 4}}
	if p.Version != 1 || p.Samples != 4 || p.Cursor != 12 || !slices.Equal(p.Redo, want) {
		t.Errorf("progress %+v, want version 1, 4 samples, cursor 12, redo %v", p, want)
	}
	waits := newShards(modes.SSGD(3), 3, 0, 4, 100)
	waits.Begin(nil)
	waits.arrive(0, 0, 4) // waits for the others
	waits.Leave(2)
	if p, want := waits.progress(), []Span{{0, 4}, {4, 4}, {8, 4}}; !slices.Equal(p.Redo, want) {
		t.Errorf("redo %v, want %v: of one that waits, one that computes and one that left", p.Redo, want)
	}
	m := newShards(modes.ASGD(2), 2, 0, 4, 100)
	m.resume(p)
	var got []int64
	for _, r := range m.Begin(nil)[0].Releases {
		got = append(got, r.Start)
	}
	if !slices.Equal(got, []int64{0, 8}) || m.barrier.Version() != 1 {
		t.Errorf("resumed at %v, version %d", got, m.barrier.Version())
	}
}

// Batches go by rank, whichever worker came first.
func TestBatchesByRank(t *testing.T) {
	l := newShards(modes.SSGD(3), 3, 0, 4, 100)
	l.Begin(nil)
	l.arrive(2, 0, 4)
	l.arrive(0, 0, 4)
	os, err := l.arrive(1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range os[0].Releases {
		if int(r.Worker) != i || r.Start != int64(12+4*i) {
			t.Errorf("release %d is worker %d at %d", i, r.Worker, r.Start)
		}
	}
}

// A plan with other shares is another round.
func TestRoundOfShares(t *testing.T) {
	l := newShards(modes.SSGD(2), 2, 1, 4, 100)
	l.Begin(nil)
	counted(t, l)
	p := modes.SSGD(2)
	p.Shares = []int{3, 6}
	l.Install(p)
	if counted(t, l); l.round() != 9 {
		t.Errorf("a round of %d samples", l.round())
	}
}
