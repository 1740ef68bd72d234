// Package outside connects a server with the gossip of its job and with the resource service of a cluster of jobs. A
// program with a server that takes part in one of them sets it in the server's Config:
//
//	server.Run(ctx, server.Config{Outside: outside.Clients{}, …})
//
// It is a package of its own because it links memberlist, which most programs with a server do not need.
package outside

import (
	"context"
	"log/slog"

	"star/cluster"
	"star/coord"
	"star/job"
	"star/job/process"
	"star/job/tenant"
	"star/server"
	"star/transport/wire"
)

// Clients implements server.Outside with memberlist and with the client of the resource service.
type Clients struct{}

// Check implements server.Outside.
func (Clients) Check(job *job.Job) error { return tenant.Check(job) }

// Meet implements server.Outside.
func (Clients) Meet(ctx context.Context, job *job.Job, shards int, addr string, log *slog.Logger) (leave func(), err error) {
	me := cluster.JobMember{Role: "server", Rank: job.Rank, Shards: shards, Addr: tenant.Told(job, addr), Host: process.Hostname()}
	g, err := tenant.Meet(ctx, job, me, log)
	if g == nil {
		return func() {}, err
	}
	return g.Close, err
}

// Enter implements server.Outside.
func (Clients) Enter(t server.Tenant) (may coord.Admission, leave func(), err error) {
	s, err := tenant.Enter(tenant.SessionConfig{
		Job: t.Job, Network: t.Network, Role: wire.RoleServer, Rank: t.Job.Rank, Model: t.Model, Fixed: t.Fixed,
		Limits: t.Limits, Coordinator: t.Coordinator, Traffic: t.Traffic, Log: t.Log,
	})
	if s == nil { // not the same as an Admission of nil
		return nil, func() {}, err
	}
	return s, s.Leave, err
}
