package engine

import (
	"fmt"
	"testing"

	"star"
	"star/modes"
	"star/ps/replica"
)

// BenchmarkUpdate is an update of eight workers by two shards: all messages about it that the engine gets.
func BenchmarkUpdate(b *testing.B) {
	for name, plan := range map[string]modes.Plan{"ssgd": modes.SSGD(8), "asgd": modes.ASGD(8)} {
		b.Run(name, func(b *testing.B) {
			var e ShardEngine = NewShards(Config{Plan: plan, Workers: 8, Shards: 2, Batch: 4, Limit: 1 << 60})
			e.Begin(nil)
			sums := []replica.Sum{{Sum2: 1}}
			b.ReportAllocs()
			for step := int64(0); b.Loop(); step++ {
				for w := range star.Worker(8) {
					for shard := range 2 {
						e.Stored(shard, w, step, sums...)
					}
					e.Arrive(star.Record{Worker: w, Step: step, Samples: 4, Norm2: 2}, false)
				}
			}
		})
	}
}

// BenchmarkScale is what a gradient costs as the cluster grows, in updates of half the workers and of one.
func BenchmarkScale(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		for name, plan := range map[string]modes.Plan{"half": modes.XOrder(n, n/2), "asgd": modes.ASGD(n)} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				e := NewShards(Config{Plan: plan, Workers: n, Batch: 4, Limit: 1 << 60})
				e.Begin(nil)
				b.ReportAllocs()
				w := 0
				for b.Loop() {
					if _, _, err := e.Arrive(star.Record{Worker: star.Worker(w), Step: e.states[w].step, Samples: 4}, false); err != nil {
						b.Fatal(err)
					}
					w = (w + 1) % n
				}
			})
		}
	}
}
