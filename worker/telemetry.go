package worker

import (
	"slices"
	"time"

	"star"
	"star/cluster/resource/actuate"
	"star/cluster/resource/host"
	"star/job"
	"star/train"
)

// A step is measured in three places: the meter samples host and process during the computation
// (measures.meter), the links count bytes (far), and the governor learns the use of resources, which
// its limits bound (observe).

// observe reports the resources of an iteration to the governor. Injected time is excluded: limits
// concern what the process uses, and a worker that sleeps on purpose uses nothing.
func (w *worker) observe(rec *star.Record) {
	share, ok := rec.Telemetry.Get(star.ComputeCPU)
	if !ok { // without telemetry: as if all CPU time was spent while it computed
		if rec.Compute > 0 {
			share = rec.CPU * rec.Iteration().Seconds() / rec.Compute.Seconds()
		}
	}
	w.limits.Observe(actuate.Work{Busy: rec.Compute - rec.Injected, Cores: share, Send: rec.Push, Out: rec.NetOut})
}

// far adds to a record the bytes exchanged with other hosts since the one before, for the resource
// service (--cluster): only the workers of a ring know them. With servers, the servers report them.
func (w *worker) far(rec *star.Record) {
	if w.job.Cluster == "" || w.job.Arch != job.AllReduce {
		return
	}
	sent, got := w.all.Traffic()
	rec.Telemetry.Set(star.FarOut, max(float64(sent-w.farSent), 0))
	rec.Telemetry.Set(star.FarIn, max(float64(got-w.farGot), 0))
	w.farSent, w.farGot = sent, got
}

// elsewhere corrects the measurements of a gradient that took took, if another process has computed
// it: loading its samples was part of that time. CPU time, page faults and preemptions are then
// those of the other process. A model that does not implement train.Measured computes here.
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
	w.within(rec, u.Processes)
	w.meter.Took(host.Usage{CPU: u.CPU, Faults: u.Faults, Preempted: u.Preempted}, took-load)
}

// within records which of the processes of this worker was the slowest.
func (w *worker) within(rec *star.Record, times []time.Duration) {
	if len(times) < 2 {
		return
	}
	slow := 0
	for i, t := range times {
		if t > times[slow] {
			slow = i
		}
	}
	others := slices.Delete(slices.Clone(times), slow, slow+1)
	slices.Sort(others)
	rec.Telemetry.Set(star.Processes, float64(len(times)))
	rec.Telemetry.Set(star.SlowProcess, float64(slow))
	rec.Telemetry.Set(star.SlowProcessTime, times[slow].Seconds())
	rec.Telemetry.Set(star.OtherProcesses, others[len(others)/2].Seconds())
}
