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

// The order in which a checkpoint is written, and what a crash leaves after each step:
//
//	shards, ring member   shard files         incomplete, removed by takeFolders
//	workers               residual files      incomplete
//	saveManifest          buffers, memory     incomplete
//	saveManifest          manifest            complete
//	saveManifest          old ones removed    complete
//
// A reader considers a folder without a manifest as missing.

// saveManifest completes a checkpoint.
//
// It is called when every shard, or the ring member that saves, has written its file into the
// checkpoint's folder. The manifest is written last: a folder with a manifest is a complete
// checkpoint. If that fails, the folder is removed, and the error has the system's reason, and
// advice for a full disk. Then checkpoints beyond --keep are removed; a failure of that is only a
// warning.
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
			s.log.Warn("could not remove older checkpoints", "keep", s.job.Keep, "reason", err)
		}
	}
	return dir, nil
}

// saved reports whether a checkpoint is complete, and its path. A successor asks: the coordinator
// before it may have been lost between the manifest and the announcement.
func (s *server) saved(id string) (path string, ok bool) {
	dir := process.CheckpointDir(&s.job.Job, id)
	return dir, checkpoint.Complete(dir)
}

// discard removes an incomplete checkpoint, so that a full disk has room for the next one.
func (s *server) discard(id string) {
	if err := checkpoint.Discard(process.CheckpointDir(&s.job.Job, id)); err != nil {
		s.log.Warn("could not remove an incomplete checkpoint", "id", id, "reason", err)
	}
}

// specs converts the tensors for a checkpoint.
func specs(ts []session.Tensor) []checkpoint.TensorSpec {
	out := make([]checkpoint.TensorSpec, len(ts))
	for i, t := range ts {
		out[i] = checkpoint.TensorSpec(t)
	}
	return out
}

// generation counts the attempts of the job: one more than that of any checkpoint in the folder, and
// of the one it resumes from. It is part of the names of checkpoints, so that one attempt never
// overwrites those of another at the same version.
func (s *server) generation() int64 {
	var n int64
	if s.resume != nil {
		n = s.resume.Manifest().Generation
	}
	old, _ := checkpoint.List(process.CheckpointsOf(&s.job.Job)) // an error means that there are no checkpoints yet
	for _, f := range old {
		n = max(n, f.Generation)
	}
	return n + 1
}

// firstAttempt returns the generation of the attempt in which the job started to write into its
// folder of checkpoints.
func (s *server) firstAttempt(generation int64) int64 {
	if s.resume != nil {
		if first := s.resume.Follows(process.CheckpointsOf(&s.job.Job)); first > 0 {
			return first
		}
	}
	return generation
}
