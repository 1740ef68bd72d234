package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"star/coord/engine"
	"star/coord/moves"
	"star/internal/exitcode"
	"star/ps/replica"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Copies of shards while the job runs: who holds them, what each has said, and which orders wait for
// them. Package replica has the rules, engine.Copies the queue; here are the messages. How a process
// that takes the job over finds out who holds what is in replicareports.go.

// copies is what the coordinator knows of the copies of shards (Config.Replicas); package replica
// has the rules. Orders wait here until copies hold their firings: followers are told first, then
// primaries, then workers are released.
// An order is in one of three places: not yet offered (withheld, or a shard moves), offered to
// followers and waiting for their word, or told to primaries and waiting for theirs. Tables and queue
// are package replica's and engine.Copies'; both are pure.
type copies struct {
	*engine.Copies
	ready   []map[int]bool         // by shard: servers that have its parameters, before the job begins
	freeing bool                   // an order whose turn has come is being carried out
	norms   []map[int]event        // by shard and server: the last it said
	counted map[int64]map[int]bool // by firing: shards whose norms count already

	from  int64     // firing up to which the copy that is being sent goes
	retry time.Time // not before that another one is begun
	short bool      // was said
}

// placeCopies decides, when shards are cut, who holds copies of them. An error: there are fewer
// servers than copies, which New has refused.
func (c *Coordinator) placeCopies() error {
	if c.cfg.Replicas < 2 {
		return nil
	}
	views, err := replica.Place(c.cfg.Replicas, c.places(true), c.owner)
	if err != nil {
		return err
	}
	c.copies = newCopies(replica.NewTable(c.cfg.Replicas, views), len(views), 0)
	return nil
}

// beginCopies has servers know of that.
func (c *Coordinator) beginCopies() {
	if c.copies == nil {
		return
	}
	for shard := range c.shards {
		for _, s := range c.copies.Table.View(shard).Followers {
			c.servers[s].hello.Shards++
		}
		c.tellServers(shard)
	}
}

// places lists the servers as places for copies. first: none of them has one but of its own shards.
// One that has come back and has yet to say what it has is none: what it has that counts no more it
// is told to forget then, and would forget a new copy, too.
func (c *Coordinator) places(first bool) []replica.Server {
	out := make([]replica.Server, len(c.servers))
	for i, s := range c.servers {
		out[i] = replica.Server{Host: c.site(s), Gone: s.gone || s.unsaid || i < c.cfg.Coordinators, Spare: s.hello.Shards == 0}
		if host, _, err := net.SplitHostPort(s.hello.Addr); err == nil && host != "" && out[i].Host == "" {
			out[i].Host = host
		}
		if !first {
			out[i].Copies = s.hello.Shards
		}
	}
	return out
}

// viewOf is the message that says who holds a shard. The primary is first, and followers are in
// order of succession.
func (c *Coordinator) viewOf(shard int) wire.View {
	v := c.copies.Table.View(shard)
	m := wire.View{Shard: shard, Term: v.Term, From: c.shards[shard].From, To: c.shards[shard].To}
	for _, s := range append([]int{v.Primary}, v.Followers...) {
		m.Holders = append(m.Holders, wire.Holder{Rank: s, Addr: c.servers[s].hello.Addr})
	}
	return m
}

// tellServers has the holders of a shard know its view, and notes who was told.
func (c *Coordinator) tellServers(shard int) {
	m := c.viewOf(shard)
	for _, h := range m.Holders {
		c.hosts[[2]int{h.Rank, shard}] = true
		p := c.servers[h.Rank]
		c.send(p, func() error { return transport.Send(p.conn, m, nil) })
	}
}

// tellView has everybody know who holds a shard now. Servers first, then workers, also those who
// are on their way into the job: a worker pushes to whom it knows, and a server that has not heard
// of its part would turn it away.
func (c *Coordinator) tellView(shard int) {
	v := c.copies.Table.View(shard)
	c.owner[shard], c.shards[shard].Addr = v.Primary, c.servers[v.Primary].hello.Addr
	c.tellServers(shard)
	m := c.viewOf(shard)
	for _, p := range slices.Concat(c.workers, c.late) {
		if p != nil && p.welcomed {
			c.send(p, func() error { return transport.Send(p.conn, m, nil) })
		}
	}
}

// tellViews follows the Welcome of a worker.
func (c *Coordinator) tellViews(p *peer) {
	if c.copies == nil || p.role != wire.RoleWorker {
		return
	}
	for shard := range c.shards {
		m := c.viewOf(shard)
		c.send(p, func() error { return transport.Send(p.conn, m, nil) })
	}
}

// readyAt notes that a server has the parameters of a shard. It reports whether every copy has.
// Without copies one server's word is enough.
func (c *Coordinator) readyAt(p *peer, shard int) bool {
	if c.copies == nil {
		return true
	}
	k := c.copies
	k.ready[shard][p.rank] = true
	return c.readyAll(shard)
}

// spared says whether the job can begin without a server that has its shards already: others have
// the parameters of each of them.
func (c *Coordinator) spared(p *peer) bool {
	if c.copies == nil || c.takeover != nil || p.rank == 0 && !c.replaceable() {
		return false
	}
	for shard := range c.shards {
		if v := c.copies.Table.View(shard); v.Has(p.rank) && !slices.ContainsFunc(holders(v), func(s int) bool { return s != p.rank && c.copies.ready[shard][s] && !c.servers[s].gone }) {
			return false
		}
	}
	return true
}

// wholeAt notes that a copy holds a gradient. When every copy does it returns what they say of it,
// else nil.
func (c *Coordinator) wholeAt(p *peer, m wire.Stored) []replica.Sum {
	if c.copies == nil || m.Shard < 0 || m.Shard >= len(c.shards) { // the scheduler says what is wrong
		return []replica.Sum{{Server: p.rank, Sum2: m.Sum2}}
	}
	return c.copies.Table.Stored(m.Shard, p.rank, replica.Gradient{Worker: m.Worker, Step: m.Step}, m.Sum2)
}

// whole passes on gradients that are whole since somebody is gone. The engine hears of them as if
// their last copy had just said so. An error ends the job.
func (c *Coordinator) whole(shard int, gs []replica.Whole) error {
	for _, g := range gs {
		orders, err := c.engine.Stored(shard, g.Worker, g.Step, g.Sums...)
		if err == nil {
			err = c.carry(orders)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answersFor says whether a server is the one whose word counts for a shard.
func (c *Coordinator) answersFor(p *peer, shard int) bool {
	return c.copies == nil || shard >= 0 && shard < len(c.owner) && c.owner[shard] == p.rank
}

// held notes that a copy holds firings.
func (c *Coordinator) held(p *peer, m wire.Held) error {
	if c.copies == nil || m.Shard < 0 || m.Shard >= len(c.shards) {
		return c.drop(p, fmt.Errorf("held of shard %d, which has no copies", m.Shard))
	}
	if c.settling() { // what it claims; its report follows
		c.takeover.copies[[2]int{p.rank, m.Shard}] = m.Seq
		return nil
	}
	c.copies.Table.Held(m.Shard, p.rank, m.Term, m.Seq)
	return c.pump()
}

// chain puts orders behind those that wait for copies. Followers are told of their firings at once.
// An error ends the job with the next orders (sick).
func (c *Coordinator) chain(orders []engine.Ready) {
	for i := range orders {
		c.offer(&orders[i])
	}
	if err := c.pump(); err != nil && c.sick == nil {
		c.sick = err
	}
}

// offer puts an order behind those that wait, and tells followers of its firing.
func (c *Coordinator) offer(o *engine.Ready) {
	c.copies.Offer(o)
	if o.Fire.Seq > 0 {
		for _, s := range c.servers {
			if s != nil && !s.gone && c.follows(s.rank) {
				c.send(s, func() error { return transport.Send(s.conn, wire.Ahead(o.Fire), o.Metadata) })
			}
		}
	}
}

// keeps has a release wait for those before it. It reports false when there are none.
func (c *Coordinator) keeps(r wire.Release) bool {
	k := c.copies
	return k != nil && !k.freeing && k.Keep(r)
}

// follows says whether a server is a follower in any shard.
func (c *Coordinator) follows(server int) bool {
	for shard := range c.shards {
		if slices.Contains(c.copies.Table.View(shard).Followers, server) {
			return true
		}
	}
	return false
}

// pump carries out what copies hold: primaries are told of what all followers hold, and workers are
// released when all copies hold it. It is called whenever a copy's word has come, or a copy is
// gone. While it runs, a call from within does nothing: the loop of the first goes on.
func (c *Coordinator) pump() error {
	k := c.copies
	if k.freeing {
		return nil
	}
	if _, waits := k.Waits(); waits && !c.may() {
		return nil
	}
	k.freeing = true
	defer func() { k.freeing = false }()
	for o := k.Ripe(); o != nil; o = k.Ripe() {
		c.fire(o)
	}
	if err := c.countNorms(); err != nil {
		return err
	}
	c.out.Together(func() {
		for o, ok := k.Due(); ok; o, ok = k.Due() {
			c.progress = time.Now()
			c.follow(&o)
		}
	})
	return nil
}

// normAt keeps what a copy says of a firing: its word counts when it is the primary and primaries
// know of the firing.
func (c *Coordinator) normAt(p *peer, e event) error {
	if e.norm.Shard < 0 || e.norm.Shard >= len(c.shards) {
		return c.drop(p, fmt.Errorf("a norm of shard %d, of %d", e.norm.Shard, len(c.shards)))
	}
	c.copies.norms[e.norm.Shard][p.rank] = e
	return c.countNorms()
}

// countNorms hands on what primaries said of firings that the coordinator knows to be made, each
// shard's once for each firing: after a change of primary the new one says it again.
func (c *Coordinator) countNorms() error {
	k := c.copies
	for shard, said := range k.norms {
		e, ok := said[c.owner[shard]]
		if !ok || e.norm.Seq > k.Told() {
			continue
		}
		delete(said, c.owner[shard])
		seq := e.norm.Seq
		if !c.norms.Expects(seq) || k.counted[seq][shard] {
			continue
		}
		if k.counted[seq] == nil {
			k.counted[seq] = map[int]bool{}
		}
		k.counted[seq][shard] = true
		if len(k.counted[seq]) == len(c.shards) {
			delete(k.counted, seq)
		}
		if err := c.norm(c.servers[c.owner[shard]], e); err != nil {
			return err
		}
	}
	return nil
}

// lostServer goes on without a server, if every shard has a copy elsewhere.
//
// Of each shard of which it was the primary a follower becomes one, under a higher term; gradients
// that only it lacked are whole by that, and orders that waited for its word go on. A successor
// knows of the new views before anybody else. *Error with exit code 69: it had the last copy of a
// shard.
func (c *Coordinator) lostServer(p *peer, why error) error {
	k := c.copies
	c.log.Warn("a server is gone", "server", p.rank, "addr", p.hello.Addr, "reason", why)
	if shard, to, passing := c.mover.Passing(p.rank); passing && k.Table.View(shard).Copies() == 2 {
		// What it had still to pass on to the new copy is lost with it.
		return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost while server %d got a copy of shard %d, and nobody else has one: %v", p.rank, p.hello.Addr, to, shard, why)}
	}
	if err := c.move(c.mover.Gone(p.rank, why)); err != nil {
		return err
	}
	changes := k.Table.Lost(p.rank)
	for _, ch := range changes {
		if ch.Gone {
			return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost, and with it the last copy of shard %d: %v", p.rank, p.hello.Addr, ch.Shard, why)}
		}
	}
	p.hello.Shards = 0
	if slices.ContainsFunc(changes, func(ch replica.Change) bool { return !ch.Gave }) && !c.persistCopies() {
		return nil
	}
	for _, ch := range changes {
		if ch.Gave {
			continue
		}
		line := runlog.Replica{Shard: ch.Shard, Event: "lost", Server: p.rank, Why: why.Error()}
		if ch.Promoted {
			line.Event = "promoted"
		}
		c.noteCopies(line)
		c.tellView(ch.Shard)
		if ch.Promoted {
			c.saveAgain(ch.Shard)
		}
	}
	for _, ch := range changes {
		if err := c.whole(ch.Shard, ch.Whole); err != nil {
			return err
		}
	}
	if err := c.pump(); err != nil {
		return err
	}
	return c.tryFinish()
}

// noteCopies writes down what has happened to the copies of a shard. Before the log has its first
// line, in a job that is taken over, the line is kept for later.
func (c *Coordinator) noteCopies(l runlog.Replica) {
	v := c.copies.Table.View(l.Shard)
	l.Term, l.Primary, l.Followers, l.Of = v.Term, v.Primary, append([]int{}, v.Followers...), c.copies.Table.Want()
	switch {
	case c.opened:
		c.cfg.RunLog.Write(c.elapsed(), l)
	case c.takeover != nil: // else everybody comes to what there is when the training begins
		c.unopened = append(c.unopened, runlog.Line{T: c.elapsed(), Entry: l})
	}
	c.log.Info("copies of a shard", "shard", l.Shard, "event", l.Event, "server", l.Server, "term", l.Term, "primary", l.Primary, "copies", v.Copies(), "of", l.Of)
}

// saveAgain has another primary write a shard's part of a checkpoint that the last one has not
// finished. While the job trains the checkpoint fails instead, because the new primary may have
// gone on to a later version; the next one is tried when it is due.
func (c *Coordinator) saveAgain(shard int) {
	if c.saves.Open() {
		c.perform(c.saves.Moved(shard, c.owner[shard], c.engine.State().Seq))
		c.trySaved()
	}
}

// watchCopies has a server get a copy where one is missing. One copy at a time, while the job
// trains: it goes the way of a move (mover), except that the shard stays where it is, too.
func (c *Coordinator) watchCopies(now time.Time) error {
	k := c.copies
	_, moving := c.mover.Busy()
	if k == nil || c.engine == nil || c.rounds.Final() || c.ended || c.short() || moving || len(c.late) > 0 || now.Before(k.retry) {
		return nil
	}
	missing := k.Table.Short()
	if len(missing) == 0 {
		k.short = false
		return nil
	}
	for _, shard := range missing {
		v := k.Table.View(shard)
		to, ok := replica.Next(v, c.places(false))
		if !ok {
			if !k.short {
				c.log.Warn("a shard has fewer copies than it is to have, and there is no server for another one", "shard", shard, "copies", v.Copies(), "of", k.Table.Want())
			}
			k.short = true
			continue
		}
		s := c.shards[shard]
		s.Addr = c.servers[v.Primary].hello.Addr
		j := moves.Job{ShardInfo: s, Source: v.Primary, Target: to, Copy: true}
		c.log.Info("a server gets a copy of a shard", "shard", shard, "from", v.Primary, "to", to, "bytes", j.Bytes())
		return c.move(c.mover.Begin(now, j))
	}
	return nil
}

// lendCopy begins to send a copy: from now on no gradient is whole without it. The copy is of the
// state behind the last firing (from); it gets every later firing itself.
func (c *Coordinator) lendCopy(e moves.Lend) error {
	if _, err := c.copies.Table.Join(e.Shard, e.Server); err != nil {
		return err
	}
	c.copies.from = c.engine.State().Seq
	return nil
}

// shareCopy makes a copy one that counts. It has everything that the primary has, and gets everything
// that follows. A successor knows of it before any member. An error ends the job.
func (c *Coordinator) shareCopy(e moves.Share) error {
	if _, err := c.copies.Table.Joined(e.Shard, c.copies.from); err != nil {
		return err
	}
	if !c.persistCopies() {
		return nil
	}
	c.servers[e.Server].hello.Shards++
	c.noteCopies(runlog.Replica{Shard: e.Shard, Event: "copied", Server: e.Server, Took: runlog.SecondsOf(e.Took)})
	c.tellView(e.Shard)
	return nil
}

// dropCopy gives up a copy that was being sent, and goes on with what waited for it.
func (c *Coordinator) dropCopy(e moves.Uncopied) error {
	c.endCopy(e.Shard, e.Server, e.Why)
	return c.whole(e.Shard, c.copies.Table.GiveUp(e.Shard))
}

// unshareCopy takes back a copy that counts already, but may lack what the primary had still to
// pass on. The server is told to forget it, and gradients that waited for its message are whole
// without it. Another copy is tried after copyPause.
func (c *Coordinator) unshareCopy(e moves.Unshare) error {
	k, to := c.copies, c.servers[e.Server]
	if !k.Table.View(e.Shard).Has(e.Server) || to.gone {
		return nil
	}
	whole := k.Table.Drop(e.Shard, e.Server)
	if !c.persistCopies() {
		return nil
	}
	to.hello.Shards--
	c.forgetCopy(to, e.Shard)
	c.endCopy(e.Shard, e.Server, e.Why)
	if !c.servers[e.Source].gone {
		c.tellView(e.Shard)
	}
	return c.whole(e.Shard, whole)
}

// endCopy notes that a server gets no copy.
func (c *Coordinator) endCopy(shard, server int, why string) {
	c.copies.retry = time.Now().Add(copyPause)
	c.noteCopies(runlog.Replica{Shard: shard, Event: "uncopied", Server: server, Why: why})
}

// copyPause is how long nothing is copied after it has failed.
const copyPause = 2 * time.Second

// takeServer has a server in the place of one that is gone, in a job that has begun: without
// shards, until it gets copies. The lowest free place, or that of its rank. The error is what it is
// refused with, exit code 75.
func (c *Coordinator) takeServer(p *peer) error {
	rank := p.rank
	for i, s := range c.servers {
		if i > 0 && i >= c.cfg.Coordinators && s.gone && (rank < 0 || rank == i) {
			rank = i
			break
		}
	}
	if rank < 0 || rank >= len(c.servers) || !c.servers[rank].gone {
		return fmt.Errorf("all %d servers of the job are there", len(c.servers))
	}
	if c.rounds.Final() || c.ended {
		return errors.New("the job ends")
	}
	p.rank, p.welcomed, p.hello.Shards = rank, true, 0
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", rank, p.conn.RemoteAddr()))
	c.servers[rank] = p
	c.log.Info("a server takes the place of one that is gone", "server", rank, "addr", p.hello.Addr)
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{Rank: rank, Workers: c.cfg.Workers, Elapsed: c.elapsed(), Term: c.term()}, nil)
	})
	layout, _ := json.Marshal(c.enrolled)
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Assign{Of: len(c.shards), Params: c.hello.Params, Workers: c.cfg.Workers, Generation: c.cfg.Generation, Key: c.key}, layout)
	})
	return nil
}

// waitsForCopies says whose word is missing; empty: nobody's. It names the first firing that is not
// held everywhere.
func (c *Coordinator) waitsForCopies() string {
	k := c.copies
	if k == nil {
		return ""
	}
	seq, waits := k.Waits()
	if !waits {
		return ""
	}
	var who []int
	for shard := range c.shards {
		for _, s := range k.Table.Behind(shard, seq) {
			if !slices.Contains(who, s) {
				who = append(who, s)
			}
		}
	}
	slices.Sort(who)
	return fmt.Sprintf("the word of servers %v that they hold firing %d", who, seq)
}
