package wire

import (
	"time"

	"star"
)

// This file is the table of messages. For each message it has the number, the name (the type's name in lower case), the
// senders and receivers, the payload, and the fields of the header in their order on the wire. Package gen reads it and
// writes codec_gen.go, the list of kinds, the tests' list of messages, the parsers in the tests of package transport,
// and the generated parts of docs/protocol.md:
//
//	go generate ./transport/wire
//
// The comment above a message has the lines "Sent: from → to, …" and "Payload: …", and then
//
//	//wire:kind NUMBER [payload=data|text|probe|bins|memo] [hooks]
//
// with the class that limits the payload ([Payload]). With hooks the codec calls the message's methods sending and
// received. The comment of a field, above it or behind it, is its description in docs/protocol.md.
// A field's tag has, separated by commas:
//
//	LO..HI       integers: the smallest and the largest value
//	natural      integers and durations: 0 to 2^63−1
//	any          integers: any value of 64 bits
//	amount       floats: 0 to 10^18
//	max=N        strings: bytes; lists: elements; default for strings: 255
//	each=LO..HI  lists of integers: limits of each element
//	cut          strings: text for people; a writer cuts it at max
//	absent[=V]   a field that older peers do not send; it then has the value V, or the zero value
//	hidden       written and read by the field behind it
//
// Without a tag a star.Worker is 0 to 4095, a duration is within 10^18 ns either way, and a float is any float.
// New fields go to the end of their message, with absent. The type of a list's elements has its own tags.

// Limits of headers. They bound the memory that a peer can make this process allocate.
const (
	MaxHeader     = 64 << 10 // bytes of a header
	MaxWorkers    = star.MaxWorkers
	MaxShards     = 1024
	MaxParams     = 1 << 40 // elements
	MaxCandidates = 9       // processes that may coordinate a job
	MaxApplied    = 1024    // Applys of a Standing
	MaxLeases     = 8       // of a Usage
	MaxBelow      = 1024    // of a Branch, so that it fits into a header
	MaxPieces     = 1 << 12 // of a batch, beside the first
	MaxFragments  = 64      // parts of the parameters that are exchanged in turn

	MaxOptimizer = 4 << 10  // bytes of an optimizer in the header of a Welcome
	maxOptimizer = 16 << 20 // bytes of an optimizer in its payload, as in that of a Hello

	maxName      = 255     // bytes of a name, a host or an address
	maxCodec     = 32      // bytes of a codec's name
	maxToken     = 1 << 10 // bytes
	maxModel     = 16 << 10
	maxText      = 4 << 10 // bytes of a reason or an error
	maxArgs      = 64      // words of a Control
	maxArg       = 1 << 10 // bytes of one of them
	maxLeaseText = 160     // bytes of each text of a Lease: the header of a Usage has room for all
	maxSteps     = 1 << 20 // and parts, of one batch
	maxOuter     = 64      // of the rule of an outer step
	maxRanks     = MaxWorkers + 1
	maxSlots     = MaxWorkers + 16 // vectors of an update rule, which may have one of each worker
	maxHolders   = 16              // copies of a shard
	maxCount     = 1<<31 - 1
	maxPart      = 10_000 // of a test set

	maxTime   = 1_000_000_000_000_000_000 // nanoseconds: 31 years; sums of several fit 64 bits
	maxAmount = 1e18
)

// Roles and services of a Hello.
const (
	RoleServer = "ps"     // a star-ps process
	RoleWorker = "worker" // a star-worker process
	RoleTool   = "tool"   // star ctl, star doctor

	// RoleValidator computes the validation gradient of Zeno++, in the process of star-ps 0.
	RoleValidator = "validator"

	ServiceCoord    = "coord"
	ServiceShard    = "shard"
	ServiceRing     = "ring"    // a ring member that carries a rider's gradients
	ServiceTree     = "tree"    // a worker that takes the gradients of others up a tree
	ServiceCluster  = "cluster" // the resource service of a cluster; in its Hello, Job is the name of the cluster
	ServiceElection = "council" // election among the processes that may coordinate a job
)

// Hello opens every connection. Fields that do not concern the sender are 0 or empty.
//
// A worker's enrolment is a JSON object; readers ignore unknown keys.
// `layout` and optional `buffers` are lists of `{"name", "shape", "offset"}` without gaps.
// `data` is a readable name, `samples` the size of an epoch, `tests` that of the test set.
// Optional `digest` identifies the data's content.
// In an all-reduce, `rule` is the update rule as text, equal to that of `star-ps`. `codec` is that of `--compress`.
// `told` has the worker's settings `{"model", "dataset", "seed", "batch"}`, `batch` only if given.
// The coordinator rejects a `told` that differs from the settings of `star-ps` (exit code 78).
// Without `told` it compares known names of `model` and `data`; before the training, a worker with a correct `told`
// and another model replaces workers without one.
//
// Sent: dialler → listener.
// Payload: a worker's enrolment, for the coordinator; between coordinator candidates, see ballot.
//
//wire:kind 1 payload=text
type Hello struct {
	Service string // `coord`, `shard`, `ring`, `tree`, `cluster` or, for elections, `council`
	Role    string // `ps`, `worker`, `tool` or `validator`
	// or cluster; both ends must agree; a tool may leave it empty
	Job     string
	Token   string `wire:"max=maxToken"`     // shared secret
	Version string `wire:"cut"`              // of the program
	Host    string `wire:"cut"`              // of the sender
	Rank    int    `wire:"-1..MaxWorkers-1"` // −1: the coordinator chooses
	Shard   int    `wire:"0..MaxShards-1"`   // with service `shard`
	// host:port of a server; in an all-reduce one for members, a comma, and one for riders; else of a worker for children
	// in a tree, or empty
	Addr      string
	Shards    int    `wire:"0..MaxShards"`     // hosted by a server
	Model     string `wire:"cut,max=maxModel"` // of a worker, readable
	ModelHash string // of model, settings, layout and seed
	Params    int64  `wire:"0..MaxParams"`
	Buffers   int64  `wire:"0..MaxParams"` // elements of the model's buffers
	// with service `shard` ([Passes](#passes)): a worker's from its last welcome, a server's made with its assign's key
	Pass string `wire:"absent"`
	// unique text of a worker's process; its second hello gets its earlier rank
	Process string `wire:"absent"`
	Commit  string `wire:"cut,absent"` // of the program's source, or `unknown`
	// of a worker, with service `shard`: the codec of params that it wants, `bf16`; empty: float32
	Codec string `wire:"max=maxCodec,absent"`
}

// ShardInfo is the range of a shard in the flat vector, and the address of its server.
type ShardInfo struct {
	Shard int `wire:"0..MaxShards-1"`
	Addr  string
	From  int64 `wire:"0..MaxParams"` // elements
	To    int64 `wire:"0..MaxParams"`
}

// Welcome accepts a hello.
//
// Sent: listener → dialler.
// Payload: to a worker: the model's buffers as float32, if the job resumes, then `trailing` bytes; to a tool, and from
// a cluster service, JSON about the listener.
//
//wire:kind 2 payload=data
type Welcome struct {
	Rank       int   `wire:"-1..MaxWorkers-1"` // of the dialler, or −1
	Workers    int   `wire:"0..MaxWorkers"`
	Generation int64 `wire:"natural"` // counts the coordinator's starts for this job
	Version    int64 `wire:"natural"`
	// the worker must send init to every shard; in a ring after a takeover: its parameters are the newest
	Seed bool
	// elements [from, to) of each, without gaps
	Shards  []ShardInfo   `wire:"max=MaxShards"`
	Elapsed time.Duration // since the run began
	// of the worker's next gradient; not 0 if its rank had another worker before
	Step  int64  `wire:"natural"`
	Term  int64  `wire:"natural,absent"`     // of an elected coordinator; else 0
	Pass  string `wire:"absent"`             // of a worker, for shards
	Batch int    `wire:"0..maxCount,absent"` // samples of an equal share of a round; 0: unknown
	// of local steps with parameter servers: JSON of `optim.Config`; empty: the worker's settings
	Optimizer string `wire:"max=MaxOptimizer,absent"`
	Trailing  int    `wire:"0..maxOptimizer,absent"` // bytes of an `optimizer` that is too long for its field
}

// Reject refuses a hello or ends a membership. The sender closes.
//
// Sent: listener → dialler, coordinator → worker, coordinator → server, shard → worker, ring member → rider,
// old server → new server, cluster service → server or worker.
//
//wire:kind 3
type Reject struct {
	Exit   int    `wire:"0..255"`          // the receiver's exit code
	Reason string `wire:"cut,max=maxText"` // for people
}

// Assign tells a server what its shards hold.
//
// Sent: coordinator → server.
// Payload: the layout as JSON.
//
//wire:kind 4 payload=text
type Assign struct {
	Shards     []ShardInfo `wire:"max=MaxShards"` // of this server only
	Of         int         `wire:"0..MaxShards"`  // shards of the job
	Params     int64       `wire:"0..MaxParams"`
	Workers    int         `wire:"0..MaxWorkers"`
	Generation int64       `wire:"natural"` // as in welcome
	Key        string      `wire:"absent"`  // of passes; empty: no passes
}

// Ready reports that a shard has its parameters.
//
// Sent: server → coordinator.
//
//wire:kind 5
type Ready struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"natural"` // 0, or of the checkpoint
}

// Joined reports that a worker has reached every shard and, as the seed, sent init.
//
// Sent: worker → coordinator.
//
//wire:kind 6
type Joined struct{ Worker star.Worker }

// Arrive reports that a worker has pushed a gradient to every shard, with its measurements. `wait` and `pull` are of
// the previous iteration.
//
// Sent: worker → coordinator.
//
//wire:kind 7
type Arrive struct {
	Record star.Record `wire:"fields=arrived"`
}

// arrived has the fields of an Arrive: those of star.Record, in the order of the wire.
type arrived struct {
	Worker   star.Worker
	Step     int64         `wire:"natural"`
	Basis    int64         `wire:"natural"`
	At       time.Duration // end of the computation, since the run began
	Compute  time.Duration // forward and backward
	Load     time.Duration // waiting for input data
	Push     time.Duration // writing to every connection
	Wait     time.Duration // from there to the release
	Pull     time.Duration // from there to the last byte of the parameters
	Injected time.Duration // injected part of compute
	Samples  int           `wire:"0..maxCount"` // of the mini-batch
	Loss     float64       // mean over the mini-batch
	Norm2    float64       // squared norm of the gradient; NaN: skipped, zeros are pushed
	CPU      float64       // share of one processor
	NetIn    float64       // bytes
	NetOut   float64       // bytes
	Seen     int64         `wire:"natural,absent,hidden"` // bit m: metric m was measured (`docs/stragglers.md`)
	// a value for each bit, lowest first; readers skip unknown bits
	Telemetry star.Telemetry `wire:"max=63,absent"`
}

var _ arrived

// Stored reports that a shard holds a worker's whole slice, or, with shard 0, that a parent holds its child's bundle.
//
// Sent: server → coordinator, parent → child.
//
//wire:kind 8
type Stored struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	Step   int64 `wire:"natural"`
	// sum of squares of the slice, accurate to 10⁻⁵; not finite if the slice is not; negative: not measured
	Sum2 float64 `wire:"absent=-1"`
}

// Gradient names a gradient that the shards hold, and its weight in an update.
type Gradient struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
	Weight float32
}

// Fire makes a shard apply an update, if it has gradients. `seq` counts from 1 without gaps; shards work in this order.
// Then the shard sends params to the workers of both lists that are not in `quiet`.
//
// Sent: coordinator → server.
// Payload: with several coordinator candidates, state for a successor; shards return it in standing.
//
//wire:kind 9 payload=memo hooks
type Fire struct {
	Seq     int64 `wire:"natural"`
	Version int64 `wire:"natural"` // after the update
	// applied by all workers before this update; with `local` or `outer`: −1 minus that number
	Samples   int64         `wire:"any"`
	Gradients []Gradient    `wire:"max=MaxWorkers"` // to apply with the weight c of the update rule
	Dropped   []Gradient    `wire:"max=MaxWorkers"` // to discard, or the rule's late gradients (LGC, Zeno++)
	Quiet     []star.Worker `wire:"max=MaxWorkers"` // gone workers
	NormFirst bool          // answer with norm and wait for apply
	Report    bool          // answer with norm after the update
	// local steps that the workers made: pushes are the distance moved, in units of a gradient (`docs/modes.md`);
	// 0: pushes are gradients
	Local int `wire:"0..maxSteps,absent"`
	// rule of the outer step by which the shard applies distances that workers have moved (`docs/modes.md`), such as
	// `nesterov(0.9,0.7)`; empty: another update. `local` is 0 then
	Outer string `wire:"max=maxOuter,absent"`
}

// Norm is the length of an update, before (`norm_first`) or after (`report`) it is applied.
// A shard that waits for apply sends it again to a new coordinator, after standing.
//
// Sent: server → coordinator.
// Payload: with `norm_first`, the bins of an exact sum of squares, then those of the rule's reference (Zeno++), if any.
//
//wire:kind 10 payload=bins
type Norm struct {
	Shard int   `wire:"0..MaxShards-1"`
	Seq   int64 `wire:"natural"`
	// of the slice of the weighted sum, without payload; with a reference, their product
	Sum2 float64
}

// Apply completes a fire with `norm_first`. A follower that gets it first sends no norm.
//
// Sent: coordinator → server.
//
//wire:kind 11
type Apply struct {
	Seq    int64   `wire:"natural"`
	Norm   float64 // of the whole weighted sum
	Factor float64 // multiplies the sum; 0: the parameters stay the same
}

// Action is what a worker does when it is released.
type Action uint8

const (
	Continue Action = iota // compute the batch
	Evaluate               // evaluate first, then compute the batch
	Finish                 // evaluate, report, wait for the next Release
	Stop                   // leave: the job is over
)

// Release lets a worker go on.
// Actions: 0 compute the batch; 1 evaluate, then compute it; 2 evaluate, report, wait for the next release; 3 leave,
// the job is over.
//
// Sent: coordinator → worker.
// Payload: in an all-reduce with several coordinator candidates, JSON that the worker returns to the next one (`stand`
// in its enrolment).
//
//wire:kind 12 payload=memo
type Release struct {
	Worker  star.Worker
	Version int64  `wire:"natural"`
	Action  Action `wire:"0..Stop"`
	Start   int64  `wire:"natural"`     // first position of the sample stream
	Count   int    `wire:"0..maxCount"` // samples of the batch
	Pull    bool   // the worker must pull
	Eval    int64  `wire:"natural"`    // number of the evaluation
	From    int64  `wire:"0..maxPart"` // the worker's part of the test set, in ten thousandths
	To      int64  `wire:"0..maxPart"` // its end
	// samples of the round over all workers; with parameter servers only in the first release
	Total   int64         `wire:"natural"`
	Dropped bool          // the worker's last gradient was discarded; its codec adds it to the next one
	Delay   time.Duration `wire:"natural,absent"` // between computation and push
	// local steps, each with a mini-batch of the batch, before the worker pushes its distance from the release's
	// parameters; 0: it pushes a gradient; 1, without a baseline: the same, and further local steps may start from its
	// parameters
	Local int `wire:"0..maxSteps,absent"`
	Micro int `wire:"0..maxSteps,absent"` // parts of the batch; 0: whole
	// computing time after which no further part of `micro` begins; arrive has the samples used
	Cap time.Duration `wire:"natural,absent"`
	// samples of a part, if workers share a queue, or 0; after each part but the last the worker sends computed; after
	// cancel (in an all-reduce close) it begins no further part; arrive has the samples used
	Part int     `wire:"0..maxCount,absent"`
	More []Piece `wire:"max=MaxPieces,absent"` // with `part`, the rest of the batch in order; no part spans two pieces
	// with `local`: rule of the outer step, as in fire; the worker pushes its distance divided by the learning rate.
	// Empty: their mean
	Outer string `wire:"max=maxOuter,absent"`
	// with `outer`: the parameters have that many parts, and the worker pushes the one with index `fragment`, or exchanges
	// it in an all-reduce; 0: all
	Fragments int `wire:"0..MaxFragments,absent"`
	Fragment  int `wire:"0..MaxFragments-1,absent"`
	// with `fragments`: the batch of the next step, which the worker computes after its push, before that step's release;
	// in an all-reduce while it exchanges
	Ahead      []Piece `wire:"max=1,absent"`
	AheadLocal int     `wire:"0..maxSteps,absent"` // its local steps
	// with `outer` in an all-reduce: samples of a round in which every member has a batch; a distance has the weight of
	// its `count` in it
	Round int64 `wire:"natural,absent"`
}

// Piece is a part of the stream of samples.
type Piece struct {
	Start int64 `wire:"natural"`
	Count int   `wire:"1..maxCount"`
}

// Push is a shard's slice of a gradient. An invalid payload ends the connection.
//
// Sent: worker → shard, old server → new server, rider → ring member.
// Payload: float32, or in the format of `codec` (`docs/compression.md`).
//
//wire:kind 13 payload=data
type Push struct {
	Shard   int `wire:"0..MaxShards-1"`
	Worker  star.Worker
	Step    int64  `wire:"natural"`
	Basis   int64  `wire:"natural"`
	Samples int    `wire:"0..maxCount"`  // of the mini-batch
	Codec   string `wire:"max=maxCodec"` // `fp16`, `topk=0.01`, …; empty or `none`: float32
	// the slice has that many parts of nearly equal length, and the payload is the one with index `part`; 0: it is whole
	Parts int `wire:"0..MaxFragments,absent"`
	Part  int `wire:"0..MaxFragments-1,absent"`
}

// Params is a shard's slice of the parameters, all of one version.
//
// Sent: shard → worker, ring member → rider, parent → child.
// Payload: float32; bfloat16, half as long, from a shard to a worker with that codec in its hello.
//
//wire:kind 14 payload=data
type Params struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"natural"`
	Parts   int   `wire:"0..MaxFragments,absent"` // as in the push that it follows on
	Part    int   `wire:"0..MaxFragments-1,absent"`
}

// Pull asks for the current params, or a shard for its optimizer state: state, without payload, and slots.
//
// Sent: worker → shard, rider → ring member.
//
//wire:kind 15
type Pull struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	State  int `wire:"0..1,absent"` // 1: optimizer state
}

// Init is a shard's slice of the initial parameters. A shard that has parameters ignores it.
// Slots of the optimizer come first if the worker's program has trained before.
//
// Sent: worker → shard.
// Payload: float32.
//
//wire:kind 16 payload=data
type Init struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	Rule   string `wire:"absent"`             // the program's optimizer; empty: no state
	Steps  int64  `wire:"natural,absent"`     // updates that it has made
	Slots  int    `wire:"0..maxSlots,absent"` // vectors of its state
}

// Buffers are the model's buffers as a worker has them, or, from the coordinator, their average, for an evaluation.
//
// Sent: worker → coordinator, coordinator → worker.
// Payload: float32.
//
//wire:kind 17 payload=data
type Buffers struct {
	Worker star.Worker
	Eval   int64 `wire:"natural"`
}

// EvalResult is a worker's part of an evaluation.
//
// Sent: worker → coordinator.
//
//wire:kind 18
type EvalResult struct {
	Worker  star.Worker
	Eval    int64 `wire:"natural"`
	Version int64 `wire:"natural"`
	LossSum float64
	Correct int64 `wire:"natural"`
	Count   int64 `wire:"natural"`
	Took    time.Duration
}

// Save asks a server for its part of a checkpoint, after the fire `seq`.
//
// It asks a worker for its codec's residual: with parameter servers from before the gradient of step `seq`, in an
// all-reduce at `version`, with `seq` at least 1. With `seq` 0 the first ring member writes the parameters.
//
// Sent: coordinator → server, coordinator → worker.
//
//wire:kind 19
type Save struct {
	Seq     int64  `wire:"natural"`
	Version int64  `wire:"natural"`
	ID      string // of the checkpoint
}

// Saved reports that the shard's file is on disk, or why not. For a worker's residual, `shard` is 1, and no payload
// means no file.
//
// Sent: server → coordinator, worker → coordinator.
// Payload: JSON for the manifest.
//
//wire:kind 20 payload=text
type Saved struct {
	Shard int `wire:"0..MaxShards-1"`
	ID    string
	Err   string `wire:"cut,max=maxText"`
}

// Leave ends a membership, and the sender closes.
// Two senders instead wait some seconds for the coordinator's reject, because the job may need them to save or end:
// members that got a signal (`exit` above 128, also in the reject), and workers that have finished (`exit` 0, or that
// of their failed program).
//
// Sent: worker → coordinator, server → coordinator, coordinator → server, worker → shard, old server → new server,
// server or worker → cluster service.
//
//wire:kind 21
type Leave struct {
	Worker star.Worker `wire:"-1..MaxWorkers-1"` // −1: no worker
	Exit   int         `wire:"0..255"`
	Reason string      `wire:"cut,max=maxText"`
}

// Control is a command of `star ctl`.
//
// Sent: tool → coordinator, tool → cluster service.
//
//wire:kind 22
type Control struct {
	Args []string `wire:"max=maxArgs,each=maxArg"`
}

// Reply answers a control.
//
// Sent: coordinator → tool, cluster service → tool.
// Payload: JSON.
//
//wire:kind 23 payload=text
type Reply struct {
	Err string `wire:"cut,max=maxText"`
}

// Ping asks for a pong.
//
// Sent: worker → coordinator, coordinator → server, tool → coordinator, tool → cluster service.
// Payload: any bytes, for the bandwidth probe.
//
//wire:kind 24 payload=probe
type Ping struct {
	Seq  int64 `wire:"any"`
	Sent int64 `wire:"any"`     // sender's clock, Unix nanoseconds
	Want int64 `wire:"natural"` // bytes of the pong's payload
}

// Pong answers a ping.
//
// Sent: coordinator → worker, server → coordinator, coordinator → tool, cluster service → tool.
// Payload: as many bytes as the ping wanted.
//
//wire:kind 25 payload=probe
type Pong struct {
	Seq  int64 `wire:"any"` // of the ping
	Sent int64 `wire:"any"` // of the ping
	Now  int64 `wire:"any"` // sender's clock
}

// Rider is a worker outside the ring, and the ring member that adds its gradients.
type Rider struct{ Worker, Parent star.Worker }

// Ring announces the members of the all-reduce ring, before the first release of round `from`.
// Round r makes version r+1 of version r.
// Members connect to `addr` and agree on their highest version. A member with another version receives
// parameters and optimizer state from the first member that has it.
// Riders push to `parent_addr` and get params back. A worker in neither list waits for the end of the job.
//
// Sent: coordinator → worker.
//
//wire:kind 26
type Ring struct {
	Generation int64         `wire:"natural"`        // counts rings; a higher one replaces the others
	From       int64         `wire:"-1..1<<63-1"`    // −1: the round of the agreed version
	Members    []star.Worker `wire:"max=MaxWorkers"` // in the order of the ring, by rank
	Addr       string        // of the first member
	Riders     []Rider       `wire:"max=MaxWorkers"`
	ParentAddr string        // where a rider's parent listens
	Of         int64         `wire:"natural"` // samples of a full round (B of the update rule)
	Wait       time.Duration // time that a round waits for riders
	MaxStale   int64         `wire:"natural"` // riders' gradients that are older, in updates, are dropped; 0: no limit
	Now        bool          // abort the current round: a member is gone or overdue
	// a member that has waited this long for the others in an exchange sends computed; 0: none does
	Tell time.Duration `wire:"natural,absent"`
}

// Formed reports that the sender is in the ring; riders send it before their pushes.
//
// Sent: worker → coordinator, rider → ring member.
//
//wire:kind 27
type Formed struct {
	Worker     star.Worker
	Generation int64 `wire:"natural"`
	Version    int64 `wire:"natural"` // that all members have
}

// Tally reports, after arrive, that a ring member has made a version, or, with a hash, the parameters that it
// evaluates. The step of a rider's gradient, here and in its push, is the first position of its batch.
//
// Sent: worker → coordinator.
//
//wire:kind 28
type Tally struct {
	Worker     star.Worker
	Generation int64      `wire:"natural"`
	Version    int64      `wire:"natural"`
	Hash       int64      `wire:"0..1<<32-1"`     // CRC-32 of the parameters as float32; 0: not computed
	Carried    []Gradient `wire:"max=MaxWorkers"` // riders' gradients in this version
	Dropped    []Gradient `wire:"max=MaxWorkers"` // riders' gradients that were too old
	Sum2       float64    // squared norm of the round's weighted sum; 0: not measured
	// with `part` of release: each member's samples in the round, in ring order; empty: all
	Samples []int `wire:"max=MaxWorkers,each=0..maxCount,absent"`
	// empty, or for each of `carried`: `version` minus its basis (staleness plus one); 0 if another member carried it
	Behind []int `wire:"max=MaxWorkers,each=0..maxCount,absent"`
}

// Fault reports that a ring has failed, or that a child in a tree could not deliver its bundle. After a failed ring the
// coordinator sends another one, or ends the job.
//
// Sent: worker → coordinator.
//
//wire:kind 29
type Fault struct {
	Worker     star.Worker
	Generation int64  `wire:"natural"`
	Suspect    int    `wire:"-1..MaxWorkers-1"` // probable cause, or −1
	Reason     string `wire:"cut,max=maxText"`
}

// Branch puts the worker into a tree for one step (parameter servers only), before the release of that step.
// After a release without a branch, the worker uses the shards.
// Only workers released by the same fire, with `addr` in their hello, are linked.
//
// Sent: coordinator → worker.
//
//wire:kind 30
type Branch struct {
	Worker     star.Worker
	Step       int64   `wire:"natural"`
	Parent     int     `wire:"-1..MaxWorkers-1"` // gets the worker's gradients; −1: the shards do
	ParentAddr string  // where the parent listens
	Relay      bool    // get parameters from the parent (want)
	Children   []Child `wire:"max=MaxWorkers"`      // that send their gradients here
	Below      []Below `wire:"max=MaxBelow,absent"` // gradients that may come through a child
}

// Below is a gradient that may come up a tree through Child.
type Below struct {
	Child   star.Worker
	Worker  star.Worker
	Step    int64 `wire:"natural"`
	Samples int   `wire:"0..maxCount"`
}

// Child is a worker below another one in a tree, and the step of its gradient.
type Child struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
}

// Share is a gradient in a Bundle.
type Share struct {
	Worker  star.Worker
	Step    int64 `wire:"natural"`
	Samples int   `wire:"0..maxCount"`
}

// Bundle is the combined gradient of several workers. The top of a tree sends it to the coordinator before it pushes
// the same to the shards, with `samples` of all members in the push; an arrive follows.
//
// The parent answers every bundle with stored, also a repeated or late one; then the child sends arrive. A child
// without an answer within 5 s plus 1 s for each MiB sends fault; if the connection breaks before, it may send the
// bundle again. A parent accepts only children, steps, members and samples of its branch, and finite elements; after
// another bundle it no longer waits for that child.
//
// Sent: child → parent, worker → coordinator.
// Payload: to the parent, the mean gradient over all samples of the members, the whole vector as float32.
//
//wire:kind 31 payload=data
type Bundle struct {
	Worker  star.Worker
	Step    int64   `wire:"natural"`        // its own
	Members []Share `wire:"max=MaxWorkers"` // gradients in it, the sender's first
}

// Detach takes a gradient out of its branch. A parent stops waiting for it. The worker pushes it, without those of its
// children, to the shards, and gets the parameters from them.
//
// Sent: coordinator → worker.
//
//wire:kind 32
type Detach struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
}

// Want asks for params of that version or a later one, when the parent has them.
//
// Sent: child → parent.
//
//wire:kind 33
type Want struct {
	Worker  star.Worker
	Version int64 `wire:"natural"`
}

// Compression reports, for the run log, the codec of gradients from a version on: the worker's, or, from the first
// member of a ring, that of all members.
//
// Sent: worker → coordinator.
//
//wire:kind 34
type Compression struct {
	Worker  star.Worker
	Version int64  `wire:"natural"`
	Codec   string `wire:"max=maxCodec"` // `none`, `int8`, `topk=0.01`, …
	Why     string `wire:"cut,max=maxText"`
}

// Amounts are resources: processors, and bytes per second into and out of a host.
type Amounts struct {
	CPU float64 `wire:"amount"`
	In  float64 `wire:"amount"`
	Out float64 `wire:"amount"`
}

// Enlist identifies a process of a job; unknown numbers are 0. It comes first on a connection, and again when a field
// has changed.
// A second connection of the same job, role, rank and life replaces the first; one with another life is rejected.
// With `--move-shards auto` servers send it and usage to the coordinator, too.
//
// Sent: server or worker → cluster service, server → coordinator.
//
//wire:kind 35
type Enlist struct {
	Job      string
	Life     string  // distinguishes processes that claim one rank
	Rank     int     `wire:"-1..MaxWorkers-1"` // among its role
	Host     string  // identifies shared resources
	Actuator string  // means to limit resources here; empty: none
	Model    string  `wire:"max=maxModel"` // readable; prior of the demand
	Params   int64   `wire:"0..MaxParams"`
	Workers  int     `wire:"0..MaxWorkers"`
	Servers  int     `wire:"0..MaxShards"` // 0: all-reduce
	Fixed    bool    // the user chose the mode: the job sends no ask and gets no order
	Capacity Amounts // of the host
	Freed    Amounts // by each worker on its host, per second of delay of an iteration
	CostCPU  float64 `wire:"amount"` // sensitivity to less processor time
	CostNet  float64 `wire:"amount"` // sensitivity to less network
}

// Usage renews the lease of the process, several times per lease.
//
// Sent: server or worker → cluster service, server → coordinator.
//
//wire:kind 36
type Usage struct {
	Seq  int64   `wire:"natural"`      // counts from 1 on a connection
	Step int64   `wire:"natural"`      // updates of the job so far, or steps of the worker
	Mode string  `wire:"max=maxModel"` // plan in force; empty: unknown
	Sync bool    // every update waits for all workers
	Own  Amounts // used by this process
	Host Amounts // used by all processes on the host
	// of an iteration, by rank, from the coordinator's process; 0: unknown
	Times []time.Duration `wire:"max=MaxWorkers,each=0..maxTime"`
	Delay time.Duration   `wire:"0..maxTime"` // of each iteration, in force
	// limits on this host, in the order of undoing them; texts of at most 160 bytes
	Leases []Lease `wire:"max=MaxLeases,absent"`
	Free   int64   `wire:"natural,absent"` // bytes of memory left on the host; 0: unknown
}

// Lease is a limit that a process has set on its host.
type Lease struct {
	Name  string `wire:"cut,max=maxLeaseText"`
	State string `wire:"cut,max=maxLeaseText"`
	What  string `wire:"cut,max=maxLeaseText"`
	Owner string `wire:"cut,max=maxLeaseText"`
	Why   string `wire:"cut,max=maxLeaseText"`
}

// Ask requests, from the coordinator's process, to leave SSGD. A repeated id gets the same grant.
//
// Sent: server or worker → cluster service.
//
//wire:kind 37
type Ask struct {
	ID      int64         `wire:"natural"`      // counts requests of one life of a job
	Mode    string        `wire:"max=maxModel"` // requested
	Extra   Amounts       // use beyond SSGD of all servers, in equal parts; without servers, of the workers
	Lag     time.Duration `wire:"0..maxTime"` // that SSGD loses to stragglers in each iteration
	Timeout time.Duration `wire:"0..maxTime"` // how long the sender waits
}

// Grant answers an ask, or revokes an approval.
//
// Sent: cluster service → server or worker.
//
//wire:kind 38
type Grant struct {
	ID    int64 `wire:"natural"` // of the ask
	OK    bool
	Lease time.Duration `wire:"0..maxTime"` // validity of an approval after the last usage
	Why   string        `wire:"cut,max=maxText"`
}

// Order delays each iteration to free resources for another job.
//
// Sent: cluster service → server or worker.
//
//wire:kind 39
type Order struct {
	ID    int64         `wire:"natural"`    // a higher one replaces earlier ones
	Delay time.Duration `wire:"0..maxTime"` // of each iteration; 0 with `early` 0: undo the last order
	Early time.Duration `wire:"0..maxTime"` // further delay of this worker, which would wait for slower ones anyway
	Lease time.Duration `wire:"0..maxTime"` // the delay ends this long after the connection was lost
	For   string        // the job that asked
	Why   string        `wire:"cut,max=maxText"`
}

// Obeyed reports the result of an order.
//
// Sent: server or worker → cluster service.
//
//wire:kind 40
type Obeyed struct {
	ID    int64         `wire:"natural"`    // of the order
	Delay time.Duration `wire:"0..maxTime"` // in force now
	Err   string        `wire:"cut,max=maxText"`
}

// Yield returns a grant, from the coordinator's process.
//
// Sent: server or worker → cluster service.
//
//wire:kind 41
type Yield struct {
	ID int64 `wire:"natural"` // of the ask
}

// AdoptStage is what a server does about a shard that moves to it.
type AdoptStage uint8

const (
	Prepare AdoptStage = iota // allocate memory, and connect to the server that has it
	Own                       // the shard is here: every Fire after this message is for it too
	Forget                    // it stays at the old server
)

// Adopt directs the new server of a shard that moves. Stages: 0 prepare: allocate memory, and connect to the old
// server; 1 own: take over, with the next fire; 2 forget: the move is cancelled.
//
// Sent: coordinator → server.
//
//wire:kind 42
type Adopt struct {
	Move  int64      `wire:"natural"` // counts moves
	Stage AdoptStage `wire:"0..Forget"`
	Shard int        `wire:"0..MaxShards-1"`
	Addr  string     // of the old server
	From  int64      `wire:"0..MaxParams"`
	To    int64      `wire:"0..MaxParams"`
}

// HandStage is what a server does about a shard that moves away from it.
type HandStage uint8

const (
	Give HandStage = iota // after the Fire Seq, send its state to the new server; it does not change until the next stage
	Gone                  // it is at the new server: forward what still arrives
	Keep                  // it stays here: continue

	Lend   // like Give, but the other server gets a copy of it
	Shared // the copy is complete: continue, and forward pushes of workers that do not know it yet
)

// Hand directs the old server of a shard that moves. Stages: 0 give: after the fire `seq`, send its state to the new
// server; 1 gone: forward further messages; 2 keep: the move is cancelled, continue; 3 lend: like give, for a copy; 4
// shared: the copy is complete, continue, and forward pushes of workers with an older term.
//
// Sent: coordinator → server.
//
//wire:kind 43
type Hand struct {
	Move  int64     `wire:"natural"`
	Stage HandStage `wire:"0..Shared"`
	Shard int       `wire:"0..MaxShards-1"`
	Seq   int64     `wire:"natural"` // with stages 0 and 3
}

// MovedStage is the progress of a move.
type MovedStage uint8

const (
	Prepared MovedStage = iota // memory is allocated, and the old server is connected
	Loaded                     // its state is here
	Complete                   // the old server will send nothing more
)

// Moved reports the progress of a shard's move to this server. Stages: 0 prepared; 1 loaded: it has the old server's
// state and gradients; 2 complete: the old server sends nothing more.
//
// Sent: server → coordinator.
//
//wire:kind 44
type Moved struct {
	Move    int64      `wire:"natural"`
	Stage   MovedStage `wire:"0..Complete"`
	Shard   int        `wire:"0..MaxShards-1"`
	Version int64      `wire:"natural"`         // with stage 1
	Err     string     `wire:"cut,max=maxText"` // if the move has failed
}

// State begins the state of a shard. Its slots follow, then the pending pushes, then later ones, then leave.
//
// Sent: old server → new server, shard → worker.
// Payload: to a server, the shard's parameters as float32.
//
//wire:kind 45 payload=data
type State struct {
	Shard   int    `wire:"0..MaxShards-1"`
	Seq     int64  `wire:"natural"` // of the last fire that it contains
	Version int64  `wire:"natural"`
	Rule    string // name of the update rule
	Steps   int64  `wire:"natural"`       // updates that the rule has counted
	Slots   int    `wire:"0..maxSlots"`   // vectors of the rule's state
	Pending int    `wire:"0..MaxWorkers"` // stored gradients that are not applied
	// by rank: the highest N of a pass
	Lives []int64 `wire:"max=maxRanks,each=0..1<<63-1,absent"`
}

// Slot is a vector of the rule's state, or, before init, of the optimizer of the worker's program.
//
// Sent: old server → new server, worker → shard, shard → worker.
// Payload: float32, as long as the shard.
//
//wire:kind 46 payload=data
type Slot struct {
	Shard int `wire:"0..MaxShards-1"`
	Name  string
}

// Route is the new address of a shard, for the next push or pull. The old server forwards earlier pushes.
//
// Sent: coordinator → worker.
//
//wire:kind 47
type Route struct {
	Worker star.Worker
	Shard  int `wire:"0..MaxShards-1"`
	Addr   string
}

// Cancel stops a computation: the update is made without it (LGC), or the queue is empty (`part` of release).
// The worker finishes its part and pushes what it has. It may have pushed the whole gradient already.
//
// Sent: coordinator → worker.
//
//wire:kind 48
type Cancel struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
}

// Computed reports how much of its batch a worker has computed: with `micro` in an all-reduce, between computation and
// exchange; with `part`, after each part but the last; in other rounds of a ring with `tell`, when it has waited so
// long in the exchange. The worker does not wait for an answer.
//
// Sent: worker → coordinator.
//
//wire:kind 49
type Computed struct {
	Worker     star.Worker
	Generation int64 `wire:"natural"`     // of its ring, or 0
	Version    int64 `wire:"natural"`     // of the gradient's basis
	Samples    int   `wire:"0..maxCount"` // of its gradient so far; 0: no gradient
}

// Close tells all ring members, when enough of them have sent computed, which gradients are in the round.
//
// With `part` the queue is empty, all members are in `first`, and `total` is 0. Each member finishes its part, sends
// computed if it was still computing, and begins the exchange, first of the members' samples (an all-reduce of one
// int64 for each, in ring order).
//
// Sent: coordinator → worker.
//
//wire:kind 50
type Close struct {
	Generation int64         `wire:"natural"`
	Version    int64         `wire:"natural"`        // before the round
	First      []star.Worker `wire:"max=MaxWorkers"` // their gradients of this round are in the update
	Late       []star.Worker `wire:"max=MaxWorkers"` // those of the previous round are
	Total      int64         `wire:"natural"`        // samples that the update applies
}

// Poison reports bad gradients: a worker its own or a rider's, a server the begin and end of gradients opposite to all
// others.
//
// Sent: worker → coordinator, server → coordinator.
//
//wire:kind 51
type Poison struct {
	Shard  int `wire:"-1..MaxShards-1"` // −1: the whole vector
	Worker star.Worker
	Step   int64   `wire:"natural"`
	Cause  string  `wire:"max=maxCodec"` // `not-finite`, `exploding`, `flipped`
	Value  float64 // exploding: norm by median norm; flipped: mean cosine
	Over   bool    // flipped has ended
	Where  string  `wire:"cut,max=maxText"` // the tensor, if known
}

// Ballot carries the election of a coordinator. Each candidate dials each other one and only sends on that connection.
// An empty payload means that the job is over.
//
// The hello has the service of elections, role `ps`, rank and address, and a payload of 20 bytes: a process id (16
// bytes), and the big-endian turn plus 1. The turn is −1: asks to replace another process of its rank; 0: looks for the
// other candidates, to start with them; 1: started with them; n > 1: the n-th process of that rank.
//
// The welcome has a payload of 17 bytes: the listener's process id, and 0: it knows the dialler as the process of that
// rank; 1: another process has or had the rank; 2: unknown; 3: another process has it now.
// A process with turn 0 that gets 1 continues with turn −1; one with a higher turn that gets 3 ends.
//
// Sent: coordinator candidate → another one.
// Payload: etcd's `raftpb.Message` as protobuf (decision 12).
//
//wire:kind 52 payload=text
type Ballot struct {
	From int `wire:"0..MaxCandidates-1"` // rank of the sender
	To   int `wire:"0..MaxCandidates-1"` // rank of the receiver
}

// Standing is the first message of a server to a coordinator that takes the job over.
//
// Sent: server → coordinator.
// Payload: the server's last fires, oldest first: for each the lengths of header and payload, u32 little-endian, then
// both as received. With copies, an ahead counts as a fire, once.
//
//wire:kind 53 payload=text
type Standing struct {
	Term int64 `wire:"natural"` // of the welcome that it answers
	Seq  int64 `wire:"natural"` // of the server's last fire; 0: no fire
	// hosted shards and their versions; −1: no parameters yet; later fires may be queued
	Shards  []ShardVersion `wire:"max=MaxShards"`
	Applied []Apply        `wire:"max=MaxApplied,absent"` // the server's last applies, oldest first
}

// ShardVersion is the version of a shard's parameters.
type ShardVersion struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"-1..1<<63-1"`
}

// Elsewhere answers a hello with service `coord` if the listener is a candidate that does not coordinate the job.
// The sender closes.
//
// Sent: listener → dialler.
//
//wire:kind 54
type Elsewhere struct {
	Addr string // of the coordinator; empty: unknown, try again
}

// Holder is a server that holds a copy of a shard.
type Holder struct {
	Rank int    `wire:"0..MaxWorkers-1"`
	Addr string // where workers reach it
}

// View lists the holders of a shard (`--replicas`). Its term rises with every change; receivers ignore a lower term.
// The first holder is the primary, which answers workers; a worker pushes to all holders.
// A worker gets the views of all shards after its welcome, a server those of its shards after its assign; both get
// every change.
//
// Sent: coordinator → server, coordinator → worker.
//
//wire:kind 55
type View struct {
	Shard int   `wire:"0..MaxShards-1"`
	Term  int64 `wire:"natural"`
	// the primary, then its successors in order, with their addresses for workers
	Holders []Holder `wire:"max=maxHolders"`
	From    int64    `wire:"0..MaxParams"`
	To      int64    `wire:"0..MaxParams"`
}

// Held reports that a copy of a shard has made all updates up to `seq`, or certainly will. A server sends it for each
// copy, before its standing, to a coordinator that takes the job over.
//
// Sent: server → coordinator.
//
//wire:kind 56
type Held struct {
	Shard int   `wire:"0..MaxShards-1"`
	Term  int64 `wire:"natural"` // of its view
	Seq   int64 `wire:"natural"`
}

// Turn reports that the worker now pushes to all holders of the view of that term. It comes first on a connection to a
// copy, and again on all of them after a change. A server with a lower term sends nothing on this connection until it
// gets that term from the coordinator, and closes after the timeout of a message.
//
// Sent: worker → shard.
//
//wire:kind 57
type Turn struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	Term   int64 `wire:"natural"`
}

// Ahead is a fire for followers. They make the update and answer with held; then primaries get the fire and do
// likewise.
//
// Sent: coordinator → server.
// Payload: that of fire.
//
//wire:kind 58 payload=memo
type Ahead Fire

// Halt is the request of a worker's program to end the job. The coordinator hands out no further samples, and applies
// the gradients of those that it handed out. The sender stays.
//
// Sent: worker → coordinator.
//
//wire:kind 59
type Halt struct {
	Worker star.Worker
	Reason string `wire:"cut,max=maxText"`
}
