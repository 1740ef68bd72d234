package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// dumb is a job in a cluster that is looked at every second.
type dumb struct {
	*Job
	left             float64
	start, end, wait float64
	preempted        int
	at               []Share
	attained         float64
}

// second is the cluster of one virtual cluster, second by second: what ends, what comes, what the policy does. It knows
// neither events nor heaps.
func second(jobs []*Job, c Cluster, policy string) []*dumb {
	all := make([]*dumb, len(jobs))
	for i, j := range jobs {
		all[i] = &dumb{Job: j, left: j.Duration, start: math.NaN(), end: math.NaN()}
	}
	n := newNodes(c)
	var waiting, running []*dumb
	for now := 0.; now < 3e4; now++ {
		running = slices.DeleteFunc(running, func(d *dumb) bool {
			if now > 0 {
				d.left--
				d.attained += float64(d.GPUs)
			}
			if d.left > 0 {
				return false
			}
			d.end = now
			n.give(d.at)
			return true
		})
		for _, d := range waiting {
			d.wait++
		}
		for _, d := range all {
			if d.Submit == now && d.GPUs <= c.Nodes*c.GPUs {
				waiting = append(waiting, d)
			}
		}
		begin := func(d *dumb) bool {
			if d.at = n.consolidate(d.GPUs); d.at == nil {
				return false
			}
			n.take(d.at)
			if math.IsNaN(d.start) {
				d.start = now
			}
			running = append(running, d)
			return true
		}
		switch policy {
		case "fifo", "sjf", "qssf":
			slices.SortStableFunc(waiting, func(a, b *dumb) int {
				switch policy {
				case "sjf":
					return cmp.Compare(a.Duration, b.Duration)
				case "qssf":
					return cmp.Compare(a.History*float64(a.GPUs), b.History*float64(b.GPUs))
				}
				return cmp.Compare(a.Submit, b.Submit)
			})
			for len(waiting) > 0 && begin(waiting[0]) {
				waiting = waiting[1:]
			}
		default:
			if policy == "tiresias" && int(now)%60 != 0 {
				continue
			}
			order := slices.Concat(waiting, running)
			if policy == "tiresias" {
				order = slices.Concat(running, waiting)
			}
			slices.SortStableFunc(order, func(a, b *dumb) int {
				switch policy {
				case "srtf":
					return cmp.Compare(a.left, b.left)
				case "srsf":
					return cmp.Compare(a.left*float64(a.GPUs), b.left*float64(b.GPUs))
				}
				low := func(d *dumb) int {
					if d.attained > 18000 {
						return 1
					}
					return 0
				}
				return cmp.Or(low(a)-low(b), cmp.Compare(a.Submit, b.Submit))
			})
			left := c.Nodes * c.GPUs
			var first []*dumb
			for _, d := range order {
				if d.GPUs <= left {
					left -= d.GPUs
					first = append(first, d)
					continue
				}
				if i := slices.Index(running, d); i >= 0 {
					running = slices.Delete(running, i, i+1)
					n.give(d.at)
					d.preempted++
					d.left += 40
					if d.GPUs > 8 {
						d.left += 20
					}
					waiting = append(waiting, d)
				}
			}
			for _, d := range first {
				if i := slices.Index(waiting, d); i >= 0 && begin(d) {
					waiting = slices.Delete(waiting, i, i+1)
				}
			}
		}
	}
	return all
}

// TestSeconds compares the engine, which goes from event to event, with a cluster that is looked at every second, on
// random traces.
func TestSeconds(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := Cluster{Nodes: 1 + r.IntN(4), GPUs: []int{2, 4, 8}[r.IntN(3)]}
		var jobs []*Job
		for i := range 25 {
			jobs = append(jobs, &Job{ID: fmt.Sprint(i), Submit: float64(r.IntN(1500)), Deadline: never, GPUs: 1 + r.IntN(c.Nodes*c.GPUs+1),
				Duration: float64(1 + r.IntN(400)), History: float64(1 + r.IntN(400))})
		}
		jobs[0].Duration = 9000
		for _, policy := range []string{"fifo", "sjf", "qssf", "srtf", "srsf", "tiresias"} {
			out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: policy})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range second(jobs, c, policy) {
				got := out[i]
				if want.GPUs > c.Nodes*c.GPUs {
					if !got.Declined() {
						t.Errorf("seed %d, %s: job %d asks for more than there is and is not declined", seed, policy, i)
					}
					continue
				}
				if got.Start != want.start || got.End != want.end || got.Queue != want.wait || got.Preemptions != want.preempted {
					t.Fatalf("seed %d, %s, %+v: job %d: started %v, ended %v, waited %v, preempted %d; second by second %v, %v, %v, %d",
						seed, policy, c, i, got.Start, got.End, got.Queue, got.Preemptions, want.start, want.end, want.wait, want.preempted)
				}
			}
		}
	}
}
