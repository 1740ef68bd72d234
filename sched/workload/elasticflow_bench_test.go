package workload

import (
	"path/filepath"
	"testing"

	"star/sched"
)

// BenchmarkElasticFlow is a simulation of ef-admission: figure 8a of ElasticFlow (195 jobs, 64 GPUs, slots of 60 s) and
// its cluster01 (1,595 jobs, 512 GPUs).
func BenchmarkElasticFlow(b *testing.B) {
	dir := filepath.Join(reference(b), "elasticflow")
	for _, c := range []struct{ name, trace, cluster, gpu string }{{"fig8a", "elasticVpollux_e.csv", "n16g4", "T4"}, {"cluster01", "cluster01.csv.gz", "n64g8", "A100"}} {
		jobs, cluster := elasticFlow(b, dir, c.trace, c.cluster, c.gpu)
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := sched.Run(jobs, map[string]sched.Cluster{"": cluster}, sched.Options{Policy: "ef-admission", Slot: 60}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
