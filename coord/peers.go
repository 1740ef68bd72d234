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

// peers has the connections of members, by rank; package membership has their identities. A worker is in workers from
// its enrolment or, in a job that has begun, from when it takes part; until then it is in late. Nothing here waits for
// the network.
type peers struct {
	log              *slog.Logger
	out              outbox.Sender // of all messages to members
	servers, workers []*peer
	late             []*peer
	own              []net.IP // addresses of this host; nil until looked up
}

// live lists the connected workers.
func (ps *peers) live() []star.Worker {
	var ws []star.Worker
	for i, p := range ps.workers {
		if p != nil && !p.gone {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}

// holder is the connection of the worker that has a rank; nil if the rank is free.
func (ps *peers) holder(rank int) *peer {
	for _, p := range ps.late {
		if p.rank == rank && !p.gone {
			return p
		}
	}
	return ps.workers[rank]
}

// isLate reports whether p is a worker that came to a job that has begun and takes no part yet.
func (ps *peers) isLate(p *peer) bool { return slices.Contains(ps.late, p) }

// place is a member's location, as far as its addresses show it. It is determined once for each connection.
func (ps *peers) place(p *peer) *membership.Place {
	if p.place == nil {
		remote := ""
		if p.conn != nil { // nil: not connected to this coordinator
			remote = p.conn.RemoteAddr()
		}
		at := membership.PlaceOf(&p.hello, remote, ps.ownAddrs())
		p.place = &at
	}
	return p.place
}

// site is the host of a member: members with the same site share a link.
func (ps *peers) site(p *peer) string { return ps.place(p).Site }

// takesOthers reports whether every other worker can connect to this one to send it gradients.
func (ps *peers) takesOthers(p *peer) bool {
	at := ps.place(p)
	return p.hello.Addr != "" && !slices.ContainsFunc(ps.workers, func(o *peer) bool { return o != nil && o != p && !ps.place(o).Reaches(at) })
}

// ownAddrs returns the addresses of this host. They are looked up once: if the host gets another address while a job
// runs, it counts as two sites from then on.
func (ps *peers) ownAddrs() []net.IP {
	if ps.own == nil {
		ps.own = []net.IP{net.IPv6loopback}
		as, _ := net.InterfaceAddrs() // after an error only loopback is known
		for _, a := range as {
			if n, ok := a.(*net.IPNet); ok {
				ps.own = append(ps.own, n.IP)
			}
		}
	}
	return ps.own
}

// beside reports whether a worker is on the same host as every shard, so that its pushes use no link.
func (ps *peers) beside(p *peer, owner []int) bool {
	at := ps.site(p)
	return !slices.ContainsFunc(owner, func(s int) bool { return ps.site(ps.servers[s]) != at })
}

// send queues one small message behind those that wait. write puts one message into the peer's outbox, so send does not
// wait for the network. A peer that does not take the message in time is closed, and its reader returns the error. A
// peer that is nil or gone gets nothing, so callers need not check.
func (ps *peers) send(p *peer, write func() error) {
	if p != nil && !p.gone {
		ps.out.Send(p.conn, write)
	}
}

// tell sends one small message with its payload, like send.
func tell[M wire.Message](ps *peers, p *peer, m M, payload []byte) {
	ps.send(p, func() error { return transport.Send(p.conn, m, payload) })
}

// tellShards sends one small message to every server that has shards.
func tellShards[M wire.Message](ps *peers, m M, payload []byte) {
	for _, s := range ps.servers {
		if s.hello.Shards > 0 {
			tell(ps, s, m, payload)
		}
	}
}

// part sends a peer the reason why it must leave. Its reader continues for a moment: closing a socket with unread bytes
// would discard what was sent last. The peer closes the connection, or the deadline does. The peer is not marked gone:
// the caller handles its loss (lost), or that it never was a member (refuse).
func (ps *peers) part(p *peer, exit int, reason string) {
	tell(ps, p, wire.Reject{Exit: exit, Reason: reason}, nil)
	p.parted = true
	p.conn.EndReads(time.Now().Add(time.Second))
}

// branch sends a worker its position in a tree. The engine knows only ranks; this adds the parent's address.
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
	tell(ps, p, m, nil)
}

// detach tells a worker that a gradient takes another path. If it is the worker's own gradient, the worker pushes it
// now, so the time in which shards must hold it begins again.
func (ps *peers) detach(d engine.To[wire.Detach]) {
	p := ps.workers[d.Worker]
	if p == nil || p.gone {
		return
	}
	if d.Worker == d.Msg.Worker {
		p.pushed = time.Now() // it pushes now
	}
	tell(ps, p, d.Msg, nil)
}

// scaling returns how fast the workers are now, by their last iterations.
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

// refuse rejects a peer with a reason and an exit code (package exitcode): 2 if its settings are wrong, 75 if it may
// come back, 78 if it belongs to another job or trains something else.
func (ps *peers) refuse(p *peer, exit int, reason string) {
	ps.log.Warn("refused", "as", p.role, "wanted", p.rank, "peer", p.conn.Peer(), "reason", reason)
	ps.part(p, exit, reason)
	p.gone = true
}

// present returns which workers are connected.
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

// apart moves workers that have not joined from workers to late when a training begins. Afterwards each worker is in
// exactly one of the two.
func (ps *peers) apart(absent []star.Worker) {
	for _, w := range absent {
		p := ps.workers[w]
		if ps.workers[w] = nil; p != nil && !p.gone {
			ps.late = append(ps.late, p)
		}
	}
}

// meets returns why a worker cannot exchange gradients with the other enrolled workers, in a ring or the tree of the
// plan, because of its address or one of theirs, and the exit code with which it is rejected. why is empty if it can.
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
