//go:build !unix || solaris || aix

package checkpoint

import (
	"errors"
	"os"
)

func tryLock(*os.File) error { return errors.ErrUnsupported }
