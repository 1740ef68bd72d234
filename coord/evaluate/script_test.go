package evaluate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/internal/exactsum"
	"star/runlog"
	"star/transport/wire"
)

// job is what the machines of a script know of workers, and the machines.
type job struct {
	live, idle, parked []star.Worker
	rounds             Rounds
	saves              Saves
	norms              Norms
	validator          Validator
	hashes             Hashes
}

func (j *job) Live() []star.Worker       { return j.live }
func (j *job) Idle(w star.Worker) bool   { return slices.Contains(j.idle, w) }
func (j *job) Parked(w star.Worker) bool { return slices.Contains(j.parked, w) }

// begun is the time 0 of scripts.
var begun = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// TestScripts runs the scripts in testdata. Each prints the effects of its commands, or - where a command has no
// effect.
//
//	workers live=(0,1,2) idle=(1) parked=(2)     what workers do from here on
//	begin buffers=8 tests                        of rounds: bytes of the buffers; there is a test set
//	start w=(0,1,2) test final                   a round
//	release w=(0,1)                              they are released
//	buffers w=(0,1) values=(1,2) eval=N          they send these, of the last round or of N
//	result w=(0,1) loss=2 correct=1 count=4 version=3 eval=N
//	average, curtail, parked, end, drop          what the methods of those names do
//	restart used=100
//	evals every=100 used=50                      Every, Due and Advance
//	rounds                                       the state
//
//	save-begin off params=N every=10             of saves: times are in seconds
//	save id=c1 version=1 seq=2 shards=2 writer=0 final coded=(0,2) at=5
//	early id=c1 version=1 coded=(0,2)
//	part shard=0 id=c1 err=TEXT                  the description is the input
//	file w=0 id=c1 err=TEXT                      likewise
//	moved shard=0 server=1 seq=9
//	look at=5 unready fail=TEXT
//	tick at=20
//	written at=6 err=TEXT
//	want, due at=10, advance at=10, save-drop, save-restart, saves id=c1
//
//	norms judged                                 of norms: with those of a validation gradient
//	expect seq=3 shards=2 version=4 after
//	norm seq=3 shard=0 values=(1,2) ref=3 dot=2  the sums of squares of values and ref; cut: bytes are missing
//
//	validator every=4, join, ask version=1 shards=2, received n=3, stored step=0 shard=1,
//	lost early, validated
//
//	hash w=(0,1) version=3 is=7 of=3             members of a ring of three report it
//
//	leave w=1                                    of rounds and saves
//
// go test ./coord/evaluate -run Scripts -rewrite writes the answers again: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		j := &job{norms: NewNorms(false), hashes: Hashes{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return j.run(t, d)
		})
	})
}

func (j *job) run(t *testing.T, d *datadriven.TestData) string {
	number := func(key string, def int64) int64 {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	text := func(key string) (s string) {
		d.MaybeScanArgs(t, key, &s)
		return strings.ReplaceAll(s, "_", " ")
	}
	failure := func(key string) error {
		if s := text(key); s != "" {
			return errors.New(s)
		}
		return nil
	}
	at := func() time.Time { return begun.Add(time.Duration(number("at", 0)) * time.Second) }
	values := func(key string) (vs []float32) {
		for _, a := range d.CmdArgs {
			for i := range a.Vals {
				if a.Key == key {
					var v float64
					if _, err := fmt.Sscan(a.Vals[i], &v); err != nil {
						d.Fatalf(t, "%v", err)
					}
					vs = append(vs, float32(v))
				}
			}
		}
		return vs
	}
	workers := func(key string) (ws []star.Worker) {
		for _, v := range values(key) {
			ws = append(ws, star.Worker(v))
		}
		return ws
	}
	coded := func() (cs []Coded) {
		for _, w := range workers("coded") {
			cs = append(cs, Coded{w, 10 + int64(w), 0.5})
		}
		return cs
	}
	var out strings.Builder
	does := func(effects []Effect, errs ...error) {
		for _, e := range effects {
			out.WriteString(words(e) + "\n")
		}
		if err := errors.Join(errs...); err != nil {
			fmt.Fprintf(&out, "error: %v\n", err)
		} else if len(effects) == 0 {
			out.WriteString("-\n")
		}
	}
	says := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	r, s := &j.rounds, &j.saves
	switch d.Cmd {
	case "workers":
		j.live, j.idle, j.parked = workers("live"), workers("idle"), workers("parked")
	case "begin":
		r.Begin(Model{Buffers: number("buffers", 0), Tests: d.HasArg("tests")})
	case "start":
		r.Start(d.HasArg("test"), d.HasArg("final"), workers("w"))
	case "release":
		for _, w := range workers("w") {
			m := wire.Release{Worker: w}
			if d.HasArg("finish") {
				m.Action = wire.Finish
			}
			told := r.Tells(w)
			r.Mark(&m)
			says("%d: %v eval %d [%d,%d), was to be told: %v", w, m.Action, m.Eval, m.From, m.To, told)
		}
	case "buffers":
		for _, w := range workers("w") {
			does(r.Gather(wire.Buffers{Worker: w, Eval: number("eval", r.number)}, le(values("values")), j))
		}
	case "result":
		loss := math.NaN()
		d.MaybeScanArgs(t, "loss", &loss)
		for _, w := range workers("w") {
			does(r.Result(wire.EvalResult{Worker: w, Eval: number("eval", r.number), Version: number("version", 0), LossSum: loss,
				Correct: number("correct", 0), Count: number("count", 1)}))
		}
	case "average":
		does(r.Average(j))
	case "curtail":
		does(r.Curtail(j))
	case "parked":
		does(r.Parked(j))
	case "end":
		does(r.End())
	case "drop":
		r.Drop()
	case "restart":
		r.Restart(number("used", 0))
	case "evals":
		used := number("used", 0)
		if d.HasArg("every") {
			r.Every(number("every", 0), used)
		}
		if due := r.Due(used); due && d.HasArg("advance") {
			r.Advance(used)
		}
		says("due at %d: %v; next %d", used, r.Due(used), r.next)
	case "rounds":
		coming, missing := r.Lacks()
		says("round %d: open %v final %v collected %v, waits for %v", r.Number(), r.Open(), r.Final(), r.Collected(), r.Missing())
		says("buffers %v: coming %v missing %v", r.Buffers(), coming, missing)

	case "save-begin":
		*s = NewSaves(!d.HasArg("off"))
		s.Begin(number("params", 0))
		s.Every(time.Duration(number("every", 0))*time.Second, begun)
	case "early":
		does(s.Early(text("id"), number("version", 0), coded()))
	case "save":
		does(s.Start(Cut{ID: text("id"), Version: number("version", 0), Seq: number("seq", 0), Writer: star.Worker(number("writer", -1)),
			Shards: int(number("shards", 0)), Final: d.HasArg("final")}, coded(), at()))
	case "part":
		does(s.Part(wire.Saved{Shard: int(number("shard", 0)), ID: text("id"), Err: text("err")}, []byte(d.Input)))
	case "file":
		does(s.Residual(workers("w")[0], wire.Saved{ID: text("id"), Err: text("err")}, []byte(d.Input)))
	case "moved":
		does(s.Moved(int(number("shard", 0)), int(number("server", 0)), number("seq", 0)))
	case "look":
		does(s.Look(at(), !d.HasArg("unready"), failure("fail")))
	case "tick":
		does(s.Tick(at()))
	case "written":
		does(s.Written("/"+s.save.ID, failure("err"), at()))
	case "want":
		s.Want()
	case "due":
		says("%v", s.Due(at()))
	case "advance":
		s.Advance(at())
	case "save-drop":
		s.Drop()
	case "save-restart":
		s.Restart()
	case "saves":
		says("open %v writing %v, complete: %v, err: %v; waits for %s", s.Open(), s.Writing(), s.Complete(text("id")), s.Err(), s.Missing())
		for w := range star.Worker(3) {
			if s.Writer(w) {
				says("worker %d writes it, orphaned without it: %v", w, s.Orphaned(w))
			}
		}

	case "norms":
		j.norms = NewNorms(d.HasArg("judged"))
	case "expect":
		j.norms.Expect(number("seq", 0), int(number("shards", 1)), Norm{Version: number("version", 0), After: d.HasArg("after")})
	case "norm":
		m := wire.Norm{Seq: number("seq", 0), Shard: int(number("shard", 0)), Sum2: float64(number("dot", 0))}
		if !j.norms.Expects(m.Seq) {
			says("not expected")
			break
		}
		var b []byte
		for _, key := range []string{"values", "ref"} {
			if d.HasArg(key) {
				var s exactsum.Squares
				s.Add(values(key))
				b = s.AppendTo(b)
			}
		}
		if d.HasArg("cut") {
			b = b[:len(b)-1]
		}
		u, all, err := j.norms.Take(m, b)
		switch {
		case err != nil:
			says("error: %v", err)
		case all:
			says("version %d, after %v: norm² %g, of the validation gradient %g, product %g", u.Version, u.After, u.Noise.Sum2, u.Ref2, u.Dot)
		default:
			says("-")
		}

	case "validator":
		j.validator = NewValidator(int(number("every", 0)))
	case "join":
		j.validator.Join()
	case "ask":
		j.validator.Ask(number("version", 0), int(number("shards", 1)))
	case "received":
		says("asks: %v", j.validator.Received(int(number("n", 0))))
	case "stored":
		used, first := j.validator.Stored(wire.Stored{Shard: int(number("shard", 0)), Step: number("step", 0)})
		says("in use: %v, workers begin: %v", used, first)
	case "lost":
		says("workers begin: %v", j.validator.Lost(!d.HasArg("early")))
	case "validated":
		v := &j.validator
		says("on %v ready %v begun %v joined %v judges %v, step %d, version %d", v.On(), v.Ready(), v.Begun(), v.Joined(), v.Judges(), v.Step(), v.Version())

	case "hash":
		for _, w := range workers("w") {
			wrong, err := j.hashes.Compare(wire.Tally{Worker: w, Version: number("version", 0), Hash: number("is", 0)}, int(number("of", 3)), 2)
			for _, e := range wrong {
				says("%s", words(e))
			}
			if err != nil {
				says("error: %v", err)
			}
		}
		says("alike: %d; %d versions", j.hashes.Alike(number("version", 0)), len(j.hashes))
	case "clear":
		j.hashes.Clear()

	case "leave":
		for _, w := range workers("w") {
			j.live = slices.DeleteFunc(j.live, func(o star.Worker) bool { return o == w })
			s.Leave(w)
			does(r.Leave(w, j))
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return out.String()
}

// words is an effect in words.
func words(e Effect) string {
	switch e := e.(type) {
	case Average:
		return fmt.Sprintf("average %v of evaluation %d to %d", e.Buffers, e.Eval, e.Worker)
	case Exclude:
		return fmt.Sprintf("exclude %d: %v", e.Worker, e.Err)
	case Ended:
		if l := e.Line; e.Measured {
			return fmt.Sprintf("ended %d: versions %d to %d, loss %.4g, accuracy %.4g of %d, final %v", l.Eval, l.From, l.To, l.Loss, l.Accuracy, l.Count, l.Final)
		}
		return fmt.Sprintf("ended %d without a result, final %v, unanswered %v", e.Line.Eval, e.Line.Final, e.Unanswered)
	case Late:
		return fmt.Sprintf("checkpoint %s goes on without the files of %v, after %v", e.ID, e.Workers, e.For)
	case Write:
		text := "write " + e.ID
		for _, p := range e.Parts {
			text += " " + string(p)
		}
		for _, f := range e.Residuals {
			text += fmt.Sprintf(", of %d×%g %s", f.Worker, f.Weight, f.Desc)
		}
		if e.Err != nil {
			text += fmt.Sprintf(": %v", e.Err)
		}
		return text
	case Wrote:
		return fmt.Sprintf("wrote %s at version %d in %v, path %s, final %v: %v, noted %q",
			e.Line.ID, e.Line.Version, runlog.Seconds(e.Line.Took).Duration(), e.Path, e.Final, e.Err, e.Line.Err)
	case AskWorker:
		return fmt.Sprintf("worker %d saves %+v", e.Worker, e.Save)
	case AskServers:
		if e.Server < 0 {
			return fmt.Sprintf("servers save %+v", e.Save)
		}
		return fmt.Sprintf("server %d saves %+v", e.Server, e.Save)
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T %+v", e, e), "evaluate."))
}
