package checkpoint

import (
	"path/filepath"
	"strconv"
	"testing"
)

// One shard with Adam's state, 12 MB, with its checksum, to a disk that is not waited for, and to the real one.
func BenchmarkWriteShard(b *testing.B) {
	const n = 1 << 20
	s := Shard{To: n, Params: make([]float32, n), Slots: []Slot{{"exp_avg", make([]float32, n)}, {"exp_avg_sq", make([]float32, n)}}}
	for name, st := range map[string]store{"quick": local{quick{}}, "flushed": local{osDisk{}}} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			b.SetBytes(12 * n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if i++; i%8 == 0 {
					b.StopTimer()
					Keep(root, 1, Manifest{Job: "job", Generation: 1})
					b.StartTimer()
				}
				if _, err := writeShard(st, filepath.Join(root, strconv.Itoa(i%4)), 0, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	const n = 1 << 20
	dir := b.TempDir()
	f, err := WriteShard(dir, 0, Shard{To: n, Params: make([]float32, n), Slots: []Slot{{"exp_avg", make([]float32, n)}, {"exp_avg_sq", make([]float32, n)}}})
	if err == nil {
		err = WriteManifest(dir, Manifest{Params: n, Shards: []ShardFile{f}})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(12 * n)
	for b.Loop() {
		if _, err := Open(dir); err != nil {
			b.Fatal(err)
		}
	}
}
