package worker

import (
	"context"
	"errors"
	"log/slog"

	"star/cluster/resource/actuate"
	"star/job"
	"star/job/process"
	"star/transport"
)

// Outside connects a worker with services outside its job: the job's gossip, which knows the
// coordinator's address, and the resource service of a cluster of jobs. It is an interface so that
// only programs that use the two clients link them.
type Outside interface {
	// Check checks the settings of the cluster, before anything starts.
	Check(job *job.Job) error

	// Meet joins the job's gossip, or only asks it for the coordinator and sets job.Coordinator. The
	// Gossip is nil for a worker that does not stay in it.
	Meet(ctx context.Context, job *job.Job, log *slog.Logger) (Gossip, error)

	// Enter makes the worker a tenant of its job's cluster, if the job has one. leave undoes what
	// the cluster has ordered.
	Enter(t Tenant) (leave func(), err error)
}

// Both services are optional; a job that does not name them runs without them. The worker calls
// Check, then Meet before it joins the job, then Enter once it has its rank.

// Gossip is a worker's part in the gossip of its job.
type Gossip interface {
	// Say announces the worker's rank.
	Say(rank int) error

	Close()
}

// Tenant is a worker that enters a cluster.
type Tenant struct {
	Job     *job.Job
	Network transport.Network
	Rank    int
	// Model is the model's name for people.
	Model string
	// Limits applies the cluster's orders.
	Limits *actuate.Governor
	// Traffic returns bytes exchanged with other hosts.
	Traffic func() (sent, received int64)
	Log     *slog.Logger
}

// connected checks that the worker can reach everything that its job wants outside.
func (c *Config) connected() error {
	if c.Outside != nil {
		return c.Outside.Check(&c.Job)
	}
	return process.Unconnected(&c.Job, true, errors.New("this worker has no client for it; set Outside of its worker.Config, as launch.Worker does, or remove the setting"))
}
