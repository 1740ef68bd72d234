package coord

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/architecture"
	"star/modes"
)

// The result, the status and star ctl show a mode as it was given.
func TestModesInTheirWords(t *testing.T) {
	plan, err := modes.Parse("groups=0,1", 2)
	if err != nil {
		t.Fatal(err)
	}
	play(t, Config{MaxWorkers: 2, Plan: plan, Words: " groups=0,1 ", Steps: 40}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := w.status(); s.Mode != "groups=0,1" {
			t.Errorf("the mode is %q", s.Mode)
		}
		answer, no := w.ask("mode", "groups=0/1")
		if no != "" || !strings.Contains(string(answer), `"from":"groups=0,1","to":"groups=0/1"`) {
			t.Errorf("%s %s", answer, no)
		}
		time.Sleep(5 * time.Second)
		if s := w.status(); s.Mode != "groups=0/1" {
			t.Errorf("the mode is %q", s.Mode)
		}
		w.finished(time.Hour)
		if w.result.Mode != "groups=0/1" {
			t.Errorf("the result says %q", w.result.Mode)
		}
	})
	ring := &Coordinator{arch: architecture.Of(&Config{Ring: new(RingConfig)})}
	if got := ring.words(modes.Ring(5, 1, 3)); got != "ring-minus=1,3" {
		t.Errorf("a ring without 1 and 3 is %q", got)
	}
	if got := ring.words(modes.SSGD(3)); got != "ssgd" {
		t.Error(got)
	}
}

// A job with little or nothing to train says so, and why.
func TestCaution(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string // in the one note; empty: no note
	}{
		{"as many steps as were asked for", Config{Steps: 3}, ""},
		{"many rounds", Config{Epochs: 2}, ""},
		{"few rounds", Config{Samples: 24}, "over after 3 rounds: in a round the workers take 8 samples (--batch)"},
		{"local steps", Config{Steps: 20, Plan: modes.Plan{Groups: modes.SSGD(2).Groups, Local: 10}}, "over after 2 rounds: in a round the workers take 80 samples (10 local steps of each worker"},
		{"nothing", Config{Samples: 40, Resume: Progress{Version: 5, Samples: 40, Cursor: 40}}, "nothing is left to train: 40 samples are applied, and the job ends at 40"},
		{"less than nothing", Config{Samples: 16, Resume: Progress{Version: 5, Samples: 40, Cursor: 40}}, "ends at 16"},
	} {
		if c.cfg.Steps == 0 {
			c.cfg.Steps = 1 << 40
		}
		c.cfg.MaxWorkers = 2
		play(t, c.cfg, func(w *world) {
			s := w.server(0, 1, true)
			w.worker(0)
			w.worker(1)
			synctest.Wait()
			s.ready(c.cfg.Resume.Version)
			w.finished(time.Hour)
			notes := w.result.Notes
			if w.err != nil || c.want == "" && len(notes) > 0 || c.want != "" && (len(notes) != 1 || !strings.Contains(notes[0], c.want)) {
				t.Errorf("%s: %q, %v; want %q", c.name, notes, w.err, c.want)
			}
			if nothing := w.result.Steps == 0; nothing != math.IsNaN(float64(w.result.TrainLoss)) || !w.result.Evaluated {
				t.Errorf("%s: %d steps, loss %v, evaluated %v", c.name, w.result.Steps, w.result.TrainLoss, w.result.Evaluated)
			}
		})
	}
}
