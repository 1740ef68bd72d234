package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star/cluster/resource"
	"star/transport"
	"star/transport/wire"
)

const addr = "service:1"

// bubble is a cluster in memory, on fake time.
type bubble struct {
	t    *testing.T
	pipe *transport.Pipe
	stop func()
	svc  *Service
	log  *slog.Logger // of processes that begin from now on
}

func begin(t *testing.T, cfg Config) *bubble {
	b := &bubble{t: t, pipe: new(transport.Pipe)}
	b.start(cfg)
	t.Cleanup(func() { b.stop() })
	return b
}

// start begins (another life of) the service.
func (b *bubble) start(cfg Config) {
	b.t.Helper()
	cfg.Cluster, cfg.Addr = "rack1", addr
	svc, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := b.pipe.Listen(addr)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	go func() { svc.Run(ctx); ended <- struct{}{} }()
	go func() { transport.Serve(ctx, l, transport.Config{}, svc.Accept); ended <- struct{}{} }()
	once := false
	b.svc, b.stop = svc, func() {
		if once {
			return
		}
		once = true
		cancel()
		<-ended
		<-ended
	}
}

func (b *bubble) status() Status {
	b.t.Helper()
	s, err := b.svc.Status()
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bubble) job(name string) JobStatus {
	b.t.Helper()
	for _, j := range b.status().Jobs {
		if j.Job == name {
			return j
		}
	}
	return JobStatus{Job: name, State: "none"}
}

// process is a process of a job. What is in it is changed by its own goroutine (do).
type process struct {
	*Client
	enlist wire.Enlist
	usage  wire.Usage
	delays []time.Duration        // as obeyed
	fail   error                  // of obeying
	live   func(*wire.Usage)      // makes usage what it is now; nil: it stays
	at     atomic.Pointer[string] // where the service is
	kill   func()
}

func (b *bubble) process(role string, e wire.Enlist, u wire.Usage) *process {
	p := &process{enlist: e, usage: u}
	p.at.Store(new(addr))
	ctx, cancel := context.WithCancel(context.Background())
	p.Client = NewClient(ClientConfig{
		Network: b.pipe, Cluster: "rack1", Role: role, Find: func(context.Context) (string, error) { return *p.at.Load(), nil },
		Enlist: func() wire.Enlist { return p.enlist }, Usage: func() wire.Usage {
			if p.live != nil {
				p.live(&p.usage)
			}
			return p.usage
		},
		Obey: func(d time.Duration) error {
			if p.fail == nil {
				p.mu.Lock()
				p.delays = append(p.delays, d)
				p.mu.Unlock()
			}
			return p.fail
		},
		Log: b.log,
	})
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	once := false
	p.kill = func() {
		if !once {
			once = true
			cancel()
			<-ended
		}
	}
	b.t.Cleanup(p.kill)
	return p
}

// pair is a job of one server and two workers on one host.
func (b *bubble) pair(name string, cores float64, times ...time.Duration) (server *process, workers []*process) {
	e := wire.Enlist{Job: name, Host: "h", Workers: len(times), Servers: 1, Actuator: "pace", Freed: wire.Amounts{CPU: 1}}
	server = b.process(wire.RoleServer, e, wire.Usage{Sync: true, Mode: "ssgd", Own: wire.Amounts{CPU: cores}, Times: times})
	for r := range times {
		e.Rank = r
		workers = append(workers, b.process(wire.RoleWorker, e, wire.Usage{}))
	}
	return server, workers
}

// answers collects the results of an Ask.
type answers struct {
	mu   sync.Mutex
	list []string
}

func (a *answers) add(ok bool, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, fmt.Sprintf("%v: %s", ok, why))
}

// want compares the beginnings.
func (a *answers) want(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.EqualFunc(a.list, want, strings.HasPrefix) {
		t.Errorf("answers %q, want %q", a.list, want)
	}
}

func ten() Config {
	return Config{Hosts: map[string]resource.Usage{"h": {CPU: 10, NetIn: 1e9, NetOut: 1e9}}}
}

// oneJob is a service, and the server of job b, which uses one of ten cores.
func oneJob(t *testing.T) (b *bubble, asker *process) {
	b = begin(t, ten())
	asker, _ = b.pair("b", 1, time.Second, time.Second)
	rest(3 * time.Second)
	return b, asker
}

// twoJobs is a service, the workers of job a, which uses eight of ten cores, and the server of job b, which uses one.
func twoJobs(t *testing.T) (b *bubble, workers []*process, asker *process) {
	b = begin(t, ten())
	_, workers = b.pair("a", 8, time.Second, time.Second)
	asker, _ = b.pair("b", 1, time.Second, time.Second)
	rest(3 * time.Second)
	return b, workers, asker
}

func rest(d time.Duration) { time.Sleep(d); synctest.Wait() }

func wantDelays(t *testing.T, who string, p *process, want ...time.Duration) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.delays, want) {
		t.Errorf("%s was delayed by %v, want %v", who, p.delays, want)
	}
}

// One job gives way to another one, and is free again when that is back in SSGD.
func TestDelayAndUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, workers, asker := twoJobs(t)
		if s := b.job("a").State + b.job("b").State; s != "ssgdssgd" {
			t.Fatalf("the jobs are %q", s)
		}
		var got answers
		// 1 core is free, 2 are missing. A worker of a frees 1 core for each second.
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(time.Second)
		got.want(t, "true: ")
		for r, w := range workers {
			wantDelays(t, fmt.Sprintf("worker %d of a", r), w, time.Second)
		}
		rest(2 * time.Second)
		if a, g := b.job("a"), b.job("b"); a.State != "delayed" || a.Delay != 1 || !slices.Equal(a.For, []string{"b"}) || g.State != "granted" || g.Granted != "x=1" || a.Members[1].Delay != 1 {
			t.Errorf("a is %+v, b is %+v", a, g)
		}
		asker.Yield()
		rest(time.Second)
		wantDelays(t, "worker 0 of a", workers[0], time.Second, 0)
		wantDelays(t, "worker 1 of a", workers[1], time.Second, 0)
		got.want(t, "true")
	})
}

// Workers that would only wait are delayed for nothing, each by as much as it waits, and
// stay so while their times hardly change.
func TestEarlyWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		server, workers := b.pair("a", 8, 400*time.Millisecond, 2*time.Second)
		asker, _ := b.pair("b", 1, time.Second, time.Second)
		rest(3 * time.Second)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 2}, 0, got.add)
		rest(time.Second)
		got.want(t, "true: early workers of a")
		wantDelays(t, "the early worker", workers[0], 1600*time.Millisecond)
		wantDelays(t, "the late worker", workers[1])
		server.do(func() { server.usage.Times = []time.Duration{450 * time.Millisecond, 2 * time.Second} })
		rest(2 * time.Second)
		wantDelays(t, "the early worker", workers[0], 1600*time.Millisecond)
		server.do(func() { server.usage.Times = []time.Duration{time.Second, 2 * time.Second} })
		rest(2 * time.Second)
		wantDelays(t, "the early worker", workers[0], 1600*time.Millisecond, time.Second)
	})
}

// The leases of a host are those that its processes see, each once. The report of a process that can judge a lease has
// precedence over that of one that cannot. Leases are forgotten when no process sees them any more.
func TestLeasesAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		stale := wire.Lease{Name: "tc-7-1", State: "stale", What: "out=1mbit on interface eth0", Owner: "worker 1 of job a", Why: "process 7 is gone"}
		far := wire.Lease{Name: "tc-7-1", State: "foreign"}
		own := wire.Lease{Name: "cgroup-9-1", State: "alive"}
		enlist := func(host string, rank int) wire.Enlist {
			return wire.Enlist{Job: "a", Host: host, Rank: rank, Workers: 3, Servers: 1}
		}
		b.process(wire.RoleServer, enlist("h", 0), wire.Usage{Sync: true, Leases: []wire.Lease{far, own}})
		last := b.process(wire.RoleWorker, enlist("h", 0), wire.Usage{Leases: []wire.Lease{stale, own}})
		b.process(wire.RoleWorker, enlist("h", 1), wire.Usage{Leases: []wire.Lease{far}})
		b.process(wire.RoleWorker, enlist("other", 2), wire.Usage{})
		rest(3 * time.Second)
		want := map[string][]LeaseStatus{"h": {{Lease: "cgroup-9-1", State: "alive"}, {"tc-7-1", "stale", stale.What, stale.Owner, stale.Why}}}
		see := func() {
			t.Helper()
			for _, h := range b.status().Hosts {
				if !slices.Equal(h.Leases, want[h.Host]) {
					t.Errorf("%s: %+v", h.Host, h.Leases)
				}
			}
		}
		see()
		last.do(func() { last.usage.Leases = nil })
		rest(2 * time.Second)
		want["h"][1] = LeaseStatus{Lease: "tc-7-1", State: "foreign"}
		see()
	})
}

// Of a job that does not know what a delay of it frees, the service finds out by what its workers use.
func TestFreedIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		e := wire.Enlist{Job: "a", Host: "h", Workers: 2, Servers: 1}
		times := []time.Duration{2 * time.Second, 2 * time.Second}
		b.process(wire.RoleServer, e, wire.Usage{Sync: true, Own: wire.Amounts{CPU: 1}, Times: times})
		var workers []*process
		for e.Rank = range 2 {
			workers = append(workers, b.process(wire.RoleWorker, e, wire.Usage{Own: wire.Amounts{CPU: 4}}))
		}
		asker, _ := b.pair("b", 1, time.Second, time.Second)
		rest(5 * time.Second)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 2}, 2*time.Second, got.add)
		rest(time.Second)
		got.want(t, "true: ")
		// 2 cores are missing; two workers free 4/2 cores each for each second: d ≥ 2/4 s. But of the 9 cores that a uses
		// a delay of d frees 9·d/(2+d): d ≥ 4/7 s.
		want := 4 * time.Second / 7
		if d := workers[0].delays; len(d) != 1 || (d[0]-want).Abs() > time.Millisecond {
			t.Errorf("delayed by %v, want %v", d, want)
		}
	})
}

// No job gives more than the other one gains.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, workers, asker := twoJobs(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 500*time.Millisecond, got.add)
		rest(time.Second)
		got.want(t, "false: for 2 cores of CPU on h others would lose 1s")
		wantDelays(t, "worker 0 of a", workers[0])
	})
}

// A job that dies frees what it held, and no job is delayed for it any more.
func TestDeath(t *testing.T) {
	for how, kill := range map[string]func(*process){
		"ends":      func(p *process) { p.kill() },
		"breaks":    func(p *process) { p.do(func() { p.at.Store(new("nowhere:1")); p.conn.Close() }) },
		"is silent": func(p *process) { p.do(func() { time.Sleep(time.Minute) }) },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, workers, asker := twoJobs(t)
				var got answers
				asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
				rest(time.Second)
				got.want(t, "true")
				go kill(asker)
				rest(15 * time.Second) // a lease and what the members of a need to hear of it
				wantDelays(t, "worker 0 of a", workers[0], time.Second, 0)
				if s := b.job("b").State; s == "granted" {
					t.Errorf("the dead job is %q", s)
				}
			})
		})
	}
}

// When the service is gone, grants and delays end after a lease, questions are answered with no at once, and all
// processes connect to the next service, which answers again.
func TestServiceGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, workers, asker := twoJobs(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(time.Second)
		got.want(t, "true")
		b.stop()
		rest(9 * time.Second) // a lease is 10 s
		got.want(t, "true")
		wantDelays(t, "worker 0 of a", workers[0], time.Second)
		rest(2 * time.Second)
		got.want(t, "true", "false: the resource service at service:1 was unreachable for 10s")
		wantDelays(t, "worker 0 of a", workers[0], time.Second, 0)
		var second answers
		asker.Ask("x=1", wire.Amounts{CPU: 0.5}, 0, second.add)
		synctest.Wait()
		second.want(t, "false: cannot reach the resource service of cluster rack1")
		b.start(ten())
		rest(15 * time.Second)
		if n := len(b.status().Jobs); n != 2 {
			t.Fatalf("%d jobs came back", n)
		}
		var third answers
		asker.Ask("x=1", wire.Amounts{CPU: 0.5}, 0, third.add)
		rest(time.Second)
		third.want(t, "true: there is room")
	})
}

// No job loses its grant in a short absence of the service if the restarted service grants it, too.
func TestServiceRestarts(t *testing.T) {
	for name, c := range map[string]struct {
		cores float64
		want  []string
	}{
		"room":    {10, []string{"true"}},
		"no room": {1, []string{"true", "false: "}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, asker := oneJob(t)
				var got answers
				asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
				rest(time.Second)
				b.stop()
				rest(2 * time.Second)
				b.start(Config{Hosts: map[string]resource.Usage{"h": {CPU: c.cores}}})
				rest(20 * time.Second)
				got.want(t, c.want...)
				want := "granted"
				if len(c.want) > 1 {
					want = "ssgd"
				}
				if s := b.job("b").State; s != want {
					t.Errorf("the job is %q, want %q", s, want)
				}
			})
		})
	}
}

// dumb is a service that sends a welcome, and then nothing but, if pongs is set, pong. It records the ids of the Ask
// and Yield messages that it receives.
func dumb(t *testing.T, pipe *transport.Pipe, pongs bool) (said func() []string) {
	var mu sync.Mutex
	var list []string
	note := func(format string, id int64) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, fmt.Sprintf(format, id))
	}
	l, err := pipe.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		transport.Serve(ctx, l, transport.Config{}, func(c transport.Conn, h wire.Hello, _ []byte) {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			transport.Send(c, wire.Welcome{Rank: -1}, []byte(`{"cluster":"rack1","lease_ns":10000000000}`))
			for {
				f, err := c.Recv()
				if err != nil {
					return
				}
				switch {
				case f.Kind == wire.KindPing && pongs:
					transport.Send(c, wire.Pong{}, nil)
				case f.Kind == wire.KindAsk:
					a, _ := wire.ParseAsk(f.Header)
					note("ask %d", a.ID)
				case f.Kind == wire.KindYield:
					y, _ := wire.ParseYield(f.Header)
					note("yield %d", y.ID)
				}
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// A job that gets no answer goes on without a grant.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, pipe: new(transport.Pipe)}
		dumb(t, b.pipe, true)
		asker := b.process(wire.RoleServer, wire.Enlist{Job: "b", Host: "h", Workers: 1}, wire.Usage{})
		rest(time.Second)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(1900 * time.Millisecond)
		got.want(t)
		rest(200 * time.Millisecond)
		got.want(t, "false: no answer of the resource service at service:1 within 2s")
	})
}

// A service that says nothing at all counts as gone, and is dialled again.
func TestSilentService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, pipe: new(transport.Pipe)}
		dumb(t, b.pipe, false)
		p := b.process(wire.RoleServer, wire.Enlist{Job: "b", Host: "h", Workers: 1}, wire.Usage{})
		rest(9 * time.Second)
		if s := p.State(); s != "connected to service:1" {
			t.Errorf("after 9 s: %q", s)
		}
		rest(1050 * time.Millisecond)
		if s := p.State(); !strings.HasPrefix(s, "lost: ") {
			t.Errorf("after 10 s: %q", s)
		}
		rest(5 * time.Second)
		if s := p.State(); s != "connected to service:1" {
			t.Errorf("after 15 s: %q", s)
		}
	})
}

// What cannot obey says so, and that can be seen.
func TestDisobedience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		_, workers := b.pair("a", 8, time.Second, time.Second)
		workers[1].do(func() { workers[1].fail = errors.New("cgroup: read-only file system") })
		asker, _ := b.pair("b", 1, time.Second, time.Second)
		rest(3 * time.Second)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(2 * time.Second)
		if m := b.job("a").Members[2]; m.Rank != 1 || m.Ordered != 1 || m.Delay != 0 || m.Err != "cgroup: read-only file system" {
			t.Errorf("worker 1 is %+v", m)
		}
	})
}

// A grant is withdrawn when the host turns out to be over its capacity; the job says
// when it is back.
func TestWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, asker := oneJob(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(2 * time.Second)
		asker.do(func() { asker.usage.Host = wire.Amounts{CPU: 16} })
		rest(20 * time.Second)
		got.want(t, "true", "false: host h is over its capacity")
		if s := b.job("b"); s.State != "ssgd" || s.Granted != "" || s.Lease <= 0 || s.Lease > 10 {
			t.Errorf("the job is %+v", s)
		}
	})
}

// A name belongs to the first one that claims it, until that is gone.
func TestTwoJobsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		first, _ := b.pair("a", 1, time.Second, time.Second)
		rest(time.Second)
		var log bytes.Buffer // a handler writes one line at a time
		b.log = slog.New(slog.NewTextHandler(&log, nil))
		second := b.process(wire.RoleServer, first.enlist, first.usage)
		rest(20 * time.Second)
		if s := second.State(); !strings.Contains(s, `cluster "rack1" already has a job a, with ps 0 at dial-`) || !strings.Contains(s, "--job") {
			t.Errorf("the second one: %q", s)
		}
		first.kill()
		rest(10 * time.Second)
		if s := second.State(); s != "connected to service:1" {
			t.Errorf("after the first one has gone: %q", s)
		}
		second.kill()
		var lines []string
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(line, "level=")
			lines = append(lines, line[:min(len(line), 60)])
		}
		want := []string{`INFO msg="resource service connected" `, `WARN msg="resource service refused this process`, `INFO msg="resource service connected" `}
		if !slices.EqualFunc(lines, want, strings.HasPrefix) {
			t.Errorf("the second one logs %q", lines)
		}
	})
}

// A connection that breaks and comes back finds its place, and the account is as before.
func TestConnectionComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, workers, asker := twoJobs(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(time.Second)
		workers[0].do(func() { workers[0].conn.Close() })
		rest(3 * time.Second)
		wantDelays(t, "worker 0 of a", workers[0], time.Second, 0, time.Second)
		wantDelays(t, "worker 1 of a", workers[1], time.Second)
		asker.do(func() { asker.conn.Close() })
		rest(5 * time.Second)
		got.want(t, "true") // asked again, and granted again
		if s := b.job("b").State; s != "granted" {
			t.Errorf("b is %q", s)
		}
	})
}

// A question left without an answer by a broken connection takes away nothing: the lease of what was granted runs on.
func TestLeaseOutlivesAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, asker := oneJob(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(time.Second)
		b.stop()
		dumb(t, b.pipe, true)
		for range 50 { // until it has connected again, and has asked
			rest(100 * time.Millisecond)
			asked := false
			asker.do(func() { asked = asker.claim != nil && asker.claim.asked })
			if synctest.Wait(); asked {
				break
			}
		}
		asker.do(func() {
			if asker.conn == nil || asker.claim == nil || !asker.claim.asked {
				t.Error("it does not ask again")
				return
			}
			asker.at.Store(new("nobody:1"))
			asker.conn.Close()
		})
		rest(9 * time.Second)
		got.want(t, "true")
		rest(2 * time.Second)
		got.want(t, "true", "false: the resource service at ")
	})
}

// bare is a member that sends only the messages that a test writes; it keeps its connection alive, and the grants that
// it receives.
type bare struct {
	t    *testing.T
	conn transport.Conn
	u    wire.Usage
	got  chan wire.Grant
}

func (b *bubble) bare(role string, e wire.Enlist, u wire.Usage) *bare {
	b.t.Helper()
	conn, _, _, err := transport.Open(b.t.Context(), b.pipe, addr, wire.Hello{Service: wire.ServiceCluster, Role: role, Job: "rack1", Rank: -1}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	m := &bare{b.t, conn, u, make(chan wire.Grant, 16)}
	conn.SetReadDeadline(time.Time{})
	go func() {
		for {
			f, err := conn.Recv()
			if err != nil {
				return
			}
			if f.Kind == wire.KindGrant {
				g, _ := wire.ParseGrant(f.Header)
				m.got <- g
			}
			conn.Discard()
		}
	}()
	e.Life = "bare"
	m.say(transport.Send(conn, e, nil))
	return m
}

func (m *bare) say(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// lives reports once a second.
func (m *bare) lives(seconds int) {
	for range seconds {
		m.u.Seq++
		m.say(transport.Send(m.conn, m.u, nil))
		rest(time.Second)
	}
}

// ask asks, and returns what is said within a second.
func (m *bare) ask(id int64, cores float64) wire.Grant {
	m.t.Helper()
	m.say(transport.Send(m.conn, wire.Ask{ID: id, Mode: "x=1", Extra: wire.Amounts{CPU: cores}}, nil))
	rest(time.Second)
	select {
	case g := <-m.got:
		return g
	default:
		m.t.Fatalf("question %d is not answered", id)
		return wire.Grant{}
	}
}

// A job that receives the order to go back, and does not confirm it, has not given anything back: its state is
// withdrawn, and the service sends the order once.
func TestWithdrawnUntilItSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		m := b.bare(wire.RoleServer, wire.Enlist{Job: "b", Host: "h", Servers: 1}, wire.Usage{Sync: true, Mode: "ssgd", Own: wire.Amounts{CPU: 1}})
		m.lives(3)
		if g := m.ask(1, 3); !g.OK {
			t.Fatalf("%+v", g)
		}
		m.u.Host = wire.Amounts{CPU: 16}
		m.lives(30)
		if len(m.got) != 1 {
			t.Fatalf("told %d times to go back, want once", len(m.got))
		}
		if g := <-m.got; g.OK || g.ID != 1 || !strings.HasPrefix(g.Why, "host h is over its capacity") {
			t.Errorf("%+v", g)
		}
		if s := b.job("b"); s.State != "withdrawn" || s.Granted != "x=1" || *s.Extra["h"].CPU != 3 {
			t.Errorf("the job is %+v", s)
		}
		m.say(transport.Send(m.conn, wire.Yield{ID: 1}, nil))
		m.lives(1)
		if s := b.job("b"); s.State != "ssgd" || s.Granted != "" {
			t.Errorf("the job is %+v", s)
		}
	})
}

// What was refused cannot be given back: the yield of a refused question leaves an older grant alone.
func TestYieldOfARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		m := b.bare(wire.RoleServer, wire.Enlist{Job: "b", Host: "h", Servers: 1}, wire.Usage{Sync: true, Mode: "ssgd", Own: wire.Amounts{CPU: 1}})
		m.lives(3)
		if first, second := m.ask(1, 3), m.ask(2, 100); !first.OK || second.OK {
			t.Fatalf("%+v, %+v", first, second)
		}
		m.say(transport.Send(m.conn, wire.Yield{ID: 2}, nil))
		m.lives(1)
		if s := b.job("b").State; s != "granted" {
			t.Errorf("b is %q", s)
		}
		m.say(transport.Send(m.conn, wire.Yield{ID: 1}, nil))
		m.lives(1)
		if s := b.job("b").State; s != "ssgd" {
			t.Errorf("b is %q", s)
		}
	})
}

// Only the coordinator's process speaks for its job.
func TestWorkersMayNotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, workers, asker := twoJobs(t)
		var got answers
		workers[0].Ask("x=1", wire.Amounts{CPU: 0.5}, 0, got.add)
		rest(time.Second)
		got.want(t, "false: only the coordinator's process may ask")
		asker.Ask("x=1", wire.Amounts{CPU: 0.5}, 0, got.add)
		rest(time.Second)
		got.want(t, "false", "true: there is room")
		if s := b.job("a").State; s != "ssgd" {
			t.Errorf("a is %q", s)
		}
	})
}

// A job that moves its processes to another host starts again there: its grant is taken back, and its delay for other
// jobs ends, since it no longer frees anything on the host that needs it.
func TestMoveToAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, workers, asker := twoJobs(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(time.Second)
		got.want(t, "true")
		for _, w := range workers {
			wantDelays(t, "a worker of a", w, time.Second)
		}
		for _, w := range workers {
			w.do(func() { w.enlist.Host = "elsewhere" })
		}
		rest(5 * time.Second)
		if s := b.job("a"); s.State != "ssgd" || s.Members[1].Ordered != 0 || s.Members[1].Delay != 0 || s.Members[1].Host != "elsewhere" {
			t.Errorf("a is %+v", s)
		}
		for _, w := range workers {
			wantDelays(t, "a worker of a", w, time.Second, 0)
		}
		asker.do(func() { asker.enlist.Host = "elsewhere" })
		rest(2 * time.Second)
		got.want(t, "true", "false: its processes have moved to other hosts")
		if s := b.job("b"); s.State != "ssgd" {
			t.Errorf("b is %+v", s)
		}
	})
}

// Every question has its own number, also one that is asked again on another connection: the answer to an older one is
// ignored. A yes that may still be on its way when no caller waits for it any more is given back.
func TestQuestionsHaveNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, pipe: new(transport.Pipe)}
		said := dumb(t, b.pipe, true)
		asker := b.process(wire.RoleServer, wire.Enlist{Job: "b", Host: "h", Workers: 1}, wire.Usage{})
		rest(time.Second)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(time.Second)
		asker.do(func() { asker.conn.Close() })
		rest(5 * time.Second)
		got.want(t, "false: no answer")
		if want := []string{"ask 1", "ask 2", "yield 2"}; !slices.Equal(said(), want) {
			t.Errorf("it said %q, want %q", said(), want)
		}
	})
}

// Giving back what was refused, or given back before, does not touch what was granted since.
func TestYieldOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, asker := oneJob(t)
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(time.Second)
		asker.do(func() { asker.say(wire.Yield{ID: asker.claim.ask.ID + 1}) })
		rest(time.Second)
		if s := b.job("b").State; s != "granted" {
			t.Errorf("b is %q", s)
		}
		asker.Yield()
		rest(time.Second)
		if s := b.job("b").State; s != "ssgd" {
			t.Errorf("b is %q after its own", s)
		}
	})
}

// A job that is missing some of its processes counts with those that are present, after a while.
func TestGathering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		e := wire.Enlist{Job: "a", Host: "h", Workers: 2, Servers: 1}
		b.process(wire.RoleServer, e, wire.Usage{Mode: "ssgd"})
		e.Host = "elsewhere" // unknown: it has no limit
		b.process(wire.RoleWorker, e, wire.Usage{})
		rest(4 * time.Second)
		if s := b.job("a").State; s != "gathering" {
			t.Errorf("after 4 s: %q", s)
		}
		rest(1100 * time.Millisecond)
		if s := b.job("a").State; s != "ssgd" {
			t.Errorf("after 5 s: %q", s)
		}
		hosts := b.status().Hosts
		if len(hosts) != 2 || hosts[0].Host != "elsewhere" || hosts[0].Capacity.CPU != nil || *hosts[1].Capacity.CPU != 10 {
			t.Errorf("hosts %+v", hosts)
		}
	})
}

// A peer that connects to the wrong service is rejected with the reason.
func TestWrongDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		for want, h := range map[string]wire.Hello{
			`this is cluster "rack1" and not "rack2": check --cluster`:              {Service: wire.ServiceCluster, Role: wire.RoleWorker, Job: "rack2", Rank: -1},
			`service:1 is the resource service of cluster "rack1", which has no se`: {Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "star", Rank: -1},
		} {
			_, _, _, err := transport.Open(t.Context(), b.pipe, addr, h, nil)
			var r *transport.RejectError
			if !errors.As(err, &r) || !strings.Contains(r.Reason, want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

// A member that breaks the protocol loses its connection, and no other member does.
func TestBadMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		good, _ := b.pair("a", 1, time.Second, time.Second)
		rest(time.Second)
		hello := wire.Hello{Service: wire.ServiceCluster, Role: wire.RoleWorker, Job: "rack1", Rank: -1}
		for name, say := range map[string]func(transport.Conn) error{
			"usage first": func(c transport.Conn) error { return transport.Send(c, wire.Usage{}, nil) },
			"no name":     func(c transport.Conn) error { return transport.Send(c, wire.Enlist{Host: "h"}, nil) },
			"rank": func(c transport.Conn) error {
				return transport.Send(c, wire.Enlist{Job: "x", Host: "h", Rank: 2, Workers: 2}, nil)
			},
			"a grant":        func(c transport.Conn) error { return transport.Send(c, wire.Grant{}, nil) },
			"a broken frame": func(c transport.Conn) error { return c.WriteFrame(wire.KindUsage, []byte{0x98, 1}, nil, 0) },
			"two jobs": func(c transport.Conn) error {
				transport.Send(c, wire.Enlist{Job: "x", Host: "h"}, nil)
				return transport.Send(c, wire.Enlist{Job: "y", Host: "h"}, nil)
			},
		} {
			c, _, _, err := transport.Open(t.Context(), b.pipe, addr, hello, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := say(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			c.SetReadDeadline(time.Now().Add(5 * time.Second))
			for err == nil {
				var f transport.Frame
				if f, err = c.Recv(); err == nil && f.Kind != wire.KindReject {
					t.Errorf("%s: answered with %v", name, f.Kind)
				}
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v, want an end of the connection", name, err)
			}
			c.Close()
		}
		rest(time.Second)
		if s := good.State(); s != "connected to service:1" {
			t.Errorf("the good one: %q", s)
		}
		if n := len(b.status().Jobs); n != 1 {
			t.Errorf("%d jobs", n)
		}
	})
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"", "a b", "a@b", strings.Repeat("x", 65), "a\n"} {
		if err := CheckName(name); err == nil {
			t.Errorf("%q passes", name)
		}
	}
	if err := CheckName("rack-1.north"); err != nil {
		t.Error(err)
	}
}

// A job without servers pays where its workers are.
func TestAskOfARing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, Config{Hosts: map[string]resource.Usage{"head": {}, "h": {CPU: 3, NetIn: 1e9, NetOut: 1e9}, "i": {CPU: 3, NetIn: 1e9, NetOut: 1e9}}})
		e := wire.Enlist{Job: "a", Host: "head", Workers: 3}
		head := b.process(wire.RoleServer, e, wire.Usage{Sync: true, Mode: "ssgd", Times: []time.Duration{1, 1, 1}})
		for r, h := range []string{"h", "h", "i"} {
			e.Rank, e.Host = r, h
			b.process(wire.RoleWorker, e, wire.Usage{})
		}
		rest(3 * time.Second)
		var got answers
		head.Ask("backup=1", wire.Amounts{CPU: 3}, 0, got.add)
		rest(time.Second)
		got.want(t, "true: there is room")
		if x := b.job("a").Extra; len(x) != 2 || *x["h"].CPU != 2 || *x["i"].CPU != 1 {
			t.Errorf("granted %+v", x)
		}
		head.Ask("backup=1", wire.Amounts{CPU: 6}, 0, got.add)
		rest(time.Second)
		got.want(t, "true", "false: 1 cores of CPU on h")
	})
}
