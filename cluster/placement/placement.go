package placement

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Resources is the capacity of a host or the demand of a task. Demands are means over an iteration.
type Resources struct {
	CPU    float64 // cores
	NetIn  float64 // bytes per second
	NetOut float64 // bytes per second
	Memory float64 // bytes
}

func (r Resources) plus(s Resources) Resources {
	return Resources{r.CPU + s.CPU, r.NetIn + s.NetIn, r.NetOut + s.NetOut, r.Memory + s.Memory}
}

// fields are the numbers with their names in errors.
func (r Resources) fields() [4]struct {
	Name  string
	Value float64
} {
	return [4]struct {
		Name  string
		Value float64
	}{{CPU, r.CPU}, {NetIn, r.NetIn}, {NetOut, r.NetOut}, {Memory, r.Memory}}
}

// Names of resources that may be missing.
const (
	CPU        = "cpu"        // cores
	NetIn      = "net_in"     // bytes per second
	NetOut     = "net_out"    // bytes per second
	Memory     = "memory"     // bytes
	GPU        = "gpu"        // GPUs
	GPUMem     = "gpu_memory" // bytes, of one GPU
	MaxServers = "servers"    // parameter servers per host
)

// Host is a host for tasks.
type Host struct {
	Name string

	// Capacity is the capacity of the host. +Inf: unlimited.
	Capacity Resources

	// Used is the usage of processes that are not placed here.
	Used Resources

	// GPUs are the sizes of its devices: 1 is a whole GPU, a MIG slice with three of seven parts is 3/7. A worker uses
	// one.
	GPUs []float64

	// GPUMemory is the memory of each of GPUs, in bytes; +Inf: not limited. Empty: no limits.
	GPUMemory []float64
}

// Phases are the parts of one iteration of a task. Zero: unknown, and the task is not paired.
type Phases struct {
	Active time.Duration // works on the processor
	Idle   time.Duration // does not
	GPU    time.Duration // its GPU works
}

// Task is one process of a job.
type Task struct {
	Demand Resources
	GPU    float64 // of one GPU, the part that it needs; 0: none
	Phases Phases

	// GPUMemory is the memory of that GPU that it needs, in bytes.
	GPUMemory float64

	// State is the size of the state that a move of the task copies, in bytes.
	State float64

	// Only lists the hosts (indexes) that it may use. Empty: all.
	Only []int
}

// Job is a job of parameter servers and workers. Without servers its workers
// exchange among themselves.
type Job struct {
	Name    string
	Servers []Task
	Workers []Task
}

// Kind is the kind of a task.
type Kind string

// The kinds of tasks.
const (
	Server Kind = "ps"
	Worker Kind = "worker"
)

// Options configure Place. The zero value has good defaults.
type Options struct {
	// Nodes is the largest number of steps of branch and bound. Zero means 300000, about a quarter of a second. Negative:
	// none.
	Nodes int

	// Slack is the share by which the maximum load may grow for fewer shared GPUs, less traffic and more pairs. Zero means
	// 0.03; negative: none.
	Slack float64
}

// Choice is the placement of one task.
type Choice struct {
	Job  int // index
	Kind Kind
	Rank int // among the job's tasks of this kind
	Host int // index

	// GPU is the device on the host, -1 for none. Shared: another worker uses the same device.
	GPU    int
	Shared bool

	Why string
}

// Load is the predicted load of a host. Its numbers are shares of the capacity; an unlimited resource is 0.
type Load struct {
	CPU, NetIn, NetOut float64
	Memory             float64
	GPU                float64 // of all devices together
	GPUMemory          float64 // of that of all devices together
	Servers            int     // parameter servers there
	Use                Resources
}

// Max is the greatest of CPU, NetIn and NetOut.
func (l Load) Max() float64 { return max(l.CPU, l.NetIn, l.NetOut) }

// Missing is a job that does not fit.
type Missing struct {
	Job      int    // index
	Resource string // CPU, NetIn, …
	Amount   float64
	Why      string // a sentence with amounts in their units

	// Proven: no placement of the job together with those before it exists. Else the search ended within its budget
	// without finding one.
	Proven bool
}

// Result is the result of Place.
type Result struct {
	Choices []Choice // by job, servers first, by rank; without infeasible jobs
	Loads   []Load   // by host
	MaxLoad float64

	// Exact: no placement has a smaller maximum load, except for Slack.
	Exact bool

	Infeasible []Missing
}

// Validate checks hosts and jobs. Errors name host or job.
func Validate(hosts []Host, jobs []Job) error {
	if len(hosts) == 0 {
		return fmt.Errorf("placement: no hosts")
	}
	names := map[string]bool{}
	for _, h := range hosts {
		if h.Name == "" {
			return fmt.Errorf("placement: a host without a name")
		}
		if names[h.Name] {
			return fmt.Errorf("placement: host %s occurs twice", h.Name)
		}
		names[h.Name] = true
		for _, f := range h.Capacity.fields() {
			if !(f.Value >= 0) {
				return fmt.Errorf("placement: host %s: %s is %v; want 0 or more", h.Name, f.Name, f.Value)
			}
		}
		if err := finite(h.Used); err != nil {
			return fmt.Errorf("placement: host %s: used %w", h.Name, err)
		}
		for i, g := range h.GPUs {
			if !(g > 0 && g <= 1) {
				return fmt.Errorf("placement: host %s: gpu %d has size %v; want more than 0, at most 1", h.Name, i, g)
			}
		}
		if n := len(h.GPUMemory); n > 0 && n != len(h.GPUs) {
			return fmt.Errorf("placement: host %s has %d GPUs and the memory of %d; give all or none", h.Name, len(h.GPUs), n)
		}
		for i, m := range h.GPUMemory {
			if !(m > 0) {
				return fmt.Errorf("placement: host %s: gpu %d has %v bytes of memory; want more than 0", h.Name, i, m)
			}
		}
	}
	clear(names)
	for _, j := range jobs {
		if j.Name == "" {
			return fmt.Errorf("placement: a job without a name")
		}
		if names[j.Name] {
			return fmt.Errorf("placement: job %s occurs twice", j.Name)
		}
		names[j.Name] = true
		if len(j.Servers)+len(j.Workers) == 0 {
			return fmt.Errorf("placement: job %s has neither servers nor workers", j.Name)
		}
		for _, l := range []struct {
			kind  Kind
			tasks []Task
		}{{Server, j.Servers}, {Worker, j.Workers}} {
			for i, t := range l.tasks {
				if err := t.validate(len(hosts)); err != nil {
					return fmt.Errorf("placement: job %s: %s %d: %w", j.Name, l.kind, i, err)
				}
			}
		}
	}
	return nil
}

func (t Task) validate(hosts int) error {
	if err := finite(t.Demand); err != nil {
		return err
	}
	if !(t.GPU >= 0 && t.GPU <= 1) {
		return fmt.Errorf("gpu is %v; want 0 to 1: a worker runs on one GPU", t.GPU)
	}
	switch {
	case !(t.GPUMemory >= 0) || math.IsInf(t.GPUMemory, 1):
		return fmt.Errorf("gpu_memory is %v bytes; want a number of at least 0", t.GPUMemory)
	case t.GPUMemory > 0 && t.GPU == 0:
		return fmt.Errorf("gpu_memory without a part of a GPU; give gpu")
	}
	if !(t.State >= 0) || math.IsInf(t.State, 1) {
		return fmt.Errorf("state is %v bytes; want 0 or more", t.State)
	}
	if p := t.Phases; p.Active < 0 || p.Idle < 0 || p.GPU < 0 {
		return fmt.Errorf("negative phase in %v", p)
	}
	for _, h := range t.Only {
		if h < 0 || h >= hosts {
			return fmt.Errorf("no host %d; there are %d", h, hosts)
		}
	}
	return nil
}

func finite(r Resources) error {
	for _, f := range r.fields() {
		if !(f.Value >= 0) || math.IsInf(f.Value, 1) {
			return fmt.Errorf("%s is %v; want a number of at least 0", f.Name, f.Value)
		}
	}
	return nil
}

// Place finds a host for every task of every job that fits. It returns an error for input that [Validate] rejects.
func Place(hosts []Host, jobs []Job, o Options) (Result, error) {
	if err := Validate(hosts, jobs); err != nil {
		return Result{}, err
	}
	if o.Nodes == 0 {
		o.Nodes = 300_000
	}
	if o.Slack == 0 {
		o.Slack = 0.03
	}
	p := newProblem(hosts, jobs)
	p.pairUp()
	all := make([]int, len(jobs))
	for i := range all {
		all[i] = i
	}
	var missing []Missing
	s, exact, _ := p.solve(all, o)
	if s == nil {
		// At least one job does not fit. Earlier jobs have priority.
		var kept []int
		for i := range jobs {
			t, e, proven := p.solve(append(slices.Clone(kept), i), o)
			if t == nil {
				missing = append(missing, p.lacks(s, kept, i, proven))
				continue
			}
			s, exact, kept = t, e, append(kept, i)
		}
		if s == nil {
			s = p.empty()
		}
	}
	s.settle(o.Slack)
	r := p.result(s)
	r.Exact, r.Infeasible = exact, missing
	return r, nil
}
