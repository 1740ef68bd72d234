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

// partial is the state of a ring member when rounds are closed before they are exchanged: its
// gradient of the round before, which may have been too late for that round. Two vectors of the
// gradient's length alternate as own and spare, so that a round allocates nothing.
type partial struct {
	// live selects LGC: a late gradient corrects the next direction.
	live bool
	term rule.LiveTerm
	// own is the weighted gradient of the round before.
	own   []float32
	spare []float32
	last  wire.Close
	role  partRole
}

// partRole is the role of a member's gradient in the last round.
//
// What happens to the gradient of a round, by its role:
//
//	partFirst   it came before the round was closed, and is in its sum
//	partLate    it came later: it is added in the next round, if that round's Close lists it as Late
//	partNone    nothing: the member had no samples, or the ring is new
type partRole uint8

const (
	partNone  partRole = iota // no samples, or of another ring
	partFirst                 // in the round
	partLate                  // too late for it
)

// forget clears the state, as all members of a new ring do.
func (p *partial) forget() { p.role, p.term, p.last = partNone, rule.LiveTerm{}, wire.Close{} }

// own computes and judges the member's own gradient; one without samples in the round is zero.
// Errors are those of compute, and a *PoisonError with --poison fatal.
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

// partialSum sets grad to the sum of a closed round: the gradients that were first, and the late
// ones of the round before. Weights are those of a round of all members, bᵢ/B; with LGC those of its
// form with one all-reduce.
//
// A member that was not first still takes part in the exchange, with zeros or with its late
// gradient: a ring sums over all its members. A gradient that was too late is not lost, it is in the
// next round. carried is the samples of the round, from the coordinator's Close.
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
	if err != nil { // the round is given up with what it used
		return tally, 0, computed, err
	}
	p.keep(own, m, first, rec.Samples > 0)
	return tally, m.Total, computed, nil
}

// liveTerm puts into grad what the member adds to a round of LGC. A late gradient corrects the
// direction of the next round (rule.LiveTerm); one that the coordinator did not learn of in time is
// dropped.
func (w *ringWorker) liveTerm(m wire.Close, own []float32, first bool) {
	p := &w.part
	if p.role == partLate && !slices.Contains(m.Late, star.Worker(w.rank)) {
		p.term.Keep(nil, false) // the coordinator did not learn of it in time
	}
	var g []float32
	if first {
		g = own
	}
	p.term.Term(w.grad, g, len(w.ring.Members), len(m.First), len(p.last.First), len(m.Late))
}

// keep remembers the round that is over. any: the member had samples in it; first: they counted. The
// partial owns own from here on.
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

// back undoes the worker's local steps: all members make the same update of the parameters with
// which they started. Only the sum of the handed-over results moves the parameters.
func (w *ringWorker) back() {
	for _, s := range []*rule.Solo{w.local, w.stride} {
		if s != nil {
			s.Back(w.params)
		}
	}
}
