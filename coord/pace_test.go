package coord

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/transport/wire"
)

// All workers compute for twice as long from step 150 to 299: the run log, the status and the log say that the job is
// slow, although no worker is slower than the others.
func TestSlowTogether(t *testing.T) {
	play(t, Config{MaxWorkers: 2, Steps: 1000}, func(w *world) {
		w.server(0, 1, false)
		said := ""
		for rank := range 2 {
			w.worker(rank, func(f *fakeWorker) {
				f.pace, f.times = 300*time.Millisecond, true
				f.dies = func(phase string, _ wire.Release) bool {
					if phase != "released" {
						return false
					}
					if f.pace = 300 * time.Millisecond; f.step >= 150 && f.step < 300 {
						f.pace *= 2
					}
					if rank == 0 && f.step == 250 {
						said = w.status().Slowdown
					}
					return false
				}
			})
		}
		w.finished(10 * time.Minute)
		synctest.Wait()
		if w.err != nil {
			t.Fatal(w.err)
		}
		lines := w.lines("slowdown")
		if len(lines) != 2 || lines[0]["event"] != "slow" || lines[0]["part"] != "compute" || lines[0]["workers"] != 2. || lines[1]["event"] != "recovered" {
			t.Fatalf("%v", lines)
		}
		if since := lines[0]["since"].(float64); since < 42 || since > 48 {
			t.Errorf("since %v s, want 45", since)
		}
		if said != lines[0]["says"] || !strings.Contains(said, "the job is 1.9x slow since 4") {
			t.Errorf("the status says %q", said)
		}
	})
}
