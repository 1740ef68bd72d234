package command

import (
	"fmt"
	"syscall"
)

func mountMemory(dir string, bytes int64) error {
	return syscall.Mount("star-chaos", dir, "tmpfs", syscall.MS_NODEV|syscall.MS_NOSUID, fmt.Sprintf("size=%d", bytes))
}

func unmountMemory(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }
