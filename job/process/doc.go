// Package process has what every process of a job does, worker or server: it finds the others, measures and limits its
// use of the host, keeps checkpoints, and ends in order. It is internal: the public packages are star/worker and
// star/server.
package process

import (
	"context"
	"fmt"
	"log/slog"
	gonet "net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"star/internal/loopback"
	"star/job"
	"star/train"
	"star/transport"
	"star/transport/wire"
)

// Network is how this process speaks, by the settings.
func Network(job *job.Job, log *slog.Logger) (*transport.TCP, error) {
	cfg := transport.Config{
		CongestionControl: job.Congestion,
		Token:             job.Token,
		Insecure:          job.Insecure,
		Log:               log,
	}
	if job.TLS() {
		t, err := transport.TLSConfig(job.TLSCert, job.TLSKey, job.TLSCA)
		if err != nil {
			return nil, job.Invalid("tls-cert", err)
		}
		cfg.TLS = t
	}
	return transport.NewTCP(cfg), nil
}

// Hostname is the name of this host, or "unknown" where the system has none.
func Hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// Threads bounds the processors that this process uses. The arithmetic of one
// worker runs on one thread; a second one carries the network and the collector.
func Threads(n int) {
	if n == 0 {
		n = min(2, runtime.NumCPU())
	}
	runtime.GOMAXPROCS(n)
}

// ShardAddrs puts the coordinator's host before addresses that have none: those of
// shards in the coordinator's own process, when it listens on every interface.
func ShardAddrs(shards []wire.ShardInfo, coordinator string) []wire.ShardInfo {
	out := slices.Clone(shards)
	for i := range out {
		out[i].Addr = WithHost(out[i].Addr, coordinator)
	}
	return out
}

// WithHost puts the coordinator's host before an address that has none.
func WithHost(addr, coordinator string) string {
	port, ok := strings.CutPrefix(addr, ":")
	host, _, err := gonet.SplitHostPort(coordinator)
	if !ok || err != nil {
		return addr
	}
	return gonet.JoinHostPort(host, port)
}

// Gradient is the model's own gradient vector, if it has one that it fills
// without a copy.
func Gradient(m train.Model) []float32 {
	if g, ok := m.(interface{ Gradient() []float32 }); ok {
		return g.Gradient()
	}
	return make([]float32, len(m.Params()))
}

// Sleep reports false when ctx has ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Toward is the address of the interface that leads to a coordinator, from the routing table: no packet is sent. An
// unknown interface name is an error.
func Toward(ctx context.Context, coordinator string) (string, error) {
	c, err := new(gonet.Dialer).DialContext(ctx, "udp", coordinator)
	if err != nil {
		return "", fmt.Errorf("the way to the coordinator: %w", err)
	}
	defer c.Close()
	host, _, err := gonet.SplitHostPort(c.LocalAddr().String())
	return host, err
}

// Home is this host's loopback address.
func Home() string { return loopback.Home() }

// Reached is the address at which others reach a process that listens on addr. With --advertise that
// is its host. A process that listens on every interface is reached through the one that leads to
// the coordinator, or to one of the candidates. Loopback leads there only from the coordinator's own
// host, and means nothing elsewhere: the address then has no host, and WithHost adds the
// coordinator's, as each reader knows it. Candidates are all on this host if all are reached over
// loopback. An error: no coordinator's name can be resolved yet.
func Reached(ctx context.Context, job *job.Job, addr string) (string, error) {
	host, port, err := gonet.SplitHostPort(addr)
	if err != nil {
		return addr, nil
	}
	if at, _, err := gonet.SplitHostPort(job.Advertise); err == nil {
		return gonet.JoinHostPort(at, port), nil
	}
	if ip := gonet.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return addr, nil
	}
	host = ""
	for _, c := range append([]string{job.Coordinator}, job.Coordinators...) { // the name of one that is lost may be gone
		local, e := Toward(ctx, c)
		switch {
		case e != nil && host == "":
			err = e
		case e == nil && !gonet.ParseIP(local).IsLoopback():
			return gonet.JoinHostPort(local, port), nil
		case e == nil:
			host, err = local, nil
		}
	}
	if len(job.Coordinators) == 0 && err == nil {
		host = ""
	}
	return gonet.JoinHostPort(host, port), err
}

// ListenAddress is where a worker listens for others: without --listen on the interface that leads to the coordinator,
// at any port. On the coordinator's own host that is loopback, which members on other hosts cannot reach. A worker that
// may listen beyond loopback listens on every interface there, if the coordinator's name is valid on other hosts, or
// --advertise is set. It returns an error if any process could connect.
func ListenAddress(job *job.Job) (string, error) {
	host, _, err := gonet.SplitHostPort(job.Listen)
	if err != nil {
		return "", job.Invalid("listen", err)
	}
	protected := job.TLS() || job.Token != "" || job.Insecure
	if !job.IsSet("listen") {
		if toward, err := Toward(context.Background(), job.Coordinator); err == nil {
			host = toward
		}
		if local := gonet.ParseIP(host).IsLoopback(); job.Advertise != "" || protected && local && !loopback.Is(job.Coordinator) {
			host = ""
		}
	}
	addr := gonet.JoinHostPort(host, "0")
	if !loopback.Is(addr) && !protected {
		return "", job.Invalid("listen", fmt.Errorf("the other workers connect to %s, and any process that reaches it could join; set STAR_TOKEN or certificates, or allow it with --insecure", host))
	}
	return addr, nil
}
