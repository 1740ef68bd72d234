package server

import (
	"context"
	"sync"
	"time"

	"star/cluster/resource/actuate"
	"star/job/process"
)

// pacer makes the shards of this process slower: each pauses before each update, at the same
// time. What is between two updates of the first one is what an update takes.
//
// The limits (actuate.Governor) are those of this process or of the cluster: the governor is told
// what an update costs, and says how long to pause. What is looked at is one shard's cycle, but
// processor time and bytes are the whole process's, because all shards of a process make each
// update at about the same time.
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

// pause is ps.ServerConfig.Pause. It returns when the pause is over or ctx has ended. Shards call
// it at once from goroutines of their own.
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
	p.limits.Pause(ctx) // the server sees by itself that ctx is done
	if looked {
		p.mu.Lock()
		p.at, p.cpu, p.sent = time.Now(), process.CPUTime(), p.bytes()
		p.mu.Unlock()
	}
}

// bytes are those sent so far. Only those to other hosts count: what stays on a host meets no limit
// of its link.
func (p *pacer) bytes() int64 {
	if p.moved == nil {
		return 0
	}
	sent, _ := p.moved()
	return sent
}
