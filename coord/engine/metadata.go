package engine

import (
	"encoding/binary"
	"errors"

	"star"
	"star/transport/wire"
)

// Snapshot is the state from which an engine continues where another one ended.
type Snapshot struct {
	Progress
	Seq   int64 `json:"seq"` // of the last Fire
	Waste int64 `json:"waste"`

	// By worker, in hand; -1: the rank was never used.
	Steps []int64 `json:"steps"`

	// Of a ring only.
	Rounds       []SnapshotRound      `json:"rounds"` // granted and not complete
	RiderBatches []SnapshotRiderBatch `json:"batches of riders,omitempty"`
}

// CommitMetadata is sent with a Fire for a coordinator that takes over: the Snapshot after it, without
// Seq, which the Fire has.
type CommitMetadata struct {
	Snapshot

	// Applied gradients with their samples, and dropped ones, where the Fire names only the workers
	// that pushed sums of them (a tree).
	// nil: each gradient of the Fire is of one worker
	Summed []Share
	Left   []star.Worker // dropped
}

// Share is a worker's part of an update.
type Share struct {
	Worker star.Worker
	Span
}

const (
	metadataVersion = 1
	treeVersion     = 2 // with summed and left
)

// appendTo appends the metadata as varints.
func (m *CommitMetadata) appendTo(b []byte) []byte {
	put := func(vs ...int64) {
		for _, v := range vs {
			b = binary.AppendVarint(b, v)
		}
	}
	// Without sums the first version of the format suffices.
	version := int64(metadataVersion)
	if m.Summed != nil {
		version = treeVersion
	}
	put(version, m.Version, m.Samples, m.Cursor, m.Waste, int64(len(m.Redo)))
	for _, s := range m.Redo {
		put(s.Start, int64(s.Count))
	}
	put(int64(len(m.Steps)))
	put(m.Steps...)
	if version == treeVersion {
		put(int64(len(m.Summed)))
		for _, s := range m.Summed {
			put(int64(s.Worker), s.Start, int64(s.Count))
		}
		put(int64(len(m.Left)))
		for _, w := range m.Left {
			put(int64(w))
		}
	}
	return b
}

var errMetadata = errors.New("engine: invalid metadata of a fire")

// ParseCommitMetadata reads what appendTo has written. What is cut, of another version of the
// format, or cannot be so, such as samples behind the cursor, is an error.
func ParseCommitMetadata(b []byte) (m CommitMetadata, err error) {
	get := func() int64 {
		// No field is below -1, which is the step of a rank that was never used.
		v, n := binary.Varint(b)
		if n <= 0 || v < -1 {
			err = errMetadata
			return 0
		}
		b = b[n:]
		return v
	}
	// The length bounds what is allocated: corrupt metadata must not ask for more than its own size.
	list := func() int { // each element has at least one byte
		n := get()
		if n < 0 || n > int64(len(b)) {
			err, n = errMetadata, 0
		}
		return int(n)
	}
	version := get()
	if version != metadataVersion && version != treeVersion {
		return m, errMetadata
	}
	m.Version, m.Samples, m.Cursor, m.Waste = get(), get(), get(), get()
	for range list() {
		s := Span{Start: get(), Count: int(get())}
		if s.Start < 0 || s.Count < 1 || s.Start > m.Cursor-int64(s.Count) {
			err = errMetadata
		}
		if err != nil {
			return m, err
		}
		m.Redo = append(m.Redo, s)
	}
	for range list() {
		m.Steps = append(m.Steps, get())
	}
	worker := func() star.Worker {
		w := get()
		if w < 0 || w >= wire.MaxWorkers {
			err = errMetadata
		}
		return star.Worker(w)
	}
	if version == treeVersion {
		m.Summed = []Share{} // not nil: it was written
		for range list() {
			s := Share{worker(), Span{Start: get(), Count: int(get())}}
			if s.Start < 0 || s.Count < 0 || s.Start > m.Cursor-int64(s.Count) {
				err = errMetadata
			}
			m.Summed = append(m.Summed, s)
		}
		for range list() {
			m.Left = append(m.Left, worker())
		}
	}
	if err != nil || len(b) > 0 || m.Version < 0 || m.Samples < 0 || m.Cursor < 0 || m.Waste < 0 {
		return m, errMetadata
	}
	return m, nil
}

// remark is the metadata of o's Fire, the last one that was made; nil where no coordinator can take over.
func (l *Shards) remark(o *Ready) []byte {
	if !l.metadata {
		return nil
	}
	m := CommitMetadata{Snapshot: l.Snapshot()}
	// The Fire names the workers that push. Where one pushes a sum, the others are known only from here.
	if len(o.Members) > len(o.Fire.Gradients) || len(o.Dropped) > len(o.Fire.Dropped) {
		m.Summed, m.Left = []Share{}, WorkersOf(o.Dropped)
		for i, s := range o.Pieces {
			m.Summed = append(m.Summed, Share{o.Members[i].Worker, s})
		}
		for i := len(o.Pieces); i < len(o.Members); i++ { // each reports for itself, so records have the samples
			m.Summed = append(m.Summed, Share{Worker: o.Members[i].Worker})
		}
	}
	return m.appendTo(nil) // not reused: the outboxes keep it
}

// WorkersOf lists the workers of gradients.
func WorkersOf(gs []wire.Gradient) []star.Worker {
	ws := make([]star.Worker, len(gs))
	for i, g := range gs {
		ws[i] = g.Worker
	}
	return ws
}

// StepOf is the step of worker w; -1 if the list does not have it.
func StepOf(steps []int64, w int) int64 {
	if w < len(steps) {
		return steps[w]
	}
	return -1
}

// clearStore has shards drop gradients that no Fire names, from the steps of the last metadata on. Their
// batches are handed out again, and their memory is needed.
func (l *Shards) clearStore(from, to []int64) {
	for w, last := range to {
		for step := max(StepOf(from, w), 0); step <= last; step++ {
			l.throwAwayStep(star.Worker(w), step)
			l.out[len(l.out)-1].Silent = true
		}
	}
}
