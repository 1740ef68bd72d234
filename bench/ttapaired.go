package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"star/sim"
)

// measure of a comparison of two runs.
type ttaMeasure int

const (
	byLevels   ttaMeasure = iota // the mean, over levels of the loss, of the logarithm of the ratio of the times to them
	byAccuracy                   // the logarithm of the ratio of the times to the target accuracy
	bySamples                    // that of the times for all samples, whatever was learnt
)

// seen is one pair of runs: of the same scenario and seed, so of the same jitter, initial parameters and samples.
type seen struct {
	scenario string
	seed     uint64
	log      float64 // of a's time by b's
	late     int     // levels, or targets, that only b reached, less those that only a did
}

// compareRuns holds a against b. What only one of them reached counts as reached by the other one at the end of the
// longer run of the two, which is too early; what neither reached does not count, and ok is false where nothing does.
func compareRuns(a, b TTAResult, by ttaMeasure) (log float64, late int, ok bool) {
	as, bs := a.Levels, b.Levels
	switch by {
	case bySamples:
		as, bs = []float64{a.Seconds}, []float64{b.Seconds}
	case byAccuracy:
		as, bs = nil, nil
		if a.Reached {
			as = []float64{*a.TTA}
		}
		if b.Reached {
			bs = []float64{*b.TTA}
		}
	}
	end := max(a.Seconds, b.Seconds)
	n := max(len(as), len(bs))
	for k := range n {
		at, bt := end, end
		if k < len(as) {
			at = as[k]
		} else {
			late++
		}
		if k < len(bs) {
			bt = bs[k]
		} else {
			late--
		}
		log += math.Log(at/bt) / float64(n)
	}
	return log, late, n > 0
}

// Pooled is the ratio of the times of two methods over scenarios and seeds: the geometric mean.
type Pooled struct {
	Ratio     float64
	Low, High float64 // 95 %, for these scenarios and other seeds; NaN: fewer than five seeds
	Scenarios int
	Seeds     int
	Late      int // levels, or targets, that only the second one reached, less those that only the first one did

	// Wide and Far are the same interval for other scenarios than these, which are then the clusters; NaN of fewer than
	// five.
	Wide, Far float64
}

// pool is the geometric mean of ratios with its interval. Runs of one seed have initial parameters and samples in
// common whatever the scenario, so seeds are clusters: with e the sum of a cluster's deviations, the variance of the
// mean of n is G/(G−1)·Σe²/n² over G clusters (K.-Y. Liang, S. L. Zeger: Longitudinal data analysis using generalized
// linear models, Biometrika 73, 1986), and the interval that of Student's t with G−1 degrees of freedom (A. C. Cameron,
// D. L. Miller: A Practitioner's Guide to Cluster-Robust Inference, Journal of Human Resources 50(2), 2015).
func pool(xs []seen) Pooled {
	p := Pooled{Ratio: math.NaN(), Low: math.NaN(), High: math.NaN(), Wide: math.NaN(), Far: math.NaN()}
	if len(xs) == 0 {
		return p
	}
	mean := 0.0
	for _, x := range xs {
		mean += x.log / float64(len(xs))
		p.Late += x.late
	}
	seeds, scenarios := map[uint64]float64{}, map[string]float64{}
	for _, x := range xs {
		seeds[x.seed] += x.log - mean
		scenarios[x.scenario] += x.log - mean
	}
	p.Ratio, p.Seeds, p.Scenarios = math.Exp(mean), len(seeds), len(scenarios)
	if half := clustered(seeds, len(xs)); !math.IsNaN(half) {
		p.Low, p.High = math.Exp(mean-half), math.Exp(mean+half)
	}
	if half := clustered(scenarios, len(xs)); !math.IsNaN(half) {
		p.Wide, p.Far = math.Exp(mean-half), math.Exp(mean+half)
	}
	return p
}

// clustered is half the width of the interval of pool, of the sums of deviations of each cluster.
func clustered[K comparable](sums map[K]float64, n int) float64 {
	g := float64(len(sums))
	if len(sums) < leastRuns {
		return math.NaN()
	}
	all := 0.0
	for _, e := range sums {
		all += e * e
	}
	return student(len(sums)-1) * math.Sqrt(g/(g-1)*all) / float64(n)
}

// TTAPairs are the runs of one task on one architecture, by method, scenario and seed.
type TTAPairs struct {
	Methods   []string // in the order in which they came
	Scenarios []string
	Bounds    map[string]float64

	seeds []uint64
	runs  map[runKey]TTAResult
}

type runKey struct {
	method, scenario string
	seed             uint64
}

// NewTTAPairs are those of runs that are all of one task and architecture.
func NewTTAPairs(rs []TTAResult) *TTAPairs {
	p := &TTAPairs{Bounds: map[string]float64{}, runs: map[runKey]TTAResult{}}
	for _, r := range rs {
		if !slices.Contains(p.Methods, r.Method) {
			p.Methods = append(p.Methods, r.Method)
		}
		if !slices.Contains(p.Scenarios, r.Scenario) {
			p.Scenarios = append(p.Scenarios, r.Scenario)
		}
		if !slices.Contains(p.seeds, r.Seed) {
			p.seeds = append(p.seeds, r.Seed)
		}
		p.Bounds[r.Scenario], p.runs[runKey{r.Method, r.Scenario, r.Seed}] = r.Bound, r
	}
	slices.Sort(p.seeds)
	return p
}

// pairs hold a against the method that against names for a scenario and a seed, over the scenarios.
func (p *TTAPairs) pairs(a string, against func(scenario string, seed uint64) string, scenarios []string, by ttaMeasure) (xs []seen) {
	for _, s := range scenarios {
		for _, seed := range p.seeds {
			ra, ok := p.runs[runKey{a, s, seed}]
			rb, there := p.runs[runKey{against(s, seed), s, seed}]
			if !ok || !there {
				continue
			}
			if log, late, ok := compareRuns(ra, rb, by); ok {
				xs = append(xs, seen{s, seed, log, late})
			}
		}
	}
	return xs
}

// Against is a's time by b's.
func (p *TTAPairs) Against(a, b string, scenarios []string, by ttaMeasure) Pooled {
	return pool(p.pairs(a, func(string, uint64) string { return b }, scenarios, by))
}

// baselines are those with the rule of all, and those with one of their own.
func (p *TTAPairs) baselines(own bool) (names []string) {
	for _, m := range p.Methods {
		if _, o := apart(m); sim.IsBaseline(methodOf(m)) && (o != "") == own {
			names = append(names, m)
		}
	}
	return names
}

// nearest is the one of others that a is least ahead of over scenarios, by the seeds that count; an empty name where
// none was run.
func (p *TTAPairs) nearest(a string, others, scenarios []string, counts func(seed uint64) bool) (name string) {
	worst := math.Inf(-1)
	for _, o := range others {
		sum, n := 0.0, 0
		for _, x := range p.pairs(a, func(string, uint64) string { return o }, scenarios, byLevels) {
			if counts(x.seed) {
				sum, n = sum+x.log, n+1
			}
		}
		if n > 0 && sum/float64(n) > worst {
			name, worst = o, sum/float64(n)
		}
	}
	return name
}

// half says in which half of the seeds one is.
func (p *TTAPairs) half(seed uint64) int { return slices.Index(p.seeds, seed) % 2 }

// AgainstChosen holds a against the single one of others that is the best over all scenarios, as chosen on the one half
// of the seeds and judged on the other, both ways round. each: chosen for each scenario.
func (p *TTAPairs) AgainstChosen(a string, others, scenarios []string, each bool, by ttaMeasure) (Pooled, []string) {
	chosen := map[string][2]string{}
	var names []string
	for _, s := range scenarios {
		on := scenarios
		if each {
			on = []string{s}
		}
		var of [2]string
		for h := range 2 {
			of[h] = p.nearest(a, others, on, func(seed uint64) bool { return p.half(seed) != h })
			if of[h] != "" && !slices.Contains(names, of[h]) {
				names = append(names, of[h])
			}
		}
		chosen[s] = of
	}
	return pool(p.pairs(a, func(s string, seed uint64) string { return chosen[s][p.half(seed)] }, scenarios, by)), names
}

// AgainstLeast holds a against the one of others that is the best in each scenario, chosen by the very runs that it is
// judged by: of several noisy numbers the least, which chance alone makes sooner than each of them.
func (p *TTAPairs) AgainstLeast(a string, others, scenarios []string, by ttaMeasure) Pooled {
	chosen := map[string]string{}
	for _, s := range scenarios {
		chosen[s] = p.nearest(a, others, []string{s}, func(uint64) bool { return true })
	}
	return pool(p.pairs(a, func(s string, _ uint64) string { return chosen[s] }, scenarios, by))
}

// straggling are the scenarios with a bound of at least 0.30.
func (p *TTAPairs) straggling() (names []string) {
	for _, s := range p.Scenarios {
		if p.Bounds[s] >= 0.3 {
			names = append(names, s)
		}
	}
	return names
}

// Share is what auto saves of SSGD's time as a part of the bound, and its 95 % confidence interval.
func (p *TTAPairs) Share(scenario string) (share, low, high float64) {
	r := p.Against("auto", "ssgd", []string{scenario}, byLevels)
	of := func(ratio float64) float64 { return (1 - ratio) / p.Bounds[scenario] }
	return of(r.Ratio), of(r.High), of(r.Low)
}

// exchangesLess reports whether auto sends fewer bytes in a scenario than SSGD, for which the bound has no place.
func (p *TTAPairs) exchangesLess(scenario string) bool {
	auto, ssgd := 0.0, 0.0
	for _, seed := range p.seeds {
		auto += float64(p.runs[runKey{"auto", scenario, seed}].Bytes)
		ssgd += float64(p.runs[runKey{"ssgd", scenario, seed}].Bytes)
	}
	return fewer(auto, ssgd)
}

// interval of a ratio, as text.
func (q Pooled) text(low, high float64) string {
	switch {
	case math.IsNaN(q.Ratio):
		return "–"
	case math.IsNaN(low):
		return fmt.Sprintf("%.3f", q.Ratio)
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]", q.Ratio, low, high)
}

// ttaPairs writes what runs of one task on one architecture say, as two tables.
func (r *report) ttaPairs(rs []TTAResult) {
	p := NewTTAPairs(rs)
	if !slices.Contains(p.Methods, "auto") {
		return
	}
	wide := p.straggling()
	r.printf("\n**%s, %s**: auto's time by that of others, with the same seed; geometric means over %d scenarios, %d of them with a bound of 0.30 or more, and %d seeds, with 95 %% intervals. "+
		"auto has %s.\n\n", rs[0].Task, rs[0].Arch, len(p.Scenarios), len(wide), len(p.seeds), p.optimizers("auto"))
	r.printf("| auto by | optimiser | levels, all | all samples | levels, bound ≥ 0.30 | the same, if scenarios were others | accuracy, bound ≥ 0.30 | levels that only the other reached |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
	row := func(name, own string, of func(scenarios []string, by ttaMeasure) Pooled) {
		all, samples, some, acc := of(p.Scenarios, byLevels), of(p.Scenarios, bySamples), of(wide, byLevels), of(wide, byAccuracy)
		r.printf("| %s | %s | %s | %s | %s | %s | %s | %d |\n", name, own, all.text(all.Low, all.High), samples.text(samples.Low, samples.High), some.text(some.Low, some.High), some.text(some.Wide, some.Far), acc.text(acc.Low, acc.High), all.Late)
	}
	for _, m := range p.Methods {
		if m != "auto" {
			row(m, p.optimizers(m), func(on []string, by ttaMeasure) Pooled { return p.Against("auto", m, on, by) })
		}
	}
	for _, own := range []bool{false, true} {
		others, rule := p.baselines(own), "same rule"
		if own {
			rule = "their own"
		}
		if len(others) < 2 {
			continue
		}
		_, names := p.AgainstChosen("auto", others, wide, false, byLevels)
		row(fmt.Sprintf("**best single baseline**, chosen on other seeds (%s)", strings.Join(names, ", ")), rule,
			func(on []string, by ttaMeasure) Pooled {
				q, _ := p.AgainstChosen("auto", others, on, false, by)
				return q
			})
		row("best baseline of each scenario, chosen on other seeds", rule,
			func(on []string, by ttaMeasure) Pooled {
				q, _ := p.AgainstChosen("auto", others, on, true, by)
				return q
			})
		row(fmt.Sprintf("the least of %d in each scenario, by the same runs: chance alone makes it sooner than each", len(others)), rule,
			func(on []string, by ttaMeasure) Pooled { return p.AgainstLeast("auto", others, on, by) })
	}
	if !slices.Contains(p.Methods, "ssgd") {
		return
	}
	r.printf("\n| scenario | bound | auto by SSGD, levels | all samples | accuracy | share of the bound |")
	others := slices.Concat(p.baselines(false), p.baselines(true))
	for _, m := range others {
		r.printf(" by %s |", m)
	}
	r.printf(" accuracy at the end, auto less SSGD, points | changes |\n|---|---:|---:|---:|---:|---:|%s---:|---:|\n", strings.Repeat("---:|", len(others)))
	for _, s := range p.Scenarios {
		on := []string{s}
		levels, samples, acc := p.Against("auto", "ssgd", on, byLevels), p.Against("auto", "ssgd", on, bySamples), p.Against("auto", "ssgd", on, byAccuracy)
		share := "–"
		if x, low, high := p.Share(s); s != calm && !math.IsNaN(x) {
			share = fmt.Sprintf("%.2f", x)
			if !math.IsNaN(low) {
				share = fmt.Sprintf("%.2f [%.2f, %.2f]", x, low, high)
			}
			if p.exchangesLess(s) {
				share += ", fewer exchanges"
			}
		}
		r.printf("| %s | %.2f | %s | %s | %s | %s |", s, p.Bounds[s], levels.text(levels.Low, levels.High), samples.text(samples.Low, samples.High), acc.text(acc.Low, acc.High), share)
		for _, m := range others {
			q := p.Against("auto", m, on, byLevels)
			r.printf(" %s |", q.text(q.Low, q.High))
		}
		var points []float64
		changes := 0.0
		for _, seed := range p.seeds {
			a, ok := p.runs[runKey{"auto", s, seed}]
			b, there := p.runs[runKey{"ssgd", s, seed}]
			if ok && there {
				points, changes = append(points, 100*(a.Accuracy-b.Accuracy)), changes+float64(a.Switches)
			}
		}
		mean, half := interval(points)
		text := fmt.Sprintf("%+.2f", mean)
		if !math.IsNaN(half) {
			text += fmt.Sprintf(" ± %.2f", half)
		}
		r.printf(" %s | %.1f |\n", text, changes/float64(max(1, len(points))))
	}
}

// optimizers are those that a method's runs have.
func (p *TTAPairs) optimizers(method string) string {
	var names []string
	for k, r := range p.runs {
		if k.method == method && !slices.Contains(names, r.Optimizer) {
			names = append(names, r.Optimizer)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
