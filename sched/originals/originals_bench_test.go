package originals

import (
	"path/filepath"
	"testing"
)

// BenchmarkElasticFlow simulates ef-admission on figure 8a (195 jobs, 64 GPUs) and cluster01 (1,595 jobs, 512 GPUs).
func BenchmarkElasticFlow(b *testing.B) {
	dir := filepath.Join(reference(b), "elasticflow")
	for _, c := range []struct{ name, trace, cluster, gpu string }{
		{"fig8a", "elasticVpollux_e.csv", "n16g4", "T4"}, {"cluster01", "cluster01.csv.gz", "n64g8", "A100"},
	} {
		jobs, clusters := elasticTrace(b, dir, c.trace, c.cluster, c.gpu)
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Run(jobs, clusters, Options{Policy: "ef-admission", Slot: 60}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMuri simulates muri-s on the first 200 jobs of Muri's trace, on 64 GPUs.
func BenchmarkMuri(b *testing.B) {
	jobs, clusters := muriTrace(b, filepath.Join(reference(b), "muri"))
	for b.Loop() {
		if _, err := Run(jobs, clusters, Options{Policy: "muri-s"}); err != nil {
			b.Fatal(err)
		}
	}
}
