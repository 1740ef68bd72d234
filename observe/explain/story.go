// Package explain makes the story of a job out of its run log: the slow workers, when and why they
// were slow, what was done, and its effect.
//
// A [Teller] processes the lines of the log. It finds slow workers with the detector of jobs
// ([straggler.Detector]), which gets the log's records; verdicts of the job itself in the log (lines
// of type verdict) take precedence. The effect of a change of mode is the rate of samples applied
// before and after it, over the time in which nothing else changed: no other mode, no worker that
// became slow or recovered, or left. Gains that the job itself measured (lines of type gain) take
// precedence.
//
// The rate of samples is not the progress. A mode with stale gradients or small updates learns less
// from each sample (docs/theory.md), which a gain measured here leaves out.
//
// The story is pure: no files, no clock. [Story.Text], [Story.Entries] and [Story.Picture] show it.
package explain

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/runlog"
	"star/straggler"
)

// Story is what happened in a run. Times are since the coordinator began.
type Story struct {
	Start runlog.Start
	Train *runlog.Train  // nil: the training never began
	End   *runlog.Result // nil: the log does not have its end
	Read  runlog.Contents
	Arch  string

	Began, Ended     time.Duration // of the training, as far as the log goes
	Samples, Updates int64
	Accuracy         float64 // of the last evaluation; NaN: there was none

	Workers  []WorkerSummary
	Episodes []Episode // by their beginning
	Together []Together
	Changes  []Change
	Sets     []Threshold
	Odd      []straggler.Event // impossible values that were not used
	Own      bool              // the verdicts are the job's own
	Noise    []Point           // noise scale, samples
	Rate     []Point           // samples applied so far

	Gone   []Gone
	Came   []Came
	Aside  []runlog.Aside // what killed two workers
	Short  []Short
	Hangs  []Hang
	Shifts []Shift
	Copies []Copied

	Poison []Poisoned // by worker and cause, in the order of the first

	known time.Duration   // since when the log has every iteration: Began, or the end of a gap
	plan  string          // the first
	halts []time.Duration // evaluations and checkpoints
	grads []int64         // applied so far, beside Rate
	marks []time.Duration // when something changed
}

// Point is a quantity at a time.
type Point struct {
	T time.Duration
	V float64
}

// Gone is a worker that left before the end.
type Gone struct {
	Worker star.Worker
	T      time.Duration
	Step   int64 // its last; -1: the log has none
	Why    string
	Back   time.Duration // return of the worker or its replacement; 0: never
}

// Came is a worker that joined a running job, with a new rank.
type Came struct {
	Worker star.Worker
	T      time.Duration
	Peer   string
}

// Hang is a time for which ranks waited for one that did nothing to end the wait.
type Hang struct {
	Since, Until time.Duration // Until 0: to the end
	Missing      []star.Worker
	Text         string
}

// Short is a time for which the job waited, because it had fewer workers than it wants.
type Short struct {
	T, Until       time.Duration // Until 0: to the end
	Workers, Least int           // that were there; that it wants
}

// Together is a time in which all workers together were slower than before.
type Together struct {
	Since, Until    time.Duration
	Open            bool // at the end of the log
	Causes          []string
	runlog.Slowdown // its last line before the end
	factor          runlog.Factor
}

// Poisoned is the gradients of one worker that did not belong, for one cause (package poison). Of reversed ones only
// the beginning and the end are in the log.
type Poisoned struct {
	Worker   star.Worker
	Cause    string
	Count    int
	From, To int64   // steps of the first and the last
	Value    float64 // of exploding ones the greatest; of reversed ones the mean cosine
	Where    string  // of the first
	Fatal    bool
	Over     bool // reversed ones: no more
}

// Copied is what happened to the copies of a shard.
type Copied struct {
	T time.Duration
	runlog.Replica
	Pause time.Duration // from the update before it to the next one; 0: there was none
}

// Shift is a shard that has moved to another server, or was to.
type Shift struct {
	T               time.Duration
	Shard, From, To int
	Predicted, Seen float64 // shares of a round's time; NaN: moved by hand, or not measured
	Why             string  // of a move by itself
	Back            bool    // it did not pay, and went back
	Err             string  // it stayed
}

// WorkerSummary is what one worker did, in all its attempts.
type WorkerSummary struct {
	Iterations []Iteration
	Never      bool          // it had no part in the job
	Left       time.Duration // 0: it stayed or returned
	Away       time.Duration // until its return, in time with iterations in the log
}

// Iteration is one record of a worker. Busy is its own time, and Wait that for others.
type Iteration struct {
	Step       int64
	T          time.Duration // when the coordinator saw the record
	Busy, Wait time.Duration
	push       time.Duration // all-reduce: with the wait for others
	basis      int64
	rider      bool
}

// Episode is a time in which one worker was slow.
type Episode struct {
	Worker   star.Worker
	From, To int64 // its steps
	Since    time.Duration
	Until    time.Duration
	Open     bool    // it was slow at the end of the log
	Slowdown float64 // own time over that of the others (runlog.Factor)
	Cause    string
	Evidence []runlog.Evidence
	Others   []string      // causes that held for shorter
	Action   int           // index in Changes; -1: nothing was done
	Waited   time.Duration // by all others, meanwhile
	noticed  time.Duration
	factor   runlog.Factor
	causes   []held
	now      int   // the last reported cause
	at       int64 // the step at which it was
}

// held is a cause for as long as it held.
type held struct {
	cause    string
	evidence []runlog.Evidence
	steps    int64
}

// Change is a change of mode. Gains are shares of the time for the same number of samples: 1 − before/after; NaN:
// not known.
type Change struct {
	T               time.Duration
	Plan, From, Why string
	Predicted, Seen float64
	Reverted        bool
	Before, After   float64 // samples/s; NaN: too short to say
}

// Teller processes a run log, line by line.
type Teller struct {
	s          Story
	detector   *straggler.Detector
	step       int     // samples of a step of the last record
	found      tracker // by the detector
	told       tracker // by the job
	riders     map[star.Worker]bool
	pushes     map[int64]time.Duration // all-reduce: the shortest of each round
	collective bool
}

// What the detector of older logs looked at: how many iterations made a level, and how many had to be fast.
const (
	recent = 5
	leave  = 8
)

// New makes a Teller.
func New() *Teller {
	t := &Teller{pushes: map[int64]time.Duration{}}
	t.s.Accuracy = math.NaN()
	t.found.open, t.told.open = map[star.Worker]*Episode{}, map[star.Worker]*Episode{}
	return t
}

// Add processes the next line.
func (t *Teller) Add(l runlog.Line) error {
	s := &t.s
	s.Ended = max(s.Ended, l.T)
	switch e := l.Entry.(type) {
	case runlog.Start:
		s.Start = e
		var c struct{ Arch string }
		json.Unmarshal(e.Config, &c) // missing settings have their defaults
		s.Arch = cmp.Or(c.Arch, "ps")
		t.collective = s.Arch == "allreduce"
	case runlog.Train:
		s.Train, s.Began, s.known, s.plan = &e, l.T, l.T, e.Plan
		s.Workers = make([]WorkerSummary, e.Workers)
		for _, w := range e.Absent {
			s.Workers[w].Never, s.Workers[w].Left = true, l.T
		}
		var err error
		if t.detector, err = straggler.New(straggler.Config{Workers: e.Workers, Collective: t.collective}); err != nil {
			return err
		}
		t.ride(e.Plan)
	case runlog.Record:
		t.record(l.T, e.Record)
	case runlog.Fire:
		n := int64(len(e.Workers))
		if len(s.grads) > 0 {
			n += s.grads[len(s.grads)-1]
		}
		for i := range s.Copies { // those of the servers that were lost since the last update
			c, n := &s.Copies[i], len(s.Rate)
			if c.Event == "promoted" && c.Pause == 0 && n > 0 && s.Rate[n-1].T <= c.T {
				c.Pause = l.T - s.Rate[n-1].T
			}
		}
		s.Rate, s.grads = append(s.Rate, Point{l.T, float64(e.Samples)}), append(s.grads, n)
		s.Samples, s.Updates = e.Samples, e.Version-s.Train.Version
	case runlog.Gap:
		s.known = max(s.known, e.Until.Duration())
		if e.Fires > 0 && s.Train != nil {
			s.Samples, s.Updates = e.Samples, e.Version-s.Train.Version
		}
	case runlog.Noise:
		if e.Scale > 0 && !math.IsInf(float64(e.Scale), 0) {
			s.Noise = append(s.Noise, Point{l.T, float64(e.Scale)})
		}
	case runlog.Plan:
		s.Changes = append(s.Changes, Change{T: l.T, Plan: e.Plan, From: e.From, Why: e.Why, Predicted: float64(e.Predicted),
			Seen: math.NaN(), Before: math.NaN(), After: math.NaN()})
		t.ride(e.Plan)
	case runlog.Set:
		t.detector.Set(e.Name, float64(e.Value))
		s.Sets = append(s.Sets, Threshold{l.T, e})
	case runlog.Gain:
		for i := len(s.Changes) - 1; i >= 0; i-- {
			if c := &s.Changes[i]; c.Plan == e.Plan {
				c.Seen, c.Reverted = float64(e.Seen), e.Reverted
				if p := float64(e.Predicted); !math.IsNaN(p) {
					c.Predicted = p
				}
				break
			}
		}
	case runlog.Verdict:
		s.Own = true
		m := mark{t: l.T, worker: e.Worker, step: e.Step, since: e.Since, until: e.Until, slowdown: float64(e.Slowdown), cause: e.Cause, evidence: e.Evidence, paused: e.Cause == straggler.Pauses.String()}
		if e.Event == straggler.Recovered.String() {
			t.told.recovered(m, &s.Workers[e.Worker])
		} else {
			t.told.slow(m)
		}
	case runlog.Slowdown:
		s.together(e)
	case runlog.Term: // of another coordinator, which begins to compare
		s.apart(l.T, false)
	case runlog.Poison:
		s.poisoned(e)
	case runlog.Short:
		s.Short = append(s.Short, Short{T: l.T, Workers: e.Workers, Least: e.Least})
		s.marks = append(s.marks, l.T)
	case runlog.Hang:
		if n := len(s.Hangs); e.Event == "over" && n > 0 {
			s.Hangs[n-1].Until = l.T
		} else {
			s.Hangs = append(s.Hangs, Hang{Since: e.Since.Duration(), Missing: e.Missing, Text: e.Text})
		}
		s.marks = append(s.marks, l.T)
	case runlog.Enough:
		if n := len(s.Short); n > 0 {
			s.Short[n-1].Until = l.T
		}
		s.marks = append(s.marks, l.T)
	case runlog.Join:
		if s.Train == nil {
			break
		}
		w := &s.Workers[e.Worker]
		if w.Never {
			w.Never = false
			s.Came = append(s.Came, Came{e.Worker, l.T, e.Peer})
		}
		w.Away, w.Left = w.Away+max(0, l.T-max(w.Left, s.known)), 0
		for i := range s.Gone {
			if g := &s.Gone[i]; g.Worker == e.Worker && g.Back == 0 {
				g.Back = l.T
			}
		}
		s.marks = append(s.marks, l.T)
	case runlog.Leave:
		w := &s.Workers[e.Worker]
		w.Left = l.T
		s.Gone = append(s.Gone, Gone{Worker: e.Worker, T: l.T, Step: w.lastStep(), Why: e.Why})
		s.marks = append(s.marks, l.T)
		t.detector.Leave(e.Worker)
		t.found.end(e.Worker, w, l.T, false)
		t.told.end(e.Worker, w, l.T, false)
	case runlog.Aside:
		s.Aside = append(s.Aside, e)
	case runlog.Shift:
		t.shift(l.T, e)
	case runlog.Replica:
		s.Copies = append(s.Copies, Copied{T: l.T, Replica: e})
		s.marks = append(s.marks, l.T)
	case runlog.Move:
		t.move(l.T, e)
	case runlog.Eval:
		s.Accuracy = float64(e.Accuracy)
		s.halts = append(s.halts, l.T)
	case runlog.Checkpoint:
		s.halts = append(s.halts, l.T)
	case runlog.Summary:
		r := e.Result
		s.End = &r
	}
	return nil
}

// together processes a line about all workers together.
func (s *Story) together(e runlog.Slowdown) {
	if e.Event == straggler.Recovered.String() {
		s.apart(e.Until.Duration(), false)
		return
	}
	n := len(s.Together)
	if n == 0 || !s.Together[n-1].Open {
		s.Together, n = append(s.Together, Together{Since: e.Since.Duration(), Open: true}), n+1
	}
	x := &s.Together[n-1]
	x.Slowdown = e
	x.factor.Add(float64(e.Slowdown))
	if text := e.Part + ": " + e.Cause; !slices.Contains(x.Causes, text) {
		x.Causes = append(x.Causes, text)
	}
}

// apart ends the last slowdown of all workers, unless it has ended; open: with the log.
func (s *Story) apart(at time.Duration, open bool) {
	if n := len(s.Together); n > 0 && s.Together[n-1].Open {
		s.Together[n-1].Until, s.Together[n-1].Open = at, open
	}
}

// poisoned processes a faulty gradient.
func (s *Story) poisoned(e runlog.Poison) {
	i := slices.IndexFunc(s.Poison, func(p Poisoned) bool { return p.Worker == e.Worker && p.Cause == e.Cause && !p.Over })
	if i < 0 {
		i = len(s.Poison)
		s.Poison = append(s.Poison, Poisoned{Worker: e.Worker, Cause: e.Cause, From: e.Step, Value: float64(e.Value), Where: e.Where})
	}
	p := &s.Poison[i]
	p.To, p.Over = e.Step, e.Over
	if !e.Over {
		p.Count++
		p.Value = max(p.Value, float64(e.Value))
		p.Fatal = e.Policy == "fatal"
	}
}

// shift processes the decision on the move of a shard; the move itself follows.
func (t *Teller) shift(at time.Duration, e runlog.Shift) {
	s := &t.s
	if e.Event != "wanted" { // it was looked at the last one
		for i := len(s.Shifts) - 1; i >= 0; i-- {
			if c := &s.Shifts[i]; c.Shard == e.Shard && !math.IsNaN(c.Predicted) && c.Err == "" {
				c.Seen, c.Back = float64(e.Seen), e.Event == "back"
				break
			}
		}
	}
	if e.Event == "wanted" {
		s.Shifts = append(s.Shifts, Shift{T: at, Shard: e.Shard, From: e.From, To: e.To, Predicted: float64(e.Predicted), Seen: math.NaN(), Why: e.Why})
	}
}

// move adds the result of a move. One that was not announced was asked for by hand, or is a move
// back.
func (t *Teller) move(at time.Duration, e runlog.Move) {
	s := &t.s
	if n := len(s.Shifts); n > 0 {
		if c := &s.Shifts[n-1]; c.Shard == e.Shard && c.From == e.From && c.To == e.To && math.IsNaN(c.Seen) && !math.IsNaN(c.Predicted) && c.Err == "" {
			c.T, c.Err = at, e.Err
			return
		}
	}
	s.Shifts = append(s.Shifts, Shift{T: at, Shard: e.Shard, From: e.From, To: e.To, Predicted: math.NaN(), Seen: math.NaN(), Err: e.Err})
}

// ride notes which workers are riders in a plan. The plan may be in words that this program does not
// know.
func (t *Teller) ride(plan string) {
	t.riders = map[star.Worker]bool{}
	p, err := modes.Parse(plan, len(t.s.Workers))
	t.detector.Plan(p.Steps(0, t.step), p.Queue+p.Micro > 0)
	if err != nil {
		return
	}
	for _, g := range p.Groups {
		for _, w := range g.Riders {
			t.riders[w] = true
		}
	}
}

func (t *Teller) record(at time.Duration, r star.Record) {
	t.step = modes.StepSamples(&r)
	events := t.detector.Observe(r)
	if slices.ContainsFunc(events, func(e straggler.Event) bool { return e.Kind == straggler.Excluded }) {
		t.s.Odd = append(t.s.Odd, events...)
		return
	}
	w := &t.s.Workers[r.Worker]
	it := Iteration{Step: r.Step, T: at, Busy: r.Busy(), Wait: max(r.Wait-r.Transit, 0), push: r.Push, basis: r.Basis, rider: t.riders[r.Worker]}
	if t.collective {
		it.Busy = r.Own()
		if p, ok := t.pushes[r.Basis]; !it.rider && (!ok || r.Push < p) {
			t.pushes[r.Basis] = r.Push
		}
	}
	w.Iterations = append(w.Iterations, it)
	for _, e := range events {
		m := markOf(at, e.Verdict)
		switch m.worker, m.step = e.Worker, e.Step; e.Kind {
		case straggler.Slow, straggler.Changed:
			t.found.slow(m)
		case straggler.Recovered:
			t.found.recovered(m, w)
		default:
			t.s.Odd = append(t.s.Odd, e)
		}
	}
	if t.found.open[r.Worker] == nil {
		return
	}
	if v, ok := t.detector.Verdict(r.Worker); ok {
		t.found.goesOn(markOf(at, v))
	}
}

// Story returns the story after the end of the log; the Teller must not be used again.
func (t *Teller) Story(read runlog.Contents) *Story {
	s := &t.s
	s.Read = read
	if s.Train == nil {
		return s
	}
	if t.collective {
		for i := range s.Workers {
			for j := range s.Workers[i].Iterations {
				it := &s.Workers[i].Iterations[j]
				fastest, ok := t.pushes[it.basis]
				if it.rider || !ok {
					continue // no worker waits for riders, nor they for others except in Wait
				}
				it.Wait += it.push - fastest
				it.Busy += fastest
			}
		}
	}
	from := &t.found
	if s.Own {
		from = &t.told
	}
	for i := range s.Workers {
		from.end(star.Worker(i), &s.Workers[i], s.Ended, true)
	}
	s.Episodes = from.done
	s.apart(s.Ended, true)
	slices.SortStableFunc(s.Episodes, func(a, b Episode) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Worker, b.Worker))
	})
	for i := range s.Episodes {
		s.finish(&s.Episodes[i])
	}
	for _, e := range s.Episodes {
		s.marks = append(s.marks, e.Since, e.Until)
	}
	for _, e := range s.Together {
		s.marks = append(s.marks, e.Since, e.Until)
	}
	for _, c := range s.Changes {
		s.marks = append(s.marks, c.T)
	}
	slices.Sort(s.marks)
	for i := range s.Changes {
		s.judge(&s.Changes[i])
	}
	return s
}

// finish sets the values of an episode that need the whole log.
func (s *Story) finish(e *Episode) {
	w := &s.Workers[e.Worker]
	e.Since = s.Began
	for _, it := range w.Iterations {
		if it.Step >= e.From {
			e.Since = max(it.T-it.Busy, s.Began)
			break
		}
	}
	if e.noticed <= s.Read.Missing.To.Duration() { // the log lacks the iterations with which it began
		e.Since = e.noticed
	}
	e.Action = slices.IndexFunc(s.Changes, func(c Change) bool { return c.T >= e.Since && c.T <= max(e.Until, e.noticed) })
	e.Slowdown = e.factor.Value()
	longest := 0
	for i, h := range e.causes {
		if h.steps > e.causes[longest].steps {
			longest = i
		}
	}
	e.Cause, e.Evidence = e.causes[longest].cause, e.causes[longest].evidence
	for i, h := range e.causes {
		if i != longest {
			e.Others = append(e.Others, h.cause)
		}
	}
	for i := range s.Workers {
		if star.Worker(i) == e.Worker {
			continue
		}
		for _, it := range s.Workers[i].Iterations {
			if it.T > e.Since && it.T <= e.Until {
				e.Waited += it.Wait
			}
		}
	}
}

// judge measures the effect of a change, unless the job has reported it.
func (s *Story) judge(c *Change) {
	i, _ := slices.BinarySearch(s.marks, c.T)
	from, to := s.Began, s.Ended
	if i > 0 {
		from = s.marks[i-1]
	}
	for ; i < len(s.marks); i++ {
		if s.marks[i] > c.T {
			to = s.marks[i]
			break
		}
	}
	c.Before, c.After = s.speed(from, c.T), s.speed(c.T, to)
	if math.IsNaN(c.Seen) {
		c.Seen = 1 - c.Before/c.After
	}
}

// speed is the samples applied per second between two times, without evaluations and checkpoints. It takes
// three firings, and three gradients of each worker, to say one.
func (s *Story) speed(from, to time.Duration) float64 {
	first, _ := slices.BinarySearchFunc(s.Rate, from, func(p Point, t time.Duration) int { return cmp.Compare(p.T, t) })
	var samples, seconds float64
	var firings, grads int64
	for i := first + 1; i < len(s.Rate) && s.Rate[i].T <= to; i++ {
		a, b := s.Rate[i-1], s.Rate[i]
		if h, _ := slices.BinarySearch(s.halts, a.T); h < len(s.halts) && s.halts[h] <= b.T {
			continue
		}
		samples += b.V - a.V
		seconds += (b.T - a.T).Seconds()
		grads += s.grads[i] - s.grads[i-1]
		firings++
	}
	if firings < 3 || grads < 3*int64(len(s.Workers)) || seconds <= 0 || samples <= 0 {
		return math.NaN()
	}
	return samples / seconds
}

func (w *WorkerSummary) lastStep() int64 {
	if n := len(w.Iterations); n > 0 {
		return w.Iterations[n-1].Step
	}
	return -1
}

// mark is a statement about a slow worker.
type mark struct {
	t           time.Duration
	worker      star.Worker
	step, since int64
	until       int64 // recovered: the first step that was like the others'; 0: not known
	slowdown    float64
	cause       string
	evidence    []runlog.Evidence
	paused      bool
}

func markOf(at time.Duration, v straggler.Verdict) mark {
	m := mark{t: at, worker: v.Worker, step: v.Step, since: v.Since, until: v.Until, slowdown: v.Slowdown, cause: v.Cause.String(), paused: v.Cause == straggler.Pauses}
	for _, e := range v.Evidence {
		m.evidence = append(m.evidence, runlog.Evidence{What: e.What, Value: runlog.Number(e.Value), Other: runlog.Number(e.Other), Text: e.Text})
	}
	return m
}

// tracker makes episodes of marks.
type tracker struct {
	open map[star.Worker]*Episode
	done []Episode
}

// slow opens an episode, or gives it another cause.
func (k *tracker) slow(m mark) {
	e := k.open[m.worker]
	if e == nil {
		e = &Episode{Worker: m.worker, From: m.since, noticed: m.t, at: m.step}
		k.open[m.worker] = e
	}
	k.goesOn(m)
}

// goesOn processes the newest numbers of an open episode.
func (k *tracker) goesOn(m mark) {
	e := k.open[m.worker]
	e.factor.Add(m.slowdown)
	i := slices.IndexFunc(e.causes, func(h held) bool { return h.cause == m.cause })
	if i < 0 {
		i = len(e.causes)
		e.causes = append(e.causes, held{cause: m.cause})
	}
	e.causes[i].evidence = m.evidence
	e.lasted(m.step)
	e.now, e.at = i, m.step
}

// lasted records that the last reported cause held until a step.
func (e *Episode) lasted(step int64) {
	if step > e.at {
		e.causes[e.now].steps += step - e.at
	}
}

// recovered closes an episode. Recovery is detected late, and the verdict has its time. Older
// logs do not: there the median of recent iterations had to fall, and then several had to be fast; a
// worker with pauses had recovered after its last long iteration.
func (k *tracker) recovered(m mark, w *WorkerSummary) {
	e := k.open[m.worker]
	if e == nil {
		return
	}
	to := m.until - 1
	if m.until == 0 {
		to = m.step - leave - recent/2
	}
	if m.until == 0 && m.paused {
		var busy []float64
		for _, it := range w.Iterations {
			if it.Step >= e.From {
				busy = append(busy, it.Busy.Seconds())
			}
		}
		usual := middle(busy)
		for _, it := range w.Iterations {
			if it.Step >= e.From && it.Busy.Seconds() > 1.2*usual {
				to = it.Step
			}
		}
	}
	k.close(e, w, max(to, e.From), m.t)
}

// end closes the episode of a worker that has left, or at the end of the log.
func (k *tracker) end(worker star.Worker, w *WorkerSummary, t time.Duration, open bool) {
	if e := k.open[worker]; e != nil {
		e.Open = open
		k.close(e, w, max(w.lastStep(), e.From), t)
		k.done[len(k.done)-1].Until = t
	}
}

func (k *tracker) close(e *Episode, w *WorkerSummary, to int64, t time.Duration) {
	e.lasted(max(to, e.at+1))
	e.To, e.Until = to, t
	for _, it := range w.Iterations {
		if it.Step == to {
			e.Until = it.T
		}
	}
	k.done = append(k.done, *e)
	delete(k.open, e.Worker)
}

// middle is the median; NaN of nothing.
func middle(vs []float64) float64 {
	if len(vs) == 0 {
		return math.NaN()
	}
	vs = slices.Sorted(slices.Values(vs))
	if n := len(vs); n%2 == 0 {
		return (vs[n/2-1] + vs[n/2]) / 2
	}
	return vs[len(vs)/2]
}

// Threshold is a threshold that was changed.
type Threshold struct {
	T time.Duration
	runlog.Set
}

// Entry is an episode as star explain --json prints it. Gains are shares of the time; null: not known.
type Entry struct {
	Worker    star.Worker       `json:"worker"`
	FromStep  int64             `json:"from_step"`
	ToStep    int64             `json:"to_step"`
	From      float64           `json:"from_s"`
	To        float64           `json:"to_s"`
	Open      bool              `json:"open"`
	Slowdown  runlog.Number     `json:"slowdown"`
	Cause     string            `json:"cause"`
	Evidence  []runlog.Evidence `json:"evidence"`
	Action    string            `json:"action"`
	Why       string            `json:"why"`
	Predicted runlog.Number     `json:"predicted_gain"`
	Seen      runlog.Number     `json:"seen_gain"`
	Reverted  bool              `json:"reverted"`
	Waited    float64           `json:"others_waited_s"`
}

// Entries are the episodes, in the order of their beginning.
func (s *Story) Entries() []Entry {
	es := []Entry{}
	for _, e := range s.Episodes {
		x := Entry{
			Worker: e.Worker, FromStep: e.From, ToStep: e.To, From: e.Since.Seconds(), To: e.Until.Seconds(), Open: e.Open,
			Slowdown: runlog.Number(e.Slowdown), Cause: e.Cause, Evidence: append([]runlog.Evidence{}, e.Evidence...), Waited: e.Waited.Seconds(),
			Predicted: runlog.Number(math.NaN()), Seen: runlog.Number(math.NaN()),
		}
		if e.Action >= 0 {
			c := s.Changes[e.Action]
			x.Action, x.Why, x.Predicted, x.Seen, x.Reverted = c.Plan, c.Why, runlog.Number(c.Predicted), runlog.Number(c.Seen), c.Reverted
		}
		es = append(es, x)
	}
	return es
}
