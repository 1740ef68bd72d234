package foreign

import (
	"encoding/json"
	"fmt"
	"math"
	"os"

	"star/internal/dtype"
	"star/internal/exitcode"
	"star/train"
)

// AboutError says why a program's description of its model was rejected.
type AboutError struct{ Why string }

func (e *AboutError) Error() string { return e.Why }

// ExitCode is that of a program that does not fit.
func (e *AboutError) ExitCode() int { return exitcode.Disagree }

// Tensor names one tensor. Tensors lie one after the other, in the order in which they are listed.
type Tensor struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
	// DType is set for buffers: a name of package dtype; empty: F32.
	DType string `json:"dtype,omitempty"`
}

// About is the first message of a program: what it is going to train.
type About struct {
	// Name is that of the model.
	Name string `json:"name"`
	// Program is what computes: "PyTorch 2.5.1".
	Program string `json:"program,omitempty"`
	// Layout has the float32 parameters.
	Layout []Tensor `json:"layout"`
	// Buffers are state that is not optimised: floating-point values are averaged over workers.
	Buffers []Tensor `json:"buffers,omitempty"`
	// Data is the name of the data set.
	Data string `json:"data,omitempty"`
	// Samples is the number of samples of one epoch.
	Samples int64 `json:"samples"`
	// Tests is the number of samples of the test set; 0: no test set.
	Tests int64 `json:"tests,omitempty"`
	// Batch is the number of samples of a worker's step; 0: the job's.
	Batch int `json:"batch,omitempty"`
	// Epochs is the length of the training; 0: the job's.
	Epochs float64 `json:"epochs,omitempty"`

	// Whole: a batch must be computed in one piece and at its size, because the program normalises,
	// compares or sums over it.
	Whole bool `json:"whole,omitempty"`

	// DropLast: the program wants no smaller batch at the end.
	DropLast bool `json:"drop_last,omitempty"`

	// Optimizer is the update that the job makes of gradients, in the format of star/train/optim.
	// Null: the job's.
	Optimizer json.RawMessage `json:"optimizer,omitempty"`

	// State is the state of the optimizer, for a job that starts with these parameters. Nil: none.
	State *AboutState `json:"state,omitempty"`

	// Remembers: the program wants the final state of the optimizer at the end of the job.
	Remembers bool `json:"remembers,omitempty"`

	// Exchange: the program only has its gradients exchanged and does everything else itself: it
	// says when the job is over, and how a mean that is not finite is handled. Its parameters are in
	// the memory only after it has answered Recall. Optimizer has the name "own".
	Exchange bool `json:"exchange,omitempty"`

	// Turns is the number of updates that the program makes of each batch, by its own optimizers,
	// one after the other: each has a Compute and an Update. Optimizer has the name "own". 0: one.
	Turns int `json:"turns,omitempty"`

	// Prefetch is the number of batches ahead of the current one that the program wants to be told
	// (Lease). They are likely, not certain.
	Prefetch int `json:"prefetch,omitempty"`

	// Client is the name and version of the program's side of the link. Empty: an older one, or not
	// stated.
	Client string `json:"client,omitempty"`

	// Processes is how many processes compute each gradient together; 0: one.
	Processes int `json:"processes,omitempty"`

	// PID is that of the process that computes, of several the one with the link.
	PID int `json:"pid"`

	// Stack: on SIGUSR2 the process writes its stack to standard error.
	Stack bool `json:"stack,omitempty"`
}

// AboutState describes the state of an optimizer. Recall asks for the vectors themselves.
type AboutState struct {
	// Steps is the number of updates that the optimizer has made.
	Steps int64 `json:"steps"`
	// Slots names its vectors, each as long as the parameters, in the order of State.
	Slots []string `json:"slots"`
}

// Limits of what a program may send.
const (
	maxElements = 1 << 33 // 32 GiB of float32
	maxPrefetch = 1024
	maxSlots    = 4
	maxTurns    = 1024

	maxProcesses = 1024
)

// parseAbout parses the first frame of a program.
func parseAbout(f Frame) (a About, err error) {
	bad := func(format string, args ...any) (About, error) {
		return About{}, &AboutError{fmt.Sprintf(format, args...)}
	}
	if f.Kind != KindAbout {
		return bad("the program begins with %v, expected about; it does not use this link (docs/link.md)", f.Kind)
	}
	if f.A != Version {
		return bad("the program%s speaks version %d of the link, this star version %d; install the star-train that matches %s, or set STAR_AGENT to the matching star", client(f.Body), f.A, Version, executable())
	}
	if err := json.Unmarshal(f.Body, &a); err != nil {
		return bad("the program's description of its model is not the JSON it should be: %v", err)
	}
	n, err := words(a.Layout)
	if err != nil {
		return bad("parameters: %v", err)
	}
	for _, t := range a.Layout {
		if t.DType != "" && t.DType != dtype.F32 {
			return bad("parameter %.100s is %.20s: the job exchanges float32", t.Name, t.DType)
		}
	}
	if n == 0 {
		return bad("the model %.100q has no parameters to train: does one of them need a gradient (requires_grad)?", a.Name)
	}
	if _, err := words(a.Buffers); err != nil {
		return bad("buffers: %v", err)
	}
	switch {
	case a.Samples < 1 || a.Samples > math.MaxInt32:
		return bad("a data set of %d samples: want 1 to %d", a.Samples, math.MaxInt32)
	case a.Tests < 0 || a.Tests > math.MaxInt32:
		return bad("a test set of %d samples: want 0 to %d", a.Tests, math.MaxInt32)
	case a.Batch < 0 || 8*a.Batch > maxIndices:
		return bad("a batch of %d samples: want at most %d", a.Batch, maxIndices/8)
	case !(a.Epochs >= 0) || math.IsInf(a.Epochs, 0):
		return bad("%v epochs", a.Epochs)
	case a.State != nil && (a.State.Steps < 0 || len(a.State.Slots) == 0 || len(a.State.Slots) > maxSlots || len(a.Optimizer) == 0):
		return bad("the state of an optimiser with %d steps and %d vectors: want at most %d, and the optimizer's name", a.State.Steps, len(a.State.Slots), maxSlots)
	case a.Turns < 0 || a.Turns > maxTurns:
		return bad("%d updates of each batch: want at most %d", a.Turns, maxTurns)
	case a.Processes < 0 || a.Processes > maxProcesses:
		return bad("%d processes of one worker: want at most %d", a.Processes, maxProcesses)
	case a.Prefetch < 0 || a.Prefetch > maxPrefetch:
		return bad("a prefetch of %d batches: want at most %d", a.Prefetch, maxPrefetch)
	}
	return a, nil
}

// client returns the name of the program's side of the link for messages, from a body that may be of
// another version.
func client(body []byte) string {
	var a struct{ Client string }
	if json.Unmarshal(body, &a); a.Client == "" {
		return ""
	}
	return fmt.Sprintf(" (%.100s)", a.Client)
}

func executable() string {
	if p, err := os.Executable(); err == nil {
		return p
	}
	return "it"
}

// words returns the number of 4-byte words of tensors. An error: tensors that are not valid.
func words(tensors []Tensor) (n int, err error) {
	seen := make(map[string]bool, len(tensors))
	for i, t := range tensors {
		if t.Name == "" || seen[t.Name] {
			return 0, fmt.Errorf("tensor %d: the name %.100q is empty, or used twice", i, t.Name)
		}
		seen[t.Name] = true
		if dtype.Size(t.DType) == 0 {
			return 0, fmt.Errorf("tensor %.100s has elements of the unknown type %.20q", t.Name, t.DType)
		}
		size := 1
		for _, d := range t.Shape {
			if d < 0 || d > 0 && size > maxElements/d {
				return 0, fmt.Errorf("tensor %.100s cannot have the shape %v", t.Name, t.Shape[:min(len(t.Shape), 8)])
			}
			size *= d
		}
		if n = dtype.Begin(t.DType, n) + dtype.Words(t.DType, size); n > maxElements {
			return 0, fmt.Errorf("more than %d elements, at tensor %.100s", maxElements, t.Name)
		}
	}
	return n, nil
}

// specs returns the tensors with their offsets.
func specs(tensors []Tensor) []train.TensorSpec {
	out := make([]train.TensorSpec, len(tensors))
	at := 0
	for i, t := range tensors {
		out[i] = train.TensorSpec{Name: t.Name, Shape: t.Shape, Offset: dtype.Begin(t.DType, at), DType: t.DType}
		at = out[i].Offset + dtype.Words(t.DType, out[i].Len())
	}
	return out
}
