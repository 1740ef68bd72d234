package moves

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/coord/engine"
	"star/transport/wire"
)

// TestScripts runs the scripts in testdata/scripts. A command prints what the coordinator has to do. Commands:
//
//	begin shard=1 from=1 to=2 [copy]    the shard has 1024 MiB
//	said prepared|loaded|complete       the target says so; server=, move= and err= of the message
//	tick                                time has passed
//	gone server=1                       a server is lost
//	drop                                the job ends
//	order worker=0 [release]            an order is due, the release of a worker
//	strike worker=0                     a worker is gone
//	after id=7
//
// Each command takes place after= seconds after the one before. With saving a checkpoint is being written.
// go test ./coord/moves -run Scripts -rewrite writes the answers again: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var m Mover
		now := time.Unix(0, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string, def int) int {
				d.MaybeScanArgs(t, key, &def)
				return def
			}
			text := func(key string) (s string) {
				d.MaybeScanArgs(t, key, &s)
				return s
			}
			now = now.Add(time.Duration(number("after", 0)) * time.Second)
			saving := d.HasArg("saving")
			var out strings.Builder
			says := func(effects []Effect) {
				for _, e := range effects {
					say(&out, &m, e)
				}
			}
			switch d.Cmd {
			case "begin":
				says(m.Begin(now, Job{
					ShardInfo: wire.ShardInfo{Shard: number("shard", 0), Addr: "old:7", From: 1 << 28, To: 2 << 28},
					Source:    number("from", 0), Target: number("to", 0), Copy: d.HasArg("copy"),
				}))
			case "said":
				msg := wire.Moved{Move: int64(number("move", int(m.Last()))), Version: int64(number("version", 0)), Err: text("err")}
				for stage, name := range []string{"prepared", "loaded", "complete"} {
					if d.HasArg(name) {
						msg.Stage = wire.MovedStage(stage)
					}
				}
				says(m.Said(now, number("server", m.job.Target), msg, saving))
			case "tick":
				says(m.Tick(now, saving))
			case "gone":
				server := number("server", 0)
				if shard, target, passing := m.Passing(server); passing {
					fmt.Fprintf(&out, "it had to pass on gradients of shard %d to server %d\n", shard, target)
				}
				says(m.Gone(server, errors.New("why")))
			case "drop":
				says(m.Drop("the job ends"))
			case "order":
				o := engine.Ready{Releases: []wire.Release{{Worker: star.Worker(number("worker", 0))}}}
				if !m.Hold(now, []engine.Ready{o}) {
					out.WriteString("carried out at once\n")
				}
			case "strike":
				m.Strike(star.Worker(number("worker", 0)))
			case "after":
				m.After(int64(number("id", 0)))
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if shard, busy := m.Busy(); busy {
				fmt.Fprintf(&out, "(move %d of shard %d is under way; waiting for %q)\n", m.Last(), shard, m.Waits())
			}
			return out.String()
		})
	})
}

func say(out *strings.Builder, m *Mover, e Effect) {
	switch e := e.(type) {
	case Adopt:
		fmt.Fprintf(out, "to server %d: %s %+v\n", e.Server, [...]string{"prepare", "own", "forget"}[e.Stage], e.Adopt)
	case Hand:
		fmt.Fprintf(out, "to server %d: %s shard %d, move %d\n", e.Server, [...]string{"give", "gone", "keep", "lend", "shared"}[e.Stage], e.Shard, e.Move)
	case Place:
		fmt.Fprintf(out, "place shard %d at server %d, copied at %.3g MiB/s\n", e.Shard, e.Server, e.Rate/(1<<20))
	case Ended:
		fmt.Fprintf(out, "ended: %+v\n", e.Move)
	case Resume:
		fmt.Fprintf(out, "resume:")
		for _, o := range m.Take() {
			for _, r := range o.Releases {
				fmt.Fprintf(out, " release %d", r.Worker)
			}
		}
		out.WriteByte('\n')
	default:
		fmt.Fprintf(out, "%s: %+v\n", strings.TrimPrefix(fmt.Sprintf("%T", e), "moves."), e)
	}
}
