package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// result returns the placement of all tasks and the reasons.
func (p *problem) result(s *state) Result {
	r := Result{Loads: make([]Load, len(p.hosts))}
	device := make([]int, len(p.tasks))
	for h := range p.hosts {
		for i, d := range p.devices(h, s.on[h]) {
			device[i] = d
		}
		r.Loads[h] = p.load(h, s.on[h])
		r.MaxLoad = max(r.MaxLoad, r.Loads[h].Max())
	}
	for i, t := range p.tasks {
		h := s.at[i]
		if h < 0 {
			continue
		}
		c := Choice{Job: t.job, Kind: t.kind, Rank: t.rank, Host: h, GPU: -1}
		var beside []int
		if t.GPU > 0 {
			c.GPU = device[i]
			for _, k := range s.on[h] {
				if k != i && p.tasks[k].GPU > 0 && device[k] == device[i] {
					beside = append(beside, k)
				}
			}
		}
		c.Shared = len(beside) > 0
		c.Why = p.why(s, i, beside)
		r.Choices = append(r.Choices, c)
	}
	return r
}

// load returns the load of host h with these tasks.
func (p *problem) load(h int, on []int) Load {
	u, servers := p.use(on)
	host := &p.hosts[h]
	u = u.plus(host.Used)
	l := Load{
		CPU: part(u.CPU, host.Capacity.CPU), NetIn: part(u.NetIn, host.Capacity.NetIn), NetOut: part(u.NetOut, host.Capacity.NetOut),
		Memory: part(u.Memory, host.Capacity.Memory), Servers: servers, Use: u,
	}
	var wants, have slab
	for _, i := range on {
		wants = wants.plus(p.tasks[i].wants())
	}
	for _, d := range p.slabs[h] {
		have = have.plus(d)
	}
	l.GPU, l.GPUMemory = part(wants.part, have.part), part(wants.memory, have.memory)
	return l
}

// name is the name of a task in messages.
func (p *problem) name(i int) string {
	t := &p.tasks[i]
	return fmt.Sprintf("%s %s %d", p.jobs[t.job].Name, t.kind, t.rank)
}

// why gives the reasons for the host of task i: the figures now, compared with task i on each other host.
func (p *problem) why(s *state, i int, beside []int) string {
	t := &p.tasks[i]
	h := s.at[i]
	var reasons []string

	fits, best, least, full := 0, -1, math.Inf(1), ""
	allowed := 0
	for b := range p.hosts {
		if b == h || !p.allowed(i, b) {
			continue
		}
		allowed++
		fa, fb := s.with(h, nil, []int{i}), s.with(b, []int{i}, nil)
		if fa.over+fb.over > tolerance {
			full = p.hosts[b].Name
			continue
		}
		fits++
		if l := max(fa.load, fb.load); l < least {
			best, least = b, l
		}
	}
	here := s.fig[h].load
	switch {
	case len(p.hosts) == 1:
		reasons = append(reasons, "the only host")
	case allowed == 0:
		reasons = append(reasons, "may be nowhere else")
	case fits == 0 && allowed == 1:
		reasons = append(reasons, "no room on "+full)
	case fits == 0:
		reasons = append(reasons, fmt.Sprintf("no room on any of %d other hosts", allowed))
	case here > least*(1+1e-3):
		reasons = append(reasons, fmt.Sprintf("load %.2f; %.2f with it on %s, but more on the network or on a shared GPU", here, least, p.hosts[best].Name))
	default:
		reasons = append(reasons, fmt.Sprintf("load %.2f; with it on %s, the next best, %.2f", here, p.hosts[best].Name, least))
	}

	peers := 0
	job := p.first[t.job]
	for _, k := range s.on[h] {
		if k >= job && k < p.first[t.job+1] && k != i && (p.tasks[k].kind != t.kind || len(p.jobs[t.job].Servers) == 0) {
			peers++
		}
	}
	if peers > 0 {
		with, _ := p.use(s.on[h])
		without, _ := p.use(slices.DeleteFunc(slices.Clone(s.on[h]), func(k int) bool { return k == i }))
		alone := t.Demand.NetIn + t.Demand.NetOut
		// Traffic that stays would have left one host and entered another.
		if stays := (alone - (with.NetIn + with.NetOut - without.NetIn - without.NetOut)) / 2; stays > 1e-6*alone {
			other := "worker"
			if t.kind == Worker && len(p.jobs[t.job].Servers) > 0 {
				other = "server"
			}
			reasons = append(reasons, fmt.Sprintf("beside %d %s of its job, which keeps %s off the network", peers, plural(other, peers), Amount(NetIn, stays)))
		}
	}
	if m := p.mate[i]; m >= 0 && s.at[m] == h && p.tasks[m].kind != t.kind {
		server, worker := t, &p.tasks[m]
		if t.kind == Worker {
			server, worker = worker, server
		}
		_, g := Interleave(server.Phases.Active, server.Phases.Idle, worker.Phases.Active, worker.Phases.Idle)
		reasons = append(reasons, fmt.Sprintf("takes turns with %s: idle for %s, active for %s, γ %.2f", p.name(m), short(server.Phases.Idle), short(worker.Phases.Active), g))
	}
	for _, k := range beside {
		text := "shares its GPU with " + p.name(k)
		if _, g := Interleave(t.Phases.Active, t.Phases.GPU, p.tasks[k].Phases.Active, p.tasks[k].Phases.GPU); g > 0 {
			text += fmt.Sprintf(", γ %.2f", g)
		}
		reasons = append(reasons, text)
	}
	return strings.Join(reasons, "; ")
}

func plural(noun string, n int) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

func short(d time.Duration) string { return d.Round(time.Millisecond / 10).String() }

// Amount formats an amount of a resource: cores, bytes per second, bytes, GPUs, servers.
func Amount(resource string, x float64) string {
	scaled := func(base float64, units ...string) string {
		k := 0
		for x >= base && k+1 < len(units) {
			x /= base
			k++
		}
		return fmt.Sprintf("%.4g %s", x, units[k])
	}
	counted := func(one string) string {
		if n := fmt.Sprintf("%.4g", x); n != "1" {
			return n + " " + one + "s"
		}
		return "1 " + one
	}
	switch resource {
	case CPU:
		return counted("core")
	case NetIn, NetOut:
		return scaled(1000, "B/s", "kB/s", "MB/s", "GB/s", "TB/s")
	case GPUMem:
		return scaled(1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB") + " of GPU memory"
	case Memory:
		return scaled(1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB")
	case GPU:
		return counted("GPU")
	}
	return fmt.Sprintf("%.4g %s", x, resource)
}

// missing is an [Amount] with the name of the resource.
func missing(resource string, x float64) string {
	return Amount(resource, x) + map[string]string{NetIn: " of incoming network", NetOut: " of outgoing network", Memory: " of memory"}[resource]
}

// lacks describes what job j misses in addition to the jobs in kept, which are placed in s (nil: none).
func (p *problem) lacks(s *state, kept []int, j int, proven bool) Missing {
	m := Missing{Job: j, Proven: proven}
	tasks := func(jobs ...int) (ts []int) {
		for _, k := range jobs {
			for i := p.first[k]; i < p.first[k+1]; i++ {
				ts = append(ts, i)
			}
		}
		return ts
	}
	mine := tasks(j)

	// A task that is too large for every host. Its traffic does not count: the other tasks of its job might be on its
	// host.
	for _, i := range mine {
		t := &p.tasks[i]
		least := math.Inf(1)
		var where int
		var what string
		var amount float64
		for h, host := range p.hosts {
			if !p.allowed(i, h) {
				continue
			}
			worst, r, short := 0.0, "", 0.0
			take := func(name string, want, have float64) {
				if lack := want - have; lack > tolerance*max(1, have) && part(lack, max(have, want)) > worst {
					worst, r, short = part(lack, max(have, want)), name, lack
				}
			}
			take(CPU, t.Demand.CPU, host.Capacity.CPU-host.Used.CPU)
			take(Memory, t.Demand.Memory, host.Capacity.Memory-host.Used.Memory)
			if t.GPU > 0 {
				most := largest(p.slabs[h])
				take(GPU, t.GPU, most.part)
				memory := 0.0
				for _, d := range p.slabs[h] {
					if d.part+tolerance >= t.GPU {
						memory = max(memory, d.memory)
					}
				}
				if most.part+tolerance >= t.GPU {
					take(GPUMem, t.GPUMemory, memory)
				}
			}
			if worst < least {
				least, where, what, amount = worst, h, r, short
			}
		}
		if least > 0 {
			m.Resource, m.Amount = what, amount
			m.Why = fmt.Sprintf("%s %d is larger than any host it may be on: %s lacks %s, and that is the least", t.kind, t.rank, p.hosts[where].Name, missing(what, amount))
			return m
		}
	}

	// The sum over all hosts.
	var have, want Resources
	var devices, gpu slab
	for _, h := range p.hosts {
		have = have.plus(Resources{CPU: h.Capacity.CPU - h.Used.CPU, Memory: h.Capacity.Memory - h.Used.Memory})
	}
	for _, ds := range p.slabs {
		for _, d := range ds {
			devices = devices.plus(d)
		}
	}
	for _, i := range tasks(append(slices.Clone(kept), j)...) {
		want = want.plus(p.tasks[i].Demand)
		gpu = gpu.plus(p.tasks[i].wants())
	}
	worst := 0.0
	for _, x := range []struct {
		name       string
		want, have float64
	}{{CPU, want.CPU, have.CPU}, {Memory, want.Memory, have.Memory}, {GPU, gpu.part, devices.part}, {GPUMem, gpu.memory, devices.memory}} {
		if lack := x.want - x.have; lack > tolerance*max(1, x.have) && part(lack, max(x.have, x.want)) > worst {
			worst = part(lack, max(x.have, x.want))
			m.Resource, m.Amount = x.name, lack
		}
	}
	if worst > 0 {
		m.Why = fmt.Sprintf("all hosts together lack %s", missing(m.Resource, m.Amount))
		if len(kept) > 0 {
			m.Why += fmt.Sprintf(", with %d %s placed before it", len(kept), plural("job", len(kept)))
		}
		return m
	}

	// The sum suffices. What does the best placement lack?
	all := tasks(append(slices.Clone(kept), j)...)
	var near *state
	for _, order := range p.orders(all) {
		t := p.construct(order)
		t.improve(worth*len(all), 0)
		if near == nil || better(t, near) {
			near = t
		}
	}
	greatest := -1.0
	for h, host := range p.hosts {
		l := p.load(h, near.on[h])
		excess, memory := p.crush(h, near.on[h])
		for _, x := range []struct {
			name   string
			part   float64
			amount float64
		}{
			{CPU, l.CPU - 1, l.Use.CPU - host.Capacity.CPU}, {NetIn, l.NetIn - 1, l.Use.NetIn - host.Capacity.NetIn},
			{NetOut, l.NetOut - 1, l.Use.NetOut - host.Capacity.NetOut}, {Memory, l.Memory - 1, l.Use.Memory - host.Capacity.Memory},
			{GPU, excess, excess}, {GPUMem, part(memory, largest(p.slabs[h]).memory), memory}, {MaxServers, float64(l.Servers - p.maxServers), float64(l.Servers - p.maxServers)},
		} {
			if x.part > tolerance && x.part > greatest {
				greatest = x.part
				m.Resource, m.Amount = x.name, x.amount
				m.Why = fmt.Sprintf("there is enough in sum, but not on single hosts: the nearest placement has %s too little on %s", missing(x.name, x.amount), host.Name)
			}
		}
	}
	if m.Resource == "" {
		// No single resource is missing: the search ended without a placement.
		m.Why = "no placement was found"
	}
	if !proven {
		m.Why += " (the search ended before it had tried everything)"
	}
	return m
}
