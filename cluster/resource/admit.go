package resource

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Host is a machine for [Admit].
type Host struct {
	Name     string
	Capacity Usage // infinite if unknown
	Use      Usage // current use of all processes
}

// Sensitivity is how much a job suffers when it gets less of a resource: the product of its slowdowns at two levels of
// throttling in the published tables; see docs/resources.md. Larger is worse; it is positive.
type Sensitivity struct{ CPU, Net float64 }

func (s Sensitivity) of(kind int) float64 {
	if kind == cpu {
		return s.CPU
	}
	return s.Net
}

// Costs are the effects of a delay on a job.
type Costs struct {
	// Freed is what each of its workers on a host frees there per second of delay per iteration: cores, and bytes per
	// second, per second.
	Freed       Usage
	Sensitivity Sensitivity
}

// Tenant is another job, which may free resources.
type Tenant struct {
	Name  string
	SSGD  bool // it runs SSGD; other modes free nothing, since their workers do not wait
	Step  int64
	Costs Costs

	// Times is the time of an iteration of each of its workers, by rank, without waiting; 0: the worker is gone. On is
	// the host of each.
	Times []time.Duration
	On    []string

	// Use is its use on each host. A missing host means unknown.
	Use map[string]Usage

	// Early: its early workers are delayed already. Delay is the delay of each of its iterations. It can be delayed more.
	Early bool
	Delay time.Duration
}

// Need is the demand of a job on a host beyond its use.
type Need struct {
	Host  string
	Extra Usage
}

// Query is a job's request to leave SSGD.
type Query struct {
	Job string

	// Loss is the time that SSGD loses to stragglers in each iteration; see [Loss].
	Loss time.Duration

	// Needs is the cost of the mode beyond SSGD, on every host of its servers.
	Needs []Need

	// Published decides as the public artefact does, for comparison: it compares seconds of delay with milliseconds of
	// loss, does not check whether other jobs can free what is requested, and grants requests if there is no other job.
	Published bool
}

// Freed is the amount that a delay frees on a host.
type Freed struct {
	Host  string
	Usage Usage
}

// Delay is what a job has to do for another one: an early worker waits before it begins, as long as it would wait for
// the slowest worker anyway, and each iteration takes longer by Delay.
type Delay struct {
	Job   string
	Early bool
	Delay time.Duration
	Frees []Freed // in order of host
}

// Verdict is the result of [Admit].
type Verdict struct {
	Granted bool
	Why     string        // one line
	Delays  []Delay       // by name; none without a grant
	Cost    time.Duration // sum of the losses of other jobs per iteration, also if it is too large
}

// Loss is the time that SSGD loses to stragglers in each iteration: the difference between the slowest worker and the
// slowest worker that is not a straggler, which is at most a fifth slower than the fastest. Workers that are gone (0)
// do not count.
func Loss(times []time.Duration) time.Duration {
	least, most := time.Duration(math.MaxInt64), time.Duration(0)
	for _, t := range times {
		if t > 0 {
			least, most = min(least, t), max(most, t)
		}
	}
	normal := time.Duration(0)
	for _, t := range times {
		if t > 0 && 5*(t-least) <= least {
			normal = max(normal, t)
		}
	}
	return most - normal
}

const (
	progress = 10000 // steps after which a job frees twice as much (STAR artefact)

	// mostSlowed bounds the delay of a job: its iterations are delayed by at most their own time, which halves its speed.
	// The published ratios were measured with 1 s, on iterations of 0.3 to 3 s.
	mostSlowed = 1.0
)

// giver is a Tenant that can free something on a host.
type giver struct {
	*Tenant
	workers float64 // present on the host
	round   float64 // time of its iteration, including the delay, in seconds
	use     Usage
	known   bool  // use is known
	early   Usage // amount that its early workers free
	most    Usage // amount that a delay can free in addition
	perSec  Usage // amount per second of delay, at first
}

// delay is the delay in seconds that frees q of a kind of resource.
func (g *giver) delay(kind int, q float64) float64 {
	if q <= 0 {
		return 0
	}
	d := q / g.perSec.of(kind)
	if !g.known {
		return d
	}
	// The same work in T+d instead of T: U falls to U·T/(T+d).
	u := g.use.of(kind) - g.early.of(kind)
	if q >= u {
		return math.Inf(1)
	}
	return max(d, q*g.round/(u-q))
}

// frees is the amount that a delay of d seconds frees.
func (g *giver) frees(d float64) (f Usage) {
	for k := range kinds {
		v := g.perSec.of(k) * d
		if g.known && g.round > 0 {
			v = min(v, (g.use.of(k)-g.early.of(k))*d/(g.round+d))
		}
		*f.at(k) = max(v, 0)
	}
	return f
}

// givers are the jobs that can free something on a host, by name.
func givers(tenants []Tenant, host, job string, published bool) []*giver {
	var gs []*giver
	for i := range tenants {
		t := &tenants[i]
		if t.Name == job || !t.SSGD {
			continue
		}
		g := &giver{Tenant: t}
		g.use, g.known = t.Use[host]
		g.known = g.known && !published
		slowest := slices.Max(append([]time.Duration{0}, t.Times...))
		g.round = (slowest + t.Delay).Seconds()
		for w, on := range t.On {
			if on != host || t.Times[w] == 0 {
				continue
			}
			g.workers++
			if !t.Early {
				g.early = g.early.Plus(t.Costs.Freed.Times((slowest - t.Times[w]).Seconds()))
			}
		}
		g.perSec = t.Costs.Freed.Times(g.workers)
		switch {
		case g.known && g.workers == 0: // only its servers are on the host, and they have less work
			if g.round == 0 {
				continue
			}
			g.perSec = g.use.Times(1 / g.round)
		case g.workers == 0:
			continue
		}
		if g.known {
			g.early = g.early.Min(g.use)
		}
		left := max(mostSlowed*slowest.Seconds()-t.Delay.Seconds(), 0)
		g.most = g.frees(left)
		gs = append(gs, g)
	}
	slices.SortFunc(gs, func(a, b *giver) int { return strings.Compare(a.Name, b.Name) })
	return gs
}

// Admit decides whether a job may use what it requests on its hosts. In this order:
//
//	what is free                                   A = capacity − use
//	the early workers of other jobs in SSGD        A += Σ_w (max τ − τ_w)·Freed
//	other jobs in SSGD, weighted                   d_j = needed/(n_j·Freed_j)·(1/S_j)/(Σ_k 1/S_k)·(1 + step_j/10000)
//
// each separately for processors, incoming and outgoing network; the longest delay counts. That follows the artefact of
// STAR. Then it checks that this suffices: no job frees more than it uses, a job with use U and iterations of T that is
// delayed by d frees at most U·d/(T+d), and no job is slowed to less than half. If a job cannot free its part, the
// others free more, in the same proportion. If no job can, or the others would lose as much as the job gains, the
// answer is no.
//
// The order of hosts, tenants and needs does not matter. Invalid input is an error that names it.
func Admit(q Query, hosts []Host, tenants []Tenant) (Verdict, error) {
	if err := q.check(hosts, tenants); err != nil {
		return Verdict{}, err
	}
	byName := map[string]*Host{}
	for i := range hosts {
		byName[hosts[i].Name] = &hosts[i]
	}
	needs := slices.Clone(q.Needs)
	slices.SortFunc(needs, func(a, b Need) int { return strings.Compare(a.Host, b.Host) })
	var lacks []shortage
	early := map[string]bool{}
	for _, n := range needs {
		h := byName[n.Host]
		gs := givers(tenants, n.Host, q.Job, q.Published)
		var free Usage
		for _, g := range gs {
			free = free.Plus(g.early)
		}
		lacking := false
		for k := range kinds {
			m := n.Extra.of(k) - (h.Capacity.of(k) - h.Use.of(k))
			if n.Extra.of(k) == 0 || m <= slack(h.Capacity.of(k)) {
				continue
			}
			lacking = true
			s := shortage{host: n.Host, kind: k, missing: m, free: free.of(k), gs: gs}
			if left := m - free.of(k); left > slack(h.Capacity.of(k)) {
				s.left = left
			}
			lacks = append(lacks, s)
		}
		for _, g := range gs {
			if lacking && g.early != (Usage{}) {
				early[g.Name] = true
			}
		}
	}
	if len(lacks) == 0 {
		return Verdict{Granted: true, Why: "there is room"}, nil
	}
	delays := map[string]float64{} // seconds, by job, if each job can free its part
	var missing, deprived []string
	for _, s := range lacks {
		missing = append(missing, s.String(s.missing))
		if s.left == 0 {
			continue
		}
		deprived = append(deprived, s.String(s.left))
		for i, part := range s.weighted(q.Published) {
			if g := s.gs[i]; part > 0 {
				delays[g.Name] = max(delays[g.Name], part*s.left/g.perSec.of(s.kind))
			}
		}
	}
	loss := q.Loss.Seconds()
	if q.Published {
		loss *= 1000 // milliseconds, compared with seconds
	}
	tooMuch := func() (Verdict, bool) {
		sum := total(delays)
		return Verdict{Cost: seconds(sum), Why: fmt.Sprintf("for %s others would lose %v in each iteration, ssgd loses %v",
			strings.Join(deprived, ", "), short(seconds(sum)), short(q.Loss))}, loss <= sum && sum > 0
	}
	if v, yes := tooMuch(); yes {
		return v, nil
	}
	if !q.Published {
		clear(delays)
		for _, s := range lacks {
			if s.left == 0 {
				continue
			}
			ds, could := s.fill()
			if could < s.left {
				return Verdict{Why: fmt.Sprintf("%s are missing, and others can give only %s", s.String(s.missing), amount(s.kind, s.free+could))}, nil
			}
			for i, g := range s.gs {
				delays[g.Name] = max(delays[g.Name], ds[i])
			}
		}
		if v, yes := tooMuch(); yes {
			return v, nil
		}
	}
	v := Verdict{Granted: true, Cost: seconds(total(delays))}
	names := slices.Collect(maps.Keys(early))
	for name, d := range delays {
		if d > 0 && !early[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		d := Delay{Job: name, Early: early[name], Delay: seconds(delays[name])}
		for _, n := range needs {
			i := slices.IndexFunc(lacks, func(s shortage) bool { return s.host == n.Host })
			if i < 0 {
				continue
			}
			for _, g := range lacks[i].gs {
				if g.Name == name {
					d.Frees = append(d.Frees, Freed{n.Host, g.early.Plus(g.frees(d.Delay.Seconds()))})
				}
			}
		}
		v.Delays = append(v.Delays, d)
	}
	if len(deprived) == 0 {
		v.Why = fmt.Sprintf("early workers of %s make room for %s", strings.Join(names, ", "), strings.Join(missing, ", "))
		return v, nil
	}
	v.Why = fmt.Sprintf("others give %s and lose %v in each iteration, ssgd loses %v", strings.Join(deprived, ", "), short(v.Cost), short(q.Loss))
	return v, nil
}

// total is the sum of delays, added in order of name.
func total(delays map[string]float64) (sum float64) {
	for _, name := range slices.Sorted(maps.Keys(delays)) {
		sum += delays[name]
	}
	return sum
}

// shortage is the missing amount of a resource on a host.
type shortage struct {
	host    string
	kind    int
	missing float64
	free    float64 // amount that early workers free
	left    float64 // amount that delays have to free
	gs      []*giver
}

// String formats an amount of the missing resource.
func (s *shortage) String(v float64) string {
	return fmt.Sprintf("%s of %s on %s", amount(s.kind, v), kindNames[s.kind], s.host)
}

// weighted is each giver's part, of 1 before the weight of progress is applied. Published: also of givers that have
// nothing to free.
func (s *shortage) weighted(published bool) []float64 {
	weights := make([]float64, len(s.gs))
	sum := 0.0
	for i, g := range s.gs {
		if published || g.most.of(s.kind) > 0 {
			weights[i] = 1 / g.Costs.Sensitivity.of(s.kind)
			sum += weights[i]
		}
	}
	for i, g := range s.gs {
		if weights[i] > 0 {
			weights[i] *= (1 + float64(g.Step)/progress) / sum
		}
	}
	return weights
}

// fill is the delay of each giver, in seconds, that together free what is left, and the amount that they could free. If
// a job cannot free its part, the parts of the others grow until it suffices: Σ min(most, level·weight) = left. Jobs at
// their limit drop out, the one with the smallest limit for its weight first.
func (s *shortage) fill() (delays []float64, could float64) {
	weights := s.weighted(false)
	delays = make([]float64, len(s.gs))
	most := make([]float64, len(s.gs))
	var order []int
	rest := 0.0
	for i, g := range s.gs {
		most[i] = g.most.of(s.kind)
		could += most[i]
		if weights[i] > 0 {
			order = append(order, i)
			rest += weights[i]
		}
	}
	if could < s.left {
		return delays, could
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(most[a]/weights[a], most[b]/weights[b]) })
	level, full := s.left, 0.0 // full is the sum of the jobs at their limit
	for _, i := range order {
		level = max(level, (s.left-full)/rest)
		if level*weights[i] <= most[i] {
			break
		}
		full += most[i]
		rest -= weights[i]
	}
	for i, g := range s.gs {
		delays[i] = g.delay(s.kind, min(level*weights[i], most[i]))
	}
	return delays, could
}

// check returns an error for invalid input.
func (q *Query) check(hosts []Host, tenants []Tenant) error {
	if q.Job == "" {
		return errors.New("resource: a query without a job: name the one that asks")
	}
	if q.Loss < 0 {
		return fmt.Errorf("resource: job %q loses %v in each iteration: want at least 0", q.Job, q.Loss)
	}
	known := map[string]bool{}
	for _, h := range hosts {
		if h.Name == "" || known[h.Name] {
			return fmt.Errorf("resource: host %q occurs twice, or has no name", h.Name)
		}
		known[h.Name] = true
		if err := h.Capacity.check(fmt.Sprintf("capacity of host %s", h.Name), true); err != nil {
			return err
		}
		if err := h.Use.check(fmt.Sprintf("use of host %s", h.Name), false); err != nil {
			return err
		}
	}
	wanted := map[string]bool{}
	for _, n := range q.Needs {
		if !known[n.Host] {
			return fmt.Errorf("resource: job %q needs something on host %q, which is unknown", q.Job, n.Host)
		}
		if wanted[n.Host] {
			return fmt.Errorf("resource: job %q needs something on host %s twice: add it up", q.Job, n.Host)
		}
		wanted[n.Host] = true
		if err := n.Extra.check(fmt.Sprintf("what job %s needs on host %s", q.Job, n.Host), false); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i := range tenants {
		t := &tenants[i]
		if t.Name == "" || seen[t.Name] {
			return fmt.Errorf("resource: job %q occurs twice, or has no name", t.Name)
		}
		seen[t.Name] = true
		if err := t.check(known); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tenant) check(hosts map[string]bool) error {
	if len(t.Times) != len(t.On) {
		return fmt.Errorf("resource: job %s: %d times of workers on %d hosts: want one of each for every worker", t.Name, len(t.Times), len(t.On))
	}
	for w, d := range t.Times {
		if d < 0 {
			return fmt.Errorf("resource: job %s: worker %d takes %v for an iteration: want at least 0", t.Name, w, d)
		}
	}
	for h, u := range t.Use {
		if err := u.check(fmt.Sprintf("use of job %s on host %s", t.Name, h), false); err != nil {
			return err
		}
	}
	for w, h := range t.On {
		if !hosts[h] {
			return fmt.Errorf("resource: job %s: worker %d is on host %q, which is unknown", t.Name, w, h)
		}
	}
	if t.Step < 0 || t.Delay < 0 {
		return fmt.Errorf("resource: job %s: step %d, delay %v: want at least 0", t.Name, t.Step, t.Delay)
	}
	return t.Costs.check("job " + t.Name)
}

func (c Costs) check(of string) error {
	if err := c.Freed.check(of+": freed by a delay", false); err != nil {
		return err
	}
	for _, s := range []float64{c.Sensitivity.CPU, c.Sensitivity.Net} {
		if !(s > 0) || math.IsInf(s, 1) {
			return fmt.Errorf("resource: %s: sensitivity of %v: want more than 0", of, s)
		}
	}
	return nil
}

// seconds is a duration, rounded up to the resolution of a delay.
func seconds(s float64) time.Duration {
	if s <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(min(s*1e9, math.MaxInt64/2)))
}

// short rounds to about three digits.
func short(d time.Duration) time.Duration {
	for unit := time.Second; unit > 1; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit)
		}
	}
	return d
}
