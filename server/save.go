package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"star/coord"
	"star/coord/session"
	"star/internal/build"
	"star/job/process"
	"star/runlog"
	"star/train/checkpoint"
	"star/transport/wire"
)

// memoryName is the file of the workers' last iterations, as lines of a run log.
const memoryName = "predictor.jsonl"

// saveManifest completes a checkpoint.
//
// It is called when every shard, or the member of the ring that saves, has written its file into
// the checkpoint's folder. The manifest is written last: a folder with one is a complete
// checkpoint. Where that fails, the folder is removed, and the error says what the system said, and
// of a full disk what helps. Older checkpoints than --keep are removed afterwards; that they cannot
// be is a warning.
func (s *server) saveManifest(c coord.Checkpoint) (path string, err error) {
	dir := process.CheckpointDir(&s.job.Job, c.ID)
	defer func() {
		if err != nil {
			s.discard(c.ID)
			err = process.FullDisk(err)
		}
	}()
	config, err := s.trained(s.trains(wire.Hello{Model: c.Model}, c.Enrolment), c.Enrolment)
	if err != nil {
		return "", err
	}
	m := checkpoint.Manifest{
		Job: s.job.Name, Model: c.Model, ModelHash: c.ModelHash, Created: time.Now().UTC().Format(time.RFC3339), Program: build.Program, Commit: build.Commit(),
		Params: c.Params, Layout: specs(c.Enrolment.Layout), BufferLayout: specs(c.Enrolment.Buffers),
		Version: c.Version, Samples: c.Samples, Cursor: c.Cursor, Generation: c.Generation,
		Config: config, FirstAttempt: s.firstAttempt(c.Generation),
		Data: &checkpoint.Data{Name: c.Enrolment.Data, Samples: c.Enrolment.Samples, Digest: c.Enrolment.Digest},
	}
	for _, p := range c.Redo {
		m.Extra.Redo = append(m.Extra.Redo, checkpoint.Span{Start: p.Start, Count: int64(p.Count)})
	}
	for i, part := range c.Parts {
		var f checkpoint.ShardFile
		if err := json.Unmarshal(part, &f); err != nil {
			return "", fmt.Errorf("shard %d describes its file as %q: %w", i, part, err)
		}
		m.Shards = append(m.Shards, f)
		m.Optimizer, m.Steps = f.Optimizer, f.Steps
	}
	if len(c.Buffers) > 0 {
		f, err := checkpoint.WriteBuffers(dir, c.Buffers)
		if err != nil {
			return "", err
		}
		m.Buffers = &f
	}
	if len(c.Records) > 0 {
		var text bytes.Buffer
		if err := runlog.EncodeRecords(&text, c.Records); err != nil {
			return "", err
		}
		f, err := checkpoint.WriteMore(dir, memoryName, text.Bytes())
		if err != nil {
			return "", err
		}
		m.More = append(m.More, f)
	}
	s.addResiduals(&m, dir, c.Residuals)
	if err := checkpoint.WriteManifest(dir, m); err != nil {
		return "", err
	}
	if s.job.Keep > 0 {
		if err := checkpoint.Keep(process.CheckpointsOf(&s.job.Job), s.job.Keep, m); err != nil {
			s.log.Warn("older checkpoints are still there", "keep", s.job.Keep, "reason", err)
		}
	}
	return dir, nil
}

// saved says whether a checkpoint is complete, and where. A successor asks: the coordinator before
// may have been lost between the manifest and its word that the checkpoint is complete.
func (s *server) saved(id string) (path string, ok bool) {
	dir := process.CheckpointDir(&s.job.Job, id)
	return dir, checkpoint.Complete(dir)
}

// discard removes what a checkpoint that failed has left, so that a full disk has room for the next one.
func (s *server) discard(id string) {
	if err := checkpoint.Discard(process.CheckpointDir(&s.job.Job, id)); err != nil {
		s.log.Warn("the remains of a checkpoint are still there", "id", id, "reason", err)
	}
}

// specs are the tensors as a checkpoint has them.
func specs(ts []session.Tensor) []checkpoint.TensorSpec {
	out := make([]checkpoint.TensorSpec, len(ts))
	for i, t := range ts {
		out[i] = checkpoint.TensorSpec(t)
	}
	return out
}

// generation counts the attempts of the job: one more than that of any checkpoint in the folder,
// and than that of the one it resumes from. Checkpoints of different attempts at the same version
// have different names by it, so that one attempt never overwrites what another has written.
func (s *server) generation() int64 {
	var n int64
	if s.resume != nil {
		n = s.resume.Manifest().Generation
	}
	old, _ := checkpoint.List(process.CheckpointsOf(&s.job.Job)) // where there are none yet, none counts
	for _, f := range old {
		n = max(n, f.Generation)
	}
	return n + 1
}

// firstAttempt is the generation of the attempt in which the job has begun to write into its folder
// of checkpoints.
func (s *server) firstAttempt(generation int64) int64 {
	if s.resume != nil {
		if first := s.resume.Follows(process.CheckpointsOf(&s.job.Job)); first > 0 {
			return first
		}
	}
	return generation
}
