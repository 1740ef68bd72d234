package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestGuard(t *testing.T) {
	loopback, outside, socket := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7071}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7071}, &net.UnixAddr{Name: "/s", Net: "unix"}
	ok, no := http.StatusOK, http.StatusMisdirectedRequest
	for _, c := range []struct {
		address string
		at      net.Addr
		host    string
		path    string
		want    int
	}{
		{"127.0.0.1:7071", loopback, "evil.example", "/", no},
		{"127.0.0.1:7071", loopback, "evil.example:7071", "/run.jsonl", no},
		{":7071", loopback, "evil.example:7071", "/view.json", no},
		{"127.0.0.1:7071", loopback, "10.0.0.1:7071", "/", no},
		{"127.0.0.1:7071", loopback, "localhost.evil.example", "/", no},
		{"127.0.0.1:7071", loopback, "127.0.0.1.evil.example", "/", no},
		{"127.0.0.1:7071", loopback, "localhost", "/", ok},
		{"127.0.0.1:7071", loopback, "LocalHost.:8080", "/debug/star", ok},
		{"127.0.0.1:7071", loopback, "127.0.0.1:7071", "/", ok},
		{"127.0.0.1:7071", loopback, "127.9.9.9", "/", ok},
		{"127.0.0.1:7071", &net.TCPAddr{IP: net.IPv6loopback}, "evil.example", "/", no},
		{"[::1]:7071", &net.TCPAddr{IP: net.IPv6loopback}, "[::1]:7071", "/", ok},
		{"[::1]:7071", &net.TCPAddr{IP: net.IPv6loopback}, "[::1]", "/", ok},
		{"[::]:7071", loopback, "[::ffff:127.0.0.1]:7071", "/", ok},
		{"node-a:7071", loopback, "Node-A:7071", "/debug/pprof/", ok},
		{"node-a:7071", loopback, "node-b:7071", "/", no},
		{"127.0.0.1:7071", loopback, "", "/", ok},
		{":7071", outside, "node-a.example:7071", "/view.json", ok},
		{":7071", outside, "node-a.example:7071", "/debug/pprof/heap", no},
		{":7071", outside, "localhost:7071", "/debug/pprof/heap", ok},
		{"unix:/s", socket, "process", "/debug/star", ok},
	} {
		h := Guard(c.address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at)))
		if w.Code != c.want {
			t.Errorf("--http %s, reached at %v, Host %q, %s: %d, want %d", c.address, c.at, c.host, c.path, w.Code, c.want)
		}
	}
}

func TestExposed(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:0": false, "127.0.1.1:0": false, ":0": true, "0.0.0.0:0": true} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if got := Exposed(l); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}

// The address of one interface was chosen on purpose.
func TestExposedAtOneInterface(t *testing.T) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || n.IP.To4() == nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(n.IP.String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if Exposed(l) {
			t.Errorf("%v is said to be open to all hosts", l.Addr())
		}
		return
	}
	t.Skip("this host has no address but loopback")
}
