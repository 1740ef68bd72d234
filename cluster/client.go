package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// ClientConfig configures a Client. Zero durations mean the defaults in the comments.
type ClientConfig struct {
	Network transport.Network

	// Find returns the service's address. It is called before each attempt to connect.
	Find func(ctx context.Context) (addr string, err error)

	Cluster string
	Role    string // wire.RoleServer or RoleWorker
	Token   string
	Version string // version of the program

	// Enlist returns the process's identity (the client sets Life). Usage returns its current usage (the client sets
	// Seq and Delay). Both are called from Run.
	Enlist func() wire.Enlist
	Usage  func() wire.Usage

	// Obey makes each iteration take delay longer from now on; 0 ends that. Nil: this process cannot be delayed, and
	// the service is informed.
	Obey func(delay time.Duration) error

	Every    time.Duration // interval of reports; zero: 1 s
	Timeout  time.Duration // of a request; zero: 2 s
	DialTime time.Duration // timeout of an attempt to connect; zero: 5 s
	Longest  time.Duration // longest pause between attempts; zero: 5 s

	Log *slog.Logger
}

// Client is the connection of a process to the service. Create it with NewClient and call Run once, in its own
// goroutine. The other methods are safe for concurrent use.
type Client struct {
	cfg     ClientConfig
	log     *slog.Logger
	process string
	acts    chan func()   // calls for Run's goroutine
	done    chan struct{} // closed when Run has ended

	mu    sync.Mutex
	state string

	// Owned by Run.
	conn   transport.Conn
	addr   string
	lease  time.Duration
	silent time.Duration // how long the service may be silent
	lost   time.Time     // since when the client is disconnected
	seq    int64
	said   wire.Enlist

	ids   int64
	claim *claim        // the current request or grant; nil: none
	delay time.Duration // in force

	asking *flightrecorder.Site // waits for the answer to a request
}

// claim is a request to leave SSGD.
type claim struct {
	ask     wire.Ask
	answer  func(ok bool, why string)
	granted bool
	asked   bool      // sent on this connection, not answered yet
	due     time.Time // deadline of the answer
}

// NewClient returns a client.
func NewClient(cfg ClientConfig) *Client {
	for d, v := range map[*time.Duration]time.Duration{&cfg.Every: time.Second, &cfg.Timeout: 2 * time.Second, &cfg.DialTime: 5 * time.Second, &cfg.Longest: 5 * time.Second} {
		if *d <= 0 {
			*d = v
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: cfg, log: cfg.Log.With("cluster", cfg.Cluster), process: NewID(), acts: make(chan func(), 16), done: make(chan struct{}),
		state: "connecting", lease: 10 * time.Second}
}

// do runs f in Run's goroutine. It returns false, without running f, if Run has ended.
func (c *Client) do(f func()) bool {
	select {
	case c.acts <- f:
		return true
	case <-c.done:
		return false
	}
}

// Ask asks whether the job may run in a mode that uses extra more than SSGD, over all its servers; lag is what SSGD
// loses to stragglers in each iteration. answer is called from Run within the client's timeout, with false if the
// service does not answer. After true it is called again when the grant ends. A new request replaces the one before,
// which gets no further answer.
func (c *Client) Ask(mode string, extra wire.Amounts, lag time.Duration, answer func(ok bool, why string)) {
	ok := c.do(func() {
		c.yield()
		c.ids++
		c.claim = &claim{ask: wire.Ask{ID: c.ids, Mode: mode, Extra: extra, Lag: max(lag, 0), Timeout: c.cfg.Timeout}, answer: answer}
		if c.conn == nil {
			c.refuse(c.missing())
			return
		}
		c.put(c.claim)
	})
	if !ok {
		answer(false, "the client of the cluster has ended")
	}
}

// Yield returns the grant, or withdraws the request.
func (c *Client) Yield() { c.do(c.yield) }

// State describes the connection to the service.
func (c *Client) State() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) setState(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = fmt.Sprintf(format, a...)
}

// missing says why the service cannot be asked.
func (c *Client) missing() string {
	return fmt.Sprintf("cannot reach the resource service of cluster %s", c.cfg.Cluster)
}

// put sends a request.
func (c *Client) put(q *claim) {
	q.asked, q.due = true, time.Now().Add(c.cfg.Timeout)
	c.asking.Say("mode " + q.ask.Mode)
	c.asking.Begin(q.ask.ID, c.cfg.Timeout)
	c.say(q.ask)
}

// refuse ends the claim with a refusal.
func (c *Client) refuse(why string) {
	q := c.claim
	c.claim = nil
	c.asking.End()
	q.answer(false, why)
}

// yield drops the claim.
func (c *Client) yield() {
	if c.claim == nil {
		return
	}
	if c.conn != nil {
		c.say(wire.Yield{ID: c.claim.ask.ID})
	}
	c.claim = nil
	c.asking.End()
}

// say sends a small message. If that fails, it closes the connection.
func (c *Client) say(m wire.Message) {
	if c.conn == nil {
		return
	}
	c.conn.SetWriteDeadline(time.Now().Add(sendWithin))
	var err error
	switch m := m.(type) {
	case wire.Enlist:
		err = transport.Send(c.conn, m, nil)
	case wire.Usage:
		err = transport.Send(c.conn, m, nil)
	case wire.Ask:
		err = transport.Send(c.conn, m, nil)
	case wire.Yield:
		err = transport.Send(c.conn, m, nil)
	case wire.Obeyed:
		err = transport.Send(c.conn, m, nil)
	case wire.Leave:
		err = transport.Send(c.conn, m, nil)
	case wire.Ping:
		err = transport.Send(c.conn, m, nil)
	default:
		panic(fmt.Sprintf("cluster: a client never says %v", m.Kind()))
	}
	if err != nil {
		c.conn.Close() // the reader reports it
	}
}

// heard is a message from a connection, or why it ended.
type heard struct {
	conn  transport.Conn
	grant *wire.Grant
	order *wire.Order
	err   error
}

// opened is the result of an attempt to connect.
type opened struct {
	conn  transport.Conn
	addr  string
	lease time.Duration
	err   error
}

// Run keeps the connection up and serves the other methods until ctx ends; then it undoes orders and disconnects. It
// returns nil: no failure of the service is an error of the job.
func (c *Client) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(c.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan heard)
	attempts := make(chan opened)
	begun := time.Now()
	c.lost = begun
	pause := 100 * time.Millisecond
	try := time.NewTimer(0)
	defer try.Stop()
	report := time.NewTicker(c.cfg.Every)
	defer report.Stop()
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	told := false // the disconnection was logged
	refusal := "" // reason of the last refusal; empty: not refused
	owner := "the client of cluster " + c.cfg.Cluster
	c.asking = flightrecorder.Open(owner, "the answer of the resource service to question", "", "")
	defer c.asking.Close()
	away := flightrecorder.Open(owner, "a resource service", "", fmt.Sprintf("it is reachable: an attempt is made at least every %v, and the job trains meanwhile", c.cfg.Longest+c.cfg.DialTime))
	defer away.Close()
	away.Begin(-1, 0)
	word := flightrecorder.Open(owner, "the next message of the resource service", "", "")
	defer word.Close()
	defer func() {
		if c.conn != nil {
			c.say(wire.Leave{Worker: -1, Reason: "the process ends"})
			c.conn.Close()
		}
		c.obey(wire.Order{})
		c.setState("ended")
	}()
	again := func() {
		try.Reset(pause/2 + rand.N(pause)) // jitter: clients that lost it together do not all reconnect together
		pause = min(2*pause, c.cfg.Longest)
	}
	for {
		alarm.Reset(c.next())
		select {
		case <-ctx.Done():
			return nil
		case f := <-c.acts:
			f()
		case <-try.C:
			wg.Go(func() {
				o := c.open(ctx)
				select {
				case attempts <- o:
				case <-ctx.Done():
					if o.conn != nil {
						o.conn.Close()
					}
				}
			})
		case o := <-attempts:
			if o.err != nil {
				c.setState("not connected: %v", o.err)
				away.Say(o.err.Error())
				var refused interface{ ExitCode() int }
				if isRefusal := errors.As(o.err, &refused); isRefusal && !told || !told && time.Since(c.lost) >= c.cfg.DialTime {
					told = true
					c.log.Warn("resource service not found; the job stays in SSGD, or returns to it", "err", o.err)
				}
				again()
				break
			}
			if refusal != "" { // admission is certain only after the connection has lasted
			} else if told || begun != c.lost {
				c.log.Info("resource service reconnected", "addr", o.addr, "after", time.Since(c.lost).Round(time.Millisecond))
			} else {
				c.log.Info("resource service connected", "addr", o.addr)
			}
			told = false
			away.End()
			c.connected(o)
			conn, silent := o.conn, c.silent
			word.Say(o.addr)
			wg.Go(func() { listen(ctx, conn, silent, word, news) })
		case h := <-news:
			if h.conn != c.conn {
				break
			}
			switch {
			case h.err != nil:
				c.conn.Close()
				c.conn, c.lost, told = nil, time.Now(), true
				c.setState("lost: %v", h.err)
				away.Say("lost: " + h.err.Error())
				away.Begin(-1, 0)
				var refused *transport.RejectError
				if was := refusal; errors.As(h.err, &refused) {
					if refusal = refused.Reason; refusal != was {
						c.log.Warn("resource service refused this process, which continues without it and retries", "addr", c.addr, "reason", refusal)
					}
				} else {
					refusal = ""
					c.log.Warn("resource service lost; its grants and orders end unless it returns", "addr", c.addr, "within", c.lease, "err", h.err)
				}
				if c.seq > settled {
					pause = 100 * time.Millisecond
				}
				again()
			case h.grant != nil:
				c.granted(*h.grant)
			case h.order != nil:
				c.obey(*h.order)
			}
		case <-report.C:
			if c.conn == nil {
				break
			}
			if e := c.enlistment(); e != c.said {
				c.said = e
				c.say(e)
			}
			if c.report(); c.seq > settled && refusal != "" {
				refusal = ""
				c.log.Info("resource service connected", "addr", c.addr)
			}
		case <-alarm.C:
		}
		c.overdue()
	}
}

// settled is the number of reports after which a connection counts as stable.
const settled = 3

// enlistment returns the process's current identity.
func (c *Client) enlistment() wire.Enlist {
	e := c.cfg.Enlist()
	e.Life = c.process
	return e
}

func (c *Client) report() {
	u := c.cfg.Usage()
	c.seq++
	u.Seq, u.Delay = c.seq, c.delay
	c.say(u)
	c.say(wire.Ping{Seq: c.seq, Sent: time.Now().UnixNano()})
}

// connected starts using a new connection.
func (c *Client) connected(o opened) {
	c.conn, c.addr, c.seq = o.conn, o.addr, 0
	if o.lease > 0 {
		c.lease = o.lease
	}
	c.silent = max(c.lease, 3*c.cfg.Every) // the service answers each report's ping
	c.setState("connected to %s", o.addr)
	c.said = c.enlistment()
	c.say(c.said)
	c.report()
	// The service may have restarted, without its orders and grants.
	c.obey(wire.Order{})
	if c.claim != nil {
		c.ids++
		c.claim.ask.ID = c.ids
		c.put(c.claim)
	}
}

// granted handles an answer.
func (c *Client) granted(g wire.Grant) {
	q := c.claim
	if q == nil || g.ID != q.ask.ID {
		return // withdrawn meanwhile; the service knows
	}
	q.asked = false
	c.asking.End()
	if !g.OK {
		c.say(wire.Yield{ID: g.ID})
		c.refuse(g.Why)
		return
	}
	if g.Lease > 0 {
		c.lease = g.Lease
	}
	if !q.granted {
		q.granted = true
		q.answer(true, g.Why)
	}
}

// obey carries out an order.
func (c *Client) obey(o wire.Order) {
	want := o.Delay + o.Early
	var err error
	if want != c.delay {
		if c.cfg.Obey == nil {
			err = errors.New("this process cannot delay an iteration")
		} else if err = c.cfg.Obey(want); err == nil {
			c.delay = want
			c.log.Info("delay changed", "per_iteration", want, "for", o.For, "why", o.Why)
		}
	}
	if o.Lease > 0 {
		c.lease = o.Lease
	}
	if o.ID == 0 {
		return
	}
	m := wire.Obeyed{ID: o.ID, Delay: c.delay}
	if err != nil {
		m.Err = err.Error()
		c.log.Warn("cannot carry out the resource service's order", "delay", want, "err", err)
	}
	c.say(m)
}

// next returns how long until something is overdue.
func (c *Client) next() time.Duration {
	d := time.Hour
	if q := c.claim; q != nil && q.asked {
		d = min(d, time.Until(q.due))
	}
	if c.conn == nil && (c.claim != nil || c.delay > 0) {
		d = min(d, time.Until(c.lost.Add(c.lease)))
	}
	return max(d, 0)
}

// overdue gives up what was waited for too long.
func (c *Client) overdue() {
	now := time.Now()
	if q := c.claim; q != nil && q.asked && !now.Before(q.due) {
		why := fmt.Sprintf("no answer of the resource service at %s within %v", c.addr, c.cfg.Timeout)
		if c.conn == nil {
			if q.granted {
				q.asked = false // the lease decides
				return
			}
			why = c.missing()
		}
		c.say(wire.Yield{ID: q.ask.ID}) // a grant that is on its way is returned
		c.refuse(why)
	}
	if c.conn == nil && !now.Before(c.lost.Add(c.lease)) {
		if c.claim != nil {
			c.refuse(fmt.Sprintf("the resource service at %s was unreachable for %v", c.addr, c.lease))
		}
		if c.delay > 0 {
			c.obey(wire.Order{Why: "the resource service is unreachable"})
		}
	}
}

// open makes one attempt to connect.
func (c *Client) open(ctx context.Context) opened {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTime)
	defer cancel()
	addr, err := c.cfg.Find(ctx)
	if err != nil {
		return opened{err: err}
	}
	e := c.cfg.Enlist()
	conn, g, err := hail(ctx, c.cfg.Network, addr, wire.Hello{
		Service: wire.ServiceCluster, Role: c.cfg.Role, Job: c.cfg.Cluster, Token: c.cfg.Token, Version: c.cfg.Version, Host: e.Host, Rank: max(e.Rank, -1),
	})
	if err != nil {
		return opened{err: err}
	}
	return opened{conn: conn, addr: addr, lease: g.Lease}
}

// hail connects to a service and introduces the client.
func hail(ctx context.Context, n transport.Network, addr string, h wire.Hello) (transport.Conn, greeting, error) {
	conn, _, text, err := transport.Open(ctx, n, addr, h, nil)
	if err != nil {
		return nil, greeting{}, err
	}
	var g greeting
	if err := json.Unmarshal(text, &g); err != nil || g.Cluster != h.Job {
		conn.Close()
		return nil, greeting{}, fmt.Errorf("%s is not the resource service of cluster %q", addr, h.Job)
	}
	conn.SetPeer("cluster service " + addr)
	return conn, g, nil
}

// listen forwards the service's messages until the connection or ctx ends. It leaves the connection open when ctx ends:
// Run still has to send a farewell.
func listen(ctx context.Context, conn transport.Conn, silent time.Duration, site *flightrecorder.Site, news chan<- heard) {
	for {
		h := heard{conn: conn}
		conn.SetReadDeadline(time.Now().Add(silent))
		site.Begin(-1, silent)
		f, err := conn.Recv()
		site.End()
		switch {
		case err != nil:
			h.err = err
		case f.Kind == wire.KindGrant:
			g, err := wire.ParseGrant(f.Header)
			h.grant, h.err = &g, err
		case f.Kind == wire.KindOrder:
			o, err := wire.ParseOrder(f.Header)
			h.order, h.err = &o, err
		case f.Kind == wire.KindPong: // a sign of life
		case f.Kind == wire.KindReject:
			r, err := wire.ParseReject(f.Header)
			if h.err = err; err == nil {
				h.err = &transport.RejectError{Peer: conn.Peer(), Exit: r.Exit, Reason: r.Reason}
			}
		default:
			h.err = fmt.Errorf("unexpected %v from %s", f.Kind, conn.Peer())
		}
		if h.err == nil {
			h.err = conn.Discard()
		}
		select {
		case news <- h:
		case <-ctx.Done():
			return
		}
		if h.err != nil {
			return
		}
	}
}
