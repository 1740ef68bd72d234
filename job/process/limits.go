package process

import (
	"log/slog"

	"star/cluster/resource/actuate"
	"star/job"
)

// Govern undoes the limits of dead processes, and limits this process to --limit. peer is the address that it sends to.
// release lifts all limits.
func Govern(job *job.Job, owner, peer string, log *slog.Logger) (g *actuate.Governor, release func(), err error) {
	limit, err := actuate.Parse(job.Limit)
	if err != nil {
		return nil, nil, job.Invalid("limit", err)
	}
	g, err = actuate.Start(actuate.Config{
		Kind: actuate.Kind(job.Actuator), Base: limit, LeaseDir: job.LeaseDir, Process: owner,
		Dev: job.LimitInterface, Peer: peer, Log: log,
	})
	if err != nil {
		return nil, nil, job.Invalid("limit", err)
	}
	return g, func() {
		if err := g.Close(); err != nil {
			log.Error("a limit is still there; star limits undo lifts it", "err", err)
		}
	}, nil
}
