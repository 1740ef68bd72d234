package main

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"time"

	"star/member"
	"star/sched"
	"star/sched/market"
	"star/sched/workload"
)

// revokedFor is for how long after the last submission nodes are taken away.
const revokedFor = 100 * 24 * time.Hour

// revoked has nodes be taken away as --revoke says, whose clock begins with the first submission.
func (p *schedSim) revoked(vcs map[string]sched.Cluster, jobs []*sched.Job) error {
	if p.revoke == "" || len(jobs) == 0 {
		return nil
	}
	r, err := market.ParseRevocations(p.revoke)
	if err != nil {
		return p.set.Invalid("revoke", err)
	}
	if r.File != "" {
		if len(vcs) > 1 {
			return p.set.Invalid("revoke", fmt.Errorf("a trace names nodes of one cluster, and there are %d virtual clusters", len(vcs)))
		}
		if err := readInput(r.File, func(f io.Reader) (err error) {
			r.Trace, err = market.ReadLosses(f)
			return err
		}); err != nil {
			return err
		}
	}
	first, last := math.Inf(1), 0.
	for _, j := range jobs {
		first, last = min(first, j.Submit), max(last, j.Submit)
	}
	seed := r.Seed
	for vc, c := range vcs {
		for _, l := range r.Trace {
			if l.Worker >= c.Nodes+c.Plain {
				return member.FileError(workload.Bad("%s: worker is %d: the cluster has %d nodes, the first one is 0", r.File, l.Worker, c.Nodes+c.Plain), workload.ErrInput)
			}
		}
		if vc != "" {
			h := fnv.New64a()
			h.Write([]byte(vc))
			r.Seed = seed ^ h.Sum64()
		}
		var all []sched.Absence
		for node := range c.Nodes + c.Plain { // machines without a GPU come last
			for _, gone := range r.Gone(node, time.Duration((last-first)*float64(time.Second))+revokedFor) {
				a := sched.Absence{Node: node, From: first + gone[0].Seconds(), To: math.Inf(1)}
				if gone[1] >= 0 {
					a.To = first + gone[1].Seconds()
				}
				all = append(all, a)
			}
		}
		if c.Away, err = sched.NewAway(all); err != nil {
			return member.FileError(workload.Bad("%s: %v", p.revoke, err), workload.ErrInput)
		}
		vcs[vc] = c
	}
	return nil
}
