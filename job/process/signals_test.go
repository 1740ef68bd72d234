package process

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Signals of a kind that come within a second of the first one are that one; another kind, or a later one, is not.
func TestSecondSignal(t *testing.T) {
	type sent struct {
		after  time.Duration
		signal syscall.Signal
	}
	for name, c := range map[string]struct {
		then []sent
		want syscall.Signal
		at   time.Duration
	}{
		"a wrapper and its group":  {[]sent{{3 * time.Millisecond, syscall.SIGTERM}, {5 * time.Millisecond, syscall.SIGTERM}, {10 * time.Second, syscall.SIGTERM}}, syscall.SIGTERM, 10 * time.Second},
		"another kind":             {[]sent{{3 * time.Millisecond, os.Interrupt.(syscall.Signal)}}, syscall.SIGINT, 3 * time.Millisecond},
		"a user who insists":       {[]sent{{time.Second, syscall.SIGTERM}}, syscall.SIGTERM, time.Second},
		"none is put off for ever": {[]sent{{700 * time.Millisecond, syscall.SIGTERM}, {1400 * time.Millisecond, syscall.SIGTERM}}, syscall.SIGTERM, 1400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, c1 := time.Now(), make(chan os.Signal)
				go func() {
					for _, s := range c.then {
						time.Sleep(s.after - time.Since(begun))
						c1 <- s.signal
					}
				}()
				if s := second(c1, syscall.SIGTERM); s != c.want || time.Since(begun) != c.at {
					t.Errorf("%v after %v, want %v after %v", s, time.Since(begun), c.want, c.at)
				}
			})
		})
	}
}
