package live

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"star/sched"
)

// Next returns the next action. Until it is applied, Next returns the same one. ok is false if there is nothing to do.
func (q *Queue) Next(now float64) (e Event, ok bool) {
	for _, h := range q.Hosts {
		why, times := q.slow(h)
		if h.Slow != "" && h.Until > now && times <= h.times()*sched.Notably {
			continue
		}
		if why != "" { // also for a worker that was found to be slow while no service ran
			return Event{At: now, Kind: KindSlow, Host: h.Name, Why: why, Times: times}, true
		} else if h.Slow != "" {
			return Event{At: now, Kind: KindWell, Host: h.Name, Why: "no worker has been slow there for a while"}, true
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
	for _, next := range []func(*Job, float64) (Event, bool){q.take, q.give} { // places are released before they are given
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

// Decided returns the decisions that Next would return one after the other.
func (q *Queue) Decided() []Event { return slices.Clone(q.decided) }

// Waits says why a job has no workers; empty if a decision is pending, or the job does not wait.
func (q *Queue) Waits(j *Job, now float64) string {
	if j.State != Waiting || q.policy == nil {
		return ""
	}
	if j.Want > 0 {
		if j.Life > 0 || j.again > now { // the reason of its stop is shown instead
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

// taken says which jobs have the places that others wait for, and when that may change.
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
		has = append(has, fmt.Sprintf("%d more jobs have the rest", others))
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

// Why explains a job's state in a sentence; empty if there is nothing to say.
func (q *Queue) Why(j *Job, now float64) string {
	ms := j.staying()
	// explains why the job has fewer workers than the policy gives it
	if j.gone != "" && (len(ms) < j.Want || slices.ContainsFunc(ms, func(m *Member) bool { return !m.Joined })) {
		return j.gone
	}
	return cmp.Or(q.Waits(j, now), strings.TrimSpace(j.Why))
}

// words translates what policies say into a service's words.
var words = strings.NewReplacer("GPUs", "workers", "GPU", "worker", "the cluster has", "there is room for")

// take returns what a job gives up next.
func (q *Queue) take(j *Job, now float64) (e Event, ok bool) {
	if j.State != Running {
		return e, false
	}
	ms := j.staying()
	closed := func(m *Member) bool { // no other worker could use its place, so it continues
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
	moving := func(m *Member) bool { // it replaces one that still runs
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
	slices.SortStableFunc(ms, func(a, b *Member) int { // slow workers first, then the newest; replacements last
		return cmp.Or(order(!moving(a), !moving(b)), cmp.Compare(q.times(b.Host), q.times(a.Host)), order(!a.Joined, !b.Joined), cmp.Compare(b.ID, a.ID))
	})
	return Event{Kind: KindLeave, Member: ms[0].ID}, true
}

// order sorts true before false.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// times returns the slowdown factor of a host's workers; 1 if it is not avoided.
func (h *Host) times() float64 {
	if h.Slow == "" {
		return 1
	}
	return max(h.Times, sched.Notably)
}

// times returns the slowdown factor of a host, +Inf if the service no longer has the host.
func (q *Queue) times(host string) float64 {
	if h := q.host(host); h != nil {
		return h.times()
	}
	return math.Inf(1)
}

// better reports whether a worker should move to h from an avoided host: h is not avoided, or its slowdown is smaller
// by a factor of sched.Notably.
func (q *Queue) better(h *Host, than string) bool {
	times := q.times(than)
	return times > 1 && (h.Slow == "" || times > h.times()*sched.Notably)
}

// give returns what a job gets next.
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
			e.Replaces, e.Why = m.ID, fmt.Sprintf("%s is no longer a host of the service, and %s has room", m.Host, h.Name)
			if was := q.host(m.Host); was != nil {
				e.Why = fmt.Sprintf("%s is slow (%s), and %s has room", m.Host, was.Slow, h.Name)
			}
			if h.Slow != "" {
				e.Why += ", which is less slow"
			}
			return e, true
		}
	}
	return e, false
}

// Ranks returns how many ranks a job has: one more than workers, for a replacement that overlaps with its predecessor.
func (j *Job) Ranks() int { return max(j.Max, j.Spec.Workers) + 1 }

// rank returns the lowest free rank, or -1.
func (j *Job) rank() int {
	for r := range j.Ranks() {
		if !slices.ContainsFunc(j.Members, func(m *Member) bool { return m.Rank == r }) {
			return r
		}
	}
	return -1
}

// place returns the best host that has room: the least slow one, then the one with the most workers of the job, then
// the one with the least room. It returns nil if none has room.
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
