package coord

import (
	"star"
	"star/coord/engine"
	"star/coord/traffic"
	"star/runlog"
	"star/transport/wire"
)

// Trees and paced pushes. Package traffic decides; this file carries it out.

// growTree adapts the tree to the load. An error ends the job.
func (c *Coordinator) growTree() error {
	if !c.flow.auto.Enabled() || c.engine == nil || c.rounds.Final() || !engine.Treeable(c.engine.View().Plan) {
		return nil
	}
	var members []traffic.Member
	for w, p := range c.peers.workers {
		if p != nil && !p.gone {
			members = append(members, traffic.Member{Worker: w, Host: c.peers.site(p), Beside: c.peers.beside(p, c.placing.Owners()), Reachable: c.engine.View().Worker(star.Worker(w)).Reachable})
		}
	}
	plan, now := c.engine.View().Plan, c.engine.View()
	seen, why := c.flow.auto.Look(c.journal.Elapsed(), now.Used, now.Version, plan, members, 4*c.members.Terms.Hello().Params, c.flow.links.Rate)
	if v := seen; v != nil {
		c.journal.Write(runlog.Gain{Plan: plan.String(), Predicted: runlog.Number(v.Predicted), Seen: runlog.Number(v.Seen), Reverted: v.Reverted})
		c.log.Info("gain measured", "mode", plan.String(), "seen", round4(v.Seen), "reverted", v.Reverted)
	}
	if why == "" {
		return nil
	}
	plan = plan.Clone()
	plan.Parents = c.flow.auto.Parents()
	return c.install(plan, runlog.Plan{Why: "tree=auto: " + why, Forced: c.journal.Followed()})
}

// watchLink decides whether pushes are paced.
func (c *Coordinator) watchLink() {
	if !c.flow.pacer.Enabled() || c.engine == nil {
		return
	}
	var far []int
	for w, q := range c.peers.workers {
		if q != nil && !q.gone && !c.peers.beside(q, c.placing.Owners()) {
			far = append(far, w)
		}
	}
	if on, changed, why := c.flow.pacer.Look(far, c.flow.links.Rate(len(far)), float64(4*c.members.Terms.Hello().Params), c.engine.View().Plan); changed {
		c.journal.Write(runlog.Pace{On: on, Why: why})
		c.log.Info("pacing changed", "paced", on, "why", why)
	}
}

// pace sets in releases how long their pushes wait.
func (c *Coordinator) pace(rs []wire.Release) {
	if c.flow.pacer.Paces() {
		c.flow.pacer.Pace(c.journal.Elapsed(), rs, c.engine.View().Plan, pushers{c})
	}
}

// pushers has the state of workers for the pacer.
type pushers struct{ c *Coordinator }

func (v pushers) Pushing(w star.Worker) bool {
	q, a := v.c.peers.workers[w], v.c.engine.View().Worker(w)
	return q != nil && !q.gone && !a.Parked && !a.Waiting && !v.c.peers.beside(q, v.c.placing.Owners())
}

func (v pushers) Next(w star.Worker) bool {
	q := v.c.peers.workers[w]
	return q != nil && !v.c.rounds.Tells(star.Worker(q.rank)) && !v.c.peers.beside(q, v.c.placing.Owners())
}
