package workload

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"star/sched"
)

// onPowers has jobs run on 1, 2, 4 … GPUs, each for as long on as many as it asks for as its duration says.
func onPowers(jobs []*sched.Job, r *rand.Rand) {
	for _, j := range jobs {
		rates := []float64{1}
		for l := range bits.Len(uint(j.GPUs)) + r.IntN(3) - 1 {
			rates = append(rates, rates[l]*(1+r.Float64()))
		}
		j.Rates, j.Batch = rates, 64
		j.Iterations = math.Ceil(j.Duration * rates[min(len(rates), bits.Len(uint(j.GPUs)))-1])
	}
}

// work is what a job has done, s of its duration or iterations, and how long it had GPUs.
func work(o *sched.Outcome, elastic bool) (done, ran float64) {
	for i, s := range o.Steps {
		if s.GPUs == 0 || i == len(o.Steps)-1 {
			continue
		}
		d := o.Steps[i+1].At - s.At
		if ran += d; elastic {
			done += d * o.Rates[bits.Len(uint(s.GPUs))-1]
		} else {
			done += d
		}
	}
	return done, ran
}

// mostOf is how many GPUs are in use at most.
func mostOf(out []sched.Outcome) (most float64) {
	type change struct{ at, by float64 }
	var changes []change
	for _, o := range out {
		had := 0.
		for _, s := range o.Steps {
			changes, had = append(changes, change{s.At, s.GPUs - had}), s.GPUs
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	used := 0.
	for _, c := range changes {
		used += c.by
		most = max(most, used)
	}
	return most
}

// TestWhatGenMakes has jobs of each generator, of three seeds, run under each policy that has what it must know: no
// more GPUs are in use than there are, no job runs before it is submitted or after it has ended, the work done is the
// requested work, the waiting time is the time without GPUs, declined jobs never run, and the same jobs give the same
// table and the same events.
func TestWhatGenMakes(t *testing.T) {
	elastic := []string{"edf", "edf-admission", "ef", "ef-admission"} // policies with changes that cost nothing
	fixed := []string{"fifo", "sjf", "srtf", "srsf", "qssf", "tiresias", "gandiva", "themis", "chronus"}
	for _, name := range []string{"elasticflow", "helios", "philly"} {
		for seed := range uint64(3) {
			r := rand.New(rand.NewPCG(seed, 0))
			jobs := generate(t, GenerateOptions{Like: name, Jobs: 60, Slack: 1.5, Spread: .5, BestEffort: .2, Random: r.Float64})
			onPowers(jobs, r)
			for _, j := range jobs {
				j.History = j.Duration * (.5 + r.Float64())
			}
			c := sched.Cluster{Nodes: 2 + r.IntN(3), GPUs: 4}
			for _, policy := range slices.Concat(elastic, fixed, []string{"pollux", "star"}) {
				about := fmt.Sprintf("%s, seed %d, %s", name, seed, policy)
				var tables [2]bytes.Buffer
				var out []sched.Outcome
				for i := range tables {
					var err error
					if out, err = sched.Run(jobs, map[string]sched.Cluster{"": c}, sched.Options{Policy: policy, Slot: 60}); err != nil {
						t.Fatal(err)
					}
					if err := cmp.Or(NewOutcomes(&tables[i]).Write(policy, out), NewEvents(&tables[i], nil).Write(policy, out)); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(tables[0].Bytes(), tables[1].Bytes()) {
					t.Errorf("%s: another table the second time", about)
				}
				if most := mostOf(out); most > float64(c.Nodes*c.GPUs)+1e-9 {
					t.Errorf("%s: %v of %d GPUs are in use", about, most, c.Nodes*c.GPUs)
				}
				for i := range out {
					o := &out[i]
					if o.Declined() {
						if len(o.Steps) > 0 || !math.IsNaN(o.Start) || !math.IsNaN(o.End) || o.BestEffort && slices.Contains(elastic, policy) {
							t.Errorf("%s: job %s is declined (%s), and starts at %v: %v", about, o.ID, o.Why, o.Start, o.Steps)
						}
						continue
					}
					done, ran := work(o, slices.Contains(elastic, policy))
					if o.Start < o.Submit || o.Steps[0].At != o.Start || o.Steps[len(o.Steps)-1] != (sched.Step{At: o.End}) || math.Abs(o.JCT()-o.Queue-ran) > 1e-6 {
						t.Errorf("%s: job %s, submitted at %v, runs from %v to %v and waits %v: %v", about, o.ID, o.Submit, o.Start, o.End, o.Queue, o.Steps)
					}
					least, most := o.Duration, o.Duration
					switch {
					case slices.Contains(elastic, policy): // ends are rounded up to seconds
						least, most = o.Iterations, o.Iterations+slices.Max(o.Rates)
					case policy == "pollux" || policy == "star":
						continue // speeds are goodputs
					case policy == "chronus":
						most += 5 * float64(1+o.Preemptions)
					default:
						most += 60 * float64(o.Preemptions)
					}
					if done < least-1e-6 || done > most+1e-6 {
						t.Errorf("%s: job %s has done %v, want %v to %v: %v", about, o.ID, done, least, most, o.Steps)
					}
				}
			}
		}
	}
}
