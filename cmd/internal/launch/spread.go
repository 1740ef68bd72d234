package launch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"star/cluster/inventory"
	"star/cluster/placement"
	"star/cmd/internal/node"
	"star/internal/defaults"
	"star/internal/ports"
	"star/internal/settings"
	"star/job"
	"star/job/combinations"
	"star/job/process"
	"star/worker/inject"
)

// Spread assigns the processes of a job to hosts.
type Spread struct {
	Hosts  []inventory.Host
	Jobs   []placement.Job
	Result placement.Result
	// Electors is the number of processes that may coordinate and have no shards; they have the first ranks.
	Electors int

	where map[string]Site // by role and rank
	spare int             // servers without shards; they have the last ranks
	part  float64         // fraction of the estimated demand
}

// leastPart is the fraction of an estimated demand below which a job does not fit.
const leastPart = 1. / 1024

// halve halves an estimated demand, so that the relative load of the hosts stays the same. Memory is known, and stays.
func (s *Spread) halve() {
	s.part /= 2
	for _, list := range [][]placement.Task{s.Jobs[0].Servers, s.Jobs[0].Workers} {
		for i := range list {
			d := &list[i].Demand
			d.CPU, d.NetIn, d.NetOut = d.CPU/2, d.NetIn/2, d.NetOut/2
		}
	}
}

// Site is the place of one process.
type Site struct {
	inventory.Host
	GPU int // index of its GPU on the host; -1: none
}

// Sees returns the environment variables that make only that GPU visible.
func (s Site) Sees() []string {
	visible := ""
	if len(s.Launch) == 0 {
		visible = os.Getenv("CUDA_VISIBLE_DEVICES")
	}
	return s.See(s.GPU, visible)
}

// Reach returns the host's address for the others.
func (s Site) Reach() string {
	if s.Address != "" {
		return s.Address
	}
	return s.Name
}

// guess is the assumed length of an iteration if no setting describes the job's demands.
const guess = time.Second

// NewSpread places the processes of a job on hosts. own means that its workers are the user's program.
func NewSpread(j *settings.Job, hosts []inventory.Host, own bool) (*Spread, error) {
	for _, text := range j.Slow {
		if s, err := inject.Parse(text); err == nil && s.Kind == inject.Stop {
			return nil, j.Invalid("slow", errors.New("a process on another host cannot be stopped from here; leave --hosts away"))
		}
	}
	servers := max(j.Shards, j.Replicas)
	if j.Arch == settings.AllReduce {
		servers = 0
	}
	s := &Spread{Hosts: hosts, where: map[string]Site{}, part: 1, Electors: j.Electors()}
	var err error
	if j.Demands != "" {
		err = s.read(j, servers)
	} else {
		err = s.reckon(j, servers, own)
	}
	if err != nil {
		return nil, err
	}
	for {
		if s.Result, err = placement.Place(inventory.Places(hosts), s.Jobs, placement.Options{}); err != nil {
			return nil, err
		}
		if len(s.Result.Infeasible) == 0 || j.Demands != "" || s.part <= leastPart {
			break
		}
		s.halve()
	}
	if len(s.Result.Infeasible) > 0 {
		return nil, fmt.Errorf("--hosts %s: the job does not fit: %s; --demands says what it wants", j.Hosts, s.Result.Infeasible[0].Why)
	}
	for i := range s.Result.Choices {
		c := &s.Result.Choices[i]
		role := "worker"
		if c.Kind == placement.Server {
			role = "ps"
			c.Rank += s.Electors
		}
		s.where[fmt.Sprintf("%s %d", role, c.Rank)] = Site{hosts[c.Host], c.GPU}
	}
	all := s.emptiest(func(int) bool { return true })
	for rank := range s.Electors {
		s.where[fmt.Sprintf("ps %d", rank)] = Site{hosts[all[rank%len(all)]], -1}
	}
	if servers+s.Electors == 0 { // the coordinator of an all-reduce moves no gradients
		s.where["ps 0"] = Site{s.Of("worker", 0).Host, -1}
	}
	if j.MoveShards == job.Auto && servers > 0 {
		s.spares(servers)
	}
	for _, name := range slices.Sorted(maps.Keys(s.where)) {
		at := s.where[name]
		open := !j.TLS() && j.Token == "" && !j.Insecure
		if r := combinations.Check(combinations.Of(combinations.Hosts).With(combinations.Open, open)); r != nil && !settings.Loopback(net.JoinHostPort(at.Reach(), "0")) {
			return nil, j.Invalid(r.Setting, fmt.Errorf("%s: %w", at.Reach(), r))
		}
	}
	return s, nil
}

// mostSpares is the largest number of spare servers of a job: each is a process.
const mostSpares = 16

// spares puts a server without shards on each host that has none, the emptiest hosts first: shards may move there.
func (s *Spread) spares(servers int) {
	has := map[int]bool{}
	for _, c := range s.Result.Choices {
		if c.Kind == placement.Server {
			has[c.Host] = true
		}
	}
	free := s.emptiest(func(h int) bool { return !has[h] })
	for _, h := range free[:min(len(free), mostSpares)] {
		s.where[fmt.Sprintf("ps %d", servers+s.spare)] = Site{s.Hosts[h], -1}
		s.spare++
	}
}

// emptiest lists the hosts that fit, the emptiest first.
func (s *Spread) emptiest(fits func(host int) bool) (hs []int) {
	for h := range s.Hosts {
		if fits(h) {
			hs = append(hs, h)
		}
	}
	slices.SortStableFunc(hs, func(a, b int) int { return cmp.Compare(s.Result.Loads[a].Max(), s.Result.Loads[b].Max()) })
	return hs
}

// capacities are the settings that tell a process its host's capacities, from the file; unlimited ones are omitted.
func (s Site) capacities(set func(name, value string)) {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	if x := s.Capacity.CPU - s.Used.CPU; x > 0 {
		set("capacity-cpu", number(x))
	}
	if x := min(s.Capacity.NetIn-s.Used.NetIn, s.Capacity.NetOut-s.Used.NetOut); x > 0 && !math.IsInf(x, 1) {
		set("capacity-net", number(x/1e6))
	}
}

// read takes the job's demand from the file of --demands.
func (s *Spread) read(spec *settings.Job, servers int) error {
	jobs, err := inventory.Jobs(spec.Demands, s.Hosts)
	if err != nil {
		return job.FileError(err, inventory.ErrFile)
	}
	for _, j := range jobs {
		if j.Name != spec.Name {
			continue
		}
		if len(j.Servers) != servers || len(j.Workers) != spec.Workers {
			return spec.Invalid("demands", fmt.Errorf("job %s has %d servers and %d workers there, and %d and %d here (--shards, --workers)", j.Name, len(j.Servers), len(j.Workers), servers, spec.Workers))
		}
		s.Jobs = []placement.Job{j}
		return nil
	}
	return spec.Invalid("demands", fmt.Errorf("has no job %s (--job)", spec.Name))
}

// reckon estimates the demand from the size of the model.
func (s *Spread) reckon(job *settings.Job, servers int, own bool) error {
	n, err := node.Parameters(job)
	if err != nil {
		return err
	}
	size := inventory.Size{Params: 4 * float64(n), Iteration: guess, Servers: servers, Workers: job.Workers, Quorum: job.Workers}
	server, worker := size.Tasks()
	worker.Demand.CPU = float64(max(1, job.Threads))
	if own {
		worker.GPU = s.share(job.Workers)
	}
	j := placement.Job{Name: job.Name}
	for range servers {
		j.Servers = append(j.Servers, server)
	}
	for range job.Workers {
		j.Workers = append(j.Workers, worker)
	}
	s.Jobs = []placement.Job{j}
	return nil
}

// share returns the fraction of a GPU for each worker, if all hosts have GPUs: one per worker, as far as there are
// enough. It returns 0 if not all hosts have some.
func (s *Spread) share(workers int) float64 {
	n, least := 0, 1.
	for _, h := range s.Hosts {
		if len(h.GPUs) == 0 {
			return 0
		}
		n, least = n+len(h.GPUs), min(least, slices.Min(h.GPUs))
	}
	return least / float64((workers+n-1)/n)
}

func (s *Spread) Of(role string, rank int) Site { return s.where[fmt.Sprintf("%s %d", role, rank)] }

// Lines describes the placement briefly, for the log.
func (s *Spread) Lines() []string {
	var lines []string
	if s.part < 1 {
		lines = append(lines, fmt.Sprintf("the hosts have less than the job is taken to want, one processor for each worker; loads are for %s of that. --demands says what it wants", fmt.Sprintf("%.1f %%", 100*s.part)))
	}
	for _, c := range s.Result.Choices {
		if c.Shared {
			lines = append(lines, fmt.Sprintf("%s %d does not have GPU %d of %s for itself: %s", c.Kind, c.Rank, c.GPU, s.Hosts[c.Host].Name, c.Why))
		}
	}
	for h, host := range s.Hosts {
		var there []string
		for _, c := range s.Result.Choices {
			if c.Host == h {
				there = append(there, fmt.Sprintf("%s %d", c.Kind, c.Rank))
			}
		}
		for rank := range s.Electors {
			if s.Of("ps", rank).Name == host.Name {
				there = append(there, fmt.Sprintf("ps %d (may coordinate)", rank))
			}
		}
		for i := range s.spare {
			if rank := len(s.Jobs[0].Servers) + i; s.Of("ps", rank).Name == host.Name {
				there = append(there, fmt.Sprintf("ps %d (spare)", rank))
			}
		}
		if len(there) > 0 {
			lines = append(lines, fmt.Sprintf("on %s: %s; load %.1f %%", host.Name, strings.Join(there, ", "), 100*s.Result.Loads[h].Max()))
		}
	}
	return lines
}

// coordinators returns the addresses of the processes that may coordinate, or of the first server: the port of --listen
// on its host. Several on one host use consecutive ports.
func (s *Spread) coordinators(job *settings.Job) (addrs []string, err error) {
	_, text, err := net.SplitHostPort(job.Listen)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	first, err := net.LookupPort("tcp", text)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	taken := map[string]int{}
	for rank := range max(1, s.Electors) {
		at, port := s.Of("ps", rank), first
		if port > 0 {
			port += taken[at.Name]
			taken[at.Name]++
		}
		addr := net.JoinHostPort(at.Reach(), strconv.Itoa(port))
		if len(at.Launch) > 0 {
			if port == 0 {
				return nil, job.Invalid("listen", fmt.Errorf("a free port of %s cannot be found from here; give one, such as :%s", at.Name, defaults.Port))
			}
			addrs = append(addrs, addr)
			continue
		}
		if port == 0 {
			addr, err = ports.Reserve(at.Reach(), addrs...)
		} else {
			addr, err = ports.Listens(addr)
		}
		if err != nil {
			return nil, job.Invalid("listen", fmt.Errorf("on host %s: %w", at.Name, err))
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// A command of the user's own travels with the settings, in a variable: a shell in between, such as that of ssh, would
// split it into words and interpret it.
const (
	CommandRole     = "command"
	CommandVariable = "INSIDE_STAR_COMMAND" // its words, a JSON list
)

// Command is the process of a role on this host. Its settings, and the words of a command of the user's own, go through
// its standard input: arguments are visible to others, and ssh has the far host's shell parse them.
func (s Site) Command(self, role string, env, own []string) (*exec.Cmd, *Orders) {
	program := s.Program
	if program == "" {
		program = self
	}
	ours := s.Sees()
	if role == "worker" && len(own) > 0 {
		text, _ := json.Marshal(own) // strings cannot fail
		role, ours = CommandRole, append(ours, CommandVariable+"="+string(text))
	}
	words := append(append([]string{}, s.Launch...), program, "member", role)
	for _, e := range env {
		if strings.HasPrefix(e, "STAR_") || strings.HasPrefix(e, process.LaunchedVariable+"=") {
			ours = append(ours, e)
		}
	}
	return exec.Command(words[0], words[1:]...), &Orders{Env: ours}
}

// Orders go to a process that was started through something else, such as ssh: its
// settings first, then signals, one line each.
type Orders struct {
	Env []string

	mu sync.Mutex
	to io.WriteCloser
}

// attach prepares a command that has not started.
func (o *Orders) attach(cmd *exec.Cmd) error {
	to, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	o.to = to
	line, err := json.Marshal(o.Env)
	if err != nil {
		return err
	}
	go func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		to.Write(append(line, '\n')) // an error means that the command has ended, and it prints the reason
	}()
	return nil
}

// signal passes a signal on. It reports false if the process that was started is to
// get it itself: SIGKILL also kills the process that carries the orders, and with that the orders end.
func (o *Orders) signal(sig syscall.Signal) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := fmt.Fprintf(o.to, "%d\n", int(sig))
	return err == nil && sig != syscall.SIGKILL
}
