package coord

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/said"
	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// architecture is everything in which a job of parameter servers and one of all-reduce are
// different for the coordinator. What its engine decides is the engine's; what is left is what
// members are told and must say of themselves. There are two, servers and ring, and New chooses.
//
// Methods that have the coordinator may use and change what Run owns.
type architecture interface {
	// sharded says whether servers have the parameters, in shards, and gradients go to them; else
	// every member has its own.
	sharded() bool

	// check says what cannot be of a configuration, and fits of a plan. Each error names the
	// setting, and what to do.
	check(cfg *Config) error
	fits(p modes.Plan) error

	// replaceable says what cannot be of a plan where another process may take the job over.
	replaceable(p modes.Plan) error

	// enrols says what is wrong with a worker that says so of itself: it is of the other
	// architecture, updates in another way, or cannot be reached by others.
	enrols(h wire.Hello, e session.Enrolment) error

	// minWorkers is how many workers there must be for the training to go on.
	minWorkers(cfg *Config) int

	// spec is p in words of the grammar that people know it by; empty: it has only its own.
	spec(p modes.Plan) string

	// planted says whether the coordinator makes trees for the plans of a pilot.
	planted() bool

	// busy is how long a worker had something to do in an iteration.
	busy(r star.Record) time.Duration

	// engine makes the engine of the job: g with what is of this architecture alone.
	engine(c *Coordinator, g engine.Config) engine.Engine

	// reported has the engine take a frame of a worker that only members of this architecture send. Any
	// other frame is an error.
	reported(g engine.Engine, m *said.Message) ([]engine.Ready, error)

	// lacks is what a job that has not begun waits for, of workers that were welcomed and have not joined.
	lacks(c *Coordinator, linking []int) []string
}

// architectureOf is the architecture of a job.
func architectureOf(cfg *Config) architecture {
	if r := cfg.Ring; r != nil {
		return ring{r}
	}
	return servers{}
}

// The words for architectures, as --arch has them.
const (
	archServers = "ps"
	archRing    = "allreduce"
)

// errArchitecture is for a worker of another architecture than the job's.
func errArchitecture(job, worker string) error {
	return fmt.Errorf("the job's architecture is %s, the worker's %s (--arch)", job, worker)
}

// errUnexpected is for a frame that workers of this job do not send.
func errUnexpected(k wire.Kind) error { return fmt.Errorf("unexpected frame %v from a worker", k) }

// servers is a job whose parameters are with parameter servers.
type servers struct{}

func (servers) sharded() bool { return true }

func (servers) check(cfg *Config) error {
	if n := cfg.Servers - cfg.Coordinators; cfg.Replicas > n {
		return fmt.Errorf("coord: %d copies of every shard (--replicas) need as many star-ps, not %d (--servers)", cfg.Replicas, n)
	}
	return nil
}

func (servers) fits(p modes.Plan) error          { return engine.TreePlan(p) }
func (servers) replaceable(modes.Plan) error     { return nil }
func (servers) spec(modes.Plan) string           { return "" }
func (servers) planted() bool                    { return true }
func (servers) busy(r star.Record) time.Duration { return r.Busy() }

func (servers) enrols(_ wire.Hello, e session.Enrolment) error {
	if e.Rule != "" {
		return errArchitecture(archServers, archRing)
	}
	return nil
}

// A job that another process can take over, which then waits for workers, waits for them without that, too.
func (servers) minWorkers(cfg *Config) int {
	if cfg.Coordinators > 0 {
		return max(cfg.MinWorkers, 1)
	}
	return cfg.MinWorkers
}

func (servers) engine(c *Coordinator, g engine.Config) engine.Engine {
	g.Reachable = make([]bool, len(c.peers.workers))
	for w, p := range c.peers.workers {
		g.Reachable[w] = p != nil && c.peers.takesOthers(p)
	}
	return engine.NewShards(g)
}

func (servers) reported(g engine.Engine, m *said.Message) ([]engine.Ready, error) {
	if m.Kind == wire.KindBundle {
		return g.(engine.ShardEngine).Reported(m.Bundle)
	}
	return nil, errUnexpected(m.Kind)
}

func (servers) lacks(_ *Coordinator, linking []int) []string {
	return list("the connection to every shard of workers", linking)
}

// ring is a job of all-reduce.
type ring struct{ *RingConfig }

func (ring) sharded() bool { return false }

func (ring) check(cfg *Config) error {
	if cfg.Validation != nil {
		return errors.New("coord: an all-reduce has no servers that could hold gradients against others: use --arch ps")
	}
	return nil
}

func (ring) fits(p modes.Plan) error { return engine.RingPlan(p) }

func (ring) replaceable(p modes.Plan) error {
	if p.Micro > 0 || p.Local > 0 {
		return fmt.Errorf("mode %v: with --coordinators the members of a ring compute whole batches: which parts are in an update would be lost with the coordinator", p)
	}
	return nil
}

// The rule is compared in words (process.RuleText): two programs that say the same make the same
// update, bit for bit.
func (r ring) enrols(h wire.Hello, e session.Enrolment) error {
	rule := r.Rule
	if r.RuleOf != nil {
		rule = r.RuleOf(e)
	}
	switch {
	case e.Rule == "":
		return errArchitecture(archRing, archServers)
	case e.Rule != rule:
		return fmt.Errorf("with all-reduce every member updates parameters by itself, so all must do it alike: the job says %q, the worker %q", rule, e.Rule)
	}
	if meet, door, ok := strings.Cut(h.Addr, ","); !ok || meet == "" || door == "" {
		return fmt.Errorf("a worker of a ring needs two addresses where others reach it, but says %q", h.Addr)
	}
	return nil
}

func (ring) minWorkers(cfg *Config) int       { return cfg.MinWorkers }
func (ring) planted() bool                    { return false }
func (ring) busy(r star.Record) time.Duration { return r.Own() }

// A ring is known by its riders.
func (ring) spec(p modes.Plan) string {
	if len(p.Groups) != 1 || len(p.Groups[0].Riders) == 0 {
		return ""
	}
	riders := strings.Fields(strings.Trim(fmt.Sprint(p.Groups[0].Riders), "[]"))
	return "ring-minus=" + strings.Join(riders, ",")
}

func (r ring) engine(c *Coordinator, g engine.Config) engine.Engine {
	g.Ring = &engine.RingConfig{Wait: r.Wait, MaxStale: r.MaxStale, Generation: engine.GenerationsOf(c.lease.term())}
	return engine.NewRing(g)
}

func (ring) reported(g engine.Engine, m *said.Message) ([]engine.Ready, error) {
	switch m.Kind {
	case wire.KindFormed:
		return g.(engine.RingEngine).Formed(m.Formed)
	case wire.KindTally:
		return g.(engine.RingEngine).Tally(m.Tally)
	}
	return nil, errUnexpected(m.Kind)
}

func (ring) lacks(c *Coordinator, linking []int) []string {
	parts := list("the word that they have joined of workers", linking)
	if c.takeover.Trained() && len(c.takeover.With(c.peers.present(&c.members))) == 0 {
		parts = append(parts, "a worker that has the parameters")
	}
	return parts
}
