package coord

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"star"
)

// A worker that reports twice the length of its gradients is dropped and named; the others are not.
func TestWorkerThatExaggerates(t *testing.T) {
	play(t, Config{MaxWorkers: 3, Servers: 1, Steps: 30}, func(w *world) {
		w.sums = func(*fakeServer, star.Worker, int64) float64 { return 2 }
		w.server(0, 2, false)
		for rank := range 3 {
			w.worker(rank, func(f *fakeWorker) {
				if f.norm2 = 4; rank == 2 {
					f.norm2 = 8
				}
			})
		}
		w.finished(time.Hour)
		left := w.lines("leave")
		if w.err != nil || len(left) != 1 || left[0]["worker"] != 2. || !strings.Contains(fmt.Sprint(left[0]["why"]), "reported a squared norm of 8 for its gradient") {
			t.Errorf("%v; left are %v", w.err, left)
		}
		w.accounted(3 * 4 * 30)
	})
}
