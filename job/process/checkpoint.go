package process

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"star/job"
	"star/train/checkpoint"
	"star/train/optim"
	"star/transport/wire"
)

// Names of what a job writes into its folder (--out).
const (
	RunLogName     = "run.jsonl"
	CheckpointsDir = "checkpoints"
)

// OpenCheckpoint opens place, which is a checkpoint, a folder of them, or a job's
// folder: then the newest one that is whole.
func OpenCheckpoint(place string, log *slog.Logger) (*checkpoint.Checkpoint, error) {
	var c *checkpoint.Checkpoint
	var skipped []error
	var err error
	if checkpoint.Complete(place) {
		c, err = checkpoint.Open(place)
	} else {
		if sub := filepath.Join(place, CheckpointsDir); IsDir(sub) {
			place = sub
		}
		c, skipped, err = checkpoint.Latest(place)
	}
	for _, e := range skipped {
		log.Warn("passed over a checkpoint", "reason", e)
	}
	if err == nil {
		m := c.Manifest()
		log.Info("resumes", "checkpoint", c.Dir(), "version", m.Version, "samples", m.Samples, "passed_over", len(skipped))
	}
	return c, err
}

// ResumeAuto is a value of --resume.
const ResumeAuto = "auto"

// IsDir reports whether path is an existing folder, or a link to one.
func IsDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Copied is a state of its own.
func Copied(st optim.State) optim.State {
	st.Slots = slices.Clone(st.Slots)
	for i := range st.Slots {
		st.Slots[i].Data = slices.Clone(st.Slots[i].Data)
	}
	return st
}

// WriteShard writes a range of the parameters, with the optimiser's state, and
// describes the file for the manifest.
func WriteShard(dir string, i wire.ShardInfo, version int64, params []float32, st optim.State) ([]byte, error) {
	sh := checkpoint.Shard{From: i.From, To: i.To, Version: version, Optimizer: st.Name, Steps: st.Steps, Params: params}
	for _, slot := range st.Slots {
		sh.Slots = append(sh.Slots, checkpoint.Slot(slot))
	}
	file, err := checkpoint.WriteShard(dir, i.Shard, sh)
	if err != nil {
		return nil, FullDisk(err)
	}
	return json.Marshal(file)
}

// Restore reads a range of a checkpoint: the state for set, the parameters into the
// vector that it returns.
func Restore(c *checkpoint.Checkpoint, i wire.ShardInfo, set func(optim.State) error) ([]float32, error) {
	sh, err := c.Shard(i.From, i.To)
	if err != nil {
		return nil, err
	}
	st := optim.State{Name: sh.Optimizer, Steps: sh.Steps}
	for _, slot := range sh.Slots {
		st.Slots = append(st.Slots, optim.Slot(slot))
	}
	if err := set(st); err != nil {
		return nil, &job.DisagreeError{Err: err}
	}
	return sh.Params, nil
}

// CheckpointsOf is where the checkpoints of a job are kept.
func CheckpointsOf(job *job.Job) string {
	if job.Checkpoint != "" {
		return job.Checkpoint
	}
	return filepath.Join(job.Out, CheckpointsDir)
}

// CheckpointDir is the place of the checkpoint id (such as ckpt-000000000042-g1) of a job.
func CheckpointDir(job *job.Job, id string) string {
	return checkpoint.Join(CheckpointsOf(job), id)
}
