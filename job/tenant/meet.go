package tenant

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	gonet "net"
	"os"
	"time"

	"star/cluster"
	"star/internal/loopback"
	"star/job"
	"star/job/process"
)

// Meet joins the gossip of the job (--gossip), or only asks it for the coordinator (--gossip-join):
// then j.Coordinator is set, unless it was set explicitly. The gossip is nil for a process that
// does not stay in it. It retries until the join timeout, because processes of a job start in any
// order.
func Meet(ctx context.Context, j *job.Job, me cluster.JobMember, log *slog.Logger) (*cluster.JobGossip, error) {
	stays := j.Gossip != job.Off
	seeks := len(j.GossipJoin) > 0 && !j.IsSet("coordinator") && (me.Role != "server" || me.Rank != 0)
	if !stays && !seeks {
		return nil, nil
	}
	cfg, err := gossipConfig(j, log)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, j.JoinTimeout)
	defer cancel()
	var g *cluster.JobGossip
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		g, err = cluster.MeetJob(limited, cfg, me)
		if _, seeds := errors.AsType[*cluster.JobSeedError](err); err == nil || !seeds {
			break
		}
		log.Debug("job's gossip has not answered yet", "err", err)
		if !process.Sleep(limited, wait/2+rand.N(wait)) {
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}
	if seeks {
		addr, err := g.Coordinator(limited, j.Name)
		if err != nil {
			g.Close()
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, err
		}
		log.Info("found the coordinator", "addr", addr, "by", cfg.Seeds)
		j.Coordinator = addr
	}
	if !stays {
		g.Close()
		return nil, nil
	}
	log.Info("gossip", "addr", g.Addr(), "job", j.Name)
	return g, nil
}

// gossipConfig reads the settings of the job's gossip. One beyond loopback without a key is an error, if it is not
// insecure on purpose.
func gossipConfig(j *job.Job, log *slog.Logger) (cfg cluster.GossipConfig, err error) {
	cfg = cluster.GossipConfig{Cluster: j.Name, Bind: j.Gossip, Log: log}
	for _, addr := range j.GossipJoin {
		if _, _, err := gonet.SplitHostPort(addr); err != nil {
			addr = gonet.JoinHostPort(addr, cluster.DefaultGossipPort)
		}
		cfg.Seeds = append(cfg.Seeds, addr)
	}
	if j.GossipKey != "" {
		f, err := os.Open(j.GossipKey)
		if err != nil {
			return cfg, j.Invalid("gossip-key", err)
		}
		defer f.Close()
		keys, err := cluster.ReadKeyring(f)
		if err != nil {
			return cfg, j.Invalid("gossip-key", err)
		}
		cfg.Key, cfg.Old = keys[0], keys[1:]
	}
	open := cfg.Seeds
	if j.Gossip == job.Off {
		cfg.Bind = gonet.JoinHostPort(facing(cfg.Seeds[0]), "0")
	} else if _, _, err := gonet.SplitHostPort(j.Gossip); err != nil {
		return cfg, j.Invalid("gossip", fmt.Errorf("want host:port, such as 10.0.0.2:%s, or off", cluster.DefaultGossipPort))
	} else {
		open = append(open[:len(open):len(open)], j.Gossip)
	}
	for _, addr := range open {
		if cfg.Key == nil && !j.Insecure && !loopback.Is(addr) {
			return cfg, j.Invalid("gossip-key", fmt.Errorf("any process that reaches the gossip at %s could name its own coordinator; set a key, or allow it with --insecure", addr))
		}
	}
	return cfg, nil
}

// Told is the address that the gossip tells of a process that listens on addr: without a host where that is every
// interface.
func Told(job *job.Job, addr string) string {
	if job.Advertise != "" {
		return job.Advertise
	}
	host, port, err := gonet.SplitHostPort(addr)
	if ip := gonet.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return ":" + port
	}
	return addr
}
