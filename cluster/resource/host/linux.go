//go:build linux

package host

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// probe reads the counters of a process and its host.
type probe struct {
	self         string // folder of the process in proc
	proc, cgroup string // folders; others in tests
	now          func() time.Time
	levels       []string
	quota        float64 // processors; 0: none
	looked       time.Time
	buf          []byte
	tasks        []string
	waited       map[string]time.Duration // by thread, at the last look
	delay        time.Duration            // of all threads, including ended ones
}

func newProbe(pid int) *probe {
	self := "/self"
	if pid > 0 {
		self = "/" + strconv.Itoa(pid)
	}
	return &probe{self: self, proc: "/proc", cgroup: "/sys/fs/cgroup", now: time.Now, buf: make([]byte, 16<<10), waited: map[string]time.Duration{}}
}

// read reads the beginning of a file; nil if it cannot be read. It uses system calls, because package os would check
// for each file whether it can be polled.
func (p *probe) read(name string) []byte {
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	n, _ := syscall.Read(fd, p.buf)
	return p.buf[:max(n, 0)]
}

// look reads all counters; now is its start.
func (p *probe) look(now time.Time) (c counters) {
	c.at = now
	if b := p.read(p.proc + "/stat"); b != nil {
		c.cpu, c.hasCPU = parseStat(b)
	}
	if b := p.read(p.proc + "/pressure/cpu"); b != nil {
		at := p.now()
		if d, ok := parsePressure(b); ok {
			c.pressure = total{d, at}
		}
	}
	if d, ok := p.runDelay(); ok {
		c.delay = total{d, p.now()}
	}
	if now.Sub(p.looked) > resolveEvery {
		p.looked = now
		p.resolve()
	}
	c.quota = p.quota
	for _, dir := range p.levels {
		if d, ok := parseThrottled(p.read(dir + "/cpu.stat")); ok {
			c.throttled = total{c.throttled.sum + d, p.now()}
		}
	}
	return c
}

// stopped reports whether a signal has stopped the process, if it is another process.
func (p *probe) stopped() bool {
	return p.self != "/self" && parseStopped(p.read(p.proc+p.self+"/stat"))
}

// resolveEvery is the interval at which the process's control group is looked up: the process may be moved, or get
// another quota.
const resolveEvery = 500 * time.Millisecond

// resolve finds the levels of the process's control group that have a quota.
func (p *probe) resolve() {
	p.levels, p.quota = p.levels[:0], 0
	g, ok := parseCgroup(p.read(p.proc + p.self + "/cgroup"))
	if !ok {
		return
	}
	for _, d := range g.dirs {
		root := path.Join(p.cgroup, d)
		dir := path.Join(root, g.path)
		if _, err := os.Stat(dir + "/cpu.stat"); err != nil {
			if _, err := os.Stat(root + "/cpu.stat"); err != nil {
				continue
			}
			dir = root // a container sees only its own group, under the host's path
		}
		for ; len(dir) >= len(root); dir = path.Dir(dir) {
			if q, ok := p.limit(dir, g.v2); ok {
				p.levels = append(p.levels, dir)
				if p.quota == 0 || q < p.quota {
					p.quota = q
				}
			}
		}
		return
	}
}

func (p *probe) limit(dir string, v2 bool) (float64, bool) {
	if v2 {
		return parseMax(p.read(dir + "/cpu.max"))
	}
	q := string(p.read(dir + "/cpu.cfs_quota_us"))
	return quota(q, string(p.read(dir+"/cpu.cfs_period_us")))
}

// exchangers are how names of threads begin that move the data of collectives: that they wait for a processor is a part
// of the exchange, and makes nothing else longer.
var exchangers = [...]string{"gloo_", "pt_gloo_", "pt_nccl_", "NCCL"}

// exchanges reports whether a thread is one of those.
func (p *probe) exchanges(thread string) bool {
	name := string(p.read(p.proc + p.self + "/task/" + thread + "/comm"))
	return slices.ContainsFunc(exchangers[:], func(begin string) bool { return strings.HasPrefix(name, begin) })
}

// runDelay is how long threads of the process have waited for a processor since the start of the probe, without those
// that exchange. Threads start and end, so differences are summed by thread.
func (p *probe) runDelay() (time.Duration, bool) {
	dir, err := os.Open(p.proc + p.self + "/task")
	if err != nil {
		return 0, false
	}
	p.tasks, err = dir.Readdirnames(-1)
	dir.Close()
	if err != nil || len(p.tasks) == 0 {
		return 0, false
	}
	seen := false
	for _, t := range p.tasks {
		d, ok := parseSchedstat(p.read(p.proc + p.self + "/task/" + t + "/schedstat"))
		if !ok {
			continue
		}
		seen = true
		if last := p.waited[t]; d > last && !p.exchanges(t) { // a reused thread ID begins at 0
			p.delay += d - last
		}
		p.waited[t] = d
	}
	if len(p.waited) > 2*len(p.tasks)+16 {
		for t := range p.waited {
			if !slices.Contains(p.tasks, t) {
				delete(p.waited, t)
			}
		}
	}
	return p.delay, seen
}
