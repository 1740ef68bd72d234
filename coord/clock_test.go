package coord

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for by, want := range map[time.Duration]time.Duration{-time.Minute: time.Minute, 0: 0, time.Hour: 0} {
			if got := ago(time.Now().Add(by).UTC().Round(0)); got != want {
				t.Errorf("what is %v from now was %v ago, want %v", by, got, want)
			}
		}
	})
}
