package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/modes"
	"star/transport/wire"
)

// TestRingScripts runs the scripts of rings in testdata/ring and testdata/takeover. A message has plausible values for
// arguments that are not given. Commands:
//
//	new n=4 batch=10 limit=200 absent=(3)   a ring with the plan below
//	tally w=(0,1) version=1 carried=(2)     these workers have made a version, with gradients of these riders
//	record w=2                              a rider's gradient is on its way
//	computed w=0 samples=5 version=0        a member has computed this number of samples of its batch
//	formed w=(0,1) version=2                these workers have joined the ring that forms
//	fault w=0 suspect=2                     the ring of this worker has failed
//	tick                                    time has passed
//	leave w=1, join w=1
//	fails w=1                               its program fails while it computes its batch, and it leaves; cut: its connection ends
//	install                                 the plan below
//	late w=2                                a member has missed a deadline
//	save, stop
//	takeover w=(0,1)                        another coordinator continues with the metadata of the last release; these
//	                                        workers have the parameters, and report to it what they reported to the first
//	waits                                   the workers that the others wait for, and the work that a checkpoint would repeat
//
// go test ./coord/engine -run RingScripts -rewrite rewrites the answers: read the diff.
func TestRingScripts(t *testing.T) {
	for _, dir := range []string{"testdata/ring", "testdata/takeover"} {
		datadriven.Walk(t, dir, func(t *testing.T, path string) {
			s := &ringScript{}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(t, d) })
		})
	}
}

type ringScript struct {
	r        *Ring
	c        Config
	term     int64
	metadata []byte
	tells    []wire.Tally
}

func (s *ringScript) run(t *testing.T, d *datadriven.TestData) string {
	number := func(key string, def int64) int64 {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	workers := func(key string) (ws []star.Worker) {
		for _, a := range d.CmdArgs {
			for i := range a.Vals {
				if a.Key == key {
					var w int
					a.Scan(t, i, &w)
					ws = append(ws, star.Worker(w))
				}
			}
		}
		return ws
	}
	plan := func() modes.Plan {
		p, err := modes.Parse(d.Input, s.c.Workers)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return p
	}
	var out strings.Builder
	says := func(os []Ready, err error) {
		released := false
		for i := range os {
			tellRing(&out, &os[i])
			released = released || len(os[i].Releases) > 0
		}
		switch {
		case err != nil:
			fmt.Fprintf(&out, "error: %v\n", err)
		case len(os) == 0:
			out.WriteString("-\n")
		}
		if released {
			s.metadata = s.r.Metadata(s.term)
		}
	}
	switch d.Cmd {
	case "new":
		s.term = 1
		s.c = Config{Workers: int(number("n", 0)), Batch: int(number("batch", 10)), Limit: number("limit", 1000), MaxParams: 100,
			Absent: workers("absent"), Ring: &RingConfig{Tell: Tell}}
		s.c.Plan = plan()
		s.r = NewRing(s.c)
		says(s.r.Begin(nil), nil)
	case "install":
		says(s.r.Install(plan()), nil)
	case "late":
		for _, w := range workers("w") {
			s.r.Late(w)
		}
	case "tally":
		for _, w := range workers("w") {
			m := wire.Tally{Worker: w, Generation: number("gen", s.r.now.generation), Version: number("version", s.r.version+1)}
			for _, v := range workers("carried") {
				e := s.r.riderBatches[v]
				m.Carried = append(m.Carried, wire.Gradient{Worker: v, Step: e.Start, Weight: float32(e.Count) / float32(s.r.now.of)})
			}
			if i := m.Version - 1 - s.r.version; i >= 0 && i < int64(len(s.r.rounds)) && s.r.rounds[i].parts != nil {
				for k := range s.r.rounds[i].members {
					m.Samples = append(m.Samples, int(number("samples", int64(s.r.rounds[i].done[k]))))
				}
			}
			s.tells = append(s.tells, m)
			says(s.r.Tally(m))
		}
	case "record":
		for _, w := range workers("w") {
			_, os, err := s.r.Arrive(star.Record{Worker: w, Step: s.r.states[w].step, Basis: number("basis", s.r.states[w].basis), Samples: s.r.states[w].count}, false)
			says(os, err)
		}
	case "computed":
		for _, w := range workers("w") {
			says(s.r.Computed(wire.Computed{Worker: w, Generation: number("gen", s.r.now.generation), Version: number("version", s.r.version), Samples: int(number("samples", 0))}))
		}
	case "formed":
		for _, w := range workers("w") {
			says(s.r.Formed(wire.Formed{Worker: w, Generation: number("gen", s.r.generation), Version: number("version", s.r.version)}))
		}
	case "fault":
		for _, w := range workers("w") {
			_, os, err := s.r.Fault(wire.Fault{Worker: w, Generation: number("gen", s.r.generation), Suspect: int(number("suspect", -1)), Reason: "its reason"})
			says(os, err)
		}
	case "tick":
		says(s.r.Tick())
	case "fails":
		for _, w := range workers("w") {
			s.r.Blame(w, !d.HasArg("cut"), "why")
			says(s.r.Leave(w), nil)
		}
	case "leave":
		for _, w := range workers("w") {
			says(s.r.Leave(w), nil)
		}
	case "join":
		for _, w := range workers("w") {
			says(s.r.Join(w, false), nil)
		}
	case "save":
		c := s.r.Save()
		fmt.Fprintf(&out, "worker %d writes version %d\n", c.Writer, c.Version)
	case "stop":
		s.r.End(Stop)
		fmt.Fprintf(&out, "ends at %d\n", s.r.limit)
	case "takeover":
		s.term++
		m, err := ParseRingMetadata(s.metadata, s.c.Workers)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		c := s.c
		c.Plan, c.After, c.Absent = s.r.plan, &m.Snapshot, nil
		c.Ring = &RingConfig{Generation: GenerationsOf(s.term)}
		with := workers("w")
		for w := range s.c.Workers {
			if !s.r.states[w].live {
				c.Absent = append(c.Absent, star.Worker(w))
			}
		}
		s.r = NewRing(c)
		says(s.r.Begin(&Told{With: with, Tallies: s.tells}), nil)
	case "waits":
		fmt.Fprintf(&out, "for workers %v; version %d, %d samples applied, %d dropped; settled: %v, drained: %v\n", s.r.Lacking(), s.r.version, s.r.used, s.r.waste, s.r.View().Settled, s.r.Drained())
		fmt.Fprintf(&out, "to be done again: %v\n", s.r.progress().Redo)
		for _, a := range s.r.aside {
			fmt.Fprintf(&out, "put aside: %v of %v: %s\n", a.Span, a.Workers, a.Why)
		}
		if p := s.r.kept; p != nil {
			fmt.Fprintf(&out, "the checkpoint remembers version %d, %d samples, cursor %d, redo %v\n", p.Version, p.Samples, p.Cursor, p.Redo)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return out.String()
}

func tellRing(out *strings.Builder, o *Ready) {
	if e := o.Evict; e != nil {
		fmt.Fprintf(out, "worker %d is to go\n", e.Rank)
	}
	if f := &o.Fire; f.Seq > 0 {
		fmt.Fprintf(out, "fire %d: v%d of %v, stale %v, pieces %v, %d samples", f.Seq, f.Version, WorkersOf(f.Gradients), o.Stale, o.Pieces, o.Used)
		if len(f.Dropped) > 0 {
			fmt.Fprintf(out, "; drops %v", WorkersOf(f.Dropped))
		}
		out.WriteByte('\n')
	}
	// A message that all workers get alike is one line.
	var same string
	flush := func() {
		if same != "" {
			out.WriteString(same + "\n")
		}
		same = ""
	}
	say := func(w star.Worker, format string, a ...any) {
		text := fmt.Sprintf(format, a...)
		if i := strings.Index(same, ": "); i >= 0 && same[i+2:] == text {
			same = same[:i] + fmt.Sprintf(",%d", w) + same[i:]
			return
		}
		flush()
		same = fmt.Sprintf("  to %d: %s", w, text)
	}
	for _, r := range o.Rings {
		m := r.Msg
		text := fmt.Sprintf("ring %d of %v", m.Generation&(1<<20-1), m.Members)
		if len(m.Riders) > 0 {
			text += fmt.Sprintf(" riders %v", m.Riders)
		}
		if m.Now {
			text += " now"
		} else {
			text += fmt.Sprintf(" from version %d", m.From)
		}
		say(r.Worker, "%s", text)
	}
	for _, c := range o.Closes {
		say(c.Worker, "close version %d of %v, late %v, %d samples", c.Msg.Version, c.Msg.First, c.Msg.Late, c.Msg.Total)
	}
	for _, r := range o.Releases {
		text := fmt.Sprintf("release v%d [%d,%d)", r.Version, r.Start, r.Start+int64(r.Count))
		for _, p := range r.More {
			text += fmt.Sprintf("+[%d,%d)", p.Start, p.Start+int64(p.Count))
		}
		if r.Part > 0 {
			text += fmt.Sprintf(" in parts of %d", r.Part)
		}
		if r.Pull {
			text += " pull"
		}
		say(r.Worker, "%s", text)
	}
	flush()
}
