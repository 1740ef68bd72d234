package coord

import (
	"context"
	"errors"
	"math"
	"time"

	"star/runlog"
	"star/transport/wire"
)

// shifting is what is measured for whoever moves shards while the job runs (Config.Shift).
// Nothing of it is measured, and nothing of it is in the status, without Config.Shift.
type shifting struct {
	inlets map[int]*linkMeter        // by server: gradients of workers on other hosts
	held   map[int]map[int]time.Time // by worker and server: when it had the last part of the worker's gradient
	notes  []runlog.Shift
	count  int           // of moves that were wanted
	at     time.Duration // of the newest note, since the run began
}

// hostLoad is what a server says of itself and its host.
type hostLoad struct {
	enlist wire.Enlist
	usage  wire.Usage
	heard  bool
}

// ServerLoad is what a server uses and what its host has: processors and bytes per second. A
// capacity of 0 is not known.
type ServerLoad struct {
	Host string `json:"host"` // as the server calls it

	CPU    float64 `json:"cpu"`
	NetIn  float64 `json:"net_in"` // from and to other hosts
	NetOut float64 `json:"net_out"`

	HostCPU    float64 `json:"host_cpu"` // everybody there
	HostNetIn  float64 `json:"host_net_in"`
	HostNetOut float64 `json:"host_net_out"`

	Cores   float64 `json:"capacity_cpu"`
	LinkIn  float64 `json:"capacity_net_in"`
	LinkOut float64 `json:"capacity_net_out"`
	Free    int64   `json:"memory_free"` // bytes

	// Inflow is at which rate gradients of workers on other hosts come in while at least one does;
	// 0: not known.
	Inflow float64 `json:"inflow_Bps"`
}

// ShiftStatus is what became of moves by themselves.
type ShiftStatus struct {
	Wanted int            `json:"wanted"` // moves so far, also back
	Notes  []runlog.Shift `json:"last"`   // the last ones, the newest at the end
	At     float64        `json:"at_s"`   // of the newest, since the run began
}

// maxNotes is how many notes a status has.
const maxNotes = 8

// kindNote marks an event of whoever moves shards. No frame has it.
const kindNote wire.Kind = 254

// Note writes down what was decided on a move, and shows it in the status. It may be called from
// any goroutine while Run runs. It is an error that the job, or ctx, is over before anybody has
// taken it. It returns when the coordinator has room for it, which is at once in all but a busy
// moment.
func (c *Coordinator) Note(ctx context.Context, n runlog.Shift) error {
	select {
	case c.events <- event{kind: kindNote, seldom: &seldom{note: &n}}:
		return nil
	case <-c.done:
		return errors.New("the job is over")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// noted keeps a note for the status, of which it shows the last maxNotes, and writes it down.
func (c *Coordinator) noted(n runlog.Shift) {
	s := &c.shift
	if n.Event == "wanted" || n.Event == "back" {
		s.count++
	}
	if s.notes = append(s.notes, n); len(s.notes) > maxNotes {
		s.notes = s.notes[1:]
	}
	at := c.elapsed()
	s.at = at
	c.cfg.RunLog.Write(at, n)
	c.log.Info("a shard is to move, or did", "event", n.Event, "shard", n.Shard, "from", n.From, "to", n.To, "predicted_gain", n.Predicted, "seen_gain", float64(n.Seen), "why", n.Why)
}

// shiftStatus is what status says of moves of shards; nil where they stay.
func (c *Coordinator) shiftStatus() *ShiftStatus {
	if !c.cfg.Shift {
		return nil
	}
	return &ShiftStatus{c.shift.count, append([]runlog.Shift{}, c.shift.notes...), c.shift.at.Seconds()}
}

// took notes that a server holds its part of a worker's gradient.
func (c *Coordinator) took(worker, server int) {
	if !c.cfg.Shift {
		return
	}
	s := &c.shift
	if s.held == nil {
		s.held = map[int]map[int]time.Time{}
	}
	if s.held[worker] == nil {
		s.held[worker] = map[int]time.Time{}
	}
	s.held[worker][server] = time.Now()
}

// inflow measures how the push of a worker that is released came in at each server. The time is
// from the begin of the push to the last part that a server held, as the coordinator has heard of
// it.
func (c *Coordinator) inflow(p *peer) {
	f := &p.measured.Flight
	if !c.cfg.Shift || f.From.IsZero() || c.hello.Params == 0 {
		return
	}
	s := &c.shift
	if s.inlets == nil {
		s.inlets = map[int]*linkMeter{}
	}
	part := min(p.last.NetOut/float64(4*c.hello.Params), 1) // gradients may be compressed
	bytes := map[int]float64{}
	for i, owner := range c.owner {
		bytes[owner] += part * float64(4*(c.shards[i].To-c.shards[i].From))
	}
	for server, n := range bytes {
		at := s.held[p.rank][server]
		if c.site(c.servers[server]) == c.site(p) || !at.After(f.From) {
			continue
		}
		if s.inlets[server] == nil {
			s.inlets[server] = new(linkMeter)
		}
		s.inlets[server].add(span{f.From.Sub(c.begun), at.Sub(c.begun), n}, c.cfg.Workers)
	}
}

// forget begins anew with servers whose shards are others now.
func (s *shifting) forget(servers ...int) {
	for _, i := range servers {
		delete(s.inlets, i)
	}
}

// serverLoad is what a server has said, with what was measured of it; nil if it says nothing. What
// comes in from other hosts is measured here, from pushes; all else the server has said of itself.
func (c *Coordinator) serverLoad(p *peer) *ServerLoad {
	l := p.load
	if !l.heard {
		return nil
	}
	u, cap := l.usage, l.enlist.Capacity
	s := &ServerLoad{
		Host: l.enlist.Host,
		CPU:  u.Own.CPU, NetIn: u.Own.In, NetOut: u.Own.Out, HostCPU: u.Host.CPU, HostNetIn: u.Host.In, HostNetOut: u.Host.Out,
		Cores: cap.CPU, LinkIn: cap.In, LinkOut: cap.Out, Free: u.Free,
	}
	if m := c.shift.inlets[p.rank]; m != nil {
		far := 0
		for _, w := range c.workers {
			if w != nil && !w.gone && c.site(w) != c.site(p) {
				far++
			}
		}
		if r := m.rate(far); !math.IsInf(r, 0) {
			s.Inflow = r
		}
	}
	return s
}
