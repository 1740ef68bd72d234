package command

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"star/cmd/internal/chaos"
	"star/internal/settings"
)

// rehearsals are the flags of star-chaos --simulate.
type rehearsals struct {
	on, unfenced bool
	seeds        uint64
}

// rehearsed is what star-chaos --simulate says. Times are in seconds.
type rehearsed struct {
	Seeds      uint64   `json:"seeds"`
	From       uint64   `json:"from"` // the first of them
	Arch       string   `json:"arch"`
	Copies     []int    `json:"copies"` // of each shard
	Unfenced   bool     `json:"unfenced"`
	Faults     int64    `json:"faults"`
	Updates    int64    `json:"updates"`
	Violations int64    `json:"violations"`
	FirstSeed  *uint64  `json:"first_seed"`  // that broke a promise; null: none
	FirstCount uint64   `json:"first_after"` // jobs until then; 0: none
	What       string   `json:"what,omitempty"`
	Invariants []string `json:"invariants"`
	Virtual    float64  `json:"virtual_s"`
	Wall       float64  `json:"wall_s"`
}

// copiesOf a job's shards, by its seed: two most often.
var copiesOf = []int{2, 3, 2, 1}

func (r *rehearsals) run(out io.Writer, job *settings.Job, first uint64) error {
	if r.seeds == 0 {
		return &settings.UsageError{Msg: "--seeds 0: want at least 1"}
	}
	ring := job.Arch == settings.AllReduce
	if ring && r.unfenced {
		return &settings.UsageError{Msg: "--unfenced: a ring needs no fences, because a round needs all its members: leave it away, or use --arch ps"}
	}
	all := make([]chaos.Rehearsed, r.seeds)
	begun := time.Now()
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < r.seeds; i = next.Add(1) - 1 {
				seed := first + i
				all[i] = chaos.Rehearsal{Seed: seed, Ring: ring, Trees: seed%3 == 2, Copies: copiesOf[seed%uint64(len(copiesOf))], Unfenced: r.unfenced}.Run()
			}
		})
	}
	wg.Wait()
	sum := rehearsed{Seeds: r.seeds, From: first, Arch: job.Arch, Copies: []int{1, 2, 3}, Unfenced: r.unfenced, Invariants: chaos.Rehearsable, Wall: time.Since(begun).Seconds()}
	what := "of 1 to 3 copies, a third with trees"
	if ring {
		what, sum.Copies, sum.Invariants = "of all-reduce", []int{}, chaos.RehearsableRings
	}
	for i, x := range all {
		sum.Faults += int64(x.Faults)
		sum.Updates += x.Updates
		sum.Virtual += x.Took.Seconds()
		if x.Broken == "" {
			continue
		}
		if sum.Violations++; sum.FirstSeed == nil {
			sum.FirstSeed, sum.FirstCount, sum.What = new(first+uint64(i)), uint64(i)+1, x.Broken
		}
	}
	if job.JSON {
		if err := json.NewEncoder(out).Encode(sum); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "simulated %d jobs %s, seeds %d to %d: %d faults, %d updates, %.0f s of virtual time in %.1f s\n",
			sum.Seeds, what, first, first+r.seeds-1, sum.Faults, sum.Updates, sum.Virtual, sum.Wall)
		for _, v := range sum.Invariants {
			fmt.Fprintf(out, "looked at %s\n", v)
		}
		fmt.Fprintf(out, "%d violations\n", sum.Violations)
		if sum.FirstSeed != nil {
			fmt.Fprintf(out, "the first is job %d, --fault-seed %d, at %s\n", sum.FirstCount, *sum.FirstSeed, sum.What)
		}
	}
	switch {
	case r.unfenced && sum.Violations == 0:
		return fmt.Errorf("without fencing nothing was broken in %d jobs: the rehearsals are blind", r.seeds)
	case !r.unfenced && sum.Violations > 0:
		return fmt.Errorf("broken: %s (star-chaos --simulate --arch %s --fault-seed %d --seeds 1)", sum.What, job.Arch, *sum.FirstSeed)
	}
	return nil
}
