package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// pieces is what the encoders of a worker of j remember.
func (j job) pieces(worker int) []Piece {
	if j.n < 4 {
		return nil
	}
	half := int64(j.n / 2)
	return []Piece{
		{From: 0, To: half, Warm: j.vector(int64(20 + worker))[:2]},
		{From: half, To: int64(j.n), Drawn: uint64(math.MaxUint64) - uint64(worker)},
	}
}

// residuals writes what workers 0 and 2 of j have left out.
func (j job) residuals(st store, dir string) (files []ResidualFile, err error) {
	for _, w := range []int{0, 2} {
		v := j.vector(int64(10 + w))
		f, err := writeResidual(st, dir, int64(j.n), Residual{Worker: w, Version: j.version, ModelHash: "abc", Codec: "topk=0.01", Pieces: j.pieces(w)}, func(dst []float32) {
			v = v[copy(dst, v):]
		})
		if err != nil {
			return nil, err
		}
		f.Weight = 1 / float64(3+w)
		files = append(files, f)
	}
	return files, nil
}

func (j job) sameResiduals(r *Residuals) error {
	if n := len(r.Files()); n != 2 {
		return fmt.Errorf("%d residuals", n)
	}
	for _, f := range r.Files() {
		want := j.vector(int64(10 + f.Worker))
		got := make([]float32, j.n)
		if err := r.Range(f.Worker, 0, got); err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("residual of worker %d differs: %v", f.Worker, err)
		}
		part := got[:max(0, j.n-j.n/3-1)]
		if err := r.Range(f.Worker, int64(j.n/3), part); err != nil || !slices.Equal(part, want[j.n/3:][:len(part)]) {
			return fmt.Errorf("a part of the residual of worker %d differs: %v", f.Worker, err)
		}
		if f.Codec != "topk=0.01" || f.Version != j.version || f.Weight != 1/float64(3+f.Worker) {
			return fmt.Errorf("residual %+v", f)
		}
		ps, err := r.Pieces(f.Worker)
		if err != nil || !reflect.DeepEqual(ps, j.pieces(f.Worker)) {
			return fmt.Errorf("pieces %v, %v", ps, err)
		}
	}
	return nil
}

// Residuals are read without what else is in the checkpoint: its shards may be damaged.
func TestResidualsAlone(t *testing.T) {
	j := job{n: 1000, version: 7}
	dir := filepath.Join(t.TempDir(), Name(7, 1))
	if err := j.save(local{quick{}}, dir, 300); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, ShardName(0)), 100); err != nil {
		t.Fatal(err)
	}
	r, err := OpenResiduals(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.sameResiduals(r); err != nil {
		t.Error(err)
	}
	if _, err := r.Pieces(1); err == nil || !strings.Contains(err.Error(), "no residual of worker 1") {
		t.Errorf("a worker that has none: %v", err)
	}
	if err := r.Range(0, 999, make([]float32, 2)); err == nil {
		t.Error("elements beyond the end were read")
	}
}

// A damaged residual is found when it is opened, and by the process that completes the checkpoint.
func TestResidualsAreChecked(t *testing.T) {
	j := job{n: 1000, version: 7}
	root := t.TempDir()
	dir := filepath.Join(root, Name(7, 1))
	files, err := j.residuals(local{quick{}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := files[0].There(dir); err != nil {
		t.Error(err)
	}
	if err := files[0].There(filepath.Join(root, "elsewhere")); !errors.Is(err, ErrMissing) {
		t.Errorf("in another folder: %v", err)
	}
	longer := files[0]
	longer.Size++
	if err := longer.There(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("of another size: %v", err)
	}
	f, err := writeShard(local{quick{}}, dir, 0, j.shard(0, j.n))
	if err != nil {
		t.Fatal(err)
	}
	good := Manifest{Params: int64(j.n), Version: 7, Generation: 1, Optimizer: "adam", Steps: 12, Shards: []ShardFile{f}, Residuals: files}
	for _, c := range []struct {
		why    string
		change func(fs []ResidualFile) []ResidualFile
	}{
		{"order of rank", func(fs []ResidualFile) []ResidualFile { return []ResidualFile{fs[1], fs[0]} }},
		{"listed twice", func(fs []ResidualFile) []ResidualFile { fs[1].Name = fs[0].Name; return fs }},
		{"weight 0", func(fs []ResidualFile) []ResidualFile { fs[0].Weight = 0; return fs }},
		{"weight NaN", func(fs []ResidualFile) []ResidualFile { fs[0].Weight = math.NaN(); return fs }},
		{"weight +Inf", func(fs []ResidualFile) []ResidualFile { fs[0].Weight = math.Inf(1); return fs }},
		{"of version 6", func(fs []ResidualFile) []ResidualFile { fs[1].Version = 6; return fs }},
		{"not the name of a file", func(fs []ResidualFile) []ResidualFile { fs[1].Name = "../x"; return fs }},
	} {
		m := good
		m.Residuals = c.change(slices.Clone(files))
		if err := writeManifest(local{quick{}}, dir, m); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.why, err)
		}
	}
	if err := writeManifest(local{quick{}}, dir, good); err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(good.Residuals); err != nil || !strings.Contains(string(text), `"name":"residual-00002.safetensors"`) {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	path := filepath.Join(dir, ResidualName(2))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := Open(dir); !errors.As(err, &e) || e.Kind != ErrCorrupt || e.Path != path {
		t.Errorf("one bit is another: %v", err)
	}
}

// A file with other tensors, or of another length, is no residual of this model.
func TestResidualOfAnotherModel(t *testing.T) {
	j := job{n: 1000, version: 7}
	dir := filepath.Join(t.TempDir(), Name(7, 1))
	other := job{n: 900, version: 7}
	files, err := other.residuals(local{quick{}}, dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := writeShard(local{quick{}}, dir, 0, j.shard(0, j.n))
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest{Params: int64(j.n), Version: 7, Generation: 1, Optimizer: "adam", Steps: 12, Shards: []ShardFile{f}, Residuals: files[:1]}
	if err := writeManifest(local{quick{}}, dir, m); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `tensor "residual" of 1000 F32`) {
		t.Errorf("%v", err)
	}
}
