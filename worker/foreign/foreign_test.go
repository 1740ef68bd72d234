//go:build linux

package foreign_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"star/train"
	"star/train/data"
	"star/train/traintest"
	"star/worker/foreign"
)

// softmax is testdata/softmax.c, built once.
var softmax = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "star-softmax")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "softmax")
	if text, err := exec.Command("cc", "-O2", "-Wall", "-o", out, "testdata/softmax.c", "-lm").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if p, err := softmax(); err == nil {
		os.RemoveAll(filepath.Dir(p))
	}
	os.Exit(code)
}

const room = 1 << 12 // records of the table

// table is a foreign model with samples in a file that it writes: the numbers in a batch are those of records.
type table struct {
	*foreign.Model
	in     train.Input
	file   *os.File
	next   int
	record []byte
}

// start starts the C program.
func start(t testing.TB, in train.Input) (*table, *exec.Cmd) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler (cc)")
	}
	program, err := softmax()
	if err != nil {
		t.Fatal(err)
	}
	d := in.Shape[0]
	f, err := os.CreateTemp(t.TempDir(), "records")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(room * (4*d + 4))); err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := foreign.Pair()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, fmt.Sprint(d), fmt.Sprint(in.Classes), fmt.Sprint(room), f.Name())
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = []string{foreign.FDVariable + "=3"}, []*os.File{theirs}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	m, err := foreign.Open(t.Context(), ours, foreign.Config{Begin: 30 * time.Second, Hang: 30 * time.Second, Stream: data.Stream{Seed: 1}})
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Stop(0, "the test is over")
		m.Close()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the program does not end")
			cmd.Process.Kill()
			<-done
		}
	})
	return &table{Model: m, in: in, file: f, record: make([]byte, 4*d+4)}, cmd
}

// numbered writes the samples of a batch into the file, and is the batch of their numbers.
func (m *table) numbered(b train.Batch) (train.Batch, error) {
	d := m.in.Shape[0]
	if b.Samples < 1 || len(b.X) != b.Samples*d || len(b.Y) != b.Samples || len(b.Tokens) != 0 || b.Samples > room {
		return b, errors.New("no such batch")
	}
	out := train.Batch{Samples: b.Samples}
	if m.next+b.Samples > room {
		m.next = 0
	}
	for i := range b.Samples {
		if b.Y[i] < 0 || int(b.Y[i]) >= m.in.Classes {
			return b, errors.New("no such class")
		}
		r := m.record[:0]
		for _, x := range b.X[i*d : (i+1)*d] {
			r = binary.LittleEndian.AppendUint32(r, math.Float32bits(x))
		}
		r = binary.LittleEndian.AppendUint32(r, uint32(b.Y[i]))
		if _, err := m.file.WriteAt(r, int64(m.next*len(r))); err != nil {
			return b, err
		}
		out.Tokens = append(out.Tokens, int32(m.next))
		m.next++
	}
	return out, nil
}

func (m *table) Close() error {
	m.Stop(0, "the test is over")
	return m.Model.Close()
}

func (m *table) Grad(ctx context.Context, dst []float32, b train.Batch) (float64, error) {
	b, err := m.numbered(b)
	if err != nil {
		return 0, err
	}
	return m.Model.Grad(ctx, dst, b)
}

func (m *table) Eval(ctx context.Context, b train.Batch) (train.Result, error) {
	b, err := m.numbered(b)
	if err != nil {
		return train.Result{}, err
	}
	return m.Model.Eval(ctx, b)
}

var input = train.Input{Shape: []int{6}, Classes: 3}

// A program of 142 lines of C keeps the contract of a Model.
func TestConformance(t *testing.T) {
	traintest.Run(t, traintest.Kit{Input: input, New: func() (train.Model, error) {
		m, _ := start(t, input)
		return m, nil
	}})
}

// Its gradient is the one of the formula, and comes in parts, from the end to the beginning.
func TestParts(t *testing.T) {
	m, _ := start(t, input)
	b, err := m.numbered(traintest.Batch(input, 5, 1))
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, len(m.Params()))
	loss, err := m.Model.Grad(t.Context(), want, b)
	if err != nil {
		t.Fatal(err)
	}
	clear(m.Gradient())
	to := len(want)
	again, err := m.GradStream(t.Context(), m.Gradient(), b, func(from, end int) {
		if end != to || from >= end {
			t.Errorf("a part from %d to %d, expected it to end at %d", from, end, to)
		}
		for i := from; i < end; i++ {
			if m.Gradient()[i] != want[i] {
				t.Fatalf("element %d was said to be complete: %v, want %v", i, m.Gradient()[i], want[i])
			}
		}
		to = from
	})
	if err != nil || again != loss || to != 0 {
		t.Errorf("loss %v, want %v; complete from %d on, want 0; %v", again, loss, to, err)
	}
}

// A program that dies, or is killed, is not waited for.
func TestKilledProgram(t *testing.T) {
	m, cmd := start(t, input)
	cmd.Process.Signal(syscall.SIGSTOP) // so that it dies while it is asked
	time.AfterFunc(50*time.Millisecond, func() { cmd.Process.Kill() })
	_, err := m.Grad(t.Context(), m.Gradient(), traintest.Batch(input, 2, 1))
	var lost *foreign.LostError
	if !errors.As(err, &lost) || lost.PID != cmd.Process.Pid {
		t.Errorf("%v, want that process %d is gone", err, cmd.Process.Pid)
	}
	select {
	case <-m.Gone():
	case <-time.After(10 * time.Second):
		t.Error("Gone says nothing")
	}
	if err := m.Err(); !errors.As(err, &lost) {
		t.Errorf("Err: %v", err)
	}
}

// What a program says while no call waits for it is read when it hangs up: why it ends, also after an answer that a
// later call can still read.
func TestIdle(t *testing.T) {
	for _, c := range []struct {
		name string
		says []foreign.Frame
		want string
	}{
		{"leaves", []foreign.Frame{{Kind: foreign.KindLeave}}, "nothing more to compute"},
		{"raises after an answer", []foreign.Frame{{Kind: foreign.KindDone, A: 1, B: math.Float64bits(0.5)}, {Kind: foreign.KindError, Body: []byte("KeyError: 7")}}, "KeyError: 7"},
		{"answers and is gone", []foreign.Frame{{Kind: foreign.KindDone, A: 1, B: math.Float64bits(0.5)}}, "has ended without saying why"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := play(t, foreign.Config{}, func(p peer) {
				if ready(p) {
					var all []byte
					for _, f := range c.says {
						all = f.AppendTo(all)
					}
					p.c.Write(all)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-m.Gone():
			case <-time.After(time.Minute):
				t.Fatal("Gone says nothing")
			}
			if err := m.Err(); !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A gradient that is given up is passed over, also where its answer comes with the next one, and a part between;
// waiting ends at once.
func TestGivenUp(t *testing.T) {
	asked := make(chan struct{}, 1)
	m, err := play(t, foreign.Config{}, func(p peer) {
		if !ready(p) {
			return
		}
		old := p.receive()
		asked <- struct{}{}
		next := p.receive()
		b := foreign.Frame{Kind: foreign.KindDone, A: old.A, B: math.Float64bits(1)}.AppendTo(nil)
		b = foreign.Frame{Kind: foreign.KindPart, A: next.A, B: 3}.AppendTo(b)
		b = foreign.Frame{Kind: foreign.KindDone, A: next.A, B: math.Float64bits(2)}.AppendTo(b)
		p.c.Write(b[:40]) // not at the end of a frame
		p.c.Write(b[40:])
		p.receive() // stop
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	given := errors.New("given up")
	go func() { <-asked; cancel(given) }()
	if _, err := m.Grad(ctx, m.Gradient(), batch); !errors.Is(err, given) {
		t.Fatalf("%v, want %v", err, given)
	}
	var parts []int
	loss, err := m.GradStream(t.Context(), m.Gradient(), batch, func(from, to int) { parts = append(parts, from, to) })
	if loss != 2 || err != nil || !slices.Equal(parts, []int{3, 5, 0, 3}) {
		t.Errorf("loss %v, parts %v, %v; want that of the second question", loss, parts, err)
	}
	m.Stop(0, "")
}

// The program gets the index of the update of a batch with the gradient and with the update.
func TestTurns(t *testing.T) {
	m, err := play(t, foreign.Config{}, func(p peer) {
		if !ready(p) {
			return
		}
		for turn := range uint64(3) {
			f := p.receive()
			if f.Kind != foreign.KindCompute || f.C != uint64(batch.Start)|turn<<48 {
				t.Errorf("turn %d: %v with C %#x", turn, f.Kind, f.C)
			}
			p.send(foreign.Frame{Kind: foreign.KindDone, A: f.A})
			if f = p.receive(); f.Kind != foreign.KindUpdate || f.B != 40 || f.C != turn {
				t.Errorf("turn %d: %v with B %d, C %d", turn, f.Kind, f.B, f.C)
			}
			p.send(foreign.Frame{Kind: foreign.KindUpdated, A: f.A})
		}
		p.receive() // stop
	})
	if err != nil {
		t.Fatal(err)
	}
	for turn := range 3 {
		m.Turn(turn)
		if _, err := m.Grad(t.Context(), m.Gradient(), batch); err != nil {
			t.Fatal(err)
		}
		if err := m.Update(t.Context(), 40); err != nil {
			t.Fatal(err)
		}
	}
	m.Stop(0, "")
}

// A peer is one end of a link that the test plays.
type peer struct {
	t *testing.T
	c *net.UnixConn
}

func (p peer) send(f foreign.Frame) {
	p.c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	p.c.Write(f.AppendTo(nil)) // the agent may have hung up
}

func (p peer) receive() foreign.Frame {
	p.t.Helper()
	p.c.SetReadDeadline(time.Now().Add(10 * time.Second))
	f, err := foreign.ReadFrame(p.c)
	if err != nil {
		p.t.Errorf("the agent has said nothing more: %v", err)
	}
	return f
}

// play opens a link; f acts as its other end.
func play(t *testing.T, cfg foreign.Config, f func(p peer)) (*foreign.Model, error) {
	t.Helper()
	ours, theirs, err := foreign.Pair()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer nc.Close()
		f(peer{t, nc.(*net.UnixConn)})
	}()
	if cfg.Begin == 0 {
		cfg.Begin = 10 * time.Second
	}
	m, err := foreign.Open(t.Context(), ours, cfg)
	t.Cleanup(func() {
		if m != nil && err == nil {
			m.Close()
		}
		<-over
	})
	return m, err
}

const about = `{"name":"m","layout":[{"name":"a","shape":[3]},{"name":"b","shape":[2]}],"samples":10,"tests":4,"pid":1}`

// What a program says first is checked before anything is made of it.
func TestAbout(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"no JSON", `{"layout":`, "not the JSON"},
		{"no parameters", `{"samples":10}`, "no parameters to train"},
		{"frozen", `{"layout":[{"name":"a","shape":[0]}],"samples":10}`, "no parameters to train"},
		{"a name twice", `{"layout":[{"name":"a","shape":[1]},{"name":"a","shape":[1]}],"samples":10}`, "used twice"},
		{"no name", `{"layout":[{"shape":[1]}],"samples":10}`, "empty"},
		{"a negative shape", `{"layout":[{"name":"a","shape":[-2,-2]}],"samples":10}`, "cannot have the shape"},
		{"too large", `{"layout":[{"name":"a","shape":[1073741824,1073741824,16]}],"samples":10}`, "cannot have the shape"},
		{"too large in all", `{"layout":[{"name":"a","shape":[8589934592]},{"name":"b","shape":[1]}],"samples":10}`, "elements, at tensor b"},
		{"buffers", `{"layout":[{"name":"a","shape":[1]}],"buffers":[{"name":"b","shape":[-1]}],"samples":10}`, "buffers: tensor b"},
		{"an unknown type", `{"layout":[{"name":"a","shape":[1]}],"buffers":[{"name":"b","shape":[1],"dtype":"F31"}],"samples":10}`, `buffers: tensor b has elements of the unknown type "F31"`},
		{"parameters of another type", `{"layout":[{"name":"a","shape":[1],"dtype":"F64"}],"samples":10}`, "parameter a is F64"},
		{"no samples", `{"layout":[{"name":"a","shape":[1]}]}`, "data set of 0 samples"},
		{"too many samples", `{"layout":[{"name":"a","shape":[1]}],"samples":2147483648}`, "data set of 2147483648"},
		{"negative tests", `{"layout":[{"name":"a","shape":[1]}],"samples":1,"tests":-1}`, "test set of -1"},
		{"a negative batch", `{"layout":[{"name":"a","shape":[1]}],"samples":1,"batch":-1}`, "batch of -1"},
		{"epochs", `{"layout":[{"name":"a","shape":[1]}],"samples":1,"epochs":-0.5}`, "-0.5 epochs"},
		{"prefetch", `{"layout":[{"name":"a","shape":[1]}],"samples":1,"prefetch":1025}`, "prefetch of 1025"},
		{"turns", `{"layout":[{"name":"a","shape":[1]}],"samples":1,"turns":1025}`, "1025 updates of each batch"},
	} {
		_, err := play(t, foreign.Config{}, func(p peer) {
			p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(c.body)})
			p.receive()
		})
		var wrong *foreign.AboutError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		if wrong.ExitCode() != 78 {
			t.Errorf("%s: exit code %d", c.name, wrong.ExitCode())
		}
	}
}

// Buffers take words as their types say, in the memory too, and the agent says that it knows types. The hash is that of
// a program that names none.
func TestTypedBuffers(t *testing.T) {
	head := `{"name":"m","layout":[{"name":"a","shape":[3]}],"buffers":[{"name":"mean","shape":[3]`
	hashes := map[string]bool{}
	for _, c := range []struct {
		body string
		want []train.TensorSpec
		n    int
	}{
		{`},{"name":"ids","shape":[2]},{"name":"mask","shape":[5]}],"samples":10}`, []train.TensorSpec{
			{Name: "mean", Shape: []int{3}}, {Name: "ids", Shape: []int{2}, Offset: 3}, {Name: "mask", Shape: []int{5}, Offset: 5}}, 10},
		{`,"dtype":"F32"},{"name":"ids","shape":[2],"dtype":"I64"},{"name":"mask","shape":[5],"dtype":"BOOL"},{"name":"freqs","shape":[1],"dtype":"C64"}],"samples":10}`, []train.TensorSpec{
			{Name: "mean", Shape: []int{3}, DType: "F32"}, {Name: "ids", Shape: []int{2}, Offset: 4, DType: "I64"}, {Name: "mask", Shape: []int{5}, Offset: 8, DType: "BOOL"}, {Name: "freqs", Shape: []int{1}, Offset: 10, DType: "C64"}}, 12},
	} {
		m, err := play(t, foreign.Config{}, func(p peer) {
			p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(head + c.body)})
			p.receive()
			p.send(foreign.Frame{Kind: foreign.KindReady})
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.BufferLayout(); !reflect.DeepEqual(got, c.want) || len(m.Buffers()) != c.n {
			t.Errorf("%d words of buffers as %+v, want %d as %+v", len(m.Buffers()), got, c.n, c.want)
		}
		if b := m.Memory(); binary.LittleEndian.Uint64(b[56:]) != uint64(c.n) || binary.LittleEndian.Uint64(b[64:]) != 3 {
			t.Errorf("the memory begins with %x", b[:72])
		}
		hashes[m.Hash()] = true
	}
	if len(hashes) != 1 {
		t.Errorf("the hashes are %v", hashes)
	}
}

// The program gets the reason why it is refused.
func TestOtherVersion(t *testing.T) {
	told := make(chan foreign.Frame, 1)
	_, err := play(t, foreign.Config{}, func(p peer) {
		p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version + 1, Body: []byte(`{"of":"another world"}`)})
		told <- p.receive()
	})
	if err == nil || !strings.Contains(err.Error(), "speaks version 2 of the link, this star version 1") {
		t.Error(err)
	}
	if f := <-told; f.Kind != foreign.KindStop || f.A != 78 || string(f.Body) != err.Error() {
		t.Errorf("the program is told %v %d %q", f.Kind, f.A, f.Body)
	}
}

// ready is a program that has begun.
func ready(p peer) bool {
	p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(about)})
	if f := p.receive(); f.Kind != foreign.KindMemory {
		p.t.Errorf("%v, expected the memory", f.Kind)
		return false
	}
	p.send(foreign.Frame{Kind: foreign.KindReady})
	return true
}

var batch = train.Batch{Samples: 2, Tokens: []int32{7, 3}, Start: 40}

// Whatever a program answers, the agent gets an error, soon, and no panic.
func TestHostile(t *testing.T) {
	nan := math.Float64bits(math.NaN())
	for _, c := range []struct {
		name string
		f    func(p peer, ask foreign.Frame)
		want string
	}{
		{"hangs up", func(peer, foreign.Frame) {}, "has ended without saying why"},
		{"an unknown kind", func(p peer, ask foreign.Frame) { p.send(foreign.Frame{Kind: 99}) }, "kind 99"},
		{"kind 0", func(p peer, ask foreign.Frame) { p.send(foreign.Frame{}) }, "kind 0"},
		{"too long", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindDone, A: ask.A, Body: make([]byte, 16384)})
		}, "at most 8240"},
		{"measurements of processes that it does not have", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindDone, A: ask.A, Body: make([]byte, 8*8)})
		}, "measurements of 2 processes, expected 0"},
		{"half of the measurements", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindDone, A: ask.A, Body: make([]byte, 24)})
		}, "24 bytes of measurements"},
		{"negative time", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindDone, A: ask.A, Body: []byte(strings.Repeat("\xff", 48))})
		}, "negative measurement"},
		{"half a frame", func(p peer, ask foreign.Frame) { p.c.Write([]byte{6, 0, 0, 0, 0, 0}) }, "gone"},
		{"half a body", func(p peer, ask foreign.Frame) {
			p.c.Write(foreign.Frame{Kind: foreign.KindDone, A: ask.A, Body: make([]byte, 48)}.AppendTo(nil)[:40])
		}, "gone"},
		{"a later step", func(p peer, ask foreign.Frame) { p.send(foreign.Frame{Kind: foreign.KindDone, A: ask.A + 1}) }, "expected step"},
		{"about again", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(about)})
		}, "about, while it trains"},
		{"a part that was there", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindPart, A: ask.A, B: 3})
			p.send(foreign.Frame{Kind: foreign.KindPart, A: ask.A, B: 3})
		}, "from element 3 on, after one from 3"},
		{"a part outside", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindPart, A: ask.A, B: 1 << 40})
		}, "from element 1099511627776"},
		{"evaluated", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindEvaluated, A: ask.A, B: 1, C: 1, Body: make([]byte, 8)})
		}, "expected done"},
		{"an exception", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindError, Body: []byte("Traceback: KeyError: 7")})
		}, "KeyError: 7"},
		{"nothing more", func(p peer, ask foreign.Frame) { p.send(foreign.Frame{Kind: foreign.KindLeave}) }, "nothing more to compute"},
		{"nothing more, and stays", func(p peer, ask foreign.Frame) {
			p.send(foreign.Frame{Kind: foreign.KindLeave, A: 1})
			foreign.ReadFrame(p.c)
		}, "nothing more to compute"},
		{"silence", func(p peer, ask foreign.Frame) {
			p.c.SetReadDeadline(time.Now().Add(10 * time.Second))
			foreign.ReadFrame(p.c)
		}, "it hangs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := play(t, foreign.Config{Hang: 500 * time.Millisecond}, func(p peer) {
				if ready(p) {
					c.f(p, p.receive())
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = m.GradStream(t.Context(), m.Gradient(), batch, func(int, int) {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			m.Close()
		})
	}
	t.Run("leaves, and evaluates", func(t *testing.T) {
		m, err := play(t, foreign.Config{}, func(p peer) {
			if ready(p) {
				p.receive()
				p.send(foreign.Frame{Kind: foreign.KindLeave, A: 1})
				f := p.receive()
				p.send(foreign.Frame{Kind: foreign.KindEvaluated, A: f.A, B: 1, C: 2, Body: make([]byte, 8)})
				foreign.ReadFrame(p.c)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		_, err = m.Grad(t.Context(), m.Gradient(), batch)
		var gone train.Gone
		if !errors.As(err, &gone) || gone.Gone() != 0 {
			t.Fatal(err)
		}
		if r, err := m.Eval(t.Context(), train.Batch{Samples: 2, Tokens: []int32{0, 1}}); err != nil || r.Correct != 1 || r.Count != 2 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("ends the job", func(t *testing.T) {
		m, err := play(t, foreign.Config{}, func(p peer) {
			if ready(p) {
				f := p.receive()
				for range 2 { // the second time says nothing new
					p.send(foreign.Frame{Kind: foreign.KindHalt, Body: []byte("good enough")})
				}
				p.send(foreign.Frame{Kind: foreign.KindDone, A: f.A})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if _, err := m.Grad(t.Context(), m.Gradient(), batch); err != nil {
			t.Fatal(err)
		}
		if why := <-m.Halts(); why != "good enough" {
			t.Error(why)
		}
	})
	for _, code := range []int{0, 2, 78, 256} {
		m, err := play(t, foreign.Config{}, func(p peer) {
			if ready(p) {
				p.receive()
				p.send(foreign.Frame{Kind: foreign.KindError, A: uint64(code), Body: []byte("no")})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Grad(t.Context(), m.Gradient(), batch)
		var gone train.Gone
		want := map[int]int{2: 2, 78: 78}[code]
		if !errors.As(err, &gone) || gone.Gone() != max(want, 1) {
			t.Errorf("an error with code %d: %v", code, err)
		}
		m.Close()
	}
	t.Run("loss is NaN", func(t *testing.T) { // which is the worker's to judge
		m, err := play(t, foreign.Config{}, func(p peer) {
			if ready(p) {
				f := p.receive()
				p.send(foreign.Frame{Kind: foreign.KindDone, A: f.A, B: nan})
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if loss, err := m.Grad(t.Context(), m.Gradient(), batch); err != nil || loss == loss {
			t.Error(loss, err)
		}
	})
	for _, c := range []struct {
		name string
		f    foreign.Frame
		want string
	}{
		{"more right than there are", foreign.Frame{B: 3, C: 2, Body: make([]byte, 8)}, "3 predictions of 2 are right"},
		{"no loss", foreign.Frame{B: 1, C: 2}, "with 0 bytes"},
		{"too many", foreign.Frame{B: 1, C: 1 << 40, Body: make([]byte, 8)}, "of 1099511627776 are right"},
	} {
		m, err := play(t, foreign.Config{}, func(p peer) {
			if ready(p) {
				c.f.Kind, c.f.A = foreign.KindEvaluated, p.receive().A
				p.send(c.f)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Eval(t.Context(), train.Batch{Samples: 1, Tokens: []int32{3}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Before it has begun a program may go as well.
func TestEarlyEnd(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(p peer)
		want string
	}{
		{"says nothing", func(p peer) {}, "ended before it said"},
		{"an exception", func(p peer) { p.send(foreign.Frame{Kind: foreign.KindError, Body: []byte("ImportError")}) }, "ImportError"},
		{"something else", func(p peer) { p.send(foreign.Frame{Kind: foreign.KindReady}) }, "begins with ready"},
		{"no memory taken", func(p peer) {
			p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(about)})
			p.receive()
		}, "ended before"},
		{"not ready", func(p peer) {
			p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(about)})
			p.receive()
			p.send(foreign.Frame{Kind: foreign.KindDone})
		}, "expected ready"},
		{"HTTP", func(p peer) { p.c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n")) }, "has none"},
	} {
		if _, err := play(t, foreign.Config{}, c.f); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := play(t, foreign.Config{Begin: 50 * time.Millisecond}, func(p peer) { p.receive() }); err == nil || !strings.Contains(err.Error(), "has said nothing") {
		t.Errorf("silence: %v", err)
	}
}

// The program cannot end the agent by taking the memory away.
func TestSealed(t *testing.T) {
	result := make(chan error, 1)
	_, err := play(t, foreign.Config{}, func(p peer) {
		p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(about)})
		b, oob := make([]byte, foreign.HeaderSize), make([]byte, 64)
		p.c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, n, _, _, err := p.c.ReadMsgUnix(b, oob)
		if err != nil {
			result <- err
			return
		}
		messages, err := syscall.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) != 1 {
			result <- fmt.Errorf("no file: %v", err)
			return
		}
		fds, err := syscall.ParseUnixRights(&messages[0])
		if err != nil {
			result <- err
			return
		}
		defer syscall.Close(fds[0])
		if err := syscall.Ftruncate(fds[0], 0); !errors.Is(err, syscall.EPERM) {
			result <- fmt.Errorf("it can be made smaller: %v", err)
			return
		}
		if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, syscall.EPERM) {
			result <- fmt.Errorf("it can be sealed for writing: %v", err)
			return
		}
		m, err := syscall.Mmap(fds[0], 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			result <- err
			return
		}
		defer syscall.Munmap(m)
		if string(m[:8]) != "STARLINK" || binary.LittleEndian.Uint64(m[8:]) != foreign.Version || binary.LittleEndian.Uint64(m[32:]) != 5 {
			result <- fmt.Errorf("the header is % x", m[:64])
			return
		}
		p.send(foreign.Frame{Kind: foreign.KindReady})
		result <- nil
	})
	if e := <-result; e != nil || err != nil {
		t.Error(e, err)
	}
}

// Batches at an even distance are foretold, each once, as far as the program wants.
func TestLeases(t *testing.T) {
	want := data.Stream{Seed: 5, N: 10}
	const prefetch = 2
	seen := make(chan []foreign.Frame, 1)
	m, err := play(t, foreign.Config{Stream: data.Stream{Seed: 5}}, func(p peer) {
		p.send(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: []byte(`{"name":"m","layout":[{"name":"a","shape":[3]}],"samples":10,"prefetch":2,"pid":1}`)})
		p.receive()
		p.send(foreign.Frame{Kind: foreign.KindReady})
		var leases []foreign.Frame
		for range 4 {
			f := p.receive()
			for ; f.Kind == foreign.KindLease; f = p.receive() {
				leases = append(leases, f)
			}
			p.send(foreign.Frame{Kind: foreign.KindDone, A: f.A})
		}
		seen <- leases
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, start := range []int64{0, 4, 8, 12} {
		b := train.Batch{Samples: 2, Start: start}
		for _, i := range want.Indices(nil, start, 2) {
			b.Tokens = append(b.Tokens, int32(i))
		}
		if _, err := m.Grad(t.Context(), m.Gradient(), b); err != nil {
			t.Fatal(err)
		}
	}
	leases := <-seen
	if len(leases) != prefetch+2 {
		t.Errorf("%d leases, want those of positions 8, 12, 16, 20", len(leases))
	}
	for i, f := range leases {
		at := int64(8 + 4*i)
		indices := want.Indices(nil, at, 2)
		if f.A != uint64(at) || f.B != 2 || len(f.Body) != 16 || int(binary.LittleEndian.Uint64(f.Body)) != indices[0] || int(binary.LittleEndian.Uint64(f.Body[8:])) != indices[1] {
			t.Errorf("lease %d: position %d, %d samples, % x; want position %d, %v", i, f.A, f.B, f.Body, at, indices)
		}
	}
}

// What is read and written again is the same; nothing panics.
func FuzzFrame(f *testing.F) {
	f.Add(foreign.Frame{Kind: foreign.KindAbout, A: 1, Body: []byte(about)}.AppendTo(nil))
	f.Add(foreign.Frame{Kind: foreign.KindDone, A: 7, B: 1, C: 2, Body: make([]byte, 48)}.AppendTo(nil))
	f.Add(foreign.Frame{Kind: foreign.KindLeave}.AppendTo(nil))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, rest, err := foreign.Parse(b)
		read, again := foreign.ReadFrame(strings.NewReader(string(b)))
		if (err == nil) != (again == nil) {
			t.Fatalf("Parse: %v, ReadFrame: %v", err, again)
		}
		if err != nil {
			return
		}
		used := b[:len(b)-len(rest)]
		if string(frame.AppendTo(nil)) != string(used) || string(read.AppendTo(nil)) != string(used) {
			t.Fatalf("% x becomes % x", used, frame.AppendTo(nil))
		}
	})
}

// FuzzAbout has Open read what a program may say: the result is an error or a model that fits in memory.
func FuzzAbout(f *testing.F) {
	f.Add([]byte(about))
	f.Add([]byte(`{"layout":[{"name":"a","shape":[4294967296,4294967296,0]}],"samples":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := foreign.ParseAbout(foreign.Frame{Kind: foreign.KindAbout, A: foreign.Version, Body: body})
		if err != nil {
			return
		}
		n := 0
		for _, x := range a.Layout {
			size := 1
			for _, d := range x.Shape {
				size *= d
			}
			n += size
		}
		if n < 1 || n > 1<<33 || a.Samples < 1 || a.Tests < 0 {
			t.Fatalf("%+v is taken", a)
		}
	})
}

// A step of a small model: what the link adds to computing.
func BenchmarkStep(b *testing.B) {
	m, _ := start(b, input)
	one, err := m.numbered(traintest.Batch(input, 1, 1))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	done := used(b)
	for b.Loop() {
		if _, err := m.Model.Grad(b.Context(), m.Gradient(), one); err != nil {
			b.Fatal(err)
		}
	}
	done()
}

// used has the agent's own processor time, and how often its threads were woken, reported of each step.
func used(b *testing.B) (done func()) {
	look := func() (u syscall.Rusage) {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u
	}
	before := look()
	return func() {
		u := look()
		b.ReportMetric((float64(u.Utime.Nano()-before.Utime.Nano())+float64(u.Stime.Nano()-before.Stime.Nano()))/1e3/float64(b.N), "agent-µs")
		b.ReportMetric(float64(u.Nvcsw-before.Nvcsw)/float64(b.N), "wakes")
	}
}

// A step of PyTorch with the given number of parameters, on a model that computes next to nothing: "beyond" is the time
// in addition to what Python says that it has computed.
func BenchmarkPython(b *testing.B) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "/usr/bin/python3"
	}
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		b.Skipf("%s has no PyTorch: %v", python, err)
	}
	for _, size := range []struct {
		name string
		n    int
	}{{"60KB", 15_000}, {"100MB", 25_000_000}} {
		b.Run(size.name, func(b *testing.B) {
			ours, theirs, err := foreign.Pair()
			if err != nil {
				b.Fatal(err)
			}
			cmd := exec.Command(python, "-c", `
import sys, torch
import star_train.torch as star
model = torch.nn.Module()
model.p = torch.nn.Parameter(torch.zeros(int(sys.argv[1])))
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.1))
loss = torch.zeros((), requires_grad=True)
for batch in star.loader(torch.utils.data.TensorDataset(torch.zeros(1000)), batch_size=1):
    loss.backward()
    opt.step()
`, fmt.Sprint(size.n))
			cmd.Env = append(os.Environ(), "PYTHONPATH=../../python", "OMP_NUM_THREADS=1", foreign.FDVariable+"=3")
			cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, os.Stderr
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			theirs.Close()
			m, err := foreign.Open(b.Context(), ours, foreign.Config{Begin: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer cmd.Wait()
			defer m.Close()
			defer m.Stop(0, "")
			var whole, beyond []float64
			done := used(b)
			batch := train.Batch{Samples: 1, Tokens: []int32{0}}
			for b.Loop() {
				begun := time.Now()
				if _, err := m.Grad(b.Context(), m.Gradient(), batch); err != nil {
					b.Fatal(err)
				}
				took := time.Since(begun)
				u := m.Told()
				whole, beyond = append(whole, took.Seconds()), append(beyond, (took-u.Load-u.Compute).Seconds())
			}
			done()
			slices.Sort(whole)
			slices.Sort(beyond)
			b.ReportMetric(1e6*whole[len(whole)/2], "median-µs")
			b.ReportMetric(1e6*beyond[len(beyond)/2], "beyond-µs")
		})
	}
}
