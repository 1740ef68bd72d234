package worker

import (
	"context"
	"errors"
	"io"
	"iter"

	"star/train"
)

// Session is a worker for a caller that has its own loop:
//
//	s, err := worker.Join(ctx, c, worker.Vectors{Params: params, Layout: layout})
//	for {
//		step, err := s.Next()
//		if err == io.EOF {
//			break // the job is over
//		}
//		if step.Evaluation {
//			s.Evaluated(test(step.Batch))
//			continue
//		}
//		s.Exchange(gradient(step.Gradient, step.Batch))
//	}
//
// It is the same worker that [Run] drives: in every mode a step is a batch, and its gradient
// is computed for the current parameters. One goroutine at a time may use it.
//
// The worker's own work is done within Join, Next and Close, and pauses while the caller has a step.
// Heartbeats to the coordinator continue, so the caller may compute for as long as it needs without
// being declared dead. A session is over when Next has returned an error; the caller must still
// close it. The mode decides what a step asks for: with local steps or a queue it may be a part of a
// batch, and Exchange need not send anything.
type Session struct {
	// Rank is that of this worker; Workers is the maximum of the job.
	Rank, Workers int

	resume func() (Step, bool)
	stop   func()
	cancel context.CancelCauseFunc
	in     *rendezvous
	// hand: the caller has a step.
	hand bool
	// over: no more steps will come.
	over bool
	// err is the worker's result.
	err error
}

// Vectors are what is trained, in the caller's memory. The session owns Params and Buffers except
// between Next and Exchange or Evaluated. Layout names the tensors in Params by offset and shape in
// elements, without gaps; all workers must have the same. Params and Buffers keep their place for
// the whole session; only their values change.
type Vectors struct {
	Params []float32
	Layout []train.TensorSpec
	// Buffers differ between workers, such as the statistics of batch normalisation; nil: no
	// buffers.
	Buffers      []float32
	BufferLayout []train.TensorSpec
}

// Step is what the job asks of a worker next. A step must not be used after it was answered.
type Step struct {
	// Batch is valid until the next call of Next.
	Batch train.Batch
	// Evaluation: the loss of Batch is wanted, and nothing changes.
	Evaluation bool
	// Gradient receives the gradient of the mean loss over Batch: the caller overwrites every
	// element.
	Gradient []float32
}

// ErrClosed is the error of a session that was closed before the job was over.
var ErrClosed = errors.New("worker: the session is closed")

var errLeaves = errors.New("the worker leaves")

// Join joins a job with a model that the caller computes. c.Model is ignored. The caller must close
// the session. When ctx ends, or after Leave, steps continue until the coordinator releases the
// worker.
//
// Errors are those of [Run], and io.EOF if the job is already over.
//
// Join returns when the job has admitted the worker; Rank and Workers are then known, and c.Joined
// was called. With servers a job starts with the first worker's v.Params; those of all others are
// overwritten before their first step.
func Join(ctx context.Context, c Config, v Vectors) (*Session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Session{cancel: cancel, in: &rendezvous{Vectors: v}}
	joined := c.Joined
	c.Model = s.in
	s.resume, s.stop = iter.Pull(func(yield func(Step) bool) {
		c.Joined = func(rank, workers int) {
			if s.Rank, s.Workers = rank, workers; joined != nil {
				joined(rank, workers)
			}
			yield(Step{})
		}
		s.in.yield = yield
		s.err = Run(ctx, c)
	})
	if _, ok := s.resume(); !ok {
		s.over = true
		s.end()
		if s.err == nil {
			s.err = io.EOF
		}
		return nil, s.err
	}
	return s, nil
}

// Next waits for the next step, with its parameters in place. It returns io.EOF when the job is
// over, or the worker has left after Leave.
//
// It may wait as long as other workers need. Errors are those of [Run], and are permanent: each
// further call returns the same. A call before the last step was answered is an error that changes
// nothing.
func (s *Session) Next() (Step, error) {
	if s.hand && !s.over {
		return Step{}, errors.New("worker: cannot start the next step: answer the last one with Exchange or Evaluated first")
	}
	if !s.over {
		if step, ok := s.resume(); ok {
			s.hand = true
			return step, nil
		}
		s.over = true
	}
	if s.err == nil || errors.Is(s.err, errLeaves) {
		return Step{}, io.EOF
	}
	return Step{}, s.err
}

// Exchange hands over Step.Gradient; loss is the mean over the batch. The next call of Next sends
// it. A gradient or loss that is not finite then ends the worker, or is skipped (OnNaN).
func (s *Session) Exchange(loss float64) { s.in.loss, s.hand = loss, false }

// Evaluated answers a step that is an evaluation. r has sums over the samples of Batch, not means.
func (s *Session) Evaluated(r train.Result) { s.in.result, s.hand = r, false }

// Leave tells the coordinator that the worker leaves. The caller continues until Next returns
// io.EOF. It may be called more than once, and from any goroutine.
func (s *Session) Leave() { s.cancel(errLeaves) }

// Close ends the session at once, as if the process had ended; after io.EOF it has nothing to do. It
// returns the worker's result: nil after Leave, ErrClosed if the job was not over. It waits until
// the worker has ended, and may be called again.
func (s *Session) Close() error {
	if !s.over {
		s.over, s.err = true, ErrClosed
		s.in.gone = true
		err := s.err
		s.cancel(err)
		s.stop()
		s.err = err
	}
	s.end()
	if errors.Is(s.err, errLeaves) {
		return nil
	}
	return s.err
}

// end ends the worker and waits for it.
func (s *Session) end() {
	s.cancel(nil)
	s.stop()
}

// rendezvous is the model of a session: its computation is a step that the caller of Next does. The
// worker's goroutine blocks in Grad or Eval until the step is answered.
type rendezvous struct {
	Vectors
	yield  func(Step) bool
	loss   float64
	result train.Result
	gone   bool
}

func (m *rendezvous) Params() []float32                { return m.Vectors.Params }
func (m *rendezvous) Layout() []train.TensorSpec       { return m.Vectors.Layout }
func (m *rendezvous) Buffers() []float32               { return m.Vectors.Buffers }
func (m *rendezvous) BufferLayout() []train.TensorSpec { return m.Vectors.BufferLayout }
func (m *rendezvous) Close() error                     { return nil }

// Grad hands a batch to the caller of Next, which fills dst. ErrClosed: the session is closed.
func (m *rendezvous) Grad(_ context.Context, dst []float32, b train.Batch) (float64, error) {
	if m.gone || !m.yield(Step{Batch: b, Gradient: dst}) {
		return 0, ErrClosed
	}
	return m.loss, nil
}

// Eval hands a part of the test set to the caller of Next. ErrClosed: the session is closed.
func (m *rendezvous) Eval(_ context.Context, b train.Batch) (train.Result, error) {
	if m.gone || !m.yield(Step{Batch: b, Evaluation: true}) {
		return train.Result{}, ErrClosed
	}
	return m.result, nil
}
