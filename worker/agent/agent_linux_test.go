package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"star/allreduce"
	"star/internal/exitcode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// hostAgent is an agent in this process.
type hostAgent struct {
	addr string
	done chan error
	kill context.CancelFunc
}

var agents atomic.Int64

func start(t testing.TB, cfg Config) *hostAgent {
	t.Helper()
	cfg.Log = quiet
	h := &hostAgent{addr: fmt.Sprintf("@star-agent-test-%d-%d", unix.Getpid(), agents.Add(1)), done: make(chan error, 1)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.addr, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancel(context.Background())
	h.kill = kill
	go func() { h.done <- Serve(ctx, l, cfg) }()
	t.Cleanup(func() {
		kill()
		if err, ok := <-h.done; ok && err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the agent ended with %v", err)
		}
		close(h.done)
	})
	return h
}

// client is a process that uses an agent.
type client struct {
	nc     *net.UnixConn
	id     uint64
	memory []byte
	fd     int
}

// replyError is an error reply.
type replyError struct {
	code, host uint64
	text       string
}

func (e *replyError) Error() string { return e.text }

const patience = 20 * time.Second

func dial(t testing.TB, h *hostAgent) *client {
	t.Helper()
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.addr, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(3 * patience))
	return &client{nc: nc, fd: -1}
}

func join(t testing.TB, h *hostAgent) *client {
	t.Helper()
	c := dial(t, h)
	if _, err := c.ask(Frame{Kind: KindHello, A: Version, Body: []byte(`{"client":"test"}`)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request and returns the body of its reply.
func (c *client) ask(f Frame, fds ...int) ([]byte, error) {
	c.id++
	f.ID = c.id
	if f.Within == 0 {
		f.Within = patience
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.nc.WriteMsgUnix(f.AppendTo(nil), oob, nil); err != nil {
		return nil, err
	}
	r, _, err := read(c.nc)
	switch {
	case err != nil:
		return nil, err
	case r.Kind == KindError:
		return nil, &replyError{r.A, r.B, string(r.Body)}
	case r.ID != f.ID || r.Kind != KindDone:
		return nil, fmt.Errorf("request %d has the reply %v of %d", f.ID, r.Kind, r.ID)
	}
	return r.Body, nil
}

// share makes memory that the agent gets.
func (c *client) share(t testing.TB, size int) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if c.memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	c.fd = fd
	t.Cleanup(func() { unix.Munmap(c.memory); unix.Close(fd) })
}

func body(t testing.TB, o Open) []byte {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// span makes a group of all agents, with size bytes of memory on each.
func span(t testing.TB, name string, size int, hosts ...*hostAgent) []*client {
	t.Helper()
	cs, addr := make([]*client, len(hosts)), ""
	for i, h := range hosts {
		c := join(t, h)
		c.share(t, size)
		b, err := c.ask(Frame{Kind: KindOpen, A: uint64(size), Body: body(t, Open{Name: name, Host: i, Hosts: len(hosts), HostID: fmt.Sprint("host", i), Token: "x"})}, c.fd)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			addr = string(b)
		}
		cs[i] = c
	}
	for i, err := range each(cs, func(_ int, c *client) error {
		_, err := c.ask(Frame{Kind: KindForm, Body: []byte(addr)})
		return err
	}) {
		if err != nil {
			t.Fatalf("host %d: %v", i, err)
		}
	}
	return cs
}

func each(cs []*client, f func(i int, c *client) error) []error {
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() { errs[i] = f(i, c) })
	}
	wg.Wait()
	return errs
}

func view[T allreduce.Element](b []byte, offset, count int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&b[offset])), count)
}

func sums[T allreduce.Element](t *testing.T, cs []*client, typ allreduce.Type, of func(float32) T) {
	t.Helper()
	for op, want := range []float32{allreduce.Sum: 6, allreduce.Mean: 2, allreduce.Max: 3, allreduce.Min: 1} {
		const count, offset = 1000, 4096
		for i, c := range cs {
			for k, v := 0, view[T](c.memory, offset, count+1); k <= count; k++ {
				v[k] = of(float32(i + 1))
			}
		}
		for i, err := range each(cs, func(_ int, c *client) error {
			_, err := c.ask(Frame{Kind: KindAllReduce, A: offset, B: count, C: uint64(typ) | uint64(op)<<8})
			return err
		}) {
			if v := view[T](cs[i].memory, offset, count+1); err != nil || v[0] != of(want) || v[count-1] != of(want) || v[count] != of(float32(i+1)) {
				t.Errorf("host %d, %v of %v: %v, %v, %v, %v; want %v", i, allreduce.Op(op), typ, err, v[0], v[count-1], v[count], of(want))
			}
		}
	}
}

// Three hosts: every type and operator, in place and nowhere else; bytes from all to all; a broadcast of an odd number.
func TestOperations(t *testing.T) {
	cs := span(t, "world", 1<<16, start(t, Config{}), start(t, Config{}), start(t, Config{}))
	sums(t, cs, allreduce.Float32Type, func(x float32) float32 { return x })
	sums(t, cs, allreduce.Float64Type, func(x float32) float64 { return float64(x) })
	sums(t, cs, allreduce.Float16Type, allreduce.ToFloat16)
	sums(t, cs, allreduce.BFloat16Type, allreduce.ToBFloat16)
	sums(t, cs, allreduce.Int32Type, func(x float32) int32 { return int32(x) })
	sums(t, cs, allreduce.Int64Type, func(x float32) int64 { return int64(x) })

	// Host a sends a+b+1 bytes of value 10a+b to host b.
	for i, err := range each(cs, func(a int, c *client) error {
		var ranges []byte
		for b := range cs {
			for k := range 8 {
				c.memory[100*b+k] = byte(10*a + b)
			}
			for _, v := range []int{100 * b, a + b + 1, 1000 + 100*b, a + b + 1} {
				ranges = binary.LittleEndian.AppendUint64(ranges, uint64(v))
			}
		}
		clear(c.memory[1000:1300])
		_, err := c.ask(Frame{Kind: KindExchange, Body: ranges})
		return err
	}) {
		if err != nil {
			t.Fatalf("host %d: %v", i, err)
		}
		for b := range cs {
			want := bytes.Repeat([]byte{byte(10*b + i)}, i+b+1)
			if b == i {
				want = nil
			}
			if got := bytes.TrimRight(cs[i].memory[1000+100*b:1100+100*b], "\x00"); !bytes.Equal(got, want) {
				t.Errorf("host %d has % d of host %d, want % d", i, got, b, want)
			}
		}
	}

	for i, err := range each(cs, func(a int, c *client) error {
		for k := range 103 {
			c.memory[1+k] = byte(a)
		}
		_, err := c.ask(Frame{Kind: KindBroadcast, A: 2, B: 2, C: 101})
		return err
	}) {
		m := cs[i].memory
		if err != nil || m[1] != byte(i) || m[2] != 2 || m[102] != 2 || m[103] != byte(i) {
			t.Errorf("host %d: %v, % d", i, err, m[:104])
		}
	}
	if err := errors.Join(each(cs, func(_ int, c *client) error { _, err := c.ask(Frame{Kind: KindBarrier}); return err })...); err != nil {
		t.Error(err)
	}
}

// Groups do not wait for each other: one works while another one has a host that does not come.
func TestSeveralGroups(t *testing.T) {
	a, b := start(t, Config{}), start(t, Config{})
	one, two := span(t, "one", 4096, a, b), span(t, "two", 4096, a, b)
	waits := make(chan error, 1)
	go func() { _, err := one[0].ask(Frame{Kind: KindBarrier}); waits <- err }()
	for range 3 {
		sums2 := each(two, func(_ int, c *client) error { _, err := c.ask(Frame{Kind: KindAllReduce, B: 10}); return err })
		if err := errors.Join(sums2...); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-waits:
		t.Fatalf("the barrier of one host has ended: %v", err)
	default:
	}
	if _, err := one[1].ask(Frame{Kind: KindBarrier}); err != nil {
		t.Error(err)
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

// The agent ends with its last process, and then at once.
func TestEndsWithItsLastProcess(t *testing.T) {
	h := start(t, Config{})
	first, second := join(t, h), join(t, h)
	first.nc.Close()
	if _, err := second.ask(Frame{Kind: KindBarrier}); err == nil || !strings.Contains(err.Error(), "after open") {
		t.Errorf("%v", err)
	}
	second.nc.Close()
	if err := <-h.done; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	h.done <- nil
	if nc, err := net.Dial("unix", h.addr); err == nil {
		nc.Close()
		t.Error("it still listens")
	}
}

// What is wrong is refused with a reason, and what comes after it works.
func TestRefuses(t *testing.T) {
	h := start(t, Config{})
	join(t, h)
	hello := Frame{Kind: KindHello, A: Version, Body: []byte("{}")}
	for name, c := range map[string]struct {
		f    Frame
		want string
		code uint64
	}{
		"version":  {Frame{Kind: KindHello, A: Version + 1, Body: []byte("{}")}, "use a star-train and a star of one release", exitcode.Disagree},
		"no hello": {Frame{Kind: KindBarrier}, "begins with barrier, expected hello", exitcode.Disagree},
		"no JSON":  {Frame{Kind: KindHello, A: Version, Body: []byte("x")}, "invalid character", exitcode.Disagree},
	} {
		_, err := dial(t, h).ask(c.f)
		if e, ok := errors.AsType[*replyError](err); !ok || !strings.Contains(e.text, c.want) || e.code != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, raw := range map[string][]byte{"kind": bytes.Repeat([]byte{9, 9, 9, 9}, 12), "body": append([]byte{2, 0, 0, 0, 255, 255, 255, 0}, make([]byte, 40)...)} {
		c := dial(t, h)
		if _, err := c.ask(hello); err != nil {
			t.Fatal(err)
		}
		c.nc.Write(raw)
		f, _, err := read(c.nc)
		if err != nil || f.Kind != KindError || !strings.Contains(string(f.Body), map[string]string{"kind": "unknown in version", "body": "at most"}[name]) {
			t.Errorf("%s: %v, %v %s", name, err, f.Kind, f.Body)
		}
		if _, _, err := read(c.nc); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", name, err)
		}
	}

	open := func(o Open) Frame { return Frame{Kind: KindOpen, A: 4096, Body: body(t, o)} }
	c := join(t, h)
	c.share(t, 4096)
	for want, f := range map[string]Frame{
		"host 2 of 2":            open(Open{Host: 2, Hosts: 2}),
		"host 0 of 0":            open(Open{}),
		"its file 4096":          {Kind: KindOpen, A: 4097, Body: body(t, Open{Hosts: 1})},
		"has 0 bytes":            {Kind: KindOpen, Body: body(t, Open{Hosts: 1})},
		"after open":             {Kind: KindAllReduce},
		"it must be positive":    {Kind: KindBarrier, Within: -1},
		"no way to the job's st": open(Open{Hosts: 2, Store: "no.such.host.invalid:1"}),
	} {
		if _, err := c.ask(f, c.fd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := c.ask(open(Open{Hosts: 1})); err == nil || !strings.Contains(err.Error(), "0 descriptors") {
		t.Errorf("%v", err)
	}
	if _, err := c.ask(open(Open{Hosts: 1}), c.fd); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(Frame{Kind: KindBarrier}); err == nil || !strings.Contains(err.Error(), "after form") {
		t.Errorf("%v", err)
	}
	if _, err := c.ask(Frame{Kind: KindForm}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(open(Open{Hosts: 1}), c.fd); err == nil || !strings.Contains(err.Error(), "a group already") {
		t.Errorf("%v", err)
	}
	for want, f := range map[string]Frame{
		"outside the group's memory of 4096":  {Kind: KindAllReduce, A: 4096, B: 1},
		"8 bytes from byte 4092":              {Kind: KindAllReduce, A: 4092, B: 2},
		"18446744073709551615 elements":       {Kind: KindAllReduce, B: 1<<64 - 1},
		"offset must be a multiple":           {Kind: KindAllReduce, A: 2, B: 1},
		"type 6 with":                         {Kind: KindAllReduce, C: 6},
		"operator 4":                          {Kind: KindAllReduce, C: 4 << 8},
		"no host 1 of 1":                      {Kind: KindBroadcast, A: 1},
		"1 bytes from byte 18446744073709551": {Kind: KindBroadcast, B: 1<<64 - 1, C: 1},
		"expected 32":                         {Kind: KindExchange, Body: []byte{1}},
		"a range of":                          {Kind: KindExchange, Body: bytes.Repeat([]byte{255}, 32)},
		"formed already":                      {Kind: KindForm},
		"hello is not an operation":           {Kind: KindHello},
	} {
		_, err := c.ask(f)
		if e, ok := errors.AsType[*replyError](err); !ok || !strings.Contains(e.text, want) || e.code != exitcode.Usage {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := c.ask(Frame{Kind: KindAllReduce, B: 1024}); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// A process or an agent that ends fails the operations of its group on all other hosts, which name the host and the
// reason, also when nothing was running.
func TestLostHost(t *testing.T) {
	send := func(c *client, k Kind, text string) { c.nc.Write(Frame{Kind: k, Body: []byte(text)}.AppendTo(nil)) }
	for _, cause := range []struct {
		name string
		lose func(h *hostAgent, c *client)
		says string
	}{
		{"process", func(_ *hostAgent, c *client) { c.nc.Close() }, "has ended"},
		{"agent", func(h *hostAgent, _ *client) { h.kill() }, ""},
		{"abort", func(_ *hostAgent, c *client) { send(c, KindAbort, "rank 5 died") }, "gave up: rank 5 died"},
		{"leave", func(_ *hostAgent, c *client) { send(c, KindLeave, ""); c.nc.Close() }, ""},
	} {
		for _, lost := range []int{0, 1, 2} {
			if cause.name == "leave" && lost == 0 { // only hosts that exchange with it then are sure to know
				continue
			}
			for _, between := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s of host %d, between operations: %v", cause.name, lost, between), func(t *testing.T) {
					hosts := []*hostAgent{start(t, Config{}), start(t, Config{}), start(t, Config{})}
					for _, h := range hosts {
						join(t, h) // keeps the agent
					}
					cs := span(t, "world", 4096, hosts...)
					begun := make(chan struct{}, 2)
					go func() {
						for range 2 {
							<-begun
						}
						cause.lose(hosts[lost], cs[lost])
					}()
					if between {
						begun <- struct{}{}
						begun <- struct{}{}
						if cause.name == "agent" {
							<-hosts[lost].done
							hosts[lost].done <- nil
						}
					}
					for i, err := range each(cs, func(i int, c *client) error {
						if i == lost {
							return nil
						}
						if !between {
							begun <- struct{}{}
						}
						_, err := c.ask(Frame{Kind: KindAllReduce, B: 1000})
						return err
					}) {
						if i == lost {
							continue
						}
						e, ok := errors.AsType[*replyError](err)
						if !ok || e.host != uint64(lost)+1 || e.code != exitcode.Lost || !strings.Contains(e.text, cause.says) {
							t.Errorf("host %d: %v (%+v), want host %d to be named, and %q", i, err, e, lost, cause.says)
						}
					}
					other := (lost + 1) % 3
					if _, err := cs[other].ask(Frame{Kind: KindBarrier}); err == nil || !strings.Contains(err.Error(), "failed before") {
						t.Errorf("the next operation: %v", err)
					}
				})
			}
		}
	}
}

// An abort ends the request of its own process, too, with its reason.
func TestAbortWakes(t *testing.T) {
	cs := span(t, "world", 4096, start(t, Config{}), start(t, Config{}))
	done := make(chan error, 1)
	go func() { _, err := cs[0].ask(Frame{Kind: KindBarrier}); done <- err }()
	cs[0].nc.Write(Frame{Kind: KindAbort, Body: []byte("the user has enough")}.AppendTo(nil))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "the user has enough") {
		t.Errorf("%v", err)
	}
	if _, err := cs[0].ask(Frame{Kind: KindBarrier}); err == nil || !strings.Contains(err.Error(), "the user has enough") {
		t.Errorf("%v", err)
	}
}

// A host that does not come is named when the time of a request is over, whichever host asks.
func TestDeadline(t *testing.T) {
	cs := span(t, "world", 4096, start(t, Config{}), start(t, Config{}), start(t, Config{}))
	for i, err := range each(cs[:2], func(_ int, c *client) error {
		_, err := c.ask(Frame{Kind: KindAllReduce, B: 1000, Within: 300 * time.Millisecond})
		return err
	}) {
		if e, ok := errors.AsType[*replyError](err); !ok || e.host != 3 || !strings.Contains(e.text, "no byte has moved for 300ms") {
			t.Errorf("host %d: %v (%+v)", i, err, e)
		}
	}
}

// A group that does not come together says which host is missing, and one with another secret is refused.
func TestForming(t *testing.T) {
	h := start(t, Config{})
	join(t, h)
	begin := func(host int, token string) (*client, string) {
		c := join(t, h)
		c.share(t, 4096)
		addr, err := c.ask(Frame{Kind: KindOpen, A: 4096, Body: body(t, Open{Name: "g", Host: host, Hosts: 3, HostID: fmt.Sprint(host), Token: token})}, c.fd)
		if err != nil {
			t.Fatal(err)
		}
		return c, string(addr)
	}
	zero, addr := begin(0, "x")
	one, _ := begin(1, "x")
	thief, _ := begin(2, "y")
	for i, err := range each([]*client{zero, one, thief}, func(_ int, c *client) error {
		_, err := c.ask(Frame{Kind: KindForm, Body: []byte(addr), Within: time.Second})
		return err
	}) {
		want := []string{"waited for rank 2; last refused: the token is wrong", "", "refused: the token is wrong"}[i]
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("host %d: %v, want %q", i, err, want)
		}
	}
}

// Memory that its process makes smaller is an error, and not the end of the agent.
func TestShortenedMemory(t *testing.T) {
	cs := span(t, "world", 1<<20, start(t, Config{}), start(t, Config{}))
	if err := unix.Ftruncate(cs[0].fd, 4096); err != nil {
		t.Fatal(err)
	}
	for i, err := range each(cs, func(_ int, c *client) error {
		_, err := c.ask(Frame{Kind: KindAllReduce, B: 1 << 18})
		return err
	}) {
		if err == nil {
			t.Errorf("host %d has a sum", i)
		}
	}
	if _, err := cs[0].ask(Frame{Kind: KindBarrier}); err == nil {
		t.Error("the group goes on")
	}
}

// Nothing that a process sends ends the agent.
func TestGarbage(t *testing.T) {
	h := start(t, Config{})
	keeper := join(t, h)
	for i := range 20 {
		c := join(t, h)
		b := Frame{Kind: Kind(i % 12), ID: uint64(i), A: 1 << 40, B: 1 << 60, Within: time.Duration(i) << 50, Body: bytes.Repeat([]byte{byte(i)}, 3*i)}.AppendTo(nil)
		c.nc.Write(b)
		c.nc.Write(b[:i])
		c.nc.Close()
	}
	if _, err := keeper.ask(Frame{Kind: KindBarrier}); err == nil || !strings.Contains(err.Error(), "after open") {
		t.Errorf("%v", err)
	}
}
