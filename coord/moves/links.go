package moves

import (
	"math"
	"slices"
	"time"

	"star/runlog"
)

// Links is the measured capacity of the links to the servers, from the pushes over them. The zero value measures
// the way to the shards as a whole; NewLinks makes one that measures the way to each server, too, which is needed
// only where shards move automatically.
type Links struct {
	way    meter
	inlets map[int]*meter                // by server: gradients of workers on other hosts; nil: not measured
	held   map[int]map[int]time.Duration // by worker and server: when it had the last part of the worker's gradient
}

// NewLinks measures the way to each server if inlets is true.
func NewLinks(inlets bool) Links {
	var l Links
	if inlets {
		l.inlets, l.held = map[int]*meter{}, map[int]map[int]time.Duration{}
	}
	return l
}

// Inlets reports whether the way to each server is measured.
func (l *Links) Inlets() bool { return l.inlets != nil }

// Pushed records a push to all shards. Times are since the run began. workers is the number of ranks of the job, here
// and in Arrived.
func (l *Links) Pushed(from, to time.Duration, bytes float64, workers int) {
	l.way.add(span{from, to, bytes}, workers)
}

// Rate is the measured capacity of the way to the shards in one direction, in bytes per second; 0: unknown. workers is
// the number of workers that push over it.
func (l *Links) Rate(workers int) float64 { return l.way.rate(workers) }

// Stored records that a server holds its part of a worker's gradient.
func (l *Links) Stored(at time.Duration, worker, server int) {
	if l.inlets == nil {
		return
	}
	if l.held[worker] == nil {
		l.held[worker] = map[int]time.Duration{}
	}
	l.held[worker][server] = at
}

// Arrived records that push of a worker at each server on another host, with the bytes that go there. It lasted from
// the given time to the last part that the server held.
func (l *Links) Arrived(worker int, from time.Duration, bytes map[int]float64, workers int) {
	for server, n := range bytes {
		at := l.held[worker][server]
		if at <= from { // it holds none, or an earlier one
			continue
		}
		if l.inlets[server] == nil {
			l.inlets[server] = new(meter)
		}
		l.inlets[server].add(span{from, at, n}, workers)
	}
}

// Inflow is the rate of gradients into a server from that many workers on other hosts; 0: unknown.
func (l *Links) Inflow(server, far int) float64 {
	m := l.inlets[server]
	if m == nil {
		return 0
	}
	if r := m.rate(far); !math.IsInf(r, 0) {
		return r
	}
	return 0
}

// Forget discards the measurements of servers that have other shards now.
func (l *Links) Forget(servers ...int) {
	for _, s := range servers {
		delete(l.inlets, s)
	}
}

// meter measures a link by the pushes over it: bytes over the time in which at least one push was under way. That is
// less than its capacity where single workers are slow, and never more. Rates are bytes per second in one direction;
// only pushes are measured, and parameters are assumed to return at the same rate.
type meter struct {
	spans []span // the last ones
	next  int
}

// span is a push from its beginning until every shard had it, since the run began.
type span struct {
	from, to time.Duration
	bytes    float64
}

// metered is the number of pushes of each worker that count, and that a rate needs.
const metered = 4

// add records a push. The last ones count, metered for each worker. A push without bytes or without duration is left
// out.
func (m *meter) add(s span, workers int) {
	if s.to <= s.from || s.bytes <= 0 {
		return
	}
	if len(m.spans) < metered*workers {
		m.spans = append(m.spans, s)
		return
	}
	m.spans[m.next%len(m.spans)] = s
	m.next++
}

// rate is the rate in one direction; 0: unknown. Of overlapping pushes the bytes of each count, and the time once.
func (m *meter) rate(workers int) float64 {
	if len(m.spans) < metered*workers {
		return 0
	}
	ss := slices.SortedFunc(slices.Values(m.spans), func(a, b span) int { return int(a.from - b.from) })
	var busy, end time.Duration
	var bytes float64
	for _, s := range ss {
		bytes += s.bytes
		if s.to > end {
			busy += s.to - max(s.from, end)
			end = s.to
		}
	}
	return bytes / busy.Seconds()
}

// Shifts is the decisions on automatic moves of shards.
type Shifts struct {
	Wanted int            `json:"wanted"` // moves so far, also back
	Notes  []runlog.Shift `json:"last"`   // the last ones, the newest at the end
	At     float64        `json:"at_s"`   // of the newest, since the run began
}

// maxNotes is the number of notes that are kept.
const maxNotes = 8

// Note keeps a note.
func (s *Shifts) Note(at time.Duration, n runlog.Shift) {
	if n.Event == "wanted" || n.Event == "back" {
		s.Wanted++
	}
	if s.Notes = append(s.Notes, n); len(s.Notes) > maxNotes {
		s.Notes = s.Notes[1:]
	}
	s.At = at.Seconds()
}

// Clone is a copy with a list that is not nil.
func (s *Shifts) Clone() *Shifts {
	return &Shifts{s.Wanted, append([]runlog.Shift{}, s.Notes...), s.At}
}
