package placement

import (
	"cmp"
	"slices"
	"time"
)

// publishedTask is one job for published: its server idles and its worker is active for so long in an
// iteration.
type publishedTask struct {
	ID           int
	Idle, Active time.Duration
}

// publishedPack is a server and the worker that shares a host with it; Worker is -1 if the server is alone.
type publishedPack struct{ Server, Worker int }

// published is the greedy packing of servers and workers of STAR's public artefact
// (spec 7.2), for comparison: servers by ascending idle time, workers by ascending
// active time; each server takes the first worker, from where the one before ended, that
// is active for no longer than the server is idle. Its defects are kept:
//
//   - a server may be paired with the worker of its own job;
//   - workers that are passed over are lost;
//   - the server that reaches the end of the workers is left out of the result.
//
// Place has none of these: it pairs servers with workers of other jobs by
// maximum-weight matching, and places every job.
func published(jobs []publishedTask) (packs []publishedPack) {
	servers, workers := slices.Clone(jobs), slices.Clone(jobs)
	slices.SortStableFunc(servers, func(a, b publishedTask) int { return cmp.Compare(a.Idle, b.Idle) })
	slices.SortStableFunc(workers, func(a, b publishedTask) int { return cmp.Compare(a.Active, b.Active) })
	next := 0
	for _, s := range servers {
		if next == len(workers) {
			packs = append(packs, publishedPack{s.ID, -1})
			continue
		}
		for next < len(workers) {
			w := workers[next]
			next++
			if w.Active <= s.Idle {
				packs = append(packs, publishedPack{s.ID, w.ID})
				break
			}
		}
	}
	return packs
}

// packed pairs servers with workers of other jobs that are active for no longer than the server is idle. It makes as
// many pairs as possible, and of these solutions takes the one that fits best: the same input as published, without its
// defects. A server without a worker is listed with -1. The result is in order of the input.
func packed(jobs []publishedTask) (packs []publishedPack) {
	// Vertices: servers, then workers. A pair counts 1 and by how well it fits.
	n := len(jobs)
	var es []edge
	for i, s := range jobs {
		for k, w := range jobs {
			if i != k && s.ID != w.ID && w.Active <= s.Idle && s.Idle > 0 {
				es = append(es, edge{i, n + k, float64(n) + float64(w.Active)/float64(s.Idle)})
			}
		}
	}
	mate := match(2*n, es)
	for i, s := range jobs {
		p := publishedPack{s.ID, -1}
		if m := mate[i]; m >= 0 {
			p.Worker = jobs[m-n].ID
		}
		packs = append(packs, p)
	}
	return packs
}

// profile is one job for pairs.
type profile struct{ Active, GPU time.Duration }

// pairs matches jobs for interleaving so that the sum of γ is as large as can be,
// and returns that sum: mate[i] is the job that takes turns with job i, -1 if there is no such job. It is the
// artefact's worker-worker packing (spec 7.1), with an exact matching: the published one compares floats with == and
// does not end for many inputs.
func pairs(jobs []profile) (mate []int, sum float64) {
	var es []edge
	for i, a := range jobs {
		for k, b := range jobs[:i] {
			if _, g := Interleave(a.Active, a.GPU, b.Active, b.GPU); g > 0 {
				es = append(es, edge{k, i, g})
			}
		}
	}
	mate = match(len(jobs), es)
	for i, k := range mate {
		if k > i {
			_, g := Interleave(jobs[i].Active, jobs[i].GPU, jobs[k].Active, jobs[k].GPU)
			sum += g
		}
	}
	return mate, sum
}
