package configure

import (
	"context"
	"log/slog"

	"star/cluster"
	"star/job"
	"star/job/process"
	"star/job/tenant"
	"star/transport/wire"
	"star/worker"
)

// Outside is the worker.Outside of STAR's own programs: memberlist, and the client of the resource
// service.
type Outside struct{}

// Check implements worker.Outside.
func (Outside) Check(job *job.Job) error { return tenant.Check(job) }

// Meet implements worker.Outside.
func (Outside) Meet(ctx context.Context, job *job.Job, log *slog.Logger) (worker.Gossip, error) {
	g, err := tenant.Meet(ctx, job, ofWorker(job.Rank), log)
	if err != nil || g == nil {
		return nil, err
	}
	return gossip{g}, nil
}

// Enter implements worker.Outside.
func (Outside) Enter(t worker.Tenant) (leave func(), err error) {
	s, err := tenant.Enter(tenant.SessionConfig{
		Job: t.Job, Network: t.Network, Role: wire.RoleWorker, Rank: t.Rank, Model: t.Model, Fixed: true, Limits: t.Limits, Traffic: t.Traffic, Log: t.Log,
	})
	return s.Leave, err
}

type gossip struct{ *cluster.JobGossip }

func (g gossip) Say(rank int) error { return g.JobGossip.Say(ofWorker(rank)) }
func (g gossip) Close()             { g.JobGossip.Close() }

// ofWorker describes a worker in the gossip.
func ofWorker(rank int) cluster.JobMember {
	return cluster.JobMember{Role: "worker", Rank: rank, Host: process.Hostname()}
}
