package coord

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/session"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// The processes that may coordinate agree on the end of a job before any member learns it; they are not told
// themselves.
func TestEndIsNoted(t *testing.T) {
	lease := newTestLease(1)
	play(t, Config{MaxWorkers: 1, Servers: 2, Steps: 3, Lease: lease, Coordinators: 1}, func(w *world) {
		candidate, b := w.server(0, 0, false), w.server(1, 1, false)
		x := w.worker(0)
		w.finished(time.Minute)
		<-b.gone
		<-x.gone
		synctest.Wait()
		if w.err != nil || b.last != nil || x.err != nil {
			t.Fatalf("the job ends with %v, a server with %v, a worker with %v", w.err, b.last, x.err)
		}
		select {
		case <-candidate.gone:
			t.Errorf("one that may coordinate was told that the job is over: %v", candidate.last)
		default:
		}
		if end := lease.last().End; end == nil || end.Exit != 0 || end.Code != 0 || end.Result.Samples != w.result.Samples || end.Result.Samples == 0 {
			t.Errorf("noted is %+v", end)
		}
		if w.c.Connected() != 0 {
			t.Errorf("%d members are waited for", w.c.Connected())
		}
	})
}

// A coordinator that cannot get agreement on the end of a job tells no member: another one takes the job over and ends
// it. A process that was told to end the job ends it anyway.
func TestEndThatIsNotAgreedOn(t *testing.T) {
	for name, told := range map[string]bool{"the job is done": false, "it was told to end": true} {
		t.Run(name, func(t *testing.T) {
			lease := newTestLease(1)
			play(t, Config{MaxWorkers: 1, Servers: 1, Steps: 3, Lease: lease}, func(w *world) {
				b := w.server(0, 1, false)
				x := w.worker(0)
				time.Sleep(1500 * time.Millisecond)
				lease.set(nil, errors.New("no majority"))
				if told {
					w.end(errors.New("SIGINT"))
				}
				w.finished(time.Minute)
				<-b.gone
				<-x.gone
				var lost *session.LostError
				var refused *transport.RejectError
				if told && (errors.Is(w.err, ErrLeaseLost) || !errors.As(b.last, &refused) || !errors.As(x.err, &refused)) ||
					!told && (!errors.Is(w.err, ErrLeaseLost) || !errors.As(b.last, &lost) || !errors.As(x.err, &lost)) {
					t.Errorf("Run ends with %v, a server with %v, a worker with %v", w.err, b.last, x.err)
				}
			})
		})
	}
}

// A coordinator that takes over a job that has ended knows the result, tells the members that do not, and waits only
// briefly.
func TestTakeOverAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  Ending
		exit int
	}{
		"done":                     {Ending{Reason: "finished", Result: runlog.Result{Samples: 40}}, 0},
		"failed":                   {Ending{Exit: exitcode.Diverged, Reason: "worker 1: NaN", Code: exitcode.Diverged, Error: "worker 1: NaN", Result: runlog.Result{Samples: 40}}, exitcode.Diverged},
		"done, but the checkpoint": {Ending{Reason: "finished", Code: exitcode.Failure, Error: "no room", Result: runlog.Result{Samples: 40}}, exitcode.Failure},
		"before shards were there": {Ending{Exit: exitcode.Lost, Reason: "join timeout", Code: exitcode.Lost, Error: "join timeout"}, exitcode.Lost},
		"all members are gone":     {Ending{Reason: "finished", Result: runlog.Result{Samples: 40}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := live(5, 40)
			p.handover.End, p.handover.Counts = &c.end, map[int]int{1: 1}
			if c.end.Result.Samples == 0 {
				p.handover = Handover{Handover: takeover.Handover{End: &c.end}}
			}
			play(t, Config{MaxWorkers: 2, Servers: 3, Steps: 5, Coordinators: 1, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
				begun := time.Now()
				none := name == "all members are gone" || len(p.handover.Workers) == 0
				if !none {
					for rank := range 2 {
						_, err := w.join(hello(rank), enrolment)
						told(w.t, c.end, err)
					}
					if _, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
						Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 0, Addr: "s", Params: 100}}); err != nil {
						t.Errorf("a candidate was told %v; want a welcome, and no more", err)
					}
					synctest.Wait()
					select {
					case <-w.over:
						t.Fatal("it does not wait for the servers")
					default:
					}
					_, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
						Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 1, Shards: 1, Addr: "s", Params: 100}})
					told(w.t, c.end, err)
				}
				w.finished(time.Minute)
				if took := time.Since(begun); took > session.Unreachable+takeover.AbsentWorkers {
					t.Errorf("it ended after %v", took)
				}
				if w.result.Samples != c.end.Result.Samples {
					t.Errorf("the result is %+v", w.result)
				}
				if c.exit == 0 && w.err != nil {
					t.Error(w.err)
				} else if c.exit != 0 {
					w.failed(c.exit, c.end.Error)
				}
			})
		})
	}
}

// Once a process that may coordinate has noticed the loss of the coordinator, the others have, too: members that do not
// come soon already know the end.
func TestWaitsForMembersNotTold(t *testing.T) {
	for name, c := range map[string]struct {
		comes bool
		after time.Duration
	}{"no member has noticed": {false, session.Unreachable + takeover.AbsentWorkers}, "one has": {true, time.Second + takeover.AbsentWorkers}} {
		t.Run(name, func(t *testing.T) {
			p := live(5, 40)
			p.handover.End = &Ending{Reason: "finished"}
			play(t, Config{MaxWorkers: 2, Servers: 3, Steps: 5, Coordinators: 1, Lease: newTestLease(2), Handover: &p.handover}, func(w *world) {
				begun := time.Now()
				time.Sleep(time.Second)
				if c.comes {
					if _, err := session.Join(w.t.Context(), session.MemberConfig{Network: w.net, Addr: "coord", Hello: wire.Hello{
						Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "job", Rank: 0, Addr: "s", Params: 100}}); err != nil {
						t.Fatal(err)
					}
				}
				w.finished(time.Minute)
				if took := time.Since(begun); took != c.after {
					t.Errorf("it ended after %v, want %v", took, c.after)
				}
			})
		})
	}
}

// told checks what a member was told about the end of a job.
func told(t *testing.T, end Ending, err error) {
	t.Helper()
	var over *session.OverError
	var refused *transport.RejectError
	if end.Exit == 0 && !errors.As(err, &over) || end.Exit != 0 && (!errors.As(err, &refused) || refused.Exit != end.Exit || refused.Reason != end.Reason) {
		t.Errorf("a member was told %v", err)
	}
}

// A checkpoint that the previous coordinator has completed is the one that a successor would write; it is kept.
func TestCheckpointExists(t *testing.T) {
	for name, c := range map[string]struct {
		there, fails bool
	}{"complete": {there: true, fails: true}, "not complete": {fails: true}, "new": {there: true}} {
		t.Run(name, func(t *testing.T) {
			p := live(5, 40)
			var discarded []string
			play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover,
				Save: func(cp Checkpoint) (string, error) {
					if c.fails {
						return "", errors.New("a complete checkpoint is not written over")
					}
					return "new " + cp.ID, nil
				},
				Saved:   func(id string) (string, bool) { return "old " + id, c.there },
				Discard: func(id string) { discarded = append(discarded, id) },
			}, func(w *world) {
				w.resumes(p, 0, 1, 5)
				w.resumes(p, 1, 1, 5)
				w.worker(0)
				w.worker(1)
				w.finished(time.Minute)
				want := map[bool]string{true: "old", false: "new"}[c.fails] + fmt.Sprintf(" c%d-%d", 5, p.handover.Generation)
				switch {
				case c.there && (w.err != nil || w.result.Checkpoint != want):
					t.Errorf("%v; the checkpoint is %q, want %q", w.err, w.result.Checkpoint, want)
				case !c.there:
					w.failed(exitcode.Failure, "could not be written")
				}
				if len(discarded) > 0 {
					t.Errorf("%v was removed", discarded)
				}
			})
		})
	}
}

// The same if a shard cannot write its part because the checkpoint is complete.
func TestPartExists(t *testing.T) {
	p := live(5, 40)
	var discarded []string
	play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 5, Lease: newTestLease(2), Handover: &p.handover,
		Save:    func(Checkpoint) (string, error) { return "", errors.New("parts are missing") },
		Saved:   func(id string) (string, bool) { return "old", id != "c5-9" },
		Discard: func(id string) { discarded = append(discarded, id) },
	}, func(w *world) {
		a, b := w.resumes(p, 0, 1, 5), w.resumes(p, 1, 1, 5)
		for _, s := range []*fakeServer{a, b} {
			s.full = true
		}
		w.worker(0)
		w.worker(1)
		w.finished(time.Minute)
		if w.err != nil || w.result.Checkpoint != "old" || !slices.Equal(discarded, nil) {
			t.Errorf("%v; checkpoint %q, removed %v", w.err, w.result.Checkpoint, discarded)
		}
	})
}
