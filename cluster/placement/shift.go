package placement

import (
	"fmt"
	"math"
	"time"
)

// Running is a job that trains, with measurements that suffice to predict the time of a round (one gradient of each
// worker) with a shard on another server.
//
// Demand is taken at the pace of computation. What passes a full link does not show the demand: it never measures above
// 1, regardless of the backlog.
type Running struct {
	Sites   []Site
	Servers []int  // site of each, by rank; -1: not available for shards
	Workers []int  // site of each live worker
	Shards  []Part // by number

	Compute  time.Duration // of a round without exchange: of the slowest worker if Together, else of the median worker
	Together bool          // every update waits for all workers

	Plan  string        // in force: measurements under another one are not compared
	Round time.Duration // measured recently
	Done  int64         // rounds so far
	Left  time.Duration // until the end of the job at that pace; 0: no end
}

// Site is a host of a running job.
type Site struct {
	Name    string
	In, Out float64 // bytes per second of its link that are available to this job; +Inf: no known limit
	Seen    float64 // measured rate of gradients from other hosts, in bytes per second; 0: not measured
	CPU     float64 // cores available to the job's servers; +Inf: unknown
	Memory  float64 // free bytes; +Inf: unknown
}

// Part is a shard of a running job.
type Part struct {
	Server           int     // rank of its server
	Gradient, Params float64 // bytes from and to each worker in a round
	State            float64 // bytes that a move copies
	CPU              float64 // processor seconds of a round
}

const (
	// local is the rate of gradients and parameters within a host, in bytes per second: the rate that star bench ps
	// measures over loopback.
	local = 1e9

	// leastCores is a lower bound of a server's cores on a host: schedulers let no process starve.
	leastCores = 0.05
)

// rates are the rates of incoming gradients and outgoing parameters at each site: the measured rate, limited by the
// free rate of the link. A site without a shard so far has the same share of its link's free rate as the best measured
// site; without a known link, the same rate.
func (r *Running) rates() (in, out []float64) {
	best, part := 0.0, 0.0
	for _, s := range r.Sites {
		if s.Seen > 0 {
			best = max(best, s.Seen)
			if !math.IsInf(s.In, 1) && s.In > 0 {
				part = max(part, min(1, s.Seen/s.In))
			}
		}
	}
	guess := func(free float64) float64 {
		switch {
		case best == 0:
			return free
		case math.IsInf(free, 1):
			return best
		case part == 0:
			return min(free, best)
		}
		return free * part
	}
	for _, s := range r.Sites {
		i, o := guess(s.In), guess(s.Out)
		if s.Seen > 0 {
			i, o = min(s.In, s.Seen), min(s.Out, s.Seen)
		}
		in, out = append(in, i), append(out, o)
	}
	return in, out
}

// phases are the parts of a round with the shards at these servers: pushing and pulling on the busiest link, updating
// on the busiest server's host, in seconds.
type phases struct{ push, pull, update float64 }

func (r *Running) phases(at []int) phases {
	in, out := r.rates()
	n := len(r.Sites)
	workers := make([]float64, n) // at each site
	for _, w := range r.Workers {
		workers[w]++
	}
	total := float64(len(r.Workers))
	// of the shards at each
	var grads, params, cpu, shards = make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	var allGrads, allParams float64
	for i, p := range r.Shards {
		h := r.Servers[at[i]]
		grads[h], params[h], cpu[h], shards[h] = grads[h]+p.Gradient, params[h]+p.Params, cpu[h]+p.CPU, shards[h]+1
		allGrads, allParams = allGrads+p.Gradient, allParams+p.Params
	}
	var ph phases
	over := func(bytes, rate float64) float64 {
		if bytes == 0 {
			return 0
		}
		return bytes / rate // +Inf if the link has no free rate
	}
	for h, s := range r.Sites {
		far, near := total-workers[h], workers[h]
		ph.push = max(ph.push, over(grads[h]*far, in[h])+grads[h]*near/local, over(near*(allGrads-grads[h]), s.Out))
		ph.pull = max(ph.pull, over(params[h]*far, out[h])+params[h]*near/local, over(near*(allParams-params[h]), s.In))
		if cpu[h] > 0 {
			ph.update = max(ph.update, cpu[h]/max(min(s.CPU, shards[h]), leastCores))
		}
	}
	return ph
}

// Reckon predicts the time of a round with shard i at server at[i]. With Together the parts are sequential:
//
//	compute + push + pull + update
//
// where each of the last three is that of the busiest host. Else workers are independent, and one exchanges while
// others compute, so the limit is either a worker with its own exchange or the busiest host:
//
//	max(compute + (push + pull + update)/N, push, pull, update)
func (r *Running) Reckon(at []int) time.Duration {
	p := r.phases(at)
	c := r.Compute.Seconds()
	t := c + p.push + p.pull + p.update
	if !r.Together {
		t = max(c+(p.push+p.pull+p.update)/float64(max(len(r.Workers), 1)), p.push, p.pull, p.update)
	}
	return time.Duration(min(t, 1e6) * float64(time.Second))
}

// Owners are the servers of the shards.
func (r *Running) Owners() []int {
	var at []int
	for _, p := range r.Shards {
		at = append(at, p.Server)
	}
	return at
}

// Validate returns an error for the first invalid field of r.
func (r *Running) Validate() error {
	for _, s := range r.Sites {
		for _, x := range []float64{s.In, s.Out, s.Seen, s.CPU, s.Memory} {
			if !(x >= 0) {
				return fmt.Errorf("placement: site %s: %+v", s.Name, s)
			}
		}
		if math.IsInf(s.Seen, 1) {
			return fmt.Errorf("placement: site %s was seen at an infinite rate", s.Name)
		}
	}
	site := func(h, least int) bool { return h >= least && h < len(r.Sites) }
	for i, h := range r.Servers {
		if !site(h, -1) {
			return fmt.Errorf("placement: server %d is at site %d of %d", i, h, len(r.Sites))
		}
	}
	for i, h := range r.Workers {
		if !site(h, 0) {
			return fmt.Errorf("placement: worker %d is at site %d of %d", i, h, len(r.Sites))
		}
	}
	for i, p := range r.Shards {
		if p.Server < 0 || p.Server >= len(r.Servers) || r.Servers[p.Server] < 0 {
			return fmt.Errorf("placement: shard %d is at server %d of %d, or that is nowhere", i, p.Server, len(r.Servers))
		}
		for _, x := range []float64{p.Gradient, p.Params, p.State, p.CPU} {
			if !(x >= 0) || math.IsInf(x, 1) {
				return fmt.Errorf("placement: shard %d: %+v", i, p)
			}
		}
	}
	if r.Compute < 0 || r.Round < 0 || r.Left < 0 {
		return fmt.Errorf("placement: negative time in %v, %v, %v", r.Compute, r.Round, r.Left)
	}
	return nil
}

// Shift is a proposed move of a shard, or the result of one.
type Shift struct {
	Shard    int
	From, To int           // ranks of servers
	Gain     float64       // predicted saving, as a share of a round's time
	Cost     time.Duration // time of copy and pause
	Why      string
}

// ShiftConfig configures when a move pays. A zero field has the default in its comment.
type ShiftConfig struct {
	Least    float64       // smallest gain of a move. Zero: 0.05
	Margin   float64       // required ratio of saving in the rest of the job to cost. Zero: 3
	Pause    time.Duration // cost of a move in addition to the copying. Zero: 0.5 s
	Horizon  time.Duration // upper limit of the rest of a job. Zero: 1 h
	Patience int           // consecutive looks that must find the same move. Zero: 3
	Rounds   int64         // rounds after a move or a change of plan before measurements count. Zero: 20
	Settle   time.Duration // minimum time of these rounds. Zero: 3 s
	Dwell    time.Duration // minimum time between two moves. Zero: 30 s
	Share    float64       // share of the predicted gain that must be measured, else the shard moves back. Zero: 1/4
	Ban      time.Duration // time before such a move is tried again; doubles each time. Zero: 10 min
}

func (c ShiftConfig) filled() ShiftConfig {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Least == 0 {
		c.Least = 0.05
	}
	if c.Margin == 0 {
		c.Margin = 3
	}
	if c.Patience == 0 {
		c.Patience = 3
	}
	if c.Rounds == 0 {
		c.Rounds = 20
	}
	if c.Share == 0 {
		c.Share = 0.25
	}
	or(&c.Pause, time.Second/2)
	or(&c.Horizon, time.Hour)
	or(&c.Settle, 3*time.Second)
	or(&c.Dwell, 30*time.Second)
	or(&c.Ban, 10*time.Minute)
	return c
}

// Price is the move that saves most in the rest of the job; false if no move pays. allowed may forbid moves; nil: none.
//
// The difference between model and measurement is assumed to be constant: the gain is the model's saving relative to
// the measured time,
//
//	gain = (reckoned now − reckoned then)/seen · min(1, seen/reckoned now)
//
// so a model that is too slow predicts no more than its own share, and one that is too fast no more than it explains.
func (c ShiftConfig) Price(r Running, allowed func(shard, to int) bool) (Shift, bool) {
	c = c.filled()
	at := r.Owners()
	now := r.Reckon(at).Seconds()
	seen := r.Round.Seconds()
	if !(now > 0 && seen > 0) {
		return Shift{}, false
	}
	rest := r.Left
	if rest == 0 || rest > c.Horizon {
		rest = c.Horizon
	}
	in, out := r.rates()
	best, most, ok := Shift{}, 0.0, false
	for i, p := range r.Shards {
		from := r.Servers[p.Server]
		for to, h := range r.Servers {
			if h < 0 || h == from || r.Sites[h].Memory < 2*p.State || allowed != nil && !allowed(i, to) {
				continue // no gain within a host
			}
			at[i] = to
			then := r.Reckon(at).Seconds()
			at[i] = p.Server
			gain := (now - then) / seen * min(1, seen/now)
			rate := min(out[from], in[h])
			cost := c.Pause.Seconds()
			if p.State > 0 {
				cost += p.State / rate
			}
			saves := gain * rest.Seconds()
			if gain < c.Least || !(saves >= c.Margin*cost) || saves-cost <= most {
				continue
			}
			ok, most = true, saves-cost
			best = Shift{Shard: i, From: p.Server, To: to, Gain: gain, Cost: time.Duration(cost * float64(time.Second))}
			best.Why = fmt.Sprintf("a round takes %s, computing %s of it; by the measured speeds of the hosts' links and processors it takes %.0f %% less with shard %d on %s in place of %s; saves %s of %s for %s",
				short(r.Round), short(r.Compute), 100*gain, i, r.Sites[h].Name, r.Sites[from].Name, short(time.Duration(saves*float64(time.Second))), short(rest), short(best.Cost))
		}
	}
	return best, ok
}

// ShiftAction is the action that a Shifter requests.
type ShiftAction uint8

const (
	Stay ShiftAction = iota // no action
	Go                      // carry out the move, and report the result with Shifter.Moved
	Kept                    // the last move was checked: it brought its gain, or this is unknown
	Back                    // it did not: undo it, and report the result with Shifter.Moved
)

// Shifter decides when shards of a running job move, and checks whether that paid. The caller passes the time. It is
// not safe for concurrent use.
type Shifter struct {
	cfg ShiftConfig

	plan    string
	since   time.Duration // time of the plan or the last move: later measurements count
	from    int64         // rounds done at since
	begun   bool
	last    Shift // the move that the previous looks found
	times   int   // consecutive looks that found it
	rounds  []float64
	pending *Shift // returned with Go or Back; Moved was not called yet
	back    bool   // pending is a Back

	judged *Shift // moved, not checked yet
	before float64
	asOf   string // the plan at that time
	banned map[[2]int]ban
	moved  time.Duration // time of the last move
	any    bool          // a shard was moved
}

type ban struct {
	until time.Duration
	times int
}

// NewShifter makes a Shifter.
func NewShifter(c ShiftConfig) *Shifter {
	return &Shifter{cfg: c.filled(), banned: map[[2]int]ban{}}
}

// Look takes the measurements at a time since the start of the job, and returns the next action. With Go and Back the
// Shift names the new server of the shard; with Kept and Back seen is the measured saving of the last move as a share
// of a round's time, NaN if unknown. During a move it returns Stay.
func (s *Shifter) Look(now time.Duration, r Running) (do ShiftAction, which Shift, seen float64) {
	nan := math.NaN()
	if s.pending != nil {
		return Stay, Shift{}, nan
	}
	if !s.begun || r.Plan != s.plan {
		s.begin(now, r)
	}
	if now-s.since < s.cfg.Settle || r.Done-s.from < s.cfg.Rounds || r.Round <= 0 {
		return Stay, Shift{}, nan
	}
	s.rounds = append(s.rounds, r.Round.Seconds())
	if len(s.rounds) > s.cfg.Patience {
		s.rounds = s.rounds[1:]
	}
	if len(s.rounds) < s.cfg.Patience {
		return Stay, Shift{}, nan
	}
	if m := s.judged; m != nil {
		s.judged = nil
		if s.asOf != s.plan { // another mode: no comparison is possible
			return Kept, *m, nan
		}
		seen = 1 - mean(s.rounds)/s.before
		if seen >= s.cfg.Share*m.Gain {
			return Kept, *m, seen
		}
		key := [2]int{m.Shard, m.To}
		b := s.banned[key]
		s.banned[key] = ban{now + s.cfg.Ban<<min(b.times, 10), b.times + 1}
		undo := Shift{Shard: m.Shard, From: m.To, To: m.From, Gain: m.Gain, Cost: m.Cost,
			Why: fmt.Sprintf("it was to save %.0f %% of a round's time and saved %.0f %%", 100*m.Gain, 100*seen)}
		if r.Shards[m.Shard].Server != m.To || r.Servers[m.From] < 0 {
			return Kept, *m, seen // it was moved by another decision, or its old server is gone
		}
		s.pending, s.back = &undo, true
		return Back, undo, seen
	}
	if s.any && now-s.moved < s.cfg.Dwell {
		return Stay, Shift{}, nan
	}
	r.Round = time.Duration(mean(s.rounds) * float64(time.Second))
	m, ok := s.cfg.Price(r, func(shard, to int) bool { return now >= s.banned[[2]int{shard, to}].until })
	if !ok {
		s.times = 0
		return Stay, Shift{}, nan
	}
	if s.times == 0 || m.Shard != s.last.Shard || m.To != s.last.To {
		s.times = 0
	}
	s.last = m
	if s.times++; s.times < s.cfg.Patience {
		return Stay, Shift{}, nan
	}
	s.pending, s.back, s.before, s.asOf = &m, false, r.Round.Seconds(), r.Plan
	return Go, m, nan
}

// begin discards measurements.
func (s *Shifter) begin(now time.Duration, r Running) {
	s.begun, s.plan, s.since, s.from, s.times, s.rounds = true, r.Plan, now, r.Done, 0, s.rounds[:0]
}

// Moved reports the result of the move that Look requested. A failed move is not tried again for a while.
func (s *Shifter) Moved(now time.Duration, r Running, failed error) {
	m := s.pending
	if m == nil {
		return
	}
	s.pending = nil
	s.moved, s.any = now, true
	s.begin(now, r)
	switch {
	case failed != nil:
		key := [2]int{m.Shard, m.To}
		b := s.banned[key]
		s.banned[key] = ban{now + s.cfg.Ban<<min(b.times, 10), b.times + 1}
	case !s.back:
		s.judged = m
	}
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}
