package membership

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// TestScripts runs the scripts in testdata, each with machines of its own. Commands:
//
//	first, check [yields]                the first worker enrols; may this one take part?
//	judge                                may this validator?
//	permit mode=ssgd_queue=8 workers=2   may the job have this plan?
//	turns version=3 [sharded]            can the job make several updates of a batch, from a checkpoint of this version?
//
// A worker has hash=h1 params=10 buffers=0 model=net, samples=40 data=d digest= batch=0 epochs=0 turns=0 optimizer=,
// told=MODEL, and the flags whole, drop-last and exchange. Rules are resume-hash=, resume-plain=, resume-samples= and
// max=. An underscore is a blank.
// go test ./coord/membership -run Scripts -rewrite writes the answers again: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := new(script)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			s.run(t, d, &out)
			return out.String()
		})
	})
}

// script has the machines of one script.
type script struct {
	terms Terms
}

// args reads the arguments of a command.
type args struct {
	t *testing.T
	d *datadriven.TestData
}

func (a args) number(key string, def int) int {
	a.d.MaybeScanArgs(a.t, key, &def)
	return def
}

func (a args) text(key, def string) string {
	a.d.MaybeScanArgs(a.t, key, &def)
	return strings.ReplaceAll(def, "_", " ")
}

// worker is the worker that a command describes.
func (a args) worker() (wire.Hello, session.Enrolment) {
	h := wire.Hello{
		Model: a.text("model", "net"), ModelHash: a.text("hash", "h1"),
		Params: int64(a.number("params", 10)), Buffers: int64(a.number("buffers", 0)),
	}
	e := session.Enrolment{
		Samples: int64(a.number("samples", 40)), Data: a.text("data", "d"), Digest: a.text("digest", ""),
		Batch: a.number("batch", 0), Epochs: float64(a.number("epochs", 0)), Turns: a.number("turns", 0),
		Whole: a.d.HasArg("whole"), DropLast: a.d.HasArg("drop-last"), Exchange: a.d.HasArg("exchange"),
		Optimizer: []byte(a.text("optimizer", "")),
	}
	if m := a.text("told", ""); m != "" {
		e.Told = &session.Told{Model: m}
	}
	return h, e
}

func (s *script) run(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	a := args{t, d}
	refused := func(no *Refusal) {
		if no == nil {
			fmt.Fprintln(out, "yes")
		} else {
			fmt.Fprintf(out, "refused (%d): %s\n", no.Exit, no.Reason)
		}
	}
	answer := func(err error) {
		if err == nil {
			fmt.Fprintln(out, "yes")
		} else {
			fmt.Fprintln(out, "no:", err)
		}
	}
	switch d.Cmd {
	case "first":
		s.terms.Set(a.worker())
	case "check":
		h, e := a.worker()
		r := Rules{ResumeHash: a.text("resume-hash", ""), ResumePlain: a.text("resume-plain", ""), MaxParams: int64(a.number("max", 0))}
		if n := a.number("resume-samples", 0); n > 0 {
			r.ResumeData = &session.Enrolment{Data: "d", Samples: int64(n)}
		}
		var judge *wire.Hello
		if hash := a.text("judge", ""); hash != "" {
			judge = &wire.Hello{Model: "net", ModelHash: hash}
		}
		differs, no := s.terms.Check(&r, judge, &h, &e, d.HasArg("yields"))
		if no == nil && differs != "" {
			fmt.Fprintln(out, "the others make way:", differs)
		}
		refused(no)
	case "judge":
		h, _ := a.worker()
		refused(s.terms.Judge(&h))
	case "permit":
		n := a.number("workers", 2)
		p, err := modes.Parse(a.text("mode", ""), n)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		answer(s.terms.Permit(p, n))
	case "turns":
		answer(s.terms.Turns(d.HasArg("sharded"), int64(a.number("version", 0))))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
}
