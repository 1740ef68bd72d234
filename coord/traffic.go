package coord

import (
	"time"

	"star"
	"star/coord/engine"
	"star/coord/traffic"
	"star/modes"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Trees and paced pushes, which package traffic decides about.

// branch tells a worker its place in a tree. The engine knows ranks only; the parent's address is
// added here.
func (c *Coordinator) branch(m wire.Branch) {
	p := c.workers[m.Worker]
	if p == nil || p.gone {
		return
	}
	if m.Parent >= 0 {
		if q := c.workers[m.Parent]; q != nil {
			m.ParentAddr = q.hello.Addr
		}
	}
	c.send(p, func() error { return transport.Send(p.conn, m, nil) })
}

// detach tells a worker that a gradient goes another way. A worker whose own gradient it is pushes
// it now, so the time in which shards must hold it begins again.
func (c *Coordinator) detach(d engine.To[wire.Detach]) {
	p := c.workers[d.Worker]
	if p == nil || p.gone {
		return
	}
	if d.Worker == d.Msg.Worker {
		p.pushed = time.Now() // it pushes now
	}
	c.send(p, func() error { return transport.Send(p.conn, d.Msg, nil) })
}

// growTree lets the tree follow the load. An error ends the job.
func (c *Coordinator) growTree() error {
	if !c.auto.Enabled() || c.engine == nil || c.rounds.Final() || !engine.Treeable(c.engine.View().Plan) {
		return nil
	}
	var members []traffic.Member
	for w, p := range c.workers {
		if p != nil && !p.gone {
			members = append(members, traffic.Member{Worker: w, Host: c.site(p), Beside: c.beside(p), Reachable: c.engine.View().Worker(star.Worker(w)).Reachable})
		}
	}
	plan, now := c.engine.View().Plan, c.engine.View()
	seen, why := c.auto.Look(c.elapsed(), now.Used, now.Version, plan, members, 4*c.members.Terms.Hello().Params, c.links.Rate)
	if v := seen; v != nil {
		c.cfg.RunLog.Write(c.elapsed(), runlog.Gain{Plan: plan.String(), Predicted: runlog.Number(v.Predicted), Seen: runlog.Number(v.Seen), Reverted: v.Reverted})
		c.log.Info("gain", "mode", plan.String(), "seen", round4(v.Seen), "reverted", v.Reverted)
	}
	if why == "" {
		return nil
	}
	plan = plan.Clone()
	plan.Parents = c.auto.Parents()
	return c.install(plan, runlog.Plan{Why: "tree=auto: " + why, Forced: c.pilot.Running()})
}

// graft puts the tree that there is now into a plan that says nothing of trees. Plans in which no
// reports can go up a tree stay as they are.
func (c *Coordinator) graft(p modes.Plan) modes.Plan {
	if !c.auto.Enabled() || p.Parents != nil || !engine.Treeable(p) {
		return p
	}
	p = p.Clone()
	p.Parents = c.auto.Parents()
	return p
}

// watchLink decides whether pushes are paced.
func (c *Coordinator) watchLink() {
	if !c.pacer.Enabled() || c.engine == nil {
		return
	}
	var far []int
	for w, q := range c.workers {
		if q != nil && !q.gone && !c.beside(q) {
			far = append(far, w)
		}
	}
	if on, changed, why := c.pacer.Look(far, c.links.Rate(len(far)), float64(4*c.members.Terms.Hello().Params), c.engine.View().Plan); changed {
		c.cfg.RunLog.Write(c.elapsed(), runlog.Pace{On: on, Why: why})
		c.log.Info("pushes", "paced", on, "why", why)
	}
}

// pace says in releases how long their pushes wait.
func (c *Coordinator) pace(rs []wire.Release) {
	if c.pacer.Paces() {
		c.pacer.Pace(c.elapsed(), rs, c.engine.View().Plan, pushers{c})
	}
}

// pushers tells the pacer of the workers.
type pushers struct{ c *Coordinator }

func (v pushers) Pushing(w star.Worker) bool {
	q, a := v.c.workers[w], v.c.engine.View().Worker(w)
	return q != nil && !q.gone && !a.Parked && !a.Waiting && !v.c.beside(q)
}

func (v pushers) Next(w star.Worker) bool {
	q := v.c.workers[w]
	return q != nil && !v.c.rounds.Tells(star.Worker(q.rank)) && !v.c.beside(q)
}
