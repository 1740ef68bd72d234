package bench

import (
	"fmt"
	"testing"

	"star/train/optim"
)

// BenchmarkLocal is what bench/RESULTS.md says of local steps: rounds of samples to a loss on the test samples, of 8
// workers that are equally fast, by the number of steps between two exchanges. Means are of 3 seeds and of looks 16
// rounds apart, when all have just exchanged. Steps are those of the baseline local-sgd, which are those of the plan
// ssgd local=H. One iteration (-benchtime 1x) is all of it.
func BenchmarkLocal(b *testing.B) {
	for _, t := range []struct {
		task  string
		batch int
		loss  float64
		rates []float64 // of plain SGD; a tenth with momentum 0.9
	}{
		{"digits", 8, 0.5, []float64{0.1, 0.2}}, {"images", 8, 0.5, []float64{0.1, 0.2}}, {"text", 4, 1.6, []float64{4, 8}},
	} {
		for _, mu := range []float64{0, 0.9} {
			for _, rate := range t.rates {
				for _, steps := range []int{1, 2, 4, 8, 16} {
					b.Run(fmt.Sprintf("%s/momentum=%v/lr=%v/local=%d", t.task, mu, rate, steps), func(b *testing.B) {
						for range b.N {
							made, err := FindTTATask(t.task, "")
							if err != nil {
								b.Fatal(err)
							}
							own := optim.Config{LR: rate * (1 - mu)}
							if mu > 0 {
								own.Name, own.Momentum = optim.Momentum, mu
							}
							mode := "ssgd"
							if steps > 1 {
								mode = fmt.Sprintf("local-sgd:steps=%d", steps)
							}
							var ws []*lossWatch
							for seed := uint64(1); seed <= 3; seed++ {
								ws = append(ws, lossRun{task: made, rounds: 400, looks: 25, scenario: "workers: 8\n", mode: mode, batch: t.batch, own: own, seed: seed}.run(b))
							}
							looks, _ := reaches(ws, t.loss)
							b.ReportMetric(looks*16, "rounds")
						}
					})
				}
			}
		}
	}
}
