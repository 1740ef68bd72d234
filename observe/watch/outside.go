package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"star"
	"star/cluster/resource/host"
	"star/internal/exitcode"
)

const (
	look  = 200 * time.Millisecond // between two looks at a process from outside
	judge = 5 * time.Second        // between two judgements, each of the values since the last one
)

// launchers are the variables by which launchers tell a process its rank, and of how many.
var launchers = [][2]string{{"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}}

// Seen is what one process of a job was seen to do from outside, for some time. Shares are of that time.
type Seen struct {
	Rank    int // −1: it does not know one
	PID     int
	CPU     float64 // processors that it used
	Loaders float64 // and its children
	Read    float64 // bytes per second from disks, its children's included
	Stopped float64 // share of looks at which a signal or a debugger had stopped it
	Disk    float64 // share of looks at which it waited for a disk
	star.Telemetry
}

func (s Seen) name() string {
	if s.Rank < 0 {
		return fmt.Sprintf("process %d", s.PID)
	}
	return fmt.Sprintf("rank %d", s.Rank)
}

// String is a line for people.
func (s Seen) String() string {
	text := fmt.Sprintf("%s (process %d): %.0f %% of a processor", s.name(), s.PID, 100*s.CPU)
	if s.Loaders >= 0.005 {
		text += fmt.Sprintf(", its children %.0f %%", 100*s.Loaders)
	}
	if v, ok := s.Get(star.RunDelay); ok {
		text += fmt.Sprintf(", waits for one %.0f %%", 100*v)
	}
	if v, ok := s.Get(star.Throttled); ok {
		text += fmt.Sprintf(", held back by its quota %.0f %%", 100*v)
	}
	if s.Read > 1e4 {
		text += fmt.Sprintf(", reads %.1f MB/s", s.Read/1e6)
	}
	if v, ok := s.Get(star.GPUUse); ok {
		text += fmt.Sprintf(", its GPU busy %.0f %%", 100*v)
	}
	return text
}

// of is a metric's value; 0 where it is absent.
func of(m star.Metric) func(Seen) float64 {
	return func(s Seen) float64 { v, _ := s.Get(m); return v }
}

// Finding is what sets a process apart.
type Finding struct{ Key, Text string } // Key is the same as long as it lasts

// holds are what may hold a process back, and can be seen from outside: shares of the time.
var holds = []struct {
	share func(Seen) float64
	text  string
}{
	{func(s Seen) float64 { return s.Stopped }, "was stopped by a signal or a debugger"},
	{of(star.Throttled), "is held back by the quota of its control group"},
	{of(star.RunDelay), "waits for a processor that others have"},
	{func(s Seen) float64 { return s.Disk }, "waits for a disk"},
}

// Apart describes the differences between processes of one job, at most one per process: a cause that holds it back, or
// else its use of resources. A common property is not a finding, except for a lack of processors.
func Apart(all []Seen) (found []Finding) {
	for _, sign := range []func(Seen, []Seen) (what, numbers string){held, unlike} {
		for i, s := range all {
			if what, numbers := sign(s, slices.Delete(slices.Clone(all), i, i+1)); what != "" {
				found = append(found, Finding{s.name() + " " + what, s.name() + " " + what + " " + numbers})
			}
		}
		if len(found) > 0 { // that one is held back is why they are not alike
			break
		}
	}
	if least := extreme(all, of(star.RunDelay), slices.Min); len(all) > 1 && least >= 0.1 {
		what := "every process waits for a processor"
		found = append(found, Finding{what, fmt.Sprintf("%s, at least %.0f %% of the time: this host has too few for what runs on it", what, 100*least)})
	}
	return found
}

// extreme is the least or the largest value of some.
func extreme(all []Seen, value func(Seen) float64, which func([]float64) float64) float64 {
	var vs []float64
	for _, s := range all {
		vs = append(vs, value(s))
	}
	if len(vs) == 0 {
		return 0
	}
	return which(vs)
}

// held returns a cause that holds back one process and not the others, with its amount: at least a tenth of the time,
// and twice as much as for any other.
func held(s Seen, others []Seen) (what, numbers string) {
	for _, h := range holds {
		v, most := h.share(s), extreme(others, h.share, slices.Max)
		if v < 0.1 || v < 2*most {
			continue
		}
		numbers = fmt.Sprintf("%.0f %% of the time", 100*v)
		if len(others) > 0 {
			numbers += fmt.Sprintf(", the others at most %.0f %%", 100*most)
		}
		return h.text, numbers
	}
	return "", ""
}

// unlike returns another difference of a process from all others.
func unlike(s Seen, others []Seen) (what, numbers string) {
	clock, cpu := of(star.GPUClock), func(s Seen) float64 { return s.CPU }
	least, most := extreme(others, cpu, slices.Min), extreme(others, cpu, slices.Max)
	switch slowest := extreme(others, clock, slices.Min); {
	case clock(s) > 0 && clock(s) < 0.8*slowest:
		return "has a slower GPU", fmt.Sprintf("now: %.0f MHz, the others at least %.0f MHz", clock(s), slowest)
	case len(others) > 0 && s.CPU >= 0.2 && s.CPU >= 1.5*most:
		return "uses more of a processor", fmt.Sprintf("(%.0f %%) than the others (at most %.0f %%): they may be waiting for it", 100*s.CPU, 100*most)
	case len(others) > 1 && least >= 0.2 && 1.5*s.CPU <= least:
		return "uses less of a processor", fmt.Sprintf("(%.0f %%) than the others (at least %.0f %%): it sleeps, or waits for data, a device or others", 100*s.CPU, 100*least)
	}
	return "", ""
}

// Outside looks at processes that run already.
type Outside struct {
	root   *process.Process
	device func(variable func(string) string) func(*star.Telemetry)
	procs  []*outside
}

// outside is one of them.
type outside struct {
	rank          int              // −1: it does not know one
	p             *process.Process // knows when it was started: its number may be another process's later
	below         []*process.Process
	sampler       *host.Sampler
	cpu, children float64 // seconds until the last judgement, of those that were there then
	read          float64 // bytes until then
	began         time.Time
	recent, whole tally // since the last judgement, and before
}

// tally has the values of a process.
type tally struct {
	seconds             float64
	cpu, children, read float64
	looks               int
	stopped, disk       int // of the looks
	sum                 [star.NumMetrics]float64
	n                   [star.NumMetrics]int // looks at which it was there
}

func (t *tally) add(o *tally) {
	t.seconds += o.seconds
	t.cpu, t.children, t.read = t.cpu+o.cpu, t.children+o.children, t.read+o.read
	t.looks, t.stopped, t.disk = t.looks+o.looks, t.stopped+o.stopped, t.disk+o.disk
	for m := range t.sum {
		t.sum[m], t.n[m] = t.sum[m]+o.sum[m], t.n[m]+o.n[m]
	}
}

// seen is a tally by the second.
func (o *outside) seen(t *tally) Seen {
	s, span, looks := Seen{Rank: o.rank, PID: int(o.p.Pid)}, max(t.seconds, 1e-3), float64(max(t.looks, 1))
	s.CPU, s.Loaders, s.Read = t.cpu/span, t.children/span, t.read/span
	s.Stopped, s.Disk = float64(t.stopped)/looks, float64(t.disk)/looks
	for m := range star.NumMetrics {
		if t.n[m] > 0 {
			s.Set(m, t.sum[m]/float64(t.n[m]))
		}
	}
	return s
}

// look is one look. It reports false if the process is gone.
func (o *outside) look() bool {
	state, err := o.p.Status()
	if ok, gone := o.p.IsRunning(); err != nil || gone != nil || !ok || slices.Contains(state, process.Zombie) {
		return false
	}
	r := &o.recent
	r.looks++
	if slices.Contains(state, process.Stop) {
		r.stopped++
	}
	if slices.Contains(state, process.Blocked) || slices.Contains(state, process.Wait) {
		r.disk++
	}
	t := o.sampler.Latest()
	for m := range star.NumMetrics {
		if v, ok := t.Get(m); ok {
			r.sum[m], r.n[m] = r.sum[m]+v, r.n[m]+1
		}
	}
	return true
}

// count takes what the kernel has added up since the last time.
func (o *outside) count() {
	now := time.Now()
	r := &o.recent
	r.seconds, o.began = now.Sub(o.began).Seconds(), now
	used := func(p *process.Process) (cpu, read float64) {
		if t, err := p.Times(); err == nil {
			cpu = t.User + t.System
		}
		if io, err := p.IOCounters(); err == nil {
			read = float64(io.DiskReadBytes)
		}
		return cpu, read
	}
	cpu, read := used(o.p)
	children := 0.0
	for _, c := range o.below {
		u, d := used(c)
		children, read = children+u, read+d
	}
	r.cpu, r.children, r.read = max(cpu-o.cpu, 0), max(children-o.children, 0), max(read-o.read, 0)
	o.cpu, o.children, o.read = cpu, children, read
}

// attachError means that a process cannot be observed.
type attachError struct {
	error
	code int
}

func (e *attachError) ExitCode() int { return e.code }

// Attach finds the ranks of a job that runs: among a process and those that it has started, such as torchrun's.
// device makes what adds a GPU's state, from the variables of a rank's environment; it may be nil.
func Attach(pid int, device func(variable func(string) string) func(*star.Telemetry)) (*Outside, error) {
	if pid < 1 || pid > math.MaxInt32 {
		return nil, &attachError{fmt.Errorf("%d is no process", pid), exitcode.Usage}
	}
	root, err := process.NewProcess(int32(pid))
	if err != nil {
		return nil, &attachError{fmt.Errorf("there is no process %d on this host", pid), exitcode.Missing}
	}
	if _, err := root.Environ(); errors.Is(err, fs.ErrPermission) {
		return nil, &attachError{fmt.Errorf("process %d may not be looked at: run star watch as its user, or as root; in a container it takes CAP_SYS_PTRACE", pid), exitcode.Refused}
	} else if err != nil {
		return nil, &attachError{fmt.Errorf("what process %d does cannot be read: %w", pid, err), exitcode.Lost}
	}
	o := &Outside{root: root, device: device}
	o.search()
	return o, nil
}

// variables are the environment with which a process was started.
func variables(p *process.Process) func(string) string {
	env, _ := p.Environ()
	return func(name string) string {
		for _, kv := range env {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v
			}
		}
		return ""
	}
}

// rankOf is the rank that a launcher has given a process; −1: none.
func rankOf(p *process.Process) int {
	get := variables(p)
	for _, l := range launchers {
		r, err := strconv.Atoi(get(l[0]))
		if n, nerr := strconv.Atoi(get(l[1])); err == nil && nerr == nil && 0 <= r && r < n && n <= MaxWorld {
			return r
		}
	}
	return -1
}

// search looks for new ranks.
func (o *Outside) search() {
	every, err := process.Processes()
	if err != nil {
		return
	}
	below := map[int32][]*process.Process{}
	for _, p := range every {
		if parent, err := p.Ppid(); err == nil && p.Pid != int32(os.Getpid()) {
			below[parent] = append(below[parent], p)
		}
	}
	// find returns the ranks at and below a process: Python that a launcher told its rank; else what
	// multiprocessing has spawned; else the topmost Python.
	var find func(p *process.Process, depth int) []*outside
	find = func(p *process.Process, depth int) (found []*outside) {
		exe, _ := p.Exe()
		python := strings.HasPrefix(filepath.Base(exe), "python")
		if r := rankOf(p); python && r >= 0 || depth > 64 {
			return []*outside{{rank: r, p: p}}
		}
		for _, c := range below[p.Pid] {
			for _, f := range find(c, depth+1) {
				line, _ := f.p.Cmdline()
				if !python || f.rank >= 0 || strings.Contains(line, "spawn_main") {
					found = append(found, f)
				}
			}
		}
		if len(found) == 0 && python {
			return []*outside{{rank: -1, p: p}}
		}
		return found
	}
	found := find(o.root, 0)
	if len(found) == 0 {
		found = []*outside{{rank: -1, p: o.root}}
	}
	var all func(p *process.Process) []*process.Process // that it has started, and these
	all = func(p *process.Process) (ps []*process.Process) {
		for _, c := range below[p.Pid] {
			ps = append(append(ps, c), all(c)...)
		}
		return ps
	}
	for _, f := range found {
		if i := slices.IndexFunc(o.procs, func(x *outside) bool { return x.p.Pid == f.p.Pid }); i >= 0 {
			o.procs[i].below = all(f.p)
		} else if len(o.procs) < MaxWorld {
			f.below = all(f.p)
			var also func(*star.Telemetry)
			if o.device != nil {
				also = o.device(variables(f.p))
			}
			f.sampler = host.Start(host.Config{PID: int(f.p.Pid), Also: also})
			f.count()
			f.recent = tally{}
			o.procs = append(o.procs, f)
		}
	}
	slices.SortFunc(o.procs, compare)
}

// Run observes them until ctx or all of them are over, and reports its findings.
func (o *Outside) Run(ctx context.Context, say func(string)) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var names []string
	for _, p := range o.procs[:min(len(o.procs), 8)] {
		names = append(names, p.seen(&p.whole).name())
	}
	if len(o.procs) > len(names) {
		names = append(names, fmt.Sprintf("%d more", len(o.procs)-len(names)))
	}
	say(fmt.Sprintf("process %d from outside: %s. Steps and waits are measured only in programs started under star watch", o.root.Pid, strings.Join(names, ", ")))
	begun, judged, first := time.Now(), time.Now(), true
	var ended []*outside
	lasts, said := map[string]int{}, map[string]bool{} // for how many judgements
	for {
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		o.procs = slices.DeleteFunc(o.procs, func(p *outside) bool {
			if p.look() {
				return false
			}
			p.sampler.Close()
			p.whole.add(&p.recent)
			ended = append(ended, p)
			return true
		})
		if over = over || len(o.procs) == 0; !over && time.Since(judged) < judge {
			continue
		}
		judged = time.Now()
		var recent []Seen
		for _, p := range o.procs {
			p.count()
			recent = append(recent, p.seen(&p.recent))
			p.whole.add(&p.recent)
			p.recent = tally{}
		}
		if over {
			for _, p := range o.procs {
				p.sampler.Close()
			}
			sum(append(ended, o.procs...), time.Since(begun), say)
			return
		}
		if first {
			first = false
			list(recent, say)
		}
		now := map[string]int{}
		// a finding of two judgements in a row is reported, and again only after it was over
		for _, f := range Apart(recent) {
			if now[f.Key] = lasts[f.Key] + 1; now[f.Key] == 2 {
				said[f.Key] = true
				say(f.Text)
			}
		}
		for key := range lasts {
			if now[key] == 0 && said[key] {
				delete(said, key)
				say("not any more: " + key)
			}
		}
		lasts = now
		o.search()
	}
}

// listed is how many processes have a line of their own.
const listed = 32

func list(all []Seen, say func(string)) {
	for _, s := range all[:min(len(all), listed)] {
		say(s.String())
	}
	if len(all) > listed {
		say(fmt.Sprintf("… and %d more", len(all)-listed))
	}
}

// sum prints the summary.
func sum(procs []*outside, took time.Duration, say func(string)) {
	slices.SortFunc(procs, compare)
	var all []Seen
	for _, p := range procs {
		all = append(all, p.seen(&p.whole))
	}
	say("over " + short(took) + ":")
	list(all, say)
	found := Apart(all)
	for _, f := range found {
		say(f.Text)
	}
	if len(found) == 0 && len(all) > 1 {
		say("nothing sets one of them apart")
	}
}

func compare(a, b *outside) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.p.Pid, b.p.Pid))
}
