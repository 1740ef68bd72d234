package pilot

import (
	"math"
	"slices"
	"time"

	"star/coord/advice"
	"star/modes"
	"star/modes/baseline"
	"star/runlog"
)

// Baseline has the scheme of a paper choose the plans of a job (--baseline). It implements coord.Pilot.
type Baseline struct {
	scheme  baseline.Scheme
	plan    string // in force, or asked for
	samples int64  // applied so far
	limit   int64
	manual  bool // star ctl mode has set the plan: the scheme's decisions are ignored
	remarks []advice.Remark
}

// NewBaseline is the pilot of a job that begins with the given plan.
func NewBaseline(s baseline.Scheme, plan modes.Plan) *Baseline {
	return &Baseline{scheme: s, plan: plan.String()}
}

// Tell implements coord.Pilot.
func (b *Baseline) Tell(l runlog.Line) []advice.Remark {
	b.remarks = b.remarks[:0]
	switch e := l.Entry.(type) {
	case runlog.Train:
		b.limit = e.Limit
	case runlog.Record:
		b.scheme.Observe(e.Record)
	case runlog.Fire:
		b.samples = e.Samples
		if len(e.Workers) > 0 {
			b.fired(l.T, e)
		}
	case runlog.Plan:
		if e.After == 0 { // star ctl mode sets manual, and star ctl mode auto clears it
			b.manual = e.Plan != e.From
		}
		b.plan = e.Plan
	case runlog.Leave:
		b.scheme.Leave(e.Worker)
	}
	return b.remarks
}

func (b *Baseline) fired(at time.Duration, e runlog.Fire) {
	d, change := b.scheme.Fired(baseline.Update{At: at, Workers: slices.Clone(e.Workers), Samples: b.samples, Limit: b.limit})
	if !change || b.manual || d.Plan.String() == b.plan {
		return
	}
	b.plan = d.Plan.String()
	b.remarks = append(b.remarks, advice.Remark{Change: &advice.Change{Plan: d.Plan, Why: d.Why, Predicted: math.NaN()}})
}
