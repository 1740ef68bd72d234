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
	Unknown    Cause = iota
	Compute          // it computes longer: more work, a slower processor or device, or it sleeps
	Quota            // its control group is held back
	Steal            // the hypervisor gives its processors to others
	Contention       // other processes of the host have the processors, or the memory
	Data             // it waits for its data
	NetworkOut       // its gradients take long
	NetworkIn        // its parameters take long
	Pauses           // it stands still now and then
	GPU              // the GPU is held back
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

// Verdict is what is known about a slow worker.
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

// profile is the mean of some iterations, in which what is longer ago counts less.
type profile struct {
	n, took float64 // iterations and seconds; what is forgotten counts less
	own     float64
	part    [parts]float64
	cpu     float64 // processors
	samples float64 // of the mini-batch
	netOut  float64 // bytes
	netIn   float64
	metric  [star.NumMetrics]float64
	count   [star.NumMetrics]float64
}

// A profile remembers 64 iterations, or 5 s if these are more: the host's metrics are sampled ten times a second.
const (
	remembered = 64
	recently   = 5 // s
	sampling   = 0.1
)

// add takes in an iteration.
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
			p.metric[m] += (v - p.metric[m]) / p.count[m]
		}
	}
}

// mean is that of a metric; NaN if it was rarely measured.
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
// and clocks that somebody chose are none.
const harmful = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80

// reasons are their names.
var reasons = []struct {
	bit  int
	name string
}{{0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"}, {0x20, "too hot"}, {0x40, "much too hot"}, {0x80, "power brake"}}

// A cause is named when it explains margin more of the lost time than the next one, and besides a standard error of the difference. No
// value between 0 and 1 has a standard deviation of more than a half (Popoviciu 1935), so that of the mean of n is at most 0.5/√n; samples
// of the host are as many as there were periods of sampling.
const margin = 0.2

// claim is a cause that may be, with what it explains of the lost time.
type claim struct {
	cause    Cause
	explains float64
	why      []Evidence
}

// words name causes where several are.
var words = [...]string{"something else", "computing", "quota", "steal", "contention", "data", "network out", "network in", "pauses", "GPU"}

// attribute says why iterations like bad take longer than iterations like ref. What the host
// did to the process shows in every part of the time, so parts explain what that leaves. calm is the share of the worker's iterations that are
// like those of the others.
func attribute(bad, ref *profile, calm float64, window []sample) (Cause, []Evidence) {
	if bad.n == 0 || ref.n == 0 || bad.own <= ref.own {
		return Unknown, []Evidence{{What: "own", Value: bad.own, Other: ref.own, Text: "nothing to compare with"}}
	}
	claims := byHost(bad, ref)
	grown := byPart(bad, ref, calm, window)
	left := 1.0
	for i := range claims {
		claims[i].explains = min(claims[i].explains, 1)
		if c := &claims[i]; c.cause == Contention { // threads that wait for bytes wait for processors, too, but it is not that which takes long
			c.explains = min(c.explains, 2*(1-grown[1].explains-grown[2].explains))
		}
		left = max(left-claims[i].explains, 0)
	}
	for _, c := range grown {
		c.explains *= left
		claims = append(claims, c)
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return cmp.Compare(b.explains, a.explains) })
	best, next := claims[0], claim{explains: 0}
	for _, c := range claims[1:] {
		if c.cause != best.cause {
			next = c
			break
		}
	}
	periods := max(min(bad.n, bad.took/sampling), 1)
	if best.explains-next.explains >= margin+0.5/math.Sqrt(periods) {
		return best.cause, best.why
	}
	text := words[best.cause]
	if next.explains > 0.05 {
		text += " or " + words[next.cause]
	} else {
		text = "perhaps " + text
	}
	why := []Evidence{{What: "causes", Value: best.explains, Other: next.explains, Text: text}}
	why = append(why, best.why...)
	if next.explains > 0.05 {
		why = append(why, next.why...)
	}
	return Unknown, why
}

// waiting is how long, per second, a worker would wait for a processor that waits as long as the others for each second that it gets of one: who computes
// more waits more where processors are busy.
func waiting(bad, ref *profile) float64 {
	if ref.cpu <= 0 {
		return ref.mean(star.RunDelay)
	}
	return ref.mean(star.RunDelay) * max(bad.cpu/ref.cpu, 1)
}

// used is the part of a quota from which on it is nearly used up: threads do not ask for it evenly.
const used = 0.6

// byHost asks what the host did to the process.
func byHost(bad, ref *profile) (claims []claim) {
	lost := 1 - ref.own/bad.own // share of the worker's time
	pct := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	offer := func(c Cause, explains float64, e ...Evidence) { claims = append(claims, claim{c, explains, e}) }
	measured := func(m star.Metric, text string) Evidence {
		return Evidence{What: m.String(), Value: bad.mean(m), Other: ref.mean(m), Text: text}
	}

	if gpu := int(bad.metric[star.GPUThrottle]); gpu&harmful != 0 && int(ref.metric[star.GPUThrottle])&gpu&harmful != gpu&harmful {
		var names []string
		for _, r := range reasons {
			if gpu&r.bit != 0 {
				names = append(names, r.name)
			}
		}
		clock, usual := bad.mean(star.GPUClock), ref.mean(star.GPUClock)
		text := "GPU held back: " + strings.Join(names, ", ")
		explains := 0.6 // the driver says so, nobody says how much
		if clock > 0 && usual > 0 {
			explains = max(1-clock/usual, 0) / lost
			text = fmt.Sprintf("GPU at %.0f MHz, others %.0f: %s", clock, usual, strings.Join(names, ", "))
		}
		offer(GPU, explains, measured(star.GPUThrottle, text))
	}

	// A thread that the quota holds back counts as waiting, too, and one of a group that has nearly used up its quota waits for that.
	throttled, quota := bad.above(ref, star.Throttled), bad.mean(star.Quota)
	queue := max(bad.beyond(star.RunDelay, waiting(bad, ref))-throttled, 0)
	held := throttled
	if bad.cpu > used*quota {
		held, queue = throttled+queue, 0
	}
	if held > 0.03 {
		text := "CPU quota held it back " + pct(min(held, 1)) + " of the time"
		if quota > 0 {
			text += fmt.Sprintf(" (%.2g processors allowed)", quota)
		}
		offer(Quota, held/lost, measured(star.Throttled, text))
	}
	if s := bad.above(ref, star.Steal); s > 0.03 {
		offer(Steal, s/lost, measured(star.Steal, "CPU steal "+pct(bad.mean(star.Steal))))
	}
	if queue > 0.03 {
		e := []Evidence{measured(star.RunDelay, fmt.Sprintf("waited for a processor %s of the time", pct(min(bad.mean(star.RunDelay), 1))))}
		if h := bad.mean(star.HostCPU); h > 0 {
			e = append(e, measured(star.HostCPU, fmt.Sprintf("host %s busy", pct(h))))
		}
		offer(Contention, queue/lost, e...)
	}
	// A page from disk takes a tenth of a millisecond on a good one.
	if faults := bad.above(ref, star.MajorFaults); faults >= 5 {
		offer(Contention, faults*1e-4/bad.own/lost, measured(star.MajorFaults, fmt.Sprintf("short of memory: %.0f pages from disk in each iteration", bad.mean(star.MajorFaults))))
	}
	if still := bad.above(ref, star.Stalled) - held - queue; still > 0.03 {
		offer(Pauses, still/lost, measured(star.Stalled, fmt.Sprintf("the process stood still %s of the time", pct(bad.mean(star.Stalled)))))
	}
	return claims
}

// Between pauses there are iterations like the others'. A worker that is slow all the time has hardly any, one that
// pauses in all but a fifth of its iterations has that fifth.
const hardly, fifth = 0.05, 0.2

// byPart asks which part of the time has grown.
func byPart(bad, ref *profile, calm float64, window []sample) (claims []claim) {
	var excess [parts]float64
	total := 0.0
	for i := range parts {
		excess[i] = max(bad.part[i]-ref.part[i], 0)
		total += excess[i]
	}
	names := [parts]string{"load", "compute", "push", "pull"}
	grown := func(p part, before, after string) Evidence {
		return Evidence{What: names[p], Value: bad.part[p], Other: ref.part[p],
			Text: fmt.Sprintf("%s%s %s, others %s%s", before, names[p], span(bad.part[p]), span(ref.part[p]), after)}
	}
	share := func(p part) float64 { return excess[p] / max(total, 1e-12) }
	claims = []claim{
		{Data, share(load), []Evidence{grown(load, "slow data: ", "")}},
		{NetworkOut, share(out), []Evidence{grown(out, "network out: ", speed(bad.netOut, bad.part[out]))}},
		{NetworkIn, share(in), []Evidence{grown(in, "network in: ", speed(bad.netIn, bad.part[in]))}},
	}

	cpu, usual := bad.mean(star.ComputeCPU), ref.mean(star.ComputeCPU)
	off := !math.IsNaN(cpu) && !math.IsNaN(usual) && cpu < 0.85*usual
	busy := !math.IsNaN(cpu) && !math.IsNaN(usual) && !off
	pauses := 0.0
	if !busy {
		pauses = min(max((calm-hardly)/(fifth-hardly), 0), 1)
	}
	beyond := 0
	for i := range window {
		if window[i].beyond[past] {
			beyond++
		}
	}
	es := []Evidence{grown(compute, "", "")}
	if r := ref.samples; r > 0 && bad.samples > 1.1*r {
		es = append(es, Evidence{What: "samples", Value: bad.samples, Other: r, Text: fmt.Sprintf("%.0f samples, others %.0f", bad.samples, r)})
	}
	if off {
		es = append(es, Evidence{What: star.ComputeCPU.String(), Value: cpu, Other: usual,
			Text: fmt.Sprintf("off the processor %.0f %% of it, and nobody kept it off", 100*(1-cpu/usual))})
	}
	paused := share(compute) * pauses
	if still := bad.above(ref, star.Stalled) / (1 - ref.own/bad.own); calm > fifth { // what stands still neither sends nor receives
		for i := range claims[1:] {
			p := min(claims[1+i].explains, still)
			claims[1+i].explains -= p
			paused += p
			still -= p
		}
	}
	return append(claims,
		claim{Compute, share(compute) * (1 - pauses), es},
		claim{Pauses, paused, []Evidence{{What: "compute", Value: bad.part[compute], Other: ref.part[compute],
			Text: fmt.Sprintf("stands still: %d of %d iterations took %s longer", beyond, len(window), span(bad.own-ref.own))}}})
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
