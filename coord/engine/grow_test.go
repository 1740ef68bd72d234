package engine

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/transport/wire"
)

// However workers come and go, in ranks that no worker has had and in those of others, and even when no worker is
// present for a while: every position of the stream is applied once, or dropped by the plan, and the naive account of
// the present workers agrees with the scheduler's weights.
func TestEverySampleOnceWhoeverComes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		shards := rapid.IntRange(1, 3).Draw(t, "shards")
		limit := rapid.Int64Range(1, 120).Draw(t, "limit")
		batch := rapid.IntRange(1, 5).Draw(t, "batch")
		plans := []string{"ssgd", "asgd", "ssp=1", "x=1", "backup=0", "kbatch=3", "kbatch-async=2", fmt.Sprintf("x=%d", n), fmt.Sprintf("backup=%d", n-1)}
		plan := func(label string) modes.Plan {
			p, err := modes.Parse(rapid.SampledFrom(plans).Draw(t, label), n)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		r := &rig{t: t, l: newShards(plan("plan"), n, shards, batch, limit), shards: shards,
			out: map[star.Worker]wire.Release{}, used: map[int64]int{}, lost: map[int64]int{}, threw: map[star.Worker]bool{},
			given: map[[2]int64]Span{}, steps: map[star.Worker]int64{}}
		there := map[star.Worker]bool{}
		for w := range star.Worker(n) {
			if there[w] = rapid.Bool().Draw(t, "there"); !there[w] {
				r.l.absent(w)
			} else {
				r.steps[w] = 0
			}
		}
		r.carry(r.l.Begin(nil))
		joins := 0
		come := func(w star.Worker) {
			there[w] = true
			joins++
			os := r.l.Join(w, true)
			a := &r.l.states[w]
			if last, had := r.steps[w]; had && a.step < last || !had && a.step != 0 {
				t.Fatalf("worker %d, whose next step was %d (%v), comes with step %d", w, last, had, a.step)
			}
			r.steps[w], r.threw[w] = a.step, false
			r.carry(os)
		}
		for r.l.View().Unfinished() {
			var ws, idle []star.Worker
			for w := range star.Worker(n) {
				if _, busy := r.out[w]; busy {
					ws = append(ws, w)
				}
				if !there[w] {
					idle = append(idle, w)
				}
			}
			var round int64
			for w, ok := range there {
				if ok {
					round += int64(r.l.plan.Share(w, batch))
				}
			}
			if got := r.l.round(); got != round {
				t.Fatalf("a round is %d samples, with %v there it is %d", got, there, round)
			}
			act := rapid.IntRange(0, 9).Draw(t, "act")
			switch {
			case len(ws) == 0 && len(idle) == 0:
				t.Fatal("everybody is there, nobody computes, and the stream is not used up")
			case len(idle) > 0 && (len(ws) == 0 || act == 0) && joins < 40:
				come(rapid.SampledFrom(idle).Draw(t, "comes"))
			case act == 1 && len(idle) < n && joins < 40:
				v := rapid.SampledFrom(slices.Sorted(maps.Keys(there))).Draw(t, "goes")
				if !there[v] {
					continue
				}
				there[v] = false
				delete(r.out, v)
				os := r.l.Leave(v)
				maps.DeleteFunc(r.given, func(k [2]int64, _ Span) bool { return k[0] == int64(v) })
				r.carry(os)
			case act == 2:
				r.carry(r.l.Install(plan("to")))
			case len(ws) > 0:
				r.push(rapid.SampledFrom(ws).Draw(t, "worker"), rapid.Permutation(ranks(shards)).Draw(t, "order"), rapid.IntRange(0, shards).Draw(t, "k"))
			default:
				for _, w := range idle {
					come(w)
				}
			}
		}
		for q := range limit {
			if got := r.used[q] + r.lost[q]; got != 1 {
				t.Fatalf("position %d was used %d times and dropped %d times", q, r.used[q], r.lost[q])
			}
		}
	})
}
