package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
	gopsnet "github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/process"

	"star/internal/defaults"
	"star/transport"
)

// port tries to listen, as the job will. In a container the process that it is for has the port already.
func port(ctx context.Context, addr string, container bool) Result {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, transport.ListenNetwork(addr), addr)
	owner, pid := "", int32(0)
	if err == nil {
		l.Close()
	} else if errors.Is(err, syscall.EADDRINUSE) {
		owner, pid = listener(ctx, addr)
	}
	return judgePort(addr, err, owner, container && sameProgram(pid))
}

// sameProgram reports whether a process runs the program of this one, according to /proc.
func sameProgram(pid int32) bool {
	its, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	own, e := os.Stat("/proc/self/exe")
	return err == nil && e == nil && os.SameFile(its, own)
}

// judgePort judges whether the port of an address is free, or its owner, a process, is that of the job in this
// container.
func judgePort(addr string, err error, owner string, own bool) Result {
	r := Result{Check: "port " + addr, Status: Fail}
	var parse *net.AddrError
	var dns *net.DNSError
	switch {
	case err == nil:
		r.Status, r.Detail = OK, "free"
	case errors.Is(err, syscall.EADDRINUSE) && own:
		r.Status, r.Detail = OK, "that of "+owner+", the job's process in this container"
	case errors.Is(err, syscall.EADDRINUSE):
		r.Detail = "taken by another process"
		if owner != "" {
			r.Detail = "taken by " + owner
		}
		r.Fix = "end that process, or choose another port with --listen or --http"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		r.Detail = "not allowed"
		r.Fix = "ports below 1024 need root; choose a higher one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		r.Detail = "not an address of this host"
		r.Fix = "listen on one of its own addresses, or on all of them: :" + portOf(addr)
	case errors.As(err, &parse), errors.As(err, &dns):
		r.Detail = err.Error()
		r.Fix = "write host:port, such as :7070 or 10.0.0.1:7070"
	default:
		r.Detail = err.Error()
		r.Fix = "choose another address with --listen"
	}
	return r
}

func portOf(addr string) string {
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		return defaults.Port
	}
	return p
}

// listener names the process that listens on the port of an address, if that can
// be seen: processes of other users are visible to root only.
func listener(ctx context.Context, addr string) (owner string, pid int32) {
	want, err := strconv.ParseUint(portOf(addr), 10, 16)
	if err != nil {
		return "", 0
	}
	conns, err := gopsnet.ConnectionsWithContext(ctx, "tcp")
	if err != nil {
		return "", 0
	}
	for _, c := range conns {
		if c.Status != "LISTEN" || c.Laddr.Port != uint32(want) || c.Pid == 0 {
			continue
		}
		name := "a process"
		if p, err := process.NewProcessWithContext(ctx, c.Pid); err == nil {
			if n, err := p.NameWithContext(ctx); err == nil {
				name = n
			}
		}
		return fmt.Sprintf("%s (process %d)", name, c.Pid), c.Pid
	}
	return "", 0
}

// hostName looks up this host's own name, as other hosts will.
func hostName(ctx context.Context, name, advertise string, peers bool) Result {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := transport.Lookup(ctx, name)
	var found []net.IP
	for _, a := range addrs {
		found = append(found, a.IP)
	}
	var own []net.IP
	if addrs, e := net.InterfaceAddrs(); e == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				own = append(own, n.IP)
			}
		}
	}
	return judgeHostName(name, found, own, err, advertise, peers)
}

// judgeHostName: a name that leads back to the host itself is harmless on one
// host and fatal on two, unless another address is advertised.
func judgeHostName(name string, found, own []net.IP, err error, advertise string, peers bool) Result {
	r := Result{Check: "host name", Status: OK}
	good := "an address that others reach"
	for _, ip := range own {
		if !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && ip.To4() != nil {
			good = ip.String()
			break
		}
	}
	bad := Fail
	switch {
	case advertise != "":
		bad = OK // the name is not used
	case !peers:
		bad = Warn
	}
	var list []string
	var usable, foreign int
	for _, ip := range found {
		list = append(list, ip.String())
		switch {
		case ip.IsLoopback() || ip.IsUnspecified():
		case len(own) > 0 && !slices.ContainsFunc(own, ip.Equal):
			foreign++
		default:
			usable++
		}
	}
	addrs := strings.Join(list, ", ")
	switch {
	case err != nil:
		r.Status, r.Detail = bad, fmt.Sprintf("%s cannot be resolved: %v", name, err)
		r.Fix = fmt.Sprintf("add %q to /etc/hosts of all hosts, or start with --advertise %s", good+" "+name, net.JoinHostPort(good, defaults.Port))
	case usable > 0:
		r.Detail = fmt.Sprintf("%s is %s", name, addrs)
	case foreign > 0:
		r.Status, r.Detail = bad, fmt.Sprintf("%s is %s, which is no address of this host", name, addrs)
		r.Fix = fmt.Sprintf("correct DNS or /etc/hosts, or start with --advertise %s", net.JoinHostPort(good, defaults.Port))
	default:
		r.Status, r.Detail = bad, fmt.Sprintf("%s is %s: other hosts would look for this one on themselves", name, addrs)
		r.Fix = fmt.Sprintf("in /etc/hosts change the line to %q, or start with --advertise %s", good+" "+name, net.JoinHostPort(good, defaults.Port))
	}
	if r.Status == OK {
		r.Fix = ""
		if advertise != "" {
			r.Detail += "; not used, because --advertise is " + advertise
		}
	}
	return r
}

// advertise dials the advertised address, and answers itself if no process listens there yet.
func advertise(ctx context.Context, addr string) Result {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r := Result{Check: "advertise " + addr}
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		r.Status, r.Detail, r.Fix = Fail, err.Error(), "write host:port, such as 10.0.0.1:7070"
		return r
	}
	var lc net.ListenConfig
	if l, err := lc.Listen(ctx, transport.ListenNetwork(":"+p), ":"+p); err == nil {
		defer l.Close() // the kernel completes connections by itself
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		r.Status, r.Detail = Fail, "not even reachable from this host: "+err.Error()
		r.Fix = "advertise an address of this host, open the port in the firewall, or forward it to this host"
		return r
	}
	c.Close()
	r.Status, r.Detail = OK, "reachable from this host"
	if ip := c.RemoteAddr().(*net.TCPAddr).IP; ip.IsLoopback() {
		r.Status, r.Detail = Warn, fmt.Sprintf("leads to %v: other hosts would look for this one on themselves", ip)
		r.Fix = "advertise an address of a network interface"
	}
	return r
}

// judgeFiles: a process has one file for each connection, and some of its own.
func judgeFiles(limit uint64, members int) Result {
	const own = 64 // logs, data sets, checkpoints, the runtime's
	need := uint64(members) + own
	r := Result{Check: "open files", Status: OK, Detail: fmt.Sprintf("limit %d", limit), Values: map[string]float64{"limit": float64(limit)}}
	switch {
	case limit < need:
		r.Status = Fail
		r.Detail = fmt.Sprintf("limit %d, and %d connections need %d", limit, members, need)
	case limit < 1024:
		r.Status = Warn
	default:
		return r
	}
	r.Fix = "raise it: ulimit -n 65536 in the shell, LimitNOFILE=65536 in a systemd unit, --ulimit nofile=65536 for docker"
	return r
}

// cores compares what the machine has with what this process may use.
func cores() Result {
	return judgeCores(runtime.NumCPU(), runtime.GOMAXPROCS(0), os.Getenv("GOMAXPROCS"), quota("/"))
}

// judgeCores: quota is in cores, or +Inf. Go lowers GOMAXPROCS to a quota by itself (since
// 1.25), but not below 2, and not when the variable is set.
func judgeCores(cpus, procs int, variable string, quota float64) Result {
	r := Result{Check: "cores", Status: OK, Values: map[string]float64{"cores": float64(cpus), "gomaxprocs": float64(procs)}}
	r.Detail = fmt.Sprintf("%d, GOMAXPROCS %d", cpus, procs)
	if !math.IsInf(quota, 1) {
		r.Values["quota"] = quota
		r.Detail += fmt.Sprintf(", quota %.3g", quota)
	}
	switch {
	case quota < 1:
		r.Status = Warn
		r.Detail += ": a process that uses up its quota pauses until the next period, and becomes a straggler"
		r.Fix = "give the container a whole core at least (docker --cpus, Kubernetes limits.cpu)"
	case float64(procs) > math.Ceil(quota) && procs > 2:
		r.Status = Warn
		r.Detail += ": more threads than the quota pays for will be throttled"
		r.Fix = fmt.Sprintf("set GOMAXPROCS=%d, or raise the quota", max(1, int(quota)))
	case procs > cpus:
		r.Status = Warn
		r.Detail += ": more threads than cores"
		r.Fix = "unset GOMAXPROCS=" + variable
	}
	return r
}

// quota is the CPU quota of this process's control group, in cores; +Inf without one. root is
// prepended to paths.
func quota(root string) float64 {
	least := math.Inf(1)
	limit := func(quota, period string) {
		q, err1 := strconv.ParseFloat(quota, 64) // "max" and -1 mean none
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && q > 0 && p > 0 {
			least = min(least, q/p)
		}
	}
	groups(root, func(v1 bool, read func(string) string) {
		if v1 {
			limit(read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"))
		} else if q, p, ok := strings.Cut(read("cpu.max"), " "); ok {
			limit(q, p)
		}
	})
	return least
}

// groups calls f for the control group of this process that has its processors, and for each above it, with what reads
// its files. v1: they are those of version 1.
func groups(root string, f func(v1 bool, read func(name string) string)) {
	read := func(path ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	for line := range strings.Lines(read("proc/self/cgroup")) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		v1 := slices.Contains(strings.Split(part[1], ","), "cpu")
		if !v1 && part[1] != "" {
			continue
		}
		mount := "sys/fs/cgroup"
		if v1 {
			mount += "/cpu"
		}
		// The groups above count too. In a container the path may be the host's, and then only the
		// top group exists.
		for dir := filepath.Clean("/" + part[2]); ; dir = filepath.Dir(dir) {
			f(v1, func(name string) string { return read(mount, dir, name) })
			if dir == "/" {
				break
			}
		}
	}
}

// memory is what could be used without swapping.
func memory(ctx context.Context) Result {
	v, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return Result{Check: "memory", Status: Warn, Detail: "cannot be examined: " + err.Error(), Fix: "look yourself: free -h"}
	}
	return judgeMemory(v.Available, v.Total)
}

func judgeMemory(available, total uint64) Result {
	r := Result{Check: "memory", Status: OK, Detail: fmt.Sprintf("%s of %s available", size(float64(available)), size(float64(total))),
		Values: map[string]float64{"available_B": float64(available), "total_B": float64(total)}}
	// LeNet needs 100 MB a worker, a ResNet 350 MB, measured with gorgonia.
	const least = 512 << 20
	if available < least {
		r.Status = Warn
		r.Fix = "end other programs, or run fewer workers here: a ResNet worker takes about 350 MB"
	}
	return r
}

// congestion looks at what the kernel offers.
func congestion(wanted string) Result {
	if runtime.GOOS != "linux" {
		r := Result{Check: "congestion", Status: OK, Detail: "chosen by the system"}
		if wanted != "" {
			r.Status, r.Detail, r.Fix = Warn, fmt.Sprintf("%s cannot be chosen on %s", wanted, runtime.GOOS), "leave --congestion out"
		}
		return r
	}
	read := func(name string) string {
		b, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
		return strings.TrimSpace(string(b))
	}
	return judgeCongestion(wanted, read("tcp_congestion_control"), strings.Fields(read("tcp_available_congestion_control")))
}

// judgeCongestion: BBR paces each connection, which costs 20 to 40 % on loopback
// and inside a rack, so transport avoids it if it can.
func judgeCongestion(wanted, host string, available []string) Result {
	r := Result{Check: "congestion", Status: OK, Detail: "the host's, " + host}
	switch {
	case wanted == "kernel":
	case wanted != "" && len(available) > 0 && !slices.Contains(available, wanted):
		r.Status, r.Detail = Fail, fmt.Sprintf("%s is not there; available: %s", wanted, strings.Join(available, ", "))
		r.Fix = fmt.Sprintf("choose one of these with --congestion, or load it: modprobe tcp_%s", wanted)
	case wanted != "":
		r.Detail = wanted + ", as asked for"
	case !strings.HasPrefix(host, "bbr"):
	case slices.Contains(available, "cubic"):
		r.Detail = fmt.Sprintf("the host's is %s; connections of STAR use cubic", host)
	case slices.Contains(available, "reno"):
		r.Detail = fmt.Sprintf("the host's is %s; connections of STAR use reno", host)
	default:
		r.Status, r.Detail = Warn, fmt.Sprintf("%s, which costs throughput inside a cluster", host)
		r.Fix = "modprobe tcp_cubic"
	}
	if host == "" && wanted == "" {
		r.Detail = "chosen by the system"
	}
	return r
}

// size writes bytes for people.
func size(b float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for b >= 1024 && len(units) > 1 {
		b, units = b/1024, units[1:]
	}
	return fmt.Sprintf("%.3g %s", b, units[0])
}
