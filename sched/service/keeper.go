package service

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"star/internal/durable"
)

// If several services share a queue, the service that stops a process, or needs its exit code, may be on another
// machine than the one that started it. So each process has a keeper on its machine that belongs to no service: orders
// and exit codes are files in the folder of the jobs, which all services see.

// keeperVariable makes this program a keeper of the process that has the variable's value as the prefix of its files.
const keeperVariable = "STAR_SCHED_KEEPS"

// ordersEvery is how often a keeper checks for orders.
const ordersEvery = 100 * time.Millisecond

// kept wraps a command in a keeper.
func kept(p child, cmd *exec.Cmd) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	c := exec.Command(self, cmd.Args...)
	c.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], keeperVariable+"="+string(p))
	return c
}

// signal sends a process a signal.
func (s *Service) signal(p child, sig syscall.Signal) error {
	if s.o.Peers == nil {
		return p.signal(sig)
	}
	return os.WriteFile(p.order(sig), nil, 0o600)
}

func (p child) order(sig syscall.Signal) string { return p.file(fmt.Sprintf(".order-%d", int(sig))) }

// markEnded records that a process has ended, if several services might start it: a service that hung while another one
// took over cannot start the process again. It returns an error if the process runs, or if it cannot record that.
func (s *Service) markEnded(p child) error {
	if s.o.Peers == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(string(p)), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(p.file(".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if durable.TryLock(lock) != nil {
		return fmt.Errorf("%s still runs", p)
	}
	return os.WriteFile(p.file(".over"), nil, 0o600)
}

// Keep runs the keeper and exits, if this process is one; else it returns at once.
func Keep() {
	p := child(os.Getenv(keeperVariable))
	if p == "" {
		return
	}
	os.Unsetenv(keeperVariable)
	os.Exit(p.keep(os.Args[1:]))
}

// keep runs a command, carries out orders for it, and records its exit code.
func (p child) keep(args []string) int {
	// a shutdown signals the process, too; if ignored here, it would inherit that
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	lock := os.NewFile(3, p.file(".lock"))
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{lock} // the process counts as alive while either of the two is
	code := 127
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		durable.WriteFile(p.file(".pid"), fmt.Appendln(nil, cmd.Process.Pid), 0o600)
		ended := make(chan struct{})
		go func() {
			cmd.Wait()
			close(ended)
		}()
		p.obey(ended)
		code = exitOf(cmd)
	}
	durable.WriteFile(p.file(".code"), fmt.Appendln(nil, code), 0o600)
	return code
}

// obey carries out orders until the process has ended.
func (p child) obey(ended <-chan struct{}) {
	tick := time.NewTicker(ordersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
				if _, err := os.Stat(p.order(sig)); err == nil {
					if err := p.signal(sig); err != nil && !errors.Is(err, syscall.ESRCH) {
						fmt.Fprintf(os.Stderr, "cannot send %[2]v to %[1]s: %[3]v\n", p, sig, err)
					}
				}
			}
		}
	}
}
