package coord

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"star"
	"star/coord/ending"
	"star/coord/engine"
	"star/coord/session"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// A coordinator continues a ring from what its members remember: all updates are kept, no sample is used twice, and
// workers that join too late take the parameters from the others.
func TestRingTakeOver(t *testing.T) {
	r, text := ridden(t)
	handover := Handover{Handover: takeover.Handover{
		Begun: time.Hour - time.Minute, Trains: time.Hour - 50*time.Second, Generation: 3, Limit: 100, Plan: modes.SSGD(4), Workers: []star.Worker{0, 1, 2},
		Model: "m", ModelHash: "cafe", Params: 100, Ring: true,
	}, Enrolment: enrolment}
	m, err := engine.ParseRingMetadata(text, 3)
	if err != nil {
		t.Fatal(err)
	}
	m.Steps = append(m.Steps, -1)
	for i := range m.Rounds {
		m.Rounds[i].Generation = engine.GenerationsOf(1) + 1
	}
	text, _ = json.Marshal(m)
	first := engine.Unreleased(Progress{}, 4)
	first.Count = m.Count + 50 // of an earlier leadership, which was longer
	older, _ := json.Marshal(first)
	told := []wire.Tally{{Generation: engine.GenerationsOf(1) + 1, Version: 2, Carried: []wire.Gradient{{Worker: 2, Step: m.RiderBatches[0].Span.Start, Weight: 4. / 12}}}}
	lease := newTestLease(2)
	play(t, Config{MaxWorkers: 4, Steps: 100, Ring: &RingConfig{Rule: "sgd"}, Lease: lease, Handover: &handover, Coordinators: 1}, func(w *world) {
		w.newest = 2
		rider := w.ringWorker(2, "", nil, &session.Stand{Version: -1, Step: 1, Metadata: text})
		behind := w.ringWorker(1, "", nil, &session.Stand{Version: 1, Step: 1, Metadata: older})
		time.Sleep(2 * time.Second)
		ahead := w.ringWorker(0, "", nil, &session.Stand{Version: 2, Step: 2, Metadata: older, Told: told})
		time.Sleep(1500 * time.Millisecond)
		late := w.ringWorker(3, "", nil, nil)
		time.Sleep(5 * time.Second)
		for name, f := range map[string]*ringTold{"rider": rider, "behind": behind, "ahead": ahead} {
			f.set(func() {
				if !f.welcome.Seed || f.welcome.Step < 1 || f.welcome.Version < 1 || f.welcome.Term != 2 {
					t.Errorf("%s is welcomed with %+v", name, f.welcome)
				}
				if len(f.rings) == 0 || !f.rings[0].Now || f.rings[0].Generation <= engine.GenerationsOf(2) {
					t.Errorf("%s was told of rings %+v", name, f.rings)
				}
				if len(f.metadata) == 0 {
					t.Errorf("%s was not released", name)
					return
				}
				if k, err := engine.ParseRingMetadata(f.metadata[len(f.metadata)-1], 4); err != nil || k.Term != 2 {
					t.Errorf("%s remembers %+v, %v", name, k, err)
				}
			})
		}
		late.set(func() {
			if late.welcome.Seed || late.welcome.Step < 1 {
				t.Errorf("a late worker is welcomed with %+v", late.welcome)
			}
		})
		w.finished(5 * time.Minute)
		if w.err != nil {
			t.Fatal(w.err)
		}
		used := int64(0)
		var pieces []Span
		for _, f := range w.lines("fire") {
			used = int64(f["samples"].(float64))
			p := f["pieces"].([]any)
			for i := 0; i < len(p); i += 2 {
				pieces = append(pieces, Span{Start: int64(p[i].(float64)), Count: int(p[i+1].(float64))})
			}
		}
		if first := w.lines("fire")[0]; first["seq"].(float64) != float64(m.Seq+1) {
			t.Errorf("the first update of the leadership is %v, after %d", first["seq"], m.Seq)
		}
		if used != 100 {
			t.Errorf("%d samples are applied in the end", used)
		}
		exactly(t, 100, []Span{{Start: 0, Count: int(r.View().Used)}}, pieces) // the first round had those
		if term := w.lines("term"); len(term) != 1 || term[0]["version"].(float64) != 1 || term[0]["samples"].(float64) != float64(r.View().Used) {
			t.Errorf("the log says of the leadership %v", term)
		}
	})
}

// Invalid states are rejected, and without a worker that has the parameters the job does not continue.
func TestRingTakeOverRefuses(t *testing.T) {
	handover := Handover{Handover: takeover.Handover{
		Begun: time.Hour - time.Minute, Trains: time.Hour - 50*time.Second, Generation: 3, Limit: 100, Plan: modes.SSGD(2), Workers: []star.Worker{0, 1},
		Model: "m", ModelHash: "cafe", Params: 100, Ring: true,
	}, Enrolment: enrolment}
	ring := &RingConfig{Rule: "sgd"}
	if _, err := New(Config{Job: "job", MaxWorkers: 2, Batch: 4, Steps: 5, Lease: newTestLease(2), Handover: &handover}); err == nil || !strings.Contains(err.Error(), "--arch") {
		t.Errorf("parameter servers go on with a ring: %v", err)
	}
	play(t, Config{MaxWorkers: 2, Steps: 5, Ring: ring, Lease: newTestLease(2), Handover: &handover, Coordinators: 1, JoinTimeout: 10 * time.Second}, func(w *world) {
		h, e := hello(0), enrolment
		h.Addr, e.Rule, e.Stand = "meet,door", "sgd", &session.Stand{Version: 3, Metadata: []byte("{}")}
		var refused *transport.RejectError
		if _, err := w.join(h, e); !errors.As(err, &refused) || refused.Exit != 78 || !strings.Contains(refused.Reason, "is inconsistent") {
			t.Errorf("metadata of another job: %v", err)
		}
		metadata := `{"term":1,"count":1,"Version":5,"Samples":40,"Cursor":60,"seq":5,"steps":[4,4],"rounds":[]}`
		e.Stand = &session.Stand{Version: 4, Metadata: []byte(metadata)}
		m, err := w.join(h, e)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		session.Say(m, wire.Joined{Worker: 0}, nil)
		w.finished(time.Minute)
		w.failed(69, "join timeout", "a worker that has the parameters")
	})
}

// A worker that was told to end while no process coordinated, and has the parameters, is kept by the next coordinator
// until another one has them.
func TestRingTakeOverFromLeavingWorker(t *testing.T) {
	handover := Handover{Handover: takeover.Handover{
		Begun: time.Hour - time.Minute, Trains: time.Hour - 50*time.Second, Generation: 3, Limit: 160, Plan: modes.SSGD(2), Workers: []star.Worker{0, 1},
		Model: "m", ModelHash: "cafe", Params: 100, Ring: true,
	}, Enrolment: enrolment}
	const metadata = `{"term":1,"count":1,"Version":5,"Samples":40,"Cursor":40,"seq":5,"steps":[4,4],"rounds":[]}`
	cfg := Config{MaxWorkers: 2, Steps: 20, Ring: &RingConfig{Rule: "sgd"}, Lease: newTestLease(2), Handover: &handover, Coordinators: 1, JoinTimeout: time.Minute, Grace: 20 * time.Second, Save: keeper(new([]Checkpoint))}
	play(t, cfg, func(w *world) {
		w.newest = 5
		last := w.ringWorker(0, "", nil, &session.Stand{Version: 5, Step: 4, Metadata: []byte(metadata)})
		time.Sleep(time.Second)
		last.set(func() { last.leaves = true })
		last.m.Leave(143, "SIGTERM")
		time.Sleep(8 * time.Second)
		last.set(func() {
			if !last.left.IsZero() {
				t.Error("it is let go, though no other has come")
			}
		})
		w.ringWorker(1, "", nil, nil)
		time.Sleep(5 * time.Second)
		last.set(func() {
			if last.left.IsZero() {
				t.Error("it is not let go, though another worker has the parameters")
			}
		})
		w.finished(5 * time.Minute)
		if w.err != nil || w.result.Samples != 160 {
			t.Errorf("%v, %d samples\n%s", w.err, w.result.Samples, w.logs)
		}
	})
}

// A server that was told to end connects to the next coordinator before the other servers do: these are not given up
// until they had time to connect.
func TestRingTakeOverWithALeaverFirst(t *testing.T) {
	handover := Handover{Handover: takeover.Handover{
		Begun: time.Hour - time.Minute, Trains: time.Hour - 50*time.Second, Generation: 3, Limit: 4000, Plan: modes.SSGD(2), Workers: []star.Worker{0, 1},
		Model: "m", ModelHash: "cafe", Params: 100, Ring: true,
	}, Enrolment: enrolment}
	const metadata = `{"term":1,"count":1,"Version":5,"Samples":40,"Cursor":40,"seq":5,"steps":[4,4],"rounds":[]}`
	for name, c := range map[string]struct {
		before time.Duration // when the server gets the signal to end
		ends   bool
	}{"at once": {0, false}, "without waiting": {time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{MaxWorkers: 2, Servers: 3, Steps: 500, Ring: &RingConfig{Rule: "sgd"}, Lease: newTestLease(2), Handover: &handover, Coordinators: 3, JoinTimeout: time.Minute,
				Grace: 20 * time.Second, Save: keeper(new([]Checkpoint))}
			play(t, cfg, func(w *world) {
				w.newest = 5
				for i := range 2 {
					worker := w.ringWorker(i, "", nil, &session.Stand{Version: 5, Step: 4, Metadata: []byte(metadata)})
					worker.set(func() { worker.leaves = c.ends })
				}
				first := w.server(0, 0, false)
				time.Sleep(c.before)
				first.m.Leave(143, "SIGTERM")
				time.Sleep(2 * ending.MusterTime)
				if c.ends {
					w.finished(time.Minute)
					w.failed(exitcode.Lost, "too many servers that may coordinate were told to end: 0 of 3 would stay")
					return
				}
				w.server(1, 0, false)
				w.server(2, 0, false)
				w.finished(time.Hour)
				if w.err != nil || w.result.Samples != 4000 {
					t.Errorf("%v, %d samples\n%s", w.err, w.result.Samples, w.logs)
				}
			})
		})
	}
}

// ridden is the metadata of a ring of members 0 and 1 and rider 2 after one round. Two rounds and the rider's batch are
// open.
func ridden(t *testing.T) (engine.Engine, []byte) {
	r := engine.NewRing(engine.Config{Plan: modes.Ring(3, 2), Workers: 3, Batch: 4, Limit: 100, MaxParams: 100, Ring: new(engine.RingConfig)})
	r.Begin(nil)
	for w := range star.Worker(2) {
		if _, err := r.Tally(wire.Tally{Worker: w, Generation: 1, Version: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return r, r.Metadata(1)
}
