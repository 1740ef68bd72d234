package host

import (
	"time"

	"star"
)

// Usage is the use of a process so far, according to the kernel.
type Usage struct {
	CPU       time.Duration // of all its threads
	Faults    int64         // pages read from disk
	Preempted int64         // involuntary context switches
}

// Meter measures a worker's iterations. It is not safe for concurrent use. A nil Meter measures nothing.
type Meter struct {
	sampler *Sampler
	begun   Usage
	start   time.Time
	share   float64 // of the computation
	last    Usage   // at the last Fill
	filled  time.Time
	stood   time.Duration // by the sampler, at the last Fill
	other   bool          // another process is measured: Took sets its use
}

// Took replaces Begin and End for another process: it sets the process's use and the time of a computation. Faults and
// Preempted are since the previous call.
func (m *Meter) Took(u Usage, compute time.Duration) {
	if m == nil {
		return
	}
	m.other, m.share = true, -1
	if compute > 0 {
		m.share = u.CPU.Seconds() / compute.Seconds()
	}
	m.begun.Faults += u.Faults
	m.begun.Preempted += u.Preempted
}

// NewMeter returns a meter; with a nil sampler it has only the process's own usage.
func NewMeter(s *Sampler) *Meter { return &Meter{sampler: s, last: Used(), filled: time.Now()} }

// Begin marks the start of the computation.
func (m *Meter) Begin() {
	if m != nil && !m.other {
		m.begun, m.start = Used(), time.Now()
	}
}

// End marks the end of the computation.
func (m *Meter) End() {
	if m == nil || m.other {
		return
	}
	m.share = -1
	if d := time.Since(m.start); d > 0 && !m.start.IsZero() {
		m.share = (Used().CPU - m.begun.CPU).Seconds() / d.Seconds()
	}
}

// Fill writes the measurements since the last Fill into a record.
func (m *Meter) Fill(r *star.Record) {
	if m == nil {
		return
	}
	now := Used()
	if m.other {
		now, m.last, m.begun = m.begun, Usage{}, Usage{}
	}
	if m.sampler != nil {
		r.Telemetry.Merge(m.sampler.Latest())
		// A stop that made this iteration long is over when it ends: the last look may not include it.
		at, stood := time.Now(), m.sampler.Stood()
		if d := at.Sub(m.filled); d > 0 {
			r.Telemetry.Set(star.Stalled, min(float64(stood-m.stood)/float64(d), 1))
		}
		m.filled, m.stood = at, stood
	}
	if m.share >= 0 {
		r.Telemetry.Set(star.ComputeCPU, m.share)
	}
	r.Telemetry.Set(star.MajorFaults, float64(now.Faults-m.last.Faults))
	r.Telemetry.Set(star.Preempted, float64(now.Preempted-m.last.Preempted))
	m.last = now
}
