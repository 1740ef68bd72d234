package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/cmd/internal/settings"
	"star/coord"
	"star/resource/actuate"
	"star/train"
	"star/train/data"
	"star/transport"
)

// governor is one with leases of its own.
func governor(t *testing.T, kind actuate.Kind) *actuate.Governor {
	t.Helper()
	g, err := actuate.Start(actuate.Config{Kind: kind, LeaseDir: filepath.Join(t.TempDir(), "leases"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// An order to pause counts from the next iteration on; in the record the pause is a wait, is named, and is no
// part of loading or computing. It ends with the order, and with the job.
func TestPauseInTheRecord(t *testing.T) {
	trainSet, _, err := data.Open("digits:n=64,test=8", data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const takes, pause = 70 * time.Millisecond, 30 * time.Millisecond
		w := &worker{job: &settings.Job{Batch: 8}, member: &coord.Member{}, loader: data.NewLoader(trainSet, data.Stream{Seed: 1}), limits: governor(t, actuate.Pace)}
		defer w.loader.Close()
		w.grads = func(context.Context, []float32, train.Batch) (float64, error) { time.Sleep(takes); return 0.5, nil }
		w.finite = func([]float32) (float64, int) { return 1, -1 }
		iterate := func(ordered, wait time.Duration) {
			t.Helper()
			rec := star.Record{Wait: wait}
			begun := time.Now()
			if _, err := w.compute(t.Context(), transport.Release{Start: 0, Count: 8}, &rec); err != nil {
				t.Fatal(err)
			}
			paused, ok := rec.Telemetry.Get(star.Paused)
			if ok != (ordered > 0) || float32(paused) != float32(ordered.Seconds()) {
				t.Errorf("paused %v s, %v; want %v", paused, ok, ordered)
			}
			if rec.Compute != takes || rec.Load != 0 || rec.Wait != wait+ordered || rec.Own() != takes || time.Since(begun) != takes+ordered {
				t.Errorf("%v ordered: load %v, compute %v, wait %v, in all %v", ordered, rec.Load, rec.Compute, rec.Wait, time.Since(begun))
			}
			w.observe(&rec)
		}
		iterate(0, time.Millisecond)
		w.limits.Delay(pause, 0)
		iterate(pause, time.Millisecond)
		iterate(pause, 0)
		w.limits.Delay(0, 0)
		iterate(0, 0)

		w.limits.Delay(time.Minute, 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the job is over")
		time.AfterFunc(time.Second, func() { cancel(why) })
		if _, err := w.compute(ctx, transport.Release{Count: 8}, new(star.Record)); err != why {
			t.Errorf("%v, want %v", err, why)
		}
	})
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

// What a server sends between two updates is told, without what it sends while it pauses; by tc it is to take as long as the delay.
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
