package straggler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"star"
)

// A block of iterations is one observation of the job's pace. It ends when three quarters of the workers have made
// fullBlock iterations and leastBlock has passed, or after longBlock when they have made halfBlock.
const (
	fullBlock  = 8
	halfBlock  = 4
	leastBlock = time.Second
	longBlock  = 10 * time.Second
)

const (
	// learned is the number of blocks that make a past: before, nothing is judged.
	learned = 10
	// mostBlocks is how many blocks of a past are kept. When there are more, every second one goes, so that they are
	// spread over all of it.
	mostBlocks = 64
	// mostEras is how many pasts are kept: of plans, numbers of workers and batches that the job may return to.
	mostEras = 8
	// looked is how many workers are looked at: of more, every second, third, …
	looked = 64
	// same is the ratio of the samples of two steps that are compared.
	same = 1.2
	// lastingPace is how long a slowdown of a job lasts at least: the host that compiles a program for some seconds is
	// nothing to act on.
	lastingPace = 10 * time.Second
	// slowed is p₁: how often a block of a job that has become slow is beyond its past.
	slowed = 0.8
)

// Slowdown is a time in which all workers together take longer for their steps than in the job's own past. A Detector
// finds no slow worker then, because each is like the others.
type Slowdown struct {
	Since    time.Duration // by the clock of Observe
	Until    time.Duration // of one that is over: when the job was as fast as before again
	Workers  int           // that were looked at and take longer
	Hosts    []string      // of these workers, sorted
	Factor   float64       // time of a step without waiting for others, over that of the past
	Part     string        // that has grown most: load, compute, push or pull
	Parts    []Grown       // all of them
	Cause    Cause         // as far as the telemetry tells; Other in Evidence is the past
	Evidence []Evidence    // the strongest first
}

// Grown is a part of a step: seconds now, and in the past, of the middle worker. In a collective exchange push is the
// exchange as the last worker to arrive sees it.
type Grown struct {
	Part        string
	Now, Before float64
}

// String is the slowdown in one line.
func (s Slowdown) String() string {
	var why []string
	for _, e := range s.Evidence {
		why = append(why, e.Text)
	}
	text := strings.Join(why, ", ")
	if s.Cause == Unknown {
		text = "unknown: " + text
	}
	return fmt.Sprintf("the job is %.1fx slow since %s%s: %s", s.Factor, brief(s.Since), s.Where(), text)
}

// Where names the workers' number and hosts: ", 4 workers together on node-a, node-b".
func (s Slowdown) Where() string {
	text := fmt.Sprintf(", %d workers together", s.Workers)
	if s.Workers == 1 {
		text = ", 1 worker"
	}
	const most = 4
	switch n := len(s.Hosts); {
	case n == 0:
	case n <= most:
		text += " on " + strings.Join(s.Hosts, ", ")
	default:
		text += fmt.Sprintf(" on %s and %d hosts more", strings.Join(s.Hosts[:most], ", "), n-most)
	}
	return text
}

// brief is a time of a run for people.
func brief(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// PaceEvent is something that a Pace has noticed: Slow, Changed (another part or another cause) or Recovered.
type PaceEvent struct {
	Kind Kind
	Slowdown
}

// String is the event in one line.
func (e PaceEvent) String() string {
	if e.Kind == Recovered {
		return fmt.Sprintf("the job is as fast as before again since %s (%.1fx slow since %s: %v)", brief(e.Until), e.Factor, brief(e.Since), e.Cause)
	}
	if e.Kind == Changed {
		return strings.Replace(e.Slowdown.String(), "the job is ", "the job is still ", 1)
	}
	return e.Slowdown.String()
}

// Pace compares a job with its own past. It is a pure state machine like [Detector], which compares workers with each
// other.
//
// The time of a step is a worker's own time, with a collective exchange of all added. A block is the mean over at least
// halfBlock iterations of each worker, without the longest one: an evaluation or a checkpoint between two steps is in
// one iteration. The past is the better half of all blocks with the same plan, number of workers and batch, from the
// beginning on and without slowdowns: a slow drift does not become normal, and a change of these things starts another
// past, or continues one. A block is beyond the past if nine of ten workers, or all of fewer than ten, are.
//
// Steps beside something else that the job does, such as writing a checkpoint, are left out by the caller.
//
// Page's cumulative sum of such blocks decides, as in Detector: p₀ is how often blocks of the past are beyond it.
type Pace struct {
	cfg    Config
	least  float64 // s
	stride int     // every worker of that distance is looked at
	hosts  []string
	crew   []crew // workers that are looked at
	live   []bool // by worker

	plan   string
	began  time.Duration // of the block; below 0: none has begun
	staff  int           // live workers when it began
	rounds [2]gathered   // of a collective exchange, with a shortest push that is not known yet
	shared tally         // shortest pushes of whole exchanges
	prof   profile       // of the block

	eras []*era
	era  *era // nil: before the first block

	sum    evidence
	from   time.Duration // when the sum began to grow
	recent []moment      // blocks since then; while the job is slow, those of the last lastingPace
	slow   bool
	now    Slowdown
	factor tally          // of the slowdown
	grown  [parts]float64 // in the slowdown, when an era ended
	turn   int            // blocks in a row that speak for another part or cause
}

// crew is the sum over one worker's iterations in the block.
type crew struct {
	seen    int
	part    [parts]tally // load and compute for each sample
	samples tally
}

// tally sums up numbers, and knows the largest.
type tally struct {
	n         int
	sum, most float64
}

func (t *tally) add(v float64) {
	t.n++
	t.sum += v
	t.most = max(t.most, v)
}

func (t *tally) mean() float64 { return t.sum / float64(max(t.n, 1)) }

// trimmed is the mean without the largest one.
func (t *tally) trimmed() float64 {
	if t.n < 2 {
		return t.sum
	}
	return (t.sum - t.most) / float64(t.n-1)
}

// gathered is a collective exchange that some workers have reported.
type gathered struct {
	basis    int64
	n        int
	shortest float64
}

// moment is a block.
type moment struct {
	at     time.Duration
	part   [][parts]float64 // by worker that is looked at; NaN: it is not in the block
	shared float64          // of a collective exchange
	level  float64          // of the middle worker
	growth float64          // of the middle worker, over the past
	excess float64          // the same as a difference
	beyond bool             // the past
	prof   profile
}

// era is what steps took in a stretch, or several stretches, with one plan, number of workers and batch.
type era struct {
	plan    string
	staff   int
	samples float64   // of a step of all workers that are looked at
	size    []float64 // of a step of each

	blocks []moment
	every  int // of that many blocks one is kept
	skip   int
	// carried is not nil if the job was slow when the era began, and has not recovered since.
	carried *carried

	base   [][parts]float64 // by worker: the better half; NaN: unknown
	shared float64
	prof   profile
	beyond [2]rate // after a block that is not beyond, and after one that is
	was    int     // whether the last one that was learned was
}

// carried is what an era that begins while the job is slow takes over from the one before it. Its own blocks do not
// show what steps take without the slowdown, or from which of them on it is over.
type carried struct {
	grown  [parts]float64   // by how much each part had grown: at least 1
	base   [][parts]float64 // by worker: the past, with load and compute for each sample; NaN: unknown
	shared float64
}

// without is a part of a block as it would be without the slowdown: at most what it took in the past, and no less than
// a slowdown that goes on makes of it.
func (c *carried) without(k part, now, past float64) float64 {
	least := now / c.grown[k]
	if !(past >= 0) {
		return least
	}
	return max(least, min(now, past))
}

// NewPace makes a Pace. Of Config it takes Workers, Ratio, Least, Certain, Warmup and Collective.
func NewPace(c Config) (*Pace, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Pace{cfg: c, least: max(c.Least, 0).Seconds(), stride: (c.Workers + looked - 1) / looked, hosts: make([]string, c.Workers), live: make([]bool, c.Workers), began: -1}
	p.crew = make([]crew, (c.Workers+p.stride-1)/p.stride)
	return p, nil
}

// Plan sets the plan, in words of the caller: steps of two plans are not compared.
func (p *Pace) Plan(plan string) {
	if plan != p.plan {
		p.plan = plan
		p.discard()
	}
}

// Host sets the name of a worker's host, for Slowdown.Hosts.
func (p *Pace) Host(w star.Worker, host string) {
	if int(w) >= 0 && int(w) < len(p.hosts) {
		p.hosts[w] = host
	}
}

// Leave says that a worker is gone.
func (p *Pace) Leave(w star.Worker) {
	if int(w) >= 0 && int(w) < len(p.live) && p.live[w] {
		p.live[w] = false
		p.discard()
	}
}

// Slow is the present slowdown; false: the job is as fast as in its past, as far as is known.
func (p *Pace) Slow() (Slowdown, bool) { return p.now, p.slow }

// discard forgets the block that has begun.
func (p *Pace) discard() {
	p.began = -1
	for i := range p.crew {
		p.crew[i] = crew{seen: p.crew[i].seen}
	}
	p.rounds, p.shared, p.prof = [2]gathered{}, tally{}, profile{}
}

// Observe takes a record that came at a time of the job, which does not go backwards.
func (p *Pace) Observe(at time.Duration, r *star.Record) []PaceEvent {
	w := int(r.Worker)
	if w < 0 || w >= len(p.live) || impossible(r, nil) != "" {
		return nil
	}
	if !p.live[w] {
		p.live[w] = true
		p.discard()
	}
	if p.cfg.Collective {
		p.exchanged(r)
	}
	if w%p.stride != 0 {
		return nil
	}
	c := &p.crew[w/p.stride]
	if c.seen++; c.seen <= p.cfg.Warmup {
		return nil
	}
	if p.began < 0 {
		p.began, p.staff = at, p.present(1)
	}
	s := sample{rec: *r, n: 1}
	for { // like the Detector, which reports them
		if _, _, found := strange(&s.rec.Telemetry); !found {
			break
		}
	}
	s.part = [parts]float64{load: r.Load.Seconds(), compute: r.Compute.Seconds()}
	size := float64(max(r.Samples, 1))
	c.samples.add(size)
	c.part[load].add(s.part[load] / size)
	c.part[compute].add(s.part[compute] / size)
	if !p.cfg.Collective {
		s.part[out], s.part[in] = (r.Push + r.Transit).Seconds(), r.Pull.Seconds()
		c.part[out].add(s.part[out])
		c.part[in].add(s.part[in])
	}
	for _, v := range s.part {
		s.own += v
	}
	p.prof.add(&s)
	if !p.whole(at) {
		return nil
	}
	return p.judge(at)
}

// exchanged takes the push of one worker in a collective exchange: the worker that came last did not wait for others.
func (p *Pace) exchanged(r *star.Record) {
	push := r.Push.Seconds()
	old := 0
	for i := range p.rounds {
		g := &p.rounds[i]
		if g.n > 0 && g.basis == r.Basis {
			g.n++
			g.shortest = min(g.shortest, push)
			return
		}
		if g.n == 0 || p.rounds[old].n > 0 && g.basis < p.rounds[old].basis {
			old = i
		}
	}
	g := &p.rounds[old]
	if g.n > 0 {
		if r.Basis < g.basis {
			return // a late report
		}
		p.shared.add(g.shortest)
	}
	*g = gathered{r.Basis, 1, push}
}

// present is the number of live workers at distance d.
func (p *Pace) present(d int) (n int) {
	for w := 0; w < len(p.live); w += d {
		if p.live[w] {
			n++
		}
	}
	return n
}

// whole reports whether the block is.
func (p *Pace) whole(at time.Duration) bool {
	took := at - p.began
	if took < leastBlock {
		return false
	}
	want, have := fullBlock, 0
	if took >= longBlock {
		want = halfBlock
	}
	for i := range p.crew {
		if p.crew[i].samples.n >= want {
			have++
		}
	}
	return 4*have >= 3*p.present(p.stride) && have > 0
}

// judge ends the block.
func (p *Pace) judge(at time.Duration) []PaceEvent {
	m := moment{at: at, part: make([][parts]float64, len(p.crew)), shared: p.shared.trimmed(), prof: p.prof}
	samples, size := 0.0, make([]float64, len(p.crew))
	for i := range p.crew {
		c := &p.crew[i]
		if c.samples.n < halfBlock {
			m.part[i] = missing
			continue
		}
		for k := range parts {
			m.part[i][k] = c.part[k].trimmed()
		}
		size[i] = c.samples.mean()
		samples += size[i]
	}
	began, staff := p.began, p.staff
	for i := range p.crew { // a worker that was not in it is in a later one
		if c := &p.crew[i]; c.samples.n >= halfBlock {
			*c = crew{seen: c.seen}
		}
	}
	p.began, p.shared, p.prof = -1, tally{}, profile{}
	if staff != p.present(1) {
		return nil
	}
	p.remember(staff, samples, size)
	h := p.era
	for i := range m.part {
		if h.size[i] == 0 {
			h.size[i] = size[i]
		}
		m.part[i][load] *= h.size[i]
		m.part[i][compute] *= h.size[i]
	}
	m.level = middleOf(m.part) + m.shared
	if len(h.blocks) < learned {
		before := h.learn(m)
		if !p.slow || h.carried == nil {
			return nil
		}
		p.measure(&m, before.part, before.shared)
		return p.recovers(m)
	}
	p.measure(&m, h.base, h.shared)
	if p.slow {
		return p.goesOn(m)
	}
	p0 := h.beyond[0].most(rate{1, 5})
	if n := len(p.recent); n > 0 && p.recent[n-1].beyond || n == 0 && h.was == 1 {
		p0 = max(h.beyond[1].or(rate{0.5, 5}), p0)
	}
	p1 := max(slowed, (1+p0)/2)
	if !m.beyond {
		p0, p1 = 1-p0, 1-p1
	}
	if p.sum.sum == 0 {
		p.from, p.recent = began, nil
	}
	p.sum.add(0, p0, p1, 1, p.cfg.Certain)
	p.recent = append(p.recent, m)
	if p.sum.sum == 0 {
		for i := range p.recent {
			h.learn(p.recent[i])
		}
		p.recent = nil
		return nil
	}
	growth, excess := p.lately()
	if p.sum.sum < p.cfg.Certain || at-p.from < lastingPace || growth < 1+p.cfg.Ratio || excess < p.least {
		if len(p.recent) > mostBlocks { // it varies that much
			h.learn(p.recent[0])
			p.recent = slices.Delete(p.recent, 0, 1)
		}
		return nil
	}
	p.onset()
	p.slow, p.factor, p.turn = true, tally{}, 0
	for i := range p.recent {
		p.factor.add(p.recent[i].growth)
	}
	p.now = p.slowdown()
	return []PaceEvent{{Slow, p.now}}
}

// onset drops the recent blocks before the likeliest beginning of what the last ones show: after it, blocks have grown
// by more than half as much as these, and before it by less.
func (p *Pace) onset() {
	last := 0.0
	for _, m := range p.recent[max(len(p.recent)-halfBlock, 0):] {
		last += (m.growth - 1) / float64(min(len(p.recent), halfBlock))
	}
	first, best, sum := len(p.recent)-1, math.Inf(-1), 0.0
	for i := len(p.recent) - 1; i >= 0; i-- {
		if sum += p.recent[i].growth - 1 - last/2; sum > best {
			first, best = i, sum
		}
	}
	if first > 0 {
		p.from = p.recent[first-1].at
	}
	p.recent = slices.Delete(p.recent, 0, first)
}

// missing is the parts of a worker that is not in a block.
var missing = [parts]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}

// remember makes the past with the plan, the number of workers and the samples of a block the present one.
func (p *Pace) remember(staff int, samples float64, size []float64) {
	fits := func(h *era) bool {
		return h.plan == p.plan && h.staff == staff && samples <= same*h.samples && h.samples <= same*samples
	}
	if p.era != nil && fits(p.era) {
		return
	}
	was := p.era
	i := slices.IndexFunc(p.eras, fits)
	if i < 0 {
		i = len(p.eras)
		p.eras = append(p.eras, &era{plan: p.plan, staff: staff, samples: samples, size: size, every: 1})
	}
	p.era = p.eras[i]
	p.eras = append(slices.Delete(p.eras, i, i+1), p.era) // the last is the newest
	if len(p.eras) > mostEras {
		p.eras = slices.Delete(p.eras, 0, 1)
	}
	if p.slow {
		if was.base != nil && len(p.recent) > 0 {
			p.grown = was.grown(p.recent)
		}
		if len(p.era.blocks) < learned {
			p.era.carried = was.passes(p.grown)
		}
	}
	p.turn = 0
	if p.sum, p.recent = (evidence{}), nil; p.slow {
		p.sum.sum = p.cfg.Certain
	}
}

// grown is by how much each part has grown in some blocks: 1 or more.
func (h *era) grown(blocks []moment) (f [parts]float64) {
	now, before := h.between(blocks)
	for k := range parts {
		if f[k] = 1; before[k] > 0 {
			f[k] = max(now[k]/before[k], 1)
		}
	}
	return f
}

// passes is what the era leaves to the next one when the job is slow, and each part has grown by so much.
func (h *era) passes(grown [parts]float64) *carried {
	if h.base == nil {
		return h.carried
	}
	c := &carried{grown, slices.Clone(h.base), h.shared}
	for i := range c.base {
		c.base[i][load] /= h.size[i]
		c.base[i][compute] /= h.size[i]
	}
	return c
}

// learn adds a block in which the job was not slow, and returns it. Of one in which it may be slow, it adds what the
// block would be otherwise.
func (h *era) learn(m moment) moment {
	if c := h.carried; c != nil && len(h.blocks) < learned {
		m.part = slices.Clone(m.part)
		for i := range m.part {
			past := c.base[i]
			past[load] *= h.size[i]
			past[compute] *= h.size[i]
			for k := range parts {
				m.part[i][k] = c.without(k, m.part[i][k], past[k])
			}
		}
		m.shared = c.without(out, m.shared, c.shared)
		m.level = middleOf(m.part) + m.shared
	}
	if h.base != nil {
		h.beyond[h.was].add(m.beyond, memory)
		h.was = one(m.beyond)
	}
	if h.skip++; h.skip < h.every {
		return m
	}
	h.skip = 0
	if h.blocks = append(h.blocks, m); len(h.blocks) > mostBlocks {
		n := 0
		for i := 0; i < len(h.blocks); i += 2 {
			h.blocks[n] = h.blocks[i]
			n++
		}
		clear(h.blocks[n:])
		h.blocks, h.every = h.blocks[:n], 2*h.every
	}
	if len(h.blocks) >= learned {
		h.rate()
	}
	return m
}

// rate takes the better half of the blocks.
func (h *era) rate() {
	best := make([]*moment, len(h.blocks))
	for i := range h.blocks {
		best[i] = &h.blocks[i]
	}
	slices.SortStableFunc(best, func(a, b *moment) int { return cmp.Compare(a.level, b.level) })
	best = best[:(len(best)+1)/2]
	h.base = make([][parts]float64, len(h.size))
	h.prof, h.shared = profile{}, 0
	counts := make([]float64, len(h.size))
	for _, m := range best {
		h.shared += m.shared / float64(len(best))
		h.prof.merge(&m.prof)
		for i := range m.part {
			if m.part[i][load] == m.part[i][load] {
				counts[i]++
				for k := range parts {
					h.base[i][k] += m.part[i][k]
				}
			}
		}
	}
	for i := range h.base {
		if counts[i] == 0 {
			h.base[i] = missing
		}
		for k := range parts {
			h.base[i][k] /= max(counts[i], 1)
		}
	}
}

// middleOf is the own time of the middle worker.
func middleOf(of [][parts]float64) float64 {
	var owns []float64
	for i := range of {
		if t := total(&of[i]); t == t {
			owns = append(owns, t)
		}
	}
	return median(owns)
}

func total(p *[parts]float64) (t float64) {
	for _, v := range p {
		t += v
	}
	return t
}

// measure compares a block with the past of each worker, and that of a collective exchange.
func (p *Pace) measure(m *moment, base [][parts]float64, shared float64) {
	beyond := 0
	var growth, excess []float64
	for i := range m.part {
		now, before := total(&m.part[i])+m.shared, total(&base[i])+shared
		if !(now >= 0 && before > 0) {
			continue
		}
		growth, excess = append(growth, now/before), append(excess, now-before)
		if now > before+leniency*max(before*p.cfg.Ratio, p.least) {
			beyond++
		}
	}
	m.growth, m.excess = median(growth), median(excess)
	n := len(growth)
	m.beyond = n > 0 && beyond >= n-n/10
}

// lately is the mean growth of the recent blocks, and the mean difference in seconds.
func (p *Pace) lately() (growth, excess float64) {
	n := float64(len(p.recent))
	for i := range p.recent {
		growth += p.recent[i].growth / n
		excess += p.recent[i].excess / n
	}
	return growth, excess
}

// recovers takes a block of a job that is slow, and reports whether it is not any more.
func (p *Pace) recovers(m moment) []PaceEvent {
	p.factor.add(m.growth)
	p.recent = append(p.recent, m)
	for len(p.recent) > halfBlock && p.recent[1].at < m.at-lastingPace {
		p.recent = slices.Delete(p.recent, 0, 1)
	}
	if m.at-p.recent[0].at >= lastingPace && len(p.recent) >= halfBlock {
		if growth, excess := p.lately(); growth < 1+p.cfg.Ratio/2 || excess < p.least/2 {
			p.slow, p.sum = false, evidence{}
			p.now.Until, p.now.Factor = p.recent[0].at, max(p.now.Factor, 1)
			p.recent = nil
			for _, h := range p.eras {
				h.carried = nil
			}
			return []PaceEvent{{Recovered, p.now}}
		}
	}
	return nil
}

// goesOn takes a block of a job that is slow.
func (p *Pace) goesOn(m moment) []PaceEvent {
	if over := p.recovers(m); over != nil {
		return over
	}
	if !m.beyond || len(p.recent) < halfBlock {
		return nil
	}
	was, now := p.now, p.slowdown()
	now.Since = was.Since
	if now.Cause == Unknown && now.Part == was.Part { // a known cause stays
		now.Cause, now.Evidence = was.Cause, was.Evidence
	}
	if now.Part == was.Part && now.Cause == was.Cause {
		p.now, p.turn = now, 0
		return nil
	}
	if p.turn++; p.turn < lasting {
		p.now.Factor = now.Factor
		return nil
	}
	p.now, p.turn = now, 0
	return []PaceEvent{{Changed, now}}
}

// between is the parts of a step in some blocks and in the past, of the middle worker.
func (h *era) between(blocks []moment) (now, before [parts]float64) {
	column := func(of [][parts]float64, k part) float64 {
		var vs []float64
		for i := range of {
			if v := of[i][k]; v == v {
				vs = append(vs, v)
			}
		}
		return median(vs)
	}
	for k := range parts {
		for i := range blocks {
			now[k] += column(blocks[i].part, k) / float64(len(blocks))
		}
		before[k] = column(h.base, k)
	}
	for i := range blocks {
		now[out] += blocks[i].shared / float64(len(blocks))
	}
	before[out] += h.shared
	return now, before
}

// slowdown describes the recent blocks.
func (p *Pace) slowdown() Slowdown {
	h := p.era
	s := Slowdown{Since: p.from, Factor: p.factor.mean()}
	now, before := h.between(p.recent)
	longest := load
	for k := range parts {
		s.Parts = append(s.Parts, Grown{partNames[k], now[k], before[k]})
		if now[k]-before[k] > now[longest]-before[longest] {
			longest = k
		}
	}
	s.Part = partNames[longest]
	last := &p.recent[len(p.recent)-1]
	for i := range last.part {
		if t := total(&last.part[i]) + last.shared; t > (total(&h.base[i])+h.shared)*(1+leniency*p.cfg.Ratio) {
			s.Workers++
			if host := p.hosts[i*p.stride]; host != "" && !slices.Contains(s.Hosts, host) {
				s.Hosts = append(s.Hosts, host)
			}
		}
	}
	slices.Sort(s.Hosts)
	g := grounds{ref: h.prof, past: true}
	for i := range p.recent {
		g.bad.merge(&p.recent[i].prof)
	}
	g.bad.part, g.bad.own = now, total(&now)
	g.ref.part, g.ref.own = before, total(&before)
	s.Cause, _, _ = g.attribute()
	s.Evidence = g.evidence()
	return s
}

// merge adds the iterations of o, so p is the mean over them, too.
func (p *profile) merge(o *profile) {
	n := p.n + o.n
	if n == 0 {
		return
	}
	k := o.n / n
	p.n, p.took = n, p.took+o.took
	mix := func(v *float64, with float64) { *v += k * (with - *v) }
	mix(&p.own, o.own)
	mix(&p.cpu, o.cpu)
	mix(&p.samples, o.samples)
	mix(&p.netOut, o.netOut)
	mix(&p.netIn, o.netIn)
	for i := range p.part {
		mix(&p.part[i], o.part[i])
	}
	for m := range p.metric {
		if c := p.count[m] + o.count[m]; c > 0 {
			if p.metric[m] += o.count[m] / c * (o.metric[m] - p.metric[m]); star.Metric(m) == star.GPUThrottle && o.count[m] > 0 {
				p.metric[m] = o.metric[m] // bits
			}
			p.count[m] = c
		}
	}
}
