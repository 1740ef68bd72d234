package worker

import (
	"context"
	"errors"
	"io"
	"iter"

	"star/train"
)

// Session is a worker for a caller who owns the loop:
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
// It is the same machine that [Run] drives, which stands still while the caller computes: whatever the mode, a step is a batch whose gradient is wanted of the
// parameters as they are now. One goroutine uses it at a time.
//
// Both sides take turns: the worker's own work is done within Join, Next and Close, and stands
// still while a step is in the caller's hands. Beats to the coordinator go on meanwhile, so a
// caller may compute for as long as it wants without being taken for dead.
// A session is over when Next has returned an error; it is to be closed all the same. What a step asks
// for follows from the mode: with local steps or a queue it may be a part of a batch, and Exchange need
// not lead to an exchange.
type Session struct {
	Rank, Workers int // of this worker; that the job may have

	resume func() (Step, bool)
	stop   func()
	cancel context.CancelCauseFunc
	in     *rendezvous
	hand   bool  // a step is in the caller's hands
	over   bool  // there will be none any more
	err    error // of the worker
}

// Vectors are what is trained, in the caller's memory. The session owns Params and Buffers but
// between Next and Exchange, or Evaluated. Layout names the tensors in Params, by offset and shape
// in elements, without gaps; all workers must have the same. Params and Buffers stay where they are
// for the whole session: what they hold changes.
type Vectors struct {
	Params       []float32
	Layout       []train.TensorSpec
	Buffers      []float32 // of each worker, such as the statistics of batch normalisation; nil: there are none
	BufferLayout []train.TensorSpec
}

// Step is what the job wants next of a worker. Nothing of a step may be used once it was answered.
type Step struct {
	Batch      train.Batch // borrowed until the next call of Next
	Evaluation bool        // the loss of Batch is wanted, and nothing changes
	Gradient   []float32   // where the gradient of Batch's mean loss is to be put: all of it is overwritten
}

// ErrClosed is what a session ends with that was closed before the job was over.
var ErrClosed = errors.New("worker: the session is closed")

var errLeaves = errors.New("the worker leaves")

// Join joins a job with a model whose computation the caller does. c.Model is not looked at. The
// session must be closed. When ctx ends, or after Leave, there are steps until the coordinator lets
// the worker go.
//
// Errors are those of [Run], and io.EOF: the job is over already.
//
// It returns when the worker has a part in the job; Rank and Workers are known then, and c.Joined
// was called. With servers a job begins with the first worker's v.Params; those of all others are
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

// Next waits for what the job wants next, with the parameters for it in place. It returns io.EOF
// when the job is over, or the worker was told to leave and has left. A step that was not answered
// is an error.
//
// It may wait for as long as others take. Errors are those of [Run], and stay: each further call
// returns the same. An error of the caller's, a step that was not answered, changes nothing.
func (s *Session) Next() (Step, error) {
	if s.hand && !s.over {
		return Step{}, errors.New("worker: Next before the step in hand was answered by Exchange or Evaluated")
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

// Exchange hands over the gradient of the step in hand, which is in its Gradient; loss is the mean
// over the batch. It travels within the call of Next. A gradient or loss that is not finite ends
// the worker, or is left out (OnNaN), at the next call of Next.
func (s *Session) Exchange(loss float64) { s.in.loss, s.hand = loss, false }

// Evaluated answers a step that is an evaluation. r has sums over the samples of Batch, not means.
func (s *Session) Evaluated(r train.Result) { s.in.result, s.hand = r, false }

// Leave tells the coordinator that the worker leaves. The caller goes on until Next says io.EOF. It
// may be called more than once, and from another goroutine than the session's.
func (s *Session) Leave() { s.cancel(errLeaves) }

// Close ends the session at once, as if the process had ended; after io.EOF it has nothing to do.
// It returns the error that the worker has ended with: nil after Leave, ErrClosed if it was at
// work. It waits until the worker has come to its end, and may be called again.
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

// end has the worker come to its end, and waits for it.
func (s *Session) end() {
	s.cancel(nil)
	s.stop()
}

// rendezvous is the model of a session: its computation is a step in the caller's hands. The
// worker's goroutine stands in Grad or Eval for as long as the step is in the caller's hands.
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

// Grad hands a batch to the caller of Next, who fills dst. ErrClosed: nobody asks for batches any more.
func (m *rendezvous) Grad(_ context.Context, dst []float32, b train.Batch) (float64, error) {
	if m.gone || !m.yield(Step{Batch: b, Gradient: dst}) {
		return 0, ErrClosed
	}
	return m.loss, nil
}

// Eval hands a part of the test set to the caller of Next. ErrClosed: nobody asks for it any more.
func (m *rendezvous) Eval(_ context.Context, b train.Batch) (train.Result, error) {
	if m.gone || !m.yield(Step{Batch: b, Evaluation: true}) {
		return train.Result{}, ErrClosed
	}
	return m.result, nil
}
