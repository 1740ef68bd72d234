package coord

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"star"
	"star/coord/session"
	"star/transport/wire"
)

// codecWorker is a worker with a codec: what it was told, and how it answers a Save.
type codecWorker struct {
	mu   sync.Mutex
	told []string
}

func (k *codecWorker) hears(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = append(k.told, fmt.Sprintf(format, args...))
}

// codecWorker joins and plays a worker that answers a Save with answer; false: it dies.
func (w *world) codecWorker(rank int, answer func(m *session.Member, s wire.Save) bool) *codecWorker {
	k := new(codecWorker)
	w.wg.Go(func() {
		e, me := enrolment, star.Worker(rank)
		e.Codec = "topk=0.01"
		m, err := w.join(hello(rank), e)
		if err != nil {
			w.t.Errorf("worker %d: %v", rank, err)
			return
		}
		defer m.Close()
		m.Beat()
		session.Say(m, wire.Joined{Worker: me}, nil)
		step := int64(0)
		for {
			o, err := m.Order()
			if err != nil {
				return
			}
			r := o.Release
			switch {
			case o.Kind == wire.KindSave:
				k.hears("save %d of %d", o.Save.Seq, o.Save.Version)
				if !answer(m, o.Save) {
					return
				}
				continue
			case o.Kind != wire.KindRelease || r.Action == wire.Stop:
				return
			}
			k.hears("release %d", r.Version)
			if r.Action != wire.Continue {
				session.Say(m, wire.EvalResult{Worker: me, Eval: r.Eval, Version: r.Version, Count: 1}, nil)
			}
			if r.Action == wire.Finish {
				continue
			}
			time.Sleep(time.Second + time.Duration(rank)*time.Microsecond)
			w.stored(me, step)
			session.Say(m, wire.Arrive{Record: star.Record{Worker: me, Step: step, Basis: r.Version, Samples: r.Count, Loss: 1}}, nil)
			step++
		}
	})
	return k
}

// answers is how a worker reports its part of a checkpoint.
func answers(desc string, err string) func(m *session.Member, s wire.Save) bool {
	return func(m *session.Member, s wire.Save) bool {
		session.Say(m, wire.Saved{Shard: 1, ID: s.ID, Err: err}, []byte(desc))
		return true
	}
}

// A worker with a codec gets a Save before its next release, so that it can save the residual up to then; one without a
// codec gets none.
func TestCheckpointHasResiduals(t *testing.T) {
	var all []Checkpoint
	play(t, Config{MaxWorkers: 3, Steps: 4, CheckpointEvery: 1500 * time.Millisecond, Save: func(c Checkpoint) (string, error) { all = append(all, c); return c.ID, nil }}, func(w *world) {
		w.server(0, 2, false)
		k := w.codecWorker(2, answers(`"two"`, ""))
		w.worker(1)
		w.codecWorker(0, answers(`"zero"`, ""))
		w.finished(time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		if want := []string{"release 0", "release 1", "save 2 of 2", "release 2", "release 3", "release 4", "save 4 of 4"}; !slices.Equal(k.told, want) {
			t.Errorf("worker 2 was told %q, want %q", k.told, want)
		}
		if len(all) != 2 {
			t.Fatalf("%d checkpoints", len(all))
		}
		for _, c := range all {
			if got := residuals(c); got != `0 0.3333 "zero"; 2 0.3333 "two"; ` {
				t.Errorf("%s has the residuals %s", c.ID, got)
			}
		}
	})
}

func residuals(c Checkpoint) (s string) {
	for _, r := range c.Residuals {
		s += fmt.Sprintf("%d %.4f %s; ", r.Worker, r.Weight, r.Desc)
	}
	return s
}

// A checkpoint is complete without the residuals of workers that do not answer, and does not wait for them for long,
// neither during the training nor at the end.
func TestCheckpointWithoutResiduals(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(m *session.Member, s wire.Save) bool
		log    string
	}{
		{"silent", func(*session.Member, wire.Save) bool { return true }, "did not answer"},
		{"fails", answers("", "no space left"), "no space left"},
		{"has nothing", answers("", ""), ""},
		{"says no JSON", answers("{", ""), ""},
		{"dies", func(*session.Member, wire.Save) bool { return false }, "a worker is gone"},
		{"of another checkpoint", func(m *session.Member, s wire.Save) bool {
			session.Say(m, wire.Saved{Shard: 1, ID: "another"}, []byte(`"it"`))
			return true
		}, "did not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []Checkpoint
			play(t, Config{MaxWorkers: 2, Steps: 30, CheckpointEvery: 1500 * time.Millisecond, Save: func(c Checkpoint) (string, error) { all = append(all, c); return c.ID, nil }}, func(w *world) {
				w.server(0, 1, false)
				w.codecWorker(0, answers(`"zero"`, ""))
				w.codecWorker(1, c.answer)
				w.finished(2 * time.Minute)
				if w.err != nil || len(all) < 2 || w.result.CheckpointError != "" {
					t.Fatalf("%v, %d checkpoints, %q", w.err, len(all), w.result.CheckpointError)
				}
				for i, c := range all {
					part := ` 0.5000 "zero"; `
					if i > 0 && len(c.Residuals) == 1 && c.Residuals[0].Weight == 1 { // alone by then
						part = ` 1.0000 "zero"; `
					}
					if got := residuals(c); got != "0"+part {
						t.Errorf("%s has the residuals %s", c.ID, got)
					}
				}
				if !strings.Contains(w.logs.String(), c.log) {
					t.Errorf("the log does not say %q:\n%s", c.log, w.logs)
				}
			})
		})
	}
}

// In an all-reduce every member is asked, beside the one that writes the parameters; a worker that was not asked must
// not answer.
func TestRingCheckpointHasResiduals(t *testing.T) {
	var all []Checkpoint
	play(t, Config{MaxWorkers: 3, Samples: 60, Steps: 99, CheckpointEvery: 1500 * time.Millisecond, Ring: &RingConfig{Rule: "sgd"}, Save: func(c Checkpoint) (string, error) { all = append(all, c); return c.ID, nil }}, func(w *world) {
		w.server(0, 0, false)
		for i := range 3 {
			w.ringWorker(i, "int8", func(m *session.Member, s wire.Save) bool {
				desc, shard := fmt.Sprint(10+i), 1
				if s.Seq == 0 {
					desc, shard = `"parameters"`, 0
				}
				session.Say(m, wire.Saved{Shard: shard, ID: s.ID}, []byte(desc))
				return true
			})
		}
		w.finished(time.Minute)
		if w.err != nil || len(all) < 2 {
			t.Fatal(w.err, len(all))
		}
		for _, c := range all {
			if got := residuals(c); got != "0 1.0000 10; 1 1.0000 11; 2 1.0000 12; " || fmt.Sprintf("%s", c.Parts) != `["parameters"]` {
				t.Errorf("%s has %s and the residuals %s", c.ID, c.Parts, got)
			}
		}
	})
}

// A ring that loses the member that was to write a checkpoint, or another one before the version is made, begins
// another checkpoint, with the residuals of the remaining members, and continues to the end.
func TestRingLosesItsCheckpoint(t *testing.T) {
	for victim := range 2 {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			var all []Checkpoint
			play(t, Config{MaxWorkers: 3, Samples: 120, Steps: 99, CheckpointEvery: 2500 * time.Millisecond, Ring: &RingConfig{Rule: "sgd"},
				Save: func(c Checkpoint) (string, error) { all = append(all, c); return "in/" + c.ID, nil }}, func(w *world) {
				w.server(0, 0, false)
				for i := range 3 {
					w.ringWorker(i, "int8", func(m *session.Member, s wire.Save) bool {
						if i == victim {
							return false
						}
						if s.Seq == 0 {
							time.Sleep(500 * time.Millisecond) // the victim is quicker
						}
						session.Say(m, wire.Saved{Shard: min(1, int(s.Seq)), ID: s.ID}, []byte("1"))
						return true
					})
				}
				w.finished(time.Hour)
				if w.err != nil || w.result.CheckpointError != "" || len(all) < 2 || w.result.Checkpoint != "in/"+all[len(all)-1].ID {
					t.Fatalf("%v, %q, %d complete, the last %q\n%s", w.err, w.result.CheckpointError, len(all), w.result.Checkpoint, w.logs)
				}
				for _, c := range all {
					if got, want := residuals(c), fmt.Sprintf("%d 1.0000 1; 2 1.0000 1; ", 1-victim); got != want {
						t.Errorf("%s has the residuals %s, want %s", c.ID, got, want)
					}
				}
			})
		})
	}
}
