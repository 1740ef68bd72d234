package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"star/internal/build"
	"star/internal/exitcode"
)

// Config says what an agent needs to know beside what processes tell it.
type Config struct {
	// Advertise is the name or address by which other hosts reach this one. Empty: that of the interface that leads to
	// the job's store.
	Advertise string
	// Token is a secret of the job's hosts. Empty: that of the first process, which all read in the job's store.
	Token string
	// TLS protects connections to other hosts, unless it is nil.
	TLS *tls.Config
	// Watch measures the processes, unless it is nil.
	Watch Watch
	Log   *slog.Logger
}

// Watch measures the processes of a host. Its methods are called by several goroutines.
type Watch interface {
	// Hook is the folder of the Python module star_watch, and Socket the address to which it sends what it measures.
	Hook() string
	Socket() string
	// Lead has this host judge the measurements of all hosts, and listen for them on l.
	Lead(l net.Listener, token string) error
	// Follow sends the measurements of this host to the one that leads.
	Follow(addr, token string)
}

// Hello is the body of a hello.
type Hello struct {
	Client string `json:"client"` // name and version
	Rank   int    `json:"rank"`   // of the process in the job
	Token  string `json:"token"`  // as in Open
}

// About is the reply to a hello.
type About struct {
	Program string `json:"program"` // name and version
	PID     int    `json:"pid"`     // of the agent
	// Hook and Socket are those of Watch. Empty: nothing is measured.
	Hook   string `json:"hook"`
	Socket string `json:"socket"`
}

// Agent serves the processes of one host.
type Agent struct {
	cfg  Config
	gone chan struct{} // closed when the last member has gone

	mu      sync.Mutex
	members int  // connections that have said hello
	ever    bool // there was one
}

// firstTime is how long an agent waits for its first process.
const firstTime = time.Minute

// helloTime is how long a connection may take to say hello.
const helloTime = 30 * time.Second

// Serve serves the processes that connect to l, and returns when the last of them has gone, when none came within a
// minute, or when ctx ends. It closes l.
func Serve(ctx context.Context, l *net.UnixListener, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	a := &Agent{cfg: cfg, gone: make(chan struct{})}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first := time.AfterFunc(firstTime, func() {
		if a.unused() {
			cancel(fmt.Errorf("no process connected within %v", firstTime))
		}
	})
	defer first.Stop()
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-a.gone:
		}
		l.Close()
	})
	defer l.Close()
	for {
		nc, err := l.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return a.end(ctx)
		case err != nil: // out of descriptors, most often
			cfg.Log.Warn("could not accept a connection", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		wg.Go(func() { a.serve(ctx, nc) })
	}
}

// end returns why Serve ends.
func (a *Agent) end(ctx context.Context) error {
	select {
	case <-a.gone:
		return nil
	default:
		return context.Cause(ctx)
	}
}

func (a *Agent) unused() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.ever
}

// join counts a member. False: the last one has gone, and the agent ends.
func (a *Agent) join() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ever && a.members == 0 {
		return false
	}
	a.members++
	a.ever = true
	return true
}

func (a *Agent) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.members--; a.members == 0 {
		close(a.gone)
	}
}

// connection is one of a process: its presence, or a group.
type connection struct {
	agent *Agent
	nc    *net.UnixConn
	pid   int
	hello Hello
	group *group // nil: not opened

	send sync.Mutex
	// abort ends the running operation and all later ones.
	abort context.CancelCauseFunc
	ctx   context.Context
}

// request is a frame with its descriptors.
type request struct {
	Frame
	fds []int
}

// queued bounds the requests that wait for an earlier one of their group. A process waits for the reply of one before
// it sends the next.
const queued = 64

// serve serves one connection until it ends.
func (a *Agent) serve(ctx context.Context, nc *net.UnixConn) {
	defer nc.Close()
	c := &connection{agent: a, nc: nc}
	c.ctx, c.abort = context.WithCancelCause(ctx)
	defer c.abort(nil)
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	var err error
	if c.pid, err = peerOf(nc); err != nil {
		c.fail(0, exitcode.Refused, 0, fmt.Errorf("the agent refuses the connection: %w", err))
		return
	}
	if !c.greet() {
		return
	}
	defer a.leave()
	requests := make(chan request, queued)
	var worker sync.WaitGroup
	worker.Go(func() { c.work(requests) })
	err = c.read(requests)
	if !errors.Is(err, io.EOF) {
		a.cfg.Log.Warn("closed the connection of a process", "pid", c.pid, "member", c.hello.Rank, "err", err)
	}
	c.abort(fmt.Errorf("the process of rank %d (number %d) has ended", c.hello.Rank, c.pid))
	close(requests)
	worker.Wait()
}

// greet answers the hello, with which a connection begins.
func (c *connection) greet() bool {
	c.nc.SetReadDeadline(time.Now().Add(helloTime))
	f, fds, err := read(c.nc)
	closeAll(fds)
	c.nc.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, io.EOF):
		return false
	case err == nil && f.Kind != KindHello:
		err = fmt.Errorf("the connection begins with %v, expected hello", f.Kind)
	case err == nil && f.A != Version:
		err = fmt.Errorf("star_train speaks version %d to the agent, %s speaks version %d: use a star-train and a star of one release", f.A, build.Program, Version)
	case err == nil:
		err = json.Unmarshal(f.Body, &c.hello)
	}
	if err != nil {
		c.fail(f.ID, exitcode.Disagree, 0, err)
		return false
	}
	about := About{Program: build.Program, PID: os.Getpid()}
	if w := c.agent.cfg.Watch; w != nil {
		about.Hook, about.Socket = w.Hook(), w.Socket()
	}
	body, err := json.Marshal(about)
	if err != nil {
		c.fail(f.ID, exitcode.Failure, 0, err)
		return false
	}
	if !c.agent.join() {
		c.fail(f.ID, exitcode.Lost, 0, errors.New("the agent ends, because its last process has gone"))
		return false
	}
	c.reply(Frame{Kind: KindDone, ID: f.ID, Body: body})
	return true
}

// read passes requests on until the connection ends.
func (c *connection) read(requests chan<- request) error {
	for {
		f, fds, err := read(c.nc)
		if err == nil && (f.Kind == KindAbort || f.Kind == KindLeave) {
			closeAll(fds)
			if f.Kind == KindLeave {
				c.abort(leftError{c.hello.Rank, c.pid})
			} else {
				c.abort(errors.New(cmp.Or(string(f.Body), "no reason given")))
			}
			continue
		}
		if err == nil {
			select {
			case requests <- request{f, fds}:
				continue
			default:
				err = fmt.Errorf("%d requests wait: the next one must wait for a reply", queued)
			}
		}
		closeAll(fds)
		if !errors.Is(err, io.EOF) {
			c.fail(f.ID, exitcode.Disagree, 0, err)
		}
		return err
	}
}

// leftError ends the group of a process that leaves it in good order.
type leftError struct{ rank, pid int }

func (e leftError) Error() string {
	return fmt.Sprintf("the process of rank %d (number %d) has left the group", e.rank, e.pid)
}

// work carries out requests in order.
func (c *connection) work(requests <-chan request) {
	defer func() {
		if c.group != nil {
			c.group.close(context.Cause(c.ctx))
		}
	}()
	for r := range requests {
		body, err := c.do(r)
		closeAll(r.fds)
		if err != nil {
			code, host := fault(err)
			c.fail(r.ID, code, host, fmt.Errorf("%v: %w", r.Kind, inHosts(err)))
			continue
		}
		c.reply(Frame{Kind: KindDone, ID: r.ID, Body: body})
	}
}

// do carries out one request.
func (c *connection) do(r request) (body []byte, err error) {
	if err := context.Cause(c.ctx); err != nil {
		return nil, err
	}
	if r.Within <= 0 || r.Within > maxWithin {
		return nil, fmt.Errorf("a time limit of %v: it must be positive and at most %v", r.Within, maxWithin)
	}
	ctx, cancel := context.WithTimeoutCause(c.ctx, r.Within+grace, deadlineError{r.Within})
	defer cancel()
	switch r.Kind {
	case KindOpen:
		if c.group != nil {
			return nil, errors.New("the connection has a group already")
		}
		if len(r.fds) != 1 {
			return nil, fmt.Errorf("%d descriptors beside the request, expected that of the memory", len(r.fds))
		}
		g, addr, err := c.agent.open(ctx, r.Frame, r.fds[0])
		if err != nil {
			return nil, err
		}
		c.group = g
		return []byte(addr), nil
	case KindLead:
		return c.agent.lead(ctx, string(r.Body), c.hello.Token)
	case KindFollow:
		if w := c.agent.cfg.Watch; w != nil {
			w.Follow(string(r.Body), cmp.Or(c.agent.cfg.Token, c.hello.Token))
		}
		return nil, nil
	}
	if c.group == nil {
		return nil, errors.New("the connection has no group: the request must come after open")
	}
	if r.Kind == KindForm {
		if err := c.group.form(ctx, r.Frame); err != nil {
			return nil, err
		}
		// The other hosts also learn of the end between two operations.
		ring := c.group.ring
		context.AfterFunc(c.ctx, func() { end(ring, context.Cause(c.ctx)) })
		return nil, nil
	}
	return nil, c.group.do(ctx, r.Frame)
}

// maxWithin bounds the time limit of a request.
const maxWithin = 400 * 24 * time.Hour

// deadlineError ends a request that takes too long.
type deadlineError struct{ within time.Duration }

func (e deadlineError) Error() string { return fmt.Sprintf("not done within %v", e.within) }
func (deadlineError) Unwrap() error   { return context.DeadlineExceeded }

// lead makes this host the one that judges measurements, and returns its address.
func (a *Agent) lead(ctx context.Context, store, token string) ([]byte, error) {
	if a.cfg.Watch == nil {
		return nil, nil
	}
	l, addr, err := a.listen(ctx, store)
	if err != nil {
		return nil, err
	}
	if err := a.cfg.Watch.Lead(l, cmp.Or(a.cfg.Token, token)); err != nil {
		l.Close()
		return nil, err
	}
	return []byte(addr), nil
}

// writeTime is how long a process may take to read a reply.
const writeTime = 10 * time.Second

// reply sends a frame. A process that has gone does not get it.
func (c *connection) reply(f Frame) {
	c.send.Lock()
	defer c.send.Unlock()
	c.nc.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := c.nc.Write(f.AppendTo(nil)); err != nil {
		c.nc.Close()
	}
}

// fail replies with an error.
func (c *connection) fail(id, code, host uint64, err error) {
	text := []byte(err.Error())
	c.reply(Frame{Kind: KindError, ID: id, A: code, B: host, Body: text[:min(len(text), KindError.limit())]})
}
