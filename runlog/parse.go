package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"star"
)

// MaxFormat is the highest format of a run log that this program reads: its own.
const MaxFormat = 1

// longest is more than any run takes: 30 years, in seconds.
const longest = 1e9

// Fields that must be there begin as what none of them can be.
const absent = math.MinInt32

var none = Seconds(math.NaN())

// reader makes lines of a run log what they say.
type reader struct {
	workers int // of the job; -1: not known yet
	sequence
	sampled
}

// unknownKind is a line of a type that this program does not know.
type unknownKind struct{ kind string }

func (u unknownKind) Error() string { return fmt.Sprintf("a line of type %q", u.kind) }

// afterTrain are types of lines that no log has before the workers are there. Those with a rank are further ones.
var afterTrain = []string{"fire", "plan", "unheeded", "heard", "late", "admission", "predictor", "poison"}

func (p *reader) parse(number int, x text) (Line, error) {
	var of shape
	if x.entry == nil {
		var known bool
		if of, known = shapes[x.kind]; !known {
			return Line{}, unknownKind{x.kind}
		}
	}
	l := Line{Number: number}
	if err := p.fill(&l, of, x); err != nil {
		return l, fmt.Errorf("%s: %w", x.kind, err)
	}
	return l, nil
}

// fill reads what a line says.
func (p *reader) fill(l *Line, of shape, x text) (err error) {
	l.Entry = x.entry
	if x.kind == "record" {
		l.Entry, err = x.record()
	}
	switch e := l.Entry.(type) {
	case nil:
		kind := x.kind
		l.Entry, err = of.read(x.b, func(name string, w star.Worker) error { return p.rank(kind, name, w) })
	case Record:
		if err == nil {
			err = p.rank("record", "worker", e.Worker)
		}
		if err == nil && p.workers >= sampleFrom {
			p.complete(&e)
			l.Entry = e
		}
	case Fire:
		err = p.ranks(&e)
	}
	if err != nil {
		return err
	}
	if timed(l.Entry) {
		if err := x.t.check("t"); err != nil {
			return err
		}
		l.T = x.t.Duration()
	}
	if p.workers < 0 && slices.Contains(afterTrain, x.kind) {
		return errBeforeTrain
	}
	return p.follow(*l)
}

// follow holds a line against those before it.
func (p *reader) follow(l Line) error {
	switch e := l.Entry.(type) {
	case Start:
		if e.Format > MaxFormat {
			return fmt.Errorf("format is %d, and this program reads %d: use that which wrote the log, %q", e.Format, MaxFormat, e.Program)
		}
	case Train:
		if e.Workers > star.MaxWorkers {
			return fmt.Errorf("%d workers, at most %d", e.Workers, star.MaxWorkers)
		}
		if p.workers >= 0 {
			return errors.New("a second one")
		}
		p.workers = e.Workers
		for _, w := range e.Absent {
			if err := p.rank("train", "absent", w); err != nil {
				return err
			}
		}
	case Record:
		return p.record(&e, l.Number)
	case Sampled:
		p.every = e.Every
	case Fire:
		if len(e.Workers) != len(e.Staleness) {
			return fmt.Errorf("%d workers and %d values of staleness", len(e.Workers), len(e.Staleness))
		}
		return p.fire(e.Seq, l.Number)
	case Memory:
		for _, r := range e.Records {
			if err := p.rank("memory", "worker", r.Worker); err != nil {
				return err
			}
		}
	}
	return nil
}

var errBeforeTrain = errors.New("it comes before the line of type train")

// ranks checks all of a Fire.
func (p *reader) ranks(f *Fire) error {
	for _, list := range [...]struct {
		name string
		of   []star.Worker
	}{{"workers", f.Workers}, {"reports", f.Reports}, {"dropped", f.Dropped}} {
		for _, w := range list.of {
			if err := p.rank("fire", list.name, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// rank says whether a worker can be, in a line of that type.
func (p *reader) rank(kind, name string, w star.Worker) error {
	n := p.workers
	if n < 0 && (kind == "join" || kind == "train") { // how many there will be is not known yet
		n = star.MaxWorkers
	}
	switch {
	case w == absent:
		return fmt.Errorf("it has no %s, want a rank", name)
	case n < 0:
		return errBeforeTrain
	case w < 0 || int(w) >= n:
		return fmt.Errorf("%s is %d, want 0 to %d", name, w, n-1)
	}
	return nil
}

func (s Seconds) check(name string) error {
	switch {
	case s != s:
		return fmt.Errorf("it has no %s, want seconds", name)
	case s < 0 || s > longest:
		return fmt.Errorf("%s is %g s, want 0 to %g", name, float64(s), longest)
	}
	return nil
}

// shape is how the lines of one type are read.
type shape struct {
	// blank is an entry before anything was parsed.
	blank  reflect.Value
	fields []field
}

// field is one that is checked.
type field struct {
	name  string
	index []int
	least int64 // of a whole number; math.MinInt64: any
	most  bool  // at most 1
	given bool  // a text
}

var shapes = func() map[string]shape {
	m := map[string]shape{}
	for _, e := range kinds {
		m[e.kind()] = shapeOf(reflect.TypeOf(e))
	}
	return m
}()

var (
	typeRank    = reflect.TypeFor[star.Worker]()
	typeRanks   = reflect.TypeFor[[]star.Worker]()
	typeSeconds = reflect.TypeFor[Seconds]()
	typeNumber  = reflect.TypeFor[Number]()
)

func shapeOf(t reflect.Type) shape {
	s := shape{blank: reflect.New(t).Elem()}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		c := field{name: name, index: f.Index, least: math.MinInt64}
		check := f.Tag.Get("check")
		c.most, c.given = check == "max=1", check == "given"
		v := s.blank.FieldByIndex(f.Index)
		if least, ok := strings.CutPrefix(check, "min="); ok {
			c.least, _ = strconv.ParseInt(least, 10, 64)
			if options == "" {
				v.SetInt(absent)
			}
		}
		switch f.Type {
		case typeRank:
			v.SetInt(absent)
		case typeNumber:
			v.SetFloat(math.NaN())
		case typeSeconds:
			if options == "" {
				v.SetFloat(math.NaN())
			}
		case typeRanks:
		default:
			if check == "" {
				continue
			}
		}
		s.fields = append(s.fields, c)
	}
	return s
}

// read reads a line. rank checks one.
func (s *shape) read(b []byte, rank func(name string, w star.Worker) error) (Entry, error) {
	to := reflect.New(s.blank.Type())
	to.Elem().Set(s.blank)
	if err := json.Unmarshal(b, to.Interface()); err != nil {
		return nil, err
	}
	for i := range s.fields {
		if err := s.fields[i].check(to.Elem(), rank); err != nil {
			return nil, err
		}
	}
	return to.Elem().Interface().(Entry), nil
}

func (f *field) check(entry reflect.Value, rank func(string, star.Worker) error) error {
	v := entry.FieldByIndex(f.index)
	switch x := v.Interface().(type) {
	case star.Worker:
		return rank(f.name, x)
	case []star.Worker:
		for _, w := range x {
			if err := rank(f.name, w); err != nil {
				return err
			}
		}
	case Seconds:
		return x.check(f.name)
	case Number:
		if f.most && x > 1 {
			return fmt.Errorf("%s is %g, want at most 1", f.name, float64(x))
		}
	case string:
		if f.given && x == "" {
			return fmt.Errorf("it has no %s", f.name)
		}
	default:
		switch n := v.Int(); {
		case n == absent:
			return fmt.Errorf("it has no %s, want a number", f.name)
		case n < f.least:
			return fmt.Errorf("%s is %d, want at least %d", f.name, n, f.least)
		}
	}
	return nil
}

// sequence notices what is in a run log twice, or out of order. Steps may be missing: workers leave and come back.
type sequence struct {
	steps []numbered // by worker
	seq   numbered
}

// numbered is a number of the log's own count, and the line that has it.
type numbered struct {
	number int64
	line   int // 0: none yet
}

// record takes the next record, of that line.
func (s *sequence) record(r *Record, line int) error {
	if r.At < 0 {
		return fmt.Errorf("at is %g s, want at least 0", r.At.Seconds())
	}
	if n := int(r.Worker) + 1 - len(s.steps); n > 0 {
		s.steps = append(s.steps, make([]numbered, n)...)
	}
	if last := s.steps[r.Worker]; last.line > 0 && r.Step <= last.number {
		return fmt.Errorf("step %d of worker %d after its step %d in line %d: want each step once, in order", r.Step, r.Worker, last.number, last.line)
	}
	s.steps[r.Worker] = numbered{r.Step, line}
	return nil
}

// fire takes the number of the next firing.
func (s *sequence) fire(seq int64, line int) error {
	if seq <= s.seq.number {
		return fmt.Errorf("seq is %d, after %d in line %d: want each firing once, in order", seq, s.seq.number, s.seq.line)
	}
	s.seq = numbered{seq, line}
	return nil
}
