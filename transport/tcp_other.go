//go:build !linux

package transport

import (
	"fmt"
	"net"
	"time"
)

func (t *TCP) options(uintptr) error {
	if c := t.CongestionControl; c != "" && c != "kernel" {
		return fmt.Errorf("congestion control %q: only Linux supports it; leave it empty", c)
	}
	return nil
}

// retransmit leaves retransmissions to the kernel.
func retransmit(*net.TCPConn) {}

// userTimeout is left to the kernel, which has its own.
func userTimeout(*net.TCPConn, time.Duration) error { return nil }

func deliveryRate(*net.TCPConn) float64 { return 0 }

func sendingTime(*net.TCPConn) (time.Duration, bool) { return 0, false }
