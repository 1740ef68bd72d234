package foreign

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"time"
	"unsafe"

	"star/train"
	"star/train/data"
)

// Config of the agent's end of a link. The zero value works.
type Config struct {
	// Begin is how long the program may take to send About, and again until its parameters are
	// there. Zero means 10 minutes: it may have a data set to read.
	Begin time.Duration

	// Hang is how long one gradient, or the evaluation of one batch, may take. Zero means 30
	// minutes.
	Hang time.Duration

	// Slow, if not nil, is called once for each step that takes longer than a minute, with what the
	// agent waits for.
	Slow func(pid int, what string, after time.Duration)

	// Stream is the order of samples, from which later batches are predicted. N is the program's.
	Stream data.Stream
}

func (c Config) withDefaults() Config {
	if c.Begin <= 0 {
		c.Begin = 10 * time.Minute
	}
	if c.Hang <= 0 {
		c.Hang = 30 * time.Minute
	}
	return c
}

// slowAfter is when Config.Slow is called.
const slowAfter = time.Minute

// Usage is the program's measurement of a gradient.
type Usage struct {
	// Load is the time until the samples were loaded; Compute the time until the gradient was done.
	Load, Compute time.Duration
	// CPU, Faults (pages read from disk) and Preempted (involuntary context switches) are of the
	// process and its threads, since its last Done.
	CPU       time.Duration
	Faults    int64
	Preempted int64
	// Samples is that of the batch; 0: as many as requested.
	Samples int64
	// Processes has, of a program in several processes, the time of each until its part of the gradient was
	// done, without waits for the others. The other fields are those of the slowest one.
	Processes []time.Duration
}

// usageFields is the number of 8-byte integers in the body of Done, before those of several processes.
const usageFields = 6

func parseUsage(b []byte) (u Usage, err error) {
	if len(b) == 0 { // it does not measure
		return u, nil
	}
	if len(b) < 8*usageFields || len(b)%8 != 0 {
		return u, errProtocol("done with %d bytes of measurements: want %d, and 8 for each of several processes", len(b), 8*usageFields)
	}
	v := make([]int64, len(b)/8)
	for i := range v {
		if v[i] = int64(binary.LittleEndian.Uint64(b[8*i:])); v[i] < 0 {
			return u, errProtocol("done with a negative measurement, number %d", i)
		}
	}
	u = Usage{Load: time.Duration(v[0]), Compute: time.Duration(v[1]), CPU: time.Duration(v[2]), Faults: v[3], Preempted: v[4], Samples: v[5]}
	for _, t := range v[usageFields:] {
		u.Processes = append(u.Processes, time.Duration(t))
	}
	return u, nil
}

// Model is a train.Streamer in another process. Its batches have the numbers of samples in the data
// set instead of samples (Data).
type Model struct {
	about  About
	cfg    Config
	c      *conn
	memory []byte

	params, grad, buffers []float32
	layout, bufferLayout  []train.TensorSpec

	// recall is nil if there is no job to ask.
	recall func(ctx context.Context) (*train.Experience, error)

	// turn is that of the updates of a batch.
	turn uint64
	// step is that of the last Compute or Evaluate.
	step  uint64
	usage Usage
	// last is Start of the batch before; -1: there was none.
	last int64
	// even is the distance from it to the one before that.
	even int64
	// leased: positions before it are leased.
	leased int64
	body   []byte
	ahead  []int
	halts  chan string
	closed bool
}

var _ train.Streamer = (*Model)(nil)

// Open runs the handshake with the program at the other end of c until its parameters are in shared
// memory. Model.Close closes c, and so does an error.
//
// Errors: *AboutError (the model cannot be trained, or the version differs), *ProgramError, ErrLeft,
// *LostError, *MemoryError.
func Open(ctx context.Context, c *net.UnixConn, cfg Config) (*Model, error) {
	k, err := newConn(c)
	if err != nil {
		return nil, fmt.Errorf("foreign: %w", err)
	}
	m := &Model{cfg: cfg.withDefaults(), c: k, last: -1, halts: make(chan string, 1)}
	if err := m.open(ctx); err != nil {
		m.Stop(exitCode(err), err.Error())
		m.Close()
		return nil, err
	}
	m.c.begun = true
	go m.c.listen()
	return m, nil
}

func (m *Model) open(ctx context.Context) error {
	f, err := m.c.first(ctx, m.cfg.Begin)
	if err != nil {
		return err
	}
	if m.about, err = parseAbout(f); err != nil {
		return err
	}
	m.layout, m.bufferLayout = specs(m.about.Layout), specs(m.about.Buffers)
	nparams, _ := words(m.about.Layout)
	nbuffers, _ := words(m.about.Buffers)
	l := arrange(nparams, nbuffers)
	file, memory, err := makeMemory(l.size)
	if err != nil {
		return err
	}
	defer file.Close()
	m.memory = memory
	l.write(m.memory)
	m.params, m.grad, m.buffers = floats(memory, l.params, nparams), floats(memory, l.grad, nparams), floats(memory, l.buffers, nbuffers)
	if err := m.c.sendFile(Frame{Kind: KindMemory, A: uint64(l.size)}, file); err != nil {
		return m.lost(err)
	}
	if f, err = m.c.first(ctx, m.cfg.Begin); err != nil {
		return err
	}
	if f.Kind != KindReady {
		return errProtocol("%v, expected ready", f.Kind)
	}
	m.cfg.Stream.N = int(m.about.Samples)
	return nil
}

// About returns the program's description.
func (m *Model) About() About { return m.about }

// Describe describes the model for messages and logs.
func (m *Model) Describe() string {
	name := m.about.Name
	if name == "" {
		name = "model"
	}
	text := fmt.Sprintf("%s, %d parameters in %d tensors", name, len(m.params), len(m.layout))
	if m.about.Program != "" {
		text += ", " + m.about.Program
	}
	return text
}

// Hash identifies the model by the names and shapes of its parameters and buffers.
func (m *Model) Hash() string {
	buffers := m.bufferLayout
	if m.about.Buffers == nil {
		buffers = nil
	}
	return train.LayoutHash(m.layout, buffers)
}

// maxReason bounds the reason of a Halt that is passed on, in bytes.
const maxReason = 1 << 10

// Halts receives the reason why the program wants the job to end for all workers.
func (m *Model) Halts() <-chan string { return m.halts }

// Gone is closed when the program has ended, or has announced its end; Err returns the reason.
func (m *Model) Gone() <-chan struct{} { return m.c.gone }

// Err returns why the program ended: ErrLeft, *ProgramError or *LostError. It may be called only
// after Gone.
func (m *Model) Err() error { return m.lost(m.c.err) }

// Params returns the parameters in shared memory, which the program reads in Grad and Eval.
func (m *Model) Params() []float32 { return m.params }

// Layout returns the tensors that Params consists of, in order.
func (m *Model) Layout() []train.TensorSpec { return m.layout }

// Buffers returns the program's buffers in shared memory, in words of 4 bytes: bits of a float32, or of other types
// (TensorSpec.DType).
func (m *Model) Buffers() []float32 { return m.buffers }

// BufferLayout returns the tensors that Buffers consists of, in order.
func (m *Model) BufferLayout() []train.TensorSpec { return m.bufferLayout }

// Gradient returns the gradient in shared memory: Grad into it copies nothing.
func (m *Model) Gradient() []float32 { return m.grad }

// Grad has the program compute. dst has as many elements as Params. Errors: the program has ended,
// has violated the protocol, or has not answered within Config.Hang; after any of them the Model
// cannot be used. The cause of ctx leaves it usable.
func (m *Model) Grad(ctx context.Context, dst []float32, b train.Batch) (float64, error) {
	return m.compute(ctx, dst, b, nil)
}

// GradStream is Grad, and calls ready for parts that are complete.
func (m *Model) GradStream(ctx context.Context, dst []float32, b train.Batch, ready func(from, to int)) (float64, error) {
	return m.compute(ctx, dst, b, ready)
}

// Flags of Compute in C beside the position.
const (
	wantsParts = 1 << 63 // asks for Part
	turnAt     = 48      // the turn starts at this bit
)

// Turn sets which of the updates of a batch comes next (train.Turned).
func (m *Model) Turn(i int) { m.turn = uint64(i) }

func (m *Model) compute(ctx context.Context, dst []float32, b train.Batch, ready func(from, to int)) (float64, error) {
	if len(dst) != len(m.grad) {
		return 0, fmt.Errorf("foreign: a gradient of %d elements for %d parameters", len(dst), len(m.grad))
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	own := unsafe.SliceData(dst) == unsafe.SliceData(m.grad)
	flags := m.turn << turnAt
	if ready != nil && own {
		flags |= wantsParts
	}
	m.lease(b)
	if err := m.ask(KindCompute, b, uint64(b.Start)|flags); err != nil {
		return 0, err
	}
	// to: from here on the gradient is complete.
	to := len(m.grad)
	for {
		f, err := m.answer(ctx, "a gradient")
		if err != nil {
			return 0, err
		}
		switch {
		case f.A < m.step: // of one that was given up
		case f.A != m.step:
			return 0, errProtocol("%v of step %d, expected step %d", f.Kind, f.A, m.step)
		case f.Kind == KindPart && flags&wantsParts != 0:
			if f.B >= uint64(to) {
				return 0, errProtocol("a part of the gradient from element %d on, after one from %d", f.B, to)
			}
			ready(int(f.B), to)
			to = int(f.B)
		case f.Kind == KindDone:
			if m.usage, err = parseUsage(f.Body); err != nil {
				return 0, err
			}
			if n := len(m.usage.Processes); n > 0 && n != m.about.Processes {
				return 0, errProtocol("measurements of %d processes, expected %d", n, m.about.Processes)
			}
			if !own {
				copy(dst, m.grad)
			}
			if ready != nil && to > 0 {
				ready(0, to)
			}
			return math.Float64frombits(f.B), nil
		default:
			return 0, errProtocol("%v, expected done", f.Kind)
		}
	}
}

// Eval has the program evaluate samples of its test set. Errors are those of Grad.
func (m *Model) Eval(ctx context.Context, b train.Batch) (r train.Result, err error) {
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err := m.ask(KindEvaluate, b, 0); err != nil {
		return r, err
	}
	f, err := m.answer(ctx, "an evaluation")
	for err == nil && f.A < m.step { // of a gradient that was given up
		f, err = m.answer(ctx, "an evaluation")
	}
	switch {
	case err != nil:
		return r, err
	case f.Kind != KindEvaluated || f.A != m.step || len(f.Body) != 8:
		return r, errProtocol("%v of step %d with %d bytes, expected evaluated of step %d with 8", f.Kind, f.A, len(f.Body), m.step)
	case f.C > math.MaxInt32 || f.B > f.C:
		return r, errProtocol("%d predictions of %d are right", f.B, f.C)
	}
	return train.Result{LossSum: math.Float64frombits(binary.LittleEndian.Uint64(f.Body)), Correct: int(f.B), Count: int(f.C)}, nil
}

// ask sends the samples of a batch.
func (m *Model) ask(k Kind, b train.Batch, c uint64) error {
	if m.closed {
		return fmt.Errorf("foreign: %v asked of a closed model", k)
	}
	if b.Samples < 1 || len(b.Tokens) != b.Samples {
		return fmt.Errorf("foreign: invalid batch: %d samples with %d sample numbers; want one for each (foreign.Data)", b.Samples, len(b.Tokens))
	}
	n := m.about.Samples
	if k == KindEvaluate {
		n = m.about.Tests
	}
	for _, i := range b.Tokens {
		if i < 0 || int64(i) >= n {
			return fmt.Errorf("foreign: sample %d of %d", i, n)
		}
	}
	m.step++
	m.body = appendIndices(m.body[:0], b.Tokens)
	if err := m.c.send(Frame{Kind: k, A: m.step, B: uint64(b.Samples), C: c, Body: m.body}); err != nil {
		return m.lost(err)
	}
	return nil
}

// answer waits for the program's answer.
func (m *Model) answer(ctx context.Context, what string) (Frame, error) {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, m.c.wake)()
	}
	m.c.reading.Lock()
	defer m.c.reading.Unlock()
	begun, took, patience := time.Now(), time.Duration(0), min(slowAfter, m.cfg.Hang)
	for {
		m.c.wait(patience - took)
		if ctx.Err() != nil { // checked now, because wait may have undone a wake
			return Frame{}, context.Cause(ctx)
		}
		f, err := m.c.next()
		if err == nil && f.Kind == KindRecall {
			if err := m.tell(ctx, f); err != nil {
				return f, err
			}
			continue
		}
		if err == nil && f.Kind == KindHalt {
			select {
			case m.halts <- string(f.Body[:min(len(f.Body), maxReason)]):
			default: // the same as before
			}
			continue
		} else if err == nil && f.Kind == KindLeave {
			return Frame{}, ErrLeft
		} else if err == nil {
			return f, nil
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return f, m.because(err)
		}
		switch took = time.Since(begun); {
		case took < patience:
		case took >= m.cfg.Hang:
			return Frame{}, fmt.Errorf("the program (process %d) has not answered for %v, asked for %s of step %d: it hangs", m.about.PID, m.cfg.Hang, what, m.step)
		default:
			patience = m.cfg.Hang
			if m.cfg.Slow != nil {
				m.cfg.Slow(m.about.PID, what, took)
			}
		}
	}
}

// lease sends, with the next request, batches that are likely to follow b, as many as the program
// wants. They can be predicted when batches are evenly spaced, as they are while all workers are in
// step.
func (m *Model) lease(b train.Batch) {
	last := m.last
	m.last = b.Start
	if m.about.Prefetch == 0 {
		return
	}
	if last < 0 || b.Start <= last {
		return
	}
	even := b.Start - last
	if even != m.even {
		m.even, m.leased = even, 0
	}
	end := b.Start + even*int64(m.about.Prefetch)
	for at := max(b.Start+even, m.leased); at <= end; at += even {
		m.ahead = m.cfg.Stream.Indices(m.ahead, at, b.Samples)
		m.body = appendIndices(m.body[:0], m.ahead)
		m.c.hold(Frame{Kind: KindLease, A: uint64(at), B: uint64(b.Samples), Body: m.body})
		m.leased = at + even
	}
}

// lost returns why nothing more comes.
func (m *Model) lost(err error) error {
	select {
	case <-m.c.gone: // its last message explains more than a failed write
		return m.because(cmp.Or(m.c.err, err))
	case <-time.After(100 * time.Millisecond):
	}
	return m.because(err)
}

// because returns the error for a program that ended with err.
func (m *Model) because(err error) error {
	switch err.(type) {
	case *ProgramError, *LostError:
		return err
	}
	if err == ErrLeft {
		return err
	}
	return &LostError{m.about.PID, err}
}

// Joined tells the program its rank and the number of workers.
func (m *Model) Joined(rank, workers int) {
	m.c.send(Frame{Kind: KindJoined, A: uint64(rank), B: uint64(workers)}) // if it has ended, the next Grad fails
}

// Stack has the program write its stack to standard error, if it can.
func (m *Model) Stack() {
	if m.about.Stack && m.about.PID > 1 {
		askStack(m.about.PID)
	}
}

// Stop tells the program that the job is over, or continues without it, with the exit code and the
// reason.
func (m *Model) Stop(code int, why string) {
	if !m.closed {
		m.c.send(Frame{Kind: KindStop, A: uint64(code), Body: []byte(why)}) // it may be gone
	}
}

// Close closes the link and frees the memory: Params and Gradient must not be used any more. The
// error is that of freeing. It may be called twice.
func (m *Model) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	m.c.close()
	if m.memory == nil {
		return nil
	}
	memory := m.memory
	m.memory, m.params, m.grad, m.buffers = nil, nil, nil, nil
	return freeMemory(memory)
}

func exitCode(err error) int {
	if c, ok := err.(interface{ ExitCode() int }); ok {
		return c.ExitCode()
	}
	return 1
}
