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

// Outside connects a server with what lies outside its job: the job's gossip, which says where the coordinator is, and
// the resource service of a cluster of jobs. A server knows it by this interface only, so that a program links the
// clients of both only if it uses them. Package star/server/outside has an implementation.
type Outside interface {
	// Check checks the settings of the cluster before anything begins.
	Check(job *job.Job) error

	// Meet joins the gossip of the job, or only asks it where the coordinator is; then job.Coordinator is what was
	// found. The server has so many shards, and listens on addr. leave ends its part in the gossip, if
	// it has one.
	Meet(ctx context.Context, job *job.Job, shards int, addr string, log *slog.Logger) (leave func(), err error)

	// Enter makes the server a tenant of the cluster of its job, if the job has one. The coordinator asks may before it
	// changes to a mode that costs more; nil: the job has no cluster. leave undoes what the cluster has ordered.
	Enter(t Tenant) (may coord.Admission, leave func(), err error)
}

// Tenant is a server that enters a cluster.
type Tenant struct {
	Job         *job.Job
	Network     transport.Network
	Model       string                        // that the job trains, in words
	Fixed       bool                          // its mode stays
	Limits      *actuate.Governor             // by which the server obeys
	Coordinator *coord.Coordinator            // of this process; nil: it has none
	Traffic     func() (sent, received int64) // with other hosts
	Log         *slog.Logger
}

// connected checks that the server has a connection to all that its job wants outside.
func (c *Config) connected() error {
	if c.Outside != nil {
		return c.Outside.Check(&c.Job)
	}
	return process.Unconnected(&c.Job, c.Rank != 0, errors.New("this server has no client for it: set Outside of its server.Config, as star-ps does (star/server/outside), or leave the setting out"))
}

// admission is the coordinator's way to the cluster, which the process enters later. Until
// then whatever the pilot asks for is declined, and it asks again.
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
