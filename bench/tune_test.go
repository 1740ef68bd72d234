package bench

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"star/allreduce"
)

// A model is measured by real processes, keeps what was known of others, and is good for the next
// measurement.
func TestTuneBench(t *testing.T) {
	old := allreduce.Sample{Ranks: 7, Transport: "tcp", Bytes: 4, Algorithm: allreduce.AlgorithmRing, Seconds: 1}
	got, err := Tune(t.Context(), TuneConfig{
		Command: []string{os.Args[0]}, Ranks: []int{2, 3}, Transports: []string{"tcp", "unix"}, Sizes: []int64{4, 1 << 20},
		Algorithms: []allreduce.Algorithm{allreduce.AlgorithmRing, allreduce.AlgorithmTree}, Segments: []int{128 << 10, 512 << 10},
		Congestion: []string{"reno"}, Buffers: []int{256 << 10, -1}, Rounds: 1, Base: &allreduce.Model{Samples: []allreduce.Sample{old}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Sockets) != 2 || got.Sockets[0].Slower > got.Sockets[1].Slower || got.Sockets[0].Slower < 1 || *got.Model.TCP != got.Sockets[0].TCPOptions {
		t.Errorf("sockets %+v, model %+v", got.Sockets, got.Model.TCP)
	}
	if want := 1 + 2*2*2*2; len(got.Model.Samples) != want || got.Model.Samples[0] != old {
		t.Errorf("%d samples, want %d: %+v", len(got.Model.Samples), want, got.Model.Samples)
	}
	if want := 1 + 2*2*2; len(got.Choices) != want {
		t.Errorf("%d choices, want %d: %+v", len(got.Choices), want, got.Choices)
	}
	path := filepath.Join(t.TempDir(), "m.json")
	if err := got.Model.Save(path); err != nil {
		t.Fatal(err)
	}
	m, err := allreduce.LoadModel(path)
	if err != nil || !reflect.DeepEqual(m, got.Model) {
		t.Fatalf("%v: %+v", err, m)
	}
	rows, err := AllReduce(t.Context(), AllReduceConfig{
		Command: []string{os.Args[0]}, Ranks: []int{2}, Sizes: []int64{4}, Transports: []string{"tcp"}, Rounds: 1, Rank: RankConfig{Model: m},
	})
	if err != nil || rows[0].Algorithm != got.Choices[0].Algorithm.String() {
		t.Errorf("%+v, %v, want the algorithm of %+v", rows, err, got.Choices[0])
	}
}

func TestTuneBenchFailures(t *testing.T) {
	for text, cfg := range map[string]TuneConfig{
		"no command":      {},
		"pigeon":          {Command: []string{os.Args[0]}, Ranks: []int{2}, Transports: []string{"tcp"}, Congestion: []string{"pigeon", "reno"}, Buffers: []int{-1}},
		"a segment of 12": {Command: []string{os.Args[0]}, Ranks: []int{2}, Transports: []string{"unix"}, Segments: []int{12}},
	} {
		if _, err := Tune(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}
