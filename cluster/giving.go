package cluster

import (
	"maps"
	"slices"
	"time"

	"star/cluster/resource"
	"star/transport/wire"
)

// giving learns from the delays of one job what each second of delay frees and costs (resource.Giving). It compares the
// job's usage and the length of its rounds under one delay, in force in all its workers, with those under the next one.
//
// Early workers that wait (Order.Early) do not count as a delay: over a whole round they use as much as before, and
// rounds are not longer.
type giving struct {
	learned *resource.Giving // nil: no observations yet
	seen    int              // number of delays learned from
	delay   time.Duration    // in force
	idle    int              // reports to skip, because they include the change
	now     []look           // the last ones with this delay
	former  []look           // those with the delay before; nil: none to compare with
	was     time.Duration
}

// look is one report of the job's head.
type look struct {
	at   time.Time
	step int64                     // updates; each is a round
	use  map[string]resource.Usage // by host
}

const (
	looks  = 16 // reports kept per delay; more if rounds are long
	needed = 5  // smallest number of reports for a comparison
	rounds = 5  // smallest number of rounds in them
	skip   = 2  // reports skipped after a change
)

// forget starts over: the measurements are of other processes or another mode.
func (g *giving) forget() { g.now, g.former, g.idle = nil, nil, skip }

// observe adds a report with a delay in force. on is the number of the job's workers on each host. It returns true if
// it has learned something.
func (g *giving) observe(l look, delay time.Duration, on map[string]int, prior func() resource.Costs) (bool, error) {
	if delay != g.delay {
		if g.former = nil; full(g.now) {
			g.former, g.was = g.now, g.delay
		}
		g.now, g.delay, g.idle = nil, delay, skip
	}
	if g.idle > 0 {
		g.idle--
		return false, nil
	}
	if g.now = append(g.now, l); len(g.now) > looks && full(g.now[1:]) {
		g.now = g.now[1:]
	}
	if g.former == nil || !full(g.now) {
		return false, nil
	}
	less, more := g.former, g.now
	if g.was > g.delay { // the delay was undone, at least in part
		less, more = more, less
	}
	g.former = nil
	if g.learned == nil {
		var err error
		if g.learned, err = resource.NewGiving(prior()); err != nil {
			return false, err
		}
	}
	learned := false
	for _, h := range slices.Sorted(maps.Keys(on)) {
		before, long := mean(less, h)
		after, longer := mean(more, h)
		err := g.learned.Observe(resource.Response{
			Workers: on[h], Delay: (g.delay - g.was).Abs(), Before: before, After: after, RoundBefore: long, RoundAfter: longer,
		})
		if err != nil {
			return learned, err
		}
		learned = true
	}
	if learned {
		g.seen++
	}
	return learned, nil
}

// full reports whether the looks suffice for a comparison.
func full(ls []look) bool {
	return len(ls) >= needed && ls[len(ls)-1].step-ls[0].step >= rounds
}

// mean returns the usage on a host and the length of a round, between the first and the last look that saw a finished
// round, so that rounds longer than the interval between looks count as wholes, too.
func mean(ls []look, host string) (use resource.Usage, round time.Duration) {
	var ends []int
	for i := range ls[1:] {
		if ls[i+1].step > ls[i].step {
			ends = append(ends, i+1)
		}
	}
	if len(ends) < 2 {
		ends = []int{0, len(ls) - 1}
	}
	i, k := ends[0], ends[len(ends)-1]
	for _, l := range ls[i+1 : k+1] {
		use = use.Plus(l.use[host])
	}
	return use.Times(1 / float64(k-i)), ls[k].at.Sub(ls[i].at) / time.Duration(ls[k].step-ls[i].step)
}

// inForce returns the delay of all workers of the job, without the waits of early ones. It returns false if workers are
// missing, or do not all carry out their order yet.
func (j *job) inForce() (time.Duration, bool) {
	delay := time.Duration(0)
	for r := range j.workers {
		m := j.members[memberID{wire.RoleWorker, r}]
		if m == nil || m.obeyed.ID != m.sent.ID || m.obeyed.Err != "" || m.sent.Delay != j.order.Delay || m.usage.Seq < 2 {
			return 0, false
		}
		delay = m.sent.Delay
	}
	for r := range j.servers {
		if m := j.members[memberID{wire.RoleServer, r}]; m == nil || m.usage.Seq < 2 { // the first report has no rates
			return 0, false
		}
	}
	return delay, len(j.workers) > 0
}

// respond lets a job learn from a report.
func (s *Service) respond(j *job, use map[string]resource.Usage) {
	delay, ok := j.inForce()
	switch {
	case !j.sync || j.order.Back || use == nil:
		j.giving.forget()
		return
	case !ok && j.order.Delay == j.giving.delay: // a worker is missing
		j.giving.forget()
		return
	case !ok: // a delay is about to take effect
		return
	}
	on := map[string]int{}
	for _, h := range j.workers {
		on[h]++
	}
	learned, err := j.giving.observe(look{time.Now(), j.step, use}, delay, on, func() resource.Costs {
		if c := j.freed(); c != nil {
			return *c
		}
		return j.costs()
	})
	if err != nil {
		s.log.Warn("cannot learn from a delay", "job", j.name, "err", err)
		return
	}
	if learned {
		c := j.giving.learned.Costs()
		s.log.Info("learned what a delay frees", "job", j.name, "from", j.giving.was, "to", delay, "cores_per_worker_s", c.Freed.CPU, "in_Bps_per_worker_s", c.Freed.NetIn,
			"out_Bps_per_worker_s", c.Freed.NetOut, "sensitivity_cpu", c.Sensitivity.CPU, "sensitivity_net", c.Sensitivity.Net)
	}
}

// learned returns what a delay frees and costs, as far as it was learned; nil: use what the job has declared.
func (j *job) learned() *resource.Costs {
	if g := j.giving.learned; g != nil {
		c := g.Costs()
		return &c
	}
	return j.freed()
}
