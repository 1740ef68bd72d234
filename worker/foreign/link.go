package foreign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"star/exitcode"
)

// Variables of the environment through which one side finds the other.
const (
	// FDVariable is the number of the file descriptor that is one end of the link, in the process that was started with it.
	FDVariable = "STAR_LINK_FD"
)

// LostError says that the program is gone.
type LostError struct {
	PID int
	Err error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("the program (process %d) is gone: %v", e.PID, e.Err)
}
func (e *LostError) Unwrap() error { return e.Err }

// ExitCode is that of a worker whose program failed.
func (e *LostError) ExitCode() int { return exitcode.Failure }

// ProgramError is what the program says of why it cannot go on: usually an exception with its traceback.
type ProgramError struct{ Text string }

func (e *ProgramError) Error() string { return "the program failed: " + e.Text }

// ExitCode is that of a worker whose program failed.
func (e *ProgramError) ExitCode() int { return exitcode.Failure }

// ErrLeft says that the program has nothing more to compute: the end of a loop, not a failure.
var ErrLeft = errors.New("the program has nothing more to compute: its loop is over, and the job is not")

// errProtocol is why a program is hung up on that does not keep to the link.
func errProtocol(format string, args ...any) error {
	return fmt.Errorf("the program does not keep to the link (docs/link.md): "+format, args...)
}

// conn carries frames. One goroutine reads.
type conn struct {
	c    *net.UnixConn
	in   chan Frame
	gone chan struct{} // closed when nothing more comes; err says why
	shut chan struct{} // closed by close
	err  error

	mu   sync.Mutex // of out
	out  []byte
	once sync.Once
}

// sendTimeout is how long a frame may wait for the program to read: it reads whenever it does not compute, and the socket holds some hundred frames.
const sendTimeout = 10 * time.Minute

func newConn(c *net.UnixConn) *conn {
	return &conn{c: c, in: make(chan Frame, 16), gone: make(chan struct{}), shut: make(chan struct{})}
}

// read delivers frames until the connection ends.
func (c *conn) read() {
	defer close(c.gone)
	for {
		f, err := ReadFrame(c.c)
		if err != nil {
			c.err = err
			return
		}
		switch f.Kind {
		case KindError:
			c.err = &ProgramError{string(f.Body)}
			return
		case KindLeave:
			c.err = ErrLeft
			return
		case KindPart, KindDone, KindEvaluated, KindUpdated, KindState:
			select {
			case c.in <- f: // who sends what nobody asked for waits
			case <-c.shut:
				c.err = net.ErrClosed
				return
			}
		default:
			c.err = errProtocol("%v, while it trains", f.Kind)
			return
		}
	}
}

// send writes a frame.
func (c *conn) send(f Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = f.AppendTo(c.out[:0])
	c.c.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := c.c.Write(c.out)
	return err
}

// sendFile writes a frame with a file beside it.
func (c *conn) sendFile(f Frame, file *os.File) error {
	c.c.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, _, err := c.c.WriteMsgUnix(f.AppendTo(nil), syscall.UnixRights(int(file.Fd())), nil)
	return err
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.shut)
		c.c.Close()
	})
}

// first reads a frame of the handshake.
func (c *conn) first(ctx context.Context, timeout time.Duration) (Frame, error) {
	defer context.AfterFunc(ctx, func() { c.c.SetReadDeadline(time.Unix(1, 0)) })()
	c.c.SetReadDeadline(time.Now().Add(timeout))
	f, err := ReadFrame(c.c)
	switch {
	case ctx.Err() != nil:
		return f, context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return f, fmt.Errorf("the program has said nothing for %v: does it call star.attach and use star.loader?", timeout)
	case errors.Is(err, io.EOF):
		return f, errors.New("the program ended before it said what it trains: does it call star.attach and use star.loader?")
	case err != nil:
		return f, err
	case f.Kind == KindError:
		return f, &ProgramError{string(f.Body)}
	case f.Kind == KindLeave:
		return f, ErrLeft
	}
	c.c.SetReadDeadline(time.Time{})
	return f, nil
}

// Inherited is the end of the link that this process was started with. Nil: there is none.
func Inherited() (*net.UnixConn, error) {
	text := os.Getenv(FDVariable)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(FDVariable) // what this process starts has no part in it
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%.20q: want the number of an open socket", FDVariable, text)
	}
	return fileConn(os.NewFile(uintptr(fd), "link"))
}

// Pair makes both ends of a link: one for this process, and one as a file for a process that it starts. The error is the system's: no more descriptors, most
// often.
func Pair() (*net.UnixConn, *os.File, error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, fmt.Errorf("foreign: socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "link of the program")
	ours, err := fileConn(os.NewFile(uintptr(fds[0]), "link of the agent"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// fileConn is the socket of f, which it closes.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("foreign: file descriptor %d is no socket (%s): %w", f.Fd(), FDVariable, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("foreign: file descriptor %d is a socket of %s, not a Unix socket (%s)", f.Fd(), c.LocalAddr().Network(), FDVariable)
	}
	return u, nil
}
