package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"star/cmd/internal/launch"
	"star/internal/settings"
	"star/job"
	own "star/worker/launch"
)

// agentVariable tells a command where this program is.
const agentVariable = own.AgentVariable

// commandArgs takes a command behind --, and nothing else.
func commandArgs(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
		return nil
	}
	return settings.NoArgs(cmd, args)
}

// findCommand is the command that is a worker, with the whole path of its program if it runs here. Nil: there is none.
func findCommand(args []string, here bool) ([]string, error) {
	if len(args) == 0 || !here {
		return args, nil
	}
	path, err := findProgram(args[0], " as a worker")
	if err != nil {
		return nil, err
	}
	return append([]string{path}, args[1:]...), nil
}

// findProgram is the whole path of a program that is to be started, as what it says.
func findProgram(name, as string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", job.FileError(fmt.Errorf("%s cannot be started%s: there is no such program in $PATH: %w", name, as, fs.ErrNotExist), fs.ErrPermission)
	case err != nil && !errors.Is(err, exec.ErrDot):
		return "", job.FileError(fmt.Errorf("%s cannot be started%s: %w", name, as, errors.Unwrap(err)), fs.ErrPermission)
	}
	return filepath.Abs(path)
}

// commandError is the end of a command that was started on another host in the place of a worker.
type commandError struct {
	name string
	code int
}

func (e *commandError) Error() string {
	return fmt.Sprintf("%s ended with exit code %d", e.name, e.code)
}

// ExitCode is the command's.
func (e *commandError) ExitCode() int { return e.code }

// memberRuns runs a command in the place of a worker on this host, which is told by signals that come from elsewhere. It ends with this process.
func memberRuns(ctx context.Context, args []string, obey func(send func(syscall.Signal))) error {
	runtime.LockOSThread() // the command is told when the thread that started it dies: it must live
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), agentVariable+"="+self)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stderr, os.Stderr, launch.Attributes()
	if err := cmd.Start(); err != nil {
		return job.FileError(fmt.Errorf("%s cannot be started as a worker: %w", args[0], err), fs.ErrPermission)
	}
	go obey(func(sig syscall.Signal) { cmd.Process.Signal(sig) })
	if code := launch.ExitCode(cmd.Wait()); code != 0 {
		return &commandError{args[0], code}
	}
	return nil
}
