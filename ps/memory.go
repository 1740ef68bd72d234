package ps

import (
	"sync"

	"star/transport"
)

// memory is the Memory of one shard, shared by the goroutine that owns the
// shard, the readers that fill gradients and the senders that read snapshots.
//
// It makes at most workers + 2 vectors in its life. Each is at any time one of:
// the current parameters; free; being filled by a reader or holding a stored
// gradient; an older snapshot that is still being sent. A worker whose snapshot
// is being sent is not pushing, so workers + 2 always suffice, and readers leave
// the last one to the owner, so that an update never waits for a peer.
type memory struct {
	n     int
	limit int

	mu   sync.Mutex
	made int
	free [][]float32
	snap map[*float32]*snapshot // of every vector made, by its first element
	cur  *snapshot              // the parameters, once there are any
	old  *snapshot              // those before cur, while cur is made of them

	lone [][]float32 // of copies that nobody reads any more

	// room has a token when a reader that found nothing may look again.
	room chan struct{}
}

// snapshot is a vector in its life as parameters.
type snapshot struct {
	vec  []float32
	refs int  // who reads it; guarded by memory.mu
	lone bool // a copy for one reader

	once sync.Mutex // guards the two below
	sum  uint32
	has  bool
}

func newMemory(n, workers int) *memory {
	return &memory{
		n:     n,
		limit: workers + 2,
		snap:  make(map[*float32]*snapshot, workers+2),
		room:  make(chan struct{}, 1),
	}
}

// takeLocked returns a free vector, or makes one, if that leaves at least spare more.
func (m *memory) takeLocked(spare int) []float32 {
	if len(m.free)+m.limit-m.made <= spare {
		return nil
	}
	if k := len(m.free) - 1; k >= 0 {
		v := m.free[k]
		m.free = m.free[:k]
		return v
	}
	m.made++
	v := make([]float32, m.n)
	m.snap[&v[0]] = &snapshot{vec: v}
	return v
}

// gradient returns a vector for a reader to fill. It waits while there is none,
// which lasts until some sender is done (a sender's deadline bounds it); nil
// when done is closed first.
func (m *memory) gradient(done <-chan struct{}) []float32 {
	for {
		m.mu.Lock()
		v := m.takeLocked(1)
		again := v != nil && len(m.free)+m.limit-m.made > 1
		m.mu.Unlock()
		if again {
			m.wake() // another reader may be waiting, and there is room for it
		}
		if v != nil {
			return v
		}
		select {
		case <-m.room:
		case <-done:
			return nil
		}
	}
}

func (m *memory) wake() {
	select {
	case m.room <- struct{}{}:
	default:
	}
}

// Free implements [Memory].
func (m *memory) Free(v []float32) {
	m.mu.Lock()
	m.free = append(m.free, v)
	m.trimLocked()
	m.mu.Unlock()
	m.wake()
}

// Writable implements [Memory]. What it returns is current from now on.
func (m *memory) Writable(params []float32) []float32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cur.refs > 0 {
		v := m.takeLocked(0)
		if v == nil {
			panic("ps: no vector for an update: the readers took the spare one")
		}
		// Its senders may be done before the update has read it all: then it must
		// not become somebody's gradient.
		m.old = m.cur
		m.old.refs++
		m.cur = m.snap[&v[0]]
	}
	m.cur.has = false
	return m.cur.vec
}

// Written implements [Memory].
func (m *memory) Written() {
	if m.old != nil {
		m.release(m.old)
		m.old = nil
	}
}

// load makes params, which came from gradient, the current parameters.
func (m *memory) load(params []float32) {
	m.mu.Lock()
	m.cur = m.snap[&params[0]]
	m.mu.Unlock()
}

// retain notes one more reader of the current parameters. Only the owner of the
// shard calls it, so no update is under way.
func (m *memory) retain() *snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cur.refs++
	return m.cur
}

// clone is a copy of v for one reader, beside the vectors that are counted.
func (m *memory) clone(v []float32) *snapshot {
	s := &snapshot{refs: 1, lone: true}
	m.mu.Lock()
	if k := len(m.lone) - 1; k >= 0 {
		s.vec, m.lone = m.lone[k], m.lone[:k]
	}
	m.mu.Unlock()
	s.vec = append(s.vec[:0], v...)
	return s
}

// widen allows one vector more, for a reader that is not a worker: the writer
// of a checkpoint. narrow takes it back and leaves a vector to the collector.
func (m *memory) widen() {
	m.mu.Lock()
	m.limit++
	m.mu.Unlock()
	m.wake()
}

func (m *memory) narrow() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit--
	m.trimLocked()
}

// trimLocked lets go of vectors beyond the limit as they become free.
func (m *memory) trimLocked() {
	for m.made > m.limit && len(m.free) > 0 {
		k := len(m.free) - 1
		delete(m.snap, &m.free[k][0])
		m.free[k] = nil
		m.free = m.free[:k]
		m.made--
	}
}

// release ends a retain.
func (m *memory) release(s *snapshot) {
	m.mu.Lock()
	s.refs--
	if s.lone {
		m.lone = append(m.lone, s.vec)
		m.mu.Unlock()
		return
	}
	free := s.refs == 0 && s != m.cur
	if free {
		m.free = append(m.free, s.vec)
		m.trimLocked()
	}
	m.mu.Unlock()
	if free {
		m.wake()
	}
}

// checksum is the payload checksum of s, computed once for all its receivers; false
// if it is not known and shall not be computed.
func (s *snapshot) checksum(compute bool) (sum uint32, ok bool) {
	s.once.Lock()
	defer s.once.Unlock()
	if !s.has && compute {
		s.sum, s.has = transport.Sum(transport.Floats(s.vec)), true
	}
	return s.sum, s.has
}

// summed notes the checksum of s, for whoever retains it to use.
func (s *snapshot) summed(sum uint32) {
	s.once.Lock()
	defer s.once.Unlock()
	s.sum, s.has = sum, true
}
