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

// reporter says what a star-ps uses, and what its host has (--move-shards auto). It counts between
// two reports, so what it says are rates since the last one; the first report has none of the
// process's own. Processor time is in cores, bytes are per second, memory is in bytes.
type reporter struct {
	job     *Config
	traffic func() (sent, received int64) // with other hosts
	sampler *host.Sampler
	has     host.Capacity

	mu     sync.Mutex
	before counted
}

// counted is what was counted at a moment.
type counted struct {
	at        time.Time
	cpu       time.Duration
	sent, got int64
}

// newReporter measures until it is closed.
func newReporter(job *Config, traffic func() (sent, received int64)) *reporter {
	return &reporter{job: job, traffic: traffic, sampler: host.Start(host.Config{}), has: host.Detect("")}
}

// close ends the sampler. Reports made afterwards have the last of what the host was seen to use.
func (r *reporter) close() { r.sampler.Close() }

// report is what the coordinator is told. It may be called from any goroutine. What was declared
// (--capacity-cpu, --capacity-net) stands in the place of what was found.
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

// shifter has shards of the job moved to other servers when that pays (placement.Shifter), and
// looks whether it did. What it wants and what came of it are lines of the run log (runlog.Shift).
// A move is tried one at a time, and taken back where the job has not become faster by enough.
type shifter struct {
	job     *Config
	log     *slog.Logger
	shift   *placement.Shifter
	waiting string // what was said last of why nothing can be priced
}

const (
	// A move stops a shard for as long as its bytes take, so looks are rare beside updates, and
	// what is seen counts only when the job has settled after one.
	shiftLook     = time.Second / 2
	shiftSettle   = 2 * time.Second // until what is seen counts
	shiftDeadline = 2 * time.Second // for a status
	shiftMove     = 5 * time.Minute // the coordinator gives up sooner, unless the shard is large
)

// newShifter makes the shifter of a job. run starts it.
func newShifter(job *Config, log *slog.Logger) *shifter {
	return &shifter{job: job, log: log, shift: placement.NewShifter(placement.ShiftConfig{Settle: shiftSettle})}
}

// run looks twice a second until the context ends or the job is over. It waits for each move to end
// before it looks again, so that nothing is priced by what a half-moved job does.
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
			continue // the job is over, busy or not that far; the next look comes soon
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
		_, err := c.Move(within, m.Shard, m.To) // the run log says what became of it
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

// kept says in words what a move has brought.
func kept(predicted, seen float64) string {
	if math.IsNaN(seen) {
		return "the mode has changed, so there is nothing to compare with"
	}
	return "it brought what it was to, or enough of it"
}

// look asks how the job is. The time is since the job began. false: nothing can be priced now,
// because the coordinator does not answer, the training has not begun, or not everybody has said
// what its iterations take.
func (s *shifter) look(ctx context.Context, c *coord.Coordinator) (placement.Running, time.Duration, bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, shiftDeadline, errors.New("the coordinator did not say how the job is"))
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
		s.log.Debug("moves of shards", "waiting", why)
	}
	return r, time.Duration(st.Elapsed * float64(time.Second)), why == ""
}

// running is what a move is priced by, as it comes together from what was measured of a job.
//
// A site is a host. Rates are
// bytes per second and cores, times are seconds or durations, sizes bytes.
type running struct {
	st coord.Status
	placement.Running

	sites     map[string]int          // in Sites, by name
	used      map[string]wire.Amounts // by this job's processes, by name of the site
	bytes     float64                 // of all shards
	sent, got float64                 // by the worker that has sent and received most, in bytes per second
}

// runningOf makes what was measured of a job what a move is priced by. why says what is missing;
// empty: nothing. workers is how many ranks the job has, optimizer the name of the update rule, by
// which it is known how much state moves with a shard. Pure: the same status gives the same.
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

// site is the number of a site. One that is not known yet has room for everything, until somebody
// says what it has.
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

// workers takes in where they are and how long their iterations take. A worker counts with the part
// of its bytes that crosses to other sites. Where all wait for each other a round takes what the
// slowest computes; else the middle one stands for all.
func (m *running) workers() (why string) {
	st := &m.st
	at := map[int]string{} // of servers
	for _, s := range st.Servers {
		at[s.Server] = s.Site
	}
	far := make([]float64, len(st.Workers)) // bytes of the parameters that are not at the worker's site
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
			return "not every worker has said what its iterations take"
		}
		m.Running.Workers = append(m.Running.Workers, m.site(w.Site))
		own, rounds = append(own, w.Own), append(rounds, w.Iteration)
		m.Done = min(m.Done, w.Step)
		m.sent, m.got = max(m.sent, w.NetOut), max(m.got, w.NetIn)
		part := far[i] / m.bytes / w.Iteration
		m.add(w.Site, wire.Amounts{CPU: w.CPU, In: w.NetIn * part, Out: w.NetOut * part})
	}
	if len(own) == 0 {
		return "no worker is there"
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

// servers takes in what they have, and what their hosts leave to this job. It comes after workers.
// A server that is gone, or has no shards and has said nothing, can be given none: its site is -1.
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
	// What the optimiser remembers moves with the parameters.
	slots := map[string]float64{"sgd": 0, "adam": 2, "adamw": 2}
	more, ok := slots[optimizer]
	if !ok {
		more = 1
	}
	for _, sh := range st.Shards {
		p := placement.Part{Server: sh.Server, State: (1 + more) * float64(sh.Bytes)}
		p.Gradient, p.Params = float64(sh.Bytes), float64(sh.Bytes)
		if m.sent > 0 { // compressed, it may be
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

// leaves is what a host leaves to this job, which uses u of it: its capacity without what others
// take, but a tenth of a link at least. Several servers of one host say the same, about. The least
// that any of them says counts.
func leaves(s placement.Site, l *coord.ServerLoad, u wire.Amounts) placement.Site {
	left := func(old, capacity, everybody, ours, least float64) float64 {
		if capacity <= 0 {
			return old
		}
		return min(old, max(capacity-max(everybody-ours, 0), least*capacity))
	}
	s.In = left(s.In, l.LinkIn, l.HostNetIn, u.In, 0.1)
	s.Out = left(s.Out, l.LinkOut, l.HostNetOut, u.Out, 0.1)
	// Processors that are not declared are for others, too: what they use counts.
	s.CPU = left(s.CPU, l.Cores, l.HostCPU, u.CPU, 0)
	if l.Free > 0 {
		s.Memory = min(s.Memory, float64(l.Free))
	}
	s.Seen = max(s.Seen, l.Inflow)
	return s
}
