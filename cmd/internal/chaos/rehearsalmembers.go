package chaos

import (
	"hash/fnv"
	"slices"
	"time"

	"star"
	"star/ps/replica"
	"star/transport/wire"
)

// firing is a coordinator's instruction to servers: an encoded Fire of the engine and the data that a successor needs.
type firing struct {
	wire.Fire
	header, note []byte
	by           int64 // generation of the coordinator that made or adopted it
}

func newFiring(f wire.Fire, note []byte, by int64) firing {
	return firing{f, f.AppendTo(nil), note, by}
}

// holding is a copy of a shard: the messages that it received and the firings that it holds.
type holding struct {
	replica.Copy
	has map[replica.Gradient]bool
	log []firing
}

// hash represents the parameters after seq firings.
func (h *holding) hash(seq int64) uint64 {
	f := fnv.New64()
	for i := range h.log[:seq] {
		f.Write(h.log[i].header)
	}
	return f.Sum64()
}

// version is the version of its parameters.
func (h *holding) version() int64 {
	if n := len(h.log); n > 0 {
		return h.log[n-1].Version
	}
	return 0
}

type actor struct { // a server
	alive  bool
	copies map[int]*holding
	silent time.Duration // no message reaches or leaves it until then
	cut    int           // counts the ends of its connections
	slow   time.Duration // its messages take longer until then
	factor float64
}

type trainee struct { // a worker
	attempt int // counts its deaths
	dead    bool
	frozen  time.Duration // stopped until then
	apart   time.Duration // cannot reach other workers until then
	views   []replica.View

	gen      int64 // of the coordinator that it follows
	got      int   // releases received from that coordinator
	step     int64 // current step; -1: not released yet
	batch    wire.Release
	computes bool    // it has all its inputs
	pushes   bool    // it has computed, and repeats that until its next release
	read     []int64 // by shard: the version that it has

	climber
}

// insist makes a worker repeat periodically what it waits for.
func (w *stage) insist(i int) {
	life := w.workers[i].attempt
	var say func()
	say = func() {
		if w.workers[i].attempt != life {
			return
		}
		w.do(i, func() { w.work(i) })
		w.at(w.now+again+time.Duration(w.rnd.IntN(int(again))), say)
	}
	say()
}

// comeBack restarts a worker that was killed, without its memory.
func (w *stage) comeBack(i int) {
	k := w.workers[i]
	if w.c.e.Lingers(star.Worker(i)) { // its earlier gradient is in a report
		w.at(w.now+again, func() { w.comeBack(i) })
		return
	}
	k.dead, k.gen, k.step, k.climber = false, -1, -1, climber{}
	for shard := range w.Shards {
		k.views[shard] = w.c.Table.View(shard)
	}
	w.admit(i)
	w.insist(i)
}

// copyAt is a copy at a live server.
func (w *stage) copyAt(s, shard int) *holding {
	if !w.servers[s].alive {
		return nil
	}
	return w.servers[s].copies[shard]
}

// takes reports whether a copy accepts a gradient of a worker of that term; reads whether it answers one with
// parameters.
func (w *stage) takes(h *holding, term int64) bool {
	if w.Unfenced {
		return true
	}
	return h.Hear(term) == replica.Yes && h.Write(term) == replica.Yes
}

func (w *stage) reads(h *holding, term int64) bool {
	if w.Unfenced {
		return h.Primary()
	}
	return h.Hear(term) == replica.Yes && h.Read(term) == replica.Yes
}

// work makes a worker send what it waits for.
func (w *stage) work(i int) {
	k := w.workers[i]
	if k.step < 0 {
		return
	}
	g := replica.Gradient{Worker: star.Worker(i), Step: k.step}
	if k.pushes && !w.climb(i, g) {
		return
	}
	for shard, v := range k.views {
		if k.pushes && !k.direct() {
			break // a worker above it in the tree pushes for it
		} else if k.pushes {
			for _, s := range append([]int{v.Primary}, v.Followers...) {
				w.send(s, func() { w.push(s, shard, g, v.Term) })
			}
		} else if k.read[shard] < k.batch.Version {
			w.send(v.Primary, func() { w.pull(v.Primary, shard, i, v.Term, g.Step) })
		}
	}
	if k.pushes {
		c, life, rec := w.c, k.attempt, star.Record{Worker: star.Worker(i), Step: g.Step, Basis: k.batch.Version, Samples: k.batch.Count}
		report, fault := k.report(), k.fault
		w.send(-1, func() { w.arrived(c, life, rec, report, fault) })
	}
}

func (w *stage) push(s, shard int, g replica.Gradient, term int64) {
	h := w.copyAt(s, shard)
	if h == nil || !w.takes(h, term) {
		return
	}
	h.has[g] = true
	if h.Primary() && term < h.Term() { // its worker does not know all copies
		for o := range w.servers {
			if f := w.copyAt(o, shard); f != nil && o != s && f.Term() == h.Term() {
				w.send(o, func() { w.push(o, shard, g, 0) })
			}
		}
	}
	c := w.c
	w.send(s, func() { w.stored(c, s, shard, g) })
}

// fire delivers a firing to a server.
func (w *stage) fire(c *director, s int, f firing, to replica.To) {
	for shard := range w.Shards {
		h := w.copyAt(s, shard)
		if h == nil {
			continue
		}
		lacks := func(g wire.Gradient) bool { return !h.has[replica.Gradient{Worker: g.Worker, Step: g.Step}] }
		if i := slices.IndexFunc(f.Gradients, lacks); i >= 0 && f.Seq == h.Last()+1 {
			if c.gen == f.by && c == w.c && c.Table.View(shard).Has(s) {
				broken("update %d names the gradient of worker %d's step %d, which server %d does not hold", f.Seq, f.Gradients[i].Worker, f.Gradients[i].Step, s)
			}
			continue // of an earlier coordinator, or the server has no valid copy
		}
		gen := c.gen
		if w.Unfenced {
			gen = 1 << 62
		}
		switch h.Fire(gen, f.Seq, to) {
		case replica.New:
			h.log = append(h.log, f)
		case replica.Known:
		default:
			continue
		}
		term, seq := h.Term(), h.Last()
		w.send(s, func() {
			if c == w.c {
				ready, acked := c.Table.Ready(), c.Table.Acked()
				if c.Table.Held(shard, s, term, seq); c.Table.Ready() > ready || c.Table.Acked() > acked {
					w.pump()
				}
			}
		})
	}
}

// told delivers the n-th order of a coordinator's session to a worker.
func (w *stage) told(gen int64, life, i, n int, m order) {
	w.do(i, func() {
		k := w.workers[i]
		if k.attempt != life || gen < k.gen {
			return
		}
		if gen > k.gen {
			k.gen, k.got = gen, 0
		}
		if n != k.got {
			return
		}
		if k.got++; m.detach != nil {
			w.detach(i, *m.detach)
			return
		}
		k.step, k.batch, k.computes, k.pushes, k.read = m.step, m.release, false, false, slices.Repeat([]int64{-1}, w.Shards)
		k.climber = climber{branch: m.branch}
		w.work(i)
	})
}

func (w *stage) pull(s, shard, i int, term, step int64) {
	h := w.copyAt(s, shard)
	if h == nil || !w.reads(h, term) {
		return
	}
	at := [2]int64{int64(shard), h.Term()}
	if o, ok := w.answers[at]; ok && o != s {
		broken("servers %d and %d both answer for shard %d in term %d", o, s, shard, h.Term())
	}
	w.answers[at] = s
	seq, version, hash, log := h.Last(), h.version(), h.hash(h.Last()), slices.Clone(h.log)
	life := w.workers[i].attempt
	w.send(s, func() {
		w.do(i, func() {
			k := w.workers[i]
			if k.attempt != life || k.views[shard].Primary != s || k.step != step || k.pushes {
				return
			}
			for _, f := range log {
				w.keep(f)
			}
			key := [2]int64{int64(shard), seq}
			if o, ok := w.seen[key]; ok && o != hash {
				broken("shard %d has two histories of %d firings", shard, seq)
			}
			w.seen[key] = hash
			k.read[shard] = max(k.read[shard], version)
			if slices.Min(k.read) < k.batch.Version {
				return
			}
			w.compute(i)
		})
	})
}

// compute makes a worker compute its gradient, once.
func (w *stage) compute(i int) {
	k := w.workers[i]
	life, gen, step := k.attempt, k.gen, k.step
	if k.computes {
		return
	}
	k.computes = true
	w.at(w.now+w.after(computes), func() {
		w.do(i, func() {
			if k.attempt == life && k.gen == gen && k.step == step {
				k.pushes = true
				w.work(i)
			}
		})
	})
}
