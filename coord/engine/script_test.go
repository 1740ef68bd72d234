package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/modes"
	"star/transport/wire"
)

// TestSchedulerScripts runs scripts of schedulers in testdata/scheduler. Commands:
//
//	new n=4 shards=2 batch=8 limit=1000 closed=(3)
//	                       a scheduler with the plan below; the workers in closed
//	                       can be in no tree
//	push w=(1,2)           they arrive, and every shard stores what they pushed
//	arrive w=1             it reports that it has pushed
//	store w=1 shard=0
//	told w=0 in=(0,1,2)    the report of worker 0 has these; samples=N of the last, if
//	                       the report is wrong
//	unreachable w=1        it cannot reach its parent
//	leave w=1
//	fails w=1              its program fails while it computes its batch, and it leaves;
//	                       cut: its connection ends
//	install                the plan below
//	waits                  the workers that the others wait for, and the work that a
//	                       checkpoint would repeat
//
// go test ./coord/engine -run SchedulerScripts -rewrite rewrites the answers: read the diff.
func TestSchedulerScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scheduler", func(t *testing.T, path string) {
		var l *Shards
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
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
			var out strings.Builder
			says := func(os []Ready, err error) {
				for i := range os {
					tellOrder(&out, &os[i])
				}
				if err != nil {
					fmt.Fprintf(&out, "error: %v\n", err)
				} else if len(os) == 0 {
					out.WriteString("-\n")
				}
			}
			switch d.Cmd {
			case "new":
				n := int(number("n", 0))
				p, err := modes.Parse(d.Input, n)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				l = newShards(p, n, int(number("shards", 1)), int(number("batch", 8)), number("limit", 1000))
				l.reachable = make([]bool, n)
				for w := range l.reachable {
					l.reachable[w] = !slices.Contains(workers("closed"), star.Worker(w))
				}
				says(l.Begin(nil), nil)
			case "install":
				p, err := modes.Parse(d.Input, len(l.states))
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				says(l.Install(p), nil)
			case "push":
				for _, w := range workers("w") {
					a := l.states[w]
					for s := range l.shards {
						says(l.Stored(s, w, a.step, one))
					}
					says(l.arrive(w, a.step, a.count))
				}
			case "arrive":
				for _, w := range workers("w") {
					says(l.arrive(w, l.states[w].step, l.states[w].count))
				}
			case "store":
				w := workers("w")[0]
				says(l.Stored(int(number("shard", 0)), w, l.states[w].step, one))
			case "told":
				w := workers("w")[0]
				m := wire.Bundle{Worker: w, Step: l.states[w].step}
				for _, v := range workers("in") {
					m.Members = append(m.Members, wire.Share{Worker: v, Step: l.states[v].step, Samples: l.states[v].count})
				}
				if k := len(m.Members); k > 0 {
					m.Members[k-1].Samples = int(number("samples", int64(m.Members[k-1].Samples)))
					m.Members[k-1].Step = number("step", m.Members[k-1].Step)
				}
				says(l.Reported(m))
			case "unreachable":
				w := workers("w")[0]
				says(l.unreachable(w, l.states[w].step), nil)
			case "fails":
				w := workers("w")[0]
				l.Blame(w, !d.HasArg("cut"), "why")
				says(l.Leave(w), nil)
			case "leave":
				says(l.Leave(workers("w")[0]), nil)
			case "waits":
				for _, w := range l.Lacking() {
					fmt.Fprintf(&out, "for %s", l.HoldsUp(w))
					if l.Owes(w) != nil {
						out.WriteString(" (owes it)")
					}
					out.WriteByte('\n')
				}
				fmt.Fprintf(&out, "to be done again: %v\n", l.progress().Redo)
				for _, a := range l.View().Aside {
					fmt.Fprintf(&out, "put aside: %v of %v: %s; %d dropped in all\n", a.Span, a.Workers, a.Why, l.waste)
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			// Shards that store one after the other say nothing until the last.
			return strings.TrimPrefix(strings.ReplaceAll("\n"+out.String(), "\n-\n-\n", "\n-\n"), "\n")
		})
	})
}

func tellOrder(out *strings.Builder, o *Ready) {
	list := func(gs []wire.Gradient) string {
		var s []string
		for _, g := range gs {
			text := fmt.Sprintf("%d.%d", g.Worker, g.Step)
			if g.Weight != 0 {
				text += fmt.Sprintf("×%.4g", g.Weight)
			}
			s = append(s, text)
		}
		return strings.Join(s, " ")
	}
	if f := &o.Fire; f.Seq > 0 {
		fmt.Fprintf(out, "fire %d: v%d of %s", f.Seq, f.Version, list(f.Gradients))
		if len(f.Gradients) < len(o.Members) {
			fmt.Fprintf(out, ", which have %s, stale %v", list(o.Members), o.Stale)
		}
		if len(f.Dropped) > 0 {
			fmt.Fprintf(out, "; drops %s", list(f.Dropped))
		}
		if len(f.Quiet) > 0 {
			fmt.Fprintf(out, "; quiet %v", f.Quiet)
		}
		out.WriteByte('\n')
	}
	for _, d := range o.Detached {
		fmt.Fprintf(out, "  tell %d: %d.%d is detached\n", d.Worker, d.Msg.Worker, d.Msg.Step)
	}
	for _, b := range o.Branches {
		fmt.Fprintf(out, "  branch %d.%d: parent %d, children %v", b.Worker, b.Step, b.Parent, b.Children)
		if b.Relay {
			out.WriteString(", relay")
		}
		out.WriteByte('\n')
	}
	for _, r := range o.Releases {
		fmt.Fprintf(out, "  release %d: v%d [%d,%d)", r.Worker, r.Version, r.Start, r.Start+int64(r.Count))
		if r.Pull {
			out.WriteString(" pull")
		}
		if r.Dropped {
			out.WriteString(" dropped")
		}
		out.WriteByte('\n')
	}
}
