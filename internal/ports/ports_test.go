package ports

import (
	"net"
	"strconv"
	"testing"
)

// Addresses for processes are all different; no process listens on any of them, and they are not among the ports that
// connections get.
func TestReserve(t *testing.T) {
	var taken []string
	for range 50 {
		addr, err := Reserve("127.0.0.1", taken...)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(addr)
		if n, err := strconv.Atoi(port); err != nil || n < leastPort || n > mostPort {
			t.Errorf("port %s", port)
		}
		taken = append(taken, addr)
	}
	if addr, err := Listens("127.0.0.1:0"); err != nil || addr == "127.0.0.1:0" {
		t.Errorf("any port is %q, %v", addr, err)
	}
	if _, err := Reserve("192.0.2.1"); err == nil { // for documentation: not ours
		t.Error("an address of another machine")
	}
	if _, err := Reserve("not a host"); err == nil {
		t.Error("no host")
	}
}
