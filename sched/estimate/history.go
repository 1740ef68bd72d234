package estimate

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// Past is a job as its history is looked at.
type Past struct {
	User, Name string
	GPUs       int
	Submit     float64 // s
	Duration   float64 // s
}

// newest is how much the last job counts in a rolling mean, those before as much of the rest.
const newest = .5

// History says for each job how long it will take, s, by those that have ended when it comes, if each starts when it is submitted: the rolling mean of the durations of the user's jobs of that
// name, or else of the user's with as many GPUs, of all of the user's, of all with as many GPUs, of all; 0 where nothing has ended yet. The newest job counts half.
//
// Source: QSSF's rolling estimate, Hu et al., SC 2021; names are the same or not here, where it looks for similar ones.
func History(jobs []Past) []float64 {
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(jobs[a].Submit, jobs[b].Submit) })
	keys := func(j Past) [5]string {
		return [5]string{fmt.Sprintf("%q %q", j.User, j.Name), fmt.Sprintf("%q %d", j.User, j.GPUs), fmt.Sprintf("%q", j.User), fmt.Sprint(j.GPUs), ""}
	}
	means := map[string]float64{}
	var running ends
	estimates := make([]float64, len(jobs))
	for _, i := range order {
		for len(running) > 0 && running[0].at <= jobs[i].Submit {
			j := jobs[heap.Pop(&running).(end).job]
			for k, key := range keys(j) {
				key = fmt.Sprint(k, key)
				if m, ok := means[key]; ok {
					means[key] = newest*j.Duration + (1-newest)*m
				} else {
					means[key] = j.Duration
				}
			}
		}
		for k, key := range keys(jobs[i]) {
			if m, ok := means[fmt.Sprint(k, key)]; ok && (k > 0 || jobs[i].Name != "") {
				estimates[i] = m
				break
			}
		}
		heap.Push(&running, end{jobs[i].Submit + jobs[i].Duration, i})
	}
	return estimates
}

type end struct {
	at  float64
	job int
}

type ends []end

func (e ends) Len() int { return len(e) }
func (e ends) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].job < e[j].job
}
func (e ends) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)   { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}
