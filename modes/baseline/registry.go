package baseline

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"star"
	"star/modes"
	"star/ps/rule"
)

// Scheme decides when gradients become an update, by the rules of one paper. Its calls are in order of the events.
type Scheme interface {
	// Observe takes a worker's record of one gradient.
	Observe(r star.Record)

	// Fired takes each update and returns the next plan; false: the present one stays.
	Fired(u Update) (Decision, bool)

	// Leave records that a worker has left. A later record of it means that it is back.
	Leave(w star.Worker)
}

// Update is one update of the parameters.
type Update struct {
	At      time.Duration // since the run began
	Workers []star.Worker // with a gradient in it; valid during the call
	Samples int64         // of gradients applied so far, this update included
	Limit   int64         // of the job, in samples; 0: unknown
}

// Decision is a plan with the reason for it.
type Decision struct {
	Plan modes.Plan
	Why  string
}

// Job is the properties of a job that a scheme depends on.
type Job struct {
	Workers int
	Batch   int // samples of one worker in one iteration, with equal shares
	// Ring: the job is an all-reduce. Members then stop between parts of a batch, unless all of them are waited for.
	Ring bool
}

// Outer makes updates where workers train locally for some steps and send the change of their parameters:
// w ← OuterOpt(w, Σ cᵢ·(w − wᵢ)).
type Outer struct {
	Rate     float64 // learning rate of the outer optimiser
	Momentum float64 // of Nesterov; 0: none
}

// Local is a worker's behaviour between two releases under a plan with Plan.Local.
type Local struct {
	Outer Outer

	// Pull is the fraction of its distance from the shards' parameters by which a worker moves towards them in each
	// round, and they towards it (α of EASGD). 0: it starts each round from the shards' parameters.
	Pull float64

	// Reset forgets the state of the worker's own optimiser at each release.
	Reset bool
}

// Made is a baseline for one job.
type Made struct {
	Plan    modes.Plan // initial plan
	Scheme  Scheme     // nil: the plan does not change
	Local   *Local     // nil: workers send gradients
	Resizes bool       // it changes the sizes of mini-batches while the job runs
	Notice  string     // a warning for the user about the scheme with these settings; empty: none
	// Rule is how shards apply gradients, if not by the job's optimiser; nil: by the optimiser.
	Rule rule.Spec

	// Cancel: a worker that misses an update stops computing for it, between the parts of its mini-batch
	// (Plan.Micro). In an all-reduce with closed rounds workers stop without it; there their partial gradients then
	// correct the next update.
	Cancel bool
}

// Kind is the type of a setting's values.
type Kind uint8

const (
	Number Kind = iota // within Min and Max
	Whole              // a whole number within Min and Max
	Choice             // one of Of
	Span               // a duration, of seconds within Min and Max; 0s where Min is 0
	Wholes             // a whole number within Min and Max, or one for each worker, by rank: 64/64/32
)

// Setting is a parameter of a scheme.
type Setting struct {
	Name     string
	Default  string // empty: derived from the job, as About says
	Source   string // of the default: paper | ours
	About    string
	Kind     Kind
	Min, Max float64
	Of       []string
}

// Entry is a scheme with a name.
type Entry struct {
	Name     string
	Paper    string // authors, venue, year
	About    string
	Settings []Setting
	Ring     bool // an all-reduce can run it too
	Artefact bool // not of a paper: the behaviour of a released program
	Make     func(Job, Values) (Made, error)
}

// Values are the checked settings of a scheme.
type Values map[string]string

// Number is the value of a setting of kind Number or Whole; NaN where it has neither value nor default.
func (v Values) Number(name string) float64 {
	f, err := strconv.ParseFloat(v[name], 64)
	if err != nil {
		return math.NaN()
	}
	return f
}

// Whole is the value of a setting of kind Whole, or def where it has neither value nor default.
func (v Values) Whole(name string, def int) int {
	k, err := strconv.Atoi(v[name])
	if err != nil {
		return def
	}
	return k
}

// Wholes is the value of a setting of kind Wholes for the given number of workers; def for each if it has neither value
// nor default.
func (v Values) Wholes(name string, workers, def int) ([]int, error) {
	parts := strings.Split(v[name], "/")
	if v[name] == "" {
		parts = []string{strconv.Itoa(def)}
	}
	if len(parts) != 1 && len(parts) != workers {
		return nil, fmt.Errorf("%s=%s has %d numbers: want one, or one for each of %d workers", name, clip(v[name]), len(parts), workers)
	}
	ks := make([]int, workers)
	for w := range ks {
		ks[w], _ = strconv.Atoi(parts[w%len(parts)]) // checked by Parse
	}
	return ks, nil
}

// Span is the value of a setting of kind Span.
func (v Values) Span(name string) time.Duration {
	d, _ := time.ParseDuration(v[name]) // checked by Parse
	return d
}

// Spec is a baseline, as given to --baseline.
type Spec struct {
	Entry  Entry
	Values Values
}

// Entries lists all schemes by name.
func Entries() []Entry {
	all := []Entry{adPSGD, artefactLBBSP, artefactSyncSwitch, backup, dcASGD, delayedNesterov, diloco, dropCompute, easgd, kasync, kbatchAsync, kbatchSync, ksync, lbbsp, lgc, localSGD, lookahead, postLocal, ssp, syncSwitch, zeno}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Names lists the names of all schemes.
func Names() string {
	var names []string
	for _, e := range Entries() {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}

// Parse reads NAME or NAME:key=value,key=value. Errors name the mistake and the valid choices.
func Parse(text string) (Spec, error) {
	name, rest, has := strings.Cut(text, ":")
	all := Entries()
	at := slices.IndexFunc(all, func(e Entry) bool { return e.Name == name })
	if at < 0 {
		return Spec{}, fmt.Errorf("baseline: %q is unknown: want one of %s", clip(name), Names())
	}
	s := Spec{Entry: all[at], Values: Values{}}
	for _, set := range s.Entry.Settings {
		s.Values[set.Name] = set.Default
	}
	given := map[string]bool{}
	for part := range strings.SplitSeq(rest, ",") {
		if !has {
			break
		}
		key, value, ok := strings.Cut(part, "=")
		i := slices.IndexFunc(s.Entry.Settings, func(set Setting) bool { return set.Name == key })
		switch {
		case !ok:
			return Spec{}, fmt.Errorf("baseline %s: %q is not key=value", name, clip(part))
		case i < 0:
			return Spec{}, fmt.Errorf("baseline %s: setting %q is unknown: want %s", name, clip(key), s.Entry.settings())
		case given[key]:
			return Spec{}, fmt.Errorf("baseline %s: setting %s is given twice", name, key)
		}
		given[key] = true
		if err := s.Entry.Settings[i].check(value); err != nil {
			return Spec{}, fmt.Errorf("baseline %s: %s=%s: %w", name, key, clip(value), err)
		}
		s.Values[key] = value
	}
	return s, nil
}

// String is s as Parse reads it, with every setting that has a value.
func (s Spec) String() string {
	var parts []string
	for _, set := range s.Entry.Settings {
		if v := s.Values[set.Name]; v != "" {
			parts = append(parts, set.Name+"="+v)
		}
	}
	if len(parts) == 0 {
		return s.Entry.Name
	}
	return s.Entry.Name + ":" + strings.Join(parts, ",")
}

// Make makes the baseline for a job. An error names the setting that does not fit the job.
func (s Spec) Make(j Job) (Made, error) {
	if j.Workers < 1 || j.Batch < 1 {
		return Made{}, fmt.Errorf("baseline %s: a job of %d workers with batches of %d samples: at least 1 of each is needed", s.Entry.Name, j.Workers, j.Batch)
	}
	if j.Batch > modes.MaxBatch {
		return Made{}, fmt.Errorf("baseline %s: batches of %d samples: want at most %d", s.Entry.Name, j.Batch, modes.MaxBatch)
	}
	m, err := s.Entry.Make(j, s.Values)
	if err != nil {
		return m, fmt.Errorf("baseline %s: %w", s.Entry.Name, err)
	}
	if err := m.Plan.Validate(j.Workers); err != nil {
		return m, fmt.Errorf("baseline %s: %w", s.Entry.Name, err)
	}
	return m, nil
}

func (e Entry) settings() string {
	if len(e.Settings) == 0 {
		return "no settings"
	}
	var names []string
	for _, s := range e.Settings {
		names = append(names, s.Name)
	}
	return "one of " + strings.Join(names, ", ")
}

func (s Setting) check(value string) error {
	within := func(x float64, unit string) error {
		if !(x >= s.Min && x <= s.Max) {
			return fmt.Errorf("want %v to %v%s", s.Min, s.Max, unit)
		}
		return nil
	}
	switch s.Kind {
	case Choice:
		if !slices.Contains(s.Of, value) {
			return fmt.Errorf("want one of %s", strings.Join(s.Of, ", "))
		}
		return nil
	case Wholes:
		for part := range strings.SplitSeq(value, "/") {
			k, err := strconv.Atoi(part)
			if err != nil {
				return fmt.Errorf("want a whole number from %v to %v, or one for each worker, such as 64/64/32", s.Min, s.Max)
			}
			if err := within(float64(k), ""); err != nil {
				return err
			}
		}
		return nil
	case Span:
		d, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("want a duration such as 120ms")
		}
		return within(d.Seconds(), " s")
	case Whole:
		k, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("want a whole number from %v to %v", s.Min, s.Max)
		}
		return within(float64(k), "")
	default:
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("want a number from %v to %v", s.Min, s.Max)
		}
		return within(x, "")
	}
}

// clip limits how much of a setting an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
