package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"

	"star/job"
	own "star/worker/launch"
)

// AgentVariable is the environment variable that has the path of this program, for the command of a worker.
const AgentVariable = own.AgentVariable

// FindProgram is the absolute path of a program that will be started; as names its role in the error.
func FindProgram(name, as string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", job.FileError(fmt.Errorf("%s cannot be started%s: there is no such program in $PATH: %w", name, as, fs.ErrNotExist), fs.ErrPermission)
	case err != nil && !errors.Is(err, exec.ErrDot):
		return "", job.FileError(fmt.Errorf("%s cannot be started%s: %w", name, as, errors.Unwrap(err)), fs.ErrPermission)
	}
	return filepath.Abs(path)
}
