package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"star/cluster/placement"
	"star/cluster/resource"
	"star/internal/suggest"
	"star/modes"
)

// ErrFile marks a file that is not a list of hosts or jobs.
var ErrFile = errors.New("not understood")

// fault is an error in a file.
type fault struct{ text string }

func (f *fault) Error() string        { return f.text }
func (f *fault) Is(target error) bool { return target == ErrFile }

// Host is a host with the fields that only a launcher needs.
type Host struct {
	placement.Host

	// Address is a name or an IP address at which other hosts reach it. Empty: the name.
	Address string

	// Launch is the prefix of a command that runs there, such as ssh, NAME, --.
	// Empty: the command runs on this host.
	Launch []string

	// Program is the path of star there; empty: the same as here.
	Program string

	// Detect: GPUs are not listed and have to be detected there (gpus: auto). See SetGPUs.
	Detect bool

	// Devices are the CUDA names of GPUs, an index or a UUID each. Nil: the file does not name them.
	Devices []string
}

// Device is one GPU or MIG slice of a host.
type Device struct {
	Part   float64 // of a GPU
	Memory float64 // bytes; 0: unknown, and not limited
	ID     string  // its CUDA name, an index or a UUID; empty: unknown
}

// SetGPUs sets the devices of the host.
func (h *Host) SetGPUs(ds []Device) {
	h.GPUs, h.GPUMemory, h.Devices, h.Detect = nil, nil, nil, false
	known := false
	for _, d := range ds {
		if d.ID != "" {
			h.Devices = append(h.Devices, d.ID)
		}
		m := d.Memory
		if m > 0 {
			known = true
		} else {
			m = math.Inf(1)
		}
		h.GPUs, h.GPUMemory = append(h.GPUs, d.Part), append(h.GPUMemory, m)
	}
	if !known {
		h.GPUMemory = nil
	}
}

// See is the environment of a process that may see only one of the host's GPUs. visible is CUDA_VISIBLE_DEVICES where
// the process is started: GPUs that the file only counts are taken from it, or from all. It is empty for a MIG slice
// without a name in the file.
func (h *Host) See(gpu int, visible string) []string {
	if gpu < 0 || gpu >= len(h.GPUs) {
		return nil
	}
	id := strconv.Itoa(gpu)
	if h.Devices != nil {
		id = h.Devices[gpu]
	} else if slices.ContainsFunc(h.GPUs, func(part float64) bool { return part < 1 }) {
		return nil
	} else if seen := strings.Split(visible, ","); visible != "" && gpu < len(seen) {
		id = strings.TrimSpace(seen[gpu])
	}
	return []string{"CUDA_VISIBLE_DEVICES=" + id, "CUDA_DEVICE_ORDER=PCI_BUS_ID"} // as the driver counts
}

// Limits of a file: a larger one is an error.
const (
	maxFile  = 1 << 20 // bytes
	maxHosts = 4096
	maxTasks = 1 << 16
)

// Hosts reads the file of hosts.
func Hosts(file string) ([]Host, error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	return ParseHosts(file, text)
}

// Jobs reads the file of jobs, which may name these hosts.
func Jobs(file string, hosts []Host) ([]placement.Job, error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	return ParseJobs(file, text, hosts)
}

// Places converts hosts for placement.
func Places(hosts []Host) []placement.Host {
	var hs []placement.Host
	for _, h := range hosts {
		hs = append(hs, h.Host)
	}
	return hs
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = &fault{fmt.Sprintf("%s: more than %d bytes", file, maxFile)}
	}
	return b, err
}

// parser reads the nodes of one file.
type parser struct{ file string }

func (p *parser) fail(n *yaml.Node, format string, a ...any) error {
	return &fault{fmt.Sprintf("%s:%d: %s", p.file, n.Line, fmt.Sprintf(format, a...))}
}

// root returns the list under the only key of the file.
func (p *parser) root(text []byte, key string) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		return nil, &fault{fmt.Sprintf("%s: empty; want a list under the key %s", p.file, key)}
	} else if err != nil {
		return nil, &fault{fmt.Sprintf("%s: %v", p.file, err)} // the text has the line
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &fault{fmt.Sprintf("%s: more than one YAML document; keep one", p.file)}
	}
	if key == "hosts" {
		gather(doc.Content[0], key)
	}
	var list *yaml.Node
	err := p.mapping(doc.Content[0], "the file", fields{key: func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
			return p.fail(n, "%s: want a list", key)
		}
		list = n
		return nil
	}})
	if err == nil && list == nil {
		err = p.fail(doc.Content[0], "no key %s", key)
	}
	return list, err
}

// gather merges the lists that a file has under a key: star inventory >> FILE adds one for each host.
func gather(n *yaml.Node, key string) {
	var first *yaml.Node
	kept := n.Content[:0]
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Value == key && v.Kind == yaml.SequenceNode {
			if first != nil {
				first.Content = append(first.Content, v.Content...)
				continue
			}
			first = v
		}
		kept = append(kept, k, v)
	}
	if n.Kind == yaml.MappingNode {
		n.Content = kept
	}
}

// fields has a function for each key. Keys have hyphens; the file may have underscores.
type fields map[string]func(*yaml.Node) error

func (p *parser) mapping(n *yaml.Node, what string, fs fields) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return p.fail(n, "%s: want lines of the form `key: value`", what)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := strings.ReplaceAll(k.Value, "_", "-")
		f := fs[name]
		if f == nil || k.Kind != yaml.ScalarNode {
			hint := ""
			if near := suggest.Nearest(k.Value, slices.Sorted(maps.Keys(fs))); near != "" {
				hint = "; did you mean " + near + "?"
			}
			return p.fail(k, "%s: unknown key %q%s", what, k.Value, hint)
		}
		if line, ok := seen[name]; ok {
			return p.fail(k, "%s: %s is already set in line %d", what, name, line)
		}
		seen[name] = k.Line
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

// scalar returns the text of a value.
func (p *parser) scalar(n *yaml.Node, what string) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return "", p.fail(n, "%s: want one value", what)
	}
	return n.Value, nil
}

func (p *parser) text(to *string, what string) func(*yaml.Node) error {
	return func(n *yaml.Node) (err error) {
		if *to, err = p.scalar(n, what); err == nil && strings.TrimSpace(*to) == "" {
			err = p.fail(n, "%s: want a text", what)
		}
		return err
	}
}

func (p *parser) texts(to *[]string, what string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return p.fail(n, "%s: want a list such as [ssh, host, --]", what)
		}
		for _, v := range n.Content {
			text, err := p.scalar(v, what)
			if err != nil {
				return err
			}
			*to = append(*to, text)
		}
		return nil
	}
}

// number reads an amount into each element of to.
func (p *parser) number(read func(string) (float64, error), what string, to ...*float64) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		text, err := p.scalar(n, what)
		if err != nil {
			return err
		}
		x, err := read(text)
		if err != nil {
			return p.fail(n, "%s: %v", what, err)
		}
		for _, t := range to {
			*t = x
		}
		return nil
	}
}

// leastBare is the smallest speed of a link that is accepted without a unit: a smaller number is probably in MB/s or
// Mbit/s.
const leastBare = 1e6

// link reads the speed of a host's link, as number does.
func (p *parser) link(what string, to *float64) func(*yaml.Node) error {
	read := p.number(Rate, what, to)
	return func(n *yaml.Node) error {
		if err := read(n); err != nil {
			return err
		}
		text, _ := p.scalar(n, what)
		if _, err := strconv.ParseFloat(text, 64); err == nil && *to > 0 && *to < leastBare {
			return p.fail(n, "%s: %s is %s bytes per second; give a unit, such as %sMB/s", what, text, text, text)
		}
		return nil
	}
}

func (p *parser) duration(to *time.Duration, what string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		text, err := p.scalar(n, what)
		if err != nil {
			return err
		}
		if *to, err = time.ParseDuration(text); err != nil || *to < 0 {
			return p.fail(n, "%s: %q is no duration; write such as 200ms", what, text)
		}
		return nil
	}
}

// resources are the keys that hosts and tasks have in common. A single direction overrides net, in any order of the
// keys; see settle.
func (p *parser) resources(r *placement.Resources, net *float64, what string) fields {
	return fields{
		"cpu":     p.number(Cores, what+": cpu", &r.CPU),
		"net":     p.number(Rate, what+": net", net),
		"net-in":  p.number(Rate, what+": net-in", &r.NetIn),
		"net-out": p.number(Rate, what+": net-out", &r.NetOut),
		"memory":  p.number(Bytes, what+": memory", &r.Memory),
	}
}

// unset marks an amount that the file does not give.
const unset = -1

var none = placement.Resources{CPU: unset, NetIn: unset, NetOut: unset, Memory: unset}

// settle sets unset values to their defaults.
func settle(r *placement.Resources, net float64, def placement.Resources) {
	set := func(x *float64, ds ...float64) {
		for _, d := range ds {
			if *x == unset {
				*x = d
			}
		}
	}
	set(&r.CPU, def.CPU)
	set(&r.NetIn, net, def.NetIn)
	set(&r.NetOut, net, def.NetOut)
	set(&r.Memory, def.Memory)
}

// ParseHosts reads hosts from a text; file is for errors.
func ParseHosts(file string, text []byte) ([]Host, error) {
	p := &parser{file}
	list, err := p.root(text, "hosts")
	if err != nil {
		return nil, err
	}
	if len(list.Content) > maxHosts {
		return nil, p.fail(list, "%d hosts; at most %d", len(list.Content), maxHosts)
	}
	var hosts []Host
	lines := map[string]int{}
	for i, n := range list.Content {
		h, err := p.host(n, i)
		if err != nil {
			return nil, err
		}
		if line, ok := lines[h.Name]; ok {
			return nil, p.fail(n, "host %s is already there, in line %d", h.Name, line)
		}
		lines[h.Name] = n.Line
		hosts = append(hosts, h)
	}
	return hosts, nil
}

func (p *parser) host(n *yaml.Node, i int) (h Host, err error) {
	what := fmt.Sprintf("host %d", i)
	if name := valueOf(n, "name"); name != "" {
		what = "host " + name
	}
	h.Capacity = none
	net, usedNet, used := float64(unset), float64(unset), none
	var devices []Device
	var each float64
	fs := p.resources(&h.Capacity, &net, what)
	fs["net"], fs["net-in"], fs["net-out"] = p.link(what+": net", &net), p.link(what+": net-in", &h.Capacity.NetIn), p.link(what+": net-out", &h.Capacity.NetOut)
	fs["name"] = p.text(&h.Name, what+": name")
	fs["address"] = p.text(&h.Address, what+": address")
	fs["launch"] = p.texts(&h.Launch, what+": launch")
	fs["program"] = p.text(&h.Program, what+": program")
	fs["gpus"] = func(v *yaml.Node) (err error) { devices, h.Detect, err = p.gpus(v, what+": gpus"); return err }
	fs["gpu-memory"] = p.number(Bytes, what+": gpu-memory", &each)
	fs["used"] = func(v *yaml.Node) error {
		return p.mapping(v, what+": used", p.resources(&used, &usedNet, what+": used"))
	}
	if err := p.mapping(n, what, fs); err != nil {
		return h, err
	}
	if h.Name == "" {
		return h, p.fail(n, "%s has no name", what)
	}
	if h.Capacity.CPU == unset {
		return h, p.fail(n, "%s: how many cores? give cpu", what)
	}
	for i := range devices {
		if devices[i].Memory == 0 {
			devices[i].Memory = each
		}
	}
	if detect := h.Detect; detect && each > 0 {
		return h, p.fail(n, "%s: gpus: auto finds out their memory, too; leave gpu-memory away", what)
	} else if h.SetGPUs(devices); detect {
		h.Detect = true
	}
	inf := math.Inf(1)
	settle(&h.Capacity, net, placement.Resources{NetIn: inf, NetOut: inf, Memory: inf})
	settle(&used, usedNet, placement.Resources{})
	h.Used = used
	return h, nil
}

// valueOf returns the value of a key, for messages.
func valueOf(n *yaml.Node, key string) string {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i+1].Kind == yaml.ScalarNode {
			return n.Content[i+1].Value
		}
	}
	return ""
}

// maxGPUs is the largest number of devices of a host.
const maxGPUs = 256

func (p *parser) gpus(n *yaml.Node, what string) (ds []Device, detect bool, err error) {
	if n.Kind != yaml.SequenceNode {
		text, err := p.scalar(n, what)
		if err != nil || text == "auto" {
			return nil, err == nil, err
		}
		k, err := strconv.Atoi(text)
		if err != nil || k < 0 || k > maxGPUs {
			return nil, false, p.fail(n, "%s: want a number up to %d, a list of sizes such as [1, 3/7], or auto", what, maxGPUs)
		}
		for range k {
			ds = append(ds, Device{Part: 1})
		}
		return ds, false, nil
	}
	if len(n.Content) > maxGPUs {
		return nil, false, p.fail(n, "%s: %d; at most %d", what, len(n.Content), maxGPUs)
	}
	for _, v := range n.Content {
		var d Device
		size := func(v *yaml.Node) error {
			text, err := p.scalar(v, what)
			if err != nil {
				return err
			}
			if d.Part, err = Part(text); err == nil && d.Part == 0 {
				err = errors.New("a GPU of size 0")
			}
			if err != nil {
				return p.fail(v, "%s: %v", what, err)
			}
			if d.Memory == 0 {
				d.Memory = profileMemory(text)
			}
			return nil
		}
		if v.Kind == yaml.MappingNode {
			if err = p.mapping(v, what, fields{"size": size, "memory": p.number(Bytes, what+": memory", &d.Memory), "device": p.text(&d.ID, what+": device")}); err == nil && d.Part == 0 {
				err = p.fail(v, "%s: a GPU without a size", what)
			}
		} else {
			err = size(v)
		}
		if err != nil {
			return nil, false, err
		}
		if len(ds) > 0 && (ds[0].ID == "") != (d.ID == "") {
			return nil, false, p.fail(v, "%s: give device, an index or a UUID, for all or for none", what)
		}
		ds = append(ds, d)
	}
	return ds, false, nil
}

// ParseJobs reads jobs from a text; file is for errors.
func ParseJobs(file string, text []byte, hosts []Host) ([]placement.Job, error) {
	p := &parser{file}
	list, err := p.root(text, "jobs")
	if err != nil {
		return nil, err
	}
	var jobs []placement.Job
	lines := map[string]int{}
	total := 0
	for i, n := range list.Content {
		j, err := p.job(n, i, hosts)
		if err != nil {
			return nil, err
		}
		if line, ok := lines[j.Name]; ok {
			return nil, p.fail(n, "job %s is already there, in line %d", j.Name, line)
		}
		lines[j.Name] = n.Line
		if total += len(j.Servers) + len(j.Workers); total > maxTasks {
			return nil, p.fail(n, "more than %d servers and workers", maxTasks)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// tasks are servers or workers as a file describes them.
type tasks struct {
	node  *yaml.Node
	count int
	task  placement.Task
	net   float64
	state float64
}

func (p *parser) job(n *yaml.Node, i int, hosts []Host) (j placement.Job, err error) {
	what := fmt.Sprintf("job %d", i)
	if name := valueOf(n, "name"); name != "" {
		what = "job " + name
	}
	var params, mode = 0.0, "ssgd"
	var iteration time.Duration
	servers, workers := tasks{state: unset}, tasks{state: unset}
	err = p.mapping(n, what, fields{
		"name":      p.text(&j.Name, what+": name"),
		"params":    p.number(Bytes, what+": params", &params),
		"iteration": p.duration(&iteration, what+": iteration"),
		"mode":      p.text(&mode, what+": mode"),
		"servers":   func(v *yaml.Node) error { return p.tasks(v, what+": servers", &servers, hosts, false) },
		"workers":   func(v *yaml.Node) error { return p.tasks(v, what+": workers", &workers, hosts, true) },
	})
	switch {
	case err != nil:
		return j, err
	case j.Name == "":
		return j, p.fail(n, "%s has no name", what)
	case servers.count+workers.count == 0:
		return j, p.fail(n, "%s has neither servers nor workers", what)
	case (params > 0) != (iteration > 0):
		return j, p.fail(n, "%s: params and iteration belong together", what)
	}
	quorum, err := quorumOf(mode, workers.count)
	if err != nil {
		return j, p.fail(n, "%s: %v", what, err)
	}
	size := Size{Params: params, Iteration: iteration, Servers: servers.count, Workers: workers.count, Quorum: quorum}
	server, worker := size.Tasks()
	for _, g := range []struct {
		*tasks
		def  placement.Task
		name string
	}{{&servers, server, "servers"}, {&workers, worker, "workers"}} {
		if g.count == 0 {
			continue
		}
		if g.task.GPUMemory > 0 && g.task.GPU == 0 {
			return j, p.fail(g.node, "%s: workers: gpu-memory without gpu; which part of a GPU do they need?", what)
		}
		if d := g.task.Demand; g.name == "servers" && params == 0 && d.CPU == unset && d.NetIn == unset && d.NetOut == unset && g.net == unset {
			return j, p.fail(g.node, "%s: servers have no demand; give them cpu, net-in and net-out, or the job params and iteration", what)
		}
		settle(&g.task.Demand, g.net, g.def.Demand)
		if g.task.State = g.state; g.state == unset {
			g.task.State = g.def.State
		}
	}
	for range servers.count {
		j.Servers = append(j.Servers, servers.task)
	}
	for range workers.count {
		j.Workers = append(j.Workers, workers.task)
	}
	return j, nil
}

// quorumOf is the number of gradients per update in a mode; the mode must use the same number for all updates.
func quorumOf(mode string, workers int) (int, error) {
	p, err := modes.Parse(mode, max(1, workers))
	if err == nil {
		quorum := p.Groups[0].Quorum
		if !slices.ContainsFunc(p.Groups, func(g modes.Group) bool { return g.Quorum != quorum || quorum > max(1, workers) }) {
			return quorum, nil
		}
	}
	return 0, fmt.Errorf("mode %q: want ssgd, asgd or x=K with K from 1 to %d, or another mode with a constant number of gradients per update", mode, workers)
}

func (p *parser) tasks(n *yaml.Node, what string, g *tasks, hosts []Host, gpu bool) error {
	g.node, g.task.Demand, g.net = n, none, unset
	count := func(v *yaml.Node) error {
		text, err := p.scalar(v, what)
		if err != nil {
			return err
		}
		if g.count, err = strconv.Atoi(text); err != nil || g.count < 0 || g.count > maxTasks {
			return p.fail(v, "%s: %q is no count; want 0 to %d", what, text, maxTasks)
		}
		return nil
	}
	if n.Kind == yaml.ScalarNode {
		return count(n)
	}
	fs := p.resources(&g.task.Demand, &g.net, what)
	g.count = 1
	fs["count"] = count
	fs["active"] = p.duration(&g.task.Phases.Active, what+": active")
	fs["idle"] = p.duration(&g.task.Phases.Idle, what+": idle")
	fs["state"] = p.number(Bytes, what+": state", &g.state)
	fs["on"] = func(v *yaml.Node) error {
		var names []string
		if err := p.texts(&names, what+": on")(v); err != nil {
			return err
		}
		for _, name := range names {
			at, known := -1, []string{}
			for h := range hosts {
				known = append(known, hosts[h].Name)
				if hosts[h].Name == name {
					at = h
				}
			}
			if at < 0 {
				hint := ""
				if near := suggest.Nearest(name, known); near != "" {
					hint = "; did you mean " + near + "?"
				}
				return p.fail(v, "%s: no host %s%s", what, name, hint)
			}
			g.task.Only = append(g.task.Only, at)
		}
		return nil
	}
	if gpu {
		fs["gpu"] = p.number(Part, what+": gpu", &g.task.GPU)
		fs["gpu-memory"] = p.number(Bytes, what+": gpu-memory", &g.task.GPUMemory)
		fs["gpu-active"] = p.duration(&g.task.Phases.GPU, what+": gpu-active")
	}
	return p.mapping(n, what, fs)
}

// Size describes a job without measured demands.
type Size struct {
	Params    float64       // bytes of all parameters, float32
	Iteration time.Duration // of a worker
	Servers   int
	Workers   int
	Quorum    int // gradients that make an update
}

// Tasks computes the demand of one server and one worker: in an iteration every worker sends a gradient of the size of
// the parameters and receives parameters; a server has its share of both, for all workers. The server's processor share
// is that of package resource for these bytes. Its memory holds parameters, momentum, a copy that is being sent and a
// gradient of each worker; a move copies parameters and momentum. Processors and memory of workers are unknown: 0.
func (s Size) Tasks() (server, worker placement.Task) {
	if s.Params <= 0 || s.Iteration <= 0 {
		return server, worker
	}
	each := s.Params / s.Iteration.Seconds()
	worker.Demand = placement.Resources{NetIn: each, NetOut: each}
	if s.Servers == 0 {
		return server, worker
	}
	part := s.Params / float64(s.Servers)
	gradients := float64(s.Workers) / s.Iteration.Seconds()
	u := resource.Bytes{Gradient: int64(part), Params: int64(part)}.Demand().At(resource.Load{Gradients: gradients, Updates: gradients / float64(max(1, s.Quorum))})
	server.Demand = placement.Resources{CPU: u.CPU, NetIn: u.NetIn, NetOut: u.NetOut, Memory: (3 + float64(s.Workers)) * part}
	server.State = 2 * part
	return server, worker
}
