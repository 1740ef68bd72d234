package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"star/trace"
)

// ErrScenario is in the error of a file that is no scenario.
var ErrScenario = errors.New("not a scenario")

// Scenario is a cluster and what it is to learn, as a YAML file gives it. docs/operations.md lists its keys.
type Scenario struct {
	Name string `yaml:"name"`

	// Either workers that all take Iteration, or those of a trace, whose median takes Iteration.
	Workers   int      `yaml:"workers"`
	Trace     string   `yaml:"trace"`
	Iteration Duration `yaml:"iteration"` // of an equal share; default 600ms

	// Times of single workers, by rank, in place of Iteration.
	Times map[int]Duration `yaml:"times"`

	Fixed    *float64  `yaml:"fixed"`  // part of an iteration that no batch size changes; default 0.1
	Jitter   float64   `yaml:"jitter"` // standard deviation of the logarithm of the compute time
	Episodes []Trouble `yaml:"episodes"`

	Batch   int      `yaml:"batch"`   // samples of a worker; default 128
	Latency Duration `yaml:"latency"` // default 1ms
	Samples int64    `yaml:"samples"` // of the job, for baselines that go by the part of it that is done; default: not known

	Learner Learning `yaml:"learner"`
	Target  float64  `yaml:"target"`
	Limit   Duration `yaml:"limit"`
}

// Trouble is an Episode, or several: with Every it comes back, with Rotate it moves on to the next worker each time.
type Trouble struct {
	Worker  int      `yaml:"worker"`
	From    Duration `yaml:"from"`
	To      Duration `yaml:"to"`
	Factor  float64  `yaml:"factor"`
	Network bool     `yaml:"network"`
	Every   Duration `yaml:"every"`
	Times   int      `yaml:"times"` // how often, with Every
	Rotate  bool     `yaml:"rotate"`
}

// Learning says which Learner: quadratic (the default) or tally.
type Learning struct {
	Kind      string  `yaml:"kind"`
	Dim       int     `yaml:"dim"`       // quadratic: coordinates; default 64
	Condition float64 `yaml:"condition"` // quadratic: largest by smallest curvature; default 20
	Sigma     float64 `yaml:"sigma"`     // quadratic: noise of one sample; default 1
	Rate      float64 `yaml:"rate"`      // quadratic: learning rate; default 0.1
	Noise     float64 `yaml:"noise"`     // tally: φ in samples; default 1000
	Kappa     float64 `yaml:"kappa"`     // tally: κ; default 0.05
}

// Duration is a time such as 600ms.
type Duration time.Duration

// UnmarshalYAML reads what time.ParseDuration does, not below zero.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a duration of at least 0, such as 600ms", n.Line, n.Value)}}
	}
	*d = Duration(v)
	return nil
}

// ParseScenario reads a scenario; name is for its errors, which begin with it and, where there is one, the line.
func ParseScenario(name string, text []byte) (*Scenario, error) {
	s, err := parseScenario(name, text)
	if err != nil {
		return nil, &scenarioError{err.Error()}
	}
	return s, nil
}

type scenarioError struct{ msg string }

func (e *scenarioError) Error() string        { return e.msg }
func (e *scenarioError) Is(target error) bool { return target == ErrScenario }

func parseScenario(name string, text []byte) (*Scenario, error) {
	s := &Scenario{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(s)
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the scenario is empty", name)
	}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		msg := te.Errors[0]
		if before, _, ok := strings.Cut(msg, " in type "); ok {
			msg = strings.Replace(before, "field ", "unknown key ", 1)
			msg = strings.TrimSuffix(msg, " not found")
		}
		return nil, fmt.Errorf("%s: %s", name, msg)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if d.Decode(new(yaml.Node)) != io.EOF {
		return nil, fmt.Errorf("%s: more than one document", name)
	}
	s.defaults()
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func (s *Scenario) defaults() {
	set := func(d *Duration, v time.Duration) {
		if *d == 0 {
			*d = Duration(v)
		}
	}
	set(&s.Iteration, 600*time.Millisecond)
	set(&s.Latency, time.Millisecond)
	if s.Fixed == nil {
		fixed := 0.1
		s.Fixed = &fixed
	}
	if s.Batch == 0 {
		s.Batch = 128
	}
	l := &s.Learner
	number := func(f *float64, v float64) {
		if *f == 0 {
			*f = v
		}
	}
	if l.Kind == "" {
		l.Kind = "quadratic"
	}
	if l.Dim == 0 {
		l.Dim = 64
	}
	number(&l.Condition, 20)
	number(&l.Sigma, 1)
	number(&l.Rate, 0.1)
	number(&l.Noise, 1000)
	number(&l.Kappa, 0.05)
	if s.Target == 0 && s.Limit == 0 {
		s.Target = 2
		if l.Kind == "tally" {
			s.Target = 1000
		}
	}
}

func (s *Scenario) check() error {
	finite := func(key string, v, least, most float64) error {
		if math.IsNaN(v) || v < least || v > most {
			return fmt.Errorf("%s is %v: want a number from %v to %v", key, v, least, most)
		}
		return nil
	}
	l := s.Learner
	const huge = 1e12
	for _, err := range []error{
		finite("fixed", *s.Fixed, 0, 1),
		finite("jitter", s.Jitter, 0, 3),
		finite("batch", float64(s.Batch), 1, 1<<30),
		finite("samples", float64(s.Samples), 0, 1<<53),
		finite("target", s.Target, 0, huge),
		finite("learner.dim", float64(l.Dim), 1, 1<<20),
		finite("learner.condition", l.Condition, 1, huge),
		finite("learner.sigma", l.Sigma, 0, huge),
		finite("learner.rate", l.Rate, 1e-12, 2),
		finite("learner.noise", l.Noise, 0, huge),
		finite("learner.kappa", l.Kappa, 0, huge),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case l.Kind != "quadratic" && l.Kind != "tally":
		return fmt.Errorf("learner.kind is %q: want quadratic or tally", l.Kind)
	case s.Trace == "" && (s.Workers < 1 || s.Workers > 1<<20):
		return fmt.Errorf("workers is %d: give 1 to %d of them, or a trace", s.Workers, 1<<20)
	case s.Trace != "" && s.Workers != 0:
		return fmt.Errorf("workers and trace: the trace says how many workers there are")
	case s.Trace != "" && len(s.Times) > 0:
		return fmt.Errorf("times and trace: the trace says how long iterations take")
	}
	for w, d := range s.Times {
		if w < 0 || w >= s.Workers {
			return fmt.Errorf("times: worker %d is not in 0..%d", w, s.Workers-1)
		}
		if d == 0 {
			return fmt.Errorf("times: worker %d takes no time", w)
		}
	}
	for i, e := range s.Episodes {
		switch {
		case e.Worker < 0 || s.Trace == "" && e.Worker >= s.Workers:
			return fmt.Errorf("episode %d: worker %d is not in 0..%d", i, e.Worker, s.Workers-1)
		case !(e.Factor >= 1 && e.Factor <= trace.MaxSlowdown):
			return fmt.Errorf("episode %d: factor %v is not in 1..%d", i, e.Factor, trace.MaxSlowdown)
		case e.To <= e.From:
			return fmt.Errorf("episode %d: it ends at %v, before it begins at %v", i, time.Duration(e.To), time.Duration(e.From))
		case e.Every == 0 && (e.Times > 0 || e.Rotate):
			return fmt.Errorf("episode %d: times and rotate need every", i)
		case e.Every > 0 && (e.Times < 1 || e.Times > 10_000):
			return fmt.Errorf("episode %d: with every, times says how often: 1 to 10000, not %d", i, e.Times)
		}
	}
	return nil
}

// Config makes the scenario a run with a seed of its own. recorded is the trace that it names, or nil.
func (s *Scenario) Config(recorded *trace.Trace, seed uint64) (Config, error) {
	var t Times
	if s.Trace != "" {
		if recorded == nil {
			return Config{}, fmt.Errorf("sim: the trace %s was not read", s.Trace)
		}
		t = Recorded{Trace: recorded, Median: time.Duration(s.Iteration), Fixed: *s.Fixed}
	} else {
		steady := Steady{Iteration: make([]time.Duration, s.Workers), Fixed: *s.Fixed}
		for w := range steady.Iteration {
			steady.Iteration[w] = time.Duration(s.Iteration)
			if d, ok := s.Times[w]; ok {
				steady.Iteration[w] = time.Duration(d)
			}
		}
		t = steady
	}
	if s.Jitter > 0 {
		t = Varied{Times: t, Sigma: s.Jitter, Seed: seed}
	}
	if len(s.Episodes) > 0 {
		n := t.Workers()
		troubled := Troubled{Times: t, Episodes: make([][]Episode, n)}
		for i, e := range s.Episodes {
			if e.Worker >= n {
				return Config{}, fmt.Errorf("sim: episode %d: worker %d is not in 0..%d", i, e.Worker, n-1)
			}
			for k := range max(1, e.Times) {
				w, shift := e.Worker, time.Duration(k)*time.Duration(e.Every)
				if e.Rotate {
					w = (w + k) % n
				}
				troubled.Episodes[w] = append(troubled.Episodes[w], Episode{From: time.Duration(e.From) + shift, To: time.Duration(e.To) + shift,
					Factor: e.Factor, Network: e.Network})
			}
		}
		t = troubled
	}
	c := Config{Times: t, Batch: s.Batch, Latency: time.Duration(s.Latency), Samples: s.Samples, Target: s.Target, Limit: time.Duration(s.Limit)}
	l := s.Learner
	if l.Kind == "tally" {
		c.Learner = &Tally{Noise: l.Noise, Kappa: l.Kappa}
	} else {
		c.Learner = NewQuadratic(l.Dim, l.Condition, l.Sigma, l.Rate, seed)
	}
	return c, nil
}
