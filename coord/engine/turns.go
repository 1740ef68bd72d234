package engine

import (
	"slices"

	"star"
)

// turning is the part of a ring whose members make several updates of each batch, one after the other
// (Config.Turns): programs with several optimisers, each of which has its turn. A round is an update, so
// round r is of turn r mod Turns. The first one takes batches from the stream; the others have the same
// batches, and their samples are not counted again.
//
//	round   0       1       2       3
//	turn    0       1       0       1        (Turns: 2)
//	batch   a ────► a       b ────► b
//
// A member is in the middle of its loop until the last turn, and cannot begin another batch. So it keeps its
// batch across failures of the ring, and workers that come, and checkpoints, wait for turn 0. Only where a
// ring fails while a worker waits is that one in it at once, without a batch until turn 0: updates until then
// count as if it had none, as those at the end of the stream do.
type turning struct {
	turns int64                // at least 1
	hand  map[star.Worker]Span // what members compute in the round at next. At turn 0 others take from the stream
}

// turn is which update of its batches makes version+1.
func (t *turning) turn(version int64) int64 { return version % t.turns }

// midway says whether next is between two updates of the same batches, which the job still makes.
func (r *Ring) midway() bool { return !r.over && r.turn(r.next) > 0 }

// holdOn notes the batches of a round that is granted, for those after it.
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

// keep has the members of a re-formed ring go on with the batches that they have. What is left of the rounds
// that are not completed is handed out again.
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

// unapplied is what of the lease of the k-th member no version has.
func (rd *ringRound) unapplied(k int) []Span {
	if rd.repeats {
		return nil
	}
	return rd.lease(k)
}
