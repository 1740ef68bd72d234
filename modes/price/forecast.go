package price

import (
	"errors"
	"fmt"
	"math"
	"time"

	"star"
	"star/modes"
)

// Forecast is the input of a decision: the times of iterations, and the worth of updates.
type Forecast struct {
	// Times is the time of an iteration of each worker, by rank, from its release to its arrival, without waiting for
	// others, with its present share. Zero: the worker has left.
	Times []time.Duration

	// Batch is an equal share of the round, in samples. Shares are the present ones; nil: all are equal.
	Batch  int
	Shares []int

	// Noise is the gradient noise scale φ in samples (package pgns).
	Noise float64

	// Rate is θ: the learning rate relative to the best one for SSGD. It is the price of staleness: see
	// [RateOfDrift]. Zero means [PriorRate].
	Rate float64

	// Steepness is ν of the optimiser's memory: see [Steepness]. Zero: it has no memory.
	Steepness float64

	// Velocities is the momentum of a job in which each worker has a velocity: directions are less noisy than
	// gradients then (29). Zero: they have none.
	Velocities float64

	// Fits is the time of an iteration as a function of its samples, by rank, where it was measured. Nil, or a fit that
	// is zero: [SplitPrior] of the time is fixed.
	Fits []Fit

	// MaxShare is the maximum share of one worker, in samples; zero means twice Batch.
	MaxShare int

	// Ring: there are no parameter servers, so only plans of one ring can run.
	Ring bool

	// RiderWait is how long a ring waits for riders.
	RiderWait time.Duration

	// LinkBytes and LinkRate are the size of a gradient and the capacity of the servers' links, in and out together, in
	// bytes per second. Zero: unknown, and then trees are not candidates.
	LinkBytes int64
	LinkRate  float64

	// Queue is the number of parts of a share in a queue of samples (Plan.Queue). Zero: a queue is not a candidate.
	Queue int

	// Parts: Fits have the cost of a part (Fit.Part). Then a half, a quarter and so on of Queue are candidates, too.
	// Without it that cost counts as zero.
	Parts bool

	// Local is the maximum number of local steps between two exchanges (Plan.Local). Below 2 local steps are not a
	// candidate.
	Local int

	// Outer is the maximum number of local steps between two outer steps by [OuterRule]. Below 8 outer steps are not a
	// candidate.
	Outer int

	// Fragments: outer steps in fragments (Plan.Fragments) are candidates, too.
	Fragments bool

	// Phase is the completed fraction of the job, 0 to 1. Only a learned decider uses it.
	Phase float64
}

// Fit is the time of an iteration as a function of its samples b: Fixed + PerSample·b, in seconds, if they are computed
// in one part. Fixed is communication and overhead. Part, which is included in Fixed, is the cost of each further part.
type Fit struct{ Fixed, PerSample, Part float64 }

const (
	// PriorRate is θ where staleness was not measured. It is a guess, from quadratics with curvatures that are
	// orders of magnitude apart: progress is made where the curvature is small, and a rate that the largest
	// curvature allows is far from the best one there (TestCostIsSeen). Three networks at the best rates of SSGD
	// need 5 to 6 % more samples with ASGD, which agrees (docs/theory.md, Price).
	PriorRate = 0.1

	// CautiousRate is θ for leaving SSGD where staleness was not measured: the greatest cost of ASGD for a network that
	// is trained at the best rate of SSGD (about a tenth more samples: docs/theory.md, Price).
	CautiousRate = 0.2

	// MinRate and MaxRate bound θ: below, staleness would be free; above, SSGD itself would be beyond its best rate.
	MinRate, MaxRate = 0.02, 1

	// measuredRate is the maximum θ of a measured drift. The scatter of gradients shows the steepest directions, and
	// progress is made in the others: the cost of asynchronous updates at SSGD's own best rate, θ = 1 by (19), is for a
	// network what (19) gives for θ = 0.19 (bench/RESULTS.md).
	measuredRate = 0.35

	// SplitPrior is the fraction of an iteration that does not depend on its samples, where it was not measured.
	// It is a guess too.
	SplitPrior = 0.5

	// GuessCharge multiplies the cost of shares that rest on that guess, so that they are chosen only for a large gain.
	GuessCharge = 1.05

	// minShare is the least share of a worker, relative to an equal one: the time of fewer samples says little
	// about the time of more.
	minShare = 1. / 8

	// floor is the least progress per sample of a mode, relative to SSGD.
	floor = 0.05
)

// RateOfDrift is θ of a measured drift e: the relative change of the exact gradient while one round of samples is
// applied. A quadratic of curvature h has e = η·h, and the best η for noisy gradients is 1/(h·(1 + φ/B)) (McCandlish et
// al. 2018), so θ = e·(1 + φ/B), within bounds: at most 0.35, because a network has many curvatures and the drift is
// that of the largest.
func RateOfDrift(drift, noise float64, round int) float64 {
	return min(max(drift*(1+noise/float64(round)), MinRate), measuredRate)
}

// problem is a checked Forecast, in order of speed and in seconds.
type problem struct {
	f       *Forecast
	n       int           // workers of the job
	ws      []star.Worker // live ones, fastest first
	t       []float64     // of an equal share
	byRank  []float64     // t in order of rank
	gone    []star.Worker
	fit     []Fit
	guess   []bool  // fit is a guess
	b       float64 // samples of an equal share
	maxRate float64 // Σ 1/τ
	Price
}

var errNoWorkers = errors.New("price: a forecast without a live worker")

// problem checks and sorts f.
func (f *Forecast) problem() (*problem, error) {
	n := len(f.Times)
	if err := worthless(f.Noise, f.Rate, f.Steepness); err != nil {
		return nil, fmt.Errorf("price: a forecast with %w", err)
	}
	switch {
	case f.Batch < 1 || f.Batch > modes.MaxBatch:
		return nil, fmt.Errorf("price: a forecast with a batch of %d samples: want 1 to %d", f.Batch, modes.MaxBatch)
	case f.MaxShare < 0 || f.MaxShare > 2*modes.MaxBatch:
		return nil, fmt.Errorf("price: a forecast with at most %d samples of a worker: want 1 to %d", f.MaxShare, 2*modes.MaxBatch)
	case f.Shares != nil && len(f.Shares) != n || f.Fits != nil && len(f.Fits) != n:
		return nil, fmt.Errorf("price: a forecast of %d times, %d shares and %d fits: want one of each for every worker, or none", n, len(f.Shares), len(f.Fits))
	case f.Queue < 0 || f.Queue > modes.MaxQueue:
		return nil, fmt.Errorf("price: a forecast with a queue of %d parts of a share: want 0 to %d", f.Queue, modes.MaxQueue)
	case min(f.Local, f.Outer) < 0 || max(f.Local, f.Outer) > 1<<20:
		return nil, fmt.Errorf("price: a forecast with %d local steps, or %d to an outer step: want 0 to %d", f.Local, f.Outer, 1<<20)
	case f.RiderWait < 0 || !(f.LinkRate >= 0) || f.LinkBytes < 0:
		return nil, errors.New("price: a forecast with a negative wait or link")
	}
	p := &problem{f: f, n: n, b: float64(f.Batch)}
	for w, t := range f.Times {
		if t < 0 || t > MaxTime {
			return nil, fmt.Errorf("price: the forecast says that worker %d takes %v for an iteration: want at most %v, or 0 if it is gone", w, t, MaxTime)
		}
		if t == 0 {
			p.gone = append(p.gone, star.Worker(w))
			continue
		}
		b, s := p.b, t.Seconds()
		if f.Shares != nil {
			if b = float64(f.Shares[w]); b < 1 || b > 2*modes.MaxBatch {
				return nil, fmt.Errorf("price: worker %d has a share of %d samples: want 1 to %d", w, f.Shares[w], 2*modes.MaxBatch)
			}
		}
		fit, guess := Fit{Fixed: SplitPrior * s, PerSample: (1 - SplitPrior) * s / b}, true
		if f.Fits != nil && f.Fits[w] != (Fit{}) {
			g := f.Fits[w]
			if !(g.Fixed >= 0 && g.PerSample >= 0 && g.Part >= 0 && g.Part <= g.Fixed) || math.IsInf(g.Fixed+g.PerSample, 0) {
				return nil, fmt.Errorf("price: worker %d: fit %+v has a negative number, or a part takes more than the fixed time", w, g)
			}
			// The forecast's time counts; the fit says how it splits.
			if sum := g.Fixed + g.PerSample*b; sum > 0 {
				fit, guess = Fit{g.Fixed * s / sum, g.PerSample * s / sum, g.Part * s / sum}, false
			}
		}
		p.ws = append(p.ws, star.Worker(w))
		p.t = append(p.t, fit.Fixed+fit.PerSample*p.b)
		p.fit = append(p.fit, fit)
		p.guess = append(p.guess, guess)
	}
	if len(p.ws) == 0 {
		return nil, errNoWorkers
	}
	p.byRank = p.t // sort allocates another
	p.sort()
	p.Price = priceOf(p.b*float64(len(p.ws)), f.Noise, f.Rate, f.Steepness, f.Velocities)
	for _, t := range p.t {
		p.maxRate += 1 / t
	}
	return p, nil
}

// sort puts the workers in order of time; equal ones by rank.
func (p *problem) sort() {
	at := make([]int, len(p.ws))
	for i := range at {
		at[i] = i
	}
	sortBy(at, func(i, j int) bool { return p.t[i] < p.t[j] || p.t[i] == p.t[j] && p.ws[i] < p.ws[j] })
	ws, t, fit, guess := p.ws, p.t, p.fit, p.guess
	p.ws, p.t, p.fit, p.guess = make([]star.Worker, len(at)), make([]float64, len(at)), make([]Fit, len(at)), make([]bool, len(at))
	for k, i := range at {
		p.ws[k], p.t[k], p.fit[k], p.guess[k] = ws[i], t[i], fit[i], guess[i]
	}
}

// flow is the speed and the staleness of a plan, from which its cost follows.
type flow struct {
	rate    float64 // samples applied per second
	updates float64 // per second
	own     float64 // mean size of the update that a sample is in: E S²/E S
	behind  float64 // mean rounds of samples applied between reading and applying, of a sample
	stale   float64 // the same in updates, of a gradient
	local   int     // local steps of a worker between two updates
	outer   float64 // of outer steps the mean local steps of a worker; 0: the update is of their mean
}

// cost of a plan, in seconds: see [Candidate].
func (p *problem) cost(f flow) float64 {
	together := p.together(f.local, len(p.ws))
	if f.outer > 0 {
		together = p.outward(f.outer, len(p.ws))
	}
	return p.unit * p.strain(f.behind) / (f.rate * p.kept(f.own, f.behind) * together)
}

// undropped is the flow of a plan that drops nothing. The samples that are applied while a worker computes are all
// those that are not in its own updates, so behind follows from own.
func (p *problem) undropped(rate, updates, own, gradients float64) flow {
	return flow{rate: rate, updates: updates, own: own, behind: 1 - own/p.B, stale: float64(len(p.ws))/gradients - 1}
}

// Of is the time of an iteration with the given samples, in seconds.
func (f Fit) Of(samples float64) float64 { return f.Fixed + f.PerSample*samples }

// Took is the time of an iteration with the given samples in the given parts, in seconds.
func (f Fit) Took(samples, parts float64) float64 { return f.Of(samples) + f.Part*(parts-1) }
