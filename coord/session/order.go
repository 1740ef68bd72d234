package session

import (
	"fmt"
	"time"

	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// Order is something that the coordinator tells a worker.
//
// Kind says which of the fields is set; all others are zero.
// What each says, and to whom:
//
//	release   go on: compute a number of samples from a place in the stream, with parameters of a version; evaluate first; or stop
//	ring      members of all-reduce: form this ring, or ride with that member of it
//	save      write your part of a checkpoint
//	buffers   the average over all workers, which an evaluation asked for
//	branch    in a tree: your parent and children from the next release on
//	detach    in a tree: a gradient, yours or a child's, goes another way
//	route     a shard is at another server now
//	cancel    stop computing for an update that was made without you
//	close     a round is closed: whose gradients are in it
//	view      which servers hold the copies of a shard now
//
// Orders are done in the order in which they come, but those that only end a wait: cancel, close,
// view, and a ring that is formed at once.
type Order struct {
	Kind    wire.Kind // release, ring, save, buffers, branch, detach, route, cancel or close
	Release wire.Release
	Ring    wire.Ring
	Save    wire.Save
	Buffers wire.Buffers
	Payload []byte // of buffers: float32; of release: Stand.Metadata
	Branch  wire.Branch
	Detach  wire.Detach
	Route   wire.Route
	Cancel  wire.Cancel
	Close   wire.Close
	View    wire.View
}

// Order waits for the coordinator's next order. A Reject ends the membership: it is
// returned as *transport.RejectError.
//
// Other errors: a *LostError where the connection has ended or nothing was heard for DeadAfter; a
// frame that is no order, or whose header cannot be parsed: coordinator and member are of different
// versions then. One goroutine calls it, beside those that call Say.
func (m *Member) Order() (Order, error) {
	f, err := m.recv()
	if err != nil {
		return Order{}, err
	}
	o := Order{Kind: f.Kind}
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

// Views waits for the holders of the copies of each shard, by shard, which the coordinator sends after
// the Welcome of a worker. Call it before Order. It waits for SendTimeout at most. Errors are those of
// Order, and another message than a View. Holders have the addresses that the
// coordinator knows, the primary first.
func Views(m *Member, shards int) ([]wire.View, error) {
	vs := make([]wire.View, shards)
	site := flightrecorder.Open(fmt.Sprintf("worker %d", m.Welcome.Rank), "who holds the copies of shards", "", "")
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
