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
		Commit  string          `json:"commit,omitempty"`     // of the build, with `+changes` if the checkout was modified; `unknown` without a checkout
		Time    time.Time       `json:"time"`                 // start of the coordinator, RFC 3339
		Job     string          `json:"job"`                  // `--job`
		Notes   []string        `json:"notes,omitempty"`      // straggler injections
		Config  json.RawMessage `json:"config"`               // every setting, with the workers' `model`, `dataset` and `seed`; durations in seconds, secrets blanked
	}

	// Join says that a worker was admitted. Workers that left before the training have no line.
	Join struct {
		Worker star.Worker `json:"worker"` // rank
		Peer   string      `json:"peer"`   // its address
	}

	// Train says that the training starts.
	Train struct {
		Workers   int           `json:"workers" check:"min=1"` // ranks: `--max-workers`, or `--workers`
		Shards    int           `json:"shards"`                // of the parameters; 0: all-reduce
		Model     string        `json:"model"`                 // description
		ModelHash string        `json:"model_hash"`            // equal in all workers
		Params    int64         `json:"params"`                // elements of the parameter vector
		Data      string        `json:"data"`                  // name of the data set
		Epoch     int64         `json:"samples"`               // of one epoch
		Limit     int64         `json:"limit" check:"min=0"`   // end of the job, in samples
		Version   int64         `json:"version" check:"min=0"` // 0, or of the checkpoint
		Plan      string        `json:"plan"`                  // the mode
		Absent    []star.Worker `json:"absent,omitempty"`      // ranks without a worker yet
	}

	// Short says that the job has fewer workers than `--min-workers`, and waits.
	Short struct {
		Workers int `json:"workers" check:"min=0"` // present
		Least   int `json:"least" check:"min=1"`   // required
	}

	// Enough says that the job continues. Fields as in `short`.
	Enough Short

	// Fire says that gradients became an update, or were dropped. It is written at the decision, even if the update then
	// waits for copies, workers or a moving shard.
	Fire struct {
		Seq       int64         `json:"seq" check:"min=1"`     // counts firings from 1; firings that only released workers have no line
		Version   int64         `json:"version" check:"min=0"` // of the parameters after it; unchanged without gradients
		Workers   []star.Worker `json:"workers"`               // of the applied gradients; `null` without any
		Staleness []int64       `json:"staleness"`             // of each: updates between reading the parameters and this update
		Reports   []star.Worker `json:"reports,omitempty"`     // with a tree: workers that pushed sums of the gradients
		Dropped   []star.Worker `json:"dropped,omitempty"`     // workers of dropped gradients
		Pieces    []int64       `json:"pieces,omitempty"`      // all-reduce and trees: for each of `workers` the start of its samples in the stream and their number (0 in later updates of one batch). A worker that was lost, or in a ring that failed, may have no record of it
		More      []int64       `json:"more,omitempty"`        // all-reduce with a queue: other pieces, three numbers each: index in `workers`, start, samples
		Samples   int64         `json:"samples" check:"min=0"` // applied so far, with this update
		Round     int           `json:"round,omitempty"`       // all-reduce: samples of a full round; a gradient's weight is its samples divided by this
	}

	// Recall is an update that shards report at a takeover, because the previous coordinator may not have written it.
	// Fields as in `fire`.
	Recall struct {
		Seq     int64         `json:"seq" check:"min=1"`
		Version int64         `json:"version" check:"min=0"`
		Workers []star.Worker `json:"workers"`
		Dropped []star.Worker `json:"dropped,omitempty"`
		Samples int64         `json:"samples" check:"min=0"`
		Pieces  []int64       `json:"pieces,omitempty"`
	}

	// Term says, with `--coordinators`, that this process coordinates the job from here on.
	Term struct {
		Term    int64   `json:"term" check:"min=0"` // rises with each takeover
		Over    bool    `json:"over,omitempty"`     // true: another process coordinates from here on
		Version int64   `json:"version"`            // of the parameters; later updates in earlier logs were not made
		Seq     int64   `json:"seq"`                // of the last fire
		Samples int64   `json:"samples"`            // applied
		Waited  Seconds `json:"waited"`             // for workers, after all servers were present
	}

	// Noise is the gradient noise of an update of several gradients (with `--compress` only for `fp16` and `bf16`), or,
	// for one gradient, of its worker's last two (`grad_change`).
	Noise struct {
		Version  int64  `json:"version" check:"min=0"` // of the update
		Grad2    Number `json:"grad2"`                 // |G|² of this update; may be negative
		Var      Number `json:"var"`                   // tr Σ of this update
		Mixed    bool   `json:"mixed,omitempty"`       // gradients of different versions
		Scale    Number `json:"scale"`                 // gradient noise scale φ in samples, averaged
		Drift    Number `json:"drift"`                 // relative change of the gradient over a round of samples, if updates mix versions
		Strength Number `json:"strength"`              // reliability of `drift`: below 1 noise hides it; 0: no mixed versions yet
	}

	// Poison is an implausible gradient ([troubleshooting.md](troubleshooting.md#implausible-gradients)).
	Poison struct {
		Worker star.Worker `json:"worker"`              // rank
		Step   int64       `json:"step" check:"min=0"`  // the worker's own count (of a rider, the first position of its batch)
		Cause  string      `json:"cause" check:"given"` // `not-finite`, `exploding`; `flipped` only at its begin and end
		Value  Number      `json:"value"`               // exploding: multiple of the median norm; flipped: mean cosine with the others
		Where  string      `json:"where,omitempty"`     // shards with values that are not finite, or the longest tensor, if known
		Over   bool        `json:"over,omitempty"`      // end of `flipped`
		Policy string      `json:"policy"`              // `--poison`: `skip` or `fatal`
	}

	// Compression is a change of a worker's codec (`--compress auto`), or, with all-reduce, the codec of a ring and its
	// first member.
	Compression struct {
		Worker  star.Worker `json:"worker"`              // rank
		Version int64       `json:"version"`             // of the parameters
		Codec   string      `json:"codec" check:"given"` // as in `--compress`
		Why     string      `json:"why"`                 // in words
	}

	// Plan is a change of the mode.
	Plan struct {
		Plan      string `json:"plan" check:"given"`                    // new mode
		From      string `json:"from" check:"given"`                    // old mode
		Why       string `json:"why"`                                   // `star ctl`, the reason of `tree=auto`, or of `--mode auto` the slow workers and the predicted gain
		Predicted Number `json:"predicted_gain,omitzero" check:"max=1"` // `--mode auto`: saved share of the cost (time to the same progress)
		After     int64  `json:"after,omitempty" check:"min=0"`         // `--mode auto`: lines of type `train`, `record`, `fire`, `noise`, `plan`, `late`, `admission`, `predictor`, `set`, `leave` that the pilot had read when it decided
		Forced    bool   `json:"forced,omitempty"`                      // back to SSGD, because an admission was withdrawn
	}

	// Unheeded is, with `--mode auto`, a mode of the pilot that was not installed.
	Unheeded struct {
		Plan    string `json:"plan" check:"given"`    // the mode
		Why     string `json:"why"`                   // the pilot's reason
		Because string `json:"because" check:"given"` // the job is over or being saved, `star ctl mode` set another mode, it is in force already, or the job cannot run it
		After   int64  `json:"after" check:"min=1"`   // as in `plan`
	}

	// Heard says, with `--mode auto`, at the end of a job, after which line the pilot's decisions were no longer used.
	Heard struct {
		After int64 `json:"after" check:"min=0"` // as in `plan`
	}

	// Late says, with `--mode auto`, that a worker's gradient is overdue ([modes.md](modes.md#controller)), again after
	// twice the time.
	Late struct {
		Worker   star.Worker `json:"worker"`   // rank
		Waited   Seconds     `json:"waited"`   // since its release
		Deadline Seconds     `json:"deadline"` // allowed time
	}

	// Admission is, with `--mode auto` and parameter servers, the answer of the resource service (`--cluster`), or of a
	// check of the servers' host, to a decision to leave SSGD, or its withdrawal.
	Admission struct {
		Plan    string `json:"plan" check:"given"`  // wanted mode
		Granted bool   `json:"granted"`             // the answer; `false` without one
		Now     string `json:"now" check:"given"`   // mode in force
		Why     string `json:"why"`                 // in words
		After   int64  `json:"after" check:"min=1"` // as in `plan`
	}

	// Verdict says, with `--mode auto`, that a worker is slow, or no longer is ([stragglers.md](stragglers.md)).
	Verdict struct {
		Worker   star.Worker `json:"worker"`                        // rank
		Event    string      `json:"event" check:"given"`           // `slow`, `changed` (another cause), `recovered`
		Step     int64       `json:"step" check:"min=0"`            // the worker's, at the verdict
		Since    int64       `json:"since" check:"min=0"`           // first slow step
		Until    int64       `json:"until,omitempty" check:"min=0"` // `recovered`: first step as fast as the others'
		Slowdown Number      `json:"slowdown"`                      // own time divided by that of the fast workers
		Cause    string      `json:"cause"`                         // `compute`, `quota`, `steal`, `contention`, `data`, `network-out`, `network-in`, `pauses`, `gpu` or `unknown`
		Evidence []Evidence  `json:"evidence"`                      // list of `{what, value, other, text}`: a metric, its value for this worker and for those that are not slow (`null`: not measured), and a sentence
	}

	// Hang says that a job waits for a rank that does nothing to end the wait, or no longer does
	// ([watch.md](watch.md#hangs)).
	Hang struct {
		Event   string        `json:"event" check:"given"` // `begun`, `over`
		Since   Seconds       `json:"since"`               // end of the last step before it
		Kind    string        `json:"kind"`                // of the call that most ranks wait in, such as `all_reduce`
		Number  int64         `json:"number"`              // of the call, in its group
		Detail  string        `json:"detail,omitempty"`    // type and shape, such as `float32[25000]`
		Group   string        `json:"group,omitempty"`     // its process group
		Waiting []star.Worker `json:"waiting"`             // ranks in the call
		Missing []star.Worker `json:"missing"`             // ranks that they wait for
		Ranks   []HangRank    `json:"ranks"`               // list of `{rank, why, where, call, text, stack}` for each missing rank: `why` is `own code`, `loader`, `elsewhere` (in another call), `differs`, `stopped`, `ended`, `silent` or `absent`; `where` the line of the script; `call` the other call; `stack` its lines, the innermost first
		Differs string        `json:"differs,omitempty"`   // how the calls of one number differ
		Text    string        `json:"text"`                // all of it in one line
	}

	// Slowdown says that all workers together take longer for their steps than in the job's own past, or no longer do
	// ([stragglers.md](stragglers.md#against-itself)).
	Slowdown struct {
		Event    string     `json:"event" check:"given"`   // `slow`, `changed` (another part or cause), `recovered`
		Since    Seconds    `json:"since"`                 // beginning, on the run's clock
		Until    Seconds    `json:"until,omitempty"`       // `recovered`: end
		Workers  int        `json:"workers" check:"min=0"` // that take longer; of more than 64 workers some are looked at
		Hosts    []string   `json:"hosts"`                 // of these workers
		Slowdown Number     `json:"slowdown"`              // time of a step without waiting for others, divided by that of the past
		Part     string     `json:"part"`                  // that has grown most: `load`, `compute`, `push` (all-reduce: the exchange) or `pull`
		Parts    []Grown    `json:"parts"`                 // list of `{part, now, before}`, in seconds
		Cause    string     `json:"cause"`                 // as in `verdict`
		Evidence []Evidence `json:"evidence"`              // as in `verdict`; `other` is the past
		Says     string     `json:"says"`                  // all of it in a sentence
	}

	// Gain is, with `--mode auto` and automatic trees, the effect of the last change after its trial.
	Gain struct {
		Plan      string `json:"plan" check:"given"`           // mode on trial
		Predicted Number `json:"predicted_gain" check:"max=1"` // saved share of the cost
		Seen      Number `json:"seen_gain" check:"max=1"`      // the same, measured; negative: a loss
		Reverted  bool   `json:"reverted"`                     // the mode before is in force again
	}

	// Set is a changed threshold (`star ctl set`).
	Set struct {
		Name  string `json:"name" check:"given"` // as `star ctl set` prints it
		Value Number `json:"value"`              // new; times in seconds
		From  Number `json:"from"`               // old
		Why   string `json:"why"`                // `star ctl`
	}

	// Predictor says that a predictor was trained during the job (`--predictor online`) and is used from here on.
	Predictor struct {
		Records int64   `json:"trained_on" check:"min=1"` // records of the run when its training began
		Rows    int     `json:"rows" check:"min=0"`       // the newest of these, used for the training
		Epochs  int     `json:"epochs" check:"min=0"`     // passes over them
		Error   Number  `json:"error"`                    // mean square on held-out rows, relative to the variance; `null`: the training failed, nothing changed
		Took    Seconds `json:"took"`                     // with pauses
		After   int64   `json:"after" check:"min=1"`      // as in `plan`, when it began
	}

	// Leave says that a worker left.
	Leave struct {
		Worker star.Worker `json:"worker"`          // rank
		Peer   string      `json:"peer"`            // its address
		Why    string      `json:"why,omitempty"`   // reason
		Start  int64       `json:"start,omitempty"` // of its unfinished piece of the sample stream, which others will do, unless its parent in a tree has forwarded the gradient
		Count  int         `json:"count,omitempty"` // samples of the piece
	}

	// Aside is a piece of the sample stream that is skipped, because two workers died one after the other while computing
	// it.
	Aside struct {
		Start   int64          `json:"start"`               // of the piece
		Count   int            `json:"count" check:"min=1"` // its samples; they count in `wasted_samples`
		Workers [2]star.Worker `json:"workers"`             // their ranks
		Why     string         `json:"why,omitempty"`       // how the second one died
	}

	// Eval is an evaluation on the test set.
	Eval struct {
		Eval     int64  `json:"eval"`                   // its number
		From     int64  `json:"from_version"`           // lowest version that a worker evaluated; the final evaluation has one version
		To       int64  `json:"to_version"`             // highest one
		Samples  int64  `json:"samples" check:"min=0"`  // applied so far
		Loss     Number `json:"loss"`                   // mean
		Accuracy Number `json:"accuracy" check:"max=1"` // 0 to 1
		Count    int64  `json:"count"`                  // predictions (for text, tokens)
		Final    bool   `json:"final,omitempty"`        // true for the last
		Alike    int    `json:"alike,omitempty"`        // all-reduce: members with bit-identical parameters; others are removed; without a majority the job ends
	}

	// Checkpoint is a checkpoint, or a failed one.
	Checkpoint struct {
		ID      string  `json:"id"`              // its folder
		Version int64   `json:"version"`         // of the parameters
		Took    Seconds `json:"took"`            // from the decision
		Err     string  `json:"error,omitempty"` // of a failed one
	}

	// Pace says that pushes are staggered from here on, or no longer. The delay is `push_delay_s` in `star ctl status
	// --json`, and part of `wait` in records.
	Pace struct {
		On  bool   `json:"on"`  // they are
		Why string `json:"why"` // in words
	}

	// Move is a moved shard, or a failed move.
	Move struct {
		Shard   int     `json:"shard" check:"min=0"` // its number
		From    int     `json:"from" check:"min=0"`  // rank of a `star-ps`
		To      int     `json:"to" check:"min=0"`    // rank of another one
		Version int64   `json:"version"`             // of the parameters
		Bytes   int64   `json:"bytes"`               // of the parameters, without the optimiser's state
		Prepare Seconds `json:"prepare"`             // until the new server was ready
		Copy    Seconds `json:"copy"`                // from there until it had everything
		Delay   Seconds `json:"delay"`               // of the first update that was due meanwhile
		Err     string  `json:"error,omitempty"`     // of a failed move
	}

	// Replica is, with `--replicas`, a change of the copies of a shard.
	Replica struct {
		Shard     int     `json:"shard" check:"min=0"`   // its number
		Event     string  `json:"event"`                 // `promoted`: the primary `server` was lost, a follower replaces it; `lost`: a follower was lost; `copied`: `server` has a copy now; `uncopied`: it does not get a copy, or lost it
		Server    int     `json:"server" check:"min=0"`  // rank of a `star-ps`
		Term      int64   `json:"term" check:"min=1"`    // of the shard, now
		Primary   int     `json:"primary" check:"min=0"` // its rank now
		Followers []int   `json:"followers"`             // their ranks now
		Of        int     `json:"of"`                    // wanted copies
		Took      Seconds `json:"took_s,omitempty"`      // of `copied`
		Why       string  `json:"why,omitempty"`         // reason, if any
	}

	// Shift is, with `--move-shards auto`, a decision to move a shard, or its result. The move itself is the next `move`.
	Shift struct {
		Event     string `json:"event"`               // `wanted`, `moved`, `failed`, `kept`, `back` (it did not pay, and is undone)
		Shard     int    `json:"shard" check:"min=0"` // its number
		From      int    `json:"from" check:"min=0"`  // rank of a `star-ps`
		To        int    `json:"to" check:"min=0"`    // rank of another one
		Predicted Number `json:"predicted_gain"`      // saved share of the time of a round
		Seen      Number `json:"seen_gain"`           // the same, measured; `null`: unknown
		Why       string `json:"why"`                 // in words
	}

	// Validation says, with `--baseline zeno++`, that shards use another validation gradient.
	Validation struct {
		Seq     int64  `json:"seq"`            // of the first fire with it
		Version int64  `json:"version"`        // of the parameters that it was computed with
		From    int64  `json:"from_version"`   // of the parameters then
		Lost    string `json:"lost,omitempty"` // why the validator was lost; updates are applied unchecked until the next `validation`
	}

	// Judgement says, with `--baseline zeno++`, whether an update was applied.
	Judgement struct {
		Seq      int64  `json:"seq"`      // of the update
		Version  int64  `json:"version"`  // of the parameters; a rejected update makes a version equal to the one before
		Score    Number `json:"score"`    // applied if at least `limit`
		Limit    Number `json:"limit"`    // the limit
		Accepted bool   `json:"accepted"` // whether it was applied
		Factor   Number `json:"factor"`   // length of the validation gradient divided by that of the update; 0 if rejected
		Behind   int64  `json:"behind"`   // versions between the validation gradient and the parameters
	}

	// Gap replaces, with `--log-max`, the oldest lines of type `record`, `fire` and `noise`. All other lines are kept.
	Gap struct {
		Until   Seconds `json:"until"`                 // of the last of these lines; `t` is that of the first
		Records int64   `json:"records" check:"min=0"` // lines of type `record`
		Fires   int64   `json:"fires" check:"min=0"`   // of type `fire`
		Noises  int64   `json:"noises" check:"min=0"`  // of type `noise`
		Version int64   `json:"version" check:"min=0"` // of the parameters after the last of the fires; 0: no fire
		Samples int64   `json:"samples" check:"min=0"` // applied after it; 0: no fire
	}

	// Stop says that the job was told to end, by `star ctl stop` or a signal (SIGINT, SIGTERM).
	Stop struct {
		Limit int64  `json:"limit"` // samples beyond this number are not applied
		Why   string `json:"why"`   // in words
	}
)

// HangRank is a rank that others wait for.
type HangRank struct {
	Rank  int      `json:"rank"`
	Why   string   `json:"why"`
	Where string   `json:"where,omitempty"`
	Call  string   `json:"call,omitempty"`
	Text  string   `json:"text"`
	Stack []string `json:"stack,omitempty"`
}

// Evidence is a number that speaks for the cause of a Verdict.
type Evidence struct {
	What  string `json:"what"`
	Value Number `json:"value"`
	Other Number `json:"other"` // of workers that are not slow
	Text  string `json:"text"`
}

// Grown is a part of a step in a Slowdown.
type Grown struct {
	Part   string `json:"part"`
	Now    Number `json:"now"`
	Before Number `json:"before"`
}
