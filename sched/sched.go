// Package sched decides which job gets which machines, how many, and when. A Policy is pure: it sees a State (jobs,
// nodes, GPUs, the time) and acts on it by starting, resizing, preempting, joining and declining jobs. The simulator in
// this package and a live service call the same policies.
//
// There are four simulations, by what a policy decides: which jobs run, on the GPUs that they request (State,
// engine.go); how many GPUs each job runs on (elastic.go); which jobs take turns on the same GPUs (muri.go); and which
// of two kinds of machines a job runs on (machines.go).
//
// Sources: ElasticFlow (Gu et al., ASPLOS 2023), Lucid (Hu et al., ASPLOS 2023), Tiresias (Gu et al., NSDI 2019), AlloX
// (Le et al., EuroSys 2020), Muri (Zhao et al., SIGCOMM 2022), Gandiva (Xiao et al., OSDI 2018), Themis (Mahajan et
// al., NSDI 2020), Chronus (Gao et al., SoCC 2021), Pollux (Qiao et al., OSDI 2021). The module star/sched/originals
// contains what their programs do differently from the papers.
//
// Times are seconds of the trace's clock.
package sched

import (
	"math"
)

// Job is a submitted job.
type Job struct {
	ID string
	VC string // virtual cluster; "": the only one
	// User owns the job; with machines of two kinds, jobs wait in their user's queue. "": unknown.
	User     string
	Submit   float64 // s
	Deadline float64 // s of the same clock; +Inf: none
	GPUs     int     // requested
	Duration float64 // running time on GPUs GPUs, alone, s

	Estimate float64 // predicted duration, s; 0: unknown
	History  float64 // duration predicted from the user's earlier jobs, for QSSF, s; 0: unknown

	Model, Dataset string
	Batch          int // samples per iteration, over all GPUs
	AMP            bool
	Memory         float64 // per GPU, MB
	Score          int     // how much a job on the same GPUs slows it: 0, 1, 2

	Iterations float64   // total
	Rates      []float64 // iterations/s on 1, 2, 4, … GPUs; 0: not usable
	BestEffort bool      // has no deadline, and is never declined
	Batches    []Batch   // measurements with other batch sizes
	Noise      float64   // gradient noise scale, samples; 0: unknown

	Stages  *Stages // of an iteration; nil: unknown
	Restart float64 // s without progress at a restart, under Muri's policies

	Either *Either // how it runs on one machine of either kind; nil: unknown

	// Guess is the factor by which policies misjudge how long the job takes; 0: they know it.
	Guess float64
}

// guess returns Guess, or 1 if policies know how long the job takes.
func (j *Job) guess() float64 {
	if j.Guess == 0 {
		return 1
	}
	return j.Guess
}

// Misjudge makes policies misjudge how long jobs take: each job's Guess and its predictions (Estimate, History, and
// Error of Either) are off by a factor of (1+bias)·exp(spread·z), with z from a standard normal distribution. The
// remaining work of a job is misjudged by the same factor.
func Misjudge(jobs []*Job, spread, bias float64, random interface{ NormFloat64() float64 }) {
	for _, j := range jobs {
		g := (1 + bias) * math.Exp(spread*random.NormFloat64())
		j.Guess, j.Estimate, j.History = g, j.Estimate*g, j.History*g
		if j.Either != nil {
			e := *j.Either
			for k := range e.Error {
				e.Error[k] = (1+e.Error[k])*g - 1
			}
			j.Either = &e
		}
	}
}

// Batch is how fast a model is with some number of samples per iteration.
type Batch struct {
	Samples int       // over all GPUs
	Rates   []float64 // as in Job
}

// Outcome is the result of a job.
type Outcome struct {
	*Job
	Start, End  float64 // s; NaN: never
	Queue       float64 // s without GPUs since Submit
	Preemptions int
	Why         string // why the job was declined; "": it was not
	Steps       []Step // how many GPUs it had, and when
}

// Declined reports whether the job was declined.
func (o *Outcome) Declined() bool { return o.Why != "" }

// JCT returns the time from submission to the end, s; NaN if the job has not ended.
func (o *Outcome) JCT() float64 { return o.End - o.Submit }

// Met reports whether the job ended by its deadline. A job without one has met it if it ended.
func (o *Outcome) Met() bool { return o.End <= o.Deadline }

// Cluster is the machines that jobs share.
type Cluster struct {
	Nodes int
	GPUs  int // per node, at most 64
	Plain int // additional machines without GPUs, for jobs with Either

	Switch int // nodes per switch; 0: all nodes are on one

	Slow *Slow // when which nodes are slow; nil: never
	Away *Away // when which nodes are absent; nil: never
}

// Policy makes decisions. Decide is called after jobs arrived, ended or lost their GPUs (State.Arrived, State.Ended,
// State.Revoked), and at the times that the policy requested with State.WakeAt.
type Policy interface {
	Decide(*State)
}

// never is the time of an event that does not happen.
var never = math.Inf(1)
