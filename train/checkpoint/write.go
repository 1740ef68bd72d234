package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"star/internal/dtype"
)

// Format is the newest version of the layout of checkpoints. [WriteManifest] writes 1 where all buffers are
// float32, which is what earlier versions of this package read.
const Format = 2

// ManifestName is the file of the manifest.
const ManifestName = "manifest.json"

// TensorSpec names one tensor inside a flat vector.
type TensorSpec struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Offset int    `json:"offset"`          // words of 4 bytes from the start of the vector
	DType  string `json:"dtype,omitempty"` // of its elements, a name of package dtype; empty: F32
}

// File is one file of a checkpoint.
type File struct {
	Name   string `json:"name"` // without folder
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// ShardFile is a shard's file and the range of the flat vector that it holds.
// As JSON it is what a shard tells the coordinator when it has saved.
type ShardFile struct {
	File
	From      int64  `json:"from"` // elements
	To        int64  `json:"to"`
	Version   int64  `json:"version"`   // of the parameters
	Optimizer string `json:"optimizer"` // its name
	Steps     int64  `json:"steps"`     // of the optimiser
}

// Manifest describes a checkpoint. What the caller does not know it leaves zero.
type Manifest struct {
	Format    int    `json:"format"` // set by WriteManifest
	Job       string `json:"job"`
	Model     string `json:"model"`      // readable
	ModelHash string `json:"model_hash"` // what must agree to resume
	Created   string `json:"created"`    // RFC 3339

	Program string `json:"program,omitempty"` // name and version of the program that wrote it; empty: an older one
	Commit  string `json:"commit,omitempty"`  // that it was built from

	Params       int64        `json:"params"` // elements of the flat vector
	Layout       []TensorSpec `json:"layout"`
	BufferLayout []TensorSpec `json:"buffer_layout,omitempty"`

	Version    int64 `json:"version"`    // of the parameters: updates so far
	Samples    int64 `json:"samples"`    // applied so far: the clock of schedules
	Cursor     int64 `json:"cursor"`     // next position of the sample stream
	Generation int64 `json:"generation"` // of the coordinator that wrote it

	Optimizer string `json:"optimizer"`
	Steps     int64  `json:"steps"` // of the optimiser

	// FirstAttempt is the generation of the job's first attempt in this folder; 0: this one. It
	// identifies the job's own checkpoints when only the newest are kept.
	FirstAttempt int64 `json:"first_life,omitempty"`

	Data *Data `json:"data,omitempty"`

	// Config is the job's effective configuration, JSON or nil.
	Config json.RawMessage `json:"config,omitempty"`
	Extra  Extra           `json:"extra,omitzero"`

	Shards  []ShardFile `json:"shards"`
	Buffers *File       `json:"buffers,omitempty"`

	// Residuals are what the workers' codecs have left out of their gradients, in order of rank: of those that
	// could tell.
	Residuals []ResidualFile `json:"residuals,omitempty"`

	// More are files of the writer's own, which are verified like all others: what predicts the workers' iterations.
	More []File `json:"more,omitempty"`
}

// Slot is a vector of optimiser state, one element for each parameter.
type Slot struct {
	Name string
	Data []float32
}

// Shard is the state of one range of the flat vector.
type Shard struct {
	From, To  int64 // elements
	Version   int64
	ModelHash string
	Optimizer string
	Steps     int64
	Params    []float32 // To-From elements
	Slots     []Slot
}

// Name is the folder of a checkpoint: its version of the parameters, and the
// generation of the coordinator, so that a job which resumed from an older
// checkpoint and comes by the same version again writes into a new folder. A job
// that resumes adds one to the generation it finds in the manifest: [Latest]
// takes a later life for newer, even one that went back to an older version.
func Name(version, generation int64) string {
	return fmt.Sprintf("ckpt-%012d-g%d", version, generation)
}

// ShardName is the file of the shard with the given index.
func ShardName(index int) string { return fmt.Sprintf("shard-%05d.safetensors", index) }

const buffersName = "buffers.safetensors"

// WriteShard writes the file of shard index into the checkpoint folder dir,
// which it makes if need be. A folder with a manifest is complete and refused.
func WriteShard(dir string, index int, s Shard) (ShardFile, error) {
	return writeShard(at(dir), dir, index, s)
}

func writeShard(st store, dir string, index int, s Shard) (ShardFile, error) {
	if s.From < 0 || s.To < s.From || int64(len(s.Params)) != s.To-s.From {
		return ShardFile{}, fmt.Errorf("checkpoint: shard %d: %d parameters for the range %d..%d", index, len(s.Params), s.From, s.To)
	}
	if err := refuseComplete(st, dir); err != nil {
		return ShardFile{}, err
	}
	n := []int64{s.To - s.From}
	tensors := []Tensor{{Name: paramsName, DType: "F32", Shape: n}}
	for _, slot := range s.Slots {
		if len(slot.Data) != len(s.Params) {
			return ShardFile{}, fmt.Errorf("checkpoint: shard %d: slot %s has %d elements, expected %d", index, slot.Name, len(slot.Data), len(s.Params))
		}
		tensors = append(tensors, Tensor{Name: slot.Name, DType: "F32", Shape: n})
	}
	meta := map[string]string{
		"from":       strconv.FormatInt(s.From, 10),
		"to":         strconv.FormatInt(s.To, 10),
		"version":    strconv.FormatInt(s.Version, 10),
		"model_hash": s.ModelHash,
		"optimizer":  s.Optimizer,
		"steps":      strconv.FormatInt(s.Steps, 10),
	}
	f, err := writeFile(st, dir, ShardName(index), func(w io.Writer) error {
		head, err := appendHeader(nil, tensors, meta)
		if err != nil {
			return err
		}
		if _, err := w.Write(head); err != nil {
			return err
		}
		buf := make([]byte, 4*chunk)
		if err := writeFloats(w, s.Params, buf); err != nil {
			return err
		}
		for _, slot := range s.Slots {
			if err := writeFloats(w, slot.Data, buf); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return ShardFile{}, err
	}
	return ShardFile{File: f, From: s.From, To: s.To, Version: s.Version, Optimizer: s.Optimizer, Steps: s.Steps}, nil
}

const paramsName = "params"

// WriteBuffers writes the flat vector of the model's buffers into the checkpoint
// folder dir: words, whatever the types of the tensors in them.
func WriteBuffers(dir string, data []float32) (File, error) {
	return writeBuffers(at(dir), dir, data)
}

func writeBuffers(st store, dir string, data []float32) (File, error) {
	if err := refuseComplete(st, dir); err != nil {
		return File{}, err
	}
	return writeFile(st, dir, buffersName, func(w io.Writer) error {
		head, err := appendHeader(nil, []Tensor{{Name: buffersTensor, DType: "F32", Shape: []int64{int64(len(data))}}}, nil)
		if err != nil {
			return err
		}
		if _, err := w.Write(head); err != nil {
			return err
		}
		return writeFloats(w, data, make([]byte, 4*chunk))
	})
}

const buffersTensor = "buffers"

// WriteMore writes a file of the caller's own into the checkpoint folder dir, for Manifest.More. It has at least 8
// bytes.
func WriteMore(dir, name string, text []byte) (File, error) {
	st := at(dir)
	if err := refuseComplete(st, dir); err != nil {
		return File{}, err
	}
	return writeFile(st, dir, name, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func refuseComplete(st store, dir string) error {
	path := Join(dir, ManifestName)
	if _, err := st.size(dir, ManifestName); !errors.Is(err, os.ErrNotExist) {
		if err == nil {
			err = os.ErrExist
		}
		return fmt.Errorf("checkpoint: %s: %w: a complete checkpoint is not written over; choose another folder", path, err)
	}
	return nil
}

// WriteManifest completes the checkpoint in dir, after all its other files. It rejects a manifest
// with shards that do not cover the parameters or do not agree on version and optimizer.
func WriteManifest(dir string, m Manifest) error { return writeManifest(at(dir), dir, m) }

func writeManifest(st store, dir string, m Manifest) error {
	m.Format = 1
	if slices.ContainsFunc(m.BufferLayout, func(t TensorSpec) bool { return t.DType != "" && t.DType != dtype.F32 }) {
		m.Format = 2
	}
	if problem := m.check(); problem != "" {
		return fmt.Errorf("checkpoint: manifest for %s: %s", dir, problem)
	}
	if err := refuseComplete(st, dir); err != nil {
		return err
	}
	body, err := json.MarshalIndent(m, "  ", "  ")
	if err != nil {
		return fmt.Errorf("checkpoint: manifest for %s: %w", dir, err)
	}
	sum := sha256.Sum256(body)
	_, err = writeFile(st, dir, ManifestName, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "{\n  \"sha256\": %q,\n  \"manifest\": %s\n}\n", hex.EncodeToString(sum[:]), body)
		return err
	})
	return err
}

// check names what is wrong with m, or is empty.
func (m *Manifest) check() string {
	if m.Format < 1 || m.Format > Format {
		return fmt.Sprintf("format %d; this program knows 1 to %d: use the version of star that wrote it", m.Format, Format)
	}
	if problem := m.checkProgress(); problem != "" {
		return problem
	}
	if problem := checkLayout("layout", m.Layout, m.Params); problem != "" {
		return problem
	}
	for _, t := range m.Layout {
		if t.DType != "" && t.DType != dtype.F32 {
			return fmt.Sprintf("layout: parameter %q is %s, expected F32", clip(t.Name), clip(t.DType))
		}
	}
	buffers := int64(0)
	if m.Buffers != nil {
		if problem := m.Buffers.check(); problem != "" {
			return problem
		}
		buffers = (m.Buffers.Size - 8) / 4 // at most; the file itself is checked when it is read
		for _, t := range m.BufferLayout {
			if n, ok := t.words(); !ok || n > buffers {
				return fmt.Sprintf("buffer_layout: tensor %q of shape %v does not fit into %s", clip(t.Name), t.Shape, m.Buffers.Name)
			}
		}
	} else if len(m.BufferLayout) > 0 {
		return "there is a buffer_layout but no file of buffers"
	}
	if len(m.Shards) == 0 {
		return "there are no shards"
	}
	names := map[string]bool{}
	for _, f := range m.More {
		if problem := f.check(); problem != "" {
			return problem
		}
		if names[f.Name] {
			return fmt.Sprintf("file %q is listed twice", clip(f.Name))
		}
		names[f.Name] = true
	}
	if problem := m.checkResiduals(names); problem != "" {
		return problem
	}
	at := int64(0)
	for i, s := range m.Shards {
		if problem := s.File.check(); problem != "" {
			return problem
		}
		if names[s.Name] {
			return fmt.Sprintf("two shards in file %q", s.Name)
		}
		names[s.Name] = true
		if s.From != at || s.To < s.From {
			return fmt.Sprintf("shard %d holds %d..%d, expected it to begin at %d: put shards in order, without gap or overlap", i, s.From, s.To, at)
		}
		at = s.To
		if s.Version != m.Version || s.Optimizer != m.Optimizer || s.Steps != m.Steps {
			return fmt.Sprintf("shard %d is at version %d after %d steps of %q, the manifest at %d after %d of %q",
				i, s.Version, s.Steps, s.Optimizer, m.Version, m.Steps, m.Optimizer)
		}
	}
	if at != m.Params {
		return fmt.Sprintf("the shards hold %d parameters of %d", at, m.Params)
	}
	return ""
}

// check keeps names within the folder: a manifest is a file from elsewhere.
func (f File) check() string {
	if f.Name == "" || f.Name == "." || f.Name == ".." || f.Name != filepath.Base(f.Name) || f.Name == ManifestName {
		return fmt.Sprintf("%q is not the name of a file in the folder", clip(f.Name))
	}
	if f.Size < 8 {
		return fmt.Sprintf("file %q has %d bytes", f.Name, f.Size)
	}
	if b, err := hex.DecodeString(f.SHA256); err != nil || len(b) != sha256.Size {
		return fmt.Sprintf("file %q has no SHA-256", f.Name)
	}
	return ""
}

// checkLayout says whether the tensors follow each other from 0 to n.
func checkLayout(what string, layout []TensorSpec, n int64) string {
	at := int64(0)
	for _, t := range layout {
		k, ok := t.words()
		at = int64(dtype.Begin(t.DType, int(at)))
		if !ok || int64(t.Offset) != at || k > n-at {
			return fmt.Sprintf("%s: tensor %q of shape %v at %d, expected it at %d and within %d", what, clip(t.Name), t.Shape, t.Offset, at, n)
		}
		at += k
	}
	if len(layout) > 0 && at != n {
		return fmt.Sprintf("%s: %d words in tensors of %d", what, at, n)
	}
	return ""
}

// length is the number of elements, false if there can be no such tensor.
func (t TensorSpec) length() (int64, bool) {
	const limit = 1 << 50
	n := int64(1)
	for _, k := range t.Shape {
		if k < 0 || (k > 0 && n > limit/int64(k)) {
			return 0, false
		}
		n *= int64(k)
	}
	return n, true
}

// words is how many words of 4 bytes the tensor takes, false if there can be no such tensor.
func (t TensorSpec) words() (int64, bool) {
	n, ok := t.length()
	if !ok || dtype.Size(t.DType) == 0 {
		return 0, false
	}
	return int64(dtype.Words(t.DType, int(n))), true
}
