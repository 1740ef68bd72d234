//go:build !linux

package transport

import (
	"fmt"
)

func (t *TCP) options(uintptr) error {
	if c := t.CongestionControl; c != "" && c != "kernel" {
		return fmt.Errorf("congestion control %q: only Linux can choose it: leave it empty", c)
	}
	return nil
}
