package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeTensors writes a safetensors file of F32.
func writeTensors(t *testing.T, tensors map[string][]float32, shapes map[string][]int) string {
	t.Helper()
	head, data := map[string]any{}, []byte(nil)
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		begin := len(data)
		for _, x := range tensors[name] {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
		shape := shapes[name]
		if shape == nil {
			shape = []int{len(tensors[name])}
		}
		head[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{begin, len(data)}}
	}
	h, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...), data...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The state of an optimiser is imported with its steps.
func TestImportState(t *testing.T) {
	m := Manifest{Model: "one layer", ModelHash: "abc", Version: 1, Generation: 1, Optimizer: "adam", Layout: []TensorSpec{{Name: "w", Shape: []int{2}}, {Name: "b", Shape: []int{1}, Offset: 2}}}
	slots := []string{"exp_avg", "exp_avg_sq"}
	whole := map[string][]float32{"w": {1, 2}, "b": {3}, "optim.state.w.exp_avg": {4, 5}, "optim.state.b.exp_avg": {6}, "optim.state.w.exp_avg_sq": {7, 8}, "optim.state.b.exp_avg_sq": {9}, "optim.state.w.step": {70}, "optim.state.b.step": {70}}
	scalar := map[string][]int{"optim.state.w.step": {}, "optim.state.b.step": {}}
	dir := filepath.Join(t.TempDir(), "ckpt")
	if _, odd, err := Import(writeTensors(t, whole, scalar), dir, m, slots); err != nil || odd.Count > 0 {
		t.Fatal(odd, err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Shard(0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if s.Steps != 70 || !slices.Equal(s.Params, []float32{1, 2, 3}) || !slices.Equal(s.Slots[0].Data, []float32{4, 5, 6}) || !slices.Equal(s.Slots[1].Data, []float32{7, 8, 9}) {
		t.Errorf("%+v", s)
	}
	for name, c := range map[string]struct {
		change func(map[string][]float32)
		says   string
	}{
		"a parameter without state":  {func(x map[string][]float32) { delete(x, "optim.state.b.exp_avg") }, `"optim.state.b.exp_avg" of shape [1]`},
		"another shape":              {func(x map[string][]float32) { x["optim.state.w.exp_avg"] = []float32{1} }, `"w" with shape [2]`},
		"another optimiser":          {func(x map[string][]float32) { x["optim.state.w.momentum_buffer"] = []float32{1, 2} }, "exp_avg, exp_avg_sq"},
		"different numbers of steps": {func(x map[string][]float32) { x["optim.state.b.step"] = []float32{71} }, "one number of steps"},
		"a fraction of a step":       {func(x map[string][]float32) { x["optim.state.b.step"] = []float32{0.5} }, "one number of steps"},
		"state of no parameter":      {func(x map[string][]float32) { x["optim.state.c.exp_avg"] = []float32{1} }, `"optim.state.c.exp_avg" as well`},
	} {
		changed := maps.Clone(whole)
		c.change(changed)
		says := strings.Replace(c.says, `"w" with`, `"optim.state.w.exp_avg" with`, 1)
		if _, _, err := Import(writeTensors(t, changed, scalar), filepath.Join(t.TempDir(), "ckpt"), m, slots); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", name, err, says)
		}
	}
}
