package takeover

import (
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/ps/replica"
	"star/runlog"
	"star/transport/wire"
)

// Handover is what a successor must know beyond the Fires. The processes that may coordinate agree on each change of it
// before the change takes effect, so it is small. It is JSON, so that fields may be added. Times are by a clock that
// all of these processes share.
//
// A successor finds out the rest by itself: which updates were made (servers report), which samples are applied
// (metadata), which members are present (they join). The handover changes when shards are assigned, the training
// begins, a worker joins or leaves, the plan or a threshold is changed, a copy begins to count, and at the end.
type Handover struct {
	Begun      time.Duration // begin of the run
	Trains     time.Duration // begin of the training; 0 if it has not begun
	Generation int64
	From       engine.Progress // where the training began
	Limit      int64           // where the stream ends, in samples
	Plan       modes.Plan
	Manual     bool               // a mode was set by hand: the pilot is ignored
	Set        map[string]float64 `json:",omitempty"` // thresholds changed with star ctl set
	Grows      bool               `json:",omitempty"` // the plan has an automatic tree
	Workers    []star.Worker      // live workers
	// by worker: its step when Workers was recorded; -1: the rank was never taken
	Steps     []int64 `json:",omitempty"`
	Model     string
	ModelHash string
	Params    int64
	Buffers   int64
	Key       string `json:",omitempty"` // key for the workers' passes; empty: shards require none
	Shards    []wire.ShardInfo
	Owner     []int       // by shard: the rank of its primary server
	Counts    map[int]int `json:"Seats"` // by rank of the servers with shards: number of shards, including copies
	End       *Ending     // nil unless the job is over
	Ring      bool        `json:",omitempty"` // all-reduce: there are no shards

	Views []replica.View `json:",omitempty"` // by shard: the servers that hold it, in a job with copies
}

// Ending describes how a job has ended.
type Ending struct {
	Exit   int // for members; 0 if the job is done
	Reason string
	Result runlog.Result
	Code   int    // for the coordinator, which may have an error of its own
	Error  string // of the coordinator; empty without one
}

// Enlist records which workers take part, and by worker the present step, which must not be used again.
func (h *Handover) Enlist(steps []int64, live func(star.Worker) bool) {
	h.Workers, h.Steps = nil, steps
	for w := range steps {
		if live(star.Worker(w)) {
			h.Workers = append(h.Workers, star.Worker(w))
		}
	}
}
