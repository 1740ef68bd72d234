package live

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"star/sched"
)

// Next is the next thing to do. Until it is applied, the same is asked for; false: there is nothing.
func (q *Queue) Next(now float64) (e Event, ok bool) {
	for _, h := range q.Hosts {
		why, times := q.slow(h)
		if h.Slow != "" && h.Until > now && times <= h.times()*sched.Notably {
			continue
		}
		if why != "" { // also of a worker that was found to be slow while no service was there
			return Event{At: now, Kind: KindSlow, Host: h.Name, Why: why, Times: times}, true
		} else if h.Slow != "" {
			return Event{At: now, Kind: KindWell, Host: h.Name, Why: "nobody has been there to be slow for a while"}, true
		}
	}
	q.policy.Room(q.room())
	if len(q.decided) == 0 && q.policy.Wake() <= now {
		for _, j := range q.Jobs {
			if j.Active() {
				q.policy.Set(j.Name, q.left(j, now), q.lag(j, now))
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

// Decided are the decisions that Next would give one after the other.
func (q *Queue) Decided() []Event { return slices.Clone(q.decided) }

// Waits says why a job has nothing that nobody has decided about yet; empty: something is decided, or it does not wait.
func (q *Queue) Waits(j *Job, now float64) string {
	if j.State != Waiting || q.policy == nil {
		return ""
	}
	if j.Want > 0 {
		if j.Life > 0 || j.again > now { // why it has stopped is said
			return ""
		}
		why := "the places that the policy has given it are not free yet"
		for _, h := range q.Hosts {
			if h.Closed != "" {
				why += fmt.Sprintf("; nothing is started on %s: %s", h.Name, h.Closed)
				break
			}
		}
		return why
	}
	if j.Why != "" {
		return ""
	}
	if q.cache.at != now {
		q.cache.at, q.cache.taken = now, q.taken(now)
	}
	return q.cache.taken
}

// taken is which jobs have the places that others wait for, and when that may change.
func (q *Queue) taken(now float64) string {
	var has []string
	free, others := q.room(), 0
	const most = 3
	for _, o := range q.Jobs {
		if o.Want == 0 {
			continue
		}
		if free -= o.Want; len(has) < most {
			has = append(has, fmt.Sprintf("%s has %d", o.Name, o.Want))
		} else {
			others++
		}
	}
	if others > 0 {
		has = append(has, fmt.Sprintf("%d more jobs the rest", others))
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
	ms := j.staying()
	if j.gone != "" && (len(ms) < j.Want || slices.ContainsFunc(ms, func(m *Member) bool { return !m.Joined })) { // who asks why the job has fewer than the policy gives it
		return j.gone
	}
	return cmp.Or(q.Waits(j, now), strings.TrimSpace(j.Why))
}

// words is what policies say in a service's words.
var words = strings.NewReplacer("GPUs", "workers", "GPU", "worker", "the cluster has", "there is room for")

// take is what a job gives up next.
func (q *Queue) take(j *Job, now float64) (e Event, ok bool) {
	if j.State != Running {
		return e, false
	}
	ms := j.staying()
	closed := func(m *Member) bool { // nobody else could have its place: it goes on
		h := q.host(m.Host)
		return h != nil && h.Closed != ""
	}
	if j.Want == 0 && !slices.ContainsFunc(ms, closed) {
		return Event{Kind: KindStop, State: Waiting, Why: j.Why}, true
	}
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
	if ms = slices.DeleteFunc(ms, closed); spare <= 0 || len(ms) == 0 {
		return e, false
	}
	slices.SortStableFunc(ms, func(a, b *Member) int { // slow ones first, then the last that have come; those who take a place over last
		return cmp.Or(order(!moving(a), !moving(b)), cmp.Compare(q.times(b.Host), q.times(a.Host)), order(!a.Joined, !b.Joined), cmp.Compare(b.ID, a.ID))
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

// times is how many times as long workers of a host take; 1: it is not avoided.
func (h *Host) times() float64 {
	if h.Slow == "" {
		return 1
	}
	return max(h.Times, sched.Notably)
}

// times is that of a host, which the service may have no more.
func (q *Queue) times(host string) float64 {
	if h := q.host(host); h != nil {
		return h.times()
	}
	return math.Inf(1)
}

// better says whether a worker is better on a host than on another one that is avoided: the host is not, or is less slow by so much that a worker would be avoided for it.
func (q *Queue) better(h *Host, than string) bool {
	times := q.times(than)
	return times > 1 && (h.Slow == "" || times > h.times()*sched.Notably)
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
	if e.Rank < 0 || slices.ContainsFunc(ms, func(m *Member) bool { return m.Replaces > 0 && !m.Joined }) {
		return e, false
	}
	for _, m := range ms {
		if m.Joined && q.better(h, m.Host) {
			e.Replaces, e.Why = m.ID, fmt.Sprintf("%s is none of the service's hosts any more, and %s has room", m.Host, h.Name)
			if was := q.host(m.Host); was != nil {
				e.Why = fmt.Sprintf("%s is slow (%s), and %s has room", m.Host, was.Slow, h.Name)
			}
			if h.Slow != "" {
				e.Why += ", which is less so"
			}
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

// place is the best host that has room: the least slow, on which the job has most workers already, with the least room. Nil: there is none.
func (q *Queue) place(j *Job, now float64) (best *Host) {
	used, own := q.Used(), map[string]int{}
	for _, m := range j.Members {
		own[m.Host]++
	}
	for _, h := range q.Hosts {
		if used[h.Name] >= h.Slots || h.Away > now || h.Closed != "" {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(h.times(), best.times()), cmp.Compare(own[best.Name], own[h.Name]), cmp.Compare(h.Slots-used[h.Name], best.Slots-used[best.Name])) < 0 {
			best = h
		}
	}
	return best
}
