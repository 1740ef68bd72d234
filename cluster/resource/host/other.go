//go:build !linux

package host

import "time"

// probe reads nothing here: gopsutil's values remain.
type probe struct{}

func newProbe(int) *probe { return &probe{} }

func (*probe) stopped() bool { return false }

func (*probe) look(now time.Time) counters { return counters{at: now} }
