package chaos

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// Takeover is a fault of rehearsals: another process takes over the coordination while messages of the first one are in
// flight.
const Takeover Kind = "takeover"

// RehearsalKinds are the faults of a rehearsal. No process in it has a wall clock.
var RehearsalKinds = append(slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k == Clock }), Takeover)

// rehearsedModes are the modes of jobs without trees; the seed selects one.
var rehearsedModes = []string{"asgd", "ssgd", "x=2", "backup=1", "groups=0,1/2",
	"ssgd local=2 outer=nesterov", "x=2 grace=300ms local=3 steps=speed outer=delayed", "asgd local=2 outer=lookahead", "ssgd local=4 outer=nesterov fragments=2"}

// Rehearsal is a job in virtual time that runs the code of real jobs. With servers, engine.Shards decides in one of
// several modes, engine.Copies decides when members are informed, package replica tracks which server has what, and
// package takeover decides where another coordinator continues; in a ring, engine.Ring decides. The network of servers
// loses, duplicates, delays and reorders messages. The comment of a field says what zero means.
type Rehearsal struct {
	Seed    uint64
	Workers int           // zero: 3; at least 4 in a ring, 5 in trees
	Servers int           // zero: 4
	Shards  int           // zero: 2
	Copies  int           // of each shard; zero: 2
	Steps   int64         // of each worker, on average; zero: 12
	Ring    bool          // all-reduce: workers have the parameters, there are no servers
	Trees   bool          // workers report through others; in a ring they do not
	Every   time.Duration // mean time between two faults; zero: 150 ms
	Until   time.Duration // none begins later; zero: 1.5 s

	// Unfenced disables fencing on purpose: copies accept every coordinator and answer every reader.
	Unfenced bool
}

// Rehearsable are the promises that a rehearsal checks.
var Rehearsable = []string{
	"one lineage of versions: whatever anybody was told or shown of an update stays true",
	"no acknowledged update is lost: every copy in force holds it",
	"every sample once: none is lost at the end, none is counted twice",
	"one copy answers for a shard in a term, and copies are equal",
	"no stall: every worker reaches the end",
}

// Rehearsed is the result of a rehearsal.
type Rehearsed struct {
	Faults  int
	Updates int64
	Took    time.Duration // virtual
	Broken  string        // the first broken promise; empty: all were kept
}

// Delays of a rehearsal's network and members.
const (
	typicalDelay = 2 * time.Millisecond
	computes     = 10 * time.Millisecond  // a worker, a batch, on average
	again        = 50 * time.Millisecond  // a waiting member repeats its request
	noticed      = 100 * time.Millisecond // the end of a connection is detected
	givenUp      = time.Second            // a silent member is lost
	returns      = 300 * time.Millisecond // a worker that was killed, on average
	latest       = 5 * time.Minute        // all members must be done
)

// course is a running rehearsal.
type course interface {
	begin()
	suffer(Fault)
	next()      // after each event
	over() bool // the job is over and no message is in flight
	stuck()     // no event is left: reports the members that hang
	compare()   // at the end
	version() int64
}

// Run rehearses the job under a schedule of faults made from the seed (Schedule).
func (r Rehearsal) Run() (out Rehearsed) {
	c := &clock{rnd: rand.New(rand.NewPCG(r.Seed, 0xacc))}
	r.Workers, r.Servers, r.Shards, r.Copies = cmp.Or(r.Workers, 3), cmp.Or(r.Servers, 4), cmp.Or(r.Shards, 2), cmp.Or(r.Copies, 2)
	r.Steps, r.Every, r.Until = cmp.Or(r.Steps, 12), cmp.Or(r.Every, 150*time.Millisecond), cmp.Or(r.Until, 1500*time.Millisecond)
	var w course
	ways := r.Servers
	switch {
	case r.Ring:
		r.Workers = max(r.Workers, 4)
		w, ways = newArena(r, c), 1+r.Workers
	case r.Trees:
		r.Workers = max(r.Workers, 5)
		fallthrough
	default:
		w = newStage(r, c)
	}
	defer func() {
		out.Updates, out.Took = w.version(), c.now
		if b := recover(); b != nil {
			v, ok := b.(violation)
			if !ok {
				panic(b)
			}
			out.Broken = fmt.Sprintf("%v: %s", c.now.Round(time.Microsecond), string(v))
		}
	}()
	w.begin()
	for _, f := range Schedule(Options{Seed: r.Seed, Workers: r.Workers, Servers: ways, Kinds: RehearsalKinds, Every: r.Every, Until: r.Until, Longest: 2 * givenUp, Most: ways}) {
		c.at(f.At, func() {
			out.Faults++
			w.suffer(f)
		})
	}
	for w.next(); len(c.agenda) > 0 && !w.over(); w.next() {
		e := heap.Pop(&c.agenda).(happening)
		if c.now = e.at; c.now > latest {
			w.stuck()
		}
		e.f()
	}
	w.compare()
	return out
}

// violation is a broken promise.
type violation string

func broken(format string, a ...any) { panic(violation(fmt.Sprintf(format, a...))) }

// happening is an event at a time.
type happening struct {
	at time.Duration
	n  int // order of events at the same time
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

// clock is virtual time and the events to come.
type clock struct {
	rnd    *rand.Rand
	now    time.Duration
	agenda agenda
	n      int
}

// at schedules an event, now at the earliest.
func (w *clock) at(t time.Duration, f func()) {
	w.n++
	heap.Push(&w.agenda, happening{max(t, w.now), w.n, f})
}

// after draws a time that has this mean and is exponentially distributed.
func (w *clock) after(mean time.Duration) time.Duration {
	return time.Duration(float64(mean) * w.rnd.ExpFloat64())
}

// stage is a running rehearsal with servers.
type stage struct {
	Rehearsal
	*clock
	damaged int // number of messages still to be damaged
	servers []*actor
	workers []*trainee
	c       *director

	plan     modes.Plan // of the job; while others are in force
	handover handover

	history map[int64]string                  // firings that a member has received
	batches map[replica.Gradient]engine.Span  // the samples of each gradient
	pushed  map[replica.Gradient][]wire.Share // the workers with gradients in a push, if more than one
	seen    map[[2]int64]uint64               // by shard and firing: what a worker read
	answers map[[2]int64]int                  // by shard and term: the server that answered
}

// send delivers a message after a delay, or twice, or not at all. server is its sender or receiver; -1: none.
func (w *stage) send(server int, deliver func()) {
	if w.damaged > 0 { // a damaged frame ends its connection and is discarded
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
			case s.cut != cut: // in flight when the connection ended
			case w.now < s.silent:
				w.at(s.silent+time.Duration(w.rnd.ExpFloat64()*float64(typicalDelay)), arrive)
			default:
				deliver()
			}
		}
		w.at(w.now+time.Duration(delay), arrive)
	}
}

// do runs f for a worker when the worker is not stopped, if it still lives.
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

func newStage(r Rehearsal, c *clock) *stage {
	return &stage{Rehearsal: r, clock: c, history: map[int64]string{}, batches: map[replica.Gradient]engine.Span{}, pushed: map[replica.Gradient][]wire.Share{}, seen: map[[2]int64]uint64{}, answers: map[[2]int64]int{}}
}

func (w *stage) next() {}

func (w *stage) version() int64 { return w.c.e.View().Version }

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
		broken("no place for %d copies on %d servers: %v", w.Copies, w.Servers, err)
	}
	for i, v := range views {
		for s := range w.Servers {
			if v.Has(s) {
				w.servers[s].copies[i] = &holding{Copy: replica.NewCopy(s, v, 0), has: map[replica.Gradient]bool{}}
			}
		}
	}
	for i := range w.Workers {
		w.workers = append(w.workers, &trainee{views: slices.Clone(views), gen: -1, step: -1})
		w.insist(i)
	}
	w.plan = w.anyMode()
	w.handover.plan = w.plan
	w.coordinate(0, engine.NewCopies(replica.NewTable(w.Copies, views), 0), nil)
	w.handover.steps = w.c.e.Steps()
	w.agree()
	w.carry(w.c.e.Begin(nil), nil)
	var tick func()
	tick = func() {
		w.pump()
		w.remind()
		w.join()
		for shard := range w.Shards {
			w.tell(shard)
		}
		w.at(w.now+again, tick)
	}
	w.at(again, tick)
}

// mode parses a plan.
func (r *Rehearsal) mode(text string) modes.Plan {
	p, err := modes.Parse(text, r.Workers)
	if err != nil {
		broken("mode %s: %v", text, err)
	}
	return p
}

// pick draws an element of a list.
func pick[T any](rnd *rand.Rand, list []T) T { return list[rnd.IntN(len(list))] }

// over reports whether the job is over.
func (w *stage) over() bool {
	_, waits := w.c.Waits()
	return !waits && !w.c.e.View().Unfinished()
}

// suffer inflicts a fault.
func (w *stage) suffer(f Fault) {
	switch f.Kind {
	case Kill, Term:
		k := w.workers[f.Target]
		if k.dead {
			return
		}
		k.dead = true
		k.attempt++
		c := w.c
		w.at(w.now+noticed, func() {
			if k.dead {
				w.missed(c, f.Target)
			}
		})
		w.at(w.now+w.after(returns), func() { w.comeBack(f.Target) })
	case Pause:
		w.workers[f.Target].frozen = w.now + f.For
	case StopAndGo:
		for at := time.Duration(0); at < f.For; at += time.Second {
			w.at(w.now+at, func() { w.workers[f.Target].frozen = w.now + 800*time.Millisecond })
		}
	case Cut:
		if w.servers[f.Target].cut++; w.Trees { // and ways between workers
			w.workers[w.rnd.IntN(w.Workers)].apart = w.now + 2*givenUp
		}
	case Silence:
		s := w.servers[f.Target]
		s.silent = w.now + f.For
		c := w.c
		w.at(w.now+givenUp, func() { // a member that stays silent until then is treated as gone, and continues
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
	case Mode:
		other := w.mode("asgd")
		if w.Trees {
			other = w.anyMode()
		} else if w.plan.String() == other.String() {
			other = w.mode("ssgd")
		}
		w.install(other)
		w.at(w.now+f.For, func() { w.install(w.plan) })
	}
}

// spare reports whether a server may be lost: another server has its data. The job promises nothing once all copies are
// lost.
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

// stuck reports the members that hang.
func (w *stage) stuck() {
	st := w.c.e.View()
	for i, k := range w.workers {
		if a := w.c.e.Worker(star.Worker(i)); !a.Parked {
			broken("a stall under %s: worker %d is in step %d since long, of version %d, with versions %v; the engine has it at step %d, of version %d; %d firings, %d acknowledged, %d of %d samples",
				w.c.e.View().Plan, i, k.step, k.batch.Version, k.read, a.Step, a.Basis, st.Seq, w.c.Table.Acked(), st.Used, w.samples())
		}
	}
	broken("a stall: %d firings, %d acknowledged", st.Seq, w.c.Table.Acked())
}

// compare checks at the end that every sample is in every copy, once, in the same order, except for gradients that a
// plan leaves out.
func (w *stage) compare() {
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		p := w.servers[v.Primary].copies[shard]
		times := make([]int, w.samples())
		for _, f := range p.log {
			if len(f.note) == 0 { // other workers have computed what was dropped
				continue
			}
			for _, g := range slices.Concat(f.Gradients, f.Dropped) {
				for _, m := range w.content(replica.Gradient{Worker: g.Worker, Step: g.Step}) {
					s := w.batches[replica.Gradient{Worker: m.Worker, Step: m.Step}]
					for i := range s.Count {
						times[s.Start+int64(i)]++
					}
				}
			}
		}
		for i, n := range times {
			if n != 1 {
				broken("sample %d is in shard %d %d times, under %s", i, shard, n, w.plan)
			}
		}
		for _, s := range v.Followers {
			if h := w.servers[s].copies[shard]; len(h.log) != len(p.log) || h.hash(h.Last()) != p.hash(p.Last()) {
				broken("copies differ: shard %d at servers %d and %d", shard, v.Primary, s)
			}
		}
	}
}
