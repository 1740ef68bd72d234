package chaos

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"star"
	"star/engine"
	"star/replica"
)

// Takeover is a fault of rehearsals: another process takes over the coordination, while what the first one has said is still on its way.
const Takeover Kind = "takeover"

// RehearsalKinds are the faults of a rehearsal. Nobody there has a wall clock that could jump, and all is in one mode.
var RehearsalKinds = append(slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k == Clock || k == Mode }), Takeover)

// Rehearsal is a job in virtual time, whose shards have copies: the rules of package replica, the order of engine.Copies, and a network in which messages are lost, doubled, late
// and overtaken. Zero fields mean what their comments say.
type Rehearsal struct {
	Seed    uint64
	Workers int           // zero: 3
	Servers int           // zero: 4
	Shards  int           // zero: 2
	Copies  int           // of each shard; zero: 2
	Steps   int64         // of each worker; zero: 12
	Every   time.Duration // mean time between two faults; zero: 150 ms
	Until   time.Duration // none begins later; zero: 1.5 s

	// Unfenced switches off on purpose what keeps those out who have been replaced: copies listen to every coordinator, and answer whoever asks.
	Unfenced bool
}

// Rehearsable are the promises that a rehearsal looks at.
var Rehearsable = []string{
	"one lineage of versions: whatever anybody was told or shown of an update stays true",
	"no acknowledged update is lost: every copy in force holds it",
	"every gradient once: none is lost at the end, none is counted twice",
	"one copy answers for a shard in a term, and copies are equal",
	"no stall: everybody comes to the end",
}

// Rehearsed is what has become of a rehearsal.
type Rehearsed struct {
	Faults  int
	Updates int64
	Took    time.Duration // virtual
	Broken  string        // the first promise that was not kept; empty: all were
}

// Delays of a rehearsal's network and members.
const (
	typicalDelay = 2 * time.Millisecond
	again        = 50 * time.Millisecond  // who waits says again what it wants
	noticed      = 100 * time.Millisecond // an end of a connection
	givenUp      = time.Second            // who is silent for so long
	returns      = 300 * time.Millisecond // a worker that was killed
	latest       = 5 * time.Minute        // by then everybody must be done
)

// Run rehearses the job under a schedule of faults made from the seed (Schedule).
func (r Rehearsal) Run() (out Rehearsed) {
	r.Workers, r.Servers, r.Shards, r.Copies = cmp.Or(r.Workers, 3), cmp.Or(r.Servers, 4), cmp.Or(r.Shards, 2), cmp.Or(r.Copies, 2)
	r.Steps, r.Every, r.Until = cmp.Or(r.Steps, 12), cmp.Or(r.Every, 150*time.Millisecond), cmp.Or(r.Until, 1500*time.Millisecond)
	w := &stage{Rehearsal: r, rnd: rand.New(rand.NewPCG(r.Seed, 0xacc)), history: map[int64]replica.Gradient{}, seen: map[[2]int64]uint64{}, answers: map[[2]int64]int{}}
	defer func() {
		out = Rehearsed{w.done, int64(len(w.c.fires)), w.now, out.Broken}
		if b := recover(); b != nil {
			v, ok := b.(violation)
			if !ok {
				panic(b)
			}
			out.Broken = fmt.Sprintf("%v: %s", w.now.Round(time.Microsecond), string(v))
		}
	}()
	w.begin()
	for _, f := range Schedule(Options{Seed: r.Seed, Workers: r.Workers, Servers: r.Servers, Kinds: RehearsalKinds, Every: r.Every, Until: r.Until, Longest: 2 * givenUp, Most: r.Servers}) {
		w.at(f.At, func() { w.suffer(f) })
	}
	for len(w.agenda) > 0 && !w.over() {
		e := heap.Pop(&w.agenda).(happening)
		if w.now = e.at; w.now > latest {
			w.stuck()
		}
		e.f()
	}
	w.compare()
	return out
}

// violation is a promise that was not kept.
type violation string

func (w *stage) broken(format string, a ...any) { panic(violation(fmt.Sprintf(format, a...))) }

// happening is something that happens at a time.
type happening struct {
	at time.Duration
	n  int // for those at one time
	f  func()
}

type agenda []happening

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happening)) }
func (a *agenda) Pop() any {
	x := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return x
}

// firing is an update of one gradient.
type firing struct {
	seq int64
	g   replica.Gradient
	gen int64 // of the coordinator that made it
}

// holding is a copy of a shard: what it was sent, and the updates that it made.
type holding struct {
	replica.Copy
	has map[replica.Gradient]bool
	log []firing
}

// hash stands for the parameters after a firing.
func (h *holding) hash(seq int64) uint64 {
	f := fnv.New64()
	for _, x := range h.log[:seq] {
		fmt.Fprintln(f, x.g)
	}
	return f.Sum64()
}

type actor struct { // a server
	alive  bool
	copies map[int]*holding
	silent time.Duration // nothing reaches or leaves it until then
	cut    int           // counts the ends of its connections
	slow   time.Duration // its messages take longer until then
	factor float64
}

type trainee struct { // a worker
	attempt int // counts its deaths
	dead    bool
	frozen  time.Duration // it does nothing until then
	views   []replica.View
	step    int64
	after   int64   // the firing after which it goes on; 0: it has pushed, and waits
	read    []int64 // by shard: the version that it has
}

type director struct { // a coordinator
	gen int64
	*engine.Copies
	due   int64 // the last firing of which every copy holds what it wants
	fires []firing
	given map[int]bool // servers that it has given up
	parts map[replica.Gradient]map[int]bool
	fired map[replica.Gradient]bool
}

// chain puts a firing behind those that wait for copies.
func (c *director) chain(f firing) {
	var o engine.Ready
	o.Fire.Seq = f.seq
	c.Offer(&o)
}

// stage is a rehearsal that goes on.
type stage struct {
	Rehearsal
	rnd     *rand.Rand
	now     time.Duration
	agenda  agenda
	n       int
	done    int // faults that were inflicted
	damaged int // messages that are still to be damaged
	servers []*actor
	workers []*trainee
	c       *director

	history map[int64]replica.Gradient // firings that somebody was told of
	seen    map[[2]int64]uint64        // by shard and version: what a worker read
	answers map[[2]int64]int           // by shard and term: who answered
}

func (w *stage) at(t time.Duration, f func()) {
	w.n++
	heap.Push(&w.agenda, happening{max(t, w.now), w.n, f})
}

// send has a message delivered after a while, or twice, or not at all. server is the one that it comes from or goes to; -1: none.
func (w *stage) send(server int, deliver func()) {
	if w.damaged > 0 { // a damaged frame ends its connection, and nothing of it is used
		w.damaged--
		return
	}
	copies := 1
	switch w.rnd.IntN(40) {
	case 0:
		return
	case 1:
		copies = 2
	}
	for range copies {
		delay := float64(typicalDelay) * w.rnd.ExpFloat64()
		if w.rnd.IntN(30) == 0 {
			delay *= 30
		}
		if server < 0 {
			w.at(w.now+time.Duration(delay), deliver)
			continue
		}
		s := w.servers[server]
		if w.now < s.slow {
			delay *= s.factor
		}
		cut := s.cut
		var arrive func()
		arrive = func() {
			switch {
			case s.cut != cut: // it was on its way when the connection ended
			case w.now < s.silent:
				w.at(s.silent+time.Duration(w.rnd.ExpFloat64()*float64(typicalDelay)), arrive)
			default:
				deliver()
			}
		}
		w.at(w.now+time.Duration(delay), arrive)
	}
}

// do has a worker do something when it is not stopped, and still lives.
func (w *stage) do(i int, f func()) {
	life := w.workers[i].attempt
	var now func()
	now = func() {
		switch k := w.workers[i]; {
		case k.dead || k.attempt != life:
		case w.now < k.frozen:
			w.at(k.frozen, now)
		default:
			f()
		}
	}
	now()
}

func (w *stage) begin() {
	hosts := make([]replica.Server, w.Servers)
	for i := range hosts {
		hosts[i].Host = fmt.Sprint(i % 2)
		w.servers = append(w.servers, &actor{alive: true, copies: map[int]*holding{}})
	}
	primaries := make([]int, w.Shards)
	for i := range primaries {
		primaries[i] = i % w.Servers
	}
	views, err := replica.Place(w.Copies, hosts, primaries)
	if err != nil {
		w.broken("no place for %d copies on %d servers: %v", w.Copies, w.Servers, err)
	}
	for i, v := range views {
		for s := range w.Servers {
			if v.Has(s) {
				w.servers[s].copies[i] = &holding{Copy: replica.NewCopy(s, v, 0), has: map[replica.Gradient]bool{}}
			}
		}
	}
	w.c = newDirector(0)
	w.c.Copies = engine.NewCopies(replica.NewTable(w.Copies, views), 0)
	for i := range w.Workers {
		w.workers = append(w.workers, &trainee{views: slices.Clone(views), read: make([]int64, w.Shards)})
		w.insist(i)
	}
	var tick func()
	tick = func() {
		w.pump()
		w.join()
		for shard := range w.Shards {
			w.tell(shard)
		}
		w.at(w.now+again, tick)
	}
	w.at(again, tick)
}

func newDirector(gen int64) *director {
	return &director{gen: gen, given: map[int]bool{}, parts: map[replica.Gradient]map[int]bool{}, fired: map[replica.Gradient]bool{}}
}

// insist has a worker say now and then what it waits for.
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

// over says whether every worker is through.
func (w *stage) over() bool {
	for _, k := range w.workers {
		if k.dead || k.step < w.Steps {
			return false
		}
	}
	return w.c.due == int64(len(w.c.fires))
}

// suffer inflicts a fault.
func (w *stage) suffer(f Fault) {
	w.done++
	switch f.Kind {
	case Kill, Term:
		k := w.workers[f.Target]
		if k.dead {
			return
		}
		k.dead = true
		k.attempt++
		w.at(w.now+returns, func() { w.comeBack(f.Target) })
	case Pause:
		w.workers[f.Target].frozen = w.now + f.For
	case StopAndGo:
		for at := time.Duration(0); at < f.For; at += time.Second {
			w.at(w.now+at, func() { w.workers[f.Target].frozen = w.now + 800*time.Millisecond })
		}
	case Cut:
		w.servers[f.Target].cut++
	case Silence:
		s := w.servers[f.Target]
		s.silent = w.now + f.For
		c := w.c
		w.at(w.now+givenUp, func() { // if it is not heard of until then, it is taken for gone, and goes on
			if w.now < s.silent && c == w.c {
				w.lose(f.Target)
			}
		})
	case SlowLink:
		s := w.servers[f.Target]
		s.slow, s.factor = w.now+f.For, 1e6/float64(f.Rate)
	case Corrupt:
		w.damaged++
	case Server:
		if s := w.servers[f.Target]; s.alive && w.spare(f.Target) {
			s.alive = false
			c := w.c
			w.at(w.now+noticed, func() {
				if c == w.c {
					w.lose(f.Target)
				}
			})
		}
	case Takeover:
		w.replace()
	}
}

// comeBack is a worker that was killed: what it had in memory is gone, and the coordinator says at which step the job has it. Only what is acknowledged
// counts there: an update that no copy holds is gone with the coordinator that made it.
func (w *stage) comeBack(i int) {
	k := w.workers[i]
	k.dead, k.step, k.after, k.read = false, 0, 0, make([]int64, w.Shards)
	for _, f := range w.c.fires[:w.c.due] {
		if int(f.g.Worker) == i {
			k.step = max(k.step, f.g.Step+1)
		}
	}
	for shard := range w.Shards {
		k.views[shard] = w.c.Table.View(shard)
	}
	w.insist(i)
}

// spare says whether a server may go: somebody else has what it has. With all copies of something gone there is nothing to promise.
func (w *stage) spare(s int) bool {
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		if !v.Has(s) {
			continue
		}
		others := 0
		for _, o := range append([]int{v.Primary}, v.Followers...) {
			if o != s && w.servers[o].alive && !w.c.given[o] && w.now >= w.servers[o].silent {
				others++
			}
		}
		if others == 0 {
			return false
		}
	}
	return true
}

// copyAt is a copy at a server that lives.
func (w *stage) copyAt(s, shard int) *holding {
	if !w.servers[s].alive {
		return nil
	}
	return w.servers[s].copies[shard]
}

// takes says whether a copy takes a gradient of a worker of that term, reads whether it answers one with parameters.
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

// work has a worker say what it waits for.
func (w *stage) work(i int) {
	k := w.workers[i]
	if k.step == w.Steps {
		return
	}
	g := replica.Gradient{Worker: star.Worker(i), Step: k.step}
	for shard, v := range k.views {
		if k.after == 0 {
			for _, s := range append([]int{v.Primary}, v.Followers...) {
				w.send(s, func() { w.push(s, shard, g, v.Term) })
			}
		} else if k.read[shard] < k.after {
			w.send(v.Primary, func() { w.pull(v.Primary, shard, i, v.Term, k.step) })
		}
	}
}

func (w *stage) push(s, shard int, g replica.Gradient, term int64) {
	h := w.copyAt(s, shard)
	if h == nil || !w.takes(h, term) {
		return
	}
	h.has[g] = true
	if h.Primary() && term < h.Term() { // its worker does not know of everybody
		for o := range w.servers {
			if f := w.copyAt(o, shard); f != nil && o != s && f.Term() == h.Term() {
				w.send(o, func() { w.push(o, shard, g, 0) })
			}
		}
	}
	c := w.c
	w.send(s, func() { w.stored(c, s, shard, g) })
}

func (w *stage) stored(c *director, s, shard int, g replica.Gradient) {
	if c == w.c && c.Table.Stored(shard, s, g, 0) != nil {
		w.whole(shard, g)
	}
}

// whole is a gradient that all copies of a shard hold; when those of all shards do, it becomes an update.
func (w *stage) whole(shard int, g replica.Gradient) {
	c := w.c
	if c.parts[g] == nil {
		c.parts[g] = map[int]bool{}
	}
	c.parts[g][shard] = true
	if len(c.parts[g]) < w.Shards || c.fired[g] {
		return
	}
	c.fired[g] = true
	f := firing{int64(len(c.fires)) + 1, g, c.gen}
	c.fires = append(c.fires, f)
	c.chain(f)
	w.pump()
}

// pump tells followers of all firings, primaries of those that are ready, and workers of those that are acknowledged.
func (w *stage) pump() {
	c := w.c
	for c.Ripe() != nil { // primaries are told of it below, again and again
	}
	for {
		o, ok := c.Due()
		if !ok {
			break
		}
		c.due = o.Fire.Seq
	}
	for _, f := range c.fires {
		if f.seq > c.due {
			for s := range w.servers {
				w.send(s, func() { w.fire(c, s, f, replica.ToFollowers) })
				if f.seq <= c.Told() {
					w.send(s, func() { w.fire(c, s, f, replica.ToPrimaries) })
				}
			}
			continue
		}
		for shard := range w.Shards {
			v := c.Table.View(shard)
			for _, s := range append([]int{v.Primary}, v.Followers...) {
				if h := w.servers[s].copies[shard]; int64(len(h.log)) < f.seq {
					w.broken("an acknowledged update is lost: %d, which server %d does not hold", f.seq, s)
				}
			}
		}
		w.keep(f)
		w.send(-1, func() { w.release(int(f.g.Worker), f.g.Step, f.seq) })
	}
}

// keep notes what a worker was told or shown.
func (w *stage) keep(f firing) {
	if g, ok := w.history[f.seq]; ok && g != f.g {
		w.broken("two lineages: update %d was of worker %d's step %d, and is of worker %d's step %d now", f.seq, g.Worker, g.Step, f.g.Worker, f.g.Step)
	}
	w.history[f.seq] = f.g
}

func (w *stage) fire(c *director, s int, f firing, to replica.To) {
	for shard := range w.Shards {
		h := w.copyAt(s, shard)
		if h == nil {
			continue
		}
		if !h.has[f.g] && f.seq == h.Last()+1 {
			if c.gen == f.gen && c == w.c && c.Table.View(shard).Has(s) {
				w.broken("update %d names the gradient of worker %d's step %d, which server %d does not hold", f.seq, f.g.Worker, f.g.Step, s)
			}
			continue // of an earlier coordinator: its worker pushes it again
		}
		gen := c.gen
		if w.Unfenced {
			gen = 1 << 62
		}
		switch h.Fire(gen, f.seq, to) {
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

func (w *stage) release(i int, step, seq int64) {
	w.do(i, func() {
		if k := w.workers[i]; k.step == step && k.after == 0 {
			k.after = seq
			w.work(i)
		}
	})
}

func (w *stage) pull(s, shard, i int, term, step int64) {
	h := w.copyAt(s, shard)
	if h == nil || !w.reads(h, term) {
		return
	}
	at := [2]int64{int64(shard), h.Term()}
	if o, ok := w.answers[at]; ok && o != s {
		w.broken("servers %d and %d both answer for shard %d in term %d", o, s, shard, h.Term())
	}
	w.answers[at] = s
	seq, hash, log := h.Last(), h.hash(h.Last()), slices.Clone(h.log)
	life := w.workers[i].attempt
	w.send(s, func() {
		w.do(i, func() {
			k := w.workers[i]
			if k.attempt != life || k.views[shard].Primary != s || k.step != step || k.after == 0 {
				return
			}
			for _, f := range log {
				w.keep(f)
			}
			key := [2]int64{int64(shard), seq}
			if o, ok := w.seen[key]; ok && o != hash {
				w.broken("shard %d has two versions %d", shard, seq)
			}
			w.seen[key] = hash
			k.read[shard] = max(k.read[shard], seq)
			if slices.Min(k.read) < k.after {
				return
			}
			k.step, k.after = k.step+1, 0
			w.work(i)
		})
	})
}

// tell has everybody know the view of a shard.
func (w *stage) tell(shard int) {
	v, c := w.c.Table.View(shard), w.c
	for s := range w.servers {
		w.send(s, func() {
			if h := w.copyAt(s, shard); h != nil && v.Has(s) {
				h.Take(v)
			}
		})
	}
	for i := range w.workers {
		w.send(-1, func() {
			w.do(i, func() {
				if k := w.workers[i]; v.Term > k.views[shard].Term && c == w.c {
					k.views[shard] = v
					w.work(i)
				}
			})
		})
	}
}

// lose gives a server up. It stays where nobody else has what it has: with all copies gone there is nothing to promise.
func (w *stage) lose(s int) {
	if w.c.given[s] {
		return
	}
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		if v.Has(s) && v.Copies() == 1 {
			return
		}
		for _, k := range w.workers { // it may be the only one to hold what workers of an earlier term have pushed
			if v.Primary == s && w.servers[s].alive && !k.dead && k.views[shard].Term < v.Term {
				w.at(w.now+again, func() { w.lose(s) })
				return
			}
		}
	}
	w.c.given[s] = true
	for _, c := range w.c.Table.Lost(s) {
		for _, g := range c.Whole {
			w.whole(c.Shard, g.Gradient)
		}
		w.tell(c.Shard)
	}
	w.pump()
}

// join gives a shard that lacks a copy another one, when nothing is on its way.
func (w *stage) join() {
	c := w.c
	short := c.Table.Short()
	if len(short) == 0 || c.due < int64(len(c.fires)) {
		return
	}
	shard := short[0]
	v := c.Table.View(shard)
	from := w.copyAt(v.Primary, shard)
	var free []replica.Server
	for s, o := range w.servers {
		free = append(free, replica.Server{Host: fmt.Sprint(s % 2), Gone: !o.alive || c.given[s] || w.now < o.silent, Copies: len(o.copies)})
	}
	s, ok := replica.Next(v, free)
	if !ok || from == nil || from.Term() != v.Term || w.now < w.servers[v.Primary].silent {
		return
	}
	term, err := c.Table.Join(shard, s)
	if err != nil {
		w.broken("server %d is to have a copy of shard %d: %v", s, shard, err)
	}
	has := maps.Clone(from.has)
	if v, err = c.Table.Joined(shard, from.Last()); err != nil || v.Term != term {
		w.broken("server %d has a copy of shard %d in term %d, not %d: %v", s, shard, v.Term, term, err)
	}
	from.Take(v) // the word to give said so
	h := &holding{Copy: replica.NewCopy(s, v, from.Last()), has: has, log: slices.Clone(from.log)}
	h.Claim(c.gen, shard) // whoever gives a server a copy is who it listens to, and to nobody before
	w.servers[s].copies[shard] = h
	order := func(a, b replica.Gradient) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Step, b.Step))
	}
	for _, g := range slices.SortedFunc(maps.Keys(has), order) {
		if !c.fired[g] {
			w.stored(c, s, shard, g)
		}
	}
	w.tell(shard)
}

// replace has another coordinator take over, from what the servers say that it can reach.
func (w *stage) replace() {
	c := newDirector(w.c.gen + 1)
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
	slices.SortFunc(claims, func(a, b replica.Claim) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Shard, b.Shard))
	})
	table, from, to, err := replica.Recover(c.gen, w.Copies, w.Shards, claims)
	if err != nil {
		w.broken("nobody can take over: %v", err)
	}
	c.Copies, c.due = engine.NewCopies(table, from), from
	for shard := range w.Shards {
		for s := range w.servers {
			if h := w.copyAt(s, shard); h != nil && c.Table.View(shard).Has(s) {
				for _, f := range h.log[min(len(h.log), len(c.fires)):] {
					c.fires = append(c.fires, f)
					c.fired[f.g] = true
				}
			}
		}
	}
	if int64(len(c.fires)) != to || from > to {
		w.broken("another coordinator goes on with updates %d to %d, of %d", from, to, len(c.fires))
	}
	for _, f := range c.fires[from:] {
		c.chain(f)
	}
	w.c = c
	for shard := range w.Shards {
		w.tell(shard)
	}
	w.pump()
}

// stuck says who hangs.
func (w *stage) stuck() {
	for i, k := range w.workers {
		if k.step < w.Steps {
			w.broken("a stall: worker %d is in step %d since long, after update %d, with versions %v; %d updates, %d acknowledged", i, k.step, k.after, k.read, len(w.c.fires), w.c.Table.Acked())
		}
	}
	w.broken("a stall: %d updates, %d acknowledged", len(w.c.fires), w.c.Table.Acked())
}

// compare looks at the end: every gradient is in every copy, once, in the same order.
func (w *stage) compare() {
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		p := w.servers[v.Primary].copies[shard]
		once := map[replica.Gradient]bool{}
		for _, f := range p.log {
			if once[f.g] {
				w.broken("counted twice: worker %d's step %d", f.g.Worker, f.g.Step)
			}
			once[f.g] = true
		}
		if n := w.Steps * int64(w.Workers); int64(len(once)) != n {
			w.broken("lost: %d updates of shard %d, of %d gradients", len(once), shard, n)
		}
		for _, s := range v.Followers {
			if h := w.servers[s].copies[shard]; len(h.log) != len(p.log) || h.hash(h.Last()) != p.hash(p.Last()) {
				w.broken("copies differ: shard %d at servers %d and %d", shard, v.Primary, s)
			}
		}
	}
}
