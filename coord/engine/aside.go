package engine

import (
	"slices"

	"star"
)

// Aside is a piece of the sample stream that is not handed out again: two workers were computing it when they died.
type Aside struct {
	Span
	Workers [2]star.Worker // in the order of their deaths
	Why     string         // of the second one
}

// death is a piece of the sample stream that a worker was computing when it died.
type death struct {
	Span
	worker star.Worker

	// Its program failed; else its connection ended.
	failed bool
}

// deaths stops work that kills its workers from going to one worker after the other. Two failures of
// programs count where the pieces overlap. A connection ends for many reasons, so two ended connections
// count only where the pieces are the same. Deaths of one rank count as one worker's: its host may be at
// fault.
type deaths struct {
	died []death

	// May still turn out to be applied: a ring knows only when the next one is formed.
	deadly []Aside
	aside  []Aside
}

// killed records that worker w died while it was computing these spans.
func (l *scheduler) killed(w star.Worker, spans []Span, failed bool, why string) {
	for _, s := range spans {
		for _, d := range l.died {
			both := s.overlap(d.Span)
			// The two deaths must be of different workers and of the same kind.
			if d.worker != w && d.failed == failed && both.Count > 0 && (failed || s == d.Span) {
				l.deadly = append(l.deadly, Aside{both, [2]star.Worker{d.worker, w}, why})
			}
		}
	}
	// Later, so that the pieces of one death are not compared with each other.
	for _, s := range spans {
		if s.Count > 0 {
			l.died = append(l.died, death{s, w, failed})
		}
	}
}

// again puts pieces that are not applied back into redo, except for samples that have killed two workers.
func (l *scheduler) again(spans ...Span) {
	for _, k := range l.deadly {
		var rest []Span
		for _, s := range spans {
			both := s.overlap(k.Span)
			if both.Count == 0 {
				rest = append(rest, s)
				continue
			}
			l.aside = append(l.aside, Aside{both, k.Workers, k.Why})
			l.waste += int64(both.Count)
			rest = append(rest, s.without(both)...)
		}
		spans = rest
	}
	l.redo = append(l.redo, spans...)
}

// Blame notes that w died while it was computing its batch. Leave, or End with Abandon, comes next.
func (l *Shards) Blame(w star.Worker, failed bool, why string) {
	switch a := &l.states[w]; {
	case !a.live || a.parked:
	case !a.arrived:
		_, left := cut(a.spans(), a.done)
		l.killed(w, left, failed, why)
	case a.ahead.Count > 0:
		l.killed(w, []Span{a.ahead}, failed, why)
	}
}

// Blame notes that w died while it was computing its batch. Leave, or End with Abandon, comes next.
func (r *Ring) Blame(w star.Worker, failed bool, why string) {
	if !r.states[w].live {
		return
	}
	if e, ok := r.riderBatches[w]; ok {
		if !r.states[w].waiting {
			r.killed(w, []Span{e.Span}, failed, why)
		}
		return
	}
	for i := range r.rounds {
		// A member computes the batch of the first round in which it has not arrived.
		rd := &r.rounds[i]
		k := slices.Index(rd.members, w)
		if k < 0 || rd.arrived[k] {
			continue
		}
		done := 0
		if rd.parts != nil {
			done = rd.done[k]
		}
		_, left := cut(rd.lease(k), done)
		r.killed(w, left, failed, why)
		return // it has not begun the next one
	}
}

// overlap is the intersection of two pieces. Count 0: they do not overlap.
func (s Span) overlap(o Span) Span {
	from := max(s.Start, o.Start)
	return Span{from, int(max(0, min(s.Start+int64(s.Count), o.Start+int64(o.Count))-from))}
}

// without is the parts of s before and after part.
func (s Span) without(part Span) (rest []Span) {
	if n := part.Start - s.Start; n > 0 {
		rest = append(rest, Span{s.Start, int(n)})
	}
	end := part.Start + int64(part.Count)
	if n := s.Start + int64(s.Count) - end; n > 0 {
		rest = append(rest, Span{end, int(n)})
	}
	return rest
}
