package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"star/coord/evaluate"
	"star/modes"
)

// picky is an architecture that rejects what a test wants it to.
type picky struct{ config, plan error }

func (p picky) Check(*Config) error   { return p.config }
func (p picky) Fits(modes.Plan) error { return p.plan }

func TestCheck(t *testing.T) {
	planted := errors.New("planted")
	for _, c := range []struct {
		name   string
		change func(*Config)
		arch   picky
		says   string
	}{
		{"valid", func(*Config) {}, picky{}, ""},
		{"no workers", func(c *Config) { c.MaxWorkers = 0 }, picky{}, "at least 1 worker"},
		{"too many workers at first", func(c *Config) { c.Workers = 3 }, picky{}, "cannot begin with 3 workers"},
		{"the architecture", func(*Config) {}, picky{config: planted}, "planted"},
		{"no batch", func(c *Config) { c.Batch = 0 }, picky{}, "a batch needs at least 1 sample"},
		{"a scale", func(c *Config) { c.Scale = "cubic" }, picky{}, `unknown update scale "cubic"`},
		{"no end", func(c *Config) { c.Steps = 0 }, picky{}, "the job has no end"},
		{"no judge", func(c *Config) { c.Validation = new(Validation) }, picky{}, "a validation without a judge"},
		{"a plan of more workers", func(c *Config) { c.Plan = modes.SSGD(3) }, picky{}, "worker 2"},
		{"a plan for the architecture", func(*Config) {}, picky{plan: planted}, "coord: planted"},
		{"poison", func(c *Config) { c.Poison = "eat" }, picky{}, `unknown policy for poison "eat"`},
	} {
		cfg := Config{MaxWorkers: 2, Batch: 4, Steps: 3}
		c.change(&cfg)
		err := cfg.Check(c.arch)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
	cfg := Config{MaxWorkers: 2, Batch: 4, Steps: 3, DeadAfter: time.Second, Validation: &Validation{Judge: func(evaluate.Evidence) evaluate.Verdict { return evaluate.Verdict{} }}}
	if err := cfg.Check(picky{}); err != nil || !cfg.Norm || cfg.Servers != 1 || cfg.DeadAfter != time.Second || cfg.StallAfter == 0 || cfg.Poison != "skip" || cfg.RunLog == nil || len(cfg.Plan.Groups) != 1 {
		t.Errorf("%v, %+v", err, cfg)
	}
}

func TestFinish(t *testing.T) {
	full, part := errors.New("the disk is full"), errors.New("a part is missing")
	for _, c := range []struct {
		name                 string
		save, failed         error
		successor, completed bool
		path                 string
		err                  error
		calls                string
	}{
		{name: "written", path: "new", calls: "save"},
		{name: "not written", save: full, err: full, calls: "save"},
		{name: "a part failed", failed: part, err: part, calls: "discard"},
		{name: "completed by the previous one", save: full, successor: true, completed: true, path: "old", calls: "save saved"},
		{name: "a part failed, and completed", failed: part, successor: true, completed: true, path: "old", calls: "saved"},
		{name: "a part failed after a takeover", failed: part, successor: true, err: part, calls: "saved discard"},
	} {
		var calls []string
		cfg := Config{
			Save:    func(Checkpoint) (string, error) { calls = append(calls, "save"); return "new", c.save },
			Saved:   func(string) (string, bool) { calls = append(calls, "saved"); return "old", c.completed },
			Discard: func(string) { calls = append(calls, "discard") },
		}
		path, err := cfg.Finish(&Checkpoint{ID: "c5"}, c.failed, c.successor)
		if path != c.path || err != c.err || strings.Join(calls, " ") != c.calls {
			t.Errorf("%s: %q, %v after %v", c.name, path, err, calls)
		}
	}
}
