package advisor

import "star/coord/advice"

// Permits has the change of plan for which the pilot has requested permission, and the one that it was granted. Only
// the last request is valid. The zero value has none.
//
//	       Ask              Rule: yes                Install
//	none ───────► asked ──────────────────► granted
//	  ▲             │ no, Ask, Yield          │ no, Ask, Yield
//	  └─────────────┴─────────────────────────┘ Home, after a no
type Permits struct {
	asked, granted *Request
	refused        *Refusal
}

// Request is a change of plan. After is the number of lines that the pilot had read when it decided.
type Request struct {
	advice.Change
	After int64
}

// Ruling is the answer to a request.
type Ruling struct {
	*Request
	OK  bool
	Why string
}

// Refusal is a mode for which the pilot's request was refused or its permission withdrawn. It is kept until the mode
// changes or the pilot requests another one.
type Refusal struct {
	Mode string  `json:"mode"`
	Why  string  `json:"why"`
	At   float64 `json:"at_s"` // since the run began
}

// Effect is one action for the coordinator.
type Effect interface{ effect() }

type (
	// Answered writes an answer to the run log, which the pilot reads.
	Answered struct{ Ruling }
	// Install makes the plan of a request that was granted the plan in force.
	Install struct{ *Request }
	// Home returns to SSGD, if the present plan needs permission and was not chosen by hand.
	Home struct{ Why string }
	// GiveBack tells the Admission that the request and the permission are no longer needed.
	GiveBack struct{}
	// Denied keeps the refusal for the status (Permits.Deny), after all other effects.
	Denied struct{ Ruling }
)

func (Answered) effect() {}
func (Install) effect()  {}
func (Home) effect()     {}
func (GiveBack) effect() {}
func (Denied) effect()   {}

// Ask makes q the valid request. An earlier one without an answer is declined, and an earlier permission is given up;
// the Admission does both itself.
func (p *Permits) Ask(q *Request) (effects []Effect) {
	if p.asked != nil {
		effects = append(effects, Answered{Ruling{p.asked, false, "the pilot has chosen another plan"}})
	}
	p.asked, p.granted = q, nil
	return effects
}

// Rule handles the answer to a request. The answer to an outdated request changes nothing. unheeded is why the pilot's
// decisions are ignored now; empty if they are not.
func (p *Permits) Rule(r Ruling, unheeded string) []Effect {
	switch {
	case r.Request == p.asked && r.OK:
		if unheeded != "" {
			return p.Yield(unheeded)
		}
		p.asked, p.granted, p.refused = nil, r.Request, nil
		return []Effect{Answered{r}, Install{r.Request}}
	case r.Request == p.asked, r.Request == p.granted && !r.OK:
		p.asked, p.granted = nil, nil
		return []Effect{Home{r.Why}, Answered{Ruling{r.Request, false, r.Why}}, Denied{r}}
	}
	return nil
}

// Yield gives up the permission and declines the open request, with the reason why.
func (p *Permits) Yield(why string) (effects []Effect) {
	if p.asked == nil && p.granted == nil {
		return nil
	}
	if p.asked != nil {
		effects = append(effects, Answered{Ruling{p.asked, false, why}})
	}
	p.asked, p.granted = nil, nil
	return append(effects, GiveBack{})
}

// Deny keeps a refusal. at is the time since the run began, in seconds.
func (p *Permits) Deny(r Ruling, at float64) { p.refused = &Refusal{r.Plan.String(), r.Why, at} }

// Forget drops the refusal: another plan is in force or requested.
func (p *Permits) Forget() { p.refused = nil }

// Refused returns the present refusal; nil without one. It must not be modified.
func (p *Permits) Refused() *Refusal { return p.refused }
