package membership

import (
	"fmt"
	"net"
	"slices"
	"star"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star/coord/engine"
	"star/coord/session"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// TestScripts runs the scripts in testdata, each with its own state. Commands:
//
//	first, check [yields]                the first worker enrols; may this one take part?
//	judge                                may this validator?
//	permit mode=ssgd_queue=8 workers=2   may the job have this plan?
//	turns version=3 [sharded]            can the job make several updates of a batch, from a checkpoint of this version?
//
//	members workers=3 first=2 least=1    a job without workers; the last two default to workers and 0
//	rank want=-1 [again]                 which rank does a new worker get? It gets it with
//	take w=1 process=p [vouched]         and the other events of a rank are
//	join w=1, begin, enter w=1, leave w=1
//	before process=p                     which rank does an earlier attempt have?
//	yields [vouched]                     do the workers make way?
//	seed w=1, pass w=1 term=2, diverge w=1 live=2
//
//	shortage least=2 limit=60            of orders; times are in seconds
//	look at=5 live=1 [ends]              workers come or go
//	order worker=0 [ring]                an order, the release of a worker; ring: a ring that is formed at once
//	strike worker=0, lost worker=0, over at=60 live=1
//
//	quorum mode=backup=1 live=(0,1,2)    in a job of four ranks that grows; fixed: that does not
//	change live=(0,1)                    workers came or went
//
//	place host=a remote=10.0.0.1:9 addr=127.0.0.1:7     where is this member, and which of those before does it reach?
//
// A worker has hash=h1 params=10 buffers=0 model=net, samples=40 data=d digest= batch=0 epochs=0 turns=0 optimizer=,
// told=MODEL, and the flags whole, drop-last and exchange. Rules are resume-hash=, resume-plain=, resume-samples= and
// max=. An underscore is a blank.
// go test ./coord/membership -run Scripts -rewrite updates the expected output: read the diff.
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
	terms    Terms
	members  Members
	shortage Shortage
	quorum   Quorum
	plan     modes.Plan
	places   []Place
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
	case "shortage", "look", "order", "strike", "lost", "over":
		s.size(a, out)
	case "quorum", "change":
		live := func(w star.Worker) bool { return slices.Contains(a.numbers("live"), int(w)) }
		if d.Cmd == "quorum" {
			p, err := modes.Parse(a.text("mode", ""), 4)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.plan = s.quorum.Set(p, !d.HasArg("fixed"), live)
			fmt.Fprintln(out, s.plan, "of", p)
			return
		}
		var why string
		s.plan, why = s.quorum.Change(s.plan, len(a.numbers("live")), live)
		fmt.Fprintf(out, "%v: %q\n", s.plan, why)
	case "place":
		h := wire.Hello{Host: a.text("host", ""), Addr: a.text("addr", "")}
		remote := a.text("remote", "")
		p := PlaceOf(&h, remote, []net.IP{net.ParseIP("10.0.0.9")})
		fmt.Fprintf(out, "site %q, misled %v", p.Site, p.Misled(remote))
		for i := range s.places {
			fmt.Fprintf(out, "; %d: reaches %v, reached %v", i, p.Reaches(&s.places[i]), s.places[i].Reaches(&p))
		}
		out.WriteByte('\n')
		if s.places = append(s.places, p); p.back {
			fmt.Fprintln(out, p.Unreachable("worker 0"))
		}
	default:
		s.rank(a, out)
	}
}

// numbers are the values of an argument.
func (a args) numbers(key string) (ns []int) {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == key {
			for i := range arg.Vals {
				n, err := strconv.Atoi(arg.Vals[i])
				if err != nil {
					a.d.Fatalf(a.t, "%v", err)
				}
				ns = append(ns, n)
			}
		}
	}
	return ns
}

// rank runs the commands about ranks.
func (s *script) rank(a args, out *strings.Builder) {
	m, w := &s.members, a.number("w", 0)
	switch a.d.Cmd {
	case "members":
		n := a.number("workers", 3)
		size := Size{MaxWorkers: n, Workers: a.number("first", n), MinWorkers: a.number("least", 0)}
		if err := size.Check(); err != nil {
			fmt.Fprintln(out, err)
			return
		}
		*m = New(size, strings.Repeat("00", 32))
	case "rank":
		if n, no := m.Rank(a.number("want", -1), a.d.HasArg("again")); no != nil {
			fmt.Fprintf(out, "refused (%d): %s\n", no.Exit, no.Reason)
		} else {
			fmt.Fprintln(out, "rank", n)
		}
		return
	case "take":
		m.Take(w, Member{Addr: fmt.Sprintf("host%d:1", w), Process: a.text("process", ""), Vouched: a.d.HasArg("vouched")})
	case "join":
		m.Join(w)
	case "begin":
		fmt.Fprintln(out, "absent:", m.Begin())
	case "enter":
		fmt.Fprintln(out, "again:", m.Enter(w))
	case "leave":
		m.Leave(w)
	case "before":
		w, found := m.Before(a.text("process", ""))
		fmt.Fprintln(out, w, found)
		return
	case "yields":
		fmt.Fprintln(out, m.Yields(a.d.HasArg("vouched")))
		return
	case "seed":
		fmt.Fprintln(out, m.Seed(w))
		return
	case "pass":
		pass := m.Pass(w, int64(a.number("term", 0)), 7)
		at, ok := transport.CheckPass(m.Key(), wire.RoleWorker, w, pass)
		fmt.Fprintf(out, "term %d, number %d, step %d: %v\n", at.Number>>32, at.Number&(1<<32-1), at.Step, ok)
		return
	case "diverge":
		fmt.Fprintln(out, m.Diverge(w, "not finite"), m.Diverged(a.number("live", 0)))
		return
	default:
		a.d.Fatalf(a.t, "unknown command %s", a.d.Cmd)
	}
	for w, r := range m.ranks {
		name := [...]string{"free", "enrolled", "joined", "training", "late", "ready"}[r.state]
		fmt.Fprintf(out, "%d %s", w, name)
		if m.Seen(w) {
			out.WriteString(", seen")
		}
		fmt.Fprintf(out, "; ")
		if m.Joined(w) != (name == "joined" || name == "training" || name == "ready") || m.Late(w) != (name == "late" || name == "ready") {
			a.t.Errorf("rank %d is %s: joined %v, late %v", w, name, m.Joined(w), m.Late(w))
		}
	}
	fmt.Fprintf(out, "enough %v, wanting %d, count %d\n", m.Enough(), m.Wanting(), m.Count())
}

// size runs the commands about a shortage.
func (s *script) size(a args, out *strings.Builder) {
	d, at := &s.shortage, time.Unix(0, 0).Add(time.Duration(a.number("at", 0))*time.Second)
	orders := func(what string, os []engine.Ready) {
		fmt.Fprintf(out, "%s:", what)
		for _, o := range os {
			for _, r := range o.Releases {
				fmt.Fprintf(out, " release %d", r.Worker)
			}
			for range o.Rings {
				out.WriteString(" ring")
			}
		}
		out.WriteByte('\n')
	}
	switch a.d.Cmd {
	case "shortage":
		*d = NewShortage(a.number("least", 0), time.Duration(a.number("limit", 0))*time.Second)
	case "look":
		switch change, waited := d.Look(at, a.number("live", 0), !a.d.HasArg("ends")); change {
		case Short:
			out.WriteString("short\n")
		case Enough:
			fmt.Fprintf(out, "enough after %v\n", waited)
			orders("held", d.Take())
		}
	case "order":
		o := engine.Ready{Releases: []wire.Release{{Worker: star.Worker(a.number("worker", 0))}}}
		if a.d.HasArg("ring") {
			o.Rings = []engine.To[wire.Ring]{{Msg: wire.Ring{Now: true}}}
		}
		orders("at once", d.Hold([]engine.Ready{o}))
	case "strike":
		d.Strike(star.Worker(a.number("worker", 0)))
	case "lost":
		d.Lost(a.number("worker", 0), "its host is gone")
	case "over":
		fmt.Fprintf(out, "%q\n", d.Over(at, a.number("live", 0)))
	}
}
