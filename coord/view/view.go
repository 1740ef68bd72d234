// Package view is what the coordinator shows of a job: the answer to star ctl status. It is pure: values go in and come
// out. The coordinator collects them from its parts; all that is computed from several of them is computed here.
//
//	facts of the coordinator's parts ──► Status ──► JSON ──► star ctl, the page of the job, metrics, services
package view

import (
	"time"

	"star"
	"star/coord/advisor"
	"star/coord/measure"
	"star/coord/moves"
	"star/runlog"
)

// Status is the job now: the answer to `star ctl status`. Field names are those of the JSON, and
// stay. Seconds, samples and bytes; what is not known is 0 or null.
//
// Phases follow one another: joining until the training begins, training, evaluating and saving at the
// end, over. Waiting names what the job waits for now, in words; "nobody": for nothing.
// A job that was taken over counts from its first coordinator's beginning.
type Status struct {
	Job       string        `json:"job"`
	Phase     string        `json:"phase"` // joining, training, evaluating, saving, over
	Waiting   string        `json:"waiting_for"`
	Mode      string        `json:"mode"`
	Version   int64         `json:"version"`
	Samples   int64         `json:"samples"`
	Limit     int64         `json:"limit"`
	Params    int64         `json:"params"`
	EpochSize int64         `json:"epoch_size"`
	Elapsed   float64       `json:"elapsed_s"`
	Loss      runlog.Number `json:"train_loss"`
	TestLoss  runlog.Number `json:"test_loss"`
	TestAcc   float64       `json:"test_accuracy"`
	Rate      float64       `json:"samples_per_s"`
	Switches  int           `json:"switches"`

	// Efficiency is how fast the workers are, in samples, as a part of what they would be without
	// exchange and waiting; 0: not known.
	Efficiency float64 `json:"scaling_efficiency,omitempty"`

	Short      int              `json:"short,omitempty"`      // it waits, because it has fewer workers than these; 0: it does not
	Auto       bool             `json:"auto"`                 // a pilot changes the mode
	Stragglers []string         `json:"stragglers,omitempty"` // what it says of slow workers
	Refused    *advisor.Refusal `json:"refused,omitempty"`    // what it wants and was refused; nil: nothing

	Noise   NoiseStatus    `json:"noise"`
	Workers []WorkerStatus `json:"workers"`
	Servers []ServerStatus `json:"servers"`
	Shift   *moves.Shifts  `json:"move_shards,omitempty"` // with --move-shards auto
	Shards  []ShardStatus  `json:"shards,omitempty"`
}

// NoiseStatus is how noisy gradients are: see package pgns.
type NoiseStatus struct {
	Scale        float64 `json:"scale"` // φ in samples; 0: not known
	Grad2        float64 `json:"grad2"`
	Var          float64 `json:"var"`
	Mixed        bool    `json:"mixed"` // of gradients of different versions: too much
	Observations int64   `json:"observations"`
}

// WorkerStatus is one line of the live table. Times are in seconds: Iteration, Busy and Own are means over the last
// iterations, Compute and Wait are the last one's. States: absent (no worker has had the rank), joining, computing,
// waiting (its gradient is there, and the update is not), parked (no batch is left for it), gone. What a worker has not
// measured is 0.
type WorkerStatus struct {
	Worker    int     `json:"worker"`
	Peer      string  `json:"peer"`
	State     string  `json:"state"` // absent, joining, computing, waiting, parked, gone
	Step      int64   `json:"step"`
	Iteration float64 `json:"iteration_s"`
	Busy      float64 `json:"busy_s"` // of it, without waiting for others
	Compute   float64 `json:"compute_s"`
	Wait      float64 `json:"wait_s"`
	CPU       float64 `json:"cpu"` // processor time of the process for each second of the last iteration
	Rate      float64 `json:"samples_per_s"`
	Stale     int64   `json:"staleness"`
	PushDelay float64 `json:"push_delay_s,omitempty"` // how long its next push waits for others
	Slowdown  float64 `json:"slowdown,omitempty"`     // own time over that of the fast ones; 0: the pilot does not call it slow, or there is none
	Cause     string  `json:"cause,omitempty"`        // why it is slow

	Poison map[string]int64 `json:"poison,omitempty"` // gradients that were left out, by cause

	Site   string  `json:"site,omitempty"`    // its host, as servers name theirs
	Own    float64 `json:"own_s,omitempty"`   // loading and computing, of an iteration
	NetIn  float64 `json:"net_in,omitempty"`  // bytes of parameters of its last iteration
	NetOut float64 `json:"net_out,omitempty"` // and of its gradient

	Telemetry map[string]float64 `json:"telemetry,omitempty"` // of the last record, by name
}

// ShardStatus says where a shard is. Server is the one that it is at now, also while it moves; with
// copies it is the primary.
type ShardStatus struct {
	Shard  int   `json:"shard"`
	Server int   `json:"server"` // its rank
	Bytes  int64 `json:"bytes"`  // of its parameters
	Moving bool  `json:"moving,omitempty"`

	// With copies (Config.Replicas): the term of its view, and who else holds it, in order of succession.
	Term      int64 `json:"term,omitempty"`
	Followers []int `json:"followers,omitempty"`
	Replicas  int   `json:"replicas,omitempty"` // that there are to be
}

// ServerStatus is one star-ps process.
type ServerStatus struct {
	Server int    `json:"server"` // its rank
	Host   string `json:"host"`
	Addr   string `json:"addr"`
	Shards int    `json:"shards"`
	Gone   bool   `json:"gone,omitempty"`

	// CopyRate is what the last shard that moved here came with, in bytes per second; 0: no
	// shard has.
	CopyRate float64 `json:"copy_Bps,omitempty"`

	Site string      `json:"site,omitempty"` // with --move-shards auto: its host, as workers name theirs
	Load *ServerLoad `json:"load,omitempty"` // likewise, of a server that says so
}

// ServerLoad is what a server uses and what its host has: processors and bytes per second. A
// capacity of 0 is not known.
type ServerLoad struct {
	Host string `json:"host"` // as the server calls it

	CPU    float64 `json:"cpu"`
	NetIn  float64 `json:"net_in"` // from and to other hosts
	NetOut float64 `json:"net_out"`

	HostCPU    float64 `json:"host_cpu"` // all processes there
	HostNetIn  float64 `json:"host_net_in"`
	HostNetOut float64 `json:"host_net_out"`

	Cores   float64 `json:"capacity_cpu"`
	LinkIn  float64 `json:"capacity_net_in"`
	LinkOut float64 `json:"capacity_net_out"`
	Free    int64   `json:"memory_free"` // bytes

	// Inflow is at which rate gradients of workers on other hosts come in while at least one does;
	// 0: not known.
	Inflow float64 `json:"inflow_Bps"`
}

// Training is what is known of a worker that takes part in the training.
type Training struct {
	Stopped, Parked, Waiting bool  // as the engine says
	Step, Basis              int64 // in hand, and the version that it is computed with
	Version                  int64 // of the parameters now
	Measured                 *measure.Worker
	Last                     *star.Record
	PushDelay                time.Duration
	Poison                   map[string]int64
}

// Trains fills in what a worker that trains adds to its line.
func (w *WorkerStatus) Trains(t *Training) {
	w.State = "computing"
	switch {
	case t.Stopped, t.Waiting && !t.Parked:
		w.State = "waiting"
	case t.Parked:
		w.State = "parked"
	}
	w.Step, w.Poison = t.Step, t.Poison
	w.Iteration, w.Busy = t.Measured.Recent.Mean(), t.Measured.Busy.Mean()
	w.Compute, w.Wait = t.Last.Compute.Seconds(), t.Last.Wait.Seconds()
	if v := t.Last.CPU; v-v == 0 { // finite
		w.CPU = v
	}
	w.Telemetry = named(&t.Last.Telemetry)
	w.Stale = max(t.Version-t.Basis, 0) // a ring is released one round ahead
	w.PushDelay = t.PushDelay.Seconds()
	if w.Iteration > 0 {
		w.Rate = float64(t.Last.Samples) / w.Iteration
	}
}

// Located fills in where a worker is and what it sends, for services that move shards.
func (w *WorkerStatus) Located(site string, t *Training) {
	w.Site, w.Own, w.NetIn, w.NetOut = site, t.Measured.Own.Mean(), t.Last.NetIn, t.Last.NetOut
}

// Phase is that of a job that has begun.
func Phase(over, final, saving bool) string {
	switch {
	case over:
		return "over"
	case final && saving:
		return "saving"
	case final:
		return "evaluating"
	}
	return "training"
}

// Times are what an iteration takes each worker itself, without waiting for others, by rank; 0: unknown, or gone. They
// are means of the last iterations.
func (s *Status) Times() []time.Duration {
	ts := make([]time.Duration, len(s.Workers))
	for i, w := range s.Workers {
		if w.State != "absent" && w.State != "gone" {
			ts[i] = time.Duration(w.Busy * float64(time.Second))
		}
	}
	return ts
}

// named are the metrics that were measured, by name; nil if there are none.
func named(t *star.Telemetry) map[string]float64 {
	if t.Seen == 0 {
		return nil
	}
	m := map[string]float64{}
	for k := range star.NumMetrics {
		if v, ok := t.Get(k); ok {
			m[k.String()] = v
		}
	}
	return m
}
