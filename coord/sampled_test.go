package coord

import (
	"testing"
	"time"
)

// The run log of many workers is sampled. With a pilot it is not: a replay needs every record that the pilot got.
func TestRecordsForAPilotAreNotSampled(t *testing.T) {
	for _, piloted := range []bool{false, true} {
		const workers = 64
		cfg := Config{MaxWorkers: workers, Steps: 60}
		if piloted {
			cfg.Pilot = new(script)
		}
		play(t, cfg, func(w *world) {
			w.server(0, 1, false)
			for rank := range workers {
				w.worker(rank, func(f *fakeWorker) { f.pace /= 20 })
			}
			w.finished(time.Hour)
			if n := len(w.lines("sampled")); (n > 0) == piloted {
				t.Errorf("with a pilot %v: %d lines of type sampled", piloted, n)
			}
			if n := len(w.lines("record")); n != workers*60 {
				t.Errorf("%d records, want %d", n, workers*60)
			}
		})
	}
}
