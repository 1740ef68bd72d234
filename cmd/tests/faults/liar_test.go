package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	core "star"
	"star/transport"

	"star/cmd/tests/jobtest"
)

// between has a worker reach the coordinator by way of somebody who may change what it says. It returns where the worker is to go.
func between(g *jobtest.Job, change func(k transport.Kind, header []byte) []byte) (addr string) {
	g.T.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { l.Close() })
	pass := func(from net.Conn) {
		defer from.Close()
		to, err := net.Dial("tcp", g.Addr)
		if err != nil {
			return
		}
		defer to.Close()
		go func() {
			defer from.Close()
			io.Copy(from, to)
		}()
		in, out := transport.NewConn(from, transport.Limits{}), transport.NewConn(to, transport.Limits{})
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
func arrives(change func(r *core.Record)) func([]byte) transport.Message {
	return func(header []byte) transport.Message {
		m, err := transport.ParseArrive(header)
		if err != nil {
			panic(err)
		}
		change(&m.Record)
		return m
	}
}

// One worker of a job of real processes says once what is not so: it loses its connection, and is named; all others end well, and every sample counts once.
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
		kind            transport.Kind
		rank            int
		lie             func(header []byte) transport.Message
	}{
		{"ssgd", "a norm that nothing has", "norm2", transport.KindArrive, 2, finite},
		{"ssgd", "twice its norm", "squared norm", transport.KindArrive, 2, double},
		{"ssgd", "another one's gradient", "which it is not", transport.KindArrive, 2, other},
		{"auto", "a norm that nothing has", "norm2", transport.KindArrive, 2, finite},
		{"auto", "twice its norm", "squared norm", transport.KindArrive, 2, double},
		{"auto", "of a version to come", "the newest is", transport.KindArrive, 2, ahead},
		{"tree=0(1,2)", "a norm that nothing has", "norm2", transport.KindArrive, 2, finite},
		{"tree=2(0,1)", "more in its report than there is", "expected step", transport.KindBundle, 2, func(header []byte) transport.Message {
			m, err := transport.ParseBundle(header)
			if err != nil {
				panic(err)
			}
			m.Members[len(m.Members)-1].Samples++
			return m
		}},
		{"tree=0(1,2)", "another one's gradient", "which it is not", transport.KindArrive, 2, other},
		{"ring", "a loss that nothing has", "loss", transport.KindArrive, 2, arrives(func(r *core.Record) { r.Loss = math.MaxFloat64 })},
		{"ring", "a round to come", "under way", transport.KindTally, 2, func(header []byte) transport.Message {
			m, err := transport.ParseTally(header)
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
				args = append(args, "--arch", "allreduce", "--lr", "0.001") // which ps0 is told, too
			} else {
				args = append(args, "--mode", c.mode)
			}
			g := jobtest.Start(t, 1, 2, args...)
			said := 0
			liar := *g
			liar.Addr = between(g, func(k transport.Kind, header []byte) []byte {
				if k == c.kind {
					if said++; said == 20 {
						return c.lie(header).AppendTo(nil)
					}
				}
				return header
			})
			liar.Worker(c.rank, g.Common)
			g.Ends("ps0", 0, "closing a connection that broke the protocol", fmt.Sprintf("worker %d", c.rank))
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

// A worker of a job of real processes says hello to the shard in the name of another one, with what it has: the shard refuses it, and nobody loses anything.
func TestSecondHello(t *testing.T) {
	if testing.Short() {
		t.Skip("a job of several processes")
	}
	const steps = 100
	g := jobtest.Start(t, 1, 2, "--workers", "3", "--mode", "ssgd", "--steps", fmt.Sprint(steps))
	refused := 0
	err := rogue(g, 2, func(step int64, grad []float32) {
		hello := transport.Hello{Service: transport.ServiceShard, Role: transport.RoleWorker, Job: "star", Rank: int(step % 2), Params: int64(len(grad))}
		if step%3 > 0 {
			hello.Pass = g.Pass
		}
		if step%5 == 4 {
			hello.Role = transport.RoleServer
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
