//go:build !unix || solaris || aix

package durable

import (
	"errors"
	"os"
)

func TryLock(*os.File) error { return errors.ErrUnsupported }
