// Package job is what the processes of a job have in common, whether they are workers
// (star/worker) or servers (star/server): which job it is and how its members reach each other,
// the rule of updates that all must agree on, where files are, what a process may take of its
// host; and how a process ends.
//
// The fields of a [Job] have the names of the settings of star-ps and star-worker, which
// docs/configure.md explains: --join-timeout is JoinTimeout. Errors name settings as these
// programs do.
//
// The zero value is not always the default of a setting: [Job.Defaults] says what it means, and
// star/worker/launch makes a Job of the variables STAR_….
package job

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"star/internal/defaults"
	"star/internal/exitcode"
)

// AllReduce is the value of Arch for jobs without parameter servers, PS of those with them.
const (
	AllReduce = "allreduce"
	PS        = "ps"
)

// Off is a value of Gossip, Poison and others: it is not done.
const Off = "off"

// Auto is a value that the program chooses.
const Auto = "auto"

// Values of Wire: how numbers travel.
const (
	Float32 = "float32"
	BF16    = "bf16"
)

// Job is a job as one of its members knows it. Members that must agree on something and do not are refused by the
// coordinator.
type Job struct {
	Name       string // members of other jobs are refused; empty: "star"
	Arch       string // PS or AllReduce; empty: PS
	Rank       int    // of this process among its kind; -1, of a worker: the coordinator chooses
	Workers    int    // with which the job begins; 0: not known here
	MaxWorkers int    // most at once; 0: Workers
	Servers    int    // star-ps processes; 0: 1
	Replicas   int    // servers that hold each shard; 0: 1
	Batch      int    // samples of one worker's mini-batch; 0: 32, or what the servers say
	Seed       uint64 // of parameters and of the order of samples

	Network
	Waits
	Rule
	Files
	Host
	Ring

	// Given are the settings that were set explicitly, by name, with their source ("--rank",
	// "STAR_RANK"). The program or other members may choose the others. Nil: those with a value
	// other than zero.
	Given map[string]string

	// Explain makes the error of a setting that cannot be used; nil: a *SettingError.
	Explain func(setting string, err error) error
}

// Network is how the members of a job reach each other.
type Network struct {
	// host:port of this process; empty, of a worker: any port of the interface that leads to the coordinator
	Listen    string
	Advertise string // host:port under which others reach it; empty: made from Listen
	// host:port of the first server; empty: the first of Coordinators, what the gossip says, or 127.0.0.1:7070
	Coordinator  string
	Coordinators []string // of all servers that may coordinate, by rank; nil: only the first one may
	Token        string   // shared secret of the job
	Insecure     bool     // listen beyond loopback without TLS or token
	TLSCert      string   // file of this process's certificate, PEM
	TLSKey       string
	TLSCA        string
	Congestion   string // TCP congestion control; empty: the host's

	Gossip     string   // host:port on which this process takes part in the job's gossip; empty: Off
	GossipJoin []string // host:port of members, which know where the coordinator is
	GossipKey  string   // file of keys; empty: it is not encrypted
}

// Waits is how long a process waits for others, and they for it.
type Waits struct {
	JoinTimeout time.Duration // for members that are missing at the start; 0: a minute
	DeadAfter   time.Duration // for a heartbeat; 0: 15 s
	// Grace is the time for a checkpoint when the job is stopped; 0: no checkpoint.
	Grace time.Duration
}

// Rule is how updates are made of gradients. All members of a ring must have the same; with parameter servers it
// is theirs, and that of workers which make steps of their own. Where Optimizer is empty and the numbers are 0, it
// is dana with a rate of 0.02 and a momentum of 0.9.
type Rule struct {
	Optimizer   string
	LR          float64
	Momentum    float64
	WeightDecay float64
	Clip        float64 // bound of the gradient's global norm; 0: none
	Schedule    string  // of the rate over samples; empty: constant
	// the optimiser as JSON of star/train/optim.Config, with what the five above cannot say; nil: they say it all
	Whole       []byte
	UpdateScale string // the c of the update rule: n, firing, damped or workers; empty: n
	Baseline    string // NAME:key=value,… of modes/baseline; empty: none
	Compress    string // codec of gradients (star/internal/compress); empty: none
	Wire        string // numbers on the way: Float32, or BF16 for gradients and what servers send; empty: Float32
	OnNaN       string // stop or skip; empty: stop
	Poison      string // skip, fatal or Off; empty: skip
}

// Files is where a job keeps what it writes.
type Files struct {
	Out        string // folder of the run log and of checkpoints; empty: star-out
	Checkpoint string // folder or address of checkpoints; empty: one in Out
	Resume     string // checkpoint to start from; empty: none
	Keep       int    // newest checkpoints that stay; 0: all
}

// Host is the configuration of a process's host, and of what it may use.
type Host struct {
	HostID         string   // processes with the same one share a host; empty: as the kernel says
	Threads        int      // of the arithmetic; 0: chosen by the program
	Actuator       string   // how orders to be slower are carried out: pace, cgroup, tc or none; empty: pace
	Limit          string   // what the process may take from its start on (cluster/resource/actuate); empty: none
	LimitInterface string   // that tc limits; empty: the one that leads to the coordinator
	LeaseDir       string   // folder of what is to be undone; empty: the user's own
	CapacityCPU    float64  // cores that the host of the servers has for them; 0: what it has and others leave
	CapacityNet    float64  // MB/s that its link carries for them in each direction; 0: not known
	ModelPrior     string   // published model that the job is like, until it is measured
	Cluster        string   // NAME@host:port of the resource service, or NAME; empty: none
	ClusterJoin    []string // host:port of members of the cluster's gossip
	ClusterKey     string   // file of the gossip's key; empty: it is not encrypted
}

// Ring is how the workers of an all-reduce exchange gradients.
type Ring struct {
	RiderWait    time.Duration // how long a round waits for riders
	MaxStaleness int64         // drop riders' gradients that are older, in updates; 0: none
	Bucket       float64       // MB of a gradient that are exchanged at once; 0: 25
	RingModel    string        // file of a cost model; empty: none
	Algorithm    string        // of the exchange; empty: Auto, by the model
	Connections  int           // TCP connections between two workers; 0: 1
	Transport    string        // of links between members: Auto, shm, unix, tcp; empty: Auto
	Checksum     string        // over their TCP connections: Auto, on, Off; empty: Auto
	ZeroCopy     string        // which vectors their TCP sockets get without a copy: Auto, on, Off; empty: Auto
	Segment      int           // KiB after which a part is passed on; 0: by the model
	Buffer       int           // KiB of each socket's buffers; 0: by the model; -1: the kernel's choice
}

// Defaults puts what they stand for into the place of zero values.
func (j *Job) Defaults() {
	if j.Given == nil {
		j.Given = j.chosen()
	}
	set(&j.Name, defaults.Job)
	set(&j.Arch, PS)
	set(&j.Servers, 1)
	set(&j.Replicas, 1)
	set(&j.Batch, defaults.Batch)
	if len(j.Coordinators) > 0 {
		set(&j.Coordinator, j.Coordinators[0])
	}
	set(&j.Coordinator, defaults.Address)
	set(&j.Listen, defaults.AnyPort)
	set(&j.Gossip, Off)
	set(&j.JoinTimeout, defaults.JoinTimeout)
	set(&j.DeadAfter, defaults.DeadAfter)
	if r := &j.Rule; r.Optimizer == "" && r.LR == 0 && r.Momentum == 0 {
		r.LR, r.Momentum = defaults.LR, defaults.Momentum
	}
	set(&j.Optimizer, defaults.Optimizer)
	set(&j.Schedule, defaults.Schedule)
	set(&j.UpdateScale, defaults.UpdateScale)
	if j.Wire == BF16 { // a codec that was chosen for gradients stays
		set(&j.Compress, BF16)
	}
	set(&j.Compress, defaults.Compress)
	set(&j.Wire, Float32)
	set(&j.OnNaN, defaults.OnNaN)
	set(&j.Poison, defaults.Poison)
	set(&j.Out, defaults.Out)
	set(&j.Actuator, defaults.Actuator)
	set(&j.Limit, defaults.Limit)
	set(&j.Bucket, defaults.Bucket)
	set(&j.Algorithm, Auto)
	set(&j.Connections, 1)
	set(&j.Transport, Auto)
	set(&j.Checksum, Auto)
	set(&j.ZeroCopy, Auto)
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// chosen are the settings with values that are not zero, of those for which that matters.
func (j *Job) chosen() map[string]string {
	given := map[string]string{}
	for name, is := range map[string]bool{
		"batch": j.Batch != 0, "workers": j.Workers != 0, "max-workers": j.MaxWorkers != 0, "listen": j.Listen != "", "coordinator": j.Coordinator != "",
		"optimizer": j.Optimizer != "", "update-scale": j.UpdateScale != "", "seed": j.Seed != 0,
	} {
		if is {
			given[name] = "the configuration"
		}
	}
	return given
}

// IsSet reports whether a setting was set explicitly.
func (j *Job) IsSet(setting string) bool {
	_, ok := j.Given[setting]
	return ok
}

// Origin says where a setting is from.
func (j *Job) Origin(setting string) string {
	if from, ok := j.Given[setting]; ok {
		return from
	}
	return "default"
}

// Invalid is the error of a setting that cannot be used, for the reason err.
func (j *Job) Invalid(setting string, err error) error {
	if j.Explain != nil {
		return j.Explain(setting, err)
	}
	return &SettingError{Setting: setting, Err: err}
}

// Ranks is how many workers the job may have at once.
func (j *Job) Ranks() int { return max(j.Workers, j.MaxWorkers) }

// TLS reports whether there are certificates.
func (j *Job) TLS() bool { return j.TLSCert != "" }

// HasMomentum reports whether the optimiser is one that Momentum is of.
func (r *Rule) HasMomentum() bool {
	return slices.Contains([]string{"momentum", "nesterov", "dana", "muon"}, r.Optimizer)
}

// Clone is a copy that shares nothing with j.
func (j *Job) Clone() *Job {
	c := *j
	c.Given = maps.Clone(j.Given)
	c.Coordinators, c.GossipJoin, c.ClusterJoin = slices.Clone(j.Coordinators), slices.Clone(j.GossipJoin), slices.Clone(j.ClusterJoin)
	return &c
}

// SettingError says that a setting cannot be used.
type SettingError struct {
	Setting string // as star-worker calls it: join-timeout
	Err     error
}

func (e *SettingError) Error() string { return fmt.Sprintf("--%s: %v", e.Setting, e.Err) }
func (e *SettingError) Unwrap() error { return e.Err }

// ExitCode is that of a usage error.
func (e *SettingError) ExitCode() int { return exitcode.Usage }
