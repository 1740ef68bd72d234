package takeover

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// claims replaces package copies: the servers with a copy of every shard, and the end of the history.
type claims struct {
	on       bool
	has      []int // servers with a copy of each shard
	from, to int64
}

func (c *claims) On() bool { return c.on }

func (c *claims) Elsewhere(server int, here func(int) bool) bool {
	return c.on && slices.ContainsFunc(c.has, func(s int) bool { return s != server && here(s) })
}

func (c *claims) Recover(term int64, here func(int) bool) (from, to int64, err error) {
	if !slices.ContainsFunc(c.has, here) {
		return 0, 0, errors.New("no copy of shard 0 is there")
	}
	return c.from, c.to, nil
}

// played are the Fires of a job of two workers with SSGD.
func played(t *testing.T, rounds int64, norm bool) (fires []Fire) {
	e := engine.NewShards(engine.Config{Plan: modes.SSGD(2), Workers: 2, Shards: 1, Batch: 4, Limit: 400, Norm: norm, WithMetadata: true})
	take := func(orders []engine.Ready) {
		for _, o := range orders {
			if o.Fire.Seq > 0 {
				fires = append(fires, Fire{o.Fire.AppendTo(nil), o.Metadata})
			}
		}
	}
	take(e.Begin(nil))
	for step := range rounds {
		for w := range star.Worker(2) {
			os, err := e.Stored(0, w, step, replica.Sum{Sum2: 1})
			if err != nil {
				t.Fatal(err)
			}
			take(os)
			if _, os, err = e.Arrive(star.Record{Worker: w, Step: step, Samples: 4}, false); err != nil {
				t.Fatal(err)
			}
			take(os)
		}
	}
	return fires
}

// kept is the metadata that a worker of a ring keeps after a number of updates.
func kept(t *testing.T, term, version int64) []byte {
	m := engine.Unreleased(engine.Progress{Version: version}, 2)
	m.Steps = []int64{version, version}
	e := engine.NewRing(engine.Config{Plan: modes.SSGD(2), Workers: 2, Batch: 4, Limit: 400, After: &m.Snapshot, Ring: new(engine.RingConfig)})
	return e.Metadata(term)
}

// TestScripts runs the scripts in testdata. A command prints what the coordinator has to do, then the state if it has
// changed. Commands:
//
//	inherit owners=(0,1) [ring] [fresh] [copies=(0,1)] [noclip] [norm] workers=(0,1)
//	                                       a job of 2 workers with shard I at owners[I], or a ring, that has made 3 updates
//	                                       (noclip: this process has no --clip); fresh: the training had not begun; copies:
//	                                       these servers have a copy of each shard
//	recover from=1 to=3                    what copies hold
//	reported server=0 seq=3 [keeps=2] [told=(1,2)] [shards=(0)] [version=-1]
//	                                       it was given the Fires up to seq and has those from keeps on; told: norms
//	fresh server=0, forget server=0, keep server=0 seq=3
//	settle
//	stand worker=0 [version=3 term=1 keeps=3] [broken]
//	gathered [joined=(0)] [linking=(1)] [least=2]
//	welcome worker=0 [trains]
//	resume joined=(0)
//	asks server=1 seq=3                    what else may be asked
//
// Each command takes place after= seconds after the one before.
// go test ./coord/takeover -run Scripts -rewrite updates the expected output: read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var (
			k     Takeover
			fires []Fire
			c     claims
			state string
		)
		now := time.Unix(0, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			number := func(key string, def int) int {
				d.MaybeScanArgs(t, key, &def)
				return def
			}
			numbers := func(key string) (ns []int) {
				for _, a := range d.CmdArgs {
					for i := range a.Vals {
						if a.Key == key && a.Vals[i] != "" {
							ns = append(ns, 0)
							a.Scan(t, i, &ns[len(ns)-1])
						}
					}
				}
				return ns
			}
			present := func() []Presence {
				out := make([]Presence, 2)
				for _, w := range numbers("linking") {
					out[w] = Linking
				}
				for _, w := range numbers("joined") {
					out[w] = Joined
				}
				return out
			}
			now = now.Add(time.Duration(number("after", 0)) * time.Second)
			server, seq, w := number("server", 0), int64(number("seq", 0)), star.Worker(number("worker", 0))
			var out strings.Builder
			fails := func(err error) {
				if err != nil {
					fmt.Fprintf(&out, "error %s: %v\n", strings.TrimPrefix(fmt.Sprintf("%T", err), "*"), err)
				}
			}
			switch d.Cmd {
			case "inherit":
				h := &Handover{Trains: time.Second, Limit: 400, Ring: d.HasArg("ring"), Counts: map[int]int{}, Steps: []int64{0, 0}}
				for shard, s := range numbers("owners") {
					h.Counts[s]++
					h.Owner, h.Shards = append(h.Owner, s), append(h.Shards, wire.ShardInfo{Shard: shard})
				}
				for _, w := range numbers("workers") {
					h.Workers = append(h.Workers, star.Worker(w))
				}
				if d.HasArg("fresh") {
					h.Trains, h.Steps = 0, nil
				}
				fires = played(t, 3, d.HasArg("norm"))
				c = claims{on: d.HasArg("copies"), has: numbers("copies")}
				k = Inherit(now, h, Job{Term: 7, Servers: 3, Workers: 2, Clips: !d.HasArg("noclip"), Copies: &c})
				state = ""
			case "recover":
				c.from, c.to = int64(number("from", 0)), int64(number("to", 0))
			case "reported":
				r := &Report{Standing: wire.Standing{Seq: seq}, Fires: map[int64]Fire{}}
				for s := int64(number("keeps", 1)); s <= seq; s++ {
					r.Fires[s] = fires[s-1]
				}
				for _, s := range numbers("told") {
					r.Applied = append(r.Applied, wire.Apply{Seq: int64(s), Norm: 5, Factor: 1})
				}
				shards := numbers("shards")
				if !d.HasArg("shards") {
					for shard, owner := range k.Left().Owner {
						if owner == server || c.on {
							shards = append(shards, shard)
						}
					}
				}
				for _, s := range shards {
					r.Shards = append(r.Shards, wire.ShardVersion{Shard: s, Version: int64(number("version", int(seq)))})
				}
				fails(k.Reported(now, server, r))
			case "fresh":
				k.Fresh(server)
			case "forget":
				k.Forget(server)
			case "keep":
				k.Keep(Norm{Server: server, Norm: wire.Norm{Seq: seq}})
			case "settle":
				effects, err := k.Settle(now)
				fails(err)
				for _, e := range effects {
					say(&out, e)
				}
			case "stand":
				var s *Stand
				if d.HasArg("version") {
					v := int64(number("version", 0))
					s = &Stand{Version: v, Step: v + 1, Told: []wire.Tally{{Version: v}}}
					if d.HasArg("keeps") {
						s.Metadata = kept(t, int64(number("term", 1)), int64(number("keeps", 0)))
					}
					if d.HasArg("broken") {
						s.Metadata = []byte("{")
					}
				}
				fails(k.Stand(w, s))
			case "gathered":
				fmt.Fprintf(&out, "%v, with the parameters of %v\n", k.Gathered(now, number("least", 0), present()), k.With(present()))
			case "welcome":
				m := wire.Welcome{Version: 1, Step: 2}
				k.Welcome(w, d.HasArg("trains"), &m)
				fmt.Fprintf(&out, "seed %v, version %d, step %d\n", m.Seed, m.Version, m.Step)
			case "resume":
				after, limit := k.Resume()
				fmt.Fprintf(&out, "behind fire %d, version %d, %d samples, steps %v, up to %d\n", after.Seq, after.Version, after.Samples, after.Steps, limit)
				told := k.Told(present())
				fmt.Fprintf(&out, "before %v, with %v", told.Before, told.With)
				for _, m := range told.Tallies {
					fmt.Fprintf(&out, ", told of version %d", m.Version)
				}
				fmt.Fprintf(&out, "\n%d lines of updates, then %d\n", len(k.Recalls()), len(k.Recalls()))
				fmt.Fprintf(&out, "%+v\n", k.Term(now, after.Version, after.Samples))
			case "asks":
				fmt.Fprintf(&out, "here %v, needed %v, %d shards, fired %v, young %v\n", k.Here(server), k.Needs(server), k.Shards(server), k.Fired(seq), k.Young(now, 2*time.Second))
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if is := fmt.Sprintf("(on %v, trained %v, settling %v)\n", k.On(), k.Trained(), k.Settling()); is != state {
				state = is
				out.WriteString(is)
			}
			return out.String()
		})
	})
}

func say(out *strings.Builder, e Effect) {
	switch e := e.(type) {
	case Expect:
		fmt.Fprintf(out, "expect norms of fire %d\n", e.Seq)
	case Give:
		f, _ := wire.ParseFire(e.Header)
		fmt.Fprintf(out, "give server %d fire %d\n", e.Server, f.Seq)
	case Offer:
		out.WriteString("offer again:")
		for _, f := range e.Fires {
			fmt.Fprintf(out, " %d (silent %v)", f.Fire.Seq, f.Silent)
		}
		out.WriteByte('\n')
	case Pass:
		fmt.Fprintf(out, "pass server %d the norm of fire %d\n", e.Server, e.Seq)
	case Count:
		fmt.Fprintf(out, "count the norm of server %d, fire %d\n", e.Server, e.Seq)
	case Settled:
		fmt.Fprintf(out, "settled behind fire %d, version %d, %d samples\n", e.Seq, e.Version, e.Samples)
	default:
		fmt.Fprintf(out, "%s %+v\n", strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "takeover.")), e)
	}
}

// TestEnlist checks that only live workers are recorded, and every rank's step.
func TestEnlist(t *testing.T) {
	h := Handover{Workers: []star.Worker{0, 1, 2}, Steps: []int64{1}}
	h.Enlist([]int64{4, -1, 6}, func(w star.Worker) bool { return w == 2 })
	if !slices.Equal(h.Workers, []star.Worker{2}) || !slices.Equal(h.Steps, []int64{4, -1, 6}) {
		t.Errorf("%v, %v", h.Workers, h.Steps)
	}
}
