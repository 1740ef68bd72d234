package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"star"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// mover decides what happens while a shard moves from one server to another. It is pure: it
// takes what was heard and says what is to be done. docs/protocol.md draws the messages.
//
//	         begin            prepared, and no checkpoint           loaded              complete
//	idle ─────────► preparing ───────────────────────────► copying ────────► routing ───────────► idle
//	  ▲                 │ failed, late, the new server lost   │
//	  └─────────────────┴─────────────────────────────────────┘
//
// Until routing, the old server has everything, so that whatever goes wrong at the new one
// ends the move and nothing else. While copying, nothing is fired: what is due waits, and then goes
// to the new server or, if the move has failed, to the old one.
type mover struct {
	stage    moveStage
	id       int64
	shard    int
	from, to int  // ranks of servers
	prepared bool // waits for a checkpoint that is being written
	copies   bool // the other server gets a copy: the shard stays
}

type moveStage uint8

const (
	moveIdle moveStage = iota
	movePreparing
	moveCopying
	moveRouting
)

// moveStep is one thing to be done.
type moveStep uint8

const (
	tellPrepare  moveStep = iota // the new server: make room
	tellForget                   // the new server: it stays where it is
	tellOwn                      // the new server: it is yours
	tellGive                     // the old server: send it; from now on nothing is fired
	tellKeep                     // the old server: go on
	tellGone                     // the old server: it is the other's
	tellRoutes                   // every worker: where it is now
	goOn                         // what was due is fired
	moveDone                     // nothing of it is at the old server any more
	moveFailed                   // it did not happen
	moveLost                     // it was half done, and the job cannot go on
	tellLend                     // a copy: the old server sends it; from now on nothing is fired
	tellShared                   // a copy: both have it
	moveUnshared                 // a copy: it may lack something that is lost
)

// begin starts a move. saving says whether a checkpoint is being written, here and below.
func (m *mover) begin(shard, from, to int) []moveStep {
	*m = mover{stage: movePreparing, id: m.id + 1, shard: shard, from: from, to: to}
	return []moveStep{tellPrepare}
}

// said takes what the new server says. What is said of another move than the present one changes
// nothing.
func (m *mover) said(server int, msg wire.Moved, saving bool) []moveStep {
	if m.stage == moveIdle || server != m.to || msg.Move != m.id {
		return nil // of a move that was given up
	}
	if msg.Err != "" {
		return m.fail()
	}
	if m.copies && m.stage == moveCopying && msg.Stage == wire.Loaded {
		m.stage = moveRouting
		return []moveStep{tellShared, goOn}
	}
	switch {
	case m.stage == movePreparing && msg.Stage == wire.Prepared:
		m.prepared = true
		return m.copy(saving)
	case m.stage == moveCopying && msg.Stage == wire.Loaded:
		m.stage = moveRouting
		return []moveStep{tellOwn, tellGone, tellRoutes, goOn}
	case m.stage == moveRouting && msg.Stage == wire.Complete:
		m.stage = moveIdle
		return []moveStep{moveDone}
	}
	return nil
}

// copy goes on from preparing when it can: the state must not be sent while it is saved. It is
// asked again on every tick until then.
func (m *mover) copy(saving bool) []moveStep {
	if m.stage != movePreparing || !m.prepared || saving {
		return nil
	}
	m.stage = moveCopying
	if m.copies {
		return []moveStep{tellLend}
	}
	return []moveStep{tellGive}
}

// fail ends a move that has failed, or has taken too long. Behind the point at which the new server
// has it, only a copy that is not whole can be taken back; a shard that is lost then is lost.
func (m *mover) fail() []moveStep {
	stage := m.stage
	m.stage = moveIdle
	if m.copies && stage == moveRouting { // it counts already: what becomes of it is another matter
		return []moveStep{tellKeep, moveUnshared}
	}
	switch stage {
	case movePreparing:
		return []moveStep{tellForget, moveFailed}
	case moveCopying:
		return []moveStep{tellForget, tellKeep, moveFailed, goOn}
	case moveRouting:
		return []moveStep{moveLost}
	}
	return nil
}

// lost notes that a server is gone.
func (m *mover) lost(server int) []moveStep {
	if m.stage == moveIdle || server != m.from && server != m.to {
		return nil
	}
	return m.fail()
}

// holds says whether nothing is to be fired now.
func (m *mover) holds() bool { return m.stage == moveCopying }

// moving is what the coordinator knows of a move beside its stage. Orders that were due while the
// shard was on its way are in held, and go to whoever has it then; answers are for those who asked
// for the move.
// Times are by this process's clock; limit is moved on with each stage, by how long that may take.
type moving struct {
	runlog.Move
	begun, copying time.Time
	held           []engine.Ready
	heldSince      time.Time
	limit          time.Time // then it has taken too long
	why            string    // it failed
	answers        []chan<- reply
}

// moveTimeout is how long a step of a move of that many bytes may take.
func moveTimeout(bytes int64) time.Duration {
	return 30*time.Second + time.Duration(bytes>>20)*time.Second
}

// Move has a shard moved to the server of a rank while the job runs, and returns when that is done:
// from then on the new server has it. An error says why it stays where it is; the job goes on in
// either case. The result says how long it took, and by how much the next update was late. It may
// be called from any goroutine but that of Run; one move is under way at a time.
func (c *Coordinator) Move(ctx context.Context, shard, server int) (runlog.Move, error) {
	var m runlog.Move
	err := c.Ask(ctx, &m, "move", strconv.Itoa(shard), strconv.Itoa(server))
	return m, err
}

// ShardStatus says where a shard is. Server is the one that it is at now, also while it moves; with
// copies it is the primary.
type ShardStatus struct {
	Shard  int   `json:"shard"`
	Server int   `json:"server"` // its rank
	Bytes  int64 `json:"bytes"`  // of its parameters
	Moving bool  `json:"moving,omitempty"`

	// With copies (Config.Replicas): the term of its view, and who else holds it, in order of succession.
	Term      int64 `json:"term,omitempty"`
	Followers []int `json:"followers,omitempty"`
	Replicas  int   `json:"replicas,omitempty"` // that there are to be
}

// ServerStatus is one star-ps process.
type ServerStatus struct {
	Server int    `json:"server"` // its rank
	Host   string `json:"host"`
	Addr   string `json:"addr"`
	Shards int    `json:"shards"`
	Gone   bool   `json:"gone,omitempty"`

	// CopyRate is what the last shard that moved here came with, in bytes per second; 0: none
	// did.
	CopyRate float64 `json:"copy_Bps,omitempty"`

	Site string      `json:"site,omitempty"` // with --move-shards auto: its host, as workers name theirs
	Load *ServerLoad `json:"load,omitempty"` // likewise, of a server that says so
}

// placed lists servers and shards. For the status: a server that has not come is not among them,
// one that is gone is.
func (c *Coordinator) placed() (servers []ServerStatus, shards []ShardStatus) {
	for i, s := range c.servers {
		if s == nil {
			continue
		}
		servers = append(servers, ServerStatus{Server: i, Host: s.hello.Host, Addr: s.hello.Addr, Gone: s.gone, CopyRate: s.copyRate})
		servers[len(servers)-1].Shards = 0
		if c.cfg.Shift {
			servers[len(servers)-1].Site, servers[len(servers)-1].Load = c.site(s), c.serverLoad(s)
		}
	}
	for i, s := range c.shards {
		shards = append(shards, ShardStatus{Shard: i, Server: c.owner[i], Bytes: 4 * (s.To - s.From), Moving: c.mover.stage != moveIdle && c.mover.shard == i})
		if c.copies != nil {
			v, st := c.copies.Table.View(i), &shards[i]
			st.Term, st.Followers, st.Replicas = v.Term, v.Followers, c.copies.Table.Want()
		}
		for j := range servers {
			if servers[j].Server == c.owner[i] {
				servers[j].Shards++
			}
		}
	}
	return servers, shards
}

// beginMove carries out star ctl move. The answer comes when the move has ended. What is against it
// is in the reply. An error ends the job.
func (c *Coordinator) beginMove(e event) error {
	shard, to, err := c.moveArgs(e.control[1:])
	switch {
	case err != nil:
	case !c.sharded():
		err = errors.New("an all-reduce has no shards")
	case c.replaceable():
		err = errors.New("in a job with --coordinators shards stay where they are")
	case c.copies != nil:
		err = errors.New("shards with copies (--replicas) stay where they are")
	case c.mover.stage != moveIdle:
		err = fmt.Errorf("shard %d is moving: one at a time", c.mover.shard)
	case c.final || c.ended:
		err = errors.New("the job is about to end")
	case c.short():
		err = fmt.Errorf("the job waits for workers: %d are there, of at least %d (--min-workers)", c.engine.Live(), c.least())
	case len(c.late) > 0:
		err = fmt.Errorf("worker %d is coming to the job: try again in a moment", c.late[0].rank)
	case c.owner[shard] == to:
		err = fmt.Errorf("shard %d is at server %d already", shard, to)
	}
	if err != nil {
		e.reply <- reply{err: "move: " + err.Error()}
		return nil
	}
	s := c.shards[shard]
	now := time.Now()
	c.moving = moving{
		Move:  runlog.Move{Shard: shard, From: c.owner[shard], To: to, Bytes: 4 * (s.To - s.From)},
		begun: now, limit: now.Add(moveTimeout(0)), answers: []chan<- reply{e.reply},
	}
	c.log.Info("a shard moves", "shard", shard, "from", c.owner[shard], "to", to, "bytes", c.moving.Bytes)
	return c.moveOn(c.mover.begin(shard, c.owner[shard], to))
}

// moveArgs reads SHARD and the rank, the host or the address of a server. A host counts only if one
// server is there. Errors say what there is to choose from.
func (c *Coordinator) moveArgs(args []string) (shard, to int, err error) {
	if len(args) != 2 {
		return 0, 0, errors.New("want SHARD SERVER: a shard's number, and the rank, the host or the address of a star-ps")
	}
	shard, err = strconv.Atoi(args[0])
	if err != nil || shard < 0 || shard >= len(c.shards) {
		return 0, 0, fmt.Errorf("shard %q is not one of 0 to %d", args[0], len(c.shards)-1)
	}
	if to, err = strconv.Atoi(args[1]); err != nil {
		var at []int
		for i, s := range c.servers {
			host, _, _ := net.SplitHostPort(s.hello.Addr)
			if args[1] == s.hello.Host || args[1] == host || args[1] == s.hello.Addr {
				at = append(at, i)
			}
		}
		if len(at) != 1 {
			return 0, 0, fmt.Errorf("%d servers are at %q (%v): give the rank of one", len(at), args[1], at)
		}
		to = at[0]
	}
	if to < 0 || to >= len(c.servers) {
		return 0, 0, fmt.Errorf("server %d is not one of 0 to %d", to, len(c.servers)-1)
	}
	if c.servers[to].gone {
		return 0, 0, fmt.Errorf("server %d is gone", to)
	}
	return shard, to, nil
}

// moved hears from the server to which a shard moves. A move that failed there has its reason in
// the log and in the answer.
func (c *Coordinator) moved(p *peer, m wire.Moved) error {
	if c.mover.stage != moveIdle && p.rank == c.mover.to && m.Move == c.mover.id {
		if m.Err != "" {
			c.moving.why = fmt.Sprintf("server %d: %s", p.rank, m.Err)
		}
		c.moving.Version = max(c.moving.Version, m.Version)
	}
	return c.moveOn(c.mover.said(p.rank, m, c.save != nil || c.short()))
}

// watchMove gives up a move that takes too long, and goes on with one that waited. Behind the point
// at which the new server has the shard nothing is given up any more: it is waited for like any
// server.
func (c *Coordinator) watchMove(now time.Time) error {
	if c.short() { // what is ordered is kept until workers come, and these are not told where shards are while one moves
		return c.dropMove("the job waits for workers")
	}
	if c.mover.stage == movePreparing || c.mover.stage == moveCopying {
		if now.After(c.moving.limit) {
			c.moving.why = fmt.Sprintf("server %d: nothing was heard of it in time", c.mover.to)
			return c.moveOn(c.mover.fail())
		}
	}
	return c.moveOn(c.mover.copy(c.save != nil))
}

// dropMove gives up a move that has not come far, because the job ends, or waits.
func (c *Coordinator) dropMove(why string) error {
	if c.mover.stage != movePreparing {
		return nil
	}
	c.moving.why = why
	return c.moveOn(c.mover.fail())
}

// moveOn does what the mover says. One after the other, in their order; an error ends the job,
// because the shard is nowhere any more.
func (c *Coordinator) moveOn(steps []moveStep) error {
	m, now := &c.moving, time.Now()
	if len(steps) == 0 {
		return nil
	}
	id, shard, from, to := c.mover.id, c.mover.shard, c.servers[c.mover.from], c.servers[c.mover.to]
	s := c.shards[shard]
	adopt := func(stage wire.AdoptStage) {
		c.send(to, func() error {
			return transport.Send(to.conn, wire.Adopt{Move: id, Stage: stage, Shard: shard, Addr: from.hello.Addr, From: s.From, To: s.To}, nil)
		})
	}
	hand := func(stage wire.HandStage) {
		c.send(from, func() error {
			return transport.Send(from.conn, wire.Hand{Move: id, Stage: stage, Shard: shard, Seq: c.engine.State().Seq}, nil)
		})
	}
	for _, step := range steps {
		switch step {
		case tellPrepare:
			c.hosts[[2]int{c.mover.to, shard}] = true
			adopt(wire.Prepare)
		case tellForget:
			adopt(wire.Forget)
		case tellOwn:
			c.handOver(shard, to, now)
			adopt(wire.Own)
		case tellLend:
			m.Prepare, m.copying, m.limit = runlog.SecondsOf(now.Sub(m.begun)), now, now.Add(moveTimeout(4*m.Bytes))
			if err := c.lendCopy(); err != nil {
				return err
			}
			hand(wire.Lend)
		case tellShared:
			adopt(wire.Own)
			if err := c.shareCopy(); err != nil {
				return err
			}
			hand(wire.Shared)
		case tellGive:
			m.Prepare, m.copying, m.limit = runlog.SecondsOf(now.Sub(m.begun)), now, now.Add(moveTimeout(4*m.Bytes))
			hand(wire.Give)
		case tellKeep:
			hand(wire.Keep)
		case tellGone:
			hand(wire.Gone)
		case tellRoutes:
			c.tellRoutes(shard, to.hello.Addr)
			c.endMove("")
		case goOn:
			held := m.held
			m.held = nil
			if err := c.carry(held); err != nil {
				return err
			}
		case moveUnshared:
			if err := c.unshareCopy(); err != nil {
				return err
			}
		case moveDone:
			if c.mover.copies {
				continue
			}
			from.hello.Shards--
			c.log.Debug("nothing of the shard is at its old place any more", "shard", shard, "server", from.rank)
		case moveFailed:
			if c.mover.copies {
				c.endCopy(m.why)
				if err := c.dropCopy(); err != nil {
					return err
				}
				continue
			}
			c.endMove(m.why)
		case moveLost:
			return &Error{exitcode.Lost, fmt.Sprintf("shard %d was on its way from server %d to server %d: %s", shard, from.rank, to.rank, m.why)}
		}
	}
	return nil
}

// tellRoutes has every worker know where a shard is now. Those who come later hear of it with their
// Welcome.
func (c *Coordinator) tellRoutes(shard int, addr string) {
	for w, p := range c.workers {
		if p != nil && !p.gone {
			c.send(p, func() error {
				return transport.Send(p.conn, wire.Route{Worker: star.Worker(w), Shard: shard, Addr: addr}, nil)
			})
		}
	}
}

// handOver notes that a server has the shard that moved to it. The times that are noted are those
// of the log's line: how long the copy took, and by how much an update was late.
func (c *Coordinator) handOver(shard int, to *peer, now time.Time) {
	m := &c.moving
	c.owner[shard] = c.mover.to
	c.shards[shard].Addr = to.hello.Addr
	to.hello.Shards++
	to.copyRate = float64(m.Bytes) / now.Sub(m.copying).Seconds()
	m.Copy = runlog.SecondsOf(now.Sub(m.copying))
	if !m.heldSince.IsZero() {
		m.Delay = runlog.SecondsOf(now.Sub(m.heldSince))
	}
}

// endMove writes down what became of a move, and answers whoever asked for it. why is empty where
// the shard is at its new place. What was measured of both servers' links begins anew.
func (c *Coordinator) endMove(why string) {
	m := &c.moving
	m.Err = why
	c.shift.forget(m.From, m.To)
	c.cfg.RunLog.Write(c.elapsed(), m.Move)
	r := reply{}
	if why != "" {
		c.log.Warn("a shard stays where it is", "shard", m.Shard, "server", m.From, "reason", why)
		r.err = fmt.Sprintf("move: shard %d stays at server %d: %s", m.Shard, m.From, why)
	} else {
		c.log.Info("a shard has moved", "shard", m.Shard, "from", m.From, "to", m.To, "bytes", m.Bytes,
			"copied_in", m.Copy.Duration().Round(time.Microsecond), "update_late_by", m.Delay.Duration().Round(time.Microsecond))
		r.json, _ = json.Marshal(m.Move)
	}
	for _, a := range m.answers {
		a <- r
	}
	m.answers = nil
}

// hold keeps orders that must wait for the end of a move. It reports false when they need
// not.
func (c *Coordinator) hold(orders []engine.Ready) bool {
	if !c.mover.holds() {
		return false
	}
	m := &c.moving
	if len(orders) > 0 && m.heldSince.IsZero() {
		m.heldSince = time.Now()
	}
	m.held = append(m.held, slices.Clone(orders)...)
	return true
}
