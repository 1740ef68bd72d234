package coord

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"star"
	"star/coord/copies"
	"star/coord/moves"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// Move moves a shard to the server of a rank while the job runs. It returns when the move is done: from then on the new
// server has the shard. An error says why the shard stays; the job continues in either case. The result has the
// duration of the move and the delay of the next update. It may be called from any goroutine but that of Run; one move
// is made at a time.
func (c *Coordinator) Move(ctx context.Context, shard, server int) (runlog.Move, error) {
	var m runlog.Move
	err := c.Ask(ctx, &m, "move", strconv.Itoa(shard), strconv.Itoa(server))
	return m, err
}

// placed lists servers and shards for the status. A server that has not come yet is not listed; one that is gone is.
func (c *Coordinator) placed() (servers []ServerStatus, shards []ShardStatus) {
	for i, s := range c.peers.servers {
		if s == nil {
			continue
		}
		servers = append(servers, ServerStatus{Server: i, Host: s.hello.Host, Addr: s.hello.Addr, Gone: s.gone, CopyRate: s.copyRate})
		servers[len(servers)-1].Shards = 0
		if c.cfg.Shift {
			servers[len(servers)-1].Site, servers[len(servers)-1].Load = c.peers.site(s), c.flow.serverLoad(&c.peers, s)
		}
	}
	moving, busy := c.placing.mover.Busy()
	for i, s := range c.placing.Shards() {
		shards = append(shards, ShardStatus{Shard: i, Server: c.placing.Owner(i), Bytes: 4 * (s.To - s.From), Moving: busy && moving == i})
		if c.placing.copies.On() {
			v, st := c.placing.copies.View(i), &shards[i]
			st.Term, st.Followers, st.Replicas = v.Term, v.Followers, c.placing.copies.Want()
		}
		for j := range servers {
			if servers[j].Server == c.placing.Owner(i) {
				servers[j].Shards++
			}
		}
	}
	return servers, shards
}

// beginMove carries out star ctl move. The reply follows when the move has ended, or at once if the move is rejected.
// An error ends the job.
func (c *Coordinator) beginMove(e event) error {
	servers := make([]moves.Server, len(c.peers.servers))
	for i, p := range c.peers.servers {
		servers[i] = moves.Server{Host: p.hello.Host, Addr: p.hello.Addr, Gone: p.gone}
	}
	shard, to, err := moves.Parse(e.control[1:], c.placing.Len(), servers)
	if err == nil {
		a := moves.Asked{
			Sharded: c.arch.Sharded(), Replaceable: c.lease.Replaceable(), Copies: c.placing.copies.On(), Ends: c.rounds.Final() || c.run.ended, Coming: -1, Owner: c.placing.Owner,
		}
		if c.members.Shortage.On() {
			a.Short = fmt.Sprintf("%d connected, at least %d needed (--min-workers)", c.engine.View().Live(), c.minWorkers())
		}
		if len(c.peers.late) > 0 {
			a.Coming = c.peers.late[0].rank
		}
		err = c.placing.mover.Refuse(shard, to, &a)
	}
	if err != nil {
		e.reply <- reply{err: "move: " + err.Error()}
		return nil
	}
	s, from := c.placing.Shard(shard), c.placing.Owner(shard)
	s.Addr = c.peers.servers[from].hello.Addr
	j := moves.Job{ShardInfo: s, Source: from, Target: to}
	c.placing.moveAsked = e.reply
	c.log.Info("shard move started", "shard", shard, "from", from, "to", to, "bytes", j.Bytes())
	return c.move(c.placing.mover.Begin(time.Now(), j))
}

// watchMove ends a move that takes too long, and continues one that waited. A job that waits for workers moves no
// shard: its orders are held until workers come, and these are not sent addresses of shards during a move.
func (c *Coordinator) watchMove(now time.Time) error {
	if c.members.Shortage.On() {
		return c.move(c.placing.mover.Drop("the job waits for workers"))
	}
	return c.move(c.placing.mover.Tick(now, c.saves.Open()))
}

// move carries out what the mover decided. An error ends the job.
func (c *Coordinator) move(effects []moves.Effect) error {
	for _, e := range effects {
		var err error
		switch e := e.(type) {
		case moves.Adopt:
			if e.Stage == wire.Prepare {
				c.placing.Host(e.Server, e.Shard)
			}
			tell(&c.peers, c.peers.servers[e.Server], e.Adopt, nil)
		case moves.Hand:
			e.Seq = c.engine.View().Seq
			tell(&c.peers, c.peers.servers[e.Server], e.Hand, nil)
		case moves.Place:
			p := c.peers.servers[e.Server]
			c.placing.Put(e.Shard, e.Server, p.hello.Addr)
			p.hello.Shards++
			p.copyRate = e.Rate
		case moves.Route:
			for w, p := range c.peers.workers {
				tell(&c.peers, p, wire.Route{Worker: star.Worker(w), Shard: e.Shard, Addr: c.placing.Shard(e.Shard).Addr}, nil)
			}
		case moves.Ended:
			c.endMove(e.Move)
		case moves.Resume:
			err = c.carry(c.placing.mover.Take())
		case moves.Cleared:
			c.peers.servers[e.Server].hello.Shards--
			c.log.Debug("old server has dropped the shard", "shard", e.Shard, "server", e.Server)
		case moves.Lost:
			err = &Error{exitcode.Lost, e.Why}
		case moves.Lend:
			err = c.placing.copies.Lend(e.Shard, e.Server, c.engine.View().Seq)
		case moves.Share:
			var effects []copies.Effect
			if effects, err = c.placing.copies.Share(e.Shard, e.Server, e.Took); err == nil {
				err = c.copied(effects)
			}
		case moves.Unshare:
			if !c.peers.servers[e.Server].gone {
				err = c.copied(c.placing.copies.Unshare(time.Now(), e.Shard, e.Server, e.Why, c.peers.servers[e.Source].gone))
			}
		case moves.Uncopied:
			err = c.copied(c.placing.copies.Uncopied(time.Now(), e.Shard, e.Server, e.Why))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endMove writes the line of a move and replies to the caller. Measurements of the links of both servers are discarded.
func (c *Coordinator) endMove(m runlog.Move) {
	c.flow.links.Forget(m.From, m.To)
	c.journal.Write(m)
	r := reply{}
	if m.Err != "" {
		c.log.Warn("shard move failed", "shard", m.Shard, "server", m.From, "reason", m.Err)
		r.err = fmt.Sprintf("move: shard %d stays at server %d: %s", m.Shard, m.From, m.Err)
	} else {
		c.log.Info("shard moved", "shard", m.Shard, "from", m.From, "to", m.To, "bytes", m.Bytes,
			"copied_in", m.Copy.Duration().Round(time.Microsecond), "update_late_by", m.Delay.Duration().Round(time.Microsecond))
		r.json, _ = json.Marshal(m)
	}
	c.placing.moveAsked <- r
}
