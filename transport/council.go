package transport

import (
	"encoding/binary"
	"fmt"
)

// ServiceCouncil is where processes that may coordinate a job talk with each other (package council).
const ServiceCouncil = "council"

// MaxCouncil is how many members a council has at most.
const MaxCouncil = 9

// Ballot carries one message of the consensus protocol from a member of a council to another. Payload: the message.
type Ballot struct{ From, To int }

// Elsewhere answers a Hello to somebody who does not coordinate the job now, but might. Addr is where the coordinator
// is; empty: nobody knows yet, ask again.
type Elsewhere struct{ Addr string }

// Standing is the first thing that a server says to a coordinator that takes a job over: what its shards have been told
// to do. Payload: the last Fires that they were given, with their payloads, oldest first (AppendFrame).
type Standing struct {
	Term   int64 // of the Welcome that it answers
	Seq    int64 // of the last Fire that it was given; 0: none
	Shards []ShardVersion

	// Applied is the last Applys that it was given, oldest first, at most MaxApplied.
	Applied []Apply
}

// MaxApplied bounds the Applys of a Standing.
const MaxApplied = 1024

// ShardVersion says of which version a shard's parameters are; -1: it has none yet. Fires that it was given may still be
// on the way to it.
type ShardVersion struct {
	Shard   int
	Version int64
}

// ElsewhereError: the peer does not coordinate the job now. It has no exit code, because another one does, or will.
type ElsewhereError struct {
	Peer string
	Addr string // of the coordinator; empty: not known
}

func (e *ElsewhereError) Error() string {
	if e.Addr == "" {
		return fmt.Sprintf("transport: %s does not coordinate the job, and knows nobody who does yet", e.Peer)
	}
	return fmt.Sprintf("transport: %s does not coordinate the job: %s does", e.Peer, e.Addr)
}

func (Elsewhere) Kind() Kind { return KindElsewhere }

func (m Elsewhere) AppendTo(dst []byte) []byte { return appendString(appendArray(dst, 1), m.Addr) }

// ParseElsewhere parses the header of an Elsewhere.
func ParseElsewhere(b []byte) (Elsewhere, error) {
	p := parse(KindElsewhere, b, 1)
	m := Elsewhere{Addr: p.string("addr", maxName)}
	return m, p.end()
}

// Refer sends m as the answer to a Hello, and closes c so that the peer can read it.
func Refer(c Conn, m Elsewhere) { part(c, m) }

func (Ballot) Kind() Kind { return KindBallot }

func (m Ballot) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 2)
	dst = appendInt(dst, int64(m.From))
	return appendInt(dst, int64(m.To))
}

// ParseBallot parses the header of a Ballot. It does not allocate.
func ParseBallot(b []byte) (Ballot, error) {
	p := parse(KindBallot, b, 2)
	m := Ballot{From: int(p.within("from", 0, MaxCouncil-1)), To: int(p.within("to", 0, MaxCouncil-1))}
	return m, p.end()
}

func (Standing) Kind() Kind { return KindStanding }

func (m Standing) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, m.Term)
	dst = appendInt(dst, m.Seq)
	dst = appendArray(dst, len(m.Shards))
	for _, s := range m.Shards {
		dst = appendArray(dst, 2)
		dst = appendInt(dst, int64(s.Shard))
		dst = appendInt(dst, s.Version)
	}
	dst = appendArray(dst, len(m.Applied))
	for _, a := range m.Applied {
		dst = a.AppendTo(dst)
	}
	return dst
}

// ParseStanding parses the header of a Standing.
func ParseStanding(b []byte) (Standing, error) {
	p := parse(KindStanding, b, 3)
	m := Standing{Term: p.natural("term"), Seq: p.natural("seq")}
	p.left--
	for range p.arrayLen("shards", MaxShards) {
		extra := p.row("shards", 2)
		s := ShardVersion{Shard: int(p.between("shards", 0, MaxShards-1)), Version: p.between("shards", -1, 1<<63-1)}
		p.skip(extra)
		if p.err != nil {
			return m, p.err
		}
		m.Shards = append(m.Shards, s)
	}
	if p.err != nil || p.left == 0 { // absent from older servers
		return m, p.end()
	}
	p.left--
	for range p.arrayLen("applied", MaxApplied) {
		extra := p.row("applied", 3)
		a := Apply{Seq: p.between("applied", 0, 1<<63-1), Norm: p.real("applied"), Factor: p.real("applied")}
		p.skip(extra)
		if p.err != nil {
			return m, p.err
		}
		m.Applied = append(m.Applied, a)
	}
	return m, p.end()
}

// AppendFrame appends a header and its payload to dst, for a list of frames inside of a payload.
func AppendFrame(dst, header, payload []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(header)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	return append(append(dst, header...), payload...)
}

// CutFrame takes the first one off a list that AppendFrame has made. What it returns lies in b.
func CutFrame(b []byte) (header, payload, rest []byte, err error) {
	if len(b) < 8 {
		return nil, nil, nil, fmt.Errorf("transport: a list of frames ends in %d bytes", len(b))
	}
	h, n := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
	if b = b[8:]; h+n > uint64(len(b)) {
		return nil, nil, nil, fmt.Errorf("transport: a frame of %d and %d bytes in a list that has %d more", h, n, len(b))
	}
	return b[:h:h], b[h : h+n : h+n], b[h+n:], nil
}
