package coord

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/advice"
	"star/modes"
	"star/runlog"
	"star/transport/wire"
)

// hasty is a Pilot that sets deadlines, and excludes each worker that misses one.
type hasty struct {
	deadlines []time.Duration
	change    bool
	late      atomic.Int32
}

func (h *hasty) Tell(l runlog.Line) []advice.Remark {
	switch l.Entry.(type) {
	case runlog.Train:
		return []advice.Remark{{Deadlines: h.deadlines}}
	case runlog.Late:
		if h.late.Add(1); h.change {
			return []advice.Remark{{Change: &advice.Change{Plan: modes.ASGD(2), Why: "w1 is late"}}}
		}
	}
	return nil
}

// While a worker is stopped in SSGD nothing happens, and the pilot gets its missed deadline; the job may then continue
// without it.
func TestLate(t *testing.T) {
	for _, c := range []struct {
		name      string
		deadlines []time.Duration
		change    bool
		late      []float64 // deadlines that were missed, s
	}{
		{"told once, and left behind", []time.Duration{time.Second, time.Second}, true, []float64{1, 2, 4, 8}},
		{"told, and waited for", []time.Duration{time.Second, time.Second}, false, []float64{1, 2, 4, 8}},
		{"short ones count as a quarter of a second", []time.Duration{time.Millisecond, time.Millisecond}, false, []float64{.25, .5, 1, 2, 4, 8}},
		{"not known", []time.Duration{time.Second, 0}, false, nil},
		{"none", nil, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			pilot := &hasty{deadlines: c.deadlines, change: c.change}
			play(t, Config{MaxWorkers: 2, Steps: 400, Pilot: pilot}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0, func(f *fakeWorker) { f.pace = 100 * time.Millisecond })
				stood := false
				w.worker(1, func(f *fakeWorker) {
					f.pace = 100 * time.Millisecond
					f.dies = func(phase string, _ wire.Release) bool {
						if phase == "released" && f.step == 20 && !stood {
							stood = true
							time.Sleep(10 * time.Second)
						}
						return false
					}
				})
				w.finished(10 * time.Minute)
				synctest.Wait()
				if w.err != nil {
					t.Fatal(w.err)
				}
				lines := w.lines("late")
				if len(lines) != len(c.late) || int(pilot.late.Load()) != len(lines) {
					t.Fatalf("%d were told, %d lines: %.600v, want %v", pilot.late.Load(), len(lines), fmt.Sprint(lines), c.late)
				}
				for i, l := range lines {
					waited, limit := l["waited"].(float64), l["deadline"].(float64)
					if l["worker"] != 1.0 || limit != c.late[i] || waited < limit || waited > limit+0.5 {
						t.Errorf("%v, want worker 1 after %v s", l, c.late[i])
					}
				}
				if len(lines) == 0 {
					return
				}
				first := lines[0]["t"].(float64)
				alone := 0
				for _, f := range w.lines("fire") {
					if at := f["t"].(float64); at > first && at < first+8 {
						alone++
					}
				}
				if (alone > 0) != c.change {
					t.Errorf("%d updates while worker 1 stood still", alone)
				}
			})
		})
	}
}
