package ending

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star"
)

// copies is a table of the servers that hold each shard.
type copies [][]int

func (c copies) On() bool { return len(c) > 0 }

func (c copies) Without(going func(int) bool) (int, bool) {
	shard := slices.IndexFunc(c, func(holders []int) bool {
		return !slices.ContainsFunc(holders, func(s int) bool { return !going(s) })
	})
	return shard, shard >= 0
}

// TestScripts runs the scripts in testdata. A command prints what the coordinator has to do, then the state if it has
// changed. Commands:
//
//	tell cause=why [grace=10] [cannot]      cannot: there is nothing that could be saved
//	next [saving] [unsettled] [lost] [saved] [buffers] [collected] [midway]
//	froze [still], saved, wind [with=why], abandon
//	job [ring] [unsettled] [stop] [atonce] [coordinators=1] [least=1] [grace=10] [held=(0,1)]
//	                                        members below: worker|server, rank by line, then words of here, holds, ring,
//	                                        coming, told=SECONDS; held: these servers have the copies of shard 0
//	yield                                   this process is to end
//	muster                                  what follows from those that leave, until nothing does
//	farewell workers=(0) servers=(1), came worker=0, came server=1, noticed, waits
//
// Each command takes place after= seconds after the one before.
// go test ./coord/ending -run Scripts -rewrite updates the expected output: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var (
			e     End
			j     Job
			f     Farewell
			state string
		)
		begin := time.Unix(1000, 0)
		now := begin
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string, def int) int {
				d.MaybeScanArgs(t, key, &def)
				return def
			}
			numbers := func(key string) (ns []int) {
				for _, a := range d.CmdArgs {
					for i := range a.Vals {
						if a.Key == key {
							ns = append(ns, 0)
							a.Scan(t, i, &ns[len(ns)-1])
						}
					}
				}
				return ns
			}
			text := func(key string) (s string) {
				d.MaybeScanArgs(t, key, &s)
				return s
			}
			now = now.Add(time.Duration(number("after", 0)) * time.Second)
			grace := time.Duration(number("grace", 10)) * time.Second
			var out strings.Builder
			switch d.Cmd {
			case "tell":
				fmt.Fprintf(&out, "first: %v\n", e.Tell(now, errors.New(text("cause")), grace, !d.HasArg("cannot")))
			case "next":
				s := e.Next(now, Facts{Saving: d.HasArg("saving"), Unsettled: d.HasArg("unsettled"), Survives: !d.HasArg("lost"), Saved: d.HasArg("saved"),
					Buffers: d.HasArg("buffers"), Collected: d.HasArg("collected"), Midway: d.HasArg("midway")})
				fmt.Fprintln(&out, [...]string{"wait", "ask", "curtail", "freeze", "save", "late", "over"}[s])
			case "froze":
				e.Froze(d.HasArg("still"))
			case "saved":
				e.Saved()
			case "wind":
				var err error
				if d.HasArg("with") {
					err = errors.New(text("with"))
				}
				e.Wind(err)
			case "abandon":
				e.Abandon()
			case "job":
				e = End{}
				j = Job{Sharded: !d.HasArg("ring"), Settled: !d.HasArg("unsettled"), StopOnFailure: d.HasArg("stop"), AtOnce: d.HasArg("atonce"),
					Coordinators: number("coordinators", 0), MinWorkers: number("least", 0), Grace: grace, Copies: copies{}}
				if d.HasArg("held") {
					j.Copies = copies{numbers("held")}
				}
				for line := range strings.Lines(d.Input) {
					words := strings.Fields(line)
					m := Member{Why: "SIGTERM"}
					for _, w := range words[1:] {
						var at int
						if n, _ := fmt.Sscanf(w, "told=%d", &at); n == 1 {
							m.Leaving = now.Add(time.Duration(at) * time.Second)
						}
						m.Here, m.Holds = m.Here || w == "here", m.Holds || w == "holds"
						m.InRing, m.Coming = m.InRing || w == "ring", m.Coming || w == "coming"
					}
					if words[0] == "worker" {
						j.Workers = append(j.Workers, m)
					} else {
						j.Servers = append(j.Servers, m)
					}
				}
			case "yield":
				e.Yield(now, errors.New("this one"))
			case "muster":
				for does := e.Muster(now, &j); does != nil; does = e.Muster(now, &j) {
					fmt.Fprintf(&out, "%s %+v\n", strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", does), "ending.")), does)
					if r, is := does.(Release); is && r.Server {
						j.Servers[r.Rank].Here = false
					} else if is {
						j.Workers[r.Rank].Here = false
					} else if s, is := does.(Stop); is {
						e.Tell(now, errors.New(s.Why), grace, true)
					}
				}
			case "farewell":
				var ws []star.Worker
				for _, w := range numbers("workers") {
					ws = append(ws, star.Worker(w))
				}
				shards := map[int]int{}
				for _, s := range numbers("servers") {
					shards[s] = 1
				}
				f = NewFarewell(now, ws, shards, 7*time.Second, 3*time.Second)
			case "came":
				if d.HasArg("server") {
					f.Came(true, number("server", 0))
				} else {
					f.Came(false, number("worker", 0))
				}
			case "noticed":
				f.Noticed(now)
			case "waits":
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			is := fmt.Sprintf("(cause %v, told %v, frozen %v, still %v, wound %v with %v)\n", e.Cause(), e.Told(), e.Frozen(), e.Still(), e.Wound(), e.With())
			if f.servers != nil {
				is = fmt.Sprintf("(over %v, until %v)\n", f.Over(now), f.Until().Sub(begin))
			}
			if is != state {
				state = is
				out.WriteString(is)
			}
			return out.String()
		})
	})
}
