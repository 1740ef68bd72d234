package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	core "star"
	"star/cmd/internal/chaos"
	"star/runlog"
	"star/train/checkpoint"
	"star/transport"
	"star/transport/wire"

	"star/cmd/tests/jobtest"
)

// between has a worker reach the coordinator through a relay that may change what the worker says. It returns the
// address that the worker is to use.
func between(g *jobtest.Job, change func(k wire.Kind, header []byte) []byte) (addr string) {
	g.T.Helper()
	return relay(g.T, g.Addr, change, nil)
}

// relay is between on the way to any address, and changes what comes back, too, unless down is nil.
func relay(t *testing.T, addr string, up, down func(k wire.Kind, header []byte) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	copies := func(out, in transport.Conn, change func(k wire.Kind, header []byte) []byte) {
		for {
			f, err := in.Recv()
			if err != nil {
				return
			}
			header := change(f.Kind, append([]byte(nil), f.Header...))
			payload, err := transport.ReadAll(in, f)
			if err != nil || out.WriteFrame(f.Kind, header, payload, transport.Sum(payload)) != nil {
				time.Sleep(time.Second) // for what the other side has to say of it
				return
			}
		}
	}
	pass := func(from net.Conn) {
		defer from.Close()
		to, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer to.Close()
		worker, server := transport.NewConn(from, transport.Limits{}), transport.NewConn(to, transport.Limits{})
		go func() {
			defer from.Close()
			if down == nil {
				io.Copy(from, to)
			} else {
				copies(worker, server, down)
			}
		}()
		copies(server, worker, up)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c)
		}
	}()
	return l.Addr().String()
}

// arrives changes the record of a gradient.
func arrives(change func(r *core.Record)) func([]byte) wire.Message {
	return func(header []byte) wire.Message {
		m, err := wire.ParseArrive(header)
		if err != nil {
			panic(err)
		}
		change(&m.Record)
		return m
	}
}

// One worker of a job of real processes says once what is not so: it loses its connection, and is named; all others end
// well, and every sample counts once.
func TestOneLiar(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("jobs of several processes")
	}
	finite := arrives(func(r *core.Record) { r.Norm2 = 1e308 })
	double := arrives(func(r *core.Record) { r.Norm2 *= 2 })
	ahead := arrives(func(r *core.Record) { r.Basis += 1000 })
	other := arrives(func(r *core.Record) { r.Worker = 0 })
	for _, c := range []struct {
		mode, name, why string
		kind            wire.Kind
		rank            int
		lie             func(header []byte) wire.Message
	}{
		{"ssgd", "a norm that nothing has", "norm2", wire.KindArrive, 2, finite},
		{"ssgd", "twice its norm", "squared norm", wire.KindArrive, 2, double},
		{"ssgd", "another one's gradient", "which is not its rank", wire.KindArrive, 2, other},
		{"auto", "a norm that nothing has", "norm2", wire.KindArrive, 2, finite},
		{"auto", "twice its norm", "squared norm", wire.KindArrive, 2, double},
		{"auto", "of a version to come", "the newest is", wire.KindArrive, 2, ahead},
		{"tree=0(1,2)", "a norm that nothing has", "norm2", wire.KindArrive, 2, finite},
		{"tree=2(0,1)", "more in its report than there is", "expected step", wire.KindBundle, 2, func(header []byte) wire.Message {
			m, err := wire.ParseBundle(header)
			if err != nil {
				panic(err)
			}
			m.Members[len(m.Members)-1].Samples++
			return m
		}},
		{"tree=0(1,2)", "another one's gradient", "which is not its rank", wire.KindArrive, 2, other},
		{"ring", "a loss that nothing has", "loss", wire.KindArrive, 2, arrives(func(r *core.Record) { r.Loss = math.MaxFloat64 })},
		{"ring", "a round to come", "under way", wire.KindTally, 2, func(header []byte) wire.Message {
			m, err := wire.ParseTally(header)
			if err != nil {
				panic(err)
			}
			m.Version += 1000
			return m
		}},
	} {
		t.Run(c.mode+"/"+c.name, func(t *testing.T) {
			const steps = 300
			args := []string{"--workers", "3", "--steps", fmt.Sprint(steps)}
			if c.mode == "ring" {
				args = append(args, "--arch", "allreduce", "--lr", "0.001") // ps0 has these, too
			} else {
				args = append(args, "--mode", c.mode)
			}
			g := jobtest.Start(t, 1, 2, args...)
			said := 0
			liar := *g
			liar.Addr = between(g, func(k wire.Kind, header []byte) []byte {
				if k == c.kind {
					if said++; said == 20 {
						return c.lie(header).AppendTo(nil)
					}
				}
				return header
			})
			liar.Worker(c.rank, g.Common)
			g.Ends("ps0", 0, "closed a connection that violated the protocol", fmt.Sprintf("worker %d", c.rank))
			g.Ends("w0", 0)
			g.Ends("w1", 0)
			if c.mode != "ring" { // where it may hear from the other members first
				g.Ends(fmt.Sprintf("w%d", c.rank), 78, c.why)
			}
			if s := g.Lines("summary"); len(s) != 1 || s[0]["samples"] != float64(3*8*steps) || s[0]["wasted_samples"] != 0. {
				t.Errorf("the summary is %v, want %d samples", s, 3*8*steps)
			}
			left := g.Lines("leave")
			if len(left) != 1 || left[0]["worker"] != float64(c.rank) || !strings.Contains(fmt.Sprint(left[0]["why"]), c.why) {
				t.Errorf("the run log says of those who left: %v", left)
			}
			if said < 20 {
				t.Errorf("it has said %d such things", said)
			}
		})
	}
}

// The coordinator is killed, and the first gradient that a worker tells of to the next one is not so: that worker loses
// its connection, the job goes on without it, and every sample counts once.
func TestLiarDuringATakeOver(t *testing.T) {
	if testing.Short() {
		t.Skip("jobs of several processes")
	}
	t.Parallel()
	for _, c := range []struct {
		arch    string
		daemons int
		kind    wire.Kind
		lie     func(header []byte) wire.Message
		why     string
	}{
		{"ps", 4, wire.KindArrive, arrives(func(r *core.Record) { r.Worker = 0 }), "which is not its rank"},
		{"allreduce", 3, wire.KindTally, func(header []byte) wire.Message {
			m, err := wire.ParseTally(header)
			if err != nil {
				panic(err)
			}
			m.Version += 1000
			return m
		}, "under way"},
	} {
		t.Run(c.arch, func(t *testing.T) {
			t.Parallel()
			var addrs, by []string
			for range 3 {
				addrs = append(addrs, jobtest.FreeAddr(t))
			}
			g := &jobtest.Job{T: t, Addr: addrs[0], Out: t.TempDir(), All: map[string]*jobtest.Process{}}
			args := []string{"--workers", "3", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--join-timeout", "3m",
				"--mode", "ssgd", "--steps", "1000000", "--eval-every", "0", "--checkpoint-every", "0", "--slow", "0:+5ms", "--arch", c.arch}
			common := append([]string{"--coordinators", strings.Join(addrs, ",")}, args...)
			for i := range c.daemons {
				listen, shards := "127.0.0.1:0", "1"
				if i < len(addrs) {
					listen, shards = addrs[i], "0"
				}
				g.Start(fmt.Sprintf("ps%d", i), append([]string{"ps", "--rank", fmt.Sprint(i), "--servers", fmt.Sprint(c.daemons), "--shards", shards, "--listen", listen,
					"--http", "off", "--out", g.Out, "--json"}, common...)...)
			}
			g.Worker(0, common)
			g.Worker(1, common)
			var killed atomic.Bool
			var said atomic.Int32 // to the next coordinator
			elsewhere := func(k wire.Kind, header []byte) []byte {
				if k != wire.KindElsewhere {
					return header
				}
				m, err := wire.ParseElsewhere(header)
				if err != nil {
					panic(err)
				}
				if i := slices.Index(addrs, m.Addr); i >= 0 {
					m.Addr = by[i]
				}
				return m.AppendTo(nil)
			}
			for _, a := range addrs {
				by = append(by, relay(t, a, func(k wire.Kind, header []byte) []byte {
					if k == c.kind && a != addrs[0] && killed.Load() && said.Add(1) == 1 {
						return c.lie(header).AppendTo(nil)
					}
					return header
				}, elsewhere))
			}
			liar := *g
			liar.Addr = by[0]
			liar.Worker(2, append([]string{"--coordinators", strings.Join(by, ",")}, args...))
			g.Training()
			g.Version(20)
			killed.Store(true)
			g.Signal("ps0", syscall.SIGKILL)
			<-g.All["ps0"].Done
			delete(g.All, "ps0")
			g.Until("the liar is thrown out", func() bool {
				return strings.Contains(g.Said("ps1")+g.Said("ps2"), "closed a connection that violated the protocol")
			})
			if c.arch == "ps" { // else it may hear from the other members first
				g.Ends("w2", 78, c.why)
			} else {
				g.Until("the liar ends", func() bool {
					select {
					case <-g.All["w2"].Done:
						return true
					default:
						return false
					}
				})
			}
			g.Until("the job is told to stop", func() bool {
				return slices.ContainsFunc(addrs[1:], func(a string) bool {
					return exec.Command(jobtest.Star(t), "ctl", "stop", "--coordinator", a).Run() == nil
				})
			})
			delete(g.All, "w2")
			closed := 0
			for name := range g.All {
				g.Ends(name, 0)
				closed += strings.Count(g.Said(name), "closed a connection that violated the protocol")
			}
			if closed != 1 {
				t.Errorf("%d connections were closed for what was said", closed)
			}
			logs, _ := filepath.Glob(filepath.Join(g.Out, "run*.jsonl"))
			// run.jsonl, then by term
			slices.SortFunc(logs, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
			life := readLife(t, logs)
			for _, v := range chaos.Judge([]*chaos.Attempt{life}, []int64{saved(t, logs[len(logs)-1])}, nil, 0, time.Minute) {
				if !v.OK {
					t.Errorf("%s: %s", v.Name, v.Detail)
				}
			}
			if life.Takeovers < 1 || life.Deaths != 1 || life.Samples != life.Limit {
				t.Errorf("%d take-overs, %d deaths, %d samples of %d", life.Takeovers, life.Deaths, life.Samples, life.Limit)
			}
		})
	}
}

// readLife reads the logs of the coordinators that a job had, in their order.
func readLife(t *testing.T, names []string) *chaos.Attempt {
	t.Helper()
	var logs [][]byte
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, b)
	}
	return chaos.ReadTerms(logs, names)
}

// saved is the version of the checkpoint that a job ended with.
func saved(t *testing.T, log string) int64 {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var end runlog.Summary
	if _, err := runlog.Read(f, log, func(l runlog.Line) error {
		if s, ok := l.Entry.(runlog.Summary); ok {
			end = s
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(end.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	return c.Manifest().Version
}

// A worker of a job of real processes says hello to the shard in the name of another one, with what it has: the shard
// refuses it, and no process loses anything.
func TestSecondHello(t *testing.T) {
	if testing.Short() {
		t.Skip("a job of several processes")
	}
	const steps = 100
	g := jobtest.Start(t, 1, 2, "--workers", "3", "--mode", "ssgd", "--steps", fmt.Sprint(steps))
	refused := 0
	err := rogue(g, 2, func(step int64, grad []float32) {
		hello := wire.Hello{Service: wire.ServiceShard, Role: wire.RoleWorker, Job: "star", Rank: int(step % 2), Params: int64(len(grad))}
		if step%3 > 0 {
			hello.Pass = g.Pass
		}
		if step%5 == 4 {
			hello.Role = wire.RoleServer
		}
		c, _, _, err := transport.Open(context.Background(), transport.NewTCP(transport.Config{}), g.Addr, hello, nil)
		if err == nil {
			c.Close()
		}
		if no, ok := errors.AsType[*transport.RejectError](err); !ok || no.Exit != 78 || !strings.Contains(no.Reason, "does not show") {
			t.Errorf("step %d: %v", step, err)
		}
		refused++
	})
	if err != nil || refused != steps {
		t.Errorf("%d hellos, then %v", refused, err)
	}
	for _, name := range []string{"ps0", "w0", "w1"} {
		g.Ends(name, 0)
	}
	accounted(g, 3*8*steps)
	if left := g.Lines("leave"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if said := g.Said("ps0"); strings.Contains(said, g.Pass) {
		t.Error("a pass is in the log")
	}
}
