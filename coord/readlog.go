package coord

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"star"
	"star/transport"
	"star/unpack"
)

// RunLine is one line of a run log, as ReadRun passes it on.
type RunLine struct {
	Number int           // of the line, from 1
	T      time.Duration // since the coordinator began; 0 of RunStart and RunEnd

	// Entry is one of RunStart, RunTrain, RunRecord, RunFire, RunNoise, RunPlan, RunUnheeded, RunHeard, RunLate, RunAdmission, RunPredictor, RunVerdict,
	// RunGain, RunCodec, RunMemory, RunPoison, RunMember, RunSize, RunEval, RunSave, RunPace, RunMove, RunReplica, RunShift, RunStop and RunEnd. What could not be
	// measured is NaN.
	Entry any
}

// What the lines of a run log say; docs/operations.md has the fields.
type (
	// RunStart is the first line.
	RunStart struct {
		Program string
		Time    time.Time
		Job     string
		Notes   []string        // stragglers on purpose
		Config  json.RawMessage // every setting
	}
	// RunTrain says that everybody is there.
	RunTrain struct {
		Workers, Shards       int
		Model, ModelHash      string
		Params                int64
		Data                  string
		Epoch, Limit, Version int64 // samples of one epoch; of the job; the first version
		Plan                  string
		Absent                []int // ranks that nobody has yet
	}
	// RunRecord is an iteration of a worker.
	RunRecord struct{ star.Record }
	// RunFire is an update, or a firing that dropped gradients only.
	RunFire struct {
		Seq, Version int64
		Workers      []star.Worker
		Staleness    []int64 // of each of Workers
		Dropped      []star.Worker
		Samples      int64 // applied, this update included
	}
	// RunNoise is what an update says of the gradients' noise.
	RunNoise struct {
		Version           int64
		Grad2, Var, Scale float64
		Mixed             bool
		Drift, Strength   float64
	}
	// RunPlan is a change of mode.
	RunPlan struct {
		Plan, From, Why string
		Predicted       float64 // share of the time that it should save; NaN: nobody said
		After           int64   // a pilot's: how many lines it had been told; else 0
		Forced          bool    // an admission was taken back
	}
	// RunUnheeded is a plan of a pilot that was not installed.
	RunUnheeded struct {
		Plan, Why string
		Because   string // it was not
		After     int64  // how many lines the pilot had been told
	}
	// RunHeard says, when the job is over, on how many of the lines that the pilot had been told it had been heard: what it makes of later ones came to nobody.
	RunHeard struct{ After int64 }
	// RunAdmission is the answer to a pilot that wants to leave SSGD, or takes an earlier yes back.
	RunAdmission struct {
		Plan, Now string // wanted, and in force
		Granted   bool
		Why       string
		After     int64 // how many lines the pilot had been told
	}
	// RunPredictor says that a predictor of the workers' times was trained beside the job. It is used from here on, as far
	// as it proves itself.
	RunPredictor struct {
		Records int64 // of the run, when it began: the newest of them, Rows, are what it has learned from
		Rows    int
		Epochs  int           // passes over them
		Error   float64       // mean squared, of what it was not trained on, in parts of the variance; NaN: the training failed
		Took    time.Duration // with the rests
		After   int64         // how many lines the pilot had been told when it began
	}
	// RunVerdict is what the job itself found out about a worker.
	RunVerdict struct {
		Worker      star.Worker
		Event       string // slow, changed or recovered
		Step, Since int64  // of the worker: when it was noticed, and when it began
		Until       int64  // recovered: its first step that was like the others'; 0: the log does not say
		Slowdown    float64
		Cause       string
		Evidence    []RunEvidence
	}
	// RunEvidence is a number that speaks for the cause.
	RunEvidence struct {
		What  string `json:"what"`
		Value Number `json:"value"`
		Other Number `json:"other"` // of workers that are not slow
		Text  string `json:"text"`
	}
	// RunLate says that a worker's gradient is not there although it should be.
	RunLate struct {
		Worker           star.Worker
		Waited, Deadline time.Duration // since its release
	}
	// RunGain is what the job saw of a change of mode, some time after it.
	RunGain struct {
		Plan            string
		Predicted, Seen float64 // shares of the time
		Reverted        bool
	}
	// RunCodec says what a worker's gradients are compressed with from now on.
	RunCodec struct {
		Worker     star.Worker
		Version    int64
		Codec, Why string
	}
	// RunPoison is a gradient that does not belong, or a worker whose direction turned (see package poison).
	RunPoison struct {
		Worker star.Worker
		Step   int64
		Cause  string
		Value  float64 // exploding: times the median norm; flipped: the mean cosine; else NaN
		Where  string  // the tensor, or the shards
		Over   bool    // flipped: no more
		Policy string
	}
	// RunSize says that the job waits for workers to come, because it has fewer than it wants, or goes on.
	RunSize struct {
		Enough         bool
		Workers, Least int // that are there; that it wants
	}
	// RunMember is a worker that came or went.
	RunMember struct {
		Joined bool
		Worker star.Worker
		Peer   string
		Why    string
		Start  int64 // of the samples that went with it
		Count  int
	}
	// RunEval is an evaluation.
	RunEval struct {
		From, To, Samples int64
		Loss, Accuracy    float64
		Count             int64
		Final             bool
	}
	// RunSave is a checkpoint.
	RunSave struct {
		ID      string
		Version int64
		Took    time.Duration
		Err     string
	}
	// RunPace says whether pushes wait for each other from now on.
	RunPace struct {
		On  bool
		Why string
	}

	// RunReplica says what has happened to the copies of a shard.
	RunReplica struct{ ReplicaChange }

	// RunMove says that a shard has moved to another server, or why not.
	RunMove struct{ ShardMove }

	// RunShift says why a shard moves by itself, or whether that has paid.
	RunShift struct{ ShiftNote }

	// RunStop says that nothing more is handed out.
	RunStop struct {
		Limit int64 // samples
		Why   string
	}
	// RunEnd is the last line of a run that was not killed.
	RunEnd struct{ Result }
)

// RunSummary is what ReadRun found.
type RunSummary struct {
	Lines int

	// Cut says that the log ends in the middle of a line: the coordinator was killed, or
	// still writes.
	Cut bool

	// Unknown counts lines by types that this program does not know.
	Unknown map[string]int
}

// ReadRun reads a run log, plain or gzip, and passes each line on, in the log's order, until one
// of them is answered with an error, which it returns. Fields and types of lines that it does not know, as newer programs
// write them, are passed over; so is the rest of a last line that was cut. All other
// damage is an error of type *RunError: what is missing, cannot be, or is there twice; name is the file's.
func ReadRun(r io.Reader, name string, each func(RunLine) error) (RunSummary, error) {
	p := runParser{workers: -1}
	s := RunSummary{Unknown: map[string]int{}}
	var err error
	s.Lines, s.Cut, err = scanRun(r, name, func(n int, kind string, b []byte) error {
		l, known, err := p.parse(kind, n, b)
		switch {
		case err != nil:
			return &RunError{name, n, err}
		case !known:
			s.Unknown[kind]++
			return nil
		}
		l.Number = n
		return each(l)
	})
	return s, err
}

// scanRun passes every line that is a JSON object with a type on, and says how many lines
// there were, and whether the last one was cut.
func scanRun(r io.Reader, name string, each func(n int, kind string, b []byte) error) (lines int, cut bool, err error) {
	br, err := unpack.Reader(r)
	if err != nil {
		return 0, false, &RunError{name, 1, err}
	}
	sc := bufio.NewScanner(br)
	sc.Buffer(make([]byte, 0, 64<<10), MaxRunLine)
	sc.Split(wholeLines)
	started := false
	for sc.Scan() {
		lines++
		b := sc.Bytes()
		whole := b[len(b)-1] == '\n'
		if b = bytes.TrimSpace(b); len(b) == 0 {
			continue
		}
		kind, err := kindOf(b)
		if err != nil && !whole && started {
			return lines - 1, true, nil
		}
		if err != nil {
			return lines, false, &RunError{name, lines, fmt.Errorf("not a line of a run log: %w", err)}
		}
		if started == (kind == "start") {
			if started {
				return lines, false, &RunError{name, lines, errors.New("a second line of type start: a run log is of one run")}
			}
			return lines, false, &RunError{name, lines, fmt.Errorf("begins with a line of type %q, a run log begins with start", kind)}
		}
		started = true
		if err := each(lines, kind, b); err != nil {
			return lines, false, err
		}
	}
	err = sc.Err()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && started: // of gzip
		return lines, true, nil
	case errors.Is(err, bufio.ErrTooLong):
		return lines, false, &RunError{name, lines + 1, fmt.Errorf("a line of more than %d MiB, which no run log has", MaxRunLine>>20)}
	case err != nil:
		return lines, false, &RunError{name, lines + 1, err}
	case !started:
		return lines, false, &RunError{name, 1, errors.New("empty: a run log begins with a line of type start")}
	}
	return lines, false, nil
}

// wholeLines splits behind each newline, and keeps it: a last line without one may have been cut.
func wholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// kindOf is the type of a line. Ours begin with it.
func kindOf(b []byte) (string, error) {
	if rest, ours := bytes.CutPrefix(b, []byte(`{"type":"`)); ours && json.Valid(b) {
		if i := bytes.IndexByte(rest, '"'); i >= 0 && bytes.IndexByte(rest[:i], '\\') < 0 {
			return string(rest[:i]), nil
		}
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return "", err
	}
	if head.Type == "" {
		return "", errors.New("it has no type")
	}
	return head.Type, nil
}

// runParser makes lines of a run log what they say. Fields that must be there begin as
// what none of them can be.
type runParser struct {
	workers int // of the job; -1: not known yet
	sequence
}

// runFormat is the highest format of a run log that this program reads: its own.
const runFormat = 1

const absent = math.MinInt32

var nan = math.NaN()

// parse reports false for a type that it does not know.
func (p *runParser) parse(kind string, line int, b []byte) (l RunLine, known bool, err error) {
	c := fields{kind: kind}
	switch kind {
	case "start":
		s := logStart{Format: absent}
		c.read(b, &s)
		c.atLeast("format", int64(s.Format), 1)
		if s.Format > runFormat {
			c.fail("format is %d, and this program reads %d: use that which wrote the log, %q", s.Format, runFormat, s.Program)
		}
		l.Entry = RunStart{s.Program, s.Time, s.Job, s.Notes, s.Config}
	case "train":
		s := logTrain{T: nan, Workers: absent, Version: absent, Limit: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("workers", int64(s.Workers), 1)
		c.atLeast("version", s.Version, 0)
		c.atLeast("limit", s.Limit, 0)
		if s.Workers > transport.MaxWorkers {
			c.fail("%d workers, at most %d", s.Workers, transport.MaxWorkers)
		}
		if p.workers >= 0 {
			c.fail("a second one")
		}
		p.workers = s.Workers
		for _, w := range s.Absent {
			c.rank(p, "absent", w)
		}
		l.Entry = RunTrain{s.Workers, s.Shards, s.Model, s.Hash, s.Params, s.Data, s.Samples, s.Limit, s.Version, s.Plan, s.Absent}
	case "record":
		r, t, err := parseRecord(b)
		if err != nil {
			return l, true, err
		}
		l.T = c.time("t", t)
		c.rank(p, "worker", int(r.Worker))
		c.check(p.record(&r, line))
		l.Entry = RunRecord{r}
	case "fire":
		s := logFire{T: nan, Seq: absent, Version: absent, Samples: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.atLeast("seq", s.Seq, 1)
		c.atLeast("version", s.Version, 0)
		c.atLeast("samples", s.Samples, 0)
		if len(s.Workers) != len(s.Stale) {
			c.fail("%d workers and %d values of staleness", len(s.Workers), len(s.Stale))
		}
		c.check(p.fire(s.Seq, line))
		l.Entry = RunFire{s.Seq, s.Version, c.ranks(p, "workers", s.Workers), s.Stale, c.ranks(p, "dropped", s.Dropped), s.Samples}
	case "noise":
		s := logNoise{T: nan, Version: absent, Grad2: Number(nan), Var: Number(nan), Scale: Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("version", s.Version, 0)
		l.Entry = RunNoise{s.Version, float64(s.Grad2), float64(s.Var), float64(s.Scale), s.Mixed, float64(s.Drift), float64(s.Strength)}
	case "plan":
		s := struct {
			logPlan
			Predicted Number `json:"predicted_gain"`
		}{logPlan{T: nan}, Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.text("plan", s.Plan)
		c.text("from", s.From)
		c.share("predicted_gain", s.Predicted)
		c.atLeast("after", s.After, 0)
		l.Entry = RunPlan{s.Plan, s.From, s.Why, float64(s.Predicted), s.After, s.Forced}
	case "unheeded":
		s := logUnheeded{T: nan, After: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.text("plan", s.Plan)
		c.text("because", s.Because)
		c.atLeast("after", s.After, 1)
		l.Entry = RunUnheeded{s.Plan, s.Why, s.Because, s.After}
	case "heard":
		s := logHeard{T: nan, After: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.atLeast("after", s.After, 0)
		l.Entry = RunHeard{s.After}
	case "late":
		s := logLate{T: nan, Worker: absent, Waited: nan, Deadline: nan}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.rank(p, "worker", s.Worker)
		l.Entry = RunLate{star.Worker(s.Worker), c.time("waited", s.Waited), c.time("deadline", s.Deadline)}
	case "admission":
		s := logAdmission{T: nan, After: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.text("plan", s.Plan)
		c.text("now", s.Now)
		c.atLeast("after", s.After, 1)
		l.Entry = RunAdmission{s.Plan, s.Now, s.Granted, s.Why, s.After}
	case "predictor":
		s := logPredictor{T: nan, Records: absent, After: absent, Error: Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.atLeast("trained_on", s.Records, 1)
		c.atLeast("rows", int64(s.Rows), 0)
		c.atLeast("epochs", int64(s.Epochs), 0)
		c.atLeast("after", s.After, 1)
		l.Entry = RunPredictor{s.Records, s.Rows, s.Epochs, float64(s.Error), c.time("took", s.Took), s.After}
	case "verdict":
		s := struct {
			T        float64       `json:"t"`
			Worker   int           `json:"worker"`
			Event    string        `json:"event"`
			Step     int64         `json:"step"`
			Since    int64         `json:"since"`
			Until    int64         `json:"until"`
			Slowdown Number        `json:"slowdown"`
			Cause    string        `json:"cause"`
			Evidence []RunEvidence `json:"evidence"`
		}{T: nan, Worker: absent, Step: absent, Since: absent, Slowdown: Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.rank(p, "worker", s.Worker)
		c.text("event", s.Event)
		c.atLeast("step", s.Step, 0)
		c.atLeast("since", s.Since, 0)
		c.atLeast("until", s.Until, 0)
		l.Entry = RunVerdict{star.Worker(s.Worker), s.Event, s.Step, s.Since, s.Until, float64(s.Slowdown), s.Cause, s.Evidence}
	case "gain":
		s := struct {
			T         float64 `json:"t"`
			Plan      string  `json:"plan"`
			Predicted Number  `json:"predicted_gain"`
			Seen      Number  `json:"seen_gain"`
			Reverted  bool    `json:"reverted"`
		}{T: nan, Predicted: Number(nan), Seen: Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.text("plan", s.Plan)
		c.share("predicted_gain", s.Predicted)
		c.share("seen_gain", s.Seen)
		l.Entry = RunGain{s.Plan, float64(s.Predicted), float64(s.Seen), s.Reverted}
	case "compression":
		s := struct {
			T       float64 `json:"t"`
			Worker  int     `json:"worker"`
			Version int64   `json:"version"`
			Codec   string  `json:"codec"`
			Why     string  `json:"why"`
		}{T: nan, Worker: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.rank(p, "worker", s.Worker)
		c.text("codec", s.Codec)
		l.Entry = RunCodec{star.Worker(s.Worker), s.Version, s.Codec, s.Why}
	case "poison":
		s := logPoison{T: nan, Worker: absent, Step: absent, Value: Number(nan)}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.begun(p)
		c.rank(p, "worker", s.Worker)
		c.atLeast("step", s.Step, 0)
		c.text("cause", s.Cause)
		l.Entry = RunPoison{star.Worker(s.Worker), s.Step, s.Cause, float64(s.Value), s.Where, s.Over, s.Policy}
	case "join", "leave":
		s := logMember{T: nan, Worker: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.rank(p, "worker", s.Worker)
		l.Entry = RunMember{kind == "join", star.Worker(s.Worker), s.Peer, s.Why, s.Start, s.Count}
	case "short", "enough":
		s := logSize{T: nan, Workers: absent, Least: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("workers", int64(s.Workers), 0)
		c.atLeast("least", int64(s.Least), 1)
		l.Entry = RunSize{kind == "enough", s.Workers, s.Least}
	case "eval":
		s := logEval{T: nan, Loss: Number(nan), Accuracy: nan, Samples: absent}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("samples", s.Samples, 0)
		c.share("accuracy", Number(s.Accuracy))
		l.Entry = RunEval{s.From, s.To, s.Samples, float64(s.Loss), s.Accuracy, s.Count, s.Final}
	case "checkpoint":
		s := logSave{T: nan}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		l.Entry = RunSave{s.ID, s.Version, c.time("took", s.Took), s.Err}
	case "memory":
		at, m, err := parseMemory(b)
		if err != nil {
			return l, true, err
		}
		l.T = c.time("t", at)
		for _, r := range m.Records {
			c.rank(p, "worker", int(r.Worker))
		}
		l.Entry = m
	case "pace":
		s := logPace{T: nan}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		l.Entry = RunPace{s.On, s.Why}
	case "replica":
		s := logReplica{T: nan, ReplicaChange: ReplicaChange{Shard: absent, Server: absent, Primary: absent}}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("shard", int64(s.Shard), 0)
		c.atLeast("server", int64(s.Server), 0)
		c.atLeast("term", s.Term, 1)
		c.atLeast("primary", int64(s.Primary), 0)
		l.Entry = RunReplica{s.ReplicaChange}
	case "move":
		s := logMove{T: nan, ShardMove: ShardMove{Shard: absent, From: absent, To: absent}}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("shard", int64(s.Shard), 0)
		c.atLeast("from", int64(s.From), 0)
		c.atLeast("to", int64(s.To), 0)
		l.Entry = RunMove{s.ShardMove}
	case "shift":
		s := logShift{T: nan, ShiftNote: ShiftNote{Shard: absent, From: absent, To: absent, Seen: Number(nan)}}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		c.atLeast("shard", int64(s.Shard), 0)
		c.atLeast("from", int64(s.From), 0)
		c.atLeast("to", int64(s.To), 0)
		l.Entry = RunShift{s.ShiftNote}
	case "stop":
		s := logStop{T: nan}
		c.read(b, &s)
		l.T = c.time("t", s.T)
		l.Entry = RunStop{s.Limit, s.Why}
	case "summary":
		s := logEnd{Result: Result{Wall: nan, Samples: absent, Updates: absent}}
		c.read(b, &s)
		c.time("wall_s", s.Wall)
		c.atLeast("samples", s.Samples, 0)
		c.atLeast("updates", s.Updates, 0)
		l.Entry = RunEnd{s.Result}
	default:
		return l, false, nil
	}
	return l, true, c.err
}

// fields looks at the fields of one line and keeps the first complaint.
type fields struct {
	kind string
	err  error
}

func (c *fields) check(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *fields) fail(format string, a ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: "+format, append([]any{c.kind}, a...)...)
	}
}

func (c *fields) read(b []byte, v any) {
	if err := json.Unmarshal(b, v); err != nil {
		c.fail("%w", err)
	}
}

// longest is more than any run takes: 30 years, in seconds.
const longest = 1e9

func (c *fields) time(name string, s float64) time.Duration {
	switch {
	case math.IsNaN(s):
		c.fail("it has no %s, want seconds", name)
	case s < 0 || s > longest:
		c.fail("%s is %g s, want 0 to %g", name, s, longest)
	default:
		return time.Duration(math.Round(s * 1e9))
	}
	return 0
}

func (c *fields) atLeast(name string, v, least int64) {
	switch {
	case v == absent:
		c.fail("it has no %s, want a number", name)
	case v < least:
		c.fail("%s is %d, want at least %d", name, v, least)
	}
}

func (c *fields) text(name, v string) {
	if v == "" {
		c.fail("it has no %s", name)
	}
}

// share is a part of 1, which may be negative, or not known.
func (c *fields) share(name string, v Number) {
	if v > 1 {
		c.fail("%s is %g, want at most 1", name, float64(v))
	}
}

// begun: there are workers already.
func (c *fields) begun(p *runParser) {
	if p.workers < 0 {
		c.fail("it comes before the line of type train")
	}
}

func (c *fields) rank(p *runParser, name string, w int) {
	n := p.workers
	if n < 0 && c.kind == "join" { // how many there will be is not known yet
		n = transport.MaxWorkers
	}
	switch {
	case w == absent:
		c.fail("it has no %s, want a rank", name)
	case n < 0:
		c.fail("it comes before the line of type train")
	case w < 0 || w >= n:
		c.fail("%s is %d, want 0 to %d", name, w, n-1)
	}
}

func (c *fields) ranks(p *runParser, name string, ws []int) (ranks []star.Worker) {
	for _, w := range ws {
		c.rank(p, name, w)
		ranks = append(ranks, star.Worker(w))
	}
	return ranks
}
