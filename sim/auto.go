package sim

import (
	"slices"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/pgns"
)

// Auto is the Pilot of --mode auto: the production controller, with the production estimator of the noise scale.
type Auto struct {
	controller *auto.Controller
	noise      *Noise
	workers    []star.Worker
	watch      []flight
	records    int
	fires      int
}

// flight is a worker's present iteration.
type flight struct {
	deadline time.Duration // 0: not known
	released time.Duration
	missed   int
	told     int // of these
	computes bool
}

// Noise measures the gradients of a simulated job as a coordinator does those of a real one.
type Noise struct {
	estimator *pgns.Estimator
	round     int
	total     float64   // samples applied
	read      []float64 // total at each worker's last release
	last      []glance  // by worker: its last gradient
	course    *pgns.Course

	grad2 float64 // of the newest update
	mixed bool
}

// farthest is by how many rounds of samples the parameters of two gradients may differ that make a pair, as in
// package coord.
const farthest = 2

// glance is what a pair of gradients needs of one of them.
type glance struct {
	Gradient
	read float64 // samples applied when its worker was released
}

// NewNoise returns the noise scale's estimate for workers with equal batches.
func NewNoise(workers, batch int) (*Noise, error) {
	e, err := pgns.New(pgns.Config{})
	if err != nil {
		return nil, err
	}
	return &Noise{estimator: e, round: workers * batch, read: make([]float64, workers), last: make([]glance, workers), course: pgns.NewCourse(workers)}, nil
}

// Fired takes in an update, and reports the noise scale in samples and the drift with its strength (see
// pgns.Estimator); false: it says nothing new.
func (n *Noise) Fired(version int64, gs []Gradient, o Outcome) (scale, drift, strength float64, ok bool) {
	u := pgns.Update{Round: n.round}
	samples := 0
	var workers []int
	for _, g := range gs {
		change := -1.0
		if g.Change > 0 {
			change = g.Change
		}
		n.course.Gradient(int(g.Worker), g.Step, g.Basis, g.Samples, g.Norm2, change)
		workers = append(workers, int(g.Worker))
	}
	n.course.Fired(version, workers, n.round)
	for _, g := range gs {
		samples += g.Samples
		u.Gradients = append(u.Gradients, pgns.Gradient{Basis: g.Basis, Samples: g.Samples, Norm2: g.Norm2,
			Behind: (n.total - n.read[g.Worker]) / float64(n.round)})
	}
	for i := range u.Gradients {
		u.Gradients[i].Weight = float64(gs[i].Samples) / float64(samples)
	}
	u.Sum2 = o.Norm2
	before := n.total
	n.total += float64(samples)
	read := slices.Clone(n.read)
	for _, g := range gs {
		n.read[g.Worker] = n.total
	}
	var prior glance
	for _, g := range gs {
		prior, n.last[g.Worker] = n.last[g.Worker], glance{g, read[g.Worker]}
	}
	switch {
	case len(gs) == 1 && gs[0].Change > 0:
		// One gradient says nothing by itself; with how it differs from the one before it does (pgns.Pair).
		last := n.last[gs[0].Worker]
		if prior.Samples < 1 || last.Step != prior.Step+1 || last.read-prior.read > farthest*float64(n.round) {
			return 0, 0, 0, false
		}
		pair := func(g glance) pgns.Gradient {
			return pgns.Gradient{Norm2: g.Norm2, Samples: g.Samples, Basis: g.Basis, Behind: (before - g.read) / float64(n.round)}
		}
		u = pgns.Pair(pair(prior), pair(last), gs[0].Change)
		u.Round = n.round
	case len(gs) < 2 || o.Norm2 == 0:
		return 0, 0, 0, false
	}
	m, err := n.estimator.Observe(u)
	if err != nil {
		return 0, 0, 0, false
	}
	n.grad2, n.mixed = m.Grad2, u.Mixed()
	if !n.mixed {
		n.course.Moments(version, n.grad2)
	}
	drift, strength = n.estimator.Drift()
	return n.estimator.Noise().Scale, drift, strength, true
}

// Moments are what the newest update by itself said of |G|², and whether its gradients were of different parameters.
func (n *Noise) Moments() (grad2 float64, mixed bool) { return n.grad2, n.mixed }

// Bound is how much staleness can cost at most (see pgns.Course).
func (n *Noise) Bound() (theta, most float64, ok bool) { return n.course.Bound() }

// NewAuto returns the pilot of a cluster with a job that starts with the given plan.
func NewAuto(c auto.Config, plan modes.Plan) (*Auto, error) {
	controller, err := auto.New(c, plan)
	if err != nil {
		return nil, err
	}
	noise, err := NewNoise(c.Workers, c.Batch)
	if err != nil {
		return nil, err
	}
	a := &Auto{controller: controller, noise: noise, watch: make([]flight, c.Workers)}
	for w := range a.watch {
		a.watch[w].computes = true
	}
	return a, nil
}

// Observe implements Pilot.
func (a *Auto) Observe(r star.Record) {
	a.controller.Observe(r)
	a.watch[r.Worker].computes = false
	if a.records++; a.records%(4*len(a.watch)) == 0 || a.fires == 0 {
		a.expect()
	}
}

// expect asks how long iterations may take, as package pilot does.
func (a *Auto) expect() {
	for w := range a.watch {
		a.watch[w].deadline, _ = a.controller.Deadline(star.Worker(w))
	}
}

// patience is the least deadline, as in package coord.
const patience = 250 * time.Millisecond

// Next implements Watcher: when a gradient is due that is not there.
func (a *Auto) Next(at time.Duration) (next time.Duration) {
	for w := range a.watch {
		f := &a.watch[w]
		if !f.computes || f.deadline == 0 {
			continue
		}
		due := f.released + max(f.deadline, patience)<<f.missed
		for due <= at {
			f.missed++
			due = f.released + max(f.deadline, patience)<<f.missed
		}
		if next == 0 || due < next {
			next = due
		}
	}
	return next
}

// Fired implements Pilot.
func (a *Auto) Fired(at time.Duration, version int64, gs []Gradient, o Outcome) {
	a.workers = a.workers[:0]
	samples := 0
	for _, g := range gs {
		samples += g.Samples
		a.workers = append(a.workers, g.Worker)
		a.watch[g.Worker] = flight{deadline: a.watch[g.Worker].deadline, released: at, computes: true}
	}
	scale, drift, strength, ok := a.noise.Fired(version, gs, o)
	a.controller.Fired(at, a.workers, samples)
	if a.fires++; a.fires <= 3 {
		a.expect()
	}
	if ok {
		a.controller.Noise(scale)
		a.controller.Drift(drift, strength)
	}
	if theta, most, ok := a.noise.Bound(); ok {
		a.controller.Bound(theta, most)
	}
}

// Leave implements Attendant.
func (a *Auto) Leave(_ time.Duration, w star.Worker) {
	a.controller.Leave(w)
	a.watch[w] = flight{}
}

// Join implements Attendant.
func (a *Auto) Join(at time.Duration, w star.Worker) {
	a.controller.Join(at, w)
	a.watch[w] = flight{released: at, computes: true}
}

// Decide implements Pilot.
func (a *Auto) Decide(at time.Duration) (modes.Plan, string, bool) {
	for w, f := range a.watch {
		if f.computes && f.deadline > 0 && at >= f.released+max(f.deadline, patience)<<f.told {
			a.controller.Late(star.Worker(w))
			a.watch[w].told++
		}
	}
	d, change := a.controller.Decide(at)
	return d.Plan, d.Why, change
}
