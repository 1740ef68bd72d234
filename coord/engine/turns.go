package engine

import (
	"slices"

	"star"
)

// turning is the part of a ring that makes several updates of each batch, one after the other
// (Config.Turns), for programs with several optimisers that take turns. A round is an update: round r is of
// turn r mod Turns. Turn 0 takes batches from the stream. The other turns use the same batches, and do not
// count their samples again.
//
//	round   0       1       2       3
//	turn    0       1       0       1        (Turns: 2)
//	batch   a ────► a       b ────► b
//
// A member's loop cannot begin another batch before the last turn. So a member keeps its batch across
// failures of the ring, and new workers and checkpoints wait for turn 0. If a ring fails while a worker
// waits, that worker is in the next ring at once, without a batch until turn 0: until then updates count as
// if it had none, as at the end of the stream.
type turning struct {
	turns int64 // at least 1

	// By member: its batch in round next. At turn 0 members without one take from the stream.
	hand map[star.Worker]Span
}

// turn is the turn of the round that makes version+1.
func (t *turning) turn(version int64) int64 { return version % t.turns }

// midway reports whether next is between two updates of the same batches, while the job goes on.
func (r *Ring) midway() bool { return !r.over && r.turn(r.next) > 0 }

// holdOn keeps the batches of a granted round for its later turns.
func (r *Ring) holdOn(rd *ringRound) {
	if r.hand = nil; r.turn(r.next+1) == 0 {
		return
	}
	r.hand = make(map[star.Worker]Span, len(rd.members))
	for i, w := range rd.members {
		if r.states[w].live {
			r.hand[w] = rd.spans[i]
		}
	}
}

// keep has the members of a ring that formed again continue with their batches. The other batches of
// incomplete rounds are handed out again.
func (r *Ring) keep() {
	if r.turns == 1 || len(r.rounds) == 0 {
		return // without a round under way, hand is of the next one
	}
	rd := &r.rounds[0]
	r.hand = make(map[star.Worker]Span, len(rd.members))
	for i, w := range rd.members {
		if s := rd.spans[i]; s.Count > 0 && r.states[w].live && slices.Contains(r.now.members, w) {
			r.hand[w] = s
			rd.spans[i].Count = 0
		}
	}
}

// unapplied is the part of the k-th member's lease that no version contains.
func (rd *ringRound) unapplied(k int) []Span {
	if rd.repeats {
		return nil
	}
	return rd.lease(k)
}
