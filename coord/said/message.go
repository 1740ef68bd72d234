// Package said parses messages of members to the coordinator and checks whether their sender may send them. [Read]
// parses a frame and runs in the goroutine of each connection; [Check] is pure and runs in the coordinator's loop.
//
// Check compares a message with what its sender can know: its own rank, the shards that it has, versions that exist,
// and numbers that an honest program can measure. The coordinator disconnects a member that fails the check, so that
// nothing of the message reaches the barrier, an average or the run log.
//
// Check cannot notice a lie that could be true. Therefore no report of a single worker about itself ends a job, and
// where several members report the same thing the majority counts.
package said

import (
	"fmt"
	"time"

	"star/transport"
	"star/transport/wire"
)

// Message is one parsed frame. Messages of every iteration have their own fields, so that a Message is passed on
// without an allocation. The others are behind one pointer, which keeps a Message small: it is copied several times and
// waits in a queue of thousands.
type Message struct {
	Kind     wire.Kind
	Payload  []byte
	Arrive   wire.Arrive
	Stored   wire.Stored
	Norm     wire.Norm
	Tally    wire.Tally
	Computed wire.Computed
	*Seldom  // nil if Kind is one of the above, Ping or Pong
}

// Seldom has one field for each of the other kinds. The field of Message.Kind is set.
type Seldom struct {
	Hello       wire.Hello
	Ready       wire.Ready
	Joined      wire.Joined
	Saved       wire.Saved
	Buffers     wire.Buffers
	Halt        wire.Halt
	EvalResult  wire.EvalResult
	Leave       wire.Leave
	Formed      wire.Formed
	Bundle      wire.Bundle
	Fault       wire.Fault
	Compression wire.Compression
	Poison      wire.Poison
	Moved       wire.Moved
	Held        wire.Held
	Enlist      wire.Enlist
	Usage       wire.Usage
	Standing    wire.Standing
}

// often reports whether a frame of kind k needs no Seldom.
func often(k wire.Kind) bool {
	switch k {
	case wire.KindArrive, wire.KindStored, wire.KindNorm, wire.KindTally, wire.KindComputed, wire.KindPing, wire.KindPong:
		return true
	}
	return false
}

// MaxPayload is the largest payload that a member may send to the coordinator, in bytes: Model.Buffers of the largest
// model, norm bins, part descriptions.
const MaxPayload = 64 << 20

// payloadTime is the limit for receiving a payload, plus one second for each MiB.
const payloadTime = 30 * time.Second

// Read receives one frame of a member and parses it. Errors: a frame that members do not send, a payload for a kind
// that has none, a payload above MaxPayload, or a timeout. The connection must be closed after an error.
func Read(conn transport.Conn) (m Message, err error) {
	f, err := conn.Recv()
	if err != nil {
		return m, err
	}
	if m.Kind = f.Kind; !often(f.Kind) {
		m.Seldom = new(Seldom)
	}
	switch f.Kind {
	case wire.KindArrive:
		m.Arrive, err = wire.ParseArrive(f.Header)
	case wire.KindStored:
		m.Stored, err = wire.ParseStored(f.Header)
	case wire.KindReady:
		m.Ready, err = wire.ParseReady(f.Header)
	case wire.KindJoined:
		m.Joined, err = wire.ParseJoined(f.Header)
	case wire.KindNorm:
		m.Norm, err = wire.ParseNorm(f.Header)
	case wire.KindSaved:
		m.Saved, err = wire.ParseSaved(f.Header)
	case wire.KindBuffers:
		m.Buffers, err = wire.ParseBuffers(f.Header)
	case wire.KindEvalResult:
		m.EvalResult, err = wire.ParseEvalResult(f.Header)
	case wire.KindLeave:
		m.Leave, err = wire.ParseLeave(f.Header)
	case wire.KindFormed:
		m.Formed, err = wire.ParseFormed(f.Header)
	case wire.KindTally:
		m.Tally, err = wire.ParseTally(f.Header)
	case wire.KindComputed:
		m.Computed, err = wire.ParseComputed(f.Header)
	case wire.KindFault:
		m.Fault, err = wire.ParseFault(f.Header)
	case wire.KindCompression:
		m.Compression, err = wire.ParseCompression(f.Header)
	case wire.KindPoison:
		m.Poison, err = wire.ParsePoison(f.Header)
	case wire.KindBundle:
		m.Bundle, err = wire.ParseBundle(f.Header)
	case wire.KindMoved:
		m.Moved, err = wire.ParseMoved(f.Header)
	case wire.KindHeld:
		m.Held, err = wire.ParseHeld(f.Header)
	case wire.KindEnlist:
		m.Enlist, err = wire.ParseEnlist(f.Header)
	case wire.KindUsage:
		m.Usage, err = wire.ParseUsage(f.Header)
	case wire.KindStanding:
		m.Standing, err = wire.ParseStanding(f.Header)
	case wire.KindHalt:
		m.Halt, err = wire.ParseHalt(f.Header)
	case wire.KindPing:
		_, err = wire.ParsePing(f.Header)
	case wire.KindPong:
		_, err = wire.ParsePong(f.Header)
	default:
		err = fmt.Errorf("unexpected frame %v", f.Kind)
	}
	if err != nil || f.Size == 0 {
		return m, err
	}
	switch f.Kind {
	case wire.KindNorm, wire.KindSaved, wire.KindBuffers, wire.KindStanding:
	default:
		return m, fmt.Errorf("frame %v has a payload of %d bytes, expected none", f.Kind, f.Size)
	}
	if f.Size > MaxPayload {
		return m, fmt.Errorf("frame %v has a payload of %d bytes, at most %d", f.Kind, f.Size, MaxPayload)
	}
	conn.SetReadDeadline(time.Now().Add(payloadTime + time.Duration(f.Size>>20)*time.Second))
	m.Payload, err = transport.ReadAll(conn, f)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return m, err
}
