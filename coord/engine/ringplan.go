package engine

import (
	"errors"
	"fmt"

	"star/modes"
)

// errRing lists the plans that all-reduce can run.
var errRing = errors.New("all-reduce needs one ring in which all members wait for each other: ssgd, ring-minus=RIDERS, groups=MEMBERS+RIDERS with one group, or x=K or backup=B with micro=M cap=DURATION, where members stop between parts; other modes need parameter servers (--arch ps)")

// RingPlan reports whether all-reduce can run p. The error says what a ring cannot do, and names an
// alternative.
func RingPlan(p modes.Plan) error {
	if p.AutoTree || p.Parents != nil {
		return fmt.Errorf("mode %v: all-reduce has no trees: they need parameter servers (--arch ps)", p)
	}
	if p.MaxLead > 0 {
		return fmt.Errorf("mode %v: no worker can run ahead in an all-reduce: ahead needs parameter servers (--arch ps)", p)
	}
	if len(p.Groups) != 1 {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	g := p.Groups[0]
	if g.NonBlocking {
		return fmt.Errorf("mode %v: in an all-reduce no worker continues before the round is complete: kbatch needs parameter servers (--arch ps)", p)
	}
	if p.Micro == 0 && (g.Quorum != len(g.Members) || g.DropLate) {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	if (p.Micro > 0 || p.Local > 0) && len(g.Riders) > 0 {
		return fmt.Errorf("mode %v: riders send whole gradients: remove micro and local, or the riders", p)
	}
	return nil
}
