package transport

import "star"

// Copies of shards (package replica has the rules): each shard has several servers, who all get every gradient and every firing.

// Holder is a server that holds a copy of a shard.
type Holder struct {
	Rank int
	Addr string // where workers reach it
}

// View tells a server or a worker who holds the copies of a shard, under a term that rises with every change. The first holder is the
// primary, which answers workers.
type View struct {
	Shard    int
	Term     int64
	Holders  []Holder
	From, To int64 // its elements
}

// Held: a copy of a shard holds all firings up to Seq.
type Held struct {
	Shard int
	Term  int64 // of its view
	Seq   int64
}

// Turn is what a worker says on its connections to all copies of a shard that it knows of: from here on it pushes to all of the view of
// that term.
type Turn struct {
	Shard  int
	Worker star.Worker
	Term   int64
}

// Ahead is a Fire that followers get before it is sent to primaries.
type Ahead Fire

// maxHolders is how many copies a shard may have.
const maxHolders = 16

func (View) Kind() Kind { return KindView }

func (m View) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Term)
	dst = appendArray(dst, len(m.Holders))
	for _, h := range m.Holders {
		dst = appendArray(dst, 2)
		dst = appendInt(dst, int64(h.Rank))
		dst = appendString(dst, h.Addr)
	}
	dst = appendInt(dst, m.From)
	return appendInt(dst, m.To)
}

// ParseView parses the header of a View.
func ParseView(b []byte) (View, error) {
	p := parse(KindView, b, 5)
	m := View{Shard: p.shard("shard"), Term: p.natural("term")}
	p.left--
	for range p.arrayLen("holders", maxHolders) {
		extra := p.row("holders", 2)
		h := Holder{Rank: int(p.between("holders", 0, MaxWorkers-1)), Addr: p.words("holders", maxName)}
		p.skip(extra)
		m.Holders = append(m.Holders, h)
	}
	m.From, m.To = p.within("from", 0, MaxParams), p.within("to", 0, MaxParams)
	return m, p.end()
}

func (Held) Kind() Kind { return KindHeld }

func (m Held) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, m.Term)
	return appendInt(dst, m.Seq)
}

// ParseHeld parses the header of a Held.
func ParseHeld(b []byte) (Held, error) {
	p := parse(KindHeld, b, 3)
	m := Held{Shard: p.shard("shard"), Term: p.natural("term"), Seq: p.natural("seq")}
	return m, p.end()
}

func (Turn) Kind() Kind { return KindTurn }

func (m Turn) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Shard))
	dst = appendInt(dst, int64(m.Worker))
	return appendInt(dst, m.Term)
}

// ParseTurn parses the header of a Turn.
func ParseTurn(b []byte) (Turn, error) {
	p := parse(KindTurn, b, 3)
	m := Turn{Shard: p.shard("shard"), Worker: p.worker("worker"), Term: p.natural("term")}
	return m, p.end()
}

func (Ahead) Kind() Kind { return KindAhead }

func (m Ahead) AppendTo(dst []byte) []byte { return Fire(m).AppendTo(dst) }

// ParseAhead parses the header of an Ahead into fresh memory.
func ParseAhead(b []byte) (Ahead, error) {
	var m Fire
	err := m.parse(KindAhead, b)
	return Ahead(m), err
}

// ParseAhead parses the header of an Ahead into the memory of m.
func (m *Fire) ParseAhead(b []byte) error { return m.parse(KindAhead, b) }
