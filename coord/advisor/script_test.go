package advisor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"star/coord/advice"
	"star/modes"
)

// TestScripts runs the scripts in testdata. Each prints the effects of its commands. Commands:
//
//	ask mode=asgd after=3             the pilot asks for a plan; requests have the numbers 1, 2, …
//	rule n=1 yes|no [unheeded=why]    the answer to one
//	yield
//	forget                            another plan is in force
//
//	thresholds a=1 b=2                the job has these
//	set a=1                           changes, one in each line of the input
//
// go test ./coord/advisor -run Scripts -rewrite updates the expected output: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var p Permits
		var ts Thresholds
		var asked []*Request
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			says := func(effects []Effect) {
				for _, e := range effects {
					name := strings.TrimPrefix(fmt.Sprintf("%T", e), "advisor.")
					switch e := e.(type) {
					case Answered:
						fmt.Fprintf(&out, "%s: %v %v: %s\n", name, e.Plan, e.OK, e.Ruling.Why)
					case Install:
						fmt.Fprintf(&out, "%s: %v after %d\n", name, e.Plan, e.After)
					case Home:
						fmt.Fprintf(&out, "%s: %s\n", name, e.Why)
						p.Forget() // as the coordinator does with the new plan
					case GiveBack:
						fmt.Fprintln(&out, name)
					case Denied:
						p.Deny(e.Ruling, 9)
						fmt.Fprintln(&out, name)
					}
				}
			}
			text := func(key string) (s string) {
				d.MaybeScanArgs(t, key, &s)
				return s
			}
			number := func(key string) (n int) {
				d.MaybeScanArgs(t, key, &n)
				return n
			}
			switch d.Cmd {
			case "ask":
				plan, err := modes.Parse(text("mode"), 2)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				asked = append(asked, &Request{advice.Change{Plan: plan, Why: "it is faster"}, int64(number("after"))})
				says(p.Ask(asked[len(asked)-1]))
			case "rule":
				says(p.Rule(Ruling{asked[number("n")-1], d.HasArg("yes"), "room or none"}, text("unheeded")))
			case "yield":
				says(p.Yield("another_plan"))
			case "forget":
				p.Forget()
			case "thresholds":
				values := map[string]float64{}
				for _, a := range d.CmdArgs {
					values[a.Key] = float64(number(a.Key))
				}
				ts = NewThresholds(values)
				return ""
			case "set":
				wanted, err := ts.Parse(strings.Fields(d.Input))
				if err != nil {
					return err.Error()
				}
				before := ts.All()
				for _, c := range ts.Put(wanted) {
					fmt.Fprintf(&out, "%s from %v to %v\n", c.Name, c.From, c.To)
				}
				for _, n := range ts.Now(wanted, before) {
					fmt.Fprintf(&out, "%s %v, was %v: %s\n", n.Name, n.Value, n.From, n.Text)
				}
				return out.String()
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if r := p.Refused(); r != nil {
				fmt.Fprintf(&out, "(refused: %+v)\n", *r)
			}
			return out.String()
		})
	})
}
