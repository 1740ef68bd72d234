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
	// Begin is how long the program may take until it has said what it trains, and again until its parameters are there. Zero means 10 minutes:
	// it may have a data set to read.
	Begin time.Duration

	// Hang is how long one gradient, or the evaluation of one batch, may take. Zero means 30 minutes.
	Hang time.Duration

	// Slow is called once for each step that takes longer than a minute, with what is waited for. It may be nil.
	Slow func(pid int, what string, after time.Duration)

	// Stream is the order of samples, by which batches to come are foretold. N is the program's.
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

// Usage is what a program says that a gradient took.
type Usage struct {
	Load, Compute time.Duration // until the samples were there; until the gradient was
	CPU           time.Duration // of the process and its threads, since it said Done before
	Faults        int64         // pages read from disk, likewise
	Preempted     int64         // involuntary context switches, likewise
	Samples       int64         // of the batch; 0: as many as were asked for
}

// usageFields is how many numbers of 8 bytes the body of Done has.
const usageFields = 6

func parseUsage(b []byte) (u Usage, err error) {
	if len(b) == 0 { // it does not measure
		return u, nil
	}
	if len(b) != 8*usageFields {
		return u, errProtocol("done with %d bytes of measurements: want %d", len(b), 8*usageFields)
	}
	var v [usageFields]int64
	for i := range v {
		if v[i] = int64(binary.LittleEndian.Uint64(b[8*i:])); v[i] < 0 {
			return u, errProtocol("done with a negative measurement, number %d", i)
		}
	}
	return Usage{time.Duration(v[0]), time.Duration(v[1]), time.Duration(v[2]), v[3], v[4], v[5]}, nil
}

// Model is a train.Streamer in another process. Its batches hold no samples but their numbers in the data set (Data).
type Model struct {
	about  About
	cfg    Config
	c      *conn
	memory []byte

	params, grad, buffers []float32
	layout, bufferLayout  []train.TensorSpec

	recall func(ctx context.Context) (*train.Experience, error) // nil: there is no job to ask

	turn   uint64 // of the updates of a batch
	step   uint64 // of the last Compute or Evaluate
	usage  Usage
	last   int64 // Start of the batch before; -1: there was none
	even   int64 // distance from it to the one before that
	leased int64 // positions before it are leased
	body   []byte
	ahead  []int
	halts  chan string
	closed bool
}

var _ train.Streamer = (*Model)(nil)

// Open speaks with the program at the other end of c until its parameters are in shared memory. Model.Close closes c, and so does an error.
//
// Errors: *AboutError (what it wants to train cannot be trained, or it speaks another version), *ProgramError, ErrLeft, *MemoryError.
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

// About is what the program has said.
func (m *Model) About() About { return m.about }

// Describe is the model in words, as messages and logs have it.
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

// Hash tells models apart: by names and shapes of parameters and buffers.
func (m *Model) Hash() string {
	buffers := m.bufferLayout
	if m.about.Buffers == nil {
		buffers = nil
	}
	return train.LayoutHash(m.layout, buffers)
}

// maxReason bounds what others are told of why a program wants the job to end, in bytes.
const maxReason = 1 << 10

// Halts is where it comes why the program wants the job to end, for all workers.
func (m *Model) Halts() <-chan string { return m.halts }

// Gone is closed when the program has ended, or has said that it does; Err says why.
func (m *Model) Gone() <-chan struct{} { return m.c.gone }

// Err is why the program is gone: ErrLeft, *ProgramError, *LostError. Only after Gone.
func (m *Model) Err() error { return m.lost(m.c.err) }

func (m *Model) Params() []float32                { return m.params }
func (m *Model) Layout() []train.TensorSpec       { return m.layout }
func (m *Model) Buffers() []float32               { return m.buffers }
func (m *Model) BufferLayout() []train.TensorSpec { return m.bufferLayout }

// Gradient is the gradient in shared memory: Grad into it copies nothing.
func (m *Model) Gradient() []float32 { return m.grad }

// Grad has the program compute. dst has as many elements as Params. Errors: the program has ended, has said something else, or has not answered within Config's
// Hang; after any of them the Model is of no more use. The cause of ctx leaves it usable.
func (m *Model) Grad(ctx context.Context, dst []float32, b train.Batch) (float64, error) {
	return m.compute(ctx, dst, b, nil)
}

// GradStream is Grad, and hears of parts meanwhile.
func (m *Model) GradStream(ctx context.Context, dst []float32, b train.Batch, ready func(from, to int)) (float64, error) {
	return m.compute(ctx, dst, b, ready)
}

// What Compute has in C beside the position.
const (
	wantsParts = 1 << 63 // asks for Part
	turnAt     = 48      // from this bit on: which of the updates of the batch
)

// Turn says which of the updates of a batch comes next (train.Turned).
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
	to := len(m.grad) // from here on it is complete
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
		return fmt.Errorf("foreign: a batch of %d samples with %d numbers of samples: want one for each (foreign.Data)", b.Samples, len(b.Tokens))
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

// answer waits for the program.
func (m *Model) answer(ctx context.Context, what string) (Frame, error) {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, m.c.wake)()
	}
	m.c.reading.Lock()
	defer m.c.reading.Unlock()
	begun, took, patience := time.Now(), time.Duration(0), min(slowAfter, m.cfg.Hang)
	for {
		m.c.wait(patience - took)
		if ctx.Err() != nil { // now, as wait may have undone a wake
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
			default: // it has said so before
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

// lease has the program be told, with the next question, of batches that are likely to follow b, as far ahead as it wants: where batches follow each other at an even distance, as they do
// whenever everybody is in step.
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

// lost is why nothing more comes.
func (m *Model) lost(err error) error {
	select {
	case <-m.c.gone: // what it said last says more than a write that failed
		return m.because(cmp.Or(m.c.err, err))
	case <-time.After(100 * time.Millisecond):
	}
	return m.because(err)
}

// because is the error of an end that was because of err.
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

// Joined tells the program which worker of how many it is.
func (m *Model) Joined(rank, workers int) {
	m.c.send(Frame{Kind: KindJoined, A: uint64(rank), B: uint64(workers)}) // if it is gone, the next Grad says so
}

// Stack has the program write to its standard error where it is, if it can.
func (m *Model) Stack() {
	if m.about.Stack && m.about.PID > 1 {
		askStack(m.about.PID)
	}
}

// Stop tells the program that the job is over, or goes on without it: code is the exit code, and why says it in words.
func (m *Model) Stop(code int, why string) {
	if !m.closed {
		m.c.send(Frame{Kind: KindStop, A: uint64(code), Body: []byte(why)}) // it may be gone
	}
}

// Close hangs up and gives the memory back: Params and Gradient must not be used any more. The error is that of giving the memory back. It may be called twice.
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
