// Package sched decides which job gets which machines, how many, and when. A Policy is a pure value: it sees a State (jobs, nodes, GPUs, the
// time) and acts on it by starting, resizing, preempting, joining and declining jobs. The simulator in this package and a live service
// call the same policies.
//
// There are four simulations, by what a policy decides: which jobs run on the GPUs that they ask for (State, engine.go),
// on how many a job runs (elastic.go), which jobs take turns on the same GPUs (muri.go), and on which of two kinds of
// machines a job runs (machines.go).
//
// Sources: ElasticFlow (Gu et al., ASPLOS 2023), Lucid (Hu et al., ASPLOS 2023), Tiresias (Gu et al., NSDI 2019), AlloX (Le et al., EuroSys
// 2020), Muri (Zhao et al., SIGCOMM 2022), Gandiva (Xiao et al., OSDI 2018), Themis (Mahajan et al., NSDI 2020), Chronus (Gao et al., SoCC 2021), Pollux (Qiao et al., OSDI 2021).
// The module star/sched/originals has what their programs do otherwise than they describe.
//
// Times are seconds of the trace's clock.
package sched

import (
	"math"
)

// Job is what somebody has submitted.
type Job struct {
	ID       string
	VC       string  // virtual cluster; "": there is one
	User     string  // whose job it is, and in whose queue machines of either kind have it; "": not known
	Submit   float64 // s
	Deadline float64 // s of the same clock; +Inf: none
	GPUs     int     // that it asks for
	Duration float64 // s of running on GPUs GPUs, alone

	Estimate float64 // predicted duration, s; 0: none
	History  float64 // the same predicted from the user's earlier jobs, which QSSF uses; 0: none

	Model, Dataset string
	Batch          int // samples of all GPUs together
	AMP            bool
	Memory         float64 // of one GPU, MB
	Score          int     // how much it is slowed by a neighbour: 0, 1, 2

	Iterations float64   // until it is done
	Rates      []float64 // iterations/s on 1, 2, 4, … GPUs; 0: cannot be used
	BestEffort bool      // has no deadline, and is never declined
	Batches    []Batch   // what is known of the model with other batch sizes
	Noise      float64   // gradient noise scale, samples; 0: not known

	Stages  *Stages // of an iteration; nil: not known
	Restart float64 // s that it loses when it starts again, under Muri's policies

	Either *Either // how it runs on one machine of either kind; nil: not known

	Guess float64 // for how many times what it takes policies take that; 0: they know it
}

// guess is Guess, 1 for those that know.
func (j *Job) guess() float64 {
	if j.Guess == 0 {
		return 1
	}
	return j.Guess
}

// Misjudge has policies be wrong about how long jobs take: each job's Guess, and what was predicted of it (Estimate, History, and Error of Either), is off by a factor of
// (1+bias)·exp(spread·z), with z from a standard normal distribution. What is left of a job is misjudged as the whole of it.
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

// Batch is how fast a model is with some samples in each iteration.
type Batch struct {
	Samples int       // of all GPUs together
	Rates   []float64 // as those of a Job
}

// Outcome is what became of a job.
type Outcome struct {
	*Job
	Start, End  float64 // s; NaN: never
	Queue       float64 // s without GPUs since Submit
	Preemptions int
	Why         string // why it was declined; "": it was not
	Steps       []Step // how many GPUs it had when
}

// Declined says whether the job was refused.
func (o *Outcome) Declined() bool { return o.Why != "" }

// JCT is the time from submission to the end, s; NaN: it has not ended.
func (o *Outcome) JCT() float64 { return o.End - o.Submit }

// Met says whether the job ended by its deadline. A job that has none and ended has met it.
func (o *Outcome) Met() bool { return o.End <= o.Deadline }

// Cluster is the machines that jobs share.
type Cluster struct {
	Nodes int
	GPUs  int // of a node, at most 64
	Plain int // machines without GPUs beside them, for jobs with Either

	Switch int // nodes of a switch; 0: all of them are of one

	Slow *Slow // when which nodes are slow; nil: never
	Away *Away // when which nodes are not there; nil: never
}

// Policy decides. Decide is called when jobs have come, ended or lost their GPUs (State.Arrived, State.Ended, State.Revoked) and when a time it asked for has come.
type Policy interface {
	Decide(*State)
}

// never is the time of what does not happen.
var never = math.Inf(1)
