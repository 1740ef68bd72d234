package process

import (
	"log/slog"

	"star/cluster/resource/actuate"
	"star/job"
)

// Govern undoes what dead processes have left behind, and makes this process take no more
// than --limit says. peer is where it sends to. release lifts everything again.
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
