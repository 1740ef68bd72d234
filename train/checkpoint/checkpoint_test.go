package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// quick is the disk without waiting for it: most tests are not about power cuts.
type quick struct{ osDisk }

type quickFile struct{ file }

func (quick) SyncDir(string) error { return nil }

func (quick) Create(path string) (file, error) {
	f, err := osDisk{}.Create(path)
	return quickFile{f}, err
}

func (quickFile) Sync() error { return nil }

// job is a toy of a training job: a flat vector, two slots and buffers, all
// different at every version.
type job struct {
	n       int
	version int64
	life    int64 // 0: 1
	began   int64 // Manifest.FirstAttempt
	name    string
}

func (j job) vector(kind int64) []float32 {
	v := make([]float32, j.n)
	for i := range v {
		v[i] = float32(math.Sin(float64(j.version*1000+kind*100) + float64(i)))
	}
	return v
}

func (j job) buffers() []float32 { return []float32{float32(j.version), 2, 3} }

func (j job) layout() []TensorSpec {
	a := j.n / 3
	return []TensorSpec{
		{Name: "fc.weight", Shape: []int{a, 1}, Offset: 0},
		{Name: "fc.bias", Shape: []int{j.n - a}, Offset: a},
	}
}

func (j job) shard(from, to int) Shard {
	return Shard{
		From: int64(from), To: int64(to), Version: j.version, ModelHash: "abc", Optimizer: "adam", Steps: j.version + 5,
		Params: j.vector(0)[from:to],
		Slots:  []Slot{{"exp_avg", j.vector(1)[from:to]}, {"exp_avg_sq", j.vector(2)[from:to]}},
	}
}

// save writes a checkpoint cut at the given places, shards out of order.
func (j job) save(st store, dir string, cuts ...int) error {
	cuts = append(append([]int{0}, cuts...), j.n)
	files := make([]ShardFile, len(cuts)-1)
	for i := len(files) - 1; i >= 0; i-- {
		f, err := writeShard(st, dir, i, j.shard(cuts[i], cuts[i+1]))
		if err != nil {
			return err
		}
		files[i] = f
	}
	b, err := writeBuffers(st, dir, j.buffers())
	if err != nil {
		return err
	}
	more, err := writeFile(st, dir, "predictor.jsonl", func(w io.Writer) error { _, err := fmt.Fprintf(w, "version %d\n", j.version); return err })
	if err != nil {
		return err
	}
	residuals, err := j.residuals(st, dir)
	if err != nil {
		return err
	}
	return writeManifest(st, dir, Manifest{
		Job: cmp.Or(j.name, "job"), Model: "fc", ModelHash: "abc", Created: "2026-01-02T03:04:05Z", Residuals: residuals,
		Params: int64(j.n), Layout: j.layout(), BufferLayout: []TensorSpec{{Name: "bn.mean", Shape: []int{3}}},
		Version: j.version, Samples: 10 * j.version, Cursor: 11 * j.version, Generation: cmp.Or(j.life, 1), FirstAttempt: j.began,
		Optimizer: "adam", Steps: j.version + 5, Config: json.RawMessage(`{"lr": 0.1}`),
		Shards: files, Buffers: &b, More: []File{more},
	})
}

// same says whether c holds what j saved.
func (j job) same(c *Checkpoint) error {
	m := c.Manifest()
	if m.Version != j.version || m.Samples != 10*j.version || m.Cursor != 11*j.version || m.Steps != j.version+5 || m.Optimizer != "adam" {
		return fmt.Errorf("manifest %+v", m)
	}
	got := make([]float32, j.n)
	if err := c.Params(got); err != nil {
		return err
	}
	if !slices.Equal(got, j.vector(0)) {
		return fmt.Errorf("parameters of version %d differ", j.version)
	}
	for i, name := range []string{"exp_avg", "exp_avg_sq"} {
		if err := c.SlotRange(name, 0, int64(j.n), got); err != nil {
			return err
		}
		if !slices.Equal(got, j.vector(int64(i)+1)) {
			return fmt.Errorf("slot %s of version %d differs", name, j.version)
		}
	}
	b := make([]float32, c.BufferLen())
	if err := c.Buffers(b); err != nil || !slices.Equal(b, j.buffers()) {
		return fmt.Errorf("buffers %v, %v", b, err)
	}
	if text, err := c.More("predictor.jsonl"); err != nil || string(text) != fmt.Sprintf("version %d\n", j.version) {
		return fmt.Errorf("predictor.jsonl is %q, %v", text, err)
	}
	if text, err := c.More("nothing"); text != nil || err != nil {
		return fmt.Errorf("a file that is not there is %q, %v", text, err)
	}
	return j.sameResiduals(c.Residuals())
}

func TestSaveAndOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", Name(7, 1))
	j := job{n: 100000, version: 7} // several chunks
	if err := j.save(local{osDisk{}}, dir, 30000, 30001, 90000); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.same(c); err != nil {
		t.Error(err)
	}
	m := c.Manifest()
	if m.Job != "job" || m.Model != "fc" || len(m.Shards) != 4 || m.Created == "" || c.Dir() != dir {
		t.Errorf("manifest %+v", m)
	}
	var config struct{ LR float64 }
	if err := json.Unmarshal(m.Config, &config); err != nil || config.LR != 0.1 {
		t.Errorf("config %s: %v", m.Config, err)
	}
	if !slices.Equal(c.Slots(), []string{"exp_avg", "exp_avg_sq"}) {
		t.Errorf("slots %q", c.Slots())
	}
	// Nothing is left over.
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 9 {
		t.Errorf("%d files, want 4 shards, buffers, predictor, two residuals and manifest: %v", len(names), err)
	}
}

// A job resumes on any number of shards: every range comes back whole.
func TestRangesAcrossShards(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			r.Fatal(err)
		}
		j := job{n: rapid.IntRange(1, 60).Draw(r, "n"), version: 3}
		cuts := rapid.SliceOfN(rapid.IntRange(0, j.n), 0, 6).Draw(r, "cuts")
		slices.Sort(cuts)
		if err := j.save(local{quick{}}, dir, cuts...); err != nil {
			r.Fatal(err)
		}
		c, err := Open(dir)
		if err != nil {
			r.Fatal(err)
		}
		from := rapid.IntRange(0, j.n).Draw(r, "from")
		to := rapid.IntRange(from, j.n).Draw(r, "to")
		got, err := c.Shard(int64(from), int64(to))
		if err != nil {
			r.Fatal(err)
		}
		want := j.shard(from, to)
		if !slices.Equal(got.Params, want.Params) || len(got.Slots) != 2 || got.Version != want.Version ||
			got.Optimizer != want.Optimizer || got.Steps != want.Steps || got.ModelHash != want.ModelHash {
			r.Fatalf("cut at %v, range %d..%d: %+v, want %+v", cuts, from, to, got, want)
		}
		for i := range want.Slots {
			if got.Slots[i].Name != want.Slots[i].Name || !slices.Equal(got.Slots[i].Data, want.Slots[i].Data) {
				r.Fatalf("cut at %v, range %d..%d: slot %+v, want %+v", cuts, from, to, got.Slots[i], want.Slots[i])
			}
		}
	})
}

func TestRangeRefuses(t *testing.T) {
	dir := t.TempDir()
	j := job{n: 10, version: 1}
	if err := j.save(local{quick{}}, dir, 5); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ from, to, n int }{{-1, 5, 6}, {0, 11, 11}, {5, 4, 0}, {0, 5, 4}, {0, 5, 6}} {
		if err := c.Range(int64(r.from), int64(r.to), make([]float32, r.n)); err == nil {
			t.Errorf("range %d..%d into %d: no error", r.from, r.to, r.n)
		}
	}
	if err := c.SlotRange("params", 0, 10, make([]float32, 10)); err == nil {
		t.Error("params as a slot: no error")
	}
	if err := c.SlotRange("velocity", 0, 10, make([]float32, 10)); err == nil || !strings.Contains(err.Error(), "exp_avg") {
		t.Errorf("unknown slot: %v, want the names of those there are", err)
	}
	if _, err := c.Shard(3, 1<<62); err == nil {
		t.Error("a huge shard: no error")
	}
	if err := c.Buffers(nil); err == nil {
		t.Error("buffers into nothing: no error")
	}
}

// A complete checkpoint is not written over.
func TestCompleteIsRefused(t *testing.T) {
	dir := t.TempDir()
	j := job{n: 10, version: 1}
	if err := j.save(local{quick{}}, dir); err != nil {
		t.Fatal(err)
	}
	if err := (job{n: 10, version: 2}).save(local{quick{}}, dir); !errors.Is(err, os.ErrExist) {
		t.Errorf("second save: %v, want ErrExist", err)
	}
	if _, err := WriteBuffers(dir, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("buffers: %v", err)
	}
	if err := WriteManifest(dir, Manifest{Shards: []ShardFile{{}}}); err == nil {
		t.Error("manifest: no error")
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.same(c); err != nil {
		t.Error(err)
	}
	if err := WriteManifest(dir, c.Manifest()); !errors.Is(err, os.ErrExist) {
		t.Errorf("a manifest that is right in itself: %v, want ErrExist", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	good := job{n: 4, version: 1}.shard(0, 4)
	for name, change := range map[string]func(s *Shard){
		"range":     func(s *Shard) { s.To = 5 },
		"negative":  func(s *Shard) { s.From, s.To = -4, 0 },
		"slot":      func(s *Shard) { s.Slots[0].Data = s.Slots[0].Data[:3] },
		"two slots": func(s *Shard) { s.Slots[1].Name = "exp_avg" },
		"name":      func(s *Shard) { s.Slots[1].Name = "params" },
		"metadata":  func(s *Shard) { s.Slots[1].Name = "__metadata__" },
	} {
		s := good
		s.Slots = slices.Clone(good.Slots)
		change(&s)
		if _, err := WriteShard(dir, 0, s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	f := File{Name: "a", Size: 100, SHA256: strings.Repeat("0", 64)}
	shard := func(from, to, version int64, f File) ShardFile {
		return ShardFile{File: f, From: from, To: to, Version: version, Optimizer: "sgd"}
	}
	g := f
	g.Name = "b"
	for name, m := range map[string]Manifest{
		"no shards": {Params: 4},
		"gap":       {Params: 4, Shards: []ShardFile{shard(0, 1, 0, f), shard(2, 4, 0, g)}},
		"overlap":   {Params: 4, Shards: []ShardFile{shard(0, 3, 0, f), shard(2, 4, 0, g)}},
		"short":     {Params: 4, Shards: []ShardFile{shard(0, 3, 0, f)}},
		"late":      {Params: 4, Shards: []ShardFile{shard(1, 4, 0, f)}},
		"version":   {Params: 4, Shards: []ShardFile{shard(0, 2, 0, f), shard(2, 4, 1, g)}},
		"twice":     {Params: 4, Shards: []ShardFile{shard(0, 2, 0, f), shard(2, 4, 0, f)}},
		"outside":   {Params: 4, Shards: []ShardFile{shard(0, 4, 0, File{Name: "../a", Size: 100, SHA256: f.SHA256})}},
		"absolute":  {Params: 4, Shards: []ShardFile{shard(0, 4, 0, File{Name: "/a", Size: 100, SHA256: f.SHA256})}},
		"itself":    {Params: 4, Shards: []ShardFile{shard(0, 4, 0, File{Name: ManifestName, Size: 100, SHA256: f.SHA256})}},
		"no sum":    {Params: 4, Shards: []ShardFile{shard(0, 4, 0, File{Name: "a", Size: 100})}},
		"negative":  {Params: 4, Samples: -1, Shards: []ShardFile{shard(0, 4, 0, f)}},
		"layout":    {Params: 4, Layout: []TensorSpec{{Name: "w", Shape: []int{3}}}, Shards: []ShardFile{shard(0, 4, 0, f)}},
		"layout gap": {Params: 4, Layout: []TensorSpec{{Name: "w", Shape: []int{3}, Offset: 1}},
			Shards: []ShardFile{shard(0, 4, 0, f)}},
		"below nought": {Params: 4, Layout: []TensorSpec{{Name: "w", Shape: []int{-4}}, {Name: "v", Shape: []int{8}, Offset: -4}},
			Shards: []ShardFile{shard(0, 4, 0, f)}},
		"huge":       {Params: 4, Layout: []TensorSpec{{Name: "w", Shape: []int{1 << 40, 1 << 40}}}, Shards: []ShardFile{shard(0, 4, 0, f)}},
		"no buffers": {Params: 4, BufferLayout: []TensorSpec{{Name: "w", Shape: []int{1}}}, Shards: []ShardFile{shard(0, 4, 0, f)}},
	} {
		m.Optimizer = "sgd"
		if err := WriteManifest(dir, m); err == nil {
			t.Errorf("manifest %s: no error", name)
		}
	}
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("refused writes left %v", names)
	}
}

// Every kind of byte of every file, changed, cut off, added or missing, is seen,
// and the error says which file.
func TestCorruption(t *testing.T) {
	src := t.TempDir()
	j := job{n: 50, version: 1}
	if err := j.save(local{quick{}}, src, 20); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(src)
	if err != nil || len(files) != 7 {
		t.Fatal(files, err)
	}
	try := func(victim, what string, kind error, change func(path string, text []byte) error) {
		t.Helper()
		dir := t.TempDir()
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(src, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, f.Name())
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}
			if f.Name() == victim {
				if err := change(path, text); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, err := Open(dir)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, kind) || e.Path != filepath.Join(dir, victim) {
			t.Errorf("%s, %s: %v, want it %v", victim, what, err, kind)
		}
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(src, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		try(f.Name(), "removed", ErrMissing, func(path string, _ []byte) error { return os.Remove(path) })
		try(f.Name(), "a folder", ErrCorrupt, func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o777))
		})
		try(f.Name(), "emptied", ErrCorrupt, func(path string, _ []byte) error { return os.Truncate(path, 0) })
		try(f.Name(), "half", ErrCorrupt, func(path string, b []byte) error { return os.Truncate(path, int64(len(b)/2)) })
		try(f.Name(), "one byte less", ErrCorrupt, func(path string, b []byte) error { return os.Truncate(path, int64(len(b)-3)) })
		try(f.Name(), "longer", ErrCorrupt, func(path string, b []byte) error { return os.WriteFile(path, append(b, 'x'), 0o666) })
		for at := 0; at < len(text); at += 1 + len(text)/61 {
			if f.Name() == ManifestName && (text[at] == ' ' || text[at] == '\n') {
				continue // space around the manifest is no part of it; within, see below
			}
			try(f.Name(), fmt.Sprintf("byte %d changed", at), ErrCorrupt, func(path string, b []byte) error {
				b[at] ^= 1
				return os.WriteFile(path, b, 0o666)
			})
		}
	}
	try(ManifestName, "a space within", ErrCorrupt, func(path string, b []byte) error {
		return os.WriteFile(path, bytes.Replace(b, []byte(`"samples": `), []byte(`"samples":  `), 1), 0o666)
	})
}

// A manifest with a right checksum and wrong contents is refused too: the
// checksum is no signature.
func TestForgedManifest(t *testing.T) {
	src := t.TempDir()
	if err := (job{n: 50, version: 1}).save(local{quick{}}, src, 20); err != nil {
		t.Fatal(err)
	}
	m, err := readManifest(at(src), src)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m *Manifest){
		"format":        func(m *Manifest) { m.Format = 3 },
		"path":          func(m *Manifest) { m.Shards[0].Name = "../shard-00000.safetensors" },
		"swapped files": func(m *Manifest) { m.Shards[0].File, m.Shards[1].File = m.Shards[1].File, m.Shards[0].File },
		"buffers":       func(m *Manifest) { *m.Buffers = m.Shards[0].File },
		"shard":         func(m *Manifest) { m.Shards[0].File = *m.Buffers },
		"params":        func(m *Manifest) { m.Params = 1 << 50 },
		"ranges":        func(m *Manifest) { m.Shards[0].To, m.Shards[1].From = 25, 25 },
		"buffer layout": func(m *Manifest) { m.BufferLayout[0].Shape = []int{2} },

		// The job of the manifest has used 10 samples of 11 that were handed out.
		"more used than handed out":       func(m *Manifest) { m.Samples = 12 },
		"samples beyond all":              func(m *Manifest) { m.Samples, m.Cursor = 1<<62, 3 },
		"cursor beyond all":               func(m *Manifest) { m.Cursor = 1 << 62 },
		"samples of no update":            func(m *Manifest) { m.Version, m.Shards[0].Version, m.Shards[1].Version = 0, 0, 0 },
		"another version than the shards": func(m *Manifest) { m.Version, m.Shards[0].Version, m.Shards[1].Version = 2, 2, 2 },
		"other steps than the shards":     func(m *Manifest) { m.Steps, m.Shards[0].Steps, m.Shards[1].Steps = 7, 7, 7 },
		"redo beyond the cursor":          func(m *Manifest) { m.Extra.Redo = []Span{{11, 1}} },
		"redo of 2^40":                    func(m *Manifest) { m.Extra.Redo = []Span{{0, 1 << 40}} },
		"redo of 2^40, cursor too":        func(m *Manifest) { m.Extra.Redo, m.Cursor = []Span{{0, 1 << 40}}, 1<<40+10 },
		"redo that overflows":             func(m *Manifest) { m.Extra.Redo = []Span{{math.MaxInt64, 1}} },
		"redo of nothing":                 func(m *Manifest) { m.Extra.Redo = []Span{{3, 0}} },
		"redo below nought":               func(m *Manifest) { m.Extra.Redo = []Span{{-1, 1}} },
		"redo twice":                      func(m *Manifest) { m.Cursor, m.Extra.Redo = 20, []Span{{0, 4}, {3, 4}} },
		"redo of what is used":            func(m *Manifest) { m.Extra.Redo = []Span{{0, 2}} },
		"a job that began later":          func(m *Manifest) { m.FirstAttempt = 2 },
		"no data":                         func(m *Manifest) { m.Data = &Data{Name: "mnist/train"} },
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(src)); err != nil {
			t.Fatal(err)
		}
		c := *m
		c.Shards, c.BufferLayout = slices.Clone(m.Shards), slices.Clone(m.BufferLayout)
		b := *m.Buffers
		c.Buffers = &b
		change(&c)
		body, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"sha256":%q,"manifest":%s}`, sumOf(body), body)
		if err := os.WriteFile(filepath.Join(dir, ManifestName), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

// The name of the folder is checked against the manifest, and what the manifest says of progress is passed on.
func TestFolderName(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, Name(4, 1))
	if err := (job{n: 9, version: 4}).save(local{quick{}}, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Name(5, 1), Name(4, 2)} {
		other := filepath.Join(root, name)
		if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		for what, open := range map[string]func() error{
			"Open":     func() error { _, err := Open(other); return err },
			"Describe": func() error { _, err := Describe(other); return err },
		} {
			if err := open(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "as the folder is called") {
				t.Errorf("%s of a folder called %s: %v", what, name, err)
			}
		}
	}
	if err := os.CopyFS(filepath.Join(root, "best"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(root, "best")); err != nil {
		t.Errorf("a folder with a name of the user's own: %v", err)
	}
}

// A job that keeps one checkpoint leaves those of other jobs in the folder, whatever these are called.
func TestKeepOwn(t *testing.T) {
	root := t.TempDir()
	for _, j := range []job{
		{version: 50, life: 1},                         // an earlier job of the same name
		{version: 3, life: 2, name: "other"},           // another one, in the same folder
		{version: 4, life: 3, began: 3},                // ours
		{version: 5, life: 3, began: 3},                //
		{version: 1, life: 4, name: "other"},           // another one
		{version: 6, life: 5, began: 3},                // ours again, resumed
		{version: 2, life: 6, began: 2, name: "other"}, // another one, resumed
		{version: 7, life: 7, began: 3},
	} {
		j.n = 9
		if err := j.save(local{quick{}}, filepath.Join(root, Name(j.version, j.life))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{Name(4, 5), Name(9, 1), Name(9, 6)} { // of crashes
		if err := os.Mkdir(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open(filepath.Join(root, Name(7, 7)))
	if err != nil {
		t.Fatal(err)
	}
	if c.Follows(root) != 3 || c.Follows(t.TempDir()) != 0 || c.Follows("s3://bucket/x") != 0 {
		t.Errorf("a job that goes on with it began with life %d here, %d elsewhere", c.Follows(root), c.Follows("elsewhere"))
	}
	if err := Keep(root, 1, c.Manifest()); err != nil {
		t.Fatal(err)
	}
	var names []string
	found, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, f.Name)
	}
	if want := []string{Name(7, 7), Name(9, 6), Name(2, 6), Name(1, 4), Name(3, 2), Name(50, 1), Name(9, 1)}; !slices.Equal(names, want) {
		t.Errorf("kept %q, want %q", names, want)
	}
}

// What crashes have left is swept away, and nothing else.
func TestSweep(t *testing.T) {
	root := t.TempDir()
	whole := filepath.Join(root, Name(3, 1))
	if err := (job{n: 9, version: 3}).save(local{quick{}}, whole); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(root, Name(9, 1))
	for _, path := range []string{
		filepath.Join(half, ShardName(0)), filepath.Join(half, ".manifest.json.tmp"), filepath.Join(whole, ".manifest.json.tmp"),
		filepath.Join(whole, "notes.tmp"), filepath.Join(root, "mine", ".a.tmp"), filepath.Join(root, ".b.tmp"),
	} {
		os.MkdirAll(filepath.Dir(path), 0o777)
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := Sweep(root)
	if want := []string{filepath.Join(whole, ".manifest.json.tmp"), half}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %q, %v; want %q", removed, err, want)
	}
	for _, path := range []string{filepath.Join(whole, "notes.tmp"), filepath.Join(root, "mine", ".a.tmp"), filepath.Join(root, ".b.tmp")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(whole); err != nil {
		t.Error(err)
	}
	if removed, err := Sweep(filepath.Join(root, "nowhere")); err != nil || len(removed) > 0 {
		t.Errorf("of no folder: %q, %v", removed, err)
	}
}

// A process that ends while it writes takes what is half written along.
func TestAbandon(t *testing.T) {
	defer func() { unfinished.over = false }()
	dir := t.TempDir()
	inside, goOn, done := make(chan bool), make(chan bool), make(chan error)
	go func() {
		_, err := writeFile(local{quick{}}, dir, ManifestName, func(w io.Writer) error { close(inside); <-goOn; return nil })
		done <- err
	}()
	<-inside
	temp := filepath.Join(dir, ".manifest.json.tmp")
	if _, err := os.Stat(temp); err != nil {
		t.Fatal(err)
	}
	Abandon()
	if _, err := os.Stat(temp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half written file: %v", err)
	}
	close(goOn)
	if err := <-done; err == nil {
		t.Error("the writer has heard of no error")
	}
	if _, err := writeFile(local{quick{}}, dir, "a", func(io.Writer) error { return nil }); !errors.Is(err, errOver) {
		t.Errorf("written after the end: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

// Shards that keep different state are no checkpoint, whatever the manifest says.
func TestSlotsDiffer(t *testing.T) {
	dir := t.TempDir()
	j := job{n: 8, version: 1}
	a, b := j.shard(0, 4), j.shard(4, 8)
	b.Slots = b.Slots[:1]
	m := Manifest{Params: 8, Version: 1, Optimizer: "adam", Steps: 6}
	for i, s := range []Shard{a, b} {
		f, err := WriteShard(dir, i, s)
		if err != nil {
			t.Fatal(err)
		}
		m.Shards = append(m.Shards, f)
	}
	if err := WriteManifest(dir, m); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "exp_avg_sq") {
		t.Errorf("got %v, want ErrCorrupt with the names of the slots", err)
	}
}

// A safetensors file of another kind is not a shard, with the right checksum too.
func TestForeignShard(t *testing.T) {
	for _, tensor := range []Tensor{
		{Name: "weights", DType: "F32", Shape: []int64{3}},
		{Name: "params", DType: "I32", Shape: []int64{3}},
		{Name: "params", DType: "F32", Shape: []int64{4}},
	} {
		dir := t.TempDir()
		text, err := appendHeader(nil, []Tensor{tensor}, nil)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, make([]byte, 4*tensor.Shape[0])...)
		f := File{Name: "shard", Size: int64(len(text)), SHA256: sumOf(text)}
		if err := os.WriteFile(filepath.Join(dir, f.Name), text, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := WriteManifest(dir, Manifest{Params: 3, Shards: []ShardFile{{File: f, To: 3}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tensor.Name+" "+tensor.DType) {
			t.Errorf("a file with %+v: %v, want ErrCorrupt and what is in it", tensor, err)
		}
	}
}

// A file of the wrong size is reported by its size, before it is read.
func TestWrongSize(t *testing.T) {
	dir := t.TempDir()
	if err := (job{n: 50, version: 1}).save(local{quick{}}, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, ShardName(0)), 100); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir)
	var e *Error
	if !errors.As(err, &e) || e.Offset != 100 || e.Found != "100" || !strings.HasSuffix(e.Expected, " bytes in all") {
		t.Errorf("got %v, want an error at byte 100 with both sizes", err)
	}
}

func TestLatestAndKeep(t *testing.T) {
	root := t.TempDir()
	if _, _, err := Latest(filepath.Join(root, "nowhere")); !errors.Is(err, ErrMissing) {
		t.Errorf("no folder: %v", err)
	}
	if _, _, err := Latest(root); !errors.Is(err, ErrMissing) {
		t.Errorf("empty folder: %v", err)
	}
	save := func(version, generation int64) string {
		dir := filepath.Join(root, Name(version, generation))
		if err := (job{n: 9, version: version, life: generation, began: 1}).save(local{quick{}}, dir, 4); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	latest := func() (int64, int) {
		c, skipped, err := Latest(root)
		if err != nil {
			t.Fatal(err)
		}
		return c.Manifest().Version, len(skipped)
	}
	save(2, 1)
	save(10, 1)
	nine := save(9, 1)
	if v, _ := latest(); v != 10 {
		t.Errorf("latest is %d, want 10: names are numbers", v)
	}
	// Resumed from 9 and saved at 9 again, in a later life.
	again := save(9, 2)
	if c, _, err := Latest(root); err != nil || c.Dir() != again {
		t.Errorf("latest after a second life: %v, %v", c, err)
	}
	if err := os.Truncate(filepath.Join(again, ShardName(0)), 10); err != nil {
		t.Fatal(err)
	}
	if v, skipped := latest(); v != 10 || skipped != 1 {
		t.Errorf("latest is %d with %d skipped, want 10 with 1", v, skipped)
	}
	// Incomplete ones: one left from a crash, one being written now; and files and folders that are not checkpoints.
	for _, name := range []string{Name(5, 1), Name(11, 2), "ckpt-7-g1", "ckpt-000000000001-g1.bak", "notes"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, Name(1, 1)), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Keep(root, 0, Manifest{}); err == nil {
		t.Error("keep 0: no error")
	}
	if err := Keep(root, 3, Manifest{Job: "job", Generation: 3, FirstAttempt: 1}); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{Name(1, 1), "ckpt-000000000001-g1.bak", filepath.Base(nine), Name(9, 2), Name(10, 1), Name(11, 2), "ckpt-7-g1", "notes"}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("kept %q, want %q", names, want)
	}
	// When all are corrupt, the newest one's error says why.
	for _, name := range []string{Name(9, 1), Name(10, 1)} {
		if err := os.Remove(filepath.Join(root, name, ShardName(1))); err != nil {
			t.Fatal(err)
		}
	}
	if _, skipped, err := Latest(root); !errors.Is(err, ErrCorrupt) || len(skipped) != 3 {
		t.Errorf("all corrupt: %v, %d skipped", err, len(skipped))
	}
}

// Export is read by an independent program: numpy, with the format's definition.
func TestExport(t *testing.T) {
	dir := t.TempDir()
	j := job{n: 100, version: 4}
	if err := j.save(local{quick{}}, dir, 20, 70); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if _, err := c.Export(path); err != nil {
		t.Fatal(err)
	}
	f, size, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := ReadHeader(f, size, path)
	if err != nil {
		t.Fatal(err)
	}
	if h.Data%8 != 0 || h.Metadata["model_hash"] != "abc" || h.Metadata["version"] != "4" || len(h.Tensors) != 3 {
		t.Errorf("header %+v", h)
	}
	want := map[string][]float32{"fc.weight": j.vector(0)[:33], "fc.bias": j.vector(0)[33:], "bn.mean": j.buffers()}
	for name, v := range want {
		tensor, ok := h.Find(name)
		got := make([]float32, len(v))
		if !ok || tensor.End-tensor.Begin != int64(4*len(v)) {
			t.Fatalf("%s: %+v", name, tensor)
		}
		if err := readFloats(io.NewSectionReader(f, h.Data+tensor.Begin, 4*int64(len(got))), got, make([]byte, 4*chunk)); err != nil || !slices.Equal(got, v) {
			t.Errorf("%s: %v, want %v (%v)", name, got, v, err)
		}
	}

	out, err := exec.Command(python(t), "-c", `
import json, sys, numpy
b = open(sys.argv[1], "rb").read()
n = int.from_bytes(b[:8], "little")
h = json.loads(b[8:8+n])
h.pop("__metadata__")
for name in sorted(h):
    t = h[name]
    i, j = t["data_offsets"]
    a = numpy.frombuffer(b[8+n+i:8+n+j], "<f4").reshape(t["shape"])
    print(name, t["dtype"], a.shape, "%.6f" % a.astype("f8").sum())
`, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sum := func(v []float32) (s float64) {
		for _, x := range v {
			s += float64(x)
		}
		return s
	}
	text := fmt.Sprintf("bn.mean F32 (3,) %.6f\nfc.bias F32 (67,) %.6f\nfc.weight F32 (33, 1) %.6f\n",
		sum(want["bn.mean"]), sum(want["fc.bias"]), sum(want["fc.weight"]))
	if string(out) != text {
		t.Errorf("numpy reads\n%swant\n%s", out, text)
	}
}

func TestExportWithoutNames(t *testing.T) {
	dir := t.TempDir()
	f, err := WriteShard(dir, 0, Shard{To: 2, Params: []float32{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteManifest(dir, Manifest{Params: 2, Shards: []ShardFile{f}}); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.BufferLen() != 0 || c.Buffers(nil) != nil || len(c.Slots()) != 0 {
		t.Errorf("%d buffers, slots %q", c.BufferLen(), c.Slots())
	}
	if _, err := c.Export(filepath.Join(dir, "x")); err == nil {
		t.Error("export without names: no error")
	}
}

func sumOf(b []byte) string {
	s := sha(b)
	return hex.EncodeToString(s[:])
}

// Buffers go out with the types that the layout says, each at a multiple of its element, and numpy reads them; they
// come back in from that file, and from one of another checkpoint of the model that has float32 for all of them.
func TestTypedBuffers(t *testing.T) {
	layout := []TensorSpec{{Name: "w", Shape: []int{3}}}
	buffers := []TensorSpec{
		{Name: "mask", Shape: []int{3}, DType: "BOOL"}, {Name: "mean", Shape: []int{1}, Offset: 1}, {Name: "ids", Shape: []int{2}, Offset: 2, DType: "I64"},
		{Name: "half", Shape: []int{1}, Offset: 6, DType: "F16"}, {Name: "wide", Shape: []int{1}, Offset: 8, DType: "C128"}, {Name: "n", Shape: []int{}, Offset: 12, DType: "I32"},
	}
	bytesOf := []byte{1, 0, 1, 0}
	for _, v := range []any{float32(0.5), []int64{16777217, -3}, []uint16{0x3c00, 0, 0, 0}, []float64{1.5, -2}, int32(7)} {
		bytesOf, _ = binary.Append(bytesOf, binary.LittleEndian, v)
	}
	words := make([]float32, len(bytesOf)/4)
	if err := readFloats(bytes.NewReader(bytesOf), words, make([]byte, 4*chunk)); err != nil {
		t.Fatal(err)
	}
	save := func(buffers []TensorSpec, words []float32) *Checkpoint {
		t.Helper()
		dir := filepath.Join(t.TempDir(), Name(1, 1))
		part, err := WriteShard(dir, 0, Shard{To: 3, Version: 1, Optimizer: "sgd", ModelHash: "abc", Params: []float32{1, 2, 3}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := WriteBuffers(dir, words)
		if err != nil {
			t.Fatal(err)
		}
		m := Manifest{ModelHash: "abc", Version: 1, Generation: 1, Optimizer: "sgd", Params: 3, Layout: layout, BufferLayout: buffers, Shards: []ShardFile{part}, Buffers: &f}
		if err := WriteManifest(dir, m); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := save(buffers, words)
	if m := c.Manifest(); m.Format != 2 || !reflect.DeepEqual(m.BufferLayout, buffers) {
		t.Errorf("format %d with %+v", m.Format, m.BufferLayout)
	}
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if _, err := c.Export(path); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python(t), "-c", `
import json, sys, numpy
b = open(sys.argv[1], "rb").read()
n = int.from_bytes(b[:8], "little")
h = json.loads(b[8:8+n])
h.pop("__metadata__")
types = {"BOOL": "?", "F32": "<f4", "I64": "<i8", "F16": "<f2", "F64": "<f8", "I32": "<i4"}
for name in sorted(h):
    i, j = h[name]["data_offsets"]
    a = numpy.frombuffer(b[8+n+i:8+n+j], types[h[name]["dtype"]]).reshape(h[name]["shape"])
    print(name, h[name]["dtype"], i % a.itemsize, a.tolist())
`, path).CombinedOutput()
	want := "half F16 0 [1.0]\nids I64 0 [16777217, -3]\nmask BOOL 0 [True, False, True]\nmean F32 0 [0.5]\nn I32 0 7\nw F32 0 [1.0, 2.0, 3.0]\nwide F64 0 [[1.5, -2.0]]\n"
	if err != nil || string(out) != want {
		t.Errorf("numpy reads\n%swant\n%s(%v)", out, want, err)
	}
	back := func(path string, m Manifest) []float32 {
		t.Helper()
		dir := filepath.Join(t.TempDir(), Name(1, 2))
		m.Version, m.Generation = 1, 2
		m.More, m.Residuals = []File{{Name: "of another checkpoint", Size: 8, SHA256: m.Buffers.SHA256}}, []ResidualFile{{Worker: 1}}
		if _, _, err := Import(path, dir, m, nil); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, c.BufferLen())
		if err := c.Buffers(got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := back(path, c.Manifest()); !bytes.Equal(asBytes(got), asBytes(words)) {
		t.Errorf("the buffers come back as %x, want %x", asBytes(got), asBytes(words))
	}

	old := save([]TensorSpec{{Name: "mean", Shape: []int{1}}, {Name: "ids", Shape: []int{2}, Offset: 1}}, []float32{0.5, 16777216, -3})
	if m := old.Manifest(); m.Format != 1 {
		t.Errorf("float32 alone has format %d", m.Format)
	}
	if _, err := old.Export(path); err != nil {
		t.Fatal(err)
	}
	m := c.Manifest()
	m.BufferLayout = []TensorSpec{{Name: "ids", Shape: []int{2}, DType: "I64"}, {Name: "mean", Shape: []int{1}, Offset: 4}}
	want2, _ := binary.Append(nil, binary.LittleEndian, []int64{16777216, -3})
	want2, _ = binary.Append(want2, binary.LittleEndian, float32(0.5))
	if got := back(path, m); !bytes.Equal(asBytes(got), want2) {
		t.Errorf("float32 becomes %x, want %x", asBytes(got), want2)
	}
}

// A layout with tensors that have an unknown type, or do not follow each other in words, is damaged.
func TestTypedLayoutIsChecked(t *testing.T) {
	for name, layout := range map[string][]TensorSpec{
		"unknown":      {{Name: "b", Shape: []int{3}, DType: "F31"}},
		"in elements":  {{Name: "a", Shape: []int{1}, DType: "I64"}, {Name: "b", Shape: []int{1}, Offset: 1}},
		"at odd words": {{Name: "a", Shape: []int{1}}, {Name: "b", Shape: []int{1}, Offset: 1, DType: "I64"}},
		"too long":     {{Name: "b", Shape: []int{2}, DType: "I64"}},
	} {
		if problem := checkLayout("buffer_layout", layout, 3); problem == "" {
			t.Errorf("%s: %+v fits into 3 words", name, layout)
		}
	}
}

// Names without what wrappers of PyTorch add to them.
func TestPlain(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"a.weight b", "a.weight b"},
		{"_orig_mod.a _orig_mod.b", "a b"},
		{"a._orig_mod.w b", "a.w b"},
		{"module.a module.b", "a b"},
		{"module.a b", "module.a b"},
		{"module._orig_mod.a module._orig_mod.b", "a b"},
		{"_orig_mod.module.a _orig_mod.module.b", "a b"},
		{"module.module.a module.module.b", "module.a module.b"},
		{"my_orig_mod.a submodule.b", "my_orig_mod.a submodule.b"},
	} {
		if got := strings.Join(Plain(strings.Fields(c.names)), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.names, got, c.want)
		}
	}
}

// A file of a model that a wrapper of PyTorch holds is one of the model, and the other way round; two tensors that only
// the wrapper's part tells apart are not guessed.
func TestImportOfWrapped(t *testing.T) {
	file := func(names ...string) string {
		var ts []Tensor
		for _, n := range names {
			ts = append(ts, Tensor{Name: n, DType: "F32", Shape: []int64{1}})
		}
		head, err := appendHeader(nil, ts, nil)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "in.safetensors")
		if err := os.WriteFile(path, append(head, make([]byte, 4*len(ts))...), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		layout, file string
		fits         bool
	}{
		{"a b", "_orig_mod.a _orig_mod.b", true},
		{"_orig_mod.a _orig_mod.b", "a b", true},
		{"module.a module.b", "_orig_mod.a _orig_mod.b", true},
		{"a b", "module.a module.b", true},
		{"a b", "module.a module.b module.c", false},
		{"a b", "_orig_mod.a b _orig_mod.b", false},
		{"a b", "_orig_mod.b module.a", false},
		{"a", "_orig_mod.a x._orig_mod.a", false},
	} {
		m := Manifest{ModelHash: "abc", Version: 1, Generation: 1, Optimizer: "sgd"}
		for i, n := range strings.Fields(c.layout) {
			m.Layout = append(m.Layout, TensorSpec{Name: n, Shape: []int{1}, Offset: i})
		}
		_, _, err := Import(file(strings.Fields(c.file)...), filepath.Join(t.TempDir(), Name(1, 1)), m, nil)
		if (err == nil) != c.fits || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s of %s: %v", c.layout, c.file, err)
		}
	}
}
