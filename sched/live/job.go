// Package live is the queue of a service that schedules jobs. From events it derives which jobs, hosts and workers
// exist, and what to do next so that each job gets the workers that a policy of package sched gives it. A service
// writes each event down, applies it, and carries it out; after a restart it applies the events that it wrote.
//
// The package is pure: times are seconds since the queue began, and the caller reports workers and hosts. A GPU of
// package sched is a worker's place here, an iteration is a sample.
package live

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"regexp"
	"slices"

	"star/sched"
)

// Spec is a job as it was submitted.
type Spec struct {
	Name     string            `json:"name" yaml:"name"`
	Settings map[string]string `json:"settings,omitempty" yaml:"-"`
	Command  []string          `json:"command,omitempty" yaml:"command"` // the worker's; nil: STAR's own worker
	Samples  int64             `json:"samples" yaml:"samples"`           // of the whole job
	Workers  int               `json:"workers" yaml:"workers"`           // for policies that do not plan
	Min      int               `json:"min-workers" yaml:"min-workers"`   // for policies that plan
	Max      int               `json:"max-workers" yaml:"max-workers"`   // likewise
	Rates    map[int]float64   `json:"rates,omitempty" yaml:"rates"`     // samples/s by number of workers
	Deadline float64           `json:"deadline_s,omitempty" yaml:"-"`    // s from submission; 0: none
}

// maxWorkers is the largest number of workers that policies that plan give a job.
const maxWorkers = 64

// nameForm matches names. A number after a dot marks a job that was submitted again (Queue.Again).
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?(\.[1-9][0-9]*)?$`)

// Check fills in defaults and validates the spec. The error names the key.
func (s *Spec) Check() error {
	if s.Workers == 0 {
		s.Workers = max(1, s.Max, s.Min)
	}
	if s.Min == 0 {
		s.Min = 1
	}
	if s.Max == 0 {
		// policies that plan use powers of two: a job of 3 workers gets 2
		s.Max = 1 << (bits.Len(uint(max(s.Workers, s.Min, 1))) - 1)
	}
	switch {
	case !nameForm.MatchString(s.Name):
		return fmt.Errorf("name %q: want lower-case letters, digits and hyphens, at most 50", s.Name)
	case s.Samples < 1:
		return errors.New("samples: want the job's total, 1 or more")
	case s.Workers < 1 || s.Workers > maxWorkers:
		return fmt.Errorf("workers: %d: want 1 to %d", s.Workers, maxWorkers)
	case !power(s.Min) || !power(s.Max) || s.Max > maxWorkers:
		return fmt.Errorf("min-workers %d, max-workers %d: want powers of two, at most %d", s.Min, s.Max, maxWorkers)
	case s.Min > s.Max:
		return fmt.Errorf("min-workers %d is more than max-workers, %d", s.Min, s.Max)
	case s.Deadline < 0 || math.IsNaN(s.Deadline) || math.IsInf(s.Deadline, 0):
		return fmt.Errorf("deadline %g s: want more than 0", s.Deadline)
	}
	for n, r := range s.Rates {
		if !power(n) || n > maxWorkers {
			return fmt.Errorf("rates: %d workers: want powers of two, at most %d", n, maxWorkers)
		}
		if !(r > 0) || math.IsInf(r, 1) {
			return fmt.Errorf("rates: %g samples/s on %d workers: want more than 0", r, n)
		}
	}
	return nil
}

func power(n int) bool { return n > 0 && n&(n-1) == 0 }

// State is a job's state.
type State string

// The states.
const (
	Waiting   State = "waiting"
	Running   State = "running"
	Stopping  State = "stopping" // it saves a checkpoint, then ends or waits
	Done      State = "done"
	Stopped   State = "stopped" // by star ctl stop, before its last sample
	Declined  State = "declined"
	Cancelled State = "cancelled"
	Failed    State = "failed"
)

// Member is a worker of a job.
type Member struct {
	ID       int     `json:"id"` // unique among all workers that the job has had
	Host     string  `json:"host"`
	Rank     int     `json:"rank"`
	Replaces int     `json:"replaces,omitempty"` // ID of the worker that it is to replace; 0: none
	Leaving  bool    `json:"leaving,omitempty"`
	Added    float64 `json:"added"`           // s
	Given    float64 `json:"given,omitempty"` // when the policy gave the job more workers, s; 0: at Added
	Joined   bool    `json:"-"`               // by the job's log

	// left is set if the worker took part and the job continued without it. Not persisted, like slow.
	left  bool
	slow  string  // why its host should be avoided; empty: no reason is known
	times float64 // its slowdown factor then
}

// Job is a job in a Queue.
type Job struct {
	Spec
	Submitted float64 // s since the queue began, like all times
	Due       float64 // +Inf: no deadline
	State     State
	Want      int    // workers that the policy gives it
	Why       string // the last decision, or how it ended; Queue.Why says more
	Life      int    // number of starts
	Addr      string // of its coordinator
	Members   []*Member
	Samples   int64   // counted samples
	Begun     float64 // the first start
	Ended     float64
	Stops     int // number of preemptions

	Measured map[int]float64 // samples/s by number of workers

	// gone describes the last worker since Why that ended by itself.
	gone string
	// given is when it was given more workers that have not all joined yet, s; NaN: none are missing.
	given    float64
	started  float64  // start of this life, or of the decision to start it, s
	trains   bool     // this life has made an update; not persisted, like progress
	progress float64  // time of the last known update, s
	after    State    // state after it has stopped
	fails    int      // consecutive lives that ended by themselves without progress
	from     int64    // samples at the start of this life
	again    float64  // not started before this time, s
	attained float64  // worker-seconds received
	since    float64  // time of attained
	members  int      // number of workers that it has had
	stable   struct { // the current period without joins and leaves
		workers int
		since   float64 // begin, s
		at      float64 // time of the first update in it, s of the job's own clock; NaN: unknown
		samples int64   // samples at that update
	}
}

// Active reports whether a job has not ended.
func (j *Job) Active() bool { return j.State == Waiting || j.State == Running || j.State == Stopping }

// over reports whether a job and all of its workers have ended.
func (j *Job) over() bool { return !j.Active() && len(j.Members) == 0 }

// Met reports whether the job was done by its deadline, if it has one.
func (j *Job) Met() bool { return j.State == Done && j.Ended <= j.Due }

// Hosts returns the hosts of its workers, each once.
func (j *Job) Hosts() (hosts []string) {
	for _, m := range j.Members {
		if !slices.Contains(hosts, m.Host) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// staying returns the members that were not told to leave.
func (j *Job) staying() (ms []*Member) {
	for _, m := range j.Members {
		if !m.Leaving {
			ms = append(ms, m)
		}
	}
	return ms
}

// joined returns how many of these take part in the job.
func (j *Job) joined() (n int) {
	for _, m := range j.staying() {
		if m.Joined {
			n++
		}
	}
	return n
}

// finishing reports whether only the job's end is left, by this life's log: the life before may have made more samples
// than its last checkpoint has.
func (j *Job) finishing() bool { return j.trains && j.Samples >= j.Spec.Samples }

// nearest returns the number of workers in m that is the fewest doublings away from n, or 0.
func nearest(m map[int]float64, n int) (at int) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if at == 0 || math.Abs(math.Log2(float64(k)/float64(n))) < math.Abs(math.Log2(float64(at)/float64(n))) {
			at = k
		}
	}
	return at
}

// known returns samples/s for the numbers of workers with measured or stated rates. Stated rates are scaled by how far
// they were off where rates were measured.
func (j *Job) known() map[int]float64 {
	known := maps.Clone(j.Rates)
	if known == nil {
		known = map[int]float64{}
	}
	for n := range j.Rates {
		if k := nearest(j.Measured, n); k > 0 && j.Rates[k] > 0 {
			known[n] = j.Rates[n] * j.Measured[k] / j.Rates[k]
		}
	}
	maps.Copy(known, j.Measured)
	return known
}

// Curve returns samples/s on 1, 2, 4, … workers, up to the job's maximum: known rates, with the numbers between and
// beyond scaled in proportion to the workers. It returns nil if no rate is known.
func (j *Job) Curve() []float64 {
	known := j.known()
	if len(known) == 0 {
		return nil
	}
	curve := make([]float64, bits.Len(uint(max(j.Max, j.Workers))))
	for i := range curve {
		n := 1 << i
		k := nearest(known, n)
		curve[i] = known[k] * float64(n) / float64(k)
	}
	return curve
}

// guessed is the assumed duration on one worker, in s, of a job without any known rate (it was submitted under a policy
// that needs none, and is measured after some seconds of running). It is short, so that no job is declined because of
// an unknown rate.
const guessed = 60.

// forPolicy returns the job as policies see it.
func (j *Job) forPolicy() *sched.Job {
	curve := j.Curve()
	if curve == nil {
		for n := 1; n <= max(j.Max, j.Workers); n *= 2 {
			curve = append(curve, float64(j.Spec.Samples)/guessed*float64(n))
		}
	}
	s := &sched.Job{ID: j.Name, Submit: j.Submitted, Deadline: j.Due, GPUs: j.Workers, Iterations: float64(j.Spec.Samples), Batch: maxWorkers, BestEffort: math.IsInf(j.Due, 1)}
	if rate := sched.Speed(curve, j.Workers); rate > 0 {
		s.Duration = s.Iterations / rate
	}
	s.Rates = j.levels(curve)
	return s
}

// levels returns a curve without the numbers of workers that the job excludes.
func (j *Job) levels(curve []float64) (rates []float64) {
	for i, r := range curve {
		if n := 1 << i; n < j.Min {
			r = 0
		} else if n > j.Max {
			break
		}
		rates = append(rates, r)
	}
	return rates
}
