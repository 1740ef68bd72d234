package process

import (
	"errors"
	"fmt"
	"syscall"
)

// FullDisk adds to an error of a checkpoint what helps, where a disk is full or a quota used up.
func FullDisk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: make room there, or keep fewer checkpoints (--keep); the next one is tried in any case", err)
	}
	return err
}
