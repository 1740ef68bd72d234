package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"star"
	"star/allreduce"
	"star/modes"
	"star/sim/trace"
	"star/train/optim"
)

// ErrScenario is in the error of a file that is no scenario.
var ErrScenario = errors.New("not a scenario")

// Scenario is a cluster and what it is to learn, as a YAML file gives it. docs/simulator.md lists its keys.
type Scenario struct {
	Name string `yaml:"name"`

	// Either workers that all take Iteration, or those of a trace with Iteration as its median.
	Workers   int      `yaml:"workers"`
	Trace     string   `yaml:"trace"`
	Iteration Duration `yaml:"iteration"` // of an equal share; default 600ms

	// Times of single workers, by rank, in place of Iteration.
	Times map[int]Duration `yaml:"times"`

	Fixed    *float64  `yaml:"fixed"`  // part of an iteration that no batch size changes; default 0.1
	Part     float64   `yaml:"part"`   // of the rest, what each part of a batch costs by itself, whatever its size
	Jitter   float64   `yaml:"jitter"` // standard deviation of the logarithm of the compute time
	Episodes []Trouble `yaml:"episodes"`

	Batch   int      `yaml:"batch"`   // samples of a worker; default 128
	Latency Duration `yaml:"latency"` // default 1ms
	// of the job, for baselines that go by the part of it that is done; default: not known
	Samples int64 `yaml:"samples"`

	// Machines and links. Without hosts every worker has its own, and pushing takes the part of an iteration that
	// Fixed says.
	Hosts   []Machine     `yaml:"hosts"`
	Bytes   float64       `yaml:"bytes"`   // of a gradient, and of the parameters
	Threads float64       `yaml:"threads"` // processors that a worker occupies; default 1
	Update  float64       `yaml:"update"`  // ns of a processor that a shard needs for each byte of each gradient
	Core    float64       `yaml:"core"`    // bytes per second between all hosts together; default: no limit
	Squeeze []Tightness   `yaml:"squeeze"`
	Arch    string        `yaml:"arch"` // ps (the default) or allreduce
	By      string        `yaml:"algorithm"`
	Fail    []Unavailable `yaml:"failures"`

	Learner Learning `yaml:"learner"`
	Target  float64  `yaml:"target"`
	Limit   Duration `yaml:"limit"`

	root *yaml.Node // where things are
}

// Machine is a Host.
type Machine struct {
	Name      string   `yaml:"name"`
	Workers   Ranks    `yaml:"workers"` // such as 0-3,6 or [0, 1]
	Servers   int      `yaml:"servers"`
	CPUs      float64  `yaml:"cpus"`
	Others    float64  `yaml:"others"`
	Bandwidth float64  `yaml:"bandwidth"` // bytes per second, in each direction
	Latency   Duration `yaml:"latency"`
}

// Tightness is a Squeeze, or several: with Every it comes back.
type Tightness struct {
	Host   string   `yaml:"host"`
	From   Duration `yaml:"from"`
	To     Duration `yaml:"to"`
	Factor float64  `yaml:"factor"`
	Every  Duration `yaml:"every"`
	Times  int      `yaml:"times"`
}

// Unavailable is a Failure.
type Unavailable struct {
	Worker int      `yaml:"worker"`
	At     Duration `yaml:"at"`
	Back   Duration `yaml:"back"`
}

// Ranks are workers: a list, or ranges such as 0-3,6.
type Ranks []star.Worker

// UnmarshalYAML reads them.
func (r *Ranks) UnmarshalYAML(n *yaml.Node) error {
	fail := func(n *yaml.Node) error {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q are no workers: want a list or ranges such as 0-3,6", n.Line, n.Value)}}
	}
	var parts []string
	switch n.Kind {
	case yaml.ScalarNode:
		parts = strings.Split(n.Value, ",")
	case yaml.SequenceNode:
		for _, c := range n.Content {
			parts = append(parts, c.Value)
		}
	default:
		return fail(n)
	}
	for _, part := range parts {
		first, last, has := strings.Cut(strings.TrimSpace(part), "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && has {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo < 0 || hi < lo || hi > 1<<20 {
			return fail(n)
		}
		for w := lo; w <= hi; w++ {
			*r = append(*r, star.Worker(w))
		}
	}
	return nil
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
	Momentum  float64 `yaml:"momentum"`  // quadratic: of the optimiser; default 0
	// quadratic: momentum (the default: heavy ball, plain SGD where momentum is 0) or dana
	Optimizer string  `yaml:"optimizer"`
	Noise     float64 `yaml:"noise"` // tally: φ in samples; default 1000
	Kappa     float64 `yaml:"kappa"` // tally: κ; default 0.05
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
		if before, of, ok := strings.Cut(msg, " in type "); ok {
			msg = strings.Replace(before, "field ", "unknown key ", 1)
			msg = strings.TrimSuffix(msg, " not found") + wanted(of)
		}
		return nil, fmt.Errorf("%s: %s", name, msg)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if d.Decode(new(yaml.Node)) != io.EOF {
		return nil, fmt.Errorf("%s: more than one document", name)
	}
	s.root = new(yaml.Node)
	if err := yaml.Unmarshal(text, s.root); err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	s.defaults()
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// wanted lists the keys that there are where one is unknown, in the type that the decoder names.
func wanted(of string) string {
	for _, t := range []reflect.Type{reflect.TypeFor[Scenario](), reflect.TypeFor[Machine](), reflect.TypeFor[Tightness](), reflect.TypeFor[Unavailable](), reflect.TypeFor[Trouble](), reflect.TypeFor[Learning]()} {
		if t.String() != of {
			continue
		}
		var keys []string
		for i := range t.NumField() {
			if key := t.Field(i).Tag.Get("yaml"); key != "" {
				keys = append(keys, key)
			}
		}
		return ": want one of " + strings.Join(keys, ", ")
	}
	return ""
}

// bad is an error about what is at path: keys and indices. It names the line of the last of them
// that exists.
func (s *Scenario) bad(path []any, format string, args ...any) error {
	line, n := 0, s.root
	if n != nil && n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, step := range path {
		at := n
		n = nil
		switch key := step.(type) {
		case string:
			for i := 0; at.Kind == yaml.MappingNode && i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == key {
					line, n = at.Content[i].Line, at.Content[i+1]
				}
			}
		case int:
			if at.Kind == yaml.SequenceNode && key < len(at.Content) {
				n = at.Content[key]
				line = n.Line
			}
		}
		if n == nil {
			break
		}
	}
	err := fmt.Errorf(format, args...)
	if line == 0 {
		return err
	}
	return fmt.Errorf("line %d: %w", line, err)
}

// given says whether the text has the key at path, whatever its value.
func (s *Scenario) given(path ...string) bool {
	n := s.root.Content[0] // there is a document
	for _, key := range path {
		at := n
		if n = nil; at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		for i := 0; at.Kind == yaml.MappingNode && i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == key {
				n = at.Content[i+1]
			}
		}
		if n == nil {
			return false
		}
	}
	return true
}

// defaults fills in what the text does not have. A zero in it is a zero.
func (s *Scenario) defaults() {
	if !s.given("iteration") {
		s.Iteration = Duration(600 * time.Millisecond)
	}
	fixed := 0.1
	if s.Hosts != nil {
		fixed = 0
	} else if !s.given("latency") {
		s.Latency = Duration(time.Millisecond)
	}
	if s.Fixed == nil {
		s.Fixed = &fixed
	}
	if s.Arch == "" {
		s.Arch = "ps"
	}
	if s.By == "" {
		s.By = "auto"
	}
	if !s.given("batch") {
		s.Batch = 128
	}
	l := &s.Learner
	number := func(f *float64, key string, v float64) {
		if !s.given("learner", key) {
			*f = v
		}
	}
	if l.Kind == "" {
		l.Kind = "quadratic"
	}
	if !s.given("learner", "dim") {
		l.Dim = 64
	}
	number(&l.Condition, "condition", 20)
	number(&l.Sigma, "sigma", 1)
	number(&l.Rate, "rate", 0.1)
	number(&l.Noise, "noise", 1000)
	number(&l.Kappa, "kappa", 0.05)
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
			var path []any
			for part := range strings.SplitSeq(key, ".") {
				path = append(path, part)
			}
			return s.bad(path, "%s is %v: want a number from %v to %v", key, v, least, most)
		}
		return nil
	}
	l := s.Learner
	const huge = 1e12
	for _, err := range []error{
		finite("fixed", *s.Fixed, 0, 1),
		finite("part", s.Part, 0, 1),
		finite("jitter", s.Jitter, 0, 3),
		finite("batch", float64(s.Batch), 1, modes.MaxBatch),
		finite("samples", float64(s.Samples), 0, 1<<53),
		finite("bytes", s.Bytes, 0, huge),
		finite("threads", s.Threads, 0, 1<<20),
		finite("update", s.Update, 0, huge),
		finite("core", s.Core, 0, 1e18),
		finite("target", s.Target, 0, huge),
		finite("learner.dim", float64(l.Dim), 1, 1<<20),
		finite("learner.condition", l.Condition, 1, huge),
		finite("learner.sigma", l.Sigma, 0, huge),
		finite("learner.rate", l.Rate, 1e-12, 2),
		finite("learner.momentum", l.Momentum, 0, 0.999),
		finite("learner.noise", l.Noise, 0, huge),
		finite("learner.kappa", l.Kappa, 0, huge),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case s.Iteration == 0:
		return s.bad([]any{"iteration"}, "iteration: it takes no time")
	case s.Threads == 0 && s.given("threads"):
		return s.bad([]any{"threads"}, "threads is 0: a worker occupies more than none")
	case l.Kind != "quadratic" && l.Kind != "tally":
		return s.bad([]any{"learner", "kind"}, "learner.kind is %q: want quadratic or tally", l.Kind)
	case !slices.Contains([]string{"", optim.Momentum, optim.DANA}, l.Optimizer) || l.Kind == "tally" && l.Optimizer != "":
		return s.bad([]any{"learner", "optimizer"}, "learner.optimizer is %q: a quadratic has momentum or dana, a tally none", l.Optimizer)
	case s.Trace == "" && (s.Workers < 1 || s.Workers > 1<<20):
		return s.bad([]any{"workers"}, "workers is %d: give 1 to %d of them, or a trace", s.Workers, 1<<20)
	case s.Trace != "" && s.Workers != 0:
		return s.bad([]any{"workers"}, "workers and trace: the trace says how many workers there are")
	case s.Trace != "" && len(s.Times) > 0:
		return s.bad([]any{"times"}, "times and trace: the trace says how long iterations take")
	}
	for w, d := range s.Times {
		if w < 0 || w >= s.Workers {
			return s.bad([]any{"times", strconv.Itoa(w)}, "times: worker %d is not in 0..%d", w, s.Workers-1)
		}
		if d == 0 {
			return s.bad([]any{"times", strconv.Itoa(w)}, "times: worker %d takes no time", w)
		}
	}
	for i, e := range s.Episodes {
		at := func(key string) []any { return []any{"episodes", i, key} }
		switch {
		case e.Worker < 0 || s.Trace == "" && e.Worker >= s.Workers:
			return s.bad(at("worker"), "episode %d: worker %d is not in 0..%d", i, e.Worker, s.Workers-1)
		case !(e.Factor >= 1 && e.Factor <= trace.MaxSlowdown):
			return s.bad(at("factor"), "episode %d: factor %v is not in 1..%d", i, e.Factor, trace.MaxSlowdown)
		case e.Network && s.Hosts != nil:
			return s.bad(at("network"), "episode %d: with hosts it is a link that becomes slow, not a worker: use squeeze", i)
		}
		if err := s.recurs("episode", "episodes", i, e.From, e.To, e.Every, e.Times, e.Rotate); err != nil {
			return err
		}
	}
	return s.checkHosts()
}

// recurs checks when something happens.
func (s *Scenario) recurs(what, key string, i int, from, to, every Duration, times int, rotate bool) error {
	at := func(k string) []any { return []any{key, i, k} }
	switch {
	case to <= from:
		return s.bad(at("to"), "%s %d: it ends at %v, before it begins at %v", what, i, time.Duration(to), time.Duration(from))
	case every == 0 && (times > 0 || rotate):
		return s.bad(at("times"), "%s %d: times and rotate need every", what, i)
	case every > 0 && (times < 1 || times > 10_000):
		return s.bad(at("times"), "%s %d: with every, times says how often: 1 to 10000, not %d", what, i, times)
	}
	return nil
}

// checkHosts checks what there is beside times.
func (s *Scenario) checkHosts() error {
	var a allreduce.Algorithm
	switch err := a.UnmarshalText([]byte(s.By)); {
	case s.Arch != "ps" && s.Arch != "allreduce":
		return s.bad([]any{"arch"}, "arch is %q: want ps or allreduce", s.Arch)
	case s.Arch == "ps" && s.By != "auto":
		return s.bad([]any{"algorithm"}, "algorithm is %q: only an all-reduce has one (arch: allreduce)", s.By)
	case err != nil || a != allreduce.AlgorithmAuto && schedules[a] == nil:
		return s.bad([]any{"algorithm"}, "algorithm is %q: want auto, ring, halving, doubling, tree or double-tree", s.By)
	case s.Bytes < 1 && (s.Hosts != nil || s.Arch == "allreduce"):
		return s.bad([]any{"hosts"}, "bytes is missing: how large is a gradient?")
	case s.Hosts == nil:
		for _, key := range []string{"threads", "update", "core", "squeeze"} {
			if err := s.bad([]any{key}, "%s needs hosts, and the scenario has none", key); strings.HasPrefix(err.Error(), "line ") {
				return err
			}
		}
	}
	for i, q := range s.Squeeze {
		if s.hostNamed(q.Host) < 0 {
			return s.bad([]any{"squeeze", i, "host"}, "squeeze %d: there is no host %q", i, q.Host)
		}
		if !(q.Factor > 1 && q.Factor <= trace.MaxSlowdown) {
			return s.bad([]any{"squeeze", i, "factor"}, "squeeze %d: factor %v: want a number above 1, up to %d", i, q.Factor, trace.MaxSlowdown)
		}
		if err := s.recurs("squeeze", "squeeze", i, q.From, q.To, q.Every, q.Times, false); err != nil {
			return err
		}
	}
	for i, f := range s.Fail {
		switch {
		case f.Worker < 0 || s.Trace == "" && f.Worker >= s.Workers:
			return s.bad([]any{"failures", i, "worker"}, "failure %d: worker %d is not in 0..%d", i, f.Worker, s.Workers-1)
		case f.Back != 0 && f.Back <= f.At:
			return s.bad([]any{"failures", i, "back"}, "failure %d: back at %v, before it is gone at %v", i, time.Duration(f.Back), time.Duration(f.At))
		}
	}
	if s.Hosts == nil || s.Trace != "" { // how many workers a trace has is known later
		return nil
	}
	if err := s.network().Check(s.Workers, s.Arch == "allreduce"); err != nil {
		return s.bad([]any{"hosts"}, "%s", strings.TrimPrefix(err.Error(), "sim: "))
	}
	return nil
}

func (s *Scenario) hostNamed(name string) int {
	return slices.IndexFunc(s.Hosts, func(m Machine) bool { return m.Name == name && name != "" })
}

// network is what the scenario says of hosts; nil: nothing.
func (s *Scenario) network() *Network {
	if s.Hosts == nil {
		return nil
	}
	n := &Network{Threads: s.Threads, Update: s.Update * 1e-9, Core: s.Core}
	for _, m := range s.Hosts {
		n.Hosts = append(n.Hosts, Host{Name: m.Name, Workers: m.Workers, Servers: m.Servers, CPUs: m.CPUs, Others: m.Others, Bandwidth: m.Bandwidth, Latency: time.Duration(m.Latency)})
	}
	for _, q := range s.Squeeze {
		for k := range max(1, q.Times) {
			shift := time.Duration(k) * time.Duration(q.Every)
			n.Squeeze = append(n.Squeeze, Squeeze{Host: s.hostNamed(q.Host), From: time.Duration(q.From) + shift, To: time.Duration(q.To) + shift, Factor: q.Factor})
		}
	}
	return n
}

// Config makes the scenario a run with a seed of its own. recorded is the trace that it names, or nil.
func (s *Scenario) Config(recorded *trace.Trace, seed uint64) (Config, error) {
	var t Times
	if s.Trace != "" {
		if recorded == nil {
			return Config{}, fmt.Errorf("sim: the trace %s was not read", s.Trace)
		}
		t = Recorded{Trace: recorded, Median: time.Duration(s.Iteration), Fixed: *s.Fixed, Part: s.Part}
	} else {
		steady := Steady{Iteration: make([]time.Duration, s.Workers), Fixed: *s.Fixed, Part: s.Part}
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
	c.Network, c.Bytes = s.network(), int64(s.Bytes)
	if c.Network != nil {
		if err := c.Network.Check(t.Workers(), s.Arch == "allreduce"); err != nil {
			return Config{}, err
		}
	}
	if s.Arch == "allreduce" {
		c.Ring = new(Ring)
		if err := c.Ring.Algorithm.UnmarshalText([]byte(s.By)); err != nil {
			return Config{}, err
		}
	}
	for i, f := range s.Fail {
		if f.Worker >= t.Workers() {
			return Config{}, fmt.Errorf("sim: failure %d: worker %d is not in 0..%d", i, f.Worker, t.Workers()-1)
		}
		c.Failures = append(c.Failures, Failure{Worker: star.Worker(f.Worker), At: time.Duration(f.At), Back: time.Duration(f.Back)})
	}
	l := s.Learner
	if l.Kind == "tally" {
		c.Learner = &Tally{Noise: l.Noise, Kappa: l.Kappa}
	} else {
		q := NewQuadratic(l.Dim, l.Condition, l.Sigma, l.Rate, seed)
		q.Momentum, q.DANA = l.Momentum, l.Optimizer == optim.DANA
		c.Learner = q
	}
	return c, nil
}
