package transport

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star/internal/build"
	"star/internal/exitcode"
	"star/transport/wire"
)

// RejectError reports that the peer has refused this process, or ended its part in the job, with
// the reason.
type RejectError struct {
	Peer   string
	Exit   int // that fits the reason
	Reason string
	// Ends: this process had a part in the job.
	Ends bool
}

// Error is the peer's reason.
func (e *RejectError) Error() string {
	if e.Ends {
		return fmt.Sprintf("ended by %s: %s", cmp.Or(e.Peer, "the coordinator"), e.Reason)
	}
	return fmt.Sprintf("transport: %s refuses: %s", cmp.Or(e.Peer, "the peer"), e.Reason)
}

// briefLength bounds the bytes of a reason in lines that only repeat it. Most reasons fit, with
// their advice, since a worker's user may see no other log. Of a reason that lists settings the
// beginning remains.
const briefLength = 400

// Brief shortens a reason for lines about its consequences: one line of limited length. The process
// that found the reason logs it in full.
func Brief(reason string) string {
	s := OneLine(reason)
	if len(s) <= briefLength {
		return s
	}
	s = s[:briefLength]
	if i := strings.LastIndexByte(s, ' '); i > briefLength/2 {
		s = s[:i]
	}
	return strings.ToValidUTF8(s, "") + " …"
}

// OneLine returns a reason in one line: the last one of a traceback, which the program has printed.
func OneLine(reason string) string {
	lines := strings.Split(strings.TrimSpace(reason), "\n")
	if len(lines) == 1 {
		return lines[0]
	}
	first, _, _ := strings.Cut(lines[0], "Traceback")
	return first + lines[len(lines)-1]
}

// ExitCode is the exit code that fits.
func (e *RejectError) ExitCode() int { return e.Exit }

// AnswerError reports that the peer's answer to a hello cannot be read. A retry would get the same
// answer.
type AnswerError struct{ Err error }

// Error names what cannot be read.
func (e *AnswerError) Error() string {
	return e.Err.Error() + ": install the same release of STAR on both sides"
}

// Unwrap returns the error of the read.
func (e *AnswerError) Unwrap() error { return e.Err }

// ExitCode is that of members that disagree (78).
func (e *AnswerError) ExitCode() int { return exitcode.Disagree }

// HelloError reports that this process's own hello cannot be sent: a field or its payload is too long. A retry would
// send the same.
type HelloError struct{ Err error }

// Error names what is too long.
func (e *HelloError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the write.
func (e *HelloError) Unwrap() error { return e.Err }

// ExitCode is that of usage (2).
func (e *HelloError) ExitCode() int { return exitcode.Usage }

// tlsError reports certificates that do not match.
type tlsError struct{ err error }

func (e *tlsError) Error() string {
	return "TLS: " + e.err.Error() + ": check --tls-cert, --tls-key and --tls-ca on both sides"
}
func (e *tlsError) Unwrap() error { return e.err }
func (e *tlsError) ExitCode() int { return exitcode.Refused }

// tlsReason wraps an error that is about certificates, and returns others unchanged.
func tlsReason(err error) error {
	var alert tls.AlertError
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var host x509.HostnameError
	if errors.As(err, &record) {
		switch head := string(record.RecordHeader[:]); {
		case strings.HasPrefix(head, magic):
			return &tlsError{errors.New("the server does not speak it: start it with certificates, too, or leave --tls-cert, --tls-key and --tls-ca away here")}
		case strings.HasPrefix(head, "HTTP"):
			return fmt.Errorf("%w: an HTTP server answers", ErrNotSTAR)
		}
	}
	if errors.As(err, &alert) || errors.As(err, &verify) || errors.As(err, &record) || errors.As(err, &host) ||
		strings.Contains(err.Error(), "remote error: tls:") {
		return &tlsError{err}
	}
	return err
}

// Open dials addr, sends the Hello with its payload, and waits for the Welcome and its payload. A
// refusal is a *RejectError, another protocol a *VersionError; both have an ExitCode.
//
// The coordinator sends its Welcome only when enough members have joined, so ctx bounds the wait.
// If ctx has no deadline, one minute does.
func Open(ctx context.Context, n Network, addr string, h wire.Hello, payload []byte) (Conn, wire.Welcome, []byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	h.Commit = cmp.Or(h.Commit, build.Commit())
	if _, err := wire.ParseHello(h.AppendTo(nil)); err != nil {
		return nil, wire.Welcome{}, nil, &HelloError{&Error{"hello to", addr, err}}
	}
	c, err := n.Dial(ctx, addr)
	if err != nil {
		return nil, wire.Welcome{}, nil, err
	}
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() {
		c.SetReadDeadline(past)
		c.SetWriteDeadline(past)
	})
	w, text, err := welcome(c, h, payload)
	if !stop() && err == nil {
		err = &Error{"open", addr, ctx.Err()}
	}
	if err != nil {
		c.Close()
		if cause := context.Cause(ctx); cause != nil && !isRefusal(err) {
			err = &Error{"open", addr, fmt.Errorf("no Welcome: %w", cause)}
		}
		return nil, wire.Welcome{}, nil, err
	}
	return c, w, text, nil
}

// isRefusal reports whether the peer has answered with a refusal.
func isRefusal(err error) bool {
	var e interface{ ExitCode() int }
	return errors.As(err, &e)
}

// welcome is the dialling side's half of the handshake.
func welcome(c Conn, h wire.Hello, payload []byte) (wire.Welcome, []byte, error) {
	// A peer that refuses may stop reading before it has all of a long payload. Its reason is more
	// useful than this side's broken pipe.
	werr := Send(c, h, payload)
	if errors.Is(werr, ErrTooLarge) {
		return wire.Welcome{}, nil, &HelloError{werr}
	}
	f, err := c.Recv()
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrBadKind) || errors.Is(err, ErrBadFlags) || errors.Is(err, ErrPadding) {
		return wire.Welcome{}, nil, &AnswerError{err}
	}
	if err != nil {
		if werr != nil {
			err = werr
		}
		return wire.Welcome{}, nil, tlsReason(err)
	}
	switch f.Kind {
	case wire.KindWelcome:
		if werr != nil {
			return wire.Welcome{}, nil, werr
		}
		w, err := wire.ParseWelcome(f.Header)
		if err != nil {
			return wire.Welcome{}, nil, unreadable(c, err)
		}
		text, err := ReadAll(c, f)
		if err != nil {
			return wire.Welcome{}, nil, err
		}
		if n := len(text) - w.Trailing; n < 0 {
			return wire.Welcome{}, nil, unreadable(c, fmt.Errorf("welcome: the last %d bytes of a payload of %d", w.Trailing, len(text)))
		} else if w.Trailing > 0 {
			w.Optimizer, w.Trailing, text = string(text[n:]), 0, text[:n:n]
		}
		return w, text, nil
	case wire.KindReject:
		r, err := wire.ParseReject(f.Header)
		if err != nil {
			return wire.Welcome{}, nil, unreadable(c, err)
		}
		return wire.Welcome{}, nil, &RejectError{Peer: c.Peer(), Exit: r.Exit, Reason: r.Reason}
	case wire.KindElsewhere:
		m, err := wire.ParseElsewhere(f.Header)
		if err != nil {
			return wire.Welcome{}, nil, unreadable(c, err)
		}
		return wire.Welcome{}, nil, &ElsewhereError{Peer: c.Peer(), Addr: m.Addr}
	}
	return wire.Welcome{}, nil, unreadable(c, fmt.Errorf("%v where welcome or reject must come", f.Kind))
}

func unreadable(c Conn, err error) error { return &AnswerError{&Error{"recv", c.Peer(), err}} }

// SendWelcome sends w with the model's buffers as its payload. An optimizer that is too long for
// the header follows them; Open restores it. Errors are those of Send.
func SendWelcome(c Conn, w wire.Welcome, buffers []byte) error {
	if len(w.Optimizer) > wire.MaxOptimizer {
		payload := append(slices.Clone(buffers), w.Optimizer...)
		w.Optimizer, w.Trailing = "", len(w.Optimizer)
		return Send(c, w, payload)
	}
	return Send(c, w, buffers)
}

// ReadHello reads the Hello that opens a connection, and its payload. It leaves no deadline. Errors
// are *Error: a timeout, an ended connection, or another message than a Hello.
func ReadHello(c Conn, timeout time.Duration) (wire.Hello, []byte, error) {
	return readHello(c, timeout, func(wire.Hello) error { return nil })
}

// readHello lets admit check the Hello before memory is used for its payload.
func readHello(c Conn, timeout time.Duration, admit func(wire.Hello) error) (wire.Hello, []byte, error) {
	deadline := time.Now().Add(timeout)
	if err := c.SetReadDeadline(deadline); err != nil {
		return wire.Hello{}, nil, &Error{"recv", c.Peer(), err}
	}
	// TLS also writes, before this side's first byte is read.
	if err := c.SetWriteDeadline(deadline); err != nil {
		return wire.Hello{}, nil, &Error{"recv", c.Peer(), err}
	}
	f, err := c.Recv()
	if err != nil {
		return wire.Hello{}, nil, err
	}
	if f.Kind != wire.KindHello {
		return wire.Hello{}, nil, &Error{"recv", c.Peer(), fmt.Errorf("%v where hello must come first", f.Kind)}
	}
	h, err := wire.ParseHello(f.Header)
	if err != nil {
		return wire.Hello{}, nil, &Error{"recv", c.Peer(), err}
	}
	if err := admit(h); err != nil {
		return h, nil, err
	}
	text, err := ReadAll(c, f)
	if err != nil {
		return h, nil, err
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		return h, nil, err
	}
	return h, text, c.SetReadDeadline(time.Time{})
}

// Refuse sends r and closes c so that the peer can read it: closing a socket with unread bytes
// discards what was sent last. It takes a second at most.
func Refuse(c Conn, r wire.Reject) { part(c, r) }

// part sends the last message of a connection and closes it.
func part[M wire.Message](c Conn, m M) {
	defer c.Close()
	deadline := time.Now().Add(time.Second)
	c.SetWriteDeadline(deadline)
	c.SetReadDeadline(deadline)
	if Send(c, m, nil) != nil {
		return
	}
	if w, ok := c.(*netConn); ok {
		w.drain()
	}
}

// drain ends the sending side and discards what the peer still sends.
func (c *netConn) drain() {
	h, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || h.CloseWrite() != nil {
		return
	}
	for dropped := 0; dropped < 64<<20; {
		n, err := c.read(c.buf)
		if err != nil {
			return
		}
		dropped += n
	}
}

// Serve accepts connections from l until ctx ends or l is closed, and calls handle for each one
// with a valid Hello, with the Hello's payload. Every handshake and every handle has its own
// goroutine; handle owns its connection. Serve closes l and the connections without a Hello, and
// returns when the last handle has returned: nil after ctx's end, else why l failed.
//
// A connection with another first message, none in time, a wrong token or another protocol is
// closed with a logged reason. If more than MaxPending have sent no Hello for a tenth of a second,
// the oldest one of the address with the most of them is closed: a peer that sends its Hello at
// once is not delayed by silent ones.
func Serve(ctx context.Context, l Listener, cfg Config, handle func(Conn, wire.Hello, []byte)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	pending := newPendingConns(cmp.Or(cfg.MaxPending, Portion(4, DefaultPending)))
	refused := limitedLog{log: cfg.log()}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 5*time.Millisecond, time.Second, 2
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			// Usually out of file descriptors: other connections must end first.
			again := pause.NextBackOff()
			cfg.log().Warn("could not accept a connection", "err", err, "retry_in", again)
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
			continue
		}
		pause.Reset()
		conn := pending.enter(ctx, c, c.RemoteAddr())
		wg.Go(func() {
			h, text, err := admit(ctx, c, &cfg)
			if pending.leave(conn) { // perhaps between its Hello and here: it is closed, and its process retries
				err = errCrowded
			}
			if err != nil {
				refused.say(c.RemoteAddr(), err)
				return
			}
			handle(c, h, text)
		})
	}
}

// errWantsTLS is for peers without TLS at a process that requires it.
var errWantsTLS = errors.New("the server wants TLS: start this process with the job's --tls-cert, --tls-key and --tls-ca")

var errToken = errors.New("the token is wrong or missing; start this process with the job's --token")

// admit is the listening side's half of the handshake. It closes the connections that it does not
// admit.
func admit(ctx context.Context, c Conn, cfg *Config) (wire.Hello, []byte, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	h, text, err := readHello(c, cfg.handshakeTimeout(), func(h wire.Hello) error {
		if subtle.ConstantTimeCompare([]byte(h.Token), []byte(cfg.Token)) != 1 && cfg.Token != "" {
			return errToken
		}
		return nil
	})
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		c.SetPeer(nameOf(h, c.RemoteAddr()))
		return h, text, nil
	}
	var version *VersionError
	var parse *wire.ParseError
	var record tls.RecordHeaderError
	var secure *speaksTLS
	switch {
	case errors.As(err, &secure):
		// the peer's reader then notices
		Refuse(c, wire.Reject{Exit: exitcode.Refused, Reason: "the server does not speak TLS"})
	case errors.As(err, &record) && record.Conn != nil && string(record.RecordHeader[:len(magic)]) == magic:
		Refuse(NewConn(record.Conn, cfg.Limits), wire.Reject{Exit: exitcode.Refused, Reason: errWantsTLS.Error()})
		err = errors.New("it does not use TLS, which this process requires (--tls-cert)")
	case errors.Is(err, errToken):
		Refuse(c, wire.Reject{Exit: exitcode.Refused, Reason: errToken.Error()})
	case errors.As(err, &version):
		Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("you speak version %d of the protocol and I speak %d: install the same release of STAR on both hosts", version.Theirs, version.Ours)})
	case errors.As(err, &parse):
		Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: parse.Error()})
	case errors.Is(err, io.EOF):
		c.Close()
		err = errors.New("it was closed before it said hello")
	default:
		c.Close()
	}
	return h, nil, err
}

// nameOf is the name of h's sender in logs until SetPeer.
func nameOf(h wire.Hello, addr string) string {
	if h.Rank < 0 {
		return h.Role + " at " + addr
	}
	return fmt.Sprintf("%s %d at %s", h.Role, h.Rank, addr)
}
