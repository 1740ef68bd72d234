package actuate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		pause := func(want time.Duration) {
			t.Helper()
			begun := time.Now()
			got, err := p.Pause(t.Context())
			if err != nil || got != want || time.Since(begun) != want {
				t.Errorf("paused %v (%v by the clock), %v; want %v", got, time.Since(begun), err, want)
			}
		}
		set := func(d time.Duration) {
			t.Helper()
			if err := p.Apply(Limit{Delay: d}, time.Time{}); err != nil || p.Delay() != d {
				t.Errorf("%v, %v; want %v", p.Delay(), err, d)
			}
		}
		pause(0)
		set(50 * ms)
		pause(50 * ms)
		pause(50 * ms)

		// A pause that is going on follows: longer, shorter, over at once.
		time.AfterFunc(20*ms, func() { set(80 * ms) })
		pause(80 * ms)
		time.AfterFunc(20*ms, func() { set(30 * ms) })
		pause(30 * ms)
		time.AfterFunc(20*ms, func() { set(10 * ms) })
		set(80 * ms)
		pause(20 * ms)
		set(time.Minute)
		time.AfterFunc(20*ms, func() { p.Undo() })
		pause(20 * ms)
		pause(0)
	})
}

func TestPauseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Apply(Limit{Delay: time.Minute}, time.Time{})
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the job is over")
		time.AfterFunc(30*ms, func() { cancel(why) })
		if d, err := p.Pause(ctx); d != 30*ms || err != why {
			t.Errorf("paused %v, %v", d, err)
		}
		p.Undo()
		if d, err := p.Pause(ctx); d != 0 || err != why {
			t.Errorf("paused %v, %v", d, err)
		}
	})
}

// One order slows every caller that asks, and ends for all.
func TestPauseOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(Pacer)
		p.Apply(Limit{Delay: time.Second}, time.Time{})
		took := make(chan time.Duration, 3)
		for range 3 {
			go func() { d, _ := p.Pause(t.Context()); took <- d }()
		}
		time.Sleep(100 * ms)
		p.Undo()
		for range 3 {
			if d := <-took; d != 100*ms {
				t.Errorf("paused %v", d)
			}
		}
	})
}

func TestPacerRefuses(t *testing.T) {
	p := new(Pacer)
	p.Apply(Limit{Delay: ms}, time.Time{})
	for want, l := range map[string]Limit{
		"cannot bring about cpu=1":           {Cores: 1},
		"cannot bring about delay=1s,out=80": {Delay: time.Second, NetOut: 1e6},
		"delay":                              {Delay: -1},
	} {
		if err := p.Apply(l, time.Time{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", l, err, want)
		}
	}
	if p.Delay() != ms {
		t.Errorf("a refused limit changed the delay to %v", p.Delay())
	}
	var none *Pacer
	if d, err := none.Pause(t.Context()); d != 0 || err != nil {
		t.Error(d, err)
	}
}
