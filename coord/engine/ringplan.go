package engine

import (
	"errors"
	"fmt"

	"star/modes"
)

// errRing says what a plan for all-reduce must be.
var errRing = errors.New("all-reduce has one ring, whose members all wait for each other: ssgd, ring-minus=RIDERS, groups=MEMBERS+RIDERS with one group, or x=K or backup=B with micro=M cap=DURATION, where members stop between parts; other modes need parameter servers (--arch ps)")

// RingPlan says whether p can be done by all-reduce. The error says what a ring cannot do, and what
// to take instead.
func RingPlan(p modes.Plan) error {
	if p.AutoTree || p.Parents != nil {
		return fmt.Errorf("mode %v: all-reduce has no tree of its own choice to go by: trees are for parameter servers (--arch ps)", p)
	}
	if p.MaxLead > 0 {
		return fmt.Errorf("mode %v: nobody runs ahead in an all-reduce: ahead is for parameter servers (--arch ps)", p)
	}
	if len(p.Groups) != 1 {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	g := p.Groups[0]
	if g.NonBlocking {
		return fmt.Errorf("mode %v: in an all-reduce no worker goes on before the round is made: kbatch is for parameter servers (--arch ps)", p)
	}
	if p.Micro == 0 && (g.Quorum != len(g.Members) || g.DropLate) {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	if (p.Micro > 0 || p.Local > 0) && len(g.Riders) > 0 {
		return fmt.Errorf("mode %v: riders bring whole gradients: leave micro and local away, or the riders", p)
	}
	return nil
}
