package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star/cluster/resource/actuate"
)

func governor(t *testing.T, kind actuate.Kind) *actuate.Governor {
	t.Helper()
	g, err := actuate.Start(actuate.Config{Kind: kind, LeaseDir: filepath.Join(t.TempDir(), "leases"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// The shards of a process pause at the same time, and the first one says what an update takes.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{limits: governor(t, actuate.Pace)}
		p.limits.Delay(50*time.Millisecond, 0)
		begun := time.Now()
		done := make(chan time.Duration, 2)
		for shard := range 2 {
			go func() { p.pause(t.Context(), shard); done <- time.Since(begun) }()
		}
		for range 2 {
			if d := <-done; d != 50*time.Millisecond {
				t.Errorf("paused %v", d)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		begun = time.Now()
		p.pause(ctx, 0)
		if d := time.Since(begun); d != 10*time.Millisecond {
			t.Errorf("paused %v of a job that is over", d)
		}
	})
}

// The pacer reports what a server sends between two updates, without what it sends while it pauses; by tc it is to take
// as long as the delay.
func TestPacerTellsWhatIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		var told []actuate.Work
		p := &pacer{limits: governor(t, actuate.Pace), moved: func() (int64, int64) { return sent.Load(), 7 }, tells: func(w actuate.Work) { told = append(told, w) }}
		p.limits.Delay(10*time.Millisecond, 0)
		for range 3 {
			time.AfterFunc(5*time.Millisecond, func() { sent.Add(99) })
			p.pause(t.Context(), 4)
			p.pause(t.Context(), 5) // another shard of the process
			time.Sleep(90 * time.Millisecond)
			sent.Add(1000)
		}
		if len(told) != 2 || told[0].Out != 1000 || told[1].Out != 1000 || told[0].Busy != 100*time.Millisecond || told[0].Send != 0 {
			t.Fatalf("%+v", told)
		}
		if l, err := actuate.ByTC.Limit(50*time.Millisecond, told[0]); err != nil || l.NetOut != 20_000 {
			t.Errorf("%v, %v; want 1000 bytes in 50 ms", l, err)
		}
	})
}
