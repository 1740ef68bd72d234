package web

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Guard protects the handler of a listener against web sites with a name bound to an address of this host (DNS
// rebinding): the browser of a user of the host takes such a site for the origin of the handler's answers. A
// request over loopback must have the Host localhost, a loopback address, or the host of address, at which the
// listener was opened; so must a request for /debug/ over any address. Otherwise the answer is 421 (RFC 9110, section
// 15.5.20). A request without Host, which no browser makes, and one over a Unix socket, which none can reach, are
// served.
func Guard(address string, h http.Handler) http.Handler {
	own := hostOf(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		guarded := isLoopback(at) || at != nil && at.Network() != "unix" && strings.HasPrefix(r.URL.Path, "/debug/")
		if host := hostOf(r.Host); guarded && host != "" && host != own && host != "localhost" {
			if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
				http.Error(w, "on loopback only the hosts localhost, loopback addresses and that of --http (--listen) are answered: open http://localhost, or have the proxy send Host: localhost",
					http.StatusMisdirectedRequest)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// Exposed reports whether a listener is open to hosts that were not named: it listens at every address of this host,
// and one of them is not loopback.
func Exposed(l net.Listener) bool {
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() {
		return false
	}
	addrs, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(addrs, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && !n.IP.IsLoopback()
	})
}

// hostOf is the host of host:port or of a host alone, without brackets and in small letters.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func isLoopback(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
