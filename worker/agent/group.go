package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"star/allreduce"
	"star/internal/exitcode"
	"star/internal/loopback"
	"star/job/process"
	"star/transport"
)

// Open is the body of an open request: which process group spans which hosts.
type Open struct {
	Name  string `json:"name"`  // of the group, the same on all hosts
	Host  int    `json:"host"`  // this host, from 0
	Hosts int    `json:"hosts"` // their number
	// HostID is equal for processes that share a host.
	HostID string `json:"host_id"`
	// Token is a secret of the job's processes, for a job without STAR_TOKEN.
	Token string `json:"token"`
	// Store is host:port of the job's store: other hosts are reached by the interface that leads there. Empty: the
	// store is no address, so all hosts are this machine.
	Store string `json:"store"`
}

// group is a process group that spans hosts.
type group struct {
	agent  *Agent
	about  Open
	memory []byte
	meet   net.Listener     // of host 0, until the group is formed
	ring   *allreduce.Group // nil: not formed
}

// open maps the memory of a group. On host 0 it listens for the others, and returns the address at which they reach
// it.
func (a *Agent) open(ctx context.Context, f Frame, fd int) (*group, string, error) {
	g := &group{agent: a}
	if err := json.Unmarshal(f.Body, &g.about); err != nil {
		return nil, "", fmt.Errorf("the body is not JSON: %w", err)
	}
	if o := g.about; o.Hosts < 1 || o.Hosts > allreduce.MaxRanks || o.Host < 0 || o.Host >= o.Hosts {
		return nil, "", fmt.Errorf("host %d of %d: a group has 1 to %d hosts, numbered from 0", o.Host, o.Hosts, allreduce.MaxRanks)
	}
	var err error
	if g.memory, err = mapMemory(fd, f.A); err != nil {
		return nil, "", err
	}
	addr := ""
	if g.about.Host == 0 && g.about.Hosts > 1 {
		if g.meet, addr, err = a.listen(ctx, g.about.Store); err != nil {
			g.close(err)
			return nil, "", err
		}
	}
	return g, addr, nil
}

// listen listens for other hosts of a job, and returns the address at which they reach this one: that of --advertise,
// or of the interface that leads to the job's store. On the store's own host that may be loopback; other hosts then use
// the name by which they know the store's host.
func (a *Agent) listen(ctx context.Context, store string) (net.Listener, string, error) {
	listen, public := process.Home(), process.Home()
	if host, _, err := net.SplitHostPort(store); err == nil {
		toward, err := process.Toward(ctx, store)
		if err != nil {
			return nil, "", fmt.Errorf("no way to the job's store at %s: %w", store, err)
		}
		listen, public = toward, toward
		if net.ParseIP(toward).IsLoopback() && !loopback.Is(host) {
			listen, public = "", host
		}
	}
	if a.cfg.Advertise != "" {
		listen, public = "", a.cfg.Advertise
		if host, _, err := net.SplitHostPort(public); err == nil {
			public = host
		}
	}
	at := net.JoinHostPort(listen, "0")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, transport.ListenNetwork(at), at)
	if err != nil {
		return nil, "", fmt.Errorf("cannot listen for the agents of other hosts: %w; set STAR_ADVERTISE to an address of this host", err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return l, net.JoinHostPort(public, port), nil
}

// form connects with the other hosts.
func (g *group) form(ctx context.Context, f Frame) error {
	if g.ring != nil {
		return errors.New("the group is formed already")
	}
	cfg := allreduce.Config{
		Rank: g.about.Host, Size: g.about.Hosts, Rendezvous: string(f.Body), Listener: g.meet, DialTimeout: f.Within,
		Job: g.about.Name, Token: cmp.Or(g.agent.cfg.Token, g.about.Token), TLS: g.agent.cfg.TLS,
		HostID: g.about.HostID, Log: g.agent.cfg.Log,
		// The vectors are shared with other processes, so what was lent could not be taken back after a failure.
		ZeroCopy: allreduce.ZeroCopyOff,
	}
	g.meet = nil // Dial closes it
	ring, err := allreduce.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	g.ring = ring
	return nil
}

// grace is how long after the deadline of a request the hosts may look for the one at fault.
const grace = 2 * time.Second

// do carries out an operation.
func (g *group) do(ctx context.Context, f Frame) (err error) {
	if g.ring == nil {
		return errors.New("the group is not formed: the request must come after form")
	}
	// A process may have shortened the file of the memory: the access is an error then, and not the end of the agent.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			fault, ok := p.(interface{ Addr() uintptr })
			if !ok {
				panic(p)
			}
			g.ring.Close()
			err = fmt.Errorf("the group's memory cannot be accessed at address %#x: its file was shortened, or the host has no memory left", fault.Addr())
		}
	}()
	g.ring.SetTimeout(f.Within)
	switch f.Kind {
	case KindAllReduce:
		return g.allReduce(ctx, f)
	case KindBarrier:
		return g.ring.Barrier(ctx)
	case KindBroadcast:
		b, err := within(g.memory, f.B, f.C)
		if err != nil {
			return err
		}
		if f.A >= uint64(g.about.Hosts) {
			return fmt.Errorf("there is no host %d of %d", f.A, g.about.Hosts)
		}
		return g.ring.BroadcastBytes(ctx, int(f.A), b)
	case KindExchange:
		send, receive, err := spans(f.Body, g.about.Hosts)
		if err != nil {
			return err
		}
		return g.ring.Exchange(ctx, g.memory, send, receive)
	}
	return fmt.Errorf("%v is not an operation", f.Kind)
}

// Codes of an all-reduce's C: the type in the low byte, and the operator in the next one.
var (
	types = [...]func(context.Context, *group, allreduce.Op, uint64, uint64) error{
		allreduce.Float32Type: sum[float32], allreduce.Float64Type: sum[float64], allreduce.Float16Type: sum[allreduce.Float16],
		allreduce.BFloat16Type: sum[allreduce.BFloat16], allreduce.Int32Type: sum[int32], allreduce.Int64Type: sum[int64],
	}
	ops = [...]allreduce.Op{allreduce.Sum, allreduce.Mean, allreduce.Max, allreduce.Min}
)

func (g *group) allReduce(ctx context.Context, f Frame) error {
	t, op := f.C&0xff, f.C>>8
	if t >= uint64(len(types)) || op >= uint64(len(ops)) {
		return fmt.Errorf("no all-reduce of type %d with operator %d: version %d has types 0 to %d and operators 0 to %d", t, op, Version, len(types)-1, len(ops)-1)
	}
	return types[t](ctx, g, ops[op], f.A, f.B)
}

func sum[T allreduce.Element](ctx context.Context, g *group, op allreduce.Op, offset, count uint64) error {
	v, err := elements[T](g.memory, offset, count)
	if err != nil {
		return err
	}
	return allreduce.AllReduce(ctx, g.ring, op, v)
}

// end ends the connections to other hosts, and tells them why, unless the process leaves in good order.
func end(ring *allreduce.Group, why error) {
	if _, left := errors.AsType[leftError](why); left || why == nil {
		ring.Close()
	} else {
		ring.Abort(why)
	}
}

// close ends the connections and unmaps the memory. No operation is running.
func (g *group) close(why error) {
	if g.meet != nil {
		g.meet.Close()
	}
	if g.ring != nil {
		end(g.ring, why)
	}
	if g.memory != nil {
		_ = unix.Munmap(g.memory)
		g.memory = nil
	}
}

// inHosts returns an error without the number of a host, which a reader would take for the rank of a process. The reply
// has it.
func inHosts(err error) error {
	e, ok := errors.AsType[*allreduce.Error](err)
	if !ok {
		return err
	}
	host := *e
	host.Rank = allreduce.None
	return errors.New(strings.Replace(err.Error(), e.Error(), host.Error(), 1))
}

// fault returns the exit code of an error, and 1 + the host at fault, or 0.
func fault(err error) (code, host uint64) {
	code = exitcode.Usage
	switch e, ok := errors.AsType[*allreduce.Error](err); {
	case ok && e.Rank != allreduce.None:
		code, host = exitcode.Lost, uint64(e.Rank)+1
	case ok, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = exitcode.Lost
	case strings.Contains(err.Error(), "refused: "):
		code = exitcode.Disagree
	}
	return code, host
}
