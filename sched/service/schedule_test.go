package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"star"
	"star/job"
	"star/runlog"
	"star/sched/live"
)

func submitted(name string) live.Event {
	return live.Event{At: 1, Kind: live.KindSubmit, Job: name, Spec: &live.Spec{Name: name, Samples: 10, Workers: 1, Min: 1, Max: 1}}
}

// What is written is read again; half a line at the end was never acted upon; one process has the folder.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s, events, _, err := openStore(dir)
	if err != nil || len(events) != 0 {
		t.Fatal(events, err)
	}
	began := s.head.Time
	for _, name := range []string{"a", "b"} {
		if err := s.write(submitted(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, _, err := openStore(dir); job.ExitCode(err) != 78 || !strings.Contains(err.Error(), "another star sched serve") {
		t.Errorf("a second one: %v", err)
	}
	s.file.File.WriteAt([]byte(`{"at":3,"ev`), s.file.Size)
	s.close()
	s, events, torn, err := openStore(dir)
	if err != nil || torn != 11 || len(events) != 2 || events[1].Spec.Name != "b" || !s.head.Time.Equal(began) {
		t.Fatalf("%d bytes torn, %+v, %v", torn, events, err)
	}
	s.close()
	if err := os.WriteFile(filepath.Join(dir, "queue.jsonl"), []byte("{\"format\":1}\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := openStore(dir); job.ExitCode(err) != 65 || !strings.Contains(err.Error(), "queue.jsonl:2: ") {
		t.Errorf("nonsense: %v", err)
	}
}

// While the disk is full no job is accepted, and no existing data is lost.
func TestFullDisk(t *testing.T) {
	var said strings.Builder
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 0}}, Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.commit(submitted("a")); err != nil {
		t.Fatal(err)
	}
	file := s.book.(*store).file
	size, f := file.Size, file.File
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	file.File = full
	for range 3 {
		if err := s.commit(submitted("b")); job.ExitCode(err) != 73 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	}
	if st := s.status(); !strings.Contains(st.Error, "no space left") || len(st.Jobs) != 1 {
		t.Errorf("%+v", st)
	}
	if n := strings.Count(said.String(), "cannot write the queue"); n != 1 {
		t.Errorf("said %d times", n)
	}
	file.File = f
	if file.Size != size {
		t.Errorf("%d bytes, were %d", file.Size, size)
	}
	if err := s.commit(submitted("b")); err != nil || s.status().Error != "" {
		t.Errorf("%v, %s", err, s.status().Error)
	}
}

// A job with a coordinator that cannot listen anywhere waits, and the status says why.
func TestNowhereToListen(t *testing.T) {
	var said strings.Builder
	// of no machine: RFC 1112, section 4
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 1}}, Address: "240.0.0.7", Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.commit(submitted("a")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.act()
	}
	if j, st := s.q.Job("a"), s.status(); j.State != live.Waiting || j.Want != 1 || !strings.Contains(st.Error, "no coordinator can listen at --address: listen tcp 240.0.0.7") {
		t.Errorf("%s, %d workers, %q", j.State, j.Want, st.Error)
	}
	if n := strings.Count(said.String(), "no coordinator can listen"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// ended waits until a process has.
func ended(t *testing.T, p child) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not end", p)
		}
	}
}

// A process is known to live by its lock, and gets each signal once; orders reach a process that reads them.
func TestChild(t *testing.T) {
	codes := newCodes()
	p := child(filepath.Join(t.TempDir(), "p"))
	if p.alive() {
		t.Error("alive before it began")
	}
	script := `trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.01; done`
	if err := p.start(exec.Command("/bin/sh", "-c", script), nil, codes); err != nil {
		t.Fatal(err)
	}
	if err := p.start(exec.Command("/bin/true"), nil, codes); err == nil {
		t.Error("started twice")
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if text, _ := os.ReadFile(p.file(".out")); string(text) == "ready\n" {
			break
		} else if time.Now().After(end) {
			t.Fatal("not ready")
		}
	}
	for range 2 {
		if err := p.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	ended(t, p)
	select {
	case <-codes.news:
	case <-time.After(time.Minute):
		t.Fatal("nobody is told that it has ended")
	}
	if code, ok := codes.get(p); !ok || code != 7 {
		t.Errorf("exit code %d, %v", code, ok)
	}

	far := child(filepath.Join(t.TempDir(), "far"))
	if err := far.start(exec.Command("/bin/sh", "-c", `read settings; read order; echo "$settings $order" >&2`), []byte(`["A=1"]`), codes); err != nil {
		t.Fatal(err)
	}
	if !far.alive() {
		t.Error("the input has ended")
	}
	if err := far.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended(t, far)
	if got := far.last(); got != `["A=1"] 15` {
		t.Errorf("it read %q", got)
	}
}

// A job that has ended while no service was there has ended when it wrote its result, not when that is found.
func TestEndedWithoutAService(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 1}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.began = time.Now().Add(-time.Hour)
	submit := submitted("a")
	submit.Spec.Deadline = 600
	for _, e := range []live.Event{submit, {At: 2, Kind: live.KindBegin, Job: "a", Life: 1}} {
		if err := s.q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	j := s.q.Job("a")
	p := s.coordinator(j)
	if err := os.MkdirAll(filepath.Dir(string(p)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.file(".out"), []byte(`{"samples": 10}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(p.file(".out"), time.Time{}, s.began.Add(500*time.Second)); err != nil {
		t.Fatal(err)
	}
	s.over(j)
	if st := s.status().Jobs[0]; st.State != live.Done || st.Met == nil || !*st.Met || *st.Ended < 499 || *st.Ended > 501 {
		t.Errorf("%+v", st)
	}
}

// What a start, a worker more and an end take is taken from the times in the job's log, not from when the log is read.
func TestTookByTheLog(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 2}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.began = time.Now().Add(-time.Hour)
	for _, e := range []live.Event{submitted("a"), {At: 100, Kind: live.KindBegin, Job: "a", Life: 1}, {At: 100, Kind: live.KindAdd, Job: "a", Member: 1, Host: "h"}} {
		if err := s.q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	j := s.q.Job("a")
	log := logOf(t, s, j)
	write := func(at float64, e runlog.Entry) { log.Write(time.Duration(at*float64(time.Second)), e) }
	// a second after it was begun
	write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star", Time: s.began.Add(101 * time.Second), Job: "a"})
	write(1, runlog.Join{})
	write(1, runlog.Train{Workers: 2, Plan: "ssgd"})
	for i := range 3 {
		write(1.5+float64(i), runlog.Fire{Seq: int64(i + 1), Version: int64(i + 1), Samples: int64(32 * (i + 1))})
	}
	if err := log.Flush(); err != nil {
		t.Fatal(err)
	}
	s.tail(j)
	if got := s.q.Took("start"); math.Abs(got-2.5) > 1e-6 {
		t.Errorf("the first update was 2.5 s after the job was begun, and a start took %v s", got)
	}
	if got := s.q.SinceUpdate(j, 110); math.Abs(got-5.5) > 1e-6 {
		t.Errorf("the last update was at 104.5, %v s before 110", got)
	}
	if err := s.q.Apply(live.Event{At: 105, Kind: live.KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1}); err != nil {
		t.Fatal(err)
	}
	write(5.25, runlog.Join{Worker: 1})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	s.tail(j)
	if got := s.q.Took("resize"); math.Abs(got-1.25) > 1e-6 {
		t.Errorf("a worker decided at 105 came at 106.25, and a resize took %v s", got)
	}
}

// Of a log that lost its first updates to its bound before the service read it, the first update is that of the gap,
// and the last one the latest that is known.
func TestTailOfALogThatLacksLines(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 1}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.began = time.Now().Add(-time.Hour)
	for _, e := range []live.Event{submitted("a"), {Kind: live.KindBegin, Job: "a", Life: 1}, {Kind: live.KindAdd, Job: "a", Member: 1, Host: "h"}} {
		if err := s.q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	j := s.q.Job("a")
	log := logOf(t, s, j)
	log.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star", Time: s.began, Job: "a"})
	log.Write(time.Second, runlog.Join{})
	log.Write(time.Second, runlog.Train{Workers: 1, Plan: "ssgd"})
	log.Write(2*time.Second, runlog.Gap{Until: 50, Records: 49, Fires: 49, Version: 49, Samples: 32 * 49})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	s.tail(j)
	if got := s.q.Took("start"); math.Abs(got-2) > 1e-6 {
		t.Errorf("the first update was after 2 s, and a start took %v s", got)
	}
	if got := s.q.SinceUpdate(j, 110); math.Abs(got-60) > 1e-6 {
		t.Errorf("the last update that is known was at 50, %v s before 110", got)
	}
}

// logOf begins the run log of a job's life.
func logOf(t *testing.T, s *Service, j *live.Job) *runlog.Writer {
	t.Helper()
	dir := s.dir(j.Name, j.Life)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return runlog.NewWriter(f)
}

// A host is avoided while a worker there is clearly slow for a cause that is known, however many say so at once and
// whatever else is said of others there; and also if that was said while no service was there.
func TestVerdicts(t *testing.T) {
	o := Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 3}}, Log: slog.New(slog.DiscardHandler)}
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []live.Event{submitted("a"), {Kind: live.KindBegin, Job: "a", Life: 1}, {Kind: live.KindAdd, Job: "a", Member: 1, Host: "h"}, {Kind: live.KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1}} {
		if e.At = 0; s.book.add(e) != nil || s.q.Apply(e) != nil {
			t.Fatal(e)
		}
	}
	log := logOf(t, s, s.q.Job("a"))
	log.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star", Time: s.began, Job: "a"})
	log.Write(0, runlog.Join{})
	log.Write(0, runlog.Join{Worker: 1})
	log.Write(0, runlog.Train{Workers: 2, Plan: "ssgd"})
	said := func() (n int, slow string) { // events of hosts so far, and why h is avoided
		t.Helper()
		defer func() {
			if h := s.q.Hosts[0]; slow != "" && !strings.Contains(slow, fmt.Sprintf(": %.1fx slow", h.Times)) {
				t.Errorf("h is %v times as slow, and said to be: %s", h.Times, slow)
			}
		}()
		if log != nil {
			if err := log.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		s.tail(s.q.Job("a"))
		for e, ok := s.q.Next(s.now()); ok && e.Host == "h" && e.Job == ""; e, ok = s.q.Next(s.now()) {
			if err := s.commit(e); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range s.history.Decided {
			if e.Kind == live.KindSlow || e.Kind == live.KindWell {
				n++
			}
		}
		return n, s.q.Hosts[0].Slow
	}
	verdict := func(worker star.Worker, event string, times float64, cause string) runlog.Verdict {
		return runlog.Verdict{Worker: worker, Event: event, Slowdown: runlog.Number(times), Cause: cause}
	}
	for i, c := range []struct {
		verdicts []runlog.Verdict
		events   int // in all
		slow     string
	}{
		{[]runlog.Verdict{verdict(0, "slow", 3, "unknown"), verdict(1, "slow", 1.04, "compute")}, 0, ""},
		{[]runlog.Verdict{verdict(0, "recovered", 3, "unknown"), verdict(1, "recovered", 1, "compute")}, 0, ""},
		{[]runlog.Verdict{verdict(0, "slow", 2, "compute"), verdict(1, "slow", 1.5, "data")}, 1, "worker 0 of a: 2.0x slow (compute)"},
		// the other one is slow still
		{[]runlog.Verdict{verdict(0, "recovered", 2, "compute")}, 1, "worker 0 of a: 2.0x slow (compute)"},
		{[]runlog.Verdict{verdict(0, "slow", 1.9, "unknown"), verdict(0, "recovered", 1.9, "unknown")}, 1, "worker 0 of a: 2.0x slow (compute)"},
		{[]runlog.Verdict{verdict(0, "slow", 2, "compute"), verdict(0, "recovered", 2, "compute"), verdict(1, "recovered", 1.5, "data"), verdict(0, "slow", 4, "compute"), verdict(0, "recovered", 4, "compute")}, 2, ""},
		{[]runlog.Verdict{verdict(1, "slow", 3, "unknown"), verdict(1, "changed", 3, "steal")}, 3, "worker 1 of a: 3.0x slow (steal)"},
		{[]runlog.Verdict{verdict(1, "changed", 1.02, "data"), verdict(1, "recovered", 1.02, "data")}, 4, ""},
	} {
		for _, v := range c.verdicts {
			log.Write(time.Second, v)
		}
		if n, slow := said(); n != c.events || slow != c.slow {
			t.Errorf("%d: after %d events h is avoided because of %q, want %d, %q", i, n, slow, c.events, c.slow)
		}
	}

	s.close()
	log.Write(time.Second, verdict(1, "slow", 2.5, "gpu"))
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	o.Hosts = []*live.Host{{Name: "h", Slots: 3}}
	if s, err = Start(o); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	log = nil
	if _, slow := said(); slow != "worker 1 of a: 2.5x slow (gpu)" {
		t.Errorf("what was said while no service was there: %q", slow)
	}
}

// A user that cancels an unknown job may have mistyped its name, and gets another exit code than one that cancels a job
// that is over.
func TestCancel(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 1, Away: 1e18}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.commit(submitted("a")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		job  string
		code int
		says string
	}{{"b", 66, "there is no job b: see star sched status"}, {"a", 0, ""}, {"a", 1, "job a is cancelled already"}} {
		q := asking{path: "/cancel", body: []byte(c.job), says: make(chan answer, 1)}
		s.together(q)
		if a := <-q.says; a.Code != c.code || a.Error != c.says {
			t.Errorf("%s: %q, code %d, want %q, %d", c.job, a.Error, a.Code, c.says, c.code)
		}
	}
}

// The status names a worker that does not take part, with its last message; it does not name one that takes part, or
// has just been started.
func TestWhoDoesNotTakePart(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 2}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	at := func(at float64, e live.Event) { // far from the clock, which has no part in it
		t.Helper()
		e.At = 1e6 + at
		if err := s.q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	at(0, submitted("a"))
	at(0, live.Event{Kind: live.KindDecide, Job: "a", Workers: 2, Why: "first come"})
	at(0, live.Event{Kind: live.KindBegin, Job: "a", Life: 1})
	at(0, live.Event{Kind: live.KindAdd, Job: "a", Member: 1, Host: "h"})
	at(4, live.Event{Kind: live.KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1})
	j := s.q.Job("a")
	if err := os.MkdirAll(filepath.Dir(string(s.worker(j, 2))), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.worker(j, 2).file(".log"), []byte("one\nImagePullBackOff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	says := func(at float64, want string) {
		t.Helper()
		s.q.Newest = 1e6 + at
		if got := s.status().Jobs[0].Why; got != want {
			t.Errorf("after %v s %q, want %q", at, got, want)
		}
	}
	says(9, "first come")
	says(11, "first come; worker 1 on h: it has not taken part for 11 s")
	s.q.Joined(j, 0, 12, 12)
	says(13, "first come")
	says(15, "first come; worker 2 on h: it has not taken part for 11 s: ImagePullBackOff")
	if got := s.View().Schedules[0].Running.Jobs[0].Why; !strings.HasSuffix(got, "ImagePullBackOff") {
		t.Errorf("the page has %q", got)
	}
	s.q.Joined(j, 1, 16, 16)
	s.q.Left(j, 1, s.now(), s.now())
	says(17, "first come; worker 2 on h: the job continued without it, and it has not returned: its host is unreachable, or the process hangs: ImagePullBackOff")
	at(18, live.Event{Kind: live.KindLeave, Job: "a", Member: 2})
	says(60, "first come")
}

// A worker that ends well before its job does has not failed, and its host is as good as before: others go there at
// once. A worker that fails, or is left behind by its job, has.
func TestWorkerEndsFirst(t *testing.T) {
	for _, c := range []struct {
		code int
		ago  time.Duration // since it was first seen to have ended; 0: it is seen now
		gone bool
	}{{0, 0, false}, {0, time.Second, false}, {0, time.Minute, true}, {1, 0, true}} {
		s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "h", Slots: 1}}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		for _, e := range []live.Event{submitted("a"), {Kind: live.KindBegin, Job: "a", Life: 1}, {Kind: live.KindAdd, Job: "a", Member: 1, Host: "h"}} {
			if err := s.q.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		j := s.q.Job("a")
		m := j.Members[0]
		p := s.worker(j, m.ID)
		if err := os.MkdirAll(filepath.Dir(string(p)), 0o700); err != nil {
			t.Fatal(err)
		}
		s.ended.of[p] = c.code
		if c.ago > 0 {
			s.missed[p] = time.Now().Add(-c.ago)
		}
		s.lookAt(j, m)
		if gone := len(j.Members) == 0; gone != c.gone || (s.q.Hosts[0].Fails > 0) != c.gone {
			t.Errorf("exit code %d, %v ago: gone %v, its host has failed %d times; want gone %v", c.code, c.ago, gone, s.q.Hosts[0].Fails, c.gone)
		}
	}
}

// A service asks the cluster of its hosts again and again which of them it gives to no job, and keeps the last answer
// when there is no new one.
func TestClosed(t *testing.T) {
	defer func(was time.Duration) { askEvery = was }(askEvery)
	askEvery = time.Millisecond
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	answers := make(chan func() (map[string]string, error)) // to each question one
	var said strings.Builder
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: []*live.Host{{Name: "a", Slots: 0}, {Name: "b", Slots: 0}}, Log: slog.New(slog.NewTextHandler(&said, nil)),
		Closed: func() (map[string]string, error) {
			select {
			case a := <-answers:
				return a()
			case <-ctx.Done():
				return nil, nil
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		s.run(ctx, nil)
	}()
	for i, c := range []struct {
		closed map[string]string
		err    error
		want   []string
	}{
		{nil, nil, []string{"", ""}},
		{map[string]string{"a": "drained", "b": ""}, nil, []string{"drained", ""}},
		{nil, errors.New("nobody answers"), []string{"drained", ""}},
		{nil, errors.New("nobody answers"), []string{"drained", ""}},
		{map[string]string{"a": "", "b": "down"}, nil, []string{"", "down"}},
	} {
		is := func() (has []string) {
			if a := s.answer(ctx, "/status", nil); a.Status != nil {
				for _, h := range a.Status.Hosts {
					has = append(has, h.Closed)
				}
			}
			return has
		}
		select {
		case answers <- func() (map[string]string, error) { return c.closed, c.err }:
		case <-ctx.Done():
			t.Fatalf("%d: it does not ask", i)
		}
		for !slices.Equal(is(), c.want) {
			if time.Sleep(time.Millisecond); ctx.Err() != nil {
				t.Fatalf("%d: %q, want %q", i, is(), c.want)
			}
		}
	}
	stop()
	<-ran
	if n := strings.Count(said.String(), "nobody answers"); n != 1 {
		t.Errorf("said %d times that nobody answers", n)
	}
}

// A line that is of something else is not taken for the reason why a process has ended.
func TestReason(t *testing.T) {
	p := child(filepath.Join(t.TempDir(), "ps"))
	for _, c := range []struct {
		log  string
		code int
		want string
	}{
		{"joined\n", killed, " by signal 9, killed"},
		{"", 128 + 15, " by signal 15, terminated"},
		{"joined\nstar: the coordinator is lost\n", killed, " by signal 9, killed: the coordinator is lost"},
		{"joined\nstar: the coordinator is lost\n", 69, " with exit code 69: the coordinator is lost"},
		{"there is no such module\n", 1, " with exit code 1: there is no such module"},
		{"ssh: connection timed out", unreached, " with exit code 255: ssh: connection timed out"},
		{"", 1, " with exit code 1"},
	} {
		if err := os.WriteFile(p.file(".log"), []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := byWhat(c.code) + p.reason(c.code); got != c.want {
			t.Errorf("%q, %d: %q", c.log, c.code, got)
		}
	}
}

// A job that star ctl has stopped before its last sample is stopped, and has met no deadline; one that was stopped
// after it, or that ends early by itself, is done.
func TestStoppedIsNotDone(t *testing.T) {
	for _, c := range []struct {
		samples int64
		stop    bool
		want    live.State
	}{{4, true, live.Stopped}, {10, true, live.Done}, {4, false, live.Done}} {
		s := alone(t)
		submit := submitted("a")
		submit.Spec.Deadline = 1e6
		for _, e := range []live.Event{submit, {At: 2, Kind: live.KindBegin, Job: "a", Life: 1}} {
			if err := s.q.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		j := s.q.Job("a")
		log := logOf(t, s, j)
		log.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star", Time: s.began, Job: "a"})
		log.Write(0, runlog.Join{})
		log.Write(0, runlog.Train{Workers: 1, Plan: "ssgd"})
		log.Write(time.Second, runlog.Fire{Seq: 1, Version: 1, Samples: c.samples})
		if c.stop {
			log.Write(time.Second, runlog.Stop{Limit: 1, Why: "star ctl"})
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.coordinator(j).file(".out"), []byte(`{"train_loss": 0.5}`), 0o600); err != nil {
			t.Fatal(err)
		}
		s.tail(j)
		s.over(j)
		st := s.status().Jobs[0]
		if st.State != c.want || st.Met == nil || *st.Met != (c.want == live.Done) || strings.Contains(st.Why, "by star ctl, at 4 of 10 samples") != (c.want == live.Stopped) {
			t.Errorf("%d of 10 samples, stopped %v: %+v", c.samples, c.stop, st)
		}
		if again := s.q.Again("a"); (again == "a.2") != (c.want == live.Stopped) {
			t.Errorf("%s and submitted again it is %s", st.State, again)
		}
	}
}
