package engine

import (
	"testing"

	"star"
	"star/modes"
	"star/replica"
)

// BenchmarkUpdate is an update of eight workers by two shards, all that the engine is told of it.
func BenchmarkUpdate(b *testing.B) {
	for name, plan := range map[string]modes.Plan{"ssgd": modes.SSGD(8), "asgd": modes.ASGD(8)} {
		b.Run(name, func(b *testing.B) {
			var e Engine = New(Config{Plan: plan, Workers: 8, Shards: 2, Batch: 4, Limit: 1 << 60})
			e.Begin()
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
