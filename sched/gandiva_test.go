package sched

import (
	"fmt"
	"testing"
)

// TestGandiva has jobs take turns: three of 120 s with one GPU each share two GPUs, so that each has two thirds of the
// time, in turns of a minute.
func TestGandiva(t *testing.T) {
	var jobs []*Job
	for i := range 3 {
		jobs = append(jobs, &Job{ID: fmt.Sprint(i), GPUs: 1, Duration: 120, Deadline: never})
	}
	out := Simulate(jobs, Cluster{Nodes: 1, GPUs: 2}, Gandiva())
	// 0-60: jobs 0 and 1; 60-120: 2 and 0, which ends; 120-180: 1 and 2, which end.
	for i, want := range []Outcome{{Start: 0, End: 120}, {Start: 0, End: 180, Queue: 60, Preemptions: 1}, {Start: 60, End: 180, Queue: 60}} {
		if o := out[i]; o.Start != want.Start || o.End != want.End || o.Queue != want.Queue || o.Preemptions != want.Preemptions {
			t.Errorf("job %d: started %v, ended %v, waited %v, preempted %d; want %+v", i, o.Start, o.End, o.Queue, o.Preemptions, want)
		}
	}
}

// TestGandivaShares has classes of jobs with one, four and eight GPUs ask for three times what there is: each gets its
// share of the time, and all end.
func TestGandivaShares(t *testing.T) {
	var jobs []*Job
	for _, size := range []int{1, 4, 8} {
		for i := range 16 / size { // 16 GPUs of each class, on 16
			jobs = append(jobs, &Job{ID: fmt.Sprint(size, "-", i), GPUs: size, Duration: 600, Deadline: never})
		}
	}
	for _, o := range Simulate(jobs, Cluster{Nodes: 2, GPUs: 8}, Gandiva()) {
		if !(o.Start <= 3*timeslice && o.End >= 1200 && o.End <= 1800+2*timeslice) {
			t.Errorf("job %s: started %v, ended %v; with a third of the time it starts within three turns and ends soon after 1800", o.ID, o.Start, o.End)
		}
	}
}
