// Package live is the queue of a service that schedules jobs: which jobs, hosts and workers there are, as events tell, and what is to be done next so that each job gets
// the workers that a policy of sched gives it. A service writes each event down, applies it, and does it; after a restart it applies what it wrote.
//
// Pure: times are seconds since the queue began, workers and hosts are what it is told of. A GPU of sched is a worker's place here, an iteration is a sample.
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
	Command  []string          `json:"command,omitempty" yaml:"command"` // the worker; nil: STAR's own
	Samples  int64             `json:"samples" yaml:"samples"`           // of the whole job
	Workers  int               `json:"workers" yaml:"workers"`           // under policies that do not plan
	Min      int               `json:"min-workers" yaml:"min-workers"`   // under those that do
	Max      int               `json:"max-workers" yaml:"max-workers"`   //
	Rates    map[int]float64   `json:"rates,omitempty" yaml:"rates"`     // samples/s on so many workers
	Deadline float64           `json:"deadline_s,omitempty" yaml:"-"`    // s from submission; 0: none
}

// maxWorkers is what policies that plan can give a job.
const maxWorkers = 64

// nameForm is that of names. A number behind a dot is that of a job that was submitted again (Queue.Again).
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?(\.[1-9][0-9]*)?$`)

// Check fills in what is not said, and says what is wrong. The error names the key.
func (s *Spec) Check() error {
	if s.Workers == 0 {
		s.Workers = max(1, s.Max, s.Min)
	}
	if s.Min == 0 {
		s.Min = 1
	}
	if s.Max == 0 {
		s.Max = 1 << (bits.Len(uint(max(s.Workers, s.Min, 1))) - 1) // policies that plan go by powers of two: of 3 workers it may have 2
	}
	switch {
	case !nameForm.MatchString(s.Name):
		return fmt.Errorf("name %q: want lower-case letters, digits and hyphens, at most 50", s.Name)
	case s.Samples < 1:
		return errors.New("samples: how many samples until the job is done? want 1 or more")
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

// State is where a job stands.
type State string

// The states.
const (
	Waiting   State = "waiting"
	Running   State = "running"
	Stopping  State = "stopping" // it saves a checkpoint, and ends or waits
	Done      State = "done"
	Stopped   State = "stopped" // by star ctl stop, before its last sample
	Declined  State = "declined"
	Cancelled State = "cancelled"
	Failed    State = "failed"
)

// Member is a worker of a job.
type Member struct {
	ID       int     `json:"id"` // of all workers that the job has had
	Host     string  `json:"host"`
	Rank     int     `json:"rank"`
	Replaces int     `json:"replaces,omitempty"` // ID of the one in whose place it is to be; 0: nobody's
	Leaving  bool    `json:"leaving,omitempty"`
	Added    float64 `json:"added"`           // s
	Given    float64 `json:"given,omitempty"` // when it was decided that the job has more, s; 0: when it was added
	Joined   bool    `json:"-"`               // as the job's log says

	left  bool    // it has been there, and the job has gone on without it; not written down, like slow
	slow  string  // why its host is to be avoided; empty: it is not, or nobody says so
	times float64 // how many times as long it takes then
}

// Job is a job in a Queue.
type Job struct {
	Spec
	Submitted float64 // s since the queue began, as all times
	Due       float64 // +Inf: no deadline
	State     State
	Want      int    // workers that the policy gives it
	Why       string // the last decision, or how it ended; Queue.Why has more
	Life      int    // how often it was started
	Addr      string // of its coordinator
	Members   []*Member
	Samples   int64   // that count
	Begun     float64 // first
	Ended     float64
	Stops     int // preemptions

	Measured map[int]float64 // samples/s on so many workers

	gone     string   // with what the last worker has ended that ended by itself since Why
	given    float64  // when it was given more workers that are not all there yet, s; NaN: it was not
	started  float64  // this life, or the decision that it is to have one, s
	trains   bool     // this life has made an update; not written down, like progress
	progress float64  // when the last update was that is known, s
	after    State    // what it is when it has stopped
	fails    int      // lives in a row that ended by themselves without progress
	from     int64    // samples at the begin of this life
	again    float64  // it is not started before
	attained float64  // worker-seconds that it has had
	since    float64  // when attained was right
	members  int      // that it has had
	stable   struct { // since when it has had as many workers, none of which came or left
		workers int
		since   float64 // s
		at      float64 // of the first update after that, s of the job's own clock; NaN: none is known
		samples int64   // that it had then
	}
}

// Active is a job that has not ended.
func (j *Job) Active() bool { return j.State == Waiting || j.State == Running || j.State == Stopping }

// over says whether a job has ended, and all of its workers have.
func (j *Job) over() bool { return !j.Active() && len(j.Members) == 0 }

// Met says whether the job was done by its deadline, if it has one.
func (j *Job) Met() bool { return j.State == Done && j.Ended <= j.Due }

// Hosts are those of its workers, each once.
func (j *Job) Hosts() (hosts []string) {
	for _, m := range j.Members {
		if !slices.Contains(hosts, m.Host) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// staying are the members that are not told to leave.
func (j *Job) staying() (ms []*Member) {
	for _, m := range j.Members {
		if !m.Leaving {
			ms = append(ms, m)
		}
	}
	return ms
}

// joined is how many workers take part in it that are not told to leave.
func (j *Job) joined() (n int) {
	for _, m := range j.staying() {
		if m.Joined {
			n++
		}
	}
	return n
}

// finishing says whether nothing is left but its end, as this life's log says: what the life before had made may be more than its last checkpoint has.
func (j *Job) finishing() bool { return j.trains && j.Samples >= j.Spec.Samples }

// nearest is the number of workers of m that is the fewest doublings away from n; 0: there is none.
func nearest(m map[int]float64, n int) (at int) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if at == 0 || math.Abs(math.Log2(float64(k)/float64(n))) < math.Abs(math.Log2(float64(at)/float64(n))) {
			at = k
		}
	}
	return at
}

// known is samples/s on the numbers of workers of which that was measured or said: what was said, times how far off that was where it was measured.
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

// Curve is samples/s on 1, 2, 4, … workers, as far as the job may have so many: what is known, and between and beyond, as if each worker brought the same. Nil: nothing is known.
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

// guessed is what a job of which nothing is known is taken to need on one worker, s: it came under a policy that needs no rates, and is measured when it has run for some seconds. So little that nobody is declined for what
// is not known.
const guessed = 60.

// forPolicy is the job as policies see it.
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

// levels is a curve without the numbers of workers that the job does not want.
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
