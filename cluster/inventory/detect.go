package inventory

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Found is what a host says of itself: the JSON of star inventory. 0 where nothing is known.
type Found struct {
	Name      string     `json:"name"`
	CPU       float64    `json:"cpu"`       // cores, of which the control group may use so many
	Memory    float64    `json:"memory"`    // bytes, of which the control group may use so many
	Net       float64    `json:"net"`       // bytes per second, in each direction
	Interface string     `json:"interface"` // whose speed that is
	GPUs      []FoundGPU `json:"gpus"`
	Notes     []string   `json:"notes,omitempty"` // what could not be found out, and why
}

// FoundGPU is a GPU or a MIG slice.
type FoundGPU struct {
	UUID   string  `json:"uuid"`
	Name   string  `json:"name"`
	Slices int     `json:"slices,omitempty"` // of a MIG slice: so many parts
	Of     int     `json:"of,omitempty"`     // of so many
	Memory float64 `json:"memory"`           // bytes; 0: not known
}

// Device is what a placement wants to know of it.
func (g FoundGPU) Device() Device {
	part := 1.0
	if g.Slices > 0 && g.Of > 0 {
		part = min(1, float64(g.Slices)/float64(g.Of))
	}
	return Device{Part: part, Memory: g.Memory, ID: g.UUID}
}

// Devices are those of a host that was asked. It errs on what no host has.
func (f *Found) Devices() (ds []Device, err error) {
	if len(f.GPUs) > maxGPUs {
		return nil, fmt.Errorf("%d GPUs; at most %d", len(f.GPUs), maxGPUs)
	}
	for _, g := range f.GPUs {
		d := g.Device()
		if !(d.Part > 0) || !(d.Memory >= 0 && d.Memory <= 1e18) {
			return nil, fmt.Errorf("no GPU: %+v", g)
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// Detect finds out what this host has, but for GPUs. link is the network interface whose speed
// counts; empty: that of the default route.
func Detect(link string) Found {
	f := detect("/", link, runtime.NumCPU())
	f.Name, _ = os.Hostname()
	if f.Name == "" {
		f.Name = "localhost"
	}
	return f
}

// detect looks below root, as below / of Linux.
func detect(root, link string, cores int) (f Found) {
	read := func(name ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{root}, name...)...))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	f.CPU = float64(cores)
	for line := range strings.Lines(read("proc/meminfo")) {
		if fs := strings.Fields(line); len(fs) >= 2 && fs[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(fs[1], 10, 53); err == nil {
				f.Memory = float64(kib) * 1024
			}
		}
	}
	if f.Memory == 0 {
		f.Notes = append(f.Notes, "how much memory there is could not be read")
	}
	cpu, memory := limits(read)
	f.CPU = min(f.CPU, cpu)
	if memory < f.Memory {
		f.Memory = memory
	}
	if link == "" {
		link = defaultRoute(read("proc/net/route"))
	}
	mbits, err := strconv.ParseFloat(read("sys/class/net", link, "speed"), 64)
	switch {
	case link == "":
		f.Notes = append(f.Notes, "no default route: which link counts? --interface")
	case strings.ContainsAny(link, "/\\") || err != nil || !(mbits > 0):
		f.Notes = append(f.Notes, "the driver of "+link+" does not tell its speed: give net, or measure it with star doctor")
	default:
		f.Net, f.Interface = mbits*1e6/8, link
	}
	return f
}

// limits are those of the control groups that this process is in: cores and bytes, +Inf for none.
func limits(read func(...string) string) (cpu, memory float64) {
	cpu, memory = math.Inf(1), math.Inf(1)
	number := func(text string) float64 { // "max" and -1 mean none
		if x, err := strconv.ParseFloat(text, 64); err == nil && x > 0 {
			return x
		}
		return math.Inf(1)
	}
	share := func(quota, period string) {
		if q, p := number(quota), number(period); !math.IsInf(p, 1) {
			cpu = min(cpu, q/p)
		}
	}
	for line := range strings.Lines(read("proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		controllers := strings.Split(f[1], ",")
		v2 := f[1] == ""
		// The groups above count too. In a container the path may be the host's, and
		// then only the top is there.
		for dir := filepath.Clean("/" + f[2]); ; dir = filepath.Dir(dir) {
			if v2 {
				if q, p, ok := strings.Cut(read("sys/fs/cgroup", dir, "cpu.max"), " "); ok {
					share(q, p)
				}
				memory = min(memory, number(read("sys/fs/cgroup", dir, "memory.max")))
			}
			if slices.Contains(controllers, "cpu") {
				share(read("sys/fs/cgroup/cpu", dir, "cpu.cfs_quota_us"), read("sys/fs/cgroup/cpu", dir, "cpu.cfs_period_us"))
			}
			if slices.Contains(controllers, "memory") {
				memory = min(memory, number(read("sys/fs/cgroup/memory", dir, "memory.limit_in_bytes")))
			}
			if dir == "/" {
				break
			}
		}
	}
	return cpu, memory
}

// defaultRoute is the interface of the default route with the least metric, from /proc/net/route.
func defaultRoute(table string) (link string) {
	least := math.Inf(1)
	for line := range strings.Lines(table) {
		f := strings.Fields(line) // interface, destination, gateway, flags, …, metric, mask
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		if m, err := strconv.ParseUint(f[6], 10, 32); err == nil && float64(m) < least {
			link, least = f[0], float64(m)
		}
	}
	return link
}

// YAML is the host's entry for a file of hosts.
func (f *Found) YAML() string {
	var b strings.Builder
	b.WriteString("hosts:\n")
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "  # %s\n", n)
	}
	fmt.Fprintf(&b, "  - name: %s\n    cpu: %s\n", strconv.Quote(f.Name), strconv.FormatFloat(f.CPU, 'g', 6, 64))
	if f.Net > 0 {
		fmt.Fprintf(&b, "    net: %sMbit/s # %s\n", strconv.FormatFloat(f.Net*8/1e6, 'f', -1, 64), f.Interface)
	}
	if f.Memory > 0 {
		fmt.Fprintf(&b, "    memory: %.0f # %.1f GiB\n", f.Memory, f.Memory/(1<<30))
	}
	if len(f.GPUs) == 0 {
		return b.String()
	}
	b.WriteString("    gpus:\n")
	named := !slices.ContainsFunc(f.GPUs, func(g FoundGPU) bool { return g.UUID == "" })
	for _, g := range f.GPUs {
		size := "1"
		if g.Slices > 0 && g.Of > 0 {
			size = fmt.Sprintf("%d/%d", min(g.Slices, g.Of), g.Of)
		}
		text := "size: " + size
		if g.Memory > 0 {
			text += fmt.Sprintf(", memory: %.0f", g.Memory)
		}
		if named {
			text += ", device: " + strconv.Quote(g.UUID)
		}
		fmt.Fprintf(&b, "      - {%s} # %s, %.1f GiB\n", text, strings.Join(strings.Fields(g.Name), " "), g.Memory/(1<<30))
	}
	return b.String()
}
