package node

import (
	"errors"
	"fmt"

	"star/cmd/internal/pilot"
	"star/cmd/internal/settings"
	"star/coord"
	"star/modes"
	"star/modes/baseline"
	"star/train/optim"
)

// NewBaseline makes what --baseline names, and the pilot that decides by its rules: nil where the plan stays. It looks at Baseline,
// Workers and Batch. Without a baseline the Made is zero.
func NewBaseline(job *settings.Job) (baseline.Made, coord.Pilot, error) {
	if job.Baseline == "" {
		return baseline.Made{}, nil, nil
	}
	spec, err := baseline.Parse(job.Baseline)
	if err != nil {
		return baseline.Made{}, nil, job.Invalid("baseline", err)
	}
	if job.Arch == settings.AllReduce && !spec.Entry.Ring {
		return baseline.Made{}, nil, job.Invalid("baseline", fmt.Errorf("%s needs parameter servers: --arch ps", spec.Entry.Name))
	}
	m, err := spec.Make(baseline.Job{Workers: job.Workers, Batch: job.Batch, Ring: job.Arch == settings.AllReduce})
	if err != nil {
		return m, nil, job.Invalid("baseline", err)
	}
	if m.Scheme == nil {
		return m, nil, nil
	}
	return m, pilot.NewBaseline(m.Scheme, m.Plan), nil
}

// baseline prepares what --baseline asks for.
func (s *server) baseline() error {
	job := s.job
	made, pilot, err := NewBaseline(job)
	if err != nil {
		return err
	}
	switch {
	case job.Shares != nil:
		return job.Invalid("shares", errors.New("a baseline says itself how many samples each worker gets: leave --shares away"))
	case made.Local != nil && job.Clip > 0:
		return job.Invalid("clip", fmt.Errorf("%s sends no gradients to the servers: leave --clip away", job.Baseline))
	case made.Local != nil && job.UpdateScale != string(coord.ScaleRound):
		return job.Invalid("update-scale", fmt.Errorf("%s averages parameters: leave --update-scale away", job.Baseline))
	}
	s.made, s.scheme, s.plan = made, pilot, made.Plan
	return nil
}

// keeps is how many gradients a plan's update may be made of, where workers go on before it is made; 0: nobody does.
func keeps(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.Again {
			most = max(most, g.Quorum)
		}
	}
	return most
}

// outer is the optimiser of the shards where workers train by themselves.
func outer(o baseline.Outer) optim.Config {
	c := optim.Config{Name: optim.SGD, LR: o.Rate, Given: true}
	if o.Momentum > 0 {
		c.Name, c.Momentum = optim.Nesterov, o.Momentum
	}
	return c
}
