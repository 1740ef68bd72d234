package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"star"
	"star/modes"
	"star/runlog"
	"star/straggler"
)

// State is a job as its page shows it, built from the lines of its run log. Its memory does not
// depend on the length of the job: series have a fixed number of intervals, which become longer as
// the job does. It is used by one goroutine.
type State struct {
	// Tell, if it is not nil, is called with each event when the line that says so is processed.
	Tell func(Event)

	start     runlog.Start
	ring      bool
	watched   bool // the job is not STAR's: it has no known end and no checkpoints
	train     *runlog.Train
	end       *runlog.Result
	now       time.Duration
	began     time.Duration
	samples   int64
	updates   int64
	workers   []worker
	modes     []mode
	episodes  []episode
	open      map[star.Worker]int // index in episodes
	own       bool                // verdicts are the job's own, as with mode auto, else of detector
	detector  *straggler.Detector
	step      int        // samples of a step of the last record
	slowdowns []slowdown // times in which all workers were slower than before; the last may be open
	evals     []eval
	saves     []checkpoint
	copies    map[int]runlog.Replica
	happened  []event
	term      int64
	rate      series // samples applied
	loss      series // sum of losses, number of samples
	noise     series
	spent     series // of each worker two columns: its own time, its waits for others
	wrong     string // why the log cannot be read any further
	missing   runlog.Missing
	hang      string // which ranks wait for which, while the job hangs
	counted   counted
}

type worker struct {
	peer                      string
	never, left               bool
	step                      int64
	load, compute, net, waits average
	wait                      time.Duration // all of it
}

// average is a mean that forgets: exponential, of about the last ten.
type average struct {
	value float64
	known bool
}

func (a *average) add(d time.Duration) {
	if !a.known {
		a.value, a.known = d.Seconds(), true
		return
	}
	a.value += 0.2 * (d.Seconds() - a.value)
}

type mode struct {
	at              time.Duration
	plan, why       string
	predicted, seen float64
	reverted        bool
}

type episode struct {
	worker        star.Worker
	since, until  time.Duration // until below 0: it is slow now
	step          int64         // of it, at which it began
	factor        runlog.Factor
	slowdown      float64 // factor's
	cause, says   string
	waited, whole time.Duration // by all others, since; of everything that they did
}

type slowdown struct {
	since, until time.Duration // until below 0: it is so now
	factor       runlog.Factor
	hosts        []string
	part, cause  string
	says         string
}

type eval struct {
	at             time.Duration
	version        int64
	loss, accuracy float64
}

type checkpoint struct {
	at      time.Duration
	id, err string
	version int64
}

type event struct {
	at   time.Duration
	says string
}

// What is kept of things that may happen any number of times.
const (
	stretches   = 400 // of time
	mostEvents  = 200
	mostShown   = 64 // workers
	mostChanges = 200
)

// together is how long iterations last that are judged as one: a job of short ones would be judged for longer than
// it is coordinated.
const together = 10 * time.Millisecond

// NewState is the state before the first line.
func NewState() *State {
	return &State{open: map[star.Worker]int{}, copies: map[int]runlog.Replica{}, counted: counted{
		dropped: map[string]int64{}, poisoned: map[star.Worker]bool{}, episodes: map[Episode]int64{}, slowdowns: map[string]int64{}, lost: map[star.Worker]float64{}, missing: map[star.Worker]string{}, gain: map[string]runlog.Number{},
	}}
}

// Line processes the next line.
func (s *State) Line(l runlog.Line) error {
	s.now = max(s.now, l.T)
	switch e := l.Entry.(type) {
	case runlog.Start:
		s.start = e
		var c struct{ Arch, Mode, Watched string }
		json.Unmarshal(e.Config, &c) // missing settings have their defaults
		s.ring, s.watched = c.Arch == "allreduce", c.Watched != ""
		s.own = c.Mode == "auto" || s.watched // the log has the verdicts
	case runlog.Train:
		s.train, s.began = &e, l.T
		s.workers = append(s.workers, make([]worker, max(e.Workers-len(s.workers), 0))...)
		for i := range s.workers {
			s.workers[i].step = -1
		}
		for _, w := range e.Absent {
			s.workers[w].never = true
		}
		s.rate, s.loss, s.noise, s.spent = newSeries(l.T, 1), newSeries(l.T, 2), newSeries(l.T, 2), newSeries(l.T, 2*e.Workers)
		s.modes = append(s.modes, mode{at: l.T, plan: e.Plan, predicted: math.NaN(), seen: math.NaN()})
		var err error
		if s.detector, err = straggler.New(straggler.Config{Workers: e.Workers, Collective: s.ring, Together: together}); err != nil {
			return err
		}
		s.judge(e.Plan)
		s.tell(l.T, "begun", Info, "the training began: %s on %s, %s, mode %s", e.Model, e.Data, count(e.Workers-len(e.Absent), "worker"), e.Plan)
	case runlog.Join:
		s.join(l.T, e)
	case runlog.Leave:
		s.leave(l.T, e)
	case runlog.Record:
		s.record(l.T, &e.Record)
	case *runlog.Record: // of a Tap
		s.record(l.T, &e.Record)
	case runlog.Fire:
		if e.Samples > s.samples {
			// over the time since the update before: stretches may be shorter than a step
			if n, from := float64(e.Samples-s.samples), max(s.counted.last, s.began); l.T > from {
				s.rate.spread(from, l.T, 0, n/(l.T-from).Seconds())
			} else {
				s.rate.add(l.T, 0, n)
			}
		}
		s.samples, s.updates = e.Samples, e.Version-s.train.Version
		s.counted.fire(l.T, e)
	case runlog.Noise:
		if x := float64(e.Scale); x > 0 && !math.IsInf(x, 0) {
			s.noise.add(l.T, 0, x)
			s.noise.add(l.T, 1, 1)
		}
	case runlog.Verdict:
		s.verdict(l.T, e)
	case runlog.Slowdown:
		s.together(e)
	case runlog.Plan:
		s.tell(l.T, "mode", Info, "mode changed to %s: %s", e.Plan, e.Why)
		s.judge(e.Plan)
		s.modes = last(append(s.modes, mode{at: l.T, plan: e.Plan, why: e.Why, predicted: float64(e.Predicted), seen: math.NaN()}), mostChanges)
	case runlog.Set:
		s.detector.Set(e.Name, float64(e.Value))
		s.happen(l.T, "set", Info, "%s: %s is %v now", e.Why, e.Name, float64(e.Value))
	case runlog.Gain:
		s.counted.gain["predicted"], s.counted.gain["seen"] = e.Predicted, e.Seen
		for i := len(s.modes) - 1; i >= 0; i-- {
			if m := &s.modes[i]; m.plan == e.Plan {
				m.seen, m.reverted = float64(e.Seen), e.Reverted
				break
			}
		}
	case runlog.Eval:
		s.evals = last(append(s.evals, eval{l.T, e.To, float64(e.Loss), float64(e.Accuracy)}), stretches)
	case runlog.Checkpoint:
		if e.Err != "" {
			s.counted.failures++
			s.tell(l.T, "checkpoint", Error, "a checkpoint of version %d could not be written: %s", e.Version, e.Err)
		} else {
			s.counted.saved = l.T
		}
		s.saves = last(append(s.saves, checkpoint{l.T, e.ID, e.Err, e.Version}), 20)
	case runlog.Replica:
		s.copies[e.Shard] = e
		s.happen(l.T, "replica", Info, "shard %d: server %d %s; server %d answers", e.Shard, e.Server, e.Event, e.Primary)
	case runlog.Move:
		if e.Err != "" {
			s.happen(l.T, "move", Warn, "shard %d stays on server %d: %s", e.Shard, e.From, e.Err)
		} else {
			s.happen(l.T, "move", Info, "shard %d moved from server %d to %d", e.Shard, e.From, e.To)
		}
	case runlog.Poison:
		if !e.Over {
			s.counted.poisoned[e.Worker] = true
			s.happen(l.T, "poison", Warn, "worker %d sent a gradient that does not belong: %s", e.Worker, e.Cause)
		}
	case runlog.Hang:
		if e.Event == "over" {
			s.hang = ""
			clear(s.counted.missing)
			s.happen(l.T, "hang", Info, "the job continued after %.0f s: the hang is over", (l.T - e.Since.Duration()).Seconds())
			break
		}
		s.hang = e.Text
		s.counted.hangs++
		for i, w := range e.Missing {
			why := "unknown"
			if i < len(e.Ranks) {
				why = e.Ranks[i].Why
			}
			s.counted.missing[w] = why
		}
		s.happen(l.T, "hang", Error, "hang: %s", e.Text)
	case runlog.Short:
		s.happen(l.T, "short", Warn, "waits for workers: %d are there, at least %d are wanted", e.Workers, e.Least)
	case runlog.Enough:
		s.happen(l.T, "enough", Info, "goes on with %d workers", e.Workers)
	case runlog.Term:
		s.term = e.Term
		s.recoverJob(l.T) // another coordinator begins to compare
		if e.Over {
			s.happen(l.T, "term", Warn, "another process coordinates now")
		} else {
			s.happen(l.T, "term", Info, "this process coordinates since then (term %d)", e.Term)
		}
	case runlog.Gap:
		s.missing.Add(l.T, e)
		if e.Fires > 0 && s.train != nil {
			s.rate.spread(l.T, e.Until.Duration(), 0, float64(e.Samples-s.samples)/(e.Until.Duration()-l.T).Seconds())
			s.counted.updates += e.Version - s.train.Version - s.updates
			s.samples, s.updates, s.counted.last = e.Samples, e.Version-s.train.Version, e.Until.Duration()
		}
	case runlog.Stop:
		s.happen(l.T, "stop", Info, "told to stop: %s", e.Why)
	case runlog.Summary:
		s.end = &e.Result
		for _, w := range slices.Sorted(maps.Keys(s.open)) {
			s.recover(w, s.now)
		}
		s.recoverJob(s.now)
		if e.Error != "" {
			s.tell(s.now, "end", Error, "the job failed: %s", e.Error)
		} else {
			s.tell(s.now, "end", Info, "the job ended after %d samples in %d updates%s", e.Samples, e.Updates, because(e.Ended))
		}
	}
	return nil
}

// judge has workers judged as the plan wants it, which may be in words that this program does not know.
func (s *State) judge(plan string) {
	p, _ := modes.Parse(plan, len(s.workers))
	s.detector.Plan(p.Steps(0, s.step), p.Queue+p.Micro > 0)
}

// Wrong records that the log cannot be read any further.
func (s *State) Wrong(err error) { s.wrong = err.Error() }

// Ended reports whether the log has its last line.
func (s *State) Ended() bool { return s.end != nil }

func last[T any](xs []T, n int) []T {
	if len(xs) > n {
		return slices.Delete(xs, 0, len(xs)-n)
	}
	return xs
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// happen records an event that the page lists.
func (s *State) happen(at time.Duration, kind string, level Level, format string, a ...any) {
	s.happened = last(append(s.happened, event{at, fmt.Sprintf(format, a...)}), mostEvents)
	s.tell(at, kind, level, format, a...)
}

func (s *State) join(at time.Duration, e runlog.Join) {
	for int(e.Worker) >= len(s.workers) && s.train == nil {
		s.workers = append(s.workers, worker{step: -1})
	}
	w := &s.workers[e.Worker]
	if s.train != nil {
		s.happen(at, "join", Info, "worker %d joined", e.Worker)
	}
	w.peer, w.never, w.left = e.Peer, false, false
}

func (s *State) leave(at time.Duration, e runlog.Leave) {
	s.happen(at, "leave", Warn, "worker %d left: %s", e.Worker, strings.TrimPrefix(e.Why, "left: "))
	s.recover(e.Worker, at)
	if int(e.Worker) < len(s.workers) {
		s.workers[e.Worker].left = true
	}
	if s.detector != nil {
		s.detector.Leave(e.Worker)
	}
}

func (s *State) record(at time.Duration, r *star.Record) {
	w := &s.workers[r.Worker]
	s.step = modes.StepSamples(r)
	own, wait, net := r.Busy(), max(r.Wait-r.Transit, 0), r.Push+r.Transit+r.Pull
	if s.ring { // no worker can exchange alone
		own, wait, net = r.Own(), r.Wait+r.Push, 0
	}
	w.step, w.wait = r.Step, w.wait+wait
	w.load.add(r.Load)
	w.compute.add(r.Compute)
	w.net.add(net)
	w.waits.add(wait)
	i := 2 * int(r.Worker)
	s.spent.spread(at-own, at, i, 1)
	s.spent.spread(at-own-wait, at-own, i+1, 1)
	if r.Samples > 0 && r.Loss-r.Loss == 0 {
		s.loss.add(at, 0, r.Loss*float64(r.Samples))
		s.loss.add(at, 1, float64(r.Samples))
	}
	worst := -1
	for slow, i := range s.open {
		if slow != r.Worker {
			s.episodes[i].waited += wait
			s.episodes[i].whole += own + wait
			if worst < 0 || s.episodes[i].slowdown > s.episodes[worst].slowdown {
				worst = i
			}
		}
	}
	if worst >= 0 {
		s.counted.lost[s.episodes[worst].worker] += wait.Seconds()
	}
	if s.own {
		return
	}
	for _, e := range s.detector.Observe(*r) {
		if e.Kind != straggler.Slow && e.Kind != straggler.Changed && e.Kind != straggler.Recovered {
			continue
		}
		if e.Kind == straggler.Recovered {
			s.recover(e.Worker, at)
			continue
		}
		var says []string
		for _, v := range e.Verdict.Evidence {
			says = append(says, v.Text)
		}
		s.slow(at, e.Worker, e.Verdict.Since, e.Verdict.Slowdown, e.Verdict.Cause.String(), says)
	}
	// While it lasts each of its iterations updates the slowdown, as in star explain.
	if i, ok := s.open[r.Worker]; ok {
		if v, slow := s.detector.Verdict(r.Worker); slow {
			e := &s.episodes[i]
			e.factor.Add(v.Slowdown)
			e.slowdown = e.factor.Value()
		}
	}
}

func (s *State) verdict(at time.Duration, e runlog.Verdict) {
	if !s.own { // from here on the job reports it
		s.own = true
		s.episodes, s.open = nil, map[star.Worker]int{}
		clear(s.counted.episodes)
	}
	if e.Event == straggler.Recovered.String() {
		s.recover(e.Worker, at)
		return
	}
	var says []string
	for _, v := range e.Evidence {
		says = append(says, v.Text)
	}
	s.slow(at, e.Worker, e.Since, float64(e.Slowdown), e.Cause, says)
}

func (s *State) slow(at time.Duration, w star.Worker, step int64, slowdown float64, cause string, says []string) {
	i, ok := s.open[w]
	if !ok {
		if len(s.episodes) == mostChanges { // the first one that is over makes room
			if k := slices.IndexFunc(s.episodes, func(e episode) bool { return e.until >= 0 }); k >= 0 {
				s.episodes = slices.Delete(s.episodes, k, k+1)
				for w, j := range s.open {
					if j > k {
						s.open[w] = j - 1
					}
				}
			}
		}
		s.counted.episodes[Episode{w, cause}]++
		i = len(s.episodes)
		s.open[w] = i
		s.episodes = append(s.episodes, episode{worker: w, since: at, until: -1, step: step})
	}
	e := &s.episodes[i]
	e.factor.Add(slowdown)
	if !ok || e.cause != cause {
		s.tellOf(w, at, "slow", Warn, "worker %d is %.1fx slow since step %d: %s", w, slowdown, step, strings.Join(says, "; "))
	}
	e.slowdown, e.cause, e.says = e.factor.Value(), cause, strings.Join(says, "; ")
}

func (s *State) recover(w star.Worker, at time.Duration) {
	if i, ok := s.open[w]; ok {
		e := &s.episodes[i]
		e.until = at
		delete(s.open, w)
		s.tellOf(w, at, "recovered", Info, "worker %d is not slow any more: it was %.1fx slow for %s (%s)", w, e.slowdown, brief(at-e.since), e.cause)
	}
}

// together processes a line about all workers together.
func (s *State) together(e runlog.Slowdown) {
	if e.Event == straggler.Recovered.String() {
		s.recoverJob(e.Until.Duration())
		s.tell(s.now, "slowdown", Info, "%s", e.Says)
		return
	}
	x := s.slowJob()
	if x == nil {
		s.counted.slowdowns[e.Cause]++
		s.slowdowns = last(append(s.slowdowns, slowdown{since: e.Since.Duration(), until: -1}), mostChanges)
		x = &s.slowdowns[len(s.slowdowns)-1]
	}
	x.factor.Add(float64(e.Slowdown))
	x.hosts, x.part, x.cause, x.says = e.Hosts, e.Part, e.Cause, texts(e.Evidence)
	s.tell(s.now, "slowdown", Warn, "%s", e.Says)
}

// slowJob is the present slowdown of all workers; nil: none.
func (s *State) slowJob() *slowdown {
	if n := len(s.slowdowns); n > 0 && s.slowdowns[n-1].until < 0 {
		return &s.slowdowns[n-1]
	}
	return nil
}

func (s *State) recoverJob(at time.Duration) {
	if x := s.slowJob(); x != nil {
		x.until = at
	}
}

// String is the slowdown without its time.
func (x *slowdown) String() string {
	where := ""
	if len(x.hosts) > 0 {
		where = " on " + strings.Join(x.hosts, ", ")
	}
	verb := "are"
	if x.until >= 0 {
		verb = "were"
	}
	return fmt.Sprintf("All workers%s %s %.1fx slow together, against the job's own past, mostly in %s: %s", where, verb, x.factor.Value(), x.part, x.says)
}

func texts(of []runlog.Evidence) string {
	var says []string
	for _, v := range of {
		says = append(says, v.Text)
	}
	return strings.Join(says, "; ")
}

// headline states in one sentence which workers are slow, and the cost.
func (s *State) headline() (text string, bad bool) {
	switch {
	case s.wrong != "":
		return "The run log cannot be read any further: " + s.wrong, true
	case s.end != nil && s.end.Error != "":
		return "The job failed: " + s.end.Error, true
	case s.train == nil:
		return "The training has not begun: waiting for workers and servers.", false
	case s.hang != "" && s.end == nil:
		return "The job hangs: " + s.hang + ".", true
	case s.hang != "":
		return "The job ended in a hang: " + s.hang + ".", true
	}
	var worst *episode
	for _, i := range s.open {
		if e := &s.episodes[i]; worst == nil || e.slowdown > worst.slowdown {
			worst = e
		}
	}
	if x := s.slowJob(); worst == nil && x != nil {
		return fmt.Sprintf("%s. Since %s ago.", x, brief(s.now-x.since)), true
	}
	if n := len(s.slowdowns); worst == nil && len(s.episodes) == 0 && n > 0 {
		x := &s.slowdowns[n-1]
		return fmt.Sprintf("%s. For %s.", x, brief(x.until-x.since)), true
	}
	if worst == nil {
		switch n := len(s.episodes); {
		case s.end == nil && n == 0:
			return "No worker is slow.", false
		case s.end == nil:
			return fmt.Sprintf("No worker is slow now; %s so far.", count(n, "slow time")), false
		case n == 0:
			return "No worker was slow.", false
		}
		for i := range s.episodes {
			if e := &s.episodes[i]; worst == nil || e.waited > worst.waited {
				worst = e
			}
		}
		return fmt.Sprintf("Worker %d was %.1fx slow from step %d, for %s: %s.%s", worst.worker, worst.slowdown, worst.step, brief(worst.until-worst.since), worst.cause, worst.cost()), true
	}
	more := ""
	if n := len(s.open) - 1; n > 0 {
		more = fmt.Sprintf(" %s slow, too.", count(n, "other worker"))
		if n == 1 {
			more = " Another worker is slow, too."
		}
	}
	return fmt.Sprintf("Worker %d is %.1fx slow since step %d, %s ago: %s.%s%s", worst.worker, worst.slowdown, worst.step, brief(s.now-worst.since), worst.cause, worst.cost(), more), true
}

// cost is what the others lost meanwhile.
func (e *episode) cost() string {
	if e.whole <= 0 {
		return ""
	}
	return fmt.Sprintf(" The others waited %.0f %% of their time meanwhile.", 100*float64(e.waited)/float64(e.whole))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// brief is a time for people.
func brief(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// shown are the workers that have a row: if there are too many, those that were slow, for longest first, and those
// that left.
func (s *State) shown() []int {
	var ws []int
	for i := range s.workers {
		if !s.workers[i].never {
			ws = append(ws, i)
		}
	}
	if len(ws) > mostShown {
		slow := make([]time.Duration, len(s.workers))
		for _, e := range s.episodes {
			until := e.until
			if until < 0 {
				until = s.now
			}
			slow[e.worker] += until - e.since
		}
		slices.SortStableFunc(ws, func(a, b int) int {
			left := func(i int) int {
				if s.workers[i].left {
					return 1
				}
				return 0
			}
			return cmp.Or(cmp.Compare(slow[b], slow[a]), cmp.Compare(left(b), left(a)))
		})
		ws = ws[:mostShown]
		slices.Sort(ws)
	}
	return ws
}
