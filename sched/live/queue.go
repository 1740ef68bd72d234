package live

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"star/sched"
)

// Event is something that has happened, or a decision to carry out. Queue.Apply defines its meaning.
type Event struct {
	At       float64 `json:"at"` // s since the queue began
	Kind     string  `json:"event"`
	Job      string  `json:"job,omitempty"`
	Why      string  `json:"why,omitempty"`
	Spec     *Spec   `json:"spec,omitempty"`
	Workers  int     `json:"workers,omitempty"` // decide
	Life     int     `json:"life,omitempty"`    // begin
	Addr     string  `json:"addr,omitempty"`
	Member   int     `json:"member,omitempty"` // add, leave, gone
	Host     string  `json:"host,omitempty"`
	Rank     int     `json:"rank,omitempty"`
	Replaces int     `json:"replaces,omitempty"`
	// State is, for stop, the job's next state; for ended, what the job reported, else waiting.
	State   State           `json:"state,omitempty"`
	Samples int64           `json:"samples,omitempty"`
	Rates   map[int]float64 `json:"rates,omitempty"`
	What    string          `json:"what,omitempty"`   // took: start, resume or resize
	Took    float64         `json:"took_s,omitempty"` // took; ended, if the job is done: time since its last update
	Times   float64         `json:"times,omitempty"`  // slow: slowdown factor of its workers
	Jobs    []string        `json:"jobs,omitempty"`   // archive: their names
}

// Kinds of events.
const (
	KindSubmit  = "submit"  // a job was submitted
	KindDecide  = "decide"  // the policy sets its number of workers
	KindDecline = "decline" // the policy declines it
	KindBegin   = "begin"   // start its coordinator
	KindAdd     = "add"     // start a worker
	KindLeave   = "leave"   // tell a worker to leave
	KindGone    = "gone"    // a worker has ended
	KindStop    = "stop"    // tell the job to save a checkpoint and end
	KindEnded   = "ended"   // its coordinator has ended
	KindRates   = "rates"   // its rate was measured
	KindTook    = "took"    // what a start, a resume or a resize took
	KindSlow    = "slow"    // a host is slow
	KindWell    = "well"    // a host is no longer slow
	KindArchive = "archive" // jobs that have ended leave the queue
)

// Host is a machine on which workers run.
type Host struct {
	Name  string `json:"host"`
	Slots int    `json:"-"` // how many workers it can run at a time
	// Closed says why the host's cluster withholds it now, as reported to the service: nothing is started there.
	// Empty: it does not.
	Closed string `json:"-"`

	Slow  string  `json:"slow,omitempty"`  // why it is avoided; empty: it is not
	Times float64 `json:"times,omitempty"` // slowdown factor of its workers then; 0: not recorded
	Until float64 `json:"until"`           // end of the avoidance, s
	// Away is until when nothing is started, s, because workers that were started there ended by themselves.
	Away  float64 `json:"away"`
	Fails int     `json:"fails,omitempty"`
}

// Avoided says why nothing is started on a host, or only if no other host has room; empty if it is not avoided.
func (h *Host) Avoided() string { return cmp.Or(h.Closed, h.Slow) }

// Limits on how long observations count.
const (
	// slowFor is how long, in s, a host with slow workers is avoided: without workers nothing would report that
	// it has recovered.
	slowFor    = 600.
	longestTry = 60.  // longest pause between two starts of something that ends by itself, s
	mostFails  = 4    // consecutive lives without progress after which a job has failed
	measureFor = 5.   // time on the same workers after which their rate is measured, s
	measureOff = 0.15 // relative difference from the known rate that counts
)

// Queue is the state of all jobs and hosts. It is not safe for concurrent use.
type Queue struct {
	Hosts []*Host
	Jobs  []*Job // in order of submission

	Newest float64 // time of the newest event, s

	// Past reports whether a job of that name has left the queue. Nil: none has.
	Past func(name string) bool

	took    map[string][]float64 // the newest durations, s
	byName  map[string]*Job
	staffed []*Job // jobs with workers, in order of submission
	cache   cache
	policy  *sched.Live
	decided []Event // decisions that are not applied yet
}

// cache is derived from the rest of a Queue, as far as it was needed since the last change.
type cache struct {
	medians map[string]float64 // of durations, by what took them
	at      float64            // time of taken, s; NaN: not computed
	taken   string             // Queue.taken's text
}

// New returns an empty queue.
func New(hosts []*Host) *Queue {
	return &Queue{Hosts: hosts, byName: map[string]*Job{}, took: map[string][]float64{}, cache: cache{medians: map[string]float64{}, at: math.NaN()}}
}

// Slots returns how many workers all hosts can run.
func (q *Queue) Slots() (n int) {
	for _, h := range q.Hosts {
		n += h.Slots
	}
	return n
}

// room returns how many workers can run now: on a closed host, those that run there.
func (q *Queue) room() (n int) {
	used := q.Used()
	for _, h := range q.Hosts {
		if h.Closed == "" {
			n += h.Slots
		} else {
			n += min(used[h.Name], h.Slots)
		}
	}
	return n
}

// Used returns how many workers each host has.
func (q *Queue) Used() map[string]int {
	used := map[string]int{}
	for _, j := range q.staffed {
		for _, m := range j.Members {
			used[m.Host]++
		}
	}
	return used
}

// Job returns a job by its name, or nil.
func (q *Queue) Job(name string) *Job { return q.byName[name] }

func (q *Queue) host(name string) *Host {
	if i := slices.IndexFunc(q.Hosts, func(h *Host) bool { return h.Name == name }); i >= 0 {
		return q.Hosts[i]
	}
	return nil
}

// Schedule starts deciding, with the existing jobs.
func (q *Queue) Schedule(policy string, slot, now float64) error {
	var rs []sched.Running
	for _, j := range q.Jobs {
		if j.Active() && j.after != Cancelled && j.after != Failed {
			rs = append(rs, sched.Running{Job: j.forPolicy(), Left: float64(j.Spec.Samples - j.Samples), GPUs: j.Want, Begun: j.Life > 0, Lag: q.lag(j, now), Attained: j.attained})
		}
	}
	p, err := sched.NewLive(policy, q.Slots(), slot, now, rs)
	if err != nil {
		return err
	}
	q.policy = p
	p.Room(q.room())
	p.Lags(q.Took(tookResize))
	for _, r := range rs {
		if n := p.GPUs(r.ID); r.GPUs > 0 && n != r.GPUs {
			q.decided = append(q.decided, Event{At: now, Kind: KindDecide, Job: r.ID, Workers: n, Why: fmt.Sprintf("the service restarted, and under %s the job has %d instead of %d", policy, n, r.GPUs)})
		}
	}
	return nil
}

// Scheduled reports whether Schedule was called.
func (q *Queue) Scheduled() bool { return q.policy != nil }

// Submission returns the event of a submitted job.
func (q *Queue) Submission(s Spec, needs bool, now float64) (Event, error) {
	if err := s.Check(); err != nil {
		return Event{}, err
	}
	if j := q.byName[s.Name]; j != nil {
		return Event{}, fmt.Errorf("name %s: there is such a job already, %s: use another name", s.Name, j.State)
	}
	if needs && len(s.Rates) == 0 {
		for _, j := range q.Jobs { // use the rates of the last similar job
			if (len(j.Measured) > 0 || j.Samples > 0) && alike(&j.Spec, &s) { // also its stated rates
				if known := j.known(); len(known) > 0 {
					s.Rates = known
				}
			}
		}
		if len(s.Rates) == 0 {
			return Event{}, fmt.Errorf("rates: this policy must know how fast a job is, and no job with these settings has run: give samples/s, such as rates: {1: 1000, 2: 1900}")
		}
	}
	return Event{At: now, Kind: KindSubmit, Job: s.Name, Spec: &s}, nil
}

// alike reports whether two jobs do the same work.
func alike(a, b *Spec) bool {
	return slices.Equal(a.Command, b.Command) && maps.Equal(a.Settings, b.Settings)
}

// ErrNoJob is wrapped by errors about a job that was not submitted or does not run.
var ErrNoJob = errors.New("see star sched status")

// Cancellation returns the event that cancels a job. The error wraps ErrNoJob if there is no job of that name.
func (q *Queue) Cancellation(name string, now float64) (Event, error) {
	j := q.byName[name]
	switch {
	case j == nil:
		return Event{}, fmt.Errorf("there is no job %s: %w", name, ErrNoJob)
	case !j.Active():
		return Event{}, fmt.Errorf("job %s is %s already", name, j.State)
	}
	return Event{At: now, Kind: KindStop, Job: name, State: Cancelled, Why: "cancelled"}, nil
}

// Apply applies an event. An error says that the event cannot have happened: this program did not write the queue's
// file.
func (q *Queue) Apply(e Event) error {
	if len(q.decided) > 0 && q.decided[0].same(e) {
		q.decided = q.decided[1:]
	}
	q.Newest, q.cache.at = e.At, math.NaN()
	switch e.Kind {
	case KindArchive:
		return q.archive(e.Jobs)
	case KindSlow, KindWell:
		if h := q.host(e.Host); h != nil {
			h.Slow, h.Times, h.Until = "", 0, e.At+slowFor
			if e.Kind == KindSlow {
				h.Slow, h.Times = e.Why, e.Times
			}
		}
		return nil
	case KindSubmit:
		if e.Spec == nil || q.byName[e.Job] != nil {
			return fmt.Errorf("job %s is submitted twice, or has no spec", e.Job)
		}
		j := newJob(*e.Spec, e.At)
		q.Jobs, q.byName[e.Job] = append(q.Jobs, j), j
		if q.policy != nil {
			q.policy.Arrive(j.forPolicy())
		}
		return nil
	}
	j := q.byName[e.Job]
	if j == nil {
		return fmt.Errorf("event %q of job %q, which was not submitted", e.Kind, e.Job)
	}
	j.attained += (e.At - j.since) * float64(len(j.Members))
	j.since = e.At
	return q.apply(j, e)
}

// newJob returns a job that was submitted at a time.
func newJob(s Spec, at float64) *Job {
	j := &Job{Spec: s, Submitted: at, Due: math.Inf(1), State: Waiting, since: at, given: math.NaN()}
	if j.Deadline > 0 {
		j.Due = at + j.Deadline
	}
	return j
}

func (e Event) same(o Event) bool {
	return e.Kind == o.Kind && e.Job == o.Job && e.Workers == o.Workers && e.Why == o.Why
}

func (q *Queue) apply(j *Job, e Event) error {
	member := slices.IndexFunc(j.Members, func(m *Member) bool { return m.ID == e.Member })
	if (e.Kind == KindLeave || e.Kind == KindGone) && member < 0 {
		return fmt.Errorf("job %s has no worker %d that could be %s", j.Name, e.Member, e.Kind)
	}
	switch e.Kind {
	case KindDecide:
		if j.given = math.NaN(); e.Workers > j.Want {
			j.given = e.At // it waits from now on, also for others to leave
		}
		j.Want, j.Why, j.gone = e.Workers, e.Why, ""
	case KindDecline:
		j.State, j.Why, j.Ended = Declined, e.Why, e.At
	case KindBegin:
		if j.Life == 0 {
			j.Begun = e.At
		}
		j.Life, j.Addr, j.State, j.from = e.Life, e.Addr, Running, j.Samples
		j.started, j.trains = e.At, false
		if !math.IsNaN(j.given) {
			j.started, j.given = max(j.given, j.again), math.NaN()
		}
	case KindAdd:
		j.members = max(j.members, e.Member)
		j.Members = append(j.Members, &Member{ID: e.Member, Host: e.Host, Rank: e.Rank, Replaces: e.Replaces, Added: e.At})
		if len(j.Members) == 1 {
			q.staff()
		}
		if !math.IsNaN(j.given) {
			if j.Members[len(j.Members)-1].Given = j.given; len(j.staying()) >= j.Want {
				j.given = math.NaN()
			}
		}
	case KindLeave:
		j.Members[member].Leaving = true
	case KindGone:
		m := j.Members[member]
		if j.Members = slices.Delete(j.Members, member, member+1); len(j.Members) == 0 {
			q.staff()
		}
		if e.Why != "" && j.Active() {
			j.gone = fmt.Sprintf("worker %d on %s has ended: %s", m.ID, m.Host, e.Why)
		}
		if h := q.host(m.Host); h != nil && !m.Leaving && j.State == Running && !j.finishing() { // it ended by itself
			h.Fails++
			h.Away = e.At + min(math.Pow(2, float64(h.Fails-1)), longestTry)
		}
	case KindStop:
		j.after, j.Why, j.gone = e.State, e.Why, ""
		if j.State == Running {
			j.State = Stopping
		} else if j.State == Waiting {
			q.end(j, e.State, e.At)
		}
		if e.State == Waiting {
			j.Stops++
		}
	case KindEnded:
		q.ended(j, e)
	case KindTook:
		q.learn(e.What, e.Took)
	case KindRates:
		j.Measured = e.Rates
		if q.policy != nil {
			q.policy.Rates(j.Name, j.levels(j.Curve()))
		}
	default:
		return fmt.Errorf("event %q: unknown kind", e.Kind)
	}
	return nil
}

// ended updates a job after its coordinator has ended.
func (q *Queue) ended(j *Job, e Event) {
	j.Samples = max(j.Samples, e.Samples)
	j.stable.workers = 0
	after := j.after
	j.after, j.gone = "", ""
	switch {
	case e.State == Done || e.State == Failed || e.State == Stopped:
		if e.Took > 0 {
			q.learn(tookEnd, e.Took)
		}
		j.Why = e.Why
		q.end(j, e.State, e.At)
	case after == Cancelled || after == Failed:
		q.end(j, after, e.At)
	case after == Waiting:
		j.State = Waiting
	default: // it ended by itself
		j.State = Waiting
		if j.fails++; j.Samples > j.from {
			j.fails = 1
		}
		j.again = e.At + min(math.Pow(2, float64(j.fails-1)), longestTry)
		if j.Why = "restarts: " + e.Why; j.fails >= mostFails {
			j.Why = fmt.Sprintf("%d lives in a row ended without progress; the last one: %s", j.fails, e.Why)
			q.end(j, Failed, e.At)
		}
	}
}

// staff updates the list of jobs that have workers.
func (q *Queue) staff() {
	q.staffed = q.staffed[:0]
	for _, j := range q.Jobs {
		if len(j.Members) > 0 {
			q.staffed = append(q.staffed, j)
		}
	}
}

// archive removes finished jobs from the queue.
func (q *Queue) archive(names []string) error {
	for _, name := range names {
		if j := q.byName[name]; j == nil || !j.over() {
			return fmt.Errorf("job %s leaves the queue, but is unknown or not over", name)
		}
		delete(q.byName, name)
	}
	q.Jobs = slices.DeleteFunc(q.Jobs, func(j *Job) bool { return q.byName[j.Name] != j })
	return nil
}

// Archival returns the event by which jobs that ended before a time leave the queue, the oldest first, at most the
// given number of them. ok is false if no job leaves.
func (q *Queue) Archival(before float64, most int, now float64) (e Event, ok bool) {
	e = Event{At: now, Kind: KindArchive}
	for _, j := range q.Jobs {
		if j.over() && j.Ended <= before && len(e.Jobs) < most {
			e.Jobs = append(e.Jobs, j.Name)
		}
	}
	return e, len(e.Jobs) > 0
}

// end ends a job.
func (q *Queue) end(j *Job, s State, at float64) {
	j.State, j.Ended, j.Want, j.after = s, at, 0, ""
	// decisions that could not be written before
	q.decided = slices.DeleteFunc(q.decided, func(e Event) bool { return e.Job == j.Name })
	if q.policy != nil {
		q.policy.End(j.Name)
	}
}
