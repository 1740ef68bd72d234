package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"star"
	"star/modes"
	"star/sim/trace"
)

// Spent is the time of one iteration, from the release to the arrival.
type Spent struct {
	Load, Compute, Push time.Duration
}

// Total is all of it.
func (s Spent) Total() time.Duration { return s.Load + s.Compute + s.Push }

// Times says how long iterations take.
type Times interface {
	// Workers is how many workers there are times for.
	Workers() int

	// Spend is the time of a worker's iteration number step, from 0, that begins at the given time and has load
	// times as many samples as an equal share, in one part. It must be positive and depend on nothing but its
	// arguments. With a load of 0 its computing time is what a part costs by itself.
	Spend(w star.Worker, step int64, at time.Duration, load float64) Spent
}

// Steady workers always take the same time. Fixed is the part of an iteration, from 0 to 1, that does not depend
// on the number of samples: communication and overhead. Part, of the rest, is what each part of a batch that is
// computed by itself costs, whatever its size (q of modes.md, 40).
type Steady struct {
	Iteration []time.Duration
	Fixed     float64
	Part      float64
}

// Workers implements Times.
func (s Steady) Workers() int { return len(s.Iteration) }

// Spend implements Times.
func (s Steady) Spend(w star.Worker, _ int64, _ time.Duration, load float64) Spent {
	return split(s.Iteration[w], s.Fixed, s.Part, load)
}

// split makes an iteration of an equal share one of load shares, in one part.
func split(t time.Duration, fixed, part, load float64) Spent {
	push := time.Duration(fixed * float64(t))
	return Spent{Push: push, Compute: max(1, time.Duration((part+(1-part)*load)*float64(t-push)))}
}

// partAlone is what each part of a batch costs by itself in an iteration: what computing none would take. Times
// that know of no such cost take a nanosecond.
func partAlone(t Times, w star.Worker, step int64, at time.Duration) time.Duration {
	return t.Spend(w, step, at, 0).Compute - 1
}

// Recorded workers take the times of a trace, in its own steps: a worker's k-th iteration takes what
// it took in step k of the recorded job, whatever the mode. (The alternative, by the time of day,
// needs the start of the recorded steps, which the traces do not have.) Median is the time of the
// trace's median.
type Recorded struct {
	Trace  *trace.Trace
	Median time.Duration
	Fixed  float64
	Part   float64 // as of Steady
}

// Workers implements Times.
func (r Recorded) Workers() int { return r.Trace.Workers }

// Spend implements Times.
func (r Recorded) Spend(w star.Worker, step int64, _ time.Duration, load float64) Spent {
	t := time.Duration(r.Trace.Relative(w, step) * float64(r.Median))
	return split(max(t, 1), r.Fixed, r.Part, load)
}

// Varied multiplies the compute time of another Times by a log-normal factor of mean 1: what remains of the
// differences between equal iterations on equal machines. Sigma is the standard deviation of its logarithm.
type Varied struct {
	Times
	Sigma float64
	Seed  uint64
}

// Spend implements Times.
func (v Varied) Spend(w star.Worker, step int64, at time.Duration, load float64) Spent {
	s := v.Times.Spend(w, step, at, load)
	r := rand.New(rand.NewPCG(v.Seed^uint64(w)<<32, uint64(step)))
	s.Compute = max(1, time.Duration(float64(s.Compute)*math.Exp(v.Sigma*r.NormFloat64()-v.Sigma*v.Sigma/2)))
	return s
}

// Episode is a time during which a worker is slower.
type Episode struct {
	From, To time.Duration // [From, To)
	Factor   float64       // of the compute time, at least 1
	Network  bool          // of the time of the push instead
}

// Troubled adds episodes to another Times. An iteration has the factor of the time at which it begins.
type Troubled struct {
	Times
	Episodes [][]Episode // by worker
}

// Spend implements Times.
func (d Troubled) Spend(w star.Worker, step int64, at time.Duration, load float64) Spent {
	s := d.Times.Spend(w, step, at, load)
	for _, e := range d.Episodes[w] {
		switch {
		case at < e.From || at >= e.To:
		case e.Network:
			s.Push = time.Duration(float64(s.Push) * e.Factor)
		default:
			s.Compute = time.Duration(float64(s.Compute) * e.Factor)
		}
	}
	return s
}

// Bound is the most of the time of SSGD that any mode can save, to first order, over the given number of steps:
// with τ̄ the mean time of each of N workers and τmax the slowest of each step, 1 − (N/Σ1/τ̄)/mean(τmax). It rests
// on each gradient being worth the same in every mode, so that what counts is gradients per second.
func Bound(t Times, steps int64) (float64, error) {
	n := t.Workers()
	if n < 1 || steps < 1 {
		return 0, fmt.Errorf("sim: the bound of %d workers over %d steps: at least one of each is needed", n, steps)
	}
	mean := make([]float64, n)
	slowest := 0.0
	at := time.Duration(0)
	for k := range steps {
		worst := 0.0
		for w := range n {
			s := t.Spend(star.Worker(w), k, at, 1).Total().Seconds()
			mean[w] += s / float64(steps)
			worst = max(worst, s)
		}
		slowest += worst / float64(steps)
		at += time.Duration(worst * float64(time.Second))
	}
	rate := 0.0
	for _, m := range mean {
		rate += 1 / m
	}
	return 1 - float64(n)/rate/slowest, nil
}

// FirstOrder is Bound for a whole run of that many rounds. If links or CPUs are shared, the time of
// a worker depends on the others, so the gradients per second of ASGD replace Σ1/τ̄, and the pace of
// SSGD replaces mean(τmax), both simulated; in a ring, which has no ASGD, τ̄ is the mean computation
// time and that of an exchange.
func FirstOrder(c Config, steps int64) (float64, error) {
	if c.Network == nil && c.Ring == nil {
		return Bound(c.Times, steps)
	}
	n := c.Times.Workers()
	c.Pilot, c.Learner, c.Validation, c.Cancel, c.Limit = nil, &rounds{}, nil, false, 0
	if steps < 1 {
		return 0, fmt.Errorf("sim: the bound over %d steps: at least one is needed", steps)
	}
	pace := func(p modes.Plan, updates int64) (float64, error) {
		c.Plan, c.Target, c.Learner = p, float64(updates), &rounds{}
		r, err := Run(c)
		return r.Time.Seconds() / float64(steps), err
	}
	ssgd, err := pace(modes.SSGD(n), steps)
	if err != nil {
		return 0, err
	}
	if c.Ring == nil {
		asgd, err := pace(modes.ASGD(n), steps*int64(n))
		return 1 - asgd/ssgd, err
	}
	mean := make([]float64, n)
	slowest := 0.0
	for k := range steps {
		worst := 0.0
		for w := range n {
			s := c.Times.Spend(star.Worker(w), k, time.Duration(float64(k)*ssgd*1e9), 1).Total().Seconds()
			mean[w] += s / float64(steps)
			worst = max(worst, s)
		}
		slowest += worst / float64(steps)
	}
	rate, exchange := 0.0, max(0, ssgd-slowest)
	for _, m := range mean {
		rate += 1 / (m + exchange)
	}
	return 1 - float64(n)/rate/ssgd, nil
}

// rounds is a Learner that counts updates, and does not learn.
type rounds struct{ made float64 }

func (*rounds) Begin(int, int)           {}
func (*rounds) Release(star.Worker, int) {}
func (r *rounds) Update(int64, []Gradient) Outcome {
	r.made++
	return Outcome{Progress: r.made}
}
