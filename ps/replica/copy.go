package replica

// Copy is what a server knows of its copy of a shard, beside the copy itself. The zero value has no seat: it holds firings, and answers nobody.
type Copy struct {
	self  int
	view  View
	heard int64 // the highest term that anybody spoke of
	boss  int64 // the highest generation of coordinators that was heard of
	last  int64 // firing
}

// NewCopy makes the account of a copy at a server, which holds all firings up to last.
func NewCopy(server int, v View, last int64) Copy {
	return Copy{self: server, view: v.clone(), last: last}
}

// Seated says whether the coordinator has given it a place in a view.
func (c *Copy) Seated() bool { return c.view.Term > 0 }

// Term is that of its view.
func (c *Copy) Term() int64 { return c.view.Term }

// Last is the last firing that it holds.
func (c *Copy) Last() int64 { return c.last }

// Primary says whether it is the one that answers workers.
func (c *Copy) Primary() bool { return c.Seated() && c.view.Primary == c.self }

// Take takes a view from the coordinator. It reports false for one that is older than its own.
func (c *Copy) Take(v View) bool {
	if v.Term < c.view.Term {
		return false
	}
	c.view = v.clone()
	return true
}

// Answer is what a copy does about a request.
type Answer uint8

const (
	Yes   Answer = iota
	Later        // when it has another view: until then the sender gets no answer
)

// Hear notes the term of a worker. It is Later if that is higher than its own: then either the coordinator's word is on the way, or this copy
// has been left behind and will never hear it.
func (c *Copy) Hear(term int64) Answer {
	c.heard = max(c.heard, term)
	return c.Write(term)
}

// Write says whether a gradient of a worker of that term is taken.
func (c *Copy) Write(term int64) Answer {
	if c.heard > c.view.Term || term > c.view.Term {
		return Later
	}
	return Yes
}

// Read says whether a worker of that term is answered with parameters.
func (c *Copy) Read(term int64) Answer {
	if !c.Primary() {
		return Later
	}
	return c.Write(term)
}

// To says which copies a firing is meant for.
type To uint8

const (
	ToAll       To = iota // of a job without copies
	ToFollowers           // first
	ToPrimaries           // when all followers hold it
)

// Word is what a firing is to a copy.
type Word uint8

const (
	New    Word = iota // it is the next one: the copy holds it from now on
	Known              // it holds it already
	NotYet             // there is one before it that is missing
	Others             // it is meant for others
	Stale              // a coordinator says so that has been replaced
)

// Fire takes a firing from a coordinator of a generation.
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

// Claim is what it says to a coordinator of a generation. From then on it hears no earlier one.
func (c *Copy) Claim(generation int64, shard int) Claim {
	c.boss = max(c.boss, generation)
	return Claim{Server: c.self, Shard: shard, View: c.view.clone(), Seq: c.last}
}
