package ps

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// What the heap holds while a job runs, in vectors of the length of the parameters: a shard at most
// its optimiser's state, 2, and one for each pending gradient; a worker its parameters, its gradient, and with
// compression what was left out so far. Everything is in this process, so what
// is not the workers' is the shards'.
func TestFootprint(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's heap is not a shard's")
	}
	const n, workers, steps = 1 << 20, 3, 6
	const vector = 4 * n
	for _, c := range []struct {
		name, optimizer, codec string
		slots, shards, quorum  int
		worker                 int // vectors of one
		wire                   int // bytes of one message on its way, at either end, in 1/8 of a vector
	}{
		{name: "sgd", optimizer: optim.SGD, shards: 1, quorum: workers, worker: 2},
		{name: "sgd, asynchronous", optimizer: optim.SGD, shards: 2, quorum: 1, worker: 2},
		{name: "momentum", optimizer: optim.Momentum, slots: 1, shards: 2, quorum: workers, worker: 2},
		{name: "adam, asynchronous", optimizer: optim.Adam, slots: 2, shards: 1, quorum: 1, worker: 2},
		{name: "fp16", optimizer: optim.SGD, codec: "fp16", shards: 1, quorum: workers, worker: 3, wire: 4},
		{name: "int8", optimizer: optim.SGD, codec: "int8", shards: 1, quorum: workers, worker: 3, wire: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := settled()
			cfg := jobConfig{
				net: tcp(), addr: "127.0.0.1:0", params: n, shards: c.shards, workers: workers, quorum: c.quorum,
				server: ServerConfig{NewRule: func(s wire.ShardInfo) (rule.Rule, error) {
					cfg := optim.Config{Name: c.optimizer, LR: 0.01}
					if c.optimizer == optim.Momentum {
						cfg.Momentum = 0.9
					}
					o, err := optim.New(cfg, int(s.To-s.From))
					return &rule.Descent{Optimizer: o, Schedule: rule.Constant(0.01)}, err
				}},
			}
			if c.codec != "" {
				cfg.codec = func(int) string { return c.codec }
			}
			j := start(t, cfg)
			var most atomic.Int64
			j.all(n, steps, same(tcp()), func(w, step int, params, grad []float32) {
				for i := range grad {
					grad[i] = float32(i%7-3) * 1e-3
				}
			}, func(w int, version int64, params []float32) {
				for now := live() - base; ; {
					old := most.Load()
					if now <= old || most.CompareAndSwap(old, now) {
						break
					}
				}
			})
			if err := j.stop(); err != nil {
				t.Error(err)
			}
			const slack = vector / 4 // buffers of connections, goroutines
			allowed := int64(vector*(c.slots+2+workers+workers*c.worker) + 2*workers*c.wire*vector/8 + slack)
			if got := most.Load(); got > allowed {
				t.Errorf("the heap holds %.2f vectors, at most %.2f are allowed: %d workers of %d, and a shard of %d + 2 + %d",
					float64(got)/vector, float64(allowed)/vector, workers, c.worker, c.slots, workers)
			} else if got < vector*int64(c.slots+1+workers*2) {
				t.Errorf("the heap holds %.2f vectors, which is less than there must be: this measures nothing", float64(got)/vector)
			} else {
				t.Logf("%.2f of %.2f vectors", float64(got)/vector, float64(allowed)/vector)
			}
		})
	}
}

// settled is live once nothing more is given up: what the job before this one pooled outlives
// one collection, and its last goroutines outlive its end.
func settled() int64 {
	now := live()
	for same := 0; same < 3; {
		time.Sleep(5 * time.Millisecond)
		before := now
		if now = live(); now > before-16<<10 {
			same++
		} else {
			same = 0
		}
	}
	return now
}

// live is the bytes of the heap that are in use.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
