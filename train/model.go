// Package train is what is trained: a Model over one flat vector of parameters,
// and the Batch it learns from. Data sets are in train/data, optimisers in
// train/optim, the models themselves (on gorgonia) in train/net.
//
// A Model knows nothing of workers, shards or modes. The runtime sees two
// vectors: parameters, which it overwrites between steps, and a gradient, which
// it sends away.
package train

import (
	"context"
	"time"
)

// TensorSpec names one tensor inside a flat vector.
type TensorSpec struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Offset int    `json:"offset"` // words of 4 bytes from the start of the vector
	// DType is the type of its elements, a name of package dtype; empty: float32, with one word for
	// each element.
	DType string `json:"dtype,omitempty"`
}

// Len is the number of elements of the tensor.
func (t TensorSpec) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Batch is one mini-batch. Exactly one of X and Tokens is set.
type Batch struct {
	// X holds Samples rows of features, row-major: for images channel, height,
	// width; scaled as the data set says.
	X []float32

	// Tokens holds Samples rows of token ids (language models).
	Tokens []int32

	// Y holds the class of each sample, or, for language models, the next token
	// of each position: Samples rows like Tokens.
	Y []int32

	Samples int

	// Start is the place of the first sample in the stream that all workers share, where the batch is for training.
	Start int64
}

// Data is a finite set of samples with random access, which a model learns from or is tested on. It may be used by
// several goroutines at the same time.
type Data interface {
	// Len is the number of samples, the same in every process of a job.
	Len() int

	// Fill makes b the batch of the samples named by indices, in their order. It reuses the slices of b where they
	// are large enough. An index outside 0..Len()-1 is an error, and leaves b undefined.
	Fill(b *Batch, indices []int) error
}

// Result is what a forward pass over a batch found. For language models every
// position counts as one prediction.
type Result struct {
	LossSum float64 // sum over predictions of the cross-entropy, in nats
	Correct int     // correct predictions
	Count   int     // predictions
}

// Model is a differentiable function of one flat parameter vector. A Model is
// used by one goroutine at a time.
type Model interface {
	// Params is the flat parameter vector. The slice is shared and stays valid
	// for the life of the model; the owner may overwrite its elements between
	// calls of Grad and Eval.
	Params() []float32

	// Layout says which tensor lies where in Params, in order, without gaps.
	Layout() []TensorSpec

	// Buffers is state that is not optimised: the running statistics of batch
	// normalisation. Shared like Params; empty for most models. Training
	// changes it locally; it is averaged over workers at checkpoints and
	// evaluations. BufferLayout is its Layout; tensors of other types than float32 lie in
	// the words of Buffers as package dtype says.
	Buffers() []float32
	BufferLayout() []TensorSpec

	// Grad runs forward and backward over b in training mode and writes the
	// gradient of the batch's mean loss into dst, of the length of Params. It
	// overwrites dst, it does not add. The loss is the mean over predictions.
	// A NaN or Inf on the way is returned in loss or dst or as an error, never a
	// panic. b is borrowed for the call.
	Grad(ctx context.Context, dst []float32, b Batch) (loss float64, err error)

	// Eval runs forward over b in evaluation mode. It changes neither Params
	// nor Buffers.
	Eval(ctx context.Context, b Batch) (Result, error)

	Close() error
}

// Scorer is a Model that says what it makes of samples.
type Scorer interface {
	Model

	// Scores runs forward over b as Eval does, and calls each for every prediction, in order: one
	// for each sample, or, for language models, for each position of each sample. scores has one
	// number for each class; their softmax is the probability. It is borrowed for the call. Labels
	// are ignored, and must be as for Eval.
	Scores(ctx context.Context, b Batch, each func(prediction int, scores []float32)) error
}

// Streamer is a Model that says which part of the gradient is complete while it still
// computes the rest, so that sending can begin.
type Streamer interface {
	Model

	// GradStream is Grad. Meanwhile it calls ready for one range of dst after the other,
	// [from, to) in elements, from the end to the beginning, without gaps; it does not touch
	// a range again that was ready. ready may be called on another goroutine, but not
	// after GradStream has returned, and should not wait.
	GradStream(ctx context.Context, dst []float32, b Batch, ready func(from, to int)) (loss float64, err error)
}

// Gone is an error of a Model in another process that computes nothing more. Its parameters and buffers are there
// until it is closed.
type Gone interface {
	error

	// Gone is the exit code of that process; 0: it has left in good order, and may still evaluate.
	Gone() int
}

// Updater is a Model that can make the updates itself, with an optimiser of its own. Its gradient is a vector of
// its own, too.
type Updater interface {
	Model

	// Gradient is the vector that Update looks at. It has the length of Params.
	Gradient() []float32

	// Update changes Params by a step with the mean gradient in Gradient. samples is how many the job has used before.
	Update(ctx context.Context, samples int64) error

	// State is what the optimiser remembers, in the model's own form.
	State(ctx context.Context) ([]byte, error)

	// SetState has the optimiser remember what State was of another one for the same model.
	SetState(ctx context.Context, state []byte) error
}

// Turned is a Model that makes several updates of each batch, one after the other.
type Turned interface {
	Updater

	// Turn says which of them the next gradient and the next update are, from 0.
	Turn(i int)
}

// Experienced is a Model that has been trained before by an optimiser of its own, as that of a script that goes on
// from its own checkpoint.
type Experienced interface {
	Model

	// Experience is what that optimiser remembers, for a job that begins. Nil: nothing.
	Experience(ctx context.Context) (*Experience, error)
}

// Curious is a Model that may want to know, while it computes, what the job's optimiser remembers.
type Curious interface {
	Model

	// Asks sets the function to ask. recall is called within a call of Grad or Eval, on its
	// goroutine; the vectors are borrowed until the next update.
	Asks(recall func(ctx context.Context) (*Experience, error))

	// Over: the job makes no more updates. It is the last time that the function of Asks may be
	// called.
	Over(ctx context.Context)
}

// Experience is what an optimiser remembers.
type Experience struct {
	Rule  string               // its name, as star/train/optim has it
	Steps int64                // updates that it has made
	Slots map[string][]float32 // by the names of star/train/optim; each has the length of Params
}

// Measured is a Model that is computed elsewhere, and knows what that took.
type Measured interface {
	Model

	// Measured is of the last call of Grad.
	Measured() Measurement
}

// Measurement is what one gradient took that another process has computed.
type Measurement struct {
	Load      time.Duration // of the time that Grad took, until the samples were there; the rest is computation
	CPU       time.Duration // of all threads of that process, since the Measurement before
	Faults    int64         // pages read from disk, likewise
	Preempted int64         // involuntary context switches, likewise

	// Processes has the time of each of several processes that computed the gradient together, without its waits for
	// the others. The other fields are then those of the slowest one. Empty: one process.
	Processes []time.Duration
}

// Input says what a model is fed, so that models and data sets can be matched
// before anything runs.
type Input struct {
	// Shape of one sample: (channels, height, width) or (features) for X,
	// (positions) for Tokens.
	Shape []int

	// Classes is the number of classes, or the size of the vocabulary.
	Classes int

	// Tokens says that samples are token ids.
	Tokens bool
}
