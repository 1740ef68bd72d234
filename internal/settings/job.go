package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"star/internal/defaults"
	"star/internal/loopback"
)

// Role is which program a Job is for. Names and meanings are the same for all;
// some defaults differ, and only daemons listen to launchers.
type Role int

const (
	ForRun    Role = iota // star run: the whole job on one machine
	ForServer             // star-ps
	ForWorker             // star-worker
)

// AllReduce is the value of Arch for jobs without parameter servers.
const AllReduce = "allreduce"

// Off is the value of HTTP that means no HTTP server.
const Off = "off"

// UnixSocket is the prefix of a value of HTTP that is the path of a socket: the permissions of that
// file control access.
const UnixSocket = "unix:"

// maxSocket is the longest path of a socket (Linux has 108 bytes for it with the zero behind it, others 104).
const maxSocket = 103

// Job is everything that can be chosen about a training job. Use Bind, Load and
// Validate, in this order. After Bind a copy of a Job is only good for reading its
// fields: the flags belong to the original.
//
// Some texts are only checked by the packages that understand them (Model,
// Dataset, Mode, Schedule, Slow); [Job.Invalid] turns their errors into errors that name
// the flag.
type Job struct {
	Config Set // the settings, with origins

	// Job, members and hosts.

	Name        string // of the job; members with another name are refused
	Listen      string // host:port of this process
	Advertise   string // host:port under which others reach it; empty: made from Listen
	Coordinator string // host:port of the first server

	// Coordinators are the addresses of all servers that may coordinate, by rank; nil: only that of rank 0 may.
	Coordinators []string

	Rank       int // of this process among its kind; -1: the coordinator chooses
	Workers    int // that the job begins with
	MaxWorkers int // most workers of the job; 0: Workers
	MinWorkers int // least; 0: it begins with Workers and continues while one is left
	Servers    int // star-ps processes
	Shards     int // shards of one star-ps process; 0: coordinator only
	Token      Secret
	Insecure   bool // listen beyond loopback without TLS or token
	TLSCert    string
	TLSKey     string
	TLSCA      string
	HTTP       string // host:port, or unix:PATH, of /healthz, /readyz, /metrics, /debug/star; or Off

	// Several hosts, for star run.

	Hosts string // file of hosts; empty: this one
	// Demands is a file of jobs that includes this one; empty: computed.
	Demands        string
	PrintPlacement bool // print the placement of all processes, and exit

	// What is trained.

	Model   string
	Dataset string // FORMAT:PATH, or the name of a generator
	Batch   int    // samples of one worker's mini-batch, with equal shares
	Epochs  float64
	Samples int64 // end after this number; 0: not
	Steps   int64 // end after this number for every worker; 0: not
	Seed    uint64

	// How.

	Optimizer   string
	LR          float64
	Momentum    float64
	WeightDecay float64
	Clip        float64 // bound of the gradient's global norm; 0: none
	Schedule    string
	Mode        string
	Baseline    string // NAME:key=value,… of modes/baseline, in the place of Mode; empty: none
	Predictor   string
	Decider     string
	Shares      []int // samples of each worker's mini-batch; nil: Batch for each

	WholeBatches bool // plans neither cut nor resize a worker's mini-batch
	// cores of the servers' host that are available to them; 0: those that the host has and others do not use
	CapacityCPU float64
	CapacityNet float64 // MB/s that its link carries for them in each direction; 0: not known
	ModelPrior  string  // published model that the job is like, until it is measured
	PSBandwidth float64 // MB/s that the servers' links may carry for this job, both ways together; 0: not known
	TreeFanIn   int     // most children of one worker in an automatic tree
	PacePushes  string  // auto or off
	MoveShards  string  // auto or off
	Replicas    int     // servers that hold each shard
	UpdateScale string  // n, firing, damped or workers: the c of the update rule
	OnNaN       string  // stop or skip
	Poison      string  // skip, fatal or off
	Threads     int     // of the arithmetic in one worker; 0: chosen by the program
	Congestion  string  // TCP congestion control; empty: the host's
	Wire        string  // of numbers: float32 or bf16
	Compress    string  // codec of gradients: none, auto or a name of star/internal/compress

	// All-reduce.

	Arch         string        // ps or allreduce
	RiderWait    time.Duration // how long a round waits for riders
	MaxStaleness int64         // drop riders' gradients that are older, in updates; 0: none
	Bucket       float64       // MB of a gradient that are exchanged at once
	RingModel    string        // file of a cost model; empty: none
	Algorithm    string        // of the exchange; auto: by the model
	Connections  int           // TCP connections between two workers
	Transport    string        // of links between members: auto, shm, unix, tcp
	Checksum     string        // over their TCP connections: auto, on, off
	ZeroCopy     string        // which vectors their TCP sockets get without a copy: auto, on, off
	HostID       string        // of this worker's host; empty: the kernel's name
	Segment      int           // KiB after which a part is passed on; 0: by the model
	Buffer       int           // KiB of each socket's buffers; 0: by the model; -1: the kernel's choice
	OnFailure    string        // shrink or stop, when a worker is gone
	LeaveAtOnce  bool          // a process that must stop is released at once

	WorkerRestarts int // star run: how many workers that failed are started again, in all
	ProcsPerWorker int // star run: processes of the command that are one worker

	// Files.

	Out             string        // folder of run.jsonl and checkpoints
	LogMax          int           // MiB; 0: no bound
	CheckpointEvery time.Duration // 0: only at the end
	Notice          string        // file or HTTP address with the time when this machine is taken away
	Grace           time.Duration // for a checkpoint when the job is stopped; 0: none is made
	Checkpoint      string        // folder or address of checkpoints; empty: one in Out
	Keep            int           // newest checkpoints that stay; 0: all
	Restarts        int           // star run: how often a job that fails is begun again from its last checkpoint
	Resume          string        // checkpoint to start from; empty: none
	ResumeOtherData bool          // a checkpoint of another data set may be used
	EvalEvery       float64       // epochs between evaluations; 0: only at the end

	// Waiting.

	JoinTimeout time.Duration
	DeadAfter   time.Duration // without a heartbeat
	TimerSlack  time.Duration // how late the kernel may be with timers; 0: as the process was started

	// Stragglers on purpose.

	Slow           []string
	StragglerTrace string
	StragglerTime  time.Duration // of the trace's median iteration; 0: it multiplies what computing takes
	StragglerBy    string        // sleep, quota or tc

	Revoke string // star run: when workers' machines are taken away; empty: never

	// Taking less of the host, so that others have more.

	Actuator       string // how orders to be slower are carried out: pace, cgroup, tc or none
	Limit          string // what this process may take from its start on; star/cluster/resource/actuate reads it
	LimitInterface string // that tc limits; empty: the one that leads to the coordinator
	LeaseDir       string // folder of leases; empty: the user's own

	// Other jobs on the same hosts.

	Cluster     string   // NAME@host:port of the resource service, or NAME; empty: none
	ClusterJoin []string // host:port of members of the cluster's gossip
	ClusterKey  string   // file of the gossip's key; empty: it is not encrypted

	// The job's own gossip, by which its processes find the coordinator.

	Gossip     string   // host:port on which this process takes part in it, or Off
	GossipJoin []string // host:port of members
	GossipKey  string   // file of keys; empty: it is not encrypted

	// Telemetry is on or off: what workers measure beside their times.
	Telemetry string

	// Output.

	LogLevel  string
	LogFormat string // text, json, or auto: text on a terminal
	JSON      bool
	Progress  string // auto, plain or off

	TensorBoard string // folder of event files

	role Role
}

// declare lists the settings. This is the only place that knows their names.
func (j *Job) declare(role Role) {
	s := &j.Config
	byRole := func(run, server, worker string) string {
		return [...]string{run, server, worker}[role]
	}

	Var(s, &j.Name, "job", defaults.Job, "name of the job; members of other jobs are refused")
	Var(s, &j.Listen, "listen", byRole(defaults.Address, ":"+defaults.Port, defaults.AnyPort), "address to listen on, host:port")
	Var(s, &j.Advertise, "advertise", "", "address under which others reach this process (from --listen)")
	Var(s, &j.Coordinator, "coordinator", defaults.Address, "address of the first star-ps, host:port")
	Var(s, &j.Coordinators, "coordinators", nil, "addresses of the star-ps that may coordinate, by rank, host:port,…: 3 to 9, with --shards 0; if the coordinator is lost, another one takes over. star run: their number")
	Var(s, &j.Rank, "rank", map[Role]int{ForRun: -1, ForServer: 0, ForWorker: -1}[role],
		"rank of this process among its kind; -1: the coordinator chooses")
	Var(s, &j.Workers, "workers", 4, "number of workers")
	Var(s, &j.ProcsPerWorker, "procs-per-worker", 1, "star run: processes of the command that are one worker (star.attach(group=…)); each has RANK and WORLD_SIZE of its worker")
	Var(s, &j.MaxWorkers, "max-workers", 0, "maximum number of workers, including those that join a running job (star-worker); 0: --workers")
	Var(s, &j.MinWorkers, "min-workers", 0, "start with this number of workers, and pause with fewer (at most --join-timeout); 0: start with --workers, continue with one")
	Var(s, &j.Servers, "servers", 1, "number of star-ps processes; star run starts one for each shard")
	Var(s, &j.Shards, "shards", map[Role]int{ForRun: 2, ForServer: 1, ForWorker: 1}[role],
		"shards of the parameters in each star-ps; 0: coordinator only")
	Var(s, &j.Token, "token", "", "shared secret of the job (prefer STAR_TOKEN: other users can see arguments)")
	Var(s, &j.Insecure, "insecure", false, "allow listening beyond loopback without TLS or token")
	Var(s, &j.TLSCert, "tls-cert", "", "certificate of this process, PEM")
	Var(s, &j.TLSKey, "tls-key", "", "key of the certificate, PEM")
	Var(s, &j.TLSCA, "tls-ca", "", "certificates that sign the members' certificates, PEM")
	Var(s, &j.HTTP, "http", byRole(Off, ":"+defaults.Metrics, Off), "address of /healthz, /readyz, /metrics and /debug/star: host:port, unix:PATH, or off")

	Var(s, &j.Hosts, "hosts", "", "star run: file of hosts to run on (docs/placement.md); empty: this host")
	Var(s, &j.Demands, "demands", "", "star run: with --hosts, file of jobs for star place with this job's demands; empty: estimated")
	Var(s, &j.PrintPlacement, "print-placement", false, "star run: with --hosts, print where each process would run and why, and exit")

	Var(s, &j.Model, "model", defaults.Model, "model, with its settings")
	Var(s, &j.Dataset, "dataset", defaults.Dataset, "data set: digits, or FORMAT:PATH")
	Var(s, &j.Batch, "batch", defaults.Batch, "samples in one worker's mini-batch")
	Var(s, &j.Epochs, "epochs", defaults.Epochs, "end after this number of epochs; 0: no limit")
	Var(s, &j.Samples, "samples", 0, "end after this number of samples; 0: no limit")
	Var(s, &j.Steps, "steps", 0, "end after this number of iterations of every worker; 0: no limit")
	Var(s, &j.Seed, "seed", defaults.Seed, "seed of parameters, data order and noise")

	Var(s, &j.Optimizer, "optimizer", defaults.Optimizer, "update rule; a resumed job has its checkpoint's by default", "sgd", "momentum", "nesterov", "dana", "adam", "adamw", "muon")
	Var(s, &j.LR, "lr", defaults.LR, "learning rate")
	Var(s, &j.Momentum, "momentum", defaults.Momentum, "coefficient of momentum, nesterov, dana and muon")
	Var(s, &j.WeightDecay, "weight-decay", 0, "weight decay")
	Var(s, &j.Clip, "clip", 0, "maximum global norm of the gradient; 0: no limit")
	Var(s, &j.Schedule, "schedule", defaults.Schedule, "learning-rate schedule over samples")
	Var(s, &j.Mode, "mode", map[Role]string{ForRun: "auto", ForServer: defaults.Mode, ForWorker: defaults.Mode}[role],
		"which gradients make an update: auto, ssgd, asgd, x=K, groups=0,1/2,3, backup=B; and how they are sent: tree=0(1,2),3(4), tree=auto")
	Var(s, &j.Decider, "decider", "", "with --mode auto: file of star decider train that chooses modes; empty: by price")
	Var(s, &j.Baseline, "baseline", "", "a published method instead of --mode: NAME or NAME:key=value,… (docs/baselines.md); the same for every member")
	Var(s, &j.Predictor, "predictor", "online", "with --mode auto: predictor of iteration times: online, none, or a file of star predictor train")
	Var(s, &j.Shares, "shares", nil, "samples in each worker's mini-batch, such as 32,32,16,16 (--batch for each)")
	Var(s, &j.WholeBatches, "whole-batches", false, "never split or resize mini-batches (queue=, micro=, shares=); set by PyTorch scripts without divisible=True")
	Var(s, &j.PSBandwidth, "ps-bandwidth", 0, "with tree=auto: MB/s of the servers' links for this job, in plus out; 0: unknown")
	Var(s, &j.CapacityCPU, "capacity-cpu", 0, "with --mode auto: cores that the servers' host has for them; 0: those that others leave free")
	Var(s, &j.CapacityNet, "capacity-net", 0, "with --mode auto: MB/s that the servers' host has for them in each direction; 0: unknown")
	Var(s, &j.ModelPrior, "model-prior", "", "with --mode auto: published model (docs/resources.md) with the servers' cost until it is measured; empty: by bytes")
	Var(s, &j.TreeFanIn, "tree-fan-in", defaults.TreeFanIn, "with tree=auto: maximum number of children of a worker")
	Var(s, &j.PacePushes, "pace-pushes", defaults.PacePushes, "delay pushes that would share the servers' link, if no update is later", "auto", Off)
	Var(s, &j.Replicas, "replicas", 1, "copies of each shard, on different star-ps: with 2 or more, the loss of one loses no state; the same for every member")
	Var(s, &j.MoveShards, "move-shards", Off, "auto: move a shard to another star-ps when that pays; star run --hosts starts spare ones", "auto", Off)
	Var(s, &j.UpdateScale, "update-scale", defaults.UpdateScale, "weight of a gradient in an update", "n", "firing", "damped", "workers")
	Var(s, &j.OnNaN, "on-nan", defaults.OnNaN, "what to do when a gradient is not finite", "stop", "skip")
	Var(s, &j.Poison, "poison", defaults.Poison, "what to do about implausible gradients: not finite, exploding, flipped", "skip", "fatal", Off)
	Var(s, &j.Threads, "threads", 0, "compute threads of a worker; 0: chosen by the program")
	Var(s, &j.TimerSlack, "timer-slack", TimerSlack, "the kernel's timer slack (Linux): a larger one wakes threads less often; 0: the inherited value")
	Var(s, &j.Congestion, "congestion", "", "TCP congestion control (the host's)")
	Var(s, &j.Wire, "wire", "float32", "numbers on the way; bf16: gradients, and parameters that servers send, in half the bytes; servers keep float32", "float32", "bf16")
	Var(s, &j.Compress, "compress", defaults.Compress, "compression of gradients: none, fp16, bf16, int8, int8-stochastic, int2, topk=F, powersgd=R, auto")

	Var(s, &j.Arch, "arch", "ps", "sum gradients by parameter servers or by all-reduce among workers", "ps", "allreduce")
	Var(s, &j.RiderWait, "rider-wait", 0, "allreduce: how long a round waits for riders (--mode ring-minus=2,3)")
	Var(s, &j.MaxStaleness, "max-staleness", 0, "allreduce: maximum staleness of riders' gradients, in updates; 0: no limit")
	Var(s, &j.Bucket, "bucket", defaults.Bucket, "allreduce: MB of the gradient per exchange, while the rest is computed")
	Var(s, &j.RingModel, "allreduce-model", "", "allreduce: cost model from star bench allreduce --tune")
	Var(s, &j.Algorithm, "allreduce-algorithm", "auto", "allreduce: algorithm; auto: the cheapest by the cost model; late: as auto, but the others begin without a rank that is always last", "auto", "ring", "doubling", "halving", "tree", "double-tree", "hierarchy", "hierarchy-doubling", "late")
	Var(s, &j.Connections, "allreduce-connections", 1, "allreduce: TCP connections between two workers, for networks that limit each connection")
	Var(s, &j.Transport, "allreduce-transport", "auto", "allreduce: transport between members; auto: shared memory within a host, TCP between hosts", "auto", "shm", "unix", "tcp")
	Var(s, &j.Checksum, "allreduce-checksum", "auto", "allreduce: CRC-32 of data over TCP without TLS; auto: between hosts", "auto", "on", "off")
	Var(s, &j.ZeroCopy, "allreduce-zero-copy", "auto", "allreduce: send from this process's memory without copies (Linux; over sockets not with checksums or TLS); auto: vectors from 2 MiB on", "auto", "on", "off")
	Var(s, &j.HostID, "host-id", "", "allreduce: name of this host, the same for its workers; empty: from the kernel")
	Var(s, &j.Segment, "allreduce-segment", 0, "allreduce: KiB of a vector that are passed on at once; 0: by the cost model")
	Var(s, &j.Buffer, "allreduce-buffer", 0, "allreduce: KiB of each socket's buffers; 0: by the cost model; -1: the kernel's choice")
	Var(s, &j.OnFailure, "on-failure", defaults.OnFailure, "when a worker is lost: continue without it, or stop the job", "shrink", "stop")
	Var(s, &j.LeaveAtOnce, "leave-at-once", false, "release a stopped worker at once, not after 2 s; for schedulers that signal rank 0 to end the job")
	Var(s, &j.WorkerRestarts, "worker-restarts", 0, "star run: total number of failed workers to restart; with --coordinators also killed coordinators, with --replicas also killed servers")

	Var(s, &j.Out, "out", defaults.Out, "folder for run.jsonl and checkpoints")
	Var(s, &j.LogMax, "log-max", 0, "maximum MiB of the run log, in compressed parts; the oldest lose records, updates and noise; 0: one file, no limit")
	Var(s, &j.CheckpointEvery, "checkpoint-every", 5*time.Minute, "time between checkpoints; 0: only at the end")
	Var(s, &j.Notice, "notice", "", "file or HTTP address that announces the end of this machine; then the process leaves as after SIGTERM")
	Var(s, &j.Grace, "grace", 20*time.Second, "time to save a checkpoint after SIGINT or SIGTERM; 0: end at once, without one; the same for every member")
	Var(s, &j.Checkpoint, "checkpoint", "", "folder or address (s3://bucket/prefix?region=REGION) of checkpoints (checkpoints in --out)")
	Var(s, &j.Keep, "keep", 5, "number of the newest checkpoints to keep; 0: all")
	Var(s, &j.Resume, "resume", "", "checkpoint to start from; auto: the newest of this job, if there is one")
	Var(s, &j.ResumeOtherData, "resume-other-data", false, "allow a checkpoint of another data set than --dataset")
	Var(s, &j.Restarts, "restarts", 0, "star run: how often to restart a failed job from its last checkpoint")
	Var(s, &j.EvalEvery, "eval-every", 1, "epochs between evaluations; 0: only at the end")

	Var(s, &j.JoinTimeout, "join-timeout", defaults.JoinTimeout, "how long to wait for missing members at the start; star run waits while its processes live, unless this is set")
	Var(s, &j.DeadAfter, "dead-after", defaults.DeadAfter, "how long a member may be silent before it counts as lost; slow members are not silent")

	Var(s, &j.Slow, "slow", nil, "slow a worker down on purpose: 2:3x, 2:+50ms, 1:burst=40ms/1s; may be repeated")
	Var(s, &j.StragglerTrace, "straggler-trace", "", "CSV file of slowdowns (step,worker,duration,slowdown,rel; may be .gz)")
	Var(s, &j.StragglerTime, "straggler-iteration", 0, "duration of the trace's median iteration; 0: the trace multiplies computing times")
	Var(s, &j.StragglerBy, "straggler-by", "sleep", "how to slow down; quota and tc need root", "sleep", "quota", "tc")
	Var(s, &j.Revoke, "revoke", "", "star run: revoke workers like spot machines (docs/run.md): rate:PER_HOUR, trace:FILE, k80, p100 or v100; such as rate:20,seed=7,replace=90s")

	Var(s, &j.Actuator, "actuator", defaults.Actuator, "mechanism that limits this process in favour of other jobs; cgroup and tc need root", "pace", "cgroup", "tc", "none")
	Var(s, &j.Limit, "limit", defaults.Limit, "limits of each process from its start on: any of delay=50ms (in each iteration), cpu=1.5, out=100mbit, in=100mbit")
	Var(s, &j.LimitInterface, "limit-interface", "", "network interface that tc limits (the one that leads to the coordinator)")
	Var(s, &j.LeaseDir, "lease-dir", "", "folder of notes about limits to undo after a crash (star in XDG_RUNTIME_DIR, else star-UID among temporary files)")

	Var(s, &j.Cluster, "cluster", "", "resource service of the cluster, for jobs that share hosts: NAME@host:port, or NAME with --cluster-join")
	Var(s, &j.ClusterJoin, "cluster-join", nil, "members of the cluster's gossip, host:port, that know its resource service's address")
	Var(s, &j.ClusterKey, "cluster-key", "", "file with the key of the gossip: 16, 24 or 32 bytes in base64")

	Var(s, &j.Gossip, "gossip", Off, "address for the gossip of the job, for TCP and UDP, or off")
	Var(s, &j.GossipJoin, "gossip-join", nil, "members of the job's gossip, host:port, that know the coordinator's address; instead of --coordinator")
	Var(s, &j.GossipKey, "gossip-key", "", "file with keys of the job's gossip, each 16, 24 or 32 bytes in base64 on a line: the first encrypts, all decrypt")

	Var(s, &j.Telemetry, "telemetry", "on", "measure process, control group and host, to find slow workers and causes", "on", "off")

	Var(s, &j.LogLevel, "log-level", "info", "minimum level of log lines", "debug", "info", "warn", "error")
	Var(s, &j.LogFormat, "log-format", "auto", "auto: text on a terminal, JSON otherwise", "auto", "text", "json")
	Var(s, &j.JSON, "json", false, "results as JSON on standard output")
	Var(s, &j.TensorBoard, "tensorboard", "", "folder for TensorBoard scalars while the job runs; star export makes them afterwards")
	Var(s, &j.Progress, "progress", "auto", "auto: live on a terminal, lines otherwise", "auto", "plain", "off")
}

// Bind declares the flags on a command, which --help lists by groups. Call it once, on a zero Job.
func (j *Job) Bind(cmd *cobra.Command, role Role) {
	j.role = role
	j.declare(role)
	j.Config.Bind(cmd)
	j.Config.group(cmd, role)
}

// JobNames are the names of all settings of jobs, of every command.
func JobNames() (names []string) {
	for _, role := range []Role{ForRun, ForServer, ForWorker} {
		var j Job
		j.declare(role)
		names = append(names, j.Config.Names()...)
	}
	return names
}

// Load gives every setting its value, from the flags that were parsed, the
// environment, the file and the launcher. The warnings are to be logged.
func (j *Job) Load(environment []string) (warnings []string, err error) {
	return j.LoadOver(nil, environment)
}

// LoadOver is Load for a command with defaults of its own, which star run does not have.
func (j *Job) LoadOver(defaults map[string]Found, environment []string) (warnings []string, err error) {
	src := Sources{Environ: environment, Detected: defaults}
	if j.role != ForRun { // star run starts its processes itself
		size := "workers"
		if j.role == ForServer {
			size = "servers"
		}
		launch := Detect(environment)
		src.Detected = launch.Settings(size)
		warnings = launch.Notes
		if launch.Name != "" && launch.Coordinator.Origin == "" && j.role == ForWorker {
			defer func() {
				if err == nil && !j.Config.IsSet("coordinator") {
					warnings = append(warnings, fmt.Sprintf("%s does not say where the coordinator is: assuming %s; --coordinator says otherwise",
						launch.Name, j.Coordinator))
				}
			}()
		}
	}
	more, err := j.Config.Resolve(src)
	warnings = append(warnings, more...)
	if err != nil {
		return warnings, err
	}

	// One star-ps without shards can only coordinate an all-reduce, and an all-reduce
	// has no shards.
	if j.role == ForServer && !j.Config.IsSet("arch") && j.Config.IsSet("shards") && j.Shards == 0 && j.Servers == 1 {
		j.Arch = AllReduce
	}
	if j.Arch == AllReduce && !j.Config.IsSet("shards") {
		j.Shards = 0
	}

	if j.Wire == "bf16" && !j.Config.IsSet("compress") {
		j.Compress = j.Wire
	}

	if len(j.Coordinators) > 0 && j.role != ForRun && !j.Config.IsSet("coordinator") {
		j.Coordinator = j.Coordinators[0]
	}

	if j.Predictor == "" { // given as empty; the environment of a child process leaves out empty values
		j.Predictor = "none"
	}

	// Another limit that was set explicitly replaces the default number of epochs.
	if !j.Config.IsSet("epochs") && (j.Samples > 0 || j.Steps > 0) {
		j.Epochs = 0
	}
	return warnings, nil
}

// Print is --print-config: a table, or JSON with --json.
func (j *Job) Print(w io.Writer) error {
	if !j.JSON {
		return j.Config.Print(w)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(&j.Config)
}

// Origin returns where the value of a setting came from.
func (j *Job) Origin(name string) Origin { return j.Config.Origin(name) }

// Invalid makes a UsageError that names the setting, its value and its origin.
func (j *Job) Invalid(name string, err error) error { return j.Config.Invalid(name, err) }

// TLS reports whether certificates are given.
func (j *Job) TLS() bool { return j.TLSCert != "" }

// Validate checks the values against each other and against their ranges. Every
// error is a UsageError.
func (j *Job) Validate() error {
	bad := func(name, format string, a ...any) error { return j.Invalid(name, fmt.Errorf(format, a...)) }
	atLeast := func(name string, value, least float64) error {
		if value < least {
			return bad(name, "must be at least %v", least)
		}
		return nil
	}

	if j.Name == "" || len(j.Name) > 128 || strings.ContainsFunc(j.Name, func(r rune) bool { return r < ' ' }) {
		return bad("job", "must be a name of 1 to 128 characters")
	}
	if err := errors.Join(
		atLeast("rank", float64(j.Rank), -1),
		atLeast("workers", float64(j.Workers), 1),
		atLeast("max-workers", float64(j.MaxWorkers), 0),
		atLeast("min-workers", float64(j.MinWorkers), 0),
		atLeast("servers", float64(j.Servers), 1),
		atLeast("shards", float64(j.Shards), 0),
		atLeast("replicas", float64(j.Replicas), 1),
		atLeast("batch", float64(j.Batch), 1),
		atLeast("epochs", j.Epochs, 0),
		atLeast("samples", float64(j.Samples), 0),
		atLeast("steps", float64(j.Steps), 0),
		atLeast("lr", j.LR, 0),
		atLeast("momentum", j.Momentum, 0),
		atLeast("weight-decay", j.WeightDecay, 0),
		atLeast("clip", j.Clip, 0),
		atLeast("threads", float64(j.Threads), 0),
		atLeast("eval-every", j.EvalEvery, 0),
		atLeast("keep", float64(j.Keep), 0),
		atLeast("restarts", float64(j.Restarts), 0),
		atLeast("worker-restarts", float64(j.WorkerRestarts), 0),
		atLeast("procs-per-worker", float64(j.ProcsPerWorker), 1),
		atLeast("max-staleness", float64(j.MaxStaleness), 0),
		atLeast("ps-bandwidth", j.PSBandwidth, 0),
		atLeast("capacity-cpu", j.CapacityCPU, 0),
		atLeast("capacity-net", j.CapacityNet, 0),
		atLeast("tree-fan-in", float64(j.TreeFanIn), 1),
		atLeast("allreduce-segment", float64(j.Segment), 0),
		atLeast("allreduce-buffer", float64(j.Buffer), -1),
	); err != nil {
		return firstOf(err)
	}
	for _, c := range []struct {
		name  string
		value int
	}{{"workers", j.Workers}, {"max-workers", j.MaxWorkers}, {"servers", j.Servers}} {
		if c.value > MaxMembers {
			return bad(c.name, "a job has at most %d", MaxMembers)
		}
	}
	if j.Rank >= MaxMembers {
		return bad("rank", "a job has at most %d members of a kind, so ranks are 0 to %d", MaxMembers, MaxMembers-1)
	}
	if j.MaxWorkers > 0 && j.MaxWorkers < j.Workers && (j.role != ForWorker || j.Config.IsSet("workers")) {
		return bad("max-workers", "fewer than --workers %d (from %s), with which the job begins", j.Workers, j.Origin("workers"))
	}
	if j.MinWorkers > j.Workers && (j.role != ForWorker || j.Config.IsSet("workers")) {
		return bad("min-workers", "more than --workers %d (from %s), with which the job begins", j.Workers, j.Origin("workers"))
	}
	if j.Baseline != "" && (j.Ranks() > j.Workers || j.MinWorkers > 0) {
		return bad("baseline", "baselines need a fixed number of workers; remove --max-workers and --min-workers")
	}
	if j.Shards > 1024 {
		return bad("shards", "must be at most 1024")
	}
	if j.Batch > maxBatch {
		return bad("batch", "must be at most %d samples", maxBatch)
	}
	if j.Momentum >= 1 {
		return bad("momentum", "must be less than 1, or the updates never fade")
	}
	if j.HasMomentum() && j.Momentum == 0 {
		return bad("momentum", "must be more than 0 with --optimizer %s; without momentum it is --optimizer sgd", j.Optimizer)
	}

	switch count, what := j.members(); {
	// A worker need not know how many there are; the coordinator does.
	case j.Rank >= count && (j.role != ForWorker || j.Config.IsSet(what)):
		return bad("rank", "out of range: %s %d (from %s), so ranks are 0 to %d", "--"+what, count, j.Origin(what), count-1)
	case j.role == ForServer && j.Rank < 0:
		return bad("rank", "a star-ps needs its rank; 0 hosts the coordinator")
	case j.Arch == AllReduce && j.role != ForWorker && j.Shards > 0:
		return bad("shards", "an all-reduce has no shards: leave --shards away, or choose --arch ps")
	case j.Arch == AllReduce && j.role != ForWorker && j.Servers > 1 && len(j.Coordinators) == 0:
		return bad("servers", "an all-reduce has one star-ps, which coordinates: leave --servers away, or choose --arch ps")
	case j.Arch == AllReduce:
	case j.role == ForServer && j.Servers == 1 && j.Shards == 0:
		return bad("shards", "no server would hold the parameters: --servers is 1; use at least 1 shard or more servers")
	case j.role == ForRun && j.Shards == 0:
		return bad("shards", "no server would hold the parameters; use at least 1")
	}

	if j.Baseline != "" && j.Config.IsSet("mode") {
		return bad("baseline", "a baseline determines the mode; remove --mode (from %s)", j.Origin("mode"))
	}
	if len(j.Shares) > 0 {
		if n := j.Ranks(); n > j.Workers && len(j.Shares) != n {
			return bad("shares", "%d shares for --max-workers %d (from %s); give one for each", len(j.Shares), n, j.Origin("max-workers"))
		} else if len(j.Shares) != n {
			return bad("shares", "%d shares for --workers %d (from %s); give one for each", len(j.Shares), j.Workers, j.Origin("workers"))
		}
		for w, n := range j.Shares {
			if n < 1 {
				return bad("shares", "worker %d would get %d samples; give at least 1", w, n)
			}
			if n > maxBatch {
				return bad("shares", "worker %d would get %d samples; give at most %d", w, n, maxBatch)
			}
		}
	}
	if j.Epochs == 0 && j.Samples == 0 && j.Steps == 0 {
		return bad("epochs", "the job would never end: give --epochs, --samples or --steps")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"join-timeout", j.JoinTimeout, time.Second},
		{"dead-after", j.DeadAfter, time.Second},
		{"checkpoint-every", j.CheckpointEvery, 0},
		{"grace", j.Grace, 0},
		{"rider-wait", j.RiderWait, 0},
		{"timer-slack", j.TimerSlack, 0},
	} {
		if d.value < d.least {
			return bad(d.name, "must be at least %v", d.least)
		}
	}
	if j.TimerSlack > maxTimerSlack {
		return bad("timer-slack", "must be at most %v", maxTimerSlack)
	}
	if j.LogMax < 0 {
		return bad("log-max", "must be at least 1 MiB, or 0: no bound")
	}
	if j.Out == "" {
		return bad("out", "must name a folder")
	}
	if j.Bucket < 0.001 || j.Bucket > 1e6 {
		return bad("bucket", "must be 0.001 to 1000000 MB")
	}
	if j.Segment > maxKiB {
		return bad("allreduce-segment", "must be at most %d KiB", maxKiB)
	}
	if j.Buffer > maxKiB {
		return bad("allreduce-buffer", "must be at most %d KiB", maxKiB)
	}
	if j.Arch == AllReduce {
		if j.Ranks() > MaxRing {
			return bad("workers", "a ring has at most %d members", MaxRing)
		}
		if j.UpdateScale != "n" {
			return bad("update-scale", "all-reduce knows only n")
		}
	}

	if err := j.validateAddresses(bad); err != nil {
		return err
	}
	if err := j.validateCoordinators(bad); err != nil {
		return err
	}
	if j.StragglerTime < 0 || j.StragglerTime > 0 && j.StragglerTrace == "" {
		return bad("straggler-iteration", "%v: want a time, together with --straggler-trace", j.StragglerTime)
	}
	if j.StragglerBy != "sleep" && j.StragglerTrace != "" {
		return bad("straggler-by", "a trace changes at every step, which only sleeping can follow; use --straggler-by sleep")
	}
	return nil
}

func (j *Job) validateAddresses(bad func(name, format string, a ...any) error) error {
	for _, a := range []struct {
		name, value string
		empty, host bool // may be empty; must have a host
	}{
		{"listen", j.Listen, false, false},
		{"advertise", j.Advertise, true, true},
		{"coordinator", j.Coordinator, false, true},
		{"http", j.HTTP, false, false},
	} {
		if a.value == "" && a.empty || a.name == "http" && a.value == Off {
			continue
		}
		if path, ok := strings.CutPrefix(a.value, UnixSocket); ok && a.name == "http" {
			if path == "" || len(path) > maxSocket {
				return bad(a.name, "%s wants the path of a socket, of at most %d bytes", UnixSocket, maxSocket)
			}
			continue
		}
		host, port, err := net.SplitHostPort(a.value)
		if err != nil {
			return bad(a.name, "is not an address; write host:port, such as 10.0.0.1:%s", defaults.Port)
		}
		n, err := strconv.Atoi(port)
		if err != nil || n < 0 || n > 65535 {
			return bad(a.name, "%q is not a port; use 1 to 65535", port)
		}
		if n == 0 && a.host {
			return bad(a.name, "others cannot reach port 0; use 1 to 65535")
		}
		ip := net.ParseIP(host)
		if a.host && (host == "" || ip != nil && ip.IsUnspecified()) {
			return bad(a.name, "needs a host that others can reach")
		}
	}

	cert := []struct{ name, value string }{{"tls-cert", j.TLSCert}, {"tls-key", j.TLSKey}, {"tls-ca", j.TLSCA}}
	for _, c := range cert {
		for _, other := range cert {
			if c.value != "" && other.value == "" {
				return bad(c.name, "TLS needs --tls-cert, --tls-key and --tls-ca; --%s is missing", other.name)
			}
		}
	}
	if j.role != ForWorker && !Loopback(j.Listen) && !j.TLS() && j.Token == "" && !j.Insecure {
		return bad("listen", "any process that reaches this address could join and read the model; give STAR_TOKEN or certificates (--tls-cert …), listen on %s, or allow it with --insecure", loopback.Home())
	}
	return nil
}

// TimerSlack is the default of --timer-slack.
const TimerSlack = 500 * time.Microsecond

// maxTimerSlack keeps timers good enough for what waits tens of milliseconds.
const maxTimerSlack = 10 * time.Millisecond

// maxKiB bounds segments and buffers.
const maxKiB = 64 << 10

// maxBatch is the largest mini-batch: more would be beyond all memories (modes.MaxBatch).
const maxBatch = 1 << 30

// MaxMembers is how many workers a job has at most, and how many servers: the wire's limit (docs/protocol.md).
const MaxMembers = 4096

// MaxRing is how many workers an all-reduce has at most.
const MaxRing = 1024

// members is how many processes of this kind there are, and what counts them.
func (j *Job) members() (count int, setting string) {
	if j.role == ForServer {
		return j.Servers, "servers"
	}
	if j.MaxWorkers > 0 {
		return j.Ranks(), "max-workers"
	}
	return j.Workers, "workers"
}

// Ranks is how many workers the job may have at once.
func (j *Job) Ranks() int { return max(j.Workers, j.MaxWorkers) }

// HasMomentum reports whether --momentum applies to the optimiser.
func (j *Job) HasMomentum() bool {
	return slices.Contains([]string{"momentum", "nesterov", "dana", "muon"}, j.Optimizer)
}

// firstOf takes the first of joined errors: one thing at a time.
func firstOf(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()[0]
	}
	return err
}

// Loopback reports whether an address to listen on is reachable from this host
// only. A host that is a name, other than localhost, is not.
func Loopback(addr string) bool { return loopback.Is(addr) }

// MarshalJSON gives {"name": value, …}, flat, in order of declaration: the
// effective configuration as the run log keeps it. Durations are in seconds;
// secrets are redacted. Config has the origins too.
func (j Job) MarshalJSON() ([]byte, error) {
	j.Config = Set{} // j is a copy: declare it again, so that the copy's values are set
	j.declare(j.role)
	return j.Config.marshal(func(it *item) any { return it.value() })
}
