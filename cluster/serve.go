package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// ClaimError means that a cluster already has a service.
type ClaimError struct {
	Cluster string
	Place   Place // the first service
	Late    bool  // found while this service was running
}

func (e *ClaimError) Error() string {
	what := "stop it, or use another name (--cluster)"
	if e.Late {
		what = "it started earlier, so this one stops"
	}
	return fmt.Sprintf("cluster %q has a resource service already, at %s, since %s: %s", e.Cluster, e.Place.Addr, e.Place.Since.UTC().Format(time.RFC3339), what)
}

// ExitCode returns exitcode.Disagree.
func (e *ClaimError) ExitCode() int { return exitcode.Disagree }

// alive asks a service for a sign of life: the gossip remembers dead members for some seconds.
func alive(ctx context.Context, n transport.Network, cluster, token string, p Place) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, g, err := hail(ctx, n, p.Addr, wire.Hello{Service: wire.ServiceCluster, Role: wire.RoleTool, Job: cluster, Token: token, Rank: -1})
	if err != nil {
		return false
	}
	conn.Close()
	return g.ID == p.ID
}

// Claim joins the gossip of a cluster for a service (cfg.Place). If another service of that name answers, the error is
// a *ClaimError.
func Claim(ctx context.Context, cfg GossipConfig, n transport.Network, token string) (*Gossip, error) {
	g, err := Meet(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for _, p := range g.Places() {
		if p.ID != cfg.Place.ID && alive(ctx, n, cfg.Cluster, token, p) {
			g.Close()
			return nil, &ClaimError{cfg.Cluster, p, false}
		}
	}
	return g, nil
}

// Serve runs the service on a listener until ctx ends, or until the gossip (which may be nil) reports an older service
// of the same name that answers: then it returns a *ClaimError.
func (s *Service) Serve(ctx context.Context, l transport.Listener, n *transport.TCP, token string, members *Gossip) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	if members != nil {
		wg.Go(func() {
			for {
				select {
				case p := <-members.Rivals():
					if alive(ctx, n, s.cfg.Cluster, token, p) {
						cancel(&ClaimError{s.cfg.Cluster, p, true})
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Go(func() {
		if err := transport.Serve(ctx, l, n.Config, s.Accept); err != nil {
			cancel(err)
		}
	})
	return s.Run(ctx)
}

// Ask asks a service for its Status.
func Ask(ctx context.Context, n transport.Network, addr, cluster, token, version string) (Status, error) {
	conn, _, err := hail(ctx, n, addr, wire.Hello{Service: wire.ServiceCluster, Role: wire.RoleTool, Job: cluster, Token: token, Version: version, Rank: -1})
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetReadDeadline(deadline)
		conn.SetWriteDeadline(deadline)
	}
	if err := transport.Send(conn, wire.Control{Args: []string{"status"}}, nil); err != nil {
		return Status{}, err
	}
	f, err := conn.Recv()
	if err != nil {
		return Status{}, err
	}
	if f.Kind != wire.KindReply {
		return Status{}, fmt.Errorf("%s answers with %v instead of a reply", addr, f.Kind)
	}
	r, err := wire.ParseReply(f.Header)
	if err != nil {
		return Status{}, err
	}
	body, err := transport.ReadAll(conn, f)
	if err != nil {
		return Status{}, err
	}
	if r.Err != "" {
		return Status{}, errors.New(r.Err)
	}
	var st Status
	if err := json.Unmarshal(body, &st); err != nil {
		return Status{}, fmt.Errorf("the answer of %s: %w", addr, err)
	}
	return st, nil
}
