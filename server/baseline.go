package server

import (
	"star/coord"
	"star/coord/pilot"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/baseline"
)

// NewBaseline makes what the job's baseline names, and the pilot that decides by its rules: nil
// where the plan stays. It looks at Baseline, Arch, Workers and Batch. Without a baseline the Made
// is zero. A baseline that there is none of, or that does not go with the job, is an error with
// exit code 2.
func NewBaseline(job *job.Job) (baseline.Made, coord.Pilot, error) {
	m, err := process.MakeBaseline(job)
	if err != nil || m.Scheme == nil {
		return m, nil, err
	}
	return m, pilot.NewBaseline(m.Scheme, m.Plan), nil
}

// baseline prepares what --baseline asks for. The baseline's plan is in force from the beginning,
// and the mode that was given is not looked at.
func (s *server) baseline() error {
	job := s.job
	made, pilot, err := NewBaseline(&job.Job)
	if err != nil {
		return err
	}
	s.made, s.scheme, s.plan = made, pilot, made.Plan
	return nil
}

// keeps is how many gradients a plan's update may be made of, where workers go on before it is
// made; 0: nobody does. So many gradients of one worker a shard must have room for
// (ps.ServerConfig.Store). It is settled when the job begins: a later plan that needs more is
// refused by the coordinator.
func keeps(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}
