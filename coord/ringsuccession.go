package coord

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/transport"
)

// A job of all-reduce has no shards that remember what was fired: its members do. Each release goes with a memo, which is the ledger at that moment, and a
// worker that has lost its coordinator tells the next one the last memo that it has, of which version its parameters are, and what became of riders in the
// last two (Stand). The newest memo names every round that anybody can have made since: no round is made that was not granted. So the successor begins
// with the ledger of that memo, and has those who came form a ring as after any failure: they agree on the highest version that one of them has, the
// rounds below it are complete, the batches of the others are handed out again (ring.formed).
//
// Nobody has to be kept from the coordinator before: a round needs all members of its ring, and who looks for another coordinator has left it.

// Stand is what a worker of a ring that has lost its coordinator tells the next one.
type Stand struct {
	Version int64             `json:"version"` // of its parameters; -1: it has none
	Step    int64             `json:"step"`
	Memo    []byte            `json:"memo,omitempty"` // of its last release
	Told    []transport.Tally `json:"told,omitempty"` // of its last versions
}

// stamp says when a memo was made.
type stamp struct {
	Term  int64 `json:"term"`
	Count int64 `json:"count"` // of the reign's memos
}

// after says whether one was made later than another.
func (a stamp) after(b stamp) bool { return a.Term > b.Term || a.Term == b.Term && a.Count > b.Count }

// ringMemo is the ledger of a ring.
type ringMemo struct {
	stamp
	Progress
	Seq     int64        `json:"seq"`
	Waste   int64        `json:"waste"`
	Steps   []int64      `json:"steps"`
	Rounds  []memoRound  `json:"rounds"` // that were granted and are not complete
	Errands []memoErrand `json:"errands,omitempty"`
}

type memoRound struct {
	Generation int64         `json:"gen"`
	Of         int64         `json:"of"`
	Members    []star.Worker `json:"members"`
	Spans      []Span        `json:"spans"`

	// With a queue.
	Parts []int               `json:"parts,omitempty"`
	More  [][]transport.Piece `json:"more,omitempty"`
}

type memoErrand struct {
	Worker star.Worker `json:"worker"`
	Span   Span        `json:"span"`
	Basis  int64       `json:"basis"`
	Read   int64       `json:"read"`
}

// remark is the memo of the present moment.
func (r *ring) remark(term int64) []byte {
	l := r.l
	r.remarks++
	m := ringMemo{
		stamp: stamp{term, r.remarks}, Progress: Progress{Version: r.version, Samples: l.used, Cursor: l.cursor, Redo: l.redo},
		Seq: l.seq, Waste: l.waste,
	}
	for i := range l.accounts {
		m.Steps = append(m.Steps, l.accounts[i].step)
	}
	for i := range r.rounds {
		rd := &r.rounds[i]
		m.Rounds = append(m.Rounds, memoRound{rd.generation, rd.of, rd.members, rd.spans, rd.parts, rd.beside})
	}
	for w, e := range r.errands {
		m.Errands = append(m.Errands, memoErrand{w, e.Span, e.basis, e.read})
	}
	slices.SortFunc(m.Errands, func(a, b memoErrand) int { return int(a.Worker) - int(b.Worker) })
	b, _ := json.Marshal(&m) // of numbers
	return b
}

// NewerMemo is that of two memos (Stand.Memo) which was made later. One of no bytes is older than any. A worker that receives parameters from another one must
// remember what that one does: it may be the only one left.
func NewerMemo(a, b []byte) []byte {
	var x, y stamp
	if json.Unmarshal(b, &y) != nil {
		return a
	}
	if json.Unmarshal(a, &x) != nil || y.after(x) {
		return b
	}
	return a
}

// parseRingMemo reads what remark has written, for a job of so many workers.
func parseRingMemo(b []byte, workers int) (*ringMemo, error) {
	m := new(ringMemo)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("coord: what goes with a release cannot be read: %w", err)
	}
	bad := m.Version < 0 || m.Samples < 0 || m.Cursor < 0 || m.Seq < 0 || m.Waste < 0 || len(m.Steps) != workers || len(m.Rounds) > ringAhead
	whole := func(s Span) bool { return s.Start >= 0 && s.Count >= 0 && s.Start <= m.Cursor-int64(s.Count) }
	known := func(w star.Worker) bool { return w >= 0 && int(w) < workers }
	for _, s := range m.Redo {
		bad = bad || !whole(s)
	}
	for _, r := range m.Rounds {
		bad = bad || len(r.Members) != len(r.Spans) || len(r.Members) == 0 || len(r.Parts) != len(r.More) || len(r.Parts) > 0 && len(r.Parts) != len(r.Members)
		for _, more := range r.More {
			for _, s := range more {
				bad = bad || s.Count < 1 || !whole(Span(s))
			}
		}
		for _, s := range r.Spans {
			bad = bad || s.Count > 0 && !whole(s)
		}
		for _, w := range r.Members {
			bad = bad || !known(w)
		}
	}
	for _, e := range m.Errands {
		bad = bad || !known(e.Worker) || !whole(e.Span) || e.Basis < 0 || e.Basis > m.Version+ringAhead
	}
	if bad {
		return nil, fmt.Errorf("coord: what goes with a release does not fit together, or not to a job of %d workers", workers)
	}
	return m, nil
}

// unreleased is the memo where nobody was released yet.
func unreleased(from Progress, workers int) *ringMemo {
	m := &ringMemo{Progress: from}
	for range workers {
		m.Steps = append(m.Steps, -1)
	}
	return m
}

// takeUp begins where a memo ends: rounds are under way that nobody is at any more.
func (r *ring) takeUp(m *ringMemo) {
	r.version, r.next = m.Version, m.Version+int64(len(m.Rounds))
	for _, k := range m.Rounds {
		rd := ringRound{generation: k.Generation, of: k.Of, members: k.Members, spans: k.Spans,
			arrived: make([]bool, len(k.Members)), norm2: make([]float64, len(k.Members)), left: len(k.Members)}
		if len(k.Parts) > 0 {
			rd.drawing = drawing{parts: k.Parts, beside: k.More, done: make([]int, len(k.Members))}
		}
		for i := range k.Spans {
			rd.total += int64(rd.whole(i))
			rd.norm2[i] = math.NaN()
		}
		r.rounds = append(r.rounds, rd)
	}
	for _, e := range m.Errands {
		r.errands[e.Worker] = errand{Span: e.Span, basis: e.Basis, norm2: math.NaN(), read: e.Read}
	}
}

// told notes what a worker has said of versions that it has made.
func (r *ring) told(ts []transport.Tally) {
	for _, t := range ts {
		i := t.Version - 1 - r.version
		if i >= 0 && i < int64(len(r.rounds)) && r.rounds[i].generation == t.Generation && r.rounds[i].fits(&t) {
			t.Sum2 = 0 // how noisy the gradient was is learned from records, which are lost
			if r.behind(&t) != nil {
				continue
			}
			r.rounds[i].tally = t
			for k, g := range t.Carried {
				behind := int64(1)
				if len(t.Behind) > 0 {
					behind = max(1, int64(t.Behind[k]))
				}
				r.recall(&r.rounds[i], g, t.Version-behind)
			}
		}
	}
}

// recall takes in a rider's batch that is in a round, and was handed out later than those who are left remember: the rider knew, and is gone. Who has had
// that batch, or a part of it, by what they remember, has it no more: it was handed out again when that one left, or became a member. basis is the version of the
// parameters of its gradient.
func (r *ring) recall(rd *ringRound, g transport.Gradient, basis int64) {
	count := int(math.Round(float64(g.Weight) * float64(max(rd.of, 1))))
	if e, ok := r.errands[g.Worker]; ok && e.Start == g.Step || count < 1 || g.Step < 0 || g.Worker < 0 || int(g.Worker) >= len(r.l.accounts) {
		return
	}
	if _, ok := rd.recalled[g.Worker]; ok {
		return
	}
	if rd.recalled == nil {
		rd.recalled = map[star.Worker]errand{}
	}
	s := Span{g.Step, count}
	for w, e := range r.errands {
		if e.Start < s.Start+int64(s.Count) && s.Start < e.Start+int64(e.Count) {
			delete(r.errands, w)
			r.redo(e.Span) // what of it is not in s
		}
	}
	r.l.claim(s)
	rd.recalled[g.Worker] = errand{Span: s, basis: max(basis, 0), norm2: math.NaN(), read: r.l.used}
}

// claim takes a piece out of what is to be handed out.
func (l *ledger) claim(s Span) {
	if s.Start >= l.cursor {
		if s.Start > l.cursor {
			l.redo = append(l.redo, Span{l.cursor, int(s.Start - l.cursor)})
		}
		l.cursor = s.Start + int64(s.Count)
		return
	}
	end := s.Start + int64(s.Count)
	var rest []Span
	for _, k := range l.redo {
		from, to := k.Start, k.Start+int64(k.Count)
		if a := min(to, s.Start); a > from {
			rest = append(rest, Span{from, int(a - from)})
		}
		if b := max(from, end); to > b {
			rest = append(rest, Span{b, int(to - b)})
		}
	}
	l.redo = rest
}

// regroup has a ring formed by those who have come, of whom some have parameters.
func (r *ring) regroup(with []star.Worker) []order {
	r.l.out = r.l.out[:0]
	r.now = formation{members: with}
	r.reform()
	return r.l.out
}

// generationsOf is the number before that of the first ring of a reign. Rings of different reigns have different numbers.
func generationsOf(term int64) int64 { return term << 20 }

// inheritRing begins with a job of all-reduce that another coordinator has left.
func (c *Coordinator) inheritRing() {
	c.assigned = true
	for rank := range c.servers {
		c.servers[rank] = c.nobody(rank) // none has shards; they may come
	}
}

// stands takes in how far a worker has come, of one that joins a successor of a ring before it trains.
func (c *Coordinator) stands(p *peer, s *Stand) error {
	if c.cfg.Ring == nil || !c.trained() || c.ledger != nil || s == nil {
		return nil
	}
	if len(s.Memo) > 0 {
		m, err := parseRingMemo(s.Memo, c.cfg.Workers)
		if err != nil {
			return err
		}
		if n := c.heir.ring; n == nil || m.after(n.stamp) {
			c.heir.ring = m
		}
	}
	p.stand = s
	return nil
}

// ringGathers says whether somebody has come who has the parameters. The time for others to come begins with the first.
func (c *Coordinator) ringGathers() bool {
	if c.heir.settled.IsZero() && slices.ContainsFunc(c.workers, func(p *peer) bool { return p != nil }) {
		c.heir.settled = time.Now()
	}
	return len(c.withParameters()) > 0
}

// withParameters lists workers that have parameters which are not behind what is complete.
func (c *Coordinator) withParameters() (ws []star.Worker) {
	complete := c.heir.estate.From.Version
	if m := c.heir.ring; m != nil {
		complete = m.Version
	}
	for w, p := range c.workers {
		if p != nil && c.joined[w] && p.stand != nil && p.stand.Version >= complete {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// recollect makes the newest memo what the job goes on with. Before the ledger is made.
func (c *Coordinator) recollect() {
	h := c.heir
	m := h.ring
	if m == nil {
		m = unreleased(h.estate.From, c.cfg.Workers)
		h.ring = m
	}
	h.memo, h.steps = memo{Progress: m.Progress, waste: m.Waste}, m.Steps
	h.seq = m.Seq
	c.cfg.Resume = m.Progress
	c.log.Info("goes on with the ring", "term", c.term(), "version", m.Version, "samples", m.Samples, "under_way", len(m.Rounds), "memo_of_term", m.Term)
}
