package ps

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A version that loses its last sender while the next version is still being made of it must not become a reader's
// gradient.
func TestOldVersionOutlivesItsSenders(t *testing.T) {
	m := newMemory(4, 1)
	params := m.gradient(nil)
	m.load(params)
	grad := m.gradient(nil)
	snap := m.retain()
	next := m.Writable(params)
	if &next[0] == &params[0] {
		t.Fatal("a vector that is being sent may be written to")
	}
	m.release(snap)
	m.Free(grad)
	for range 2 {
		if v := m.takeLocked(0); v != nil && &v[0] == &params[0] {
			t.Fatal("the old version was given away before the next one was written")
		}
	}
	m.Written()
	if v := m.takeLocked(0); v == nil || &v[0] != &params[0] {
		t.Error("the old version did not come back")
	}
}

// Workers push, are fired, are sent to and push again, in any order: no vector
// has two uses, workers + 2 suffice without anybody waiting, and a checkpoint's
// extra one goes away again.
func TestMemoryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		m := newMemory(1, workers)
		params := m.gradient(nil)
		m.load(params)
		type worker struct {
			grad []float32
			snap *snapshot
		}
		ws := make([]worker, workers)
		var saver *snapshot
		stamp := float32(0)
		want := map[*float32]float32{} // what each vector in use must hold
		use := func(v []float32) {
			if _, ok := want[&v[0]]; ok {
				t.Fatal("a vector with two uses")
			}
			stamp++
			v[0] = stamp
			want[&v[0]] = stamp
		}
		use(params)
		snaps := func() (ss []*snapshot) {
			for _, w := range ws {
				ss = append(ss, w.snap)
			}
			return ss
		}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w := &ws[rapid.IntRange(0, workers-1).Draw(t, "worker")]
			switch event := rapid.IntRange(0, 4).Draw(t, "event"); {
			case event == 0 && saver == nil:
				m.widen()
				saver = m.retain()
			case event == 1 && saver != nil:
				done := saver
				saver = nil
				m.release(done)
				m.narrow()
				if !slices.Contains(snaps(), done) && done != m.cur {
					delete(want, &done.vec[0])
				}
			case w.snap != nil: // its parameters have arrived
				done := w.snap
				w.snap = nil
				m.release(done)
				if done != m.cur && done != saver && !slices.Contains(snaps(), done) {
					delete(want, &done.vec[0])
				}
			case w.grad == nil: // it pushes
				done := make(chan struct{})
				close(done) // waiting would be an error
				if w.grad = m.gradient(done); w.grad == nil {
					t.Fatal("a reader had to wait")
				}
				use(w.grad)
			default: // it is fired alone
				old := m.cur
				next := m.Writable(params)
				if &next[0] != &params[0] {
					use(next)
				}
				params = next
				m.Written()
				delete(want, &w.grad[0])
				m.Free(w.grad)
				w.grad = nil
				w.snap = m.retain()
				if old != m.cur && old.refs == 0 {
					t.Fatal("a spare vector was used although nobody was reading")
				}
			}
			for v, x := range want {
				if *v != x {
					t.Fatal("a vector in use was written to")
				}
			}
			limit := workers + 2
			if saver != nil {
				limit++
			}
			if m.made > limit {
				t.Fatalf("%d vectors, at most %d are allowed", m.made, limit)
			}
		}
	})
}

// A worker that pushes without end waits before it takes the vector that an
// update needs.
func TestReadersLeaveOneForTheOwner(t *testing.T) {
	m := newMemory(4, 1)
	params := m.gradient(nil)
	m.load(params)
	m.retain()
	m.gradient(nil)
	done := make(chan struct{})
	close(done)
	if m.gradient(done) != nil {
		t.Error("a reader got the last vector")
	}
	if v := m.Writable(params); &v[0] == &params[0] {
		t.Error("a vector that is being sent may be written to")
	}
}
