package sched

import "math/bits"

// setup is what ElasticFlow's program has a job with n GPUs lose when it starts, s: a constant, and more for each doubling of GPUs; all of it
// takes longer in a cluster of 256 GPUs or more. In some rounds all jobs start again, which takes longer still.
func setup(cluster, n int, again bool) float64 {
	lost := base(cluster) + float64(2*bits.Len(uint(n)))
	switch {
	case again && cluster >= 256:
		lost += 47
	case again:
		lost += 27
	}
	return lost
}

// base is the constant part of setup, s.
func base(cluster int) float64 {
	if cluster >= 256 {
		return 7
	}
	return 2
}

// again says in which rounds, counted from 1, ElasticFlow's program starts all jobs again: in every one whose number less one is a multiple of a
// slot's seconds.
func again(round int, slot float64) bool { return round > 1 && (round-1)%int(slot) == 0 }
