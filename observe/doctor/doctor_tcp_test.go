package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"star/transport"
	"star/transport/wire"
)

// find returns the only result with a check that has this prefix.
func find(t *testing.T, r *Report, check string) Result {
	t.Helper()
	var found []Result
	for _, x := range r.Results {
		if strings.HasPrefix(x.Check, check) {
			found = append(found, x)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d results for %q in %+v", len(found), check, r.Results)
	}
	return found[0]
}

// serve runs Serve on loopback for the length of the test.
func serve(t *testing.T, cfg transport.Config, version string) (addr string) {
	t.Helper()
	l, err := transport.NewTCP(cfg).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, cfg, version) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr()
}

func TestPeerOverLoopback(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	addr := serve(t, transport.Config{Token: "sesame"}, "star 2")
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}, Token: "sesame", Version: "star 1"})
	expect(t, find(t, r, "peer "+addr+": version"), Warn, `"star 1" here, "star 2" there`, "same release")
	clock := find(t, r, "peer "+addr+": clock")
	if off, doubt := clock.Values["offset_s"], clock.Values["error_s"]; off < -doubt-1e-3 || off > doubt+1e-3 {
		t.Errorf("one clock is off by %v ± %v", off, doubt)
	}
	for _, v := range []float64{find(t, r, "peer "+addr+": latency").Values["rtt_s"],
		find(t, r, "peer "+addr+": bandwidth").Values["up_Bps"], find(t, r, "peer "+addr+": bandwidth").Values["down_Bps"]} {
		if v <= 0 {
			t.Errorf("not measured: %+v", r)
		}
	}
}

func TestPeerRefuses(t *testing.T) {
	addr := serve(t, transport.Config{Token: "sesame"}, "star 1")
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}, Token: "wrong"})
	expect(t, find(t, r, "peer "+addr), Fail, "token", "STAR_TOKEN")
	if r.ExitCode() != 1 {
		t.Error("exit code 0")
	}
}

func TestPeerIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}})
	expect(t, find(t, r, "peer "+addr), Fail, "refused", "--serve")
}

// A peer that accepts and then says nothing must not hold the doctor up.
func TestPeerIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}, Timeout: 100 * time.Millisecond})
	expect(t, find(t, r, "peer "+addr), Fail, "", "firewall")
}

func TestPeerSpeaksSomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		c.Read(make([]byte, 1<<16))
		c.Close()
	}()
	addr := l.Addr().String()
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}})
	l.Close()
	<-done
	expect(t, find(t, r, "peer "+addr), Fail, "not a STAR peer", "something else listens")
}

// A server of HTTP that waits for the rest of a line says nothing to us: it is asked in HTTP long before the time for a
// peer is over.
func TestPeerSpeaksHTTP(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	addr := srv.Listener.Addr().String()
	r := Run(t.Context(), Config{Listen: []string{}, Peers: []string{addr}, Timeout: 5 * time.Minute})
	expect(t, find(t, r, "peer "+addr), Fail, "an HTTP server", "7071")
}

// Serve is for doctors, and within limits.
func TestServeRefuses(t *testing.T) {
	addr := serve(t, transport.Config{}, "star 1")
	n := transport.NewTCP(transport.Config{})
	open := func(role string) (transport.Conn, error) {
		c, _, _, err := transport.Open(t.Context(), n, addr, wire.Hello{Service: wire.ServiceCoord, Role: role, Rank: -1}, nil)
		return c, err
	}
	if _, err := open(wire.RoleWorker); err == nil || !strings.Contains(err.Error(), "not a star-ps") {
		t.Errorf("a worker: %v", err)
	}
	for name, send := range map[string]func(transport.Conn) error{
		"greed": func(c transport.Conn) error { return transport.Send(c, wire.Ping{Want: maxPayload + 1}, nil) },
		"other": func(c transport.Conn) error { return transport.Send(c, wire.Control{Args: []string{"stop"}}, nil) },
	} {
		c, err := open(wire.RoleTool)
		if err != nil {
			t.Fatal(err)
		}
		if err := send(c); err != nil {
			t.Error(err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if f, err := c.Recv(); err == nil {
			t.Errorf("%s: answered with %v", name, f.Kind)
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open", name)
		}
		c.Close()
	}
}

func TestServeTakesFewGuests(t *testing.T) {
	addr := serve(t, transport.Config{}, "star 1")
	n := transport.NewTCP(transport.Config{})
	hello := wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleTool, Rank: -1}
	for range maxPeers {
		c, _, _, err := transport.Open(t.Context(), n, addr, hello, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if c, _, _, err := transport.Open(t.Context(), n, addr, hello, nil); err == nil {
		c.Close()
		t.Error("one guest too many was welcome")
	} else if !strings.Contains(err.Error(), "too many doctors") {
		t.Error(err)
	}
}

// A pong that answers another ping, or with another payload, measures nothing.
func TestPingChecksThePong(t *testing.T) {
	for name, pong := range map[string]wire.Pong{"right": {Seq: 5}, "other seq": {Seq: 4}, "no payload": {Seq: 5}} {
		p := new(transport.Pipe)
		l, err := p.Listen("there")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				done <- err
				return
			}
			defer c.Close()
			if _, err = c.Recv(); err == nil {
				n := 3
				if name == "no payload" {
					n = 0
				}
				err = transport.Send(c, pong, make([]byte, n))
				c.Recv() // until the other end closes
			}
			done <- err
		}()
		c, err := p.Dial(t.Context(), "there")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ping(c, 5, nil, 3, make([]byte, 3)); (err == nil) != (name == "right") {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.Close()
	}
}

func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	r := Run(t.Context(), Config{Listen: []string{taken, "127.0.0.1:0", "nonsense"}, Advertise: taken})
	expect(t, find(t, r, "port "+taken), Fail, "taken by", "--listen")
	if got := find(t, r, "port "+taken).Detail; !strings.Contains(got, fmt.Sprint("process ", os.Getpid())) && os.Getuid() == 0 {
		t.Errorf("%q does not name this process, %d", got, os.Getpid())
	}
	expect(t, find(t, r, "port 127.0.0.1:0"), OK, "free", "")
	expect(t, find(t, r, "port nonsense"), Fail, "missing port", "host:port")
	expect(t, find(t, r, "advertise "+taken), Warn, "on themselves", "network interface")
}

func TestAdvertiseUnreachable(t *testing.T) {
	// 192.0.2.0/24 is reserved for documentation; no host has such an address (RFC 5737).
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	expect(t, advertise(ctx, "192.0.2.1:7070"), Fail, "not even reachable", "firewall")
}

// TestMain: with STAR_DOCTOR_TEST the test binary is one of the two hosts of
// TestTwoHosts.
func TestMain(m *testing.M) {
	switch mode, addr, _ := strings.Cut(os.Getenv("STAR_DOCTOR_TEST"), " "); mode {
	case "serve":
		cfg := transport.Config{Token: "sesame"}
		l, err := transport.NewTCP(cfg).Listen(addr)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		Serve(ctx, l, cfg, "star 1")
	case "examine":
		r := Run(context.Background(), Config{Peers: []string{addr}, Token: "sesame", Version: "star 1", Timeout: 50 * time.Second})
		r.WriteJSON(os.Stdout)
		os.Exit(r.ExitCode())
	case "agent":
		if err := SweepOver(context.Background(), os.Stdin, os.Stdout, &SweepAgent{Version: "star 1"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// Two hosts made of network namespaces, with 40 Mbit/s from the one that asks to
// the one that answers.
func TestTwoHosts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	if testing.Short() {
		t.Skip("moves 16 MB over 40 Mbit/s")
	}
	a, b := fmt.Sprintf("star-doctor-a%d", os.Getpid()), fmt.Sprintf("star-doctor-b%d", os.Getpid())
	t.Cleanup(func() {
		exec.Command("ip", "netns", "del", a).Run()
		exec.Command("ip", "netns", "del", b).Run()
	})
	for _, line := range []string{
		"ip netns add " + a, "ip netns add " + b,
		"ip -n " + a + " link add v0 type veth peer name v1 netns " + b,
		"ip -n " + a + " addr add 10.77.0.1/24 dev v0", "ip -n " + b + " addr add 10.77.0.2/24 dev v1",
		"ip -n " + a + " link set v0 up", "ip -n " + b + " link set v1 up",
		"ip -n " + a + " link set lo up", "ip -n " + b + " link set lo up",
		"ip netns exec " + b + " tc qdisc add dev v1 root tbf rate 40mbit burst 64kb latency 100ms",
	} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces: %s: %v: %s", line, err, out)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command("ip", "netns", "exec", a, exe)
	server.Env = append(os.Environ(), "STAR_DOCTOR_TEST=serve 10.77.0.1:7070")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	if line := make([]byte, 6); true {
		if n, err := out.Read(line); err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
			t.Fatalf("the other host says %q, %v", line, err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asker := exec.CommandContext(ctx, "ip", "netns", "exec", b, exe)
	asker.Env = append(os.Environ(), "STAR_DOCTOR_TEST=examine 10.77.0.1:7070")
	var stdout, stderr bytes.Buffer
	asker.Stdout, asker.Stderr = &stdout, &stderr
	asker.Run() // its exit code depends on this machine's host name
	var r Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s %s", err, &stdout, &stderr)
	}
	const peer = "peer 10.77.0.1:7070: "
	expect(t, find(t, &r, peer+"version"), OK, "star 1", "")
	expect(t, find(t, &r, peer+"clock"), OK, "", "")
	bw := find(t, &r, peer+"bandwidth")
	if up := bw.Values["up_Bps"]; bw.Status != Warn || up <= 0 || up > 6e6 { // 40 Mbit/s are 5 MB/s, and the bucket
		t.Errorf("%+v, want a warning and at most 6 MB/s there", bw)
	}
	expect(t, find(t, &r, "port :7070"), OK, "free", "")
}

// The port of a pod's own process is no fault of the pod; elsewhere the same port is taken.
func TestPortOfThePod(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are seen in /proc")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for env, want := range map[string]Status{"KUBERNETES_SERVICE_HOST=10.0.0.1": OK, "SLURM_JOB_ID=7": Fail} {
		r := Run(t.Context(), Config{Listen: []string{l.Addr().String()}, Environment: []string{env, "STAR_OUT=" + t.TempDir()}})
		if got := find(t, r, "port "+l.Addr().String()); got.Status != want {
			t.Errorf("%s: %s, %s, want %s", env, got.Status, got.Detail, want)
		}
	}
}
