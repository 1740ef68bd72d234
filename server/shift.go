package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/mem"

	"star"
	"star/cluster/placement"
	"star/cluster/resource/host"
	"star/coord"
	"star/job/process"
	"star/modes"
	"star/runlog"
	"star/transport/wire"
)

// reporter reports what a star-ps uses, and the capacity of its host (--move-shards auto). Rates are
// since the last report; the first report has none of the process's own. CPU is in cores, traffic in
// bytes per second, memory in bytes.
type reporter struct {
	job *Config
	// traffic is with other hosts.
	traffic func() (sent, received int64)
	sampler *host.Sampler
	has     host.Capacity

	mu     sync.Mutex
	before counted
}

// counted is the state of the counters at a moment.
type counted struct {
	at        time.Time
	cpu       time.Duration
	sent, got int64
}

// newReporter starts to measure; close ends it.
func newReporter(job *Config, traffic func() (sent, received int64)) *reporter {
	return &reporter{job: job, traffic: traffic, sampler: host.Start(host.Config{}), has: host.Detect("")}
}

// close ends the sampler. Later reports repeat the host's last values.
func (r *reporter) close() { r.sampler.Close() }

// report returns the report for the coordinator. It may be called from any goroutine. Declared
// capacities (--capacity-cpu, --capacity-net) replace detected ones.
func (r *reporter) report() (wire.Enlist, wire.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := wire.Enlist{Job: r.job.Name, Rank: r.job.Rank, Host: r.job.HostID, Capacity: wire.Amounts{CPU: r.has.CPU, In: r.has.Net, Out: r.has.Net}}
	if e.Host == "" {
		e.Host = process.Hostname()
	}
	if r.job.CapacityCPU > 0 {
		e.Capacity.CPU = r.job.CapacityCPU
	}
	if r.job.CapacityNet > 0 {
		e.Capacity.In, e.Capacity.Out = 1e6*r.job.CapacityNet, 1e6*r.job.CapacityNet
	}
	now := counted{at: time.Now(), cpu: process.CPUTime()}
	now.sent, now.got = r.traffic()
	var u wire.Usage
	if d := now.at.Sub(r.before.at).Seconds(); !r.before.at.IsZero() && d > 0 {
		u.Own = wire.Amounts{CPU: (now.cpu - r.before.cpu).Seconds() / d, In: max(float64(now.got-r.before.got)/d, 0), Out: max(float64(now.sent-r.before.sent)/d, 0)}
	}
	r.before = now
	if tel := r.sampler.Latest(); tel != nil {
		get := func(m star.Metric, scale float64) float64 {
			v, _ := tel.Get(m)
			return max(v*scale, 0)
		}
		u.Host = wire.Amounts{CPU: get(star.HostCPU, float64(runtime.NumCPU())), In: get(star.HostNetIn, 1), Out: get(star.HostNetOut, 1)}
	}
	if v, err := mem.VirtualMemory(); err == nil {
		u.Free = int64(v.Available)
		if m := r.has.Memory; m > 0 {
			u.Free = min(u.Free, int64(m))
		}
	}
	return e, u
}

// A move from the shifter's point of view:
//
//	look ─▶ Stay                                  every shiftLook
//	     ─▶ wanted ─▶ Move ─▶ settle (shiftSettle) ─▶ Kept
//	                                              └─▶ Back ─▶ Move in the other direction
//
// Each step except Stay is a line of the run log. While the coordinator moves a shard, the job's
// updates that need it wait.

// shifter moves shards of the job to other servers when that pays off (placement.Shifter), and
// checks whether it did. Its decisions and their results are in the run log (runlog.Shift). It makes
// one move at a time, and reverts it if the job has not become enough faster.
type shifter struct {
	job   *Config
	log   *slog.Logger
	shift *placement.Shifter
	// waiting is the last logged reason why moves cannot be priced.
	waiting string
}

const (
	// A move stops a shard while its bytes are copied, so checks are rare compared with updates, and
	// measurements count only when the job has settled after a move.
	shiftLook = time.Second / 2
	// shiftSettle is the time until measurements count.
	shiftSettle = 2 * time.Second
	// shiftDeadline limits the wait for a status.
	shiftDeadline = 2 * time.Second
	// shiftMove limits a move. The coordinator gives up sooner, unless the shard is large.
	shiftMove = 5 * time.Minute
)

// newShifter returns the shifter of a job. run starts it.
func newShifter(job *Config, log *slog.Logger) *shifter {
	return &shifter{job: job, log: log, shift: placement.NewShifter(placement.ShiftConfig{Settle: shiftSettle})}
}

// run checks twice a second until the context ends or the job is over. It waits for each move to end
// before it checks again, so that prices never include a partial move.
func (s *shifter) run(ctx context.Context, c *coord.Coordinator) {
	tick := time.NewTicker(shiftLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, now, ok := s.look(ctx, c)
		if !ok {
			continue // the job is over, busy or has not started to train; the next check comes soon
		}
		do, m, seen := s.shift.Look(now, r)
		note := runlog.Shift{Event: "wanted", Shard: m.Shard, From: m.From, To: m.To, Predicted: runlog.Number(m.Gain), Seen: runlog.Number(seen), Why: m.Why}
		switch do {
		case placement.Stay:
			continue
		case placement.Kept:
			note.Event, note.Why = "kept", kept(m.Gain, seen)
		case placement.Back:
			note.Event = "back"
		}
		if c.Note(ctx, note) != nil {
			return
		}
		if do == placement.Kept {
			continue
		}
		within, cancel := context.WithTimeoutCause(ctx, shiftMove, errors.New("the move took too long"))
		_, err := c.Move(within, m.Shard, m.To) // the run log has the result
		cancel()
		if ctx.Err() != nil {
			return
		}
		if again, at, ok := s.look(ctx, c); ok {
			r, now = again, at
		}
		s.shift.Moved(now, r, err)
	}
}

// kept explains why a move was kept.
func kept(predicted, seen float64) string {
	if math.IsNaN(seen) {
		return "the mode has changed, so the speeds cannot be compared"
	}
	return "it gained what was predicted, or enough of it"
}

// look returns the measured job, as of a time since its start. false: no move can be priced now,
// because the coordinator does not answer, the training has not started, or some workers have not
// reported their iterations.
func (s *shifter) look(ctx context.Context, c *coord.Coordinator) (placement.Running, time.Duration, bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, shiftDeadline, errors.New("the coordinator did not send its status in time"))
	defer cancel()
	var st coord.Status
	if err := c.Ask(ctx, &st, "status"); err != nil || st.Phase != "training" {
		return placement.Running{}, 0, false
	}
	r, why := runningOf(st, s.job.Ranks(), s.job.Optimizer)
	if why == "" {
		if err := r.Validate(); err != nil {
			why = err.Error()
		}
	}
	if why != s.waiting {
		s.waiting = why
		s.log.Debug("cannot price moves of shards", "waiting", why)
	}
	return r, time.Duration(st.Elapsed * float64(time.Second)), why == ""
}

// running is the input of move prices, while it is assembled from a job's measurements. A site is a
// host. Rates are bytes per second and cores, times are seconds or durations, sizes bytes.
type running struct {
	st coord.Status
	placement.Running

	// sites are indices into Sites by name.
	sites map[string]int
	// used is the use of this job's processes, by name of the site.
	used map[string]wire.Amounts
	// bytes is the size of all shards.
	bytes float64
	// sent and got are of the workers that sent and received most, in bytes per second.
	sent, got float64
}

// runningOf converts a job's status to the input of move prices. why says what is missing; empty:
// nothing. workers is the number of ranks of the job; optimizer names the update rule, which
// determines the size of the state that moves with a shard. It is pure.
func runningOf(st coord.Status, workers int, optimizer string) (r placement.Running, why string) {
	plan, err := modes.Parse(st.Mode, workers)
	if err != nil {
		return r, err.Error()
	}
	m := &running{st: st, sites: map[string]int{}, used: map[string]wire.Amounts{}}
	m.Plan, m.Together = st.Mode, coord.InStep(plan)
	for _, sh := range st.Shards {
		m.bytes += float64(sh.Bytes)
	}
	if m.bytes == 0 {
		return m.Running, "there are no shards"
	}
	if why := m.workers(); why != "" {
		return m.Running, why
	}
	m.servers(optimizer)
	return m.Running, ""
}

// site returns the index of a site. A new one has unlimited capacity until a server reports it.
func (m *running) site(name string) int {
	i, ok := m.sites[name]
	if !ok {
		inf := math.Inf(1)
		i, m.sites[name] = len(m.Sites), len(m.Sites)
		m.Sites = append(m.Sites, placement.Site{Name: name, In: inf, Out: inf, CPU: inf, Memory: inf})
	}
	return i
}

// add counts what a process uses.
func (m *running) add(site string, a wire.Amounts) {
	u := m.used[site]
	m.used[site] = wire.Amounts{CPU: u.CPU + a.CPU, In: u.In + a.In, Out: u.Out + a.Out}
}

// workers adds the workers' sites and iteration times. A worker's bytes count as far as they cross
// to other sites. If all workers wait for each other, a round takes as long as the slowest computes;
// otherwise the median counts.
func (m *running) workers() (why string) {
	st := &m.st
	at := map[int]string{} // of servers
	for _, s := range st.Servers {
		at[s.Server] = s.Site
	}
	// far are the bytes of parameters that are not at the worker's site.
	far := make([]float64, len(st.Workers))
	for _, sh := range st.Shards {
		for i, w := range st.Workers {
			if at[sh.Server] != w.Site {
				far[i] += float64(sh.Bytes)
			}
		}
	}
	var own, rounds []float64
	m.Done = math.MaxInt64
	for i, w := range st.Workers {
		if w.State == "absent" || w.State == "gone" || w.State == "joining" {
			continue
		}
		if w.Iteration <= 0 || w.Site == "" {
			return "not every worker has reported its iterations"
		}
		m.Running.Workers = append(m.Running.Workers, m.site(w.Site))
		own, rounds = append(own, w.Own), append(rounds, w.Iteration)
		m.Done = min(m.Done, w.Step)
		m.sent, m.got = max(m.sent, w.NetOut), max(m.got, w.NetIn)
		part := far[i] / m.bytes / w.Iteration
		m.add(w.Site, wire.Amounts{CPU: w.CPU, In: w.NetIn * part, Out: w.NetOut * part})
	}
	if len(own) == 0 {
		return "no worker has joined"
	}
	slices.Sort(own)
	slices.Sort(rounds)
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	m.Round, m.Compute = seconds(rounds[len(rounds)/2]), seconds(own[len(own)/2])
	if m.Together {
		m.Compute = seconds(own[len(own)-1])
	}
	if st.Rate > 0 && st.Limit > st.Samples {
		m.Left = seconds(min(float64(st.Limit-st.Samples)/st.Rate, 1e6))
	}
	return ""
}

// servers adds the capacities of servers, and what their hosts leave to this job. It runs after
// workers. A server that is lost, or has no shards and no report, cannot receive any: its site is
// -1.
func (m *running) servers(optimizer string) {
	st := &m.st
	for _, s := range st.Servers {
		if l := s.Load; l != nil {
			m.add(s.Site, wire.Amounts{CPU: l.CPU, In: l.NetIn, Out: l.NetOut})
		}
	}
	has := map[int]int{} // shards of each server
	for _, sh := range st.Shards {
		has[sh.Server]++
	}
	load := map[int]*coord.ServerLoad{}
	for _, s := range st.Servers {
		for len(m.Servers) <= s.Server {
			m.Servers = append(m.Servers, -1)
		}
		load[s.Server] = s.Load
		if s.Gone || s.Load == nil && has[s.Server] == 0 {
			continue
		}
		i := m.site(s.Site)
		m.Servers[s.Server] = i
		if l := s.Load; l != nil {
			m.Sites[i] = leaves(m.Sites[i], l, m.used[s.Site])
			if l.Host != "" {
				m.Sites[i].Name = l.Host
			}
		}
	}
	// The optimizer's state moves with the parameters.
	slots := map[string]float64{"sgd": 0, "adam": 2, "adamw": 2, "muon": 2}
	more, ok := slots[optimizer]
	if !ok {
		more = 1
	}
	for _, sh := range st.Shards {
		p := placement.Part{Server: sh.Server, State: (1 + more) * float64(sh.Bytes)}
		p.Gradient, p.Params = float64(sh.Bytes), float64(sh.Bytes)
		if m.sent > 0 { // it may be compressed
			p.Gradient = min(1, m.sent/m.bytes) * float64(sh.Bytes)
		}
		if m.got > 0 {
			p.Params = min(1, m.got/m.bytes) * float64(sh.Bytes)
		}
		if l := load[sh.Server]; l != nil {
			p.CPU = l.CPU * m.Round.Seconds() / float64(has[sh.Server])
		}
		m.Shards = append(m.Shards, p)
	}
}

// leaves returns what a host leaves to this job, which uses u of it: its capacity minus the use of
// other processes, but at least a tenth of a link. Servers of one host report about the same; the
// lowest report counts.
func leaves(s placement.Site, l *coord.ServerLoad, u wire.Amounts) placement.Site {
	left := func(old, capacity, used, ours, least float64) float64 {
		if capacity <= 0 {
			return old
		}
		return min(old, max(capacity-max(used-ours, 0), least*capacity))
	}
	s.In = left(s.In, l.LinkIn, l.HostNetIn, u.In, 0.1)
	s.Out = left(s.Out, l.LinkOut, l.HostNetOut, u.Out, 0.1)
	// Undeclared CPUs are shared: what other processes use counts.
	s.CPU = left(s.CPU, l.Cores, l.HostCPU, u.CPU, 0)
	if l.Free > 0 {
		s.Memory = min(s.Memory, float64(l.Free))
	}
	s.Seen = max(s.Seen, l.Inflow)
	return s
}
