package coord

import (
	"bufio"
	"encoding/json"
	"io"
	"time"

	"star"
)

// RunLog writes a run as JSON lines: first the start with the complete
// configuration, then everything that happened, in the order in which the
// coordinator saw it, last the summary. Times are seconds since the run began.
// docs/operations.md lists the lines. A RunLog is used by one goroutine.
type RunLog struct {
	w    *bufio.Writer
	c    io.Closer
	text []byte    // of a line
	rec  logRecord // of record
	from int64     // that of rec
	err  error
}

// NewRunLog writes to w; a nil w makes a log that forgets.
func NewRunLog(w io.WriteCloser) *RunLog {
	if w == nil {
		return &RunLog{}
	}
	return &RunLog{w: bufio.NewWriterSize(w, 64<<10), c: w}
}

// Line types of the run log.
type (
	logStart struct {
		Type    string          `json:"type"` // "start": the first line
		Format  int             `json:"format"`
		Program string          `json:"program"`
		Time    time.Time       `json:"time"`
		Job     string          `json:"job"`
		Notes   []string        `json:"notes,omitempty"` // injections and the like
		Config  json.RawMessage `json:"config"`
	}
	logTrain struct {
		Type    string  `json:"type"` // "train": everybody is there
		T       float64 `json:"t"`
		Workers int     `json:"workers"`
		Shards  int     `json:"shards"`
		Model   string  `json:"model"`
		Hash    string  `json:"model_hash"`
		Params  int64   `json:"params"`
		Data    string  `json:"data"`
		Samples int64   `json:"samples"` // of one epoch
		Limit   int64   `json:"limit"`   // the end, in samples
		Version int64   `json:"version"`
		Plan    string  `json:"plan"`
		Absent  []int   `json:"absent,omitempty"` // ranks that nobody has yet
	}
	logSize struct {
		Type    string  `json:"type"` // "short" or "enough": the job waits for workers to come, or goes on
		T       float64 `json:"t"`
		Workers int     `json:"workers"` // that are there
		Least   int     `json:"least"`   // that it wants
	}
	logRecord struct {
		Type     string  `json:"type"` // "record"
		T        float64 `json:"t"`    // when the coordinator saw it
		Worker   int     `json:"worker"`
		Step     int64   `json:"step"`
		Basis    int64   `json:"basis"`
		At       float64 `json:"at"`
		Load     float64 `json:"load"`
		Compute  float64 `json:"compute"`
		Injected float64 `json:"injected,omitempty"`
		Push     float64 `json:"push"`
		Wait     float64 `json:"wait"`
		Pull     float64 `json:"pull"`
		Transit  float64 `json:"transit"`
		Start    *int64  `json:"start,omitempty"` // position of its first sample in the stream; all-reduce does not say
		Samples  int     `json:"samples"`
		More     []int   `json:"more,omitempty"` // with a queue: where else in the stream samples of it begin, and how many there are; those before are at start
		Loss     Number  `json:"loss"`
		Norm2    Number  `json:"norm2"`
		CPU      Number  `json:"cpu"`
		NetIn    Number  `json:"net_in"`
		NetOut   Number  `json:"net_out"`

		Telemetry telemetry `json:"telemetry,omitzero"`
	}
	logFire struct {
		Type    string  `json:"type"` // "fire"
		T       float64 `json:"t"`
		Seq     int64   `json:"seq"`
		Version int64   `json:"version"`
		Workers []int   `json:"workers"`
		Stale   []int64 `json:"staleness"`
		Reports []int   `json:"reports,omitempty"` // with a tree: whose pushes have the gradients
		Dropped []int   `json:"dropped,omitempty"`
		Pieces  []int   `json:"pieces,omitempty"` // with all-reduce, and with reports: of each worker, where its samples begin in the stream, and how many there are
		Samples int64   `json:"samples"`          // applied, after this update
		Round   int     `json:"round,omitempty"`  // with all-reduce: the samples that weights are parts of (B), which a ring keeps as long as it lasts
	}
	logRecall struct {
		Type    string  `json:"type"` // "recall": an update that shards tell of. The coordinator that has made it may have written it too
		T       float64 `json:"t"`
		Seq     int64   `json:"seq"`
		Version int64   `json:"version"`
		Workers []int   `json:"workers"`
		Dropped []int   `json:"dropped,omitempty"`
		Samples int64   `json:"samples"`
		Pieces  []int   `json:"pieces,omitempty"`
	}
	logTerm struct {
		Type    string  `json:"type"` // "term": this process coordinates from here on, or no more
		T       float64 `json:"t"`
		Term    int64   `json:"term"`
		Over    bool    `json:"over,omitempty"`
		Version int64   `json:"version"` // of the parameters
		Seq     int64   `json:"seq"`     // of the last Fire before
		Samples int64   `json:"samples"` // applied
		Waited  float64 `json:"waited"`  // s, for workers, once all servers had come
	}
	logNoise struct {
		Type    string  `json:"type"` // "noise"
		T       float64 `json:"t"`
		Version int64   `json:"version"` // that the update made
		Grad2   Number  `json:"grad2"`   // by this update alone
		Var     Number  `json:"var"`
		Mixed   bool    `json:"mixed,omitempty"`
		Scale   Number  `json:"scale"` // average, in samples

		// The change of the gradient over a round, and how much there is to go by (pgns.Estimator.Drift).
		Drift    Number `json:"drift"`
		Strength Number `json:"strength"`
	}
	logPlan struct {
		Type string  `json:"type"` // "plan"
		T    float64 `json:"t"`
		Plan string  `json:"plan"`
		From string  `json:"from"`
		Why  string  `json:"why"`

		// Of a pilot's change: what it should save, and after how many lines told to it.
		Predicted *float64 `json:"predicted_gain,omitempty"`
		After     int64    `json:"after,omitempty"`

		Forced bool `json:"forced,omitempty"` // an admission was taken back
	}
	logAdmission struct {
		Type    string  `json:"type"` // "admission"
		T       float64 `json:"t"`
		Plan    string  `json:"plan"` // that the pilot wanted
		Granted bool    `json:"granted"`
		Now     string  `json:"now"` // the plan in force when the answer came
		Why     string  `json:"why"`
		After   int64   `json:"after"` // how many lines the pilot had been told when it wanted that
	}
	logUnheeded struct {
		Type    string  `json:"type"` // "unheeded": a pilot's plan that was not installed
		T       float64 `json:"t"`
		Plan    string  `json:"plan"`
		Why     string  `json:"why"`     // the pilot's
		Because string  `json:"because"` // it was not
		After   int64   `json:"after"`
	}
	logHeard struct {
		Type  string  `json:"type"` // "heard": the job is over, and the pilot was heard up to there
		T     float64 `json:"t"`
		After int64   `json:"after"`
	}
	logLate struct {
		Type     string  `json:"type"` // "late"
		T        float64 `json:"t"`
		Worker   int     `json:"worker"`
		Waited   float64 `json:"waited"`   // s, since its release
		Deadline float64 `json:"deadline"` // s
	}
	logVerdict struct {
		Type     string        `json:"type"` // "verdict"
		T        float64       `json:"t"`
		Worker   int           `json:"worker"`
		Event    string        `json:"event"`
		Step     int64         `json:"step"`
		Since    int64         `json:"since"`
		Until    int64         `json:"until,omitempty"`
		Slowdown Number        `json:"slowdown"`
		Cause    string        `json:"cause"`
		Evidence []RunEvidence `json:"evidence"`
	}
	logGain struct {
		Type      string  `json:"type"` // "gain"
		T         float64 `json:"t"`
		Plan      string  `json:"plan"`
		Predicted Number  `json:"predicted_gain"`
		Seen      Number  `json:"seen_gain"`
		Reverted  bool    `json:"reverted"`
	}
	logPredictor struct {
		Type    string  `json:"type"` // "predictor": one was trained beside the job
		T       float64 `json:"t"`
		Records int64   `json:"trained_on"` // of the run, the newest of which it has learned from
		Rows    int     `json:"rows"`       // so many
		Epochs  int     `json:"epochs"`
		Error   Number  `json:"error"` // null: the training failed
		Took    float64 `json:"took"`
		After   int64   `json:"after"` // how many lines the pilot had been told when it began
	}
	logCodec struct {
		Type    string  `json:"type"` // "compression"
		T       float64 `json:"t"`
		Worker  int     `json:"worker"`
		Version int64   `json:"version"`
		Codec   string  `json:"codec"`
		Why     string  `json:"why"`
	}
	logPoison struct {
		Type   string  `json:"type"` // "poison": a gradient does not belong
		T      float64 `json:"t"`
		Worker int     `json:"worker"`
		Step   int64   `json:"step"`
		Cause  string  `json:"cause"`
		Value  Number  `json:"value"` // exploding: times the median norm; flipped: mean cosine
		Where  string  `json:"where,omitempty"`
		Over   bool    `json:"over,omitempty"` // flipped: no more
		Policy string  `json:"policy"`
	}
	logMember struct {
		Type   string  `json:"type"` // "join" or "leave"
		T      float64 `json:"t"`
		Worker int     `json:"worker"`
		Peer   string  `json:"peer"`
		Why    string  `json:"why,omitempty"`
		Start  int64   `json:"start,omitempty"` // samples of the stream that went with it
		Count  int     `json:"count,omitempty"`
	}
	logEval struct {
		Type     string  `json:"type"` // "eval"
		T        float64 `json:"t"`
		Eval     int64   `json:"eval"`
		From     int64   `json:"from_version"`
		To       int64   `json:"to_version"`
		Samples  int64   `json:"samples"`
		Loss     Number  `json:"loss"`
		Accuracy float64 `json:"accuracy"`
		Count    int64   `json:"count"`
		Final    bool    `json:"final,omitempty"`
		Alike    int     `json:"alike,omitempty"` // all-reduce: members whose parameters were compared, and are the same to the last bit
	}
	logSave struct {
		Type    string  `json:"type"` // "checkpoint"
		T       float64 `json:"t"`
		ID      string  `json:"id"`
		Version int64   `json:"version"`
		Took    float64 `json:"took"`
		Err     string  `json:"error,omitempty"`
	}
	logPace struct {
		Type string  `json:"type"` // "pace": pushes wait for each other from now on, or no more
		T    float64 `json:"t"`
		On   bool    `json:"on"`
		Why  string  `json:"why"`
	}
	logMove struct {
		Type string  `json:"type"` // "move": a shard has, or has not
		T    float64 `json:"t"`
		ShardMove
	}
	logShift struct {
		Type string  `json:"type"` // "shift": a shard is moved because that pays, or it was looked whether it did
		T    float64 `json:"t"`
		ShiftNote
	}
	logValidation struct {
		Type    string  `json:"type"` // "validation": shards use a new validation gradient
		T       float64 `json:"t"`
		Seq     int64   `json:"seq"`
		Version int64   `json:"version"` // of the parameters that it is of
		From    int64   `json:"from_version"`
		Lost    string  `json:"lost,omitempty"` // no gradient: the validator is gone, and why
	}
	logJudgement struct {
		Type     string  `json:"type"` // "judgement": of an update, by the validation gradient
		T        float64 `json:"t"`
		Seq      int64   `json:"seq"`
		Version  int64   `json:"version"`
		Score    Number  `json:"score"`
		Limit    Number  `json:"limit"`
		Accepted bool    `json:"accepted"`
		Factor   Number  `json:"factor"`
		Behind   int64   `json:"behind"`
	}
	logStop struct {
		Type  string  `json:"type"` // "stop": nothing more is handed out
		T     float64 `json:"t"`
		Limit int64   `json:"limit"` // where the stream ends now, in samples
		Why   string  `json:"why"`
	}
	logEnd struct {
		Type string `json:"type"` // "summary"
		Result
	}
)

func (l *RunLog) write(v any) {
	if l.w == nil || l.err != nil {
		return
	}
	if l.text, l.err = encode(l.text[:0], v); l.err == nil {
		_, l.err = l.w.Write(l.text)
	}
}

// flush hands what is buffered to the file.
func (l *RunLog) flush() error {
	if l.w != nil && l.err == nil {
		l.err = l.w.Flush()
	}
	return l.err
}

func (l *RunLog) close() error {
	err := l.flush()
	if l.c != nil {
		if e := l.c.Close(); err == nil {
			err = e
		}
		l.c = nil
	}
	return err
}

// record writes that of a gradient whose first sample is at start of the stream; below 0: nobody knows. More is where others are.
func (l *RunLog) record(t time.Duration, r star.Record, start int64, more []Span) {
	if l.w == nil {
		return
	}
	var from *int64
	if l.from = start; start >= 0 {
		from = &l.from
	}
	l.rec = logRecord{
		Type: "record", T: t.Seconds(), Worker: int(r.Worker), Step: r.Step, Basis: r.Basis, At: r.At.Seconds(),
		Load: r.Load.Seconds(), Compute: r.Compute.Seconds(), Injected: r.Injected.Seconds(), Push: r.Push.Seconds(),
		Wait: r.Wait.Seconds(), Pull: r.Pull.Seconds(), Transit: r.Transit.Seconds(), Start: from, Samples: r.Samples,
		Loss: Number(r.Loss), Norm2: Number(r.Norm2), CPU: Number(r.CPU), NetIn: Number(r.NetIn), NetOut: Number(r.NetOut),
		Telemetry: telemetry(r.Telemetry),
	}
	for _, s := range more {
		l.rec.More = append(l.rec.More, int(s.Start), s.Count)
	}
	l.write(&l.rec)
}
