// Package architecture has the differences between a job with parameter servers and an all-reduce, for the
// coordinator: what members get to know and what they must report. What the two decide differently is in their engines.
package architecture

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"star"
	"star/coord/config"
	"star/coord/engine"
	"star/coord/said"
	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// Architecture is one of the two.
type Architecture interface {
	// Sharded reports whether servers hold the parameters in shards and receive the gradients; otherwise every
	// member has its own parameters.
	Sharded() bool

	// Check returns why a configuration is invalid, and Fits why a plan is. Each error names the setting and what
	// to use instead.
	Check(cfg *config.Config) error
	Fits(p modes.Plan) error

	// Replaceable returns why a plan does not allow another process to take the job over.
	Replaceable(p modes.Plan) error

	// Enrols returns why a worker cannot take part: it is of the other architecture, updates by another rule, or
	// other members cannot reach it.
	Enrols(h wire.Hello, e session.Enrolment) error

	// MinWorkers is how many workers the training needs to continue.
	MinWorkers(cfg *config.Config) int

	// Spec is p in the words that users write, or empty if they are the same as p.String().
	Spec(p modes.Plan) string

	// Planted reports whether the coordinator makes trees for the plans of a pilot.
	Planted() bool

	// Busy is how long a worker worked in an iteration.
	Busy(r star.Record) time.Duration

	// Engine makes the engine of the job: g with the settings of this architecture. reachable reports whether every
	// other worker can connect to one; term is that of this leadership.
	Engine(g engine.Config, reachable func(w star.Worker) bool, term int64) engine.Engine

	// Reported hands the engine a frame that only workers of this architecture send. Any other frame is an error.
	Reported(g engine.Engine, m *said.Message) ([]engine.Ready, error)

	// Joining names what a job that has not begun waits for, from workers that were welcomed and have not joined.
	Joining() string
}

// Of returns the architecture of a job.
func Of(cfg *config.Config) Architecture {
	if r := cfg.Ring; r != nil {
		return ring{r}
	}
	return servers{}
}

// The values of --arch.
const (
	archServers = "ps"
	archRing    = "allreduce"
)

// errArchitecture rejects a worker of another architecture.
func errArchitecture(job, worker string) error {
	return fmt.Errorf("the job's architecture is %s, the worker's %s (--arch)", job, worker)
}

// errUnexpected rejects a frame that workers of this job do not send.
func errUnexpected(k wire.Kind) error { return fmt.Errorf("unexpected frame %v from a worker", k) }

// servers is the architecture of a job with parameter servers.
type servers struct{}

func (servers) Sharded() bool { return true }

func (servers) Check(cfg *config.Config) error {
	if n := cfg.Servers - cfg.Coordinators; cfg.Replicas > n {
		return fmt.Errorf("coord: %d copies of every shard (--replicas) need as many star-ps, not %d (--servers)", cfg.Replicas, n)
	}
	return nil
}

func (servers) Fits(p modes.Plan) error          { return engine.TreePlan(p) }
func (servers) Replaceable(modes.Plan) error     { return nil }
func (servers) Spec(modes.Plan) string           { return "" }
func (servers) Planted() bool                    { return true }
func (servers) Busy(r star.Record) time.Duration { return r.Busy() }

func (servers) Enrols(_ wire.Hello, e session.Enrolment) error {
	if e.Rule != "" {
		return errArchitecture(archServers, archRing)
	}
	return nil
}

// A job that another process can take over waits for a worker after a takeover, so it also waits for one before.
func (servers) MinWorkers(cfg *config.Config) int {
	if cfg.Coordinators > 0 {
		return max(cfg.MinWorkers, 1)
	}
	return cfg.MinWorkers
}

func (servers) Engine(g engine.Config, reachable func(star.Worker) bool, _ int64) engine.Engine {
	g.Reachable = make([]bool, g.Workers)
	for w := range g.Reachable {
		g.Reachable[w] = reachable(star.Worker(w))
	}
	return engine.NewShards(g)
}

func (servers) Reported(g engine.Engine, m *said.Message) ([]engine.Ready, error) {
	if m.Kind == wire.KindBundle {
		return g.(engine.ShardEngine).Reported(m.Bundle)
	}
	return nil, errUnexpected(m.Kind)
}

func (servers) Joining() string { return "the connection to every shard of workers" }

// ring is the architecture of an all-reduce.
type ring struct{ *config.RingConfig }

func (ring) Sharded() bool { return false }

func (ring) Check(cfg *config.Config) error {
	if cfg.Validation != nil {
		return errors.New("coord: an all-reduce has no servers to validate gradients: use --arch ps")
	}
	return nil
}

func (ring) Fits(p modes.Plan) error { return engine.RingPlan(p) }

func (ring) Replaceable(p modes.Plan) error {
	if p.Micro > 0 || p.Local > 0 {
		return fmt.Errorf("mode %v: with --coordinators the members of a ring compute whole batches: which parts are in an update would be lost with the coordinator", p)
	}
	return nil
}

// Rules are compared as texts (process.RuleText): programs with the same text make the same update, bit for bit.
func (r ring) Enrols(h wire.Hello, e session.Enrolment) error {
	rule := r.Rule
	if r.RuleOf != nil {
		rule = r.RuleOf(e)
	}
	switch {
	case e.Rule == "":
		return errArchitecture(archRing, archServers)
	case e.Rule != rule:
		return fmt.Errorf("with all-reduce every member updates parameters by itself, so all need the same rule: the job says %q, the worker %q", rule, e.Rule)
	}
	if meet, carry, ok := strings.Cut(h.Addr, ","); !ok || meet == "" || carry == "" {
		return fmt.Errorf("a worker of a ring needs two addresses where others reach it, but has %q", h.Addr)
	}
	return nil
}

func (ring) MinWorkers(cfg *config.Config) int { return cfg.MinWorkers }
func (ring) Planted() bool                     { return false }
func (ring) Busy(r star.Record) time.Duration  { return r.Own() }

// A ring with riders is written ring-minus=RANKS.
func (ring) Spec(p modes.Plan) string {
	if len(p.Groups) != 1 || len(p.Groups[0].Riders) == 0 {
		return ""
	}
	riders := strings.Fields(strings.Trim(fmt.Sprint(p.Groups[0].Riders), "[]"))
	return "ring-minus=" + strings.Join(riders, ",")
}

func (r ring) Engine(g engine.Config, _ func(star.Worker) bool, term int64) engine.Engine {
	g.Ring = &engine.RingConfig{Wait: r.Wait, MaxStale: r.MaxStale, Generation: engine.GenerationsOf(term), Tell: engine.Tell}
	return engine.NewRing(g)
}

func (ring) Reported(g engine.Engine, m *said.Message) ([]engine.Ready, error) {
	switch m.Kind {
	case wire.KindFormed:
		return g.(engine.RingEngine).Formed(m.Formed)
	case wire.KindTally:
		return g.(engine.RingEngine).Tally(m.Tally)
	}
	return nil, errUnexpected(m.Kind)
}

func (ring) Joining() string { return "Joined from workers" }
