package advisor

import "star/coord/advice"

// Permits is which change of plan the pilot has asked permission for, and which one it has. One request counts at a
// time. The zero value has none.
//
//	       Ask              Rule: yes                Install
//	none ───────► asked ──────────────────► granted
//	  ▲             │ no, Ask, Yield          │ no, Ask, Yield
//	  └─────────────┴─────────────────────────┘ Home, after a no
type Permits struct {
	asked, granted *Request
	refused        *Refusal
}

// Request is a change of plan. After is the line of the run log up to which the pilot was told when it wanted that.
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

// Refusal is a mode that the pilot has asked for and was refused, or that was taken back, until the
// mode changes or it asks for another one.
type Refusal struct {
	Mode string  `json:"mode"`
	Why  string  `json:"why"`
	At   float64 `json:"at_s"` // since the run began
}

// Effect is one thing that the coordinator has to do.
type Effect interface{ effect() }

type (
	// Answered writes an answer into the run log, and tells the pilot.
	Answered struct{ Ruling }
	// Install makes the plan of a request that was granted the plan in force.
	Install struct{ *Request }
	// Home goes back to SSGD, where the plan in force needs a permit and was not chosen by hand.
	Home struct{ Why string }
	// GiveBack tells the Admission that what was asked and granted is not needed any more.
	GiveBack struct{}
	// Denied keeps the refusal for the status (Permits.Deny), after all that the others do.
	Denied struct{ Ruling }
)

func (Answered) effect() {}
func (Install) effect()  {}
func (Home) effect()     {}
func (GiveBack) effect() {}
func (Denied) effect()   {}

// Ask makes q the request that counts. An earlier one that was not answered is declined, and an earlier permit is given
// up; the Admission knows that without being told.
func (p *Permits) Ask(q *Request) (effects []Effect) {
	if p.asked != nil {
		effects = append(effects, Answered{Ruling{p.asked, false, "the pilot has changed its mind"}})
	}
	p.asked, p.granted = q, nil
	return effects
}

// Rule takes the answer to a request. Of a request that does not count any more it changes nothing. unheeded is why
// nothing is done that the pilot wants; empty: it is heeded.
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

// Yield gives up the permit, and declines the request because of why.
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

// Forget forgets the refusal: another plan is in force or wanted.
func (p *Permits) Forget() { p.refused = nil }

// Refused is the refusal that counts; nil: none. It does not change.
func (p *Permits) Refused() *Refusal { return p.refused }
