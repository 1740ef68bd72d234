package actuate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Kind is the means by which a process delays its iterations.
type Kind string

const (
	Pace     Kind = "pace"   // a pause in each iteration; the same as the zero value
	ByCgroup Kind = "cgroup" // fewer processors
	ByTC     Kind = "tc"     // slower sending
	None     Kind = "none"   // orders are refused
)

// Config configures a Governor.
type Config struct {
	Kind     Kind
	Base     Limit        // in force from the beginning to the end
	LeaseDir string       // empty: DefaultDir
	Process  string       // description of the process, for leases
	Dev      string       // the interface that tc limits; empty: the one that leads to Peer
	Peer     string       // host:port that the process sends to
	Log      *slog.Logger // nil: slog.Default()
}

// Work is the cost of an iteration without limits other than pauses.
type Work struct {
	Busy  time.Duration // time in which processors are used
	Cores float64       // processors used meanwhile
	Send  time.Duration // time in which it sends
	Out   float64       // bytes sent
}

// Governor limits one process of a job, from its start (Config.Base) and on orders (Delay). The process asks it for
// pauses (Pause) and reports the cost of its iterations (Observe). A nil Governor never pauses, and refuses orders.
type Governor struct {
	cfg   Config
	log   *slog.Logger
	store *Store
	pacer Pacer

	mu      sync.Mutex // held while limits change, which may take as long as tc
	cgroup  *Cgroup    // nil: not used yet
	tc      *TC        // nil: not used yet
	order   time.Duration
	until   time.Time // zero: no end
	expire  *time.Timer
	inForce Limit
	work    Work // mean
	seen    int  // iterations in work
	warned  string
	closed  bool
}

// Start undoes limits of ended processes, logs them, and applies the limits of the configuration. After an error no
// limit is in force. Close it.
func Start(c Config) (*Governor, error) { return start(c, OpenStore(c.LeaseDir)) }

func start(c Config, s *Store) (*Governor, error) {
	g := &Governor{cfg: c, log: c.Log, store: s}
	if g.log == nil {
		g.log = slog.Default()
	}
	if g.cfg.Kind == "" {
		g.cfg.Kind = Pace
	}
	switch g.cfg.Kind {
	case Pace, ByCgroup, ByTC:
	case None:
		if !c.Base.Zero() {
			return nil, fmt.Errorf("the limit %v needs an actuator, and this process is to have none", c.Base)
		}
		return g, nil
	default:
		return nil, fmt.Errorf("no actuator %q; there are pace, cgroup, tc and none", c.Kind)
	}
	if err := c.Base.Check(); err != nil {
		return nil, err
	}
	Sweep(s, g.log)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.apply(c.Base, time.Time{}); err != nil {
		return nil, errors.Join(err, g.undo())
	}
	if !c.Base.Zero() {
		g.log.Info("limited", "to", c.Base.String())
	}
	return g, nil
}

// Sweep undoes the limits of ended processes and logs each, including those that it cannot undo.
func Sweep(s *Store, log *slog.Logger) {
	done, err := s.Undo()
	if err != nil {
		log.Warn("cannot look for limits that processes left behind", "reason", err)
	}
	for _, u := range done {
		if u.Err != nil {
			log.Warn("a limit was left behind", "lease", u.Name, "reason", u.Err)
			continue
		}
		log.Warn("undid a limit that was left behind", "lease", u.Name, "what", u.What(), "by", u.Owner.Process, "reason", u.Why)
	}
}

// Pacer is the source of the process's pauses.
func (g *Governor) Pacer() *Pacer {
	if g == nil {
		return nil
	}
	return &g.pacer
}

// Pause waits for the current pause of an iteration, and returns its length. When ctx is done it returns at once, with
// its cause.
func (g *Governor) Pause(ctx context.Context) (time.Duration, error) { return g.Pacer().Pause(ctx) }

// Delay delays each iteration by d from the next one on, by the means of the configuration, and replaces the previous
// delay; 0 lifts it. The order expires after lasts, unless that is 0, so that it ends if its sender is lost. Until the
// cost of an iteration is known, and if the means fails, the delay is a pause, with a warning.
func (g *Governor) Delay(d, lasts time.Duration) error {
	if g == nil || g.cfg.Kind == None {
		return errors.New("this process takes no orders to be slower: --actuator none")
	}
	if err := (Limit{Delay: d}).Check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("this process is about to end")
	}
	if g.expire != nil {
		g.expire.Stop()
		g.expire = nil
	}
	until := time.Time{}
	if d > 0 && lasts > 0 {
		until = time.Now().Add(lasts)
	}
	if d != g.order {
		g.log.Info("delayed", "per_iteration", d, "by", string(g.cfg.Kind))
	}
	g.order, g.until = d, until
	if err := g.enforce(); err != nil {
		return err
	}
	if !until.IsZero() {
		g.expire = time.AfterFunc(lasts, func() { g.lapse(until) })
	}
	return nil
}

// lapse lifts the order that expires at a time.
func (g *Governor) lapse(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || !g.until.Equal(until) {
		return
	}
	g.log.Info("the delay has expired", "per_iteration", g.order)
	g.order, g.until = 0, time.Time{}
	if err := g.enforce(); err != nil {
		g.log.Error("a delay is still in force", "err", err)
	}
}

// enforce applies base and order. g.mu is held.
func (g *Governor) enforce() error {
	l, err := g.translate()
	if err == nil {
		err = g.apply(g.cfg.Base.And(l), g.until)
	}
	if err == nil || g.order == 0 {
		return err
	}
	if text := err.Error(); text != g.warned {
		g.warned = text
		g.log.Warn("delays by a pause instead", "of", string(g.cfg.Kind), "reason", err)
	}
	return g.apply(g.cfg.Base.And(Limit{Delay: g.order}), g.until)
}

// translate returns the limit that delays iterations by the order.
func (g *Governor) translate() (Limit, error) {
	d := g.order
	if d == 0 {
		return Limit{}, nil
	}
	return g.cfg.Kind.Limit(d, g.work)
}

// Limit is the limit that makes iterations with cost w take d longer.
//
// With fewer processors the same processor time takes longer: Busy·Cores/(Busy+d) of them let
// Busy become Busy+d. With a lower rate the same bytes take longer: Out/(Send+d).
func (k Kind) Limit(d time.Duration, w Work) (l Limit, err error) {
	switch k {
	case Pace, "":
		l.Delay = d
	case ByCgroup:
		if w.Busy <= 0 || !(w.Cores > 0) {
			return l, errors.New("it is not known yet how many processors an iteration uses")
		}
		l.Cores = w.Cores * (float64(w.Busy) / float64(w.Busy+d))
	case ByTC:
		if w.Send < 0 || !(w.Out > 0) {
			return l, errors.New("it is not known yet how much an iteration sends to other hosts, or it sends nothing there")
		}
		l.NetOut = min(w.Out/(w.Send+d).Seconds(), MaxRate)
	default:
		return l, fmt.Errorf("actuator %q delays nothing", k)
	}
	return l, l.Check()
}

// Observe reports the cost of an iteration. It never waits for a limit that is being set.
func (g *Governor) Observe(w Work) {
	if g == nil || g.cfg.Kind == None || g.cfg.Kind == Pace || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if g.inForce.Cores != g.cfg.Base.Cores || g.inForce.NetOut != g.cfg.Base.NetOut {
		return // the cost includes our limit
	}
	g.seen++
	k := max(0.1, 1/float64(g.seen))
	mean := func(old, v float64) float64 { return old + k*(v-old) }
	g.work = Work{
		Busy:  time.Duration(mean(float64(g.work.Busy), float64(w.Busy))),
		Cores: mean(g.work.Cores, w.Cores),
		Send:  time.Duration(mean(float64(g.work.Send), float64(w.Send))),
		Out:   mean(g.work.Out, w.Out),
	}
	if g.order > 0 && g.seen == 1 && !g.closed { // paused until this measurement
		if err := g.enforce(); err != nil {
			g.log.Error("a delay is not in force", "err", err)
		}
	}
}

// apply applies a limit with all actuators that it needs. g.mu is held.
func (g *Governor) apply(l Limit, until time.Time) error {
	if l.Cores != 0 && g.cgroup == nil {
		g.cgroup = NewCgroup(g.store, g.cfg.Process, os.Getpid())
	}
	if (l.NetOut != 0 || l.NetIn != 0) && g.tc == nil {
		dev := g.cfg.Dev
		if dev == "" {
			if g.cfg.Peer == "" {
				return errors.New("tc: nothing says which interface to limit; --limit-interface does")
			}
			var err error
			if dev, err = InterfaceTo(g.cfg.Peer); err != nil {
				return fmt.Errorf("%w; --limit-interface names another interface", err)
			}
		}
		g.tc = NewTC(g.store, g.cfg.Process, "", dev)
	}
	var errs []error
	now := g.inForce
	if g.cgroup != nil {
		err := g.cgroup.Apply(Limit{Cores: l.Cores}, until)
		if now.Cores = l.Cores; err != nil {
			now.Cores = 0
			errs = append(errs, err)
		}
	}
	if g.tc != nil {
		err := g.tc.Apply(Limit{NetOut: l.NetOut, NetIn: l.NetIn}, until)
		if now.NetOut, now.NetIn = l.NetOut, l.NetIn; err != nil {
			now.NetOut, now.NetIn = 0, 0
			errs = append(errs, err)
		}
	}
	if err := g.pacer.Apply(Limit{Delay: l.Delay}, until); err != nil {
		errs = append(errs, err)
	} else {
		now.Delay = l.Delay
	}
	g.inForce = now
	return errors.Join(errs...)
}

// Close undoes everything. It may be called again, and on nil; after an error it should be called again.
func (g *Governor) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.expire != nil {
		g.expire.Stop()
	}
	return g.undo()
}

// undo lifts all limits. g.mu is held.
func (g *Governor) undo() error {
	var errs []error
	if g.cgroup != nil {
		errs = append(errs, g.cgroup.Undo())
	}
	if g.tc != nil {
		errs = append(errs, g.tc.Undo())
	}
	errs = append(errs, g.pacer.Undo())
	err := errors.Join(errs...)
	if err == nil {
		g.inForce, g.order, g.until = Limit{}, 0, time.Time{}
	}
	return err
}
