package server

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"star/cluster/resource/actuate"
	"star/coord"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/transport"
)

// Outside connects a server with services outside its job: the job's gossip, which knows the
// coordinator's address, and the resource service of a cluster of jobs. It is an interface so that
// only programs that use the two clients link them. Package star/server/outside has an
// implementation.
type Outside interface {
	// Check checks the settings of the cluster, before anything starts.
	Check(job *job.Job) error

	// Meet joins the job's gossip, or only asks it for the coordinator and sets job.Coordinator. The
	// server has shards shards, and listens on addr. leave leaves the gossip.
	Meet(ctx context.Context, job *job.Job, shards int, addr string, log *slog.Logger) (leave func(), err error)

	// Enter makes the server a tenant of its job's cluster, if the job has one. The coordinator asks
	// may before it changes to a more expensive mode; nil: no cluster. leave undoes what the cluster
	// has ordered.
	Enter(t Tenant) (may coord.Admission, leave func(), err error)
}

// The server calls Check, then Meet before it accepts connections, then Enter once the coordinator of
// this process exists.

// Tenant is a server that enters a cluster.
type Tenant struct {
	Job     *job.Job
	Network transport.Network
	// Model is the model's name for people.
	Model string
	// Fixed: the job does not change its mode.
	Fixed bool
	// Limits applies the cluster's orders.
	Limits *actuate.Governor
	// Coordinator is the one in this process; nil: none.
	Coordinator *coord.Coordinator
	// Traffic returns bytes exchanged with other hosts.
	Traffic func() (sent, received int64)
	Log     *slog.Logger
}

// connected checks that the server can reach everything that its job wants outside.
func (c *Config) connected() error {
	if c.Outside != nil {
		return c.Outside.Check(&c.Job)
	}
	return process.Unconnected(&c.Job, c.Rank != 0, errors.New("this server has no client for it; set Outside of its server.Config, as star-ps does (star/server/outside), or remove the setting"))
}

// admission is the coordinator's connection to the cluster, which the process enters later. Until
// then it declines every request of the pilot, which asks again.
type admission struct {
	atomic.Pointer[coord.Admission]
}

// Ask implements coord.Admission.
func (a *admission) Ask(p modes.Plan, answer func(ok bool, why string)) {
	if t := a.Load(); t != nil {
		(*t).Ask(p, answer)
		return
	}
	go answer(false, "the process has not entered the cluster yet")
}

// Yield implements coord.Admission.
func (a *admission) Yield() {
	if t := a.Load(); t != nil {
		(*t).Yield()
	}
}
