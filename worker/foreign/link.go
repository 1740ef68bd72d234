package foreign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"star/internal/exitcode"
)

// Variables of the environment through which one side finds the other.
const (
	// FDVariable has the number of the file descriptor that is one end of the link, in the
	// environment of the process that was started with it.
	FDVariable = "STAR_LINK_FD"
)

// LostError: the program has ended.
type LostError struct {
	// PID is 0 before the program has sent About.
	PID int
	// Err is io.EOF if it has closed its link.
	Err error
}

func (e *LostError) Error() string {
	const early = "the program ended before it said what it trains: "
	switch {
	case e.PID == 0 && e.Err == io.EOF:
		return early + "does it call star.attach and use star.loader?"
	case e.PID == 0:
		return early + e.Err.Error()
	}
	if e.Err == io.EOF {
		return fmt.Sprintf("the program (process %d) has ended without saying why: it was killed, or crashed", e.PID)
	}
	return fmt.Sprintf("the program (process %d) is gone: %v", e.PID, e.Err)
}
func (e *LostError) Unwrap() error { return e.Err }

// ExitCode is that of a worker with a failed program.
func (e *LostError) ExitCode() int { return exitcode.Failure }

// Gone is ExitCode (train.Gone).
func (e *LostError) Gone() int { return e.ExitCode() }

// ProgramError is the program's reason why it cannot continue: usually an exception with its
// traceback.
type ProgramError struct {
	Text string
	// Code is the exit code; 0: the program sent none.
	Code int
}

func (e *ProgramError) Error() string { return "the program failed: " + e.Text }

// ExitCode is the program's code, or else that of a worker with a failed program.
func (e *ProgramError) ExitCode() int { return cmp.Or(e.Code, exitcode.Failure) }

// Gone is ExitCode (train.Gone).
func (e *ProgramError) Gone() int { return e.ExitCode() }

// ErrLeft: the program's loop has ended before the job. It is not a failure.
var ErrLeft error = leftError{}

type leftError struct{}

func (leftError) Error() string {
	return "the program has nothing more to compute: its loop ended before the job"
}

// ExitCode is that of success, and Gone too (train.Gone).
func (leftError) ExitCode() int { return 0 }
func (leftError) Gone() int     { return 0 }

// errProtocol is the error of a program that violates the protocol of the link; its connection is
// closed.
func errProtocol(format string, args ...any) error {
	return fmt.Errorf("the program violates the link protocol (docs/link.md): "+format, args...)
}

// conn carries frames. The goroutine that waits for an answer reads the socket itself, and
// everything that has arrived at once, so that a step wakes this process once, and in it one
// goroutine. Between two answers nothing is read; unsolicited messages wait.
type conn struct {
	// socket is not known to Go's poller.
	socket *os.File
	raw    syscall.RawConn
	// ready is readable when the socket is.
	ready *os.File
	poll  syscall.RawConn
	// gone is closed when no more frames will come; err says why. over closes it once.
	gone chan struct{}
	over sync.Once
	// once is for close.
	once sync.Once

	// writing guards out, sendErr and push.
	writing sync.Mutex
	// out is what is held back, or is being sent.
	out     []byte
	sendErr error
	push    func(fd uintptr)

	// reading guards the fields below.
	reading sync.Mutex
	// begun: the handshake is over.
	begun bool
	// in is what was received and not parsed, in store.
	in      []byte
	store   []byte
	err     error
	recvErr error
	pull    func(fd uintptr)
	pulled  func(fd uintptr) bool
	// until is the deadline of a read.
	until time.Time
	// cut: the wait was ended sooner.
	cut atomic.Bool
}

// sendTimeout is how long a frame may wait for the program to read: it reads whenever it does not
// compute, and the socket holds some hundred frames.
const sendTimeout = 10 * time.Minute

// newConn takes over c. The error is the system's.
func newConn(c *net.UnixConn) (k *conn, err error) {
	defer c.Close() // the socket stays open
	k = &conn{gone: make(chan struct{}), store: make([]byte, 4096)}
	if k.socket, err = unpolled(c); err != nil {
		return nil, err
	}
	if k.raw, err = k.socket.SyscallConn(); err == nil {
		if k.ready, err = readable(k.socket.Fd()); err == nil {
			k.poll, err = k.ready.SyscallConn()
		}
	}
	if err != nil {
		k.socket.Close()
		return nil, err
	}
	// Allocate these closures once instead of for each frame.
	k.push, k.pull, k.pulled = k.pushAll, k.pullSome, func(uintptr) bool {
		if err := k.raw.Control(k.pull); err != nil {
			k.recvErr = err
		}
		return k.recvErr != syscall.EAGAIN
	}
	return k, nil
}

// listen closes gone when the program hangs up while nothing is read.
func (c *conn) listen() {
	c.raw.Control(hungUp)
	c.reading.Lock()
	defer c.reading.Unlock()
	for err := error(nil); err == nil || errors.Is(err, os.ErrDeadlineExceeded); {
		c.ready.SetReadDeadline(time.Time{})
		err = c.fill()
	}
	// Its last frame is the reason; frames before it are for the goroutine that waits for them.
	for rest := c.in; c.err == nil; {
		var f Frame
		var err error
		if f, rest, err = Parse(rest); err == nil {
			err = c.ending(f)
		} else {
			err = c.broken(err, rest)
		}
		if err != nil {
			c.ended(err)
		}
	}
	c.over.Do(func() { close(c.gone) })
}

// ended records why nothing more comes; the first reason counts. A goroutine that waits for an
// answer gets the reason first: otherwise gone, which ends the worker, could precede it.
func (c *conn) ended(err error) {
	if c.err == nil {
		c.err = err
	}
	if c.err == ErrLeft {
		c.over.Do(func() { close(c.gone) })
	}
}

// ending returns why f is the last frame; nil: more may come.
func (c *conn) ending(f Frame) error {
	switch f.Kind {
	case KindError:
		e := &ProgramError{Text: string(f.Body)}
		if f.A <= 255 {
			e.Code = int(f.A)
		}
		return e
	case KindLeave:
		if f.A == stays {
			return nil // the goroutine that waits for an answer gets it
		}
		return ErrLeft
	case KindHalt, KindPart, KindDone, KindEvaluated, KindUpdated, KindState, KindRecall:
		return nil
	}
	if !c.begun {
		return nil // the reader of the handshake reports what was expected
	}
	return errProtocol("%v, while it trains", f.Kind)
}

// broken interprets an error of Parse at the end of the stream: between two frames it is a normal
// end.
func (c *conn) broken(err error, rest []byte) error {
	if err != io.ErrUnexpectedEOF || len(rest) > 0 {
		return err
	}
	return c.recvErr
}

// next returns the next frame. The last message of the program, or the reason why it ended, is an
// error, and the same one for all later calls. os.ErrDeadlineExceeded: nothing has come until the
// deadline of wait, or until wake.
func (c *conn) next() (Frame, error) {
	for {
		f, rest, err := Parse(c.in)
		if err == nil {
			if err = c.ending(f); err == nil {
				c.in, f.Body = rest, bytes.Clone(f.Body) // listen may read meanwhile
				return f, nil
			}
		} else if err == io.ErrUnexpectedEOF && c.err == nil {
			switch err = c.fill(); {
			case err == nil:
				continue
			case errors.Is(err, os.ErrDeadlineExceeded):
				c.until = time.Time{}
				return f, err
			}
			err = c.broken(io.ErrUnexpectedEOF, c.in)
		}
		c.ended(err)
		return f, c.err
	}
}

// fill reads what is available, at least one byte.
func (c *conn) fill() error {
	if len(c.in) == 0 {
		c.in = c.store[:0]
	} else if cap(c.in)-len(c.in) < len(c.in) { // the rest of a frame
		if 2*len(c.in) >= len(c.store) {
			c.store = make([]byte, 4*len(c.in))
		}
		c.in = append(c.store[:0], c.in...)
	}
	if err := c.poll.Read(c.pulled); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			c.recvErr = err
		}
		return err
	}
	return c.recvErr
}

// pullSome reads for fill.
func (c *conn) pullSome(fd uintptr) {
	n, err := receive(fd, c.in[len(c.in):cap(c.in)])
	if err == nil && n == 0 {
		err = io.EOF
	}
	c.in, c.recvErr = c.in[:len(c.in)+n], err
}

// wait sets the deadline of next to long from now, unless it is close to that already.
func (c *conn) wait(long time.Duration) {
	now := time.Now()
	if left := c.until.Sub(now); c.cut.Swap(false) || left < long/2 || left > long {
		c.until = now.Add(long)
		c.ready.SetReadDeadline(c.until)
	}
}

// wake ends a wait.
func (c *conn) wake() {
	c.cut.Store(true)
	c.ready.SetReadDeadline(time.Unix(1, 0))
}

// hold queues a frame to be sent together with the next one.
func (c *conn) hold(f Frame) {
	c.writing.Lock()
	c.out = f.AppendTo(c.out)
	c.writing.Unlock()
}

// send writes a frame.
func (c *conn) send(f Frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.out = f.AppendTo(c.out)
	err := c.raw.Control(c.push)
	c.out = c.out[:0]
	return cmp.Or(err, c.sendErr)
}

// pushAll writes for send.
func (c *conn) pushAll(fd uintptr) { c.sendErr = transmit(fd, c.out, sendTimeout) }

// sendFile writes the first frame, with a file beside it.
func (c *conn) sendFile(f Frame, file *os.File) (err error) {
	return cmp.Or(c.raw.Control(func(fd uintptr) { err = transmitFile(fd, f.AppendTo(nil), file) }), err)
}

func (c *conn) close() {
	c.once.Do(func() {
		c.raw.Control(shutDown)
		c.ready.Close()
		c.socket.Close()
	})
}

// first reads a frame of the handshake.
func (c *conn) first(ctx context.Context, timeout time.Duration) (Frame, error) {
	defer context.AfterFunc(ctx, c.wake)()
	c.reading.Lock()
	defer c.reading.Unlock()
	for end := time.Now().Add(timeout); ; {
		c.wait(time.Until(end))
		if ctx.Err() != nil {
			return Frame{}, context.Cause(ctx)
		}
		f, err := c.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end): // woken by wake
		case errors.Is(err, os.ErrDeadlineExceeded):
			return f, fmt.Errorf("the program has said nothing for %v; does it call star.attach and use star.loader?", timeout)
		case errors.Is(err, io.EOF):
			return f, &LostError{Err: err}
		default:
			return f, err
		}
	}
}

// Inherited returns the end of the link that this process was started with; nil if it has no link.
func Inherited() (*net.UnixConn, error) {
	text := os.Getenv(FDVariable)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(FDVariable) // not for child processes
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%.20q: want the number of an open socket", FDVariable, text)
	}
	return fileConn(os.NewFile(uintptr(fd), "link"))
}

// Pair creates both ends of a link: one for this process, and one as a file for a child process. The
// error is the system's, usually a lack of descriptors.
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

// fileConn returns the socket of f, and closes f.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("foreign: file descriptor %d is not a socket (%s): %w", f.Fd(), FDVariable, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("foreign: file descriptor %d is a socket of %s, not a Unix socket (%s)", f.Fd(), c.LocalAddr().Network(), FDVariable)
	}
	return u, nil
}
