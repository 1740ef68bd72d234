package market

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Spot is a job with workers on transient machines.
type Spot struct {
	Samples float64   // of the whole job
	Rates   []float64 // samples/s on 1, 2, … workers: its length is the number of workers
	// Start holds delays from the start of a machine until its worker takes part; each machine draws one. Empty: no
	// delay.
	Start []time.Duration
	// Leave is how long a worker still works after its machine's notice, if the machine lasts that long.
	Leave time.Duration
}

// start returns the start delay of the n-th machine of a worker, for a seed.
func (j Spot) start(seed uint64, worker, n int) time.Duration {
	if len(j.Start) == 0 {
		return 0
	}
	return j.Start[int(uniform(^seed, uint64(worker)<<32|uint64(n))*float64(len(j.Start)))]
}

// Outcome is the result of a job on transient machines.
type Outcome struct {
	Took time.Duration // duration of training; NoEnd: it never ended, because no worker was left
	// Up is the total uptime of all machines from the start of training on; their start delays before it do not count.
	Up                time.Duration
	Revoked, Replaced int
}

// NoEnd is the duration of a job that does not end.
const NoEnd = forever

// Run simulates the job: its machines are taken away and replaced as r says, and its speed depends on the number of
// workers. Without workers it waits. Machines count as up until their workers have left, as in star run --revoke.
func (j Spot) Run(r *Revocations) (ran Outcome) {
	type event struct {
		at      time.Duration
		worker  int
		comes   bool          // the worker joins; else it leaves
		machine int           // index of the worker's machine
		began   time.Duration // start of the machine
	}
	var due []event
	next := func(e event) {
		i, _ := slices.BinarySearchFunc(due, e, func(a, b event) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.worker, b.worker))
		})
		due = slices.Insert(due, i, e)
	}
	leaves := func(worker, machine int, began time.Duration) {
		if life := r.Life(worker, machine, began); life < forever-began {
			next(event{at: began + life + min(j.Leave, r.Notice), worker: worker, machine: machine, began: began})
		}
	}
	n := len(j.Rates)
	up, joined := map[int]time.Duration{}, map[int]bool{} // start of each worker's machine; which workers take part
	for w := range n {
		up[w], joined[w], ran.Up = 0, true, ran.Up+j.start(r.Seed, w, 0)
		leaves(w, 0, 0)
	}
	left, now := j.Samples, time.Duration(0)
	for {
		rate := 0.
		if n > 0 {
			rate = j.Rates[n-1]
		}
		end := NoEnd
		if s := left / rate; s < (forever-now).Seconds()/2 {
			end = now + time.Duration(s*float64(time.Second))
		}
		if len(due) == 0 || end <= due[0].at {
			ran.Took = end
			for _, since := range up {
				if ran.Up += max(0, end-since); since > end { // the job ended first
					ran.Replaced--
				}
			}
			if end == NoEnd {
				ran.Up = NoEnd
			}
			return ran
		}
		e := due[0]
		due = due[1:]
		left, now = max(0, left-rate*(e.at-now).Seconds()), e.at
		if e.comes {
			if began, ok := up[e.worker]; ok && began == e.began { // else it was taken away before
				joined[e.worker] = true
				n++
			}
			continue
		}
		ran.Revoked++
		ran.Up += now - up[e.worker]
		delete(up, e.worker)
		if joined[e.worker] {
			n--
		}
		joined[e.worker] = false
		if at, ok := r.Next(e.worker, e.began, now); ok {
			ran.Replaced++
			up[e.worker] = at
			next(event{at: at + j.start(r.Seed, e.worker, e.machine+1), worker: e.worker, comes: true, began: at})
			leaves(e.worker, e.machine+1, at)
		}
	}
}

// Quantiles returns the quantiles of values at fractions between 0 and 1, by linear interpolation.
func Quantiles(values []float64, at ...float64) (q []float64) {
	sorted := slices.Sorted(slices.Values(values))
	for _, p := range at {
		x := p * float64(len(sorted)-1)
		i := int(x)
		if i+1 >= len(sorted) || sorted[i] == sorted[i+1] {
			q = append(q, sorted[i])
			continue
		}
		q = append(q, sorted[i]+(x-math.Floor(x))*(sorted[i+1]-sorted[i]))
	}
	return q
}

// Normal returns a standard normal number that depends only on a seed, independent of the numbers of lives.
func Normal(seed uint64) float64 {
	u, v := uniform(^seed, 1<<48), uniform(^seed, 1<<48+1)
	return math.Sqrt(-2*math.Log1p(-u)) * math.Cos(2*math.Pi*v)
}
