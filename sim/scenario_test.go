package sim

import (
	"errors"
	"strings"
	"testing"
	"time"

	"star"
	"star/trace"
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
		"":                           "empty",
		"workers: 2\nworker: 3\n":    "line 2: unknown key worker",
		"workers: two\n":             "line 1",
		"workers: 0\n":               "workers is 0",
		"workers: 2\ntrace: a\n":     "workers and trace",
		"workers: 2\nfixed: .nan\n":  "fixed is NaN",
		"workers: 2\nfixed: 2\n":     "fixed is 2",
		"workers: 2\niteration: -1s": `line 2: "-1s" is not a duration`,
		"workers: 2\ntimes: {2: 1s}": "worker 2 is not in 0..1",
		"workers: 2\nepisodes: [{worker: 5, factor: 2, to: 1s}]":                       "episode 0: worker 5",
		"workers: 2\nepisodes: [{worker: 1, factor: 0.5, to: 1s}]":                     "factor 0.5",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, from: 2s, to: 1s}]":             "ends at 1s",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, to: 1s, rotate: true}]":         "need every",
		"workers: 2\nepisodes: [{worker: 1, factor: 2, to: 1s, every: 1s, times: -1}]": "times says how often",
		"workers: 2\nlearner: {kind: magic}":                                           "learner.kind",
		"workers: 2\n---\nworkers: 3\n":                                                "more than one document",
		"workers: [":                                                                   "did not find",
	} {
		if s, err := ParseScenario("a.yaml", []byte(text)); !errors.Is(err, ErrScenario) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "a.yaml: ") {
			t.Errorf("%q: %+v, %v; want %q", text, s, err, want)
		}
	}
}

func FuzzScenario(f *testing.F) {
	f.Add([]byte("workers: 2\nlearner: {kind: tally}\nlimit: 1s\n"))
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
