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

// Handover is what a successor must know that is not in the Fires. The processes that may coordinate agree on each
// change of it before the change is in force, so it is small. It is JSON, so that fields may be added. Times are by a
// clock that all of these processes share.
//
// What a successor finds out by itself is not in it: which updates were made (servers report), which samples are applied
// (metadata), which members are there (they join). It changes when shards are assigned, the training begins, a worker
// joins or leaves, the plan or a threshold is changed, a copy begins to count, and at the end.
type Handover struct {
	Begun      time.Duration // of the run
	Trains     time.Duration // since when it trains; 0: shards are assigned, and the training has not begun
	Generation int64
	From       engine.Progress // where the training began
	Limit      int64           // where the stream ends, in samples
	Plan       modes.Plan
	Manual     bool               // the pilot is ignored
	Set        map[string]float64 `json:",omitempty"` // thresholds that star ctl set has changed
	Grows      bool               `json:",omitempty"` // a tree that follows the load is wanted
	Workers    []star.Worker      // that take part
	Steps      []int64            `json:",omitempty"` // by worker, the step in hand when Workers were noted; -1: the rank was never taken
	Model      string
	ModelHash  string
	Params     int64
	Buffers    int64
	Key        string `json:",omitempty"` // of the passes that workers have; empty: shards want none
	Shards     []wire.ShardInfo
	Owner      []int       // by shard: the rank of the server that has it
	Seats      map[int]int // by rank of a server that has shards: how many, copies included
	End        *Ending     // the job is over; nil: it is not
	Ring       bool        `json:",omitempty"` // all-reduce: there are no shards

	Views []replica.View `json:",omitempty"` // by shard: which servers hold its copies, where it has some
}

// Ending is how a job has ended.
type Ending struct {
	Exit   int // that members are told; 0: the job is done
	Reason string
	Result runlog.Result
	Code   int    // of the coordinator, which may have an error that is not the members'
	Error  string // empty: none
}

// Enlist notes which workers take part, and which steps are not to be used again: by worker the step in hand.
func (h *Handover) Enlist(steps []int64, live func(star.Worker) bool) {
	h.Workers, h.Steps = nil, steps
	for w := range steps {
		if live(star.Worker(w)) {
			h.Workers = append(h.Workers, star.Worker(w))
		}
	}
}
