package auto

import (
	"fmt"
	"time"

	"star"
	"star/modes"
)

// Controller decides while a job runs which plan the job has; package auto describes how. Its caller reports events
// with their times, and it has no clock. Deciding is not part of any update: Decide may be called at any time, and
// delays only its caller. Only one goroutine may use a Controller.
type Controller struct {
	cfg     Config
	phase   float64 // part of the job that is done, 0 to 1
	obs     observations
	worth   worth
	loss    ascent
	suspect suspect
	last    lastLook
	current current
	trials  trials
	home    homing
	uncut   bool // outer steps are of all parameters: they cannot be cut into fragments
}

// current is the plan in force, as far as the controller knows.
type current struct {
	plan  modes.Plan
	since time.Duration

	// pace is what an iteration of the slowest worker took when the plan was chosen. The dwell is counted in it, also
	// where all workers have become slower since.
	pace time.Duration

	// fled: the plan was chosen blind, by escape or before a worker's second iteration had ended.
	fled bool

	wants  int  // decisions in a row that want another plan
	safe   bool // it is SSGD because telemetry could not be trusted, or the loss grew
	recent int  // changes since a plan last stayed for twice the longest dwell
}

// set changes the plan.
func (c *current) set(at time.Duration, p modes.Plan) {
	c.plan, c.since, c.wants, c.fled = p, at, 0, false
}

// New starts with a plan that was installed at time 0.
func New(cfg Config, plan modes.Plan) (*Controller, error) {
	if cfg.Batch < 1 {
		return nil, fmt.Errorf("auto: a controller with a batch of %d samples: at least 1 is needed", cfg.Batch)
	}
	if err := plan.Validate(cfg.Workers); err != nil {
		return nil, err
	}
	if cfg.Gain == 0 {
		cfg.Gain = 0.07
	}
	if !(cfg.Gain > 0 && cfg.Gain < 1) || cfg.Dwell < 0 || cfg.Confirm < 0 {
		return nil, fmt.Errorf("auto: a controller with gain %v, dwell %d, confirm %d: want a gain between 0 and 1, and no negative numbers", cfg.Gain, cfg.Dwell, cfg.Confirm)
	}
	if cfg.Dwell == 0 {
		cfg.Dwell = 10
	}
	if cfg.Confirm == 0 {
		cfg.Confirm = 3
	}
	if cfg.Own == nil {
		cfg.Own = star.Record.Busy
	}
	if !(cfg.Momentum >= 0 && cfg.Momentum < 1) {
		return nil, fmt.Errorf("auto: a controller of a job with momentum %v: want at least 0 and less than 1", cfg.Momentum)
	}
	if !(cfg.Velocities >= 0 && cfg.Velocities < 1) {
		return nil, fmt.Errorf("auto: a controller of a job with velocities of momentum %v: want at least 0 and less than 1", cfg.Velocities)
	}
	return &Controller{
		cfg: cfg, obs: newObservations(cfg.Workers, cfg.Batch), worth: newWorth(cfg), suspect: suspect{worker: -1, last: -1},
		current: current{plan: plan.Clone()},
	}, nil
}

// Tuning is the present Gain and Dwell of the [Config].
func (c *Controller) Tuning() (gain float64, dwell int) { return c.cfg.Gain, c.cfg.Dwell }

// Tune sets Gain and Dwell from the next decision on: a gain between 0 and 1, a dwell of at least 1.
func (c *Controller) Tune(gain float64, dwell int) { c.cfg.Gain, c.cfg.Dwell = gain, dwell }

// Plan is the plan in force, as far as the Controller knows. It belongs to the Controller.
func (c *Controller) Plan() modes.Plan { return c.current.plan }

// Installed records a plan that was not installed by a decision.
func (c *Controller) Installed(at time.Duration, p modes.Plan) {
	c.current.set(at, p.Clone())
	c.current.recent, c.trials.running, c.home.since, c.home.switchCost = 0, nil, 0, 0
	c.loss.changed()
}

// Shortened records that the coordinator installed the wanted outer steps as those of plan, perhaps with fewer local
// steps, because an epoch has no more, or without fragments, because a shard has too few parameters: further plans have
// no more either.
func (c *Controller) Shortened(plan modes.Plan) {
	p := &c.current.plan
	if p.Outer == (modes.Outer{}) {
		return
	}
	if plan.Local < p.Local {
		p.Local, c.cfg.Outer = plan.Local, plan.Local
	}
	if plan.Fragments < p.Fragments {
		p.Fragments, c.uncut = plan.Fragments, true
	}
}

// Refused records that a plan that Decide wanted was rejected; present is the plan in force. The rejected plan is not
// wanted again for half a minute, and for longer each time.
func (c *Controller) Refused(at time.Duration, p, present modes.Plan) {
	c.trials.punish(at, p, refusal/2)
	c.Installed(at, present)
}

// Phase records the completed fraction of the job, 0 to 1.
func (c *Controller) Phase(done float64) {
	if done >= 0 && done <= 1 {
		c.phase = done
	}
}
