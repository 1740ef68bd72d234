package price

import (
	"errors"
	"fmt"
	"math"
	"time"

	"star"
	"star/modes"
)

// Forecast is what a decision is made from: how long iterations will take, and what
// updates are worth.
type Forecast struct {
	// Times is how long an iteration of each worker takes, by rank, from its release
	// to its arrival, without waiting for others, with the samples that it has now. Zero:
	// the worker is gone.
	Times []time.Duration

	// Batch is an equal share of the round, in samples. Shares are those of now; nil:
	// all are equal.
	Batch  int
	Shares []int

	// Noise is the gradient noise scale φ in samples (package pgns).
	Noise float64

	// Rate is θ: the learning rate as a part of the one that would be best for SSGD. It
	// is the price of staleness: see [RateOfDrift]. Zero means [PriorRate].
	Rate float64

	// Steepness is ν, what the optimiser's memory has it bear: see [Steepness]. Zero: it has none.
	Steepness float64

	// Velocities is the momentum of a job whose workers have a velocity each: directions are less noisy than gradients then (36). Zero: they have none.
	Velocities float64

	// Fits is what iterations take by their samples, by rank, where that was measured.
	// Nil, or a fit that is zero: [SplitPrior] of the time is fixed.
	Fits []Fit

	// MaxShare bounds what one worker may be given, in samples; zero means twice Batch.
	MaxShare int

	// Ring says that there are no parameter servers: only plans of one ring can run.
	Ring bool

	// RiderWait is how long a ring waits for riders.
	RiderWait time.Duration

	// LinkBytes and LinkRate are the size of a gradient and what the servers' links carry,
	// in and out together, in bytes per second. Zero: not known, and then trees are not
	// candidates.
	LinkBytes int64
	LinkRate  float64

	// Queue is into how many parts a share may be cut for a queue of samples (Plan.Queue). Zero: a queue is no candidate.
	Queue int

	// Parts says that Fits have what a part costs by itself: then a half, a quarter and so on of Queue are candidates, too. What is not known cannot be weighed, and is taken for nothing.
	Parts bool

	// Local is how many steps workers may make by themselves between two exchanges (Plan.Local), at most. Below 2 local steps are no candidate.
	Local int

	// Phase is how much of the job is done, 0 to 1. Only a learned decider looks at it.
	Phase float64
}

// Fit is how the time of an iteration depends on its samples b: Fixed + PerSample·b, in
// seconds, if they are computed in one part. Fixed is communication and overhead. Part, of Fixed, is what each further part takes as well.
type Fit struct{ Fixed, PerSample, Part float64 }

const (
	// PriorRate is θ where staleness was not measured. It is a guess, of what is seen on
	// quadratics whose curvatures lie orders of magnitude apart: progress is made where
	// the curvature is small, and a rate that the largest curvature allows is far from the
	// best one there (TestCostIsSeen). Three networks at the best rates of SSGD need 5 to 6 %
	// more samples with ASGD, which is as much (docs/theory.md, Price).
	PriorRate = 0.1

	// CautiousRate is θ for leaving SSGD where staleness was not measured: what ASGD
	// costs a network that is trained at the best rate of SSGD, at most (about a tenth more
	// samples: docs/theory.md, Price).
	CautiousRate = 0.2

	// minRate and maxRate bound θ: below, staleness would be free; above, SSGD itself
	// would be beyond its best rate.
	MinRate, MaxRate = 0.02, 1

	// measuredRate is the most that a measured drift can make θ. The scatter of gradients shows the steepest
	// directions, progress is made in the others: what SSGD's own best rate, θ = 1 by (24), really costs
	// asynchronous updates of a network is what (24) says of θ = 0.19 (docs/theory.md).
	measuredRate = 0.35

	// SplitPrior is the part of an iteration that does not depend on its samples, where
	// nothing was measured. It is a guess too.
	SplitPrior = 0.5

	// GuessCharge is what the cost of shares that rest on that guess is multiplied by, so
	// that they are chosen only where they promise much.
	GuessCharge = 1.05

	// minShare is the least part of an equal share that a worker is given: of fewer samples its time says
	// little about what more would take.
	minShare = 1. / 8

	// floor is the least part of SSGD's progress per sample that a mode can have.
	floor = 0.05
)

// RateOfDrift is θ of a measured drift e: the part of itself by which the exact gradient
// changes while one round of samples is applied. A quadratic of curvature h has e = η·h,
// and the best η for noisy gradients is 1/(h·(1 + φ/B)) (McCandlish et al.
// 2018), so θ = e·(1 + φ/B), within bounds: at most 0.35, for a network has many curvatures
// and the drift is that of the largest.
func RateOfDrift(drift, noise float64, round int) float64 {
	return min(max(drift*(1+noise/float64(round)), MinRate), measuredRate)
}

// problem is a Forecast that was checked, in the order of speed and in seconds.
type problem struct {
	f       *Forecast
	n       int           // workers of the job
	ws      []star.Worker // living, fastest first
	t       []float64     // of an equal share
	byRank  []float64     // t in order of rank
	gone    []star.Worker
	fit     []Fit
	guess   []bool  // fit is a guess
	b       float64 // samples of an equal share
	maxRate float64 // Σ 1/τ
	Price
}

var errNobody = errors.New("price: a forecast without a living worker")

// problem checks f and puts it in order.
func (f *Forecast) problem() (*problem, error) {
	n := len(f.Times)
	if err := worthless(f.Noise, f.Rate, f.Steepness); err != nil {
		return nil, fmt.Errorf("price: a forecast with %w", err)
	}
	switch {
	case f.Batch < 1 || f.Batch > modes.MaxBatch:
		return nil, fmt.Errorf("price: a forecast with a batch of %d samples: want 1 to %d", f.Batch, modes.MaxBatch)
	case f.MaxShare < 0 || f.MaxShare > 2*modes.MaxBatch:
		return nil, fmt.Errorf("price: a forecast whose workers have at most %d samples: want 1 to %d", f.MaxShare, 2*modes.MaxBatch)
	case f.Shares != nil && len(f.Shares) != n || f.Fits != nil && len(f.Fits) != n:
		return nil, fmt.Errorf("price: a forecast of %d times, %d shares and %d fits: want one of each for every worker, or none", n, len(f.Shares), len(f.Fits))
	case f.Queue < 0 || f.Queue > modes.MaxQueue:
		return nil, fmt.Errorf("price: a forecast with a queue of %d parts of a share: want 0 to %d", f.Queue, modes.MaxQueue)
	case f.Local < 0 || f.Local > 1<<20:
		return nil, fmt.Errorf("price: a forecast with %d local steps: want 0 to %d", f.Local, 1<<20)
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
				return nil, fmt.Errorf("price: worker %d: fit %+v is not of positive numbers, or a part takes more than what is fixed", w, g)
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
		return nil, errNobody
	}
	p.byRank = p.t // sort makes another
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

// flow is how a plan runs, for what it is worth.
type flow struct {
	rate    float64 // samples applied per second
	updates float64 // per second
	own     float64 // mean size of the update that a sample is in: E S²/E S
	behind  float64 // mean rounds applied between reading and applying, of a sample
	stale   float64 // the same in updates, of a gradient
	local   int     // steps that workers make by themselves between two updates
}

// cost of a plan, in seconds: see [Candidate].
func (p *problem) cost(f flow) float64 {
	return p.unit * p.strain(f.behind) / (f.rate * p.kept(f.own, f.behind) * p.together(f.local, len(p.ws)))
}

// undropped is the flow of a plan that drops nothing. Samples that were applied while a
// worker computed add up to all that are not in its own updates, so behind follows from own.
func (p *problem) undropped(rate, updates, own, gradients float64) flow {
	return flow{rate: rate, updates: updates, own: own, behind: 1 - own/p.B, stale: float64(len(p.ws))/gradients - 1}
}

// Of is the time of an iteration with the given samples, in seconds.
func (f Fit) Of(samples float64) float64 { return f.Fixed + f.PerSample*samples }

// Took is the time of an iteration with the given samples in the given parts, in seconds.
func (f Fit) Took(samples, parts float64) float64 { return f.Of(samples) + f.Part*(parts-1) }
