package worker

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/cluster/resource/actuate"
	"star/coord/session"
	"star/job"
	"star/train"
	"star/train/data"
	"star/transport/wire"
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
		w := &worker{job: &job.Job{Batch: 8}, slow: steady{}, member: &session.Member{}, loader: data.NewLoader(trainSet, data.Stream{Seed: 1}), limits: governor(t, actuate.Pace)}
		defer w.loader.Close()
		w.grads = func(context.Context, []float32, train.Batch) (float64, error) { time.Sleep(takes); return 0.5, nil }
		w.finite = func([]float32) (float64, int) { return 1, -1 }
		iterate := func(ordered, wait time.Duration) {
			t.Helper()
			rec := star.Record{Wait: wait}
			begun := time.Now()
			if _, err := w.compute(t.Context(), wire.Release{Start: 0, Count: 8}, &rec); err != nil {
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
		if _, err := w.compute(ctx, wire.Release{Count: 8}, new(star.Record)); err != why {
			t.Errorf("%v, want %v", err, why)
		}
	})
}
