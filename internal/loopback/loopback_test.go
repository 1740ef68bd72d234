package loopback

import (
	"net"
	"testing"
)

// Home is an address that the host has.
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
}
