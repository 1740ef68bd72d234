package run

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/launch"
	"star/internal/settings"
	"star/job"
)

// commandArgs takes a command behind --, and nothing else.
func commandArgs(cmd *cobra.Command, args []string) error {
	if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
		return nil
	}
	return settings.NoArgs(cmd, args)
}

// findCommand returns the command that runs instead of a worker, with the full path of its program if it runs here;
// nil: no command.
func findCommand(args []string, here bool) ([]string, error) {
	if len(args) == 0 || !here {
		return args, nil
	}
	path, err := cli.FindProgram(args[0], " as a worker")
	if err != nil {
		return nil, err
	}
	return append([]string{path}, args[1:]...), nil
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

// memberRuns runs a command instead of a worker on this host, and forwards signals that come from elsewhere. The
// command ends with this process.
func memberRuns(ctx context.Context, args []string, obey func(send func(syscall.Signal))) error {
	runtime.LockOSThread() // the command gets a signal when the thread that started it ends: it must live
	self, err := os.Executable()
	if err != nil {
		return err
	}
	processes, err := strconv.Atoi(cmp.Or(os.Getenv(settings.Variable("procs-per-worker")), "1"))
	if err != nil {
		return &settings.UsageError{Msg: fmt.Sprintf("star member: the number of processes of a worker is not a number: %v", err)}
	}
	words := launch.InProcesses(self, processes, args)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), cli.AgentVariable+"="+self)
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
