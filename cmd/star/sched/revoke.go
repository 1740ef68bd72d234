package sched

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"star/cmd/internal/launch"
	"star/job"
	"star/sched"
	"star/sched/workload"
)

// seedOf is the seed of a virtual cluster: each has its own random numbers.
func seedOf(seed uint64, vc string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(vc))
	return seed ^ h.Sum64()
}

// revoked makes nodes absent according to --revoke; its clock starts with the first submission.
func (p *schedSim) revoked(vcs map[string]sched.Cluster, jobs []*sched.Job) error {
	if p.revoke == "" || len(jobs) == 0 {
		return nil
	}
	r, err := launch.ReadRevocations(p.revoke, p.Set.Invalid)
	if err != nil {
		return err
	}
	if r.File != "" && len(vcs) > 1 {
		return p.Set.Invalid("revoke", fmt.Errorf("a trace names nodes of one cluster, and there are %d virtual clusters", len(vcs)))
	}
	first, until := workload.Disturbed(jobs)
	seed := r.Seed
	for vc, c := range vcs {
		for _, l := range r.Trace {
			if l.Worker >= c.Nodes+c.Plain {
				return job.FileError(workload.Bad("%s: worker is %d: the cluster has %d nodes, the first one is 0", r.File, l.Worker, c.Nodes+c.Plain), workload.ErrInput)
			}
		}
		if vc != "" {
			r.Seed = seedOf(seed, vc)
		}
		var all []sched.Absence
		for node := range c.Nodes + c.Plain { // machines without a GPU are last
			for _, gone := range r.Gone(node, time.Duration((until-first)*float64(time.Second))) {
				a := sched.Absence{Node: node, From: first + gone[0].Seconds(), To: math.Inf(1)}
				if gone[1] >= 0 {
					a.To = first + gone[1].Seconds()
				}
				all = append(all, a)
			}
		}
		if c.Away, err = sched.NewAway(all); err != nil {
			return job.FileError(workload.Bad("%s: %v", p.revoke, err), workload.ErrInput)
		}
		vcs[vc] = c
	}
	return nil
}
