package worker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	gonet "net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"star"
	"star/coord/session"
	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/ps"
	"star/runlog"
	"star/server"
	"star/train/data"
	"star/train/net"
	"star/transport"
	"star/transport/wire"
)

// setting is a worker of a small job, as star-worker makes it of its settings.
func setting(t *testing.T, args ...string) Config {
	t.Helper()
	job, cmd := new(settings.Job), &cobra.Command{}
	job.Bind(cmd, settings.ForWorker)
	if err := cmd.ParseFlags(append([]string{"--model", "softmax", "--dataset", "digits:n=60,test=20", "--batch", "4", "--workers", "3"}, args...)); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Load(nil); err != nil {
		t.Fatal(err)
	}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	trainSet, testSet, err := data.Open(job.Dataset, data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := net.Parse(job.Model)
	if err != nil {
		t.Fatal(err)
	}
	spec.Input, spec.Batch, spec.Seed = trainSet.Input(), job.Batch, job.Seed
	c := Config{Job: options.JobOf(job), Data: trainSet, Test: testSet, Told: &session.Told{Model: job.Model, Dataset: job.Dataset, Seed: job.Seed, Batch: job.Batch}}
	if c.Hash, err = net.Hash(spec); err != nil {
		t.Fatal(err)
	}
	if c.Name, err = net.Describe(spec); err != nil {
		t.Fatal(err)
	}
	if c.Model, err = net.Build(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Model.Close() })
	return c
}

// puppet is the worker at the top of a tree; the other workers of its job are real.
type puppet struct {
	addr     string                                              // that it tells the others
	collect  func(p *puppet, children []wire.Child) []wire.Share // of others, when it hands over
	member   *session.Member
	branches int
	detached []wire.Detach
}

// detach waits until the coordinator says that a gradient goes another way.
func (p *puppet) detach(c wire.Child) error {
	for !slices.Contains(p.detached, wire.Detach(c)) {
		o, err := p.member.Order()
		if err != nil {
			return err
		}
		if o.Kind == wire.KindDetach {
			p.detached = append(p.detached, o.Detach)
		}
	}
	return nil
}

func (p *puppet) train(ctx context.Context, c Config) error {
	tcp, err := process.Network(&c.Job, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	job, model := &c.Job, c.Model
	hello := wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: job.Name, Rank: 0, Addr: p.addr, ModelHash: c.Hash, Params: int64(len(model.Params())),
	}
	p.member, err = session.Join(ctx, session.MemberConfig{Network: tcp, Addr: job.Coordinator, Hello: hello, Enrol: &session.Enrolment{
		Layout: tensors(model.Layout()), Data: data.NameOf(c.Data), Samples: int64(c.Data.Len()), Tests: int64(c.Test.Len()),
	}})
	if err != nil {
		return err
	}
	defer p.member.Close()
	p.member.Beat()
	hello.Service, hello.Pass = wire.ServiceShard, p.member.Welcome.Pass
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
	if err := session.Say(p.member, wire.Joined{}, nil); err != nil {
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
		case wire.KindBranch:
			branch = o.Branch
			p.branches++
			continue
		case wire.KindDetach:
			p.detached = append(p.detached, o.Detach)
			continue
		}
		r := o.Release
		switch {
		case r.Action == wire.Stop:
			return nil
		case r.Pull:
			_, err = link.Pull(ctx, r.Version)
		default:
			_, err = link.Wait(ctx, r.Version)
		}
		if err != nil {
			return err
		}
		if r.Action != wire.Continue {
			if err := session.Say(p.member, wire.EvalResult{Eval: r.Eval, Version: r.Version}, nil); err != nil {
				return err
			}
		}
		if r.Action == wire.Finish {
			continue
		}
		m := wire.Bundle{Step: step, Members: []wire.Share{{Step: step, Samples: r.Count}}}
		if branch.Step == step {
			m.Members = append(m.Members, p.collect(p, branch.Children)...)
			if err := session.Say(p.member, m, nil); err != nil {
				return err
			}
		}
		if err := link.Push(ctx, step, r.Version, m.Samples(), grad); err != nil {
			return err
		}
		if err := session.Say(p.member, wire.Arrive{Record: star.Record{Step: step, Samples: r.Count}}, nil); err != nil {
			return err
		}
		step++
	}
}

// play runs a job of twelve steps of three workers; p is worker 0.
func (p *puppet) play(t *testing.T) runlog.Result {
	t.Helper()
	r := run(t, func(ctx context.Context, rank int, c Config) error {
		if rank == 0 {
			return p.train(ctx, c)
		}
		return Run(ctx, c)
	}, "tree=0(1)", 12)
	if r.Samples != 12*12 || r.Updates != 12 || r.Staleness.Max != 0 {
		t.Errorf("%d samples in %d updates, staleness up to %d; want 144 in 12 without", r.Samples, r.Updates, r.Staleness.Max)
	}
	return r
}

// A child that cannot reach its parent says so, pushes for itself, and is not sent there again.
func TestUnreachableParent(t *testing.T) {
	p := &puppet{addr: "127.0.0.1:1", collect: func(p *puppet, children []wire.Child) []wire.Share {
		for _, c := range children {
			if err := p.detach(c); err != nil {
				t.Error(err)
			}
		}
		return nil
	}}
	p.play(t)
	if p.branches != 1 || !slices.Equal(p.detached, []wire.Detach{{Worker: 1, Step: 0}}) {
		t.Errorf("%d branches, %v detached; want one, and worker 1 at step 0", p.branches, p.detached)
	}
}

// A child with a parent that does not send parameters asks the shards, and still reports to it.
func TestParentThatSendsNothing(t *testing.T) {
	d, _, _ := lands(t, nil)
	d.begin(setting(t).Model.Params())
	taken := 0
	p := &puppet{addr: d.addr, collect: func(_ *puppet, children []wire.Child) (in []wire.Share) {
		d.expect(children, nil)
		for _, c := range children {
			for end := time.Now().Add(20 * time.Second); !d.has(c); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("no gradient of %+v", c)
					return in
				}
				d.hangUp(func(g *childConn) bool { return g.rank == c.Worker && g.wants >= 0 })
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

// lands is where the children of a worker in a tree come, and how to get there.
func lands(t *testing.T, params []float32) (*childRelay, *job.Job, func(wire.Hello) (transport.Conn, error)) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c := setting(t)
	job := &c.Job
	tcp, err := process.Network(job, log)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newChildRelay(job, tcp, new(process.Links), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	d.begin(params)
	return d, job, func(h wire.Hello) (transport.Conn, error) {
		c, _, _, err := transport.Open(t.Context(), tcp, d.addr, h, nil)
		return c, err
	}
}

// Parameters are sent once they are of the version that was asked for, and only between
// show and hide.
func TestLandingSendsWhatIsShown(t *testing.T) {
	params := []float32{1, 2, 3}
	d, job, open := lands(t, params)
	hello := wire.Hello{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: job.Name, Rank: 2}
	for _, bad := range []wire.Hello{
		{Service: wire.ServiceRing, Role: wire.RoleWorker, Job: job.Name, Rank: 2},
		{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: "another", Rank: 2},
		{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: job.Name, Rank: -1},
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
		m, err := wire.ParseParams(f.Header)
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
		if err := transport.Send(c, wire.Want{Worker: 2, Version: v}, nil); err != nil {
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
	// We have all of it, but the sender may not know yet, and hide hangs up on the children that it still sends to.
	sending := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.conns[0].sending
	}
	for end := time.Now().Add(10 * time.Second); sending() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	d.hide()

	// Bundles: that of the step that is due counts, once, and each is acknowledged.
	bring := func(c transport.Conn, step int64) {
		t.Helper()
		b := wire.Bundle{Worker: 2, Step: step, Members: []wire.Share{{Worker: 2, Step: step, Samples: 5}}}
		if err := transport.Send(c, b, transport.Floats([]float32{float32(step), 0, 0})); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(c transport.Conn, step int64) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		f, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m, err := wire.ParseStored(f.Header); err != nil || m.Step != step || m.Worker != 2 {
			t.Fatalf("%v %+v, %v; want word of step %d", f.Kind, m, err, step)
		}
	}
	now := wire.Child{Worker: 2, Step: 1}
	bring(c, 1) // before we have heard that it is due
	d.expect([]wire.Child{now}, nil)
	stored(c, 1)
	bring(c, 0)
	stored(c, 0)
	stranger, err := open(hello) // says that it is worker 2
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	bring(stranger, 7)
	bring(c, 1) // again, over the connection that it has
	stored(c, 1)
	if b := d.take(wire.Child{Worker: 2, Step: 0}); b != nil {
		t.Error("the bundle of step 0 was kept")
	}
	if b := d.take(now); b == nil || b.vec[0] != 1 || b.Samples() != 5 || d.has(now) {
		t.Errorf("bundle %+v", b)
	}
	for range 3 * maxConnsPerChild { // a connection that has brought something is not replaced
		c, err := open(hello)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	bring(c, 1)
	stored(c, 1)
	d.mu.Lock() // connections that were pushed out may still be ending
	n := len(d.conns)
	d.mu.Unlock()
	if n > maxConnsPerChild {
		t.Errorf("%d connections of one child, want %d at most", n, maxConnsPerChild)
	}
	d.expect(nil, nil)

	// What is not a bundle of this child ends its connection.
	for _, bad := range []wire.Bundle{
		{Worker: 1, Step: 2, Members: []wire.Share{{Worker: 1, Step: 2, Samples: 5}}},
		{Worker: 2, Step: 2},
		{Worker: 2, Step: 2, Members: []wire.Share{{Worker: 1, Step: 2, Samples: 5}}},
		{Worker: 2, Step: 2, Members: []wire.Share{{Worker: 2, Step: 2, Samples: 0}}},
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
	if d.has(wire.Child{Worker: 2, Step: 2}) {
		t.Error("a bad bundle was taken")
	}

	// One that says what its branch has not ends it, too, and its child is waited for no longer.
	own, grandchild := wire.Share{Worker: 2, Step: 3, Samples: 5}, wire.Share{Worker: 4, Step: 9, Samples: 8}
	below := []wire.Below{{Child: 2, Worker: 2, Step: 3, Samples: 5}, {Child: 2, Worker: 4, Step: 9, Samples: 8}, {Child: 3, Worker: 3, Step: 1, Samples: 5}}
	third := wire.Child{Worker: 2, Step: 3}
	for name, members := range map[string][]wire.Share{
		"more samples":            {{Worker: 2, Step: 3, Samples: 6}},
		"another step of another": {own, {Worker: 4, Step: 8, Samples: 8}},
		"whoever is not there":    {own, {Worker: 7, Step: 1, Samples: 8}},
		"another child's":         {own, {Worker: 3, Step: 1, Samples: 5}},
		"the same twice":          {own, grandchild, grandchild},
	} {
		d.expect([]wire.Child{third}, below)
		c, err := open(hello)
		if err != nil {
			t.Fatal(err)
		}
		transport.Send(c, wire.Bundle{Worker: 2, Step: 3, Members: members}, transport.Floats([]float32{1, 2, 3}))
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Recv(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want the end of the connection", name, err)
		}
		c.Close()
		if !d.has(third) || d.take(third) != nil {
			t.Errorf("%s: the child is waited for, or its bundle is used", name)
		}
	}
	d.expect([]wire.Child{third}, below)
	if c, err = open(hello); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := transport.Send(c, wire.Bundle{Worker: 2, Step: 3, Members: []wire.Share{own, grandchild}}, transport.Floats([]float32{1, 2, 3})); err != nil {
		t.Fatal(err)
	}
	stored(c, 3)
	if b := d.take(third); b == nil || b.Samples() != 13 {
		t.Errorf("a bundle that is as its branch says: %+v", b)
	}
}

// A gradient that is lost with its connection is sent again, and where the parent cannot be reached, or hears nothing,
// the child pushes it to the shards.
func TestGradientLostOnItsWayUp(t *testing.T) {
	for name, c := range map[string]struct {
		lose    int           // number of connections that end with the first gradient on them
		dark    int           // number of those after them that pass nothing on
		refused time.Duration // from the first loss on, each caller is sent away
		crowd   int           // of strangers at the parent's port
	}{
		"lost":               {lose: 3},
		"reset for 0.3 s":    {lose: 1, refused: 300 * time.Millisecond},
		"reset for 3 s":      {lose: 1, refused: 3 * time.Second},
		"nothing goes along": {dark: 1},
		"strangers":          {crowd: 192},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := gonet.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				var since time.Time
				for n := 0; ; n++ {
					from, err := l.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { from.Close() })
					if !since.IsZero() && time.Since(since) < c.refused {
						from.Close()
						continue
					}
					if n < c.lose {
						since = time.Now()
					}
					come := strangers
					if n > 0 {
						come = func(string, int) {}
					}
					go lead(from, n < c.lose, n >= c.lose && n < c.lose+c.dark, func(addr string) { come(addr, c.crowd) })
				}
			}()
			t.Setenv(process.ViaVariable, l.Addr().String())
			r := whole(t, "tree=0(1)", 100)
			if r.Samples != 1200 || r.Updates != 100 || r.Staleness.Max != 0 {
				t.Errorf("%d samples in %d updates, staleness up to %d; want 1200 in 100 without", r.Samples, r.Updates, r.Staleness.Max)
			}
		})
	}
}

// lead leads a connection to where it says. If it loses, both ends are closed with the first gradient on its way; in
// the dark nothing goes along behind the hello.
func lead(from gonet.Conn, loses, dark bool, hear func(addr string)) {
	defer from.Close()
	in := bufio.NewReader(from)
	addr, err := in.ReadString('\n')
	if err != nil {
		return
	}
	hear(strings.TrimSpace(addr))
	to, err := gonet.Dial("tcp", strings.TrimSpace(addr))
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer from.Close()
		io.Copy(from, to)
	}()
	buf := make([]byte, 64<<10)
	for n := 0; ; {
		k, err := in.Read(buf)
		if n += k; err != nil || loses && n > 1000 {
			return
		}
		if dark && n > 1000 {
			continue
		}
		if _, err := to.Write(buf[:k]); err != nil {
			return
		}
	}
}

// strangers come to a parent's port, n of them: half say that they are worker 1 and bring what it never said, half say
// nothing of use.
func strangers(addr string, n int) {
	for i := range n {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			hello := wire.Hello{Service: wire.ServiceTree, Role: wire.RoleWorker, Job: "star", Rank: 1 + i%2}
			c, _, _, err := transport.Open(ctx, transport.NewTCP(transport.Config{}), addr, hello, nil)
			if err != nil {
				return
			}
			defer c.Close()
			bad := wire.Bundle{Worker: 1, Step: int64(1000 + i), Members: []wire.Share{{Worker: 1, Step: int64(1000 + i), Samples: 5}}}
			transport.Send(c, bad, make([]byte, 31400))
			transport.Send(c, wire.Pull{Worker: 1}, nil)
			<-ctx.Done()
		}()
	}
}

// whole runs a job of three workers.
func whole(t *testing.T, mode string, steps int64) runlog.Result {
	t.Helper()
	return run(t, func(ctx context.Context, _ int, c Config) error { return Run(ctx, c) }, mode, steps)
}

// run runs a job of three workers, whatever these are, and wants all of it to end well.
func run(t *testing.T, work func(ctx context.Context, rank int, c Config) error, mode string, steps int64, args ...string) (r runlog.Result) {
	t.Helper()
	l, err := gonet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	errs := make(chan error, 3)
	var j job.Job
	for rank := range 3 {
		c := setting(t, append([]string{"--rank", strconv.Itoa(rank), "--coordinator", addr}, args...)...)
		c.Log, j = log, c.Job
		go func() { errs <- work(ctx, rank, c) }()
	}
	j.Rank, j.Listen, j.Out = 0, addr, t.TempDir()
	shards := 1
	if j.Arch == job.AllReduce {
		shards = 0
	}
	if err = server.Run(ctx, server.Config{
		Job: j, Shards: shards, Training: server.Training{Model: "softmax", Dataset: "digits:n=60,test=20", Steps: steps}, Policy: server.Policy{Mode: mode}, Log: log,
		Report: func(got runlog.Result) error {
			r = got
			return nil
		},
	}); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	return r
}
