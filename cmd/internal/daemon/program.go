package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"star/cmd/internal/node"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/train/data"
	"star/transport"
	"star/worker/foreign"
)

// program is a process that computes gradients in the place of a model of ours.
type program struct {
	cmd  *exec.Cmd // nil: it has started us
	link *net.UnixConn
	done chan struct{} // closed when cmd has ended, with err
	err  error
	log  *slog.Logger
}

// programOf returns the program that computes: args, which it starts, or the process that started us with a link; nil:
// neither.
//
// What it prints goes to out.
func programOf(args []string, out *os.File, log *slog.Logger) (*program, error) {
	link, err := foreign.Inherited()
	if err != nil {
		return nil, &settings.UsageError{Msg: err.Error()}
	}
	if len(args) == 0 {
		if link == nil {
			return nil, nil
		}
		return &program{link: link, log: log}, nil
	}
	if link != nil {
		link.Close()
	}
	ours, theirs, err := foreign.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p := &program{link: ours, log: log, done: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), foreign.FDVariable+"=3")
	p.cmd.ExtraFiles, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = []*os.File{theirs}, os.Stdin, out, os.Stderr
	if err := p.cmd.Start(); err != nil {
		ours.Close()
		return nil, &startError{fmt.Errorf("%s cannot be started: %w", args[0], err)}
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// startError means that the program cannot be started.
type startError struct{ error }

func (e *startError) Unwrap() error { return e.error }

// ExitCode is the exit code for a missing file.
func (e *startError) ExitCode() int { return exitcode.Missing }

// work trains with the program until the job is over, and waits for the program's end.
func (p *program) work(ctx context.Context, job *settings.Job) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var m *foreign.Model
	m, err := foreign.Open(ctx, p.link, foreign.Config{Stream: data.Stream{Seed: job.Seed}, Slow: func(pid int, what string, after time.Duration) {
		p.log.Warn("the program is slow, or hangs: where it is comes next, if it says so", "pid", pid, "waiting_for", what, "since", after.Round(time.Second))
		m.Stack()
	}})
	if err != nil {
		return p.ended(p.why(err))
	}
	defer m.Close()
	var joined atomic.Bool // from then on the worker knows what to do without the program
	over := make(chan struct{})
	defer close(over)
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, syscall.SIGQUIT) // which makes this process print what it waits for
	defer signal.Stop(quit)
	go func() {
		for {
			select {
			case <-m.Gone():
				if !joined.Load() {
					cancel(m.Err())
				}
				return
			case <-quit:
				m.Stack()
			case <-over:
				return
			}
		}
	}()
	err = node.WorkProgram(ctx, job, p.log, samplerCommand(), m, &joined)
	if gone := context.Cause(ctx); gone != nil && errors.Is(gone, foreign.ErrLeft) {
		err = nil
	}
	return p.finish(m, err, "the job is over")
}

// finish tells the program that there is no more to do, with why if nothing went wrong, and waits for its end.
func (p *program) finish(m *foreign.Model, err error, why string) error {
	if err != nil {
		why = err.Error()
	}
	m.Stop(job.ExitCode(err), why)
	m.Close()
	return p.ended(p.why(err))
}

// WithProgram starts a program, has f work with the model that it has, and waits for its end. What it prints goes to
// standard error.
func WithProgram(ctx context.Context, command []string, log *slog.Logger, f func(*foreign.Model) error) error {
	p, err := programOf(command, os.Stderr, log)
	if err != nil {
		return err
	}
	m, err := foreign.Open(ctx, p.link, foreign.Config{})
	if err != nil {
		return p.ended(p.why(err))
	}
	return p.finish(m, f(m), "there is nothing more to compute")
}

// why explains an error with the end of the program that caused it.
func (p *program) why(err error) error {
	var lost *foreign.LostError
	if !errors.As(err, &lost) || p.cmd == nil {
		return err
	}
	select {
	case <-p.done:
		if p.err != nil {
			lost.Err = p.err
		}
	case <-time.After(time.Second):
	}
	return lost
}

// patience is how long a program may take to end when its agent has nothing more for it because of an error.
// What a script does behind its loop takes as long as it takes.
const patience = 10 * time.Minute

// ended waits for the end of the program, if we have started it; err is why.
func (p *program) ended(err error) error {
	p.link.Close()
	if p.cmd != nil {
		select {
		case <-p.done:
		case <-time.After(patience):
			if err == nil {
				p.log.Warn("the job is over, and the program still runs", "pid", p.cmd.Process.Pid, "after", patience)
			} else {
				p.log.Warn("the program does not end: it is killed", "pid", p.cmd.Process.Pid, "after", patience)
				p.cmd.Process.Kill()
			}
			<-p.done
		}
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, new(*foreign.ProgramError)):
		said := &programError{error: err, code: job.ExitCode(err)}
		if errors.As(p.err, &exit) {
			said.code = (&programExit{exit}).ExitCode()
		}
		return said
	case err == nil && errors.As(p.err, &exit):
		return &programExit{exit}
	}
	return err
}

// programError is the program's reason for its failure, in brief: the program prints it in full. Its exit code is the
// program's, where this process has started it.
type programError struct {
	error
	code int
}

func (e *programError) Error() string { return transport.Brief(e.error.Error()) }
func (e *programError) Unwrap() error { return e.error }
func (e *programError) ExitCode() int { return e.code }

// programExit means that the program failed after the end of the job.
type programExit struct{ *exec.ExitError }

func (e *programExit) Error() string { return "the program failed: " + e.ExitError.Error() }

// ExitCode is the exit code of the program; for a signal, 128 plus its number.
func (e *programExit) ExitCode() int {
	if c := e.ExitError.ExitCode(); c > 0 {
		return c
	}
	if n := signalOf(e.ExitError); n > 0 {
		return 128 + n
	}
	return 1
}
