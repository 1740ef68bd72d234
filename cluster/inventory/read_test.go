package inventory

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"star/cluster/placement"
)

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		read func(string) (float64, error)
		text string
		want float64 // -1: an error
	}{
		{Bytes, "64GiB", 64 << 30}, {Bytes, "1.5 MB", 1.5e6}, {Bytes, "4096", 4096}, {Bytes, "7B", 7}, {Bytes, "0", 0}, {Bytes, "1e400", -1}, {Bytes, "-1", -1},
		{Bytes, "NaN", -1}, {Bytes, "inf", -1}, {Bytes, "", -1}, {Bytes, "GiB", -1}, {Bytes, "1 Gbit", -1}, {Bytes, "1e9TB", -1},
		{Rate, "10Gbit/s", 1.25e9}, {Rate, "100 MB/s", 1e8}, {Rate, "8bit/s", 1}, {Rate, "1MiB/s", 1 << 20}, {Rate, "1e6", 1e6}, {Rate, "10Gb/s", -1}, {Rate, "5GB", -1},
		{Cores, "8", 8}, {Cores, "8 cores", 8}, {Cores, "1 core", 1}, {Cores, "50%", 0.5}, {Cores, "many", -1}, {Cores, ".nan", -1},
		{Part, "1", 1}, {Part, "0.5", 0.5}, {Part, "3/7", 3. / 7}, {Part, "3g.20gb", 3. / 7}, {Part, "7g.80gb", 1}, {Part, "8g.80gb", -1}, {Part, "2", -1}, {Part, "3/0", -1},
		{Part, "-1/7", -1}, {Part, "NaN", -1}, {Part, "g.gb", -1}, {Part, "3g.xgb", -1}, {Part, "1/-7", -1},
	} {
		got, err := c.read(c.text)
		switch {
		case c.want < 0 && err == nil:
			t.Errorf("%q is %v; want an error", c.text, got)
		case c.want >= 0 && (err != nil || math.Abs(got-c.want) > 1e-12*c.want):
			t.Errorf("%q is %v, %v; want %v", c.text, got, err, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	hosts, err := ParseHosts("c", []byte(`hosts:
  - &a {name: a, address: 10.0.0.1, launch: [ssh, a, --], program: /bin/star, cpu: 4, net: 1GB/s, net_out: 2GB/s, gpus: [1, 2/7], used: {cpu: 1, net: 5}}
  - {name: b, cpu: 8 cores}
  - {name: c, cpu: 8, gpu_memory: 80GB, gpus: [1, 3g.20gb, {memory: 5, size: 1/2}, {size: 2g.10gb, memory: 11e9}]}
  - {name: d, cpu: 8, gpus: 2, gpu-memory: 24GiB}
  - {name: e, cpu: 8, gpus: auto}
  - {name: f, cpu: 8, gpus: [1, 3g.20gb]}
  - {name: g, cpu: 8, net: 1e6, net-in: 0}
`))
	inf := math.Inf(1)
	want := []Host{
		{Host: placement.Host{Name: "a", Capacity: placement.Resources{CPU: 4, NetIn: 1e9, NetOut: 2e9, Memory: inf}, Used: placement.Resources{CPU: 1, NetIn: 5, NetOut: 5}, GPUs: []float64{1, 2. / 7}},
			Address: "10.0.0.1", Launch: []string{"ssh", "a", "--"}, Program: "/bin/star"},
		{Host: placement.Host{Name: "b", Capacity: placement.Resources{CPU: 8, NetIn: inf, NetOut: inf, Memory: inf}}},
	}
	eight := placement.Resources{CPU: 8, NetIn: inf, NetOut: inf, Memory: inf}
	want = append(want,
		Host{Host: placement.Host{Name: "c", Capacity: eight, GPUs: []float64{1, 3. / 7, 0.5, 2. / 7}, GPUMemory: []float64{80e9, 20e9, 5, 11e9}}},
		Host{Host: placement.Host{Name: "d", Capacity: eight, GPUs: []float64{1, 1}, GPUMemory: []float64{24 << 30, 24 << 30}}},
		Host{Host: placement.Host{Name: "e", Capacity: eight}, Detect: true},
		Host{Host: placement.Host{Name: "f", Capacity: eight, GPUs: []float64{1, 3. / 7}, GPUMemory: []float64{inf, 20e9}}},
		Host{Host: placement.Host{Name: "g", Capacity: placement.Resources{CPU: 8, NetOut: 1e6, Memory: inf}}})
	if err != nil || !cmp.Equal(hosts, want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, hosts))
	}
	jobs, err := ParseJobs("j", []byte(`jobs:
  - name: x
    servers: {count: 2, cpu: 1, net-in: 2, memory: 3, state: 4, active: 5ms, idle: 6ms, on: [b, a]}
    workers: {cpu: 0.5, net: 7, gpu: 3/7, gpu-memory: 9, gpu-active: 8ms}
  - {name: y, params: 8MB, iteration: 100ms, mode: asgd, servers: {count: 2, memory: 1}, workers: 4}
`), hosts)
	server := placement.Task{Demand: placement.Resources{CPU: 1, NetIn: 2, Memory: 3}, State: 4, Phases: placement.Phases{Active: 5 * time.Millisecond, Idle: 6 * time.Millisecond}, Only: []int{1, 0}}
	worker := placement.Task{Demand: placement.Resources{CPU: 0.5, NetIn: 7, NetOut: 7}, GPU: 3. / 7, GPUMemory: 9, Phases: placement.Phases{GPU: 8 * time.Millisecond}}
	if err != nil || len(jobs) != 2 || !cmp.Equal(jobs[0], placement.Job{Name: "x", Servers: []placement.Task{server, server}, Workers: []placement.Task{worker}}) {
		t.Fatalf("%v\n%+v", err, jobs)
	}
	// y: each of 4 workers sends and gets 8 MB in 100 ms; a server has half of that of all. Its processor moves
	// 2 · 160 MB/s at 3.5 GB/s a core, and steps 40 times a second over 4 MB at 10 GB/s.
	s, w := jobs[1].Servers[1], jobs[1].Workers[3]
	near := func(got, want float64) bool { return math.Abs(got-want) <= 1e-9*want }
	if !near(s.Demand.NetIn, 160e6) || !near(s.Demand.NetOut, 160e6) || !near(s.Demand.CPU, 320e6/3.5e9+40*4e6/10e9) || s.Demand.Memory != 1 || s.State != 8e6 {
		t.Errorf("server %+v", s)
	}
	if !near(w.Demand.NetIn, 80e6) || !near(w.Demand.NetOut, 80e6) || w.Demand.CPU != 0 || w.State != 0 {
		t.Errorf("worker %+v", w)
	}
	if s, _ := (Size{Params: 8e6, Iteration: time.Second, Servers: 1, Workers: 4, Quorum: 4}).Tasks(); s.Demand.Memory != 7*8e6 {
		t.Errorf("server's memory %v", s.Demand.Memory)
	}
}

func TestBadFiles(t *testing.T) {
	hosts := []Host{{Host: placement.Host{Name: "node-1"}}}
	for _, c := range []struct{ hosts, jobs, want string }{
		{"", "", "c: empty"},
		{"hosts: 3", "", "c:1: hosts: want a list"},
		{"hosts: []", "", "c:1: hosts: want a list"},
		{"- a", "", "c:1: the file: want lines of the form"},
		{"host:\n  - a", "", `c:1: the file: unknown key "host"; did you mean hosts?`},
		{"{}", "", "c:1: no key hosts"},
		{"hosts: [a", "", "c: yaml: line 1"},
		{"hosts:\n- {name: a, cpu: 1}\n---\nhosts: []", "", "more than one YAML document"},
		{"hosts:\n- {cpu: 1}", "", "c:2: host 0 has no name"},
		{"hosts:\n- {name: '', cpu: 1}", "", "c:2: host 0: name: want a text"},
		{"hosts:\n- {name: a}", "", "c:2: host a: how many cores"},
		{"hosts:\n- {name: a, cpu: 1}\n- {name: a, cpu: 1}", "", "c:3: host a is already there, in line 2"},
		{"hosts:\n- {name: a, cpu: 1, cpu: 2}", "", "c:2: host a: cpu is already set in line 2"},
		{"hosts:\n- {name: a, net_in: 1e6, net-in: 2}", "", "c:2: host a: net-in is already set in line 2"},
		{"hosts:\n- name: a\n  cpu: -1", "", "c:3: host a: cpu: \"-1\" must be"},
		{"hosts:\n- name: a\n  cpu: .nan", "", "c:3: host a: cpu: \".nan\" is not understood"},
		{"hosts:\n- {name: a, cpu: 1, net: NaN}", "", "host a: net: \"NaN\""},
		{"hosts:\n- {name: a, cpu: 1, net: 1250}", "", "c:2: host a: net: 1250 is 1250 bytes per second; give a unit, such as 1250MB/s"},
		{"hosts:\n- name: a\n  cpu: 1\n  net-out: 999999", "", "c:4: host a: net-out: 999999 is"},
		{"hosts:\n- {name: a, cpu: 1, gpus: -1}", "", "host a: gpus: want a number"},
		{"hosts:\n- {name: a, cpu: 1, gpus: [0]}", "", "host a: gpus: a GPU of size 0"},
		{"hosts:\n- {name: a, cpu: 1, gpus: [{memory: 1}]}", "", "host a: gpus: a GPU without a size"},
		{"hosts:\n- {name: a, cpu: 1, gpus: [{size: 1, mem: 1}]}", "", `host a: gpus: unknown key "mem"`},
		{"hosts:\n- {name: a, cpu: 1, gpus: auto, gpu-memory: 1GB}", "", "leave gpu-memory away"},
		{"hosts:\n- {name: a, cpu: 1, gpus: all}", "", "or auto"},
		{"", "jobs:\n- {name: x, workers: {gpu-memory: 1}}", "job x: workers: gpu-memory without gpu"},
		{"", "jobs:\n- {name: x, servers: {gpu-memory: 1}}", `servers: unknown key "gpu-memory"`},
		{"hosts:\n- {name: a, cpu: 1, launch: ssh}", "", "host a: launch: want a list"},
		{"hosts:\n- {name: a, cpu: [1]}", "", "host a: cpu: want one value"},
		{"hosts:\n- {name: a, cpu: 1, used: {gpu: 1}}", "", `host a: used: unknown key "gpu"`},
		{"", "jobs:\n- {workers: 1}", "j:2: job 0 has no name"},
		{"", "jobs:\n- {name: x}", "j:2: job x has neither servers nor workers"},
		{"", "jobs:\n- {name: x, workers: 1}\n- {name: x, workers: 1}", "j:3: job x is already there, in line 2"},
		{"", "jobs:\n- {name: x, workers: -1}", "j:2: job x: workers: \"-1\" is no count"},
		{"", "jobs:\n- {name: x, workers: 70000}", "is no count"},
		{"", "jobs:\n- {name: x, workers: 60000}\n- {name: y, workers: 60000}", "j:3: more than 65536 servers and workers"},
		{"", "jobs:\n- {name: x, params: 1MB, workers: 1}", "params and iteration belong together"},
		{"", "jobs:\n- {name: x, mode: x=3, workers: 2}", "want ssgd, asgd or x=K with K from 1 to 2"},
		{"", "jobs:\n- {name: x, mode: x=0, workers: 2}", "want ssgd, asgd or x=K with K from 1 to 2"},
		{"", "jobs:\n- {name: x, servers: 1, workers: 2}", "j:2: job x: servers have no demand"},
		{"", "jobs:\n- {name: x, workers: {active: 5}}", "active: \"5\" is no duration"},
		{"", "jobs:\n- {name: x, workers: {active: -5ms}}", "is no duration"},
		{"", "jobs:\n- {name: x, workers: {on: [node-2]}}", "no host node-2; did you mean node-1?"},
		{"", "jobs:\n- {name: x, servers: {gpu: 1}}", `servers: unknown key "gpu"`},
		{"", "jobs:\n- {name: x, workers: {gpu: 2}}", "is no part of a GPU"},
	} {
		var err error
		if c.jobs == "" {
			_, err = ParseHosts("c", []byte(c.hosts))
		} else {
			_, err = ParseJobs("j", []byte(c.jobs), hosts)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, ErrFile) {
			t.Errorf("%q %q: %v; want %s", c.hosts, c.jobs, err, c.want)
		}
	}
}

// Whatever a file holds, what is read of it can be placed or is an error.
func FuzzParse(f *testing.F) {
	f.Add("hosts:\n- {name: a, cpu: 4, net: 1GB/s, gpus: [1, 3g.20gb], used: {cpu: 1}}", "jobs:\n- {name: x, params: 1MB, iteration: 1s, servers: 1, workers: {count: 2, gpu: 1/7, on: [a]}}")
	f.Add("hosts:\n- &a {name: a, cpu: 4}\n- *a", "jobs: [{name: x, workers: {cpu: 1e9}}]")
	f.Fuzz(func(t *testing.T, c, j string) {
		hosts, err := ParseHosts("c", []byte(c))
		if err != nil {
			return
		}
		jobs, err := ParseJobs("j", []byte(j), hosts)
		if err != nil {
			return
		}
		if err := placement.Validate(Places(hosts), jobs); err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			if slices.Contains(h.GPUs, 0) {
				t.Fatal(h)
			}
		}
	})
}
