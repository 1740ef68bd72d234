package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// python is an interpreter with numpy, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import numpy").Run() == nil {
			return name
		}
	}
	t.Skip("there is no python3 with numpy")
	return ""
}

// numpyWriter writes safetensors as the format's definition says, without our code.
const numpyWriter = `
import json, sys, numpy
def write(path, tensors):
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, a) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [len(data), len(data) + a.nbytes]}
        data += a.tobytes()
    h = json.dumps(head).encode()
    open(path, "wb").write(len(h).to_bytes(8, "little") + h + data)
w = (numpy.arange(12) - 5).reshape(3, 4) / 4  # exact in every type
bf = (w.astype("<f4").view("<u4") >> 16).astype("<u2")
b = numpy.array([numpy.inf, 6e-8, -65504]) # the second is a denormal number of F16
for t, a in {"F32": w.astype("<f4"), "F16": w.astype("<f2"), "F64": w.astype("<f8"), "BF16": bf}.items():
    write(sys.argv[1] + t, {"bn.num_batches_tracked": ("I64", numpy.array(7, "<i8")), "b": ("F16", b.astype("<f2")), "bn.mean": ("F64", numpy.array([0.1, 2], "<f8")),
        "w": (t, a)})
`

var imported = Manifest{
	Model: "two layers", ModelHash: "abc", Version: 1, Generation: 1, Optimizer: "adam",
	Layout:       []TensorSpec{{Name: "w", Shape: []int{3, 4}}, {Name: "b", Shape: []int{3}, Offset: 12}},
	BufferLayout: []TensorSpec{{Name: "bn.mean", Shape: []int{2}}},
}

// What numpy writes becomes a checkpoint, in every type that parameters come in, and goes back out the same.
func TestImport(t *testing.T) {
	py := python(t)
	dir := t.TempDir()
	if out, err := exec.Command(py, "-c", numpyWriter, dir+"/").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	types := []string{"F32", "F16", "F64", "BF16"}
	for _, dtype := range types {
		from, place := filepath.Join(dir, dtype), filepath.Join(dir, "place"+dtype)
		if _, odd, err := Import(from, place, imported, []string{"exp_avg", "exp_avg_sq"}); err != nil || odd != (NotFinite{1, "b"}) {
			t.Fatal(odd, err)
		}
		c, err := Open(place)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 15)
		if err := c.Params(got); err != nil {
			t.Fatal(err)
		}
		var want []float32
		for i := range 12 {
			want = append(want, float32(i-5)/4)
		}
		want = append(want, float32(math.Inf(1)), float32(math.Ldexp(1, -24)), -65504)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", dtype, got, want)
		}
		buffers := make([]float32, 2)
		if err := c.Buffers(buffers); err != nil || buffers[0] != 0.1 || buffers[1] != 2 {
			t.Errorf("%s: buffers %v, %v", dtype, buffers, err)
		}
		s, err := c.Shard(2, 5)
		if err != nil || len(s.Slots) != 2 || s.Slots[1].Name != "exp_avg_sq" || !slices.Equal(s.Slots[1].Data, make([]float32, 3)) || s.Steps != 0 {
			t.Errorf("%s: state of the optimiser %+v, %v", dtype, s, err)
		}
		if odd, err := c.Export(filepath.Join(dir, "out"+dtype)); err != nil || odd != (NotFinite{1, "b"}) {
			t.Fatal(odd, err)
		}
	}
	out, err := exec.Command(py, append([]string{"-c", `
import json, sys, numpy
for t in sys.argv[2:]:
    b = open(sys.argv[1] + t, "rb").read()
    n = int.from_bytes(b[:8], "little")
    h = json.loads(b[8:8+n])
    for name in ("w", "b", "bn.mean"):
        i, j = h[name]["data_offsets"]
        print(name, h[name]["shape"], numpy.frombuffer(b[8+n+i:8+n+j], "<f4").reshape(h[name]["shape"]).astype("f8").tolist())
`, dir + "/out"}, types...)...).CombinedOutput()
	const back = "w [3, 4] [[-1.25, -1.0, -0.75, -0.5], [-0.25, 0.0, 0.25, 0.5], [0.75, 1.0, 1.25, 1.5]]\n" +
		"b [3] [inf, 5.960464477539063e-08, -65504.0]\nbn.mean [2] [0.10000000149011612, 2.0]\n"
	if err != nil || string(out) != strings.Repeat(back, len(types)) {
		t.Errorf("numpy reads back %s, %v", out, err)
	}
}

func TestImportRefuses(t *testing.T) {
	tensors := func(change func(ts map[string]Tensor)) []byte {
		ts := map[string]Tensor{"w": {DType: "F32", Shape: []int64{3, 4}}, "b": {DType: "F32", Shape: []int64{3}}, "bn.mean": {DType: "F32", Shape: []int64{2}}}
		change(ts)
		var list []Tensor
		size := int64(0)
		for name, x := range ts {
			x.Name = name
			n := dtypeSize(x.DType)
			for _, k := range x.Shape {
				n *= k
			}
			size += n
			list = append(list, x)
		}
		text, err := appendHeader(nil, list, nil)
		if err != nil {
			t.Fatal(err)
		}
		return append(text, make([]byte, size)...)
	}
	for _, c := range []struct {
		name string
		file []byte
		kind error
		says string
	}{
		{"not there", nil, ErrMissing, "missing"},
		{"empty", []byte{}, ErrCorrupt, "0 bytes"},
		{"a tensor less", tensors(func(ts map[string]Tensor) { delete(ts, "b") }), ErrCorrupt, `a tensor "b" of shape [3]`},
		{"a tensor more", tensors(func(ts map[string]Tensor) { ts["c"] = Tensor{DType: "F32", Shape: []int64{1}} }), ErrCorrupt, `"c" as well`},
		{"transposed", tensors(func(ts map[string]Tensor) { ts["w"] = Tensor{DType: "F32", Shape: []int64{4, 3}} }), ErrCorrupt, "shape [3 4], found [4 3]"},
		{"flat", tensors(func(ts map[string]Tensor) { ts["w"] = Tensor{DType: "F32", Shape: []int64{12}} }), ErrCorrupt, "found [12]"},
		{"integers", tensors(func(ts map[string]Tensor) { ts["w"] = Tensor{DType: "I32", Shape: []int64{3, 4}} }), ErrCorrupt, "found I32"},
		{"no buffers", tensors(func(ts map[string]Tensor) { delete(ts, "bn.mean") }), ErrCorrupt, "bn.mean"},
	} {
		dir := t.TempDir()
		from := filepath.Join(dir, "in.safetensors")
		if c.file != nil {
			if err := os.WriteFile(from, c.file, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		place := filepath.Join(dir, Name(1, 1))
		_, _, err := Import(from, place, imported, nil)
		if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(fmt.Sprint(err), from) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.kind, c.says)
		}
		if _, err := os.Stat(place); err == nil {
			t.Errorf("%s: it has left a folder", c.name)
		}
	}
}

// FuzzImport: for any file, the result is an error that blames the file, or a checkpoint that verifies.
func FuzzImport(f *testing.F) {
	f.Add([]byte(nil))
	head, _ := appendHeader(nil, []Tensor{{Name: "w", DType: "F32", Shape: []int64{3, 4}}, {Name: "b", DType: "BF16", Shape: []int64{3}}, {Name: "bn.mean", DType: "F64", Shape: []int64{2}}}, nil)
	f.Add(append(head, make([]byte, 48+6+16)...))
	dir := f.TempDir()
	from, place := filepath.Join(dir, "in.safetensors"), filepath.Join(dir, Name(1, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		os.RemoveAll(place)
		if err := os.WriteFile(from, b, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Import(from, place, imported, []string{"momentum"}); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		if _, err := Open(place); err != nil {
			t.Fatal(err)
		}
	})
}

// What is not finite is counted, with the first tensor that has some, wherever parts of the vector are cut.
func TestNotFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	layout := []TensorSpec{{Name: "a", Shape: []int{2, 2}}, {Name: "b", Offset: 4}, {Name: "c", Shape: []int{3}, Offset: 5}, {Name: "d", Offset: 8, DType: "I32"}}
	for _, c := range []struct {
		v    []float32
		want NotFinite
	}{
		{[]float32{0, 1, 2, 3, 4, 5, 6, math.MaxFloat32}, NotFinite{}},
		{[]float32{0, 1, 2, 3, nan, 5, 6, inf}, NotFinite{2, "b"}},
		{[]float32{nan, nan, nan, nan, nan, nan, nan, nan}, NotFinite{8, "a"}},
		{[]float32{0, 1, 2, 3, 4, 5, 6, inf, nan}, NotFinite{1, "c"}},
	} {
		for size := 1; size <= len(c.v); size++ {
			var got NotFinite
			for at := 0; at < len(c.v); at += size {
				got.in(layout, int64(at), c.v[at:min(at+size, len(c.v))])
			}
			if got != c.want || (got.String() == "") != (c.want.Count == 0) {
				t.Errorf("%v in parts of %d: %+v, want %+v", c.v, size, got, c.want)
			}
		}
	}
}

// A pipe in the place of a file of a checkpoint, or of what is converted, is refused at once: to open it would wait for
// a writer.
func TestPipesAreRefused(t *testing.T) {
	mkfifo, err := exec.LookPath("mkfifo")
	if err != nil {
		t.Skip("needs mkfifo (Debian: coreutils)")
	}
	dir := t.TempDir()
	place := filepath.Join(dir, Name(1, 1))
	if err := os.Mkdir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(place, ManifestName), filepath.Join(dir, "in.safetensors")} {
		if out, err := exec.Command(mkfifo, path).CombinedOutput(); err != nil {
			t.Skipf("no pipes here: %v: %s", err, out)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, open := Open(place)
		_, describe := Describe(place)
		_, _, imported := Import(filepath.Join(dir, "in.safetensors"), filepath.Join(dir, Name(2, 1)), imported, nil)
		for what, err := range map[string]error{"open": open, "describe": describe, "import": imported} {
			if err == nil || !strings.Contains(err.Error(), errNotPlain.Error()) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if Complete(place) {
			t.Error("it counts as complete")
		}
		done <- nil
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it waits for a writer")
	}
}
