package checkpoint

import "fmt"

// Data is what was trained on. A manifest of a job that did not know it has none.
type Data struct {
	Name    string `json:"name"`             // such as mnist/train
	Samples int64  `json:"samples"`          // of one epoch
	Digest  string `json:"digest,omitempty"` // of their contents, as the workers make it; empty: not known
}

// Extra is what there is to know of the sample stream beside the cursor.
type Extra struct {
	// in order: pieces behind the cursor that are in no update, and are to be done again
	Redo []Span `json:"redo,omitempty"`
}

// Span is a piece of the sample stream.
type Span struct {
	Start, Count int64
}

const (
	maxCount = 1 << 53   // of updates and samples: what a JSON number holds, and years of any machine
	maxBatch = 1<<31 - 1 // samples of one piece, which is the batch of one worker: what a Release can hand out
)

// checkProgress names what cannot be in the accounts of m, or is empty. Each sample that was handed out is in an
// update, is to be done again, or was dropped.
func (m *Manifest) checkProgress() string {
	for _, c := range []struct {
		name string
		n    int64
	}{{"version", m.Version}, {"samples", m.Samples}, {"cursor", m.Cursor}, {"generation", m.Generation}, {"first_life", m.FirstAttempt}, {"steps", m.Steps}, {"params", m.Params}} {
		if c.n < 0 || c.n > maxCount {
			return fmt.Sprintf("%s is %d, expected 0 to 2^53", c.name, c.n)
		}
	}
	if m.FirstAttempt > m.Generation {
		return fmt.Sprintf("the job began with life %d, and this is life %d", m.FirstAttempt, m.Generation)
	}
	if m.Samples > 0 && m.Version == 0 {
		return fmt.Sprintf("%d samples are applied in no update", m.Samples)
	}
	if d := m.Data; d != nil && (d.Samples < 1 || d.Samples > maxCount) {
		return fmt.Sprintf("a data set %q of %d samples", clip(d.Name), d.Samples)
	}
	again, at := int64(0), int64(0)
	for i, s := range m.Extra.Redo {
		switch {
		case s.Count < 1 || s.Count > maxBatch:
			return fmt.Sprintf("piece %d of what is to be done again has %d samples, expected 1 to 2^31 − 1", i, s.Count)
		case s.Start < at:
			return fmt.Sprintf("piece %d of what is to be done again begins at %d, expected %d or later: in order, and none twice", i, s.Start, at)
		case s.Start > m.Cursor-s.Count:
			return fmt.Sprintf("piece %d of what is to be done again is of %d samples from %d on, and the cursor is at %d", i, s.Count, s.Start, m.Cursor)
		}
		at = s.Start + s.Count
		again += s.Count // at most the cursor
	}
	if m.Samples > m.Cursor-again {
		return fmt.Sprintf("%d samples are applied and %d are to be done again, but only %d were handed out", m.Samples, again, m.Cursor)
	}
	return ""
}
