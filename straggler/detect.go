package straggler

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
)

// Config says what counts as slow. Its zero values mean the defaults.
type Config struct {
	Workers int // of the job

	// Ratio is how much slower than the fastest a worker must be: 0.20, the
	// artefact's (t − min)/min.
	Ratio float64

	// Least is how much longer than the fastest it must at least take: 2 ms; −1: any
	// time. A scheduler that shares a processor takes a millisecond or some from whoever it
	// likes, which is much of an iteration of 5 ms.
	Least time.Duration

	// MADs is how many median absolute deviations above the fastest it must be: 3.
	MADs float64

	// Window is how many iterations of each worker are remembered: 20. Recent is how
	// many of them make its level: 5.
	Window, Recent int

	// Enter is how many records in a row must speak for a verdict: 4. Leave is how
	// many must speak against it, at three quarters of Ratio and Least: 8.
	Enter, Leave int

	// Warmup is how many first records of each worker are not looked at, because
	// caches are cold: 3; −1: none.
	Warmup int

	// Collective says that Push is a wait for others (all-reduce), and Transit and
	// Pull are no times of the worker's own.
	Collective bool
}

func (c Config) withDefaults() Config {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Ratio == 0 {
		c.Ratio = 0.20
	}
	if c.MADs == 0 {
		c.MADs = 3
	}
	if c.Least == 0 {
		c.Least = 2 * time.Millisecond
	}
	or(&c.Window, 20)
	or(&c.Recent, 5)
	or(&c.Enter, 4)
	or(&c.Leave, 8)
	or(&c.Warmup, 3)
	return c
}

func (c Config) check() error {
	switch {
	case c.Workers < 1:
		return fmt.Errorf("straggler: %d workers, want at least 1", c.Workers)
	case !(c.Ratio > 0) || !(c.MADs >= 0):
		return fmt.Errorf("straggler: ratio %v and %v deviations, want positive numbers", c.Ratio, c.MADs)
	case c.Window < 4 || c.Recent < 1 || c.Recent > c.Window || c.Enter < 1 || c.Leave < 1:
		return fmt.Errorf("straggler: window %d, recent %d, enter %d, leave %d: want a window of at least 4 that contains the recent ones",
			c.Window, c.Recent, c.Enter, c.Leave)
	}
	return nil
}

// Kind is what an Event tells.
type Kind int

const (
	Slow      Kind = iota // a worker has become slow
	Changed               // a slow worker's cause is another one now
	Recovered             // it is slow no more
	Excluded              // a record is impossible and was not used
	Odd                   // a measurement is impossible and was not used; said once for each metric
	ClockJump             // a worker's clock went backwards; its durations are used all the same
)

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "unknown event"
	}
	return kindNames[k]
}

var kindNames = [...]string{"slow", "changed", "recovered", "excluded", "odd", "clock-jump"}

// Event is something that the shell should log, or that a controller acts on.
type Event struct {
	Kind    Kind
	Worker  star.Worker
	Step    int64   // of the worker, at which it was noticed
	Verdict Verdict // of Slow, Changed and Recovered
	Why     string  // of the others
}

// String is the event in one line.
func (e Event) String() string {
	switch e.Kind {
	case Slow, Changed:
		return e.Verdict.String()
	case Recovered:
		return fmt.Sprintf("w%d as fast as the others again at it %d (%.1fx slow since it %d: %v)",
			e.Worker, e.Step, e.Verdict.Slowdown, e.Verdict.Since, e.Verdict.Cause)
	}
	return fmt.Sprintf("w%d it %d: %s", e.Worker, e.Step, e.Why)
}

// part is a part of a worker's own time.
type part int

const (
	load part = iota
	compute
	out // Push and Transit
	in  // Pull
	parts
)

// sample is what is remembered of a record.
type sample struct {
	step int64
	own  float64        // seconds
	part [parts]float64 // seconds
	rec  star.Record
	long bool // against the worker's own median
}

// watch is the detector's view of one worker.
type watch struct {
	seen    int
	gone    bool
	last    star.Record
	window  []sample // a ring; next is the oldest once it is full
	next    int
	level   float64 // median of the recent own times
	jitter  float64 // of that level: its standard error
	usual   float64 // median of the window
	avg     float64 // mean of the window
	base    float64 // lower quartile of the window
	longs   int     // in the window
	rate, n float64 // of long ones after one that is not, and of all these: sums that forget
	sum     float64 // of evidence for pauses
	from    int64   // the step at which it began to grow
	hit     int64   // the step that it last grew at
	paused  bool    // the verdict rests on it
	odd     uint64  // metrics that were reported
	slow    bool
	streak  int // records in a row that speak for a change of state
	verdict Verdict
	turn    int   // records in a row that speak for another cause
	turned  Cause // that cause
}

// Detector judges records. It is a pure state machine: the same records give the
// same events.
type Detector struct {
	cfg     Config
	least   float64 // s
	workers []watch
	ref     reference
	stale   int // records since ref was taken
	scratch []float64
	order   []int
}

// reference is what the fastest quarter of the workers does.
type reference struct {
	members []int
	level   float64 // s
	mad     float64 // s
}

// New makes a detector.
func New(c Config) (*Detector, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Detector{cfg: c, least: max(c.Least, 0).Seconds(), workers: make([]watch, c.Workers)}, nil
}

// Observe takes in a record and says what follows from it. Events of other workers than the
// record's do not occur.
func (d *Detector) Observe(r star.Record) (events []Event) {
	if int(r.Worker) < 0 || int(r.Worker) >= len(d.workers) {
		return []Event{{Kind: Excluded, Worker: r.Worker, Step: r.Step, Why: fmt.Sprintf("there are workers 0 to %d only", len(d.workers)-1)}}
	}
	w := &d.workers[r.Worker]
	tell := func(k Kind, why string) {
		events = append(events, Event{Kind: k, Worker: r.Worker, Step: r.Step, Why: why})
	}
	var last *star.Record
	if w.seen > 0 {
		last = &w.last
	}
	if jumped(&r, last) {
		tell(ClockJump, fmt.Sprintf("its clock went from %v back to %v", last.At.Round(time.Millisecond), r.At.Round(time.Millisecond)))
	}
	if why := impossible(&r, last); why != "" {
		tell(Excluded, why)
		return events
	}
	for {
		m, v, found := strange(&r.Telemetry)
		if !found {
			break
		}
		if w.odd>>m&1 == 0 {
			w.odd |= 1 << m
			tell(Odd, fmt.Sprintf("%v %g is impossible", m, v))
		}
	}
	w.last, w.gone = r, false
	if w.seen++; w.seen <= d.cfg.Warmup {
		return events
	}
	d.remember(w, r)
	return append(events, d.judge(r.Worker, r.Step)...)
}

// Leave forgets a worker that is gone.
func (d *Detector) Leave(w star.Worker) {
	if int(w) >= 0 && int(w) < len(d.workers) {
		d.workers[w] = watch{gone: true}
		d.stale = len(d.workers) // the reference may have been this one
	}
}

// Verdicts are those that hold now, in the order of the workers.
func (d *Detector) Verdicts() (vs []Verdict) {
	for i := range d.workers {
		if w := &d.workers[i]; w.slow {
			vs = append(vs, w.verdict)
		}
	}
	return vs
}

// Level is a worker's own time now, the median of its recent iterations; 0 if
// nothing is known yet.
func (d *Detector) Level(w star.Worker) time.Duration {
	return time.Duration(d.workers[w].level * float64(time.Second))
}

// remember puts a record into the window and takes the worker's levels anew.
func (d *Detector) remember(w *watch, r star.Record) {
	s := sample{step: r.Step, rec: r}
	s.part = [parts]float64{load: r.Load.Seconds(), compute: r.Compute.Seconds()}
	if !d.cfg.Collective {
		s.part[out], s.part[in] = (r.Push + r.Transit).Seconds(), r.Pull.Seconds()
	}
	for _, p := range s.part {
		s.own += p
	}
	if len(w.window) < d.cfg.Window {
		w.window = append(w.window, s)
	} else {
		w.window[w.next] = s
		w.next = (w.next + 1) % len(w.window)
	}

	d.scratch = d.scratch[:0]
	for i := range min(d.cfg.Recent, len(w.window)) {
		d.scratch = append(d.scratch, w.back(i).own)
	}
	w.level = median(d.scratch)
	// The median of n normal values has the standard error 1.2533·σ/√n.
	w.jitter = 1.2533 * spread(d.scratch, w.level) / math.Sqrt(float64(len(d.scratch)))
	d.scratch = d.scratch[:0]
	for i := range w.window {
		d.scratch = append(d.scratch, w.window[i].own)
	}
	w.avg, w.usual, w.base = mean(d.scratch), median(d.scratch), quartile(d.scratch)
	// Long: clearly beyond what the worker itself usually takes, and beyond its noise. Where half of its iterations are
	// long its own deviation says nothing, and what the fastest take counts.
	dev := spread(d.scratch, w.usual)
	limit := d.long(w.usual, dev)
	if ref := d.ref.level; ref > 0 && !slices.Contains(d.ref.members, int(r.Worker)) && dev > wild*max(d.ref.mad, 0.02*ref) {
		limit = min(limit, d.long(ref, max(d.ref.mad, 0.02*ref)))
	}
	w.longs = 0
	for i := range w.window {
		s := &w.window[i]
		if s.long = s.own > limit; s.long {
			w.longs++
		}
	}
	if len(w.window) > 1 && w.back(0).long && w.back(1).long {
		return // see count
	}
	w.rate *= 1 - 1/memory
	w.n = w.n*(1-1/memory) + 1
	if w.back(0).long {
		w.rate++
	}
}

// long is the limit beyond which an iteration is long among those that usually take t, with the given deviation.
func (d *Detector) long(t, mad float64) float64 {
	return max(d.beyond(t, 1), t+(1+d.cfg.MADs)*mad)
}

// beyond is what is clearly longer than t, in seconds: by a share of Ratio, and of Least.
func (d *Detector) beyond(t, share float64) float64 {
	return t + share*max(t*d.cfg.Ratio, d.least)
}

// wild is how many times the deviation of the fastest makes a deviation one of iterations of two kinds.
const wild = 3

// memory is over how many of a worker's iterations its rate of long ones is taken.
const memory = 200

// back is the sample i records ago.
func (w *watch) back(i int) *sample {
	n := len(w.window)
	return &w.window[((w.next-1-i)%n+n)%n]
}

// known reports whether enough was seen of a worker to compare it with.
func (d *Detector) known(w *watch) bool { return !w.gone && len(w.window) >= min(d.cfg.Recent, 4) }

// refresh takes the reference anew: of the known workers the fastest quarter, as
// far as they are within Ratio of the fastest. In a large job that is not done for
// every record.
func (d *Detector) refresh() {
	if d.stale++; d.stale <= len(d.workers)/16 && len(d.ref.members) > 0 {
		return
	}
	d.stale = 0
	d.order = d.order[:0]
	for i := range d.workers {
		if d.known(&d.workers[i]) {
			d.order = append(d.order, i)
		}
	}
	slices.SortStableFunc(d.order, func(a, b int) int {
		switch x, y := d.workers[a].pace(), d.workers[b].pace(); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	r := &d.ref
	r.members = r.members[:0]
	if len(d.order) < 2 {
		return
	}
	fastest := d.workers[d.order[0]].pace()
	d.scratch = d.scratch[:0]
	for _, i := range d.order[:max(1, len(d.order)/4)] {
		w := &d.workers[i]
		if w.pace() > fastest*(1+d.cfg.Ratio) {
			break
		}
		r.members = append(r.members, i)
		for j := range w.window {
			d.scratch = append(d.scratch, w.window[j].own)
		}
	}
	r.level = median(d.scratch)
	r.mad = spread(d.scratch, r.level)
}

// pace is the level, and what iterations take on average beyond what the fast ones do: who stands still in every other one
// is no measure of others.
func (w *watch) pace() float64 { return w.level + max(w.avg-w.base, 0) }

// judge moves a worker's state.
func (d *Detector) judge(id star.Worker, step int64) []Event {
	w := &d.workers[id]
	d.refresh()
	if !d.known(w) || len(d.ref.members) == 0 {
		return nil
	}
	d.count(int(id))
	strict := !w.slow
	steady, now := d.steady(int(id), strict), d.nowAndThen(int(id), strict)
	// Who pauses in every other iteration looks steady half of the time, and is as fast as the fastest in between.
	pauses := now && (!steady || w.base <= d.beyond(d.ref.level, 1))
	if (steady || now) == w.slow {
		w.streak = 0
		if w.slow {
			return d.reconsider(w, id, step, pauses)
		}
		return nil
	}
	w.streak++
	switch {
	case !w.slow && (w.streak >= d.cfg.Enter || pauses): // counting is a test of its own
		w.verdict = d.verdict(w, id, step, pauses)
		w.slow, w.streak, w.turn, w.paused = true, 0, 0, now
		return []Event{{Kind: Slow, Worker: id, Step: step, Verdict: w.verdict}}
	case w.slow && w.streak >= d.cfg.Leave:
		w.slow, w.streak, w.sum = false, 0, 0
		return []Event{{Kind: Recovered, Worker: id, Step: step, Verdict: w.verdict}}
	}
	return nil
}

// leniency is how much of the thresholds a worker must stay under to recover.
const leniency = 0.75

// steady: the level is above the reference, by Ratio and Least and beyond its noise and, to
// become slow, the worker's own. Clocks and schedulers have a noise of their own, so the
// deviation counts as 2 % at least.
func (d *Detector) steady(id int, strict bool) bool {
	if slices.Contains(d.ref.members, id) {
		return false
	}
	share := 1.0
	if !strict {
		share = leniency
	}
	ref := d.ref.level
	if strict && d.workers[id].level <= ref+d.cfg.MADs*d.workers[id].jitter {
		return false
	}
	return d.workers[id].level > d.beyond(ref, share) && d.workers[id].level > ref+share*d.cfg.MADs*max(d.ref.mad, 0.02*ref)
}

// A worker that pauses has rarely long iterations, but clearly more often than others.
// Page's cumulative sum (Biometrika 41, 1954) is the test that notices that soonest: with
// the usual rate p₀ and the suspected p₁ a long iteration adds ln p₁/p₀, another one
// ln (1−p₁)/(1−p₀), and the sum is never below 0. False alarms are at least e^certain
// records apart (Lorden, Annals of Mathematical Statistics 42, 1971): 60,000.
const (
	certain   = 11.0
	suspected = 0.2 // p₁, or five times the usual rate
	seldom    = 10  // iterations without a long one, which one worker in ten that pauses has by chance: what was before is chance, too
)

// count adds the newest iteration of a worker to the evidence for pauses. A second long
// one in a row says nothing: that is how steady slowness begins.
func (d *Detector) count(id int) {
	w := &d.workers[id]
	longs, n := 0.5, 10.0 // before anything is known: one of twenty
	for i := range d.workers {
		if o := &d.workers[i]; i != id && d.known(o) {
			longs += o.rate
			n += o.n
		}
	}
	p0 := min(longs/n, 0.5)
	p1 := max(suspected, min(5*p0, (1+p0)/2))
	switch again := len(w.window) > 1 && w.back(1).long; {
	case w.back(0).long && again:
	case w.back(0).long:
		if step := w.back(0).step; w.sum == 0 || step > w.hit+seldom {
			w.from = step
		}
		w.hit = w.back(0).step
		w.sum = min(w.sum+math.Log(p1/p0), certain)
	default:
		w.sum = max(w.sum+math.Log((1-p1)/(1-p0)), 0)
	}
}

// nowAndThen: iterations of the worker are long now and then, and the mean suffers by
// half of Ratio, and by Least.
func (d *Detector) nowAndThen(id int, strict bool) bool {
	w := &d.workers[id]
	if !strict {
		return w.paused && w.sum > leniency*certain
	}
	return w.sum >= certain && w.avg > w.base+max(w.base*d.cfg.Ratio/2, d.least)
}

// reconsider keeps the numbers of a verdict fresh and notices when its cause is
// another one.
func (d *Detector) reconsider(w *watch, id star.Worker, step int64, intermittent bool) []Event {
	if intermittent && w.longs == 0 {
		return nil // a longer while without a pause than usual
	}
	v := d.verdict(w, id, step, intermittent)
	v.Since = w.verdict.Since
	if v.Cause == w.verdict.Cause {
		w.verdict, w.turn = v, 0
		return nil
	}
	if v.Cause != w.turned {
		w.turn, w.turned = 0, v.Cause
	}
	if w.turn++; w.turn < d.cfg.Enter {
		return nil
	}
	w.verdict, w.turn = v, 0
	return []Event{{Kind: Changed, Worker: id, Step: step, Verdict: v}}
}

// verdict describes a slow worker.
func (d *Detector) verdict(w *watch, id star.Worker, step int64, intermittent bool) Verdict {
	v := Verdict{Worker: id, Step: step, Since: step, Slowdown: w.level / d.ref.level}
	var bad, good []*sample
	if intermittent {
		v.Slowdown, v.Since = w.avg/d.ref.level, w.from
		for i := len(w.window) - 1; i >= 0; i-- {
			if s := w.back(i); s.long {
				bad = append(bad, s)
			} else {
				good = append(good, s)
			}
		}
	} else {
		limit := d.beyond(d.ref.level, leniency)
		calm := 0
		for i := range w.window { // backwards, over one or two fast ones
			s := w.back(i)
			if calm++; s.own > limit {
				calm = 0
			}
			if w.slow { // it is known when it began
				if s.step < w.verdict.Since {
					break
				}
			} else if calm > 2 {
				break
			}
			bad = append(bad, s)
		}
		for len(bad) > 0 && bad[len(bad)-1].own <= limit { // that was before it began
			bad = bad[:len(bad)-1]
		}
		slices.Reverse(bad)
		for _, i := range d.ref.members {
			for j := range d.workers[i].window {
				good = append(good, &d.workers[i].window[j])
			}
		}
	}
	if len(bad) > 0 && !intermittent {
		v.Since = bad[0].step
	}
	v.Cause, v.Evidence = attribute(profileOf(bad), profileOf(good), intermittent, len(bad), len(w.window))
	return v
}
