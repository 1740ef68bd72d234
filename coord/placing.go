package coord

import (
	"net"
	"slices"
	"star/coord/copies"
	"star/coord/layout"
	"star/coord/moves"
	"star/ps/replica"
	"star/transport/wire"
)

// placing is where the shards and their copies are.
type placing struct {
	layout.Layout
	copies copies.Copies
	mover  moves.Mover
	uncut  []layout.Range // see config.Adopted

	moveAsked chan<- reply // for the reply to star ctl move
}

// beginCopies tells servers which copies they hold, once shards are cut.
func (pl *placing) beginCopies(ps *peers) {
	for shard, v := range pl.copies.Views() {
		for _, s := range v.Followers {
			ps.servers[s].hello.Shards++
		}
		pl.tellServers(ps, shard)
	}
}

// viewOf returns the message that names the servers of a shard: the primary, then the followers in order of succession.
func (pl *placing) viewOf(ps *peers, shard int) wire.View {
	v := pl.copies.View(shard)
	s := pl.Shard(shard)
	m := wire.View{Shard: shard, Term: v.Term, From: s.From, To: s.To}
	for _, rank := range copies.Holders(v) {
		m.Holders = append(m.Holders, wire.Holder{Rank: rank, Addr: ps.servers[rank].hello.Addr})
	}
	return m
}

// tellServers sends the holders of a shard its view, and records them in hosts.
func (pl *placing) tellServers(ps *peers, shard int) {
	m := pl.viewOf(ps, shard)
	for _, h := range m.Holders {
		pl.Host(h.Rank, shard)
		tell(ps, ps.servers[h.Rank], m, nil)
	}
}

// tellView sends all members the present view of a shard: servers first, then workers, including those that are still
// joining. A worker pushes to the servers that it knows, and a server that does not know its part yet would reject the
// gradient.
func (pl *placing) tellView(ps *peers, shard int) {
	v := pl.copies.View(shard)
	pl.Put(shard, v.Primary, ps.servers[v.Primary].hello.Addr)
	pl.tellServers(ps, shard)
	m := pl.viewOf(ps, shard)
	for _, p := range slices.Concat(ps.workers, ps.late) {
		if p != nil && p.welcomed {
			tell(ps, p, m, nil)
		}
	}
}

// tellViews sends a worker all views. It follows the worker's Welcome.
func (pl *placing) tellViews(ps *peers, p *peer) {
	if p.role != wire.RoleWorker {
		return
	}
	for shard := range pl.copies.Views() {
		m := pl.viewOf(ps, shard)
		tell(ps, p, m, nil)
	}
}

// places lists the servers as places for copies. first: no copies exist yet. A server that has come back and not
// reported its shards yet is not available: it will be told to forget outdated copies, and would forget a new copy,
// too.
func (pl *placing) places(ps *peers, coordinators int, first bool) []replica.Server {
	out := make([]replica.Server, len(ps.servers))
	for i, s := range ps.servers {
		out[i] = replica.Server{Host: ps.site(s), Gone: s.gone || s.unsaid || i < coordinators, Spare: s.hello.Shards == 0}
		if host, _, err := net.SplitHostPort(s.hello.Addr); err == nil && host != "" && out[i].Host == "" {
			out[i].Host = host
		}
		if !first {
			out[i].Copies = s.hello.Shards
		}
	}
	return out
}

// record writes the servers of the shards into e: the number of shards and copies of each, and the views.
func (pl *placing) record(e *Handover) {
	e.Counts, e.Views = pl.copies.Counts(pl.Owners()), pl.copies.Views()
}

// forgetExtras makes a server that comes back drop the copies that are in no view any more.
func (pl *placing) forgetExtras(ps *peers, p *peer, m wire.Standing) {
	for _, s := range m.Shards {
		if s.Shard < pl.Len() && !pl.copies.View(s.Shard).Has(p.rank) {
			pl.forgetCopy(ps, p, s.Shard)
		}
	}
}

// forgetCopy makes a server drop a copy that is in no view any more.
func (pl *placing) forgetCopy(ps *peers, p *peer, shard int) {
	s := pl.Shard(shard)
	tell(ps, p, wire.Adopt{Move: pl.mover.Last(), Stage: wire.Forget, Shard: shard, Addr: s.Addr, From: s.From, To: s.To}, nil)
}
