package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"star/modes"
	"star/modes/price"
	"star/train/optim"
)

// pricedTasks are what samples are counted on: real data where $STAR_DATA or shared/data above has them, else generated
// ones. The rates are those of plain SGD.
func pricedTasks(b *testing.B) []TTATask {
	dirs := []string{os.Getenv("STAR_DATA"), "../shared/data", "../../shared/data", "../../../shared/data"}
	found := func(file, spec, made string) string {
		for _, dir := range dirs {
			if list, _ := filepath.Glob(filepath.Join(dir, file)); dir != "" && len(list) > 0 {
				return fmt.Sprintf(spec, dir)
			}
		}
		b.Logf("no %s: generated data", file)
		return made
	}
	digits := found("mnist/train-images-idx3-ubyte*", "mnist:%s/mnist", "digits")
	text := found("tinyshakespeare/input.txt", "chars:%s/tinyshakespeare/input.txt,window=32", "babble:window=32")
	return []TTATask{
		{Name: "softmax", Model: "softmax", Dataset: digits, Tests: 500, Rates: []float64{0.05, 0.1, 0.2}},
		{Name: "mlp", Model: "mlp:hidden=64", Dataset: digits, Tests: 500, Rates: []float64{0.05, 0.1, 0.2}},
		{Name: "lenet", Model: "lenet:width=0.5", Dataset: digits, Tests: 250, Rates: []float64{0.1, 0.2, 0.4}},
		{Name: "conv", Model: "lenet:width=0.5", Dataset: "shapes", Tests: 250, Rates: []float64{0.1, 0.2, 0.4}},
		{Name: "text", Model: "lstm:layers=1,hidden=48,embed=16", Dataset: text, Tests: 64, Rates: []float64{4, 8, 16}},
	}
}

// smoothedLoss is the course of the loss: the mean logarithm over runs and over three looks.
func smoothedLoss(ws []*lossWatch) []float64 {
	n := math.MaxInt
	for _, w := range ws {
		n = min(n, len(w.losses))
	}
	logs := make([]float64, n)
	for _, w := range ws {
		for i := range n {
			logs[i] += math.Log(w.losses[i]) / float64(len(ws))
		}
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = (logs[max(i-1, 0)] + logs[i] + logs[min(i+1, n-1)]) / 3
	}
	return out
}

// crosses is after how many looks a course is first at a level; false: never.
func crosses(course []float64, level float64) (float64, bool) {
	for i := 1; i < len(course); i++ {
		if a, b := course[i-1], course[i]; b <= level {
			if a <= level {
				return float64(i), true
			}
			return float64(i) + (a-level)/(a-b), true
		}
	}
	return float64(len(course)), false
}

// samplesOver is how many samples the courses a need of those that b needs: the geometric mean over 12 levels of the
// loss, from where b is after a fifth of the run to the lowest that it gets, but for the last tenth of the way. missed
// is the part of levels that a does not get to; these count as if it did at the end.
func samplesOver(a, b []*lossWatch) (ratio, missed float64) {
	course, ref := smoothedLoss(a), smoothedLoss(b)
	if len(ref) < 6 || len(course) < 2 {
		return math.NaN(), 1
	}
	from, to := ref[len(ref)/5], ref[len(ref)/5]
	for _, x := range ref {
		to = min(to, x)
	}
	const levels = 12
	sum := 0.0
	for k := range levels {
		level := from + (to-from)*0.9*float64(k+1)/levels
		x, ok := crosses(course, level)
		y, _ := crosses(ref, level)
		if !ok {
			missed += 1. / levels
		}
		sum += math.Log(x/y) / levels
	}
	return math.Exp(sum), missed
}

// BenchmarkPrice measures what the prices of docs/theory.md are compared with: the samples that plans need of those
// that SSGD needs, at the same learning rate, of 8 workers with mini-batches of 8 that take the same times but for 5 %;
// by task, optimiser and rate. After the plan is what (19) says with (26) at the ν that SSGD was measured to have, and
// without it. ν and θ are the means from the fifth look on. One iteration (-benchtime 1x) is all of it.
func BenchmarkPrice(b *testing.B) {
	const n, batch, rounds, looks, seeds = 8, 8, 160, 32, 4
	times := make([]time.Duration, n)
	for w := range times {
		times[w] = 600 * time.Millisecond
	}
	for _, task := range pricedTasks(b) {
		for _, optimizer := range []string{optim.SGD, optim.Momentum, optim.Nesterov, optim.DANA, optim.Adam, optim.Muon} {
			for k := range 3 {
				own := optim.Config{Name: optimizer, LR: task.Rates[k]}
				switch optimizer {
				case optim.SGD:
				case optim.Adam, optim.Muon:
					own.LR = []float64{0.001, 0.002, 0.004}[k]
				default:
					own.Momentum = 0.9
					own.LR *= 1 - own.Momentum
				}
				b.Run(fmt.Sprintf("%s/%s/lr=%.3g", task.Name, optimizer, own.LR), func(b *testing.B) {
					for range b.N {
						runs := func(mode string) (ws []*lossWatch) {
							for seed := uint64(1); seed <= seeds; seed++ {
								ws = append(ws, lossRun{task: task, rounds: rounds, looks: looks, scenario: "workers: 8\njitter: 0.05\n", mode: mode, batch: batch, own: own, seed: seed}.run(b))
							}
							return ws
						}
						ref := runs("ssgd")
						theta, nu, scale, count := 0.0, 0.0, 0.0, 0.0
						for _, w := range ref {
							for i := 4; i < len(w.theta); i++ {
								theta, scale, count = theta+w.theta[i], scale+w.scales[i], count+1
								nu += price.Steepness(w.theta[i], w.scales[i], n*batch, own.Memory())
							}
						}
						theta, nu, scale = theta/count, nu/count, scale/count
						if own.Memory() == 0 {
							nu = 0
						}
						b.ReportMetric(theta, "θ")
						b.ReportMetric(nu, "ν")
						b.ReportMetric(scale, "φ")
						b.ReportMetric(math.Exp(smoothedLoss(ref)[len(ref[0].losses)-1]), "loss")
						for _, mode := range []string{"x=7", "x=4", "asgd"} {
							p, err := modes.Parse(mode, n)
							if err != nil {
								b.Fatal(err)
							}
							said := func(nu float64) float64 {
								f := price.Forecast{Times: times, Batch: batch, Noise: scale, Steepness: nu}
								a, err := price.Of(p, f)
								if err != nil {
									b.Fatal(err)
								}
								s, err := price.Of(modes.SSGD(n), f)
								if err != nil {
									b.Fatal(err)
								}
								pace, err := price.PaceOf(p, times)
								if err != nil {
									b.Fatal(err)
								}
								rate := pace.Gradients / pace.Interval.Seconds() / (n / times[0].Seconds()) // samples a second, of SSGD's
								return a.Cost.Seconds() / s.Cost.Seconds() * rate
							}
							ratio, missed := samplesOver(runs(mode), ref)
							b.ReportMetric(ratio, mode)
							b.ReportMetric(missed, mode+"-missed")
							b.ReportMetric(said(nu), mode+"-said")
							b.ReportMetric(said(0), mode+"-θ-alone")
						}
					}
				})
			}
		}
	}
}

// BenchmarkFixedLength measures the samples that ASGD needs of those of SSGD, at the same learning rate, with steps
// that have a length of their own: those of Muon, which scales them by the share of a round, and of Adam, which does
// not. 4 or 8 workers have mini-batches of 64 samples together, 5 seeds; otherwise as BenchmarkPrice.
func BenchmarkFixedLength(b *testing.B) {
	const round, rounds, looks, seeds = 64, 160, 32, 5
	for _, task := range pricedTasks(b) {
		for _, n := range []int{4, 8} {
			for _, optimizer := range []string{optim.Muon, optim.Adam} {
				for _, rate := range []float64{0.001, 0.002, 0.004, 0.008} {
					b.Run(fmt.Sprintf("%s/%d/%s/lr=%.3g", task.Name, n, optimizer, rate), func(b *testing.B) {
						for range b.N {
							runs := func(mode string) (ws []*lossWatch) {
								for seed := uint64(1); seed <= seeds; seed++ {
									ws = append(ws, lossRun{task: task, rounds: rounds, looks: looks, scenario: fmt.Sprintf("workers: %d\njitter: 0.05\n", n),
										mode: mode, batch: round / n, own: optim.Config{Name: optimizer, LR: rate}, seed: seed}.run(b))
								}
								return ws
							}
							ref := runs("ssgd")
							ratio, missed := samplesOver(runs("asgd"), ref)
							b.ReportMetric(ratio, "asgd")
							b.ReportMetric(missed, "asgd-missed")
							b.ReportMetric(math.Exp(smoothedLoss(ref)[len(ref[0].losses)-1]), "loss")
						}
					})
				}
			}
		}
	}
}
