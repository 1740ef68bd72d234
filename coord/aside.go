package coord

import (
	"star"
	"star/coord/ending"
	"star/internal/exitcode"
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
