package allreduce

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What the theory says: doubling has the fewest messages, ring and halving the
// fewest bytes, and the folding of other numbers than powers of two is dear for
// long vectors.
func TestChoose(t *testing.T) {
	m := &Model{Alpha: 10e-6, Beta: 1e-9, Gamma: 1e-10}
	for _, c := range []struct {
		ranks int
		bytes int64
		want  Algorithm
	}{
		{2, 4, AlgorithmDoubling},
		{2, 100e6, AlgorithmHalving},
		{8, 4, AlgorithmDoubling},
		{8, 100e6, AlgorithmHalving},
		{7, 100e6, AlgorithmRing},
		{33, 100e6, AlgorithmRing},
		{1000, 1 << 20, AlgorithmHalving},
	} {
		if got := m.Choose(c.ranks, c.bytes); got != c.want {
			t.Errorf("%d ranks, %d bytes: %v, want %v", c.ranks, c.bytes, got, c.want)
		}
	}
}

// The prices of messages agree with counting them in the schedules.
func TestPricesCountMessages(t *testing.T) {
	m := &Model{Alpha: 1}
	for n := 2; n <= maxRanks; n++ {
		for a, s := range map[Algorithm]Schedule{
			AlgorithmRing: Ring(n, 0), AlgorithmDoubling: RecursiveDoubling(n, 0), AlgorithmHalving: HalvingDoubling(n, 0), AlgorithmTree: BinomialTree(n, 0),
		} {
			if got := m.Seconds(a, n, 4); got != float64(s.Steps) {
				t.Errorf("%v of %d: %v messages, want %d", a, n, got, s.Steps)
			}
		}
	}
}

func TestSamplesBeatTheory(t *testing.T) {
	m := &Model{Alpha: 1, Beta: 1, Samples: []Sample{
		{Ranks: 4, Bytes: 1000, Algorithm: AlgorithmTree, Seconds: 1e-3}, {Ranks: 4, Bytes: 100_000, Algorithm: AlgorithmTree, Seconds: 1e-1},
		{Ranks: 4, Bytes: 1000, Algorithm: AlgorithmRing, Seconds: 2e-3}, {Ranks: 4, Bytes: 100_000, Algorithm: AlgorithmRing, Seconds: 2e-2},
	}}
	for _, c := range []struct {
		size int64
		want float64
	}{{4, 1e-3}, {1000, 1e-3}, {10_000, 1e-2}, {100_000, 1e-1}, {200_000, 2e-1}} {
		if got := m.Seconds(AlgorithmTree, 4, c.size); math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("%d bytes: %v s, want %v", c.size, got, c.want)
		}
	}
	if a := m.Choose(4, 1000); a != AlgorithmTree {
		t.Errorf("1000 bytes: %v", a)
	}
	if a := m.Choose(4, 100_000); a != AlgorithmRing {
		t.Errorf("100 kB: %v", a)
	}
	if a := (&Model{Samples: m.Samples[:2]}).Choose(4, 1000); a != AlgorithmTree { // the others would be free of charge
		t.Errorf("with one algorithm measured: %v", a)
	}
	if got := m.Seconds(AlgorithmTree, 5, 4); got < 1 {
		t.Errorf("5 ranks were not measured, but cost %v", got)
	}
}

func TestTune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := Sample{Ranks: 9, Bytes: 4, Algorithm: AlgorithmRing, Seconds: 1}
		groups := piped(3, Config{Model: &Model{Samples: []Sample{other}}})
		defer closeAll(groups)
		models := make([]*Model, 3)
		errs := together(groups, func(g *Group) (err error) {
			models[g.Rank()], err = Tune(t.Context(), g, TuneConfig{Sizes: []int64{4, 4096}, Runs: 2})
			if err == nil {
				err = g.AllReduce(t.Context(), Sum, make([]float32, 7))
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(models[0], models[1]) || !reflect.DeepEqual(models[0], models[2]) {
			t.Errorf("models differ: %+v", models)
		}
		if got := len(models[0].Samples); got != 1+2*len(allReduceAlgorithms) || models[0].Samples[0] != other {
			t.Errorf("%d samples: %+v", got, models[0].Samples)
		}
	})
}

// What the processor was away for while bytes were added up is no part of the price.
func TestAddingForgetsPauses(t *testing.T) {
	for _, paused := range []int{0, 1, 8} { // of 17 runs
		now, calls := time.Unix(0, 0), 0
		got := adding(func() time.Time {
			if now = now.Add(time.Microsecond); calls%2 == 1 && calls/2 < paused {
				now = now.Add(time.Second)
			}
			calls++
			return now
		})
		if want := 1e-6 / (1 << 20); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%d pauses: %v s for a byte, want %v", paused, got, want)
		}
	}
}

// A group that has been tuned over one kind of links asks only what was measured there, and
// cuts vectors as was best.
func TestTunedGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sample := func(kind string, size int64, a Algorithm, segment int, s float64) Sample {
			return Sample{Ranks: 2, Transport: kind, Bytes: size, Algorithm: a, Segment: segment, Seconds: s}
		}
		m := &Model{Alpha: 1e-6, Samples: []Sample{
			sample("tcp", 1000, AlgorithmTree, 0, 1), sample("tcp", 1000, AlgorithmRing, 0, 2), sample("tcp", 1<<20, AlgorithmTree, 64<<10, 2), sample("tcp", 1<<20, AlgorithmRing, 128<<10, 1),
			sample("shm", 1000, AlgorithmTree, 0, 2), sample("shm", 1000, AlgorithmRing, 0, 1),
		}}
		for _, a := range []Algorithm{AlgorithmDoubling, AlgorithmHalving, AlgorithmDoubleTree} {
			for _, kind := range []string{"tcp", "shm"} {
				m.Samples = append(m.Samples, sample(kind, 1000, a, 0, 100))
			}
		}
		for _, c := range []struct {
			cfg     Config
			bytes   int
			want    Algorithm
			segment int
		}{
			{Config{Transport: "tcp"}, 1000, AlgorithmTree, socketSegment},
			{Config{Transport: "shm"}, 1000, AlgorithmRing, socketSegment}, // pipes are no shared memory
			{Config{Transport: "tcp"}, 4 << 20, AlgorithmRing, 128 << 10},
			{Config{Transport: "tcp", Algorithm: AlgorithmTree}, 1 << 20, AlgorithmTree, 64 << 10},
			{Config{Transport: "tcp", Segment: 4096}, 1 << 20, AlgorithmRing, 4096},
		} {
			c.cfg.Model = m
			groups := piped(2, c.cfg)
			errs := together(groups, func(g *Group) error { return g.AllReduce(t.Context(), Sum, make([]float32, c.bytes/4)) })
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if got := groups[0].Algorithm(int64(c.bytes)); got != c.want || groups[0].peers[1].segment != c.segment {
				t.Errorf("%+v, %d bytes: %v in segments of %d, want %v, %d", c.cfg.Transport, c.bytes, got, groups[0].peers[1].segment, c.want, c.segment)
			}
			closeAll(groups)
		}
	})
}

// Tune keeps the best segment, restores what was forced, and refuses what makes no sense.
func TestTuneSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(2, Config{Algorithm: AlgorithmTree})
		defer closeAll(groups)
		errs := together(groups, func(g *Group) error {
			m, err := Tune(t.Context(), g, TuneConfig{Sizes: []int64{64, 4096}, Segments: []int{128, 1024}, Algorithms: []Algorithm{AlgorithmRing, AlgorithmHalving}, Runs: 1})
			if err != nil {
				return err
			}
			for _, s := range m.Samples {
				if s.Bytes == 64 && s.Segment != 0 || s.Bytes == 4096 && s.Segment != 128 && s.Segment != 1024 {
					t.Errorf("%+v", s)
				}
			}
			if len(m.Samples) != 4 {
				t.Errorf("%d samples", len(m.Samples))
			}
			if a := g.Algorithm(4096); a != AlgorithmTree {
				t.Errorf("after Tune: %v", a)
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, c := range []TuneConfig{{Segments: []int{12}}, {Sizes: []int64{6}}} {
			if _, err := Tune(t.Context(), groups[0], c); err == nil {
				t.Errorf("%+v: accepted", c)
			}
		}
	})
}

func TestModelFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.json")
	m := &Model{Alpha: 1e-6, Beta: 2e-9, TCP: &TCPOptions{Congestion: "reno", SendBuffer: 1 << 20}, Samples: []Sample{
		{Ranks: 2, Bytes: 4, Algorithm: AlgorithmDoubleTree, Seconds: 3e-6}, {Ranks: 2, Transport: "tcp", Bytes: 8, Algorithm: AlgorithmRing, Segment: 4096, Seconds: 1},
	}}
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := LoadModel(path)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%+v, %v, want %+v", got, err, m)
	}
	if _, err := LoadModel(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	good := `{"format":"` + modelFormat + `",`
	for text, want := range map[string]string{
		"": "unexpected end", "{": "unexpected end", "[]": "cannot unmarshal", "{}": `format is ""`, `{"format":"x 2"}`: `format is "x 2"`,
		good + `"alpha_s":-1}`: "alpha -1", good + `"samples":[{"ranks":2,"bytes":4,"algorithm":"magic","median_s":1}]}`: `"magic"`,
		good + `"samples":[{"ranks":2,"bytes":4,"algorithm":"ring"}]}`: "sample 0", good + `"colour":1}`: "colour", good + `"alpha_s":1} 2`: "trailing data",
		good + `"samples":[{"ranks":2,"bytes":4,"algorithm":"ring","median_s":1,"segment_B":12}]}`: "segments of 12",
		good + `"tcp":{"send_buffer_B":1000000000000}}`:                                            "buffers of 1000000000000", good + `"tcp":{"congestion":"longer than any name"}}`: "15 characters",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadModel(path); !errors.Is(err, ErrModel) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "model.json") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestAlgorithmText(t *testing.T) {
	for a := AlgorithmAuto; a <= AlgorithmDoubleTree; a++ {
		text, err := json.Marshal(a)
		var back Algorithm
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back != a {
			t.Errorf("%v is %s and back %v, %v", a, text, back, err)
		}
	}
	var a Algorithm
	if err := a.UnmarshalText([]byte("line")); err == nil {
		t.Error("line is no algorithm of AllReduce")
	}
}
