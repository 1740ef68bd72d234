package allreduce

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
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
		{4, 1000, AlgorithmTree, 1e-3}, {4, 100_000, AlgorithmTree, 1e-1}, {4, 1000, AlgorithmRing, 2e-3}, {4, 100_000, AlgorithmRing, 2e-2},
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
	if got := m.Seconds(AlgorithmTree, 5, 4); got < 1 {
		t.Errorf("5 ranks were not measured, but cost %v", got)
	}
}

func TestTune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := Sample{9, 4, AlgorithmRing, 1}
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

func TestModelFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.json")
	m := &Model{Alpha: 1e-6, Beta: 2e-9, Samples: []Sample{{2, 4, AlgorithmDoubleTree, 3e-6}}}
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := LoadModel(path)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%+v, %v, want %+v", got, err, m)
	}
	for text, want := range map[string]string{
		"{": "unexpected end", `{"alpha_s":-1}`: "alpha -1", `{"samples":[{"ranks":2,"bytes":4,"algorithm":"magic","median_s":1}]}`: `"magic"`,
		`{"samples":[{"ranks":2,"bytes":4,"algorithm":"ring"}]}`: "sample 0",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadModel(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "model.json") {
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
