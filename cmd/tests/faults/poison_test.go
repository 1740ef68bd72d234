package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	core "star"
	"star/coord/session"
	"star/internal/kernel"
	"star/ps"
	"star/train/data"
	"star/train/net"
	"star/transport"
	"star/transport/wire"

	"star/cmd/tests/jobtest"
)

// rogue is a worker of this test's own in a job of real processes: it computes what the job asks for, and spoil changes
// what it pushes. It returns when the coordinator has ended it, with the reason.
func rogue(g *jobtest.Job, rank int, spoil func(step int64, grad []float32)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	set, tests, err := data.Open("digits:n=400,test=100", data.Options{})
	if err != nil {
		return err
	}
	spec, err := net.Parse("softmax")
	if err != nil {
		return err
	}
	spec.Input, spec.Batch, spec.Seed = set.Input(), 32, 1
	hash, err := net.Hash(spec)
	if err != nil {
		return err
	}
	model, err := net.Build(spec)
	if err != nil {
		return err
	}
	defer model.Close()
	loader := data.NewLoader(set, data.Stream{Seed: 1})
	defer loader.Close()
	hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "star", Rank: rank, Model: "softmax", ModelHash: hash, Params: int64(len(model.Params()))}
	var layout []session.Tensor
	for _, s := range model.Layout() {
		layout = append(layout, session.Tensor(s))
	}
	tcp := transport.NewTCP(transport.Config{})
	m, err := session.Join(ctx, session.MemberConfig{Network: tcp, Addr: g.Addr, Hello: hello,
		Enrol: &session.Enrolment{Layout: layout, Data: set.Name(), Samples: int64(set.Len()), Tests: int64(tests.Len())}})
	if err != nil {
		return err
	}
	defer m.Close()
	defer context.AfterFunc(ctx, func() { m.Close() })()
	hello.Pass, g.Pass = m.Welcome.Pass, m.Welcome.Pass
	l, err := ps.Dial(ctx, ps.LinkConfig{Network: tcp, Shards: m.Welcome.Shards, Hello: hello, Params: model.Params(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer l.Close()
	if m.Welcome.Seed {
		if err := l.Init(ctx); err != nil {
			return err
		}
	}
	if err := session.Say(m, wire.Joined{Worker: core.Worker(rank)}, nil); err != nil {
		return err
	}
	m.Beat()
	grad := make([]float32, len(model.Params()))
	lost := func(err error) error { // the coordinator may know why
		defer time.AfterFunc(time.Second, func() { m.Close() }).Stop()
		if _, why := m.Next(); why != nil {
			return why
		}
		return err
	}
	for step := int64(0); ; {
		rel, err := m.Next()
		if err != nil {
			return err
		}
		if rel.Action == wire.Stop {
			return nil
		}
		if rel.Pull {
			_, err = l.Pull(ctx, rel.Version)
		} else {
			_, err = l.Wait(ctx, rel.Version)
		}
		if err != nil {
			return lost(err)
		}
		if rel.Action != wire.Continue { // it says that it has got everything wrong
			if err := session.Say(m, wire.EvalResult{Worker: core.Worker(rank), Eval: rel.Eval, Version: rel.Version, Count: (rel.To - rel.From) * int64(tests.Len()) / 10_000}, nil); err != nil {
				return err
			}
		}
		if rel.Action == wire.Finish {
			continue
		}
		batch, err := loader.Next(rel.Start, rel.Count)
		if err != nil {
			return err
		}
		if _, err := model.Grad(ctx, grad, batch); err != nil {
			return err
		}
		spoil(step, grad)
		if err := l.Push(ctx, step, rel.Version, rel.Count, grad); err != nil {
			return lost(err)
		}
		if err := session.Say(m, wire.Arrive{Record: core.Record{Worker: core.Worker(rank), Step: step, Basis: rel.Version, Samples: rel.Count, Loss: 1, Norm2: kernel.SumSq(grad)}}, nil); err != nil {
			return err
		}
		step++
	}
}

// Gradients that do not belong, in a job of real processes: found, named and left out, or the end of the job.
func TestPoison(t *testing.T) {
	if testing.Short() {
		t.Skip("four jobs of several processes")
	}
	nan := float32(math.NaN())
	flip := func(_ int64, grad []float32) {
		for i := range grad {
			grad[i] = -grad[i]
		}
	}
	for _, c := range []struct {
		name, policy, cause string
		spoil               func(step int64, grad []float32)
		lines               int // of the run log; 0: any
		steps               int64
	}{
		{"NaN", "skip", "not-finite", func(step int64, grad []float32) {
			if step == 20 || step == 30 {
				grad[len(grad)-1] = nan
			}
		}, 2, 100},
		{"exploding", "fatal", "exploding", func(step int64, grad []float32) {
			if step == 40 {
				grad[7] = 1e20
			}
		}, 1, 100},
		{"flipped", "skip", "flipped", flip, 0, 300},
		{"off", "off", "", flip, 0, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := jobtest.Start(t, 2, 2, "--workers", "3", "--mode", "ssgd", "--batch", "32", "--steps", strconv.FormatInt(c.steps, 10), "--poison", c.policy)
			err := rogue(g, 2, c.spoil)
			if c.policy == "fatal" {
				var rejected *transport.RejectError
				if !errors.As(err, &rejected) || rejected.Exit != 70 || !strings.Contains(err.Error(), "worker 2, step 40") {
					t.Errorf("the rogue hears %v, want the end of the job with exit code 70", err)
				}
				g.Ends("ps0", 70, "poison: the gradient of worker 2, step 40, has a norm ", "--poison fatal")
				for _, name := range []string{"ps1", "w0", "w1"} {
					g.Ends(name, 70)
				}
			} else {
				if err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("the rogue: %v", err)
				}
				for _, name := range []string{"ps0", "ps1", "w0", "w1"} {
					g.Ends(name, 0)
				}
				accounted(g, 3*32*c.steps)
			}
			lines := g.Lines("poison")
			if c.lines > 0 && len(lines) != c.lines || (len(lines) > 0) != (c.cause != "") {
				t.Fatalf("%d lines about poison, want %d: %v", len(lines), c.lines, lines)
			}
			for _, l := range lines {
				if l["worker"] != 2. || l["cause"] != c.cause || l["policy"] != c.policy {
					t.Errorf("%v", l)
				}
			}
			for _, r := range g.Lines("summary") {
				if loss, ok := r["train_loss"].(float64); c.policy == "skip" && (!ok || math.IsNaN(loss)) {
					t.Errorf("the parameters are spoilt: %v", r)
				}
			}
			if said := fmt.Sprint(lines); c.name == "NaN" && !strings.Contains(said, "shards [1]") {
				t.Errorf("it does not say where: %s", said)
			}
		})
	}
}
