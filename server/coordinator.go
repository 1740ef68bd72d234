package server

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/shirou/gopsutil/v4/mem"

	"star/coord"
	"star/coord/session"
	"star/internal/build"
	"star/job"
	"star/job/process"
	"star/modes"
	"star/modes/baseline"
	"star/ps/rule"
	"star/runlog"
	"star/runlog/parts"
	"star/train"
	"star/train/checkpoint"
	"star/transport/wire"
)

// logPath is the path of this process's run log. A successor has its own, because the coordinator
// before it may still be running. Both are in the folder of the job; star explain reads one after
// the other.
func (s *server) logPath() string {
	if s.handover == nil {
		return filepath.Join(s.job.Out, process.RunLogName)
	}
	return filepath.Join(s.job.Out, fmt.Sprintf("run-term%d.jsonl", s.lease.Term()))
}

// The coordinator's configuration comes from three sources: the Config of this process, what prepare
// has made of it (plan, baseline, pilot), and functions that ask the server when workers enrol or a
// checkpoint is written (Fits, Trains, Adopt, Save). It never depends on the shards in this process.

// coordinator creates the coordinator with its run log.
//
// It locks the folders first: a job must not touch the run log in another job's folder. An older run
// log is renamed. Errors: of the folder (a *job.SettingError of --out or --checkpoint), of the
// checkpoint's contents, and those of coord.New.
func (s *server) coordinator() (*coord.Coordinator, error) {
	j := s.job
	config, err := s.trained(session.Told{Model: j.Model, Dataset: j.Dataset, Seed: j.Seed}, session.Enrolment{})
	if err != nil {
		return nil, err
	}
	if err := s.takeFolders(); err != nil {
		return nil, err
	}
	path := s.logPath()
	file, kept, err := process.CreateRunLog(path)
	if err != nil {
		return nil, j.Invalid("out", err)
	}
	if kept != "" {
		s.log.Info("renamed the existing run log", "as", kept)
	}
	var log io.WriteCloser = file
	if j.LogMax > 0 {
		log = parts.NewRotating(file, path, j.LogMax)
	}
	cfg := coord.Config{
		Job: j.Name, MaxWorkers: j.Ranks(), Workers: j.Workers, MinWorkers: j.MinWorkers, Servers: j.Servers, Replicas: j.Replicas,
		Poison: j.Poison,
		Plan:   s.plan, Words: s.words(), Tree: modes.TreeRule{Capacity: 1e6 * j.PSBandwidth, FanIn: j.TreeFanIn}, Pace: j.PacePushes == "auto", Shift: j.MoveShards == job.Auto, Batch: j.Batch, Scale: coord.Scale(j.UpdateScale), Norm: j.Clip > 0, Strides: process.MayStride(&j.Job) == nil, Outward: s.mayOuter(&j.Job) == nil, Optimizer: s.ownSteps(&j.Job), Lossy: process.Lossy(j.Compress) || s.made.Local != nil,
		Samples: j.Samples, Epochs: j.Epochs, Steps: j.Steps,
		EvalEvery: j.EvalEvery, CheckpointEvery: j.CheckpointEvery, Grace: j.Grace,
		JoinTimeout: j.JoinTimeout, Attended: j.Attended, DeadAfter: j.DeadAfter, MaxParams: room(j.Servers),
		Save: s.saveManifest, Saved: s.saved, Discard: s.discard, Name: checkpoint.Name, Generation: s.generation(),
		Settings: config, Notes: s.notes(), Program: job.Program, Commit: build.Commit(),
		Fits: s.fits, Trains: func(h wire.Hello, e session.Enrolment) (session.Told, json.RawMessage) {
			t := s.trains(h, e)
			text, err := s.trained(t, e)
			if err != nil { // it was marshalled before
				text = config
			}
			return t, text
		},
		Adopt:         s.adopt,
		StopOnFailure: j.OnFailure == "stop", LeaveAtOnce: j.LeaveAtOnce,
		Result: runlog.Result{Arch: j.Arch, Baseline: j.Baseline, Model: j.Model, Dataset: j.Dataset, Seed: j.Seed, RunLog: path},
		Cancel: s.made.Cancel,
		RunLog: runlog.NewWriter(log), Log: s.log,
	}
	if s.lease.Leadership != nil {
		cfg.Lease, cfg.Handover, cfg.Coordinators = s.lease, s.handover, len(j.Coordinators)
	}
	if s.pilot != nil {
		cfg.Pilot = s.pilot
	}
	switch r := s.made.Rule.(type) {
	case rule.LiveSpec:
		cfg.Scale, cfg.Lossy = coord.ScaleFiring, true
	case rule.ZenoSpec:
		cfg.Validation = &coord.Validation{Every: r.Every, Judge: func(e coord.Evidence) coord.Verdict { return s.judge(r.Zeno, e) }}
	}
	if s.scheme != nil {
		cfg.Pilot = s.scheme
	}
	if j.Cluster != "" && s.pilot != nil {
		s.tenant = new(admission)
		cfg.Admission = s.tenant
	}
	if s.pilot != nil && cfg.Admission == nil && j.Arch != job.AllReduce {
		s.keeper = newLocalAdmission(j)
		cfg.Admission = s.keeper
	}
	if j.Arch == job.AllReduce {
		cfg.Ring = &coord.RingConfig{Rule: process.RuleText(&j.Job), RuleOf: s.ruleOf, Wait: j.RiderWait, MaxStale: j.MaxStaleness}
		cfg.MaxParams = 0 // every worker has its own
	}
	if err := s.goOn(&cfg); err != nil {
		return nil, err
	}
	return coord.New(cfg)
}

// notes returns the notes at the start of the run log: Config.Notes, the baseline with all its
// parameters, and what the pilot could not use. The last two are also logged.
func (s *server) notes() []string {
	notes := slices.Clone(s.job.Notes)
	if spec, err := baseline.Parse(s.job.Baseline); s.job.Baseline != "" && err == nil {
		notes = append(notes, "baseline: "+spec.String())
		if n := s.made.Notice; n != "" {
			s.log.Warn("baseline notice", "says", spec.Entry.Name+": "+n)
			notes = append(notes, spec.Entry.Name+": "+n)
		}
	}
	if s.pilot != nil {
		for _, n := range s.pilot.Notices() {
			s.log.Warn("auto mode notice", "says", n)
			notes = append(notes, n)
		}
	}
	return notes
}

// goOn restores the job's progress from the checkpoint that it resumes from, if any.
//
// Shards read parameters and optimizer state themselves (shards), and so do ring members. Here are
// the position in the stream, the batches to be handed out again, the workers' buffers, and the
// workers' last iterations, so that the pilot knows from the start which workers are slow. An error:
// a file of the checkpoint is damaged.
func (s *server) goOn(cfg *coord.Config) error {
	if s.resume == nil {
		return nil
	}
	m := s.resume.Manifest()
	cfg.Resume = coord.Progress{Version: m.Version, Samples: m.Samples, Cursor: m.Cursor}
	for _, p := range m.Extra.Redo {
		cfg.Resume.Redo = append(cfg.Resume.Redo, coord.Span{Start: p.Start, Count: int(p.Count)})
	}
	cfg.ResumeHash, cfg.ResumePlain = m.ModelHash, plainHash(&m)
	if m.Data != nil && !s.job.ResumeOtherData {
		cfg.ResumeData = &session.Enrolment{Data: m.Data.Name, Samples: m.Data.Samples, Digest: m.Data.Digest}
	}
	text, err := s.resume.More(memoryName)
	if err == nil {
		cfg.Remember, err = runlog.DecodeRecords(text)
	}
	if err != nil {
		return err
	}
	if n := s.resume.BufferLen(); n > 0 {
		cfg.Buffers = make([]float32, n)
		if err := s.resume.Buffers(cfg.Buffers); err != nil {
			return err
		}
		for _, t := range m.BufferLayout {
			cfg.BufferLayout = append(cfg.BufferLayout, session.Tensor(t))
		}
	}
	return nil
}

// plainHash returns the hash of a checkpoint's model with names that are [checkpoint.Plain], if the
// hash is one of names and shapes; otherwise empty. Today's programs leave out what PyTorch wrappers
// add to names; earlier ones did not.
func plainHash(m *checkpoint.Manifest) string {
	layout, buffers := checkpoint.PlainLayout(m.Layout, m.BufferLayout)
	was, wasBuffers := modelSpecs(m.Layout), modelSpecs(m.BufferLayout)
	switch m.ModelHash {
	case train.LayoutHash(was, wasBuffers):
		return train.LayoutHash(modelSpecs(layout), modelSpecs(buffers))
	case train.LayoutHash(was, nil):
		return train.LayoutHash(modelSpecs(layout), nil)
	}
	return ""
}

// modelSpecs converts specs of a checkpoint to those of a model.
func modelSpecs(ts []checkpoint.TensorSpec) []train.TensorSpec {
	out := make([]train.TensorSpec, len(ts))
	for i, t := range ts {
		out[i] = train.TensorSpec(t)
	}
	return out
}

// room returns the number of parameters that the servers have memory for, if they are like this one;
// 0: not known. A shard needs at least four times its slice: the parameters, the next ones, a
// gradient and the optimizer's state, with four bytes for each element.
func room(servers int) int64 {
	v, err := mem.VirtualMemory()
	if err != nil {
		return 0
	}
	return int64(v.Total/(4*4)) * int64(servers)
}
