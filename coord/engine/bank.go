package engine

import (
	"slices"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/transport/wire"
)

// goOn releases workers that were stopped. It makes no update: the workers ask the shards for the parameters.
func (l *Shards) goOn(f modes.Firing) {
	var o Ready
	for w := range f.Released() {
		l.states[w].led = true
		if r, ok := l.release(w, f.Version); ok {
			r.Pull = l.shards > 0
			o.Releases = append(o.Releases, r)
		}
	}
	if len(o.Releases) > 0 {
		l.out = append(l.out, o)
	}
}

// deposit keeps the present gradient of w, which every shard holds, for a later update. w starts its
// next step at once; its gradients are used in the order in which they were kept. Until then their
// samples count as handed out, so a checkpoint lists them in Redo.
func (l *Shards) deposit(w star.Worker) {
	a := &l.states[w]
	d := deposit{a.step, a.basis, a.read, a.spans(), a.used, a.whole(), a.norm2, Poisoned{}}
	if p, ok := l.poisoned(w); ok {
		d.poison = p
	}
	a.bank = append(a.bank, d)
	// The measurements belong to the deposited gradient; the state is that of the next one.
	a.unmeasure()
	a.step++
	a.arrived, a.waiting, a.nstored = false, false, 0
	clear(a.stored)
}

// fireBanked makes an update of kept gradients. It releases the workers that deposited the last of
// them; the others are still computing.
func (l *Shards) fireBanked(f modes.Firing) {
	l.seq++
	o := Ready{Fire: wire.Fire{Seq: l.seq, Version: f.Version, Samples: l.used, NormFirst: l.norm, Report: l.report && !l.norm && len(f.Workers) > 1}}
	gs := make([]deposit, 0, len(f.Workers))
	total := 0
	// The oldest gradient of each worker, since its steps are applied in order. The total must be known
	// before any of them is weighed.
	for _, w := range f.Workers {
		a := &l.states[w]
		d := a.bank[0]
		a.bank = a.bank[1:]
		gs = append(gs, d)
		total += d.used
		l.waste += int64(d.count - d.used)
		o.Members = append(o.Members, wire.Gradient{Worker: w, Step: d.step})
	}
	round := max(l.round(), 1)
	for i, d := range gs {
		stale := f.Version - 1 - d.basis
		l.staleness[stale]++
		g := &o.Members[i]
		g.Weight = l.weight(float64(d.used), float64(total), stale)
		if d.poison.Cause != poison.None {
			g.Weight = 0
			o.Poison = append(o.Poison, d.poison)
		}
		o.Stale = append(o.Stale, stale)
		o.Noise.Gradients = append(o.Noise.Gradients, pgns.Gradient{
			Norm2: d.norm2, Samples: d.used, Weight: float64(g.Weight), Basis: d.basis, Behind: float64(l.used-d.read) / float64(round),
		})
	}
	o.Noise.Round = int(round)
	if len(o.Poison) > 0 { // no estimate of the noise
		o.Noise.Gradients, o.Fire.Report = nil, false
	}
	o.Fire.Gradients = slices.Clone(o.Members)
	slices.SortStableFunc(o.Fire.Gradients, func(a, b wire.Gradient) int { return int(a.Worker - b.Worker) })
	l.used += int64(total)
	o.Used = l.used
	l.first = len(f.Workers)
	for _, w := range f.Workers {
		if !slices.Contains(f.NonBlocking, w) && !slices.Contains(o.Fire.Quiet, w) {
			o.Fire.Quiet = append(o.Fire.Quiet, w)
		}
	}
	// These workers wait for parameters: shards send them after the update, unless the stream is used up.
	for _, w := range f.NonBlocking {
		l.states[w].led = true
		if r, ok := l.release(w, f.Version); ok {
			o.Releases = append(o.Releases, r)
		} else {
			o.Fire.Quiet = append(o.Fire.Quiet, w)
		}
	}
	o.Cancels = l.cancel(f)
	o.Metadata = l.remark(&o)
	l.out = append(l.out, o)
}
