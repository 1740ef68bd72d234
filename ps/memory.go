package ps

import (
	"sync"

	"star/internal/compress"
	"star/transport"
)

// memory is the Memory of one shard, shared by the goroutine that owns the
// shard, the readers that fill gradients and the senders that read snapshots.
//
// It makes at most workers + 2 vectors. Each is at any time one of: the current
// parameters; free; a gradient, being received or stored; an older snapshot
// that is still being sent.
//
//	free ──gradient──► gradient ──Free──► free
//	free ──Writable──► current ──Writable, still read──► old snapshot ──release──► free
//
// A worker that is still being sent a snapshot is not pushing, so workers + 2
// always suffice. Readers leave the last free vector to the owner, so an update
// never waits for a peer.
type memory struct {
	// n is the length of each vector, limit how many may exist.
	n     int
	limit int

	mu sync.Mutex
	// made counts the vectors that exist; free are those not in use.
	made int
	free [][]float32
	// snap has every vector made, by the address of its first element.
	snap map[*float32]*snapshot
	// cur is the current parameters, nil before load.
	cur *snapshot
	// old is the version before cur, while cur is computed from it.
	old *snapshot

	// private has buffers of clones that have been sent.
	private [][]float32

	// room has a token when a reader that found no vector may try again.
	room chan struct{}
}

// snapshot is a vector that holds, or has held, parameters.
type snapshot struct {
	vec []float32
	// refs counts its readers; guarded by memory.mu.
	refs int
	// private marks a copy for one reader.
	private bool

	// once guards sum and has.
	once sync.Mutex
	sum  uint32
	has  bool
	// half is vec in bfloat16, as a message; empty: not yet made.
	half []byte
}

// newMemory makes the memory of a shard of n elements. It allocates no vector
// yet.
func newMemory(n, workers int) *memory {
	return &memory{
		n:     n,
		limit: workers + 2,
		snap:  make(map[*float32]*snapshot, workers+2),
		room:  make(chan struct{}, 1),
	}
}

// takeLocked returns a free vector or makes one, if at least spare more remain
// after that; else nil.
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

// gradient returns a vector for a reader to fill. If all are in use it waits
// for a sender to finish, which the sender's deadline bounds. It returns nil if
// done is closed first.
func (m *memory) gradient(done <-chan struct{}) []float32 {
	for {
		m.mu.Lock()
		v := m.takeLocked(1)
		again := v != nil && len(m.free)+m.limit-m.made > 1
		m.mu.Unlock()
		if again {
			// Another reader may be waiting, and there is room for it.
			m.wake()
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

// wake lets one waiting reader try again.
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

// Writable implements [Memory]. The vector that it returns is current from now
// on.
func (m *memory) Writable(params []float32) []float32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A sender still reads the current version: the update must not write to
	// it.
	if m.cur.refs > 0 {
		v := m.takeLocked(0)
		if v == nil {
			panic("ps: no vector for an update: the readers took the spare one")
		}
		// Its senders may finish before the update has read it all. Until
		// Written it must not be reused for a gradient.
		m.old = m.cur
		m.old.refs++
		m.cur = m.snap[&v[0]]
	}
	m.cur.has, m.cur.half = false, m.cur.half[:0]
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

// retain adds a reader of the current parameters. Only the owner of the shard
// calls it, so no update is in progress.
func (m *memory) retain() *snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cur.refs++
	return m.cur
}

// clone returns a copy of v for one reader. It is not counted against the
// limit.
func (m *memory) clone(v []float32) *snapshot {
	s := &snapshot{refs: 1, private: true}
	m.mu.Lock()
	if k := len(m.private) - 1; k >= 0 {
		s.vec, m.private = m.private[k], m.private[:k]
	}
	m.mu.Unlock()
	s.vec = append(s.vec[:0], v...)
	return s
}

// widen allows one more vector, for a reader that is not a worker: the writer
// of a checkpoint. narrow reverts that and leaves a vector to the garbage
// collector.
func (m *memory) widen() {
	m.mu.Lock()
	m.limit++
	m.mu.Unlock()
	m.wake()
}

// narrow reverts a widen.
func (m *memory) narrow() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit--
	m.trimLocked()
}

// trimLocked drops free vectors beyond the limit.
func (m *memory) trimLocked() {
	for m.made > m.limit && len(m.free) > 0 {
		k := len(m.free) - 1
		delete(m.snap, &m.free[k][0])
		m.free[k] = nil
		m.free = m.free[:k]
		m.made--
	}
}

// release ends a retain or a clone.
func (m *memory) release(s *snapshot) {
	m.mu.Lock()
	s.refs--
	if s.private {
		m.private = append(m.private, s.vec)
		m.mu.Unlock()
		return
	}
	// The current version stays, even without readers.
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

// checksum returns the payload checksum of s, computed once for all its
// receivers; false if it is unknown and compute is false.
func (s *snapshot) checksum(compute bool) (sum uint32, ok bool) {
	s.once.Lock()
	defer s.once.Unlock()
	if !s.has && compute {
		s.sum, s.has = transport.Sum(transport.Floats(s.vec)), true
	}
	return s.sum, s.has
}

// summed records the checksum of s for its other readers.
func (s *snapshot) summed(sum uint32) {
	s.once.Lock()
	defer s.once.Unlock()
	s.sum, s.has = sum, true
}

// rounded returns the vector in bfloat16, as a message, made once for all its receivers.
func (s *snapshot) rounded() []byte {
	s.once.Lock()
	defer s.once.Unlock()
	if len(s.half) == 0 && len(s.vec) > 0 {
		s.half = compress.BF16.Encode(s.half, s.vec)
	}
	return s.half
}
