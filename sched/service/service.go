package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"star/internal/exitcode"
	"star/internal/ports"
	"star/internal/settings"
	"star/job/process"
	"star/observe/web"
	"star/runlog"
	"star/sched/live"
)

// Options configure a service.
type Options struct {
	Dir     string // folder of the queue
	Jobs    string // folder of the jobs; empty: in Dir
	Peers   *Peers // services that share a queue; nil: this one is alone
	Policy  string // one of sched.LivePolicies
	Slot    time.Duration
	Hosts   []*live.Host
	Address string // of this machine, as workers on other hosts reach it: coordinators listen there
	Log     *slog.Logger
	Page    *web.LiveSchedules // shows the queue; nil: no page
	// Keep is how long a job that has ended stays in the queue before only the archive has it; 0: for ever.
	Keep time.Duration

	// Command returns the command of a worker of that name on a place of a host, with env in its environment. own is a
	// job's own command; nil: STAR's worker. input is what the command reads first; nil: nothing, and signals go to the
	// process itself.
	Command func(name, host string, place int, env, own []string) (cmd *exec.Cmd, input []byte, err error)
	// Kill ends a worker by name, if the end of its command does not end it. Nil: it does.
	Kill func(name string) error
	// Closed returns which hosts their cluster withholds, and why. It may be slow. Nil: there is no such cluster.
	Closed func() (map[string]string, error)
	// Environ is the environment of all processes, without settings.
	Environ []string
}

// Service is a running service.
type Service struct {
	o       Options
	book    book
	began   time.Time // origin of event times, by this process's monotonic clock
	close   func()
	q       *live.Queue
	history *live.History
	shown   time.Time // last update of the page
	ended   *codes
	asked   chan asking
	silent  chan struct{} // closed when requests are no longer handled

	watches map[string]*watch // of running jobs
	told    map[child]time.Time
	missed  map[child]time.Time
	ends    map[string]vain     // by job
	away    map[child]absence   // workers without which their jobs continued
	stuck   string              // why the last event failed
	full    string              // why nothing can be started: the disk is full
	roomy   time.Time           // last time when there was room
	planned time.Time           // last planning
	cost    time.Duration       // duration of it
	lost    bool                // another service leads
	peers   func() []PeerStatus // nil: this service is alone
}

// absence says since when a worker is away, and the assumed reason.
type absence struct {
	since time.Time
	why   string
}

const (
	joins     = "10m" // how long a coordinator waits for workers; one that ends is restarted
	lookEvery = 250 * time.Millisecond
	lingers   = 3 * time.Second  // how long an unexpected end of a worker may precede the end of its job
	mostLeave = 30 * time.Second // how long a worker may take to leave before it is killed
	mostAway  = 15 * time.Second // how long a silent worker may stay away after its job continued without it
	mostSave  = 2 * time.Minute  // how long a job may take to save a checkpoint
	mostQuiet = 10.              // after this many s without taking part a worker is reported: longer than a start
)

// askEvery is how often a cluster is asked about its hosts.
var askEvery = 15 * time.Second

// Start locks the folder and continues where the service before left off.
func Start(o Options) (*Service, error) {
	if err := o.folders(); err != nil {
		return nil, err
	}
	st, events, torn, err := openStore(o.Dir)
	if err != nil {
		return nil, err
	}
	if torn > 0 {
		o.Log.Warn("incomplete last line of the queue dropped; it had no effect", "bytes", torn)
	}
	st.hosts, st.log = o.Hosts, o.Log
	q, h, err := st.saved(o.Hosts)
	if err != nil {
		st.close()
		return nil, err
	}
	s, err := begin(o, st, st.head.Time, q, h, events, func(i int) string { return fmt.Sprintf("%s:%d", filepath.Join(o.Dir, queueName), i+2) }, newCodes())
	if err != nil {
		st.close()
		return nil, err
	}
	s.close = st.close
	return s, nil
}

// folders makes paths absolute: processes on other hosts have other working directories.
func (o *Options) folders() (err error) {
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if o.Jobs == "" {
		o.Jobs = filepath.Join(o.Dir, "jobs")
		return nil
	}
	o.Jobs, err = filepath.Abs(o.Jobs)
	return err
}

// begin starts with a queue and the events since; where names an event that cannot have happened.
func begin(o Options, b book, began time.Time, q *live.Queue, h *live.History, events []live.Event, where func(int) string, ended *codes) (*Service, error) {
	s := &Service{o: o, book: b, began: began, close: func() {}, q: q, history: h, ended: ended, asked: make(chan asking), silent: make(chan struct{}), watches: map[string]*watch{}, told: map[child]time.Time{}, missed: map[child]time.Time{}, ends: map[string]vain{}, away: map[child]absence{}}
	for i, e := range events {
		if err := s.q.Apply(e); err != nil {
			return nil, coded{fmt.Errorf("%s: %w: %w", where(i), errQueue, err), exitcode.Corrupt}
		}
		s.history.Add(e)
	}
	s.clock(began)
	s.q.Past = s.past
	running := 0
	for _, j := range s.q.Jobs {
		if j.State != live.Running && j.State != live.Stopping {
			continue
		}
		s.tail(j) // its progress is in its log
		if !s.coordinator(j).alive() {
			continue
		}
		if running++; j.State == live.Stopping {
			s.say(s.coordinator(j), syscall.SIGTERM)
		}
		for _, m := range j.Members {
			if p := s.worker(j, m.ID); m.Leaving && p.alive() {
				s.say(p, syscall.SIGTERM)
			}
		}
	}
	if err := s.q.Schedule(o.Policy, o.Slot.Seconds(), s.now()); err != nil {
		return nil, err
	}
	o.Log.Info("queue loaded", "dir", o.Dir, "policy", o.Policy, "hosts", len(o.Hosts), "places", s.q.Slots(), "jobs", len(s.q.Jobs), "running", running)
	return s, nil
}

// clock continues the queue's time from its newest event, by the monotonic clock. If the queue was written with a clock
// that was ahead (this machine's before it was set, or another one's), the service does not wait for it.
func (s *Service) clock(began time.Time) {
	now := time.Now()
	since := now.Round(0).Sub(began.Round(0)).Seconds()
	if ahead := s.q.Newest - since; ahead > mostAhead {
		s.o.Log.Warn("queue was written by a clock ahead of this one; its time continues from there", "ahead", time.Duration(ahead*float64(time.Second)).Round(time.Second), "began", began)
	}
	s.began = now.Add(-time.Duration(max(since, s.q.Newest) * float64(time.Second)))
}

// mostAhead is how much another machine's clock may be ahead, s: NTP keeps them closer.
const mostAhead = 1.

// now returns s since the queue began. It does not go back, even if another machine's clock was ahead.
func (s *Service) now() float64 { return max(s.q.Newest, time.Since(s.began).Seconds()) }

func (s *Service) coordinator(j *live.Job) child {
	return child(filepath.Join(s.dir(j.Name, j.Life), "ps"))
}

func (s *Service) worker(j *live.Job, id int) child {
	return child(filepath.Join(s.o.Jobs, j.Name, fmt.Sprintf("worker-%d", id)))
}

// workerName returns an engine's name for a worker.
func workerName(j *live.Job, id int) string { return fmt.Sprintf("star-%s-worker-%d", j.Name, id) }

// say sends a signal. A process that does not react is killed later.
func (s *Service) say(p child, sig syscall.Signal) {
	if _, ok := s.told[p]; !ok {
		s.told[p] = time.Now()
	}
	if err := s.signal(p, sig); err != nil {
		s.o.Log.Warn("cannot send signal", "process", string(p), "signal", sig.String(), "error", err)
	}
}

// Serve answers requests and schedules until the context ends. Jobs continue without it.
func (s *Service) Serve(ctx context.Context, l net.Listener) error {
	defer s.close()
	stop, err := listen(l, s.o.Dir, s.answer)
	if err != nil {
		return err
	}
	defer stop()
	s.run(ctx, nil)
	s.o.Log.Info("service stopped; running jobs continue, and star sched serve with the same --dir finds them again")
	return nil
}

// run schedules until the context ends, or this service no longer leads.
func (s *Service) run(ctx context.Context, lost <-chan struct{}) {
	defer close(s.silent)
	defer func() {
		for _, w := range s.watches {
			if w.file != nil {
				w.file.Close()
			}
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	if s.o.Closed != nil {
		go s.inquire(askEvery)
	}
	s.closeLives()
	s.look()
	for !s.lost {
		select {
		case a := <-s.asked:
			s.together(a)
		case <-s.ended.news: // other jobs wait for its place
			s.look()
		case <-tick.C:
			s.look()
			s.show()
		case <-lost:
			return
		case <-ctx.Done():
			return
		}
	}
}

// inquire asks a cluster periodically which of its hosts it withholds, until the service stops.
func (s *Service) inquire(every time.Duration) {
	failed := ""
	for {
		closed, err := s.o.Closed()
		if err == nil {
			failed = ""
			select {
			case s.asked <- asking{do: func() { s.closed(closed) }}:
			case <-s.silent:
				return
			}
		} else if failed != err.Error() { // what was known still counts
			failed = err.Error()
			s.o.Log.Warn("cannot ask the cluster which nodes it withholds", "error", err)
		}
		select {
		case <-time.After(every):
		case <-s.silent:
			return
		}
	}
}

// closed updates which hosts are withheld.
func (s *Service) closed(closed map[string]string) {
	for _, h := range s.q.Hosts {
		switch why := closed[h.Name]; {
		case why != "" && h.Closed == "":
			s.o.Log.Warn("host closed; nothing is started there", "host", h.Name, "why", why)
		case why == "" && h.Closed != "":
			s.o.Log.Info("host reopened", "host", h.Name)
		}
		h.Closed = closed[h.Name]
	}
}

// commit writes events down together, applies them, and carries them out. After an error nothing has happened.
func (s *Service) commit(es ...live.Event) error {
	for i := range es {
		if es[i].Kind == live.KindBegin {
			addr, err := ports.Reserve(s.o.Address)
			if err != nil { // the first address may be usable again
				return s.keeps(coded{fmt.Errorf("no coordinator can listen at --address: %w; nothing is started until one can", err), exitcode.Lost})
			}
			es[i].Addr = addr
		}
	}
	if s.lost {
		return errLost
	}
	if err := s.room(es); err != nil {
		return err
	}
	if err := s.book.add(es...); err != nil {
		s.lost = errors.Is(err, errLost)
		return s.keeps(err)
	}
	if s.stuck != "" {
		s.stuck = ""
		s.o.Log.Info("queue resumed")
	}
	for _, e := range es {
		if err := s.q.Apply(e); err != nil {
			return err
		}
		s.history.Add(e)
		s.report(e)
	}
	if !s.book.held() { // the next leader does it
		s.lost = true
		return errLost
	}
	for _, e := range es {
		s.do(e)
	}
	return nil
}

// keeps records what prevents an event, and logs it once.
func (s *Service) keeps(err error) error {
	if s.stuck != err.Error() {
		s.stuck = err.Error()
		s.o.Log.Error(s.stuck)
	}
	return err
}

// roomFor is how many bytes must be free for a job to be accepted or a process to be started: the beginning of its log.
const roomFor = 64 << 10

// room checks that there is space for what events start, unless it has just done so. A queue may still have space for a
// line when nothing else has, and jobs would fail because they could not be started.
func (s *Service) room(es []live.Event) error {
	begins := func(e live.Event) bool {
		return slices.Contains([]string{live.KindSubmit, live.KindBegin, live.KindAdd}, e.Kind)
	}
	if !slices.ContainsFunc(es, begins) || time.Since(s.roomy) < lookEvery {
		return nil
	}
	name := filepath.Join(s.o.Jobs, fmt.Sprintf(".room-%d", os.Getpid()))
	err := os.MkdirAll(s.o.Jobs, 0o700)
	if err == nil {
		err = os.WriteFile(name, make([]byte, roomFor), 0o600)
		os.Remove(name)
	}
	was := s.full
	if s.full = ""; err == nil {
		s.roomy = time.Now()
		if was != "" {
			s.o.Log.Info("space for jobs regained")
		}
		return nil
	}
	err = coded{fmt.Errorf("there is no room for jobs: %w; running jobs continue as long as they can, and nothing is started or accepted until there is", err), exitcode.Unwritable}
	if s.full = err.Error(); was != s.full {
		s.o.Log.Error(s.full)
	}
	return err
}

// report logs an event.
func (s *Service) report(e live.Event) {
	var a []any
	add := func(name string, v any, there bool) {
		if there {
			a = append(a, name, v)
		}
	}
	add("job", e.Job, e.Job != "")
	add("workers", e.Workers, e.Kind == live.KindDecide)
	add("life", e.Life, e.Life > 0)
	add("addr", e.Addr, e.Addr != "")
	add("worker", e.Member, e.Member > 0)
	add("host", e.Host, e.Host != "")
	add("state", string(e.State), e.State != "")
	add("samples", e.Samples, e.Samples > 0)
	add("what", e.What, e.What != "")
	add("took", time.Duration(e.Took*float64(time.Second)).Round(time.Millisecond), e.Took > 0)
	add("rates", e.Rates, e.Rates != nil)
	add("why", e.Why, e.Why != "")
	add("jobs", e.Jobs, e.Jobs != nil)
	s.o.Log.Info(e.Kind, a...)
}

// do carries out an event.
func (s *Service) do(e live.Event) {
	j := s.q.Job(e.Job)
	switch e.Kind {
	case live.KindBegin:
		s.start(s.coordinator(j), func() (*exec.Cmd, []byte, error) { return s.coordinates(j) })
	case live.KindAdd:
		s.start(s.worker(j, e.Member), func() (*exec.Cmd, []byte, error) {
			env, err := s.environ(j, map[string]string{"rank": fmt.Sprint(e.Rank), "host-id": e.Host})
			if err != nil {
				return nil, nil, err
			}
			return s.o.Command(workerName(j, e.Member), e.Host, s.history.Place(j.Name, e.Member), env, j.Command)
		})
	case live.KindLeave:
		s.say(s.worker(j, e.Member), syscall.SIGTERM)
	case live.KindStop:
		if j.State == live.Stopping {
			s.say(s.coordinator(j), syscall.SIGTERM)
		}
	}
}

// start starts a process. A process that cannot be started counts as ended.
func (s *Service) start(p child, command func() (*exec.Cmd, []byte, error)) {
	err := os.MkdirAll(filepath.Dir(string(p)), 0o700)
	if err == nil {
		var cmd *exec.Cmd
		var input []byte
		if cmd, input, err = command(); err == nil {
			if s.o.Peers != nil {
				cmd = kept(p, cmd)
			}
			err = p.start(cmd, input, s.ended)
		}
	}
	if err != nil {
		s.o.Log.Error("cannot start process", "process", string(p), "error", err)
	}
}

// environ returns the environment of a job's process. The service's values win, in whatever form the job's settings
// write a name.
func (s *Service) environ(j *live.Job, more map[string]string) ([]string, error) {
	token, err := s.token(j.Name)
	if err != nil {
		return nil, err
	}
	set := map[string]string{} // by variable
	put := func(more map[string]string) {
		for name, value := range more {
			set[settings.Variable(name)] = value
		}
	}
	put(map[string]string{"mode": "auto"})
	put(j.Settings)
	if _, ok := set[settings.Variable("baseline")]; ok {
		delete(set, settings.Variable("mode"))
	}
	put(map[string]string{
		"job": j.Name, "coordinator": j.Addr, "workers": fmt.Sprint(j.Spec.Workers), "min-workers": "1", "max-workers": fmt.Sprint(j.Ranks()), "samples": fmt.Sprint(j.Spec.Samples), "epochs": "0",
		"out": s.dir(j.Name, j.Life), "checkpoint": filepath.Join(s.o.Jobs, j.Name, "checkpoints"), "resume": "auto", "log-format": "text", "token": token,
	})
	put(more)
	env := append(slices.Clone(s.o.Environ), process.LaunchedVariable+"=1")
	for _, name := range slices.Sorted(maps.Keys(set)) {
		env = append(env, name+"="+set[name])
	}
	return env, nil
}

// coordinates returns the command of a job's coordinator, which includes its shard.
func (s *Service) coordinates(j *live.Job) (*exec.Cmd, []byte, error) {
	shards, atOnce := "1", "true"
	if j.Settings["arch"] == settings.AllReduce {
		shards, atOnce = "0", "false" // workers hold the parameters: a new worker needs some time to get them
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	if _, err := madeSecret(s.tokenFile(j.Name)); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, "ps")
	cmd.Env, err = s.environ(j, map[string]string{"listen": j.Addr, "rank": "0", "servers": "1", "shards": shards, "json": "true", "join-timeout": joins, "leave-at-once": atOnce})
	return cmd, nil, err
}

// look finds out what has happened, and acts on it.
func (s *Service) look() {
	for _, j := range s.q.Jobs {
		if j.State == live.Running || j.State == live.Stopping {
			s.tail(j)
			if p := s.coordinator(j); !p.alive() {
				s.over(j)
			} else if since, ok := s.told[p]; ok && time.Since(since) > mostSave {
				s.say(p, syscall.SIGKILL)
			}
		}
		for _, m := range slices.Clone(j.Members) {
			s.lookAt(j, m)
		}
	}
	s.act()
	s.archive()
}

// lookAt checks whether a worker has ended.
func (s *Service) lookAt(j *live.Job, m *live.Member) {
	p := s.worker(j, m.ID)
	if p.alive() {
		most := mostLeave
		// its job is over: it ends by itself, unless it joined too late for that
		if j.State != live.Running && j.State != live.Stopping {
			if since, ok := s.missed[p]; !ok {
				s.missed[p] = time.Now()
			} else if most = 2 * lingers; time.Since(since) > lingers {
				s.say(p, syscall.SIGTERM)
			}
		}
		if since, ok := s.told[p]; ok && time.Since(since) > most || s.givesUp(j, m) {
			if s.o.Kill != nil {
				if err := s.o.Kill(workerName(j, m.ID)); err != nil {
					s.o.Log.Warn("cannot end worker", "job", j.Name, "worker", m.ID, "error", err)
				}
			}
			s.say(p, syscall.SIGKILL)
		}
		return
	}
	code, known := s.ended.get(p)
	if _, ok := s.missed[p]; !ok {
		s.missed[p] = time.Now()
	}
	if j.State == live.Running && !m.Leaving && (!known || code == 0) && time.Since(s.missed[p]) <= lingers {
		return // the job may be about to end
	}
	if !known && time.Since(s.missed[p]) < lookEvery { // the code is about to be known
		return
	}
	if s.markEnded(p) != nil {
		return
	}
	if !known && s.o.Kill != nil { // the command may not have ended its worker
		if err := s.o.Kill(workerName(j, m.ID)); err != nil {
			s.o.Log.Warn("cannot end worker", "job", j.Name, "worker", m.ID, "error", err)
		}
	}
	e := live.Event{At: s.now(), Kind: live.KindGone, Job: j.Name, Member: m.ID}
	if why := s.away[p].why; why != "" {
		e.Why = why
	} else if known && !m.Leaving && j.State == live.Running {
		e.Why = fmt.Sprintf("it ended%s, and its job is not over%s", byWhat(code), p.reason(code))
	}
	if s.commit(e) != nil {
		return
	}
	delete(s.missed, p)
	delete(s.told, p)
	delete(s.away, p)
	if j.State == live.Running && !m.Leaving && known && (!m.Joined && hopeless(code) || s.vain(j, code)) {
		s.commit(live.Event{At: s.now(), Kind: live.KindStop, Job: j.Name, State: live.Failed, Why: fmt.Sprintf("worker %d on %s: %s", m.ID, m.Host, e.Why)})
	}
}

// why explains a job's state, and which of its workers do not take part, with the last message of each: a node that
// others use, an image that cannot be pulled, a coordinator that it cannot reach.
func (s *Service) why(j *live.Job, now float64) string {
	text := s.q.Why(j, now)
	for _, m := range j.Members {
		if j.State != live.Running || m.Joined || m.Leaving {
			continue
		}
		why := s.q.Lost(j, m, now)
		if waits := now - m.Added; why == "" && waits < mostQuiet {
			continue
		} else if why == "" {
			why = fmt.Sprintf("it has not taken part for %.0f s", waits)
		}
		text += fmt.Sprintf("; worker %d on %s: %s", m.ID, m.Host, why)
		if last := s.worker(j, m.ID).last(); last != "" {
			text += ": " + last
		}
		break
	}
	return strings.TrimPrefix(text, "; ")
}

// givesUp reports whether to stop waiting for a worker with a live process if its job continued without it.
func (s *Service) givesUp(j *live.Job, m *live.Member) bool {
	p, why := s.worker(j, m.ID), s.q.Lost(j, m, s.now())
	if why == "" {
		delete(s.away, p)
		return false
	}
	if _, ok := s.away[p]; !ok {
		s.away[p] = absence{time.Now(), why}
	}
	return time.Since(s.away[p].since) > mostAway
}

// mostVain is how many consecutive workers may end by themselves without a counted sample before their job has failed.
const mostVain = 6

// unreached is ssh's exit code when it cannot reach its host.
const unreached = 255

// vain counts a worker that ended by itself, and reports whether the job has failed after too many in a row.
// Commands of engines also end when there is no room.
func (s *Service) vain(j *live.Job, code int) bool {
	if s.o.Kill != nil || code == unreached {
		return false
	}
	v := s.ends[j.Name]
	if v.life != j.Life || v.samples != j.Samples {
		v = vain{j.Life, j.Samples, 0}
	}
	v.workers++
	s.ends[j.Name] = v
	return v.workers >= mostVain
}

// vain is how many workers of a life of a job have ended since the job had that many samples.
type vain struct {
	life    int
	samples int64
	workers int
}

// hopeless reports whether a process that ended with this code would end so again.
func hopeless(code int) bool {
	return slices.Contains([]int{exitcode.Usage, exitcode.Corrupt, exitcode.Missing, exitcode.Diverged, exitcode.Refused, exitcode.Disagree}, code)
}

// over determines how a life of a job ended.
func (s *Service) over(j *live.Job) {
	p := s.coordinator(j)
	if s.markEnded(p) != nil {
		return
	}
	code, known := s.ended.get(p)
	e := live.Event{At: s.now(), Kind: live.KindEnded, Job: j.Name, Samples: j.Samples}
	var r runlog.Result
	text, err := os.ReadFile(p.file(".out"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	switch {
	case err == nil && r.Error == "":
		e.State, e.Took = live.Done, s.q.SinceUpdate(j, e.At)
		if at := s.written(p.file(".out")); e.At-at > 1 { // it ended while no service ran, and may have been in time
			e.At = max(at, s.q.Newest)
		}
		if e.Why = fmt.Sprintf("loss %.4g", float64(r.TrainLoss)); r.Evaluated {
			e.Why += fmt.Sprintf(", accuracy %.4g", r.TestAccuracy)
		}
		if w := s.watches[j.Name]; w != nil && w.ends != "" && j.Samples < j.Spec.Samples {
			e.State, e.Why = live.Stopped, fmt.Sprintf("by %s, at %d of %d samples: %s", w.ends, j.Samples, j.Spec.Samples, e.Why)
		}
	case err == nil:
		e.Why = r.Error
	default:
		e.Why = "its coordinator ended without a result"
		if known {
			e.Why += "," + byWhat(code) + p.reason(code)
		} else {
			e.Why += ", as if it was killed" + p.reason(killed)
		}
	}
	if e.State == "" && known && hopeless(code) {
		e.State = live.Failed
	}
	if s.commit(e) == nil {
		delete(s.told, p)
		if w := s.watches[j.Name]; w != nil && w.file != nil {
			w.file.Close()
		}
		delete(s.watches, j.Name)
	}
}

// written returns a file's modification time, in s since the queue began, or now if that is unknown.
func (s *Service) written(name string) float64 {
	i, err := os.Stat(name)
	if err != nil {
		return s.now()
	}
	return min(i.ModTime().Sub(s.began).Seconds(), s.now())
}

// act carries out what is due.
func (s *Service) act() {
	began := time.Now()
	defer func() { s.planned, s.cost = time.Now(), time.Since(began) }()
	for {
		e, ok := s.q.Next(s.now())
		es := []live.Event{e}
		if e.Kind == live.KindDecide || e.Kind == live.KindDecline { // the decisions of a round are written down together
			es = s.q.Decided()
		}
		if !ok || s.commit(es...) != nil {
			return
		}
	}
}
