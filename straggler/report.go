package straggler

import (
	"math"
	"time"

	"star"
)

// Score is how well a forecaster did on a job.
type Score struct {
	Name string

	// LogError is the mean |ln predicted/seen| of one step ahead; 0.1 is off by about
	// 10 %.
	LogError float64
	n        int

	// Workers judges workers one by one, one step ahead: is this one a straggler in the
	// next iteration, (t − min)/min > ratio? Jobs asks, as the artefact does, whether there
	// will be any.
	Workers, Jobs Confusion

	// Onsets are iterations in which a worker becomes a straggler. Foreseen were predicted one step ahead; Lead is the
	// mean number of iterations over all onsets since which they were predicted without interruption, at most the horizon.
	Onsets, Foreseen int
	Lead             float64
}

// Aligned puts the records of a job into iterations: element i has every worker's record
// of its i-th step, in the order of the workers. Iterations that lack a worker or have an
// impossible record are left out. Workers are 0 to n−1.
func Aligned(records []star.Record, n int, timer Timer) [][]star.Record {
	byStep := map[int64]int{}
	var steps [][]star.Record
	var count []int
	for _, r := range records {
		if !usable(&r, n, timer) {
			continue
		}
		i, ok := byStep[r.Step]
		if !ok {
			i = len(steps)
			byStep[r.Step] = i
			steps, count = append(steps, make([]star.Record, n)), append(count, 0)
		}
		if timer(steps[i][r.Worker]) == 0 {
			count[i]++
		}
		steps[i][r.Worker] = r
	}
	var out [][]star.Record
	for i, s := range steps {
		if count[i] == n {
			out = append(out, s)
		}
	}
	return out
}

// stragglers marks the stragglers, by the artefact's definition.
func stragglers(times []time.Duration, ratio float64) (slow []bool, any bool) {
	slow = make([]bool, len(times))
	least := time.Duration(math.MaxInt64)
	for _, t := range times {
		if t > 0 {
			least = min(least, t)
		}
	}
	for w, t := range times {
		slow[w] = float64(t) > (1+ratio)*float64(least)
		any = any || slow[w]
	}
	return slow, any
}

// Evaluate passes the iterations of a job to forecasters and scores, from iteration from
// on, their earlier predictions. The horizon is the number of predicted steps.
func Evaluate(steps [][]star.Record, from, horizon int, ratio float64, timer Timer, fs ...Entrant) []Score {
	scores := make([]Score, len(fs))
	said := make([][][][]bool, len(fs)) // [forecaster][made at][step ahead][worker]
	var before []bool
	for t, recs := range steps {
		times := make([]time.Duration, len(recs))
		for w, r := range recs {
			times[w] = timer(r)
		}
		truth, any := stragglers(times, ratio)
		for i, f := range fs {
			s := &scores[i]
			s.Name = f.Name
			if t >= from && t > 0 {
				p := f.Predict()
				slow, some := stragglers(p, ratio)
				s.Jobs.Add(some, any)
				for w := range recs {
					s.Workers.Add(slow[w], truth[w])
					if p[w] > 0 {
						s.LogError += math.Abs(math.Log(p[w].Seconds() / times[w].Seconds()))
						s.n++
					}
					if truth[w] && !before[w] {
						s.Onsets++
						lead := 0
						for k := 1; k <= min(horizon, t); k++ { // predicted at the end of iteration t−k
							if fc := said[i][t-k]; fc == nil || !fc[k-1][w] {
								break
							}
							lead = k
						}
						if lead > 0 {
							s.Foreseen++
						}
						s.Lead += float64(lead)
					}
				}
			}
			for _, r := range recs {
				f.Observe(r)
			}
			var fc [][]bool
			if t+1 >= from-horizon {
				for _, ts := range f.Ahead(horizon) {
					slow, _ := stragglers(ts, ratio)
					fc = append(fc, slow)
				}
			}
			said[i] = append(said[i], fc)
			if t > horizon {
				said[i][t-horizon] = nil // not needed any more
			}
		}
		before = truth
	}
	for i := range scores {
		s := &scores[i]
		s.LogError /= float64(max(s.n, 1))
		s.Lead /= float64(max(s.Onsets, 1))
	}
	return scores
}
