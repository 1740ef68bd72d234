package node

import (
	"errors"
	"fmt"

	"star/cmd/internal/settings"
	"star/coord"
	"star/transport"
)

// checkReplicas says why shards cannot have copies in a job.
func checkReplicas(job *settings.Job) error {
	if job.Replicas == 1 {
		return nil
	}
	switch {
	case job.Arch == settings.AllReduce:
		return job.Invalid("replicas", errors.New("in an all-reduce every worker has the parameters: leave it off"))
	case job.Baseline != "":
		return job.Invalid("replicas", errors.New("a baseline is measured with its servers as its paper has them: leave it off"))
	case job.MoveShards == Auto:
		return job.Invalid("replicas", errors.New("shards with copies stay where they are: give --move-shards off"))
	}
	return nil
}

// views waits for who holds the copies of each shard, which follows the Welcome.
func (w *worker) views(m *coord.Member) ([]transport.View, error) {
	if w.job.Replicas < 2 {
		return nil, nil
	}
	vs, err := coord.Views(m, len(m.Welcome.Shards))
	if err != nil {
		return nil, fmt.Errorf("who holds the copies of shards (give every member the same --replicas): %w", err)
	}
	for i := range vs {
		w.reach(&vs[i])
	}
	return vs, nil
}

// reach puts the coordinator's host before addresses that have none.
func (w *worker) reach(v *transport.View) {
	for i := range v.Holders {
		v.Holders[i].Addr = withHost(v.Holders[i].Addr, w.job.Coordinator)
	}
}

// turn goes to the copies of a shard as they are now.
func (w *worker) turn(v transport.View) error {
	if w.link == nil {
		return fmt.Errorf("told of copies of shard %d in a job without shards", v.Shard)
	}
	w.reach(&v)
	return w.link.Turn(v)
}
