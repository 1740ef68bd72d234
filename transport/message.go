package transport

import (
	"time"

	"star"
)

// Kind is the type of a frame. The values are the protocol; they never change.
type Kind uint8

const (
	KindHello Kind = iota + 1
	KindWelcome
	KindReject
	KindAssign
	KindReady
	KindJoined
	KindArrive
	KindStored
	KindFire
	KindNorm
	KindApply
	KindRelease
	KindPush
	KindParams
	KindPull
	KindInit
	KindBuffers
	KindEvalResult
	KindSave
	KindSaved
	KindLeave
	KindControl
	KindReply
	KindPing
	KindPong
	KindRing
	KindFormed
	KindTally
	KindFault
	KindBranch
	KindBundle
	KindDetach
	KindWant
	KindCompression
	KindEnlist
	KindUsage
	KindAsk
	KindGrant
	KindOrder
	KindObeyed
	KindYield
	KindAdopt
	KindHand
	KindMoved
	KindState
	KindSlot
	KindRoute
	KindCancel
	KindComputed
	KindClose
	KindPoison
	KindBallot
	KindStanding
	KindElsewhere
	KindView
	KindHeld
	KindTurn
	KindAhead

	lastKind = KindAhead
)

// Roles and services of a Hello.
const (
	RoleServer = "ps"     // a star-ps process
	RoleWorker = "worker" // a star-worker process
	RoleTool   = "tool"   // star ctl, star doctor

	// RoleValidator computes the validation gradient of Zeno++, in the process of star-ps 0.
	RoleValidator = "validator"

	ServiceCoord = "coord"
	ServiceShard = "shard"
	ServiceRing  = "ring" // a ring member that carries a rider's gradients
	ServiceTree  = "tree" // a worker that takes the gradients of others up a tree
)

// Hello opens every connection, from the side that dialled.
// Payload, for a worker at the coordinator: the model's layout as JSON.
type Hello struct {
	Service   string
	Role      string
	Job       string // name of the job; both ends must agree
	Token     string // shared secret, or empty
	Version   string // of the program, for messages
	Host      string
	Rank      int    // -1: the coordinator chooses
	Shard     int    // ServiceShard: which shard is meant
	Addr      string // servers: where others reach this process
	Shards    int    // servers: how many shards it hosts
	Model     string // workers: what is trained and its settings, readable
	ModelHash string // workers: hash over model, settings, layout, seed
	Params    int64  // workers: elements of the parameter vector
	Buffers   int64  // workers: elements of Model.Buffers
	Pass      string // ServiceShard: that of the worker's Welcome, or one that a server has made with its key
}

// ShardInfo says who holds which range of the flat vector.
type ShardInfo struct {
	Shard    int
	Addr     string
	From, To int64 // elements
}

// Welcome accepts a Hello. Payload, for workers: the job's settings as JSON.
type Welcome struct {
	Rank       int
	Workers    int
	Generation int64 // counts the coordinator's lives of this job
	Version    int64 // version of the parameters now
	Seed       bool  // this worker must send Init to the shards
	Shards     []ShardInfo
	Elapsed    time.Duration // since the run began
	Step       int64         // of the worker's next gradient: not 0 where one of its rank was there before
	Term       int64         // of the coordinator's reign, where several processes may coordinate; else 0
	Pass       string        // a worker shows it to the shards
}

// Reject refuses a Hello or ends a membership. Exit is the exit code that fits.
type Reject struct {
	Exit   int
	Reason string
}

// Assign tells a server which ranges its shards hold. Payload: layout as JSON.
type Assign struct {
	Shards     []ShardInfo // of this server only
	Of         int         // number of shards of the job
	Params     int64
	Workers    int
	Generation int64
	Key        string // makes and checks passes; empty: there are none
}

// Ready: a shard has its parameters, at Version (0, or that of a checkpoint).
type Ready struct {
	Shard   int
	Version int64
}

// Joined: a worker has reached every shard and, if told to, sent Init.
type Joined struct{ Worker star.Worker }

// Arrive: a worker has pushed the gradient of its step to every shard.
type Arrive struct{ Record star.Record }

// Stored: a shard holds the whole slice of a worker's gradient of a step.
type Stored struct {
	Shard  int
	Worker star.Worker
	Step   int64

	// Sum2 is the sum of squares of the slice, NaN or infinite if it is not finite; negative: not
	// measured. Its last bits mean nothing.
	Sum2 float64
}

// Gradient names a gradient that the shards hold, and its weight in an update.
type Gradient struct {
	Worker star.Worker
	Step   int64
	Weight float32 // c of the update rule
}

// Fire tells a shard to make an update. Seq counts Fires from 1 without gaps;
// Version is the version after the update. With no Gradients it makes none.
// Payload, where several processes may coordinate: what another one must know to go on from here. Servers keep it unread.
type Fire struct {
	Seq, Version int64
	Samples      int64 // applied before this update, over all workers: the clock of schedules
	Gradients    []Gradient
	Dropped      []Gradient    // to be thrown away; their workers get the parameters as they are
	Quiet        []star.Worker // of both lists: workers that are gone; nothing is sent to them
	NormFirst    bool          // answer with Norm and wait for Apply (clipping by global norm)
	Report       bool          // answer with Norm when the update is made

	// Local is how many steps of their own the Gradients' workers have made, each of which says how far it has come in a step. 0: these are gradients.
	Local int
}

// Norm: the sum of squares of a shard's slice of the weighted sum. After a Fire with
// NormFirst it is exact and in the payload: the accumulator's bins. After one with
// Report it is Sum2, without payload. Where the rule of the shards scores a sum before it
// is applied, the bins of the reference follow in the payload, and Sum2 is the product of the two.
type Norm struct {
	Shard int
	Seq   int64
	Sum2  float64
}

// Apply completes a Fire with NormFirst: the norm of the whole weighted sum, and what
// the sum is multiplied by before it is applied. With Factor 0 it is not applied.
type Apply struct {
	Seq    int64
	Norm   float64
	Factor float64
}

// Action is what a worker does when it is released.
type Action uint8

const (
	Continue Action = iota // compute the batch
	Evaluate               // evaluate first, then compute the batch
	Finish                 // evaluate, report, wait for the next Release
	Stop                   // leave: the job is over
)

// Release lets a worker go on with the parameters of Version.
type Release struct {
	Worker   star.Worker
	Version  int64
	Action   Action
	Start    int64 // first position of the sample stream
	Count    int   // samples
	Pull     bool  // ask the shards for the parameters: no shard will send them by itself
	Eval     int64 // number of the evaluation, with Evaluate and Finish
	From, To int64 // of ten thousandths of the test set: this worker's part of it
	Total    int64 // all-reduce: samples of the round over all members of the ring; parameter servers, in the first release: over all workers
	Dropped  bool  // the worker's last gradient was thrown away

	// Delay is how long the worker waits with the push of this batch's gradient after it has
	// computed it, so that not all push at once.
	Delay time.Duration

	// Local is how many steps the worker trains by itself with this batch, before it
	// reports how far it has come. 0: it reports a gradient.
	Local int

	// Micro is how many parts the batch is computed in, and Cap the time after which no
	// further one is begun. 0: the batch is whole.
	Micro int
	Cap   time.Duration

	// Part is the size in samples of the parts that the batch is computed in, of which the worker says each that is done (Computed), until it is told
	// to stop (Cancel) or the batch is at its end. 0: there are none. More are what the batch has beside Start and Count.
	Part int
	More []Piece
}

// Piece is a part of the stream of samples.
type Piece struct {
	Start int64
	Count int
}

// Push carries one shard's slice of a gradient. Payload: float32, or what Codec
// makes of it.
type Push struct {
	Shard   int
	Worker  star.Worker
	Step    int64
	Basis   int64
	Samples int
	Codec   string // a name of star/compress; empty: none
}

// Params carries one shard's slice of the parameters. Payload: float32.
type Params struct {
	Shard   int
	Version int64
}

// Pull asks a shard for the parameters as they are.
type Pull struct {
	Shard  int
	Worker star.Worker
}

// Init carries the initial parameters of one shard. Payload: float32.
type Init struct {
	Shard  int
	Worker star.Worker
}

// Buffers carries Model.Buffers: a worker's to the coordinator, and the average
// back. Payload: float32.
type Buffers struct {
	Worker star.Worker
	Eval   int64
}

// EvalResult is a worker's part of an evaluation.
type EvalResult struct {
	Worker  star.Worker
	Eval    int64
	Version int64
	LossSum float64
	Correct int64
	Count   int64
	Took    time.Duration
}

// Save tells a shard to write its part of a checkpoint after the Fire with
// number Seq. ID names the checkpoint. A worker writes what its codec has left out: with parameter
// servers as it was before the gradient of step Seq; in an all-reduce when it comes to Version, and Seq is not 0: with 0 it is a shard, of
// all parameters.
type Save struct {
	Seq, Version int64
	ID           string
}

// Saved: the shard's file is on its disk, or a worker's: then Shard is 1. Payload: a description as JSON, for the manifest; empty: there is nothing
// to save.
type Saved struct {
	Shard int
	ID    string
	Err   string // empty: done
}

// Leave ends a membership cleanly.
type Leave struct {
	Worker star.Worker
	Exit   int
	Reason string
}

// Control is a command of star ctl. Args are words; the answer is a Reply.
type Control struct{ Args []string }

// Reply answers a Control. Payload: JSON.
type Reply struct{ Err string }

// Ping asks for a Pong. Payload: bytes to be carried (the bandwidth probe).
type Ping struct {
	Seq  int64
	Sent int64 // Unix nanoseconds of the sender
	Want int64 // bytes of payload wanted in the Pong
}

// Pong answers a Ping.
type Pong struct {
	Seq  int64
	Sent int64 // copied from the Ping
	Now  int64 // Unix nanoseconds of the answerer
}

// Rider says who adds the gradients of a worker that is taken out of the ring.
type Rider struct{ Worker, Parent star.Worker }

// Ring says who is in the ring, from a version of the parameters on.
type Ring struct {
	Generation int64 // of rings of this job's life, from 1
	From       int64 // the first round that it makes; -1: whichever the members agree on
	Members    []star.Worker
	Addr       string // of the first member, where the others meet it
	Riders     []Rider
	Door       string        // riders: where their parent is to be reached
	Of         int64         // samples of a full round of all live workers: B of the update rule
	Wait       time.Duration // how long a round waits for riders
	MaxStale   int64         // drop older gradients of riders, in updates; 0: no bound
	Now        bool          // give up the round in hand: somebody is gone
}

// Formed: a member stands in the ring of Generation and has the parameters of
// Version.
type Formed struct {
	Worker              star.Worker
	Generation, Version int64
}

// Tally: a ring member has made Version. Carried and Dropped are riders' gradients that
// were added to its round or thrown away in it, the same on all members. With a Hash it
// only tells the CRC-32 of its parameters of Version.
type Tally struct {
	Worker           star.Worker
	Generation       int64 // of the ring that made it
	Version          int64
	Hash             int64
	Carried, Dropped []Gradient
	Sum2             float64 // squared norm of the round's weighted sum; 0: not told
	Samples          []int   // of each member of the ring, in its order, that are in the round; none: those that it was released with
	Behind           []int   // of each of Carried: Version minus that of the parameters of its gradient; 0: another member carried it, and knows
}

// Fault: a member's ring has failed. Suspect is the worker whose fault it seems to
// be, or -1.
type Fault struct {
	Worker     star.Worker
	Generation int64
	Suspect    int
	Reason     string
}
