package coord

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/session"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// A worker that left before the start excludes no other, whatever it was going to train: servers reconnect, and no
// trace of it is left.
func TestStrayThatHasLeft(t *testing.T) {
	for _, servers := range []int{1, 2} {
		play(t, Config{MaxWorkers: 2, Servers: servers, Steps: 2, Trains: trains}, func(w *world) {
			var first []*fakeServer
			for rank := range servers {
				first = append(first, w.server(rank, 3, true))
			}
			h := hello(0)
			h.ModelHash, h.Params = "beef", 2
			stray, err := w.join(h, enrolment)
			if err != nil || len(stray.Welcome.Shards) != 2 {
				t.Fatalf("the stray one: %+v, %v", stray, err)
			}
			stray.Leave(0, "the wrong job")
			stray.Close()
			synctest.Wait()
			one := w.worker(0)
			for _, s := range first {
				<-s.gone
				var told *transport.RejectError
				if !errors.As(s.last, &told) || told.Exit != exitcode.Restart {
					t.Fatalf("a server heard %v, want exit code %d", s.last, exitcode.Restart)
				}
			}
			for rank := range servers {
				w.server(rank, 3, false)
			}
			two := w.worker(1)
			w.finished(time.Minute)
			if w.err != nil || one.err != nil || two.err != nil || !one.m.Welcome.Seed {
				t.Fatalf("%v, %v, %v; seed %v", w.err, one.err, two.err, one.m.Welcome.Seed)
			}
			if n := len(w.lines("join")); n != 2 || strings.Contains(w.run.String(), "beef") {
				t.Errorf("%d workers joined, by the log:\n%s", n, w.run)
			}
			if w.result.Shards != 3*servers || w.result.Model != "cafe" {
				t.Errorf("%+v", w.result)
			}
			var line struct {
				Type   string
				Config struct{ Model string }
			}
			text, _, _ := strings.Cut(w.run.String(), "\n")
			if err := json.Unmarshal([]byte(text), &line); err != nil || line.Type != "start" || line.Config.Model != "cafe" {
				t.Errorf("line 1 is %s, %v", text, err)
			}
		})
	}
}

// trains says that the hash is the model.
func trains(h wire.Hello, e session.Enrolment) (session.Told, json.RawMessage) {
	return session.Told{Model: h.ModelHash, Dataset: e.Data, Seed: 7}, json.RawMessage(`{"model":"` + h.ModelHash + `"}`)
}

// Workers with the settings of the servers are accepted, whichever worker came before; others are not.
func TestWorkersThatAreVouchedFor(t *testing.T) {
	fits := func(h wire.Hello, e session.Enrolment) (bool, error) {
		if e.Told == nil {
			return false, nil
		}
		if e.Told.Model != "right" {
			return false, errors.New("was told " + e.Told.Model + ", not right")
		}
		return true, nil
	}
	play(t, Config{MaxWorkers: 2, Steps: 2, Fits: fits, Trains: trains}, func(w *world) {
		s := w.server(0, 1, true)
		stray := hello(0)
		stray.ModelHash = "beef"
		silent, err := w.join(stray, enrolment)
		if err != nil {
			t.Fatal(err)
		}
		wrong := enrolment
		wrong.Told = &session.Told{Model: "wrong"}
		var no *transport.RejectError
		if _, err := w.join(hello(1), wrong); !errors.As(err, &no) || no.Exit != exitcode.Disagree || !strings.Contains(no.Reason, "was told wrong, not right") {
			t.Errorf("a worker that was told something else: %v", err)
		}
		if _, err := w.join(hello(1), enrolment); !errors.As(err, &no) || no.Exit != exitcode.Disagree {
			t.Errorf("another one that is not vouched for: %v", err)
		}
		right := func(f *fakeWorker) { f.told = &session.Told{Model: "right"} }
		one := w.worker(0, right)
		<-s.gone
		w.server(0, 1, false)
		if _, err := silent.Next(); !errors.As(err, &no) || no.Exit != exitcode.Disagree || !strings.Contains(no.Reason, "beef") {
			t.Errorf("the one that came first heard %v", err)
		}
		silent.Close()
		synctest.Wait()
		if _, err := w.join(stray, enrolment); !errors.As(err, &no) || no.Exit != exitcode.Disagree {
			t.Errorf("it came again, and heard %v", err)
		}
		two := w.worker(1, right)
		w.finished(time.Minute)
		if w.err != nil || one.err != nil || two.err != nil || w.result.Model != "cafe" || w.result.Seed != 7 {
			t.Errorf("%v, %v, %v; %+v", w.err, one.err, two.err, w.result)
		}
	})
}
