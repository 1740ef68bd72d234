package straggler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"star"
)

// Cause is why a worker is slow.
type Cause int

const (
	Unknown    Cause = iota // no cause explains clearly more than the others
	Compute                 // it computes longer: more work, a slower processor or device, or it sleeps
	Quota                   // its control group is held back
	Steal                   // the hypervisor gives its processors to others
	Contention              // other processes of the host have the processors, or the memory
	Data                    // it waits for its data
	NetworkOut              // its gradients take long
	NetworkIn               // its parameters take long
	Pauses                  // it is suspended now and then
	GPU                     // the GPU is held back
)

var causeNames = [...]string{"unknown", "compute", "quota", "steal", "contention", "data", "network-out", "network-in", "pauses", "gpu"}

// String is the cause in one word.
func (c Cause) String() string {
	if c < 0 || int(c) >= len(causeNames) {
		return "unknown"
	}
	return causeNames[c]
}

// Evidence is a number that speaks for a cause, and the same of the workers that
// are not slow.
type Evidence struct {
	What  string  // a name of the run log
	Value float64 // in the unit of the run log
	Other float64 // of the reference; NaN: not measured
	Text  string  // in words
}

// Verdict describes a slow worker.
type Verdict struct {
	Worker   star.Worker
	Since    int64   // its step at which it began
	Until    int64   // of a worker that has recovered: its first step that is like the others'
	Step     int64   // its step now
	Slowdown float64 // own time over the reference's
	Cause    Cause
	Evidence []Evidence // the strongest first
}

// String is the verdict in one line: w3 2.1x slow since it 412: CPU steal 61 %.
func (v Verdict) String() string {
	text := v.Cause.String()
	if len(v.Evidence) > 0 {
		var ts []string
		for _, e := range v.Evidence {
			ts = append(ts, e.Text)
		}
		text = strings.Join(ts, ", ")
	}
	if v.Cause == Unknown {
		text = "unknown: " + text
	}
	return fmt.Sprintf("w%d %.1fx slow since it %d: %s", v.Worker, v.Slowdown, v.Since, text)
}

// profile is the mean of some iterations, with older ones weighted less.
type profile struct {
	n, took float64 // iterations and seconds, weighted
	own     float64
	part    [parts]float64
	cpu     float64 // processors
	samples float64 // of the mini-batch
	netOut  float64 // bytes
	netIn   float64
	metric  [star.NumMetrics]float64
	count   [star.NumMetrics]float64

	// process is the process of the worker that was the slowest in most of the iterations, by weight; behind is the
	// weight of that, up to n.
	process int
	behind  float64
}

// A profile remembers 64 iterations, or 5 s if these are more: the host's metrics are sampled ten times a second.
const (
	remembered = 64
	recently   = 5 // s
	sampling   = 0.1
)

// add adds an iteration.
func (p *profile) add(s *sample) {
	took := max(s.rec.Iteration().Seconds(), s.own, 1e-6)
	keep := 1 - min(1.0/remembered, took/recently)
	p.n = p.n*keep + 1
	p.took = p.took*keep + took
	p.cpu += took / p.took * (s.rec.CPU - p.cpu)
	k := 1 / p.n
	p.own += k * (s.own - p.own)
	for i, v := range s.part {
		p.part[i] += k * (v - p.part[i])
	}
	p.samples += k * (float64(s.rec.Samples) - p.samples)
	p.netOut += k * (s.rec.NetOut - p.netOut)
	p.netIn += k * (s.rec.NetIn - p.netIn)
	for m := range star.NumMetrics {
		p.count[m] *= keep
		if v, ok := s.rec.Telemetry.Get(m); ok {
			p.count[m]++
			if p.metric[m] += (v - p.metric[m]) / p.count[m]; m == star.GPUThrottle { // bits
				p.metric[m] = v
			}
		}
	}
	p.behind *= keep
	if v, ok := s.rec.Telemetry.Get(star.SlowProcess); !ok {
		return
	} else if int(v) == p.process {
		p.behind++
	} else if p.behind--; p.behind < 0 { // the vote of Boyer and Moore (1981)
		p.process, p.behind = int(v), -p.behind
	}
}

// scale converts the iterations to ones with f times the samples.
func (p *profile) scale(f float64) {
	p.own += scale(&p.part, f)
	p.samples *= f
}

// mean is the mean of a metric; NaN if it was rarely measured.
func (p *profile) mean(m star.Metric) float64 {
	if p.count[m] == 0 || p.count[m] < p.n/2 {
		return math.NaN()
	}
	return p.metric[m]
}

// above is how much larger a metric is than the others', which counts as 0
// where it was not measured; 0 if it is not larger or not known.
func (p *profile) above(ref *profile, m star.Metric) float64 { return p.beyond(m, ref.mean(m)) }

// beyond is how much larger a metric is than r, likewise.
func (p *profile) beyond(m star.Metric, r float64) float64 {
	v := p.mean(m)
	if math.IsNaN(v) {
		return 0
	}
	if math.IsNaN(r) {
		r = 0
	}
	return max(v-r, 0)
}

// harmful are the clocks-event reasons of NVML that slow a GPU down against its
// will: power cap, hardware slowdown, sync boost, thermal limits, power brake. Idle
// and clocks that were set on purpose do not count.
const harmful = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80

// reasons are their names.
var reasons = []struct {
	bit  int
	name string
}{{0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"}, {0x20, "too hot"}, {0x40, "much too hot"}, {0x80, "power brake"}}

// A cause is named when it explains margin more of the lost time than the next one, and besides a standard error of the
// difference. No value between 0 and 1 has a standard deviation of more than a half (Popoviciu 1935), so that of the
// mean of n is at most 0.5/√n; samples of the host are as many as there were periods of sampling.
const margin = 0.2

// grounds are what a cause is concluded from: iterations of a slow worker, bad, and those of the others, ref.
type grounds struct {
	bad, ref profile
	calm     float64 // the share of the worker's iterations that are like those of the others
	beyond   int     // number of the last iterations that are beyond the others'
	last     int     // number of the last iterations
	past     bool    // ref is the job's own past, and not other workers
}

// than names ref in evidence.
func (g *grounds) than() string {
	if g.past {
		return "before"
	}
	return "others"
}

// claim is a possible cause and how much of the lost time it explains. Its evidence is expensive
// and computed only when it is reported.
type claim struct {
	cause    Cause
	explains float64
	why      func(*grounds) []Evidence
}

// words name causes where several are.
var words = [...]string{"something else", "computing", "quota", "steal", "contention", "data", "network out", "network in", "pauses", "GPU"}

// comparable reports whether there is lost time.
func (g *grounds) comparable() bool { return g.bad.n > 0 && g.ref.n > 0 && g.bad.own > g.ref.own }

// attribute returns the cause for which iterations like bad take longer than iterations like ref, and the claims: the
// best one, and the best of another cause. What the host did to the process shows in every part of the time, so parts
// explain what that leaves.
func (g *grounds) attribute() (cause Cause, best, next claim) {
	if !g.comparable() {
		return Unknown, best, next
	}
	claims := g.byHost(make([]claim, 0, 16))
	host := len(claims)
	claims = g.byPart(claims)
	out, in := claims[host+1].explains, claims[host+2].explains
	left := 1.0
	for i := range claims {
		c := &claims[i]
		if i >= host {
			c.explains *= left
			continue
		}
		c.explains = min(c.explains, 1)
		// threads that wait for bytes wait for processors, too, but it is not that which takes long
		if c.cause == Contention {
			c.explains = min(c.explains, 2*(1-out-in))
		}
		left = max(left-c.explains, 0)
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(b.explains, a.explains) })
	best = claims[0]
	for _, c := range claims[1:] {
		if c.cause != best.cause {
			next = c
			break
		}
	}
	periods := max(min(g.bad.n, g.bad.took/sampling), 1)
	if best.explains-next.explains >= margin+0.5/math.Sqrt(periods) {
		return best.cause, best, next
	}
	return Unknown, best, next
}

// evidence is what attribute goes by, in words.
func (g *grounds) evidence() []Evidence {
	if !g.comparable() {
		return []Evidence{{What: "own", Value: g.bad.own, Other: g.ref.own, Text: "nothing to compare with"}}
	}
	cause, best, next := g.attribute()
	if cause != Unknown {
		return append(best.why(g), g.within()...)
	}
	text := words[best.cause]
	if next.explains > 0.05 {
		text += " or " + words[next.cause]
	} else {
		text = "perhaps " + text
	}
	why := append([]Evidence{{What: "causes", Value: best.explains, Other: next.explains, Text: text}}, best.why(g)...)
	if next.explains > 0.05 {
		why = append(why, next.why(g)...)
	}
	return append(why, g.within()...)
}

// clearly is by how much a process of a worker is slower than the others of it when a verdict names it.
const clearly = 1.2

// within names the process of the slow worker that the others of it wait for; nothing if that changes, or if all are
// equally slow.
func (g *grounds) within() []Evidence {
	p := &g.bad
	n, slow, others := p.mean(star.Processes), p.mean(star.SlowProcessTime), p.mean(star.OtherProcesses)
	if !(n >= 2) || !(slow > clearly*others) || p.behind < p.n/2 {
		return nil
	}
	return []Evidence{{What: star.SlowProcess.String(), Value: float64(p.process), Other: math.NaN(),
		Text: fmt.Sprintf("rank %d of its %.0f processes: %s, the others of it %s", p.process, n, span(slow), span(others))}}
}

// waiting is how long, per second, a worker would wait for a processor that waits as long as the others per second of
// processor time: a worker that computes more waits more where processors are busy.
func waiting(bad, ref *profile) float64 {
	if ref.cpu <= 0 {
		return ref.mean(star.RunDelay)
	}
	return ref.mean(star.RunDelay) * max(bad.cpu/ref.cpu, 1)
}

// used is the part of a quota from which on it is nearly used up: threads do not ask for it evenly.
const used = 0.6

// byHost asks what the host did to the process.
func (g *grounds) byHost(claims []claim) []claim {
	bad, ref := &g.bad, &g.ref
	lost := 1 - ref.own/bad.own // share of the worker's time
	offer := func(c Cause, explains float64, why func(*grounds) []Evidence) {
		claims = append(claims, claim{c, explains, why})
	}

	if gpu := int(bad.metric[star.GPUThrottle]); gpu&harmful != 0 && int(ref.metric[star.GPUThrottle])&gpu&harmful != gpu&harmful {
		explains := 0.6 // the driver reports it, without an amount
		if clock, usual := bad.mean(star.GPUClock), ref.mean(star.GPUClock); clock > 0 && usual > 0 {
			explains = max(1-clock/usual, 0) / lost
		}
		offer(GPU, explains, (*grounds).heldGPU)
	}

	// A thread that the quota holds back counts as waiting, too, and one of a group that has nearly used up its quota
	// waits for that.
	throttled := bad.above(ref, star.Throttled)
	queue := max(bad.beyond(star.RunDelay, waiting(bad, ref))-throttled, 0)
	held := throttled
	if bad.cpu > used*bad.mean(star.Quota) {
		held, queue = throttled+queue, 0
	}
	if held > 0.03 {
		offer(Quota, held/lost, func(g *grounds) []Evidence { return g.quota(held) })
	}
	if s := bad.above(ref, star.Steal); s > 0.03 {
		offer(Steal, s/lost, (*grounds).stolen)
	}
	if queue > 0.03 {
		offer(Contention, queue/lost, (*grounds).queued)
	}
	// A page from disk takes a tenth of a millisecond on a good one.
	if faults := bad.above(ref, star.MajorFaults); faults >= 5 {
		offer(Contention, faults*1e-4/bad.own/lost, (*grounds).paged)
	}
	if still := bad.above(ref, star.Stalled) - held - queue; still > 0.03 {
		offer(Pauses, still/lost, (*grounds).stood)
	}
	return claims
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// measured is a metric as evidence.
func (g *grounds) measured(m star.Metric, text string) Evidence {
	return Evidence{What: m.String(), Value: g.bad.mean(m), Other: g.ref.mean(m), Text: text}
}

func (g *grounds) heldGPU() []Evidence {
	var names []string
	for _, r := range reasons {
		if int(g.bad.metric[star.GPUThrottle])&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	text := "GPU held back: " + strings.Join(names, ", ")
	if clock, usual := g.bad.mean(star.GPUClock), g.ref.mean(star.GPUClock); clock > 0 && usual > 0 {
		text = fmt.Sprintf("GPU at %.0f MHz, %s %.0f: %s", clock, g.than(), usual, strings.Join(names, ", "))
	}
	return []Evidence{g.measured(star.GPUThrottle, text)}
}

func (g *grounds) quota(held float64) []Evidence {
	text := "CPU quota held it back " + percent(min(held, 1)) + " of the time"
	if quota := g.bad.mean(star.Quota); quota > 0 {
		text += fmt.Sprintf(" (%.2g processors allowed)", quota)
	}
	return []Evidence{g.measured(star.Throttled, text)}
}

func (g *grounds) stolen() []Evidence {
	return []Evidence{g.measured(star.Steal, "CPU steal "+percent(g.bad.mean(star.Steal)))}
}

func (g *grounds) queued() []Evidence {
	e := []Evidence{g.measured(star.RunDelay, fmt.Sprintf("waited for a processor %s of the time", percent(min(g.bad.mean(star.RunDelay), 1))))}
	if h := g.bad.mean(star.HostCPU); h > 0 {
		e = append(e, g.measured(star.HostCPU, fmt.Sprintf("host %s busy", percent(h))))
	}
	return e
}

func (g *grounds) paged() []Evidence {
	return []Evidence{g.measured(star.MajorFaults, fmt.Sprintf("short of memory: %.0f pages from disk in each iteration", g.bad.mean(star.MajorFaults)))}
}

func (g *grounds) stood() []Evidence {
	return []Evidence{g.measured(star.Stalled, fmt.Sprintf("the process stood still %s of the time", percent(g.bad.mean(star.Stalled))))}
}

// Between pauses there are iterations like the others'. A worker that is slow all the time has hardly any, one that
// pauses in all but a fifth of its iterations has that fifth.
const hardly, fifth = 0.05, 0.2

// byPart asks which part of the time has grown: data, network out, network in, computing and pauses, in this order.
func (g *grounds) byPart(claims []claim) []claim {
	bad, ref := &g.bad, &g.ref
	var excess [parts]float64
	total := 0.0
	for i := range parts {
		excess[i] = max(bad.part[i]-ref.part[i], 0)
		total += excess[i]
	}
	share := func(p part) float64 { return excess[p] / max(total, 1e-12) }
	networks := len(claims) + 1
	claims = append(claims, claim{Data, share(load), (*grounds).loaded}, claim{NetworkOut, share(out), (*grounds).sent}, claim{NetworkIn, share(in), (*grounds).received})
	pauses := 0.0
	if cpu, usual := bad.mean(star.ComputeCPU), ref.mean(star.ComputeCPU); math.IsNaN(cpu) || math.IsNaN(usual) || offProcessor(cpu, usual) {
		pauses = min(max((g.calm-hardly)/(fifth-hardly), 0), 1)
	}
	paused := share(compute) * pauses
	// a stopped process neither sends nor receives
	if still := bad.above(ref, star.Stalled) / (1 - ref.own/bad.own); g.calm > fifth {
		for i := range claims[networks:] {
			p := min(claims[networks+i].explains, still)
			claims[networks+i].explains -= p
			paused += p
			still -= p
		}
	}
	return append(claims, claim{Compute, share(compute) * (1 - pauses), (*grounds).computed}, claim{Pauses, paused, (*grounds).paused})
}

// offProcessor reports whether a worker had less of a processor while it computed than the others.
func offProcessor(cpu, usual float64) bool { return cpu < 0.85*usual }

var partNames = [parts]string{"load", "compute", "push", "pull"}

// grown is a part of the time as evidence.
func (g *grounds) grown(p part, before, after string) Evidence {
	name := partNames[p]
	return Evidence{What: name, Value: g.bad.part[p], Other: g.ref.part[p],
		Text: fmt.Sprintf("%s%s %s, %s %s%s", before, name, span(g.bad.part[p]), g.than(), span(g.ref.part[p]), after)}
}

func (g *grounds) loaded() []Evidence {
	es := []Evidence{g.grown(load, "slow data: ", "")}
	if io := g.bad.above(&g.ref, star.IOWait); g.past && io > 0.05 {
		es = append(es, g.measured(star.IOWait, fmt.Sprintf("hosts waited for disks %s of the time, before %s", percent(g.bad.mean(star.IOWait)), percent(max(g.ref.metric[star.IOWait], 0)))))
	}
	return es
}

func (g *grounds) sent() []Evidence {
	return []Evidence{g.grown(out, "network out: ", speed(g.bad.netOut, g.bad.part[out]))}
}

func (g *grounds) received() []Evidence {
	return []Evidence{g.grown(in, "network in: ", speed(g.bad.netIn, g.bad.part[in]))}
}

func (g *grounds) computed() []Evidence {
	es := []Evidence{g.grown(compute, "", "")}
	if n, r := g.bad.samples, g.ref.samples; r > 0 && n > 1.1*r {
		es = append(es, Evidence{What: "samples", Value: n, Other: r, Text: fmt.Sprintf("%.0f samples, %s %.0f", n, g.than(), r)})
	}
	if cpu, usual := g.bad.mean(star.ComputeCPU), g.ref.mean(star.ComputeCPU); offProcessor(cpu, usual) { // not for NaN
		es = append(es, g.measured(star.ComputeCPU, fmt.Sprintf("blocked in its own code (sleep, I/O, lock or device) for %.0f %% of it", 100*(1-cpu/usual))))
	} else if g.past && cpu > 0.5 { // a host that waits for a GPU says nothing of it
		es = append(es, g.measured(star.ComputeCPU, "with as much of a processor as before: slower processors or memory, or more work for each sample"))
	}
	return es
}

func (g *grounds) paused() []Evidence {
	return []Evidence{{What: "compute", Value: g.bad.part[compute], Other: g.ref.part[compute],
		Text: fmt.Sprintf("paused: %d of %d iterations took %s longer", g.beyond, g.last, span(g.bad.own-g.ref.own))}}
}

// span writes seconds.
func span(s float64) string {
	switch {
	case s >= 1:
		return fmt.Sprintf("%.2g s", s)
	case s >= 0.0995:
		return fmt.Sprintf("%.0f ms", 1e3*s)
	}
	return fmt.Sprintf("%.2g ms", 1e3*s)
}

// speed writes a rate in brackets; nothing if it is not known.
func speed(bytes, seconds float64) string {
	if !(bytes > 0) || !(seconds > 0) {
		return ""
	}
	return fmt.Sprintf(" (%.3g MB/s)", bytes/seconds/1e6)
}
