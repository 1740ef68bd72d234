package estimate

import (
	"cmp"
	"fmt"
	"slices"
)

// PastJob is what History uses of a job.
type PastJob struct {
	User, Name string
	GPUs       int
	Submit     float64 // s
	Duration   float64 // s
}

// newest is the weight of the last job in a rolling mean; earlier ones have that fraction of the rest.
const newest = .5

// History predicts each job's duration, s, from the jobs that have ended when it is submitted, if each starts on
// submission: the rolling mean of the durations of the user's jobs of that name, else of the user's with the same
// number of GPUs, of all of the user's, of all with that number of GPUs, of all; 0 if none has ended yet. The newest
// job counts half.
//
// Source: QSSF's rolling estimate, Hu et al., SC 2021. Names must be equal here; QSSF also uses similar ones.
func History(jobs []PastJob) []float64 {
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(jobs[a].Submit, jobs[b].Submit) })
	ends := slices.Clone(order) // indices into order, by when these jobs end
	for place := range ends {
		ends[place] = place
	}
	end := func(place int) float64 { j := jobs[order[place]]; return j.Submit + j.Duration }
	slices.SortStableFunc(ends, func(a, b int) int { return cmp.Compare(end(a), end(b)) })
	means := map[string]float64{}
	estimates := make([]float64, len(jobs))
	ended := 0 // number of ends processed
	for place, i := range order {
		for ; ends[ended] < place && end(ends[ended]) <= jobs[i].Submit; ended++ {
			j := jobs[order[ends[ended]]]
			for _, key := range j.groups() {
				if m, ok := means[key]; ok {
					means[key] = newest*j.Duration + (1-newest)*m
				} else {
					means[key] = j.Duration
				}
			}
		}
		for k, key := range jobs[i].groups() {
			if m, ok := means[key]; ok && (k > 0 || jobs[i].Name != "") {
				estimates[i] = m
				break
			}
		}
	}
	return estimates
}

// groups returns the groups of similar jobs that a job belongs to, the most similar first.
func (j PastJob) groups() [5]string {
	return [5]string{fmt.Sprintf("name %q %q", j.User, j.Name), fmt.Sprintf("user, GPUs %q %d", j.User, j.GPUs), fmt.Sprintf("user %q", j.User), fmt.Sprintf("GPUs %d", j.GPUs), "all"}
}
