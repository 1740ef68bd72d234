package takeover

import (
	"fmt"
	"maps"
	"slices"

	"star/coord/engine"
	"star/runlog"
	"star/transport/wire"
)

// With parameter servers the history is the sequence of Fires that servers were given. It ends with the last one that
// any server has; servers that lack some are given them. All gradients that a Fire names are stored on every shard,
// because only such gradients are fired. The metadata of a Fire says which samples are applied after it, and the steps
// of the workers. Batches that were released and not fired are handed out again.

// Fire is one Fire as a server has kept it.
type Fire struct{ Header, Metadata []byte }

// Report is what one server reports to have been given.
type Report struct {
	wire.Standing
	Fires map[int64]Fire // by number; the server may have forgotten the oldest
}

// History merges the reports of the servers of a job.
type History struct {
	Seq   int64 // of the last Fire that any server has been given
	Fires map[int64]Fire
}

// MismatchError means that reports contradict each other, or do not fit this coordinator.
type MismatchError struct{ Msg string }

func (e *MismatchError) Error() string { return e.Msg }

func lost(format string, a ...any) error { return &engine.LostError{Msg: fmt.Sprintf(format, a...)} }

// Of merges reports. A nil entry is a server that has not reported.
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

// End returns the state after the last Fire of h, from which an engine continues. from is the begin of the training.
// noted are, by worker, the steps when the members were recorded: a worker that joined after the last Fire is in no
// metadata. before are the steps at the last Fire, -1 for ranks that were never taken: pushes of later steps are to be
// discarded. Errors: *engine.LostError if no server has the last Fires, *MismatchError if the metadata is invalid.
func (h *History) End(from engine.Progress, noted []int64, workers int) (after engine.Snapshot, before []int64, err error) {
	after.Progress = from
	for seq := h.Seq; seq > 0; seq-- {
		f, ok := h.Fires[seq]
		if !ok {
			return after, nil, lost("no server has kept fire %d of %d, so the applied samples are unknown; resume from a checkpoint", seq, h.Seq)
		}
		if len(f.Metadata) == 0 { // no update
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

// Behind returns the Fires after seq, in order. needs begins the text of the *engine.LostError: which servers lack
// them.
func (h *History) Behind(seq int64, needs string) (fs []Fire, err error) {
	for seq++; seq <= h.Seq; seq++ {
		f, ok := h.Fires[seq]
		if !ok {
			return nil, lost("%s fire %d, which no server has kept; resume from a checkpoint", needs, seq)
		}
		fs = append(fs, f)
	}
	return fs, nil
}

// Lines returns the lines of the run log for the updates of h, which the previous coordinator may not have written.
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

// Undecided returns the Fires for which shards wait for a norm and no server was given an Apply: these are decided
// again. late are the Applys that some servers were given and others were not, by the rank of the server that lacks
// them.
//
// All shards compute the same norm, bit for bit, whichever coordinator asks. So for a server that was not given the
// Apply the previous coordinator's decision makes no difference. But a shard that was given an Apply has discarded its
// norm, so that Apply must be passed on. A server keeps a Fire for a shorter time than its Apply, which comes later: a
// server that reports the Fire and no Apply was not given one, unless it reports only later ones ([wire.MaxApplied]).
func (h *History) Undecided(reports []*Report) (again []wire.Fire, late map[int][]wire.Apply) {
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
			if seq >= since { // older ones cannot be waited for any more
				again = append(again, f)
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
	return again, late
}

// Newest returns the later of others and the metadata that a worker of an all-reduce keeps; nil without either. It
// names every round that can have been made since, because each round must be granted first.
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
