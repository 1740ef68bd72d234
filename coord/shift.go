package coord

import (
	"context"
	"errors"
	"log/slog"

	"star/coord/journal"
	"star/runlog"
	"star/transport/wire"
)

// kindNote marks an event with a Note. No frame has this kind.
const kindNote wire.Kind = 254

// Note records a decision on a move of a shard, and shows it in the status. It may be called from any goroutine while
// Run runs. It returns once the event queue has room, usually at once, or an error if the job or ctx is over before
// that.
func (c *Coordinator) Note(ctx context.Context, n runlog.Shift) error {
	select {
	case c.in.events <- inside(kindNote, internal{note: &n}):
		return nil
	case <-c.in.done:
		return errors.New("the job is over")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// inflow measures how the push of a released worker arrived at each server on another host.
func (c *Coordinator) inflow(p *peer) {
	f := &p.measured.Flight
	if !c.flow.links.Inlets() || f.From.IsZero() || c.members.Terms.Hello().Params == 0 {
		return
	}
	part := min(p.last.NetOut/float64(4*c.members.Terms.Hello().Params), 1) // gradients may be compressed
	bytes := c.placing.Inflow(part, func(rank int) bool { return c.peers.site(c.peers.servers[rank]) != c.peers.site(p) })
	c.flow.links.Arrived(p.rank, c.journal.At(f.From), bytes, c.cfg.MaxWorkers)
}

// noted records a note for the status and the run log.
func (f *flow) noted(j *journal.Journal, log *slog.Logger, n runlog.Shift) {
	at := j.Elapsed()
	f.shifts.Note(at, n)
	j.WriteAt(at, n)
	log.Info("shard move decision", "event", n.Event, "shard", n.Shard, "from", n.From, "to", n.To, "predicted_gain", n.Predicted, "seen_gain", float64(n.Seen), "why", n.Why)
}

// serverLoad returns a server's load; nil if it reports none. The coordinator measures its inflow from other hosts; the
// server reports the rest.
func (f *flow) serverLoad(ps *peers, p *peer) *ServerLoad {
	s := p.load.Load()
	if s == nil {
		return nil
	}
	far := 0
	for _, w := range ps.workers {
		if w != nil && !w.gone && ps.site(w) != ps.site(p) {
			far++
		}
	}
	s.Inflow = f.links.Inflow(p.rank, far)
	return s
}
