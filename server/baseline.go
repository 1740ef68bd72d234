package server

import (
	"star/coord"
	"star/coord/pilot"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/baseline"
)

// NewBaseline returns the job's baseline, and the pilot that applies its rules; nil if its plan is
// fixed. It reads Baseline, Arch, Workers and Batch. Without a baseline the Made is zero. An unknown
// baseline, or one that does not fit the job, is an error with exit code 2.
func NewBaseline(job *job.Job) (baseline.Made, coord.Pilot, error) {
	m, err := process.MakeBaseline(job)
	if err != nil || m.Scheme == nil {
		return m, nil, err
	}
	return m, pilot.NewBaseline(m.Scheme, m.Plan), nil
}

// A baseline consists of up to four parts (baseline.Made): a plan, a scheme that changes the plan, a
// rule of the shards, and local steps of the workers.

// baseline prepares --baseline. The baseline's plan applies from the start, and --mode is ignored.
func (s *server) baseline() error {
	job := s.job
	made, pilot, err := NewBaseline(&job.Job)
	if err != nil {
		return err
	}
	s.made, s.scheme, s.plan = made, pilot, made.Plan
	return nil
}

// keeps returns how many gradients of one worker a shard must be able to store
// (ps.ServerConfig.Store): the largest quorum of a group that does not block its workers; 0: all
// block. It is fixed when the job starts: the coordinator rejects a later plan that needs more.
func keeps(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}
