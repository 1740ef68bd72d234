package coord

import (
	"math"
	"time"

	"star"
	"star/coord/advisor"
	"star/coord/engine"
	"star/modes"
	"star/runlog"
)

// The job in numbers: as it is now (Status), and what it has come to (runlog.Result). Both are made of
// what the coordinator knows anyway; nothing is asked of members for them.

// Status is the job now: the answer to `star ctl status`. Field names are those of the JSON, and
// stay. Seconds, samples and bytes; what is not known is 0 or null.
// Phases follow one another: joining until the training begins, training, evaluating and saving at the
// end, over. Waiting names whom everybody waits for now, in words; "nobody" where nobody is waited for.
// A job that was taken over counts from its first coordinator's beginning.
type Status struct {
	Job       string        `json:"job"`
	Phase     string        `json:"phase"` // joining, training, evaluating, saving, over
	Waiting   string        `json:"waiting_for"`
	Mode      string        `json:"mode"`
	Version   int64         `json:"version"`
	Samples   int64         `json:"samples"`
	Limit     int64         `json:"limit"`
	Params    int64         `json:"params"`
	EpochSize int64         `json:"epoch_size"`
	Elapsed   float64       `json:"elapsed_s"`
	Loss      runlog.Number `json:"train_loss"`
	TestLoss  runlog.Number `json:"test_loss"`
	TestAcc   float64       `json:"test_accuracy"`
	Rate      float64       `json:"samples_per_s"`
	Switches  int           `json:"switches"`

	// Efficiency is how fast the workers are, in samples, as a part of what they would be if nobody
	// exchanged or waited; 0: not known.
	Efficiency float64 `json:"scaling_efficiency,omitempty"`

	Short      int      `json:"short,omitempty"`      // it waits, because it has fewer workers than these; 0: it does not
	Auto       bool     `json:"auto"`                 // a pilot changes the mode
	Stragglers []string `json:"stragglers,omitempty"` // what it says of slow workers
	Refused    *Refusal `json:"refused,omitempty"`    // what it wants, and may not; nil: nothing

	Noise   NoiseStatus    `json:"noise"`
	Workers []WorkerStatus `json:"workers"`
	Servers []ServerStatus `json:"servers"`
	Shift   *ShiftStatus   `json:"move_shards,omitempty"` // with --move-shards auto
	Shards  []ShardStatus  `json:"shards,omitempty"`
}

// Refusal is a mode that the pilot has asked for and was refused.
type Refusal = advisor.Refusal

// NoiseStatus is how noisy gradients are: see package pgns.
type NoiseStatus struct {
	Scale        float64 `json:"scale"` // φ in samples; 0: not known
	Grad2        float64 `json:"grad2"`
	Var          float64 `json:"var"`
	Mixed        bool    `json:"mixed"` // of gradients of different versions: too much
	Observations int64   `json:"observations"`
}

// WorkerStatus is one line of the live table. Times are in seconds: Iteration, Busy and Own are means over the last iterations, Compute and Wait are the last one's.
// States: absent (nobody has had the rank), joining, computing, waiting (its gradient is there, and the
// update is not), parked (no batch is left for it), gone. What a worker has not measured is 0.
type WorkerStatus struct {
	Worker    int     `json:"worker"`
	Peer      string  `json:"peer"`
	State     string  `json:"state"` // absent, joining, computing, waiting, parked, gone
	Step      int64   `json:"step"`
	Iteration float64 `json:"iteration_s"`
	Busy      float64 `json:"busy_s"` // of it, without waiting for others
	Compute   float64 `json:"compute_s"`
	Wait      float64 `json:"wait_s"`
	CPU       float64 `json:"cpu"` // processor time of the process for each second of the last iteration
	Rate      float64 `json:"samples_per_s"`
	Stale     int64   `json:"staleness"`
	PushDelay float64 `json:"push_delay_s,omitempty"` // how long its next push waits for others
	Slowdown  float64 `json:"slowdown,omitempty"`     // own time over that of the fast ones; 0: the pilot does not call it slow, or there is none
	Cause     string  `json:"cause,omitempty"`        // why it is slow

	Poison map[string]int64 `json:"poison,omitempty"` // gradients that were left out, by cause

	Site   string  `json:"site,omitempty"`    // its host, as servers name theirs
	Own    float64 `json:"own_s,omitempty"`   // loading and computing, of an iteration
	NetIn  float64 `json:"net_in,omitempty"`  // bytes of parameters of its last iteration
	NetOut float64 `json:"net_out,omitempty"` // and of its gradient

	Telemetry map[string]float64 `json:"telemetry,omitempty"` // of the last record, by name
}

// words is a plan as people read it: as somebody has given it, or, in a ring, by its riders; else
// in its own. The plan in force is what counts; words are only taken where they mean the same.
func (c *Coordinator) words(p modes.Plan) string {
	if c.auto.Enabled() && p.Parents == nil { // plant has taken the wish for a tree from it
		if asked, err := modes.Parse(c.given, c.cfg.Workers); err == nil {
			p.AutoTree = asked.AutoTree
		}
	}
	own := p.String()
	s := p.Words(c.given)
	if s == own && own != c.given {
		if spec := c.arch.spec(p); spec != "" {
			return p.Words(spec)
		}
	}
	return s
}

// summarise completes the result and writes the last line of the run log. It is called once, also
// for a job that has failed before it began. Rates are over the training, without joining and the
// last evaluation.
func (c *Coordinator) summarise(err error) {
	c.open()
	r := &c.result
	r.Workers, r.Shards, r.Switches = c.members.Count(), len(c.shards), c.stats.Switches
	r.Mode = c.words(c.cfg.Plan)
	if err != nil {
		r.Error = err.Error()
	}
	if c.stats.NoLoss() {
		r.TrainLoss = runlog.Number(math.NaN())
	}
	if l := c.engine; l != nil {
		r.Mode = c.words(l.Plan())
		c.putAside()
		now := l.State()
		c.stats.Result(r, time.Now(), now.Used, now.Waste, l.Staleness())
	}
	c.cfg.RunLog.Write(c.elapsed(), runlog.Summary{Result: *r})
}

// status is what star ctl and the metrics show now. It changes nothing, and is there in every
// phase: before the start there is no engine to ask.
func (c *Coordinator) status() Status {
	s := Status{
		Job: c.cfg.Job, Phase: "joining", Waiting: c.missing(), Mode: c.words(c.cfg.Plan), Elapsed: c.elapsed().Seconds(),
		Loss: runlog.Number(c.stats.Loss()), TestLoss: c.result.TestLoss, TestAcc: c.result.TestAccuracy, Switches: c.stats.Switches,
		Auto: c.pilot.Running() && !c.manual, Stragglers: c.verdicts.Texts(), Refused: c.permits.Refused(),
	}
	s.Servers, s.Shards = c.placed()
	s.Shift = c.shiftStatus()
	n := c.noise.Noise()
	s.Noise = NoiseStatus{Scale: n.Scale, Grad2: n.Grad2, Var: n.Var, Mixed: n.Mixed, Observations: n.Observations}
	l := c.engine
	var now engine.State
	if l != nil {
		now = l.State()
		s.Phase, s.Mode, s.Version = "training", c.words(l.Plan()), now.Version
		s.Samples, s.Limit, s.EpochSize, s.Params = now.Used, c.expected(), c.members.Terms.Enrolled().Samples, c.members.Terms.Hello().Params
		s.Rate = c.stats.Rate(time.Now(), now.Used)
		switch {
		case c.ended:
			s.Phase = "over"
		case c.rounds.Final() && c.saves.Open():
			s.Phase = "saving"
		case c.rounds.Final():
			s.Phase = "evaluating"
		}
	}
	s.Efficiency = c.scaling().Efficiency()
	if c.short() {
		s.Short = c.least()
	}
	for i := range c.workers {
		s.Workers = append(s.Workers, c.workerStatus(i, now))
	}
	return s
}

// scaling is how fast the workers are now, by their last iterations.
func (c *Coordinator) scaling() modes.Scaling {
	var own, iteration []time.Duration
	var samples []int
	for _, p := range c.workers {
		if p != nil && !p.measured.Recent.Empty() {
			own = append(own, time.Duration(p.measured.Own.Mean()*float64(time.Second)))
			iteration = append(iteration, time.Duration(p.measured.Recent.Mean()*float64(time.Second)))
			samples = append(samples, p.last.Samples)
		}
	}
	return modes.ScalingOf(own, iteration, samples)
}

// worthAfter is after how many updates it is said if one worker alone would be as fast as all.
const worthAfter = 50

// worth says it.
func (c *Coordinator) worth() {
	if s := c.scaling(); s.Ideal > 0 && !s.Worth() && c.members.Count() > 1 {
		c.log.Info("one worker alone would be as fast", "workers", c.members.Count(), "samples_per_s", int64(s.All), "alone", int64(s.Alone), "scaling_efficiency", round4(s.Efficiency()),
			"hint", "fewer workers, larger batches (--batch), --compress, or a faster link")
	}
}

// workerStatus is that of the worker of a rank. It has numbers only while somebody has the rank,
// and the job trains.
func (c *Coordinator) workerStatus(i int, now engine.State) WorkerStatus {
	p, l := c.workers[i], c.engine
	w := WorkerStatus{Worker: i, State: "absent"}
	switch {
	case p == nil && l != nil:
		if c.members.Seen(i) {
			w.State = "gone"
		}
		for _, q := range c.late {
			if q.rank == i && !q.gone {
				w.Peer, w.State = q.conn.RemoteAddr(), "joining"
			}
		}
	case p != nil:
		w.Peer, w.State = p.conn.RemoteAddr(), "joining"
	}
	if p != nil && l != nil {
		a := l.Worker(star.Worker(i))
		w.Step = a.Step
		for cause, n := range c.poisonings[i] {
			if w.Poison == nil {
				w.Poison = map[string]int64{}
			}
			w.Poison[cause.String()] = n
		}
		w.State = "computing"
		switch {
		case a.Stopped:
			w.State = "waiting"
		case a.Parked:
			w.State = "parked"
		case a.Waiting:
			w.State = "waiting"
		}
		w.Slowdown, w.Cause = c.verdicts.Of(star.Worker(i))
		w.Iteration, w.Busy = p.measured.Recent.Mean(), p.measured.Busy.Mean()
		w.Compute, w.Wait = p.last.Compute.Seconds(), p.last.Wait.Seconds()
		if v := p.last.CPU; v-v == 0 {
			w.CPU = v
		}
		w.Telemetry = named(&p.last.Telemetry)
		if c.cfg.Shift {
			w.Site, w.Own, w.NetIn, w.NetOut = c.site(p), p.measured.Own.Mean(), p.last.NetIn, p.last.NetOut
		}
		w.Stale = max(now.Version-a.Basis, 0) // a ring is released one round ahead
		w.PushDelay = c.pacer.Delay(i).Seconds()
		if w.Iteration > 0 {
			w.Rate = float64(p.last.Samples) / w.Iteration
		}
	}
	return w
}

// named are the metrics that were measured, by name; nil if there are none.
func named(t *star.Telemetry) map[string]float64 {
	if t.Seen == 0 {
		return nil
	}
	m := map[string]float64{}
	for k := range star.NumMetrics {
		if v, ok := t.Get(k); ok {
			m[k.String()] = v
		}
	}
	return m
}
