package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// measure is a number that a sweep takes of each host, and how two of them are compared.
type measure struct {
	key    string // in JSON, with its unit at the end
	name   string // for people
	lower  bool   // a smaller number is better
	factor float64
	least  float64 // the smallest difference that counts, in the number's unit
	show   func(float64) string
	fix    string
}

// past is by how much more than its factor a number must be worse than at the last time: hours lie between the two,
// and another load of the machine below a virtual one.
const past = 1.25

// The thresholds, apart from outlierDeviations: how many times worse than those of the others a number must be.
// Computation and memory repeat to within some percent, so that a third less is a fault; disks and links that are
// shared vary by half without one.
var measures = []measure{
	{key: "compute_flops", name: "compute", factor: 1.33, show: flops, fix: "end other processes there (top), and look at the quota of its control group and at its clock"},
	{key: "core_flops", name: "slowest core", factor: 1.33, show: flops, fix: "look at its clock and temperature (turbostat, ipmitool sdr), and at the processors that it shares with other hosts of the machine"},
	{key: "memory_Bps", name: "memory", factor: 1.5, show: perSecond, fix: "look for a missing or slow memory module (dmidecode -t memory), and at NUMA settings"},
	{key: "write_Bps", name: "disk write", factor: 2.5, show: perSecond, fix: "look at the disk (iostat -x, smartctl -a), at its limits (io.max, blkio.throttle) and at how full it is"},
	{key: "read_Bps", name: "disk read", factor: 2.5, show: perSecond, fix: "look at the disk (iostat -x, smartctl -a) and at its limits (io.max, blkio.throttle)"},
	{key: "files_ps", name: "small reads", factor: 2.5, show: files, fix: "look at the disk or file server that has --dir (iostat -x, nfsstat)"},
	{key: "out_Bps", name: "link out", factor: 2, show: perSecond, fix: "look at the link's speed (ethtool), its errors (ip -s link), limits (tc qdisc show) and other traffic"},
	{key: "in_Bps", name: "link in", factor: 2, show: perSecond, fix: "look at the link's speed (ethtool), its errors (ip -s link), its switch port and other traffic"},
	{key: "rtt_s", name: "round trip", lower: true, factor: 3, least: 100e-6, show: seconds, fix: "look at its cable and switch port, at interrupt moderation (ethtool -c) and at power saving of its processors"},
}

func measureOf(key string) *measure {
	for i := range measures {
		if measures[i].key == key {
			return &measures[i]
		}
	}
	return nil
}

func flops(x float64) string     { return scaled(x, "FLOP/s") }
func perSecond(x float64) string { return scaled(x, "B/s") }
func files(x float64) string     { return digits(x) + "/s" }

// scaled writes three digits of a number with a prefix of its unit.
func scaled(x float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	for x >= 999.5 && len(prefixes) > 1 {
		x, prefixes = x/1000, prefixes[1:]
	}
	return digits(x) + " " + prefixes[0] + unit
}

// digits writes three digits, and all of those before the point.
func digits(x float64) string {
	return strconv.FormatFloat(x, 'f', max(0, min(2, 2-int(math.Floor(math.Log10(max(x, 1e-9)))))), 64)
}

// times writes how many times worse a number is.
func times(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1fx", x)
	}
	return fmt.Sprintf("%.0fx", x)
}
func seconds(x float64) string { return round(time.Duration(x * 1e9)).String() }

// outlierDeviations is by how many standard deviations of the others, estimated by their median absolute deviation, a
// host must differ from their median. Below that it is one of a set of unequal hosts, and no outlier.
const outlierDeviations = 5

// leastDeviation is the smallest standard deviation, as a share of the number, that is assumed of the others: three
// hosts may agree by chance.
const leastDeviation = 0.02

// outlier is a number of a host that is worse than those of others.
type outlier struct {
	host   int
	value  float64
	others float64 // their median
	worse  float64 // how many times worse
}

// worse is the logarithm of how many times worse a is than b.
func (m *measure) worse(a, b float64) float64 {
	if m.lower {
		a, b = b, a
	}
	return math.Log(b / a)
}

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	xs = slices.Sorted(slices.Values(xs))
	if n := len(xs); n%2 == 0 {
		return (xs[n/2-1] + xs[n/2]) / 2
	}
	return xs[len(xs)/2]
}

// deviation estimates the standard deviation by the median absolute deviation, which is 0.6745 of it for a normal
// distribution.
func deviation(xs []float64) float64 {
	mid := median(xs)
	away := make([]float64, len(xs))
	for i, x := range xs {
		away[i] = math.Abs(x - mid)
	}
	return median(away) / 0.6745
}

// outliers compares hosts. rounds has the number of each host in each round, NaN where it has none; hosts of one
// class are comparable. Numbers of one round were measured one after the other, so that they have the load of the
// machine in common: each is divided by the median of its round first. A host is an outlier if the median of its
// quotients is worse than those of the others by the measure's factor, and by outlierDeviations; of two hosts, the
// factor alone decides.
func (m *measure) outliers(rounds [][]float64, class []string) (found []outlier) {
	of := map[string][]int{}
	for h, c := range class {
		of[c] = append(of[c], h)
	}
	for _, hosts := range of {
		found = append(found, m.outliersAmong(rounds, hosts)...)
	}
	slices.SortFunc(found, func(a, b outlier) int { return cmp.Compare(a.host, b.host) })
	return found
}

func (m *measure) outliersAmong(rounds [][]float64, hosts []int) (found []outlier) {
	relative, values := map[int][]float64{}, map[int][]float64{}
	for _, round := range rounds {
		var have []float64
		for _, h := range hosts {
			if usable(round[h]) {
				have = append(have, round[h])
			}
		}
		if len(have) < 2 {
			continue
		}
		mid := median(have)
		for _, h := range hosts {
			if usable(round[h]) {
				relative[h] = append(relative[h], m.worse(round[h], mid))
				values[h] = append(values[h], round[h])
			}
		}
	}
	for _, h := range hosts {
		if len(relative[h]) == 0 {
			continue
		}
		var others, theirs []float64
		for _, o := range hosts {
			if o != h && len(relative[o]) > 0 {
				others, theirs = append(others, median(relative[o])), append(theirs, median(values[o]))
			}
		}
		if len(others) == 0 {
			continue
		}
		need := math.Log(m.factor)
		if len(others) > 1 {
			need = max(need, outlierDeviations*max(leastDeviation, deviation(others)))
		}
		o := outlier{host: h, value: median(values[h]), others: median(theirs)}
		by := median(relative[h]) - median(others)
		o.worse = math.Exp(by)
		if by >= need && math.Abs(o.value-o.others) >= m.least {
			found = append(found, o)
		}
	}
	return found
}

func usable(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

// sinceLast compares numbers with those of the last time, NaN where they are missing. What has changed for most of
// three hosts and more is no fault of one, and is returned as common, how many times worse.
func (m *measure) sinceLast(now, last []float64) (found []outlier, common float64) {
	var by []float64
	for h := range now {
		if usable(now[h]) && usable(last[h]) {
			by = append(by, m.worse(now[h], last[h]))
		}
	}
	mid := 0.0
	if len(by) > 2 {
		mid = median(by)
	}
	for h := range now {
		if !usable(now[h]) || !usable(last[h]) {
			continue
		}
		if x := m.worse(now[h], last[h]) - max(0, mid); x >= math.Log(m.factor*past) && math.Abs(now[h]-last[h]) >= m.least {
			found = append(found, outlier{h, now[h], last[h], math.Exp(m.worse(now[h], last[h]))})
		}
	}
	return found, math.Exp(mid)
}

// link has the numbers of one pair of hosts. Rates are in bytes per second.
type link struct {
	out, in float64 // from the first to the second, and back
	rtt     float64 // seconds
}

// linkRates are for each host the best rate out, the best rate in and the shortest round trip over its pairs: a
// host with a bad link is slow with all others, and a host without one is not.
func linkRates(hosts int, links map[[2]int]link) (out, in, rtt []float64) {
	for range hosts {
		out, in, rtt = append(out, math.NaN()), append(in, math.NaN()), append(rtt, math.NaN())
	}
	best := func(x *float64, y float64, better func(...float64) float64) {
		if usable(y) {
			if *x = better(*x, y); !usable(*x) {
				*x = y
			}
		}
	}
	largest := func(x ...float64) float64 { return max(x[0], x[1]) }
	smallest := func(x ...float64) float64 { return min(x[0], x[1]) }
	for pair, l := range links {
		a, b := pair[0], pair[1]
		best(&out[a], l.out, largest)
		best(&in[b], l.out, largest)
		best(&out[b], l.in, largest)
		best(&in[a], l.in, largest)
		best(&rtt[a], l.rtt, smallest)
		best(&rtt[b], l.rtt, smallest)
	}
	return out, in, rtt
}

// pairFactor is how many times slower than the median of all directions one of them must be, although both of its
// hosts are as fast as the others with other hosts; and, with two hosts, than the other direction.
const pairFactor = 4

// path is one direction of a pair.
type path struct {
	from, to      int
	value, others float64
}

// slowPaths are the directions of pairs that are slow by themselves. With two hosts each is compared with the other.
func slowPaths(links map[[2]int]link, ill map[int]bool) (found []path) {
	var all []path
	for pair, l := range links {
		for _, p := range []path{{from: pair[0], to: pair[1], value: l.out}, {from: pair[1], to: pair[0], value: l.in}} {
			if usable(p.value) {
				all = append(all, p)
			}
		}
	}
	for i, p := range all {
		var others []float64
		for j, o := range all {
			if i != j {
				others = append(others, o.value)
			}
		}
		if p.others = median(others); len(others) > 0 && p.others >= pairFactor*p.value && !ill[p.from] && !ill[p.to] {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b path) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	return found
}

// tournament arranges all pairs of n hosts in rounds. In a round a host is in one pair at most: n-1 rounds,
// or n if n is odd (the circle method). With fewer rounds than that it takes those at distances that double (1, 2,
// 4, …), so that each host meets about as many others as there are rounds.
func tournament(n, most int) (rounds [][][2]int) {
	m := n + n%2 // a host that does not exist makes their number even
	for r := range m - 1 {
		var pairs [][2]int
		for i := range m / 2 {
			a, b := (r+i)%(m-1), (r-i+m-1)%(m-1)
			if i == 0 {
				b = m - 1
			}
			if a < n && b < n {
				pairs = append(pairs, [2]int{min(a, b), max(a, b)})
			}
		}
		rounds = append(rounds, pairs)
	}
	if n < 2 {
		return nil
	}
	if len(rounds) <= most {
		return rounds
	}
	var some [][][2]int
	for d := 1; d < len(rounds) && len(some) < most; d *= 2 {
		some = append(some, rounds[d])
	}
	for r := 0; len(some) < most; r++ {
		if r&(r-1) != 0 || r == 0 {
			some = append(some, rounds[r])
		}
	}
	return some
}

// inTurn splits steps that would run at once, so that none has two that share a key: hosts of one kernel would
// disturb each other's measurements. keys are those of an item.
func inTurn[T any](items []T, keys func(T) []string) (turns [][]T) {
	var taken []map[string]bool
next:
	for _, it := range items {
		for t := range turns {
			if !slices.ContainsFunc(keys(it), func(k string) bool { return taken[t][k] }) {
				turns[t] = append(turns[t], it)
				for _, k := range keys(it) {
					taken[t][k] = true
				}
				continue next
			}
		}
		turns = append(turns, []T{it})
		taken = append(taken, map[string]bool{})
		for _, k := range keys(it) {
			taken[len(taken)-1][k] = true
		}
	}
	return turns
}

// clockOf is what a host's clock differs from the middle of all.
type clockOf struct{ offset, doubt, drift, driftDoubt float64 } // seconds; drift in seconds per second

// judgeClocks finds clocks that are wrong. NaN: not measured.
func judgeClocks(clocks []clockOf, names []string) (found []Finding) {
	var offsets, drifts []float64
	for _, c := range clocks {
		if !math.IsNaN(c.offset) {
			offsets = append(offsets, c.offset)
		}
		if !math.IsNaN(c.drift) {
			drifts = append(drifts, c.drift)
		}
	}
	if len(offsets) < 2 {
		return nil
	}
	mid, drift := median(offsets), median(drifts)
	for h, c := range clocks {
		by := math.Abs(c.offset - mid)
		f := Finding{Host: names[h], Check: "clock", Status: Warn, Value: c.offset - mid, Unit: "s", Fix: "synchronise it: systemctl enable --now chrony (or systemd-timesyncd)"}
		f.Detail = fmt.Sprintf("%s from the middle of all hosts, give or take %s", signed(c.offset-mid), seconds(c.doubt))
		switch {
		case by-c.doubt > 5*60:
			f.Status = Fail
			f.Detail += ": certificates fail with that"
		case by-c.doubt > 0.1:
			f.Detail += ": logs of the hosts cannot be compared"
		case math.Abs(c.drift-drift)-c.driftDoubt > maxDrift:
			f.Value, f.Unit = (c.drift-drift)*1e6, "ppm"
			f.Detail = fmt.Sprintf("it drifts by %.0f ppm from the others, give or take %.0f", (c.drift-drift)*1e6, c.driftDoubt*1e6)
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// maxDrift is the largest frequency error that NTP corrects (RFC 5905, section 11.3: 500 ppm).
const maxDrift = 500e-6

func signed(s float64) string {
	if s < 0 {
		return seconds(-s) + " behind"
	}
	return seconds(s) + " ahead"
}

// names joins names for people.
func list(names []string) string { return strings.Join(names, ", ") }
