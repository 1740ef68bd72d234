// Package options makes what a process of a job needs out of settings: the job, and its log. Programs use it;
// packages worker and server know no settings.
package options

import (
	"cmp"
	"path/filepath"
	"slices"

	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/train/checkpoint"
)

// JobOf is the job that the settings describe.
func JobOf(j *settings.Job) job.Job {
	job := job.Job{
		Name: j.Name, Arch: j.Arch, Rank: j.Rank, Workers: j.Workers, MaxWorkers: j.MaxWorkers, Servers: j.Servers, Replicas: j.Replicas, Batch: j.Batch, Seed: j.Seed,
		Network: job.Network{
			Listen: j.Listen, Advertise: j.Advertise, Coordinator: j.Coordinator, Coordinators: j.Coordinators, Token: string(j.Token), Insecure: j.Insecure,
			TLSCert: j.TLSCert, TLSKey: j.TLSKey, TLSCA: j.TLSCA, Congestion: j.Congestion, Gossip: j.Gossip, GossipJoin: j.GossipJoin, GossipKey: j.GossipKey,
		},
		Waits: job.Waits{JoinTimeout: j.JoinTimeout, DeadAfter: j.DeadAfter, Grace: j.Grace},
		Rule: job.Rule{
			Optimizer: j.Optimizer, LR: j.LR, Momentum: j.Momentum, WeightDecay: j.WeightDecay, Clip: j.Clip, Schedule: j.Schedule, UpdateScale: j.UpdateScale,
			Baseline: j.Baseline, Compress: j.Compress, Wire: j.Wire, OnNaN: j.OnNaN, Poison: j.Poison,
		},
		Files: job.Files{Out: j.Out, Checkpoint: j.Checkpoint, Resume: ResumeFrom(j), Keep: j.Keep},
		Host: job.Host{
			HostID: j.HostID, Threads: j.Threads, Actuator: j.Actuator, Limit: j.Limit, LimitInterface: j.LimitInterface, LeaseDir: j.LeaseDir,
			CapacityCPU: j.CapacityCPU, CapacityNet: j.CapacityNet, ModelPrior: j.ModelPrior, Cluster: j.Cluster, ClusterJoin: j.ClusterJoin, ClusterKey: j.ClusterKey,
		},
		Ring: job.Ring{
			RiderWait: j.RiderWait, MaxStaleness: j.MaxStaleness, Bucket: j.Bucket, RingModel: j.RingModel, Algorithm: j.Algorithm, Connections: j.Connections,
			Transport: j.Transport, Checksum: j.Checksum, ZeroCopy: j.ZeroCopy, Segment: j.Segment, Buffer: j.Buffer,
		},
		Given:   map[string]string{},
		Explain: j.Invalid,
	}
	for _, name := range j.Config.Names() {
		if j.Config.IsSet(name) {
			job.Given[name] = string(j.Config.Origin(name))
		}
	}
	return job
}

// ResumeFrom is the checkpoint, or the folder of checkpoints, from which a process of a job starts:
// the value of --resume. With auto it is the job's folder of checkpoints, or empty if that has no
// complete one.
func ResumeFrom(j *settings.Job) string {
	if j.Resume != process.ResumeAuto {
		return j.Resume
	}
	place := cmp.Or(j.Checkpoint, filepath.Join(j.Out, process.CheckpointsDir))
	found, err := checkpoint.List(place)
	if checkpoint.None(err) || err == nil && !slices.ContainsFunc(found, func(f checkpoint.Found) bool { return f.Complete }) {
		return ""
	}
	return place // other errors are found when it is opened
}
