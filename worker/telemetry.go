package worker

import (
	"time"

	"star"
	"star/cluster/resource/actuate"
	"star/cluster/resource/host"
	"star/job"
	"star/train"
)

// observe tells the governor what an iteration took. What was injected is left out: limits are
// about what the process takes, and a worker that sleeps on purpose takes nothing.
func (w *worker) observe(rec *star.Record) {
	share, ok := rec.Telemetry.Get(star.ComputeCPU)
	if !ok { // without telemetry: as if what the process did was done while it computed
		if rec.Compute > 0 {
			share = rec.CPU * rec.Iteration().Seconds() / rec.Compute.Seconds()
		}
	}
	w.limits.Observe(actuate.Work{Busy: rec.Compute - rec.Injected, Cores: share, Send: rec.Push, Out: rec.NetOut})
}

// far tells with a record what the worker has exchanged with other hosts since the one before: what
// a ring takes of links, only its workers know. In bytes, for the resource service (--cluster);
// with servers they say it.
func (w *worker) far(rec *star.Record) {
	if w.job.Cluster == "" || w.job.Arch != job.AllReduce {
		return
	}
	sent, got := w.all.Traffic()
	rec.Telemetry.Set(star.FarOut, max(float64(sent-w.farSent), 0))
	rec.Telemetry.Set(star.FarIn, max(float64(got-w.farGot), 0))
	w.farSent, w.farGot = sent, got
}

// elsewhere corrects what was measured of a gradient that took so long, if another process has
// computed it: loading its samples was part of that. Processor time, faults and preemptions are
// then those of that process, of which this one can measure nothing.
// A model that does not say (train.Measured) is taken to compute here.
func (w *worker) elsewhere(rec *star.Record, took time.Duration) {
	m, ok := w.model.(train.Measured)
	if !ok {
		return
	}
	u := m.Measured()
	load := min(u.Load, took)
	rec.Load += load
	rec.Compute -= load
	w.remote = true
	w.used += u.CPU
	w.meter.Took(host.Usage{CPU: u.CPU, Faults: u.Faults, Preempted: u.Preempted}, took-load)
}
