package settings

import (
	"net"
	"testing"
)

// A default on loopback is one that the host has.
func TestHome(t *testing.T) {
	addrs := func(texts ...string) (out []net.Addr) {
		for _, text := range texts {
			ip, n, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return out
	}
	for _, c := range []struct {
		addrs []net.Addr
		want  string
	}{
		{nil, "127.0.0.1"},
		{addrs("127.0.0.1/8", "::1/128", "10.0.0.1/24"), "127.0.0.1"},
		{addrs("::1/128", "127.0.0.1/8"), "127.0.0.1"},
		{addrs("10.0.0.1/24", "fd00::1/64"), "127.0.0.1"},
		{addrs("::1/128", "fd00::1/64"), "::1"},
		{addrs("::1/128", "10.0.0.1/24"), "::1"},
	} {
		if got := home(c.addrs); got != c.want {
			t.Errorf("%v: %s, want %s", c.addrs, got, c.want)
		}
	}
	for _, c := range []struct{ def, home, want string }{
		{"127.0.0.1:7070", "127.0.0.1", "127.0.0.1:7070"},
		{"127.0.0.1:7070", "::1", "[::1]:7070"},
		{"127.0.0.1", "::1", "::1"},
		{":7070", "::1", ":7070"},
		{"off", "::1", "off"},
	} {
		if got := atHome(c.def, c.home); got != c.want {
			t.Errorf("%s at %s is %s, want %s", c.def, c.home, got, c.want)
		}
	}
	if got := atHome(7, "::1"); got != 7 {
		t.Errorf("7 is %d", got)
	}
}
