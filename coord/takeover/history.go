package takeover

import (
	"fmt"
	"maps"
	"slices"

	"star/coord/engine"
	"star/runlog"
	"star/transport/wire"
)

// With parameter servers the history is the Fires that servers were given. The last one that any server has is its end;
// the servers that lack some of them are given these. All gradients that a Fire names are stored everywhere, because
// only such are fired. What is applied after a Fire, and how far workers have come, is in the metadata that goes with
// it. What was released and not fired is handed out again.

// Fire is one Fire as a server has kept it.
type Fire struct{ Header, Metadata []byte }

// Report is what a server has been given.
type Report struct {
	wire.Standing
	Fires map[int64]Fire // by their numbers; the oldest ones may be forgotten
}

// History is what the servers of a job have been given, together.
type History struct {
	Seq   int64 // of the last Fire that any of them has been given
	Fires map[int64]Fire
}

// MismatchError says that what members report does not go together, or not with this coordinator.
type MismatchError struct{ Msg string }

func (e *MismatchError) Error() string { return e.Msg }

func lost(format string, a ...any) error { return &engine.LostError{Msg: fmt.Sprintf(format, a...)} }

// Of is the history of which servers report; nil: of one there is no report.
func Of(reports []*Report) History {
	h := History{Fires: map[int64]Fire{}}
	for _, r := range reports {
		if r == nil {
			continue
		}
		h.Seq = max(h.Seq, r.Seq)
		maps.Copy(h.Fires, r.Fires)
	}
	return h
}

// End is from where an engine goes on behind the last Fire of h. from is where the training began, noted by worker the step that was in hand when
// the members of the job were noted: who came after the last Fire is in no metadata. before are the steps of the last Fire, -1 for ranks that nobody had: what workers
// pushed in later ones is to be thrown away. An *engine.LostError: nobody knows the end any more; a *MismatchError: it cannot be read.
func (h *History) End(from engine.Progress, noted []int64, workers int) (after engine.Snapshot, before []int64, err error) {
	after.Progress = from
	for seq := h.Seq; seq > 0; seq-- {
		f, ok := h.Fires[seq]
		if !ok {
			return after, nil, lost("no server knows any more what fire %d was, of %d: what is applied is not known. Resume from a checkpoint", seq, h.Seq)
		}
		if len(f.Metadata) == 0 { // of no update
			continue
		}
		m, err := engine.ParseCommitMetadata(f.Metadata)
		if err != nil {
			return after, nil, &MismatchError{fmt.Sprintf("fire %d: %v", seq, err)}
		}
		after = m.Snapshot
		break
	}
	before = after.Steps
	after.Seq, after.Steps = h.Seq, make([]int64, workers)
	for w := range after.Steps {
		after.Steps[w] = max(engine.StepOf(before, w), engine.StepOf(noted, w))
	}
	return after, before, nil
}

// Behind are the Fires behind seq, in order. who names in an *engine.LostError those that need them.
func (h *History) Behind(seq int64, who string) (fs []Fire, err error) {
	for seq++; seq <= h.Seq; seq++ {
		f, ok := h.Fires[seq]
		if !ok {
			return nil, lost("%s fire %d, which no server knows any more. Resume from a checkpoint", who, seq)
		}
		fs = append(fs, f)
	}
	return fs, nil
}

// Lines are what the run log says of the updates of h, which the coordinator before may not have written.
func (h *History) Lines() (lines []runlog.Recall) {
	for _, seq := range slices.Sorted(maps.Keys(h.Fires)) {
		f := h.Fires[seq]
		m, err := wire.ParseFire(f.Header)
		note, noteErr := engine.ParseCommitMetadata(f.Metadata)
		if seq > h.Seq || err != nil || noteErr != nil || len(m.Gradients) == 0 {
			continue
		}
		line := runlog.Recall{Seq: m.Seq, Version: m.Version, Samples: note.Samples}
		for _, s := range note.Summed {
			line.Workers = append(line.Workers, s.Worker)
			if len(m.Gradients) < len(note.Summed) {
				line.Pieces = append(line.Pieces, s.Start, int64(s.Count))
			}
		}
		if note.Summed == nil {
			line.Workers = engine.WorkersOf(m.Gradients)
			note.Left = engine.WorkersOf(m.Dropped)
		}
		line.Dropped = append(line.Dropped, note.Left...)
		lines = append(lines, line)
	}
	return lines
}

// Undecided are the Fires of h for whose norm shards wait, and which nobody was given an Apply of: they are decided anew. late are the Applys that some servers were given
// and others were not, by the rank of who was not.
//
// All shards compute the same norm, to the bit, whoever asks; so whether the coordinator before had decided makes no difference to who has not been told.
// But a shard that was told has no norm any more, so what it was told must be passed on. A server keeps a Fire for a shorter time than the Apply of it, which
// comes later: one that tells of the Fire and not of the Apply was not given that, unless it tells of later ones only ([wire.MaxApplied]).
func (h *History) Undecided(reports []*Report) (anew []wire.Fire, late map[int][]wire.Apply) {
	given, since := map[int64]wire.Apply{}, int64(0)
	for _, r := range reports {
		if r == nil || len(r.Applied) == 0 {
			continue
		}
		for _, a := range r.Applied {
			given[a.Seq] = a
		}
		since = max(since, r.Applied[0].Seq)
	}
	late = map[int][]wire.Apply{}
	for _, seq := range slices.Sorted(maps.Keys(h.Fires)) {
		f, err := wire.ParseFire(h.Fires[seq].Header)
		if err != nil || !f.NormFirst || seq > h.Seq {
			continue
		}
		a, ok := given[seq]
		if !ok {
			if seq >= since { // else it is so long ago that nobody can be waiting
				anew = append(anew, f)
			}
			continue
		}
		for rank, r := range reports {
			if r == nil {
				continue
			}
			if _, has := r.Fires[seq]; has && !slices.ContainsFunc(r.Applied, func(b wire.Apply) bool { return b.Seq == seq }) {
				late[rank] = append(late[rank], a)
			}
		}
	}
	return anew, late
}

// Newest is the later one of the metadata that a worker of an all-reduce keeps, and of what others have kept; nil: nothing so far. It names every round that anybody can have made since: no round is
// made that was not granted.
func Newest(others *engine.RingMetadata, kept []byte, workers int) (*engine.RingMetadata, error) {
	if len(kept) == 0 {
		return others, nil
	}
	m, err := engine.ParseRingMetadata(kept, workers)
	if err != nil || !m.After(others) {
		return others, err
	}
	return m, nil
}
