package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"star/internal/defaults"
	"star/transport"
)

// Config selects the checks. The zero value checks this host and the default ports.
type Config struct {
	// Listen are the addresses that must be free, host:port. Nil means :7070
	// and :7071.
	Listen []string

	// Advertise is the address under which others will look for this host,
	// host:port. Empty: the host name's.
	Advertise string

	// Peers are addresses of star-ps, or of Serve, on other hosts, host:port.
	Peers []string

	// Network reaches the peers. Nil means TCP without TLS. Its token, if the
	// job has one, must be in Token.
	Network transport.Network
	Job     string
	Token   string

	// Version is the version of the program.
	Version string

	// Members is how many connections the busiest process will have. Zero means
	// 64.
	Members int

	// Congestion is the TCP congestion control that the job asks for, or empty.
	Congestion string

	// Environment is that of a process of a job under Slurm or Kubernetes, which is checked, too. Nil: it is not.
	Environment []string

	// Timeout bounds the examination of one peer. Zero means 20 s.
	Timeout time.Duration
}

// Ports are the default addresses on which star-ps listens.
var Ports = []string{":" + defaults.Port, ":" + defaults.Metrics}

// Run makes all checks. It does not fail: a check that is not possible is a
// Result with the reason.
func Run(ctx context.Context, c Config) *Report {
	if c.Listen == nil {
		c.Listen = Ports
	}
	if c.Network == nil {
		c.Network = transport.NewTCP(transport.Config{CongestionControl: c.Congestion})
	}
	if c.Members == 0 {
		c.Members = 64
	}
	if c.Timeout == 0 {
		c.Timeout = 20 * time.Second
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	r := &Report{Host: host, Version: c.Version, Protocol: transport.Protocol, Status: OK}

	if c.Environment != nil {
		r.add(engine(ctx, c.Environment)...)
	}
	for _, addr := range c.Listen {
		r.add(port(ctx, addr, slices.ContainsFunc(c.Environment, func(v string) bool { return strings.HasPrefix(v, "KUBERNETES_SERVICE_HOST=") })))
	}
	r.add(hostName(ctx, host, c.Advertise, len(c.Peers) > 0))
	if c.Advertise != "" {
		r.add(advertise(ctx, c.Advertise))
	}
	r.add(openFiles(c.Members), cores(), memory(ctx), congestion(c.Congestion))
	for _, addr := range c.Peers {
		r.add(peer(ctx, &c, addr)...)
	}
	return r
}
