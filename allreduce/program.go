package allreduce

// program is a schedule cut for one vector: transfers of byte ranges, and for
// each what it must not overtake. It is run many times; pos, the lanes' cursors
// and the flags are the state of the run in progress.
type program struct {
	transfers []transfer
	lanes     []lane
}

// transfer moves the bytes lo to hi of the vector to or from one peer, from the
// front to the back. Those below pos are done.
type transfer struct {
	lo, hi, pos int
	step        int
	add, last   bool
	zeroCopy    bool // of a send: nothing changes the bytes before the peer has received them, but for a result that they are part of

	// deps are earlier transfers that this one must not overtake where they overlap:
	// a send waits for what is received into its range; a receive for that and for
	// what is sent from its range.
	deps []int32
}

// lane is the traffic with one peer: transfers in order of the schedule, which is
// the same order on the other side.
type lane struct {
	peer         int
	sends, recvs []int32 // indices of transfers
	sendsTo      bool    // the schedule sends to peer, be it nothing
	recvsFrom    bool

	// State of the run in progress.
	sent, received int          // sends and recvs that are complete
	headOut        bool         // our header has left
	headIn         bool         // the peer's header has come and fits
	zeroCopy       zeroCopyLink // where the peer is lent memory
	awaits         bool         // a receipt from the peer
	owes           bool         // a receipt to the peer
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

// arrange cuts s for blocks of any size: block b is the bytes cuts[b] to cuts[b+1].
func arrange(s Schedule, ranks int, cuts []int) *program {
	p := new(program)
	index := make([]int, ranks) // of the lane to a peer, plus one
	laneTo := func(peer int) *lane {
		if index[peer] == 0 {
			p.lanes = append(p.lanes, lane{peer: peer})
			index[peer] = len(p.lanes)
		}
		return &p.lanes[index[peer]-1]
	}
	// The transfers that have touched a block since its last write, and that
	// write. Ranges are whole blocks, so what touches a block touches all of it.
	type touched struct {
		write int32 // or None
		reads []int32
		sends []int32 // all
	}
	blocks := make([]touched, s.Blocks)
	for i := range blocks {
		blocks[i].write = None
	}
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

// resize changes the sizes of the blocks of s, none of which is empty or was when p was
// arranged.
func (p *program) resize(s Schedule, cuts []int) {
	i := 0
	set := func(sp Span) {
		p.transfers[i].lo, p.transfers[i].hi = cuts[sp.Lo], cuts[sp.Hi]
		i++
	}
	for _, m := range s.Moves { // in the order in which arrange has made them
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

// zeroCopies says whether l has memory to lend: a whole page at least.
func (p *program) zeroCopies(l *lane) bool {
	for _, id := range l.sends {
		if t := &p.transfers[id]; t.zeroCopy && t.hi-t.lo >= 2*pageSize {
			return true
		}
	}
	return false
}

// limit is how far t may go now. It may be less than t.pos, or even t.lo.
func (p *program) limit(t *transfer) int {
	limit := t.hi
	for _, d := range t.deps {
		if e := &p.transfers[d]; e.pos < e.hi {
			limit = min(limit, e.pos)
		}
	}
	return limit
}

// sending is the transfer that l sends now, and nil when it has sent all.
func (p *program) sending(l *lane) *transfer {
	if l.sent == len(l.sends) {
		return nil
	}
	return &p.transfers[l.sends[l.sent]]
}

// receiving is the transfer that l receives now, and nil when it has received all.
func (p *program) receiving(l *lane) *transfer {
	if l.received == len(l.recvs) {
		return nil
	}
	return &p.transfers[l.recvs[l.received]]
}
