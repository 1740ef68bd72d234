package bench

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"star/runlog"
	"star/train/checkpoint"
)

// Updates every 10 ms, and every 12.5 ms for a second behind the beginning of each checkpoint: it costs a fifth of that
// second.
func TestCostOfCheckpoints(t *testing.T) {
	dir := t.TempDir()
	place := filepath.Join(dir, "checkpoints", checkpoint.Name(1, 1))
	f, err := checkpoint.WriteShard(place, 0, checkpoint.Shard{To: 2, Version: 1, Params: []float32{1, 2}})
	if err == nil {
		err = checkpoint.WriteManifest(place, checkpoint.Manifest{Params: 2, Version: 1, Generation: 1, Shards: []checkpoint.ShardFile{f}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var fires []float64
	var saves []runlog.Line
	at := 0.0
	for pair := range 6 {
		saves = append(saves, runlog.Line{T: time.Duration((float64(2*pair) + 0.3) * float64(time.Second)), Entry: runlog.Checkpoint{Took: 0.3}})
		for ; at < float64(2*pair+1); at += 0.0125 {
			fires = append(fires, at)
		}
		for ; at < float64(2*pair+2); at += 0.01 {
			fires = append(fires, at)
		}
	}
	r, err := costOf(dir, "ps", time.Second, saves, fires)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(r.Slowdown-0.2) > 0.01 || math.Abs(r.Extra-0.2) > 0.01 || r.Pairs != 4 || r.Params != 2 || r.Bytes != f.Size || math.Abs(r.Took-0.3) > 1e-9 {
		t.Errorf("%+v, want a slowdown of 0.2", r)
	}
	if _, err := costOf(dir, "ps", time.Millisecond, saves, fires); err == nil {
		t.Error("windows without updates have a rate")
	}
}
