package host

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Capacity is what a host has, apart from GPUs. 0: unknown.
type Capacity struct {
	Name      string
	CPU       float64  // cores that the control group may use
	Memory    float64  // bytes that the control group may use
	Net       float64  // bytes per second, in each direction
	Interface string   // the network interface that has Net
	Notes     []string // what could not be read, and why
}

// Detect reads the Capacity of this host. link is the network interface for Net; empty: that of the default route.
func Detect(link string) Capacity {
	f := capacity("/", link, runtime.NumCPU())
	f.Name, _ = os.Hostname()
	if f.Name == "" {
		f.Name = "localhost"
	}
	return f
}

// capacity reads below root instead of /.
func capacity(root, link string, cores int) (f Capacity) {
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
	cpu, memory := groupLimits(read)
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

// groupLimits are the limits of the control groups of this process: cores and bytes, +Inf if unlimited.
func groupLimits(read func(...string) string) (cpu, memory float64) {
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
		// The groups above count, too. In a container the path may be the host's, and then only the top exists.
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
