package placement

import (
	"fmt"
	"math"
	"time"
)

// Running is a job that trains, with what was measured of it: enough to say how long a round (one gradient of
// each worker) would take if a shard were on another server.
//
// Demand is taken at the pace of computation. What passes a full link is no demand: it never measures above 1,
// however much waits in front of it.
type Running struct {
	Sites   []Site
	Servers []int  // the site of each, by rank; -1: no shard goes there
	Workers []int  // the site of each that is there
	Shards  []Part // by number

	Compute  time.Duration // of a round, without exchange: of the slowest worker if Together, else of the median one
	Together bool          // every update waits for all workers

	Plan  string        // in force: what was seen under another one is not compared
	Round time.Duration // as seen lately
	Done  int64         // rounds so far
	Left  time.Duration // until the end of the job at that pace; 0: it has no end
}

// Site is a host of a running job.
type Site struct {
	Name    string
	In, Out float64 // bytes per second that its link leaves to this job; +Inf: not known to be limited
	Seen    float64 // at which gradients from other hosts came in there, in bytes per second; 0: not seen
	CPU     float64 // cores that it leaves to the job's servers; +Inf: not known
	Memory  float64 // bytes that are free; +Inf: not known
}

// Part is a shard of a running job.
type Part struct {
	Server           int     // rank of the one that has it
	Gradient, Params float64 // bytes that come from each worker, and go to it, in a round
	State            float64 // bytes that a move copies
	CPU              float64 // processor seconds of a round
}

const (
	// local is at which rate gradients and parameters pass within a host, in bytes per second: what star bench ps
	// measures over loopback, and not more.
	local = 1e9

	// leastCores is what a host leaves to a server at least: schedulers let nobody starve.
	leastCores = 0.05
)

// rates are at which gradients come in at each site, and parameters go out. A host is as fast as it was seen to
// be, and no faster than its link leaves. Where no shard was yet, as fast in parts of what its link leaves as the best host
// that was seen; without a known link, as fast as that one.
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

// phases are what a round with the shards at these servers consists of: pushing and pulling on the busiest link,
// updating on the busiest server's host, in seconds.
type phases struct{ push, pull, update float64 }

func (r *Running) phases(at []int) phases {
	in, out := r.rates()
	n := len(r.Sites)
	workers := make([]float64, n) // at each site
	for _, w := range r.Workers {
		workers[w]++
	}
	total := float64(len(r.Workers))
	var grads, params, cpu, shards = make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n) // of the shards at each
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
		return bytes / rate // +Inf where the link leaves nothing
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

// Reckon is how long a round takes by the model, with shard i at server at[i]. With Together its parts follow
// each other:
//
//	compute + push + pull + update
//
// where each of the latter is that of the busiest host. Else workers go round each for itself, and one's exchange passes
// while others compute, so that either a worker with an exchange of its own or the busiest host decides:
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

// Owners are the servers that have the shards.
func (r *Running) Owners() []int {
	var at []int
	for _, p := range r.Shards {
		at = append(at, p.Server)
	}
	return at
}

// Validate names the first thing in r that makes no sense.
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

// Shift is a move of a shard that is proposed, or what became of it.
type Shift struct {
	Shard    int
	From, To int           // ranks of servers
	Gain     float64       // share of a round's time that it saves, predicted
	Cost     time.Duration // the time of the copy, and of the pause
	Why      string
}

// ShiftConfig says when a move pays. Zero fields mean what their comments say.
type ShiftConfig struct {
	Least    float64       // gain below which nothing moves. Zero: 0.05
	Margin   float64       // how many times its cost a move has to save in the rest of the job. Zero: 3
	Pause    time.Duration // what a move costs besides the copying. Zero: 0.5 s
	Horizon  time.Duration // what counts as the rest of a job without end, and of a longer one. Zero: 1 h
	Patience int           // looks in a row that have to find the same move. Zero: 3
	Rounds   int64         // that have to pass after a move or a change of plan until what is seen counts. Zero: 20
	Settle   time.Duration // and how long that is at least. Zero: 3 s
	Dwell    time.Duration // from a move to the next one, at least. Zero: 30 s
	Share    float64       // of the gain predicted that has to be seen, else the shard goes back. Zero: 1/4
	Ban      time.Duration // for how long such a move is not tried again; twice as long each time. Zero: 10 min
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

// Price is the move that saves most in the rest of the job, and false if none pays. allowed may forbid moves; nil: none.
//
// What the model and what is seen differ by is taken to stay: the gain is what the model saves of what is seen,
//
//	gain = (reckoned now − reckoned then)/seen · min(1, seen/reckoned now)
//
// so that a model that is too slow predicts no more than its part, and one that is too fast no more than what it knows of.
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
				continue // within a host nothing is gained
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
			best.Why = fmt.Sprintf("a round takes %s, of which computing %s; by what was measured of the hosts' links and processors it takes %.0f %% less with shard %d on %s in place of %s; saves %s of %s for %s",
				short(r.Round), short(r.Compute), 100*gain, i, r.Sites[h].Name, r.Sites[from].Name, short(time.Duration(saves*float64(time.Second))), short(rest), short(best.Cost))
		}
	}
	return best, ok
}

// ShiftAction is what a Shifter wants.
type ShiftAction uint8

const (
	Stay ShiftAction = iota // nothing
	Go                      // the move is to be carried out; Shifter.Moved says what became of it
	Kept                    // the last move was looked at: it brought what it was to, or there is no telling
	Back                    // it did not: it is to be undone; Shifter.Moved says what became of that
)

// Shifter decides when shards of a running job move, and looks whether that paid. It is told the time,
// and used by one goroutine.
type Shifter struct {
	cfg ShiftConfig

	plan    string
	since   time.Duration // the plan, or the last move: what is seen counts from then on
	from    int64         // rounds done then
	begun   bool
	last    Shift // the one found by the looks before
	times   int   // how many looks in a row
	rounds  []float64
	pending *Shift // Go or Back was said, Moved was not heard
	back    bool   // pending is a Back

	judged *Shift // moved, and not looked at yet
	before float64
	asOf   string // the plan under which that was
	banned map[[2]int]ban
	moved  time.Duration // the last one
	any    bool          // there was one
}

type ban struct {
	until time.Duration
	times int
}

// NewShifter makes a Shifter.
func NewShifter(c ShiftConfig) *Shifter {
	return &Shifter{cfg: c.filled(), banned: map[[2]int]ban{}}
}

// Look takes in what is seen at a time, since the job began, and says what is to be done. With Go and Back the Shift says which server the shard
// is to go to; with Kept and Back seen is the share of a round's time that the last move has saved, NaN where that cannot be
// told. While a move is under way it says Stay.
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
		if s.asOf != s.plan { // another mode: nothing to compare with
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
			return Kept, *m, seen // somebody else has moved it, or there is no way back
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

// begin forgets what was seen.
func (s *Shifter) begin(now time.Duration, r Running) {
	s.begun, s.plan, s.since, s.from, s.times, s.rounds = true, r.Plan, now, r.Done, 0, s.rounds[:0]
}

// Moved says what became of the move that Look has asked for. One that has failed is not tried again for a while.
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
