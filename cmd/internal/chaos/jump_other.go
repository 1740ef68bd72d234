//go:build !linux || !amd64

package chaos

import (
	"errors"
	"time"
)

// Jump is for Linux on amd64.
func Jump(int, time.Duration) error { return CanJump() }

// CanJump says why Jump cannot be used here.
func CanJump() error {
	return errors.New("the clock of one process can be made to jump on Linux and amd64 only")
}
