package live

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

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
)

// Host is where workers run.
type Host struct {
	Name  string  `json:"host"`
	Slots int     `json:"-"`              // workers at a time
	Slow  string  `json:"slow,omitempty"` // why it is avoided; empty: it is not
	Until float64 `json:"until"`          // it is avoided until then, s
	Away  float64 `json:"away"`           // workers that were started there ended by themselves: nothing is started until then, s
	Fails int     `json:"fails,omitempty"`
}

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

	took    map[string][]float64 // s, the newest
	byName  map[string]*Job
	policy  *sched.Live
	decided []Event // that are not applied yet
}

// New is an empty queue.
func New(hosts []*Host) *Queue {
	return &Queue{Hosts: hosts, byName: map[string]*Job{}, took: map[string][]float64{}}
}

// Slots is how many workers there can be.
func (q *Queue) Slots() (n int) {
	for _, h := range q.Hosts {
		n += h.Slots
	}
	return n
}

// Used is how many workers each host has.
func (q *Queue) Used() map[string]int {
	used := map[string]int{}
	for _, j := range q.Jobs {
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
			if len(j.Measured) > 0 && alike(&j.Spec, &s) {
				s.Rates = j.Measured
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

// Cancellation is the event that ends a job.
func (q *Queue) Cancellation(name string, now float64) (Event, error) {
	j := q.byName[name]
	switch {
	case j == nil:
		return Event{}, fmt.Errorf("there is no job %s", name)
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
	q.Newest = e.At
	switch e.Kind {
	case KindSlow, KindWell:
		if h := q.host(e.Host); h != nil {
			h.Slow, h.Until = "", e.At+slowFor
			if e.Kind == KindSlow {
				h.Slow = e.Why
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
		j.Want, j.Why = e.Workers, e.Why
	case KindDecline:
		j.State, j.Why, j.Ended = Declined, e.Why, e.At
	case KindBegin:
		if j.Life == 0 {
			j.Begun = e.At
		}
		j.Life, j.Addr, j.State, j.from = e.Life, e.Addr, Running, j.Samples
		j.started, j.trains = e.At, false
		if !math.IsNaN(j.given) {
			j.started, j.given = j.given, math.NaN()
		}
	case KindAdd:
		j.members = max(j.members, e.Member)
		j.Members = append(j.Members, &Member{ID: e.Member, Host: e.Host, Rank: e.Rank, Replaces: e.Replaces, Added: e.At})
		if !math.IsNaN(j.given) {
			if j.Members[len(j.Members)-1].Added = j.given; len(j.staying()) >= j.Want {
				j.given = math.NaN()
			}
		}
	case KindLeave:
		j.Members[member].Leaving = true
	case KindGone:
		m := j.Members[member]
		j.Members = slices.Delete(j.Members, member, member+1)
		if e.Why != "" && j.Active() { // who asks why the job has fewer than the policy gives it
			j.Why = fmt.Sprintf("worker %d on %s has ended: %s", m.ID, m.Host, e.Why)
		}
		if h := q.host(m.Host); h != nil && !m.Leaving && j.State == Running && !j.finishing() { // by itself
			h.Fails++
			h.Away = e.At + min(math.Pow(2, float64(h.Fails-1)), longestTry)
		}
	case KindStop:
		j.after, j.Why = e.State, e.Why
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
	j.after = ""
	switch {
	case e.State == Done || e.State == Failed:
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
		if j.Why = e.Why; j.fails >= mostFails {
			j.Why = fmt.Sprintf("%d lives in a row ended without progress; the last one: %s", j.fails, e.Why)
			q.end(j, Failed, e.At)
		}
	}
}

// end has a job be over.
func (q *Queue) end(j *Job, s State, at float64) {
	j.State, j.Ended, j.Want, j.after = s, at, 0, ""
	if q.policy != nil {
		q.policy.End(j.Name)
	}
}

// Joined tells that a worker of a rank takes part in a job since a time that the job's log gives, and returns what is learned from that: an event, if its kind is not empty.
func (q *Queue) Joined(j *Job, rank int, at, now float64) (e Event) {
	for _, m := range j.Members {
		if m.Rank == rank && !m.Leaving {
			if !m.Joined && !m.left && j.trains {
				e = Event{At: now, Kind: KindTook, Job: j.Name, What: tookResize, Took: since(m.Added, at, now)}
			}
			m.Joined, m.left, m.slow = true, false, ""
		}
	}
	return e
}

// Left tells that a job goes on without the worker of a rank, whose process may be there still: its host is gone, or it stands still.
func (q *Queue) Left(j *Job, rank int) {
	for _, m := range j.Members {
		if m.Rank == rank && m.Joined {
			m.Joined, m.left, m.slow = false, true, ""
		}
	}
}

// longestStart is how long a worker may take to take part in its job, s: longer than an image takes to come, and than a worker looks for its coordinator.
const longestStart = 600.

// Lost says why a worker that was not told to leave is not to be waited for any more, unless it comes back soon; empty: it is.
func (q *Queue) Lost(j *Job, m *Member, now float64) string {
	switch {
	case j.State != Running || m.Leaving || m.Joined:
	case m.left:
		return "the job has gone on without it, and it has not come back: its host does not answer, or it stands still"
	case now-m.Added > longestStart:
		return fmt.Sprintf("it has not taken part for %g min", longestStart/60)
	}
	return ""
}

// since is how long it was from a time of the queue until one that a job's log gives: a log is read up to a second late, and its clock may be another machine's. All in s.
func since(from, at, now float64) float64 { return max(0, min(at, now)-from) }

// Started tells that a job makes progress: when the first and the last of the updates were that its log has more. It returns what is learned from that: an event, if its kind
// is not empty.
func (q *Queue) Started(j *Job, first, last, now float64) (e Event) {
	if j.progress = min(last, now); j.trains || j.State != Running {
		return e
	}
	j.trains = true
	what := tookStart
	if j.Life > 1 {
		what = tookResume
	}
	return Event{At: now, Kind: KindTook, Job: j.Name, What: what, Took: since(j.started, first, now)}
}

// Seen tells how far a job had come at a time of its own clock, s, and returns what is learned of its speed from that: an event, if its kind is not empty.
func (q *Queue) Seen(j *Job, samples int64, at, now float64) (e Event) {
	if samples != j.Samples { // fewer: a new life goes on from a checkpoint
		j.Samples = samples
		for _, m := range j.Members { // its hosts work
			if h := q.host(m.Host); h != nil && m.Joined {
				h.Fails = 0
			}
		}
	}
	joined := 0
	for _, m := range j.Members {
		if m.Joined && !m.Leaving {
			joined++
		}
	}
	s := &j.stable
	if joined != s.workers || len(j.Members) != joined || j.State != Running || j.finishing() {
		s.workers, s.at, s.samples = joined, at, samples
		return e
	}
	if at-s.at < measureFor || !power(joined) || samples <= s.samples {
		return e
	}
	rate := float64(samples-s.samples) / (at - s.at)
	s.at, s.samples = at, samples
	if thought := sched.Speed(j.Curve(), joined); math.Abs(rate/thought-1) < measureOff {
		return e
	}
	e = Event{At: now, Kind: KindRates, Job: j.Name, Rates: map[int]float64{joined: math.Round(rate*10) / 10}}
	for n, r := range j.Measured {
		if n != joined {
			e.Rates[n] = r
		}
	}
	return e
}

// Verdict tells why a worker's host is to be avoided since a time that the job's log gives; empty: that is taken back, or it is no reason. It returns what follows from a
// reason that is taken back: an event, if its kind is not empty. What follows from the others is in Next.
func (q *Queue) Verdict(j *Job, rank int, why string, at, now float64) (e Event) {
	i := slices.IndexFunc(j.Members, func(m *Member) bool { return m.Rank == rank && min(at, now) >= m.Added }) // not of one that had the rank before
	if i < 0 {
		return e
	}
	m := j.Members[i]
	was := m.slow
	if m.slow = ""; why != "" {
		m.slow = fmt.Sprintf("worker %d of %s: %s", rank, j.Name, why)
	} else if h := q.host(m.Host); was != "" && h != nil && h.Slow != "" && q.slow(h) == "" {
		return Event{At: now, Kind: KindWell, Host: h.Name}
	}
	return e
}

// slow is why a host is to be avoided, of the workers that are there; empty: none of them is slow.
func (q *Queue) slow(h *Host) string {
	for _, j := range q.Jobs {
		for _, m := range j.Members {
			if m.Host == h.Name && m.slow != "" {
				return m.slow
			}
		}
	}
	return ""
}

// Next is the next thing to do. Until it is applied, the same is asked for; false: there is nothing.
func (q *Queue) Next(now float64) (e Event, ok bool) {
	for _, h := range q.Hosts {
		if h.Slow != "" && h.Until > now {
			continue
		}
		if why := q.slow(h); why != "" { // also of a worker that was found to be slow while no service was there
			return Event{At: now, Kind: KindSlow, Host: h.Name, Why: why}, true
		} else if h.Slow != "" {
			return Event{At: now, Kind: KindWell, Host: h.Name, Why: "nobody has been there to be slow for a while"}, true
		}
	}
	if len(q.decided) == 0 && q.policy.Wake() <= now {
		for _, j := range q.Jobs {
			if j.Active() {
				q.policy.Set(j.Name, float64(j.Spec.Samples-j.Samples), q.lag(j, now))
			}
		}
		q.policy.Lags(q.Took(tookResize))
		for _, d := range q.policy.Decide(now) {
			e := Event{At: now, Kind: KindDecide, Job: d.Job, Workers: d.GPUs, Why: words.Replace(d.Why)}
			if d.Declined {
				e.Kind = KindDecline
			}
			q.decided = append(q.decided, e)
		}
	}
	if len(q.decided) > 0 {
		return q.decided[0], true
	}
	for _, next := range []func(*Job, float64) (Event, bool){q.take, q.give} { // places are given up before they are taken
		for _, j := range q.Jobs {
			if !j.Active() || j.finishing() && j.State != Waiting {
				continue
			}
			if e, ok = next(j, now); ok {
				e.At, e.Job = now, j.Name
				return e, true
			}
		}
	}
	return e, false
}

// Waits says why a job has nothing that nobody has decided about yet; empty: something is decided, or it does not wait.
func (q *Queue) Waits(j *Job, now float64) string {
	if j.State != Waiting || q.policy == nil {
		return ""
	}
	if j.Want > 0 {
		if j.Life > 0 || j.again > now { // why it has stopped is said
			return ""
		}
		return "the places that the policy has given it are not free yet"
	}
	if j.Why != "" {
		return ""
	}
	var has []string
	free := q.Slots()
	for _, o := range q.Jobs {
		if o.Want > 0 {
			free -= o.Want
			has = append(has, fmt.Sprintf("%s has %d", o.Name, o.Want))
		}
	}
	const most = 3
	if len(has) > most {
		has = append(has[:most], fmt.Sprintf("%d more jobs the rest", len(has)-most))
	}
	text := fmt.Sprintf("%d of %d places are free", max(free, 0), q.Slots())
	if len(has) > 0 {
		text += ", " + strings.Join(has, ", ")
	}
	if in := q.policy.Wake() - now; in > 0 && !math.IsInf(in, 1) {
		text += fmt.Sprintf("; the policy decides in %.0f s", math.Ceil(in))
	}
	return text
}

// Why is why a job is as it is, in a sentence; empty: nothing is to be said.
func (q *Queue) Why(j *Job, now float64) string {
	return cmp.Or(q.Waits(j, now), strings.TrimSpace(j.Why))
}

// words is what policies say in a service's words.
var words = strings.NewReplacer("GPUs", "workers", "GPU", "worker", "the cluster has", "there is room for")

// take is what a job gives up next.
func (q *Queue) take(j *Job, now float64) (e Event, ok bool) {
	if j.State != Running {
		return e, false
	}
	if j.Want == 0 {
		return Event{Kind: KindStop, State: Waiting, Why: j.Why}, true
	}
	ms := j.staying()
	for _, m := range ms {
		if m.Replaces > 0 && m.Joined {
			if i := slices.IndexFunc(ms, func(o *Member) bool { return o.ID == m.Replaces }); i >= 0 {
				return Event{Kind: KindLeave, Member: m.Replaces, Why: fmt.Sprintf("worker %d on %s has taken its place", m.ID, m.Host)}, true
			}
		}
	}
	moving := func(m *Member) bool { // into the place of one that is still there
		return m.Replaces > 0 && slices.ContainsFunc(ms, func(o *Member) bool { return o.ID == m.Replaces })
	}
	spare := len(ms) - j.Want
	for _, m := range ms {
		if moving(m) {
			spare--
		}
	}
	if spare <= 0 {
		return e, false
	}
	slices.SortStableFunc(ms, func(a, b *Member) int { // slow ones first, then the last that have come; those who take a place over last
		return cmp.Or(order(!moving(a), !moving(b)), order(q.avoid(a.Host), q.avoid(b.Host)), order(!a.Joined, !b.Joined), cmp.Compare(b.ID, a.ID))
	})
	return Event{Kind: KindLeave, Member: ms[0].ID}, true
}

// order puts what is true first.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (q *Queue) avoid(host string) bool {
	h := q.host(host)
	return h == nil || h.Slow != ""
}

// give is what a job gets next.
func (q *Queue) give(j *Job, now float64) (e Event, ok bool) {
	if j.Want == 0 || j.State == Stopping {
		return e, false
	}
	if j.State == Waiting {
		if h := q.place(j, now); h == nil || j.again > now || len(j.Members) > 0 {
			return e, false
		}
		return Event{Kind: KindBegin, Life: j.Life + 1}, true
	}
	ms := j.staying()
	h := q.place(j, now)
	if h == nil {
		return e, false
	}
	e = Event{Kind: KindAdd, Member: j.members + 1, Host: h.Name, Rank: j.rank()}
	if len(ms) < j.Want {
		return e, e.Rank >= 0
	}
	if h.Slow != "" || e.Rank < 0 || slices.ContainsFunc(ms, func(m *Member) bool { return m.Replaces > 0 && !m.Joined }) {
		return e, false
	}
	for _, m := range ms {
		if q.avoid(m.Host) && m.Joined {
			e.Replaces, e.Why = m.ID, fmt.Sprintf("%s is slow (%s), and %s has room", m.Host, q.host(m.Host).Slow, h.Name)
			return e, true
		}
	}
	return e, false
}

// Ranks is how many ranks a job has: one more than workers, for one that takes the place of another.
func (j *Job) Ranks() int { return max(j.Max, j.Spec.Workers) + 1 }

// rank is the lowest that nobody has; -1: there is none.
func (j *Job) rank() int {
	for r := range j.Ranks() {
		if !slices.ContainsFunc(j.Members, func(m *Member) bool { return m.Rank == r }) {
			return r
		}
	}
	return -1
}

// place is the best host that has room: one that is not slow, on which the job has most workers already, with the least room. Nil: there is none.
func (q *Queue) place(j *Job, now float64) (best *Host) {
	used, own := q.Used(), map[string]int{}
	for _, m := range j.Members {
		own[m.Host]++
	}
	for _, h := range q.Hosts {
		if used[h.Name] >= h.Slots || h.Away > now {
			continue
		}
		if best == nil || cmp.Or(order(h.Slow == "", best.Slow == ""), cmp.Compare(own[best.Name], own[h.Name]), cmp.Compare(h.Slots-used[h.Name], best.Slots-used[best.Name])) < 0 {
			best = h
		}
	}
	return best
}
