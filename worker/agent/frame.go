package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"star/allreduce"
)

// Version is that of the frames. Processes with another version are refused.
const Version = 1

// Kind is the type of a frame.
type Kind uint32

// Requests, from a process. The numbers never change; new ones are added at the end.
const (
	KindHello     Kind = iota + 1 // A: Version. Body: Hello
	KindOpen                      // A: bytes of memory. Body: Open. Beside it a descriptor of the memory
	KindForm                      // Body: the address of host 0's agent. The group's hosts connect
	KindAllReduce                 // A: offset, B: elements, C: Type | Op << 8
	KindExchange                  // Body: for each host, offset and length to send, offset and length to receive
	KindBroadcast                 // A: host that sends, B: offset, C: bytes
	KindBarrier
	KindAbort  // Body: the reason. It has no reply: the request that it ends has
	KindLead   // Watching: the agent is the head. Body: address of the job's store
	KindFollow // Watching: Body: address of the head
	KindLeave  // The process leaves the group in good order. It has no reply
	kinds

	// Replies, from the agent.
	KindDone  Kind = 64 // Body: of Hello About, of Open and Lead an address
	KindError Kind = 65 // A: exit code, B: 1 + host at fault, or 0. Body: text
)

var kindNames = [kinds]string{"", "hello", "open", "form", "all-reduce", "exchange", "broadcast", "barrier", "abort", "lead", "follow", "leave"}

func (k Kind) String() string {
	switch {
	case k > 0 && k < kinds:
		return kindNames[k]
	case k == KindDone:
		return "done"
	case k == KindError:
		return "error"
	}
	return fmt.Sprintf("frame of kind %d", uint32(k))
}

// limit is the maximum length of a body, in bytes.
func (k Kind) limit() int {
	switch k {
	case KindHello, KindOpen, KindForm, KindAbort, KindLead, KindFollow, KindDone, KindError:
		return 64 << 10
	case KindExchange:
		return spanSize * allreduce.MaxRanks
	}
	return 0
}

// HeaderSize is the length of a frame without its body, in bytes.
const HeaderSize = 48

// Frame is a request or a reply: 48 bytes, little-endian, and the body.
//
//	 0  4       8    16  24  32  40       48
//	┌───┬───────┬────┬───┬───┬───┬────────┬──────────┐
//	│ k │ bytes │ ID │ A │ B │ C │ Within │ body …   │
//	└───┴───────┴────┴───┴───┴───┴────────┴──────────┘
type Frame struct {
	Kind    Kind
	ID      uint64 // of the request; its reply has the same
	A, B, C uint64
	Within  time.Duration // how long the request may take
	Body    []byte
}

// AppendTo appends the frame to dst.
func (f Frame) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(f.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.Body)))
	for _, v := range [5]uint64{f.ID, f.A, f.B, f.C, uint64(f.Within)} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return append(dst, f.Body...)
}

// parseHeader parses a frame without its body, and returns the length of that.
func parseHeader(h *[HeaderSize]byte) (f Frame, body int, err error) {
	f.Kind = Kind(binary.LittleEndian.Uint32(h[0:]))
	size := binary.LittleEndian.Uint32(h[4:])
	f.ID = binary.LittleEndian.Uint64(h[8:])
	f.A, f.B, f.C = binary.LittleEndian.Uint64(h[16:]), binary.LittleEndian.Uint64(h[24:]), binary.LittleEndian.Uint64(h[32:])
	f.Within = time.Duration(binary.LittleEndian.Uint64(h[40:]))
	if (f.Kind == 0 || f.Kind >= kinds) && f.Kind != KindDone && f.Kind != KindError {
		return f, 0, fmt.Errorf("%v is unknown in version %d", f.Kind, Version)
	}
	if int64(size) > int64(f.Kind.limit()) {
		return f, 0, fmt.Errorf("%v with a body of %d bytes: at most %d", f.Kind, size, f.Kind.limit())
	}
	return f, int(size), nil
}

// Parse parses the frame at the start of b. io.ErrUnexpectedEOF: it is incomplete. Other errors mean invalid bytes,
// after which no more can be parsed.
func Parse(b []byte) (f Frame, rest []byte, err error) {
	if len(b) < HeaderSize {
		return Frame{}, b, io.ErrUnexpectedEOF
	}
	f, n, err := parseHeader((*[HeaderSize]byte)(b))
	if err != nil {
		return Frame{}, b, err
	}
	if len(b) < HeaderSize+n {
		return Frame{}, b, io.ErrUnexpectedEOF
	}
	f.Body = b[HeaderSize : HeaderSize+n : HeaderSize+n]
	return f, b[HeaderSize+n:], nil
}

// spanSize is the bytes of a host's entry in an exchange.
const spanSize = 4 * 8

// spans parses the body of an exchange among hosts.
func spans(body []byte, hosts int) (send, receive []allreduce.Span, err error) {
	if len(body) != hosts*spanSize {
		return nil, nil, fmt.Errorf("an exchange among %d hosts with %d bytes of ranges, expected %d", hosts, len(body), hosts*spanSize)
	}
	span := func(b []byte) (allreduce.Span, error) {
		lo, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		if lo > maxMemory || n > maxMemory {
			return allreduce.Span{}, fmt.Errorf("a range of %d bytes from byte %d", n, lo)
		}
		return allreduce.Span{Lo: int(lo), Hi: int(lo + n)}, nil
	}
	for ; len(body) > 0; body = body[spanSize:] {
		s, serr := span(body)
		r, rerr := span(body[16:])
		if err := errors.Join(serr, rerr); err != nil {
			return nil, nil, err
		}
		send, receive = append(send, s), append(receive, r)
	}
	return send, receive, nil
}

// read reads a frame from c with the descriptors beside it. io.EOF: c has ended between two frames. The caller closes
// the descriptors, also with an error.
func read(c *net.UnixConn) (f Frame, fds []int, err error) {
	var h [HeaderSize]byte
	oob := make([]byte, descriptorSpace)
	for n := 0; n < HeaderSize; {
		m, o, _, _, err := c.ReadMsgUnix(h[n:], oob)
		fds = append(fds, descriptors(oob[:o])...)
		if err == nil && m == 0 {
			err = io.EOF
		}
		if err != nil {
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return f, fds, err
		}
		n += m
	}
	f, n, err := parseHeader(&h)
	if err != nil || n == 0 {
		return f, fds, err
	}
	f.Body = make([]byte, n)
	if _, err := io.ReadFull(c, f.Body); err != nil {
		return f, fds, io.ErrUnexpectedEOF
	}
	return f, fds, nil
}
