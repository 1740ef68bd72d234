package coord

import (
	"fmt"
	"time"

	"star"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/modes"
	"star/runlog"
)

// A job has as many ranks as it may ever have workers (Config.Workers). Those that nobody has when
// the training begins are absent: the barrier counts on them as little as on workers that are gone,
// and who comes later takes the lowest of the free ranks (rejoin.go). A rank is never given to two
// at once, and nobody changes rank.

// first is with how many workers the job is meant to begin.
func (c *Config) first() int {
	if c.First > 0 {
		return c.First
	}
	return c.Workers
}

// grows says whether workers may come that the job does not begin with, or it may begin or wait with fewer.
func (c *Config) grows() bool { return c.first() < c.Workers || c.Least > 0 }

// least is the architecture's: how many workers there must be for the training to go on.
func (c *Coordinator) least() int { return c.arch.least(&c.cfg) }

// checkSize says what is wrong with the numbers of workers. The errors name the numbers, and say
// from where to where they may be.
func (c *Config) checkSize() error {
	switch {
	case c.First < 0 || c.First > c.Workers:
		return fmt.Errorf("coord: a job that begins with %d workers and has at most %d: begin with 1 to %d", c.First, c.Workers, c.Workers)
	case c.Least < 0 || c.Least > c.first():
		return fmt.Errorf("coord: a job of at least %d workers that is meant to begin with %d: at least 0 to %d", c.Least, c.first(), c.first())
	}
	return nil
}

// enough says whether the training can begin: everybody is there, or as many as Config.Least wants.
// Only those count that have reached every shard, or stand in the ring (Joined).
func (c *Coordinator) enough() bool {
	n := 0
	for _, ok := range c.joined {
		if ok {
			n++
		}
	}
	if c.cfg.Least > 0 {
		return n >= c.cfg.Least
	}
	return n >= c.cfg.first()
}

// apart takes those who are not there yet, or have not reached every shard, out of a training that
// begins. They come to it like everybody who is late. It returns the ranks that nobody has. After
// this a worker is in exactly one of workers and late.
func (c *Coordinator) apart() (absent []star.Worker) {
	for w, p := range c.workers {
		if c.joined[w] {
			c.seen[w] = true
			continue
		}
		absent = append(absent, star.Worker(w))
		if c.workers[w] = nil; p != nil && !p.gone {
			c.late = append(c.late, p)
		}
	}
	return absent
}

// members counts the ranks that somebody has had a part in the job with. Before the training begins
// it is how many the job is meant to begin with.
func (c *Coordinator) members() int {
	n := 0
	for _, ok := range c.seen {
		if ok {
			n++
		}
	}
	if c.engine == nil {
		return c.cfg.first()
	}
	return n
}

// wanting says how many workers the training waits for before it begins. Who has come counts,
// joined or not: of those missing names what is lacking.
func (c *Coordinator) wanting() []string {
	n := c.cfg.first()
	if c.cfg.Least > 0 {
		n = c.cfg.Least
	}
	for _, p := range c.workers {
		if p != nil {
			n--
		}
	}
	if n <= 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d more workers", n)}
}

// sized is a plan that says how many workers an update goes without (backup=B of modes.Parse) with
// that number taken from the workers that are there, not from all ranks. Other plans are as they
// were: a barrier never waits for more than those who live.
func (c *Coordinator) sized(p modes.Plan) modes.Plan {
	c.spares = 0
	if !c.cfg.grows() || len(p.Groups) != 1 || !p.Groups[0].DropLate || p.Groups[0].NonBlocking || len(p.Groups[0].Riders) > 0 {
		return p
	}
	c.spares = len(p.Groups[0].Members) - p.Groups[0].Quorum
	return c.resized(p)
}

// resized is p with the quorum that goes with the members that live now. One gradient at least
// makes an update. p itself stays as it is.
func (c *Coordinator) resized(p modes.Plan) modes.Plan {
	live := 0
	for _, w := range p.Groups[0].Members {
		if c.engine == nil && c.joined[w] || c.engine != nil && c.engine.Worker(w).Live {
			live++
		}
	}
	p = p.Clone()
	p.Groups[0].Quorum = max(1, live-c.spares)
	return p
}

// resize follows a change of the workers with the quorum, where it depends on them. It is a change
// of plan like any other, with a line of the run log.
func (c *Coordinator) resize() error {
	plan, live := c.engine.Plan(), c.engine.Live()
	if c.spares == 0 || len(plan.Groups) != 1 || plan.Groups[0].NonBlocking || live == 0 {
		return nil
	}
	p := c.resized(plan)
	if p.Groups[0].Quorum == plan.Groups[0].Quorum {
		return nil
	}
	return c.install(p, runlog.Plan{Why: fmt.Sprintf("%d workers are there: an update goes without %d of them", live, min(c.spares, live-1))})
}

// shortage is a job that has fewer workers than it wants (Config.Least): what the scheduler orders
// is kept until others have come. Updates that were due are made when they have come: nothing that
// the engine has decided is taken back.
type shortage struct {
	since time.Time // zero: there are enough
	held  []engine.Ready
	last  string // the worker that was lost last, and why; empty: none since there were enough
}

// short says whether the job waits for workers to come.
func (c *Coordinator) short() bool { return !c.shortage.since.IsZero() }

// awaits says whether the job goes on without any worker, because others may come. In an all-reduce
// the parameters have gone with the last one.
func (c *Coordinator) awaits() bool {
	return c.engine.Survives() && (c.short() || c.least() > 0 && c.mover.Holds() && c.engine.Unfinished())
}

// thin sees whether the job has as many workers as it wants, after one came or went. While a shard
// moves, the end of the move sees to it. The engine goes on as if nothing were; what it orders is
// kept (withhold), and carried out all at once when there are enough.
func (c *Coordinator) thin() {
	live := 0
	if c.engine != nil {
		live = c.engine.Live()
	}
	lacks := c.least() > 0 && c.engine != nil && !c.rounds.Final() && !c.stopping.Wound() && live < c.least() && c.engine.Unfinished()
	switch {
	case lacks == c.short() || c.mover.Holds():
	case lacks:
		c.shortage.since = time.Now()
		c.cfg.RunLog.Write(c.elapsed(), runlog.Short{Workers: live, Least: c.least()})
		c.log.Warn("waiting for workers", "there", live, "at_least", c.least(), "for", c.cfg.JoinTimeout)
	default:
		held, since := c.shortage.held, c.shortage.since
		c.shortage, c.progress = shortage{}, time.Now()
		c.cfg.RunLog.Write(c.elapsed(), runlog.Enough{Workers: live, Least: c.least()})
		c.log.Info("there are enough workers again", "there", live, "waited", time.Since(since).Round(time.Millisecond))
		c.issue(held)
	}
}

// withhold keeps orders while there are too few workers, and returns those that are to be carried
// out all the same: a ring that has lost somebody is formed by the others at once, because its
// members are in the middle of a round that will never end. What was kept for the ring before it is
// void, but for the lines of the run log.
func (c *Coordinator) withhold(orders []engine.Ready) []engine.Ready {
	if !c.short() {
		return orders
	}
	s := &c.shortage
	var now []engine.Ready
	for _, o := range orders {
		if len(o.Rings) > 0 && o.Rings[0].Msg.Now {
			for i := range s.held {
				s.held[i].Rings, s.held[i].Releases, s.held[i].Closes = nil, nil, nil
			}
			now = append(now, engine.Ready{Rings: o.Rings})
			o.Rings = nil
		}
		s.held = append(s.held, o)
	}
	return now
}

// watchSize ends a job that has waited for workers for too long. The error has exit code 69 and
// says from what to go on: the time is JoinTimeout, as at the beginning.
func (c *Coordinator) watchSize(now time.Time) error {
	if !c.cfg.grows() && c.least() == 0 || c.engine == nil {
		return nil
	}
	c.thin()
	if !c.short() {
		return c.tryFinish()
	}
	if now.Sub(c.shortage.since) < c.cfg.JoinTimeout {
		return nil
	}
	text := fmt.Sprintf("only %d workers are left, of at least %d (--min-workers), and none has joined for %v (--join-timeout): resume from a checkpoint", c.engine.Live(), c.least(), c.cfg.JoinTimeout)
	if c.shortage.last != "" {
		text += "; the last loss: " + c.shortage.last
	}
	return &Error{exitcode.Lost, text}
}
