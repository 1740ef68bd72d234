package inject

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// InterfaceTo names the network interface that leads to an address, host:port.
// Loopback is an error: limiting it would limit every process of the machine.
func InterfaceTo(addr string) (string, error) {
	// Connecting a UDP socket sends nothing; it only asks the kernel for a route.
	c, err := net.Dial("udp", addr)
	if err != nil {
		return "", fmt.Errorf("straggler by tc: no way to %s: %w", addr, err)
	}
	defer c.Close()
	own := c.LocalAddr().(*net.UDPAddr).IP
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("straggler by tc: interfaces: %w", err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || !n.IP.Equal(own) {
				continue
			}
			if i.Flags&net.FlagLoopback != 0 {
				return "", fmt.Errorf("straggler by tc: %s is on this machine, and a limit of %s would hit every process; run the worker on another host or in a network namespace", addr, i.Name)
			}
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("straggler by tc: no interface has the address %s, which leads to %s", own, addr)
}

// Stopper stops a process for the Pause at the end of every Period, until ctx is
// done or the process is gone. Whatever happens, it leaves the process running.
// It blocks.
func Stopper(ctx context.Context, p *os.Process, s Slow) error {
	if s.Kind != Stop || s.Period <= s.Pause {
		return fmt.Errorf("inject: %v is no stop", s)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait := func(d time.Duration) bool {
		timer.Reset(d)
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	<-timer.C
	for wait(s.Period - s.Pause) {
		if err := signalStop(p); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return fmt.Errorf("slow %q: stop process %d: %w", s, p.Pid, err)
		}
		wait(s.Pause)
		if err := signalContinue(p); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return fmt.Errorf("slow %q: continue process %d: %w; do it by hand: kill -CONT %d", s, p.Pid, err, p.Pid)
		}
	}
	return nil
}
