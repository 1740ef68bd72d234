package coord

import (
	"math"
	"testing"
	"time"

	"star/coord/architecture"
	"star/coord/membership"
	"star/coord/moves"
	"star/coord/session"
	"star/coord/view"
	"star/transport/wire"
)

// The inflow of a server is measured from each worker's push, from its beginning until that server held all of it, and
// only for workers on other hosts. A shard that has moved is measured again.
func TestInflow(t *testing.T) {
	c := &Coordinator{arch: architecture.Of(&Config{}), cfg: Config{Shift: true, MaxWorkers: 2}, flow: flow{links: moves.NewLinks(true)}}
	begun := time.Unix(1000, 0)
	c.journal.Begin(begun)
	c.members.Terms.Set(wire.Hello{Params: 1000}, session.Enrolment{})
	c.placing.Inherit([]wire.ShardInfo{{Shard: 0, From: 0, To: 500}, {Shard: 1, From: 500, To: 700}, {Shard: 2, From: 700, To: 1000}}, []int{0, 1, 1})
	c.peers.servers = []*peer{{rank: 0, place: &membership.Place{Site: "a"}}, {rank: 1, place: &membership.Place{Site: "b"}}, {rank: 2, place: &membership.Place{Site: "c"}}}
	c.peers.workers = []*peer{{rank: 0, place: &membership.Place{Site: "b"}}, {rank: 1, place: &membership.Place{Site: "d"}}}
	for _, s := range c.peers.servers[:2] {
		s.load = view.Reported{Heard: true, Enlist: wire.Enlist{Host: "host " + s.place.Site, Capacity: wire.Amounts{CPU: 4, In: 1e9}}, Usage: wire.Usage{Own: wire.Amounts{CPU: 0.5}, Free: 7}}
	}
	push := func(i int, full time.Duration, sent float64) {
		for w, p := range c.peers.workers {
			at := begun.Add(time.Duration(i) * time.Second)
			p.measured.Flight.From, p.last.NetOut = at, sent
			for server, took := range []time.Duration{full, full / 4} {
				c.flow.links.Stored(at.Add(took).Sub(begun), w, server)
			}
			c.inflow(p)
		}
	}
	for i := range 4 {
		push(i, 100*time.Millisecond, 4000)
	}
	// Server 0: both workers, 2000 bytes each at once in 100 ms. Server 1: worker 1 alone, 2000 bytes in 25 ms.
	for server, want := range []float64{40e3, 80e3} {
		l := c.flow.serverLoad(&c.peers, c.peers.servers[server])
		if math.Abs(l.Inflow-want) > 1e-6*want || l.Host != "host "+c.peers.servers[server].place.Site || l.Cores != 4 || l.LinkIn != 1e9 || l.CPU != 0.5 || l.Free != 7 {
			t.Errorf("server %d: %+v, want %v", server, l, want)
		}
	}
	if l := c.flow.serverLoad(&c.peers, c.peers.servers[2]); l != nil {
		t.Errorf("a server that says nothing: %+v", l)
	}
	c.flow.links.Forget(0)
	for i := range 4 {
		push(4+i, 100*time.Millisecond, 1000) // compressed to a quarter
	}
	if l := c.flow.serverLoad(&c.peers, c.peers.servers[0]); math.Abs(l.Inflow-10e3) > 1 {
		t.Errorf("compressed: %+v", l)
	}
	// If a server's part was there before the push began, it belongs to another push.
	c.flow.links.Forget(0)
	c.flow.links.Stored(0, 1, 0)
	c.peers.workers[1].measured.Flight.From = begun.Add(time.Second)
	c.inflow(c.peers.workers[1])
	c.peers.workers[1].measured.Flight.From = time.Time{}
	c.inflow(c.peers.workers[1])
	if l := c.flow.serverLoad(&c.peers, c.peers.servers[0]); l.Inflow != 0 {
		t.Errorf("%v was measured of nothing", l.Inflow)
	}
}
