package coord

import (
	"strings"
	"testing"
	"time"

	"star/coord/session"
	"star/modes"
	"star/transport/wire"
)

// A worker that sends many messages and reads none is dropped. The others do not notice.
func TestMemberThatDoesNotRead(t *testing.T) {
	for _, c := range []struct {
		name  string
		pings int // each wants an answer
		why   string
	}{
		{"takes no message", 2000, "it does not take a message"},
		{"lets its queue run full", 400000, "it does not read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, Config{MaxWorkers: 3, Steps: 30, Plan: modes.ASGD(3)}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0)
				w.worker(1)
				deaf, err := w.join(hello(2), enrolment)
				if err != nil {
					t.Fatal(err)
				}
				defer deaf.Close()
				session.Say(deaf, wire.Joined{Worker: 2}, nil)
				time.Sleep(3 * time.Second)
				for range c.pings {
					if session.Say(deaf, wire.Ping{}, nil) != nil {
						break
					}
				}
				w.finished(time.Hour)
				if w.err != nil {
					t.Fatal(w.err)
				}
				w.accounted(4 * 30 * 3)
				last := 0.0
				for _, f := range w.lines("fire") {
					if at := f["t"].(float64); last > 0 && at-last > 1.01 {
						t.Errorf("no update between %.3f s and %.3f s", last, at)
					} else {
						last = at
					}
				}
				left := w.lines("leave")
				if len(left) != 1 || left[0]["worker"] != 2.0 || !strings.Contains(left[0]["why"].(string), c.why) {
					t.Errorf("left the job: %v, want worker 2, because %s", left, c.why)
				}
				if n := strings.Count(w.logs.String(), "send failed"); n != 1 {
					t.Errorf("it is said %d times that nothing can be sent:\n%s", n, w.logs)
				}
			})
		})
	}
}

// A member that must leave cannot stay by sending messages that take long to read.
func TestPartedMemberCannotStay(t *testing.T) {
	play(t, Config{MaxWorkers: 1, JoinTimeout: time.Hour}, func(w *world) {
		w.server(0, 1, true)
		m, err := w.join(hello(0), enrolment)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		session.Say(m, wire.Saved{ID: "of nothing"}, nil) // no worker says so here
		told := time.Now()
		for err == nil && time.Since(told) < time.Minute {
			time.Sleep(300 * time.Millisecond)
			err = session.Say(m, wire.Buffers{}, make([]byte, 40))
		}
		if took := time.Since(told); err == nil || took > 2*time.Second {
			t.Errorf("%v after it was told to go: %v", took, err)
		}
	})
}
