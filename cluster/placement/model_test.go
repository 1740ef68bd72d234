package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// This is the dumb model: no search, no sums that are kept, each flow by itself.

// naive is a placement, by task, in the order of Result.Choices.
type naive struct {
	hosts []Host
	jobs  []Job
	tasks []naiveTask
	seats int
}

type naiveTask struct {
	Task
	job    int
	server bool
}

func newNaive(hosts []Host, jobs []Job) *naive {
	n := &naive{hosts: hosts, jobs: jobs}
	servers := 0
	for j, job := range jobs {
		for _, t := range job.Servers {
			n.tasks = append(n.tasks, naiveTask{t, j, true})
			servers++
		}
		for _, t := range job.Workers {
			n.tasks = append(n.tasks, naiveTask{t, j, false})
		}
	}
	n.seats = int(math.Ceil(float64(servers)/float64(len(hosts)))) + 1
	return n
}

// weigh says whether the placement fits, and the maximum load.
func (n *naive) weigh(at []int) (fits bool, load float64) {
	fits = true
	for h, host := range n.hosts {
		use := host.Used
		servers := 0
		var gpus, memory []float64
		for i, t := range n.tasks {
			if at[i] != h {
				continue
			}
			use.CPU += t.Demand.CPU
			use.Memory += t.Demand.Memory
			use.NetIn += t.Demand.NetIn
			use.NetOut += t.Demand.NetOut
			if t.server {
				servers++
			}
			if t.GPU > 0 {
				gpus = append(gpus, t.GPU)
				memory = append(memory, t.GPUMemory)
			}
			if len(t.Only) > 0 {
				ok := false
				for _, o := range t.Only {
					ok = ok || o == h
				}
				fits = fits && ok
			}
		}
		for j := range n.jobs {
			in, out := n.local(j, h, at)
			use.NetIn -= in
			use.NetOut -= out
		}
		over := func(use, have float64) bool { return use > have*(1+1e-8)+1e-8 }
		if over(use.CPU, host.Capacity.CPU) || over(use.NetIn, host.Capacity.NetIn) || over(use.NetOut, host.Capacity.NetOut) ||
			over(use.Memory, host.Capacity.Memory) || servers > n.seats || !seats(host, gpus, memory) {
			fits = false
		}
		for _, x := range [][2]float64{{use.CPU, host.Capacity.CPU}, {use.NetIn, host.Capacity.NetIn}, {use.NetOut, host.Capacity.NetOut}} {
			if x[0] > 1e-9 {
				load = max(load, x[0]/x[1])
			}
		}
	}
	return fits, load
}

// local is what of job j's traffic does not come in to host h or go out of it.
func (n *naive) local(j, h int, at []int) (in, out float64) {
	if len(n.jobs[j].Servers) == 0 {
		all, count := true, 0
		var sumIn, sumOut, maxIn, maxOut float64
		for i, t := range n.tasks {
			switch {
			case t.job != j:
			case at[i] != h:
				all = false
			default:
				count++
				sumIn, sumOut = sumIn+t.Demand.NetIn, sumOut+t.Demand.NetOut
				maxIn, maxOut = max(maxIn, t.Demand.NetIn), max(maxOut, t.Demand.NetOut)
			}
		}
		if all {
			return sumIn, sumOut
		}
		return sumIn - maxIn, sumOut - maxOut
	}
	var sIn, sOut, wIn, wOut float64
	for _, t := range n.tasks {
		switch {
		case t.job != j:
		case t.server:
			sIn, sOut = sIn+t.Demand.NetIn, sOut+t.Demand.NetOut
		default:
			wIn, wOut = wIn+t.Demand.NetIn, wOut+t.Demand.NetOut
		}
	}
	if len(n.jobs[j].Workers) == 0 {
		return 0, 0
	}
	for a, s := range n.tasks {
		for b, w := range n.tasks {
			if s.job != j || w.job != j || !s.server || w.server || at[a] != h || at[b] != h {
				continue
			}
			if m := max(sIn, wOut); m > 0 {
				in += s.Demand.NetIn * w.Demand.NetOut / m
				out += s.Demand.NetIn * w.Demand.NetOut / m
			}
			if m := max(sOut, wIn); m > 0 {
				in += s.Demand.NetOut * w.Demand.NetIn / m
				out += s.Demand.NetOut * w.Demand.NetIn / m
			}
		}
	}
	return in, out
}

// Reports whether the demands fit on the devices, by trying every assignment.
func seats(h Host, parts, memory []float64) bool {
	if len(parts) == 0 {
		return true
	}
	for d := range h.GPUs {
		limited := len(h.GPUMemory) > 0
		if h.GPUs[d]+1e-8 < parts[0] || limited && h.GPUMemory[d]+1e-8 < memory[0] {
			continue
		}
		h.GPUs[d] -= parts[0]
		if limited {
			h.GPUMemory[d] -= memory[0]
		}
		ok := seats(h, parts[1:], memory[1:])
		h.GPUs[d] += parts[0]
		if limited {
			h.GPUMemory[d] += memory[0]
		}
		if ok {
			return true
		}
	}
	return false
}

// best tries every placement.
func (n *naive) best() (found bool, load float64) {
	at := make([]int, len(n.tasks))
	load = math.Inf(1)
	for {
		if fits, l := n.weigh(at); fits {
			found, load = true, min(load, l)
		}
		i := 0
		for ; i < len(at); i++ {
			if at[i]++; at[i] < len(n.hosts) {
				break
			}
			at[i] = 0
		}
		if i == len(at) {
			return found, load
		}
	}
}

// instance makes a random small instance. tight is how full it is, about.
func instance(r *rand.Rand, tight float64) ([]Host, []Job) {
	nh := 2 + r.IntN(3)
	nt := map[int]int{2: 9, 3: 8, 4: 6}[nh]
	var hosts []Host
	gpus := r.IntN(2) == 0
	for h := range nh {
		c := Resources{float64(2 + r.IntN(15)), 100 + 400*r.Float64(), 100 + 400*r.Float64(), 50 + 100*r.Float64()}
		if h > 0 && r.IntN(2) == 0 {
			c = hosts[h-1].Capacity
		}
		host := Host{Name: fmt.Sprint("h", h), Capacity: c}
		if gpus {
			for range r.IntN(4) {
				host.GPUs = append(host.GPUs, []float64{1, 1, 3. / 7, 4. / 7}[r.IntN(4)])
			}
			if r.IntN(2) == 0 {
				for range host.GPUs {
					host.GPUMemory = append(host.GPUMemory, []float64{80, 40, 24, math.Inf(1)}[r.IntN(4)])
				}
			}
		}
		if r.IntN(5) == 0 {
			host.Used = Resources{CPU: 0.1 * c.CPU, NetIn: 0.2 * c.NetIn, Memory: 0.1 * c.Memory}
		}
		hosts = append(hosts, host)
	}
	var jobs []Job
	for nt > 0 {
		job := Job{Name: fmt.Sprint("j", len(jobs))}
		size := min(nt, 1+r.IntN(5))
		nt -= size
		servers := min(size, r.IntN(3))
		demand := func() Resources {
			return Resources{tight * float64(nh) * 2 * r.Float64(), tight * 60 * float64(nh) * r.Float64(), tight * 60 * float64(nh) * r.Float64(), tight * 25 * float64(nh) * r.Float64()}
		}
		var only []int
		if r.IntN(6) == 0 {
			only = []int{r.IntN(nh)}
		}
		twin := r.IntN(2) == 0
		for i := range size {
			t := Task{Demand: demand()}
			l := &job.Workers
			if i < servers {
				l = &job.Servers
				t.Only = only
			} else if gpus && r.IntN(3) > 0 {
				t.GPU = []float64{1, 0.5, 0.3, 0.4}[r.IntN(4)] * min(1, 2*tight)
				t.GPUMemory = []float64{0, 10, 20, 40}[r.IntN(4)]
			}
			if twin && len(*l) > 0 {
				t = (*l)[0]
			}
			*l = append(*l, t)
		}
		jobs = append(jobs, job)
	}
	return hosts, jobs
}

// positions are the hosts of a result with all jobs placed.
func positions(r Result) []int {
	var at []int
	for _, c := range r.Choices {
		at = append(at, c.Host)
	}
	return at
}

// A placement that exists is found, is never over capacity, and its maximum load is
// within 1.05 of the optimum, by exhaustive search; what cannot be placed is said to be so.
func TestAgainstExhaustiveSearch(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 50
	}
	feasible, not, worst, alone := 0, 0, 1.0, 0
	for seed := 0; feasible < n && seed < 3*n; seed++ {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		hosts, jobs := instance(r, []float64{0.25, 0.4, 0.55, 0.8}[seed%4])
		m := newNaive(hosts, jobs)
		want, optimum := m.best()
		got, err := Place(hosts, jobs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if want != (len(got.Infeasible) == 0) {
			t.Errorf("seed %d: a placement exists: %v; infeasible: %v", seed, want, got.Infeasible)
			continue
		}
		if !want {
			not++
			for _, x := range got.Infeasible {
				if !x.Proven || x.Resource == "" || !(x.Amount > 0) {
					t.Errorf("seed %d: %+v", seed, x)
				}
			}
			continue
		}
		feasible++
		fits, load := m.weigh(positions(got))
		switch {
		case !fits:
			t.Errorf("seed %d: over capacity: %v", seed, got.Choices)
		case math.Abs(load-got.MaxLoad) > 1e-6*load:
			t.Errorf("seed %d: load %v, the model says %v", seed, got.MaxLoad, load)
		case load > 1.05*optimum+1e-9:
			t.Errorf("seed %d: load %v, the optimum is %v", seed, load, optimum)
		case !got.Exact:
			t.Errorf("seed %d: the search did not end", seed)
		}
		if optimum > 0 {
			worst = max(worst, load/optimum)
		}
		// Without branch and bound: what the local search does by itself.
		if g, _ := Place(hosts, jobs, Options{Nodes: -1, Slack: -1}); len(g.Infeasible) > 0 || g.MaxLoad > 1.05*optimum+1e-9 {
			alone++
		}
	}
	t.Logf("%d instances have a placement, %d have none; at most %.3f of the optimum; local search alone misses 1.05 in %d", feasible, not, worst, alone)
	if feasible < n || not < n/8 || alone > n/8 {
		t.Errorf("%d instances have a placement, %d have none, local search alone misses %d: too few to say anything, or too many", feasible, not, alone)
	}
}

// The figures that the search keeps are those of the model, after any changes.
func TestFiguresAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		hosts, jobs := instance(r, 0.5)
		m, p := newNaive(hosts, jobs), newProblem(hosts, jobs)
		s := p.empty()
		at := make([]int, len(m.tasks))
		for i := range at {
			at[i] = r.IntN(len(hosts))
			s.set(i, at[i])
		}
		for range 5 {
			i, h := r.IntN(len(at)), r.IntN(len(hosts))
			s.set(i, h)
			at[i] = h
		}
		for i, h := range at {
			if !p.allowed(i, h) {
				at[i] = m.tasks[i].Only[0]
				s.set(i, at[i])
			}
		}
		fits, load := m.weigh(at)
		over, got := s.total()
		if fits != (over <= 0) || math.Abs(load-got) > 1e-9*load {
			t.Fatalf("at %v: over %v, load %v; the model: fits %v, load %v", at, over, got, fits, load)
		}
	})
}
