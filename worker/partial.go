package worker

import (
	"context"
	"math"
	"slices"
	"time"

	"star"
	"star/coord/session"
	"star/internal/kernel"
	"star/ps/rule"
	"star/transport/wire"
)

// partial is what a member of a ring remembers where rounds are closed before they are exchanged:
// its gradient of the round before, which may have come too late for that. Two vectors of the
// gradient's length take turns as own and spare, so that nothing is allocated in a round.
type partial struct {
	live  bool // LGC: what is late corrects the next direction
	term  rule.LiveTerm
	own   []float32 // weighted, of the round before
	spare []float32
	last  wire.Close
	role  partRole
}

type partRole uint8

const (
	partNone  partRole = iota // had no samples, or is of another ring
	partFirst                 // was in it
	partLate                  // was not
)

// forget begins without a past, as all members of another ring do.
func (p *partial) forget() { p.role, p.term, p.last = partNone, rule.LiveTerm{}, wire.Close{} }

// own computes the member's own gradient and looks whether it belongs; one without samples in the
// round has zeros. Errors are those of compute, and a *PoisonError under --poison fatal.
func (w *ringWorker) own(ctx context.Context, rel wire.Release, rec *star.Record) (computed time.Time, err error) {
	if rel.Count == 0 {
		clear(w.grad)
		rec.Loss = math.NaN()
		return time.Now(), nil
	}
	if computed, err = w.compute(ctx, rel, rec); err == nil {
		err = w.judge(rec)
	}
	return computed, err
}

// partialSum makes grad the sum of a round that is closed: of the gradients that were first, and of
// what is late from the round before. Its weights are those of a round of everybody, bᵢ/B; with LGC
// they are those of its one-all-reduce form.
//
// Whoever was not first still takes part in the exchange, with zeros or with what was late before:
// a ring adds up with all its members. What was computed too late is not lost, it is in the next
// round. carried is the samples of the round, by the coordinator's Close.
func (w *ringWorker) partialSum(ctx context.Context, rel wire.Release, rec *star.Record) (tally wire.Tally, carried int64, computed time.Time, err error) {
	tally = wire.Tally{Worker: rec.Worker, Generation: w.ring.Generation, Version: w.version + 1}
	p := &w.part
	if computed, err = w.own(ctx, rel, rec); err != nil {
		return tally, 0, computed, err
	}
	if err := session.Say(w.member, wire.Computed{Worker: rec.Worker, Generation: w.ring.Generation, Version: w.version, Samples: rec.Samples}, nil); err != nil {
		return tally, 0, computed, err
	}
	m, err := w.commands.awaitClose(ctx, w.ring.Generation, w.version)
	if err != nil {
		return tally, 0, computed, err
	}
	rec.Wait += time.Since(computed)
	own := append(p.spare[:0], w.grad...)
	first := slices.Contains(m.First, rec.Worker)
	switch {
	case p.live:
		w.liveTerm(m, own, first)
	default:
		kernel.Scale(w.weight(rec.Samples), own)
		clear(w.grad)
		if first {
			copy(w.grad, own)
		}
		if p.role == partLate && slices.Contains(m.Late, rec.Worker) {
			kernel.Axpy(1, p.own, w.grad)
		}
	}
	if w.bucketed() {
		err = <-w.exchange(ctx, 1, 0).done
	} else {
		err = w.reduce(ctx, w.grad, 0)
	}
	if err != nil { // the round is given up, and what it used with it
		return tally, 0, computed, err
	}
	p.keep(own, m, first, rec.Samples > 0)
	return tally, m.Total, computed, nil
}

// liveTerm puts into grad what the member adds to a round of LGC. What was late corrects the
// direction of the next round (rule.LiveTerm); what nobody heard of in time is given up.
func (w *ringWorker) liveTerm(m wire.Close, own []float32, first bool) {
	p := &w.part
	if p.role == partLate && !slices.Contains(m.Late, star.Worker(w.rank)) {
		p.term.Keep(nil, false) // nobody heard of it in time
	}
	var g []float32
	if first {
		g = own
	}
	p.term.Term(w.grad, g, len(w.ring.Members), len(m.First), len(p.last.First), len(m.Late))
}

// keep remembers the round that is over. any says whether the member had samples in it, first
// whether they counted. own is the partial's from here on.
func (p *partial) keep(own []float32, m wire.Close, first, any bool) {
	p.last, p.role = m, partLate
	switch {
	case !any:
		p.role = partNone
	case first:
		p.role = partFirst
	}
	if p.live {
		p.spare = own
		if !any {
			own = nil
		}
		p.term.Keep(own, first) // a copy
		return
	}
	p.own, p.spare = own, p.own
}

// back undoes the steps that the worker has made by itself: all members make the same update of the
// parameters that they began with. Only the sum of what they have handed over moves the parameters.
func (w *ringWorker) back() {
	for _, s := range []*rule.Solo{w.local, w.stride} {
		if s != nil {
			s.Back(w.params)
		}
	}
}
