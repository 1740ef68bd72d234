package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/transport/wire"
)

// ringRun is an all-reduce with rounds that engine.Ring decides, as for a coordinator: they are
// granted one ahead, closed after the first arrivals if batches are cut into parts, and a ring that
// has lost a member is formed again. The workers are simulated here:
//
//	Ring ──► form, when all its members do ──► Release ──► compute ──► (Computed, Close) ──► exchange, when all members do ──► record, Tally
//
// A message of a worker arrives at once, and a message to it Config.Latency later, or at the next
// event if that is 0. The next exchange of its parent carries a rider's gradient.
type ringRun struct {
	*run
	e     *engine.Ring
	at    []member
	words []word // on their way, in order
}

// word is a message to a worker.
type word struct {
	due time.Duration
	to  star.Worker
	msg any
}

// member is a worker of it.
type member struct {
	in      []any // what it was told and has not done yet, in order: wire.Ring, wire.Release
	ring    wire.Ring
	version int64 // of its parameters; -1: it has none
	attempt int   // what was begun in an earlier one is void
	doing   doing
	release wire.Release // in hand
	step    int64
	whole   Spent         // of it
	began   time.Duration // its computing
	done    int           // samples computed
	ends    int           // and with the part that it is at
	cut     int           // parts computed
	told    bool          // that the round is closed
	said    bool          // how many samples it has
	spent   time.Duration // computing
	since   time.Duration // it has waited
	waited  time.Duration // before the release in hand

	// riders has the gradients of riders that have arrived.
	riders map[star.Worker]riderGradient
	sent   bool // its own gradient is with a parent: a rider
}

// riderGradient is a rider's gradient at its parent.
type riderGradient struct {
	generation int64
	release    wire.Release
}

// doing is what a member is at.
type doing uint8

const (
	idles doing = iota
	forms
	computes
	waits // for the others, or for the end of the round
	adds  // up, with the others
)

// startRounds starts all workers.
func (r *run) startRounds() error {
	o := &ringRun{run: r, at: make([]member, len(r.workers))}
	o.e = engine.NewRing(engine.Config{Plan: r.plan, Workers: len(r.workers), Batch: r.Batch, Limit: math.MaxInt64 / 2, Cancel: r.Cancel,
		Ring: new(engine.RingConfig), MaxParams: max(r.Bytes/4, 1)})
	r.ringed = o
	r.begun = true
	for w := range o.at {
		o.at[w].riders = map[star.Worker]riderGradient{}
	}
	return o.carry(0, o.e.Begin(nil), nil)
}

// carry does what the engine has ready.
func (o *ringRun) carry(at time.Duration, os []engine.Ready, err error) error {
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	due, before := at+o.Latency, len(o.words)
	for i := range os {
		f := &os[i]
		if f.Fire.Seq > 0 {
			if err := o.fired(at, f); err != nil {
				return err
			}
		}
		for _, m := range f.Rings {
			o.words = append(o.words, word{due, m.Worker, m.Msg})
		}
		for _, m := range f.Closes {
			o.words = append(o.words, word{due, m.Worker, m.Msg})
		}
		for _, m := range f.Releases {
			o.words = append(o.words, word{due, m.Worker, m})
		}
	}
	if len(o.words) > before {
		o.after(due, o.deliver)
	}
	return nil
}

// deliver tells workers what has reached them by now.
func (o *ringRun) deliver(at time.Duration) error {
	for len(o.words) > 0 && o.words[0].due <= at {
		w := o.words[0]
		o.words = o.words[1:]
		if err := o.hears(at, w.to, w.msg); err != nil {
			return err
		}
	}
	for w := range o.at {
		if err := o.goesOn(at, star.Worker(w)); err != nil {
			return err
		}
	}
	return nil
}

// hears receives a message to a worker. A ring that is formed at once, and the end of a round, go
// ahead of other messages.
func (o *ringRun) hears(at time.Duration, w star.Worker, msg any) error {
	m := &o.at[w]
	if o.workers[w].gone {
		return nil
	}
	switch msg := msg.(type) {
	case wire.Ring:
		if msg.Now {
			m.attempt++
			m.in, m.doing, m.told, m.riders = nil, idles, false, map[star.Worker]riderGradient{}
		}
		m.in = append(m.in, msg)
	case wire.Close:
		if m.release.Version == msg.Version && m.ring.Generation == msg.Generation && (m.doing == computes || m.doing == waits) && !m.told {
			m.told = true
			return o.stops(at, w)
		}
	case wire.Release:
		m.in = append(m.in, msg)
	}
	return nil
}

// goesOn has an idle worker do what it was told next.
func (o *ringRun) goesOn(at time.Duration, w star.Worker) error {
	m := &o.at[w]
	for m.doing == idles && len(m.in) > 0 && !o.workers[w].gone {
		next := m.in[0]
		m.in = m.in[1:]
		switch next := next.(type) {
		case wire.Ring:
			if next.Generation < m.ring.Generation {
				continue
			}
			m.ring = next
			if slices.Contains(next.Members, w) {
				m.doing, m.sent = forms, false
				if err := o.form(at, next); err != nil {
					return err
				}
			}
		case wire.Release:
			// it has computed that, for another parent
			if !slices.Contains(m.ring.Members, w) && m.sent && m.release.Start == next.Start {
				o.sit(w)
				continue
			}
			if err := o.compute(at, w, next); err != nil {
				return err
			}
		}
	}
	return nil
}

// form ends the forming of a ring, when all its members are at it: they have the newest parameters that one of
// them has.
func (o *ringRun) form(at time.Duration, ring wire.Ring) error {
	version := int64(0)
	for _, w := range ring.Members {
		m := &o.at[w]
		if m.doing != forms || m.ring.Generation != ring.Generation {
			return nil
		}
		version = max(version, m.version)
	}
	for _, w := range ring.Members {
		o.at[w].doing, o.at[w].version = idles, version
	}
	for _, w := range ring.Members {
		os, err := o.e.Formed(wire.Formed{Worker: w, Generation: ring.Generation, Version: version})
		if err := o.carry(at, os, err); err != nil {
			return err
		}
	}
	for _, w := range ring.Members {
		if err := o.goesOn(at, w); err != nil {
			return err
		}
	}
	return nil
}

// compute begins a batch.
func (o *ringRun) compute(at time.Duration, w star.Worker, rel wire.Release) error {
	m, k := &o.at[w], &o.workers[w]
	*m = member{in: m.in, ring: m.ring, version: m.version, attempt: m.attempt + 1, doing: computes, release: rel, step: m.step, began: at, since: at, riders: m.riders}
	k.basis, k.busy = rel.Version, true
	if rel.Count == 0 { // it takes part, without samples
		m.done, m.ends = 0, 0
		return o.computed(at, w)
	}
	o.Learner.Release(w, rel.Count)
	m.whole = o.Times.Spend(w, k.ticks, at, float64(rel.Count)/o.equal)
	k.ticks++
	if m.whole.Total() <= 0 {
		return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, m.whole.Total())
	}
	return o.part(at+m.whole.Load, w)
}

// samples are those of the batch.
func (m *member) samples() int {
	n := m.release.Count
	for _, p := range m.release.More {
		n += p.Count
	}
	return n
}

// part computes the next part.
func (o *ringRun) part(at time.Duration, w star.Worker) error {
	m := &o.at[w]
	if m.release.Part > 0 {
		m.ends = partEnd(&m.release, m.done)
	} else {
		n, k, i := m.release.Count, min(max(1, m.release.Micro), m.release.Count), 1
		for i < k && i*n/k <= m.done {
			i++
		}
		m.ends = i * n / k
	}
	attempt := m.attempt
	alone := partAlone(o.Times, w, o.workers[w].ticks-1, m.began)
	took := alone + time.Duration(float64(m.whole.Compute-alone)*float64(m.ends-m.done)/float64(m.release.Count))
	o.after(at+took, func(at time.Duration) error {
		if m.attempt != attempt {
			return nil
		}
		m.done = m.ends
		m.cut++
		m.spent += took
		late := m.release.Cap > 0 && m.spent >= m.release.Cap
		switch {
		case m.release.Part > 0 && !m.said:
			os, err := o.e.Computed(wire.Computed{Worker: w, Generation: m.ring.Generation, Version: m.release.Version, Samples: m.done})
			if err := o.carry(at, os, err); err != nil {
				return err
			}
			if m.done < m.samples() && !m.told {
				return o.part(at, w)
			}
		case m.done < m.samples() && !m.told && !late:
			return o.part(at, w)
		}
		return o.computed(at, w)
	})
	return nil
}

// stops has a worker that was told so end with the part that it is at.
func (o *ringRun) stops(at time.Duration, w star.Worker) error {
	if m := &o.at[w]; m.doing == waits {
		return o.exchange(at, m.ring, m.release.Version)
	}
	return nil
}

// computed is the end of a worker's computing.
func (o *ringRun) computed(at time.Duration, w star.Worker) error {
	m := &o.at[w]
	m.doing, m.since = waits, at
	if !slices.Contains(m.ring.Members, w) { // a rider
		m.doing = idles
		o.sit(w)
		return o.record(at, w)
	}
	if m.release.Micro > 0 && m.release.Part == 0 {
		m.said = true
		os, err := o.e.Computed(wire.Computed{Worker: w, Generation: m.ring.Generation, Version: m.release.Version, Samples: m.done})
		if err := o.carry(at, os, err); err != nil {
			return err
		}
	}
	return o.exchange(at, m.ring, m.release.Version)
}

// sit brings a rider's gradient to its parent.
func (o *ringRun) sit(w star.Worker) {
	m := &o.at[w]
	m.sent = true
	for _, r := range m.ring.Riders {
		if r.Worker == w {
			o.at[r.Parent].riders[w] = riderGradient{m.ring.Generation, m.release}
		}
	}
}

// exchange begins the exchange of a round when all members of the ring have come to it.
func (o *ringRun) exchange(at time.Duration, ring wire.Ring, version int64) error {
	var attempts []int
	for _, w := range ring.Members {
		m := &o.at[w]
		if m.doing != waits || m.ring.Generation != ring.Generation || m.release.Version != version || (m.release.Micro > 0 || m.release.Part > 0) && !m.told {
			return nil
		}
		attempts = append(attempts, m.attempt)
	}
	var carried []wire.Gradient
	var samples []int
	for _, w := range ring.Members {
		m := &o.at[w]
		m.doing, m.waited = adds, at-m.since
		o.waiting += m.waited
		for _, rider := range ring.Riders {
			if s, ok := m.riders[rider.Worker]; ok && s.generation == ring.Generation {
				carried = append(carried, wire.Gradient{Worker: rider.Worker, Step: s.release.Start, Weight: float32(s.release.Count) / float32(max(ring.Of, 1))})
				delete(m.riders, rider.Worker)
			}
		}
		if m.release.Part > 0 {
			samples = append(samples, m.done)
		}
	}
	took := o.takes(len(ring.Members))
	o.result.Bytes += 2 * float64(len(ring.Members)-1) * float64(o.Bytes)
	o.after(at+took, func(at time.Duration) error {
		for i, w := range ring.Members {
			if o.at[w].attempt != attempts[i] {
				return nil // it was given up
			}
		}
		for _, w := range ring.Members {
			m := &o.at[w]
			m.version, m.doing = version+1, idles
			if m.done > 0 {
				if err := o.record(at, w); err != nil {
					return err
				}
			}
			os, err := o.e.Tally(wire.Tally{Worker: w, Generation: ring.Generation, Version: m.version, Carried: carried, Samples: samples})
			if err := o.carry(at, os, err); err != nil {
				return err
			}
		}
		for _, w := range ring.Members {
			if err := o.goesOn(at, w); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// takes is the time of an exchange of n elements.
func (o *ringRun) takes(n int) time.Duration {
	model, a := o.ringModel(n, o.Bytes)
	return time.Duration(model.Seconds(a, n, o.Bytes) * 1e9)
}

// record tells of a gradient.
func (o *ringRun) record(at time.Duration, w star.Worker) error {
	m, k := &o.at[w], &o.workers[w]
	rec := star.Record{Worker: w, Step: m.step, Basis: m.release.Version, At: at, Samples: m.done, Load: m.whole.Load, Compute: m.spent, Wait: m.waited}
	rec.Telemetry.Set(star.Parts, float64(m.cut))
	m.step++
	k.busy = false
	if o.Pilot != nil {
		o.Pilot.Observe(rec)
	}
	_, os, err := o.e.Arrive(rec, false)
	return o.carry(at, os, err)
}

// fired is an update.
func (o *ringRun) fired(at time.Duration, f *engine.Ready) error {
	o.applied = o.applied[:0]
	for i, g := range f.Fire.Gradients {
		n := f.Pieces[i].Count
		for k := 0; k < len(f.More); k += 3 {
			if f.More[k] == int64(i) {
				n += int(f.More[k+2])
			}
		}
		basis := f.Fire.Version - 1 - f.Stale[i]
		o.applied = append(o.applied, Gradient{Worker: g.Worker, Step: o.at[g.Worker].step, Basis: basis, Samples: n})
		o.stale += f.Stale[i]
		o.result.Samples += int64(n)
	}
	o.result.Updates++
	o.result.Gradients += int64(len(o.applied))
	o.result.Dropped += int64(len(f.Fire.Dropped))
	out := o.Learner.Update(f.Fire.Version, o.applied)
	if out.Err != nil {
		return out.Err
	}
	o.result.Progress = out.Progress
	if o.Pilot == nil {
		return nil
	}
	o.Pilot.Fired(at, f.Fire.Version, o.applied, out)
	// The coordinator does what it has ready before it does what the pilot wants.
	o.after(at, func(at time.Duration) error { return o.decideRounds(at) })
	return nil
}

// decideRounds asks the pilot.
func (o *ringRun) decideRounds(at time.Duration) error {
	p, why, change := o.Pilot.Decide(at)
	if !change {
		return nil
	}
	if err := engine.RingPlan(p); err != nil {
		return fmt.Errorf("sim: the pilot's plan: %w", err)
	}
	o.plan = p
	o.result.Switches = append(o.result.Switches, Switch{At: at, Plan: p, Why: why})
	return o.carry(at, o.e.Install(p), nil)
}

// leave is the loss of a worker, join the return of one.
func (o *ringRun) leave(at time.Duration, w star.Worker) error {
	k, m := &o.workers[w], &o.at[w]
	if k.gone {
		return nil
	}
	k.gone, k.busy = true, false
	m.attempt++
	m.in, m.doing, m.version, m.riders = nil, idles, -1, map[star.Worker]riderGradient{}
	o.attend(at, w, false)
	return o.carry(at, o.e.Leave(w), nil)
}

func (o *ringRun) join(at time.Duration, w star.Worker) error {
	if !o.workers[w].gone {
		return nil
	}
	if o.e.Lingers(w) {
		o.after(at+time.Millisecond, func(at time.Duration) error { return o.join(at, w) })
		return nil
	}
	o.workers[w].gone = false
	o.attend(at, w, true)
	os := o.e.Join(w, false)
	o.at[w].step = o.e.Worker(w).Step
	return o.carry(at, os, nil)
}
