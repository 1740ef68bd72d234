package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// FinalError means that a way to read the GPU will not work, even if it is tried again.
type FinalError struct{ Because string }

func (e *FinalError) Error() string { return e.Because }

// watch runs one child and calls got for each line that it prints. It returns why the child ended. It ends a child that
// is silent for longer than silence, or prints an invalid line. A child that cannot be ended, because it hangs in the
// driver, is waited for until ctx is done, so there is at most one.
func watch(ctx context.Context, k *kind, silence time.Duration, got func(Line)) error {
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	cmd := exec.CommandContext(life, k.command[0], k.command[1:]...)
	cmd.WaitDelay = grace // then our ends of the pipes are closed, which ends a read from a hanging child
	said := new(tail)
	cmd.Stderr = said
	if _, err := cmd.StdinPipe(); err != nil { // a child ends when its standard input is closed
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("it does not start: %w", err)
	}
	late := time.AfterFunc(silence, func() { end(fmt.Errorf("it said nothing for %v", silence)) })
	defer late.Stop()
	var reported error
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 0, maxLine), maxLine)
	for sc.Scan() {
		l, err := k.parse(sc.Bytes())
		if err != nil {
			continue // libraries print too
		}
		late.Reset(silence)
		switch {
		case l.Final:
			reported = &FinalError{l.Error}
		case l.Error != "":
			reported = errors.New(l.Error)
		default:
			got(l)
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		end(fmt.Errorf("it printed a line of more than %d bytes", maxLine))
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	select {
	case err = <-gone:
	case <-life.Done(): // at the latest when late fires
		select {
		case err = <-gone:
		case <-time.After(2 * grace):
			select {
			case err = <-gone:
			case <-ctx.Done():
			}
		}
	}
	switch {
	case reported != nil:
		return reported
	case life.Err() != nil:
		return context.Cause(life)
	case err == nil:
		return errors.New("it ended without a word")
	}
	if s := said.String(); s != "" {
		return fmt.Errorf("%w: %s", err, s)
	}
	return err
}

// tail keeps the last output of a child, on one line.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 300
	t.b = append(t.b, p...)
	if len(t.b) > most {
		t.b = append(t.b[:0], t.b[len(t.b)-most:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(t.b), "?")), " ")
}
