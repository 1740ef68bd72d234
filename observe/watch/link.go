package watch

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star/internal/exitcode"
	"star/transport"
)

// A link carries rows from a collector to the head of another host: TCP, or TLS, and a JSON object on each line.
// The head begins with a greeting, the collector proves the token, the head answers, and from there on there are
// rows in one direction.

// greetTime is how long saying hello may take.
const greetTime = 10 * time.Second

// queued is how many rows a collector keeps for a head that does not take them.
const queued = 4096

type greeting struct {
	Version int    `json:"star_watch"`
	Nonce   string `json:"nonce,omitempty"` // of the head
	Proof   string `json:"proof,omitempty"` // of the collector
	Error   string `json:"error,omitempty"`
}

func proof(token, nonce string) string {
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte("star watch\n" + nonce))
	return hex.EncodeToString(m.Sum(nil))
}

func exchangeLine(c net.Conn, in *bufio.Reader, send *greeting, got *greeting) error {
	wait := greetTime
	if send == nil { // the end that only listens gives up first, so that a silent peer is distinguished from a lost one
		wait /= 2
	}
	c.SetDeadline(time.Now().Add(wait))
	defer c.SetDeadline(time.Time{})
	if send != nil {
		if err := json.NewEncoder(c).Encode(send); err != nil {
			return misunderstood(c, err)
		}
	}
	if got == nil {
		return nil
	}
	line, err := in.ReadSlice('\n')
	switch {
	case len(line) > 0 && line[0] == tlsHandshake:
		return errors.New("it speaks TLS, and this star watch does not: " + bothSides)
	case err != nil:
		return misunderstood(c, err)
	}
	if err := json.Unmarshal(line, got); err != nil || got.Version == 0 {
		return errors.New("it does not speak as a star watch does")
	}
	return nil
}

// tlsHandshake is the first byte of TLS (RFC 8446, section 5.1).
const tlsHandshake = 22

const bothSides = "give --tls-cert, --tls-key and --tls-ca on both sides, or on neither"

// misunderstood explains an error of the first line if one side speaks TLS and the other does not.
func misunderstood(c net.Conn, err error) error {
	t, ours := c.(*tls.Conn)
	silent := errors.Is(err, os.ErrDeadlineExceeded)
	gone := errors.Is(err, io.EOF) && ours && !t.ConnectionState().HandshakeComplete // it waited for us to speak first
	switch plain := (tls.RecordHeaderError{}); {
	case ours && (errors.As(err, &plain) || silent || gone):
		return fmt.Errorf("it does not speak TLS, and this star watch does: %s (%w)", bothSides, err)
	case silent:
		return fmt.Errorf("it says nothing: perhaps it waits for TLS; %s (%w)", bothSides, err)
	}
	return err
}

// Refused is the head's answer to a collector that it does not take: trying again is of no use.
type Refused struct{ Head, Why string }

func (e *Refused) Error() string {
	return fmt.Sprintf("the star watch at %s refuses: %s", e.Head, e.Why)
}

// ExitCode is the exit code for missing permission.
func (e *Refused) ExitCode() int { return exitcode.Refused }

// Accept takes rows from one collector until it has no more. admitted is called when the collector has proved that it
// knows the token.
func Accept(c net.Conn, token string, admitted func(), take func(Row)) error {
	defer c.Close()
	in := bufio.NewReaderSize(c, MaxRow)
	nonce := rand.Text()
	var from greeting
	if err := exchangeLine(c, in, &greeting{Version: Version, Nonce: nonce}, &from); err != nil {
		return err
	}
	answer := greeting{Version: Version}
	switch {
	case from.Version != Version:
		answer.Error = fmt.Sprintf("it speaks version %d, this is %d: use one version of star", from.Version, Version)
	case !hmac.Equal([]byte(from.Proof), []byte(proof(token, nonce))):
		answer.Error = "its token (STAR_TOKEN) is not the head's"
	}
	if err := exchangeLine(c, in, &answer, nil); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	admitted()
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 1 {
			r, perr := ParseRow(line)
			if perr != nil {
				return fmt.Errorf("invalid row: %w", perr)
			}
			take(r)
		}
		if err != nil {
			return nil // it has gone
		}
	}
}

// Link is the way to the head of another host. Rows are taken at once or dropped.
type Link struct {
	addr, token string
	tls         *tls.Config
	say         func(string)
	rows        chan Row
	dropped     atomic.Int64
	refused     error
	once        sync.Once
	ended       chan struct{}
}

// Dial creates a link, which connects as soon as a peer listens, until ctx is over or Close is
// called.
func Dial(ctx context.Context, addr, token string, t *tls.Config, say func(string)) *Link {
	l := &Link{addr: addr, token: token, tls: t, say: say, rows: make(chan Row, queued), ended: make(chan struct{})}
	go l.run(ctx)
	return l
}

// Take sends a row, now or never.
func (l *Link) Take(r Row) {
	select {
	case l.rows <- r:
	default:
		l.dropped.Add(1)
	}
}

// Close sends the queued rows, for most at most, and returns the number of dropped rows.
func (l *Link) Close(most time.Duration) (dropped int64, err error) {
	l.once.Do(func() { close(l.rows) })
	select {
	case <-l.ended:
	case <-time.After(most):
		return l.dropped.Load() + int64(len(l.rows)), fmt.Errorf("the star watch at %s has not taken everything within %s", l.addr, short(most))
	}
	return l.dropped.Load() + int64(len(l.rows)), l.refused
}

func (l *Link) run(ctx context.Context) {
	defer close(l.ended)
	pause, said := backoff.NewExponentialBackOff(), false
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 100*time.Millisecond, 5*time.Second, 2
	for {
		over, err := l.carry(ctx)
		if over || ctx.Err() != nil {
			return
		}
		if r := (*Refused)(nil); errors.As(err, &r) {
			l.refused = r
			l.say(r.Error() + "; the program goes on, and is not measured here")
			for range l.rows {
				l.dropped.Add(1)
			}
			return
		}
		if !said {
			said = true
			l.say(fmt.Sprintf("no way to the star watch at %s yet (%v): trying on; the program does not wait for it", l.addr, err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// carry is one connection. over: there are no more rows.
func (l *Link) carry(ctx context.Context) (over bool, err error) {
	d := net.Dialer{Timeout: greetTime}
	c, err := d.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return false, err
	}
	defer func() { c.Close() }()
	if l.tls != nil {
		c = tls.Client(c, transport.DialTLS(l.tls, l.addr))
	}
	in := bufio.NewReaderSize(c, MaxRow)
	var head, answer greeting
	if err := exchangeLine(c, in, nil, &head); err != nil {
		return false, err
	}
	if err := exchangeLine(c, in, &greeting{Version: Version, Proof: proof(l.token, head.Nonce)}, &answer); err != nil {
		return false, err
	}
	if answer.Error != "" {
		return false, &Refused{l.addr, answer.Error}
	}
	out := bufio.NewWriterSize(c, 64<<10)
	e := json.NewEncoder(out)
	for r := range l.rows {
		c.SetWriteDeadline(time.Now().Add(greetTime))
		if err := e.Encode(r); err != nil {
			l.dropped.Add(1)
			return false, err
		}
		if len(l.rows) == 0 {
			if err := out.Flush(); err != nil {
				return false, err
			}
		}
	}
	return true, out.Flush()
}
