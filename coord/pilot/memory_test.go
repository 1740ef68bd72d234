package pilot

import (
	"star/runlog"
	"testing"
	"time"

	"star"
)

// A job that resumes predicts from its first iteration on what the one before knew, and has no verdict on anybody yet.
func TestMemory(t *testing.T) {
	p := begin(t, Config{})
	var known []star.Record
	for i := range 32 {
		for w := range star.Worker(4) {
			r := star.Record{Worker: w, Step: int64(i), At: time.Duration(i-32) * 100 * time.Millisecond, Compute: 10 * time.Millisecond, Samples: 8}
			if w == 2 {
				r.Compute *= 3
			}
			known = append(known, r)
		}
	}
	if said := p.Tell(runlog.Line{Entry: runlog.Memory{Records: known}}); len(said) > 0 {
		t.Errorf("it says %+v of what is long over", said)
	}
	times := p.contest.Predict()
	if len(times) != 4 || times[2] < 29*time.Millisecond || times[2] > 31*time.Millisecond || times[0] < 9*time.Millisecond || times[0] > 11*time.Millisecond {
		t.Errorf("it predicts %v, want 10 ms, and 30 ms of worker 2", times)
	}
}
