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

// Kind is how a process brings about that its iterations take longer.
type Kind string

const (
	Pace     Kind = "pace"   // by a pause in each. The zero value means the same
	ByCgroup Kind = "cgroup" // by fewer processors
	ByTC     Kind = "tc"     // by sending more slowly
	None     Kind = "none"   // it refuses
)

// Config says what a Governor governs.
type Config struct {
	Kind     Kind
	Base     Limit        // in force from the beginning to the end
	LeaseDir string       // empty: DefaultDir
	Who      string       // the process in words, for leases
	Dev      string       // the interface that tc limits; empty: that which leads to Peer
	Peer     string       // host:port that the process sends to
	Log      *slog.Logger // nil: slog.Default()
}

// Work is what an iteration takes when nothing but pauses limits it.
type Work struct {
	Busy  time.Duration // of it, in which processors are used
	Cores float64       // processors used meanwhile
	Send  time.Duration // of it, in which it sends
	Out   float64       // bytes sent
}

// Governor makes one process of a job take less, from its start (Config.Base) and when it is
// told to (Delay). The process asks it for pauses (Pause) and tells it what its iterations
// take (Observe). A nil Governor never pauses, and refuses orders.
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

// Start undoes what processes that are gone have left behind, saying so in the log, and puts the
// limits of the configuration in force. After an error none is. Close it.
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

// Sweep undoes what processes that are gone have left behind, and names each in the log, also
// what it cannot undo.
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
		log.Warn("undid a limit that was left behind", "lease", u.Name, "what", u.What(), "by", u.Owner.Who, "reason", u.Why)
	}
}

// Pacer is the pacer whose pauses the process takes.
func (g *Governor) Pacer() *Pacer {
	if g == nil {
		return nil
	}
	return &g.pacer
}

// Pause waits in an iteration as long as it should, and returns how long that was. When ctx is done
// it returns at once, with its cause.
func (g *Governor) Pause(ctx context.Context) (time.Duration, error) { return g.Pacer().Pause(ctx) }

// Delay makes each iteration longer by d from the next one on, by the means of the
// configuration, in place of the delay before; 0 lifts it. The order ends by itself after a
// time, if that is not 0, for example when whoever gave it is gone. Until it is known what an
// iteration takes, and where the means fails, the delay is a pause, with a warning.
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

// lapse lifts the order that was to end at a time.
func (g *Governor) lapse(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || !g.until.Equal(until) {
		return
	}
	g.log.Info("the delay has ended: nobody has renewed it", "per_iteration", g.order)
	g.order, g.until = 0, time.Time{}
	if err := g.enforce(); err != nil {
		g.log.Error("a delay is still in force", "err", err)
	}
}

// enforce brings about base and order. g.mu is held.
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

// translate says what limit makes iterations as much longer as the order says.
func (g *Governor) translate() (Limit, error) {
	d := g.order
	if d == 0 {
		return Limit{}, nil
	}
	return g.cfg.Kind.Limit(d, g.work)
}

// Limit is the limit by which iterations that take w come to take d longer.
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

// Observe tells what an iteration took. It never waits for a limit that is being set.
func (g *Governor) Observe(w Work) {
	if g == nil || g.cfg.Kind == None || g.cfg.Kind == Pace || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	if g.inForce.Cores != g.cfg.Base.Cores || g.inForce.NetOut != g.cfg.Base.NetOut {
		return // what it takes now is our doing
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
	if g.order > 0 && g.seen == 1 && !g.closed { // paused so far, for want of this
		if err := g.enforce(); err != nil {
			g.log.Error("a delay is not in force", "err", err)
		}
	}
}

// apply puts a limit in force, by whatever it takes. g.mu is held.
func (g *Governor) apply(l Limit, until time.Time) error {
	if l.Cores != 0 && g.cgroup == nil {
		g.cgroup = NewCgroup(g.store, g.cfg.Who, os.Getpid())
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
		g.tc = NewTC(g.store, g.cfg.Who, "", dev)
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

// Status is what a Governor is at.
type Status struct {
	Kind   Kind
	Order  time.Duration // per iteration; 0: none
	Until  time.Time     // end of the order; zero: none
	Limit  Limit         // in force
	Leases []Lease
}

// Status says what is in force.
func (g *Governor) Status() Status {
	if g == nil {
		return Status{Kind: None}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{Kind: g.cfg.Kind, Order: g.order, Until: g.until, Limit: g.inForce}
	if g.cgroup != nil {
		if l, ok := g.cgroup.Lease(); ok {
			s.Leases = append(s.Leases, l)
		}
	}
	if g.tc != nil {
		if l, ok := g.tc.Lease(); ok {
			s.Leases = append(s.Leases, l)
		}
	}
	return s
}

// Close undoes everything. It may be called again, and on nil; after an error it should be.
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
