package copies

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/coord/engine"
	"star/ps/replica"
	"star/transport/wire"
)

// TestScripts runs the scripts in testdata. A command prints what the coordinator has to do, then which servers hold
// each shard where that has changed. Commands:
//
//	place copies=2 servers=3 primaries=(0,1)
//	loaded server=1 shard=0               it has the parameters; spares server=1: the others have all of them, too
//	stored server=1 worker=0 step=3       it holds the gradient in all its shards, or in shard=0; sum= it says
//	offer seq=1 worker=0 [norm]           an order, with a firing if seq is given, from which a release follows
//	keep worker=1, strike worker=1
//	held server=1 seq=1 [term=1]          the server holds the firings of all shards, or of shard=0
//	norm server=1 shard=0 seq=1
//	gone server=1
//	tick [gone=(2)]                       nothing is copied now
//	lend shard=0 server=2 seq=1, share, uncopied, unshare [lost]
//	waits                                 servers that have not reported; gone=(0,1): a shard that would be lost
//	inherit copies=2 term=7               views below, one for a shard: term, primary, followers
//	claim server=1 shard=0 seq=3, disclaim server=1
//	elsewhere server=1 here=(0,2), recover here=(0,2)
//
// Each command takes place after= seconds after the one before.
// go test ./coord/copies -run Scripts -rewrite writes the answers again: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var k Copies
		var views []string
		servers := 0
		now := time.Unix(0, 0)
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
			in := func(key string) func(int) bool {
				return func(server int) bool { return slices.Contains(numbers(key), server) }
			}
			now = now.Add(time.Duration(number("after", 0)) * time.Second)
			server, shard, seq := number("server", 0), number("shard", -1), int64(number("seq", 0))
			places := func() []replica.Server {
				out := make([]replica.Server, servers)
				counts := k.Counts(nil)
				for s := range out {
					out[s] = replica.Server{Host: fmt.Sprint(s), Gone: in("gone")(s), Copies: counts[s]}
				}
				return out
			}
			var out strings.Builder
			says := func(effects []Effect) {
				for _, e := range effects {
					say(&out, e)
				}
			}
			switch d.Cmd {
			case "place":
				servers = number("servers", 0)
				var err error
				if k, err = Place(number("copies", 0), places(), numbers("primaries")); err != nil {
					fmt.Fprintf(&out, "error: %v\n", err)
				}
				fmt.Fprintf(&out, "on: %v\n", k.On())
			case "loaded":
				k.Loaded(server, shard, !d.HasArg("not"))
				fmt.Fprintf(&out, "ready: %v\n", k.Ready(shard))
			case "spares":
				fmt.Fprintf(&out, "%v\n", k.Spares(server, in("gone")))
			case "answers":
				fmt.Fprintf(&out, "%v\n", k.Answers(server, shard))
			case "stored":
				for i := range max(1, len(k.shards)) {
					if shard >= 0 && shard != i {
						continue
					}
					sums := k.Stored(server, wire.Stored{Shard: i, Worker: star.Worker(number("worker", 0)), Step: int64(number("step", 0)), Sum2: float64(number("sum", 1))})
					if sums != nil {
						fmt.Fprintf(&out, "shard %d has it: %v\n", i, sums)
					}
				}
			case "offer":
				o := engine.Ready{Fire: wire.Fire{Seq: seq}, Releases: []wire.Release{{Worker: star.Worker(number("worker", 0))}}}
				if fs := k.Offer(&o); fs != nil {
					fmt.Fprintf(&out, "tell followers %v\n", fs)
				}
			case "keep":
				fmt.Fprintf(&out, "%v\n", k.Keep(wire.Release{Worker: star.Worker(number("worker", 0))}))
			case "strike":
				k.Strike(star.Worker(number("worker", 0)))
			case "held":
				for i := range k.shards {
					if shard < 0 || shard == i {
						k.Held(server, wire.Held{Shard: i, Term: int64(number("term", int(k.View(i).Term))), Seq: seq})
					}
				}
			case "norm":
				k.Said(Norm{Server: server, Norm: wire.Norm{Shard: shard, Seq: seq}})
			case "gone":
				says(k.Gone(server, "why"))
			case "tick":
				says(k.Tick(now, places()))
			case "lend":
				if err := k.Lend(shard, server, seq); err != nil {
					fmt.Fprintf(&out, "error: %v\n", err)
				}
			case "share":
				effects, err := k.Share(shard, server, 3*time.Second)
				if says(effects); err != nil {
					fmt.Fprintf(&out, "error: %v\n", err)
				}
			case "uncopied":
				says(k.Uncopied(now, shard, server, "why"))
			case "unshare":
				says(k.Unshare(now, shard, server, "why", d.HasArg("lost")))
			case "waits":
				fmt.Fprintf(&out, "for %q\n", k.Waits())
				if shard, without := k.Without(in("gone")); without {
					fmt.Fprintf(&out, "no holder of shard %d would stay\n", shard)
				}
			case "inherit":
				var vs []replica.View
				for line := range strings.Lines(d.Input) {
					var ns []int
					for f := range strings.FieldsSeq(line) {
						ns = append(ns, 0)
						fmt.Sscan(f, &ns[len(ns)-1])
					}
					vs = append(vs, replica.View{Term: int64(ns[0]), Primary: ns[1], Followers: ns[2:]})
				}
				k = Inherit(number("copies", 0), vs, int64(number("term", 0)))
			case "claim":
				k.Claim(server, shard, seq)
			case "disclaim":
				k.Disclaim(server)
			case "elsewhere":
				fmt.Fprintf(&out, "%v\n", k.Elsewhere(server, in("here")))
			case "recover":
				from, to, err := k.Recover(int64(number("term", 0)), in("here"))
				if err != nil {
					fmt.Fprintf(&out, "error: %v\n", err)
					break
				}
				fmt.Fprintf(&out, "firings behind %d up to %d are offered again\n", from, to)
				says(k.Extras(in("here")))
				for _, s := range numbers("missing") {
					says(k.Missed(s))
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			for e := k.Next(); e != nil; e = k.Next() {
				say(&out, e)
			}
			var are []string
			for i, v := range k.Views() {
				are = append(are, fmt.Sprintf("shard %d, term %s: %v", i, term(v.Term), Holders(v)))
			}
			if !slices.Equal(are, views) {
				views = are
				fmt.Fprintf(&out, "(%s)\n", strings.Join(are, "; "))
			}
			return out.String()
		})
	})
}

// term is a term with the generation of its coordinator, if it has one.
func term(t int64) string {
	if t>>32 == 0 {
		return fmt.Sprint(t)
	}
	return fmt.Sprintf("%d/%d", t>>32, t&(1<<32-1))
}

func say(out *strings.Builder, e Effect) {
	switch e := e.(type) {
	case Fire:
		fmt.Fprintf(out, "fire %d\n", e.Fire.Seq)
	case Follow:
		fmt.Fprintf(out, "follow %d:", e.Fire.Seq)
		for _, r := range e.Releases {
			fmt.Fprintf(out, " release %d", r.Worker)
		}
		out.WriteByte('\n')
	case Norm:
		fmt.Fprintf(out, "norm of server %d, shard %d, firing %d\n", e.Server, e.Shard, e.Seq)
	case Note:
		l := e.Replica
		fmt.Fprintf(out, "note: %s shard %d, server %d, %q; term %s, primary %d, followers %v of %d", l.Event, l.Shard, l.Server, l.Why, term(l.Term), l.Primary, l.Followers, l.Of)
		if l.Took > 0 {
			fmt.Fprintf(out, ", took %v s", l.Took)
		}
		out.WriteByte('\n')
	case Whole:
		fmt.Fprintf(out, "shard %d has step %d of worker %d: %v\n", e.Shard, e.Step, e.Worker, e.Sums)
	default:
		fmt.Fprintf(out, "%s %+v\n", strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "copies.")), e)
	}
}
