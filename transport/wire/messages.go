package wire

import (
	"time"

	"star"
)

// This file is the table of messages. Of each it says the number, the name (that of the type), who sends it, what its payload is, and of each field of the
// header the name (that of the field), the limits and the meaning, in the order of the wire. Package gen reads it and writes codec_gen.go, the list of
// kinds, the tests' list of messages, the names in package transport and the tables of docs/protocol.md:
//
//	go generate ./transport/wire
//
// The comment above a message ends with who sends it to whom and with its payload. Then comes the line
//
//	//wire:kind NUMBER [payload=data|text|probe|bins|memo]
//
// with the bound of the payload ([Payload]). A field's tag has, separated by commas:
//
//	LO..HI       integers: the smallest and the largest value
//	natural      integers: 0 to 2^63−1; durations: not negative
//	any          integers: whatever fits 64 bits
//	amount       floats: 0 to 10^18
//	max=N        strings: bytes; lists: elements. A string without it: 255 bytes
//	each=LO..HI  lists of integers: each
//	cut          strings: words for people, which a writer cuts at max rather than have them refused
//	absent[=V]   fields that older peers do not send: they count as V, 0 if there is none
//	hidden       is written and read by the field behind it
//
// Without a tag a star.Worker is 0 to 4095, a duration within 10^18 ns either way, a float any float. Fields are added at the end, and are absent from
// older peers. The type of a list's elements has its own tags, and may grow in the same way.

// Limits of what a header may say. They bound memory, not ambition.
const (
	MaxHeader  = 64 << 10 // bytes of a header
	MaxWorkers = star.MaxWorkers
	MaxShards  = 1024
	MaxParams  = 1 << 40 // elements
	MaxCouncil = 9       // processes that may coordinate a job
	MaxApplied = 1024    // Applys of a Standing
	MaxLeases  = 8       // of a Usage
	MaxBelow   = 1024    // of a Branch, so that it fits into a header: no more workers are linked below one
	MaxPieces  = 1 << 12 // of the stream that a batch is of, beside the first

	MaxOptimizer = 4 << 10  // bytes of an optimiser in the header of a Welcome
	maxOptimizer = 16 << 20 // bytes of one in its payload: as many as a Hello's has

	maxName      = 255     // bytes of a name, a host or an address
	maxCodec     = 32      // bytes of a codec's name
	maxToken     = 1 << 10 // bytes
	maxModel     = 16 << 10
	maxText      = 4 << 10 // bytes of a reason or an error
	maxArgs      = 64      // words of a Control
	maxArg       = 1 << 10 // bytes of one of them
	maxLeaseText = 160     // bytes of each text of a Lease: the header of a Usage has room for all
	maxSteps     = 1 << 20 // and parts, of one batch
	maxRanks     = MaxWorkers + 1
	maxSlots     = 16 // vectors of an update rule
	maxHolders   = 16 // copies of a shard
	maxCount     = 1<<31 - 1
	maxPart      = 10_000 // of a test set

	maxTime   = 1_000_000_000_000_000_000 // nanoseconds: 31 years, of which some can be added up
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
	ServiceElection = "council" // where processes that may coordinate a job talk with each other
)

// Hello opens every connection. What does not concern the sender is 0 or empty.
//
// From a worker to the coordinator, the payload is an object, the worker's enrolment: `layout` and, where it has some, `buffers` (lists of `{"name", "shape", "offset"}` without gaps, or empty), `data` (readable), `samples` (of one epoch), `tests`, and a `digest` if the worker has one: any text that tells contents apart;
// in an all-reduce `rule` (the update rule in words, which must be that of `star-ps`); with `--compress` `codec`; and `told`: `{"model", "dataset", "seed", "batch"}`, as its settings say it, `batch` only if it was given.
// The coordinator holds `told` against what `star-ps` was given, and refuses what differs with exit code 78. Without `told` only `model` and `data` are looked at, if they are names that STAR knows; such a worker makes way, before
// the training begins, for one that was told what `star-ps` was given. Readers skip keys that they do not know.
//
// Sent: dialler → listener.
// Payload: what it trains as JSON, from a worker to the coordinator; from a coordinator candidate to another one, see ballot; else none.
//
//wire:kind 1 payload=text
type Hello struct {
	Service   string // `coord`, `shard`, `ring`, `tree`, `cluster` or `council`
	Role      string // `ps`, `worker`, `tool` or `validator`
	Job       string // name of the job, or with service `cluster` of the cluster; both ends must agree; of a tool empty: whichever is there
	Token     string `wire:"max=maxToken"`     // shared secret, or empty
	Version   string `wire:"cut"`              // of the program, for messages
	Host      string `wire:"cut"`              // of the sender, for messages
	Rank      int    `wire:"-1..MaxWorkers-1"` // −1: the coordinator chooses
	Shard     int    `wire:"0..MaxShards-1"`   // service `shard`: which one is meant
	Addr      string // servers: where others reach this process, host:port; workers with all-reduce: where the others meet them, and behind a comma the door for riders; other workers: the door for children in a tree, empty: takes no part in trees
	Shards    int    `wire:"0..MaxShards"`     // servers: how many shards it hosts
	Model     string `wire:"cut,max=maxModel"` // workers: what is trained, readable
	ModelHash string // workers: over model, settings, layout and seed
	Params    int64  `wire:"0..MaxParams"` // workers: elements of the parameter vector
	Buffers   int64  `wire:"0..MaxParams"` // workers: elements of the model's buffers
	Pass      string `wire:"absent"`       // service `shard`: of a worker that of its last welcome, of a server one that it has made with the key of its assign (*Passes*)
	Process   string `wire:"absent"`       // workers, to the coordinator: another text for each process; one that says hello again takes its own earlier place
	Commit    string `wire:"cut,absent"`   // that the program was built from, for messages; `unknown`: it was not built in a checkout; empty: an older program
}

// ShardInfo says who holds which range of the flat vector.
type ShardInfo struct {
	Shard int `wire:"0..MaxShards-1"`
	Addr  string
	From  int64 `wire:"0..MaxParams"` // elements
	To    int64 `wire:"0..MaxParams"`
}

// Welcome accepts a hello. `shards` cover the vector from 0 to its end without gaps; each has the elements [from, to).
//
// Sent: listener → dialler.
// Payload: for workers from the coordinator: the model's buffers, float32, of a job that resumes, and the `trailing` bytes of the optimizer; else none.
//
//wire:kind 2 payload=data
type Welcome struct {
	Rank       int           `wire:"-1..MaxWorkers-1"` // of the dialler; −1: it has none
	Workers    int           `wire:"0..MaxWorkers"`    // of the job
	Generation int64         `wire:"natural"`          // counts the coordinator's lives of this job
	Version    int64         `wire:"natural"`          // of the parameters now
	Seed       bool          // this worker must send init to every shard; in a ring that was taken over: its parameters count, and are not those of a worker that comes too late
	Shards     []ShardInfo   `wire:"max=MaxShards"` // who holds which elements
	Elapsed    time.Duration // since the run began
	Step       int64         `wire:"natural"`                 // of the worker's next gradient: not 0 where one of its rank was there before
	Term       int64         `wire:"natural,absent"`          // of the coordinator's leadership, where several processes may coordinate the job; else 0
	Pass       string        `wire:"absent"`                  // for workers, to be shown to shards as it is (*Passes*)
	Batch      int           `wire:"0..maxCount,absent"`      // for workers: samples of an equal share of a round, by which they know what part of the work theirs is; 0: not told
	Optimizer  string        `wire:"max=MaxOptimizer,absent"` // for workers of parameter servers that make steps of their own: what these are by, as JSON of optim.Config; empty: by the worker's settings
	Trailing   int           `wire:"0..maxOptimizer,absent"`  // bytes at the end of the payload that are the optimizer: one that does not fit `optimizer`, which is empty then
}

// Reject refuses a hello, or ends a membership. The sender closes. This frame is the same in every version of the protocol.
//
// Sent: listener → dialler, coordinator → worker, coordinator → server, shard → worker, ring member → rider, old server → new server, cluster service → server or worker.
//
//wire:kind 3
type Reject struct {
	Exit   int    `wire:"0..255"`          // the exit code that fits
	Reason string `wire:"cut,max=maxText"` // for people: thing, place, fix
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
	Params     int64       `wire:"0..MaxParams"`  // elements of the whole vector
	Workers    int         `wire:"0..MaxWorkers"` // of the job
	Generation int64       `wire:"natural"`       // as in welcome
	Key        string      `wire:"absent"`        // of the job, by which passes are made and checked; no worker is told it. Empty: nobody needs a pass
}

// Ready: a shard has its parameters.
//
// Sent: server → coordinator.
//
//wire:kind 5
type Ready struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"natural"` // 0, or that of a checkpoint
}

// Joined: a worker has reached every shard and, if told to, sent init.
//
// Sent: worker → coordinator.
//
//wire:kind 6
type Joined struct{ Worker star.Worker }

// Arrive: a worker has pushed the gradient of its step to every shard. The rest is what it measured; `wait` and `pull` are of the iteration before.
//
// Sent: worker → coordinator.
//
//wire:kind 7
type Arrive struct {
	Record star.Record `wire:"fields=arrived"`
}

// arrived has the fields of an Arrive: those of star.Record, in the order of the wire.
type arrived struct {
	Worker    star.Worker
	Step      int64          `wire:"natural"` // the worker's own iterations, from 0
	Basis     int64          `wire:"natural"` // version of the parameters of the gradient
	At        time.Duration  // end of the computation, since the run began
	Compute   time.Duration  // forward and backward
	Load      time.Duration  // wait for input data
	Push      time.Duration  // handing the gradient to every connection
	Wait      time.Duration  // from there to the release
	Pull      time.Duration  // from the release to the last byte of the parameters
	Injected  time.Duration  // part of compute that an injected slowness added
	Samples   int            `wire:"0..maxCount"` // of the mini-batch
	Loss      float64        // mean over the mini-batch
	Norm2     float64        // squared Euclidean norm of the gradient; none (NaN) if it was skipped and zeros are pushed
	CPU       float64        // share of one processor
	NetIn     float64        // bytes
	NetOut    float64        // bytes
	Seen      int64          `wire:"natural,absent,hidden"` // bit m: metric m was measured (`docs/stragglers.md` lists them). May be absent, with what follows: nothing was measured
	Telemetry star.Telemetry `wire:"max=63,absent"`         // the values of these metrics, the lowest bit first. Readers skip bits that they do not know
}

var _ arrived

// Stored: a shard holds the whole slice of a worker's gradient, and its sum was right. From a parent in a tree to its child: the parent holds the child's bundle of that step (shard: 0).
//
// Sent: server → coordinator, parent → child.
//
//wire:kind 8
type Stored struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	Step   int64   `wire:"natural"`
	Sum2   float64 `wire:"absent=-1"` // sum of squares of the slice, NaN or infinite if it is not finite; negative: not measured. Its last bits mean nothing
}

// Gradient names a gradient that the shards hold, and its weight in an update.
type Gradient struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
	Weight float32
}

// Fire tells a shard to make an update of these gradients. `seq` counts from 1 without gaps and a shard works in its order. Without gradients there is no update. After the update the shard sends params to the workers of both lists that are not in `quiet`.
//
// Sent: coordinator → server.
// Payload: none, or, where several processes may coordinate the job, what another one must know to go on from here; shards keep it unread (standing).
//
//wire:kind 9 payload=memo hooks
type Fire struct {
	Seq       int64         `wire:"natural"`
	Version   int64         `wire:"natural"`        // after the update
	Samples   int64         `wire:"any"`            // applied before this update by all workers: the clock of schedules. With `local` −1 less that number, so that a shard that does not know of `local` refuses the fire
	Gradients []Gradient    `wire:"max=MaxWorkers"` // to be applied; weight (float) is c of the update rule
	Dropped   []Gradient    `wire:"max=MaxWorkers"` // to be thrown away, or what the rule makes of late gradients (LGC, Zeno++); weight is for it
	Quiet     []star.Worker `wire:"max=MaxWorkers"` // gone: nothing is sent to them
	NormFirst bool          // answer with norm and wait for apply
	Report    bool          // answer with norm, without payload, when the update is made
	Local     int           `wire:"0..maxSteps,absent"` // steps that the workers of `gradients` have made by themselves; what they have pushed is how far they came in a step, in units of a gradient (`docs/modes.md`, *Local steps*). 0: gradients
}

// Norm is the length of an update before it is applied, in answer to a fire with `norm_first`; or after it, in answer to one with `report`. A shard that waits for the answer says it again to a coordinator that takes the job over, behind the standing. Where the shard's rule holds the sum against a reference before it is applied (Zeno++), the
// bins of the reference follow in the payload.
//
// Sent: server → coordinator.
// Payload: with `norm_first`: the bins of an exact sum of squares, at most 64 KiB; with `report`: none.
//
//wire:kind 10 payload=bins
type Norm struct {
	Shard int     `wire:"0..MaxShards-1"`
	Seq   int64   `wire:"natural"` // of the fire
	Sum2  float64 // sum of squares of the shard's slice of the weighted sum, where there is no payload; with a reference, the product of the two
}

// Apply completes a fire with `norm_first`. To a follower of a shard with copies it may come before that has said its norm, which it then does not.
//
// Sent: coordinator → server.
//
//wire:kind 11
type Apply struct {
	Seq    int64   `wire:"natural"` // of the fire
	Norm   float64 // of the whole weighted sum
	Factor float64 // what the sum is multiplied by before it is applied; 0: it is not, and the new version equals the one before
}

// Action is what a worker does when it is released.
type Action uint8

const (
	Continue Action = iota // compute the batch
	Evaluate               // evaluate first, then compute the batch
	Finish                 // evaluate, report, wait for the next Release
	Stop                   // leave: the job is over
)

// Release lets a worker go on. Actions: 0 compute the batch; 1 evaluate first, then compute it; 2 evaluate, report, wait for the next release; 3 leave, the job is over.
//
// Sent: coordinator → worker.
// Payload: none; in an all-reduce that several processes may coordinate, a JSON object that the worker keeps unread, for the next coordinator (`stand` in the enrolment of its hello).
//
//wire:kind 12 payload=memo
type Release struct {
	Worker  star.Worker
	Version int64         `wire:"natural"`     // of the parameters to go on with
	Action  Action        `wire:"0..Stop"`     //
	Start   int64         `wire:"natural"`     // first position of the sample stream
	Count   int           `wire:"0..maxCount"` // samples of the batch
	Pull    bool          // ask the shards for the parameters: none will send them by itself
	Eval    int64         `wire:"natural"`    // number of the evaluation
	From    int64         `wire:"0..maxPart"` // this worker's part of the test set, in ten thousandths
	To      int64         `wire:"0..maxPart"` // its end
	Total   int64         `wire:"natural"`    // all-reduce: samples of the round over all members; with parameter servers, in the first release, over all workers; else 0
	Dropped bool          // the worker's last gradient was thrown away: whoever compresses keeps it for the next one
	Delay   time.Duration `wire:"natural,absent"`       // how long the worker waits with the push after it has computed the gradient, so that not all push at once
	Local   int           `wire:"0..maxSteps,absent"`   // steps that the worker trains by itself with the batch, in as many mini-batches, before it pushes how far it has come from the parameters of the release; 0: it pushes a gradient; 1, without a baseline: it pushes a gradient, and may keep the parameters: steps of its own may follow, which go on from how far those have moved
	Micro   int           `wire:"0..maxSteps,absent"`   // parts in which the batch is computed; 0: it is whole
	Cap     time.Duration `wire:"natural,absent"`       // with micro: computing time after which no further part is begun. The arrive then names the samples that are in the gradient, at least 1 and at most count
	Part    int           `wire:"0..maxCount,absent"`   // samples of the parts in which the batch is computed, where workers take them from a queue. After each part but the last the worker says `computed`; when it has been told `cancel`, in an all-reduce `close`, it begins no further one. The arrive then names the samples that are in the gradient. 0: the batch is its own
	More    []Piece       `wire:"max=MaxPieces,absent"` // with part: what the batch has beside `start` and `count`, in the order in which it is computed. A part ends where a piece ends
}

// Piece is a part of the stream of samples.
type Piece struct {
	Start int64 `wire:"natural"`
	Count int   `wire:"1..maxCount"`
}

// Push is one shard's slice of a gradient. A payload that the codec cannot have made ends the connection.
//
// Sent: worker → shard, old server → new server, rider → ring member.
// Payload: the slice of a gradient, exactly as long as the shard's range: float32, or in the format of `codec` (`docs/compression.md`).
//
//wire:kind 13 payload=data
type Push struct {
	Shard   int         `wire:"0..MaxShards-1"`
	Worker  star.Worker // the sender
	Step    int64       `wire:"natural"`
	Basis   int64       `wire:"natural"`      // version of the parameters it was computed on
	Samples int         `wire:"0..maxCount"`  // of the mini-batch
	Codec   string      `wire:"max=maxCodec"` // `fp16`, `topk=0.01` and so on; empty or `none`: float32
}

// Params is one shard's slice of the parameters. Never torn: all of one version.
//
// Sent: shard → worker, ring member → rider, parent → child.
// Payload: float32: the slice of the parameters.
//
//wire:kind 14 payload=data
type Params struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"natural"`
}

// Pull asks for params as they are, or a shard for what its optimiser remembers: `state` without a payload, and its `slot`s.
//
// Sent: worker → shard, rider → ring member.
//
//wire:kind 15
type Pull struct {
	Shard  int         `wire:"0..MaxShards-1"`
	Worker star.Worker // the sender
	State  int         `wire:"0..1,absent"` // 1: what the optimiser remembers
}

// Init has the initial parameters. Ignored by a shard that has parameters already. Where the worker's program has trained before, the `slot`s that it says come first: what
// its optimiser remembers.
//
// Sent: worker → shard.
// Payload: float32: the slice of the initial parameters.
//
//wire:kind 16 payload=data
type Init struct {
	Shard  int         `wire:"0..MaxShards-1"`
	Worker star.Worker // the sender
	Rule   string      `wire:"absent"`         // name of the optimiser that remembers; empty: nothing
	Steps  int64       `wire:"natural,absent"` // updates that it counts
	Slots  int         `wire:"0..maxSlots,absent"`
}

// Buffers are statistics that are kept locally and averaged for an evaluation.
//
// Sent: worker → coordinator, coordinator → worker.
// Payload: float32: the model's buffers; back: their average.
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
	Eval    int64         `wire:"natural"`
	Version int64         `wire:"natural"` // that was evaluated
	LossSum float64       // over its samples
	Correct int64         `wire:"natural"`
	Count   int64         `wire:"natural"` // samples
	Took    time.Duration //
}

// Save: write your part of a checkpoint after the fire with number `seq`.
//
// To a worker with a codec: write what it has left out of your gradients: with parameter servers as it was before the gradient of your step `seq`; in an all-reduce when you come to `version`, and then `seq` is at least 1. With 0
// the first member writes the parameters.
//
// Sent: coordinator → server, coordinator → worker.
//
//wire:kind 19
type Save struct {
	Seq     int64  `wire:"natural"`
	Version int64  `wire:"natural"`
	ID      string // of the checkpoint
}

// Saved: the shard's file is on its disk, or why not. From a worker, of what its codec has left out, `shard` is 1, and without a payload there is nothing.
//
// Sent: server → coordinator, worker → coordinator.
// Payload: a description as JSON, for the manifest.
//
//wire:kind 20 payload=text
type Saved struct {
	Shard int `wire:"0..MaxShards-1"`
	ID    string
	Err   string `wire:"cut,max=maxText"` // empty: done
}

// Leave ends a membership cleanly. The sender closes after it. A member with a part in the training that says `exit` above 128, as one that a signal ends, may also go on as before and wait for the coordinator's reject, which
// has the same `exit`: it is sent when the job goes on without the member, at the latest some seconds later, or when the job has been saved and ends.
// A worker that computes nothing more says `exit` 0, or that of the program that has failed, and waits in the same way: the last one is asked for what the job's end needs.
//
// Sent: worker → coordinator, server → coordinator, coordinator → server, worker → shard, old server → new server, server or worker → cluster service.
//
//wire:kind 21
type Leave struct {
	Worker star.Worker `wire:"-1..MaxWorkers-1"` // −1: the sender is no worker
	Exit   int         `wire:"0..255"`
	Reason string      `wire:"cut,max=maxText"`
}

// Control is a command of `star ctl`; the answer is a reply.
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
	Err string `wire:"cut,max=maxText"` // empty: done
}

// Ping asks for a pong.
//
// Sent: worker → coordinator, coordinator → server, tool → coordinator, tool → cluster service.
// Payload: any bytes, for the bandwidth probe.
//
//wire:kind 24 payload=probe
type Ping struct {
	Seq  int64 `wire:"any"`
	Sent int64 `wire:"any"`     // clock of the sender, in Unix nanoseconds
	Want int64 `wire:"natural"` // bytes of payload wanted in the pong
}

// Pong answers a ping.
//
// Sent: coordinator → worker, server → coordinator, coordinator → tool, cluster service → tool.
// Payload: as many bytes as the ping wanted.
//
//wire:kind 25 payload=probe
type Pong struct {
	Seq  int64 `wire:"any"` // of the ping
	Sent int64 `wire:"any"` // copied from the ping
	Now  int64 `wire:"any"` // clock of the answerer, in Unix nanoseconds
}

// Rider says who adds the gradients of a worker that is taken out of the ring.
type Rider struct{ Worker, Parent star.Worker }

// Ring says who is in the ring (all-reduce only), from round `from` on; round r makes version r+1 of version r. Announced before the first release of such a round. Members meet at `addr`, in the order of the list, and agree on the highest version that one of them has; who has another one receives parameters and optimiser state from the first that has it. Riders push to `door` and get params back. A worker in neither list waits for the end. The three fields before the last are the same for all.
//
// Sent: coordinator → worker.
//
//wire:kind 26
type Ring struct {
	Generation int64         `wire:"natural"`        // counts rings; a higher one replaces all before it
	From       int64         `wire:"-1..1<<63-1"`    // the first round; −1: that of the version which the members agree on
	Members    []star.Worker `wire:"max=MaxWorkers"` // in order of rank
	Addr       string        // of the first member
	Riders     []Rider       `wire:"max=MaxWorkers"` //
	Door       string        // for a rider: where its parent listens; else empty
	Of         int64         `wire:"natural"` // samples of a full round of all live workers: B of the update rule
	Wait       time.Duration // how long a round waits for riders
	MaxStale   int64         `wire:"natural"` // older gradients of riders are dropped, in updates; 0: none are
	Now        bool          // give up the round in hand: somebody is gone
}

// Formed: a member stands in the ring. A rider says so before it pushes: what it pushes now is meant for this ring.
//
// Sent: worker → coordinator, rider → ring member.
//
//wire:kind 27
type Formed struct {
	Worker     star.Worker
	Generation int64 `wire:"natural"`
	Version    int64 `wire:"natural"` // of the parameters that all its members have
}

// Tally: a ring member has made a version; the record of it comes before, in an arrive. Or, with a hash, it tells what the parameters are with which it evaluates. The step of a rider's gradient is the first position of its batch, here and in its push.
//
// Sent: worker → coordinator.
//
//wire:kind 28
type Tally struct {
	Worker     star.Worker
	Generation int64      `wire:"natural"` // of the ring
	Version    int64      `wire:"natural"`
	Hash       int64      `wire:"0..1<<32-1"`     // CRC-32 of the parameters as float32; 0: not taken
	Carried    []Gradient `wire:"max=MaxWorkers"` // riders' gradients in this version
	Dropped    []Gradient `wire:"max=MaxWorkers"` // riders' gradients that were too old
	Sum2       float64    // squared Euclidean norm of the weighted sum of the round; 0: not told
	Samples    []int      `wire:"max=MaxWorkers,each=0..maxCount,absent"` // of each member of the ring, in its order, how many of the samples that it was released with are in the round, where releases have `part`; none: all
	Behind     []int      `wire:"max=MaxWorkers,each=0..maxCount,absent"` // none, or of each of `carried` its staleness plus one: `version` minus that of the parameters with which the gradient was computed; 0: another member carried it, and knows
}

// Fault: the ring of a generation has failed here. The coordinator answers with another ring or ends the job. In a tree: a child could not hand over its bundle.
//
// Sent: worker → coordinator.
//
//wire:kind 29
type Fault struct {
	Worker     star.Worker
	Generation int64  `wire:"natural"`
	Suspect    int    `wire:"-1..MaxWorkers-1"` // whose fault it seems to be; −1: not known
	Reason     string `wire:"cut,max=maxText"`
}

// Branch: for one step the worker is in a tree (parameter servers only). Comes before the release of that step; a release without one: the worker pushes to the shards and gets params from them. Only workers that are released by the same fire are linked. Only workers whose hello names a door are.
//
// Sent: coordinator → worker.
//
//wire:kind 30
type Branch struct {
	Worker   star.Worker
	Step     int64   `wire:"natural"`          // of the gradient
	Parent   int     `wire:"-1..MaxWorkers-1"` // gets this worker's gradients; −1: the shards do
	Door     string  // where the parent listens; empty without one
	Relay    bool    // the parameters of the release are to be had from the parent (want)
	Children []Child `wire:"max=MaxWorkers"`      // whose gradients this worker takes
	Below    []Below `wire:"max=MaxBelow,absent"` // all whose gradients may come through a child, itself included: more are not linked
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

// Bundle: the gradients of several workers as one. The top of a tree says it to the coordinator before it pushes the same to the shards, with `samples` of all members in the push; an arrive follows. The parent answers with stored when it has all of it, also to one that came already or too late; a child that hears nothing within 5 s plus a second for each MiB says fault, and one whose connection breaks before may send the same bundle over another one. Then it says arrive to the coordinator. A parent takes bundles only of the children and steps in its branch, with members and samples that its branch has below that child, and of finite elements; it waits no longer for a child that sends another one.
//
// Sent: child → parent, worker → coordinator.
// Payload: from a child to its parent, float32: the mean gradient over all samples of the members, of the whole vector; to the coordinator none.
//
//wire:kind 31 payload=data
type Bundle struct {
	Worker  star.Worker // the sender
	Step    int64       `wire:"natural"`        // its own
	Members []Share     `wire:"max=MaxWorkers"` // whose gradients are in it, the sender first
}

// Detach: the gradient of that worker and step goes another way than its branch says. To a parent: do not wait for it. To the worker itself: push your own gradient, without those of your children, to the shards; take the parameters from them.
//
// Sent: coordinator → worker.
//
//wire:kind 32
type Detach struct {
	Worker star.Worker
	Step   int64 `wire:"natural"`
}

// Want asks for params of that version or a later one; the parent answers when it has them.
//
// Sent: child → parent.
//
//wire:kind 33
type Want struct {
	Worker  star.Worker // the sender
	Version int64       `wire:"natural"`
}

// Compression: from a version of the parameters on, gradients go with another codec: the worker's own, or, said by the first member of a ring, those
// of all its members. For the run log; nobody answers.
//
// Sent: worker → coordinator.
//
//wire:kind 34
type Compression struct {
	Worker  star.Worker
	Version int64  `wire:"natural"`
	Codec   string `wire:"max=maxCodec"` // `none`, `int8`, `topk=0.01` and so on
	Why     string `wire:"cut,max=maxText"`
}

// Amounts are resources: processors, and bytes per second into and out of a host.
type Amounts struct {
	CPU float64 `wire:"amount"`
	In  float64 `wire:"amount"`
	Out float64 `wire:"amount"`
}

// Enlist says which process of which job this is; first on a connection, and again when something of it has changed. A second connection of the same job, role,
// rank and life replaces the first one; with another life it is refused. With `--move-shards auto` a server says it and usage to the coordinator, too, for the capacities of its host. Amounts are [processors, bytes per second in, bytes per second out], all finite and not negative.
//
// Sent: server or worker → cluster service, server → coordinator.
//
//wire:kind 35
type Enlist struct {
	Job      string
	Life     string  // tells the process from another one that claims its place
	Rank     int     `wire:"-1..MaxWorkers-1"` // among its kind
	Host     string  // processes with the same one share its resources
	Actuator string  // what carries out orders here; empty: nothing does
	Model    string  `wire:"max=maxModel"`  // what is trained, readable; names a prior of the demand
	Params   int64   `wire:"0..MaxParams"`  // elements of the parameter vector; 0: not known
	Workers  int     `wire:"0..MaxWorkers"` // of the job
	Servers  int     `wire:"0..MaxShards"`  // of the job; 0: workers exchange gradients among themselves
	Fixed    bool    // its owner has chosen the mode: it neither asks nor gives
	Capacity Amounts // of the host; 0: not known
	Freed    Amounts // what each worker frees on its host for each second by which an iteration is delayed
	CostCPU  float64 `wire:"amount"` // sensitivity to less processor time; 0: not known
	CostNet  float64 `wire:"amount"` // sensitivity to less network; 0: not known
}

// Usage renews the lease of the process. To be sent several times in a lease.
//
// Sent: server or worker → cluster service, server → coordinator.
//
//wire:kind 36
type Usage struct {
	Seq    int64           `wire:"natural"`      // counts from 1 on a connection
	Step   int64           `wire:"natural"`      // updates of the job so far, or steps of the worker
	Mode   string          `wire:"max=maxModel"` // plan in force; empty: the sender does not know
	Sync   bool            // every update waits for all workers
	Own    Amounts         // that this process uses
	Host   Amounts         // that everybody on the host uses
	Times  []time.Duration `wire:"max=MaxWorkers,each=0..maxTime"` // of an iteration of each worker, by rank; 0: not known. Only from the coordinator's process
	Delay  time.Duration   `wire:"0..maxTime"`                     // of each iteration, in force in this process
	Leases []Lease         `wire:"max=MaxLeases,absent"`           // limits that processes have set on this host, those to be undone first (`star limits ls`); each text is cut at 160 bytes
	Free   int64           `wire:"natural,absent"`                 // bytes of memory that the host has left; 0: not known
}

// Lease is a limit that a process has set on its host.
type Lease struct {
	Name  string `wire:"cut,max=maxLeaseText"`
	State string `wire:"cut,max=maxLeaseText"`
	What  string `wire:"cut,max=maxLeaseText"`
	Who   string `wire:"cut,max=maxLeaseText"`
	Why   string `wire:"cut,max=maxLeaseText"`
}

// Ask: the process of the coordinator wants to leave SSGD. The answer is a grant with the same id. An id that was answered is answered the same way again.
//
// Sent: server or worker → cluster service.
//
//wire:kind 37
type Ask struct {
	ID      int64         `wire:"natural"`      // counts the questions of one life of a job
	Mode    string        `wire:"max=maxModel"` // that it wants
	Extra   Amounts       // that the servers use beyond SSGD, all together and each as much; in a job without servers its workers
	Lag     time.Duration `wire:"0..maxTime"` // what SSGD loses in each iteration to stragglers
	Timeout time.Duration `wire:"0..maxTime"` // how long the sender waits
}

// Grant answers an ask, or takes a yes back.
//
// Sent: cluster service → server or worker.
//
//wire:kind 38
type Grant struct {
	ID    int64         `wire:"natural"` // of the ask
	OK    bool          //
	Lease time.Duration `wire:"0..maxTime"` // how long a yes is good after the last usage that was sent
	Why   string        `wire:"cut,max=maxText"`
}

// Order: delay each iteration, because another job needs what that frees. The answer is an obeyed with the same id.
//
// Sent: cluster service → server or worker.
//
//wire:kind 39
type Order struct {
	ID    int64         `wire:"natural"`    // a higher one replaces all before it
	Delay time.Duration `wire:"0..maxTime"` // of each iteration; with early, 0 undoes the order before it
	Early time.Duration `wire:"0..maxTime"` // besides, of this worker, which would only wait for slower ones otherwise
	Lease time.Duration `wire:"0..maxTime"` // the delay ends by itself when the connection is gone for so long
	For   string        // the job that asked
	Why   string        `wire:"cut,max=maxText"`
}

// Obeyed says what has become of an order.
//
// Sent: server or worker → cluster service.
//
//wire:kind 40
type Obeyed struct {
	ID    int64         `wire:"natural"`         // of the order
	Delay time.Duration `wire:"0..maxTime"`      // in force now
	Err   string        `wire:"cut,max=maxText"` // empty: done
}

// Yield: the process of the coordinator gives back what a grant gave.
//
// Sent: server or worker → cluster service.
//
//wire:kind 41
type Yield struct {
	ID int64 `wire:"natural"` // of the ask
}

// AdoptStage is what a server is to do about a shard that comes to it.
type AdoptStage uint8

const (
	Prepare AdoptStage = iota // make room, and connect to the server that has it
	Own                       // it is yours: every Fire after this message is for it too
	Forget                    // it stays where it is
)

// Adopt says what to do about a shard that comes to the server. Stages: 0 prepare: make room, and connect to the server that has it; 1 own: it is yours, with every fire after this; 2 forget: it stays where it is.
//
// Sent: coordinator → server.
//
//wire:kind 42
type Adopt struct {
	Move  int64      `wire:"natural"` // counts moves
	Stage AdoptStage `wire:"0..Forget"`
	Shard int        `wire:"0..MaxShards-1"`
	Addr  string     // of the server that has it
	From  int64      `wire:"0..MaxParams"` // its elements
	To    int64      `wire:"0..MaxParams"` // their end
}

// HandStage is what a server is to do about a shard that leaves it.
type HandStage uint8

const (
	Give HandStage = iota // after the firing Seq, send its state to who has come for it; it does not change until further notice
	Gone                  // it is the other's: pass on what still comes
	Keep                  // it stays here: go on

	Lend   // like Give, but the other server gets a copy of it
	Shared // the copy is there: go on, and pass on what workers push that do not know of it
)

// Hand says what to do about a shard that leaves the server. Stages: 0 give: after the fire `seq`, send its state to who has come for it; 1 gone: it is the other's, pass on what still comes; 2 keep: it stays, go on; 3 lend: like give, but the other one gets a copy; 4 shared: the copy is there, go on, and pass on what comes from workers of a term before it.
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

// MovedStage is how far a move is.
type MovedStage uint8

const (
	Prepared MovedStage = iota // there is room, and a connection to who has it
	Loaded                     // its state is here
	Complete                   // nothing more will come from who had it
)

// Moved says how far the move of a shard to this server is. Stages: 0 prepared; 1 loaded: the state and all gradients that the old server had are here; 2 complete: nothing more will come from there.
//
// Sent: server → coordinator.
//
//wire:kind 44
type Moved struct {
	Move    int64      `wire:"natural"`
	Stage   MovedStage `wire:"0..Complete"`
	Shard   int        `wire:"0..MaxShards-1"`
	Version int64      `wire:"natural"`         // of the parameters, with stage 1
	Err     string     `wire:"cut,max=maxText"` // empty: it went well; else it has failed
}

// State begins the state of a shard. As many `slot` as it says follow, then as many `push` as are pending, then those that still come, then leave.
//
// Sent: old server → new server, shard → worker.
// Payload: float32: the parameters of the shard; none to a worker.
//
//wire:kind 45 payload=data
type State struct {
	Shard   int     `wire:"0..MaxShards-1"`
	Seq     int64   `wire:"natural"` // of the last fire that is in it
	Version int64   `wire:"natural"`
	Rule    string  // name of the update rule
	Steps   int64   `wire:"natural"`                             // updates that the rule counts
	Slots   int     `wire:"0..maxSlots"`                         // vectors of the rule's state
	Pending int     `wire:"0..MaxWorkers"`                       // gradients that are stored and not applied
	Lives   []int64 `wire:"max=maxRanks,each=0..1<<63-1,absent"` // by rank of the workers: the highest number of a pass that was shown to the shard; none: none was
}

// Slot is one vector of the rule's state, or, before `init`, of the optimiser of a worker's program.
//
// Sent: old server → new server, worker → shard, shard → worker.
// Payload: float32: as long as the shard.
//
//wire:kind 46 payload=data
type Slot struct {
	Shard int `wire:"0..MaxShards-1"`
	Name  string
}

// Route says where a shard is now. What was pushed to the old place is passed on; the next push or pull goes to the new one.
//
// Sent: coordinator → worker.
//
//wire:kind 47
type Route struct {
	Worker star.Worker
	Shard  int `wire:"0..MaxShards-1"`
	Addr   string
}

// Cancel: the update for which the worker computes is made without it (LGC), or the queue that it takes parts from is empty (`part` of a release). It finishes the part of its batch that it is at and hands over what it has. May cross with the whole gradient.
//
// Sent: coordinator → worker.
//
//wire:kind 48
type Cancel struct {
	Worker star.Worker
	Step   int64 `wire:"natural"` // the worker's own count
}

// Computed is what the worker has of its batch. In an all-reduce, in a round whose plan has `micro`, it follows the end of the computation, before anything is exchanged. With parameter servers
// it follows each part of a batch whose release has `part`, in an all-reduce too, but the last one: more samples each time. It is not answered, and the worker goes on at once.
//
// Sent: worker → coordinator.
//
//wire:kind 49
type Computed struct {
	Worker     star.Worker
	Generation int64 `wire:"natural"`     // of its ring; with parameter servers 0
	Version    int64 `wire:"natural"`     // of the parameters it computed with
	Samples    int   `wire:"0..maxCount"` // that its gradient is the mean over, so far; 0: it has none
}

// Close answers `computed`, when enough members have said it, and goes to all of the ring: whose gradients are in the round. Where releases have `part`, that the queue is empty: everybody is in `first`, `total` is 0, and who has finished its part goes into the exchange, first of the samples that each member has (an all-reduce of one int64 for each, in the order of the ring). Who still computes finishes the part of its batch that it is at, says `computed`, and takes part in the exchange.
//
// Sent: coordinator → worker.
//
//wire:kind 50
type Close struct {
	Generation int64         `wire:"natural"`        // of the ring
	Version    int64         `wire:"natural"`        // the round makes the version after it
	First      []star.Worker `wire:"max=MaxWorkers"` // whose gradients of this round are in the update
	Late       []star.Worker `wire:"max=MaxWorkers"` // whose gradients of the round before are
	Total      int64         `wire:"natural"`        // samples that the update applies
}

// Poison: a gradient does not belong (package poison): a worker says so of its own, in an all-reduce of a rider's too, a server of
// a worker whose direction is, or is no longer, against all others'.
//
// Sent: worker → coordinator, server → coordinator.
//
//wire:kind 51
type Poison struct {
	Shard  int         `wire:"-1..MaxShards-1"` // −1: the whole vector
	Worker star.Worker // whose gradient it is
	Step   int64       `wire:"natural"`      // the worker's own count
	Cause  string      `wire:"max=maxCodec"` // `not-finite`, `exploding`, `flipped`
	Value  float64     // exploding: how many times the median norm; flipped: the mean cosine
	Over   bool        // flipped: it no longer is
	Where  string      `wire:"cut,max=maxText"` // the tensor, where it is known
}

// Ballot carries the protocol by which a coordinator is elected. Each of two candidates dials the other and only sends on
// that connection; the hello has service `council`, role `ps`, the sender's rank and its address. Its payload is 20 bytes: 16 by which the process is told from another one of its rank, and its turn plus 1,
// big-endian: −1, it asks for the place of another process; 0, it looks for the others, to begin with them; 1, it began with them; n > 1, it is the n-th process in that place. The payload of the welcome is 17 bytes: the 16 of the process that answers, and
// what it says to that: 0, it knows the other one in that place; 1, another process has or had it; 2, it cannot tell; 3, another process has it by now. A process that is told 1 while it looks for the others asks for the place from then on;
// one that has a place and is told 3 ends. An empty payload of a ballot says that all is over, as the sender knows.
//
// Sent: coordinator candidate → another one.
// Payload: a message of etcd's raft as protobuf, `raftpb.Message` (`docs/decisions/0012-who-coordinates.md`).
//
//wire:kind 52 payload=text
type Ballot struct {
	From int `wire:"0..MaxCouncil-1"` // rank of the sender
	To   int `wire:"0..MaxCouncil-1"` // rank of the receiver
}

// Standing is the first thing that a server says to a coordinator that takes a job over: what its shards have been told to do.
//
// Sent: server → coordinator.
// Payload: the last fires that the server was given, oldest first; each is the length of its header and that of its payload, u32 little-endian, then header and payload as they came. Where shards have copies, aheads count as fires, and each is there once.
//
//wire:kind 53 payload=text
type Standing struct {
	Term    int64          `wire:"natural"`               // of the welcome that it answers
	Seq     int64          `wire:"natural"`               // of the last fire that the server was given; 0: none
	Shards  []ShardVersion `wire:"max=MaxShards"`         // the shards that it hosts, and the versions of their parameters; −1: none yet. Fires that it was given may still be on the way to them
	Applied []Apply        `wire:"max=MaxApplied,absent"` // the last applies that it was given, oldest first
}

// ShardVersion says of which version a shard's parameters are.
type ShardVersion struct {
	Shard   int   `wire:"0..MaxShards-1"`
	Version int64 `wire:"-1..1<<63-1"`
}

// Elsewhere answers, in the place of welcome, a hello with service `coord` where somebody listens who may coordinate the job, and does not. The sender closes.
//
// Sent: listener → dialler.
//
//wire:kind 54
type Elsewhere struct {
	Addr string // of the coordinator; empty: not known yet, ask again
}

// Holder is a server that holds a copy of a shard.
type Holder struct {
	Rank int    `wire:"0..MaxWorkers-1"`
	Addr string // where workers reach it
}

// View says who holds copies of a shard (`--replicas`), under a term that rises with every change of that; a lower term than the last one is old news. The first holder is the primary: it answers workers. A worker pushes to all of
// them. A worker gets one for each shard behind its welcome, a server behind its assign for each shard of which it holds a copy; and both again with every change.
//
// Sent: coordinator → server, coordinator → worker.
//
//wire:kind 55
type View struct {
	Shard   int      `wire:"0..MaxShards-1"`
	Term    int64    `wire:"natural"`
	Holders []Holder `wire:"max=maxHolders"` // servers, by rank, and where workers reach them; first the primary, then those who would take its place, in order
	From    int64    `wire:"0..MaxParams"`   // elements of the shard
	To      int64    `wire:"0..MaxParams"`   // their end
}

// Held: a copy of a shard holds all fires up to one: it has made these updates, or will whatever happens to others. To a coordinator that takes the job over, a server says it of each copy before its standing.
//
// Sent: server → coordinator.
//
//wire:kind 56
type Held struct {
	Shard int   `wire:"0..MaxShards-1"`
	Term  int64 `wire:"natural"` // of its view
	Seq   int64 `wire:"natural"`
}

// Turn: from here on the worker pushes to all holders of the view of that term. First on a connection to a copy, and again on all of them when the view has changed. A server that knows a lower term answers nothing on this connection until the coordinator has told it of a
// higher one; if that takes longer than a message may take, it was left behind, and closes.
//
// Sent: worker → shard.
//
//wire:kind 57
type Turn struct {
	Shard  int `wire:"0..MaxShards-1"`
	Worker star.Worker
	Term   int64 `wire:"natural"`
}

// Ahead is a fire, with the fields of one, for followers. They make the update and answer with held. When all have, primaries get the fire, and answer with held, too.
//
// Sent: coordinator → server.
// Payload: that of the fire.
//
//wire:kind 58 payload=memo
type Ahead Fire

// Halt: a worker's program wants the job to end. Nothing more of the stream is handed out; what is out is computed, and used. The sender stays.
//
// Sent: worker → coordinator.
//
//wire:kind 59
type Halt struct {
	Worker star.Worker
	Reason string `wire:"cut,max=maxText"`
}
