// Package ops reads op-level traces of jobs that are parallel in data and pipeline, and attributes
// the cost of their stragglers: how long each step would have taken had every operation taken the
// usual time, and which workers caused the difference.
//
// The method is what-if analysis as in J. Lin et al., Understanding Stragglers in Large Model
// Training Using What-if Analysis, OSDI 2025. A step is a graph of operations: those of a worker's
// stream follow each other, a forward pass waits for its activations and a backward pass for its
// gradients, and a collective starts when its last member has arrived. Only its transfer, which
// starts then, counts as its duration: the rest of the recorded time is waiting. The graph is
// evaluated with the recorded durations (T), and with those of some or all operations replaced by
// the ideal one of their type: the mean for computation, the median for communication (T of no
// stragglers). The slowdown is S = T / T_ideal (equation 1); that of a type, a data rank, a stage or
// a worker is the same with only its own operations as recorded (equations 2 to 4); and the part of
// the damage of a set of workers is M = (T − T with these repaired) / (T − T_ideal) (equation 5).
//
// What the recorded time has and the graph does not are gaps between operations, in which the host had launched
// nothing: Result.Launch is how much they are.
//
// Times are in the unit of the trace, which the format does not name. No ratio depends on it.
package ops

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Type is what an operation does.
type Type uint8

// The types of operations.
const (
	Forward Type = iota
	Backward
	ForwardSend
	ForwardRecv
	BackwardSend
	BackwardRecv
	ParamsGather    // of all data ranks of a stage
	GradsScatter    // of all data ranks of a stage
	SeparateReduce  // of all data ranks of a stage: gradients that are not sharded
	LayernormReduce // among tensor ranks; a trace has one of them
	EmbeddingReduce // of the stages of one data rank that hold the embedding
	ClipGrads       // of all workers
	Optimizer
	GC
	numTypes
)

var typeNames = [numTypes]string{"forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send", "backward-recv",
	"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
	"optimizer-clip-main-grad", "optimizer", "gc"}

func (t Type) String() string { return typeNames[t] }

// parseType is the inverse of String.
func parseType(s string) (Type, bool) {
	i := slices.Index(typeNames[:], s)
	return Type(max(i, 0)), i >= 0
}

// computes: its ideal duration is a mean, since computing takes longer only where there is more of it; what is
// sent has outliers that belong to the network, and a median.
func (t Type) computes() bool { return t == Forward || t == Backward || t == Optimizer || t == GC }

// data: a collective of all data ranks of a stage, which runs beside the computation.
func (t Type) data() bool { return t == ParamsGather || t == GradsScatter || t == SeparateReduce }

// pipe: half of a transfer between neighbouring stages.
func (t Type) pipe() bool { return t >= ForwardSend && t <= BackwardRecv }

// category is the key of t in Result.Types: both halves of a transfer have the same.
func (t Type) category() string {
	switch t {
	case ForwardSend, ForwardRecv:
		return "forward-pp-comm"
	case BackwardSend, BackwardRecv:
		return "backward-pp-comm"
	}
	return t.String()
}

// Op is one operation of one worker.
type Op struct {
	Data, Stage int // ranks of the worker
	Step        int64
	Type        Type
	Chunk       int // of the model, in the order of the layers; −1: of none, or of all
	Start, Took float64
}

// Meta is how a job was cut.
type Meta struct {
	Name     string `yaml:"trial_name"`
	Data     int    `yaml:"dp_size"`
	Stages   int    `yaml:"pp_size"`
	Chunks   int    `yaml:"vpp_size"` // of each stage
	Tensor   int    `yaml:"tp_size"`
	Sequence int    `yaml:"dsp_size"`
	Run      int    `yaml:"run_id"`
	World    int    `yaml:"world_size"`
}

// Job is a trace.
type Job struct {
	Meta  Meta
	Steps []int64 // in order

	// Skipped says of steps that are not in Steps what they lack.
	Skipped []string

	steps []step
	ideal [numTypes]float64
}

// ErrTrace is in the error of a file that is no trace of operations.
var ErrTrace = errors.New("not a trace of operations")

// corrupt marks an error with ErrTrace and says no more than it does.
type corrupt struct{ msg string }

func (c corrupt) Error() string        { return c.msg }
func (c corrupt) Is(target error) bool { return target == ErrTrace }

const (
	maxOps  = 1 << 25
	maxRank = 1 << 14
)

// check looks at the fields of one operation.
func (o Op) check() error {
	switch {
	case o.Data < 0 || o.Data >= maxRank:
		return fmt.Errorf("dp_rank is %d, want 0 to %d", o.Data, maxRank-1)
	case o.Stage < 0 || o.Stage >= maxRank:
		return fmt.Errorf("stage is %d, want 0 to %d", o.Stage, maxRank-1)
	case o.Type >= numTypes:
		return fmt.Errorf("type %d, want 0 to %d", o.Type, numTypes-1)
	case o.Chunk < -1 || o.Chunk >= maxRank:
		return fmt.Errorf("gmc is %d, want −1 to %d", o.Chunk, maxRank-1)
	case math.IsNaN(o.Start) || math.IsInf(o.Start, 0) || math.Abs(o.Start) > 1e15:
		return fmt.Errorf("start_ts is %v, want a number", o.Start)
	case math.IsNaN(o.Took) || o.Took < 0 || o.Took > 1e15:
		return fmt.Errorf("duration is %v, want a number of at least 0", o.Took)
	}
	return nil
}

// New makes a job of the operations of all its workers, in any order. Sizes of meta that are 0 are taken from the
// operations; others must agree with them. Steps in which a worker or a partner is missing are left out, and
// Skipped says why; an error has ErrTrace.
func New(meta Meta, all []Op) (*Job, error) {
	j := &Job{Meta: meta}
	if len(all) == 0 {
		return nil, corrupt{"no operations"}
	}
	data, stages, chunks := 0, 0, 0
	for _, o := range all {
		if err := o.check(); err != nil {
			return nil, corrupt{fmt.Sprintf("step %d: %s: %v", o.Step, o.Type, err)}
		}
		data, stages, chunks = max(data, o.Data+1), max(stages, o.Stage+1), max(chunks, o.Chunk+1)
	}
	if j.Meta.Data == 0 {
		j.Meta.Data = data
	}
	if j.Meta.Stages == 0 {
		j.Meta.Stages = stages
	}
	if j.Meta.Chunks == 0 {
		j.Meta.Chunks = max(1, (chunks+j.Meta.Stages-1)/j.Meta.Stages)
	}
	switch m := j.Meta; {
	case data > m.Data:
		return nil, corrupt{fmt.Sprintf("there is a dp_rank %d, but dp_size is %d", data-1, m.Data)}
	case stages > m.Stages:
		return nil, corrupt{fmt.Sprintf("there is a stage %d, but pp_size is %d", stages-1, m.Stages)}
	case chunks > m.Stages*m.Chunks:
		return nil, corrupt{fmt.Sprintf("there is a gmc %d, but pp_size × vpp_size is %d", chunks-1, m.Stages*m.Chunks)}
	case 2*m.Data*m.Stages > len(all):
		return nil, corrupt{fmt.Sprintf("%d operations of %d × %d workers: each computes forward and backward at least", len(all), m.Data, m.Stages)}
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Op) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Data, b.Data), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Type, b.Type))
	})
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Step == all[0].Step {
			n++
		}
		s, err := newStep(j.Meta, all[:n])
		if err != nil {
			j.Skipped = append(j.Skipped, fmt.Sprintf("step %d: %v", all[0].Step, err))
		} else {
			j.Steps = append(j.Steps, all[0].Step)
			j.steps = append(j.steps, s)
		}
		all = all[n:]
	}
	if len(j.steps) == 0 {
		return nil, corrupt{"no step is complete: " + j.Skipped[0]}
	}
	var of [numTypes][]float64
	for _, s := range j.steps {
		for i, o := range s.ops {
			of[o.Type] = append(of[o.Type], s.transfer[i])
		}
	}
	for t := range numTypes {
		j.ideal[t] = usual(t, of[t])
	}
	if j.ideal[Forward]+j.ideal[Backward] == 0 {
		return nil, corrupt{"forward and backward take no time in any step"}
	}
	return j, nil
}

// usual is the ideal duration of operations of a type. It sorts them.
func usual(t Type, took []float64) float64 {
	n := len(took)
	if n == 0 {
		return 0
	}
	if t.computes() {
		sum := 0.0
		for _, d := range took {
			sum += d
		}
		return sum / float64(n)
	}
	slices.Sort(took)
	if n%2 == 1 {
		return took[n/2]
	}
	return (took[n/2-1] + took[n/2]) / 2
}
