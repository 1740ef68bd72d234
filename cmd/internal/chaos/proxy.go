package chaos

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy is a server's proxy: it connects callers to the server unless a fault is active.
type Proxy struct {
	l      net.Listener
	target atomic.Pointer[string]
	rate   atomic.Int64  // bytes per second in each direction of each connection; 0: unlimited
	bits   atomic.Int32  // number of bits still to be flipped
	open   chan struct{} // closed: data is passed on
	mu     sync.Mutex
	ends   map[net.Conn]net.Conn // maps each end of a connection to the other
	over   bool
	wg     sync.WaitGroup

	asks bool // a caller first names its destination
}

// NewProxy listens on a free port of addr's host. Connections before Aim are closed.
func NewProxy(addr string) (*Proxy, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, err
	}
	open := make(chan struct{})
	close(open)
	p := &Proxy{l: l, ends: map[net.Conn]net.Conn{}, open: open}
	p.wg.Go(p.serve)
	return p, nil
}

// NewForward listens on a free port of addr's host. A caller names its destination as host:port and a new line.
func NewForward(addr string) (*Proxy, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, err
	}
	open := make(chan struct{})
	close(open)
	p := &Proxy{l: l, ends: map[net.Conn]net.Conn{}, open: open, asks: true}
	p.wg.Go(p.serve)
	return p, nil
}

// Open is the number of connections.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ends)
}

// named reads the destination that a caller names.
func named(c net.Conn) (addr string, err error) {
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	defer c.SetReadDeadline(time.Time{})
	for b := make([]byte, 1); len(addr) < 256; addr += string(b) {
		if _, err := c.Read(b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return addr, nil
		}
	}
	return "", errors.New("no host:port in 256 bytes")
}

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Aim sets the destination of connections.
func (p *Proxy) Aim(addr string) { p.target.Store(&addr) }

func (p *Proxy) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.wg.Go(func() { p.connect(c) })
	}
}

func (p *Proxy) connect(c net.Conn) {
	defer c.Close()
	to := p.target.Load()
	if p.asks {
		addr, err := named(c)
		if err != nil {
			return
		}
		to = &addr
	}
	if to == nil {
		return
	}
	s, err := net.DialTimeout("tcp", *to, 5*time.Second)
	if err != nil {
		return
	}
	defer s.Close()
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	p.ends[c] = s
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.ends, c)
		p.mu.Unlock()
	}()
	back := make(chan struct{})
	go func() {
		defer close(back)
		p.pass(c, s)
	}()
	p.pass(s, c)
	<-back
}

// pass copies until one end is closed, then closes both.
func (p *Proxy) pass(dst, src net.Conn) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			<-p.passing()
			if k := p.bits.Load(); k > 0 && p.bits.CompareAndSwap(k, k-1) {
				for i := max(0, min(n/2, n-4)); i < min(n, n/2+4); i++ {
					buf[i] ^= 1 << 6
				}
			}
			if r := p.rate.Load(); r > 0 {
				time.Sleep(time.Duration(float64(n) / float64(r) * float64(time.Second)))
			}
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) passing() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, s := range p.ends {
		c.Close()
		s.Close()
	}
}

// Silence stops or resumes all traffic.
func (p *Proxy) Silence(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if on {
			p.open = make(chan struct{})
		}
	default:
		if !on {
			close(p.open)
		}
	}
}

// Slow limits each direction of each connection to a number of bytes per second; 0: unlimited.
func (p *Proxy) Slow(rate int64) { p.rate.Store(rate) }

// Corrupt flips one bit in each of the next four bytes. One of them is the highest exponent bit if the data are
// float32, so that a zero changes too. CRC-32 detects any change within 32 bits.
func (p *Proxy) Corrupt() { p.bits.Add(1) }

// Close closes the listener and all connections.
func (p *Proxy) Close() {
	p.l.Close()
	p.Silence(false)
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}
