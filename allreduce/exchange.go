package allreduce

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Exchange sends bytes send[r] of buf to rank r, for each other rank r, and
// receives bytes receive[r] from it. The entries of this rank are ignored. What
// rank a sends to rank b must be as long as what b receives from a; lengths
// that differ are an *Error that names the rank. No received range may overlap
// another range.
//
// It is AllToAll for blocks of any size at any place.
func (g *Group) Exchange(ctx context.Context, buf []byte, send, receive []Span) error {
	total, err := checkSpans(len(g.peers), g.rank, len(buf), send, receive)
	if err != nil {
		return fmt.Errorf("allreduce: exchange: %w", err)
	}
	g.arranged = newExchange(len(g.peers), g.rank, send, receive)
	return g.run(ctx, operation{call: callExchange, count: total}, buf)
}

// checkSpans returns the number of bytes that a rank sends.
func checkSpans(ranks, rank, size int, send, receive []Span) (total int, err error) {
	if len(send) != ranks || len(receive) != ranks {
		return 0, fmt.Errorf("%d ranges to send and %d to receive, for %d ranks", len(send), len(receive), ranks)
	}
	type use struct {
		Span
		received bool
	}
	uses := make([]use, 0, 2*ranks)
	for r := range ranks {
		if r == rank {
			continue
		}
		for _, u := range []use{{send[r], false}, {receive[r], true}} {
			if u.Lo < 0 || u.Hi < u.Lo || u.Hi > size {
				return 0, fmt.Errorf("the range for rank %d is bytes %d to %d of %d", r, u.Lo, u.Hi, size)
			}
			if u.Lo < u.Hi {
				uses = append(uses, u)
			}
		}
		total += send[r].Hi - send[r].Lo
	}
	slices.SortFunc(uses, func(a, b use) int { return a.Lo - b.Lo })
	// The use with the last end so far, of all and of those received.
	end, received := -1, -1
	for _, u := range uses {
		if u.Lo < received || u.received && u.Lo < end {
			return 0, fmt.Errorf("bytes %d to %d overlap another range, and one of the two is received", u.Lo, u.Hi)
		}
		end = max(end, u.Hi)
		if u.received {
			received = max(received, u.Hi)
		}
	}
	return total, nil
}

// newExchange cuts the AllToAll of this rank for an exchange.
func newExchange(n, rank int, send, receive []Span) programSteps {
	s := AllToAll(n, rank)
	cuts := make([]int, 2*n+1)
	for b := range 2 * n {
		r, spans := b, send
		if b >= n {
			r, spans = b-n, receive
		}
		cuts[b+1] = cuts[b]
		if r != rank {
			cuts[b+1] += spans[r].Hi - spans[r].Lo
		}
	}
	p := arrange(s, n, cuts)
	// In the order in which arrange made the transfers; it leaves out empty
	// ones.
	i := 0
	place := func(sp Span) {
		if sp.Lo < sp.Hi {
			p.transfers[i].lo, p.transfers[i].hi = sp.Lo, sp.Hi
			i++
		}
	}
	for _, m := range s.Moves {
		place(send[m.To])
		place(receive[m.From])
	}
	return programSteps{p, s.Steps}
}

// header returns the operation as this rank writes it to l's peer; theirs, as
// the peer must write it. They differ in an exchange only: the count is the
// bytes in that direction.
func (r *run) header(l *lane) operation { return r.headerOf(l.sends) }
func (r *run) theirs(l *lane) operation { return r.headerOf(l.recvs) }

func (r *run) headerOf(transfers []int32) operation {
	o := r.operation
	if o.call == callExchange {
		o.count = 0
		for _, id := range transfers {
			t := &r.prog.transfers[id]
			o.count += t.hi - t.lo
		}
	}
	return o
}

// BroadcastBytes is Broadcast for bytes.
func (g *Group) BroadcastBytes(ctx context.Context, root int, b []byte) error {
	return g.run(ctx, operation{call: callBroadcast, typ: byteType, root: root, count: len(b)}, b)
}

// SetTimeout changes Config.Timeout for later operations: how long one may go
// without moving a byte. It is for the goroutine that uses the group. All ranks
// should set the same.
func (g *Group) SetTimeout(d time.Duration) {
	if d > 0 {
		g.timeout = d
	}
}
