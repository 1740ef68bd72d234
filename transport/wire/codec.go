package wire

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"star"
)

//go:generate go run ./gen

// Kind is the type of a frame. The values are part of the protocol and never change.
type Kind uint8

// Valid reports whether k is a kind of this version of the protocol.
func (k Kind) Valid() bool { return k >= 1 && k <= LastKind }

// String is the kind's name in logs and in docs/protocol.md.
func (k Kind) String() string {
	if k.Valid() {
		return kindNames[k]
	}
	return "kind " + strconv.Itoa(int(k))
}

// Payload is the class of a kind's payload, which limits its length.
type Payload uint8

const (
	None  Payload = iota // no payload
	Data                 // vectors
	Text                 // settings, layouts, descriptions, answers
	Probe                // what a Ping or a Pong carries
	Bins                 // of an exact sum
	Memo                 // state for the next coordinator
)

// Payload returns the class of k's payload; None for an unknown kind.
func (k Kind) Payload() Payload {
	if k.Valid() {
		return payloads[k]
	}
	return None
}

// Message is the content of a header. AppendTo appends the header to dst.
type Message interface {
	Kind() Kind
	AppendTo(dst []byte) []byte
}

// sending changes m to what its header has. With local steps, samples are negative, so that a shard without support for
// them, or for outer steps, refuses the fire instead of applying the pushes as gradients.
func (m *Fire) sending() {
	if m.moved() {
		m.Samples = ^m.Samples
	}
}

// moved reports whether pushes are what workers have moved by local steps.
func (m *Fire) moved() bool { return m.Local > 0 || m.Outer != "" }

// received reverts sending.
func (m *Fire) received(p *parser) {
	switch steps := m.Samples < 0; {
	case m.Local > 0 && m.Outer != "":
		p.fail("outer", fmt.Errorf("%q with %d local steps of the mean: want one of the two", m.Outer, m.Local))
	case steps != m.moved():
		p.fail("samples", fmt.Errorf("%d with %d local steps and outer step %q: want a negative number with such steps, and none without", m.Samples, m.Local, m.Outer))
	case steps:
		m.Samples = ^m.Samples
	}
}

// ParseAhead parses the header of an Ahead into the memory of m.
func (m *Fire) ParseAhead(b []byte) error { return (*Ahead)(m).Parse(b) }

// Samples returns the sum of the members' samples.
func (m Bundle) Samples() int {
	n := 0
	for _, s := range m.Members {
		n += s.Samples
	}
	return n
}

// appendTelemetry appends the bits of the measured metrics, and their values.
func appendTelemetry(dst []byte, t *star.Telemetry) []byte {
	const known = 1<<star.NumMetrics - 1
	dst = appendInt(dst, int64(t.Seen&known))
	dst = appendArray(dst, bits.OnesCount64(t.Seen&known))
	for m := range star.NumMetrics {
		if t.Seen>>m&1 != 0 {
			dst = appendFloat32(dst, t.Values[m])
		}
	}
	return dst
}

// telemetry reads what appendTelemetry wrote, here or in a peer with more metrics or without any.
// Values that are not finite count as not measured.
func (p *parser) telemetry(t *star.Telemetry) {
	*t = star.Telemetry{}
	if p.err != nil || p.left == 0 {
		return
	}
	seen := uint64(p.within("seen", 0, math.MaxInt64))
	if p.err == nil && p.left == 0 {
		p.fail("telemetry", errShort)
	}
	p.left--
	n, want := p.arrayLen("telemetry", 63), bits.OnesCount64(seen)
	if p.err == nil && n != want {
		p.fail("telemetry", fmt.Errorf("%d values for %d bits of seen", n, want))
	}
	for ; seen != 0 && p.err == nil; seen &= seen - 1 {
		v := p.real("telemetry")
		if m := star.Metric(bits.TrailingZeros64(seen)); m < star.NumMetrics && p.err == nil {
			t.Set(m, v)
		}
	}
}
