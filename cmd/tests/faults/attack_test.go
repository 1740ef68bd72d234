package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"star/transport"
	"star/transport/wire"

	"star/cmd/tests/jobtest"
)

// make attack has more of everything.
var (
	attackFrames = flag.Int("attack-frames", 300, "corrupted frames that TestAttacks sends")
	attackIdle   = flag.Int("attack-idle", 400, "sockets that say nothing in TestAttacks")
)

// captured is a stream that keeps what is written to it.
type captured struct {
	net.Conn // nil: nothing else is called
	bytes.Buffer
}

func (c *captured) Write(b []byte) (int, error)      { return c.Buffer.Write(b) }
func (c *captured) Read(b []byte) (int, error)       { return 0, io.EOF }
func (c *captured) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *captured) SetDeadline(time.Time) error      { return nil }
func (c *captured) SetReadDeadline(time.Time) error  { return nil }
func (c *captured) SetWriteDeadline(time.Time) error { return nil }
func (c *captured) Close() error                     { return nil }

// wired is a message as the wire has it.
func wired[M wire.Message](m M, payload []byte) []byte {
	var c captured
	if err := transport.Send(transport.NewConn(&c, transport.Limits{}), m, payload); err != nil {
		panic(err)
	}
	return c.Bytes()
}

// corrupt damages a frame: bits, bytes, its end, or what its prefix claims.
func corrupt(rnd *rand.Rand, frame []byte) []byte {
	b := bytes.Clone(frame)
	switch rnd.IntN(5) {
	case 0:
		b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
	case 1:
		for range 1 + rnd.IntN(32) {
			i := rnd.IntN(len(b))
			b[i] ^= byte(1 + rnd.IntN(255))
		}
	case 2:
		b = b[:rnd.IntN(len(b))]
	case 3:
		binary.LittleEndian.PutUint64(b[12:], rnd.Uint64())
	case 4:
		i := rnd.IntN(len(b))
		b = append(b[:i:i], append([]byte{byte(rnd.Uint32())}, b[i:]...)...)
	}
	return b
}

// heap is the bytes that are alive in the process behind addr.
func heap(t *testing.T, addr string) int64 {
	t.Helper()
	r, err := http.Get("http://" + addr + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	m := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no HeapAlloc in %.200s", b)
	}
	n, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return n
}

// A job of real processes under attack: nothing of it is applied, no process crashes, and the job reaches its end.
// `make attack` prints the numbers.
func TestAttacks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a job under attack takes some seconds")
	}
	web := jobtest.FreeAddr(t)
	g := jobtest.Start(t, 1, 2, "--workers", "3", "--mode", "ssgd", "--steps", "100", "--http", web)
	g.Until("the server listens", func() bool {
		c, err := net.Dial("tcp", g.Addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	tcp := transport.NewTCP(transport.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()

	// Connections that say nothing, or a byte a second, or flood with what is no frame.
	var crowd []net.Conn
	defer func() {
		for _, c := range crowd {
			c.Close()
		}
	}()
	for range *attackIdle {
		c, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, c)
	}
	began := time.Now()
	c, _, _, err := transport.Open(ctx, tcp, g.Addr, wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Job: "star", Rank: -1}, nil)
	if err != nil {
		t.Fatalf("behind %d sockets that say nothing: %v", *attackIdle, err)
	}
	t.Logf("%d sockets that say nothing: welcome after %v", *attackIdle, time.Since(began).Round(time.Millisecond))
	c.Close()
	slow, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	wg.Go(func() {
		for _, b := range wired(wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "star", Rank: 2}, nil) {
			if _, err := slow.Write([]byte{b}); err != nil {
				return // after 5 s
			}
			time.Sleep(time.Second)
		}
	})
	for range 4 {
		flood, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer flood.Close()
			junk := make([]byte, 64<<10)
			for range 1000 {
				if _, err := flood.Write(junk); err != nil {
					return
				}
			}
		})
	}

	// Frames that claim more than they have, and more than they may.
	hello := wired(wire.Hello{Service: wire.ServiceShard, Role: wire.RoleWorker, Job: "star", Rank: 2}, nil)
	before := heap(t, web)
	claims := [][]byte{}
	for _, size := range []uint64{16 << 20, 4 << 30, 1<<64 - 1} {
		b := bytes.Clone(hello)
		binary.LittleEndian.PutUint64(b[12:], size)
		claims = append(claims, b)
	}
	most := int64(0)
	for i := range 30 {
		c, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(claims[i%len(claims)])
		if i%10 == 9 {
			most = max(most, heap(t, web)-before)
		}
		c.Close()
	}
	t.Logf("claims of 16 MiB, 4 GiB and 2^64 bytes, behind %d idle sockets: the heap grew by %.2f MiB", *attackIdle, float64(most)/(1<<20))

	// A member that goes mad: everything that it sends to its shard is damaged.
	var sent, answered int
	rnd := rand.New(rand.NewPCG(11, 13))
	took := time.Duration(0)
	err = rogue(g, 2, func(step int64, grad []float32) {
		if step != 10 {
			return
		}
		hello := wired(wire.Hello{Service: wire.ServiceShard, Role: wire.RoleWorker, Job: "star", Rank: 2, Params: int64(len(grad)), Pass: g.Pass}, nil)
		push := wired(wire.Push{Worker: 2, Step: step, Basis: 10, Samples: 8}, transport.Floats(grad))
		began := time.Now()
		for sent < *attackFrames {
			c, err := net.DialTimeout("tcp", g.Addr, 10*time.Second)
			if err != nil {
				t.Errorf("after %d frames: %v", sent, err)
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Write(hello)
			c.Write(corrupt(rnd, push))
			c.(*net.TCPConn).CloseWrite()
			if b, _ := io.ReadAll(io.LimitReader(c, 1<<20)); len(b) > 0 {
				answered++ // with a welcome
			}
			c.Close()
			sent++
		}
		took = time.Since(began)
	})
	t.Logf("%d damaged gradients, %d of them behind a welcome, in %v; then %v", sent, answered, took.Round(time.Millisecond), err)
	if answered < sent*9/10 {
		t.Errorf("only %d of %d damaged gradients were behind a welcome", answered, sent)
	}

	for _, name := range []string{"ps0", "w0", "w1"} {
		g.Ends(name, 0)
	}
	steps := map[any]int{}
	for _, f := range g.Lines("fire") {
		for _, w := range f["workers"].([]any) {
			steps[w]++
		}
	}
	if steps[2.] > 10 {
		t.Errorf("%d gradients of worker 2 were applied; its eleventh and all after it were damaged", steps[2.])
	}
	accounted(g, 3*8*100)
	if said := g.Said("ps0"); strings.Contains(said, "panic") || strings.Contains(said, "goroutine ") {
		t.Errorf("star ps 0: %s", said)
	}
	if n := len(g.Lines("leave")); n != 1 {
		t.Errorf("%d members left, want the mad one only", n)
	}
}

// Callers of --http that never finish a request, or never read the answer, take neither the descriptors nor the memory
// of a job: with 1024 descriptors workers join and checkpoints are written, and a proper request is answered.
func TestHTTPUnderAttack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a job under attack takes some seconds")
	}
	web := jobtest.FreeAddr(t)
	g := &jobtest.Job{T: t, Addr: jobtest.FreeAddr(t), Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	common := []string{"--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--join-timeout", "3m"}
	server := append([]string{"-c", `ulimit -n 1024; exec "$@"`, "sh", jobtest.Star(t), "ps", "--rank", "0", "--coordinator", g.Addr, "--listen", g.Addr, "--http", web, "--out", g.Out,
		"--lr", "0.001", "--json", "--mode", "ssgd", "--steps", "1000000", "--eval-every", "0", "--checkpoint-every", "200ms"}, common...)
	g.StartCmd("ps0", exec.Command("sh", server...))
	g.Until("it listens", func() bool {
		c, err := net.Dial("tcp", web)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	const crowd = 1500
	over := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	here := make(chan struct{}, crowd)
	for i := range crowd {
		wg.Go(func() {
			for first := true; ; {
				c, err := net.DialTimeout("tcp", web, 10*time.Second)
				if err == nil {
					if i%2 == 0 { // a body that never comes
						io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: star\r\nContent-Length: 100\r\n\r\n")
					} else { // answers that are never read
						go io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: star\r\n\r\n", 1000))
					}
				}
				if first {
					first = false
					here <- struct{}{}
				}
				if err == nil {
					if i%2 == 0 {
						gone := make(chan struct{})
						go func() {
							c.Read(make([]byte, 1<<10))
							c.Read(make([]byte, 1<<10))
							close(gone)
						}()
						select {
						case <-gone: // again
						case <-over:
						}
					} else {
						<-over
					}
					c.Close()
				}
				select {
				case <-over:
					return
				case <-time.After(time.Second):
				}
			}
		})
	}
	for range crowd {
		<-here
	}
	for i := range 2 {
		g.Worker(i, common)
	}
	g.Training()
	g.Until("a proper request is answered", func() bool { // a request that is not read at once may lose its place
		r, err := (&http.Client{Timeout: 30 * time.Second}).Get("http://" + web + "/readyz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.All["ps0"].Cmd.Process.Pid)); err == nil {
		t.Logf("%d callers, %d descriptors", crowd, len(fds))
		if len(fds) > 512 {
			t.Errorf("%d descriptors are open while %d callers hang", len(fds), crowd)
		}
	}
	g.Until("checkpoints are written", func() bool { return len(g.Lines("checkpoint")) >= 10 })
	jobtest.Ctl(t, g.Addr, "stop")
	for _, name := range []string{"ps0", "w0", "w1"} {
		g.Ends(name, 0)
	}
	for _, l := range g.Lines("checkpoint") {
		if l["error"] != nil {
			t.Errorf("a checkpoint failed: %v", l)
		}
	}
	end := g.Lines("summary")[0]
	accounted(g, int64(end["samples"].(float64)+end["wasted_samples"].(float64)))
}
