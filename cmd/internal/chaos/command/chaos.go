package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/chaos"
	"star/cmd/internal/console"
	"star/cmd/internal/daemon"
	"star/cmd/internal/launch"
	"star/cmd/internal/node"
	"star/internal/build"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/runlog/parts"
	"star/train/checkpoint"
)

// chaosDefaults override defaults of star run: the job is small, lasts longer than the time until faults begin, and
// restarts.
var chaosDefaults = map[string]string{
	"steps": "6000", "model": "softmax", "dataset": "digits:n=2000,test=200", "batch": "16", "workers": "3", "mode": "asgd", "slow": "0:+5ms",
	"checkpoint-every": "2s", "worker-restarts": "1000", "restarts": "100", "eval-every": "0", "listen": "127.0.0.1:0", "dead-after": "5s",
	"keep": "0", "out": "star-chaos-out", "http": "off", "progress": "plain", // all checkpoints: they are compared
}

// New is the command line of star-chaos. The processes of its jobs are this program, too.
func New() *cobra.Command {
	job := new(settings.Job)
	var seed uint64
	var every, until, longest, stall time.Duration
	var names []string
	var most int
	var virtual rehearsals
	cmd := &cobra.Command{
		Use:     "star-chaos",
		Version: build.Built().String(),
		Short:   "Break a running job on purpose, and see what it promises",
		Long: `Runs a job as star run does, and breaks it while it trains, by a schedule of faults made from --fault-seed: workers are killed, told to leave,
stopped, stopped for 800 ms of each second; the ways to the servers are cut, fall silent, become slow, turn bits over; servers are killed;
wall clocks jump; the mode is changed and changed back.
Then it reads the run logs and the checkpoints, and says which promises were kept. The same seed gives the same schedule.

Takes the settings of star run. Exit code 1: a promise was broken.

With --simulate no job is run: jobs with copies of their shards, or with --arch allreduce rings, are rehearsed in virtual time, each under a schedule of its own,
in which coordinators are replaced too, over a network that loses, doubles and delays messages.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			const own = settings.Origin("star-chaos")
			defaults := map[string]settings.Found{}
			for name, value := range chaosDefaults {
				defaults[name] = settings.Found{Value: value, Origin: own}
			}
			if slices.Contains(names, string(chaos.FullDisk)) {
				defaults["keep"] = settings.Found{Value: "3", Origin: own}
			}
			if _, err := job.LoadOver(defaults, os.Environ()); err != nil {
				return err
			}
			if job.Arch == settings.AllReduce && job.Config.Origin("mode") == own {
				job.Mode = "ssgd" // the default above is for servers
			}
			if job.Config.PrintWanted() {
				return job.Print(cmd.OutOrStdout())
			}
			if err := errors.Join(job.Validate(), node.Check(job, false)); err != nil {
				return err
			}
			if job.Hosts != "" {
				return job.Invalid("hosts", errors.New("star-chaos breaks jobs on this machine"))
			}
			// comparing does not support a ring with riders
			if !cmd.Flags().Changed("faults") && (job.Baseline != "" || job.Arch == settings.AllReduce) {
				names = slices.DeleteFunc(names, func(n string) bool { return n == string(chaos.Mode) })
			}
			if job.Electors() > 0 && !cmd.Flags().Changed("faults") {
				if job.Replicas < 2 { // killing a server ends the job
					names = slices.DeleteFunc(names, func(n string) bool { return n == string(chaos.Server) })
				}
				names = append(names, string(chaos.Coordinator), string(chaos.HandOver))
			}
			kinds, err := chaos.ParseKinds(names)
			if err != nil {
				return badFaults(names, err)
			}
			if why := chaos.CanJump(); why != nil && slices.Contains(kinds, chaos.Clock) && !virtual.on {
				return badFaults(names, fmt.Errorf("clock: %w", why))
			}
			switch elects := job.Electors() > 0; {
			case slices.Contains(kinds, chaos.Mode) && job.Baseline != "":
				return badFaults(names, errors.New("mode: a baseline has no other"))
			case (slices.Contains(kinds, chaos.Coordinator) || slices.Contains(kinds, chaos.HandOver)) && !elects:
				return badFaults(names, errors.New("coordinator, hand-over: no process could take over; give --coordinators 3"))
			case slices.Contains(kinds, chaos.Server) && elects && job.Replicas < 2:
				return badFaults(names, errors.New("server: with --coordinators a job is not begun again, and a shard has no copy; give --replicas 2"))
			case elects:
				job.Restarts = 0
				most = min(most, max(job.Replicas-1, 0)) // at most as many as copies can replace at any moment
			}
			if every <= 0 || until < 0 || longest <= 0 || stall <= 0 {
				return &settings.UsageError{Msg: "--every, --longest and --stall must be above 0, --for at least 0"}
			}
			if virtual.on {
				return virtual.run(cmd.OutOrStdout(), job, seed)
			}
			if _, err := os.Stat(filepath.Join(job.Out, process.RunLogName)); err == nil {
				return job.Invalid("out", fmt.Errorf("%s holds a job already: give an empty folder", job.Out))
			}
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			return breakJob(ctx, cmd.OutOrStdout(), job, chaos.Options{
				Seed: seed, Workers: job.Workers, Servers: withShards(job), Kinds: kinds, Every: every, Until: until, Longest: longest, Most: most,
				Successors: (job.Electors() - 1) / 2, Return: comesBack(job), Copied: copied(job),
				Ring: job.Arch == settings.AllReduce && job.Electors() > 0, // else the job is restarted
			}, stall)
		},
	}
	job.Bind(cmd, settings.ForRun)
	for _, c := range []*cobra.Command{daemon.Server("ps"), daemon.Worker("worker"), daemon.Sampler()} {
		c.Hidden = true
		cmd.AddCommand(c)
	}
	cmd.SetHelpCommand(&cobra.Command{Hidden: true})
	cmd.CompletionOptions.HiddenDefaultCmd = true
	var all []string
	for _, k := range chaos.Kinds {
		if k != chaos.Coordinator && k != chaos.HandOver && (k != chaos.Clock || chaos.CanJump() == nil) {
			all = append(all, string(k))
		}
	}
	f := cmd.Flags()
	f.Uint64Var(&seed, "fault-seed", 1, "seed of the schedule of faults")
	f.DurationVar(&every, "every", time.Second, "mean time between two faults")
	f.DurationVar(&until, "for", 20*time.Second, "how long faults begin; the job goes on to its end")
	f.DurationVar(&longest, "longest", 3*time.Second, "how long a fault lasts at most")
	f.DurationVar(&stall, "stall", 30*time.Second, "longest time between two updates that is no stall")
	f.StringSliceVar(&names, "faults", all, "kinds of faults")
	f.IntVar(&most, "servers-killed", 3, "servers that are killed at most")
	f.BoolVar(&virtual.on, "simulate", false, "rehearse jobs in virtual time instead")
	f.Uint64Var(&virtual.seeds, "seeds", 1000, "with --simulate: number of jobs, with seeds from --fault-seed")
	f.BoolVar(&virtual.unfenced, "unfenced", false, "with --simulate: disable the fencing of replaced processes, and exit with 1 if no violation is found")
	daemon.Complete(cmd)
	return cmd
}

// withShards is the number of servers behind proxies: those with shards or copies, or the coordinator of a ring.
func withShards(job *settings.Job) int {
	if job.Arch == settings.AllReduce && job.Electors() > 0 {
		return 0
	}
	if job.Arch == settings.AllReduce {
		return 1
	}
	return max(job.Shards, job.Replicas, 1)
}

// comesBack is the time after which the place of a killed coordinator is certainly taken: its loss is detected, another
// process leads, waits for it three more seconds, and admits the restarted process. 0: it is not replaced.
func comesBack(job *settings.Job) time.Duration {
	if job.WorkerRestarts == 0 {
		return 0
	}
	return 10 * time.Second
}

// copied is the time after which all shards of a killed server certainly have all their copies: the server is restarted
// and receives one copy a second. 0: it is not restarted, or the job restarts.
func copied(job *settings.Job) time.Duration {
	back := comesBack(job)
	if job.Electors() == 0 || back == 0 {
		return 0
	}
	return back + time.Duration(job.Shards)*time.Second
}

// broken is the report of star-chaos on a job.
type broken struct {
	Seed       uint64            `json:"seed"`
	Faults     []fault           `json:"faults"`
	Invariants []chaos.Invariant `json:"invariants"`
	WorstStall float64           `json:"worst_stall_s"`
	Takeovers  []float64         `json:"takeovers_s"` // pauses of updates during takeovers
	Updates    int64             `json:"updates"`
	Lives      int               `json:"lives"`
	Wall       float64           `json:"wall_s"`
	Processes  []grown           `json:"processes"`
}

type fault struct {
	At     float64 `json:"at_s"` // since the start of the training
	Kind   string  `json:"kind"`
	Target int     `json:"target"`
	For    float64 `json:"for_s,omitempty"`
	Rate   int64   `json:"rate_Bps,omitempty"`
	Off    float64 `json:"off_s,omitempty"`  // a clock
	Daemon bool    `json:"daemon,omitempty"` // that of star-ps target
	Done   bool    `json:"done"`             // the job was still there
}

// badFaults is the error for an invalid --faults, which is not a setting of the job.
func badFaults(names []string, err error) error {
	return &settings.UsageError{Msg: fmt.Sprintf("--faults %s: %v", strings.Join(names, ","), err)}
}

func breakJob(ctx context.Context, out io.Writer, j *settings.Job, o chaos.Options, stall time.Duration) error {
	asJSON := j.JSON
	j.JSON = true
	r := &breaker{job: j, screen: console.NewScreen(j)}
	var detour launch.Detour
	host, _, err := net.SplitHostPort(j.Listen)
	if err != nil {
		return j.Invalid("listen", err)
	}
	for range o.Servers {
		p, err := chaos.NewProxy(host)
		if err != nil {
			return j.Invalid("listen", err)
		}
		defer p.Close()
		r.front, detour.Servers = append(r.front, p), append(detour.Servers, p)
	}
	if j.Arch == settings.AllReduce && j.Checksum == job.Auto { // connections between workers simulate a network
		j.Checksum = "on"
	}
	if j.Arch == settings.AllReduce || strings.Contains(j.Mode, "tree") {
		o.Servers += j.Ranks() // after the one to the coordinator: the ways between workers
		for range j.Ranks() {
			p, err := chaos.NewForward(host)
			if err != nil {
				return j.Invalid("listen", err)
			}
			defer p.Close()
			r.ways, detour.Workers = append(r.ways, p), append(detour.Workers, p)
		}
	}
	if detour.HTTP, err = os.MkdirTemp("", "star-chaos-"); err != nil { // a socket's path must be short: not in --out
		return err
	}
	defer os.RemoveAll(detour.HTTP)
	if r.Launch, err = launch.New(j, launch.Options{Screen: r.screen, Out: io.Discard, Detour: detour}); err != nil {
		return err
	}
	o.Daemons = r.Processes()
	faults := chaos.Schedule(o)
	if slices.Contains(o.Kinds, chaos.FullDisk) {
		if j.Checkpoint != "" {
			return j.Invalid("checkpoint", errors.New("full-disk fills a disk of its own: leave --checkpoint away"))
		}
		if r.disk, err = newDisk(launch.Checkpoints(r.job)); err != nil {
			return err
		}
		defer r.disk.close()
	}
	holds := r.watchGrowth()
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- r.Attempts(ctx) }()
	done := make([]bool, len(faults))
	var failed error
	over := false
	wait := func(d time.Duration) {
		if over {
			return
		}
		select {
		case failed = <-ended:
			over = true
		case <-time.After(d):
		}
	}
	for !over && !r.screen.Training() && !launch.Began(filepath.Join(j.Out, process.RunLogName)) {
		wait(10 * time.Millisecond)
	}
	start := time.Now()
	for i, f := range faults {
		if wait(time.Until(start.Add(f.At))); over {
			break
		}
		r.screen.Say("chaos", r.describe(f))
		done[i] = true
		r.inflict(f)
	}
	for !over {
		wait(time.Hour)
	}
	result := broken{Seed: o.Seed, Wall: time.Since(begun).Seconds(), Faults: []fault{}, Takeovers: []float64{}}
	for i, f := range faults {
		result.Faults = append(result.Faults, fault{f.At.Seconds(), string(f.Kind), f.Target, f.For.Seconds(), f.Rate, f.Off.Seconds(), f.Daemon, done[i]})
	}
	result.Processes = holds.end()
	var full []chaos.Filled
	if r.disk != nil {
		full = r.disk.end()
	}
	attempts, err := r.read()
	if err != nil {
		return job.FileError(err, nil)
	}
	for _, l := range attempts {
		result.Updates += l.Version - l.From
		result.WorstStall = max(result.WorstStall, l.Worst.Seconds())
		for _, p := range l.Pauses {
			result.Takeovers = append(result.Takeovers, p.Seconds())
		}
	}
	result.Lives = len(attempts)
	saved, bad := loadable(launch.Checkpoints(r.job))
	come := j.Workers
	if r.job.Electors() > 0 { // servers connect to the process that takes over, too
		come += r.Servers()
	}
	result.Invariants = append(chaos.Judge(attempts, saved, bad, job.ExitCode(failed), stall),
		chaos.JudgeClocks(attempts, time.Since(begun)), flat(result.Processes, come))
	if r.disk != nil {
		result.Invariants = append(result.Invariants, chaos.JudgeDisk(full, attempts, saved, j.CheckpointEvery))
	}
	result.Invariants = append(result.Invariants, r.calm(ctx, attempts, time.Since(begun)))
	if asJSON {
		if err := json.NewEncoder(out).Encode(result); err != nil {
			return err
		}
	} else {
		result.print(out, j.Out)
	}
	for _, v := range result.Invariants {
		if !v.OK {
			return fmt.Errorf("broken: %s: %s (--fault-seed %d; the run logs are in %s)", v.Name, v.Detail, o.Seed, j.Out)
		}
	}
	return nil
}

// breaker inflicts faults on a running job.
type breaker struct {
	*launch.Launch
	job    *settings.Job
	screen *console.Screen

	front []*chaos.Proxy // in front of each server
	ways  []*chaos.Proxy // in front of each worker, for others of its ring or tree; nil: none
	disk  *disk          // of the checkpoints, if a fault fills it; nil: no such fault
	still sync.Mutex     // held while a process is stopped or continued
}

// way is the proxy for a fault of a target: the one in front of a server or, in a ring or tree, one through which other
// workers have connected to a worker. Not every worker has one: of two members only one dials the other.
func (r *breaker) way(target int) *chaos.Proxy {
	if target < len(r.front) {
		return r.front[target]
	}
	for i := range r.ways {
		if p := r.ways[(target-len(r.front)+i)%len(r.ways)]; p.Open() > 0 {
			return p
		}
	}
	return r.ways[target-len(r.front)]
}

// describe describes a fault.
func (r *breaker) describe(f chaos.Fault) string {
	switch f.Kind {
	case chaos.Cut, chaos.Silence, chaos.SlowLink, chaos.Corrupt:
		if i := f.Target - len(r.front); i >= 0 {
			return strings.Replace(f.String(), fmt.Sprintf("the way to server %d", f.Target), fmt.Sprintf("ways of worker %d or its next to others", i), 1)
		}
	}
	return f.String()
}

// inflict starts a fault. A fault that lasts is ended in the background.
func (r *breaker) inflict(f chaos.Fault) {
	signal := func(role string, s syscall.Signal) {
		if p := r.Process(role, f.Target); p != nil {
			r.still.Lock()
			defer r.still.Unlock()
			p.Signal(s)
		}
	}
	after := func(g func()) { time.AfterFunc(f.For, g) }
	switch f.Kind {
	case chaos.Kill:
		signal("worker", syscall.SIGKILL)
	case chaos.Term:
		signal("worker", syscall.SIGTERM)
	case chaos.Pause:
		signal("worker", syscall.SIGSTOP)
		after(func() { signal("worker", syscall.SIGCONT) })
	case chaos.StopAndGo:
		go func() {
			for end := time.Now().Add(f.For); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				signal("worker", syscall.SIGSTOP)
				time.Sleep(800 * time.Millisecond)
				signal("worker", syscall.SIGCONT)
			}
		}()
	case chaos.Cut:
		r.way(f.Target).Cut()
	case chaos.Silence:
		p := r.way(f.Target)
		p.Silence(true)
		after(func() { p.Silence(false) })
	case chaos.SlowLink:
		p := r.way(f.Target)
		p.Slow(f.Rate)
		after(func() { p.Slow(0) })
	case chaos.Corrupt:
		r.way(f.Target).Corrupt()
	case chaos.Server:
		if r.ways != nil {
			f.Target = 0 // a ring has one server, the coordinator
		}
		f.Target += r.job.Electors() // the first servers coordinate and have no shards
		signal("ps", syscall.SIGKILL)
	case chaos.Clock:
		r.jump(f, f.Off)
		after(func() { r.jump(f, 0) })
	case chaos.Mode:
		r.change(otherMode(r.job))
		after(func() { r.change(r.job.Mode) })
	case chaos.FullDisk:
		r.disk.fill(f.For, r.noRoom)
	case chaos.Coordinator, chaos.HandOver:
		f.Target = r.Coordinating()
		signal("ps", map[chaos.Kind]syscall.Signal{chaos.Coordinator: syscall.SIGKILL, chaos.HandOver: syscall.SIGTERM}[f.Kind])
	}
}

// otherMode is a mode that the job does not switch to by itself.
func otherMode(job *settings.Job) string {
	switch {
	case job.Arch == settings.AllReduce:
		return "ring-minus=0"
	case job.Mode == "asgd":
		return "ssgd"
	}
	return "asgd"
}

// change requests another mode in the background. A job that is over, or has no coordinator at the time, keeps its
// mode.
func (r *breaker) change(mode string) {
	go func() {
		network, err := r.Network()
		for i := 0; err == nil && i < 50; i++ {
			var c *console.Control
			if c, err = console.Reach(context.Background(), network, r.job.Name, r.Coordinator(i), string(r.job.Token), 5*time.Second); err != nil {
				err = nil
				time.Sleep(100 * time.Millisecond)
				continue
			}
			var answer json.RawMessage
			err = c.Ask(5*time.Second, &answer, "mode", mode)
			c.Conn.Close()
			break
		}
		if err != nil {
			r.screen.Say("chaos", fmt.Sprintf("mode %s: %v", mode, err))
		}
	}()
}

// jump sets the clock of a process off, unless the process has ended meanwhile.
func (r *breaker) jump(f chaos.Fault, off time.Duration) {
	role := "worker"
	if f.Daemon {
		role = "ps"
	}
	p := r.Process(role, f.Target)
	if p == nil {
		return
	}
	r.still.Lock()
	defer r.still.Unlock()
	there := func() bool { return p.Signal(syscall.Signal(0)) == nil }
	if !there() {
		return
	}
	if err := chaos.Jump(p.Pid, off); err != nil && there() {
		r.screen.Say("chaos", err.Error())
	}
}

// read reads the run logs of the job's attempts. The logs of several coordinators form one attempt.
func (r *breaker) read() ([]*chaos.Attempt, error) {
	if r.job.Electors() == 0 {
		return chaos.ReadAll(runLogs(r.job.Out), readWhole)
	}
	names := []string{filepath.Join(r.job.Out, process.RunLogName)}
	later, _ := filepath.Glob(filepath.Join(r.job.Out, "run-term*.jsonl"))
	term := func(name string) (n int) {
		fmt.Sscanf(strings.TrimPrefix(filepath.Base(name), "run-term"), "%d", &n)
		return n
	}
	slices.SortFunc(later, func(a, b string) int { return term(a) - term(b) })
	names = append(names, later...)
	var logs [][]byte
	for _, n := range names {
		b, err := readWhole(n)
		if err != nil {
			return nil, err
		}
		logs = append(logs, b)
	}
	return []*chaos.Attempt{chaos.ReadTerms(logs, names)}, nil
}

// readWhole reads a run log with its parts.
func readWhole(name string) ([]byte, error) {
	f, err := parts.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// runLogs are the run logs of a job's attempts, in order.
func runLogs(out string) []string {
	old, _ := filepath.Glob(filepath.Join(out, strings.TrimSuffix(process.RunLogName, ".jsonl")+".*.jsonl"))
	number := func(name string) (n int) {
		fmt.Sscanf(strings.TrimPrefix(filepath.Base(name), "run."), "%d", &n)
		return n
	}
	slices.SortFunc(old, func(a, b string) int { return number(a) - number(b) })
	return append(old, filepath.Join(out, process.RunLogName))
}

// loadable are the versions of the checkpoints that verify, oldest first, and the errors of the others that claim to be
// complete.
func loadable(place string) (versions []int64, bad []string) {
	found, err := checkpoint.List(place)
	if err != nil {
		return nil, []string{err.Error()}
	}
	slices.Reverse(found)
	for _, f := range found {
		if !f.Complete {
			continue
		}
		if _, err := checkpoint.Open(checkpoint.Join(place, f.Name)); err == nil {
			versions = append(versions, f.Version)
		} else {
			bad = append(bad, err.Error())
		}
	}
	return versions, bad
}

func (b broken) print(w io.Writer, dir string) {
	count := map[string]int{}
	for _, f := range b.Faults {
		if f.Done {
			count[f.Kind]++
		}
	}
	var parts []string
	for _, k := range slices.Concat(chaos.Kinds, chaos.OnRequest) {
		if n := count[string(k)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, k))
		}
	}
	fmt.Fprintf(w, "chaos     seed %d: %s; %d updates in %d lives, %.1f s\n", b.Seed, strings.Join(parts, ", "), b.Updates, b.Lives, b.Wall)
	for _, v := range b.Invariants {
		mark := "kept"
		if !v.OK {
			mark = "BROKEN"
		}
		fmt.Fprintf(w, "%-9s %s: %s\n", mark, v.Name, v.Detail)
	}
	fmt.Fprintf(w, "files     %s\n", dir)
}
