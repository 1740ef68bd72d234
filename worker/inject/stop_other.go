//go:build !unix

package inject

import (
	"errors"
	"os"
)

func signalStop(*os.Process) error     { return errors.ErrUnsupported }
func signalContinue(*os.Process) error { return errors.ErrUnsupported }
