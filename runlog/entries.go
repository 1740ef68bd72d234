package runlog

import (
	"encoding/json"
	"time"

	"star"
)

// Entry is what a line says: one of the types of this file, Record, Memory or Result's Summary, by value.
type Entry interface {
	// kind is the line's type.
	kind() string
}

// Fields are checked by their types when a log is read. A star.Worker is a rank of the job, and must be there.
// Seconds must be there, unless they may be left out (omitempty), and are from 0 to 30 years. A Number that is not
// there is NaN. Further, check:"min=N": at least that, and it must be there, unless it may be left out;
// check:"max=1"; check:"given": a text that is not empty.
//
// What docs/files.md says of lines and fields are the comments here.
type (
	// Start is the first line.
	Start struct {
		Format  int             `json:"format" check:"min=1"` // 1
		Program string          `json:"program"`              // name and version
		Commit  string          `json:"commit,omitempty"`     // that the program was built from, with `+changes` if the checkout had others; `unknown`: it was not built in a checkout. Absent in older logs
		Time    time.Time       `json:"time"`                 // when the coordinator began, RFC 3339
		Job     string          `json:"job"`                  // `--job`
		Notes   []string        `json:"notes,omitempty"`      // what was done on purpose: each straggler injection. Absent if nothing was
		Config  json.RawMessage `json:"config"`               // every setting with its value, `model`, `dataset` and `seed` as the workers have them; durations in seconds, secrets blanked
	}

	// Join says that a worker was admitted. A worker that left before the training started is not in the log.
	Join struct {
		Worker star.Worker `json:"worker"` // rank
		Peer   string      `json:"peer"`   // its address
	}

	// Train says that the training starts: all workers have joined, or as many as `--min-workers` wants.
	Train struct {
		Workers   int           `json:"workers" check:"min=1"` // ranks, that is `--max-workers` where it is given
		Shards    int           `json:"shards"`                // of the parameters; 0: all-reduce
		Model     string        `json:"model"`                 // readable
		ModelHash string        `json:"model_hash"`            // what members compare
		Params    int64         `json:"params"`                // elements of the parameter vector
		Data      string        `json:"data"`                  // name of the data set
		Epoch     int64         `json:"samples"`               // of one epoch
		Limit     int64         `json:"limit" check:"min=0"`   // the end of the job, in samples
		Version   int64         `json:"version" check:"min=0"` // 0, or that of the checkpoint
		Plan      string        `json:"plan"`                  // the mode
		Absent    []star.Worker `json:"absent,omitempty"`      // ranks without a worker; absent if every rank has one
	}

	// Short says that the job has fewer workers than `--min-workers`, and waits.
	Short struct {
		Workers int `json:"workers" check:"min=0"` // that are there
		Least   int `json:"least" check:"min=1"`   // that it wants
	}

	// Enough says that the job goes on. Fields as in `short`.
	Enough Short

	// Fire says that gradients became an update, or were dropped. Written when that is decided: later lines
	// happened later, also if the update waited for copies, more workers or a shard that moves.
	Fire struct {
		Seq       int64         `json:"seq" check:"min=1"`     // counts firings from 1; those that only released a worker have no line
		Version   int64         `json:"version" check:"min=0"` // of the parameters after it; unchanged if there were no gradients
		Workers   []star.Worker `json:"workers"`               // workers of the gradients that were applied; `null` if none
		Staleness []int64       `json:"staleness"`             // of each of them, in the same order: updates between reading the parameters and this one
		Reports   []star.Worker `json:"reports,omitempty"`     // with a tree: workers that pushed the gradients; absent if each worker pushed its own
		Dropped   []star.Worker `json:"dropped,omitempty"`     // workers of the gradients that were dropped; absent if none
		Pieces    []int64       `json:"pieces,omitempty"`      // with all-reduce, and where a tree has made reports: of each of `workers`, where its samples begin in the stream of samples, and how many there are (0 in the later updates of a batch, where a program makes several); a worker has no record of it if its ring failed after the exchange, or if it was gone when its parent handed its gradient on
		More      []int64       `json:"more,omitempty"`        // with all-reduce and a queue: what workers have in other places of the stream, three numbers for each piece: its worker (as a place in `workers`), where it begins, how many samples; absent without such pieces
		Samples   int64         `json:"samples" check:"min=0"` // applied so far, this update included
		Round     int           `json:"round,omitempty"`       // with all-reduce: the samples of a full round of the ring; a gradient's weight is its samples divided by these
	}

	// Recall is an update that shards tell of when another process takes over: the coordinator before may have
	// been lost before it wrote it down. Fields as in `fire`.
	Recall struct {
		Seq     int64         `json:"seq" check:"min=1"`
		Version int64         `json:"version" check:"min=0"`
		Workers []star.Worker `json:"workers"`
		Dropped []star.Worker `json:"dropped,omitempty"`
		Samples int64         `json:"samples" check:"min=0"`
		Pieces  []int64       `json:"pieces,omitempty"`
	}

	// Term says, with `--coordinators`, in the log of a process that takes over, that it coordinates from here on.
	Term struct {
		Term    int64   `json:"term" check:"min=0"` // rises with each process that takes over
		Over    bool    `json:"over,omitempty"`     // true: it does not coordinate any more, another process does
		Version int64   `json:"version"`            // of the parameters. Updates behind that in earlier logs were not made
		Seq     int64   `json:"seq"`                // of the last fire
		Samples int64   `json:"samples"`            // applied
		Waited  Seconds `json:"waited"`             // for workers, once all servers had come
	}

	// Noise is what an update of several gradients says of their noise (not with compression other than `fp16` and
	// `bf16`), or, where an update is of one gradient, what its worker's last two say (with any; from
	// `grad_change` in `telemetry`).
	Noise struct {
		Version  int64  `json:"version" check:"min=0"` // that the update made
		Grad2    Number `json:"grad2"`                 // |G|² by this update alone; may be negative
		Var      Number `json:"var"`                   // tr Σ by this update alone
		Mixed    bool   `json:"mixed,omitempty"`       // its gradients were of different versions; absent if not
		Scale    Number `json:"scale"`                 // gradient noise scale φ in samples, of the averages
		Drift    Number `json:"drift"`                 // by how much of itself the gradient changes while a round of samples is applied; measured where updates mix versions
		Strength Number `json:"strength"`              // how much there is to go by for `drift`: below 1 noise hides it, 0: no update mixed versions yet
	}

	// Poison says that a gradient does not belong (see *Poison*).
	Poison struct {
		Worker star.Worker `json:"worker"`              // rank
		Step   int64       `json:"step" check:"min=0"`  // its own count (of a rider, the first position of its batch)
		Cause  string      `json:"cause" check:"given"` // `not-finite`, `exploding`, `flipped`; of the last one only the beginning and the end have a line
		Value  Number      `json:"value"`               // exploding: how many times the median norm; flipped: the mean cosine with the others
		Where  string      `json:"where,omitempty"`     // the shards that hold what is not finite, or the tensor that is the longest; absent if not known
		Over   bool        `json:"over,omitempty"`      // flipped: it no longer is; else absent
		Policy string      `json:"policy"`              // `--poison`: `skip` or `fatal`
	}

	// Compression says that a worker sends gradients with another codec from now on (`--compress auto`), or, with
	// all-reduce, the first member of a ring says what the ring uses.
	Compression struct {
		Worker  star.Worker `json:"worker"`              // rank
		Version int64       `json:"version"`             // of the parameters
		Codec   string      `json:"codec" check:"given"` // as `--compress` names it
		Why     string      `json:"why"`                 // in words
	}

	// Plan says that the mode changed.
	Plan struct {
		Plan      string `json:"plan" check:"given"`                    // the new mode
		From      string `json:"from" check:"given"`                    // the one before
		Why       string `json:"why"`                                   // `star ctl`, what `tree=auto` goes by, or with `--mode auto` the slow workers and the predicted gain
		Predicted Number `json:"predicted_gain,omitzero" check:"max=1"` // with `--mode auto`: the part of the cost (time for the same progress) that the change should save; else absent
		After     int64  `json:"after,omitempty" check:"min=0"`         // with `--mode auto`: how many lines the pilot had read when it decided, counting `train`, `record`, `fire`, `noise`, `plan`, `late`, `admission`, `predictor`, `set` and `leave`; else absent
		Forced    bool   `json:"forced,omitempty"`                      // `true`: back to SSGD because an admission was taken back; else absent
	}

	// Unheeded is, with `--mode auto`, a mode that the pilot wanted and that was not installed.
	Unheeded struct {
		Plan    string `json:"plan" check:"given"`    // the mode
		Why     string `json:"why"`                   // the pilot's reason
		Because string `json:"because" check:"given"` // why not: the job is over, or is being saved; `star ctl mode` has set another one; it is in force; this job cannot run it
		After   int64  `json:"after" check:"min=1"`   // how many lines the pilot had read when it decided
	}

	// Heard says, with `--mode auto`, when the job has ended, how far the pilot had read. The job does not wait
	// for it at its end, so decisions from later lines were not used.
	Heard struct {
		After int64 `json:"after" check:"min=0"` // the number of lines that the pilot had read
	}

	// Late says, with `--mode auto`, that a worker's gradient is not there although its iterations have never
	// taken so long lately (`docs/modes.md`, *Controller*); said again after twice the time.
	Late struct {
		Worker   star.Worker `json:"worker"`   // rank
		Waited   Seconds     `json:"waited"`   // since its release
		Deadline Seconds     `json:"deadline"` // how long it may take
	}

	// Admission is, with `--mode auto` and parameter servers, the answer of the cluster's resource service, or
	// without `--cluster` of a look at the servers' host, to a decision to leave SSGD; or an earlier yes is taken
	// back.
	Admission struct {
		Plan    string `json:"plan" check:"given"`  // the mode that was wanted
		Granted bool   `json:"granted"`             // the answer; `false` without an answer
		Now     string `json:"now" check:"given"`   // the mode in force when it came
		Why     string `json:"why"`                 // the answer in words
		After   int64  `json:"after" check:"min=1"` // how many lines the pilot had read when it decided
	}

	// Verdict says, with `--mode auto`, that a worker is slow, or no more (`docs/stragglers.md`).
	Verdict struct {
		Worker   star.Worker `json:"worker"`                        // rank
		Event    string      `json:"event" check:"given"`           // `slow`; `changed`: its cause is another one now; `recovered`
		Step     int64       `json:"step" check:"min=0"`            // of the worker, at which it was noticed
		Since    int64       `json:"since" check:"min=0"`           // of the worker, at which it began
		Until    int64       `json:"until,omitempty" check:"min=0"` // of `recovered`: the first step that was like the others'
		Slowdown Number      `json:"slowdown"`                      // the worker's own time over that of the fast ones, while it is slow
		Cause    string      `json:"cause"`                         // `compute`, `quota`, `steal`, `contention`, `data`, `network-out`, `network-in`, `pauses`, `gpu` or `unknown`
		Evidence []Evidence  `json:"evidence"`                      // list of `{what, value, other, text}`: a quantity, of the worker and of those that are not slow (`null`: not measured), and in words
	}

	// Gain is, with `--mode auto`, and of automatic trees, what the last change brought, when it has been on trial
	// for long enough.
	Gain struct {
		Plan      string `json:"plan" check:"given"`           // the mode that was on trial
		Predicted Number `json:"predicted_gain" check:"max=1"` // the part of the cost that it should save
		Seen      Number `json:"seen_gain" check:"max=1"`      // what it did save; negative: it costs more
		Reverted  bool   `json:"reverted"`                     // it is taken back
	}

	// Set says that a threshold is another one from here on (`star ctl set`).
	Set struct {
		Name  string `json:"name" check:"given"` // as `star ctl set` prints it
		Value Number `json:"value"`              // from here on; times in seconds
		From  Number `json:"from"`               // before
		Why   string `json:"why"`                // `star ctl`
	}

	// Predictor says that a predictor has been trained beside the job (`--predictor online`) and takes part from
	// here on.
	Predictor struct {
		Records int64   `json:"trained_on" check:"min=1"` // records of the run when the training began
		Rows    int     `json:"rows" check:"min=0"`       // the newest of these, from which it has learned
		Epochs  int     `json:"epochs" check:"min=0"`     // passes over them
		Error   Number  `json:"error"`                    // mean square, of rows that it was not trained on, in parts of the variance; `null`: the training failed, and nothing has changed
		Took    Seconds `json:"took"`                     // with the rests
		After   int64   `json:"after" check:"min=1"`      // how many lines the pilot had read when it began
	}

	// Leave says that a worker is gone.
	Leave struct {
		Worker star.Worker `json:"worker"`          // rank
		Peer   string      `json:"peer"`            // its address
		Why    string      `json:"why,omitempty"`   // the reason
		Start  int64       `json:"start,omitempty"` // of the piece of the sample stream that it did not finish and others will do (in a tree its parent may have handed the gradient on already; then it is applied)
		Count  int         `json:"count,omitempty"` // samples of that piece
	}

	// Aside says that a piece of the sample stream is not handed out again: two workers died, one after the
	// other, while they were computing it. The job goes on with the rest.
	Aside struct {
		Start   int64          `json:"start"`               // of the piece
		Count   int            `json:"count" check:"min=1"` // samples of it; they are in no gradient, and count in `wasted_samples`
		Workers [2]star.Worker `json:"workers"`             // ranks, in the order of their deaths
		Why     string         `json:"why,omitempty"`       // how the second one died
	}

	// Eval says that the test set was evaluated.
	Eval struct {
		Eval     int64  `json:"eval"`                   // number of the evaluation
		From     int64  `json:"from_version"`           // lowest version that a worker evaluated: workers share the test set, and where the mode is asynchronous they have different versions
		To       int64  `json:"to_version"`             // highest one. The final evaluation is of one version
		Samples  int64  `json:"samples" check:"min=0"`  // applied so far
		Loss     Number `json:"loss"`                   // mean
		Accuracy Number `json:"accuracy" check:"max=1"` // share from 0 to 1
		Count    int64  `json:"count"`                  // predictions (for text, tokens)
		Final    bool   `json:"final,omitempty"`        // true for the last; else absent
		Alike    int    `json:"alike,omitempty"`        // all-reduce: members with parameters that were compared before an evaluation and are equal bit for bit (a member that differs from the majority is removed; without a majority the job ends); absent with parameter servers
	}

	// Checkpoint says that one was written, or not.
	Checkpoint struct {
		ID      string  `json:"id"`              // its folder
		Version int64   `json:"version"`         // of the parameters
		Took    Seconds `json:"took"`            // from the decision on
		Err     string  `json:"error,omitempty"` // why not; absent if it was written
	}

	// Pace says that pushes wait for each other from now on, or no more. A worker's wait is `push_delay_s` in
	// `star ctl status --json`, and in its records part of `wait`.
	Pace struct {
		On  bool   `json:"on"`  // they do
		Why string `json:"why"` // in words
	}

	// Move says that a shard has moved to another server, or has not.
	Move struct {
		Shard   int     `json:"shard" check:"min=0"` // its number
		From    int     `json:"from" check:"min=0"`  // rank of a `star-ps`
		To      int     `json:"to" check:"min=0"`    // rank of another one
		Version int64   `json:"version"`             // of the parameters
		Bytes   int64   `json:"bytes"`               // of its parameters; the optimiser's state comes on top of them
		Prepare Seconds `json:"prepare"`             // until the new server was ready
		Copy    Seconds `json:"copy"`                // from there until it had everything
		Delay   Seconds `json:"delay"`               // by which the first update that was due meanwhile was late
		Err     string  `json:"error,omitempty"`     // why it stays where it is; else absent
	}

	// Replica says, with `--replicas`, that something has happened to the copies of a shard.
	Replica struct {
		Shard     int     `json:"shard" check:"min=0"`   // its number
		Event     string  `json:"event"`                 // `promoted`: the primary `server` was lost, and a follower answers now; `lost`: a follower was; `copied`: `server` holds a copy now; `uncopied`: it was to, or did, and does not
		Server    int     `json:"server" check:"min=0"`  // rank of the `star-ps` that it has happened to
		Term      int64   `json:"term" check:"min=1"`    // of the shard, as it is now
		Primary   int     `json:"primary" check:"min=0"` // rank of the server that answers now
		Followers []int   `json:"followers"`             // ranks of the others that hold it now
		Of        int     `json:"of"`                    // copies that there are to be
		Took      Seconds `json:"took_s,omitempty"`      // copied: since it was begun
		Why       string  `json:"why,omitempty"`         // in words; absent if there is nothing to say
	}

	// Shift says, with `--move-shards auto`, that a shard moves because that pays, or that it was looked whether
	// it did. The move itself is the line `move` behind it.
	Shift struct {
		Event     string `json:"event"`               // `wanted`, `moved`, `failed`, `kept`, `back`: it did not pay, and goes back
		Shard     int    `json:"shard" check:"min=0"` // its number
		From      int    `json:"from" check:"min=0"`  // rank of a `star-ps`
		To        int    `json:"to" check:"min=0"`    // rank of another one
		Predicted Number `json:"predicted_gain"`      // share of the time of a round
		Seen      Number `json:"seen_gain"`           // the same; `null`: not looked at yet, or nothing to compare with
		Why       string `json:"why"`                 // in words
	}

	// Validation says, with `--baseline zeno++`, that the shards hold updates against another validation gradient
	// from here on.
	Validation struct {
		Seq     int64  `json:"seq"`            // number of the fire with which they took it
		Version int64  `json:"version"`        // of the parameters that it was computed with
		From    int64  `json:"from_version"`   // version of the parameters then
		Lost    string `json:"lost,omitempty"` // no gradient: the validator is gone, and why. From here to the next `validation` updates are applied without being judged
	}

	// Judgement says, with `--baseline zeno++`, whether an update was applied.
	Judgement struct {
		Seq      int64  `json:"seq"`      // of the update
		Version  int64  `json:"version"`  // of the parameters; an update that is not applied makes a version too, equal to the one before
		Score    Number `json:"score"`    // it is applied if that is not below the limit
		Limit    Number `json:"limit"`    // the limit
		Accepted bool   `json:"accepted"` // whether it was
		Factor   Number `json:"factor"`   // what the direction was multiplied by: the length of the validation gradient over its own; 0 where it was not applied
		Behind   int64  `json:"behind"`   // versions between the validation gradient and the parameters
	}

	// Gap replaces, with `--log-max`, lines of type `record`, `fire` and `noise` that the bound had no room for:
	// those of one part of the log, the oldest first: no such line is before it. All other lines are kept.
	Gap struct {
		Until   Seconds `json:"until"`                 // of the last of these lines; `t` is that of the first
		Records int64   `json:"records" check:"min=0"` // lines of type `record`
		Fires   int64   `json:"fires" check:"min=0"`   // of type `fire`
		Noises  int64   `json:"noises" check:"min=0"`  // of type `noise`
		Version int64   `json:"version" check:"min=0"` // of the parameters after the last of the fires; 0 if there was none
		Samples int64   `json:"samples" check:"min=0"` // applied so far after it; 0 if there was none
	}

	// Stop says that the stream was ended, by `star ctl stop` or because the job was stopped (SIGINT, SIGTERM).
	Stop struct {
		Limit int64  `json:"limit"` // samples beyond this number are not applied
		Why   string `json:"why"`   // in words
	}
)

// Evidence is a number that speaks for the cause of a Verdict.
type Evidence struct {
	What  string `json:"what"`
	Value Number `json:"value"`
	Other Number `json:"other"` // of workers that are not slow
	Text  string `json:"text"`
}
