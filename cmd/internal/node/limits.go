package node

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"star"
	"star/cmd/internal/settings"
	"star/resource/actuate"
)

// govern undoes what dead processes have left behind, and makes this process take no more
// than --limit says. peer is where it sends to. release lifts everything again.
func govern(job *settings.Job, who, peer string, log *slog.Logger) (g *actuate.Governor, release func(), err error) {
	limit, err := actuate.Parse(job.Limit)
	if err != nil {
		return nil, nil, job.Invalid("limit", err)
	}
	g, err = actuate.Start(actuate.Config{
		Kind: actuate.Kind(job.Actuator), Base: limit, LeaseDir: job.LeaseDir, Who: who,
		Dev: job.LimitInterface, Peer: peer, Log: log,
	})
	if err != nil {
		return nil, nil, job.Invalid("limit", err)
	}
	return g, func() {
		if err := g.Close(); err != nil {
			log.Error("a limit is still there; star limits undo lifts it", "err", err)
		}
	}, nil
}

// observe tells the governor what an iteration took.
func (w *worker) observe(rec *star.Record) {
	share, ok := rec.Telemetry.Get(star.ComputeCPU)
	if !ok { // without telemetry: as if what the process did was done while it computed
		if rec.Compute > 0 {
			share = rec.CPU * rec.Iteration().Seconds() / rec.Compute.Seconds()
		}
	}
	w.limits.Observe(actuate.Work{Busy: rec.Compute - rec.Injected, Cores: share, Send: rec.Push, Out: rec.NetOut})
}

// pacer makes the shards of this process slower: each pauses before each update, at the same
// time. What is between two updates of the first one is what an update takes.
type pacer struct {
	limits *actuate.Governor
	tells  func(actuate.Work)            // nil: the limits
	moved  func() (sent, received int64) // bytes to and from other hosts so far; nil: not known

	mu    sync.Mutex
	begun bool
	first int // the shard that is looked at
	at    time.Time
	cpu   time.Duration
	sent  int64
}

// pause is ps.ServerConfig.Pause.
func (p *pacer) pause(ctx context.Context, shard int) {
	p.mu.Lock()
	now, cpu := time.Now(), processTime()
	sent := p.bytes()
	switch {
	case !p.begun:
		p.begun, p.first = true, shard
	case p.first == shard && now.After(p.at):
		took := now.Sub(p.at)
		w := actuate.Work{Busy: took, Cores: (cpu - p.cpu).Seconds() / took.Seconds(), Out: float64(sent - p.sent)}
		if p.tells != nil {
			p.tells(w)
		} else {
			p.limits.Observe(w)
		}
	}
	looked := p.first == shard
	p.mu.Unlock()
	p.limits.Pause(ctx) // the server sees by itself that ctx is done
	if looked {
		p.mu.Lock()
		p.at, p.cpu, p.sent = time.Now(), processTime(), p.bytes()
		p.mu.Unlock()
	}
}

// bytes are those sent so far.
func (p *pacer) bytes() int64 {
	if p.moved == nil {
		return 0
	}
	sent, _ := p.moved()
	return sent
}
