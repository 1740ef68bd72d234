package node

import (
	"context"
	"errors"
	"log/slog"
	gonet "net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"star"
	"star/cmd/internal/settings"
	"star/coord"
	"star/ps"
	"star/train/net"
	"star/transport"
)

func setting(t *testing.T, role settings.Role, args ...string) *settings.Job {
	t.Helper()
	job, cmd := new(settings.Job), &cobra.Command{}
	job.Bind(cmd, role)
	if err := cmd.ParseFlags(append([]string{"--model", "softmax", "--dataset", "digits:n=60,test=20", "--batch", "4", "--workers", "3"}, args...)); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Load(nil); err != nil {
		t.Fatal(err)
	}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	return job
}

// puppet is the worker at the top of a tree, in a job whose others are real.
type puppet struct {
	addr     string                                                        // that it tells the others
	collect  func(p *puppet, children []transport.Child) []transport.Share // of others, when it hands over
	member   *coord.Member
	branches int
	detached []transport.Detach
}

// detach waits until the coordinator says that a gradient goes another way.
func (p *puppet) detach(c transport.Child) error {
	for !slices.Contains(p.detached, transport.Detach(c)) {
		o, err := p.member.Order()
		if err != nil {
			return err
		}
		if o.Kind == transport.KindDetach {
			p.detached = append(p.detached, o.Detach)
		}
	}
	return nil
}

func (p *puppet) train(ctx context.Context, job *settings.Job) error {
	tcp, err := network(job, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	trainSet, testSet, err := openData(job)
	if err != nil {
		return err
	}
	spec, err := net.Parse(job.Model)
	if err != nil {
		return err
	}
	spec.Input, spec.Batch, spec.Seed = trainSet.Input(), job.Batch, job.Seed
	hash, err := net.Hash(spec)
	if err != nil {
		return err
	}
	model, err := net.Build(spec)
	if err != nil {
		return err
	}
	defer model.Close()
	hello := transport.Hello{
		Service: transport.ServiceCoord, Role: transport.RoleWorker, Job: job.Name, Rank: 0, Addr: p.addr, ModelHash: hash, Params: int64(len(model.Params())),
	}
	p.member, err = coord.Join(ctx, coord.MemberConfig{Network: tcp, Addr: job.Coordinator, Hello: hello, Enrol: &coord.Enrolment{
		Layout: tensors(model.Layout()), Data: trainSet.Name(), Samples: int64(trainSet.Len()), Tests: int64(testSet.Len()),
	}})
	if err != nil {
		return err
	}
	defer p.member.Close()
	p.member.Beat()
	hello.Service = transport.ServiceShard
	link, err := ps.Dial(ctx, ps.LinkConfig{Network: tcp, Shards: p.member.Welcome.Shards, Hello: hello, Params: model.Params()})
	if err != nil {
		return err
	}
	defer link.Close()
	if p.member.Welcome.Seed {
		if err := link.Init(ctx); err != nil {
			return err
		}
	}
	if err := coord.Say(p.member, transport.Joined{}, nil); err != nil {
		return err
	}
	step, branch := int64(0), noBranch
	grad := make([]float32, len(model.Params()))
	for {
		o, err := p.member.Order()
		if err != nil {
			return err
		}
		switch o.Kind {
		case transport.KindBranch:
			branch = o.Branch
			p.branches++
			continue
		case transport.KindDetach:
			p.detached = append(p.detached, o.Detach)
			continue
		}
		r := o.Release
		switch {
		case r.Action == transport.Stop:
			return nil
		case r.Pull:
			_, err = link.Pull(ctx, r.Version)
		default:
			_, err = link.Wait(ctx, r.Version)
		}
		if err != nil {
			return err
		}
		if r.Action != transport.Continue {
			if err := coord.Say(p.member, transport.EvalResult{Eval: r.Eval, Version: r.Version}, nil); err != nil {
				return err
			}
		}
		if r.Action == transport.Finish {
			continue
		}
		m := transport.Bundle{Step: step, Members: []transport.Share{{Step: step, Samples: r.Count}}}
		if branch.Step == step {
			m.Members = append(m.Members, p.collect(p, branch.Children)...)
			if err := coord.Say(p.member, m, nil); err != nil {
				return err
			}
		}
		if err := link.Push(ctx, step, r.Version, m.Samples(), grad); err != nil {
			return err
		}
		if err := coord.Say(p.member, transport.Arrive{Record: star.Record{Step: step, Samples: r.Count, Norm2: 1}}, nil); err != nil {
			return err
		}
		step++
	}
}

// play runs a job of twelve steps of three workers, of which p is worker 0.
func (p *puppet) play(t *testing.T) coord.Result {
	t.Helper()
	l, err := gonet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	errs := make(chan error, 3)
	for rank := range 3 {
		job := setting(t, settings.ForWorker, "--rank", string(rune('0'+rank)), "--coordinator", addr)
		go func() {
			if rank == 0 {
				errs <- p.train(ctx, job)
			} else {
				errs <- Work(ctx, job, log, nil)
			}
		}()
	}
	var r coord.Result
	err = Serve(ctx, setting(t, settings.ForServer, "--listen", addr, "--coordinator", addr, "--http", "off", "--steps", "12", "--mode", "tree=0(1)", "--out", t.TempDir()), log, nil, func(got coord.Result) error {
		r = got
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if r.Samples != 12*12 || r.Updates != 12 || r.Staleness.Max != 0 {
		t.Errorf("%d samples in %d updates, staleness up to %d; want 144 in 12 without", r.Samples, r.Updates, r.Staleness.Max)
	}
	return r
}

// A child that cannot reach its parent says so, pushes for itself, and is not sent there again.
func TestUnreachableParent(t *testing.T) {
	p := &puppet{addr: "127.0.0.1:1", collect: func(p *puppet, children []transport.Child) []transport.Share {
		for _, c := range children {
			if err := p.detach(c); err != nil {
				t.Error(err)
			}
		}
		return nil
	}}
	p.play(t)
	if p.branches != 1 || !slices.Equal(p.detached, []transport.Detach{{Worker: 1, Step: 0}}) {
		t.Errorf("%d branches, %v detached; want one, and worker 1 at step 0", p.branches, p.detached)
	}
}

// A child whose parent does not send parameters asks the shards, and still reports to it.
func TestParentThatSendsNothing(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	job := setting(t, settings.ForWorker)
	tcp, err := network(job, log)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newLanding(job, tcp, new(links), log)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	spec, err := net.Parse("softmax")
	if err != nil {
		t.Fatal(err)
	}
	trainSet, _, err := openData(job)
	if err != nil {
		t.Fatal(err)
	}
	spec.Input, spec.Batch = trainSet.Input(), job.Batch
	model, err := net.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	d.begin(model.Params())
	taken := 0
	p := &puppet{addr: d.addr, collect: func(_ *puppet, children []transport.Child) (in []transport.Share) {
		for _, c := range children {
			for end := time.Now().Add(20 * time.Second); !d.has(c); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("no gradient of %+v", c)
					return in
				}
				d.mu.Lock()
				if g := d.guests[c.Worker]; g != nil && g.wants >= 0 {
					g.conn.Close()
				}
				d.mu.Unlock()
			}
			b := d.take(c)
			in = append(in, b.Members...)
			d.free(b.vec)
			taken++
		}
		return in
	}}
	p.play(t)
	if p.branches != 12 || taken != 12 || len(p.detached) != 0 {
		t.Errorf("%d branches, %d gradients, %v detached; want 12, 12 and none", p.branches, taken, p.detached)
	}
}

// Parameters are sent once they are of the version that was asked for, and only between
// show and hide.
func TestLandingSendsWhatIsShown(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	job := setting(t, settings.ForWorker)
	tcp, err := network(job, log)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newLanding(job, tcp, new(links), log)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	params := []float32{1, 2, 3}
	d.begin(params)
	hello := transport.Hello{Service: transport.ServiceTree, Role: transport.RoleWorker, Job: job.Name, Rank: 2}
	open := func(h transport.Hello) (transport.Conn, error) {
		c, _, _, err := transport.Open(t.Context(), tcp, d.addr, h, nil)
		return c, err
	}
	for _, bad := range []transport.Hello{
		{Service: transport.ServiceRing, Role: transport.RoleWorker, Job: job.Name, Rank: 2},
		{Service: transport.ServiceTree, Role: transport.RoleWorker, Job: "another", Rank: 2},
		{Service: transport.ServiceTree, Role: transport.RoleWorker, Job: job.Name, Rank: -1},
	} {
		var refused *transport.RejectError
		if _, err := open(bad); !errors.As(err, &refused) {
			t.Errorf("hello %+v: %v, want a rejection", bad, err)
		}
	}
	c, err := open(hello)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := func(within time.Duration) (int64, []float32) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(within))
		f, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m, err := transport.ParseParams(f.Header)
		if err != nil {
			t.Fatal(err)
		}
		v := make([]float32, 3)
		if err := c.ReadPayload(transport.Floats(v)); err != nil {
			t.Fatal(err)
		}
		return m.Version, v
	}
	want := func(v int64) {
		if err := transport.Send(c, transport.Want{Worker: 2, Version: v}, nil); err != nil {
			t.Fatal(err)
		}
	}
	want(3)
	d.show(2) // too old
	d.hide()
	params[0] = 7
	d.show(4)
	if v, got := next(10 * time.Second); v != 4 || got[0] != 7 {
		t.Errorf("version %d, %v; want 4, with 7", v, got)
	}
	want(4) // as often as it asks
	if v, _ := next(10 * time.Second); v != 4 {
		t.Errorf("version %d, want 4", v)
	}
	// We have all of it, but the sender may not know yet, and hide hangs up on whom it still sends to.
	sending := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.guests[2].sending
	}
	for end := time.Now().Add(10 * time.Second); sending() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	d.hide()

	// Bundles: the last one of a child counts, by its step.
	for step := range int64(2) {
		b := transport.Bundle{Worker: 2, Step: step, Members: []transport.Share{{Worker: 2, Step: step, Samples: 5}}}
		if err := transport.Send(c, b, transport.Floats([]float32{float32(step), 0, 0})); err != nil {
			t.Fatal(err)
		}
	}
	now := transport.Child{Worker: 2, Step: 1}
	for end := time.Now().Add(10 * time.Second); !d.has(now) && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if b := d.take(transport.Child{Worker: 2, Step: 0}); b != nil {
		t.Error("the bundle of step 0 is still there")
	}
	if b := d.take(now); b == nil || b.vec[0] != 1 || b.Samples() != 5 || d.has(now) {
		t.Errorf("bundle %+v", b)
	}

	// What is not a bundle of this child ends its connection.
	for _, bad := range []transport.Bundle{
		{Worker: 1, Step: 2, Members: []transport.Share{{Worker: 1, Step: 2, Samples: 5}}},
		{Worker: 2, Step: 2},
		{Worker: 2, Step: 2, Members: []transport.Share{{Worker: 1, Step: 2, Samples: 5}}},
		{Worker: 2, Step: 2, Members: []transport.Share{{Worker: 2, Step: 2, Samples: 0}}},
	} {
		c, err := open(hello)
		if err != nil {
			t.Fatal(err)
		}
		transport.Send(c, bad, transport.Floats([]float32{1, 2, 3}))
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Recv(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: %v, want the end of the connection", bad, err)
		}
		c.Close()
	}
	if d.has(transport.Child{Worker: 2, Step: 2}) {
		t.Error("a bad bundle was taken")
	}
}
