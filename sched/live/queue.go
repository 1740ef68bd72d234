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

// Event is something that has happened, or that is decided and is to be done. What it means is Apply.
type Event struct {
	At       float64         `json:"at"` // s since the queue began
	Kind     string          `json:"event"`
	Job      string          `json:"job,omitempty"`
	Why      string          `json:"why,omitempty"`
	Spec     *Spec           `json:"spec,omitempty"`
	Workers  int             `json:"workers,omitempty"` // decide
	Life     int             `json:"life,omitempty"`    // begin
	Addr     string          `json:"addr,omitempty"`
	Member   int             `json:"member,omitempty"` // add, leave, gone
	Host     string          `json:"host,omitempty"`
	Rank     int             `json:"rank,omitempty"`
	Replaces int             `json:"replaces,omitempty"`
	State    State           `json:"state,omitempty"` // stop: what comes after it; ended: what the job said, else waiting
	Samples  int64           `json:"samples,omitempty"`
	Rates    map[int]float64 `json:"rates,omitempty"`
	What     string          `json:"what,omitempty"`   // took: start, resume or resize
	Took     float64         `json:"took_s,omitempty"` // took; ended, of a job that is done: since its last update
	Times    float64         `json:"times,omitempty"`  // slow: how many times as long its workers take
	Jobs     []string        `json:"jobs,omitempty"`   // archive: which
}

// The kinds of events.
const (
	KindSubmit  = "submit"  // a job has come
	KindDecide  = "decide"  // the policy gives it so many workers
	KindDecline = "decline" // or none, ever
	KindBegin   = "begin"   // its coordinator is started
	KindAdd     = "add"     // a worker is
	KindLeave   = "leave"   // a worker is told to leave
	KindGone    = "gone"    // a worker has ended
	KindStop    = "stop"    // the job is told to save itself and end
	KindEnded   = "ended"   // its coordinator has ended
	KindRates   = "rates"   // it is found to be so fast
	KindTook    = "took"    // what a start, a resume or a resize took
	KindSlow    = "slow"    // a host is
	KindWell    = "well"    // no more
	KindArchive = "archive" // jobs that have ended leave the queue
)

// Host is where workers run.
type Host struct {
	Name   string `json:"host"`
	Slots  int    `json:"-"` // workers at a time
	Closed string `json:"-"` // why the cluster that it is of gives it to nobody now, as a service has found: nothing is started there; empty: it does

	Slow  string  `json:"slow,omitempty"`  // why it is avoided; empty: it is not
	Times float64 `json:"times,omitempty"` // how many times as long its workers take then; 0: it was not written down
	Until float64 `json:"until"`           // it is avoided until then, s
	Away  float64 `json:"away"`            // workers that were started there ended by themselves: nothing is started until then, s
	Fails int     `json:"fails,omitempty"`
}

// Avoided is why nothing is started on a host, or rather on others; empty: it is as good as any.
func (h *Host) Avoided() string { return cmp.Or(h.Closed, h.Slow) }

// How long things are believed.
const (
	slowFor    = 600. // s for which a host is avoided whose workers were slow: nobody may be left there to say that it is well again
	longestTry = 60.  // s at most between two tries to start something that ends by itself
	mostFails  = 4    // lives in a row without progress, after which a job has failed
	measureFor = 5.   // s on the same workers, after which their rate is looked at
	measureOff = 0.15 // by which it must differ from what was thought
)

// Queue is all jobs and hosts. It is used by one goroutine.
type Queue struct {
	Hosts []*Host
	Jobs  []*Job // in order of submission

	Newest float64 // event, s

	// Past says whether a job of a name has left the queue. Nil: none has.
	Past func(name string) bool

	took    map[string][]float64 // s, the newest
	byName  map[string]*Job
	staffed []*Job // that have workers, in order of submission
	cache   cache
	policy  *sched.Live
	decided []Event // that are not applied yet
}

// cache is what follows from the rest of a Queue, as far as it was asked for since that has changed.
type cache struct {
	medians map[string]float64 // of what takes time
	at      float64            // for when taken is right, s; NaN: never
	taken   string             // which jobs have the places
}

// New is an empty queue.
func New(hosts []*Host) *Queue {
	return &Queue{Hosts: hosts, byName: map[string]*Job{}, took: map[string][]float64{}, cache: cache{medians: map[string]float64{}, at: math.NaN()}}
}

// Slots is how many workers there can be.
func (q *Queue) Slots() (n int) {
	for _, h := range q.Hosts {
		n += h.Slots
	}
	return n
}

// room is how many workers there can be now: on a host that is closed those that are there.
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

// Used is how many workers each host has.
func (q *Queue) Used() map[string]int {
	used := map[string]int{}
	for _, j := range q.staffed {
		for _, m := range j.Members {
			used[m.Host]++
		}
	}
	return used
}

// Job is a job by its name; nil: there is none.
func (q *Queue) Job(name string) *Job { return q.byName[name] }

func (q *Queue) host(name string) *Host {
	if i := slices.IndexFunc(q.Hosts, func(h *Host) bool { return h.Name == name }); i >= 0 {
		return q.Hosts[i]
	}
	return nil
}

// Schedule begins to decide, with what there is.
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
			q.decided = append(q.decided, Event{At: now, Kind: KindDecide, Job: r.ID, Workers: n, Why: fmt.Sprintf("the service has begun again, and under %s it has %d instead of %d", policy, n, r.GPUs)})
		}
	}
	return nil
}

// Scheduled says whether it decides.
func (q *Queue) Scheduled() bool { return q.policy != nil }

// Submission is the event of a job that comes.
func (q *Queue) Submission(s Spec, needs bool, now float64) (Event, error) {
	if err := s.Check(); err != nil {
		return Event{}, err
	}
	if j := q.byName[s.Name]; j != nil {
		return Event{}, fmt.Errorf("name %s: there is such a job already, %s: take another name", s.Name, j.State)
	}
	if needs && len(s.Rates) == 0 {
		for _, j := range q.Jobs { // the last one like it says how fast it is
			if (len(j.Measured) > 0 || j.Samples > 0) && alike(&j.Spec, &s) { // what it was said to be, and was, too
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

// alike says whether two jobs do the same.
func alike(a, b *Spec) bool {
	return slices.Equal(a.Command, b.Command) && maps.Equal(a.Settings, b.Settings)
}

// ErrNoJob says that no job of a name was submitted.
var ErrNoJob = errors.New("star sched status lists them")

// Cancellation is the event that ends a job. The error is an ErrNoJob if there is none of that name.
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

// Apply has an event happen. An error says that it cannot have: the queue's file is not one that this program wrote.
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
			return fmt.Errorf("job %s is submitted twice, or is none", e.Job)
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

// newJob is one that was submitted at a time.
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
			j.given = e.At // from now on it waits, also for others to leave
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
		if h := q.host(m.Host); h != nil && !m.Leaving && j.State == Running && !j.finishing() { // by itself
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
		return fmt.Errorf("event %q: this program knows none of that name", e.Kind)
	}
	return nil
}

// ended says what becomes of a job whose coordinator has ended.
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
	default: // by itself
		j.State = Waiting
		if j.fails++; j.Samples > j.from {
			j.fails = 1
		}
		j.again = e.At + min(math.Pow(2, float64(j.fails-1)), longestTry)
		if j.Why = "begins again: " + e.Why; j.fails >= mostFails {
			j.Why = fmt.Sprintf("%d lives in a row ended without progress; the last one: %s", j.fails, e.Why)
			q.end(j, Failed, e.At)
		}
	}
}

// staff finds the jobs that have workers.
func (q *Queue) staff() {
	q.staffed = q.staffed[:0]
	for _, j := range q.Jobs {
		if len(j.Members) > 0 {
			q.staffed = append(q.staffed, j)
		}
	}
}

// archive has jobs leave the queue that are over.
func (q *Queue) archive(names []string) error {
	for _, name := range names {
		if j := q.byName[name]; j == nil || !j.over() {
			return fmt.Errorf("job %s leaves the queue, and is not there or not over", name)
		}
		delete(q.byName, name)
	}
	q.Jobs = slices.DeleteFunc(q.Jobs, func(j *Job) bool { return q.byName[j.Name] != j })
	return nil
}

// Archival is the event by which jobs leave the queue that have ended before a time, the oldest of them, at most a number of them. False: no job does.
func (q *Queue) Archival(before float64, most int, now float64) (e Event, ok bool) {
	e = Event{At: now, Kind: KindArchive}
	for _, j := range q.Jobs {
		if j.over() && j.Ended <= before && len(e.Jobs) < most {
			e.Jobs = append(e.Jobs, j.Name)
		}
	}
	return e, len(e.Jobs) > 0
}

// end has a job be over.
func (q *Queue) end(j *Job, s State, at float64) {
	j.State, j.Ended, j.Want, j.after = s, at, 0, ""
	q.decided = slices.DeleteFunc(q.decided, func(e Event) bool { return e.Job == j.Name }) // which could not be written down before
	if q.policy != nil {
		q.policy.End(j.Name)
	}
}
