package measure

import (
	"time"

	"star"
	"star/runlog"
	"star/straggler"
)

// Pace compares a job with its own past (straggler.Pace), in lines of the run log. The zero value judges nothing.
type Pace struct {
	judge *straggler.Pace
	text  string
}

// NewPace begins with the training of a job. collective: workers exchange in an all-reduce.
func NewPace(workers int, collective bool) Pace {
	judge, err := straggler.NewPace(straggler.Config{Workers: workers, Collective: collective})
	if err != nil { // no workers, or more than can be
		return Pace{}
	}
	return Pace{judge: judge}
}

// Observe takes a record that came at a time of the job. It returns lines that follow from it.
func (p *Pace) Observe(at time.Duration, r *star.Record) (lines []runlog.Slowdown) {
	if p.judge == nil {
		return nil
	}
	for _, e := range p.judge.Observe(at, r) {
		lines = append(lines, slowdown(e))
		if p.text = e.String(); e.Kind == straggler.Recovered {
			p.text = ""
		}
	}
	return lines
}

// slowdown is the line of an event.
func slowdown(e straggler.PaceEvent) runlog.Slowdown {
	s := runlog.Slowdown{Event: e.Kind.String(), Since: runlog.SecondsOf(e.Since), Workers: e.Workers, Hosts: e.Hosts, Slowdown: runlog.Number(e.Factor), Part: e.Part, Cause: e.Cause.String(), Says: e.String()}
	if e.Kind == straggler.Recovered {
		s.Until = runlog.SecondsOf(e.Until)
	}
	for _, g := range e.Parts {
		s.Parts = append(s.Parts, runlog.Grown{Part: g.Part, Now: runlog.Number(g.Now), Before: runlog.Number(g.Before)})
	}
	for _, x := range e.Evidence {
		s.Evidence = append(s.Evidence, runlog.Evidence{What: x.What, Value: runlog.Number(x.Value), Other: runlog.Number(x.Other), Text: x.Text})
	}
	return s
}

// Slow says in a sentence that the job is slow now; empty if it is not.
func (p *Pace) Slow() string { return p.text }

// Plan sets the plan, from the next record on.
func (p *Pace) Plan(plan string) {
	if p.judge != nil {
		p.judge.Plan(plan)
	}
}

// Join sets the host of a worker by its address.
func (p *Pace) Join(w star.Worker, peer string) {
	if p.judge != nil {
		p.judge.Host(w, runlog.Join{Peer: peer}.Host())
	}
}

// Leave says that a worker is gone.
func (p *Pace) Leave(w star.Worker) {
	if p.judge != nil {
		p.judge.Leave(w)
	}
}
