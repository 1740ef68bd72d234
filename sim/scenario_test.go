package sim

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/sim/trace"
	"star/train/optim"
)

func TestScenario(t *testing.T) {
	s, err := ParseScenario("a.yaml", []byte(`
name: one slow
workers: 4
iteration: 100ms
fixed: 0
times: {3: 300ms}
episodes:
  - {worker: 0, from: 10s, to: 20s, factor: 2, every: 30s, times: 3, rotate: true}
learner: {kind: tally}
`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Config(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		worker   int
		at, want time.Duration
	}{
		{0, 0, 100 * ms}, {3, 0, 300 * ms}, {0, 10 * time.Second, 200 * ms}, {0, 20 * time.Second, 100 * ms},
		{0, 40 * time.Second, 100 * ms}, {1, 40 * time.Second, 200 * ms}, {2, 79 * time.Second, 200 * ms}, {3, 100 * time.Second, 300 * ms},
	} {
		if got := c.Times.Spend(star.Worker(x.worker), 7, x.at, 1).Total(); got != x.want {
			t.Errorf("worker %d at %v: %v, want %v", x.worker, x.at, got, x.want)
		}
	}
	if c.Target != 1000 || c.Batch != 128 || c.Latency != ms {
		t.Errorf("%+v", c)
	}
}

func TestScenarioOfATrace(t *testing.T) {
	recorded, err := trace.Read(strings.NewReader("step,worker,duration,slowdown,rel\n0,0,1,1,0.5\n0,1,4,4,2\n"), "t.csv")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseScenario("a.yaml", []byte("trace: t.csv\niteration: 100ms\nfixed: 0.5\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Config(nil, 1); err == nil {
		t.Error("a scenario without its trace")
	}
	c, err := s.Config(recorded, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Times.Spend(1, 3, 0, 0.5); got != (Spent{Compute: 50 * ms, Push: 100 * ms}) {
		t.Errorf("half a share of worker 1: %+v", got)
	}
}

func TestScenarioRejects(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "empty",
		"workers: 2\nworker: 3\n":              "a.yaml: line 2: unknown key worker: want one of name, workers, trace, iteration,",
		"workers: 2\nlearner: {colour: red}\n": "a.yaml: line 2: unknown key colour: want one of kind, dim, condition, sigma, rate, momentum, optimizer, noise, kappa",
		"workers: two\n":                       "line 1",
		"workers: 0\n":                         "workers is 0",
		"workers: 2\ntrace: a\n":               "workers and trace",
		"workers: 2\nfixed: .nan\n":            "a.yaml: line 2: fixed is NaN: want a number from 0 to 1",
		"workers: 2\nfixed: 2\n":               "fixed is 2",
		"workers: 2\niteration: -1s":           `line 2: "-1s" is not a duration`,
		"workers: 2\ntimes: {2: 1s}":           "worker 2 is not in 0..1",
		"workers: 2\nepisodes: [{worker: 5, factor: 2, to: 1s}]":                                                               "episode 0: worker 5",
		"workers: 2\nepisodes: [{worker: 1, factor: 0.5, to: 1s}]":                                                             "factor 0.5",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, from: 2s, to: 1s}]":                                                     "ends at 1s",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, to: 1s, rotate: true}]":                                                 "need every",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, to: 1s, every: 1s, times: -1}]":                                         "times says how often",
		"workers: 2\nlearner: {kind: magic}":                                                                                   "learner.kind",
		"workers: 2\n---\nworkers: 3\n":                                                                                        "more than one document",
		"workers: [":                                                                                                           "did not find",
		"workers: 2\n\ntimes:\n  0: 1s\n  1: 0s\n":                                                                             "line 5: times: worker 1 takes no time",
		"workers: 2\nepisodes:\n  - {worker: 0, factor: 2, to: 1s}\n  - worker: 1\n    factor: .nan\n    to: 1s\n":             "line 5: episode 1: factor NaN",
		"workers: 2\nlearner:\n  sigma: -1\n":                                                                                  "line 3: learner.sigma is -1",
		"workers: 2\nhosts: [{workers: 0-1, servers: 1}]\n":                                                                    "bytes is missing",
		"workers: 2\nbytes: 1\nhosts:\n  - {workers: 0, servers: 1}\n":                                                         "line 3: worker 1 is on no host",
		"workers: 2\nbytes: 1\nhosts: [{workers: 1-0, servers: 1}]\n":                                                          `line 3: "1-0" are no workers`,
		"workers: 2\nbytes: 1\nhosts: [{workers: [0, x], servers: 1}]\n":                                                       "are no workers",
		"workers: 2\nbytes: 1\nhosts: [{workers: 0-1, servers: 1, cpus: -2}]\n":                                                "none may be negative",
		"workers: 2\nbytes: 1\nhosts: [{name: a, workers: 0-1, servers: 1}]\nsqueeze: [{host: b, to: 1s, factor: 2}]":          `line 4: squeeze 0: there is no host "b"`,
		"workers: 2\nbytes: 1\nhosts: [{name: a, workers: 0-1, servers: 1}]\nsqueeze: [{host: a, to: 1s, factor: 1}]":          "line 4: squeeze 0: factor 1",
		"workers: 2\nbytes: 1\nhosts: [{workers: 0-1, servers: 1}]\nepisodes: [{worker: 1, to: 1s, factor: 3, network: true}]": "line 4: episode 0: with hosts",
		"workers: 2\nupdate: 3\n":                                                                                              "line 2: update needs hosts",
		"workers: 2\narch: mesh\n":                                                                                             `line 2: arch is "mesh": want ps or allreduce`,
		"workers: 2\nalgorithm: ring\n":                                                                                        "only an all-reduce",
		"workers: 2\nbytes: 8\narch: allreduce\nalgorithm: no":                                                                 `line 4: algorithm is "no": want auto, ring`,
		"workers: 2\nfailures: [{worker: 2, at: 1s}]":                                                                          "line 2: failure 0: worker 2 is not in 0..1",
		"workers: 2\nfailures: [{worker: 1, at: 2s, back: 1s}]":                                                                "line 2: failure 0: back at 1s",
	} {
		if s, err := ParseScenario("a.yaml", []byte(text)); !errors.Is(err, ErrScenario) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "a.yaml: ") {
			t.Errorf("%q: %+v, %v; want %q", text, s, err, want)
		}
	}
}

// A zero in the text is a zero, and no default.
func TestScenarioZeros(t *testing.T) {
	s, err := ParseScenario("a.yaml", []byte("workers: 2\nlatency: 0s\nlearner: {sigma: 0, noise: 0, kappa: 0}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Learner; s.Latency != 0 || l.Sigma != 0 || l.Noise != 0 || l.Kappa != 0 || l.Rate != 0.1 || l.Dim != 64 || s.Batch != 128 {
		t.Errorf("%+v", s)
	}
	for text, want := range map[string]string{
		"workers: 2\niteration: 0s\n":           "line 2: iteration: it takes no time",
		"workers: 2\nbatch: 0\n":                "line 2: batch is 0",
		"workers: 2\nlearner:\n  rate: 0\n":     "line 3: learner.rate is 0",
		"workers: 2\nlearner:\n  dim: 0\n":      "line 3: learner.dim is 0",
		"workers: 2\nlearner: {condition: 0}\n": "line 2: learner.condition is 0",
		"workers: 2\nthreads: 0\n":              "line 2: threads is 0",
	} {
		if _, err := ParseScenario("a.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// The scenarios that come with STAR are scenarios, and those that need no trace run.
func TestScenariosOfTheRepository(t *testing.T) {
	paths, err := filepath.Glob("../bench/scenarios/*.yaml")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d scenarios, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ParseScenario(path, text)
		if err != nil {
			t.Error(err)
			continue
		}
		if s.Trace != "" {
			continue
		}
		c, err := s.Config(nil, 1)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		bound, err := FirstOrder(c, 30)
		if err != nil || !(bound > 0 && bound < 0.8) {
			t.Errorf("%s: a bound of %v, %v", path, bound, err)
		}
		if err := c.Use("auto", optim.Config{}); err != nil {
			t.Fatal(err)
		}
		c.Limit = 30 * time.Second
		if r, err := Run(c); err != nil || r.Updates < 5 {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
}

// Everything that a scenario says of hosts is in the run's network.
func TestScenarioOfHosts(t *testing.T) {
	s, err := ParseScenario("a.yaml", []byte(`
workers: 5
bytes: 1e6
threads: 2
update: 0.5
core: 7e9
hosts:
  - {name: a, workers: "0-1,4", cpus: 4, others: 1, bandwidth: 1e8, latency: 1ms}
  - {name: b, workers: [2, 3], servers: 2}
squeeze:
  - {host: a, from: 1s, to: 2s, factor: 3, every: 10s, times: 2}
failures:
  - {worker: 4, at: 5s, back: 6s}
`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Config(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := Network{Threads: 2, Update: 0.5e-9, Core: 7e9,
		Hosts: []Host{
			{Name: "a", Workers: []star.Worker{0, 1, 4}, CPUs: 4, Others: 1, Bandwidth: 1e8, Latency: ms},
			{Name: "b", Workers: []star.Worker{2, 3}, Servers: 2},
		},
		Squeeze: []Squeeze{{From: time.Second, To: 2 * time.Second, Factor: 3}, {From: 11 * time.Second, To: 12 * time.Second, Factor: 3}},
	}
	if !reflect.DeepEqual(*c.Network, want) || c.Bytes != 1e6 || c.Latency != 0 || c.Ring != nil {
		t.Errorf("%+v, want %+v; bytes %d, latency %v", *c.Network, want, c.Bytes, c.Latency)
	}
	if f := (Failure{Worker: 4, At: 5 * time.Second, Back: 6 * time.Second}); len(c.Failures) != 1 || c.Failures[0] != f {
		t.Errorf("%+v, want %+v", c.Failures, f)
	}
	if got := c.Times.Spend(0, 0, 0, 1); got.Push != 0 {
		t.Errorf("with hosts pushing takes %v beside what the links take", got.Push)
	}
}

func FuzzScenario(f *testing.F) {
	f.Add([]byte("workers: 2\nlearner: {kind: tally}\nlimit: 1s\n"))
	f.Add([]byte("workers: 2\nbytes: 9\nhosts: [{name: a, workers: 0, servers: 1}, {workers: [1], cpus: 2}]\nsqueeze: [{host: a, to: 1s, factor: 2}]\nfailures: [{worker: 1, at: 1s}]\n"))
	f.Add([]byte("workers: 3\nepisodes: [{worker: 1, factor: 2, to: 1s, every: 1s, times: 3}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseScenario("a", b)
		if err != nil || s.Trace != "" || s.Workers > 100 || s.Learner.Dim > 1000 {
			return
		}
		c, err := s.Config(nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c.Times.Spend(0, 0, 0, 1).Total() < 0 {
			t.Fatal("negative time")
		}
	})
}

// A learner with momentum: auto knows of it, and does not choose what is stale by most of a round, where without it
// that is the best.
func TestMomentumOfAScenario(t *testing.T) {
	for momentum, asgd := range map[string]bool{"0": true, "0.9": false} {
		s, err := ParseScenario("s", []byte("workers: 8\njitter: 0.05\ntimes: {3: 1800ms}\nlearner: {momentum: "+momentum+", rate: 0.02, sigma: 3}\ntarget: 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Config(nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Use("auto", optim.Config{}); err != nil {
			t.Fatal(err)
		}
		c.Limit = time.Minute
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if k := len(r.Switches); k == 0 || (r.Switches[k-1].Plan.Equal(modes.ASGD(8))) != asgd {
			t.Errorf("momentum %s: %v", momentum, r.Switches)
		}
	}
	if _, err := ParseScenario("s", []byte("workers: 2\nlearner: {momentum: 1}\n")); err == nil || !strings.Contains(err.Error(), "learner.momentum") {
		t.Errorf("momentum 1: %v", err)
	}
}
