// Package choice decides about modes that users set while a job runs. It is pure.
package choice

import (
	"fmt"

	"star/internal/outer"
	"star/modes"
)

// Mode is how the mode of a job was chosen: with its settings, with star ctl mode (by hand), or by a pilot.
type Mode struct {
	given  string // the user's words; empty: unset, or a pilot chooses
	byHand bool
}

// New returns the choice of a job that begins with a mode in the user's words.
func New(given string) Mode { return Mode{given: given} }

// Inherit continues the choice of the previous coordinator.
func (m *Mode) Inherit(byHand bool) { m.byHand = byHand }

// ByHand reports whether star ctl mode has set the mode: decisions of the pilot are ignored.
func (m *Mode) ByHand() bool { return m.byHand }

// Set records a mode that is set by hand.
func (m *Mode) Set(spec string) { m.given, m.byHand = spec, true }

// Release lets the pilot choose again.
func (m *Mode) Release() { *m = Mode{} }

// Words returns a plan as users write it: in the words with which it was set, if they mean the same plan; else as spec,
// unless that is empty; else p.String(). grows: the tree of the plan is automatic, and has none yet.
func (m *Mode) Words(p modes.Plan, workers int, grows bool, spec string) string {
	if grows && p.Parents == nil {
		if asked, err := modes.Parse(m.given, workers); err == nil {
			p.AutoTree = asked.AutoTree
		}
	}
	own := p.String()
	s := p.Words(m.given)
	if s == own && own != m.given && spec != "" {
		return p.Words(spec)
	}
	return s
}

// Rules are what a plan must fit that is set by hand.
type Rules struct {
	Workers int
	First   modes.Plan // with which the job began
	Strides bool       // workers can make local steps, and an update takes their mean
	Outward bool       // workers can make local steps for outer steps

	Replaceable func(p modes.Plan) error               // nil: no other process can take the job over
	Uncut       func(p modes.Plan) (modes.Plan, error) // the plan for whole batches, if the job has them
	Fits        func(p modes.Plan) error               // the workers' programs and addresses, and the architecture
}

// Plan returns the plan of a mode as in docs/modes.md, or why it does not fit: the rules, or what was fixed when the
// job began, which is how many gradients shards keep and whether workers send gradients or steps. A plan without shares
// or local steps keeps those of the plan in force.
func (r *Rules) Plan(spec string, now modes.Plan) (modes.Plan, error) {
	p, err := modes.Parse(spec, r.Workers)
	if err != nil {
		return p, err
	}
	if r.Replaceable != nil {
		if err := r.Replaceable(p); err != nil {
			return p, err
		}
	}
	if p, err = r.Uncut(p); err != nil {
		return p, fmt.Errorf("mode %s: %w: set star.loader(divisible=True) in the program, or --whole-batches=false", spec, err)
	}
	if err := r.Fits(p); err != nil {
		return p, err
	}
	if p.Shares == nil {
		p.Shares = now.Shares
	}
	switch {
	case kept(p) > kept(r.First):
		return p, fmt.Errorf("mode %v: the job's first mode lets shards keep %d gradients of workers that do not wait for the update, this mode needs %d", p, kept(r.First), kept(p))
	case p.Outer.Kind != outer.Mean && !r.Outward:
		return p, fmt.Errorf("mode %v: the settings of this job permit no outer steps (docs/modes.md, Outer steps)", p)
	case p.Outer.Kind != outer.Mean:
	case r.Strides:
	case r.Outward && p.Local == 0: // gradients again
	case r.Outward:
		return p, fmt.Errorf("mode %v: the settings of this job permit no mean of local steps (docs/modes.md, Local steps): add outer=nesterov", p)
	case p.Local > 0 && now.Local == 0:
		return p, fmt.Errorf("mode %v: the workers of this job send gradients, and its settings permit no local steps (docs/modes.md, Local steps)", p)
	case (p.Micro > 0 || p.Queue > 0) && now.Local > 0:
		return p, fmt.Errorf("mode %v: the workers of this job make local steps and send no gradients", p)
	case p.Local == 0:
		p.Local = now.Local
	}
	return p, nil
}

// kept is the largest number of gradients in an update of p that workers do not wait for.
func kept(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}
