package allreduce_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"star/allreduce"
)

// childVariable makes the test binary one rank of a group: see child.
const childVariable = "ALLREDUCE_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		child(text)
		return
	}
	goleak.VerifyTestMain(m)
}

// form makes a group of n ranks in this process; set changes a rank's settings.
func form(t testing.TB, n int, set func(*allreduce.Config)) []*allreduce.Group {
	t.Helper()
	groups, errs := meet(t, context.Background(), listen(t), n, func(c *allreduce.Config) {
		c.DialTimeout = 20 * time.Second
		if set != nil {
			set(c)
		}
	})
	if err := firstOf(errs); err != nil {
		t.Fatal(err)
	}
	return groups
}

// listen is where a group may meet.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// meet has n ranks try to be a group, which the end of the test closes. It says what became of each.
func meet(t testing.TB, ctx context.Context, l net.Listener, n int, set func(*allreduce.Config)) ([]*allreduce.Group, []error) {
	groups, errs := make([]*allreduce.Group, n), make([]error, n)
	t.Cleanup(func() {
		for _, g := range groups {
			if g != nil {
				g.Close()
			}
		}
	})
	var wg sync.WaitGroup
	for r := range n {
		cfg := allreduce.Config{Rank: r, Size: n, Rendezvous: l.Addr().String(), Log: slog.New(slog.DiscardHandler)}
		if r == 0 {
			cfg.Listener = l
		}
		if set != nil {
			set(&cfg)
		}
		wg.Go(func() { groups[r], errs[r] = allreduce.Dial(ctx, cfg) })
	}
	wg.Wait()
	return groups, errs
}

// all runs f on all ranks at once and returns their errors.
func all(groups []*allreduce.Group, f func(g *allreduce.Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() { errs[r] = f(g) })
	}
	wg.Wait()
	return errs
}

func firstOf(errs []error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

var transports = []string{"tcp", "lent", "unix", "shm", "lent-shm"}

// over has a group's links as one of transports.
func over(c *allreduce.Config, kind string) {
	c.Transport, c.ZeroCopy = kind, allreduce.ZeroCopyOff
	switch kind {
	case "lent":
		c.Transport, c.ZeroCopy = "tcp", allreduce.ZeroCopyAll
	case "lent-shm":
		c.Transport, c.ZeroCopy = "shm", allreduce.ZeroCopyAll
	}
}

func TestAllReduce(t *testing.T) {
	for _, kind := range transports {
		for _, n := range []int{1, 2, 3, 4, 7} {
			for _, a := range []allreduce.Algorithm{allreduce.AlgorithmAuto, allreduce.AlgorithmRing, allreduce.AlgorithmDoubling,
				allreduce.AlgorithmHalving, allreduce.AlgorithmTree, allreduce.AlgorithmDoubleTree} {
				t.Run(fmt.Sprintf("%s/%d/%v", kind, n, a), func(t *testing.T) {
					groups := form(t, n, func(c *allreduce.Config) { c.Algorithm = a; over(c, kind) })
					for _, count := range []int{0, 1, 5, 1000, 300_001} {
						err := firstOf(all(groups, func(g *allreduce.Group) error {
							v := make([]float32, count)
							for i := range v {
								v[i] = float32(i%1000 + g.Rank())
							}
							if err := g.AllReduce(t.Context(), allreduce.Sum, v); err != nil {
								return err
							}
							for i, x := range v {
								if want := float32(n*(i%1000) + n*(n-1)/2); x != want {
									return fmt.Errorf("rank %d: element %d of %d is %v, want %v", g.Rank(), i, count, x, want)
								}
							}
							return nil
						}))
						if err != nil {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// Mixed sizes, types and operations one after the other: positions in the streams
// must stay right whatever came before.
func TestManyOperationsInARow(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for k, kind := range slices.Concat(transports, transports) {
		segment := 4096
		if k >= len(transports) {
			segment = 0 // longer: what is lent goes past the ring of shared memory
		}
		groups := form(t, 3, func(c *allreduce.Config) { c.Segment = segment; over(c, kind) })
		err := firstOf(all(groups, func(g *allreduce.Group) error {
			ctx := t.Context()
			for i := range rounds {
				halves := make([]allreduce.Float16, 1+i*5003%200_001)
				for j := range halves {
					halves[j] = allreduce.ToFloat16(float32(g.Rank() + j%4))
				}
				if err := allreduce.AllReduce(ctx, g, allreduce.Max, halves); err != nil {
					return err
				}
				longs := make([]int64, i*1237%70_001)
				for j := range longs {
					longs[j] = int64(j) << 40 * int64(g.Rank())
				}
				if err := allreduce.AllReduce(ctx, g, allreduce.Sum, longs); err != nil {
					return err
				}
				for j, h := range halves {
					if h.Float32() != float32(2+j%4) {
						return fmt.Errorf("%s: rank %d, round %d: half %d is %v", kind, g.Rank(), i, j, h.Float32())
					}
				}
				for j, x := range longs {
					if x != int64(j)<<40*3 {
						return fmt.Errorf("%s: rank %d, round %d: long %d is %v", kind, g.Rank(), i, j, x)
					}
				}
				if err := allreduce.Broadcast(ctx, g, i%3, longs); err != nil {
					return err
				}
			}
			return g.Barrier(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoAllocationsInSteadyState(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	for _, kind := range append(slices.Clone(transports), "tcp, checked") {
		groups := form(t, 4, func(c *allreduce.Config) {
			of, checked := strings.CutSuffix(kind, ", checked")
			if over(c, of); checked {
				c.Checksum = allreduce.ChecksumAll
			}
		})
		const ops = 200
		var before, after runtime.MemStats
		err := firstOf(all(groups, func(g *allreduce.Group) error {
			v := make([]float32, 150_000)
			for i := range 20 + ops {
				if g.Rank() == 0 && i == 20 {
					runtime.ReadMemStats(&before)
				}
				if err := g.AllReduce(context.Background(), allreduce.Mean, v); err != nil {
					return err
				}
			}
			return g.Barrier(context.Background())
		}))
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// The runtime itself allocates now and then.
		if n := after.Mallocs - before.Mallocs; n > ops/4 {
			t.Errorf("%s: %d allocations in %d operations of 4 ranks", kind, n, ops)
		}
	}
}

func TestDialRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		odd  func(*allreduce.Config) // of rank 1
		text string
	}{
		"size":       {func(c *allreduce.Config) { c.Size = 3 }, "rank 0 has 2 as number of ranks, rank 1 has 3"},
		"generation": {func(c *allreduce.Config) { c.Generation = 4 }, "rank 0 has 0 as generation, rank 1 has 4"},
		"job":        {func(c *allreduce.Config) { c.Job = "other" }, `rank 0 has "" as job, rank 1 has "other"`},
		"token":      {func(c *allreduce.Config) { c.Token = "guess" }, "the token is wrong"},
		"rank":       {func(c *allreduce.Config) { c.Size, c.Rank = 3, 2 }, "rank 0 has 2 as number of ranks"},
		"transport":  {func(c *allreduce.Config) { c.Transport = "tcp" }, `rank 0 has "" as transport, rank 1 has "tcp"`},
	} {
		t.Run(name, func(t *testing.T) {
			l, quiet := listen(t), slog.New(slog.DiscardHandler)
			zero := allreduce.Config{Rank: 0, Size: 2, Listener: l, Log: quiet}
			one := allreduce.Config{Rank: 1, Size: 2, Rendezvous: l.Addr().String(), Log: quiet}
			c.odd(&one)
			ctx, cancel := context.WithCancelCause(t.Context())
			var wg sync.WaitGroup
			var err0 error
			wg.Go(func() { _, err0 = allreduce.Dial(ctx, zero) })
			if _, err := allreduce.Dial(t.Context(), one); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("rank 1: %v, want %q", err, c.text)
			}
			cancel(errors.New("enough"))
			wg.Wait()
			// Rank 0 goes on waiting for the right rank, and its error names the one that it refused.
			for _, text := range []string{"waited for rank 1", "last refused: " + c.text} {
				if err0 == nil || !strings.Contains(err0.Error(), text) {
					t.Errorf("rank 0: %v, want %q", err0, text)
				}
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  allreduce.Config
		text string
	}{
		{allreduce.Config{}, "Size is 0"},
		{allreduce.Config{Size: 2, Rank: 2}, "Rank is 2"},
		{allreduce.Config{Size: 2, Rank: 1}, "Rendezvous is empty"},
		{allreduce.Config{Size: 2, Rendezvous: "nowhere"}, `"nowhere" is not host:port`},
		{allreduce.Config{Size: 2, Rendezvous: "0.0.0.0:0"}, "can be reached from other hosts"},
		{allreduce.Config{Size: 2, Rendezvous: "127.0.0.1:0", Transport: "pigeon"}, `Transport is "pigeon"`},
		{allreduce.Config{Size: 2, Rendezvous: "127.0.0.1:0", Segment: 5}, "Segment is 5"},
		{allreduce.Config{Size: 2, Rendezvous: "127.0.0.1:0", Congestion: "pigeon"}, "pigeon"},
	} {
		c.cfg.Log = slog.New(slog.DiscardHandler)
		if _, err := allreduce.Dial(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.text)
		}
	}
}

func TestPollIsRefusedWithoutProcessors(t *testing.T) {
	_, errs := meet(t, t.Context(), listen(t), runtime.GOMAXPROCS(0)+1, func(c *allreduce.Config) { c.Poll = true })
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "Poll with") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Connections that say nothing do not hold a group up: more of them than may be pending, at the rendezvous, and at
// every rank's own port as soon as that is known. Their time to say something is longer than the group has.
func TestSilenceAtThePorts(t *testing.T) {
	var mu sync.Mutex
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	silent := func(addr string, n int) {
		for range n {
			if c, err := net.Dial("tcp", addr); err == nil {
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		}
	}
	l := listen(t)
	silent(l.Addr().String(), 1200)
	_, errs := meet(t, t.Context(), l, 3, func(c *allreduce.Config) {
		c.DialTimeout, c.Transport = 4*time.Second, "tcp"
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			silent(addr, 100)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	if err := firstOf(errs); err != nil {
		t.Error(err)
	}
}

// Garbage at the rendezvous and strangers do not disturb a group that is forming.
func TestGarbageAtTheRendezvous(t *testing.T) {
	l := listen(t)
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "STAR\xff\xff\xff\xff", "STAR\x02\x00\x00\x00{}", "STAR\x01\x00\x00\x00{"} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(text))
		c.Close()
	}
	if _, errs := meet(t, t.Context(), l, 2, nil); firstOf(errs) != nil {
		t.Error(firstOf(errs))
	}
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// all have one, whatever their addresses
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"job"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}
	groups := form(t, 3, func(c *allreduce.Config) { c.TLS = cfg })
	if got := groups[0].Transports(); got["stream"] != 2 {
		t.Errorf("links %v, want streams", got)
	}
	err = firstOf(all(groups, func(g *allreduce.Group) error {
		v := make([]float32, 700_000)
		for i := range v {
			v[i] = float32(g.Rank())
		}
		if err := g.AllReduce(t.Context(), allreduce.Sum, v); err != nil {
			return err
		}
		if i := slices.IndexFunc(v, func(x float32) bool { return x != 3 }); i >= 0 {
			return fmt.Errorf("element %d is %v", i, v[i])
		}
		return nil
	}))
	if err != nil {
		t.Error(err)
	}
}

// child is one rank of TestDeath: it sums until something goes wrong, and says what.
func child(text string) {
	var cfg allreduce.Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		fmt.Println(err)
		return
	}
	if cfg.Job == placedJob {
		placedChild(cfg)
		return
	}
	if cfg.Rank == 0 {
		f := os.NewFile(3, "rendezvous")
		l, err := net.FileListener(f)
		if err != nil {
			fmt.Println(err)
			return
		}
		f.Close()
		cfg.Listener = l
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	g, err := allreduce.Dial(context.Background(), cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	fmt.Println("ready")
	for err == nil {
		err = g.AllReduce(context.Background(), allreduce.Sum, make([]float32, 1<<20))
	}
	fmt.Println(err)
}

// TestDeath kills or stops one of four processes in the middle of its work: the
// others say which one it was.
func TestDeath(t *testing.T) {
	for _, c := range []struct {
		name      string
		transport string
		guilty    int
		signal    syscall.Signal
		text      string
	}{
		{"killed", "tcp", 2, syscall.SIGKILL, "has ended"},
		{"killed, shared memory", "shm", 2, syscall.SIGKILL, "has ended"},
		{"rank 0 killed", "", 0, syscall.SIGKILL, "has ended"},
		{"stopped", "tcp", 3, syscall.SIGSTOP, "no byte has moved"},
		{"stopped, shared memory", "shm", 1, syscall.SIGSTOP, "no byte has moved"},
		{"rank 0 stopped", "", 0, syscall.SIGSTOP, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 4
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			f, err := l.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmds, outs, errs := make([]*exec.Cmd, n), make([]*bufio.Reader, n), make([]bytes.Buffer, n)
			for r := range n {
				text, err := json.Marshal(map[string]any{"Rank": r, "Size": n, "Rendezvous": l.Addr().String(), "Transport": c.transport, "Timeout": time.Second})
				if err != nil {
					t.Fatal(err)
				}
				cmds[r] = exec.Command(os.Args[0])
				cmds[r].Env = append(os.Environ(), childVariable+"="+string(text))
				cmds[r].Stderr = &errs[r]
				if r == 0 {
					cmds[r].ExtraFiles = []*os.File{f}
				}
				out, err := cmds[r].StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				outs[r] = bufio.NewReader(out)
				if err := cmds[r].Start(); err != nil {
					t.Fatal(err)
				}
				defer cmds[r].Wait()
				defer cmds[r].Process.Kill()
				watchdog := time.AfterFunc(30*time.Second, func() { cmds[r].Process.Kill() })
				defer watchdog.Stop()
			}
			for r, out := range outs {
				if line, err := out.ReadString('\n'); line != "ready\n" {
					t.Fatalf("rank %d: %q, %v %s", r, line, err, errs[r].Bytes())
				}
			}
			time.Sleep(50 * time.Millisecond)
			if err := cmds[c.guilty].Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			for r, out := range outs {
				if r == c.guilty {
					continue
				}
				line, err := out.ReadString('\n')
				if err != nil {
					t.Fatalf("rank %d: %v %s", r, err, errs[r].Bytes())
				}
				for _, text := range []string{fmt.Sprintf("rank %d: all-reduce ", c.guilty), c.text} {
					if !strings.Contains(line, text) {
						t.Errorf("rank %d says %q, and nothing of %q", r, strings.TrimSpace(line), text)
					}
				}
			}
		})
	}
}

// flipper is a connection that damages one bit of what is written, after a given number of bytes.
type flipper struct {
	net.Conn
	after int
}

func (f *flipper) Write(b []byte) (int, error) {
	if f.after >= 0 && f.after < len(b) {
		b = slices.Clone(b)
		b[f.after] ^= 0x10
	}
	f.after -= len(b)
	return f.Conn.Write(b)
}

// through dials through a connection that damages a bit of what is sent.
func through(t *testing.T, after int) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		go func() {
			defer l.Close()
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial(network, addr)
			if err != nil {
				a.Close()
				return
			}
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.Copy(&flipper{b, after}, onlyReader{a}); b.(*net.TCPConn).CloseWrite() })
			wg.Go(func() { _, _ = io.Copy(onlyWriter{a}, onlyReader{b}); a.(*net.TCPConn).CloseWrite() })
			wg.Wait()
			a.Close()
			b.Close()
		}()
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// With checksums a bit that was damaged between two ranks is found before any rank uses it: a rank that has a result
// has the right one, and the others know where the damage was.
func TestDamageIsFound(t *testing.T) {
	const n, count = 3, 300_000
	for _, after := range []int{3_000, 700_000, 1_100_000} {
		groups := form(t, n, func(c *allreduce.Config) {
			c.Transport, c.Checksum, c.Algorithm = "tcp", allreduce.ChecksumAll, allreduce.AlgorithmRing
			if c.Rank == 2 {
				c.Dial = through(t, after)
			}
		})
		vs := make([][]float32, n)
		errs := all(groups, func(g *allreduce.Group) error {
			v := make([]float32, count)
			for i := range v {
				v[i] = float32(i % 1000)
			}
			vs[g.Rank()] = v
			return g.AllReduce(context.Background(), allreduce.Sum, v)
		})
		named := false
		for r, err := range errs {
			if err == nil {
				for i, x := range vs[r] {
					if x != n*float32(i%1000) {
						t.Fatalf("after %d: rank %d has %v at %d, and no error", after, r, x, i)
					}
				}
				continue
			}
			var e *allreduce.Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			named = named || strings.Contains(err.Error(), "damaged")
		}
		if !named {
			t.Errorf("after %d: nobody says that anything was damaged: %v", after, errs)
		}
		for _, g := range groups {
			g.Close()
		}
	}
}

// Ranks that share a host do not checksum what they send each other; a rank that has another setting is refused.
func TestChecksumSettings(t *testing.T) {
	for name, set := range map[string]func(*allreduce.Config){
		"hosts apart": func(c *allreduce.Config) { c.HostID = fmt.Sprint("host ", c.Rank) },
		"all":         func(c *allreduce.Config) { c.Transport, c.Checksum, c.Connections = "tcp", allreduce.ChecksumAll, 2 },
		"shm":         func(c *allreduce.Config) { c.Checksum = allreduce.ChecksumAll },
		"off":         func(c *allreduce.Config) { c.Transport, c.Checksum = "tcp", allreduce.ChecksumOff },
	} {
		t.Run(name, func(t *testing.T) {
			groups := form(t, 3, set)
			for _, count := range []int{1, 1000, 1_000_000} {
				vs := make([][]float32, 3)
				if err := firstOf(all(groups, func(g *allreduce.Group) error {
					v := make([]float32, count)
					for i := range v {
						v[i] = float32(g.Rank()*i%1000 + 1)
					}
					vs[g.Rank()] = v
					return g.AllReduce(context.Background(), allreduce.Sum, v)
				})); err != nil {
					t.Fatal(err)
				}
				for i := range count {
					want := float32(3)
					for r := range 3 {
						want += float32(r * i % 1000)
					}
					if vs[0][i] != want || vs[1][i] != want || vs[2][i] != want {
						t.Fatalf("%d elements: %v %v %v at %d, want %v", count, vs[0][i], vs[1][i], vs[2][i], i, want)
					}
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, errs := meet(t, ctx, listen(t), 2, func(c *allreduce.Config) {
		if c.Rank == 1 {
			c.Checksum = allreduce.ChecksumAll
		}
	})
	if errs[1] == nil || !strings.Contains(errs[1].Error(), `rank 0 has "" as setting of checksums, rank 1 has "on"`) {
		t.Errorf("%v", errs)
	}
}
