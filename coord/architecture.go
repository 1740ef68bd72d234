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

// architecture has the differences between a job with parameter servers and an all-reduce, for the coordinator: what
// members get to know and what they must report. What the two decide differently is in their engines. There are two
// implementations, servers and ring; New chooses.
//
// Methods with the coordinator as an argument may use and change what Run owns.
type architecture interface {
	// sharded reports whether servers hold the parameters in shards and receive the gradients; otherwise every
	// member has its own parameters.
	sharded() bool

	// check returns why a configuration is invalid, and fits why a plan is. Each error names the setting and what
	// to use instead.
	check(cfg *Config) error
	fits(p modes.Plan) error

	// replaceable returns why a plan does not allow another process to take the job over.
	replaceable(p modes.Plan) error

	// enrols returns why a worker cannot take part: it is of the other architecture, updates by another rule, or
	// other members cannot reach it.
	enrols(h wire.Hello, e session.Enrolment) error

	// minWorkers is how many workers the training needs to continue.
	minWorkers(cfg *Config) int

	// spec is p in the words that users write, or empty if they are the same as p.String().
	spec(p modes.Plan) string

	// planted reports whether the coordinator makes trees for the plans of a pilot.
	planted() bool

	// busy is how long a worker worked in an iteration.
	busy(r star.Record) time.Duration

	// engine makes the engine of the job: g with the settings of this architecture.
	engine(c *Coordinator, g engine.Config) engine.Engine

	// reported hands the engine a frame that only workers of this architecture send. Any other frame is an error.
	reported(g engine.Engine, m *said.Message) ([]engine.Ready, error)

	// lacks names what a job that has not begun waits for, from workers that were welcomed and have not joined.
	lacks(c *Coordinator, linking []int) []string
}

// architectureOf returns the architecture of a job.
func architectureOf(cfg *Config) architecture {
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

// A job that another process can take over waits for a worker after a takeover, so it also waits for one before.
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

// ring is the architecture of an all-reduce.
type ring struct{ *RingConfig }

func (ring) sharded() bool { return false }

func (ring) check(cfg *Config) error {
	if cfg.Validation != nil {
		return errors.New("coord: an all-reduce has no servers to validate gradients: use --arch ps")
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

// Rules are compared as texts (process.RuleText): programs with the same text make the same update, bit for bit.
func (r ring) enrols(h wire.Hello, e session.Enrolment) error {
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

func (ring) minWorkers(cfg *Config) int       { return cfg.MinWorkers }
func (ring) planted() bool                    { return false }
func (ring) busy(r star.Record) time.Duration { return r.Own() }

// A ring with riders is written ring-minus=RANKS.
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
	parts := list("Joined from workers", linking)
	if c.takeover.Trained() && len(c.takeover.With(c.peers.present(&c.members))) == 0 {
		parts = append(parts, "a worker that has the parameters")
	}
	return parts
}
