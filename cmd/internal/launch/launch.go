package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"star/cmd/internal/console"
	"star/cmd/internal/daemon"
	"star/coord"
	"star/internal/exitcode"
	"star/internal/ports"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/runlog"
	"star/transport"
	"star/worker/inject"
	own "star/worker/launch"
)

// Options are what a caller adds to the settings of a job.
type Options struct {
	Screen  *console.Screen // shows the processes' lines and the job's state
	Out     io.Writer       // gets the result
	Command []string        // started instead of a worker; nil: our own worker
	Spread  *Spread         // over several hosts; nil: all on this one
	Demo    bool            // a demonstration, which uses another port if its own is taken
	Detour  Detour
}

// Detour routes a job's connections through proxies, so that the caller can break them. The zero value changes nothing.
type Detour struct {
	// Servers has a proxy for each server, which this package points at the server of each attempt; nil: none.
	Servers []Proxy
	// Workers has a proxy for each worker, used by the others of its ring or tree; nil: none.
	Workers []Proxy

	// HTTP is a folder for the sockets on which the processes answer HTTP; empty: none. Its path must be short enough
	// for a socket.
	HTTP string
}

// Proxy is an address that forwards to another one.
type Proxy interface {
	Addr() string
	Aim(addr string)
}

// Launch is one job: its processes and their display.
type Launch struct {
	Options
	job *settings.Job

	addr     string       // of the coordinator
	electors electors     // of the processes that may coordinate
	result   bytes.Buffer // standard output of the first server
	pipes    sync.WaitGroup
	resume   string // checkpoint from which this attempt resumes
	// far is the largest progress of the job in any attempt; the watcher owns it until it has ended.
	far reached

	again chan *child   // processes to restart
	left  int           // remaining restarts
	since time.Time     // start of this attempt
	ended chan exit     // of this attempt
	over  chan struct{} // closed when no more processes may be started

	spot *spot    // takes workers' machines away; nil: none
	back []string // addresses of the servers behind proxies
	live sync.Map // the last started child, by name
}

// New prepares a job with valid settings.
func New(job *settings.Job, o Options) (*Launch, error) {
	r := &Launch{Options: o, job: job, electors: electors{count: job.Electors()}}
	if err := r.counted(); err != nil {
		return nil, err
	}
	var err error
	r.spot, err = newSpot(job)
	return r, err
}

// Process returns the last started process of a role and rank, or nil.
func (r *Launch) Process(role string, rank int) *os.Process {
	if c, ok := r.live.Load(fmt.Sprintf("%s %d", role, rank)); ok {
		return c.(*child).cmd.Process
	}
	return nil
}

// Each calls f for the last started process of each role and rank, with its name, its pid, and the address of its HTTP
// server (empty: none).
func (r *Launch) Each(f func(name string, pid int, http string)) {
	r.live.Range(func(name, c any) bool {
		if c := c.(*child); c.cmd.Process != nil {
			f(name.(string), c.cmd.Process.Pid, c.http)
		}
		return true
	})
}

// Coordinating returns the rank of the coordinating process, when the job was last asked.
func (r *Launch) Coordinating() int { return int(r.electors.at.Load()) }

// child is one process of the job.
type child struct {
	name   string
	role   string
	rank   int
	cmd    *exec.Cmd
	orders *Orders // to a process on another host; nil: it gets signals
	http   string  // address of its HTTP server; empty: unknown
	own    bool    // it runs the caller's command

	begun    time.Time
	failures int // consecutive failures of its predecessors

	told atomic.Bool // it was asked to leave, because its machine is taken away (--revoke)
	says speech      // its output
	over bool        // wait has seen its end
}

// exit is the end of a child.
type exit struct {
	*child
	err error
}

func (e exit) code() int { return ExitCode(e.err) }

// ExitCode returns a process's exit code from the error of Wait; a signal counts as in a shell.
func ExitCode(err error) int {
	var x *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &x):
		return exitcode.Failure
	}
	if s, ok := x.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return x.ExitCode()
}

// how describes the exit code, with the signal if it was one.
func (e exit) how() string {
	if e.crashed() {
		return fmt.Sprintf("exit code %d (%v)", e.code(), syscall.Signal(e.code()-128))
	}
	return fmt.Sprintf("exit code %d", e.code())
}

// failure returns the error of a child that fails the job, with the last line that the child printed.
func (e exit) failure() *childError {
	f := &childError{name: e.name, how: e.how(), code: e.code()}
	if !e.signalled() {
		f.why = e.says.words()
	}
	return f
}

// failedBehind reports whether the caller's command failed after its worker had ended normally.
func (e exit) failedBehind() bool {
	return e.own && e.code() != 0 && !e.signalled() && e.says.finished()
}

// childError is the failure of a child that ends the job.
type childError struct {
	name, how string
	code      int
	why       string // empty: it printed no reason
	job       bool   // the coordinator has ended the job with that code
	complete  bool   // the job is complete: it has its result and its checkpoint
}

func (e *childError) Error() string {
	if e.why == "" {
		return fmt.Sprintf("%s ended with %s", e.name, e.how)
	}
	return fmt.Sprintf("%s ended with %s: %s", e.name, e.how, e.why)
}
func (e *childError) ExitCode() int { return e.code }

// jobError is the job's error, as reported by its coordinator.
type jobError struct {
	why  string
	code int
}

func (e *jobError) Error() string { return "the job has failed: " + e.why }
func (e *jobError) ExitCode() int { return e.code }

// absentError means that the job waited for a worker that had ended without an error.
type absentError struct {
	name   string
	waited time.Duration
}

func (e *absentError) Error() string {
	return fmt.Sprintf("%s ended with exit code 0 before the training began, which has not begun for %v after that (--join-timeout): does its program call star.attach, and take batches of star.loader?", e.name, e.waited)
}
func (e *absentError) ExitCode() int { return exitcode.Lost }

// Grace is how long children may take to leave before they are killed.
const Grace = 8 * time.Second

func (r *Launch) run(ctx context.Context) (err error) {
	if err := r.address(); err != nil {
		return err
	}
	servers := r.Processes()
	if err := r.aim(); err != nil {
		return err
	}
	children := make([]*child, 0, servers+r.job.Workers)
	for i := range servers {
		children = append(children, r.child("ps", i))
	}
	for i := range r.job.Workers {
		children = append(children, r.child("worker", i))
	}

	r.left = r.job.WorkerRestarts
	ended := make(chan exit, len(children)+r.left)
	again := make(chan *child, r.left) // owned by this attempt: the goroutine may still use it during the next one
	r.again, r.ended, r.over = again, ended, make(chan struct{})
	defer close(again)
	started := make(chan error, 1)
	go func() {
		// A child gets a signal when the thread that started it ends, so the thread must live.
		runtime.LockOSThread()
		for _, c := range children {
			if err := r.start(c, ended); err != nil {
				started <- fmt.Errorf("start %s: %w", c.name, err)
				return
			}
		}
		started <- nil
		for c := range again {
			if err := r.start(c, ended); err != nil {
				ended <- exit{c, fmt.Errorf("start %s: %w", c.name, err)}
			}
		}
	}()
	err = <-started
	defer r.Screen.Close()
	watch, unwatch := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer unwatch()
	if err == nil {
		watching.Go(func() { r.watch(watch) })
		err = r.wait(ctx, children, ended)
	} else {
		r.end(children, ended, syscall.SIGTERM)
	}
	unwatch()
	r.pipes.Wait()
	r.Screen.Close()
	return err
}

// Servers returns how many star-ps have shards at the start of the job; an all-reduce has the coordinator only.
// Dedicated coordinator candidates come before them.
func (r *Launch) Servers() int {
	if r.job.Arch == settings.AllReduce && r.electors.count > 0 {
		return r.electors.count
	}
	return r.electors.count + max(r.job.Shards, 1)
}

// Processes returns the number of star-ps, including spare ones and those that only hold copies.
func (r *Launch) Processes() int {
	n := r.Servers()
	if r.Spread != nil {
		n += r.Spread.spare
	}
	if r.job.Arch == settings.AllReduce {
		return n
	}
	return max(n, r.electors.count+r.job.Replicas)
}

// counted compares --servers, if given, with the number of star-ps that are started.
func (r *Launch) counted() error {
	if n := r.Processes(); r.job.Config.IsSet("servers") && r.job.Servers != n {
		return r.job.Invalid("servers", fmt.Errorf("star run starts a star-ps for each shard, beside those that --coordinators, --replicas and --hosts ask for, here %d: leave --servers away, and say --shards", n))
	}
	return nil
}

// address chooses the coordinator's port.
func (r *Launch) address() error {
	if r.Spread != nil {
		addrs, err := r.Spread.coordinators(r.job)
		if err != nil {
			return err
		}
		r.addr = addrs[0]
		r.electors.begin(addrs)
		return nil
	}
	host, port, err := net.SplitHostPort(r.job.Listen)
	if err == nil && port == "0" {
		r.addr, err = ports.Reserve(host)
	} else if err == nil {
		if r.addr, err = ports.Listens(r.job.Listen); err != nil && r.Demo && !r.job.Config.IsSet("listen") {
			if r.addr, err = ports.Reserve(host); err == nil {
				r.Screen.Say("run", fmt.Sprintf("%s is taken, so this job is at %s: star top %[2]s, star ctl --coordinator %[2]s", r.job.Listen, r.addr))
			}
		}
	}
	if err != nil {
		return r.job.Invalid("listen", fmt.Errorf("%w; --listen %s takes a free port", err, net.JoinHostPort(settings.Home(), "0")))
	}
	return r.electors.choose(r.addr)
}

// aim points the servers' proxies at where the servers listen in this attempt.
func (r *Launch) aim() error {
	r.back = nil
	host, _, _ := net.SplitHostPort(r.addr)
	for i, p := range r.Detour.Servers {
		addr := r.addr
		if i > 0 || r.electors.count > 0 {
			var err error
			if addr, err = ports.Reserve(host, append(slices.Clone(r.back), r.electors.addrs...)...); err != nil {
				return err
			}
		}
		r.back = append(r.back, addr)
		p.Aim(addr)
	}
	return nil
}

// ompThreads is the number of threads of PyTorch, NumPy and other libraries with OpenMP. Unset, each worker of this
// host would have a thread for every processor, and threads that wait for each other would keep others from computing.
const ompThreads = "OMP_NUM_THREADS"

// child builds the command of a process. Its settings are in the environment.
func (r *Launch) child(role string, rank int) *child {
	c := &child{name: fmt.Sprintf("%s %d", role, rank), role: role, rank: rank}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	if c.cmd = exec.Command(self, role); role == "worker" && len(r.Command) > 0 {
		words := InProcesses(self, r.job.ProcsPerWorker, r.Command)
		c.cmd, c.own = exec.Command(words[0], words[1:]...), true
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "STAR_") || strings.HasPrefix(e, "STAR_DATA=") {
			env = append(env, e)
		}
	}
	env = append(env, r.job.Config.Environ("listen", "advertise", "coordinator", "rank", "servers", "shards", "http", "json",
		"log-format", "progress", "coordinators", "slow", "mode", "gossip", "gossip-join", "hosts", "demands", "print-placement", "resume", "restarts")...)
	env = append(env, process.LaunchedVariable+"=1")
	if c.own {
		env = append(env, own.AgentVariable+"="+self)
		if r.Spread == nil && os.Getenv(ompThreads) == "" {
			env = append(env, fmt.Sprintf("%s=%d", ompThreads, cmp.Or(r.job.Threads, max(1, runtime.GOMAXPROCS(0)/(r.job.Workers*r.job.ProcsPerWorker)))))
		}
	}
	set := func(name, value string) { env = append(env, settings.Variable(name)+"="+value) }
	host, _, _ := net.SplitHostPort(r.addr)
	set("coordinator", r.addr)
	if r.electors.count > 0 {
		set("coordinators", strings.Join(r.electors.addrs, ","))
	}
	set("rank", fmt.Sprint(rank))
	set("servers", fmt.Sprint(r.Processes()))
	set("http", settings.Off)
	if r.resume != "" {
		set("resume", r.resume)
	}
	set("log-format", r.Screen.Format())
	if r.job.Baseline == "" {
		set("mode", r.job.Mode)
	}
	if len(r.job.Slow) > 0 {
		set("slow", strings.Join(r.job.Slow, ","))
	}
	if role == "ps" {
		if r.job.Arch == settings.AllReduce {
			set("shards", "0")
		} else {
			set("shards", "1")
		}
		if rank >= r.Servers() { // a spare one
			set("shards", "0")
		}
		if rank == 0 {
			set("gossip", r.job.Gossip)
			set("listen", r.addr)
			set("json", "true")
			if r.job.HTTP != settings.Off {
				set("http", r.job.HTTP)
			}
		} else {
			set("listen", net.JoinHostPort(host, "0"))
		}
		if rank < r.electors.count {
			set("shards", "0")
			set("listen", r.electors.addrs[rank])
			set("json", "true")
		}
	}
	if r.Detour.Servers != nil {
		switch at := rank - r.electors.count; {
		case role == "ps" && at >= 0: // connections to coordinator candidates are not routed
			set("listen", r.back[at])
			set("advertise", r.Detour.Servers[at].Addr())
		case role != "ps" && r.electors.count == 0:
			set("coordinator", r.Detour.Servers[0].Addr())
		}
	}
	if r.Detour.Workers != nil && role == "worker" {
		env = append(env, process.ViaVariable+"="+r.Detour.Workers[rank].Addr())
		set("host-id", c.name) // no shared memory: connections between workers must pass through the proxies
	}
	if r.Detour.HTTP != "" && !(role == "ps" && rank == 0 && r.job.HTTP != settings.Off) {
		c.http = settings.UnixSocket + filepath.Join(r.Detour.HTTP, fmt.Sprint(role, rank))
		set("http", c.http)
	}
	c.cmd.Env = env
	if r.Spread != nil {
		at := r.Spread.Of(role, rank)
		if role == "worker" || rank >= max(1, r.electors.count) {
			env = append(env, settings.Variable("listen")+"="+net.JoinHostPort(at.Reach(), "0"))
		}
		if r.job.HostID == "" { // rings and a resource service use the file's name of the host
			env = append(env, settings.Variable("host-id")+"="+at.Name)
		}
		if r.job.MoveShards == job.Auto && role == "ps" && r.job.CapacityCPU == 0 && r.job.CapacityNet == 0 {
			at.capacities(func(name, value string) { env = append(env, settings.Variable(name)+"="+value) })
		}
		c.cmd.Env = append(env, at.Sees()...)
		if len(at.Launch) > 0 {
			c.cmd, c.orders = at.Command(self, role, env, r.Command)
		}
	}
	c.cmd.SysProcAttr = Attributes()
	return c
}

func (r *Launch) start(c *child, ended chan<- exit) error {
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if c.own {
		c.cmd.Stdout = c.cmd.Stderr // its output is shown, too
	}
	if c.role == "ps" && c.rank == 0 {
		c.cmd.Stdout = &r.result
	} else if c.role == "ps" && c.rank < r.electors.count {
		c.cmd.Stdout = &r.electors.results[c.rank]
	}
	if c.orders != nil {
		if err := c.orders.attach(c.cmd); err != nil {
			return err
		}
	}
	c.begun = time.Now()
	if err := c.cmd.Start(); err != nil {
		return err
	}
	r.live.Store(c.name, c)
	read := make(chan struct{})
	r.pipes.Go(func() {
		defer close(read)
		c.says.read(stderr, func(block []string) { r.Screen.Relay(c.name, block) })
	})
	r.stops(c)
	r.mortal(c)
	go func() {
		<-read // Wait closes the pipe
		ended <- exit{c, c.cmd.Wait()}
	}()
	return nil
}

// stops stops and continues a child according to --slow R:stop=…: a process cannot wake itself.
func (r *Launch) stops(c *child) {
	for _, text := range r.job.Slow {
		s, err := inject.Parse(text)
		if err == nil && s.Kind == inject.Stop && c.role == "worker" && int(s.Worker) == c.rank {
			go func() {
				if err := inject.Stopper(context.Background(), c.cmd.Process, s); err != nil {
					r.Screen.Say("run", err.Error())
				}
			}()
		}
	}
}

// restartable reports whether a failed worker may be restarted: not if it disagrees with the job, if its data are
// missing, or if its loss is not finite.
func (r *Launch) restartable(e exit) bool {
	if r.left == 0 || e.role != "worker" {
		return false
	}
	switch e.code() {
	case 0, exitcode.Usage, exitcode.Corrupt, exitcode.Missing, exitcode.Diverged, exitcode.Refused, exitcode.Disagree:
		return false
	}
	return true
}

// restart restarts a process that has ended, perhaps after a pause; gains is the purpose, for messages.
func (r *Launch) restart(e exit, children []*child, gains string) {
	r.left--
	c := r.child(e.role, e.rank)
	children[slices.Index(children, e.child)] = c
	c.failures = e.again(time.Since(e.begun))
	pause, in := backOff(c.failures), ""
	if pause > 0 {
		in = fmt.Sprintf(" in %v", pause)
	}
	if gains != "" {
		gains = ", " + gains
	}
	r.Screen.Say("run", fmt.Sprintf("%s ended with %s and is started again%s%s (--worker-restarts: %d left)", e.name, e.how(), in, gains, r.left))
	if pause == 0 {
		r.again <- c
		return
	}
	again, ended, over := r.again, r.ended, r.over
	r.pipes.Go(func() {
		select {
		case <-time.After(pause):
			again <- c
		case <-over: // it is no longer needed
			ended <- exit{c, nil}
		}
	})
}

// shortLife is the run time below which a process counts as failing at its start, for example because its host is down.
// The pause before each further restart of such a process doubles, from a second to longestBackOff.
const (
	shortLife      = 10 * time.Second
	longestBackOff = 30 * time.Second
)

// crashed reports whether it ended by a signal of a crash (SIGSEGV and the like), not by one that ends processes.
func (e exit) crashed() bool {
	switch syscall.Signal(e.code() - 128) {
	case syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL:
		return true
	}
	return false
}

// signalled reports whether a signal has ended it.
func (e exit) signalled() bool { return e.code() > 128 && e.code() <= 128+64 }

// again returns how many times in a row a process has failed soon after its start; e is its latest end, after it lived
// for the given time. The first failure does not count, nor does an end by a signal.
func (e exit) again(lived time.Duration) int {
	if e.signalled() || lived >= shortLife {
		return 0
	}
	return e.failures + 1
}

// backOff returns the pause before the next restart after that many failures.
func backOff(failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	return min(time.Second<<min(failures-2, 10), longestBackOff)
}

// wait returns when every child has ended.
func (r *Launch) wait(ctx context.Context, children []*child, ended chan exit) error {
	left := len(children)
	done := ctx.Done()
	var direct, soon, kill, verdict <-chan time.Time
	var failed error
	var behind *childError // the first of the caller's commands that failed after its worker had ended normally
	coordinated := 0       // exit code of a coordinating process that failed
	finished := false      // a coordinating process has reported the end of the job
	var early []exit       // processes that failed before training began
	var absent *child      // the first child that ended without an error before that
	var overdue <-chan time.Time
	fails := func(e exit) {
		if early = append(early, e); verdict == nil {
			verdict = time.After(2 * askEvery)
		}
	}
	ending := sync.OnceFunc(func() { close(r.over) })
	stop := func(sig syscall.Signal) {
		if ending(); kill == nil {
			signal(children[:r.electors.count], r.electors.ends(sig))
			signal(children[r.electors.count:], sig)
			kill = time.After(Grace)
		}
	}
	// stopIn gives the coordinator, which ends the job by itself, time to report why.
	stopIn := func(d time.Duration) {
		if ending(); kill == nil {
			soon, kill = time.After(d), time.After(d+Grace)
		}
	}
	// After a complete job, the caller's command may run the code after its loop as long as it takes.
	works := func(c *child) bool { return finished && failed == nil && c.own && !c.over && c.says.finished() }
	idle := func() []*child { return slices.DeleteFunc(slices.Clone(children), works) }
	busy := func() (names []string) {
		for _, c := range children {
			if works(c) {
				names = append(names, c.name)
			}
		}
		return names
	}
	for left > 0 {
		select {
		case e := <-ended:
			left--
			e.over = true
			r.spot.ended(e)
			switch {
			case e.failedBehind():
				if behind == nil {
					behind = e.failure()
				}
			case e.told.Load() && e.code() != 0 && kill == nil && !finished:
				if r.replace(e, children) {
					left++
				}
			case r.electors.returns(e, r.job.Replicas > 1) && kill == nil && r.left > 0:
				left++
				gains := "to take its place again; another one coordinates"
				if e.rank >= r.electors.count {
					gains = "to get copies of shards; the others go on"
				}
				r.restart(e, children, gains)
			case e.role == "ps" && e.code() != 0 && e.rank >= max(1, r.electors.count) && r.job.Replicas > 1 && kill == nil:
				if !e.signalled() && !r.training() {
					fails(e)
					break
				}
				r.Screen.Say("run", fmt.Sprintf("%s ended with %s; the others go on if they hold its shards", e.name, e.how()))
			case e.role == "ps" && e.code() != 0 && e.rank >= r.Servers() && kill == nil:
				r.Screen.Say("run", fmt.Sprintf("%s, a spare one, ended with %s; the others go on if it had no shard", e.name, e.how()))
			case finished && e.role == "ps" && e.signalled(): // it was asked to leave, or was too slow to do so
			case e.role == "ps" && e.code() != 0 && r.electors.spares(e):
				if kill == nil && !e.signalled() && !r.training() {
					// What prevents it from working, such as its port, appears at once; and until all have connected,
					// none coordinates.
					fails(e)
					break
				}
				r.Screen.Say("run", fmt.Sprintf("%s ended with %s; another one coordinates, or goes on to", e.name, e.how()))
			case e.role == "ps" && e.code() != 0:
				if e.rank == 0 || e.rank < r.electors.count {
					coordinated = e.code()
				}
				switch {
				case failed != nil && kill != nil:
					// The failure has a cause, which the coordinator knows better than a process that it ended with
					// that code.
					if f, ok := failed.(*childError); ok && f.code == coordinated && e.code() == coordinated {
						failed = e.failure()
					}
				case absent != nil && e.code() == exitcode.Lost && !r.training(): // the coordinator has waited as long as we have
					failed = &absentError{absent.name, r.job.JoinTimeout}
				default:
					failed = e.failure()
				}
				if r.training() { // the coordinator notices it, or has reported it
					stopIn(time.Second)
				} else {
					stop(syscall.SIGTERM)
				}
			case e.role == "ps" && (e.rank == 0 || e.rank < r.electors.count):
				finished = true
				if ending(); kill == nil { // the job is over; the other processes end soon
					kill = time.After(Grace)
					if r.left < r.job.WorkerRestarts { // a restarted process may be looking for a coordinator
						direct = time.After(time.Second)
					}
				}
			case e.code() != 0 && kill == nil && r.restartable(e):
				left++
				r.restart(e, children, "")
			case e.code() != 0 && kill == nil && !r.training():
				fails(e)
			case e.code() != 0 && kill == nil || e.crashed():
				r.Screen.Say("run", goesOn(e, kill == nil && slices.ContainsFunc(children, func(c *child) bool { return c.role == "worker" && !c.over })))
			case e.role == "worker" && absent == nil && !finished && !r.training():
				absent, overdue = e.child, time.After(r.job.JoinTimeout) // the coordinator waits for it that long
			}
		case <-verdict:
			// The screen has had time to learn of a training that began just before.
			verdict = nil
			switch {
			case kill != nil:
			case !r.training():
				failed = early[0].failure() // the child will never join
				stop(syscall.SIGTERM)
			default:
				for _, e := range early {
					r.Screen.Say("run", goesOn(e, true))
				}
				early = nil
			}
		case <-overdue:
			overdue = nil
			if kill == nil && !finished && !r.training() {
				failed = &absentError{absent.name, r.job.JoinTimeout}
				stop(syscall.SIGTERM)
			}
		case <-done:
			done = nil
			var s *job.SignalError
			sig := syscall.SIGTERM
			if errors.As(context.Cause(ctx), &s) {
				sig, _ = s.Signal.(syscall.Signal)
			}
			// The coordinator ends the job for all processes, so that all leave for the same reason. Processes that
			// remain a moment later get the signal directly.
			how := "ending the job"
			if r.job.Grace > 0 && r.training() {
				how += fmt.Sprintf(", after a checkpoint (--grace %v); once more: at once", r.job.Grace)
			}
			r.Screen.Say("run", fmt.Sprintf("%v: %s", sig, how))
			failed = context.Cause(ctx)
			signal(children[:max(1, r.electors.count)], r.electors.ends(sig))
			direct = time.After(r.job.Grace + 2*time.Second)
			ending()
			kill = time.After(r.job.Grace + Grace)
		case <-soon:
			signal(children[:r.electors.count], r.electors.ends(syscall.SIGTERM))
			signal(children[r.electors.count:], syscall.SIGTERM)
		case <-direct:
			signal(idle(), syscall.SIGTERM)
		case <-kill:
			signal(idle(), syscall.SIGKILL)
			kill = time.After(time.Hour) // nothing survives SIGKILL
			if names := busy(); len(names) > 0 {
				r.Screen.Say("run", "the job is over, and code behind the training loop still runs: "+strings.Join(names, ", "))
			}
		}
	}
	if failed == nil && behind != nil {
		behind.complete = true
		return behind
	}
	if f, ok := failed.(*childError); ok {
		f.job = f.code == coordinated
	}
	return failed
}

// goesOn is the message that a child has failed, and whether others continue.
func goesOn(e exit, others bool) string {
	text := fmt.Sprintf("%s ended with %s", e.name, e.how())
	if others {
		text += "; the others go on"
	}
	return text
}

// Kill kills all processes of the job.
func (r *Launch) Kill() {
	r.live.Range(func(_, c any) bool {
		signal([]*child{c.(*child)}, syscall.SIGKILL)
		return true
	})
}

// end ends children after others could not be started.
func (r *Launch) end(children []*child, ended chan exit, sig syscall.Signal) {
	signal(children, sig)
	kill := time.After(Grace)
	for _, c := range children {
		if c.cmd.Process == nil {
			continue
		}
		select {
		case <-ended:
		case <-kill:
			signal(children, syscall.SIGKILL)
			<-ended
		}
	}
}

func signal(children []*child, sig syscall.Signal) {
	for _, c := range children {
		if c.cmd.Process != nil {
			if c.orders == nil || !c.orders.signal(sig) {
				c.cmd.Process.Signal(sig) // an error means that it has ended
			}
		}
	}
}

// askEvery is how often the coordinator is asked.
const askEvery = 250 * time.Millisecond

// Network returns the network of the job's coordinator.
func (r *Launch) Network() (transport.Network, error) {
	tcp := transport.NewTCP(transport.Config{Token: string(r.job.Token)})
	if r.job.TLS() {
		t, err := transport.TLSConfig(r.job.TLSCert, r.job.TLSKey, r.job.TLSCA)
		if err != nil {
			return nil, err
		}
		tcp.TLS = t
	}
	return tcp, nil
}

// Coordinator returns the address at which to look for the coordinator in the i-th attempt.
func (r *Launch) Coordinator(i int) string {
	if r.electors.count > 0 {
		return r.electors.addrs[i%r.electors.count]
	}
	return r.addr
}

// watch asks the coordinator for its status and shows it.
func (r *Launch) watch(ctx context.Context) {
	tcp, err := r.Network()
	if err != nil {
		return // the children report it
	}
	for r.ask(ctx, tcp) && r.electors.count > 0 && ctx.Err() == nil {
	}
}

// ask asks one coordinator until it is gone. It returns false if none was found.
func (r *Launch) ask(ctx context.Context, tcp transport.Network) bool {
	var c *console.Control
	for i := 0; ; i++ {
		var err error
		if c, err = console.Reach(ctx, tcp, r.job.Name, r.Coordinator(i), string(r.job.Token), 5*time.Second); err == nil {
			if r.electors.count > 0 {
				r.electors.at.Store(int64(slices.Index(r.electors.addrs, c.Addr)))
			}
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	defer c.Conn.Close()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		var s coord.Status
		if err := c.Ask(5*time.Second, &s, "status"); err != nil {
			return true // the job is over, or the coordinator is gone: its end tells which
		}
		r.Screen.Show(s)
		r.far.at(s.Version, s.Samples)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true
		}
	}
}

// report prints the result of the first server.
func (r *Launch) report(failed error) error {
	if r.spot != nil {
		r.Screen.Say("run", r.spot.String())
	}
	var result runlog.Result
	err := json.Unmarshal(r.result.Bytes(), &result)
	// the last coordinator, and perhaps its predecessor, if that was lost while it reported the end
	for i := range r.electors.results {
		if err != nil {
			result = runlog.Result{}
			err = json.Unmarshal(r.electors.results[i].Bytes(), &result)
		}
	}
	if err != nil {
		if failed == nil {
			failed = errors.New("the coordinator ended without a result")
		}
		return failed
	}
	if err := daemon.Report(r.Out, result, r.job.JSON); failed == nil {
		failed = err
	}
	if f, ok := failed.(*childError); ok && f.job && result.Error != "" {
		failed = &jobError{result.Error, f.code}
	}
	return failed
}
