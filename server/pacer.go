package server

import (
	"context"
	"sync"
	"time"

	"star/cluster/resource/actuate"
	"star/job/process"
)

// pacer slows down the shards of this process: each pauses before each update. The time between two
// updates of the first shard counts as the duration of an update.
//
// Invariant: first does not change once it is set, so at, cpu and sent always describe the cycle of
// the same shard.
//
// The limits (actuate.Governor) are those of this process or of the cluster: the governor gets the
// cost of an update, and determines the pause. Only one shard's cycle is observed, but CPU time and
// bytes are those of the whole process, because all shards of a process make each update at about
// the same time.
type pacer struct {
	limits *actuate.Governor
	// tells receives the cost of an update; nil: limits does.
	tells func(actuate.Work)
	// moved returns the bytes to and from other hosts so far; nil: not known.
	moved func() (sent, received int64)

	mu    sync.Mutex
	begun bool
	// first is the shard that is observed.
	first int
	at    time.Time
	cpu   time.Duration
	sent  int64
}

// pause is ps.ServerConfig.Pause. It returns when the pause is over or ctx has ended. Shards call it
// concurrently from their own goroutines.
func (p *pacer) pause(ctx context.Context, shard int) {
	p.mu.Lock()
	now, cpu := time.Now(), process.CPUTime()
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
	p.limits.Pause(ctx) // the server checks ctx itself
	if looked {
		p.mu.Lock()
		p.at, p.cpu, p.sent = time.Now(), process.CPUTime(), p.bytes()
		p.mu.Unlock()
	}
}

// bytes returns the bytes sent to other hosts so far. Traffic within the host does not use its link.
func (p *pacer) bytes() int64 {
	if p.moved == nil {
		return 0
	}
	sent, _ := p.moved()
	return sent
}
