// Package view defines what the coordinator shows of a job: the answer to star ctl status. It is pure. The coordinator
// collects the values from its parts; this package computes what depends on several of them.
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
	"star/transport/wire"
)

// Status is the present state of the job: the answer to `star ctl status`. The JSON field names are stable. Values are
// in seconds, samples and bytes; unknown values are 0 or null.
//
// The phases follow one another: joining until the training begins, training, evaluating and saving at the end, over.
// Waiting names what the job waits for now, as text; "nothing" if it does not wait. Times of a job that was taken over
// count from the begin of its first coordinator.
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

	// Efficiency is the workers' speed in samples, relative to their speed without exchange and waiting; 0 if unknown.
	Efficiency float64 `json:"scaling_efficiency,omitempty"`

	// the minimum of workers that the job waits for; 0 if it does not wait
	Short      int              `json:"short,omitempty"`
	Auto       bool             `json:"auto"`                 // a pilot changes the mode
	Stragglers []string         `json:"stragglers,omitempty"` // the pilot's verdicts on slow workers
	Slowdown   string           `json:"slowdown,omitempty"`   // that all workers together are slower than before
	Refused    *advisor.Refusal `json:"refused,omitempty"`    // a mode that was refused; nil without one

	Noise   NoiseStatus    `json:"noise"`
	Workers []WorkerStatus `json:"workers"`
	Servers []ServerStatus `json:"servers"`
	Shift   *moves.Shifts  `json:"move_shards,omitempty"` // with --move-shards auto
	Shards  []ShardStatus  `json:"shards,omitempty"`
}

// NoiseStatus is the noise of gradients (package pgns).
type NoiseStatus struct {
	Scale        float64 `json:"scale"` // φ in samples; 0 if unknown
	Grad2        float64 `json:"grad2"`
	Var          float64 `json:"var"`
	Mixed        bool    `json:"mixed"` // includes gradients of different versions, which raises it
	Observations int64   `json:"observations"`
}

// WorkerStatus is the status of one rank. Times are in seconds: Iteration, Busy and Own are means over the last
// iterations, Compute and Wait are the last one's. States: absent (no worker has had the rank), joining, computing,
// waiting (its gradient has arrived and the update is not made), parked (no batch is left for it), gone. Values that
// the worker has not measured are 0.
type WorkerStatus struct {
	Worker    int     `json:"worker"`
	Peer      string  `json:"peer"`
	State     string  `json:"state"` // absent, joining, computing, waiting, parked, gone
	Step      int64   `json:"step"`
	Iteration float64 `json:"iteration_s"`
	Busy      float64 `json:"busy_s"` // the part of Iteration without waiting for others
	Compute   float64 `json:"compute_s"`
	Wait      float64 `json:"wait_s"`
	CPU       float64 `json:"cpu"` // processor time of the process for each second of the last iteration
	Rate      float64 `json:"samples_per_s"`
	Stale     int64   `json:"staleness"`
	PushDelay float64 `json:"push_delay_s,omitempty"` // how long its next push waits for others
	// own time relative to the fast workers; 0 unless a pilot calls it slow
	Slowdown float64 `json:"slowdown,omitempty"`
	Cause    string  `json:"cause,omitempty"` // why it is slow

	Poison map[string]int64 `json:"poison,omitempty"` // excluded gradients, by cause

	Site   string  `json:"site,omitempty"`    // its host; servers with the same site share it
	Own    float64 `json:"own_s,omitempty"`   // loading and computing in an iteration
	NetIn  float64 `json:"net_in,omitempty"`  // bytes received in its last iteration: parameters
	NetOut float64 `json:"net_out,omitempty"` // bytes sent in its last iteration: its gradient

	Telemetry map[string]float64 `json:"telemetry,omitempty"` // from the last record, by name
}

// ShardStatus is the location of a shard. Server is its present server, also during a move; with copies it is the
// primary.
type ShardStatus struct {
	Shard  int   `json:"shard"`
	Server int   `json:"server"` // its rank
	Bytes  int64 `json:"bytes"`  // of its parameters
	Moving bool  `json:"moving,omitempty"`

	// With copies (Config.Replicas): the term of its view, and the followers in order of succession.
	Term      int64 `json:"term,omitempty"`
	Followers []int `json:"followers,omitempty"`
	Replicas  int   `json:"replicas,omitempty"` // the configured number of copies
}

// ServerStatus is one star-ps process.
type ServerStatus struct {
	Server int    `json:"server"` // its rank
	Host   string `json:"host"`
	Addr   string `json:"addr"`
	Shards int    `json:"shards"`
	Gone   bool   `json:"gone,omitempty"`

	// CopyRate is the rate of the last shard that moved here, in bytes per second; 0 without one.
	CopyRate float64 `json:"copy_Bps,omitempty"`

	Site string      `json:"site,omitempty"` // with --move-shards auto: its host; workers with the same site share it
	Load *ServerLoad `json:"load,omitempty"` // likewise; nil if the server reports no load
}

// ServerLoad is a server's usage and the capacity of its host: processors and bytes per second. A capacity of 0 is
// unknown.
type ServerLoad struct {
	Host string `json:"host"` // the server's own name for it

	CPU    float64 `json:"cpu"`
	NetIn  float64 `json:"net_in"` // from and to other hosts
	NetOut float64 `json:"net_out"`

	HostCPU    float64 `json:"host_cpu"` // all processes on the host
	HostNetIn  float64 `json:"host_net_in"`
	HostNetOut float64 `json:"host_net_out"`

	Cores   float64 `json:"capacity_cpu"`
	LinkIn  float64 `json:"capacity_net_in"`
	LinkOut float64 `json:"capacity_net_out"`
	Free    int64   `json:"memory_free"` // bytes

	// Inflow is the rate at which gradients from other hosts arrive while at least one does; 0 if unknown.
	Inflow float64 `json:"inflow_Bps"`
}

// Reported is what a server reports of itself and its host.
type Reported struct {
	Enlist wire.Enlist
	Usage  wire.Usage
	Heard  bool // Usage is set
}

// Load returns the load without Inflow; nil if the server reports none.
func (r *Reported) Load() *ServerLoad {
	if !r.Heard {
		return nil
	}
	u, host := r.Usage, r.Enlist.Capacity
	return &ServerLoad{
		Host: r.Enlist.Host,
		CPU:  u.Own.CPU, NetIn: u.Own.In, NetOut: u.Own.Out, HostCPU: u.Host.CPU, HostNetIn: u.Host.In, HostNetOut: u.Host.Out,
		Cores: host.CPU, LinkIn: host.In, LinkOut: host.Out, Free: u.Free,
	}
}

// Training is the state of a worker that takes part in the training.
type Training struct {
	Stopped, Parked, Waiting bool  // as the engine says
	Step, Basis              int64 // its present step, and the version that it is computed with
	Version                  int64 // of the parameters now
	Measured                 *measure.Worker
	Last                     *star.Record
	PushDelay                time.Duration
	Poison                   map[string]int64
}

// Trains sets the fields of a worker that trains.
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

// Located sets where a worker is and its traffic, for services that move shards.
func (w *WorkerStatus) Located(site string, t *Training) {
	w.Site, w.Own, w.NetIn, w.NetOut = site, t.Measured.Own.Mean(), t.Last.NetIn, t.Last.NetOut
}

// Phase is the phase of a job that has begun.
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

// Times returns by rank how long an iteration takes each worker without waiting for others: a mean of the last
// iterations; 0 if unknown or gone.
func (s *Status) Times() []time.Duration {
	ts := make([]time.Duration, len(s.Workers))
	for i, w := range s.Workers {
		if w.State != "absent" && w.State != "gone" {
			ts[i] = time.Duration(w.Busy * float64(time.Second))
		}
	}
	return ts
}

// named returns the measured metrics by name; nil without any.
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
