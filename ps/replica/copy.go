package replica

// Copy is what a server knows of its copy of a shard, apart from the copy itself. The zero value
// has no view: it accepts firings and answers no worker.
//
//	no view ──NewCopy, Take──► follower ◄──Take──► primary
//	                                 └── a worker has a higher term: Later, until Take
//
// Invariants:
//
//   - Its view's term never decreases, and firings are accepted in order, without gaps.
//   - It accepts no firing of a coordinator with a lower generation than the highest seen.
//   - It answers no worker while it knows of a higher term than its own.
type Copy struct {
	self int
	view View
	// heard is the highest term that any peer has named.
	heard int64
	// boss is the highest generation of coordinators seen.
	boss int64
	// last is the number of the last firing that it holds.
	last int64
}

// NewCopy makes the Copy of a server that holds all firings up to last.
func NewCopy(server int, v View, last int64) Copy {
	return Copy{self: server, view: v.clone(), last: last}
}

// HasView reports whether the coordinator has included it in a view.
func (c *Copy) HasView() bool { return c.view.Term > 0 }

// Term is that of its view.
func (c *Copy) Term() int64 { return c.view.Term }

// Last is the last firing that it holds.
func (c *Copy) Last() int64 { return c.last }

// Primary reports whether it is the copy that answers workers.
func (c *Copy) Primary() bool { return c.HasView() && c.view.Primary == c.self }

// Take accepts a view from the coordinator. It returns false for one that is older than its own.
func (c *Copy) Take(v View) bool {
	if v.Term < c.view.Term {
		return false
	}
	c.view = v.clone()
	return true
}

// Answer is how a copy responds to a request.
type Answer uint8

const (
	// Yes means: do as the request asks.
	Yes Answer = iota
	// Later means: do not answer before the next view.
	Later
)

// Hear notes the term of a worker. It returns Later if that is higher than its own: either the
// coordinator's view is on its way, or this copy was dropped and will never get it.
func (c *Copy) Hear(term int64) Answer {
	c.heard = max(c.heard, term)
	return c.Write(term)
}

// Write decides whether a gradient of a worker of that term is accepted.
func (c *Copy) Write(term int64) Answer {
	if c.heard > c.view.Term || term > c.view.Term {
		return Later
	}
	return Yes
}

// Read decides whether a worker of that term is sent parameters.
func (c *Copy) Read(term int64) Answer {
	if !c.Primary() {
		return Later
	}
	return c.Write(term)
}

// To says which copies a firing is for.
type To uint8

const (
	// In a job without copies.
	ToAll       To = iota
	ToFollowers    // first
	// After all followers hold it.
	ToPrimaries
)

// Word classifies a firing for a copy.
type Word uint8

const (
	// New: it is the next one, and the copy holds it from now on.
	New   Word = iota
	Known      // held already
	// An earlier one is missing.
	NotYet
	Others // for other copies
	Stale  // from a replaced coordinator
)

// Fire classifies a firing of a coordinator of a generation, and accepts it if it is New.
func (c *Copy) Fire(generation, seq int64, to To) Word {
	switch {
	case generation < c.boss:
		return Stale
	case to == ToFollowers && c.Primary(), to == ToPrimaries && !c.Primary():
		return Others
	case seq <= c.last:
		return Known
	case seq > c.last+1:
		return NotYet
	}
	c.last = seq
	return New
}

// Claim returns what this copy reports to a coordinator of a generation. From then on it ignores
// earlier coordinators.
func (c *Copy) Claim(generation int64, shard int) Claim {
	c.boss = max(c.boss, generation)
	return Claim{Server: c.self, Shard: shard, View: c.view.clone(), Seq: c.last}
}
