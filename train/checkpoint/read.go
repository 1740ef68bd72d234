package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/internal/dtype"
)

// maxManifest bounds the manifest: a million tensors fit.
const maxManifest = 256 << 20

// Checkpoint is a complete checkpoint. Every byte was verified when it was opened. It holds no files
// open and may be used by several goroutines.
type Checkpoint struct {
	st      store
	dir     string
	m       Manifest
	headers []*Header // of the shards
	buffers *Header   // or nil

	residuals *Residuals
}

// Open verifies the checkpoint in the folder dir: the manifest's checksum, and of every file the
// existence, size, SHA-256 and header. The error is an *[Error].
func Open(dir string) (*Checkpoint, error) {
	return openIn(at(dir), dir)
}

func openIn(st store, dir string) (*Checkpoint, error) {
	m, err := readManifest(st, dir)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{st: st, dir: dir, m: *m}
	for _, s := range m.Shards {
		h, err := verify(st, dir, s.File)
		if err != nil {
			return nil, err
		}
		path := Join(dir, s.Name)
		if _, ok := h.Find(paramsName); !ok {
			return nil, corrupt(path, 8, fmt.Sprintf("a tensor %q", paramsName), "%s", describe(h))
		}
		for _, t := range h.Tensors {
			if t.DType != "F32" || t.End-t.Begin != 4*(s.To-s.From) {
				return nil, corrupt(path, 8, fmt.Sprintf("tensors of %d F32", s.To-s.From), "%s", describe(h))
			}
		}
		if problem := disagrees(h.Metadata, s); problem != "" {
			return nil, corrupt(path, 8, "what the manifest says of it", "%s", problem)
		}
		if len(c.headers) > 0 && !slices.Equal(slotNames(h), slotNames(c.headers[0])) {
			return nil, corrupt(path, 8, fmt.Sprintf("the slots %q as in %s", slotNames(c.headers[0]), m.Shards[0].Name), "%q", slotNames(h))
		}
		c.headers = append(c.headers, h)
	}
	if m.Buffers != nil {
		h, err := verify(st, dir, *m.Buffers)
		if err != nil {
			return nil, err
		}
		path := Join(dir, m.Buffers.Name)
		t, ok := h.Find(buffersTensor)
		if !ok || t.DType != "F32" {
			return nil, corrupt(path, 8, fmt.Sprintf("a tensor %q of F32", buffersTensor), "%s", describe(h))
		}
		if problem := checkLayout("buffer_layout", m.BufferLayout, (t.End-t.Begin)/4); problem != "" {
			return nil, corrupt(Join(dir, ManifestName), -1, "a buffer_layout that fits "+path, "%s", problem)
		}
		c.buffers = h
	}
	for _, f := range m.More {
		if _, err := verified(st, dir, f); err != nil {
			return nil, err
		}
	}
	if c.residuals, err = residualsIn(st, dir, m); err != nil {
		return nil, err
	}
	return c, nil
}

// verified reads a file of Manifest.More.
func verified(st store, dir string, want File) ([]byte, error) {
	text, err := readAll(st, dir, want.Name, maxManifest)
	if err != nil {
		return nil, err
	}
	path := Join(dir, want.Name)
	if int64(len(text)) != want.Size {
		return nil, corrupt(path, min(int64(len(text)), want.Size), fmt.Sprintf("%d bytes in all", want.Size), "%d", len(text))
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != want.SHA256 {
		return nil, corrupt(path, -1, "SHA-256 "+want.SHA256, "%x", sum)
	}
	return text, nil
}

// More reads the file of that name in Manifest.More; nil: it has none.
func (c *Checkpoint) More(name string) ([]byte, error) {
	for _, f := range c.m.More {
		if f.Name == name {
			return verified(c.st, c.dir, f)
		}
	}
	return nil, nil
}

func describe(h *Header) string {
	var b strings.Builder
	for i, t := range h.Tensors {
		if i == 4 {
			fmt.Fprintf(&b, " and %d more", len(h.Tensors)-i)
			break
		}
		fmt.Fprintf(&b, "%s %s%v ", clip(t.Name), t.DType, t.Shape)
	}
	if b.Len() == 0 {
		return "no tensor"
	}
	return strings.TrimSpace(b.String())
}

// disagrees names what a shard's file says of itself and its manifest otherwise, or is empty.
func disagrees(said map[string]string, s ShardFile) string {
	for _, f := range []struct {
		key string
		n   int64
	}{{"from", s.From}, {"to", s.To}, {"version", s.Version}, {"steps", s.Steps}} {
		if v, ok := said[f.key]; ok && v != strconv.FormatInt(f.n, 10) {
			return fmt.Sprintf("%s %s, not %d", f.key, clip(v), f.n)
		}
	}
	return ""
}

func slotNames(h *Header) []string {
	var names []string
	for _, t := range h.Tensors {
		if t.Name != paramsName {
			names = append(names, t.Name)
		}
	}
	return names
}

func readManifest(st store, dir string) (*Manifest, error) {
	path := Join(dir, ManifestName)
	text, err := readAll(st, dir, ManifestName, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(text, path)
	if err != nil {
		return nil, err
	}
	// The name of a copied folder says nothing, unless it is one of our names.
	_, name := split(dir)
	if version, generation, ok := parseName(name); ok && (version != m.Version || generation != m.Generation) {
		return nil, corrupt(path, -1, fmt.Sprintf("version %d of life %d, as the folder is called", version, generation), "version %d of life %d", m.Version, m.Generation)
	}
	return m, nil
}

// parseName is the inverse of Name.
func parseName(name string) (version, generation int64, ok bool) {
	_, err := fmt.Sscanf(name, "ckpt-%d-g%d", &version, &generation)
	return version, generation, err == nil && name == Name(version, generation)
}

func parseManifest(text []byte, path string) (*Manifest, error) {
	var outer struct {
		SHA256   string          `json:"sha256"`
		Manifest json.RawMessage `json:"manifest"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&outer); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: d.InputOffset(), Err: err}
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return nil, corrupt(path, d.InputOffset(), "the end of the file", "%q", rest[:min(len(rest), 20)])
	}
	if sum := sha256.Sum256(outer.Manifest); hex.EncodeToString(sum[:]) != outer.SHA256 {
		return nil, corrupt(path, -1, "SHA-256 "+clip(outer.SHA256), "%x", sum)
	}
	var m Manifest
	if err := json.Unmarshal(outer.Manifest, &m); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: -1, Err: err}
	}
	if problem := m.check(); problem != "" {
		return nil, corrupt(path, -1, "a manifest of a whole checkpoint", "%s", problem)
	}
	return &m, nil
}

func readAll(st store, dir, name string, limit int64) ([]byte, error) {
	defer busy(st, dir, name, "the storage to give")()
	path := Join(dir, name)
	size, err := st.size(dir, name)
	if err != nil {
		return nil, lost(path, err)
	}
	if size > limit {
		return nil, corrupt(path, -1, fmt.Sprintf("at most %d bytes", limit), "%d", size)
	}
	r, err := st.get(dir, name, 0, size)
	if err != nil {
		return nil, lost(path, err)
	}
	defer r.Close()
	text := make([]byte, size)
	if n, err := io.ReadFull(r, text); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: int64(n), Err: err}
	}
	return text, nil
}

// verify checks size, checksum and header of a file, which it reads once.
func verify(st store, dir string, want File) (*Header, error) {
	defer busy(st, dir, want.Name, "the storage to give")()
	path := Join(dir, want.Name)
	size, err := st.size(dir, want.Name)
	if err != nil {
		return nil, lost(path, err)
	}
	if size != want.Size {
		return nil, corrupt(path, min(size, want.Size), fmt.Sprintf("%d bytes in all", want.Size), "%d", size)
	}
	r, err := st.get(dir, want.Name, 0, size)
	if err != nil {
		return nil, lost(path, err)
	}
	defer r.Close()
	sum := sha256.New()
	h, bad := readHeader(io.TeeReader(r, sum), size, path)
	// A wrong checksum says more than what it has made of the header.
	buf := make([]byte, 1<<20)
	if n, err := io.CopyBuffer(sum, r, buf); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: n, Err: err}
	}
	if found := hex.EncodeToString(sum.Sum(nil)); found != want.SHA256 {
		return nil, corrupt(path, -1, "SHA-256 "+want.SHA256, "%s", found)
	}
	return h, bad
}

// Dir is the folder.
func (c *Checkpoint) Dir() string { return c.dir }

// Manifest is what the checkpoint says of itself.
func (c *Checkpoint) Manifest() Manifest { return c.m }

// Slots lists the vectors of optimiser state.
func (c *Checkpoint) Slots() []string { return slotNames(c.headers[0]) }

// Params fills dst, which has Manifest.Params elements, with the parameters.
func (c *Checkpoint) Params(dst []float32) error { return c.Range(0, c.m.Params, dst) }

// Range fills dst with the parameters from..to-1, from whatever shards hold
// them: the shards of the job that resumes need not be those of the one that saved.
func (c *Checkpoint) Range(from, to int64, dst []float32) error {
	return c.gather(paramsName, from, to, dst)
}

// SlotRange fills dst with the elements from..to-1 of a vector of optimiser state.
func (c *Checkpoint) SlotRange(name string, from, to int64, dst []float32) error {
	if name == paramsName || !slices.Contains(c.Slots(), name) {
		return fmt.Errorf("checkpoint: %s has no slot %q, it has %q", c.dir, name, c.Slots())
	}
	return c.gather(name, from, to, dst)
}

// Shard is the state of the range from..to-1, as one shard of a job that
// resumes takes it up.
func (c *Checkpoint) Shard(from, to int64) (Shard, error) {
	if from < 0 || to < from || to > c.m.Params {
		return Shard{}, fmt.Errorf("checkpoint: range %d..%d of %d parameters", from, to, c.m.Params)
	}
	s := Shard{
		From: from, To: to, Version: c.m.Version, ModelHash: c.m.ModelHash,
		Optimizer: c.m.Optimizer, Steps: c.m.Steps, Params: make([]float32, to-from),
	}
	if err := c.Range(from, to, s.Params); err != nil {
		return Shard{}, err
	}
	for _, name := range c.Slots() {
		slot := Slot{Name: name, Data: make([]float32, to-from)}
		if err := c.SlotRange(name, from, to, slot.Data); err != nil {
			return Shard{}, err
		}
		s.Slots = append(s.Slots, slot)
	}
	return s, nil
}

func (c *Checkpoint) gather(tensor string, from, to int64, dst []float32) error {
	if from < 0 || to < from || to > c.m.Params || int64(len(dst)) != to-from {
		return fmt.Errorf("checkpoint: range %d..%d of %d parameters into %d elements", from, to, c.m.Params, len(dst))
	}
	buf := make([]byte, 4*chunk)
	for i, s := range c.m.Shards {
		lo, hi := max(from, s.From), min(to, s.To)
		if lo >= hi {
			continue
		}
		t, _ := c.headers[i].Find(tensor) // Open has verified that it exists
		offset := c.headers[i].Data + t.Begin + 4*(lo-s.From)
		if err := readPart(c.st, c.dir, s.Name, offset, dst[lo-from:hi-from], buf); err != nil {
			return err
		}
	}
	return nil
}

func readPart(st store, dir, name string, offset int64, dst []float32, buf []byte) error {
	defer busy(st, dir, name, "the storage to give")()
	path := Join(dir, name)
	r, err := st.get(dir, name, offset, 4*int64(len(dst)))
	if err != nil {
		return lost(path, err)
	}
	defer r.Close()
	if err := readFloats(r, dst, buf); err != nil {
		return &Error{Kind: ErrCorrupt, Path: path, Offset: offset, Err: err}
	}
	return nil
}

// BufferLen is the number of words of the model's buffers.
func (c *Checkpoint) BufferLen() int64 {
	if c.buffers == nil {
		return 0
	}
	t, _ := c.buffers.Find(buffersTensor)
	return (t.End - t.Begin) / 4
}

// Buffers fills dst, of BufferLen elements, with the model's buffers.
func (c *Checkpoint) Buffers(dst []float32) error {
	if int64(len(dst)) != c.BufferLen() {
		return fmt.Errorf("checkpoint: %d elements of buffers into %d", c.BufferLen(), len(dst))
	}
	if c.buffers == nil {
		return nil
	}
	t, _ := c.buffers.Find(buffersTensor)
	return readPart(c.st, c.dir, c.m.Buffers.Name, c.buffers.Data+t.Begin, dst, make([]byte, 4*chunk))
}

// Export writes parameters and buffers into one safetensors file at path, under
// Export writes parameters and buffers into one safetensors file at path, under
// the names of the layout and with their types, atomically. Tensors that the layout does not name
// cannot be written; an empty layout is an error. Those with larger elements come first, so that
// each begins at a multiple of its element; C128 is written as pairs of F64, in one more dimension.
// odd says what is not finite.
func (c *Checkpoint) Export(path string) (odd NotFinite, err error) {
	if len(c.m.Layout) == 0 {
		return odd, fmt.Errorf("checkpoint: %s has no layout: there are no names to export under", c.dir)
	}
	sizes := func(match func(size int) bool) (some []TensorSpec) {
		for _, t := range c.m.BufferLayout {
			if match(dtype.Size(t.DType)) {
				some = append(some, t)
			}
		}
		return some
	}
	large, middle := sizes(func(n int) bool { return n > 4 }), sizes(func(n int) bool { return n == 4 })
	small := slices.Concat(sizes(func(n int) bool { return n == 2 }), sizes(func(n int) bool { return n == 1 }))
	var tensors []Tensor
	for _, t := range slices.Concat(large, c.m.Layout, middle, small) {
		tensors = append(tensors, t.stored())
	}
	head, err := appendHeader(nil, tensors, map[string]string{
		"format":     "pt",
		"job":        c.m.Job,
		"model":      c.m.Model,
		"model_hash": c.m.ModelHash,
		"version":    strconv.FormatInt(c.m.Version, 10),
		"samples":    strconv.FormatInt(c.m.Samples, 10),
	})
	if err != nil {
		return odd, err
	}
	// Parameters follow each other without gaps, so their data is the flat vector itself.
	in, name := split(path)
	_, err = writeFile(at(path), in, name, func(w io.Writer) error {
		odd = NotFinite{}
		if _, err := w.Write(head); err != nil {
			return err
		}
		buffers := make([]float32, c.BufferLen())
		if err := c.Buffers(buffers); err != nil {
			return err
		}
		words := wordBytes(buffers)
		some := func(tensors []TensorSpec) error {
			for _, t := range tensors {
				n, _ := t.length()
				if _, err := w.Write(words[t.Offset*dtype.WordSize:][:n*int64(dtype.Size(t.DType))]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := some(large); err != nil {
			return err
		}
		part, buf := make([]float32, 1<<20), make([]byte, 4*chunk)
		for at := int64(0); at < c.m.Params; {
			n := min(int64(len(part)), c.m.Params-at)
			if err := c.Range(at, at+n, part[:n]); err != nil {
				return err
			}
			if err := writeFloats(w, part[:n], buf); err != nil {
				return err
			}
			odd.in(c.m.Layout, at, part[:n])
			at += n
		}
		odd.in(c.m.BufferLayout, 0, buffers)
		return some(slices.Concat(middle, small))
	})
	return odd, err
}

// stored is the tensor as safetensors has it.
func (t TensorSpec) stored() Tensor {
	out := Tensor{Name: t.Name, DType: cmp.Or(t.DType, dtype.F32), Shape: make([]int64, len(t.Shape))}
	for i, k := range t.Shape {
		out.Shape[i] = int64(k)
	}
	if t.DType == complexF64 {
		out.DType, out.Shape = "F64", append(out.Shape, 2)
	}
	return out
}

// wordBytes are the bytes of words as files have them.
func wordBytes(words []float32) []byte {
	if little {
		return asBytes(words)
	}
	b := make([]byte, 0, dtype.WordSize*len(words))
	for _, v := range words {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// Latest opens the newest checkpoint in dir that verifies. The errors of newer ones that do not are
// in skipped. Without any the error is ErrMissing if no folder has a manifest, else that of the
// newest.
func Latest(dir string) (c *Checkpoint, skipped []error, err error) {
	st := at(dir)
	found, err := list(st, dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range found {
		if !e.Complete {
			continue
		}
		c, err := openIn(st, Join(dir, e.Name))
		if err == nil {
			return c, skipped, nil
		}
		skipped = append(skipped, err)
	}
	if len(skipped) > 0 {
		return nil, skipped, skipped[0]
	}
	return nil, nil, &Error{Kind: ErrMissing, Path: dir, Offset: -1, Expected: "a checkpoint", Found: "none"}
}

// Keep removes all but the newest k complete checkpoints of a job in dir, the job that wrote m, and its incomplete
// ones older than its newest complete one: those are left from crashes. It touches nothing but folders that have a
// [Name], and none of another job: two jobs may use one folder, one after the other, and each life of a job has a
// generation of its own there. k is at least 1.
func Keep(dir string, k int, m Manifest) error {
	if k < 1 {
		return fmt.Errorf("checkpoint: keep %d: at least one must stay", k)
	}
	st := at(dir)
	found, err := list(st, dir)
	if err != nil {
		return err
	}
	own := map[int64]bool{m.Generation: true}
	for _, e := range found {
		if _, known := own[e.Generation]; known || !e.Complete {
			continue
		}
		// What cannot be read may be anybody's, and others of its life may tell.
		if other, err := readManifest(st, Join(dir, e.Name)); err == nil {
			own[e.Generation] = other.Job == m.Job && other.firstAttempt() == m.firstAttempt()
		}
	}
	complete := 0
	for _, e := range found {
		if !own[e.Generation] {
			continue
		}
		if e.Complete {
			complete++
			if complete <= k {
				continue
			}
		} else if complete == 0 {
			continue // it may be being written now
		}
		if err := st.remove(Join(dir, e.Name)); err != nil {
			return fmt.Errorf("checkpoint: remove %s: %w", Join(dir, e.Name), err)
		}
	}
	return nil
}

// firstAttempt is FirstAttempt, with a value also for manifests without it.
func (m *Manifest) firstAttempt() int64 { return cmp.Or(m.FirstAttempt, m.Generation) }

// Follows is the FirstAttempt of a job that goes on with the checkpoint and writes its own into the folder dir: in
// another folder that life is its first one.
func (c *Checkpoint) Follows(dir string) int64 {
	if in, _ := split(c.dir); !sameFolder(in, dir) {
		return 0
	}
	return c.m.firstAttempt()
}

// Discard removes the checkpoint folder dir if it is not complete: what a save that failed has left.
func Discard(dir string) error {
	st := at(dir)
	if err := refuseComplete(st, dir); err != nil {
		return err
	}
	if err := st.remove(dir); err != nil {
		return fmt.Errorf("checkpoint: remove %s: %w", dir, err)
	}
	return nil
}

// Found is a folder that has the [Name] of a checkpoint.
type Found struct {
	Name                string
	Version, Generation int64
	Complete            bool // it has a manifest; what that is worth, [Open] says
}

// List is what dir holds, newest first: a later life of a job is newer, even if it resumed from far back.
func List(dir string) ([]Found, error) { return list(at(dir), dir) }

func list(st store, dir string) ([]Found, error) {
	folders, err := st.list(dir)
	if err != nil {
		return nil, lost(dir, err)
	}
	var found []Found
	for _, f := range folders {
		version, generation, ok := parseName(f.name)
		if !ok {
			continue
		}
		found = append(found, Found{f.name, version, generation, slices.Contains(f.files, ManifestName)})
	}
	slices.SortFunc(found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Generation, a.Generation), cmp.Compare(b.Version, a.Version))
	})
	return found, nil
}

// Complete says whether dir is a checkpoint that has a manifest.
func Complete(dir string) bool {
	_, err := at(dir).size(dir, ManifestName)
	return err == nil
}

// Describe returns the manifest of the checkpoint in dir. It verifies the manifest's own checksum
// and no other file.
func Describe(dir string) (Manifest, error) {
	m, err := readManifest(at(dir), dir)
	if err != nil {
		return Manifest{}, err
	}
	return *m, nil
}
