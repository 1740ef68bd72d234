//go:build !linux

package daemon

import "time"

// Relax does nothing: only Linux has timers that may be late.
func Relax(time.Duration) {}
