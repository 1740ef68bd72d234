package runlog

import (
	"math"
	"time"

	"star"
)

// Sampled says that from here on only one of `every` records of a worker has all metrics
// ([deploy.md](deploy.md#sampled-records)): that with `step` equal to the worker's rank, modulo `every`. Others have
// times, loss, norm, traffic, and the metrics `compute_cpu`, `throttled`, `stalled`, `parts`, `paused`, `far_in` and
// `far_out`; the worker's last full record has the rest.
type Sampled struct {
	Every int64   `json:"every" check:"min=1"` // 1: all records are full again
	Rate  float64 `json:"rate"`                // records in the last second
}

// Rules of sampling. The rate is counted over a second of the log's time.
const (
	sampleFrom = 64   // workers
	fullRate   = 500  // full records a second that a log has at most, once sampling has adapted
	mostEvery  = 1024 // iterations
)

// always are the metrics that every record has, if they were measured: what verdicts and simulations depend on,
// and what is of one iteration and not like that of the next.
var always = [...]star.Metric{star.ComputeCPU, star.Throttled, star.Stalled, star.Parts, star.Paused, star.FarIn, star.FarOut,
	star.Processes, star.SlowProcess, star.SlowProcessTime, star.OtherProcesses}

// sampling decides which records of a Writer are full.
type sampling struct {
	on    bool
	every int64
	from  time.Duration // of the second that is counted
	n     int64         // records in it
}

// count takes in a record at t. It reports whether every changed, and the rate by which it did.
func (s *sampling) count(t time.Duration) (changed bool, rate float64) {
	s.n++
	passed := t - s.from
	if passed < time.Second {
		return false, 0
	}
	rate = float64(s.n) / passed.Seconds()
	s.from, s.n = t, 0
	every := s.every
	for every < mostEvery && rate > fullRate*float64(every) {
		every *= 2
	}
	for every > 1 && rate < fullRate*float64(every)/4 {
		every /= 2
	}
	changed, s.every = every != s.every, every
	return changed, math.Round(rate)
}

// full says whether the record of a worker's step has all its metrics.
func full(every int64, w star.Worker, step int64) bool {
	return every <= 1 || step%every == int64(w)%every
}

// brief is the metrics of a record that is not full.
func brief(t *star.Telemetry) (b star.Telemetry) {
	for _, m := range always {
		if v, ok := t.Get(m); ok {
			b.Set(m, v)
		}
	}
	return b
}

// sampled completes records that are not full when they are read.
type sampled struct {
	every int64
	last  []star.Telemetry // of the last full record, by worker
}

// complete gives a record that is not full the metrics of the last one that is.
func (s *sampled) complete(r *Record) {
	for int(r.Worker) >= len(s.last) {
		s.last = append(s.last, star.Telemetry{})
	}
	if last := &s.last[r.Worker]; full(s.every, r.Worker, r.Step) {
		*last = r.Telemetry
	} else {
		t := *last
		for _, m := range always {
			t.Seen &^= 1 << m
		}
		t.Merge(&r.Telemetry)
		r.Telemetry = t
	}
}
