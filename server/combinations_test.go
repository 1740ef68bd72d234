package server

import (
	"errors"
	"strings"
	"testing"

	"star/coord/engine"
	"star/job"
	"star/job/combinations"
	"star/modes/baseline"
)

// kinds are the features of baselines, by name: written down here, so that the table is compared with something else
// than the code that uses it.
var kinds = map[string]combinations.Set{
	"": 0,

	"backup":        combinations.Of(combinations.Fixed),
	"k-sync":        combinations.Of(combinations.Fixed),
	"k-async":       combinations.Of(combinations.Fixed),
	"k-batch-sync":  combinations.Of(combinations.Fixed, combinations.ServersOnly),
	"k-batch-async": combinations.Of(combinations.Fixed, combinations.ServersOnly),
	"ssp":           combinations.Of(combinations.Fixed, combinations.ServersOnly, combinations.Slack),

	"lb-bsp":               combinations.Of(combinations.Deciding),
	"sync-switch":          combinations.Of(combinations.Deciding),
	"dropcompute":          combinations.Of(combinations.Deciding, combinations.Parts),
	"artefact-lb-bsp":      combinations.Of(combinations.Deciding, combinations.ServersOnly),
	"artefact-sync-switch": combinations.Of(combinations.Deciding, combinations.ServersOnly),

	"dc-asgd": combinations.Of(combinations.OwnRule, combinations.ServersOnly),
	"zeno++":  combinations.Of(combinations.OwnRule, combinations.ServersOnly),
	"ad-psgd": combinations.Of(combinations.OwnRule, combinations.ServersOnly, combinations.ADPSGD),
	"lgc":     combinations.Of(combinations.OwnRule, combinations.LGC, combinations.Parts),

	"local-sgd":        combinations.Of(combinations.OwnSteps, combinations.Parts),
	"post-local-sgd":   combinations.Of(combinations.OwnSteps),
	"diloco":           combinations.Of(combinations.Fixed, combinations.Outward, combinations.Parts),
	"delayed-nesterov": combinations.Of(combinations.Fixed, combinations.Outward, combinations.ServersOnly),
	"look-ahead":       combinations.Of(combinations.Fixed, combinations.Outward, combinations.ServersOnly),
	"easgd":            combinations.Of(combinations.OwnSteps, combinations.Parts),
}

// ringParts are baselines with workers that stop between parts of a batch in an all-reduce.
var ringParts = map[string]bool{"backup": true, "k-sync": true, "k-async": true}

// modeKinds are those of modes.
var modeKinds = map[string]combinations.Set{
	"ssgd":                        0,
	"auto":                        0,
	"tree=0(1,2)":                 combinations.Of(combinations.Tree),
	"ssgd micro=4 cap=10ms":       combinations.Of(combinations.Parts),
	"ssgd local=4":                combinations.Of(combinations.Parts, combinations.Strides),
	"ssgd local=4 outer=nesterov": combinations.Of(combinations.Parts, combinations.Outward),
	"asgd ahead=3":                combinations.Of(combinations.Slack),
}

// cell is a job of the table.
type cell struct {
	c   Config
	set combinations.Set
}

// with is every cell of cells with each of the choices made.
func with(cells []cell, choices ...func(*cell)) (out []cell) {
	for _, at := range cells {
		for _, choose := range choices {
			c := at
			c.c.Given = map[string]string{}
			for k, v := range at.c.Given {
				c.c.Given[k] = v
			}
			choose(&c)
			out = append(out, c)
		}
	}
	return out
}

func on(f combinations.Feature, set func(*Config)) func(*cell) {
	return func(c *cell) {
		set(&c.c)
		c.set = c.set.With(f, true)
	}
}

func off(*cell) {}

// schemes are the modes and baselines that cells have.
func schemes(t *testing.T) (out []func(*cell)) {
	for _, e := range baseline.Entries() {
		if _, ok := kinds[e.Name]; !ok {
			t.Errorf("baseline %s has no features here", e.Name)
		}
	}
	for name, set := range kinds {
		if name != "" {
			out = append(out, func(c *cell) {
				c.c.Baseline, c.set = name, c.set|set|combinations.Of(combinations.Baseline)
				if name == "easgd" { // as a ring can run it
					c.c.Baseline += ":sync=yes"
				}
			})
		}
	}
	for mode, set := range modeKinds {
		out = append(out, func(c *cell) { c.c.Mode, c.set = mode, c.set|set })
	}
	return out
}

// Every cell of the table is refused by Check if the table says so, for the reason that it gives, and else is not.
func TestCells(t *testing.T) {
	base := cell{c: Config{Job: job.Job{Workers: 4, Servers: 2, Batch: 32, Rule: job.Rule{Optimizer: "sgd", LR: 0.1}}, Shards: 1}}
	arches := []func(*cell){off, on(combinations.AllReduce, func(c *Config) { c.Arch = job.AllReduce })}
	copies := []func(*cell){off, on(combinations.Copies, func(c *Config) { c.Replicas = 2 })}
	several := []func(*cell){off, on(combinations.Coordinators, func(c *Config) {
		c.Coordinators = []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	})}
	var codecs []func(*cell)
	for _, name := range []string{"fp16", "bf16", "int8", "int8-stochastic", "int2", "topk=0.1", "powersgd=1", "auto"} {
		codecs = append(codecs, func(c *cell) {
			c.c.Compress = name
			c.set = c.set.With(combinations.Codec, true).With(combinations.Lossy, name != "fp16" && name != "bf16")
		})
	}
	scheme := schemes(t)
	first := with(with(with(with(with([]cell{base}, arches...), copies...), several...), append(codecs, off)...), scheme...)
	moves := []func(*cell){off, on(combinations.Moving, func(c *Config) { c.MoveShards = job.Auto })}
	shares := []func(*cell){off, on(combinations.Shares, func(c *Config) { c.Shares = []int{32, 32, 32, 32} })}
	clips := []func(*cell){off, on(combinations.Clip, func(c *Config) { c.Clip = 1 })}
	given := func(scale string) func(*cell) {
		return func(c *cell) {
			c.c.UpdateScale, c.c.Given["update-scale"] = scale, "a test"
			c.set = c.set.With(combinations.Scale, scale != string(engine.ScaleRound)).With(combinations.NotFiring, scale != string(engine.ScaleFiring)).
				With(combinations.ByWorkers, scale == string(engine.ScaleWorkers))
		}
	}
	optimizers := []func(*cell){off, on(combinations.NotSGD, func(c *Config) { c.Optimizer, c.Momentum = "nesterov", 0.9 }), func(c *cell) {
		c.c.Optimizer = "adam"
		c.set = c.set.With(combinations.NotSGD, true).With(combinations.Adaptive, true)
	}}
	second := with(with(with(with(with(with(with([]cell{base}, arches...), scheme...), moves...), shares...), clips...), off, given("n"), given("firing"), given("damped"), given("workers")), optimizers...)
	third := with(with(with(with([]cell{base}, arches...), copies...), several...), moves...)
	refused, allowed := 0, 0
	for _, at := range append(append(first, second...), third...) {
		if ringParts[at.c.Baseline] {
			at.set = at.set.With(combinations.Parts, at.set.Has(combinations.AllReduce))
		}
		want := combinations.Check(at.set)
		err := Check(at.c)
		var got *combinations.Refusal
		if errors.As(err, &got); got != want && !(got != nil && want != nil && got.Setting == want.Setting) {
			t.Fatalf("%s%s: %v, want %v", at.c.Baseline, at.c.Mode, err, want)
		}
		if want != nil {
			refused++
			if !strings.Contains(err.Error(), got.Instead) {
				t.Fatalf("%v does not say %q", err, got.Instead)
			}
			continue
		}
		if allowed++; err != nil {
			t.Errorf("%+v with %s%s: %v, and the table allows it", at.set, at.c.Baseline, at.c.Mode, err)
		}
	}
	if refused < 1000 || allowed < 1000 {
		t.Errorf("%d cells refused, %d allowed", refused, allowed)
	}
}
