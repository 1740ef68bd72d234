package originals

import (
	"cmp"
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// MuriTime has the fields of a job in a trace of Muri besides its Duration.
type MuriTime struct {
	Iteration float64 // ms
	Duration  float64 // s
}

// MuriTimes reads a trace of Muri, as detected by workload.MuriTrace. The program orders jobs that never had GPUs by
// the duration in the trace, which differs from iterations × iteration_time in the last digits.
func MuriTimes(r io.Reader) (map[string]MuriTime, error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	column := map[string]int{}
	for i, h := range rows[0] {
		column[strings.TrimPrefix(strings.TrimSpace(h), "\ufeff")] = i
	}
	out := map[string]MuriTime{}
	for _, row := range rows[1:] {
		number := func(name string) float64 {
			i, there := column[name]
			if !there {
				return math.NaN()
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(row[i]), 64)
			if err != nil {
				return math.NaN()
			}
			return v
		}
		t := MuriTime{number("iteration_time"), number("duration") / 1000}
		if math.IsNaN(t.Duration) {
			t.Duration = float64(number("iterations")*t.Iteration) / 1000
		}
		out[strings.TrimSpace(row[column["job_id"]])] = t
	}
	return out, nil
}

// packing is how many jobs share GPUs at most: one for each resource.
const packing = 4

// alone is the ratio of a job's iteration time to that in the trace.
var alone = 1.015

// sharing is how many times longer than their period an iteration of one to four jobs takes. It is divided here, not by
// the compiler: that divides exactly, and rounds otherwise.
var sharing = [packing]float64{alone, 1.33 / alone, 1.5 / alone, 1.37 / alone}

// staged is a job under Muri's policies.
type staged struct {
	out       *sched.Outcome
	gpus      int
	c, g, n   float64 // s of an iteration on the processor, the GPU and the network
	iteration float64 // s of an iteration alone
	work      float64 // s, from the trace
	left      float64 // iterations

	key      float64 // by which it is sorted
	executed float64 // s with GPUs
	runs     bool
	takes    float64 // s of an iteration with those it shares GPUs with
	over     float64 // s after an event in which it makes no progress
	end      float64
	kind     int     // of its stages
	waiting  float64 // since when it has no GPUs
}

// crew are jobs that take turns on the same GPUs.
type crew struct {
	jobs  []*staged
	takes float64 // s of an iteration of all
	key   float64
}

func (c *crew) gpus() int { return c.jobs[0].gpus }

// crew is jobs as a crew.
func (m *muri) crew(jobs ...*staged) *crew {
	return &crew{jobs: jobs, takes: m.takes(jobs)}
}

// takes is what an iteration of all takes, s.
func (m *muri) takes(jobs []*staged) float64 {
	if len(jobs) == 1 {
		return jobs[0].iteration
	}
	var kinds [packing]int // of jobs with the same stages
	for i, j := range jobs {
		kinds[i] = j.kind
	}
	slices.Sort(kinds[:len(jobs)])
	p, known := m.periods[kinds]
	if !known {
		p = period(jobs)
		m.periods[kinds] = p
	}
	return float64(p * sharing[len(jobs)-1])
}

// weight is the share of the time in which the resources are used by jobs together. Sums go from the first job to the
// last: in another order the last bit may differ, which decides between matchings.
func (m *muri) weight(jobs []*staged) float64 {
	sum := 0.
	for _, j := range jobs {
		sum += j.c + j.g + j.n
	}
	return sum / (m.takes(jobs) * packing)
}

// period is the least over all orders of jobs of what an iteration of all takes once it has settled, s.
func period(jobs []*staged) float64 {
	least := math.Inf(1)
	order := make([]*staged, packing) // nil: no job
	var place func(i int)
	place = func(i int) {
		if i == len(jobs) {
			least = min(least, settled(order))
			return
		}
		for k := range len(jobs) {
			if order[k] == nil {
				order[k] = jobs[i]
				place(i + 1)
				order[k] = nil
			}
		}
	}
	place(0)
	if len(jobs) == 2 { // they may also stand opposite each other
		a, b := jobs[0], jobs[1]
		least = min(least, max(a.c, b.g+b.n)+max(b.c, a.g+a.n))
	}
	return least
}

// settled is what four steps of jobs in an order take: once two such times in a row are within a thousandth, or the
// last of eight steps.
func settled(order []*staged) float64 {
	const steps = 8
	var f [steps + 1]float64
	for i := range steps {
		if j := order[(i+1)%packing]; j != nil {
			f[i+1] = max(f[i+1], f[i]+j.n)
		}
		if j := order[(i+2)%packing]; j != nil {
			f[i+1] = max(f[i+1], f[i]+j.g)
		}
		if j := order[(i+3)%packing]; j != nil && i > 0 {
			f[i+1] = max(f[i+1], f[i-1]+j.c)
		}
		if i < packing {
			continue
		}
		if is, was := f[i+1]-f[i-3], f[i]-f[i-4]; math.Abs(is-was) <= 1e-3*max(is, was) {
			return is
		}
	}
	return f[steps] - f[steps-packing]
}

// muri is a cluster under muri-s or muri-l.
type muri struct {
	now, check float64 // check is the time of the event before
	gpus       int
	long       bool // muri-l
	runnable   []*staged
	kinds      map[[3]float64]int       // numbers of stages, from 1
	periods    map[[packing]int]float64 // by kinds of jobs, in order
}

// run simulates jobs, which are in order of submission.
func (m *muri) run(due []*staged, progress func(ended, jobs int)) {
	for _, j := range due {
		stages := [3]float64{j.c, j.g, j.n}
		if m.kinds[stages] == 0 {
			m.kinds[stages] = len(m.kinds) + 1
		}
		j.kind = m.kinds[stages]
	}
	jobs, over := len(due), 0
	for events := 0; len(due)+len(m.runnable) > 0; events++ {
		if progress != nil && events%64 == 0 {
			progress(over, jobs)
		}
		comes, ends := math.Inf(1), math.Inf(1)
		if len(due) > 0 {
			comes = due[0].out.Submit
		}
		for _, j := range m.runnable {
			if j.runs {
				ends = min(ends, j.end)
			}
		}
		if math.IsInf(min(comes, ends), 1) {
			return
		}
		m.now = min(comes, ends)
		both := max(comes, ends) < math.Inf(1) && math.Abs(comes-ends) <= max(1e-4, 1e-9*max(comes, ends))
		if both {
			m.now = comes
		}
		if both || ends < comes {
			m.runnable = slices.DeleteFunc(m.runnable, func(j *staged) bool {
				if !j.runs || j.end != ends {
					return false
				}
				over++
				j.out.End = m.now
				steps(j.out, m.now, 0)
				return true
			})
		}
		if both || comes < ends {
			for at := comes; len(due) > 0 && due[0].out.Submit == at; due = due[1:] {
				j := due[0]
				if j.key = float64(j.work * float64(j.gpus)); m.long {
					j.key = 0
				}
				m.runnable = append(m.runnable, j)
			}
		}
		m.event()
	}
}

// event has jobs run until now, and then decides which jobs share which GPUs.
func (m *muri) event() {
	for _, j := range m.runnable {
		if !j.runs {
			continue
		}
		passed := m.now - m.check
		j.left -= max(passed-j.over, 0) / j.takes
		j.executed += passed
		if j.key = float64(float64(j.left*j.iteration) * float64(j.gpus)); m.long {
			j.key = float64(j.executed * float64(j.gpus))
		}
	}
	m.check = m.now
	slices.SortStableFunc(m.runnable, func(a, b *staged) int { return cmp.Compare(a.key, b.key) })
	m.give(m.crews(m.pack(m.choose())))
	slices.SortStableFunc(m.runnable, func(a, b *staged) int { return b.gpus - a.gpus })
	var ends []float64
	for _, j := range m.runnable {
		if !j.runs {
			continue
		}
		j.end = m.now + float64(j.left*j.takes) // without over
		if i := slices.IndexFunc(ends, func(t float64) bool { return math.Abs(t-j.end) <= 1e-9*max(t, j.end) }); i >= 0 {
			j.end = ends[i]
		} else {
			ends = append(ends, j.end)
		}
	}
}

// choose returns the jobs that can have GPUs if all share them, by numbers of GPUs.
func (m *muri) choose() (classes [][]*crew) {
	free := m.gpus
	at := map[int]int{} // place of a number of GPUs in classes
	for _, j := range m.runnable {
		if _, there := at[j.gpus]; !there {
			at[j.gpus] = len(classes)
			classes = append(classes, nil)
		}
		class := &classes[at[j.gpus]]
		if len(*class)%packing == 0 {
			if j.gpus > free {
				continue
			}
			free -= j.gpus
		}
		*class = append(*class, m.crew(j))
	}
	return classes
}

// pack has jobs of as many GPUs share these until all fit, or four times.
func (m *muri) pack(classes [][]*crew) [][]*crew {
	demand := 0
	for _, class := range classes {
		for _, c := range class {
			demand += c.gpus()
		}
	}
	for range 4 {
		for i, class := range classes {
			mate := match(m.table(class))
			var after []*crew
			for u, v := range mate {
				switch {
				case v < 0:
					after = append(after, class[u])
				case v > u:
				case demand > m.gpus:
					demand -= class[u].gpus()
					after = append(after, m.crew(slices.Concat(class[v].jobs, class[u].jobs)...))
				default:
					after = append(after, class[v], class[u])
				}
			}
			classes[i] = after
		}
		if demand <= m.gpus {
			break
		}
	}
	return classes
}

// table is how much it is worth that crews become one, in each direction. 0: they may not.
func (m *muri) table(class []*crew) [][]float64 {
	table := make([][]float64, len(class))
	var jobs []*staged
	for u, a := range class {
		table[u] = make([]float64, len(class))
		for v, b := range class {
			if u != v && len(a.jobs)+len(b.jobs) <= packing {
				jobs = append(append(jobs[:0], a.jobs...), b.jobs...)
				table[u][v] = m.weight(jobs)
			}
		}
	}
	return table
}

// crews are all crews in the order in which they get GPUs. A crew is split if its jobs would be faster one after the
// other.
func (m *muri) crews(classes [][]*crew) (all []*crew) {
	for _, class := range classes {
		for _, c := range class {
			sum := 0.
			for _, j := range c.jobs {
				sum += j.iteration
			}
			if c.takes/sum > 1 {
				for _, j := range c.jobs {
					one := m.crew(j)
					one.key = j.key
					all = append(all, one)
				}
				continue
			}
			c.key = math.Inf(1)
			for _, j := range c.jobs {
				c.key = min(c.key, j.key)
			}
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b *crew) int { return cmp.Compare(a.key, b.key) })
	return all
}

// give gives GPUs to the crews that fit, in order.
func (m *muri) give(crews []*crew) {
	free := m.gpus
	runs := map[*staged]*crew{}
	for _, c := range crews {
		if c.gpus() > free {
			continue
		}
		free -= c.gpus()
		for _, j := range c.jobs {
			runs[j] = c
		}
	}
	for _, j := range m.runnable {
		c, ran := runs[j], j.runs
		j.runs = c != nil
		switch {
		case c == nil && ran:
			j.out.Preemptions++
			j.waiting = m.now
			steps(j.out, m.now, 0)
		case c != nil:
			if !ran {
				j.out.Queue += m.now - j.waiting
			}
			if math.IsNaN(j.out.Start) {
				j.out.Start = m.now
			}
			steps(j.out, m.now, float64(j.gpus)/float64(len(c.jobs)))
			j.takes, j.over = c.takes, 0
			for _, o := range c.jobs {
				j.over += o.out.Restart
			}
		}
	}
}
