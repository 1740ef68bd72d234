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

// Outside connects a worker with what lies outside its job: the job's gossip, which says where the coordinator is, and the resource service of a
// cluster of jobs. A worker knows it by this interface only, so that a program links the clients of both only if it uses them.
type Outside interface {
	// Check looks at the settings of the cluster before anything begins.
	Check(job *job.Job) error

	// Meet takes part in the gossip of the job, or only asks where the coordinator is; then job.Coordinator is what was found. The Gossip is
	// nil for a worker that does not stay in it.
	Meet(ctx context.Context, job *job.Job, log *slog.Logger) (Gossip, error)

	// Enter makes the worker a tenant of the cluster of its job, if the job has one. leave undoes what the cluster has ordered.
	Enter(t Tenant) (leave func(), err error)
}

// Gossip is a worker's part in the gossip of its job.
type Gossip interface {
	// Say tells the others which rank the worker has.
	Say(rank int) error

	Close()
}

// Tenant is a worker that enters a cluster.
type Tenant struct {
	Job     *job.Job
	Network transport.Network
	Rank    int
	Model   string                        // that the job trains, in words
	Limits  *actuate.Governor             // by which the worker obeys
	Traffic func() (sent, received int64) // with other hosts
	Log     *slog.Logger
}

// connected checks that the worker has a connection to all that its job wants outside.
func (c *Config) connected() error {
	if c.Outside != nil {
		return c.Outside.Check(&c.Job)
	}
	return process.Unconnected(&c.Job, true, errors.New("this worker has no client for it: set Outside of its worker.Config, as launch.Worker does, or leave the setting out"))
}
