package coord

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"star"
	"star/coord/engine"
	"star/coord/membership"
	"star/coord/outbox"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
	"time"
)

// peers are the connections of members, by rank; package membership says who they are. A worker is in workers from its
// enrolment, or, in a job that has begun, from when it gets a part in it; until then it is in late. Nothing here waits
// for the network.
type peers struct {
	log              *slog.Logger
	out              outbox.Sender // of all messages to members
	servers, workers []*peer
	late             []*peer
	own              []net.IP // of this host; nil: not looked up yet
}

// live lists the workers that are there.
func (ps *peers) live() []star.Worker {
	var ws []star.Worker
	for i, p := range ps.workers {
		if p != nil && !p.gone {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}

// holder is the connection of the worker that has a rank; nil: the rank is free.
func (ps *peers) holder(rank int) *peer {
	for _, p := range ps.late {
		if p.rank == rank && !p.gone {
			return p
		}
	}
	return ps.workers[rank]
}

// isLate says whether p has come to a job that has begun, and has no part in it yet.
func (ps *peers) isLate(p *peer) bool { return slices.Contains(ps.late, p) }

// place is where a member is, as far as its addresses show. It is found out once for each connection.
func (ps *peers) place(p *peer) *membership.Place {
	if p.place == nil {
		remote := ""
		if p.conn != nil { // else it has not come to this coordinator
			remote = p.conn.RemoteAddr()
		}
		at := membership.PlaceOf(&p.hello, remote, ps.ownAddrs())
		p.place = &at
	}
	return p.place
}

// site is the host of a member: processes with the same one share a link.
func (ps *peers) site(p *peer) string { return ps.place(p).Site }

// takesOthers says whether a worker has a place where every other one can bring it gradients.
func (ps *peers) takesOthers(p *peer) bool {
	at := ps.place(p)
	return p.hello.Addr != "" && !slices.ContainsFunc(ps.workers, func(o *peer) bool { return o != nil && o != p && !ps.place(o).Reaches(at) })
}

// ownAddrs are the addresses of this host. They are looked up once: a host that gets another
// address while a job runs is two sites from then on.
func (ps *peers) ownAddrs() []net.IP {
	if ps.own == nil {
		ps.own = []net.IP{net.IPv6loopback}
		as, _ := net.InterfaceAddrs() // without them only loopback is ours
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok {
				ps.own = append(ps.own, n.IP)
			}
		}
	}
	return ps.own
}

// beside says whether a worker shares the host with every shard: what it sends goes over no
// link.
func (ps *peers) beside(p *peer, owner []int) bool {
	at := ps.site(p)
	return !slices.ContainsFunc(owner, func(s int) bool { return ps.site(ps.servers[s]) != at })
}

// send sends one small message, behind those that wait. A peer that does not take it is closed, and
// its reader returns the error. write puts one message into the peer's outbox, so nothing here waits
// for the network. A peer that is nil or gone gets nothing, so callers need not check.
func (ps *peers) send(p *peer, write func() error) {
	if p != nil && !p.gone {
		ps.out.Send(p.conn, write)
	}
}

// part tells a peer why it must go. Its reader goes on for a moment, because a socket that is
// closed with bytes unread takes back what was sent last; the peer's own close, or the deadline,
// ends it. It is not gone by that: the caller says what its loss means (lost), or that it never was
// a member (refuse).
func (ps *peers) part(p *peer, exit int, reason string) {
	ps.send(p, func() error { return transport.Send(p.conn, wire.Reject{Exit: exit, Reason: reason}, nil) })
	p.parted = true
	p.conn.EndReads(time.Now().Add(time.Second))
}

// branch tells a worker its place in a tree. The engine knows ranks only; the parent's address is
// added here.
func (ps *peers) branch(m wire.Branch) {
	p := ps.workers[m.Worker]
	if p == nil || p.gone {
		return
	}
	if m.Parent >= 0 {
		if q := ps.workers[m.Parent]; q != nil {
			m.ParentAddr = q.hello.Addr
		}
	}
	ps.send(p, func() error { return transport.Send(p.conn, m, nil) })
}

// detach tells a worker that a gradient goes another way. A worker whose own gradient it is pushes
// it now, so the time in which shards must hold it begins again.
func (ps *peers) detach(d engine.To[wire.Detach]) {
	p := ps.workers[d.Worker]
	if p == nil || p.gone {
		return
	}
	if d.Worker == d.Msg.Worker {
		p.pushed = time.Now() // it pushes now
	}
	ps.send(p, func() error { return transport.Send(p.conn, d.Msg, nil) })
}

// scaling is how fast the workers are now, by their last iterations.
func (ps *peers) scaling() modes.Scaling {
	var own, iteration []time.Duration
	var samples []int
	for _, p := range ps.workers {
		if p != nil && !p.measured.Recent.Empty() {
			own = append(own, time.Duration(p.measured.Own.Mean()*float64(time.Second)))
			iteration = append(iteration, time.Duration(p.measured.Recent.Mean()*float64(time.Second)))
			samples = append(samples, p.last.Samples)
		}
	}
	return modes.ScalingOf(own, iteration, samples)
}

// refuse lets a peer know why it is not taken, and with which code it is to end. Exit codes are
// those of package exitcode: 2 its settings are wrong, 75 it may come again, 78 it is of another
// job or trains something else.
func (ps *peers) refuse(p *peer, exit int, reason string) {
	ps.log.Warn("refused", "as", p.role, "wanted", p.rank, "peer", p.conn.Peer(), "reason", reason)
	ps.part(p, exit, reason)
	p.gone = true
}

// present says which workers have come.
func (ps *peers) present(members *membership.Members) []takeover.Presence {
	out := make([]takeover.Presence, len(ps.workers))
	for w, p := range ps.workers {
		switch {
		case members.Joined(w):
			out[w] = takeover.Joined
		case p != nil:
			out[w] = takeover.Linking
		}
	}
	return out
}

// apart takes workers that have not joined out of a training that begins. They come to it as late ones. After this a
// worker is in exactly one of workers and late.
func (ps *peers) apart(absent []star.Worker) {
	for _, w := range absent {
		p := ps.workers[w]
		if ps.workers[w] = nil; p != nil && !p.gone {
			ps.late = append(ps.late, p)
		}
	}
}

// meets says why a worker cannot exchange gradients with all others that have enrolled, in a ring or
// the tree of the plan, because of the address that it or one of them has given, and with which exit
// code it is refused. Empty: it can.
func (ps *peers) meets(sharded bool, plan modes.Plan, p *peer) (why string, exit int) {
	visited := func(w *peer) bool {
		return !sharded || engine.TreeNeeds(plan, w.rank, wire.Hello{}) != nil
	}
	for _, o := range ps.workers {
		if o == nil || o == p || o.gone || o.rank == p.rank {
			continue
		}
		at, there := ps.place(p), ps.place(o)
		if !there.Reaches(at) && visited(p) {
			return at.Unreachable(fmt.Sprintf("worker %d", p.rank)), exitcode.Usage
		}
		if !at.Reaches(there) && visited(o) {
			return there.Unreachable(fmt.Sprintf("worker %d", o.rank)), exitcode.Disagree
		}
	}
	return "", 0
}
