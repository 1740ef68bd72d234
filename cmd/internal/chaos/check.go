package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
)

// Invariant is a promise, and whether it was kept.
type Invariant struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Life is what the run log of one life of a job tells.
type Life struct {
	Name    string
	Limit   int64 // samples of the job
	From    int64 // version that it began with
	Before  int64 // samples applied when it began
	Version int64 // the last
	Samples int64 // applied at its end
	Worst   time.Duration
	WorstAt time.Duration
	Losses  int  // that are not finite
	Ended   bool // it has a summary
	Deaths  int  // workers that left
	Reigns  int  // other coordinators that took it over
	Returns int  // workers that came back
	Wasted  int64
	Saved   []Save
	SavedAs []string // their names
	Ring    bool     // with all-reduce: every member has the parameters
	Members int      // of the last update that are still there
	Alike   int      // of them, whose parameters were compared at the end and are the same to the last bit; -1: none were

	Took time.Duration // until the last update, since the job began
	Back []string      // updates that are said to be before the one before

	// Pauses are the times from the last update of one coordinator to the first of the next one.
	Pauses []time.Duration

	// Updates are what it has made, in order.
	Updates []Update

	applied  []span // of the stream, by this life
	problems []string
}

type span struct{ from, to int64 }

// Update is one that a life has made.
type Update struct {
	Version int64 // that it made
	Before  int64 // samples applied before it
	Plan    string
	Live    []int    // the workers of the job
	Round   int      // the samples that weights are parts of, where a ring was formed with other workers than are there; 0: the log does not say
	Members []Member // whose gradients are in it
	Summed  bool     // not one by one: a tree or a ring added them up on their way
}

// Member is one gradient in an Update.
type Member struct {
	Worker  int
	Step    int64
	Basis   int64 // version of the parameters that it was to be computed with
	Start   int64 // its samples in the stream
	Samples int
	More    [][2]int64 // with a queue: where else some of them are, and how many
	Out     bool       // it counts for nothing: poison

	First bool // of its worker, since that has come to the job, or its coordinator has: it has asked for the parameters

	Said        bool // its worker has said, in a record:
	Loss, Norm2 float64
}

// leavesOut notes that an update before was made without a gradient of it that does not belong.
func (l *Life) leavesOut(m *line) {
	if m.Over || m.Cause == "flipped" || m.Policy == "off" {
		return
	}
	for i := len(l.Updates) - 1; i >= max(0, len(l.Updates)-8); i-- {
		for j := range l.Updates[i].Members {
			if g := &l.Updates[i].Members[j]; g.Worker == m.Worker && g.Step == m.Step {
				g.Out = true
			}
		}
	}
}

// Save is a checkpoint that a run log speaks of.
type Save struct {
	Version int64
	Err     string // why there is none; empty: it was written
}

// line is what is read of a line of a run log.
type line struct {
	Type    string          `json:"type"`
	T       float64         `json:"t"`
	ID      string          `json:"id"`
	Worker  int             `json:"worker"`
	Step    int64           `json:"step"`
	Basis   int64           `json:"basis"`
	Start   *int64          `json:"start"`
	More    []int64         `json:"more"` // with a queue: where else samples are, and how many; of an update of a ring: before each whose they are
	Samples int64           `json:"samples"`
	Loss    json.RawMessage `json:"loss"`
	Version int64           `json:"version"`
	Workers ranks           `json:"workers"`
	Dropped []int           `json:"dropped"`
	Pieces  []int64         `json:"pieces"`
	Shards  *int            `json:"shards"`
	Final   bool            `json:"final"`
	Alike   int             `json:"alike"`
	Limit   int64           `json:"limit"`
	Wasted  int64           `json:"wasted_samples"`

	Norm2   json.RawMessage `json:"norm2"`
	Stale   json.RawMessage `json:"staleness"` // of an update: a list; of the summary: how it was spread
	Reports []int           `json:"reports"`
	Round   int             `json:"round"`
	Plan    string          `json:"plan"`
	Absent  []int           `json:"absent"`
	Cause   string          `json:"cause"`
	Policy  string          `json:"policy"`

	Over bool            `json:"over"`
	Err  json.RawMessage `json:"error"` // of a checkpoint: a text; of a predictor: a number
}

// ranks are workers, or, in a line that says how many there are, all of them.
type ranks []int

func (r *ranks) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]int)(r))
	}
	var n int
	if json.Unmarshal(b, &n) == nil && n > 0 && n < maxRanks {
		for w := range n {
			*r = append(*r, w)
		}
	}
	return nil
}

// maxRanks is more than a job can have.
const maxRanks = 1 << 16

// finite is a number of a line, NaN if it is not finite.
func finite(b json.RawMessage) float64 {
	var v float64
	if len(b) == 0 || string(b) == "null" || json.Unmarshal(b, &v) != nil {
		return math.NaN()
	}
	return v
}

// batch is what a worker said last and nobody has used yet.
type batch struct {
	step int64
	span span
	more []span // what else is in it

	basis       int64
	loss, norm2 float64
	first       bool // since it came to the job, or its coordinator did
}

// split is b where some of its samples are not behind its first one: of each of these, where they begin, and how many there are.
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

// samples is how many it has.
func (b batch) samples() int64 {
	n := b.span.to - b.span.from
	for _, s := range b.more {
		n += s.to - s.from
	}
	return n
}

// Read reads the run log of one life. An error means that it is no run log; what a log shows that must not be is in the Life.
func Read(r io.Reader, name string) (*Life, error) {
	s := newReader(name)
	return s.life, s.read(r, name, -1)
}

// ReadReigns reads the run logs of one life of a job that had several coordinators, one after the other. An update that one of them has
// written down counts only if the next one begins behind it: no shard may have heard of it.
func ReadReigns(logs [][]byte, names []string) (*Life, error) {
	s := newReader(names[0])
	for i, b := range logs {
		until := int64(-1)
		for j := i + 1; j < len(logs) && until < 0; j++ {
			until = begins(logs[j])
		}
		if err := s.read(bytes.NewReader(b), names[i], until); err != nil {
			return nil, err
		}
	}
	return s.life, nil
}

// begins is the version at which the reign of a log begins; -1: it did not come to that.
func begins(log []byte) int64 {
	for text := range bytes.Lines(log) {
		var m line
		if json.Unmarshal(text, &m) == nil && m.Type == "term" && !m.Over {
			return m.Version
		}
	}
	return -1
}

// reader is how far the logs of a life have been read.
type reader struct {
	life   *Life
	held   map[int]batch
	last   float64 // time of the last update
	begun  bool
	before int64 // samples applied before the first update; -1: there was none yet
	taken  bool  // no update since another coordinator took over

	members map[int]bool // whose gradients the last update is of, and who are still there

	live map[int]bool // the workers of the job
	next map[int]bool // those of the coordinator that takes over, when it does; nil: none does
	plan string
	came map[int]bool // who has said nothing since it came
}

func newReader(name string) *reader {
	return &reader{life: &Life{Name: name, Alike: -1}, held: map[int]batch{}, before: -1, members: map[int]bool{}, came: map[int]bool{}}
}

// trains notes with whom a training begins, or goes on.
func (s *reader) trains(m *line) {
	live := map[int]bool{}
	for _, w := range m.Workers {
		live[w] = !slices.Contains(m.Absent, w)
		s.came[w] = true
	}
	if s.begun {
		s.next = live // updates of the coordinator before may follow
		return
	}
	s.live, s.plan = live, m.Plan
}

// read reads one log, but no updates after version until; -1: all.
func (s *reader) read(r io.Reader, name string, until int64) error {
	l, held := s.life, s.held
	in := bufio.NewReaderSize(r, 1<<20)
	trains := false
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // a line that was cut off is the last of a killed process
		} else if err != nil {
			return err
		}
		var m line
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("%s:%d: want a JSON object: %w", name, number, err)
		}
		wrong := func(format string, a ...any) {
			if len(l.problems) < 20 {
				l.problems = append(l.problems, fmt.Sprintf("%s:%d: ", name, number)+fmt.Sprintf(format, a...))
			}
		}
		switch m.Type {
		case "train":
			l.Ring = m.Shards != nil && *m.Shards == 0
			trains = true
			s.trains(&m)
			if l.Limit = m.Limit; s.begun {
				continue // another coordinator takes over
			}
			l.From, l.Version, s.last, s.begun = m.Version, m.Version, m.T, true
		case "term":
			if m.Over {
				continue
			}
			if m.Version != l.Version {
				wrong("another coordinator takes over at version %d, but the updates before come to version %d", m.Version, l.Version)
			}
			clear(held) // handed out again
			l.Reigns++
			s.taken = true
			if s.next != nil {
				s.live, s.next = s.next, nil
			}
		case "record":
			if len(m.Loss) > 0 && math.IsNaN(finite(m.Loss)) {
				l.Losses++
			}
			if until >= 0 && m.Basis > until && !l.Ring { // members of a ring go on by themselves, and the next coordinator learns of it when they form another one
				wrong("worker %d has computed with version %d, but the next coordinator takes over at version %d", m.Worker, m.Basis, until)
			}
			if l.Ring {
				continue // updates say themselves what is in them
			}
			if b, ok := held[m.Worker]; ok {
				wrong("worker %d sent step %d while its step %d was not used or dropped", m.Worker, m.Step, b.step)
			}
			if m.Start == nil {
				wrong("the record does not say where its samples begin")
				continue
			}
			held[m.Worker] = batch{m.Step, span{*m.Start, *m.Start + m.Samples}, nil, m.Basis, finite(m.Loss), finite(m.Norm2), s.came[m.Worker]}
			if len(m.More) > 0 {
				b, ok := held[m.Worker].split(m.More)
				if !ok {
					wrong("the record of %d samples has more than these in other places: %v", m.Samples, m.More)
				}
				held[m.Worker] = b
			}
			delete(s.came, m.Worker)
		case "plan":
			s.plan = m.Plan
		case "poison":
			l.leavesOut(&m)
		case "leave":
			l.Deaths++
			if trains {
				s.live[m.Worker] = false
			}
			delete(held, m.Worker) // others do it
			delete(s.members, m.Worker)
		case "join":
			if s.begun {
				l.Returns++
			}
			s.came[m.Worker] = true
			if trains {
				s.live[m.Worker] = true
			}
		case "fire", "recall":
			if m.Type == "recall" && m.Version <= l.Version {
				continue
			}
			if until >= 0 && m.Version > until {
				for _, w := range m.Workers {
					delete(held, w)
				}
				continue
			}
			want := l.Version
			if len(m.Workers) > 0 {
				want++
			}
			if m.Version != want {
				wrong("version %d follows version %d", m.Version, l.Version)
			}
			l.Version = m.Version
			var sum int64
			if l.Ring && len(m.Pieces) != 2*len(m.Workers) {
				wrong("the update of %d workers has %d numbers of where their samples are", len(m.Workers), len(m.Pieces))
				continue
			}
			clear(s.members)
			u := Update{Version: m.Version, Plan: s.plan, Round: m.Round, Summed: len(m.Reports) > 0}
			for w, there := range s.live {
				if there || slices.Contains(m.Workers, w) {
					u.Live = append(u.Live, w)
				}
			}
			slices.Sort(u.Live)
			for i, w := range m.Workers {
				s.members[w] = true
				b, ok := held[w]
				said := ok
				if l.Ring || len(m.Pieces) == 2*len(m.Workers) { // of a worker in a tree that is gone there may be no record
					at := span{m.Pieces[2*i], m.Pieces[2*i] + m.Pieces[2*i+1]}
					if u.Summed = true; b.span != at {
						b, said = batch{span: at, basis: m.Version - 1}, false
						var stale []int64
						if json.Unmarshal(m.Stale, &stale) == nil && i < len(stale) {
							b.basis -= stale[i]
						}
					}
					b.more = nil
					for k := 0; k+2 < len(m.More); k += 3 {
						if m.More[k] == int64(i) {
							b.more = append(b.more, span{m.More[k+1], m.More[k+1] + m.More[k+2]})
						}
					}
					ok = true
				}
				if !ok {
					wrong("the update uses a gradient of worker %d that nobody has seen", w)
					continue
				}
				if l.Ring || held[w].span == b.span { // else it has come back since, with another batch
					delete(held, w)
				}
				sum += b.samples()
				l.applied = append(append(l.applied, b.span), b.more...)
				g := Member{Worker: w, Step: b.step, Basis: b.basis, Start: b.span.from, Samples: int(b.samples()), First: b.first, Said: said, Loss: b.loss, Norm2: b.norm2}
				for _, s := range b.more {
					g.More = append(g.More, [2]int64{s.from, s.to - s.from})
				}
				u.Members = append(u.Members, g)
			}
			for _, w := range m.Dropped {
				delete(held, w)
			}
			if len(m.Workers) == 0 {
				continue
			}
			if s.before < 0 {
				s.before = m.Samples - sum
				l.Before, l.Samples = s.before, s.before
			}
			u.Before = l.Samples
			l.Updates = append(l.Updates, u)
			if l.Samples += sum; l.Samples != m.Samples {
				wrong("%d samples are applied after the update, its gradients make it %d", m.Samples, l.Samples)
				l.Samples = m.Samples
			}
			if m.Type == "recall" {
				continue // nobody knows when it was made
			}
			gap := time.Duration((m.T - s.last) * float64(time.Second))
			if l.Took = time.Duration(m.T * float64(time.Second)); gap < -clockError && s.begun {
				l.Back = append(l.Back, fmt.Sprintf("%s:%d: the update is of %.3f s, the one before of %.3f s", name, number, m.T, s.last))
			}
			if gap > l.Worst {
				l.Worst, l.WorstAt = gap, time.Duration(s.last*float64(time.Second))
			}
			if s.taken {
				l.Pauses, s.taken = append(l.Pauses, gap), false
			}
			s.last = m.T
		case "eval":
			if m.Final {
				l.Alike, l.Members = m.Alike, len(s.members)
			}
		case "checkpoint":
			s := Save{Version: m.Version}
			if len(m.Err) > 0 && json.Unmarshal(m.Err, &s.Err) != nil {
				wrong("why a checkpoint failed is no text: %.100s", m.Err)
			}
			l.Saved, l.SavedAs = append(l.Saved, s), append(l.SavedAs, m.ID)
		case "summary":
			l.Ended, l.Wasted = true, m.Wasted
			if s.before >= 0 && m.Samples != l.Samples-s.before { // it counts this life
				wrong("the summary says %d samples, the updates %d", m.Samples, l.Samples-s.before)
			}
		}
	}
	return nil
}

// clockError is by how much a coordinator may be mistaken about the time since the job began, which another one has told it.
const clockError = time.Second

// JudgeClocks says whether the times of updates are those that have passed, whatever clocks say: a life of a job is part of all, which took so long.
func JudgeClocks(lives []*Life, all time.Duration) Invariant {
	const name = "times are right"
	var sum time.Duration
	for _, l := range lives {
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

// number is how many updates a life has made.
func number(l *Life) int64 { return l.Version - l.From }

// Judge says which promises the lives of a job have kept, in their order. saved are the versions of the checkpoints that can be loaded, the
// last one of which is that of the end; broken says of checkpoints that claim to be complete and are not. stall is the longest
// time between two updates that is allowed.
func Judge(lives []*Life, saved []int64, broken []string, exit int, stall time.Duration) []Invariant {
	verdict := func(name string, problems []string, fine string) Invariant {
		if len(problems) > 0 {
			return Invariant{name, false, problems[0] + more(len(problems)-1)}
		}
		return Invariant{name, true, fine}
	}
	var lineage, twice, stalls, losses []string
	var updates, deaths, returns, bad, reached int64
	var worst time.Duration
	for i, l := range lives {
		lineage = append(lineage, l.problems...)
		if i > 0 && l.From > reached {
			lineage = append(lineage, fmt.Sprintf("%s begins with version %d, and the lives before came only to %d", l.Name, l.From, reached))
		}
		reached = max(reached, l.Version)
		updates, deaths, returns, bad = updates+number(l), deaths+int64(l.Deaths), returns+int64(l.Returns), bad+int64(l.Losses)
		if worst = max(worst, l.Worst); l.Worst > stall {
			stalls = append(stalls, fmt.Sprintf("%s: no update for %v from %v on", l.Name, l.Worst.Round(time.Millisecond), l.WorstAt.Round(time.Millisecond)))
		}
	}
	if bad > 0 {
		losses = []string{fmt.Sprintf("%d losses are not finite", bad)}
	}
	var ended []string
	if n := len(lives); n == 0 {
		ended = []string{"no run log"}
	} else if end := lives[n-1]; exit != 0 || !end.Ended {
		ended = []string{fmt.Sprintf("exit code %d", exit)}
	} else if end.Samples+end.Wasted != end.Limit {
		ended = []string{fmt.Sprintf("%d samples applied and %d dropped, of %d", end.Samples, end.Wasted, end.Limit)}
	}
	for _, l := range lives {
		twice = append(twice, l.overlaps()...)
	}
	if n := len(lives); n == 1 && lives[0].From == 0 && len(ended) == 0 && lives[0].Wasted == 0 { // across lives the log does not say what a checkpoint held
		if miss := lives[0].missing(); miss != "" {
			twice = append(twice, miss)
		}
	}
	if n := len(lives); n > 0 && len(ended) == 0 {
		if len(saved) == 0 {
			broken = append(broken, "none can be loaded")
		} else if last := saved[len(saved)-1]; last != lives[n-1].Version {
			broken = append(broken, fmt.Sprintf("the last one is of version %d, the job ended at %d", last, lives[n-1].Version))
		}
	}
	all := []Invariant{
		verdict("ended", ended, "exit code 0"),
		verdict("one lineage of versions", lineage, fmt.Sprintf("%d updates in %d lives", updates, len(lives))),
		verdict("every sample once", twice, fmt.Sprintf("%d workers died, %d came back", deaths, returns)),
		verdict("no stall", stalls, fmt.Sprintf("at most %v between two updates", worst.Round(time.Millisecond))),
		verdict("finite losses", losses, "all"),
		verdict("checkpoints load", broken, fmt.Sprintf("%d of them", len(saved))),
	}
	if n := len(lives); n > 0 && lives[n-1].Ring {
		all = append(all, lives[n-1].same())
	}
	return all
}

// same says whether the members of a ring have the same parameters at the end.
func (l *Life) same() Invariant {
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

// overlaps says which samples of the stream were applied twice.
func (l *Life) overlaps() (problems []string) {
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

// missing says which samples were not applied by a job of one life; overlaps has sorted them.
func (l *Life) missing() string {
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

// ReadAll reads the logs of a job's lives.
func ReadAll(names []string, open func(name string) ([]byte, error)) ([]*Life, error) {
	var lives []*Life
	for _, n := range names {
		b, err := open(n)
		if err != nil {
			return nil, err
		}
		l, err := Read(bytes.NewReader(b), n)
		if err != nil {
			return nil, err
		}
		lives = append(lives, l)
	}
	return lives, nil
}

// Began says whether the run log of that name tells that the training has begun.
func Began(name string) bool {
	b, err := os.ReadFile(name)
	return err == nil && bytes.Contains(b, []byte(`{"type":"train"`))
}
