package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"star/transport"
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
func wired[M transport.Message](m M, payload []byte) []byte {
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

// A job of real processes under attack: nothing of it is applied, nobody crashes, and the job comes to its end. `make attack` prints the numbers.
func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("a job under attack takes some seconds")
	}
	web := freeAddr(t)
	g := group(t, 1, 2, "--workers", "3", "--mode", "ssgd", "--steps", "100", "--http", web)
	g.until("the server listens", func() bool {
		c, err := net.Dial("tcp", g.addr)
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

	// Who says nothing, or a byte a second, or floods with what is no frame.
	var crowd []net.Conn
	defer func() {
		for _, c := range crowd {
			c.Close()
		}
	}()
	for range *attackIdle {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, c)
	}
	began := time.Now()
	c, _, _, err := transport.Open(ctx, tcp, g.addr, transport.Hello{Service: transport.ServiceCoord, Role: transport.RoleTool, Job: "star", Rank: -1}, nil)
	if err != nil {
		t.Fatalf("behind %d sockets that say nothing: %v", *attackIdle, err)
	}
	t.Logf("%d sockets that say nothing: welcome after %v", *attackIdle, time.Since(began).Round(time.Millisecond))
	c.Close()
	slow, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	wg.Go(func() {
		for _, b := range wired(transport.Hello{Service: transport.ServiceCoord, Role: transport.RoleWorker, Job: "star", Rank: 2}, nil) {
			if _, err := slow.Write([]byte{b}); err != nil {
				return // after 5 s
			}
			time.Sleep(time.Second)
		}
	})
	for range 4 {
		flood, err := net.Dial("tcp", g.addr)
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
	hello := wired(transport.Hello{Service: transport.ServiceShard, Role: transport.RoleWorker, Job: "star", Rank: 2}, nil)
	before := heap(t, web)
	claims := [][]byte{}
	for _, size := range []uint64{16 << 20, 4 << 30, 1<<64 - 1} {
		b := bytes.Clone(hello)
		binary.LittleEndian.PutUint64(b[12:], size)
		claims = append(claims, b)
	}
	most := int64(0)
	for i := range 30 {
		c, err := net.Dial("tcp", g.addr)
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
	err = g.rogue(2, func(step int64, grad []float32) {
		if step != 10 {
			return
		}
		hello := wired(transport.Hello{Service: transport.ServiceShard, Role: transport.RoleWorker, Job: "star", Rank: 2, Params: int64(len(grad))}, nil)
		push := wired(transport.Push{Worker: 2, Step: step, Basis: 10, Samples: 8}, transport.Floats(grad))
		began := time.Now()
		for sent < *attackFrames {
			c, err := net.DialTimeout("tcp", g.addr, 10*time.Second)
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
		g.ends(name, 0)
	}
	steps := map[any]int{}
	for _, f := range g.lines("fire") {
		for _, w := range f["workers"].([]any) {
			steps[w]++
		}
	}
	if steps[2.] > 10 {
		t.Errorf("%d gradients of worker 2 were applied; its eleventh and all after it were damaged", steps[2.])
	}
	g.accounted(3 * 8 * 100)
	if said := g.said("ps0"); strings.Contains(said, "panic") || strings.Contains(said, "goroutine ") {
		t.Errorf("star ps 0: %s", said)
	}
	if n := len(g.lines("leave")); n != 1 {
		t.Errorf("%d members left, want the mad one only", n)
	}
}
