package straggler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
)

// Config configures the detector. Zero values mean the defaults.
type Config struct {
	Workers int // of the job

	// Ratio is how much slower than the fast ones a worker must be: 0.20, the
	// artefact's (t − min)/min.
	Ratio float64

	// Least is how much longer than the fast ones it must at least take: 2 ms; −1: any
	// time. A scheduler that shares a processor takes a millisecond or some from the process that it
	// likes, which is much of an iteration of 5 ms.
	Least time.Duration

	// Certain is the logarithm of how many records of a worker are at least between two
	// wrong verdicts, and of how many records of a slow one between two wrong recoveries: 11, 60,000.
	Certain float64

	// Window is how many iterations of each worker are remembered: 20. Recent is how
	// many of them make its level: 5.
	Window, Recent int

	// Warmup is how many first records of each worker are not looked at, because
	// caches are cold: 3; −1: none.
	Warmup int

	// Together is the minimum duration of judged iterations of a worker: shorter ones are judged in groups of that
	// duration, by their means. 0: each iteration is judged. A long one ends its group, so it is seen. With partial
	// batches (see Plan) it has no effect.
	Together time.Duration

	// Collective: Push is a wait for others (all-reduce), and Transit and Pull are not the worker's own times.
	Collective bool

	// Stops: Stalled is only the time for which signals have stopped the process, with its times: occasional stops of one
	// worker, and not of others, make it slow, independent of other causes of long iterations.
	Stops bool
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
	if c.Certain == 0 {
		c.Certain = 11
	}
	if c.Least == 0 {
		c.Least = 2 * time.Millisecond
	}
	or(&c.Window, 20)
	or(&c.Recent, 5)
	or(&c.Warmup, 3)
	return c
}

func (c Config) check() error {
	switch {
	case c.Workers < 1:
		return fmt.Errorf("straggler: %d workers, want at least 1", c.Workers)
	case !(c.Ratio > 0) || !(c.Certain > 0):
		return fmt.Errorf("straggler: ratio %v and certainty %v, want positive numbers", c.Ratio, c.Certain)
	case c.Window < 4 || c.Recent < 1 || c.Recent > c.Window:
		return fmt.Errorf("straggler: window %d, recent %d: want a window of at least 4 that contains the recent ones", c.Window, c.Recent)
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
	Odd                   // a measurement is impossible and was not used; reported once for each metric
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

// An iteration is beyond the fast ones, or far beyond, as a whole; or one part of it is: where processors are shared,
// computing varies so much that no other change would be seen.
const (
	past  = iota
	far                        // as a whole
	first                      // the first part
	held  = first + int(parts) // the host reports that the process was held back
	views = held + 1
)

// reach is how many times Ratio and Least an iteration must take more than the fast ones', as a whole, to be past them,
// or far past.
var reach = [...]float64{past: leniency, far: 4}

// sample is the kept part of a record.
type sample struct {
	step   int64
	own    float64        // seconds
	part   [parts]float64 // seconds
	rec    star.Record
	n      float64     // how many iterations it is the mean of
	beyond [views]bool // beyond what the fast ones take
}

// watch is the detector's view of one worker.
type watch struct {
	seen    int
	gone    bool
	last    star.Record
	sum     star.Record // of the rounds that were not judged yet
	rounds  int         // how many
	skip    bool        // the next record is of a partial batch, the plan is not
	fresh   int         // records that were not judged, because the others were not known
	window  []sample    // a ring; next is the oldest once it is full
	next    int
	owns    []float64      // the own times of the window, in its order
	sorted  sorted         // the same
	limit   float64        // beyond which one of them is long, against the worker's own median
	level   float64        // median of the recent own times
	usual   float64        // median of the window
	avg     float64        // mean of the window
	jitter  float64        // of that mean: its standard error
	base    float64        // lower quartile of the window
	longs   rate           // long ones after one that is not
	beyonds [views][2]rate // beyond the fast ones, after one that is not and after one that is
	odd     uint64         // metrics that were reported

	behind [views]evidence // that it is slower than the fast ones
	pauses evidence        // that it is suspended now and then, by how long its iterations are
	hit    int64           // the step that the latter last grew at
	halts  evidence        // that it is stopped now and then, with Stops
	halted rate            // iterations with a stop

	slow    bool
	stops   bool     // because it is stopped now and then
	verdict Verdict  // without evidence; told adds it
	grounds grounds  // of the cause that the verdict names
	again   evidence // that it is as fast as the others again
	mean    float64  // of its own time, while it is slow
	others  float64  // of the fast ones' mean at the same times
	spell   rate     // beyond the fast ones, while it is slow
	doubt   rate     // the same, since again began to grow
	bad     profile  // its iterations beyond the fast ones, while it is slow
	good    profile  // those of the others, meanwhile
	calm    rate     // its iterations that are like those of the others
	turn    int      // records in a row that speak for another cause
	turned  Cause    // that cause
}

// rate is the frequency of an observation: k of n, with older ones weighted less.
type rate struct{ k, n float64 }

func (r *rate) add(yes bool, memory float64) {
	keep := 1 - 1/memory
	r.k *= keep
	r.n = r.n*keep + 1
	if yes {
		r.k++
	}
}

func (r *rate) join(o rate) { r.k, r.n = r.k+o.k, r.n+o.n }

// or is the rate with a prior.
func (r rate) or(supposed rate) float64 { return (r.k + supposed.k) / (r.n + supposed.n) }

// atMost reports whether the rate is not above p. It takes many observations.
func (r rate) atMost(p float64) bool { return r.n >= memory/2 && r.k <= r.n*p }

// most is the rate by or, a standard error more, and a half at most.
func (r rate) most(supposed rate) float64 {
	p := r.or(supposed)
	return min(p+math.Sqrt(p*(1-p)/(r.n+supposed.n)), 0.5)
}

// least is the rate, a standard error less: the first observations of a slow worker are the worst, or it would not have
// been noticed.
func (r rate) least() float64 {
	p := r.or(rate{0.5, 1})
	return p - math.Sqrt(p*(1-p)/(r.n+1))
}

// evidence is Page's cumulative sum: of the logarithms of the likelihood ratio of each observation, and never below 0.
type evidence struct {
	sum  float64
	from int64 // the step at which it began to grow: the likeliest beginning
}

// add adds an observation with probability p, or q if the worker is slow; it counts as n.
func (e *evidence) add(step int64, p, q, weight, most float64) {
	if e.sum == 0 {
		e.from = step
	}
	e.sum = min(max(e.sum+weight*math.Log(q/p), 0), most)
}

// A scheduler that is short of processors treats a thread well or badly for some ten milliseconds, so shorter
// iterations are no observations of their own: they count as the part of apart that they last.
const apart = 0.1 // s

func (s *sample) weight() float64 { return min(s.n*s.own/apart, 1) }

// Detector judges records. It is a pure state machine: the same records give the
// same events.
type Detector struct {
	cfg     Config
	least   float64 // s
	workers []watch
	slow    []star.Worker // those that are
	ref     reference
	stale   int // records since ref was taken
	scratch []float64
	order   []ranked
	batch   int  // samples of the first record, or of one of its local steps
	whole   bool // that was no partial batch
	local   int  // see Plan
	partial bool // see Plan
}

// ranked is a worker with its mean, beside others: those of a large job are not in a processor's cache.
type ranked struct {
	avg    float64
	worker int
}

// reference is what the fast workers do.
type reference struct {
	members []int
	member  []bool  // by worker
	level   float64 // s
	part    [parts]float64
	avg     float64 // s
	mad     float64 // s
}

// New makes a detector.
func New(c Config) (*Detector, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Detector{cfg: c, least: max(c.Least, 0).Seconds(), workers: make([]watch, c.Workers), ref: reference{member: make([]bool, c.Workers)}, local: 1}, nil
}

// Thresholds are those of the Config that may be changed while it detects, by the names of star ctl set. Times are in
// seconds.
func (d *Detector) Thresholds() map[string]float64 {
	return map[string]float64{"verdict-ratio": d.cfg.Ratio, "verdict-least": d.least, "verdict-certainty": d.cfg.Certain}
}

// Set changes one of them, from the next record on. Other names change nothing.
func (d *Detector) Set(name string, v float64) {
	switch name {
	case "verdict-ratio":
		d.cfg.Ratio = v
	case "verdict-least":
		d.least = v
	case "verdict-certainty":
		d.cfg.Certain = v
	}
}

// Plan sets what iterations are, from the next record on: local steps with one exchange, below 2 a gradient; partial:
// those samples of a batch for which a worker has time, because free workers take them (a queue) or computing has a
// deadline.
//
// A slow worker with partial batches finishes with all others, so its iteration counts as the number of rounds for a
// batch. When the number of local steps changes, the times of earlier ones are converted, so a worker is compared with
// itself and with others as before, and a slow worker stays slow. A record with other Parts than the plan was
// computed before the change.
func (d *Detector) Plan(local int, partial bool) {
	local = max(local, 1)
	for i := range d.workers {
		w := &d.workers[i]
		w.rounds, w.skip = 0, d.partial && !partial
		if d.local != local { // how often it is beyond the fast ones may be another rate now
			w.again, w.doubt = evidence{}, rate{}
			w.spell.k, w.spell.n = w.spell.k/max(w.spell.n, 1), min(w.spell.n, 1)
		}
	}
	d.partial = partial
	if d.local != local {
		d.scale(float64(local) / float64(d.local))
		d.local = local
	}
}

// scale converts all remembered iterations to ones with f times the samples.
func (d *Detector) scale(f float64) {
	for i := range d.workers {
		w := &d.workers[i]
		w.bad.scale(f)
		w.good.scale(f)
		w.sorted = w.sorted[:0]
		for k := range w.window {
			s := &w.window[k]
			s.own += scale(&s.part, f)
			s.rec.Samples = int(math.Round(float64(s.rec.Samples) * f))
			w.owns[k] = s.own
			w.sorted.add(s.own)
		}
		d.measure(w)
	}
	d.stale = len(d.workers)
	d.refresh()
}

// scale scales the parts of an iteration that depend on its samples, and returns by how much it is longer.
func scale(p *[parts]float64, f float64) float64 {
	longer := (p[load] + p[compute]) * (f - 1)
	p[load], p[compute] = p[load]*f, p[compute]*f
	return longer
}

// convert converts a record of an earlier plan to the number of local steps of the present one.
func (d *Detector) convert(r *star.Record) {
	steps, ok := r.Telemetry.Get(star.Parts)
	if d.partial || !ok || !(steps >= 1) || int(steps) == d.local {
		return
	}
	f := float64(d.local) / steps
	for _, t := range []*time.Duration{&r.Load, &r.Compute, &r.Injected} {
		*t = time.Duration(float64(*t) * f)
	}
	r.Samples = int(math.Round(float64(r.Samples) * f))
}

// add adds what w has gathered to r, and gathers it.
func (w *watch) add(r *star.Record) {
	if w.rounds++; w.rounds > 1 {
		o := &w.sum
		r.Load, r.Compute, r.Injected, r.Samples = r.Load+o.Load, r.Compute+o.Compute, r.Injected+o.Injected, r.Samples+o.Samples
		r.Push, r.Transit, r.Pull, r.Wait = r.Push+o.Push, r.Transit+o.Transit, r.Pull+o.Pull, r.Wait+o.Wait
	}
	w.sum = *r
}

// group adds an iteration to those of w that were not judged yet. When they have taken as long as least it returns
// their mean, and how many they are, else 0.
func (w *watch) group(r star.Record, least time.Duration) (star.Record, int) {
	w.add(&r)
	n := w.rounds
	if r.Iteration() < least {
		return r, 0
	}
	for _, t := range []*time.Duration{&r.Load, &r.Compute, &r.Injected, &r.Push, &r.Transit, &r.Pull, &r.Wait} {
		*t /= time.Duration(n)
	}
	r.Samples, w.rounds = r.Samples/n, 0
	return r, n
}

// gather adds a round with partial batches to those that were not judged yet. It reports whether they have half the
// samples of a batch at least; then it returns what a batch, of size samples, takes.
func (w *watch) gather(r star.Record, size int) (star.Record, bool) {
	if w.add(&r); 2*r.Samples < max(size, 1) {
		return r, false
	}
	for _, t := range []*time.Duration{&r.Load, &r.Compute, &r.Injected} {
		*t = time.Duration(float64(*t) / float64(r.Samples) * float64(size))
	}
	for _, t := range []*time.Duration{&r.Push, &r.Transit, &r.Pull, &r.Wait} {
		*t /= time.Duration(w.rounds)
	}
	r.Samples, w.rounds = size, 0
	return r, true
}

// Observe processes a record and returns the resulting events. They are only of the record's worker.
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
	if w.skip {
		w.skip = false
		return events
	}
	d.convert(&r)
	if n := r.Samples / d.local; d.batch == 0 || !d.whole && !d.partial && n > 0 {
		if d.batch > 0 {
			d.scale(float64(n) / float64(d.batch))
		}
		d.batch, d.whole = n, !d.partial
	}
	if w.seen++; w.seen <= d.cfg.Warmup {
		return events
	}
	if d.partial {
		var whole bool
		if r, whole = w.gather(r, d.batch); !whole {
			return events
		}
	}
	n := 1
	if d.cfg.Together > 0 && !d.partial {
		if r, n = w.group(r, d.cfg.Together); n == 0 {
			return events
		}
	}
	d.remember(w, r, n)
	return append(events, d.judge(r.Worker, r.Step)...)
}

// Leave forgets a worker that is gone.
func (d *Detector) Leave(w star.Worker) {
	if int(w) >= 0 && int(w) < len(d.workers) {
		d.workers[w] = watch{gone: true}
		d.recovered(w)
		d.stale = len(d.workers) // the reference may have been this one
	}
}

// recovered marks a worker as not slow.
func (d *Detector) recovered(w star.Worker) {
	d.slow = slices.DeleteFunc(d.slow, func(s star.Worker) bool { return s == w })
}

// Verdict is the verdict on a worker that is slow now; false: it is not.
func (d *Detector) Verdict(w star.Worker) (Verdict, bool) {
	if int(w) >= len(d.workers) || !d.workers[w].slow {
		return Verdict{}, false
	}
	return d.workers[w].told(), true
}

// Verdicts are those that hold now, in the order of the workers.
func (d *Detector) Verdicts() (vs []Verdict) {
	for i := range d.workers {
		if w := &d.workers[i]; w.slow {
			vs = append(vs, w.told())
		}
	}
	return vs
}

// Level is a worker's own time now, the median of its recent iterations; 0 if
// nothing is known yet.
func (d *Detector) Level(w star.Worker) time.Duration {
	return time.Duration(d.workers[w].level * float64(time.Second))
}

// remember puts a record, the mean of n, into the window and recomputes the worker's levels.
func (d *Detector) remember(w *watch, r star.Record, n int) {
	s := sample{step: r.Step, rec: r, n: float64(n)}
	s.part = [parts]float64{load: r.Load.Seconds(), compute: r.Compute.Seconds()}
	if !d.cfg.Collective {
		s.part[out], s.part[in] = (r.Push + r.Transit).Seconds(), r.Pull.Seconds()
	}
	for _, p := range s.part {
		s.own += p
	}
	if len(w.window) < d.cfg.Window {
		w.window, w.owns = append(w.window, s), append(w.owns, s.own)
		w.sorted.add(s.own)
	} else {
		w.sorted.change(w.owns[w.next], s.own)
		w.window[w.next], w.owns[w.next] = s, s.own
		w.next = (w.next + 1) % len(w.window)
	}
	w.fresh = min(w.fresh+1, len(w.window))
	d.measure(w)
	// Long: clearly beyond the worker's own usual time, and beyond its noise. If half of its iterations are long, its own
	// deviation is meaningless, and the time of the fast ones counts.
	dev := w.sorted.spread(w.usual)
	w.limit = d.long(w.usual, dev)
	if ref := d.ref.level; ref > 0 && w.usual > d.beyond(ref, 1) && dev > wild*max(d.ref.mad, 0.02*ref) {
		w.limit = min(w.limit, d.long(ref, max(d.ref.mad, 0.02*ref)))
	}
	if len(w.window) > 1 && w.long(w.back(0)) && w.long(w.back(1)) {
		return // see count
	}
	w.longs.add(w.long(w.back(0)), memory)
}

// measure recomputes the levels of a worker from its window.
func (d *Detector) measure(w *watch) {
	d.scratch = d.scratch[:0]
	for i := range min(d.cfg.Recent, len(w.window)) {
		d.scratch = append(d.scratch, w.owns[w.place(i)])
	}
	w.level = median(d.scratch)
	w.avg, w.jitter = mean(w.owns), 0
	for _, v := range w.owns {
		w.jitter += (v - w.avg) * (v - w.avg)
	}
	w.jitter = math.Sqrt(w.jitter) / float64(len(w.owns))
	w.usual, w.base = w.sorted.median(), w.sorted.quartile()
}

// long reports whether an iteration is long against the worker's own median.
func (w *watch) long(s *sample) bool { return s.own > w.limit }

// long is the limit beyond which an iteration is long among those that usually take t, with the given deviation.
func (d *Detector) long(t, mad float64) float64 {
	return max(d.beyond(t, 1), t+4*mad)
}

// beyond is the limit from which a time is clearly longer than t, in seconds: by a share of Ratio, and of Least.
func (d *Detector) beyond(t, share float64) float64 {
	return t + share*max(t*d.cfg.Ratio, d.least)
}

// wild is how many times the deviation of the fast ones makes a deviation one of iterations of two kinds.
const wild = 3

// memory is over how many of a worker's iterations rates are taken.
const memory = 200

// back is the sample i records ago.
func (w *watch) back(i int) *sample { return &w.window[w.place(i)] }

// place is where in the window it is.
func (w *watch) place(i int) int {
	n := len(w.window)
	return ((w.next-1-i)%n + n) % n
}

// known reports whether enough was seen of a worker to compare it with.
func (d *Detector) known(w *watch) bool { return !w.gone && len(w.window) >= min(d.cfg.Recent, 4) }

// crowd is the number of workers that suffices for the level and the usual values.
const crowd = 16

// refresh recomputes the reference: the fastest of the known workers, and all that take no more
// than Ratio and Least longer on average, or that differ by chance (two standard errors). One
// worker alone would be the luckiest, and all others slower by comparison. It runs twice for each
// record of all workers; in a large job a quarter of them gives the level.
func (d *Detector) refresh() {
	if d.stale++; d.stale <= len(d.workers)/2 && len(d.ref.members) > 0 {
		return
	}
	d.stale = 0
	d.order = d.order[:0]
	for i := range d.workers {
		if d.known(&d.workers[i]) {
			d.order = append(d.order, ranked{d.workers[i].avg, i})
		}
	}
	slices.SortFunc(d.order, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.avg, b.avg), cmp.Compare(a.worker, b.worker)) })
	r := &d.ref
	for _, i := range r.members {
		r.member[i] = false
	}
	r.members = r.members[:0]
	if len(d.order) < 2 {
		return
	}
	fastest, enough := &d.workers[d.order[0].worker], max(crowd, len(d.order)/4)
	d.scratch = d.scratch[:0]
	for _, o := range d.order {
		i := o.worker
		w := &d.workers[i]
		if w.avg > max(d.beyond(fastest.avg, 1), fastest.avg+2*math.Hypot(w.jitter, fastest.jitter)) {
			continue
		}
		r.member[i] = true
		if r.members = append(r.members, i); len(r.members) > enough {
			continue
		}
		d.scratch = append(d.scratch, w.owns...)
	}
	r.avg, r.level = mean(d.scratch), median(d.scratch)
	r.mad = spread(d.scratch, r.level)
	for p := range parts {
		d.scratch = d.scratch[:0]
		for _, i := range r.members[:min(len(r.members), enough)] {
			w := &d.workers[i]
			for j := range w.window {
				d.scratch = append(d.scratch, w.window[j].part[p])
			}
		}
		r.part[p] = median(d.scratch)
	}
}

// leniency is how much of the thresholds a worker must stay under not to be slow.
const leniency = 0.75

// judge moves a worker's state.
func (d *Detector) judge(id star.Worker, step int64) []Event {
	w := &d.workers[id]
	d.refresh()
	if !d.known(w) || len(d.ref.members) == 0 {
		return nil
	}
	others := d.others(int(id))
	for ; w.fresh > 0; w.fresh-- { // more than one when the others have just become known
		d.count(w, w.fresh-1, others)
	}
	now := w.back(0)
	if d.ref.member[id] { // what slow ones are compared with
		for _, o := range d.slow {
			if o != id {
				d.workers[o].good.add(now)
			}
		}
	}
	if w.slow {
		return d.reconsider(w, id, step, others)
	}
	// Each of the tests is on rates; the mean must suffer, too.
	much := w.avg > d.beyond(d.ref.avg, 1)
	steady := w.behind[past].sum >= d.cfg.Certain && w.level > d.beyond(d.ref.level, 1) && much
	best := far
	for l := far; l < views; l++ {
		if w.behind[l].sum > w.behind[best].sum {
			best = l
		}
	}
	often := w.behind[best].sum >= d.cfg.Certain && much
	some := w.avg > max(w.base, d.ref.avg)+max(w.base*d.cfg.Ratio/2, d.least)
	pauses, halts := w.pauses.sum >= d.cfg.Certain && some, w.halts.sum >= d.cfg.Certain && some
	var since int64
	switch {
	case steady:
		since = w.onset(w.behind[past].from)
	case often:
		since = w.onset(w.behind[best].from)
	case pauses:
		since = w.pauses.from
	case halts:
		since = w.halts.from
	default:
		return nil
	}
	d.begin(w, id, since, !steady && !often, halts)
	w.verdict = d.verdict(w, id, step)
	return []Event{{Kind: Slow, Worker: id, Step: step, Verdict: w.told()}}
}

// onset is the likeliest step at which slowness began, not before from, if most iterations have been beyond the fast
// ones since then, or one of three, and one of twenty was before.
func (w *watch) onset(from int64) (since int64) {
	best := math.Inf(-1)
	for _, p := range []float64{0.8, 1. / 3} {
		sum := 0.0
		for i := range w.window {
			s := w.back(i)
			if s.step < from {
				break
			}
			if s.beyond[past] {
				sum += math.Log(p / 0.05)
			} else {
				sum += math.Log((1 - p) / 0.95)
			}
			if sum > best {
				since, best = s.step, sum
			}
		}
	}
	return since
}

// isBeyond reports whether an iteration is beyond what the fast ones take.
func (d *Detector) isBeyond(s *sample, view int) bool {
	if view == held {
		throttled, _ := s.rec.Telemetry.Get(star.Throttled)
		stalled, _ := s.rec.Telemetry.Get(star.Stalled)
		return throttled+stalled > d.cfg.Ratio
	}
	if view >= first {
		return s.part[view-first] > d.ref.part[view-first]+d.beyond(d.ref.level, 1)-d.ref.level
	}
	return s.own > d.beyond(d.ref.level, reach[view])
}

// habits is what workers do that nothing is wrong with.
type habits struct {
	longs   float64           // rate of long iterations after one that is not
	beyonds [views][2]float64 // rates of iterations beyond the fast ones, after one that is not and after one that is
	beyond  float64           // of those past the fast ones, after any
	halted  float64           // of those with a stop
}

// others are the habits of the reference's workers except id, with a prior.
func (d *Detector) others(id int) (h habits) {
	var longs, halted rate
	var beyonds [views][2]rate
	for i := 0; i < len(d.ref.members); i += 1 + len(d.ref.members)/(2*crowd) {
		if o := &d.workers[d.ref.members[i]]; d.ref.members[i] != id && !o.slow {
			longs.join(o.longs)
			halted.join(o.halted)
			for l := range views {
				beyonds[l][0].join(o.beyonds[l][0])
				beyonds[l][1].join(o.beyonds[l][1])
			}
		}
	}
	h.halted = halted.most(rate{0.2, 20}) // signals do not stop a process by chance
	h.longs = min(longs.or(rate{0.5, 10}), 0.5)
	for l := range views {
		h.beyonds[l][0] = beyonds[l][0].most(rate{1, 5})
		h.beyonds[l][1] = max(beyonds[l][1].or(rate{0.5, 5}), h.beyonds[l][0])
	}
	all := beyonds[past][0]
	all.join(beyonds[past][1])
	h.beyond = all.or(rate{0.5, 10})
	return h
}

// Slow workers are found with Page's cumulative sum (Biometrika 41, 1954), the test that notices a change of
// probabilities soonest: with the usual rate p₀ and the suspected p₁ something that is the case adds ln p₁/p₀ and
// something that is not ln (1−p₁)/(1−p₀), and the sum is never below 0. False alarms are at least e^Certain records
// apart (Lorden, Annals of Mathematical Statistics 42, 1971). The usual rates are those of the fast ones. Long
// iterations cluster where processors are shared, so there is a rate after each of the two possible previous
// observations: the logarithm is that of a Markov chain.
const (
	suspected = 0.2  // p₁ of pauses, or five times the usual rate
	stopped   = 0.05 // the same of stops by signals
	// iterations without a long one, which one worker in ten that pauses has by chance: earlier ones are chance, too
	seldom = 10
)

// slower is p₁ of being beyond the fast ones, at least, or half of the rest to 1.
var slower = [views]float64{past: 0.6, far: 0.4, first + int(load): 0.6, first + int(compute): 0.6, first + int(out): 0.6, first + int(in): 0.6, held: 0.6}

// count adds the i-th last iteration of a worker to the evidence. A second long one in a row is no evidence of pauses:
// that is how steady slowness begins.
func (d *Detector) count(w *watch, i int, others habits) {
	now, last := w.back(i), &sample{}
	if i+1 < len(w.window) {
		last = w.back(i + 1)
	}
	for l := range views {
		now.beyond[l] = d.isBeyond(now, l)
		before := 0
		if last.beyond[l] {
			before = 1
		}
		if !w.slow {
			w.beyonds[l][before].add(now.beyond[l], memory)
		}
		p0 := others.beyonds[l][before]
		p1 := max(slower[l], min(5*p0, (1+p0)/2))
		if !now.beyond[l] {
			p0, p1 = 1-p0, 1-p1
		}
		w.behind[l].add(now.step, p0, p1, now.weight(), d.cfg.Certain)
	}

	p0 := others.longs
	p1 := max(suspected, min(5*p0, (1+p0)/2))
	switch {
	case w.long(now) && w.long(last):
	case w.long(now):
		if w.pauses.add(now.step, p0, p1, now.weight(), d.cfg.Certain); now.step > w.hit+seldom {
			w.pauses.from = now.step
		}
		w.hit = now.step
	default:
		w.pauses.add(now.step, 1-p0, 1-p1, now.weight(), d.cfg.Certain)
	}

	if !d.cfg.Stops {
		return
	}
	if !w.slow {
		w.halted.add(now.halted(d.cfg.Ratio), memory)
	}
	p0 = others.halted
	p1 = max(stopped, min(5*p0, (1+p0)/2))
	if !now.halted(d.cfg.Ratio) {
		p0, p1 = 1-p0, 1-p1
	}
	w.halts.add(now.step, p0, p1, now.weight(), d.cfg.Certain)
}

// halted reports whether the process stood still for more than a share of an iteration.
func (s *sample) halted(share float64) bool {
	still, _ := s.rec.Telemetry.Get(star.Stalled)
	return still > share
}

// begin opens an episode of slowness of a worker, with its kept samples. For a worker that is stopped occasionally,
// only the stops count.
func (d *Detector) begin(w *watch, id star.Worker, since int64, pauses, halts bool) {
	w.slow, w.verdict, w.stops = true, Verdict{Since: since}, halts
	d.slow = append(d.slow, id)
	w.again, w.doubt, w.spell, w.calm = evidence{}, rate{}, rate{}, rate{}
	w.bad, w.good = profile{}, profile{}
	w.mean, w.others = 0, d.ref.avg
	n := 0
	for i := len(w.window) - 1; i >= 0; i-- {
		s := w.back(i)
		if s.step < since {
			continue
		}
		n++
		w.mean += (s.own - w.mean) / float64(n)
		w.spell.add(s.beyond[past], memory)
		if (s.beyond[past] || pauses && w.long(s)) && (!halts || s.halted(d.cfg.Ratio)) {
			w.bad.add(s)
		}
	}
	for _, i := range d.ref.members {
		if o := &d.workers[i]; i != int(id) {
			for j := min(max(n, d.cfg.Recent), len(o.window)) - 1; j >= 0; j-- {
				w.good.add(o.back(j))
			}
		}
	}
	for i := min(n, len(w.window)) - 1; i >= 0; i-- {
		w.calm.add(w.calmly(w.back(i)), memory)
	}
}

// calmly reports whether an iteration of a slow worker is like those of the others: no longer, and no more off the
// processor.
func (w *watch) calmly(s *sample) bool {
	if s.beyond[past] || w.good.n == 0 {
		return false
	}
	cpu, ok := s.rec.Telemetry.Get(star.ComputeCPU)
	usual := w.good.mean(star.ComputeCPU)
	return !ok || math.IsNaN(usual) || cpu >= 0.85*usual
}

// reconsider checks whether a slow worker still is slow, updates the numbers of its verdict, and detects a change of
// its cause. The test is that of count in reverse: usual is the rate at which it was beyond the fast ones while it was
// slow, of all records before those against it, and suspected the rate of the others. Where these rates are so close
// that the test does not decide, the rates themselves do (alike), and the means (near).
func (d *Detector) reconsider(w *watch, id star.Worker, step int64, others habits) []Event {
	now := w.back(0)
	own := now.own
	if n := float64(now.rec.Samples); n > 0 && n < w.good.samples { // a slow worker that gets fewer samples is not faster
		own += (now.part[load] + now.part[compute]) * (w.good.samples/n - 1)
		now.beyond[past] = own > d.beyond(d.ref.level, leniency)
	}
	share := now.weight() / lasts
	w.mean += share * (own - w.mean)
	w.others += share * (d.ref.avg - w.others)
	w.doubt.add(now.beyond[past], memory)
	p0 := min(max(w.spell.least(), 0.05), 0.8)
	p1 := min(max(others.beyond, 0.02), p0-distinct)
	if !now.beyond[past] {
		p0, p1 = 1-p0, 1-p1
	}
	if w.again.add(step, p0, p1, now.weight(), d.cfg.Certain); w.again.sum == 0 {
		w.spell.k, w.spell.n = w.spell.k*(1-w.doubt.n/memory), w.spell.n*(1-w.doubt.n/memory)
		w.spell.join(w.doubt)
		w.doubt = rate{}
	}
	alike := w.doubt.atMost(others.beyond) || w.spell.atMost(others.beyond+distinct)
	near := 0.25
	if w.again.sum >= d.cfg.Certain/2 {
		near = 0.5
	}
	if w.again.sum >= d.cfg.Certain || alike || w.mean < d.beyond(w.others, near) {
		w.slow, w.behind, w.pauses, w.halts = false, [views]evidence{}, evidence{}, evidence{}
		d.recovered(id)
		w.verdict.Step, w.verdict.Until = step, max(w.again.from, w.verdict.Since+1)
		return []Event{{Kind: Recovered, Worker: id, Step: step, Verdict: w.told()}}
	}
	w.calm.add(w.calmly(now), memory)
	if !now.beyond[past] || w.stops && !now.halted(d.cfg.Ratio) {
		return nil
	}
	w.bad.add(now)
	was := w.grounds
	v := d.verdict(w, id, step)
	if v.Cause == w.verdict.Cause || v.Cause == Unknown {
		if v.Cause == Unknown { // a known cause stays
			v.Cause, w.grounds = w.verdict.Cause, was
		}
		w.verdict, w.turn = v, 0
		return nil
	}
	if v.Cause != w.turned {
		w.turn, w.turned = 0, v.Cause
	}
	if w.turn++; w.turn < lasting {
		w.grounds = was
		return nil
	}
	w.verdict, w.turn = v, 0
	return []Event{{Kind: Changed, Worker: id, Step: step, Verdict: w.told()}}
}

// lasts is the number of observations in the mean of a slow worker: when the mean is hardly above that of the fast ones
// for this long, the worker has recovered, independent of single iterations. Hardly is much less than what makes a
// worker slow: else one that is a little slower all the time would be slow again and again by chance.
const lasts = 40

// distinct is by how much two rates must differ for a test between them.
const distinct = 0.03

// lasting is how many records in a row must speak for another cause.
const lasting = 4

// verdict describes a slow worker and keeps its grounds; the evidence is computed when it is
// reported.
func (d *Detector) verdict(w *watch, id star.Worker, step int64) Verdict {
	v := Verdict{Worker: id, Step: step, Since: w.verdict.Since, Slowdown: 1}
	if w.good.own > 0 {
		v.Slowdown += w.spell.or(rate{}) * max(w.bad.own/w.good.own-1, 0)
	}
	w.grounds = grounds{bad: w.bad, ref: w.good, calm: w.calm.or(rate{0, 1}), last: len(w.window)}
	for i := range w.window {
		if w.window[i].beyond[past] {
			w.grounds.beyond++
		}
	}
	v.Cause, _, _ = w.grounds.attribute()
	return v
}

// told returns the verdict with its evidence.
func (w *watch) told() Verdict {
	v := w.verdict
	v.Evidence = w.grounds.evidence()
	return v
}
