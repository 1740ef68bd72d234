package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var inf = math.Inf(1)

// same makes n equal tasks.
func same(n int, t Task) []Task {
	var ts []Task
	for range n {
		ts = append(ts, t)
	}
	return ts
}

func place(t *testing.T, hosts []Host, jobs []Job) Result {
	t.Helper()
	r, err := Place(hosts, jobs, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Where the network is scarce, a job comes together; where the processors are, it spreads.
func TestColocation(t *testing.T) {
	job := Job{Name: "a", Servers: same(1, Task{Demand: Resources{1, 200, 200, 0}}), Workers: same(2, Task{Demand: Resources{1, 100, 100, 0}})}
	host := func(name string, cpu, net float64) Host {
		return Host{Name: name, Capacity: Resources{cpu, net, net, inf}}
	}
	r := place(t, []Host{host("x", 16, 250), host("y", 16, 250)}, []Job{job})
	if r.Choices[0].Host != r.Choices[1].Host || r.Choices[1].Host != r.Choices[2].Host || r.Loads[0].NetIn+r.Loads[1].NetIn > 0 {
		t.Errorf("scarce network: %+v", r)
	}
	if !strings.Contains(r.Choices[0].Why, "beside 2 workers of its job, which keeps 400 B/s off the network") {
		t.Errorf("why: %s", r.Choices[0].Why)
	}
	r = place(t, []Host{host("x", 2, 10000), host("y", 2, 10000)}, []Job{job})
	if n := r.Loads[0].CPU; n != 0.5 && n != 1 || r.MaxLoad != 1 {
		t.Errorf("scarce processors: %+v", r.Loads)
	}

	// Without the traffic that stays there would be no placement: the server alone takes
	// in more than a link carries.
	r = place(t, []Host{host("x", 3, 150), host("y", 3, 150)}, []Job{job})
	if len(r.Infeasible) > 0 || r.MaxLoad > 1 {
		t.Errorf("a server beside its workers: %+v", r)
	}

	// Nor for workers without servers, which send once per host.
	ring := Job{Name: "r", Workers: same(4, Task{Demand: Resources{1, 100, 100, 0}})}
	r = place(t, []Host{host("x", 2, 110), host("y", 2, 110)}, []Job{ring})
	if len(r.Infeasible) > 0 || r.Loads[0].Use.NetOut != 100 {
		t.Errorf("ring: %+v", r)
	}
}

func TestGPUs(t *testing.T) {
	worker := func(gpu float64, active, busy int) Task {
		return Task{Demand: Resources{CPU: 1}, GPU: gpu, Phases: Phases{Active: time.Duration(active) * ms, Idle: time.Duration(busy) * ms, GPU: time.Duration(busy) * ms}}
	}
	host := func(gpus ...float64) Host {
		return Host{Name: fmt.Sprint("h", len(gpus)), Capacity: Resources{64, inf, inf, inf}, GPUs: gpus}
	}
	device := func(r Result) (ds []int, shared int) {
		for _, c := range r.Choices {
			ds = append(ds, c.GPU)
			if c.Shared {
				shared++
			}
			if c.Shared != strings.Contains(c.Why, "shares its GPU with") {
				panic(c.Why)
			}
		}
		return ds, shared
	}
	// One each where there are enough, whatever the sizes; a slice is never too small.
	r := place(t, []Host{host(1, 3./7, 4./7)}, []Job{{Name: "a", Workers: []Task{worker(0.4, 0, 0), worker(0.5, 0, 0), worker(1, 0, 0)}}})
	if ds, shared := device(r); shared != 0 || !slices.Equal(ds, []int{1, 2, 0}) {
		t.Errorf("one each: %v, %d shared", ds, shared)
	}
	r = place(t, []Host{host(1, 1)}, []Job{{Name: "a", Workers: same(2, worker(0.5, 0, 0))}})
	if ds, shared := device(r); shared != 0 {
		t.Errorf("two on two: %v", ds)
	}
	// A host where no worker needs to share is better, although both are as full.
	r = place(t, []Host{host(1), host(1, 1)}, []Job{{Name: "a", Workers: same(2, worker(0.5, 0, 0))}})
	if _, shared := device(r); shared != 0 {
		t.Errorf("shared without need: %v", r.Choices)
	}
	// Those that must share are the ones that take turns best: 0 with 3 (γ 1), 1 with 2.
	r = place(t, []Host{host(1, 1)}, []Job{{Name: "a", Workers: []Task{worker(0.5, 100, 300), worker(0.5, 200, 50)}}, {Name: "b", Workers: []Task{worker(0.5, 50, 200), worker(0.5, 300, 100)}}})
	if ds, shared := device(r); shared != 4 || ds[0] != ds[3] || ds[1] != ds[2] || ds[0] == ds[1] {
		t.Errorf("four on two: %v, %d shared", ds, shared)
	}
	if !strings.Contains(r.Choices[0].Why, "shares its GPU with b worker 1, γ 1.00") {
		t.Errorf("why: %s", r.Choices[0].Why)
	}
	// On two hosts, too, and one without a GPU does not matter.
	twin := host(1)
	twin.Name = "twin"
	r = place(t, []Host{host(1), twin, host()}, []Job{{Name: "a", Workers: []Task{worker(0.5, 100, 300), worker(0.5, 200, 50)}}, {Name: "b", Workers: []Task{worker(0.5, 50, 200), worker(0.5, 300, 100)}}})
	if cs := r.Choices; cs[0].Host != cs[3].Host || cs[1].Host != cs[2].Host || cs[0].Host == cs[1].Host {
		t.Errorf("four on two hosts: %+v", cs)
	}
	// A worker that has no room on a GPU does not count, however well they take turns: 0 and 1 want 0.6 together.
	r = place(t, []Host{host(0.5, 0.5)}, []Job{{Name: "a", Workers: []Task{worker(0.3, 100, 300), worker(0.3, 300, 100), worker(0.2, 90, 300), worker(0.2, 300, 90)}}})
	if ds, _ := device(r); ds[0] != ds[3] || ds[1] != ds[2] || ds[0] == ds[1] {
		t.Errorf("four on halves: %v", ds)
	}
	// The room is that of the device that they would share, which is not the first one, nor the one with the larger part.
	for _, c := range []struct {
		gpus, memory []float64
		part         float64
		want         []int
	}{{[]float64{0.5, 1}, nil, 0.4, []int{1, 1, 0}}, {[]float64{1, 0.5}, []float64{40, 80}, 0.2, []int{1, 1, 0}}, {[]float64{0.5, 1}, []float64{80, 40}, 0.2, []int{0, 0, 1}}} {
		h := host(c.gpus...)
		h.GPUMemory = c.memory
		w := []Task{worker(c.part, 100, 300), worker(c.part, 300, 100), worker(c.part, 200, 200)}
		for i := range w {
			if c.memory != nil {
				w[i].GPUMemory = 30
			}
		}
		r = place(t, []Host{h}, []Job{{Name: "a", Workers: w}})
		if ds, _ := device(r); !slices.Equal(ds, c.want) {
			t.Errorf("three on %v with %v: %v", c.gpus, c.memory, ds)
		}
	}
	// Three on one, in two rounds of matching.
	r = place(t, []Host{host(1)}, []Job{{Name: "a", Workers: same(3, worker(0.3, 10, 20))}})
	if ds, shared := device(r); shared != 3 || !slices.Equal(ds, []int{0, 0, 0}) {
		t.Errorf("three on one: %v", ds)
	}
	// Greatest first into the fullest fails here; trying all does not: 0.5+0.3+0.2, 0.4+0.3+0.3 is 1 and 1.
	r = place(t, []Host{host(1, 1)}, []Job{{Name: "a", Workers: []Task{worker(0.5, 0, 0), worker(0.4, 0, 0), worker(0.3, 0, 0), worker(0.3, 0, 0), worker(0.3, 0, 0), worker(0.2, 0, 0)}}})
	if len(r.Infeasible) > 0 {
		t.Errorf("six on two: %v", r.Infeasible)
	} else {
		sum := map[int]float64{}
		for i, g := range []float64{0.5, 0.4, 0.3, 0.3, 0.3, 0.2} {
			sum[r.Choices[i].GPU] += g
		}
		if math.Abs(sum[0]-1) > 1e-9 || math.Abs(sum[1]-1) > 1e-9 {
			t.Errorf("six on two: %v", sum)
		}
	}
}

// Memory is a limit of its own: it may forbid a device that has enough compute, forbid to share, and make the smaller
// part the better device.
func TestGPUMemory(t *testing.T) {
	const gib = 1 << 30
	worker := func(part, memory float64) Task {
		return Task{Demand: Resources{CPU: 1}, GPU: part, GPUMemory: memory * gib}
	}
	host := func(gpus, memory []float64) Host {
		h := Host{Name: fmt.Sprint("h", len(gpus)), Capacity: Resources{64, inf, inf, inf}, GPUs: gpus}
		for _, m := range memory {
			h.GPUMemory = append(h.GPUMemory, m*gib)
		}
		return h
	}
	for _, c := range []struct {
		name    string
		host    Host
		workers []Task
		want    []int   // devices
		load    float64 // of the memory
		lack    float64 // GiB; the job does not fit
		why     string
	}{
		{"part would do on either", host([]float64{1, 1}, []float64{24, 80}), []Task{worker(0.5, 40)}, []int{1}, 40. / 104, 0, ""},
		{"two share in part and memory", host([]float64{1}, []float64{80}), []Task{worker(0.5, 40), worker(0.5, 40)}, []int{0, 0}, 1, 0, ""},
		{"two share in part, not in memory", host([]float64{1}, []float64{80}), []Task{worker(0.5, 40), worker(0.5, 50)}, nil, 0, 10, "all hosts together lack 10 GiB of GPU memory"},
		{"not on one device", host([]float64{1, 1}, []float64{40, 40}), []Task{worker(0.3, 30), worker(0.3, 30), worker(0.3, 20)}, nil, 0, 10, "nearest placement has 10 GiB of GPU memory too little on h2"},
		{"larger than any", host([]float64{1, 3. / 7}, []float64{40, 80}), []Task{worker(1, 41)}, nil, 0, 1, "h2 lacks 1 GiB of GPU memory"},
		{"the smaller part has more", host([]float64{1, 0.5}, []float64{40, 80}), []Task{worker(0.5, 60), worker(0.8, 40)}, []int{1, 0}, 100. / 120, 0, ""},
		{"one each, although part and memory disagree", host([]float64{0.5, 1}, []float64{80, 40}), []Task{worker(0.5, 40), worker(0.4, 80)}, []int{1, 0}, 1, 0, ""},
		{"not limited", host([]float64{1}, nil), []Task{worker(1, 1e6)}, []int{0}, 0, 0, ""},
		{"larger than the last GPU, and there are two of it", host([]float64{1, 1}, []float64{80, 24}), []Task{worker(1, 30), worker(1, 30)}, nil, 0, 6, "nearest placement has 6 GiB of GPU memory too little on h2"},
		{"a small part, much memory", host([]float64{1}, []float64{10}), []Task{worker(1e-10, 11)}, nil, 0, 1, "of GPU memory"},
		{"a small part, no room beside", host([]float64{1, 1}, []float64{10, 10}), []Task{worker(1e-10, 6), worker(1e-10, 6), worker(1e-10, 6)}, nil, 0, 2, "2 GiB of GPU memory too little on h2"},
	} {
		r, err := Place([]Host{c.host}, []Job{{Name: "a", Workers: c.workers}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c.lack > 0 {
			if len(r.Infeasible) != 1 || r.Infeasible[0].Resource != GPUMem || math.Abs(r.Infeasible[0].Amount-c.lack*gib) > 1 || !strings.Contains(r.Infeasible[0].Why, c.why) {
				t.Errorf("%s: %+v", c.name, r.Infeasible)
			}
			continue
		}
		var got []int
		for _, x := range r.Choices {
			got = append(got, x.GPU)
		}
		if !slices.Equal(got, c.want) || math.Abs(r.Loads[0].GPUMemory-c.load) > 1e-9 {
			t.Errorf("%s: on %v, want %v; memory %v, want %v", c.name, got, c.want, r.Loads[0].GPUMemory, c.load)
		}
	}
	// Of two hosts the one with enough GPU memory, though it is the fuller one.
	full := host([]float64{1}, []float64{80})
	full.Name, full.Used = "full", Resources{CPU: 32}
	r := place(t, []Host{host([]float64{1}, []float64{24}), full}, []Job{{Name: "a", Workers: []Task{worker(1, 40)}}})
	if r.Choices[0].Host != 1 {
		t.Errorf("%+v", r.Choices)
	}
	// A move does not go where the memory does not suffice.
	hs := []Host{host([]float64{1}, []float64{80}), host([]float64{1, 1}, []float64{24, 24})}
	hs[0].Used = Resources{CPU: 100}
	if steps, err := Moves(hs, []Job{{Name: "a", Workers: []Task{worker(1, 40)}}}, []int{0}, MoveOptions{Workers: true}); err != nil || len(steps) > 0 {
		t.Errorf("%v %v", steps, err)
	}
}

// A server and another job's worker that fits into its idle time share a host, if that costs nothing.
func TestPairs(t *testing.T) {
	server := Task{Demand: Resources{1, 0, 0, 0}, Phases: Phases{Active: 100 * ms, Idle: 200 * ms}}
	fits := Task{Demand: Resources{1, 0, 0, 0}, Phases: Phases{Active: 190 * ms, Idle: 110 * ms}}
	long := Task{Demand: Resources{1, 0, 0, 0}, Phases: Phases{Active: 250 * ms, Idle: 50 * ms}}
	// but it is of the server's own job
	best := Task{Demand: Resources{1, 0, 0, 0}, Phases: Phases{Active: 200 * ms, Idle: 100 * ms}}
	hosts := []Host{{Name: "x", Capacity: Resources{2, inf, inf, inf}}, {Name: "y", Capacity: Resources{2, inf, inf, inf}}}
	r := place(t, hosts, []Job{{Name: "a", Servers: same(1, server), Workers: same(1, best)}, {Name: "b", Workers: []Task{long, fits}}})
	// a ps 0 is with b worker 1, not with its own worker, nor with b worker 0.
	if r.Choices[0].Host != r.Choices[3].Host || r.Choices[0].Host == r.Choices[1].Host {
		t.Errorf("%+v", r.Choices)
	}
	if want := "takes turns with b worker 1: idle for 200ms, active for 190ms, γ 0.97"; !strings.Contains(r.Choices[0].Why, want) {
		t.Errorf("why: %s", r.Choices[0].Why)
	}
}

func TestMissing(t *testing.T) {
	host := func(name string, cpu, net, mem float64, gpus ...float64) Host {
		return Host{Name: name, Capacity: Resources{cpu, net, net, mem}, GPUs: gpus}
	}
	task := func(cpu, net, mem, gpu float64) Task { return Task{Demand: Resources{cpu, net, net, mem}, GPU: gpu} }
	two := []Host{host("x", 4, 100, 100, 1), host("y", 4, 100, 100)}
	for _, c := range []struct {
		name   string
		hosts  []Host
		jobs   []Job
		job    int
		what   string
		amount float64
		why    string
	}{
		{"too large", two, []Job{{Name: "a", Workers: same(1, task(6, 0, 0, 0))}}, 0, CPU, 2, "worker 0 is larger than any host it may be on: x lacks 2 cores"},
		{"no such GPU", []Host{host("x", 4, 1, 1, 3./7)}, []Job{{Name: "a", Workers: same(1, task(0, 0, 0, 1))}}, 0, GPU, 4. / 7, "lacks 0.5714 GPUs"},
		{"in sum", two, []Job{{Name: "a", Workers: same(2, task(3, 0, 0, 0))}, {Name: "b", Workers: same(1, task(3, 0, 0, 0))}}, 1, CPU, 1, "all hosts together lack 1 core, with 1 job placed before it"},
		{"memory", two, []Job{{Name: "a", Workers: same(3, task(1, 0, 80, 0))}}, 0, Memory, 40, "all hosts together lack 40 B of memory"},
		{"GPUs", two, []Job{{Name: "a", Workers: same(2, task(1, 0, 0, 1))}}, 0, GPU, 1, "all hosts together lack 1 GPU"},
		{"in pieces", two, []Job{{Name: "a", Workers: same(3, task(2.5, 0, 0, 0))}}, 0, CPU, 1, "enough in sum, but not on single hosts: the nearest placement has 1 core too little"},
		{"network", two, []Job{{Name: "a", Servers: same(1, task(1, 300, 0, 0)), Workers: same(3, task(3, 100, 0, 0))}}, 0, CPU, 2, "all hosts together lack 2 cores"},
		{"link", two, []Job{{Name: "a", Servers: []Task{{Demand: Resources{1, 300, 0, 0}, Only: []int{0}}}, Workers: same(3, Task{Demand: Resources{1, 0, 90, 0}, Only: []int{1}})}}, 0, NetIn, 200, "200 B/s of incoming network too little on x"},
		{"used", []Host{{Name: "x", Capacity: Resources{4, inf, inf, inf}, Used: Resources{CPU: 3}}}, []Job{{Name: "a", Workers: same(1, task(2, 0, 0, 0))}}, 0, CPU, 1, "x lacks 1 core"},
	} {
		r := place(t, c.hosts, c.jobs)
		if len(r.Infeasible) != 1 {
			t.Errorf("%s: %+v", c.name, r)
			continue
		}
		m := r.Infeasible[0]
		if m.Job != c.job || m.Resource != c.what || math.Abs(m.Amount-c.amount) > 1e-9 || !m.Proven || !strings.Contains(m.Why, c.why) {
			t.Errorf("%s: %+v", c.name, m)
		}
		n := 0
		for i, j := range c.jobs {
			if i != c.job {
				n += len(j.Servers) + len(j.Workers)
			}
		}
		if len(r.Choices) != n {
			t.Errorf("%s: %d tasks placed, want %d", c.name, len(r.Choices), n)
		}
	}
}

// A job that does not fit takes nothing from those behind it.
func TestMissingInTheMiddle(t *testing.T) {
	task := func(cpu float64) []Task { return same(1, Task{Demand: Resources{CPU: cpu}}) }
	r := place(t, []Host{{Name: "x", Capacity: Resources{4, inf, inf, inf}}}, []Job{{Name: "a", Workers: task(2)}, {Name: "b", Workers: task(3)}, {Name: "c", Workers: task(2)}})
	if len(r.Infeasible) != 1 || r.Infeasible[0].Job != 1 || len(r.Choices) != 2 || r.Choices[1].Job != 2 || r.MaxLoad != 1 {
		t.Errorf("%+v", r)
	}
}

// Pairs stay together only where that makes no traffic.
func TestTrafficBeforePairs(t *testing.T) {
	server := Task{Demand: Resources{1, 100, 100, 0}, Phases: Phases{Active: 100 * ms, Idle: 200 * ms}}
	own := Task{Demand: Resources{1, 100, 100, 0}, Phases: Phases{Active: 300 * ms}}
	other := Task{Demand: Resources{1, 0, 0, 0}, Phases: Phases{Active: 190 * ms, Idle: 110 * ms}}
	hosts := []Host{{Name: "x", Capacity: Resources{2, 1e6, 1e6, inf}}, {Name: "y", Capacity: Resources{2, 1e6, 1e6, inf}}}
	r := place(t, hosts, []Job{{Name: "a", Servers: same(1, server), Workers: same(1, own)}, {Name: "b", Workers: same(2, other)}})
	if r.Choices[0].Host != r.Choices[1].Host {
		t.Errorf("%+v", r.Choices)
	}
}

// Servers spread: at most ⌈#servers/#hosts⌉ + 1 on a host, also where one host is much larger.
func TestSeats(t *testing.T) {
	hosts := []Host{{Name: "large", Capacity: Resources{1000, inf, inf, inf}}, {Name: "x", Capacity: Resources{8, inf, inf, inf}}, {Name: "y", Capacity: Resources{8, inf, inf, inf}}}
	r := place(t, hosts, []Job{{Name: "a", Servers: same(7, Task{Demand: Resources{CPU: 1}})}})
	if r.Loads[0].Servers != 4 || r.Loads[1].Servers+r.Loads[2].Servers != 3 {
		t.Errorf("%+v", r.Loads)
	}
}

func TestValidate(t *testing.T) {
	good := Host{Name: "x", Capacity: Resources{4, inf, inf, inf}}
	job := func(t Task) []Job { return []Job{{Name: "a", Workers: []Task{t}}} }
	for _, c := range []struct {
		hosts []Host
		jobs  []Job
		want  string
	}{
		{nil, nil, "no hosts"},
		{[]Host{{}}, nil, "host without a name"},
		{[]Host{good, good}, nil, "host x occurs twice"},
		{[]Host{{Name: "y", Capacity: Resources{CPU: -1}}}, nil, "host y: cpu is -1"},
		{[]Host{{Name: "y", Capacity: Resources{NetOut: math.NaN()}}}, nil, "host y: net_out is NaN"},
		{[]Host{{Name: "y", Used: Resources{Memory: inf}}}, nil, "host y: used memory is +Inf"},
		{[]Host{{Name: "y", GPUs: []float64{1, 2}}}, nil, "host y: gpu 1 has size 2"},
		{[]Host{{Name: "y", GPUs: []float64{1, 1}, GPUMemory: []float64{1}}}, nil, "host y has 2 GPUs and the memory of 1"},
		{[]Host{{Name: "y", GPUs: []float64{1}, GPUMemory: []float64{math.NaN()}}}, nil, "host y: gpu 0 has NaN bytes"},
		{[]Host{{Name: "y"}}, []Job{{Name: "x", Workers: []Task{{GPU: 1, GPUMemory: math.Inf(1)}}}}, "worker 0: gpu_memory is +Inf"},
		{[]Host{{Name: "y"}}, []Job{{Name: "x", Workers: []Task{{GPUMemory: 1}}}}, "worker 0: gpu_memory without a part"},
		{[]Host{good}, []Job{{Workers: same(1, Task{})}}, "job without a name"},
		{[]Host{good}, []Job{{Name: "a"}}, "job a has neither servers nor workers"},
		{[]Host{good}, append(job(Task{}), job(Task{})...), "job a occurs twice"},
		{[]Host{good}, job(Task{Demand: Resources{CPU: math.NaN()}}), "job a: worker 0: cpu is NaN"},
		{[]Host{good}, job(Task{Demand: Resources{NetIn: inf}}), "job a: worker 0: net_in is +Inf"},
		{[]Host{good}, job(Task{GPU: 2}), "gpu is 2"},
		{[]Host{good}, job(Task{GPU: math.NaN()}), "gpu is NaN"},
		{[]Host{good}, job(Task{State: -1}), "state is -1 bytes"},
		{[]Host{good}, job(Task{Phases: Phases{Idle: -1}}), "negative phase"},
		{[]Host{good}, job(Task{Only: []int{1}}), "no host 1; there are 1"},
	} {
		if _, err := Place(c.hosts, c.jobs, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if r, err := Place([]Host{good}, nil, Options{}); err != nil || len(r.Choices) != 0 || r.MaxLoad != 0 {
		t.Errorf("nothing to place: %+v, %v", r, err)
	}
}

// A cluster of 40 hosts and 50 jobs: every task has a place, nothing is over capacity, and the maximum load is near a
// lower bound. The same input gives the same result.
func TestLargeCluster(t *testing.T) {
	hosts, jobs := cluster(40, 50, 1)
	r := place(t, hosts, jobs)
	m := newNaive(hosts, jobs)
	if len(r.Infeasible) > 0 || len(r.Choices) != len(m.tasks) {
		t.Fatalf("%d of %d tasks, infeasible %v", len(r.Choices), len(m.tasks), r.Infeasible)
	}
	fits, load := m.weigh(positions(r))
	if !fits || math.Abs(load-r.MaxLoad) > 1e-9 {
		t.Errorf("fits: %v, load %v, said %v", fits, load, r.MaxLoad)
	}
	cpu := 0.0
	for _, x := range m.tasks {
		cpu += x.Demand.CPU
	}
	t.Logf("load %.4f, no less than %.4f", load, cpu/(40*32))
	if load > 1.05*cpu/(40*32) {
		t.Errorf("load %v is far above %v", load, cpu/(40*32))
	}
	if again := place(t, hosts, jobs); !slices.Equal(positions(again), positions(r)) {
		t.Error("another result for the same input")
	}
}

// A full cluster that was cut into tasks so that they fit is put together again: workers take all
// GPUs, and processors and memory nearly so.
func TestPlantedCluster(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 11))
		var hosts []Host
		var parts []Task
		for h := range 8 {
			hosts = append(hosts, Host{Name: fmt.Sprint(h), Capacity: Resources{32, 1000, 1000, 256}, GPUs: []float64{1, 1, 1, 1}})
			for range 4 {
				parts = append(parts, Task{Demand: Resources{7 + 0.8*r.Float64(), 200, 200, 55 + 8*r.Float64()}, GPU: 1})
			}
		}
		r.Shuffle(len(parts), func(i, k int) { parts[i], parts[k] = parts[k], parts[i] })
		var jobs []Job
		for i := range 8 {
			jobs = append(jobs, Job{Name: fmt.Sprint("j", i), Workers: parts[4*i : 4*i+4]})
		}
		got := place(t, hosts, jobs)
		if len(got.Infeasible) > 0 || got.MaxLoad > 1 {
			t.Errorf("seed %d: %v, load %v", seed, got.Infeasible, got.MaxLoad)
		}
	}
}

// What must not matter does not: the names of hosts, units, and a host more helps or changes nothing.
func TestMetamorphic(t *testing.T) {
	for seed := range 40 {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		hosts, jobs := instance(r, 0.4)
		base := place(t, hosts, jobs)
		if len(base.Infeasible) > 0 {
			continue
		}
		// All numbers of memory and network times 1000.
		big, more := slices.Clone(hosts), slices.Clone(jobs)
		grow := func(x *Resources) { x.NetIn, x.NetOut, x.Memory = 1000*x.NetIn, 1000*x.NetOut, 1000*x.Memory }
		for h := range big {
			grow(&big[h].Capacity)
			grow(&big[h].Used)
		}
		for j := range more {
			for _, l := range []*[]Task{&more[j].Servers, &more[j].Workers} {
				*l = slices.Clone(*l)
				for i := range *l {
					grow(&(*l)[i].Demand)
				}
			}
		}
		if got := place(t, big, more); math.Abs(got.MaxLoad-base.MaxLoad) > 0.031*base.MaxLoad {
			t.Errorf("seed %d: other units: %v, was %v", seed, got.MaxLoad, base.MaxLoad)
		}
		// The same hosts the other way around.
		back := slices.Clone(hosts)
		slices.Reverse(back)
		turned := slices.Clone(jobs)
		for j := range turned {
			for _, l := range []*[]Task{&turned[j].Servers, &turned[j].Workers} {
				*l = slices.Clone(*l)
				for i := range *l {
					var only []int
					for _, h := range (*l)[i].Only {
						only = append(only, len(hosts)-1-h)
					}
					(*l)[i].Only = only
				}
			}
		}
		if got := place(t, back, turned); math.Abs(got.MaxLoad-base.MaxLoad) > 0.031*base.MaxLoad {
			t.Errorf("seed %d: hosts reversed: %v, was %v", seed, got.MaxLoad, base.MaxLoad)
		}
		wide := append(slices.Clone(hosts), Host{Name: "more", Capacity: Resources{100, 1e6, 1e6, 1e6}})
		servers := 0
		for _, j := range jobs {
			servers += len(j.Servers)
		}
		if (servers+len(hosts)-1)/len(hosts) != (servers+len(hosts))/len(wide) {
			continue // fewer servers may share a host
		}
		if got := place(t, wide, jobs); len(got.Infeasible) > 0 || got.MaxLoad > 1.031*base.MaxLoad+1e-9 {
			t.Errorf("seed %d: with a host more: %v, was %v", seed, got.MaxLoad, base.MaxLoad)
		}
	}
}

func TestMoves(t *testing.T) {
	hosts := []Host{{Name: "x", Capacity: Resources{64, 1e9, 1e9, 8e9}}, {Name: "z", Capacity: Resources{64, 4e9, 4e9, 1e9}}, {Name: "y", Capacity: Resources{64, 1e9, 1e9, 8e9}}}
	// Two servers on x take in 1.6 GB/s together; their workers are elsewhere.
	server := Task{Demand: Resources{1, 8e8, 8e8, 2e9}, State: 4e8}
	jobs := []Job{{Name: "a", Servers: same(2, server), Workers: same(2, Task{Demand: Resources{1, 8e8, 8e8, 0}})}}
	at := []int{0, 0, 1, 2}
	steps, err := Moves(hosts, jobs, at, MoveOptions{})
	if err != nil || len(steps) != 1 {
		t.Fatalf("%+v, %v", steps, err)
	}
	// To y: z has no memory for it. Half of the worker's traffic stays there, so y has 0.8 in and out
	// and x, too. The rate of the copy is a tenth of x's link, which is full: 4 s, and 1 s of pause.
	s := steps[0]
	if s.Kind != Server || s.From != 0 || s.To != 2 || s.Cost != 5*time.Second || s.Gain != 225*time.Second {
		t.Errorf("%+v", s)
	}
	for _, want := range []string{"x carries 1.60", "y after it 0.80", "1.60x as slow as it could, then 1.00x", "saves 3m45s in 10m0s for 5s"} {
		if !strings.Contains(s.Why, want) {
			t.Errorf("why %q has no %q", s.Why, want)
		}
	}
	for _, c := range []struct {
		name string
		o    MoveOptions
		want int
	}{
		{"the copy does not pay", MoveOptions{Horizon: 10 * time.Second}, 0},
		{"just so", MoveOptions{Horizon: 14 * time.Second}, 1},
		{"a slow copy", MoveOptions{Bandwidth: 1e6}, 0},
		{"a long pause", MoveOptions{Pause: 4 * time.Minute}, 0},
	} {
		if got, err := Moves(hosts, jobs, at, c.o); err != nil || len(got) != c.want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	if got, err := Moves(hosts, jobs, []int{0, 1, 1, 2}, MoveOptions{}); err != nil || len(got) != 0 {
		t.Errorf("nothing to gain: %+v, %v", got, err)
	}
	for want, err := range map[string]error{
		"3 hosts for 4 tasks": second(Moves(hosts, jobs, at[:3], MoveOptions{})),
		"a ps 0 is on host 7": second(Moves(hosts, jobs, []int{7, 0, 0, 0}, MoveOptions{})),
		"negative":            second(Moves(hosts, jobs, at, MoveOptions{Bandwidth: -1})),
		"no hosts":            second(Moves(nil, jobs, at, MoveOptions{})),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func second(_ []Step, err error) error { return err }

func TestAmount(t *testing.T) {
	for _, c := range []struct {
		what string
		x    float64
		want string
	}{{CPU, 2.5, "2.5 cores"}, {CPU, 1, "1 core"}, {NetIn, 1.25e9, "1.25 GB/s"}, {NetOut, 999, "999 B/s"}, {Memory, 3 << 30, "3 GiB"}, {GPU, 0.5, "0.5 GPUs"}, {MaxServers, 2, "2 servers"}} {
		if got := Amount(c.what, c.x); got != c.want {
			t.Errorf("%s %v: %s, want %s", c.what, c.x, got, c.want)
		}
	}
}
