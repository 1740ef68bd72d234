package modes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star"
)

// TestScripts runs the lives of barriers in testdata/barrier. Commands:
//
//	new n=4            a barrier for workers 0..n-1, with the plan below
//	install            the plan below; "shares" are part of it
//	arrive w=2         also w=(0,1,2): one after the other
//	report w=(0,1,2)   one report of several
//	leave w=2
//	retire w=2
//	join w=2
//	lapse n=1          the first grace has passed
//	waiting            the waiting workers in order of arrival, and the workers that each one waits for
//
// go test ./modes -run Scripts -rewrite writes the answers again: read the diff.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/barrier/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			var b *Barrier
			n := 0
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				plan := func() Plan {
					p, err := Parse(d.Input, n)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					return p
				}
				var out strings.Builder
				each := func(f func(w star.Worker) []Firing) {
					for i := range d.CmdArgs[0].Vals {
						var w int
						d.CmdArgs[0].Scan(t, i, &w)
						tell(&out, f(star.Worker(w)))
					}
				}
				switch d.Cmd {
				case "new":
					d.ScanArgs(t, "n", &n)
					p := plan()
					b = NewBarrier(p, n, 0)
					return p.String() + "\n"
				case "install":
					tell(&out, b.Install(plan()))
				case "arrive":
					each(b.Arrive)
				case "report":
					ws := make([]star.Worker, len(d.CmdArgs[0].Vals))
					for i := range ws {
						var w int
						d.CmdArgs[0].Scan(t, i, &w)
						ws[i] = star.Worker(w)
					}
					tell(&out, b.Report(ws))
				case "leave":
					each(b.Leave)
				case "retire":
					each(b.Retire)
				case "join":
					each(func(w star.Worker) []Firing { b.Join(w); return nil })
				case "lapse":
					var k int
					d.ScanArgs(t, "n", &k)
					tell(&out, b.Lapse(int64(k)))
				case "waiting":
					fmt.Fprintf(&out, "v%d; %v wait for %v\n", b.Version(), b.Waiting(), b.Missing())
				default:
					d.Fatalf(t, "unknown command %s", d.Cmd)
				}
				for _, k := range b.Graces() {
					fmt.Fprintf(&out, "grace %d begins\n", k)
				}
				return out.String()
			})
		})
	}
}

func tell(out *strings.Builder, fs []Firing) {
	if len(fs) == 0 {
		out.WriteString("-\n")
	}
	for _, f := range fs {
		fmt.Fprintf(out, "v%d", f.Version)
		if len(f.Workers) > 0 {
			verb := "releases"
			if f.Banked {
				verb = "takes"
			}
			fmt.Fprintf(out, " %s %s", verb, strings.Trim(fmt.Sprint(f.Workers), "[]"))
		}
		if len(f.NonBlocking) > 0 {
			fmt.Fprintf(out, " goes on with %s", strings.Trim(fmt.Sprint(f.NonBlocking), "[]"))
		}
		if len(f.Dropped) > 0 {
			fmt.Fprintf(out, " drops %s", strings.Trim(fmt.Sprint(f.Dropped), "[]"))
		}
		if len(f.Stopped) > 0 {
			fmt.Fprintf(out, " stops %s", strings.Trim(fmt.Sprint(f.Stopped), "[]"))
		}
		if len(f.Freed) > 0 {
			fmt.Fprintf(out, " frees %s", strings.Trim(fmt.Sprint(f.Freed), "[]"))
		}
		out.WriteByte('\n')
	}
}
