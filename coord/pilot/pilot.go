// Package pilot combines the parts of --mode auto: the detector of slow workers (straggler), the prediction of
// iterations (a contest of predictors), and the choice of the plan (auto.Controller):
//
//	run log line ──► detector, contest, controller ──► remarks: verdicts, deadlines, trainings, changes of plan
//
// Its only input is the lines of the run log, of a running job or of a file.
//
// Invariants: the remarks depend on the lines alone, so a log replays to the same decisions. After star ctl mode the
// pilot only observes, until star ctl mode auto.
package pilot

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/coord/advice"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/pgns"
	"star/runlog"
	"star/straggler"
)

// Config is the settings of a pilot.
type Config struct {
	Workers    int
	Batch      int           // samples of an equal share
	Plan       modes.Plan    // initial plan
	Ring       bool          // all-reduce
	RiderWait  time.Duration // of the ring
	Queue      int           // see price.Forecast
	MaxShare   int           // see price.Forecast
	Local      int           // see price.Forecast
	Outer      int           // see price.Forecast
	LinkRate   float64       // see price.Forecast
	Momentum   float64       // of the optimiser: see auto.Config
	Velocities float64       // see auto.Config
	Adaptive   bool          // see auto.Config
	Gain       float64       // see auto.Config
	Dwell      int           // see auto.Config

	// Model is a trained predictor that takes part in the contest; nil: none.
	Model *straggler.Model

	// Online is the source of randomness of each training, from 0 on, if an LSTM is to be trained on the job's own
	// records and to take part; nil: none is. It excludes Model.
	Online func(lesson int) straggler.Source

	// Decider chooses among plans; nil: the cheapest.
	Decider price.Decider

	// Notices say which parts the pilot has to do without, and why.
	Notices []string
}

// Pilot implements coord.Pilot.
type Pilot struct {
	cfg        Config
	controller *auto.Controller
	timer      straggler.Timer
	detector   *straggler.Detector
	contest    *straggler.Contest
	online     *online // nil: no training
	limit      int64   // end of the job in samples; 0: unknown
	samples    []int   // of each worker's last gradient
	remarks    []advice.Remark
	champion   string // name of the contest's champion in the last remark
	streak     int    // records since another one is champion
	manual     bool   // star ctl mode has set the plan
	records    int
	deadlines  []time.Duration // of the last remark
	course     *pgns.Course
	here       int // number of live workers
	fires      int
}

// lasting is the number of iterations of each worker for which a predictor must be the better one before a remark. Two
// that are equally good take turns.
const lasting = 64

// early is the number of first updates after which deadlines are computed each time, and before which the controller is
// asked at each record: then a worker that was slow in its first iteration need not be waited for in the second, and
// exchanges that dominate are seen before the first update.
const early = 3

// New makes a pilot.
func New(c Config) (*Pilot, error) {
	timer := straggler.Timer(star.Record.Busy)
	if c.Ring {
		timer = star.Record.Own
	}
	entrants := []straggler.Entrant{{Name: "ewma", Forecaster: straggler.NewEWMA(c.Workers, timer, 0.2)}}
	if c.Model != nil {
		entrants = append(entrants, straggler.Entrant{Name: "lstm", Forecaster: straggler.NewLSTM(c.Workers, timer, c.Model)})
	}
	p := &Pilot{cfg: c, samples: make([]int, c.Workers), course: pgns.NewCourse(c.Workers), here: c.Workers, contest: straggler.NewContest(timer, 32*c.Workers, entrants...)}
	p.champion = p.contest.Champion().Name
	if c.Online != nil {
		p.online = newOnline(c.Workers, timer, c.Online)
	}
	var err error
	p.detector, err = straggler.New(straggler.Config{Workers: c.Workers, Collective: c.Ring})
	if err != nil {
		return nil, err
	}
	p.detector.Plan(c.Plan.Steps(0, c.Batch), c.Plan.Queue+c.Plan.Micro > 0)
	if err := p.begin(timer, 0); err != nil {
		return nil, err
	}
	p.cfg.Gain, p.cfg.Dwell = p.controller.Tuning()
	return p, nil
}

// Thresholds implements coord.Tunable.
func (p *Pilot) Thresholds() map[string]float64 {
	t := p.detector.Thresholds()
	t[advice.ModeGain], t[advice.ModeDwell] = p.cfg.Gain, float64(p.cfg.Dwell)
	return t
}

// begin creates the controller of a job with the given number of parameters.
func (p *Pilot) begin(timer straggler.Timer, params int64) (err error) {
	c := p.cfg
	p.timer = timer
	p.controller, err = auto.New(auto.Config{
		Workers: c.Workers, Batch: c.Batch, Decider: c.Decider, Predictor: p.contest, Own: timer, Momentum: c.Momentum, Velocities: c.Velocities, Adaptive: c.Adaptive,
		Ring: c.Ring, RiderWait: c.RiderWait, Queue: c.Queue, MaxShare: c.MaxShare, Local: c.Local, Outer: c.Outer, LinkBytes: 4 * params, LinkRate: c.LinkRate, Gain: c.Gain, Dwell: c.Dwell,
	}, c.Plan)
	return err
}

// Notices are those of the Config, for the user.
func (p *Pilot) Notices() []string { return p.cfg.Notices }

// Tell implements coord.Pilot.
func (p *Pilot) Tell(l runlog.Line) []advice.Remark {
	p.remarks = p.remarks[:0]
	switch e := l.Entry.(type) {
	case runlog.Record:
		p.samples[e.Worker] = e.Samples
		for _, v := range p.detector.Observe(e.Record) {
			p.notice(v)
		}
		p.controller.Observe(e.Record)
		change, ok := e.Telemetry.Get(star.GradChange)
		if !ok {
			change = -1
		}
		p.course.Gradient(int(e.Worker), e.Step, e.Basis, e.Samples, e.Norm2, change)
		if p.records++; p.records%(4*p.cfg.Workers) == 0 || p.fires == 0 {
			p.expect()
		}
		if now := p.contest.Champion().Name; now == p.champion {
			p.streak = 0
		} else if p.streak++; p.streak >= lasting*p.cfg.Workers {
			p.champion, p.streak = now, 0
			p.say(advice.Remark{Text: "predictor " + p.contest.String()})
		}
		if p.online != nil {
			if s := p.online.observe(e.Record, p.controller.Full); s != nil {
				p.say(advice.Remark{Study: s})
			}
		}
		if p.fires < early { // a plan that comes before an update is in force from that update on
			p.decide(l.T)
		}
	case runlog.Memory: // of an earlier attempt with other steps: only the times of iterations count
		for _, r := range e.Records {
			p.samples[r.Worker] = r.Samples
			p.controller.Observe(r)
			if p.online != nil {
				if s := p.online.observe(r, p.controller.Full); s != nil {
					p.say(advice.Remark{Study: s})
				}
			}
		}
	case runlog.Predictor:
		if p.online == nil {
			break
		}
		if say := p.online.install(p.contest, e); say != "" {
			p.say(advice.Remark{Text: say})
		}
	case runlog.Fire:
		applied := 0
		members := make([]int, len(e.Workers))
		for i, w := range e.Workers {
			applied += p.samples[w]
			members[i] = int(w)
		}
		p.course.Fired(e.Version, members, p.here*p.cfg.Batch)
		p.controller.Fired(l.T, slices.Concat(e.Workers, e.Dropped), applied)
		if p.limit > 0 {
			p.controller.Phase(float64(e.Samples) / float64(p.limit))
		}
		if p.fires++; p.fires <= early {
			p.expect()
		}
		p.decide(l.T)
	case runlog.Noise:
		p.controller.Noise(float64(e.Scale))
		p.controller.Drift(float64(e.Drift), float64(e.Strength))
		if !e.Mixed {
			p.course.Moments(e.Version, float64(e.Grad2))
		}
		if theta, most, ok := p.course.Bound(); ok {
			p.controller.Bound(theta, most)
		}
	case runlog.Late: // other workers may wait for it: decide whether to go on waiting
		p.controller.Late(e.Worker)
		p.decide(l.T)
	case runlog.Join:
		p.controller.Join(l.T, e.Worker)
		p.here = min(p.here+1, p.cfg.Workers)
	case runlog.Leave:
		p.here = max(p.here-1, 1)
		p.detector.Leave(e.Worker)
		p.controller.Leave(e.Worker)
	case runlog.Plan:
		plan, err := modes.Parse(e.Plan, p.cfg.Workers)
		p.detector.Plan(plan.Steps(0, p.cfg.Batch), plan.Queue+plan.Micro > 0)
		if e.After > 0 && err == nil && plan.Outer != (modes.Outer{}) {
			p.controller.Shortened(plan)
		}
		if e.After > 0 || e.Forced { // the pilot's own, or reported as an admission
			break
		}
		// star ctl mode sets manual; star ctl mode auto, which does not change the plan, clears it.
		if p.manual = e.Plan != e.From; err == nil {
			p.controller.Installed(l.T, plan)
		}
	case runlog.Admission:
		p.admitted(l.T, e)
	case runlog.Set:
		switch v := float64(e.Value); e.Name {
		case advice.ModeGain:
			p.cfg.Gain = v
		case advice.ModeDwell:
			p.cfg.Dwell = int(v)
		}
		p.detector.Set(e.Name, float64(e.Value))
		p.controller.Tune(p.cfg.Gain, p.cfg.Dwell)
	case runlog.Train:
		p.begin(p.timer, e.Params) // it did not fail with 0
		p.limit = e.Limit
		for _, w := range e.Absent {
			p.detector.Leave(star.Worker(w))
			p.controller.Leave(star.Worker(w))
		}
		p.here = max(p.cfg.Workers-len(e.Absent), 1)
	}
	return p.remarks
}

// admitted processes the cluster's answer to a change of plan.
func (p *Pilot) admitted(at time.Duration, e runlog.Admission) {
	plan, err := modes.Parse(e.Plan, p.cfg.Workers)
	if err != nil {
		return
	}
	if e.Granted {
		if p.controller.Plan().String() != e.Plan {
			p.controller.Installed(at, plan)
		}
		return
	}
	if now, err := modes.Parse(e.Now, p.cfg.Workers); err == nil {
		p.controller.Refused(at, plan, now)
	}
}

// expect makes a remark with the deadlines of iterations, if one has changed by a fifth.
func (p *Pilot) expect() {
	ds := make([]time.Duration, p.cfg.Workers)
	news := false
	for w := range ds {
		ds[w], _ = p.controller.Deadline(star.Worker(w))
		was := time.Duration(0)
		if p.deadlines != nil {
			was = p.deadlines[w]
		}
		news = news || ds[w] > was*6/5 || ds[w] < was*4/5
	}
	if news {
		p.deadlines = ds
		p.say(advice.Remark{Deadlines: ds})
	}
}

func (p *Pilot) say(r advice.Remark) { p.remarks = append(p.remarks, r) }

// notice makes a remark of an event of the detector.
func (p *Pilot) notice(e straggler.Event) {
	switch e.Kind {
	case straggler.Slow, straggler.Changed, straggler.Recovered:
		v := e.Verdict
		out := &runlog.Verdict{Worker: e.Worker, Event: e.Kind.String(), Step: e.Step, Since: v.Since, Until: v.Until, Slowdown: runlog.Number(v.Slowdown), Cause: v.Cause.String()}
		for _, x := range v.Evidence {
			out.Evidence = append(out.Evidence, runlog.Evidence{What: x.What, Value: runlog.Number(x.Value), Other: runlog.Number(x.Other), Text: x.Text})
		}
		p.say(advice.Remark{Verdict: out, Text: e.String()})
	default:
		p.say(advice.Remark{Text: e.String()})
	}
}

// decide asks the controller. The reason of a change names the slowest worker first.
func (p *Pilot) decide(at time.Duration) {
	if p.manual {
		return
	}
	d, change := p.controller.Decide(at)
	if v := p.controller.Verdict(); v != nil {
		p.say(advice.Remark{Gain: &runlog.Gain{Plan: v.Plan.String(), Predicted: runlog.Number(v.Predicted), Seen: runlog.Number(v.Seen), Reverted: v.Reverted}})
	}
	if !change {
		return
	}
	why := d.Why
	if vs := p.detector.Verdicts(); len(vs) > 0 {
		slices.SortFunc(vs, func(a, b straggler.Verdict) int { return int(math.Copysign(1, b.Slowdown-a.Slowdown)) })
		why = fmt.Sprintf("%v → %s", vs[0], d.Why)
	}
	p.say(advice.Remark{Change: &advice.Change{Plan: d.Plan, Why: why, Predicted: d.Gain}})
}
