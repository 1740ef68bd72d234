package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"star/internal/exitcode"
)

// GossipConfig configures a membership in a cluster's gossip.
type GossipConfig struct {
	Cluster string
	Bind    string   // host:port, for TCP and UDP; port 0: any
	Seeds   []string // host:port of other members; a missing port means DefaultGossipPort

	// Key encrypts messages: 16, 24 or 32 bytes; nil: no encryption. Messages with other keys are ignored.
	Key []byte
	Old [][]byte // other accepted keys

	// Place is the resource service that this process offers; the zero Place: none.
	Place Place
	Log   *slog.Logger
}

// Default ports of a resource service.
const (
	DefaultPort       = "7072"
	DefaultGossipPort = "7073"
)

// Place is a resource service's location and identity.
type Place struct {
	Addr  string    `json:"addr"`  // of the service, host:port
	Since time.Time `json:"since"` // start time
	ID    string    `json:"id"`    // random, new at each start
}

// before reports which claim of a name is older.
func (p Place) before(o Place) bool {
	if !p.Since.Equal(o.Since) {
		return p.Since.Before(o.Since)
	}
	return p.ID < o.ID
}

// Gossip is a membership in a cluster's gossip.
type Gossip struct {
	list   *memberlist.Memberlist
	rivals chan Place
	log    *slog.Logger
	meta   atomic.Pointer[[]byte] // what this member publishes about itself
}

// tag is what a member publishes about itself. memberlist allows at most 512 bytes.
type tag struct {
	Role string `json:"role"` // serve, or look
	Place
}

// NewID returns a random name.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Meet joins the gossip. With seeds it returns when one of them has answered; the error names those that could not be
// reached. Timings are memberlist's for a LAN.
func Meet(ctx context.Context, cfg GossipConfig) (*Gossip, error) {
	me := tag{Role: "look", Place: cfg.Place}
	if cfg.Place.Addr != "" {
		me.Role = "serve"
	}
	meta, err := json.Marshal(me)
	if err != nil {
		return nil, err
	}
	if len(meta) > memberlist.MetaMaxSize { // Create would panic
		return nil, fmt.Errorf("cluster %q: cannot publish the address %q: it is too long", cfg.Cluster, cfg.Place.Addr)
	}
	return convene(ctx, cfg, "star "+cfg.Cluster, me.Role, meta)
}

// convene joins the gossip as a member that publishes meta. Every packet has the label, which keeps clusters on one
// network apart.
func convene(ctx context.Context, cfg GossipConfig, label, role string, meta []byte) (*Gossip, error) {
	host, port, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip address %q: want host:port", cfg.Bind)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 0 || n > 65535 {
		return nil, fmt.Errorf("gossip address %q: %q is not a port", cfg.Bind, port)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	hostname, _ := os.Hostname()
	c := memberlist.DefaultLANConfig()
	c.Name = strings.Join([]string{role, hostname, NewID()}, " ") // memberlist ignores a second one of the same name
	c.Label = label
	c.BindAddr, c.BindPort = host, n
	if host == "" {
		c.BindAddr = "0.0.0.0"
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		c.AdvertiseAddr = host
	}
	c.AdvertisePort = n
	if c.SecretKey = cfg.Key; len(cfg.Old) > 0 {
		if c.Keyring, err = memberlist.NewKeyring(cfg.Old, cfg.Key); err != nil {
			return nil, fmt.Errorf("keys of the gossip: %w", err)
		}
	}
	// In a small cluster a lost message would wait half a minute for the next complete exchange.
	c.RetransmitMult, c.PushPullInterval = 6, 5*time.Second
	g := &Gossip{rivals: make(chan Place, 1), log: cfg.Log}
	g.meta.Store(&meta)
	d := &delegate{gossip: g, me: cfg.Place}
	c.Delegate, c.Events, c.Conflict = d, d, d
	c.LogOutput, c.Logger = nil, log.New(&logWriter{cfg.Log}, "", 0)

	// Create and Join take no context; they end within TCPTimeout.
	c.TCPTimeout = 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		c.TCPTimeout = max(min(c.TCPTimeout, time.Until(deadline)), 100*time.Millisecond)
	}
	if g.list, err = memberlist.Create(c); err != nil {
		return nil, fmt.Errorf("gossip of cluster %q at %s: %w", cfg.Cluster, cfg.Bind, err)
	}
	seeds := slices.Clone(cfg.Seeds)
	for i, s := range seeds {
		if _, _, err := net.SplitHostPort(s); err != nil {
			seeds[i] = net.JoinHostPort(s, DefaultGossipPort)
		}
	}
	if len(seeds) == 0 {
		return g, nil
	}
	if reached, err := g.list.Join(seeds); reached == 0 {
		g.Close()
		return nil, &SeedError{cfg.Cluster, seeds, err}
	}
	return g, nil
}

// SeedError means that no seed answered.
type SeedError struct {
	Cluster string
	Seeds   []string
	Err     error
}

func (e *SeedError) Error() string {
	return fmt.Sprintf("none of %s is a member of cluster %q with our key (%v): check --cluster, --cluster-join and --cluster-key",
		strings.Join(e.Seeds, ", "), e.Cluster, oneLine(e.Err))
}
func (e *SeedError) Unwrap() error { return e.Err }

// ExitCode returns exitcode.Lost.
func (e *SeedError) ExitCode() int { return exitcode.Lost }

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// Places returns the services that members claim to be, the oldest first.
func (g *Gossip) Places() []Place {
	var ps []Place
	for _, n := range g.list.Members() {
		if t, ok := parseTag(n.Meta); ok && n.Name != g.list.LocalNode().Name {
			ps = append(ps, t.Place)
		}
	}
	slices.SortFunc(ps, func(a, b Place) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return ps
}

// Rivals returns a channel of services that have claimed the name before this one.
func (g *Gossip) Rivals() <-chan Place { return g.rivals }

// Addr returns the address at which other members reach this one.
func (g *Gossip) Addr() string { return g.list.LocalNode().Address() }

// Close leaves the gossip.
func (g *Gossip) Close() {
	g.list.Leave(time.Second) // a timeout is expected if no other member is left
	g.list.Shutdown()
}

// parseTag parses what a member publishes; ok is false if it offers no service.
func parseTag(b []byte) (t tag, ok bool) {
	if len(b) > memberlist.MetaMaxSize || json.Unmarshal(b, &t) != nil || t.Role != "serve" {
		return tag{}, false
	}
	if _, _, err := net.SplitHostPort(t.Addr); err != nil || t.ID == "" {
		return tag{}, false
	}
	return t, true
}

// Find searches the gossip for the cluster's service until ctx ends.
func Find(ctx context.Context, cfg GossipConfig) (Place, error) {
	cfg.Place = Place{}
	g, err := Meet(ctx, cfg)
	if err != nil {
		return Place{}, err
	}
	defer g.Close()
	for {
		if ps := g.Places(); len(ps) > 0 {
			return ps[0], nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return Place{}, fmt.Errorf("no member of cluster %q offers the resource service: is star cluster serve running? (%w)", cfg.Cluster, ctx.Err())
		}
	}
}

// delegate implements memberlist's callbacks. They must not block.
type delegate struct {
	gossip *Gossip
	me     Place
}

func (d *delegate) NodeMeta(int) []byte                      { return *d.gossip.meta.Load() }
func (*delegate) NotifyMsg([]byte)                           {}
func (*delegate) GetBroadcasts(overhead, limit int) [][]byte { return nil }
func (*delegate) LocalState(join bool) []byte                { return nil }
func (*delegate) MergeRemoteState(buf []byte, join bool)     {}
func (*delegate) NotifyLeave(*memberlist.Node)               {}
func (d *delegate) NotifyJoin(n *memberlist.Node)            { d.look(n) }
func (d *delegate) NotifyUpdate(n *memberlist.Node)          { d.look(n) }

func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	d.gossip.log.Error("gossip found two members with one name", "name", existing.Name, "first", existing.Address(), "second", other.Address())
}

// look detects members that offered our service before us.
func (d *delegate) look(n *memberlist.Node) {
	t, ok := parseTag(n.Meta)
	if !ok || d.me.Addr == "" || t.ID == d.me.ID || !t.Place.before(d.me) {
		return
	}
	select {
	case d.gossip.rivals <- t.Place:
	default:
	}
}

// logWriter forwards memberlist's log lines at debug level.
type logWriter struct{ log *slog.Logger }

func (w *logWriter) Write(b []byte) (int, error) {
	w.log.Debug("gossip logged", "says", string(bytes.TrimSpace(b)))
	return len(b), nil
}

// ReadKey reads a gossip key: 16, 24 or 32 bytes in base64, in one line.
func ReadKey(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, 1<<10))
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(b)))
	if err != nil {
		return nil, errors.New("want one line of base64, as head -c32 /dev/urandom | base64 writes it")
	}
	if n := len(key); n != 16 && n != 24 && n != 32 {
		return nil, fmt.Errorf("%d bytes, want 16, 24 or 32", n)
	}
	return key, nil
}
