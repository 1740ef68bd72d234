package coord

import (
	"star"
	"star/coord/ending"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// failed says whether a worker that leaves with this exit code does so because of what it computes: its
// program has failed. The others say that it was told to, or that another member is gone or disagrees.
func failed(exit int) bool {
	switch exit {
	case exitcode.OK, exitcode.Usage, exitcode.Lost, exitcode.Restart, exitcode.Refused, exitcode.Disagree:
		return false
	}
	return exit <= ending.Signalled
}

// blame tells the engine that a worker has died while it was computing, and not because it was told to go.
// failed: its program did; else its connection ended.
func (c *Coordinator) blame(p *peer, failed bool, why error) {
	if p.role != wire.RoleWorker || c.engine == nil || c.peers.isLate(p) || c.stopping.Still() || p.parted || p.retired || !p.leaving.IsZero() {
		return
	}
	if p.rank >= 0 && p.rank < len(c.peers.workers) && c.peers.workers[p.rank] == p {
		c.engine.Blame(star.Worker(p.rank), failed, why.Error())
	}
}

// putAside names what the engine has put aside since the last call: it killed two workers.
func (c *Coordinator) putAside() {
	list := c.engine.View().Aside
	for _, a := range list[c.measured.aside:] {
		c.measured.result.Aside += int64(a.Count)
		c.journal.write(runlog.Aside{Start: a.Start, Count: a.Count, Workers: a.Workers, Why: a.Why})
		c.log.Warn("samples put aside: two workers died while computing them", "from", a.Start, "count", a.Count,
			"workers", a.Workers, "reason", a.Why)
	}
	c.measured.aside = len(list)
}
