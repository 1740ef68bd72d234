package straggler

import (
	"fmt"
	"time"

	"star"
)

const (
	longest = 24 * time.Hour // of one part of one iteration
	maxCPUs = 1 << 14        // processors of a host
)

// impossible returns the reason why a record is impossible and must not be used, or "". last is the worker's previous
// record, if any.
func impossible(r *star.Record, last *star.Record) string {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"load", r.Load}, {"compute", r.Compute}, {"push", r.Push}, {"wait", r.Wait}, {"pull", r.Pull}, {"transit", r.Transit}} {
		switch {
		case d.v < 0:
			return fmt.Sprintf("%s %v is negative", d.name, d.v)
		case d.v > longest:
			return fmt.Sprintf("%s %v is longer than a day", d.name, d.v)
		}
	}
	switch {
	case r.Own() <= 0:
		return "it took no time"
	case last != nil && r.Step <= last.Step:
		return fmt.Sprintf("step %d after step %d", r.Step, last.Step)
	case r.At > 0 && r.Own() > r.At+time.Second && (last == nil || r.At >= last.At):
		return fmt.Sprintf("load and compute took %v, %v after the run began", r.Own(), r.At)
	}
	return ""
}

// jumped reports whether the worker's clock went backwards between two records.
// Durations do not depend on it. Records with ends that others have measured overlap by as much as
// one of them was late, which is no jump.
func jumped(r, last *star.Record) bool { return last != nil && last.At-r.At > time.Second }

// most is the largest value that a metric can have; 0: any that is not negative.
var most = [star.NumMetrics]float64{
	star.ComputeCPU: maxCPUs, star.RunDelay: maxCPUs, star.Throttled: maxCPUs, star.Quota: maxCPUs, star.Stalled: 1,
	star.Steal: 1, star.HostCPU: 1, star.IOWait: 1, star.CPUPressure: 1, star.MemAvailable: 1, star.GPUUse: 1, star.GPUMemory: 1, star.GPULinkShare: 1,
}

// slack is what rounding and clocks of different kinds may add to a share.
const slack = 1.05

// strange returns a metric that has an impossible value, and takes those that have
// one out of t.
func strange(t *star.Telemetry) (what star.Metric, value float64, found bool) {
	for m := range star.NumMetrics {
		v, ok := t.Get(m)
		if !ok || v >= 0 && (most[m] == 0 || v <= most[m]*slack) {
			continue
		}
		t.Seen &^= 1 << m
		if !found {
			what, value, found = m, v, true
		}
	}
	return what, value, found
}
