package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/runlog"
)

// Invariant is a promise and whether it was kept.
type Invariant struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Attempt is the content of the run log of one attempt of a job.
type Attempt struct {
	Name      string
	Limit     int64 // samples of the job, or the limit that a stop set
	From      int64 // first version
	Before    int64 // samples applied when it began
	Version   int64 // last version
	Samples   int64 // applied at its end
	Worst     time.Duration
	WorstAt   time.Duration
	Losses    int  // not finite
	Ended     bool // the log has a summary
	Deaths    int  // workers that left
	Takeovers int  // takeovers by other coordinators
	Returns   int  // workers that came back
	Wasted    int64
	Saved     []Save
	SavedAs   []string // their IDs
	Ring      bool     // with all-reduce: every member has the parameters
	Members   int      // members of the last update that have not left
	Alike     int      // members with bitwise equal parameters at the end; -1: not compared

	Took time.Duration // from the start of the job to the last update
	Back []string      // updates with a time before that of their predecessor

	// Pauses are the times from the last update of one coordinator to the first of its successor.
	Pauses []time.Duration

	// Updates are the updates of the attempt, in order.
	Updates []Update

	// Missing counts the lines that were dropped because the log reached its size limit.
	// If lines are missing, only the checkpoints of the attempt are known.
	Missing runlog.Missing

	applied  []span // samples of the stream that this attempt applied
	problems []string
}

type span struct{ from, to int64 }

// Update is one update of an attempt.
type Update struct {
	Version int64 // version after the update
	Before  int64 // samples applied before it
	Plan    string
	Live    []int // the workers of the job

	// Round is the number of samples that weights refer to if the ring was formed with other workers than the current
	// ones. 0: the log does not say.
	Round int

	Members []Member // the gradients in the update
	Summed  bool     // a tree or a ring summed the gradients
}

// Member is one gradient in an Update.
type Member struct {
	Worker  int
	Step    int64
	Basis   int64 // version of the parameters that it was computed with
	Start   int64 // its first sample in the stream
	Samples int
	More    [][2]int64 // with a queue: start and length of further ranges of samples
	Out     bool       // excluded from the update as poison

	Said        bool // the values below are from a record of its worker
	Loss, Norm2 float64
}

// leavesOut marks the gradient in an earlier update that was excluded as poison.
func (l *Attempt) leavesOut(m runlog.Poison) {
	if m.Over || m.Cause == "flipped" || m.Policy == "off" {
		return
	}
	for i := len(l.Updates) - 1; i >= max(0, len(l.Updates)-8); i-- {
		for j := range l.Updates[i].Members {
			if g := &l.Updates[i].Members[j]; g.Worker == int(m.Worker) && g.Step == m.Step {
				g.Out = true
			}
		}
	}
}

// Save is a checkpoint in a run log.
type Save struct {
	Version int64
	Err     string // why it was not written; empty: it was written
}

// batch is the latest batch of a worker that no update has used yet.
type batch struct {
	step int64
	span span
	more []span // its other ranges

	basis       int64
	loss, norm2 float64
}

// split takes the ranges in more, pairs of start and length, out of b's first range and stores them in b.more.
func (b batch) split(more []int64) (batch, bool) {
	for i := 0; i+1 < len(more); i += 2 {
		if more[i] < 0 || more[i+1] < 1 {
			return b, false
		}
		b.more = append(b.more, span{more[i], more[i] + more[i+1]})
		b.span.to -= more[i+1]
	}
	return b, len(more)%2 == 0 && b.span.to > b.span.from
}

// samples is the number of samples in b.
func (b batch) samples() int64 {
	n := b.span.to - b.span.from
	for _, s := range b.more {
		n += s.to - s.from
	}
	return n
}

// Read reads the run log of one attempt. Violations, including a log that cannot be parsed, are recorded in the
// Attempt.
func Read(log []byte, name string) *Attempt { return ReadTerms([][]byte{log}, []string{name}) }

// ReadTerms reads the run logs of one attempt of a job that had several coordinators, in order.
// An update in one log counts only if the next coordinator began after it: otherwise no shard may have received it.
func ReadTerms(logs [][]byte, names []string) *Attempt {
	s := &reader{
		attempt: &Attempt{Name: names[0], Alike: -1}, held: map[star.Worker]batch{}, before: -1, members: map[star.Worker]bool{},
	}
	for i, b := range logs {
		s.name, s.until, s.trained = names[i], -1, false
		for j := i + 1; j < len(logs) && s.until < 0; j++ {
			s.until = begins(logs[j])
		}
		if err := entries(b, names[i], func(l runlog.Line) error { s.entry(l); return nil }); err != nil {
			s.attempt.problems = append(s.attempt.problems, err.Error())
		}
	}
	return s.attempt
}

// entries calls each for every line of a log. A log without a complete line is empty: its process was killed before it
// wrote one.
func entries(log []byte, name string, each func(runlog.Line) error) error {
	if bytes.IndexByte(log, '\n') < 0 {
		return nil
	}
	_, err := runlog.Read(bytes.NewReader(log), name, each)
	return err
}

// errEnough stops the reading of a log.
var errEnough = errors.New("enough")

// begins is the version at which the leadership in a log begins; -1: it never began.
func begins(log []byte) int64 {
	at := int64(-1)
	entries(log, "", func(l runlog.Line) error {
		if e, ok := l.Entry.(runlog.Term); ok && !e.Over {
			at = e.Version
			return errEnough
		}
		return nil
	})
	return at
}

// reader is the state after the lines that were read so far.
type reader struct {
	attempt *Attempt
	held    map[star.Worker]batch
	last    time.Duration // of the last update
	begun   bool
	before  int64 // samples applied before the first update; -1: no update yet
	taken   bool  // no update since another coordinator took over

	members map[star.Worker]bool // workers with a gradient in the last update that have not left

	live map[star.Worker]bool // the workers of the job
	next map[star.Worker]bool // the workers of the next coordinator, from its takeover on; nil: no takeover
	plan string

	name    string // of the current log
	number  int    // of the current line
	until   int64  // updates after this version do not count; -1: all do
	trained bool   // its line of type train was read
}

// wrong records a violation in the current line.
func (s *reader) wrong(format string, a ...any) {
	if l := s.attempt; len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Sprintf("%s:%d: ", s.name, s.number)+fmt.Sprintf(format, a...))
	}
}

// entry processes a line.
func (s *reader) entry(at runlog.Line) {
	l := s.attempt
	s.number = at.Number
	if g, ok := at.Entry.(runlog.Gap); ok {
		l.Missing.Add(at.T, g)
	}
	if l.Missing != (runlog.Missing{}) {
		switch at.Entry.(type) {
		case runlog.Checkpoint, runlog.Stop:
		default:
			return
		}
	}
	switch e := at.Entry.(type) {
	case runlog.Train:
		s.trains(e, at.T)
	case runlog.Term:
		s.takesOver(e)
	case runlog.Record:
		s.record(e)
	case runlog.Plan:
		s.plan = e.Plan
	case runlog.Poison:
		l.leavesOut(e)
	case runlog.Leave:
		l.Deaths++
		if s.trained {
			s.live[e.Worker] = false
		}
		delete(s.held, e.Worker) // other workers get its samples
		delete(s.members, e.Worker)
	case runlog.Join:
		if s.begun {
			l.Returns++
		}
		if s.trained {
			s.live[e.Worker] = true
		}
	case runlog.Fire:
		if s.fire(e) {
			s.made(at.T)
		}
	case runlog.Recall:
		if e.Version > l.Version { // its time is unknown
			s.fire(runlog.Fire{Version: e.Version, Workers: e.Workers, Dropped: e.Dropped, Pieces: e.Pieces, Samples: e.Samples})
		}
	case runlog.Eval:
		if e.Final {
			l.Alike, l.Members = e.Alike, len(s.members)
		}
	case runlog.Checkpoint:
		l.Saved, l.SavedAs = append(l.Saved, Save{Version: e.Version, Err: e.Err}), append(l.SavedAs, e.ID)
	case runlog.Stop:
		l.Limit = min(l.Limit, e.Limit)
	case runlog.Summary:
		l.Ended, l.Wasted = true, e.Wasted
		if s.before >= 0 && e.Samples != l.Samples-s.before { // the summary counts only this attempt
			s.wrong("the summary says %d samples, the updates %d", e.Samples, l.Samples-s.before)
		}
	}
}

// trains records the workers at the start of a training or of a coordinator's term.
func (s *reader) trains(e runlog.Train, t time.Duration) {
	l := s.attempt
	l.Ring, l.Limit, s.trained = e.Shards == 0, e.Limit, true
	live := map[star.Worker]bool{}
	for w := range star.Worker(e.Workers) {
		live[w] = !slices.Contains(e.Absent, w)
	}
	if s.begun { // another coordinator takes over; updates of the one before may follow
		s.next = live
		return
	}
	s.live, s.plan, s.begun = live, e.Plan, true
	l.From, l.Version, s.last = e.Version, e.Version, t
}

// takesOver records a takeover.
func (s *reader) takesOver(e runlog.Term) {
	if e.Over {
		return
	}
	if l := s.attempt; e.Version != l.Version {
		s.wrong("another coordinator takes over at version %d, but the updates before come to version %d", e.Version, l.Version)
	}
	clear(s.held) // their samples are handed out again
	s.attempt.Takeovers++
	s.taken = true
	if s.next != nil {
		s.live, s.next = s.next, nil
	}
}

// record records the batch of a worker.
func (s *reader) record(e runlog.Record) {
	l := s.attempt
	if math.IsNaN(e.Loss) {
		l.Losses++
	}
	// Members of a ring continue without a coordinator; the next one learns of their updates when they form another ring.
	if s.until >= 0 && e.Basis > s.until && !l.Ring {
		s.wrong("worker %d has computed with version %d, but the next coordinator takes over at version %d", e.Worker, e.Basis, s.until)
	}
	if l.Ring {
		return // updates list their samples
	}
	if b, ok := s.held[e.Worker]; ok {
		s.wrong("worker %d sent step %d while its step %d was not used or dropped", e.Worker, e.Step, b.step)
	}
	if e.Start < 0 {
		s.wrong("the record does not say where its samples begin")
		return
	}
	b := batch{e.Step, span{e.Start, e.Start + int64(e.Samples)}, nil, e.Basis, e.Loss, e.Norm2}
	if len(e.More) > 0 {
		var ok bool
		if b, ok = b.split(e.More); !ok {
			s.wrong("the record of %d samples has more than these in other places: %v", e.Samples, e.More)
		}
	}
	s.held[e.Worker] = b
}

// fire processes an update and reports whether it was made.
func (s *reader) fire(e runlog.Fire) bool {
	l := s.attempt
	if s.until >= 0 && e.Version > s.until {
		for _, w := range e.Workers {
			delete(s.held, w)
		}
		return false
	}
	want := l.Version
	if len(e.Workers) > 0 {
		want++
	}
	if e.Version != want {
		s.wrong("version %d follows version %d", e.Version, l.Version)
	}
	l.Version = e.Version
	if l.Ring && len(e.Pieces) != 2*len(e.Workers) {
		s.wrong("the update of %d workers has %d numbers of where their samples are", len(e.Workers), len(e.Pieces))
		return false
	}
	clear(s.members)
	u := Update{Version: e.Version, Plan: s.plan, Round: e.Round, Summed: len(e.Reports) > 0 || len(e.Workers) > 0 && len(e.Pieces) == 2*len(e.Workers)}
	for w, there := range s.live {
		if there || slices.Contains(e.Workers, w) {
			u.Live = append(u.Live, int(w))
		}
	}
	slices.Sort(u.Live)
	sum := int64(0)
	for i, w := range e.Workers {
		s.members[w] = true
		b, said, ok := s.used(e, i)
		if !ok {
			s.wrong("the update uses a gradient of worker %d without a record", w)
			continue
		}
		if l.Ring || s.held[w].span == b.span { // else the worker has returned with another batch
			delete(s.held, w)
		}
		sum += b.samples()
		for _, p := range append([]span{b.span}, b.more...) {
			if p.from < p.to { // empty if an earlier update has counted the batch
				l.applied = append(l.applied, p)
			}
		}
		g := Member{Worker: int(w), Step: b.step, Basis: b.basis, Start: b.span.from, Samples: int(b.samples()), Said: said, Loss: b.loss, Norm2: b.norm2}
		for _, p := range b.more {
			g.More = append(g.More, [2]int64{p.from, p.to - p.from})
		}
		u.Members = append(u.Members, g)
	}
	for _, w := range e.Dropped {
		delete(s.held, w)
	}
	if len(e.Workers) == 0 {
		return false
	}
	if s.before < 0 {
		s.before = e.Samples - sum
		l.Before, l.Samples = s.before, s.before
	}
	u.Before = l.Samples
	l.Updates = append(l.Updates, u)
	if l.Samples += sum; l.Samples != e.Samples {
		s.wrong("%d samples are applied after the update, its gradients make it %d", e.Samples, l.Samples)
		l.Samples = e.Samples
	}
	return true
}

// used is the gradient of the i-th worker of an update; said: the worker wrote a record of it. ok is false if the
// gradient is unknown.
func (s *reader) used(e runlog.Fire, i int) (b batch, said, ok bool) {
	b, said = s.held[e.Workers[i]]
	if len(e.Pieces) != 2*len(e.Workers) {
		return b, said, said
	}
	// There may be no record of a worker that left a tree, and with all-reduce records are not used.
	if at := (span{e.Pieces[2*i], e.Pieces[2*i] + e.Pieces[2*i+1]}); b.span != at {
		b, said = batch{span: at, basis: e.Version - 1}, false
		if i < len(e.Staleness) {
			b.basis -= e.Staleness[i]
		}
	}
	b.more = nil
	for k := 0; k+2 < len(e.More); k += 3 {
		if e.More[k] == int64(i) {
			b.more = append(b.more, span{e.More[k+1], e.More[k+1] + e.More[k+2]})
		}
	}
	return b, said, true
}

// made records the time of an update.
func (s *reader) made(t time.Duration) {
	l := s.attempt
	gap := t - s.last
	if l.Took = t; gap < -clockError && s.begun {
		l.Back = append(l.Back, fmt.Sprintf("%s:%d: the update is of %.3f s, the one before of %.3f s", s.name, s.number, t.Seconds(), s.last.Seconds()))
	}
	if gap > l.Worst {
		l.Worst, l.WorstAt = gap, s.last
	}
	if s.taken {
		l.Pauses, s.taken = append(l.Pauses, gap), false
	}
	s.last = t
}

// clockError is the tolerance for the time since the start of the job, which a coordinator gets from its predecessor.
const clockError = time.Second

// JudgeClocks checks the times of updates against real time, independent of wall clocks. all is the duration of the
// whole job.
func JudgeClocks(attempts []*Attempt, all time.Duration) Invariant {
	const name = "times are right"
	var sum time.Duration
	for _, l := range attempts {
		if len(l.Back) > 0 {
			return Invariant{name, false, l.Back[0] + more(len(l.Back)-1)}
		}
		sum += l.Took
	}
	if sum > all+clockError {
		return Invariant{name, false, fmt.Sprintf("by the run logs it went on for %v, and %v have passed", sum.Round(time.Millisecond), all.Round(time.Millisecond))}
	}
	return Invariant{name, true, fmt.Sprintf("%v of %v", sum.Round(time.Millisecond), all.Round(time.Millisecond))}
}

// Judge checks the promises against the attempts of a job, in order. saved are the versions of the checkpoints that can
// be loaded; the last one is the checkpoint at the end. broken describes checkpoints that claim to be complete and are
// not. stall is the longest allowed time between two updates. If a run log lacks lines, only that promise is judged.
func Judge(attempts []*Attempt, saved []int64, broken []string, exit int, stall time.Duration) []Invariant {
	verdict := func(name string, problems []string, fine string) Invariant {
		if len(problems) > 0 {
			return Invariant{name, false, problems[0] + more(len(problems)-1)}
		}
		return Invariant{name, true, fine}
	}
	for _, l := range attempts {
		if lacks := l.Missing.Means("what became of their samples cannot be judged"); lacks != "" {
			return []Invariant{{"a whole run log", false, l.Name + ": " + lacks}}
		}
	}
	var lineage, twice, stalls, losses []string
	var updates, deaths, returns, bad, reached int64
	var worst time.Duration
	for i, l := range attempts {
		lineage = append(lineage, l.problems...)
		if i > 0 && l.From > reached {
			lineage = append(lineage, fmt.Sprintf("%s begins with version %d, and the lives before came only to %d", l.Name, l.From, reached))
		}
		reached = max(reached, l.Version)
		updates, deaths, returns, bad = updates+l.Version-l.From, deaths+int64(l.Deaths), returns+int64(l.Returns), bad+int64(l.Losses)
		if worst = max(worst, l.Worst); l.Worst > stall {
			stalls = append(stalls, fmt.Sprintf("%s: no update for %v from %v on", l.Name, l.Worst.Round(time.Millisecond), l.WorstAt.Round(time.Millisecond)))
		}
	}
	if bad > 0 {
		losses = []string{fmt.Sprintf("%d losses are not finite", bad)}
	}
	var ended []string
	if n := len(attempts); n == 0 {
		ended = []string{"no run log"}
	} else if end := attempts[n-1]; exit != 0 {
		ended = []string{fmt.Sprintf("exit code %d", exit)}
	} else if !end.Ended {
		ended = []string{"exit code 0, and the run log does not come to its end"}
	} else if end.Samples+end.Wasted != end.Limit {
		ended = []string{fmt.Sprintf("%d samples applied and %d dropped, of %d", end.Samples, end.Wasted, end.Limit)}
	}
	for _, l := range attempts {
		twice = append(twice, l.overlaps()...)
	}
	// Across attempts the log does not say which samples a checkpoint held.
	if n := len(attempts); n == 1 && attempts[0].From == 0 && len(ended) == 0 && attempts[0].Wasted == 0 {
		if miss := attempts[0].missing(); miss != "" {
			twice = append(twice, miss)
		}
	}
	if n := len(attempts); n > 0 && len(ended) == 0 {
		if len(saved) == 0 {
			broken = append(broken, "none can be loaded")
		} else if last := saved[len(saved)-1]; last != attempts[n-1].Version {
			broken = append(broken, fmt.Sprintf("the last one is of version %d, the job ended at %d", last, attempts[n-1].Version))
		}
	}
	all := []Invariant{
		verdict("ended", ended, "exit code 0"),
		verdict("one lineage of versions", lineage, fmt.Sprintf("%d updates in %d lives", updates, len(attempts))),
		verdict("every sample once", twice, fmt.Sprintf("%d workers died, %d came back", deaths, returns)),
		verdict("no stall", stalls, fmt.Sprintf("at most %v between two updates", worst.Round(time.Millisecond))),
		verdict("finite losses", losses, "all"),
		verdict("checkpoints load", broken, fmt.Sprintf("%d of them", len(saved))),
	}
	if n := len(attempts); n > 0 && attempts[n-1].Ring {
		all = append(all, attempts[n-1].same())
	}
	return all
}

// same checks that the members of a ring have the same parameters at the end.
func (l *Attempt) same() Invariant {
	const name = "the same parameters, to the last bit, on all ranks"
	switch {
	case l.Alike < 0:
		return Invariant{name, false, "they were not compared at the end"}
	case l.Alike < min(l.Members, 2):
		return Invariant{name, false, fmt.Sprintf("at the end only %d of %d were compared", l.Alike, l.Members)}
	}
	return Invariant{name, true, fmt.Sprintf("%d of them", l.Alike)}
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// overlaps lists samples of the stream that were applied twice.
func (l *Attempt) overlaps() (problems []string) {
	slices.SortFunc(l.applied, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	end := int64(math.MinInt64)
	for _, s := range l.applied {
		if s.from < end {
			problems = append(problems, fmt.Sprintf("%s: samples %d to %d were applied twice", l.Name, s.from, min(end, s.to)-1))
		}
		end = max(end, s.to)
	}
	return problems
}

// missing describes the samples that a job of one attempt did not apply. It needs applied sorted by overlaps.
func (l *Attempt) missing() string {
	at := int64(0)
	for _, s := range l.applied {
		if s.from > at {
			return fmt.Sprintf("%s: samples %d to %d were never applied", l.Name, at, s.from-1)
		}
		at = max(at, s.to)
	}
	if at < l.Limit {
		return fmt.Sprintf("%s: samples %d to %d were never applied", l.Name, at, l.Limit-1)
	}
	return ""
}

// ReadAll reads the logs of a job's attempts.
func ReadAll(names []string, open func(name string) ([]byte, error)) ([]*Attempt, error) {
	var attempts []*Attempt
	for _, n := range names {
		b, err := open(n)
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, Read(b, n))
	}
	return attempts, nil
}
