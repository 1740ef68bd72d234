package transport

import "star"

// Branch: for one step the worker is part of a tree. It comes before the Release of
// that step; without one, a worker reports for itself.
type Branch struct {
	Worker star.Worker
	Step   int64
	Parent int    // takes this worker's gradients; -1: the shards do
	Door   string // where the parent is to be reached; empty: there is none

	// Relay says that the parameters of the Release come from the parent.
	Relay bool

	// Children are those whose gradients this one takes.
	Children []Child

	// Below are all whose gradients may come through a child, itself included. Empty where the coordinator is of an older program.
	Below []Below
}

// MaxBelow bounds them, so that a Branch fits into a header: no more workers are linked below one.
const MaxBelow = 1024

// Below is a gradient that may come up a tree through Child.
type Below struct {
	Child, Worker star.Worker
	Step          int64
	Samples       int
}

// Child is a worker below another one in a tree, and the step of its gradient.
type Child struct {
	Worker star.Worker
	Step   int64
}

// Share is a gradient in a Bundle.
type Share struct {
	Worker  star.Worker
	Step    int64
	Samples int
}

// Bundle: the gradients of several workers as one, their mean over all samples. Payload:
// float32, from a child to its parent. From the top of a tree to the coordinator it
// comes without payload, before the shards are sent the same: it says what is in the
// gradient of Worker and Step.
type Bundle struct {
	Worker  star.Worker // who sends it
	Step    int64       // its own
	Members []Share     // the sender first
}

// Samples is how many samples all its members have.
func (m Bundle) Samples() int {
	n := 0
	for _, s := range m.Members {
		n += s.Samples
	}
	return n
}

// Detach: the gradient of the worker's step does not go the way that its Branch
// said. To the worker itself: push it to the shards. To its parent: do not wait for it.
type Detach struct {
	Worker star.Worker
	Step   int64
}

// Want asks a parent for the parameters of Version, or a later one, once it has them.
// It answers with Params, as often as it is asked.
type Want struct {
	Worker  star.Worker
	Version int64
}

func (Branch) Kind() Kind { return KindBranch }

func (m Branch) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 7)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendInt(dst, int64(m.Parent))
	dst = appendString(dst, m.Door)
	dst = appendBool(dst, m.Relay)
	dst = appendArray(dst, len(m.Children))
	for _, c := range m.Children {
		dst = appendArray(dst, 2)
		dst = appendInt(dst, int64(c.Worker))
		dst = appendInt(dst, c.Step)
	}
	dst = appendArray(dst, len(m.Below))
	for _, s := range m.Below {
		dst = appendArray(dst, 4)
		dst = appendInt(dst, int64(s.Child))
		dst = appendInt(dst, int64(s.Worker))
		dst = appendInt(dst, s.Step)
		dst = appendInt(dst, int64(s.Samples))
	}
	return dst
}

// ParseBranch parses the header of a Branch.
func ParseBranch(b []byte) (Branch, error) {
	p := parse(KindBranch, b, 6)
	m := Branch{
		Worker: p.worker("worker"), Step: p.natural("step"), Parent: p.member("parent"), Door: p.string("door", maxName),
		Relay: p.bool("relay"),
	}
	const field = "children"
	p.left--
	for range p.arrayLen(field, MaxWorkers) {
		extra := p.row(field, 2)
		c := Child{Worker: star.Worker(p.between(field, 0, MaxWorkers-1)), Step: p.between(field, 0, 1<<63-1)}
		p.skip(extra)
		if p.err != nil {
			break
		}
		m.Children = append(m.Children, c)
	}
	if p.err == nil && p.left > 0 { // absent from older coordinators
		const field = "below"
		p.left--
		for range p.arrayLen(field, MaxBelow) {
			extra := p.row(field, 4)
			child := star.Worker(p.between(field, 0, MaxWorkers-1))
			s := p.share(field)
			p.skip(extra)
			if p.err != nil {
				break
			}
			m.Below = append(m.Below, Below{child, s.Worker, s.Step, s.Samples})
		}
	}
	return m, p.end()
}

// share reads the fields of a Share.
func (p *parser) share(field string) Share {
	return Share{
		Worker:  star.Worker(p.between(field, 0, MaxWorkers-1)),
		Step:    p.between(field, 0, 1<<63-1),
		Samples: int(p.between(field, 0, 1<<31-1)),
	}
}

func (Bundle) Kind() Kind { return KindBundle }

func (m Bundle) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 3)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Step)
	dst = appendArray(dst, len(m.Members))
	for _, s := range m.Members {
		dst = appendArray(dst, 3)
		dst = appendInt(dst, int64(s.Worker))
		dst = appendInt(dst, s.Step)
		dst = appendInt(dst, int64(s.Samples))
	}
	return dst
}

// ParseBundle parses the header of a Bundle.
func ParseBundle(b []byte) (Bundle, error) {
	p := parse(KindBundle, b, 3)
	m := Bundle{Worker: p.worker("worker"), Step: p.natural("step")}
	const field = "members"
	p.left--
	for range p.arrayLen(field, MaxWorkers) {
		extra := p.row(field, 3)
		s := p.share(field)
		p.skip(extra)
		if p.err != nil {
			break
		}
		m.Members = append(m.Members, s)
	}
	return m, p.end()
}

func (Detach) Kind() Kind { return KindDetach }

func (m Detach) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	return appendInt(dst, m.Step)
}

// ParseDetach parses the header of a Detach.
func ParseDetach(b []byte) (Detach, error) {
	p := parse(KindDetach, b, 2)
	m := Detach{Worker: p.worker("worker"), Step: p.natural("step")}
	return m, p.end()
}

func (Want) Kind() Kind { return KindWant }

func (m Want) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	return appendInt(dst, m.Version)
}

// ParseWant parses the header of a Want.
func ParseWant(b []byte) (Want, error) {
	p := parse(KindWant, b, 2)
	m := Want{Worker: p.worker("worker"), Version: p.natural("version")}
	return m, p.end()
}
