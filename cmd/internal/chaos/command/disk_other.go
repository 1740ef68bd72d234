//go:build !linux

package command

import "errors"

func mountMemory(string, int64) error { return errors.ErrUnsupported }
func unmountMemory(string) error      { return errors.ErrUnsupported }
