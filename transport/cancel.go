package transport

import "star"

// Cancel tells a worker that the update for which it computes the gradient of a step is made without it. It finishes
// the part of its batch that it is at, and hands over what it has. It may be late: the gradient may be whole already.
type Cancel struct {
	Worker star.Worker
	Step   int64
}

func (Cancel) Kind() Kind { return KindCancel }

func (m Cancel) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.Worker))
	return appendInt(dst, m.Step)
}

// ParseCancel parses the header of a Cancel.
func ParseCancel(b []byte) (Cancel, error) {
	p := parse(KindCancel, b, 2)
	m := Cancel{Worker: p.worker("worker"), Step: p.natural("step")}
	return m, p.end()
}
