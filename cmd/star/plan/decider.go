package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/cmd/internal/cli"
	"star/internal/durable"
	"star/internal/settings"
	"star/modes"
	"star/modes/price"
	"star/runlog"
	"star/sim"
)

// deciderReport is the quality of a decider on data that it was not trained on.
type deciderReport struct {
	File      string `json:"file"`
	Lessons   int    `json:"lessons"`
	Recorded  int    `json:"recorded"` // of the lessons
	Scenes    int    `json:"held_out"`
	Unreached int    `json:"unreached"` // scenes that were left out: SSGD did not reach the target

	// Mean and worst time to the target over held-out scenes, as a multiple of the best mode's
	// in hindsight.
	Learned   [2]float64 `json:"learned"`
	Cheapest  [2]float64 `json:"cheapest"`
	Published [2]float64 `json:"published"`
	SSGD      [2]float64 `json:"ssgd"`
	Fallbacks int        `json:"fallbacks"` // scenes in which the learned one did not know

	// Root mean square errors of the logarithm of the ratio to SSGD.
	ErrorLearned  float64 `json:"error_learned"`
	ErrorCheapest float64 `json:"error_cheapest"`
}

func deciderCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decider",
		Short: "Train a decider that learns what modes cost",
		Args:  settings.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	s := new(settings.Set)
	var out string
	var scenes int
	var seed uint64
	var asJSON bool
	settings.Var(s, &out, "out", "decider.json", "where to write it")
	settings.Var(s, &scenes, "simulated", 300, "simulated clusters to learn from; a quarter are held out to compare on")
	settings.Var(s, &seed, "seed", 1, "of the simulated clusters")
	settings.Var(s, &asJSON, "json", false, "the report as JSON on standard output")
	train := &cobra.Command{
		Use:   "train [RUNLOG …]",
		Short: "Learn from simulated clusters and recorded runs",
		Long: `Learns what modes cost from simulated clusters, in which quadratics are trained under the production barrier, and from
run logs in which the mode was changed. Writes a file for star plan --decider, and compares it on held-out clusters with the price, the published
heuristic and SSGD. A decider that is not better than the price is of no use: look at the report.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if scenes < 0 || scenes > 100_000 {
				return s.Invalid("simulated", fmt.Errorf("want 0 to 100000"))
			}
			r, err := trainDecider(args, out, scenes, seed)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			r.print(tw)
			return tw.Flush()
		},
	}
	cli.Bind(train, s)
	cmd.AddCommand(train)
	return cmd
}

// scene is a simulated cluster with what modes took on it.
type scene struct {
	f     price.Forecast
	plans []price.Candidate
	took  []float64 // of ssgd
}

// unsteady workers jitter by a lognormal factor that depends on worker and step alone.
type unsteady struct {
	mean   []time.Duration
	jitter float64
	seed   uint64
}

func (u unsteady) Workers() int { return len(u.mean) }

func (u unsteady) Spend(w nouns.Worker, step int64, _ time.Duration, load float64) sim.Spent {
	r := rand.New(rand.NewPCG(u.seed^uint64(w)<<40, uint64(step)))
	t := load * u.mean[w].Seconds() * math.Exp(u.jitter*r.NormFloat64()-u.jitter*u.jitter/2)
	return sim.Spent{Compute: max(1, time.Duration(t*float64(time.Second)))}
}

// play makes scene k. reached is false if SSGD did not get anywhere.
func play(seed uint64, k int) (sc scene, reached bool, err error) {
	rng := rand.New(rand.NewPCG(seed, uint64(k)))
	n := 2 + rng.IntN(9)
	const batch = 16
	u := unsteady{jitter: 0.2 * rng.Float64(), seed: rng.Uint64()}
	for range n {
		u.mean = append(u.mean, time.Duration(float64(100*time.Millisecond)*(1+0.1*rng.Float64())))
	}
	for range rng.IntN(3) {
		w := rng.IntN(n)
		u.mean[w] = time.Duration(float64(u.mean[w]) * (1.2 + 3.8*rng.Float64()))
	}
	condition := math.Pow(10, 1+2*rng.Float64())
	sigma, rate := math.Pow(10, -1+2*rng.Float64()), math.Pow(10, -1.5+1.5*rng.Float64())
	q := sim.NewQuadratic(20, condition, sigma, rate, 0)
	q.Begin(n, n*batch)
	sc.f = price.Forecast{Times: u.mean, Batch: batch, Noise: q.Noise()}
	take := func(p modes.Plan) (s float64, ok bool, err error) {
		const runs = 2
		for i := range uint64(runs) {
			u := u
			u.seed += i
			r, err := sim.Run(sim.Config{Times: u, Plan: p, Batch: batch, Target: 0.4, Limit: 3 * time.Minute,
				Learner: sim.NewQuadratic(20, condition, sigma, rate, seed+i)})
			if err != nil || !r.Reached {
				return 0, false, err
			}
			s += r.Time.Seconds() / runs
		}
		return s, true, nil
	}
	ssgd, reached, err := take(modes.SSGD(n))
	if err != nil || !reached {
		return sc, false, err
	}
	cs, err := price.Candidates(sc.f)
	if err != nil {
		return sc, false, err
	}
	for _, c := range cs {
		x := c.X
		if c.Kind == price.KindRing {
			x = len(c.Plan.Groups[0].Riders)
		}
		if c.Plan.Shares != nil || c.Kind == price.KindStatic && x != n-1 && x != n/2 && x != 2 || c.Kind == price.KindRing && x > 2 {
			continue
		}
		t, ok, err := 1.0, true, error(nil)
		if c.Kind != price.KindSSGD {
			t, ok, err = take(c.Plan)
			t /= ssgd
		}
		if err != nil {
			return sc, false, err
		}
		if !ok {
			t = 10 // it never gets there, or much later
		}
		sc.plans, sc.took = append(sc.plans, c), append(sc.took, t)
	}
	return sc, true, nil
}

func trainDecider(logs []string, out string, scenes int, seed uint64) (*deciderReport, error) {
	r := &deciderReport{File: out}
	var lessons []price.Lesson
	for _, path := range logs {
		ls, err := recordedLessons(path)
		if err != nil {
			return nil, err
		}
		r.Recorded += len(ls)
		lessons = append(lessons, ls...)
	}
	var held []scene
	for k := range scenes {
		sc, reached, err := play(seed, k)
		switch {
		case err != nil:
			return nil, err
		case !reached:
			r.Unreached++
		case k%4 == 3:
			held = append(held, sc)
		default:
			for i, c := range sc.plans {
				if c.Kind != price.KindSSGD {
					lessons = append(lessons, price.Lesson{Forecast: sc.f, Plan: c.Plan, Ratio: sc.took[i]})
				}
			}
		}
	}
	d, err := price.Learn(lessons, 1)
	if err != nil {
		return nil, &settings.UsageError{Msg: err.Error()}
	}
	r.Lessons, r.Scenes = len(lessons), len(held)
	if err := r.compare(d, held); err != nil {
		return nil, err
	}
	text, err := d.AppendTo(nil)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(out, text, 0o644); err != nil {
		return nil, err
	}
	return r, nil
}

// compare runs all choices on held-out scenes.
func (r *deciderReport) compare(d *price.Learned, held []scene) error {
	var squares [2]float64
	count := 0
	for _, sc := range held {
		tried := func(p modes.Plan) int {
			return slices.IndexFunc(sc.plans, func(c price.Candidate) bool { return c.Plan.Equal(p) })
		}
		best := slices.Min(sc.took)
		note := func(to *[2]float64, i int) {
			v := sc.took[i] / best
			to[0] += v / float64(len(held))
			to[1] = max(to[1], v)
		}
		cheap := 0 // plans are in order of cost
		note(&r.Cheapest, cheap)
		note(&r.SSGD, tried(modes.SSGD(len(sc.f.Times))))
		c, _, why, err := d.Choose(sc.f, func(c price.Candidate) bool { return tried(c.Plan) >= 0 })
		switch {
		case err != nil:
			return err
		case why != "":
			r.Fallbacks++
			note(&r.Learned, cheap)
		default:
			note(&r.Learned, tried(c.Plan))
		}
		pub, err := price.Publish(sc.f)
		if err != nil {
			return err
		}
		// Among the measured ones, the nearest to the choice of the published heuristic.
		x, at := pub.X, 0
		for i, c := range sc.plans {
			if (c.Kind == price.KindStatic || c.Kind == price.KindASGD || c.Kind == price.KindSSGD) &&
				(sc.plans[at].X == 0 || abs(c.X-x) < abs(sc.plans[at].X-x)) {
				at = i
			}
		}
		note(&r.Published, at)
		for i, c := range sc.plans {
			if c.Kind == price.KindSSGD {
				continue
			}
			_, ratio, why, err := d.Choose(sc.f, func(e price.Candidate) bool { return e.Plan.Equal(c.Plan) })
			if err != nil {
				return err
			}
			if why != "" {
				continue
			}
			ssgd := sc.plans[tried(modes.SSGD(len(sc.f.Times)))].Cost.Seconds()
			squares[0] += math.Pow(math.Log(ratio/sc.took[i]), 2)
			squares[1] += math.Pow(math.Log(c.Cost.Seconds()/ssgd/sc.took[i]), 2)
			count++
		}
	}
	if count > 0 {
		r.ErrorLearned, r.ErrorCheapest = math.Sqrt(squares[0]/float64(count)), math.Sqrt(squares[1]/float64(count))
	}
	return nil
}

func abs(x int) int { return max(x, -x) }

func (r *deciderReport) print(w io.Writer) {
	fmt.Fprintf(w, "%d lessons, %d of recorded runs; %d clusters held out, %d never reached the target\n\n", r.Lessons, r.Recorded, r.Scenes, r.Unreached)
	fmt.Fprintf(w, "time to the target, as a multiple of the best mode's\tmean\tworst\n")
	for _, l := range []struct {
		name string
		v    [2]float64
	}{{"learned", r.Learned}, {"cheapest by price", r.Cheapest}, {"published (nearest x)", r.Published}, {"ssgd", r.SSGD}} {
		fmt.Fprintf(w, "%s\t%.3f\t%.3f\n", l.name, l.v[0], l.v[1])
	}
	fmt.Fprintf(w, "\nerror of the logarithm of costs: learned %.3f, price %.3f; outside its range in %d clusters\n", r.ErrorLearned, r.ErrorCheapest, r.Fallbacks)
	verdict := "better than the price"
	if r.Learned[0] >= r.Cheapest[0] {
		verdict = "not better than the price: star plan without --decider is the better choice"
	}
	fmt.Fprintf(w, "on average %s\nwritten to %s\n", verdict, r.File)
}

// recordedLessons reads what modes cost in a recorded run: of each plan that was there for
// 30 updates, the samples applied in a second, against those that its price assumes.
func recordedLessons(path string) ([]price.Lesson, error) {
	f, err := cli.OpenRun(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var s segment
	read, err := runlog.Read(f, path, func(l runlog.Line) error {
		if err := s.line(l); err != nil {
			return &runlog.Error{Name: path, Line: l.Number, Err: err}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if lacks := read.Missing.Means("modes that were in force only then teach nothing"); lacks != "" {
		cli.Notice(path, lacks)
	}
	if s.workers == 0 {
		return nil, &runlog.Error{Name: path, Line: 1, Err: errors.New("no line of type train: the training has not begun")}
	}
	return s.lessons, s.end()
}

// segment is the part of a run under one plan, and the lessons of those before it.
type segment struct {
	workers int
	limit   int64 // samples of the job
	plan    modes.Plan
	noise   float64     // scale, in samples; 0: not known yet
	times   [][]float64 // by worker: seconds of its iterations
	samples []float64   // of them
	fires   int
	t0, t1  time.Duration // of the first and the last update
	s0, s1  int64         // samples applied then

	lessons []price.Lesson
}

// line takes a line in. An error: the job has more workers than a plan can be found for, or a plan cannot be read.
func (s *segment) line(l runlog.Line) error {
	switch e := l.Entry.(type) {
	case runlog.Train:
		if e.Workers > maxPlanned {
			return fmt.Errorf("%d workers, at most %d can be learned from", e.Workers, maxPlanned)
		}
		s.workers, s.limit = e.Workers, e.Limit
		return s.begin(e.Plan)
	case runlog.Plan:
		if err := s.end(); err != nil {
			return err
		}
		return s.begin(e.Plan)
	case runlog.Record:
		if t := e.Load + e.Compute + e.Push + e.Pull; t > 0 && e.Samples > 0 {
			s.times[e.Worker] = append(s.times[e.Worker], t.Seconds())
			s.samples = append(s.samples, float64(e.Samples))
		}
	case runlog.Noise:
		if !e.Scale.IsZero() {
			s.noise = float64(e.Scale)
		}
	case runlog.Fire:
		if s.fires++; s.fires == 1 {
			s.t0, s.s0 = l.T, e.Samples
		}
		s.t1, s.s1 = l.T, e.Samples
	}
	return nil
}

// begin has the plan of these words be in force.
func (s *segment) begin(plan string) (err error) {
	s.times, s.samples, s.fires = make([][]float64, s.workers), nil, 0
	s.plan, err = modes.Parse(plan, s.workers)
	return err
}

// end makes a lesson of the segment, if there is one in it.
func (s *segment) end() error {
	ssgd := modes.SSGD(s.workers)
	if s.fires < 30 || s.t1 <= s.t0 || s.plan.Equal(ssgd) || slices.ContainsFunc(s.times, func(ts []float64) bool { return len(ts) == 0 }) {
		return nil
	}
	fc := price.Forecast{Batch: int(max(mid(s.samples), 1)), Noise: s.noise, Shares: s.plan.Shares, Phase: min(float64(s.s1)/float64(max(s.limit, 1)), 1)}
	for _, ts := range s.times {
		fc.Times = append(fc.Times, time.Duration(mid(ts)*float64(time.Second)))
	}
	c, err := price.Of(s.plan, fc)
	if err != nil {
		return err
	}
	base, err := price.Of(ssgd, fc)
	if err != nil {
		return err
	}
	seen := float64(s.s1-s.s0) / (s.t1 - s.t0).Seconds()
	s.lessons = append(s.lessons, price.Lesson{Forecast: fc, Plan: s.plan, Ratio: c.Cost.Seconds() / base.Cost.Seconds() * c.Rate() / seen})
	return nil
}

func mid(vs []float64) float64 {
	s := slices.Clone(vs)
	slices.Sort(s)
	return s[len(s)/2]
}
