package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/transport/wire"
)

func TestMemo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := CommitMetadata{Snapshot: Snapshot{Progress: Progress{Version: rapid.Int64Min(0).Draw(t, "version"), Samples: rapid.Int64Min(0).Draw(t, "samples"),
			Cursor: rapid.Int64Range(100, 1<<62).Draw(t, "cursor")}, Waste: rapid.Int64Min(0).Draw(t, "waste")}}
		for range rapid.IntRange(0, 5).Draw(t, "redo") {
			n := rapid.IntRange(1, 50).Draw(t, "count")
			m.Redo = append(m.Redo, Span{rapid.Int64Range(0, m.Cursor-int64(n)).Draw(t, "start"), n})
		}
		m.Steps = rapid.SliceOf(rapid.Int64Min(-1)).Draw(t, "steps")
		if ws := rapid.SliceOf(rapid.IntRange(0, wire.MaxWorkers-1)); rapid.Bool().Draw(t, "a tree") {
			m.Summed = []Share{}
			for _, w := range ws.Draw(t, "summed") {
				n := rapid.IntRange(0, 50).Draw(t, "count")
				m.Summed = append(m.Summed, Share{star.Worker(w), Span{rapid.Int64Range(0, m.Cursor-int64(n)).Draw(t, "start"), n}})
			}
			for _, w := range ws.Draw(t, "left") {
				m.Left = append(m.Left, star.Worker(w))
			}
		}
		b := m.appendTo(nil)
		got, err := ParseCommitMetadata(b)
		if err != nil || got.Version != m.Version || got.Samples != m.Samples || got.Cursor != m.Cursor || got.Waste != m.Waste ||
			!slices.Equal(got.Redo, m.Redo) || !slices.Equal(got.Steps, m.Steps) || !slices.Equal(got.Summed, m.Summed) || !slices.Equal(got.Left, m.Left) || (got.Summed == nil) != (m.Summed == nil) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
		if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); true {
			if _, err := ParseCommitMetadata(b[:cut]); err == nil {
				t.Fatalf("%d bytes of %d were read", cut, len(b))
			}
		}
		if _, err := ParseCommitMetadata(append(b, 0)); err == nil {
			t.Fatal("a byte too many was read")
		}
	})
}

// FuzzCommitMetadata checks that metadata of a Fire is read or rejected, and costs no more memory than it has bytes.
func FuzzCommitMetadata(f *testing.F) {
	m := CommitMetadata{Snapshot: Snapshot{Progress: Progress{3, 96, 128, []Span{{96, 16}, {112, 16}}}, Steps: []int64{3, 3, -1}}}
	f.Add(m.appendTo(nil))
	m.Summed = []Share{{0, Span{80, 8}}, {1, Span{88, 8}}}
	f.Add(m.appendTo(nil))
	f.Add([]byte{2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseCommitMetadata(b)
		if err != nil {
			return
		}
		if n := len(m.Redo) + len(m.Steps) + len(m.Summed) + len(m.Left); n > len(b) {
			t.Fatalf("%d bytes became %d entries", len(b), n)
		}
		if again, err := ParseCommitMetadata(m.appendTo(nil)); err != nil || again.Cursor != m.Cursor || !slices.Equal(again.Steps, m.Steps) {
			t.Fatalf("%+v: %v", again, err)
		}
	})
}
