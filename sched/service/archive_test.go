package service

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"star/internal/exitcode"
	"star/internal/ports"
	"star/job"
	"star/sched/live"
)

// idle are hosts with places, on which nothing is ever started.
func idle() []*live.Host { return []*live.Host{{Name: "h", Slots: 2, Closed: "by a test"}} }

// wait waits for something to be so.
func wait(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// counted counts how often a book is written to.
type counted struct {
	book
	writes, events int
}

func (c *counted) add(es ...live.Event) error {
	c.writes++
	c.events += len(es)
	return c.book.add(es...)
}

// Questions that come together are written down together and planned for once, and each is answered with its own job
// alone. What depends on another one of them sees that done.
func TestTogether(t *testing.T) {
	s, err := Start(Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: idle(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c := &counted{book: s.book}
	s.book = c
	ask := func(path, body string) asking {
		return asking{path: path, body: []byte(body), says: make(chan answer, 1)}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	// all has the service asked for all of them at once: each waits to be taken when the first one is.
	all := func(qs ...asking) (as []answer) {
		t.Helper()
		rest := make(chan asking, len(qs))
		s.asked = rest
		for _, q := range qs[1:] {
			rest <- q
		}
		s.together(qs[0])
		for _, q := range qs {
			select {
			case a := <-q.says:
				as = append(as, a)
			case <-ctx.Done():
				t.Fatalf("%s %s is not answered", q.path, q.body)
			}
		}
		return as
	}
	var qs []asking
	for i := range 100 {
		qs = append(qs, ask("/submit", fmt.Sprintf(`{"name": "j%d", "samples": 10}`, i)))
	}
	for i, a := range all(qs...) {
		if name := fmt.Sprint("j", i); a.Error != "" || a.Job != name || len(a.Status.Jobs) != 1 || a.Status.Jobs[0].Job != name || a.Status.Jobs[0].State != live.Waiting {
			t.Fatalf("%s: %+v", name, a)
		}
	}
	if c.events != 102 || c.writes != 2 { // 100 that come, and the two that the policy starts
		t.Errorf("%d events in %d writes", c.events, c.writes)
	}
	as := all(ask("/submit", `{"name": "x", "samples": 10}`), ask("/submit", `{"name": "x", "samples": 10}`), ask("/cancel", "x"), ask("/cancel", "x"), ask("/submit", `{"name": "x", "samples": 10}`), ask("/cancel", "none"), ask("/status", ""), ask("/submit", `{"name": "X"}`))
	for i, want := range []string{"", "there is such a job already", "", "is cancelled already", "", "there is no job none", "", "name"} {
		if got := as[i].Error; got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	if as[4].Job != "x.2" || len(as[6].Status.Jobs) != 102 {
		t.Errorf("submitted again it is %s; the status has %d jobs", as[4].Job, len(as[6].Status.Jobs))
	}
}

// A job that has ended leaves the queue after a while and is in the archive, also after restarts, and when a service
// ended between the two.
func TestArchive(t *testing.T) {
	o := Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: idle(), Keep: time.Hour, Log: slog.New(slog.DiscardHandler)}
	file := filepath.Join(o.Dir, archiveName)
	names := func(jobs []JobStatus) (ns []string) {
		for _, j := range jobs {
			ns = append(ns, j.Job)
		}
		return ns
	}
	start := func() *Service {
		t.Helper()
		o.Hosts = idle()
		s, err := Start(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start()
	cancelled := func(name string) live.Event {
		return live.Event{At: s.now(), Kind: live.KindStop, Job: name, State: live.Cancelled, Why: "cancelled"}
	}
	for _, name := range []string{"a", "b", "c"} {
		e := submitted(name)
		e.At = s.now()
		if err := s.commit(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.commit(cancelled("a"), cancelled("b")); err != nil {
		t.Fatal(err)
	}
	s.archive()
	if st := s.status(); len(st.Jobs) != 3 || st.Archive != "" {
		t.Fatalf("before its time: %v, %q", names(st.Jobs), st.Archive)
	}
	s.o.Keep = time.Nanosecond
	before, err := os.ReadFile(filepath.Join(o.Dir, queueName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(o.Dir, "jobs", "a"), 0o700); err != nil { // as if it had run
		t.Fatal(err)
	}
	s.archive()
	if st := s.status(); !slices.Equal(names(st.Jobs), []string{"c"}) || st.Archive != file {
		t.Fatalf("%v, %q", names(st.Jobs), st.Archive)
	}
	s.close()

	// The service ended before the queue knew, and half a line was written.
	if err := os.WriteFile(filepath.Join(o.Dir, queueName), before, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := appendLines(file, []byte(`{"job":"b","sta`)); err != nil {
		t.Fatal(err)
	}
	s = start()
	if st := s.status(); len(st.Jobs) != 3 {
		t.Fatalf("%v", names(st.Jobs))
	}
	s.o.Keep = time.Nanosecond
	s.archive()
	s.close()
	s = start()
	defer s.close()
	if st := s.status(); !slices.Equal(names(st.Jobs), []string{"c"}) {
		t.Errorf("%v", names(st.Jobs))
	}
	jobs, torn, err := ReadArchive(file)
	if err != nil || torn != 1 || !slices.Equal(names(jobs), []string{"a", "b"}) || jobs[0].State != live.Cancelled || jobs[0].Why != "cancelled" || jobs[0].Ended == nil {
		t.Errorf("%+v, %d torn, %v", jobs, torn, err)
	}
	if a, b := s.q.Again("a"), s.q.Again("b"); a != "a.2" || b != "b" {
		t.Errorf("a, which has a folder, is taken in as %s, and b as %s", a, b)
	}
}

// When the events of a queue are longer than the queue it takes their place, and a service that begins again has the
// same queue.
func TestCompact(t *testing.T) {
	o := Options{Dir: t.TempDir(), Policy: "fifo", Slot: time.Second, Hosts: idle(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	queue := filepath.Join(o.Dir, queueName)
	most := int64(0)
	for i := range 35 {
		var in, out []live.Event
		gone := live.Event{Kind: live.KindArchive}
		for k := range 20 {
			e := submitted(fmt.Sprintf("j%d-%d", i, k))
			e.At, e.Spec.Settings = s.now(), map[string]string{"note": strings.Repeat("x", 4000)}
			in = append(in, e)
			out = append(out, live.Event{At: s.now(), Kind: live.KindStop, Job: e.Job, State: live.Cancelled, Why: "cancelled"})
			gone.Jobs = append(gone.Jobs, e.Job)
		}
		gone.At = s.now()
		for _, es := range [][]live.Event{in, out, {gone}} {
			if err := s.commit(es...); err != nil {
				t.Fatal(err)
			}
		}
		i, err := os.Stat(queue)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, i.Size())
	}
	if most > 2*compactAt {
		t.Errorf("the file had up to %d bytes", most)
	}
	if err := s.commit(submitted("last")); err != nil {
		t.Fatal(err)
	}
	newest := s.q.Newest
	s.close()
	o.Hosts = idle()
	if s, err = Start(o); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if len(s.q.Jobs) != 1 || s.q.Job("last") == nil || s.q.Newest < newest {
		t.Errorf("%d jobs, %v s; it was %v s", len(s.q.Jobs), s.q.Newest, newest)
	}
	if _, err := Read(o.Dir); err != nil { // star report
		t.Error(err)
	}
	text, err := os.ReadFile(queue)
	var h head
	if err != nil || json.Unmarshal(text[:strings.IndexByte(string(text), '\n')], &h) != nil || h.Format != savedFormat {
		t.Errorf("format %d, %v", h.Format, err)
	}
	if left, _ := filepath.Glob(queue + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// serviceGroup are three services with one queue in this process.
type serviceGroup struct {
	addrs, dirs []string
	jobs        string
	end         []func() // of each
}

// threeServices begins them. They end with the test.
func threeServices(t *testing.T, ctx context.Context, keep time.Duration) *serviceGroup {
	t.Helper()
	c := &serviceGroup{jobs: t.TempDir()}
	for range 3 {
		addr, err := ports.Reserve("127.0.0.1", c.addrs...)
		if err != nil {
			t.Fatal(err)
		}
		c.addrs, c.dirs = append(c.addrs, addr), append(c.dirs, filepath.Join(t.TempDir(), "q"))
	}
	for r := range c.addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		c.end = append(c.end, func() { stop(); <-ended })
		t.Cleanup(c.end[r])
		go func() {
			defer close(ended)
			o := Options{Dir: c.dirs[r], Jobs: c.jobs, Policy: "fifo", Slot: time.Second, Hosts: idle(), Address: "127.0.0.1", Keep: keep,
				Peers: &Peers{Members: c.addrs, Rank: r, Wait: time.Minute}, Log: slog.New(slog.DiscardHandler)}
			if err := ServePeers(ctx, o, l); err != nil && ctx.Err() == nil {
				t.Errorf("service %d: %v", r, err)
			}
		}()
	}
	return c
}

// Several services have one archive, beside the jobs: the service that decides next knows which jobs have left the
// queue, and no job is lost or recorded twice.
func TestPeersArchive(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	c := threeServices(t, ctx, time.Millisecond)
	again := func(do func() error) {
		t.Helper()
		wait(t, "one decides", func() bool {
			err := do()
			if err != nil && job.ExitCode(err) != exitcode.Lost && !strings.Contains(err.Error(), " already") && !strings.Contains(err.Error(), "there is no job") {
				t.Fatal(err)
			}
			return err == nil || job.ExitCode(err) != exitcode.Lost
		})
	}
	var st Status
	status := func(dir string) { again(func() (err error) { st, err = Ask(ctx, dir); return err }) }
	const each = 20
	in := func(dir string, from int) {
		t.Helper()
		for i := from; i < from+each; i++ {
			name := fmt.Sprint("j", i)
			again(func() error {
				_, err := Submit(ctx, dir, live.Spec{Name: name, Samples: 10})
				return err
			})
			again(func() error { return Cancel(ctx, dir, name) })
		}
		again(func() error {
			_, err := Submit(ctx, dir, live.Spec{Name: fmt.Sprint("stays", from), Samples: 10})
			return err
		})
	}
	out := func(dir string, left, archived int) {
		t.Helper()
		wait(t, "they leave", func() bool { status(dir); return len(st.Jobs) == left })
		jobs, torn, err := ReadArchive(st.Archive)
		if err != nil || torn > 0 || len(jobs) != archived || filepath.Dir(st.Archive) != c.jobs {
			t.Errorf("%d jobs in %s, %d torn, %v; want %d", len(jobs), st.Archive, torn, err, archived)
		}
	}
	wait(t, "they answer", func() bool { _, err := Ask(ctx, c.dirs[0]); return err == nil })
	in(c.dirs[1], 0)
	out(c.dirs[2], 1, each)
	first := slices.IndexFunc(st.Peers, func(p PeerStatus) bool { return p.Decides })
	c.end[first]()
	other := (first + 1) % 3
	status(c.dirs[other])
	in(c.dirs[other], each)
	out(c.dirs[(first+2)%3], 2, 2*each)
}
