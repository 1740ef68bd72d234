package resource

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Host is a machine as [Admit] sees it.
type Host struct {
	Name     string
	Capacity Usage // infinite where it is not known
	Use      Usage // by everybody, now
}

// Sensitivity is how much a job suffers when a resource is taken from it: the product of its slowdowns at
// two levels of throttling in the published tables; see docs/resources.md. Larger is worse; more than 0.
type Sensitivity struct{ CPU, Net float64 }

func (s Sensitivity) of(kind int) float64 {
	if kind == cpu {
		return s.CPU
	}
	return s.Net
}

// Costs is what it means to a job to be delayed.
type Costs struct {
	// Freed is what each of its workers on a host frees there for each second by which an
	// iteration is delayed: cores, and bytes per second, per second.
	Freed       Usage
	Sensitivity Sensitivity
}

// Tenant is another job, which may give something.
type Tenant struct {
	Name  string
	SSGD  bool // it runs SSGD; others give nothing, since they wait for nobody
	Step  int64
	Costs Costs

	// Times is what an iteration of each of its workers takes, by rank, without waiting; 0: it is
	// gone. On is the host of each.
	Times []time.Duration
	On    []string

	// Use is what it uses on each host. Of a host that is not there it is not known.
	Use map[string]Usage

	// Early says that its early workers are delayed already, Delay by how much each of its
	// iterations is. It can be delayed more.
	Early bool
	Delay time.Duration
}

// Need is what a job wants on a host beyond what it uses.
type Need struct {
	Host  string
	Extra Usage
}

// Query is what a job asks: may it leave SSGD?
type Query struct {
	Job string

	// Loss is what SSGD loses in each iteration to stragglers; see [Loss].
	Loss time.Duration

	// Needs is what the mode costs beyond SSGD, on every host of its servers.
	Needs []Need

	// Published decides as the public artefact does, to compare: seconds of delay against milliseconds of loss,
	// no look whether anybody can give what is asked for, and a yes where there is nobody.
	Published bool
}

// Freed is what a delay frees on a host.
type Freed struct {
	Host  string
	Usage Usage
}

// Delay is what a job has to do for another one: an early worker waits before it begins, as
// long as it would wait for the slowest anyway, and each iteration takes longer by Delay.
type Delay struct {
	Job   string
	Early bool
	Delay time.Duration
	Frees []Freed // in order of host
}

// Verdict is what [Admit] says.
type Verdict struct {
	Granted bool
	Why     string        // one line
	Delays  []Delay       // by name; none without a grant
	Cost    time.Duration // the sum of what the others lose in each of their iterations, also where it is too much
}

// Loss is what SSGD loses in each iteration to stragglers: how much longer the slowest takes than the slowest that is
// none, which is at most a fifth slower than the fastest. Workers that are gone (0) do not count.
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
	progress = 10000 // steps after which a job gives twice as much (STAR artefact)

	// mostSlowed bounds what is asked of a job: its iterations are delayed by no more than they take,
	// which halves its speed. The published ratios were measured with 1 s, on iterations of 0.3 to 3 s.
	mostSlowed = 1.0
)

// giver is a Tenant that can free something on a host.
type giver struct {
	*Tenant
	workers float64 // that are there
	round   float64 // what its iteration takes, delay included, in seconds
	use     Usage
	known   bool  // use is
	early   Usage // its early workers free so much
	most    Usage // a delay can free so much beyond that
	perSec  Usage // for each second, at first
}

// delay is the delay in seconds that frees q of a kind.
func (g *giver) delay(kind int, q float64) float64 {
	if q <= 0 {
		return 0
	}
	d := 0.0
	if r := g.perSec.of(kind); r > 0 {
		d = q / r
	} else {
		return math.Inf(1)
	}
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

// frees is what a delay of d seconds frees.
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
		case g.known && g.workers == 0: // only its servers are there, and they have less to do
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

// Admit says whether a job may have what it wants of its hosts. In this order:
//
//	what is free                                   A = capacity − use
//	the early workers of other jobs in SSGD        A += Σ_w (max τ − τ_w)·Freed
//	other jobs in SSGD, weighted                   d_j = needed/(n_j·Freed_j)·(1/S_j)/(Σ_k 1/S_k)·(1 + step_j/10000)
//
// each for processors, incoming and outgoing network by themselves; the longest delay counts. That follows the artefact of
// STAR. Then it looks whether that is enough: no job frees more than it uses, a job of use U and iterations of T that is delayed
// by d frees at most U·d/(T+d), and none is slowed to less than half. Where a job cannot give its part the others give
// more, in the same proportion. Without anybody who can, or where others would lose as much as the job gains, the
// answer is no.
//
// The order of hosts, tenants and needs makes no difference. What cannot be is an error that names it.
func Admit(q Query, hosts []Host, tenants []Tenant) (Verdict, error) {
	if err := q.check(hosts, tenants); err != nil {
		return Verdict{}, err
	}
	needs := slices.Clone(q.Needs)
	slices.SortFunc(needs, func(a, b Need) int { return strings.Compare(a.Host, b.Host) })
	byName := map[string]*Host{}
	for i := range hosts {
		byName[hosts[i].Name] = &hosts[i]
	}
	type share struct {
		early bool
		delay float64 // seconds
	}
	asked := map[string]*share{}
	get := func(name string) *share {
		if asked[name] == nil {
			asked[name] = new(share)
		}
		return asked[name]
	}
	all := map[string][]*giver{} // by host
	var lacking, deprived []string
	for _, n := range needs {
		h := byName[n.Host]
		gs := givers(tenants, n.Host, q.Job, q.Published)
		all[n.Host] = gs
		var missing Usage
		for k := range kinds {
			m := n.Extra.of(k) - (h.Capacity.of(k) - h.Use.of(k))
			if m > slack(h.Capacity.of(k)) && n.Extra.of(k) > 0 {
				*missing.at(k) = m
			}
		}
		if missing == (Usage{}) {
			continue
		}
		var early Usage
		for _, g := range gs {
			if g.early != (Usage{}) {
				early = early.Plus(g.early)
				get(g.Name).early = true
			}
		}
		for k := range kinds {
			m := missing.of(k)
			if m == 0 {
				continue
			}
			lacking = append(lacking, fmt.Sprintf("%s of %s on %s", amount(k, m), kindNames[k], n.Host))
			if m -= early.of(k); m <= slack(h.Capacity.of(k)) {
				continue
			}
			deprived = append(deprived, fmt.Sprintf("%s of %s on %s", amount(k, m), kindNames[k], n.Host))
			ds, could := spread(gs, k, m, q.Published)
			if could < m && !q.Published {
				return Verdict{Why: fmt.Sprintf("%s lacks %s of %s; other jobs can give %s", n.Host, amount(k, missing.of(k)), kindNames[k], amount(k, early.of(k)+could))}, nil
			}
			for i, g := range gs {
				s := get(g.Name)
				s.delay = max(s.delay, ds[i])
			}
		}
	}
	v := Verdict{Granted: true}
	if len(lacking) == 0 {
		v.Why = "there is room"
		return v, nil
	}
	var sum float64
	names := make([]string, 0, len(asked))
	for name, s := range asked {
		if s.early || s.delay > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s := asked[name]
		d := Delay{Job: name, Early: s.early, Delay: seconds(s.delay)}
		for _, n := range needs {
			for _, g := range all[n.Host] {
				if g.Name == name {
					d.Frees = append(d.Frees, Freed{n.Host, g.early.Plus(g.frees(d.Delay.Seconds()))})
				}
			}
		}
		sum += s.delay
		v.Delays = append(v.Delays, d)
	}
	v.Cost = seconds(sum)
	if len(deprived) == 0 {
		v.Why = fmt.Sprintf("early workers of %s make room: %s", strings.Join(names, ", "), strings.Join(lacking, ", "))
		return v, nil
	}
	gain := q.Loss.Seconds()
	if q.Published {
		gain *= 1000 // milliseconds, compared with seconds
	}
	if gain <= sum && (sum > 0 || !q.Published) {
		return Verdict{Cost: v.Cost, Why: fmt.Sprintf("to free %s others would lose %v in each iteration, ssgd loses %v", strings.Join(deprived, ", "), short(v.Cost), short(q.Loss))}, nil
	}
	v.Why = fmt.Sprintf("others give %s and lose %v in each iteration, ssgd loses %v", strings.Join(deprived, ", "), short(v.Cost), short(q.Loss))
	return v, nil
}

// spread is the delay of each giver, in seconds, that together free q of a kind, and how much they could free.
func spread(gs []*giver, kind int, q float64, published bool) (delays []float64, could float64) {
	weights := make([]float64, len(gs))
	delays = make([]float64, len(gs))
	sum := 0.0
	for _, g := range gs {
		could += g.most.of(kind)
		if published || g.most.of(kind) > 0 {
			sum += 1 / g.Costs.Sensitivity.of(kind)
		}
	}
	if could < q && !published {
		return delays, could
	}
	for i, g := range gs {
		if published || g.most.of(kind) > 0 {
			weights[i] = 1 / g.Costs.Sensitivity.of(kind) / sum * (1 + float64(g.Step)/progress)
		}
	}
	if published {
		for i, g := range gs {
			delays[i] = weights[i] * q / g.perSec.of(kind)
		}
		return delays, could
	}
	// Where somebody cannot give its part, everybody's grows until it is enough: Σ min(most, level·weight) = q. Jobs
	// that are at their limit drop out, the one with the least to give for its weight first.
	level := q
	order := make([]int, 0, len(gs))
	for i, w := range weights {
		if w > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(gs[a].most.of(kind)/weights[a], gs[b].most.of(kind)/weights[b])
	})
	full, rest := 0.0, 0.0
	for _, i := range order {
		rest += weights[i]
	}
	for _, i := range order {
		if full+level*rest >= q && level*weights[i] <= gs[i].most.of(kind) {
			break
		}
		if need := (q - full) / rest; need > level {
			level = need
		}
		if level*weights[i] <= gs[i].most.of(kind) {
			break
		}
		full += gs[i].most.of(kind)
		rest -= weights[i]
	}
	for i, g := range gs {
		if weights[i] > 0 {
			delays[i] = g.delay(kind, min(level*weights[i], g.most.of(kind)))
		}
	}
	return delays, could
}

// check names what cannot be.
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
			return fmt.Errorf("resource: host %q is there twice, or has no name", h.Name)
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
			return fmt.Errorf("resource: job %q needs something on host %q, of which nothing is known", q.Job, n.Host)
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
			return fmt.Errorf("resource: job %q is there twice, or has no name", t.Name)
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
			return fmt.Errorf("resource: job %s: worker %d is on host %q, of which nothing is known", t.Name, w, h)
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

// seconds is a duration, rounded up to what a delay can be.
func seconds(s float64) time.Duration {
	if s <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(min(s*1e9, math.MaxInt64/2)))
}

// short rounds to three digits or so.
func short(d time.Duration) time.Duration {
	for unit := time.Second; unit > 1; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit)
		}
	}
	return d
}
