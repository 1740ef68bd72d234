package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"star/job/process"
	"star/modes/auto"
	"star/modes/price"
	"star/sim"
	"star/train/optim"
)

// lossWatch follows the loss on the test samples in a run.
type lossWatch struct {
	*watched
	net    *netTask
	noise  *sim.Noise
	every  int64 // samples between looks
	due    bool
	losses []float64
	times  []float64 // seconds
	theta  []float64 // (22) at each of them
	scale  float64
	scales []float64
}

// Update implements sim.Learner.
func (w *lossWatch) Update(version int64, gs []sim.Gradient) sim.Outcome {
	o := w.watched.Update(version, gs)
	if s, _, _, ok := w.noise.Fired(version, gs, o); ok {
		w.scale = s
	}
	w.due = w.used >= w.every*int64(len(w.losses)+1)
	return o
}

// Fired implements sim.Pilot.
func (w *lossWatch) Fired(at time.Duration, version int64, gs []sim.Gradient, o sim.Outcome) {
	if w.due {
		copy(w.net.model.Params(), w.Params())
		r, _ := w.net.model.Eval(context.Background(), w.net.test)
		theta, _, _ := w.noise.Bound()
		w.losses, w.times = append(w.losses, r.LossSum/float64(r.Count)), append(w.times, at.Seconds())
		w.theta, w.scales = append(w.theta, theta), append(w.scales, w.scale)
	}
	w.watched.Fired(at, version, gs, o)
}

// lossRun is a run at a constant learning rate in which the loss is watched.
type lossRun struct {
	task          TTATask
	rounds, looks int // of samples; at the loss
	scenario      string
	mode          string
	batch         int // of a worker
	own           optim.Config
	seed          uint64
	untold        bool // auto is not told of the momentum
}

// digits is LeNet on generated digits for 240 rounds.
func digits(b *testing.B, scenario, mode string, batch int, own optim.Config, seed uint64, untold bool) *lossWatch {
	made, err := FindTTATask("digits", "")
	if err != nil {
		b.Fatal(err)
	}
	made.Model = "lenet"
	return lossRun{task: made, rounds: 240, looks: 24, scenario: scenario, mode: mode, batch: batch, own: own, seed: seed, untold: untold}.run(b)
}

func (r lossRun) run(b *testing.B) *lossWatch {
	task, err := openTask(r.task)
	if err != nil {
		b.Fatal(err)
	}
	net, err := task.build(context.Background(), r.batch, r.seed)
	if err != nil {
		b.Fatal(err)
	}
	defer net.model.Close()
	s, err := sim.ParseScenario("scenario", []byte(r.scenario))
	if err != nil {
		b.Fatal(err)
	}
	c, err := s.Config(nil, r.seed)
	if err != nil {
		b.Fatal(err)
	}
	n := c.Times.Workers()
	round := int64(n * r.batch)
	learner := &sim.Trained{Task: net, Every: math.MaxInt}
	c.Learner, c.Batch, c.Target, c.Limit = learner, r.batch, 1, time.Hour
	if err := c.Use(r.mode, process.Shaped(r.own, net.model.Layout())); err != nil {
		b.Fatal(err)
	}
	if r.untold {
		if c.Pilot, err = sim.NewAuto(auto.Config{Workers: n, Batch: r.batch}, c.Plan); err != nil {
			b.Fatal(err)
		}
	}
	w := &lossWatch{watched: &watched{Trained: learner, target: 2, budget: int64(r.rounds) * round, pilot: c.Pilot}, net: net, every: int64(r.rounds/r.looks) * round}
	if w.noise, err = sim.NewNoise(n, r.batch); err != nil {
		b.Fatal(err)
	}
	c.Learner, c.Pilot = w, w
	if _, err := sim.Run(c); err != nil && !errors.Is(err, sim.ErrDiverged) {
		b.Fatal(err)
	}
	return w
}

// reaches says when the loss, the geometric mean of runs and of three looks, is so much: after how many looks,
// interpolated in its logarithm, and at what time. NaN: it never is.
func reaches(ws []*lossWatch, loss float64) (looks, seconds float64) {
	n := math.MaxInt
	for _, w := range ws {
		n = min(n, len(w.losses))
	}
	logs, times := make([]float64, n), make([]float64, n)
	for _, w := range ws {
		for i := range n {
			logs[i] += math.Log(w.losses[i]) / float64(len(ws))
			times[i] += w.times[i] / float64(len(ws))
		}
	}
	smooth := func(i int) float64 {
		return (logs[max(i-1, 0)] + logs[i] + logs[min(i+1, n-1)]) / 3
	}
	target := math.Log(loss)
	for i := 1; i < n; i++ {
		if a, b := smooth(i-1), smooth(i); b < target {
			part := (a - target) / (a - b)
			return float64(i) + part, times[i-1] + part*(times[i]-times[i-1])
		}
	}
	return math.NaN(), math.NaN()
}

// BenchmarkMomentum is what bench/RESULTS.md says of momentum 0.9: rounds of samples and seconds of virtual time to a
// loss of 0.25 on the test samples, by mode and learning rate, of 8 workers with mini-batches of 16; one worker is 3
// times as slow. It also reports ν in SSGD, by the bound of (22): its mean from the 50th round to the one at which that
// loss is reached. One iteration (-benchtime 1x) is all of it.
func BenchmarkMomentum(b *testing.B) {
	const mu = 0.9
	for _, optimizer := range []string{optim.Momentum, optim.DANA} {
		for _, lr := range []float64{0.01, 0.02, 0.04} {
			for _, mode := range []string{"ssgd", "groups=0-5,7+6", "x=7", "x=6", "x=4", "x=2", "asgd", "auto-untold", "auto"} {
				b.Run(fmt.Sprintf("%s/lr=%v/%s", optimizer, lr, mode), func(b *testing.B) {
					for range b.N {
						var ws []*lossWatch
						for seed := uint64(1); seed <= 2; seed++ {
							name, untold := strings.CutSuffix(mode, "-untold")
							ws = append(ws, digits(b, "workers: 8\njitter: 0.05\ntimes: {6: 1800ms}\n", name, 16, optim.Config{Name: optimizer, LR: lr, Momentum: mu}, seed, untold))
						}
						looks, seconds := reaches(ws, 0.25)
						b.ReportMetric(looks*10, "rounds")
						b.ReportMetric(seconds, "virtual-s")
						if mode == "ssgd" && optimizer == optim.Momentum {
							nu, k := 0.0, 0.0
							for _, w := range ws {
								for i := 4; i < len(w.theta) && float64(i) < looks; i++ {
									nu, k = nu+price.Steepness(w.theta[i], w.scales[i], 8*16, mu), k+1
								}
							}
							b.ReportMetric(nu/k, "ν")
						}
					}
				})
			}
		}
	}
}

// BenchmarkMemory is ASGD of 4 workers, one of them 3 times as slow, with more and less momentum and the same gain η/(1
// − μ): the loss on the test samples, the geometric mean of the second half of 240 rounds and of 2 seeds.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct {
		mode string
		mu   float64
	}{{"ssgd", .9}, {"asgd", .9}, {"asgd", .974}, {"asgd", .5}, {"asgd", 0}} {
		b.Run(fmt.Sprintf("%s/momentum=%v", c.mode, c.mu), func(b *testing.B) {
			for range b.N {
				sum, k := 0.0, 0.0
				for seed := uint64(1); seed <= 2; seed++ {
					own := optim.Config{LR: 0.2 * (1 - c.mu)}
					if c.mu > 0 {
						own.Name, own.Momentum = optim.Momentum, c.mu
					}
					w := digits(b, "workers: 4\njitter: 0.05\ntimes: {2: 1800ms}\n", c.mode, 32, own, seed, false)
					for _, l := range w.losses[len(w.losses)/2:] {
						sum, k = sum+math.Log(l), k+1
					}
				}
				b.ReportMetric(math.Exp(sum/k), "loss")
			}
		})
	}
}
