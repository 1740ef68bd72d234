package allreduce

// striped is a link over several sockets, for networks that limit the rate of
// each connection. Stripes of the stream take turns: byte q goes over socket
// q/stripe mod k. A socket is filled until its stripe is complete, so the bytes
// on their way are what all sockets' buffers hold.
type striped struct {
	links []*socket
	// out and in are positions in the stream. Both ends derive the socket from
	// them, so stripes carry no numbers.
	out, in uint64
}

// stripe is the bytes that go over one connection before the next one is used:
// a multiple of vectorAlign, so that no element is cut.
const stripe = 128 << 10

// newLink makes one link of the connections between two ranks.
func newLink(parts []link) link {
	if len(parts) == 1 {
		return parts[0]
	}
	s := new(striped)
	for _, p := range parts {
		s.links = append(s.links, p.(*socket))
	}
	return s
}

// turn returns the socket that is used at a position, and the rest of its
// stripe.
func (s *striped) turn(position uint64) (*socket, int) {
	return s.links[position/stripe%uint64(len(s.links))], int(stripe - position%stripe)
}

func (s *striped) send(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		k, left := s.turn(s.out)
		want := min(left, len(b)-sent)
		n, err := k.send(b[sent : sent+want])
		s.out += uint64(n)
		sent += n
		if err != nil || n < want {
			return sent, err
		}
	}
	return sent, nil
}

// view ends at the end of the stripe: what follows there comes over another
// socket.
func (s *striped) view(size int) ([]byte, error) {
	k, left := s.turn(s.in)
	b, err := k.view(size)
	return b[:min(len(b), left)], err
}

func (s *striped) skip(n int) {
	k, _ := s.turn(s.in)
	k.skip(n)
	s.in += uint64(n)
}

// read waits for no socket: it ends at the first one that has too little.
func (s *striped) read(dst []byte) (int, error) {
	got := 0
	for got < len(dst) {
		k, left := s.turn(s.in)
		want := min(left, len(dst)-got)
		n, err := k.read(dst[got : got+want])
		s.in += uint64(n)
		got += n
		// The socket that is next in turn blocks the others: their bytes are
		// later in the stream.
		if n == 0 || err != nil {
			if got > 0 {
				// It is returned again.
				err = nil
			}
			return got, err
		}
	}
	return got, nil
}

func (s *striped) resize(segment int) {
	for _, k := range s.links {
		k.resize(min(segment, stripe))
	}
}

// tries is that of the worst socket: one lost connection stops the stream.
func (s *striped) tries() int {
	most := 0
	for _, k := range s.links {
		most = max(most, k.tries())
	}
	return most
}

func (s *striped) kind() string { return s.links[0].kind() }

func (s *striped) close() {
	for _, k := range s.links {
		k.close()
	}
}
