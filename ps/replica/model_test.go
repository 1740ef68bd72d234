package replica_test

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/ps/replica"
)

// A job in which messages are lost, doubled, delayed and overtaken, servers crash, servers that were given up go on,
// servers get copies, and coordinators are replaced. What workers have seen must never be lost or be anything else
// later.

const (
	shards  = 2
	workers = 2
	steps   = 4
)

// firing is an update of one gradient.
type firing struct {
	seq int64
	g   replica.Gradient
	gen int64 // of the coordinator that made it
}

// holding is a copy: its holder knows the gradients and firings that are in it.
type holding struct {
	replica.Copy
	has map[replica.Gradient]bool
	log []firing
}

// hash is what the parameters are after a firing.
func (h *holding) hash(seq int64) uint64 {
	f := fnv.New64()
	for _, x := range h.log[:seq] {
		fmt.Fprintln(f, x.g)
	}
	return f.Sum64()
}

type server struct {
	alive  bool
	copies map[int]*holding
}

type worker struct {
	views []replica.View
	step  int64
	after int64   // the firing after which it may go on; 0: it has pushed, and waits
	read  []int64 // by shard: the version it has, of that
}

type coordinator struct {
	gen   int64
	table *replica.Table
	fires []firing
	given map[int]bool
	parts map[replica.Gradient]map[int]bool
	fired map[replica.Gradient]bool
}

type world struct {
	t       *rapid.T
	want    int
	servers []*server
	workers []*worker
	c       *coordinator
	net     []func() // delivers one message
	history map[int64]replica.Gradient
	seen    map[[2]int64]uint64 // by shard and version: what a worker read
	answers map[[2]int64]int    // by shard and term: the server that answered
}

func (w *world) send(deliver func()) { w.net = append(w.net, deliver) }

func newWorld(t *rapid.T) *world {
	want := rapid.IntRange(1, 3).Draw(t, "copies")
	n := rapid.IntRange(want, 5).Draw(t, "servers")
	w := &world{t: t, want: want, history: map[int64]replica.Gradient{}, seen: map[[2]int64]uint64{}, answers: map[[2]int64]int{}}
	hosts := make([]replica.Server, n)
	for i := range hosts {
		hosts[i].Host = fmt.Sprint(i % 2)
		w.servers = append(w.servers, &server{alive: true, copies: map[int]*holding{}})
	}
	primaries := make([]int, shards)
	for i := range primaries {
		primaries[i] = i % n
	}
	views, err := replica.Place(want, hosts, primaries)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range views {
		for s := range n {
			if v.Has(s) {
				w.servers[s].copies[i] = &holding{Copy: replica.NewCopy(s, v, 0), has: map[replica.Gradient]bool{}}
			}
		}
	}
	for range workers {
		w.workers = append(w.workers, &worker{views: slices.Clone(views), read: make([]int64, shards)})
	}
	w.c = &coordinator{table: replica.NewTable(want, views), given: map[int]bool{}, parts: map[replica.Gradient]map[int]bool{}, fired: map[replica.Gradient]bool{}}
	return w
}

// copyAt is a copy at a server that lives.
func (w *world) copyAt(s, shard int) *holding {
	if !w.servers[s].alive {
		return nil
	}
	return w.servers[s].copies[shard]
}

// work has a worker say again what it waits for.
func (w *world) work(i int) {
	k := w.workers[i]
	if k.step == steps {
		return
	}
	g := replica.Gradient{Worker: star.Worker(i), Step: k.step}
	for shard, v := range k.views {
		if k.after == 0 {
			for _, s := range append([]int{v.Primary}, v.Followers...) {
				w.send(func() { w.push(s, shard, g, v.Term) })
			}
		} else if k.read[shard] < k.after {
			w.send(func() { w.pull(v.Primary, shard, i, v.Term, k.step) })
		}
	}
}

func (w *world) push(s, shard int, g replica.Gradient, term int64) {
	h := w.copyAt(s, shard)
	if h == nil || h.Hear(term) != replica.Yes || h.Write(term) != replica.Yes {
		return
	}
	if term > h.Term() {
		w.t.Fatalf("server %d, term %d, took a gradient of term %d", s, h.Term(), term)
	}
	h.has[g] = true
	if h.Primary() && term < h.Term() { // its worker does not know of all copies
		for o := range w.servers {
			if f := w.copyAt(o, shard); f != nil && o != s && f.Term() == h.Term() {
				w.send(func() { w.push(o, shard, g, 0) })
			}
		}
	}
	c := w.c
	w.send(func() { w.stored(c, s, shard, g) })
}

func (w *world) stored(c *coordinator, s, shard int, g replica.Gradient) {
	if c == w.c && c.table.Stored(shard, s, g, 0) != nil {
		w.whole(shard, g)
	}
}

func (w *world) whole(shard int, g replica.Gradient) {
	c := w.c
	if c.parts[g] == nil {
		c.parts[g] = map[int]bool{}
	}
	c.parts[g][shard] = true
	if len(c.parts[g]) < shards || c.fired[g] {
		return
	}
	c.fired[g] = true
	c.fires = append(c.fires, firing{int64(len(c.fires)) + 1, g, c.gen})
	w.pump()
}

// pump tells followers of all firings, primaries of those that are ready, and workers of those that are acknowledged.
func (w *world) pump() {
	c := w.c
	c.table.Offer(int64(len(c.fires)))
	ready, acked := c.table.Ready(), c.table.Acked()
	for _, f := range c.fires {
		if f.seq > acked {
			for s := range w.servers {
				w.send(func() { w.fire(c, s, f, replica.ToFollowers) })
				if f.seq <= ready {
					w.send(func() { w.fire(c, s, f, replica.ToPrimaries) })
				}
			}
		}
		if f.seq > acked {
			continue
		}
		for shard := range shards {
			v := c.table.View(shard)
			for _, s := range append([]int{v.Primary}, v.Followers...) {
				if h := w.servers[s].copies[shard]; int64(len(h.log)) < f.seq {
					w.t.Fatalf("firing %d is acknowledged, but server %d does not hold it", f.seq, s)
				}
			}
		}
		w.keep(f)
		w.send(func() { w.release(int(f.g.Worker), f.g.Step, f.seq) })
	}
}

// keep notes what a worker was told or shown.
func (w *world) keep(f firing) {
	if g, ok := w.history[f.seq]; ok && g != f.g {
		w.t.Fatalf("firing %d was of %v, and is of %v now", f.seq, g, f.g)
	}
	w.history[f.seq] = f.g
}

func (w *world) fire(c *coordinator, s int, f firing, to replica.To) {
	for shard := range shards {
		h := w.copyAt(s, shard)
		if h == nil {
			continue
		}
		if !h.has[f.g] && f.seq == h.Last()+1 {
			if c.gen == f.gen && c == w.c && w.c.table.View(shard).Has(s) {
				w.t.Fatalf("firing %d names %v, which server %d does not hold", f.seq, f.g, s)
			}
			continue // of an earlier coordinator: its worker pushes it again
		}
		switch h.Fire(c.gen, f.seq, to) {
		case replica.New:
			h.log = append(h.log, f)
		case replica.Known:
		default:
			continue
		}
		if int64(len(h.log)) != h.Last() {
			w.t.Fatalf("server %d has made %d updates, of %d", s, len(h.log), h.Last())
		}
		term, seq := h.Term(), h.Last()
		w.send(func() {
			if c == w.c {
				ready, acked := c.table.Ready(), c.table.Acked()
				if c.table.Held(shard, s, term, seq); c.table.Ready() > ready || c.table.Acked() > acked {
					w.pump()
				}
			}
		})
	}
}

func (w *world) release(i int, step, seq int64) {
	if k := w.workers[i]; k.step == step && k.after == 0 {
		k.after = seq
		w.work(i)
	}
}

func (w *world) pull(s, shard, i int, term, step int64) {
	h := w.copyAt(s, shard)
	if h == nil || h.Hear(term) != replica.Yes || h.Read(term) != replica.Yes {
		return
	}
	if term > h.Term() {
		w.t.Fatalf("server %d, term %d, answers a worker of term %d", s, h.Term(), term)
	}
	at := [2]int64{int64(shard), h.Term()}
	if o, ok := w.answers[at]; ok && o != s {
		w.t.Fatalf("servers %d and %d both answer for shard %d in term %d", o, s, shard, h.Term())
	}
	w.answers[at] = s
	seq := h.Last()
	hash := h.hash(seq)
	log := slices.Clone(h.log)
	w.send(func() {
		k := w.workers[i]
		if k.views[shard].Primary != s || k.step != step || k.after == 0 {
			return
		}
		for _, f := range log {
			w.keep(f)
		}
		key := [2]int64{int64(shard), seq}
		if o, ok := w.seen[key]; ok && o != hash {
			w.t.Fatalf("shard %d has two versions %d", shard, seq)
		}
		w.seen[key] = hash
		k.read[shard] = max(k.read[shard], seq)
		if slices.Min(k.read) < k.after {
			return
		}
		k.step, k.after = k.step+1, 0
		w.work(i)
	})
}

// tell sends the view of a shard to all processes.
func (w *world) tell(shard int) {
	v := w.c.table.View(shard)
	for s := range w.servers {
		w.send(func() {
			if h := w.copyAt(s, shard); h != nil && v.Has(s) {
				h.Take(v)
			}
		})
	}
	for i := range w.workers {
		w.send(func() {
			if k := w.workers[i]; v.Term > k.views[shard].Term {
				k.views[shard] = v
				w.work(i)
			}
		})
	}
}

// lose takes a server out; false: a copy on it is the last one of a shard.
func (w *world) lose(s int) bool {
	for shard := range shards {
		if v := w.c.table.View(shard); v.Has(s) && v.Copies() == 1 {
			return false
		}
		if v := w.c.table.View(shard); v.Primary == s { // the only one to hold what workers of the last term have pushed
			for _, k := range w.workers {
				if k.views[shard].Term < v.Term {
					return false
				}
			}
		}
	}
	w.c.given[s] = true
	for _, c := range w.c.table.Lost(s) {
		for _, g := range c.Whole {
			w.whole(c.Shard, g.Gradient)
		}
		w.tell(c.Shard)
	}
	w.pump()
	return true
}

// join gives a server a copy, when nothing is on its way.
func (w *world) join() {
	c := w.c
	short := c.table.Short()
	if len(short) == 0 || c.table.Acked() < int64(len(c.fires)) {
		return
	}
	shard := short[0]
	v := c.table.View(shard)
	from := w.copyAt(v.Primary, shard)
	var free []replica.Server
	for s, o := range w.servers {
		free = append(free, replica.Server{Host: fmt.Sprint(s % 2), Gone: !o.alive || c.given[s], Copies: len(o.copies)})
	}
	s, ok := replica.Next(v, free)
	if !ok || from == nil || from.Term() != v.Term {
		return
	}
	term, err := c.table.Join(shard, s)
	if err != nil {
		w.t.Fatal(err)
	}
	has := maps.Clone(from.has)
	if v, err = c.table.Joined(shard, from.Last()); err != nil || v.Term != term {
		w.t.Fatalf("term %d, not %d: %v", v.Term, term, err)
	}
	from.Take(v) // the word to give said so
	w.servers[s].copies[shard] = &holding{Copy: replica.NewCopy(s, v, from.Last()), has: has, log: slices.Clone(from.log)}
	for g := range has {
		if !c.fired[g] {
			w.stored(c, s, shard, g)
		}
	}
	w.tell(shard)
}

// replace has another coordinator take over, from what the servers say.
func (w *world) replace() {
	c := &coordinator{gen: w.c.gen + 1, given: map[int]bool{}, parts: map[replica.Gradient]map[int]bool{}, fired: map[replica.Gradient]bool{}}
	var claims []replica.Claim
	for s, o := range w.servers {
		if !o.alive {
			c.given[s] = true
			continue
		}
		for shard, h := range o.copies {
			claims = append(claims, h.Claim(c.gen, shard))
		}
	}
	var from, to int64
	var err error
	if c.table, from, to, err = replica.Recover(c.gen, w.want, shards, claims); err != nil {
		w.t.Fatal(err)
	}
	for shard := range shards {
		for s := range w.servers {
			if h := w.copyAt(s, shard); h != nil && c.table.View(shard).Has(s) {
				for _, f := range h.log[min(len(h.log), len(c.fires)):] {
					c.fires = append(c.fires, f)
					c.fired[f.g] = true
				}
			}
		}
	}
	if int64(len(c.fires)) != to || from > to {
		w.t.Fatalf("firings %d to %d, of %d", from, to, len(c.fires))
	}
	w.c = c
	for shard := range shards {
		w.tell(shard)
	}
	w.pump()
}

func TestNothingThatWasSeenIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for i := range w.workers {
			w.work(i)
		}
		crashes := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {},
			"deliver": func(t *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(t, "messages") {
					if len(w.net) == 0 {
						return
					}
					i := rapid.IntRange(0, len(w.net)-1).Draw(t, "which")
					m := w.net[i]
					switch rapid.IntRange(0, 9).Draw(t, "fate") {
					case 0: // lost
						w.net = slices.Delete(w.net, i, i+1)
					case 1: // and again, later
						m()
					default:
						w.net = slices.Delete(w.net, i, i+1)
						m()
					}
				}
				if len(w.net) > 400 { // a network forgets
					w.net = w.net[len(w.net)-400:]
				}
			},
			"again": func(t *rapid.T) {
				w.work(rapid.IntRange(0, workers-1).Draw(t, "worker"))
				w.pump()
			},
			"crash": func(t *rapid.T) {
				s := rapid.IntRange(0, len(w.servers)-1).Draw(t, "server")
				if crashes < 3 && w.servers[s].alive && !w.c.given[s] && w.lose(s) {
					crashes++
					w.servers[s].alive = false
				}
			},
			"give up": func(t *rapid.T) {
				s := rapid.IntRange(0, len(w.servers)-1).Draw(t, "server")
				if crashes < 3 && w.servers[s].alive && !w.c.given[s] && w.lose(s) {
					crashes++
				}
			},
			"join":    func(t *rapid.T) { w.join() },
			"replace": func(t *rapid.T) { w.replace() },
		})
		w.settle()
	})
}

// settle delivers all messages. Then all workers are done, and every copy is the same.
func (w *world) settle() {
	for range 200 {
		done := true
		for i, k := range w.workers {
			done = done && k.step == steps
			w.work(i)
		}
		if done {
			break
		}
		for shard := range shards {
			w.tell(shard)
		}
		w.pump()
		for len(w.net) > 0 {
			batch := w.net
			w.net = nil
			for i, m := range batch {
				if i < 2000 {
					m()
				}
			}
			if len(w.net) > 2000 {
				w.net = w.net[:2000]
			}
		}
	}
	for i, k := range w.workers {
		if k.step != steps {
			w.t.Fatalf("worker %d hangs in step %d, after firing %d, with versions %v; firings %d, ready %d, acknowledged %d", i, k.step, k.after, k.read, len(w.c.fires), w.c.table.Ready(), w.c.table.Acked())
		}
	}
	applied := map[replica.Gradient]bool{}
	for shard := range shards {
		v := w.c.table.View(shard)
		p := w.servers[v.Primary].copies[shard]
		if len(p.log) != steps*workers {
			w.t.Fatalf("%d updates, of %d gradients", len(p.log), steps*workers)
		}
		for _, f := range p.log {
			if shard == 0 && applied[f.g] {
				w.t.Fatalf("%v is applied twice", f.g)
			}
			applied[f.g] = true
		}
		for _, s := range v.Followers {
			h := w.servers[s].copies[shard]
			if len(h.log) != len(p.log) || h.hash(h.Last()) != p.hash(p.Last()) {
				w.t.Fatalf("shard %d: servers %d and %d differ", shard, v.Primary, s)
			}
		}
	}
}
