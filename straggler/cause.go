package straggler

import (
	"fmt"
	"math"
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

// CauseByName is the inverse of String.
func CauseByName(name string) (Cause, bool) {
	for c, s := range causeNames {
		if s == name {
			return Cause(c), true
		}
	}
	return Unknown, false
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
		text = "unknown cause: " + text
	}
	return fmt.Sprintf("w%d %.1fx slow since it %d: %s", v.Worker, v.Slowdown, v.Since, text)
}

// profile is the mean of some iterations.
type profile struct {
	n       int
	own     float64
	part    [parts]float64
	compute []float64 // of each
	samples float64   // of the mini-batch
	netOut  float64   // bytes
	netIn   float64
	metric  [star.NumMetrics]float64 // NaN: not measured
}

func profileOf(ss []*sample) (p profile) {
	p.n = len(ss)
	if p.n == 0 {
		return p
	}
	var count [star.NumMetrics]float64
	k := 1 / float64(p.n)
	for _, s := range ss {
		p.own += k * s.own
		p.compute = append(p.compute, s.part[compute])
		for i, v := range s.part {
			p.part[i] += k * v
		}
		p.samples += k * float64(s.rec.Samples)
		p.netOut += k * s.rec.NetOut
		p.netIn += k * s.rec.NetIn
		for m := range star.NumMetrics {
			if v, ok := s.rec.Telemetry.Get(m); ok {
				p.metric[m] += v
				count[m]++
			}
		}
	}
	for m := range p.metric {
		p.metric[m] /= count[m] // NaN of nothing
	}
	return p
}

// above is how much larger a metric is than the reference's, which counts as 0
// where it was not measured; 0 if it is not larger or not known.
func (p *profile) above(ref *profile, m star.Metric) float64 {
	v, r := p.metric[m], ref.metric[m]
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

// enough is the part of the lost time that a cause must explain to be named.
const enough = 0.4

// attribute says why iterations like bad take longer than iterations like ref. What the host
// did to the process is asked first, because it shows in every part of the time;
// then the parts.
func attribute(bad, ref profile, intermittent bool, long, of int) (Cause, []Evidence) {
	if bad.n == 0 || ref.n == 0 || bad.own <= ref.own {
		return Unknown, []Evidence{{What: "own", Value: bad.own, Other: ref.own, Text: "nothing to compare with"}}
	}
	lost := 1 - ref.own/bad.own // share of the worker's time
	busy := bad.own             // s
	pct := func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
	var best Cause
	var why []Evidence
	most := enough
	offer := func(c Cause, explains float64, e ...Evidence) {
		if explains > most {
			best, most, why = c, explains, e
		}
	}
	measured := func(m star.Metric, text string) Evidence {
		return Evidence{What: m.String(), Value: bad.metric[m], Other: ref.metric[m], Text: text}
	}

	gpu := int(bad.metric[star.GPUThrottle]) // NaN becomes some number: asked below
	if v := bad.metric[star.GPUThrottle]; math.IsNaN(v) {
		gpu = 0
	}
	if usual := ref.metric[star.GPUThrottle]; gpu&harmful != 0 && (math.IsNaN(usual) || int(usual)&gpu&harmful != gpu&harmful) {
		var names []string
		for _, r := range reasons {
			if gpu&r.bit != 0 {
				names = append(names, r.name)
			}
		}
		clock, usual := bad.metric[star.GPUClock], ref.metric[star.GPUClock]
		text := "GPU held back: " + strings.Join(names, ", ")
		explains := 0.6 // the driver says so, nobody says how much
		if clock > 0 && usual > 0 {
			explains = (1 - clock/usual) / lost
			text = fmt.Sprintf("GPU at %.0f MHz, others %.0f: %s", clock, usual, strings.Join(names, ", "))
		}
		offer(GPU, explains, measured(star.GPUThrottle, text))
	}

	throttled := bad.above(&ref, star.Throttled)
	if throttled > 0.03 {
		text := "CPU quota held it back " + pct(min(bad.metric[star.Throttled], 1))
		if q := bad.metric[star.Quota]; q > 0 {
			text += fmt.Sprintf(" of the time (%.2g processors allowed)", q)
		} else {
			text += " of the time"
		}
		offer(Quota, throttled/lost, measured(star.Throttled, text))
	}
	if s := bad.above(&ref, star.Steal); s > 0.03 {
		offer(Steal, s/lost, measured(star.Steal, "CPU steal "+pct(bad.metric[star.Steal])))
	}
	// A thread that the quota holds back counts as waiting, too.
	queue := max(bad.above(&ref, star.RunDelay)-throttled, 0)
	if queue > 0.03 {
		e := []Evidence{measured(star.RunDelay, fmt.Sprintf("waited for a processor %s of the time", pct(min(bad.metric[star.RunDelay], 1))))}
		if h := bad.metric[star.HostCPU]; h > 0 {
			e = append(e, measured(star.HostCPU, fmt.Sprintf("host %s busy", pct(h))))
		}
		offer(Contention, queue/lost, e...)
	}
	// A page from disk takes a tenth of a millisecond on a good one.
	if faults := bad.above(&ref, star.MajorFaults); faults >= 5 {
		offer(Contention, faults*1e-4/busy/lost, measured(star.MajorFaults, fmt.Sprintf("short of memory: %.0f pages from disk in each iteration", bad.metric[star.MajorFaults])))
	}
	if still := bad.above(&ref, star.Stalled) - throttled - queue; still > 0.03 {
		offer(Pauses, still/lost, measured(star.Stalled, fmt.Sprintf("the process stood still %s of the time", pct(bad.metric[star.Stalled]))))
	}
	if best != Unknown {
		return best, why
	}
	return byPart(bad, ref, intermittent, long, of)
}

// byPart asks which part of the time has grown.
func byPart(bad, ref profile, intermittent bool, long, of int) (Cause, []Evidence) {
	var excess [parts]float64
	total, top := 0.0, load
	for i := range parts {
		excess[i] = max(bad.part[i]-ref.part[i], 0)
		total += excess[i]
		if excess[i] > excess[top] {
			top = i
		}
	}
	names := [parts]string{"load", "compute", "push", "pull"}
	ms := func(p part) string {
		return fmt.Sprintf("%s %s, others %s", names[p], span(bad.part[p]), span(ref.part[p]))
	}
	grown := Evidence{What: names[top], Value: bad.part[top], Other: ref.part[top], Text: ms(top)}
	if total == 0 || excess[top] < 0.5*total {
		var es []Evidence
		for i := range parts {
			if excess[i] > 0.2*total {
				es = append(es, Evidence{What: names[i], Value: bad.part[i], Other: ref.part[i], Text: ms(i)})
			}
		}
		return Unknown, es
	}
	switch top {
	case load:
		grown.Text = "slow data: " + grown.Text
		return Data, []Evidence{grown}
	case out:
		grown.Text = "network out: " + grown.Text + speed(bad.netOut, bad.part[out])
		return NetworkOut, []Evidence{grown}
	case in:
		grown.Text = "network in: " + grown.Text + speed(bad.netIn, bad.part[in])
		return NetworkIn, []Evidence{grown}
	}
	cpu, usual := bad.metric[star.ComputeCPU], ref.metric[star.ComputeCPU]
	off := !math.IsNaN(cpu) && !math.IsNaN(usual) && cpu < 0.85*usual
	busy := !math.IsNaN(cpu) && !math.IsNaN(usual) && !off
	// Between pauses there are iterations without, or almost.
	calm := 0
	for _, c := range bad.compute {
		if c < ref.part[compute]+excess[compute]/3 {
			calm++
		}
	}
	uneven := calm >= 2 && calm*10 >= bad.n
	each := excess[compute] // of the iterations that were hit
	if !intermittent && bad.n > calm {
		long, of, each = bad.n-calm, bad.n, excess[compute]*float64(bad.n)/float64(bad.n-calm)
	}
	if intermittent && !busy || off && uneven {
		return Pauses, []Evidence{{What: "compute", Value: bad.part[compute], Other: ref.part[compute],
			Text: fmt.Sprintf("stands still: %d of %d iterations took %s longer", long, of, span(each))}}
	}
	es := []Evidence{grown}
	if r := ref.samples; r > 0 && bad.samples > 1.1*r {
		es = append(es, Evidence{What: "samples", Value: bad.samples, Other: r, Text: fmt.Sprintf("%.0f samples, others %.0f", bad.samples, r)})
	}
	if off {
		es = append(es, Evidence{What: star.ComputeCPU.String(), Value: cpu, Other: usual,
			Text: fmt.Sprintf("off the processor %.0f %% of it, and nobody kept it off", 100*(1-cpu/usual))})
	}
	return Compute, es
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
