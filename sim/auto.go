package sim

import (
	"time"

	"star"
	"star/modes"
	"star/pgns"
)

// Auto is the Pilot of --mode auto: the production controller, with the production estimator of the noise scale.
type Auto struct {
	controller *modes.Controller
	noise      *pgns.Estimator
	round      int
	total      float64   // samples applied
	read       []float64 // total at each worker's last release
	workers    []star.Worker
}

// NewAuto makes one for a cluster whose job begins with the given plan.
func NewAuto(c modes.ControllerConfig, plan modes.Plan) (*Auto, error) {
	controller, err := modes.NewController(c, plan)
	if err != nil {
		return nil, err
	}
	noise, err := pgns.New(pgns.Config{})
	if err != nil {
		return nil, err
	}
	return &Auto{controller: controller, noise: noise, round: c.Workers * c.Batch, read: make([]float64, c.Workers)}, nil
}

// Observe implements Pilot.
func (a *Auto) Observe(r star.Record) { a.controller.Observe(r) }

// Fired implements Pilot.
func (a *Auto) Fired(at time.Duration, _ int64, gs []Gradient, o Outcome) {
	u := pgns.Update{Round: a.round}
	samples := 0
	a.workers = a.workers[:0]
	for _, g := range gs {
		samples += g.Samples
		a.workers = append(a.workers, g.Worker)
		u.Gradients = append(u.Gradients, pgns.Gradient{Basis: g.Basis, Samples: g.Samples, Norm2: g.Norm2,
			Behind: (a.total - a.read[g.Worker]) / float64(a.round)})
	}
	for i := range u.Gradients {
		u.Gradients[i].Weight = float64(gs[i].Samples) / float64(samples)
	}
	u.Sum2 = o.Norm2
	a.total += float64(samples)
	for _, w := range a.workers {
		a.read[w] = a.total
	}
	a.controller.Fired(at, a.workers, samples)
	if len(gs) < 2 || o.Norm2 == 0 {
		return
	}
	if _, err := a.noise.Observe(u); err == nil {
		a.controller.Noise(a.noise.Noise().Scale)
		a.controller.Drift(a.noise.Drift())
	}
}

// Leave implements Attendant.
func (a *Auto) Leave(_ time.Duration, w star.Worker) { a.controller.Leave(w) }

// Join implements Attendant.
func (a *Auto) Join(at time.Duration, w star.Worker) { a.controller.Join(at, w) }

// Decide implements Pilot.
func (a *Auto) Decide(at time.Duration) (modes.Plan, string, bool) {
	d, change := a.controller.Decide(at)
	return d.Plan, d.Why, change
}
