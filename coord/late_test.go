package coord

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/coord/advice"
	"star/modes"
	"star/runlog"
	"star/sim"
	"star/transport/wire"
)

// hasty is a Pilot that sets deadlines, and excludes each worker that misses one.
type hasty struct {
	deadlines []time.Duration
	change    bool
	plan      modes.Plan // without it
	late      atomic.Int32
}

func (h *hasty) Tell(l runlog.Line) []advice.Remark {
	switch l.Entry.(type) {
	case runlog.Train:
		return []advice.Remark{{Deadlines: h.deadlines}}
	case runlog.Late:
		if h.late.Add(1); h.change {
			return []advice.Remark{{Change: &advice.Change{Plan: h.plan, Why: "w1 is late"}}}
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
		every     float64   // epochs between evaluations
		late      []float64 // deadlines that were missed, s
	}{
		{"told once, and left behind", []time.Duration{time.Second, time.Second}, true, 0, []float64{1, 2, 4, 8}},
		{"told, and waited for", []time.Duration{time.Second, time.Second}, false, 0, []float64{1, 2, 4, 8}},
		{"stopped after its part of an evaluation", []time.Duration{time.Second, time.Second}, false, 0.2, []float64{1, 2, 4, 8}},
		{"short ones count as a quarter of a second", []time.Duration{time.Millisecond, time.Millisecond}, false, 0, []float64{.25, .5, 1, 2, 4, 8}},
		{"not known", []time.Duration{time.Second, 0}, false, 0, nil},
		{"none", nil, false, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			pilot := &hasty{deadlines: c.deadlines, change: c.change, plan: modes.ASGD(2)}
			play(t, Config{MaxWorkers: 2, Steps: 400, Pilot: pilot, EvalEvery: c.every}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0, func(f *fakeWorker) { f.pace = 100 * time.Millisecond })
				stood := false
				w.worker(1, func(f *fakeWorker) {
					f.pace = 100 * time.Millisecond
					f.dies = func(phase string, _ wire.Release) bool {
						if phase == "computed" && f.step == 20 && !stood {
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

// stopped are iterations of 100 ms; worker 1's twelfth takes ten seconds, and the next one three.
type stopped struct{}

func (stopped) Spend(w star.Worker, tick int64, _ time.Duration, load float64) sim.Spent {
	if long := map[int64]time.Duration{11: 10 * time.Second, 12: 3 * time.Second}[tick]; w == 1 && long > 0 {
		return sim.Spent{Compute: long}
	}
	return sim.Spent{Compute: 100*time.Millisecond + time.Duration(w)*time.Millisecond}
}

func (stopped) Workers() int { return 3 }

// While a member of a ring is stopped the others wait in the exchange: only that member is late. A plan without it is
// in force at once, and no sample is lost.
func TestLateInARing(t *testing.T) {
	const steps = 400
	for _, c := range []struct {
		name   string
		change bool
		late   []float64 // deadlines that were missed, s
	}{
		{"told, and waited for", false, []float64{1.05, 2.1, 4.2, 8.4, 1.05, 2.1}},
		{"left behind", true, []float64{1.05, 1.05, 2.1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pilot := &hasty{deadlines: slices.Repeat([]time.Duration{time.Second}, 3), change: c.change, plan: modes.Ring(3, 1)}
			play(t, Config{MaxWorkers: 3, Steps: steps, Pilot: pilot, Ring: &RingConfig{Rule: "sgd"}}, func(w *world) {
				w.server(0, 0, false)
				p := newPool(w, stopped{}, 3)
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				var late []float64
				for _, l := range w.lines("late") {
					if late = append(late, l["deadline"].(float64)); l["worker"] != 1.0 {
						t.Errorf("%v: worker 1 is stopped", l)
					}
				}
				if !slices.Equal(late, c.late) {
					t.Errorf("late after %v s, want %v", late, c.late)
				}
				if told := map[bool]int{true: 3}[c.change]; p.abandoned != told {
					t.Errorf("%d workers were told that the ring is abandoned, want %d", p.abandoned, told)
				}
				var fires, longest float64
				for _, l := range w.lines("fire") {
					longest, fires = max(longest, l["t"].(float64)-fires), l["t"].(float64)
				}
				if fast := longest < 2; fast != c.change {
					t.Errorf("the longest time between two updates is %.3f s", longest)
				}
				w.accounted(steps * 3 * 4)
			})
		})
	}
}
