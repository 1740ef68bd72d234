package allreduce

// program is a schedule cut for one vector: transfers of byte ranges, and for
// each the transfers that it must not overtake. It is run many times; pos, the
// lanes' cursors and the flags are the state of the current run.
//
//	transfer:  pos == lo ──send or receive──► lo < pos < hi ──► pos == hi (done)
//	lane:      header exchanged ──► transfers, in order ──► receipt, after zero-copy sends
//
// Invariants:
//
//   - Both ends of a lane have the same transfers in the same order.
//   - A transfer never goes beyond limit: what it depends on has reached that
//     byte.
//   - No received byte is sent on before it is complete (added or copied).
type program struct {
	transfers []transfer
	lanes     []lane
}

// transfer moves bytes lo to hi of the vector to or from one peer, front to
// back. Those below pos are done.
type transfer struct {
	lo, hi, pos int
	step        int
	add, last   bool
	// zeroCopy, of a send: nothing changes the bytes before the peer has
	// received them, except a result that includes them.
	zeroCopy bool

	// deps are earlier transfers that this one must not overtake where they
	// overlap. A send waits for what is received into its range; a receive
	// waits for that and for what is sent from its range.
	deps []int32
}

// lane is the traffic with one peer: transfers in order of the schedule, which
// is the same order at the peer.
type lane struct {
	peer         int
	sends, recvs []int32 // indices of transfers
	// sendsTo: the schedule sends to peer, even if zero bytes.
	sendsTo   bool
	recvsFrom bool

	// State of the run in progress.
	// Completed sends and recvs.
	sent, received int
	// The own header was sent.
	headOut bool
	// The peer's header has come and matches.
	headIn bool
	// Set if memory is lent to the peer.
	zeroCopy zeroCopyLink
	// A receipt from the peer.
	awaits bool
	// A receipt to the peer.
	owes bool
}

// compile cuts s for a vector of count elements of size bytes.
func compile(s Schedule, ranks, count, size int) *program {
	cuts := make([]int, s.Blocks+1)
	for b := range s.Blocks {
		_, hi := Block(count, s.Blocks, b)
		cuts[b+1] = hi * size
	}
	return arrange(s, ranks, cuts)
}

// arrange cuts s for blocks of any size: block b is bytes cuts[b] to cuts[b+1].
func arrange(s Schedule, ranks int, cuts []int) *program {
	p := new(program)
	// index has the lane of each peer, plus one.
	index := make([]int, ranks)
	laneTo := func(peer int) *lane {
		if index[peer] == 0 {
			p.lanes = append(p.lanes, lane{peer: peer})
			index[peer] = len(p.lanes)
		}
		return &p.lanes[index[peer]-1]
	}
	// The transfers that have accessed a block since its last write, and that
	// write. Ranges are whole blocks, so an access concerns the whole block.
	type touched struct {
		write int32 // or None
		reads []int32
		sends []int32 // all
	}
	blocks := make([]touched, s.Blocks)
	for i := range blocks {
		blocks[i].write = None
	}
	// Steps overlap as in a pipeline: a dependency is on the bytes that the
	// earlier transfer has passed (limit), not on its end.
	depend := func(t *transfer, on int32) {
		if on == None {
			return
		}
		for _, d := range t.deps {
			if d == on {
				return
			}
		}
		t.deps = append(t.deps, on)
	}
	for _, m := range s.Moves {
		if m.To != None {
			l := laneTo(m.To)
			l.sendsTo = true
			if lo, hi := cuts[m.Send.Lo], cuts[m.Send.Hi]; lo < hi {
				id := int32(len(p.transfers))
				t := transfer{lo: lo, hi: hi, pos: lo, step: m.Step, zeroCopy: true}
				for b := m.Send.Lo; b < m.Send.Hi; b++ {
					blocks[b].sends = append(blocks[b].sends, id)
					depend(&t, blocks[b].write)
					blocks[b].reads = append(blocks[b].reads, id)
				}
				p.transfers = append(p.transfers, t)
				l.sends = append(l.sends, id)
			}
		}
		if m.From != None {
			l := laneTo(m.From)
			l.recvsFrom = true
			if lo, hi := cuts[m.Recv.Lo], cuts[m.Recv.Hi]; lo < hi {
				id := int32(len(p.transfers))
				t := transfer{lo: lo, hi: hi, pos: lo, step: m.Step, add: m.Add, last: m.Last}
				for b := m.Recv.Lo; b < m.Recv.Hi; b++ {
					depend(&t, blocks[b].write)
					for _, r := range blocks[b].reads {
						depend(&t, r)
					}
					// The sum changes bytes that a send may still lend to a
					// slow peer.
					if m.Add {
						for _, s := range blocks[b].sends {
							p.transfers[s].zeroCopy = false
						}
					}
					blocks[b].write, blocks[b].reads = id, blocks[b].reads[:0]
				}
				p.transfers = append(p.transfers, t)
				l.recvs = append(l.recvs, id)
			}
		}
	}
	return p
}

// resize changes the sizes of the blocks of s. No block may be empty, now or
// when p was arranged.
func (p *program) resize(s Schedule, cuts []int) {
	i := 0
	set := func(sp Span) {
		p.transfers[i].lo, p.transfers[i].hi = cuts[sp.Lo], cuts[sp.Hi]
		i++
	}
	// In the order in which arrange made them.
	for _, m := range s.Moves {
		if m.To != None {
			set(m.Send)
		}
		if m.From != None {
			set(m.Recv)
		}
	}
}

// reset begins another run.
func (p *program) reset() {
	for i := range p.transfers {
		p.transfers[i].pos = p.transfers[i].lo
	}
	for i := range p.lanes {
		l := &p.lanes[i]
		l.sent, l.received, l.headOut, l.headIn = 0, 0, !l.sendsTo, !l.recvsFrom
		l.zeroCopy, l.awaits, l.owes = nil, false, false
	}
}

// zeroCopies reports whether l has memory to lend: at least a whole page.
func (p *program) zeroCopies(l *lane) bool {
	for _, id := range l.sends {
		if t := &p.transfers[id]; t.zeroCopy && t.hi-t.lo >= 2*pageSize {
			return true
		}
	}
	return false
}

// limit returns how far t may go now. It may be less than t.pos, or even t.lo.
func (p *program) limit(t *transfer) int {
	limit := t.hi
	for _, d := range t.deps {
		if e := &p.transfers[d]; e.pos < e.hi {
			limit = min(limit, e.pos)
		}
	}
	return limit
}

// sending returns the current send transfer of l, nil when all are sent.
func (p *program) sending(l *lane) *transfer {
	if l.sent == len(l.sends) {
		return nil
	}
	return &p.transfers[l.sends[l.sent]]
}

// receiving returns the current receive transfer of l, nil when all are
// received.
func (p *program) receiving(l *lane) *transfer {
	if l.received == len(l.recvs) {
		return nil
	}
	return &p.transfers[l.recvs[l.received]]
}
