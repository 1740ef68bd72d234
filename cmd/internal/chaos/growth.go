package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Holding is what a process held at two times of its life, each the median of several samples.
type Holding struct {
	Name        string
	Age         time.Duration
	Memory      [2]int64 // bytes that are resident
	Descriptors [2]int64
	Goroutines  [2]int64 // as reported by the process; 0: not reported
}

// Allowed growth from the beginning to the end. The heap of a young process is still growing to its size.
// A process that joins or leaves in between opens or closes connections and the goroutines that serve them.
const (
	memoryMore  = 0.05
	settledAge  = 10 * time.Minute
	youngMore   = 0.25 // before that
	youngSlack  = 8 << 20
	descriptors = 3 // of a worker, in one process: to the coordinator, to a shard, to another worker
	goroutines  = 8 // that serve them
)

// Quarters are the medians of the first and of the last quarter of the samples of a process after its start, which
// takes a quarter of the samples, but at most up. There must be at least four samples.
func Quarters(xs []int64, up int) [2]int64 {
	xs = xs[min(len(xs)/4, up):]
	n := max(len(xs)/4, 1)
	median := func(xs []int64) int64 {
		xs = slices.Sorted(slices.Values(xs))
		return xs[len(xs)/2]
	}
	return [2]int64{median(xs[:n]), median(xs[len(xs)-n:])}
}

// Flat checks that nothing has grown in the processes of a job with that number of workers.
func Flat(held []Holding, workers int) Invariant {
	var wrong []string
	worst := 0.0
	for _, h := range held {
		most, slack := memoryMore, 0.0
		if h.Age < settledAge {
			most, slack = youngMore, youngSlack
		}
		before, after := float64(h.Memory[0]), float64(h.Memory[1])
		worst = max(worst, after/before-1)
		if after > before*(1+most)+slack {
			wrong = append(wrong, fmt.Sprintf("%s: memory from %.1f to %.1f MiB in %v", h.Name, before/(1<<20), after/(1<<20), h.Age.Round(time.Second)))
		}
		if h.Descriptors[1] > h.Descriptors[0]+int64(descriptors*workers) {
			wrong = append(wrong, fmt.Sprintf("%s: from %d to %d descriptors in %v", h.Name, h.Descriptors[0], h.Descriptors[1], h.Age.Round(time.Second)))
		}
		if h.Goroutines[0] == 0 || h.Goroutines[1] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s does not say how many goroutines it has", h.Name))
		} else if h.Goroutines[1] > h.Goroutines[0]+int64(goroutines*workers) {
			wrong = append(wrong, fmt.Sprintf("%s: from %d to %d goroutines in %v", h.Name, h.Goroutines[0], h.Goroutines[1], h.Age.Round(time.Second)))
		}
	}
	if len(wrong) > 0 {
		return Invariant{growth, false, wrong[0] + more(len(wrong)-1)}
	}
	if len(held) == 0 {
		return Invariant{growth, true, "no process lived long enough to tell"}
	}
	oldest := slices.MaxFunc(held, func(a, b Holding) int { return cmp.Compare(a.Age, b.Age) })
	return Invariant{growth, true, fmt.Sprintf("%d processes, the oldest lived for %v; memory grew by %.1f %% at most", len(held), oldest.Age.Round(time.Second), max(worst, 0)*100)}
}

const growth = "memory, descriptors and goroutines stay"
