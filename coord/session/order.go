package session

import (
	"fmt"
	"time"

	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Order is a message of the coordinator to a worker.
//
// Kind says which of the fields is set; the others are zero.
//
//	release   continue: compute a number of samples from a position in the stream, with parameters of a version; evaluate first; or stop
//	ring      members of all-reduce: form this ring, or send gradients through that member of it
//	save      write your part of a checkpoint
//	buffers   the mean over all workers, for an evaluation
//	branch    in a tree: your parent and children from the next release on
//	detach    in a tree: a gradient, yours or a child's, takes another path
//	route     a shard has moved to another server
//	cancel    stop computing for an update that was made without you
//	close     a round is closed: the workers with gradients in it
//	view      the servers that hold the copies of a shard now
//
// Orders are carried out in the order in which they arrive, except those that only end a wait: cancel, close, view, and
// a ring that is formed at once.
type Order struct {
	Kind    wire.Kind // release, ring, save, buffers, branch, detach, route, cancel or close
	Release wire.Release
	Ring    wire.Ring
	Save    wire.Save
	Buffers wire.Buffers
	Payload []byte // buffers: float32; release: Stand.Metadata
	Branch  wire.Branch
	Detach  wire.Detach
	Route   wire.Route
	Cancel  wire.Cancel
	Close   wire.Close
	View    wire.View

	At time.Time // when it was received
}

// Order waits for the coordinator's next order. A Reject ends the membership: it is
// returned as *transport.RejectError.
//
// Other errors: a *LostError if the connection has ended or the coordinator was silent for DeadAfter; a frame that is
// not an order, or has an invalid header, which means that coordinator and member have different versions. Only one
// goroutine may call Order; others may call Say meanwhile.
func (m *Member) Order() (Order, error) {
	f, err := m.recv()
	if err != nil {
		return Order{}, err
	}
	o := Order{Kind: f.Kind, At: time.Now()}
	switch f.Kind {
	case wire.KindRelease:
		if o.Release, err = wire.ParseRelease(f.Header); err == nil && f.Size > 0 {
			o.Payload, err = transport.ReadAll(m.Conn, f)
		}
	case wire.KindRing:
		o.Ring, err = wire.ParseRing(f.Header)
	case wire.KindSave:
		o.Save, err = wire.ParseSave(f.Header)
	case wire.KindBuffers:
		if o.Buffers, err = wire.ParseBuffers(f.Header); err == nil {
			o.Payload, err = transport.ReadAll(m.Conn, f)
		}
	case wire.KindBranch:
		o.Branch, err = wire.ParseBranch(f.Header)
	case wire.KindDetach:
		o.Detach, err = wire.ParseDetach(f.Header)
	case wire.KindRoute:
		o.Route, err = wire.ParseRoute(f.Header)
	case wire.KindCancel:
		o.Cancel, err = wire.ParseCancel(f.Header)
	case wire.KindClose:
		o.Close, err = wire.ParseClose(f.Header)
	case wire.KindView:
		o.View, err = wire.ParseView(f.Header)
	default:
		err = fmt.Errorf("unexpected frame %v from the coordinator", f.Kind)
	}
	return o, err
}

// Views waits for the holders of the copies of each shard, which the coordinator sends after a worker's Welcome. Call
// it before Order. It waits for at most SendTimeout. Errors are those of Order, and a message that is not a View.
// Holders have the addresses that the coordinator knows, the primary first. The result is indexed by shard.
func Views(m *Member, shards int) ([]wire.View, error) {
	vs := make([]wire.View, shards)
	site := flightrecorder.Open(fmt.Sprintf("worker %d", m.Welcome.Rank), "holders of the copies of shards", "", "")
	defer site.Close()
	site.Begin(-1, m.cfg.SendTimeout)
	m.Conn.SetReadDeadline(time.Now().Add(m.cfg.SendTimeout))
	defer m.Conn.SetReadDeadline(time.Time{})
	for left := shards; left > 0; {
		o, err := m.Order()
		switch {
		case err != nil:
			return nil, err
		case o.Kind != wire.KindView || o.View.Shard >= shards || len(o.View.Holders) == 0:
			return nil, fmt.Errorf("unexpected %v from the coordinator", o.Kind)
		}
		if vs[o.View.Shard].Term == 0 {
			left--
		}
		vs[o.View.Shard] = o.View
	}
	return vs, nil
}
