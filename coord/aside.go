package coord

import (
	"star"
	"star/coord/ending"
	"star/internal/exitcode"
	"star/transport/wire"
)

// failed reports whether the exit code of a worker that leaves means that its program failed. The others mean that it
// was told to end, or that another member is gone or disagrees.
func failed(exit int) bool {
	switch exit {
	case exitcode.OK, exitcode.Usage, exitcode.Lost, exitcode.Restart, exitcode.Refused, exitcode.Disagree:
		return false
	}
	return exit <= ending.Signalled
}

// blame tells the engine that a worker died during its computation without having been told to end.
// failed: its program failed; otherwise its connection ended.
func (c *Coordinator) blame(p *peer, failed bool, why error) {
	if p.role != wire.RoleWorker || c.engine == nil || c.peers.isLate(p) || c.stopping.Still() || p.parted || p.retired || !p.leaving.IsZero() {
		return
	}
	if p.rank >= 0 && p.rank < len(c.peers.workers) && c.peers.workers[p.rank] == p {
		c.engine.Blame(star.Worker(p.rank), failed, why.Error())
	}
}
