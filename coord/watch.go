package coord

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/session"
	"star/internal/exitcode"
	"star/transport/wire"
)

// What depends on time: silent members, gradients that do not arrive although their workers have sent them, moves,
// copies and leftovers that take too long; and the texts about what the job waits for.

// tick does everything that depends on time alone: silent members, moves and copies that take too long, too few
// workers, an end with a grace. It is called once a second, or more often if DeadAfter is short. An error ends the job.
func (c *Coordinator) tick(now time.Time) error {
	if err := c.journal.Flush(); err != nil {
		return fmt.Errorf("coord: write the run log: %w", err)
	}
	c.receive()
	members := slices.Concat(c.peers.workers, c.peers.servers, c.peers.late)
	if late := now.Sub(c.run.ticked); !c.run.ticked.IsZero() && late > c.cfg.DeadAfter/2+time.Second {
		// This process was stopped, not the members. Their messages are still unread.
		c.log.Warn("this process was suspended", "for", late.Round(time.Millisecond))
		for _, p := range members {
			if p != nil {
				p.heard, p.pushed = p.heard.Add(late), p.pushed.Add(late)
			}
		}
	}
	c.run.ticked = now
	c.pingServers(now)
	for _, p := range members {
		if err := c.judge(p, now); err != nil {
			return err
		}
	}
	if c.engine != nil {
		var orders []engine.Ready
		if ring, ok := c.engine.(engine.RingEngine); ok {
			var err error
			if orders, err = ring.Tick(); err != nil {
				return c.broken(nil, err)
			}
		}
		if err := c.carry(orders); err != nil {
			return err
		}
	}
	if err := c.growTree(); err != nil {
		return err
	}
	c.watchLink()
	if err := c.watchMove(now); err != nil {
		return err
	}
	if err := c.watchCopies(now); err != nil {
		return err
	}
	if err := c.watchSize(now); err != nil {
		return err
	}
	c.perform(c.saves.Tick(now))
	c.trySaved()
	if err := c.muster(now); err != nil {
		return err
	}
	if err := c.halt(); err != nil {
		return err
	}
	if c.takeover.On() && c.engine == nil && !c.takeover.Settling() {
		c.tryStart()
	}
	if c.placing.copies.On() && c.takeover.Settling() { // some servers may not come
		if err := c.settle(); err != nil {
			return err
		}
	}
	version := int64(-1)
	if c.engine != nil {
		version = c.engine.View().Version
	}
	c.run.noteIdle(now, version, c.missing)
	if idle, most := now.Sub(c.run.progress), c.stallAfter(); idle > most && now.Sub(c.run.warned) > c.cfg.StallAfter {
		c.run.warned = now
		c.log.Warn("waiting", "for", c.missing(), "since", idle.Round(time.Second))
	}
	return nil
}

// pingServers pings servers, so that they answer and know that the coordinator is alive: while no worker pushes there
// are no other messages.
func (c *Coordinator) pingServers(now time.Time) {
	if !c.placing.Assigned() || now.Sub(c.run.pinged) < c.cfg.DeadAfter/session.Beats {
		return
	}
	c.run.pinged = now
	for _, p := range c.peers.servers { // servers without shards, too: they watch for the coordinator
		tell(&c.peers, p, wire.Ping{Sent: now.UnixNano()}, nil)
	}
}

// judge removes a member that has been silent for too long, or did not deliver its gradient although it reported the
// push. It gets exit code 75, so that a process that was only suspended comes back. An error is that of lost.
func (c *Coordinator) judge(p *peer, now time.Time) error {
	if p == nil || p.gone || !p.welcomed {
		return nil
	}
	if p.role == wire.RoleServer && (c.engine == nil && !(c.takeover.Trained() && c.placing.Assigned()) || p.hello.Shards == 0) {
		return nil // reads its checkpoint, or has no part in the job
	}
	var why error
	if now.Sub(p.heard) > c.cfg.DeadAfter {
		why = fmt.Errorf("silent for more than %v (--dead-after)", c.cfg.DeadAfter)
	} else if shards, ok := c.engine.(engine.ShardEngine); ok && p.role == wire.RoleWorker && !c.peers.isLate(p) {
		w := star.Worker(p.rank)
		if lack := shards.Owes(w); lack != nil && now.Sub(p.pushed) > c.cfg.PatienceOfShards(c.members.Terms.Hello().Params) {
			why = fmt.Errorf("reported %v ago that it had pushed the gradient of step %d, but shards %v do not hold it",
				now.Sub(p.pushed).Round(time.Second), c.engine.View().Worker(w).Step, lack)
		}
	}
	if why == nil {
		return nil
	}
	c.peers.part(p, exitcode.Restart, fmt.Sprintf("the job goes on without this %s: %v", p.what(), why))
	return c.lost(p, why)
}

// what is the peer's role for texts.
func (p *peer) what() string {
	if p.role == wire.RoleServer {
		return "server"
	}
	return p.role
}

// list returns "what ids", or nothing without ids.
func list(what string, ids []int) []string {
	if len(ids) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s %v", what, ids)}
}

// missing describes what the job waits for: in the log, in the status, and in the error of a job that could not begin.
// Every wait of the coordinator is one of these.
func (c *Coordinator) missing() string {
	var parts []string
	if c.engine == nil {
		var servers, workers, linking []int
		for i, s := range c.peers.servers {
			if s == nil && c.takeover.Needs(i) {
				servers = append(servers, i)
			}
		}
		for i, w := range c.peers.workers {
			switch {
			case w == nil:
				workers = append(workers, i)
			case w.welcomed && !c.members.Joined(i):
				linking = append(linking, i)
			}
		}
		parts = append(parts, list("servers", servers)...)
		if c.cfg.Size().Grows() {
			workers = nil
			if n := c.members.Wanting(); n > 0 {
				parts = append(parts, fmt.Sprintf("%d more workers", n))
			}
		}
		parts = append(parts, list("workers", workers)...)
		parts = append(parts, list(c.arch.Joining(), linking)...)
		if !c.arch.Sharded() && c.takeover.Trained() && len(c.takeover.With(c.peers.present(&c.members))) == 0 {
			parts = append(parts, "a worker that has the parameters")
		}
		parts = append(parts, list("the parameters of shards", c.placing.Unfilled())...)
	} else if c.rounds.Open() && c.rounds.Final() {
		parts = append(parts, list("the evaluation of workers", c.rounds.Missing())...)
	} else if c.saves.Open() && c.rounds.Final() {
		parts = append(parts, c.saves.Missing())
	} else {
		if c.members.Shortage.On() {
			parts = append(parts, fmt.Sprintf("more workers: %d connected, at least %d needed (--min-workers)", c.engine.View().Live(), c.minWorkers()))
		}
		if s := c.placing.mover.Waits(); s != "" {
			parts = append(parts, s)
		}
		if s := c.placing.copies.Waits(); s != "" {
			parts = append(parts, s)
		}
		for _, w := range c.engine.View().Lacking() {
			parts = append(parts, c.engine.View().HoldsUp(w))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// noteIdle records what the job waits for after a second without progress. SIGQUIT and /debug/star show it
// (flightrecorder); the log has it later and less often.
func (r *running) noteIdle(now time.Time, version int64, missing func() string) {
	if now.Sub(r.progress) < time.Second {
		if r.idles {
			r.idles = false
			r.idle.End()
		}
		return
	}
	r.idle.Say("missing: " + missing())
	if !r.idles {
		r.idles = true
		r.idle.Begin(version, 0)
	}
}
