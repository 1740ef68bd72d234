package coord

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/session"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// A worker that says much and reads nothing is taken out of the job. Nobody else notices.
func TestMemberThatDoesNotRead(t *testing.T) {
	for _, c := range []struct {
		name  string
		pings int // each of which wants an answer
		why   string
	}{
		{"takes no message", 2000, "it does not take a message"},
		{"lets its queue run full", 400000, "it does not read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, Config{Workers: 3, Steps: 30, Plan: modes.ASGD(3)}, func(w *world) {
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
					t.Errorf("who left: %v, want worker 2, because %s", left, c.why)
				}
				if n := strings.Count(w.logs.String(), "send failed"); n != 1 {
					t.Errorf("it is said %d times that nothing can be sent:\n%s", n, w.logs)
				}
			})
		})
	}
}

// Who was told to go does not stay by sending what takes long to read.
func TestPartedMemberCannotStay(t *testing.T) {
	play(t, Config{Workers: 1, JoinTimeout: time.Hour}, func(w *world) {
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

// What an outbox takes is sent as it was and in order; when it is closed nothing waits any more.
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		l, err := net.Listen("x")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		far, err := net.Dial(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		near, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		box := newOutbox(near, 10*time.Second, slog.New(slog.DiscardHandler))
		for i := range 1000 { // more than the pipe holds
			var payload []byte
			if i%100 == 0 {
				payload = slices.Repeat([]byte{byte(i / 100)}, 5000)
			}
			if err := transport.Send(box, wire.Welcome{Rank: i}, payload); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				box.flush()
			}
		}
		box.flush()
		synctest.Wait()
		for i := range 1000 {
			f, err := far.Recv()
			if err != nil {
				t.Fatal(err)
			}
			m, err := wire.ParseWelcome(f.Header)
			if err != nil || m.Rank != i {
				t.Fatalf("message %d is %+v, %v", i, m, err)
			}
			payload := make([]byte, f.Size)
			if err := far.ReadPayload(payload); err != nil || i%100 == 0 && (len(payload) != 5000 || payload[4999] != byte(i/100)) {
				t.Fatalf("payload of message %d: %d bytes, %v", i, len(payload), err)
			}
		}
		synctest.Wait()
		if box.waiting != 0 || len(box.queue) != 0 {
			t.Errorf("%d bytes in %d messages wait after all were read", box.waiting, len(box.queue))
		}

		// A message that is larger than what may wait goes out too, if nothing else does.
		if err := transport.Send(box, wire.Buffers{}, make([]byte, 2*outboxBytes)); err != nil {
			t.Error(err)
		}
		if err := transport.Send(box, wire.Pong{}, nil); err == nil || box.cause() == nil {
			t.Error("behind it there is room")
		}
		box.flush()
		begun := time.Now()
		if err := box.Close(); err != nil {
			t.Error(err)
		}
		box.wait()
		if box.Close(); time.Since(begun) > 0 {
			t.Errorf("its goroutine ends after %v", time.Since(begun))
		}
	})
}

// The last deadline is the last.
func TestOutboxEndReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		l, _ := net.Listen("x")
		defer l.Close()
		far, err := net.Dial(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		near, _ := l.Accept()
		box := newOutbox(near, time.Second, slog.New(slog.DiscardHandler))
		defer box.Close()
		begun := time.Now()
		box.SetReadDeadline(begun.Add(time.Millisecond))
		box.endReads(begun.Add(time.Second))
		box.endReads(begun.Add(time.Hour))
		box.SetReadDeadline(begun.Add(time.Minute))
		box.SetReadDeadline(time.Time{})
		var timeout interface{ Timeout() bool }
		if _, err := box.Recv(); !errors.As(err, &timeout) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		if box.cause() != nil {
			t.Errorf("a reader's deadline is not a reason of the writer: %v", box.cause())
		}
	})
}
