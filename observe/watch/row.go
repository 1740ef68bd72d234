package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"star"
)

// Version is the version of rows and links.
const Version = 2

// MaxRow is how many bytes a row has at most.
const MaxRow = 32 << 10

// MaxWorld is how many ranks a job has at most.
const MaxWorld = 4096

// Row is a message of a rank: hello once, step after each step, note when its measuring has ended, stack while it makes
// no progress. The collector adds rows of kind state, of ranks that make no progress. Times are in seconds. Texts come
// from the watched program, and may have any content.
type Row struct {
	Kind string `json:"k"`
	V    int    `json:"v"`
	Rank int    `json:"rank"`
	PID  int    `json:"pid"`

	// Of hello.
	World     int     `json:"world,omitempty"`
	How       string  `json:"how,omitempty"` // "DDP over gloo"
	Script    string  `json:"script,omitempty"`
	Python    string  `json:"python,omitempty"`
	Torch     string  `json:"torch,omitempty"`
	Optimizer string  `json:"optimizer,omitempty"`
	Momentum  float64 `json:"momentum,omitempty"` // β₁ of Adam
	Params    int64   `json:"params,omitempty"`
	CUDA      bool    `json:"cuda,omitempty"`

	// Of step.
	Step int64   `json:"step,omitempty"`
	Took float64 `json:"took,omitempty"` // from the end of the step before
	Load float64 `json:"load,omitempty"` // of it, waiting for data
	Wait float64 `json:"wait,omitempty"` // of it, in collectives
	Send float64 `json:"send,omitempty"` // of Wait, about how long the rank's own data waited for its link
	// from the beginning of a step before to its last local gradient, by the GPU's clock
	GPU     float64 `json:"gpu,omitempty"`
	CPU     float64 `json:"cpu,omitempty"`     // processor time, without that in collectives
	Queue   float64 `json:"queue,omitempty"`   // how long its thread waited for a processor, likewise
	Samples int     `json:"samples,omitempty"` // of this rank
	Dropped int64   `json:"dropped,omitempty"` // rows that could not be sent so far

	// Of step, for the collector: by a clock of the process's own.
	At   float64 `json:"at,omitempty"`   // its end
	From float64 `json:"from,omitempty"` // the beginning of its longest exchange; 0: there was none

	// Of step and stack: the line of the script where the rank is outside of collectives, in most looks at a step.
	Line string `json:"line,omitempty"`

	// Of stack.
	Parent  int      `json:"parent,omitempty"`  // the rank's process, if the stack is that of a worker of its DataLoader
	Frames  []string `json:"frames,omitempty"`  // of the thread that trains, the innermost first
	Threads []string `json:"threads,omitempty"` // where the others are
	Flight  []Call   `json:"flight,omitempty"`  // newest entries of PyTorch's flight recorder, the oldest first

	Text  string `json:"text,omitempty"`  // of note
	State *State `json:"state,omitempty"` // of state

	// What the collector adds.
	Host      string             `json:"host,omitempty"`
	Telemetry map[string]float64 `json:"telemetry,omitempty"` // by the names of the run log
}

// sharded reports for a hello that each rank has only a part of the parameters.
func (r *Row) sharded() bool {
	return strings.HasPrefix(r.How, "FSDP") || strings.HasPrefix(r.How, "DeepSpeed ZeRO")
}

// staged reports for a hello that each rank has another part of the model.
func (r *Row) staged() bool { return strings.HasPrefix(r.How, "pipeline") }

// ParseRow checks all that a row must be.
func ParseRow(b []byte) (r Row, err error) {
	if len(b) > MaxRow {
		return r, fmt.Errorf("%d bytes, at most %d", len(b), MaxRow)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if d.More() {
		return r, errors.New("more than one object")
	}
	if r.V != Version {
		return r, fmt.Errorf("version %d of rows, this program has %d: the hook and star are of one version where star watch starts the program", r.V, Version)
	}
	for _, f := range []float64{r.Took, r.Load, r.Wait, r.Send, r.GPU, r.CPU, r.Queue} {
		if !(f >= 0 && f < 1e6) {
			return r, fmt.Errorf("a time of %v s", f)
		}
	}
	if !(r.At >= 0 && r.At < 1e12 && r.From >= 0 && r.From < 1e12) {
		return r, fmt.Errorf("a step that ended at %v s and exchanged from %v s on", r.At, r.From)
	}
	for name, f := range r.Telemetry {
		if math.IsInf(f, 0) || math.IsNaN(f) || len(name) > 40 {
			return r, fmt.Errorf("telemetry %q is %v", name, f)
		}
	}
	switch {
	case r.Rank < 0 || r.Rank >= MaxWorld:
		return r, fmt.Errorf("rank %d, want 0 to %d", r.Rank, MaxWorld-1)
	case !(r.Momentum >= 0 && r.Momentum < 1):
		return r, fmt.Errorf("momentum %v, want 0 to 1", r.Momentum)
	case r.Samples < 0 || r.Samples > 1<<30 || r.Params < 0 || r.Dropped < 0:
		return r, fmt.Errorf("%d samples, %d parameters, %d rows dropped", r.Samples, r.Params, r.Dropped)
	}
	switch r.Kind {
	case "hello":
		if r.World < 1 || r.World > MaxWorld || r.Rank >= r.World {
			return r, fmt.Errorf("rank %d of %d", r.Rank, r.World)
		}
	case "step":
		if r.Step < 0 || r.Took == 0 || r.Load+r.Wait > r.Took*1.001+1e-6 {
			return r, fmt.Errorf("step %d took %v s, %v of it loading and %v waiting", r.Step, r.Took, r.Load, r.Wait)
		}
	case "note":
	case "stack":
		if len(r.Frames) > 64 || len(r.Threads) > 64 || len(r.Flight) > 256 {
			return r, fmt.Errorf("a stack of %d frames, %d threads, %d recorded calls", len(r.Frames), len(r.Threads), len(r.Flight))
		}
	case "state":
		if err := r.State.valid(r.Rank); err != nil {
			return r, err
		}
	default:
		return r, fmt.Errorf("a row of kind %q", r.Kind)
	}
	for _, s := range []*string{&r.How, &r.Script, &r.Python, &r.Torch, &r.Optimizer, &r.Host, &r.Text, &r.Line} {
		*s = printable(*s)
	}
	clean(r.Frames, r.Threads)
	cleanCalls(r.Flight)
	if s := r.State; s != nil {
		s.clean()
	}
	return r, nil
}

// printable has no control characters, so that no text of a watched program moves a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n':
			return ' '
		case !unicode.IsPrint(c):
			return '?'
		}
		return c
	}, s)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// record converts the row of a step to a record of an all-reduce. at is when it was received.
func (r *Row) record(rank star.Worker, at time.Duration) star.Record {
	wait, load := seconds(r.Wait), seconds(r.Load)
	own := max(seconds(r.Took)-wait-load, time.Microsecond)
	if r.GPU > 0 { // the script does not wait for the GPU where it launches: its clock knows what the rank's own part took
		own = max(min(seconds(r.GPU), own+wait)-load, time.Microsecond)
		wait = max(seconds(r.Took)-load-own, 0)
	}
	out := star.Record{Worker: rank, At: max(at-wait, 0), Compute: own, Load: load, Push: wait, Samples: max(r.Samples, 1), Loss: nan, Norm2: nan, CPU: r.CPU / max(r.Took, 1e-9)}
	for name, v := range r.Telemetry {
		if m, ok := star.MetricByName(name); ok {
			out.Telemetry.Set(m, v)
		}
	}
	out.Telemetry.Set(star.ComputeCPU, r.CPU/own.Seconds())
	return out
}

// judged is the record of a row as the detector takes it: Push is the rank's own sending, and Wait the rest of the
// exchange, in which it waited for others.
func (r *Row) judged(rec star.Record) star.Record {
	send := min(seconds(r.Send), rec.Push)
	rec.Push, rec.Wait = send, rec.Push-send
	return rec
}
