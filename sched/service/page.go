package service

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"star/coord/election"
	"star/internal/exitcode"
	"star/job"
	"star/observe/web"
	"star/runlog"
	"star/sched"
	"star/sched/live"
)

// Limits of what the page gets.
const (
	curve      = 300 // points of a curve
	mostListed = 500 // jobs per state
)

// view is a queue as the page shows it.
type view struct {
	Dir, Policy string
	Began       time.Time
	Now         float64 // s since Began
	Live        bool    // the service runs
	Wrong       string  // why the service cannot work

	why func(j *live.Job, now float64) string // explains a job's state; nil: the queue's
}

// schedules returns what the page shows.
func (v view) schedules(q *live.Queue, h *live.History) web.Schedules {
	s := web.Schedule{Policy: v.Policy, Place: "place", Parts: 1, Now: v.Now}
	outs := v.jobs(&s, q, h)
	v.bars(&s, q, h)
	use := sched.Use(outs, curve, v.Now)
	s.From, s.Length, s.Used, s.Waiting = use.From, use.Length, use.Used, use.Waiting
	if len(h.Stays) > 0 {
		s.From = min(s.From, h.Stays[0].From)
	}
	for _, e := range slices.Backward(h.Decided) {
		s.Decided = append(s.Decided, web.Decided{At: e.At, Job: e.Job, Says: e.Says()})
	}
	s.Headline, s.Bad = v.headline(&s, q)
	return web.Schedules{Title: v.Dir, Live: v.Live, Began: &v.Began, Schedules: []web.Schedule{s}}
}

// jobs fills in the jobs, and returns how many places each had, and when.
func (v view) jobs(s *web.Schedule, q *live.Queue, h *live.History) (outs []sched.Outcome) {
	unknown := runlog.Number(math.NaN())
	known := func(x float64, is bool) runlog.Number {
		if !is {
			return unknown
		}
		return runlog.Number(x)
	}
	var over []web.ScheduleJob
	why := v.why
	if why == nil {
		why = q.Why
	}
	for _, j := range q.Jobs {
		end := v.Now
		if !j.Active() {
			end = j.Ended
		}
		steps := h.Steps(j.Name)
		x := web.ScheduleJob{Job: j.Name, State: string(j.State), Has: float64(len(j.Members)), Want: float64(j.Want), Done: runlog.Number(float64(j.Samples) / float64(j.Spec.Samples)), Submitted: j.Submitted,
			Begun: known(j.Begun, j.Life > 0), Ended: known(j.Ended, !j.Active()), Deadline: known(j.Due, !math.IsInf(j.Due, 1)), Waited: Waited(steps, j.Submitted, end), Stops: j.Stops, Hosts: j.Hosts(), Why: why(j, v.Now)}
		if !j.Active() && j.State != live.Cancelled && j.State != live.Stopped && !math.IsInf(j.Due, 1) {
			if s.Due++; j.Met() {
				s.Met++
			}
		}
		o := sched.Outcome{Job: &sched.Job{ID: j.Name, Submit: j.Submitted, Deadline: j.Due}, Start: math.NaN(), End: math.Inf(1), Steps: steps}
		switch j.State {
		case live.Running, live.Stopping:
			s.Running.Add(x, mostListed)
		case live.Waiting:
			s.Queue.Add(x, mostListed)
		default:
			over = append(over, x)
			if o.End = j.Ended; len(steps) > 0 {
				o.End = min(o.End, steps[len(steps)-1].At) // workers end before the coordinator does
			} else if j.State != live.Done {
				o.Why = j.Why
			}
		}
		outs = append(outs, o)
	}
	// the newest first
	slices.SortStableFunc(over, func(a, b web.ScheduleJob) int { return cmp.Compare(float64(b.Ended), float64(a.Ended)) })
	for _, x := range over {
		if x.State == string(live.Done) {
			s.Ended.Add(x, mostListed)
		} else {
			s.Refused.Add(x, mostListed)
		}
	}
	return outs
}

// Waited returns how long a job had no places between two times, s.
func Waited(steps []sched.Step, from, to float64) (sum float64) {
	had := 0.
	for _, s := range steps {
		if had == 0 {
			sum += max(0, min(s.At, to)-from)
		}
		from, had = s.At, s.GPUs
	}
	if had == 0 {
		sum += max(0, to-from)
	}
	return sum
}

// bars fills in the hosts, and the jobs on their places.
func (v view) bars(s *web.Schedule, q *live.Queue, h *live.History) {
	first, places := map[string]int{}, map[string]int{}
	for _, host := range q.Hosts {
		places[host.Name] = host.Slots
	}
	names := map[string]int{}
	var gone []string // hosts that the service no longer has
	for _, y := range h.Stays {
		if _, ok := places[y.Host]; !ok {
			gone = append(gone, y.Host)
		}
		places[y.Host] = max(places[y.Host], y.Place+1)
	}
	used := q.Used()
	add := func(name, slow string) {
		first[name] = s.Rows
		s.Rows += places[name]
		s.Hosts = append(s.Hosts, web.ScheduleHost{Host: name, Places: places[name], Workers: used[name], Slow: slow})
	}
	for _, host := range q.Hosts {
		add(host.Name, host.Avoided())
	}
	for _, name := range gone {
		why := ""
		if v.Live { // else the current hosts are unknown
			why = "no longer a host of the service"
		}
		add(name, why)
	}
	for _, y := range h.Stays {
		k, ok := names[y.Job]
		if !ok {
			k = len(s.Names)
			names[y.Job], s.Names = k, append(s.Names, y.Job)
		}
		to := math.Round(100*y.To) / 100
		if math.IsInf(to, 1) {
			to = -1
		}
		s.Bars = append(s.Bars, web.Bar{float64(k), float64(first[y.Host] + y.Place), 1, math.Round(100*y.From) / 100, to})
	}
}

// headline returns the most important facts in a sentence.
func (v view) headline(s *web.Schedule, q *live.Queue) (text string, bad bool) {
	if v.Wrong != "" {
		return v.Wrong, true
	}
	for _, h := range q.Hosts {
		if why := h.Avoided(); why != "" {
			text, bad = fmt.Sprintf("Host %s is avoided: %s. ", h.Name, why), true
			break
		}
	}
	text += fmt.Sprintf("%s, %s.", count(s.Running.Count, "job runs", "jobs run"), count(s.Queue.Count, "waits", "wait"))
	if len(s.Queue.Jobs) > 0 {
		j := s.Queue.Jobs[0]
		text += fmt.Sprintf(" %s waits for %s", j.Job, time.Duration(j.Waited*float64(time.Second)).Round(time.Second))
		if j.Why != "" {
			text += ": " + j.Why
		}
		text += "."
	}
	return text, bad
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// show updates the page, if it has viewers and was not updated a moment ago.
func (s *Service) show() {
	if s.o.Page == nil || time.Since(s.shown) < web.Step {
		return
	}
	s.shown = time.Now()
	s.o.Page.Show(s.View())
}

// View returns the queue as the page shows it.
func (s *Service) View() web.Schedules {
	return view{Dir: s.o.Dir, Policy: s.o.Policy, Began: s.began, Now: s.now(), Live: true, Wrong: cmp.Or(s.stuck, s.full), why: s.why}.schedules(s.q, s.history)
}

// Read reads the queue of a folder, whether or not a service uses it. For one of several services it returns what that
// one knows, which may be less than the others know. The error is fs.ErrNotExist if it is no such folder.
func Read(dir string) (web.Schedules, error) {
	name := filepath.Join(dir, queueName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return readPeers(dir)
	} else if err != nil {
		return web.Schedules{}, job.FileError(err, errQueue)
	}
	h, events, _, err := parseQueue(name, text)
	if err != nil {
		return web.Schedules{}, err
	}
	q, history, err := h.queue(name, nil)
	if err != nil {
		return web.Schedules{}, err
	}
	return view{Dir: dir, Began: h.Time}.after(q, history, events, func(i int) string { return fmt.Sprintf("%s:%d", name, i+2) })
}

// readPeers is Read for the folder of one of several services.
func readPeers(dir string) (web.Schedules, error) {
	note, added, err := election.ReadDir(filepath.Join(dir, peersDir))
	if err != nil {
		return web.Schedules{}, err
	}
	if note == nil {
		return web.Schedules{}, coded{fmt.Errorf("%s: no queue yet: the services have not agreed on one", dir), exitcode.Missing}
	}
	b := new(agreedBook)
	q, h, events, err := b.read(dir, note, added)
	if err != nil {
		return web.Schedules{}, err
	}
	return view{Dir: dir, Began: b.head.Time}.after(q, h, events, func(i int) string { return fmt.Sprintf("%s: event %d", dir, i) })
}

// after returns the queue as the page shows it after more events; where names an event that cannot have happened.
func (v view) after(q *live.Queue, h *live.History, events []live.Event, where func(int) string) (web.Schedules, error) {
	for i, e := range events {
		if err := q.Apply(e); err != nil {
			return web.Schedules{}, coded{fmt.Errorf("%s: %w: %w", where(i), errQueue, err), exitcode.Corrupt}
		}
		h.Add(e)
	}
	v.Now = q.Newest
	return v.schedules(q, h), nil
}
