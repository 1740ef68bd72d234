package checkpoint

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Piece is what an encoder remembers of the elements From to To-1 of the flat vector beside what it has left out
// (compress.Memory).
type Piece struct {
	From, To int64
	Warm     []float32
	Drawn    uint64
}

// Residual says what one worker's codec has left out of its gradients so far. The values themselves, one for each
// parameter, are written and read piece by piece: there may be many.
type Residual struct {
	Worker    int
	Version   int64 // of the parameters
	ModelHash string
	Codec     string // its name
	Pieces    []Piece
}

// ResidualFile is a worker's file of what its codec has left out. As JSON it is what a worker tells the
// coordinator when it has saved.
type ResidualFile struct {
	File
	Worker  int    `json:"worker"`
	Version int64  `json:"version"` // of the parameters
	Codec   string `json:"codec"`

	// Weight is c of the update rule for this worker's gradients: what is left out would have changed the parameters by
	// Weight times the learning rate times it. In an all-reduce it is 1, because there gradients are weighted before
	// they are encoded.
	Weight float64 `json:"weight"`
}

// ResidualName is the file of the worker with the given rank.
func ResidualName(worker int) string { return fmt.Sprintf("residual-%05d.safetensors", worker) }

const (
	residualTensor = "residual"
	warmPrefix     = "warm."
	drawnPrefix    = "drawn."
)

// span is the end of a key: the elements that it is about.
func span(prefix string, from, to int64) string { return fmt.Sprintf("%s%d-%d", prefix, from, to) }

// parseSpan is the reverse.
func parseSpan(key, prefix string) (from, to int64, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	a, b, cut := strings.Cut(rest, "-")
	if !ok || !cut {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(a, 10, 64)
	if err == nil {
		to, err = strconv.ParseInt(b, 10, 64)
	}
	return from, to, err == nil && 0 <= from && from < to
}

// WriteResidual writes a worker's file into the checkpoint folder dir, for Manifest.Residuals. next
// fills its argument with the following values, params in all. The writer of the manifest sets
// Weight.
func WriteResidual(dir string, params int64, r Residual, next func(dst []float32)) (ResidualFile, error) {
	return writeResidual(at(dir), dir, params, r, next)
}

func writeResidual(st store, dir string, params int64, r Residual, next func(dst []float32)) (ResidualFile, error) {
	if err := refuseComplete(st, dir); err != nil {
		return ResidualFile{}, err
	}
	meta := map[string]string{
		"worker":     strconv.Itoa(r.Worker),
		"version":    strconv.FormatInt(r.Version, 10),
		"model_hash": r.ModelHash,
		"codec":      r.Codec,
	}
	tensors := []Tensor{{Name: residualTensor, DType: "F32", Shape: []int64{params}}}
	for _, p := range r.Pieces {
		if len(p.Warm) > 0 {
			tensors = append(tensors, Tensor{Name: span(warmPrefix, p.From, p.To), DType: "F32", Shape: []int64{int64(len(p.Warm))}})
		}
		if p.Drawn > 0 {
			meta[span(drawnPrefix, p.From, p.To)] = strconv.FormatUint(p.Drawn, 10)
		}
	}
	f, err := writeFile(st, dir, ResidualName(r.Worker), func(w io.Writer) error {
		head, err := appendHeader(nil, tensors, meta)
		if err != nil {
			return err
		}
		if _, err := w.Write(head); err != nil {
			return err
		}
		part, buf := make([]float32, min(params, chunk)), make([]byte, 4*chunk)
		for at := int64(0); at < params; at += int64(len(part)) {
			part = part[:min(params-at, chunk)]
			next(part)
			if err := writeFloats(w, part, buf); err != nil {
				return err
			}
		}
		for _, p := range r.Pieces {
			if err := writeFloats(w, p.Warm, buf); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return ResidualFile{}, err
	}
	return ResidualFile{File: f, Worker: r.Worker, Version: r.Version, Codec: r.Codec}, nil
}

// There reports whether the file is in the checkpoint folder dir, with its size: its writer may have
// used another folder of the same name on another machine.
func (f ResidualFile) There(dir string) error {
	size, err := at(dir).size(dir, f.Name)
	if err != nil {
		return lost(Join(dir, f.Name), err)
	}
	if size != f.Size {
		return corrupt(Join(dir, f.Name), min(size, f.Size), fmt.Sprintf("%d bytes in all", f.Size), "%d", size)
	}
	return nil
}

// Residuals is what the workers' codecs have left out by a checkpoint. Every byte was verified when it was opened;
// it holds no file open.
type Residuals struct {
	st      store
	dir     string
	m       *Manifest
	headers []*Header
}

// OpenResiduals verifies the manifest of the checkpoint in the folder dir and its files of residuals, and no
// others. There may be none.
func OpenResiduals(dir string) (*Residuals, error) {
	st := at(dir)
	m, err := readManifest(st, dir)
	if err != nil {
		return nil, err
	}
	return residualsIn(st, dir, m)
}

func residualsIn(st store, dir string, m *Manifest) (*Residuals, error) {
	r := &Residuals{st: st, dir: dir, m: m}
	for _, f := range m.Residuals {
		h, err := verify(st, dir, f.File)
		if err != nil {
			return nil, err
		}
		for _, t := range h.Tensors {
			_, _, warm := parseSpan(t.Name, warmPrefix)
			if t.DType != "F32" || !warm && (t.Name != residualTensor || t.End-t.Begin != 4*m.Params) {
				return nil, corrupt(Join(dir, f.Name), 8, fmt.Sprintf("tensor %q of %d F32, and starts of powersgd", residualTensor, m.Params), "%s", describe(h))
			}
		}
		if _, ok := h.Find(residualTensor); !ok {
			return nil, corrupt(Join(dir, f.Name), 8, fmt.Sprintf("a tensor %q", residualTensor), "%s", describe(h))
		}
		r.headers = append(r.headers, h)
	}
	return r, nil
}

// Residuals is what the workers' codecs have left out by this checkpoint.
func (c *Checkpoint) Residuals() *Residuals { return c.residuals }

// Files are those of the manifest, in order of rank.
func (r *Residuals) Files() []ResidualFile { return r.m.Residuals }

// Dir is the folder of the checkpoint.
func (r *Residuals) Dir() string { return r.dir }

// find is the place of a worker's file.
func (r *Residuals) find(worker int) (int, error) {
	i := slices.IndexFunc(r.m.Residuals, func(f ResidualFile) bool { return f.Worker == worker })
	if i < 0 {
		return 0, fmt.Errorf("checkpoint: %s has no residual of worker %d", r.dir, worker)
	}
	return i, nil
}

// Range fills dst with the elements from, from+1, … of what a worker has left out.
func (r *Residuals) Range(worker int, from int64, dst []float32) error {
	i, err := r.find(worker)
	if err != nil {
		return err
	}
	if from < 0 || from+int64(len(dst)) > r.m.Params {
		return fmt.Errorf("checkpoint: residual of worker %d: elements %d to %d of %d", worker, from, from+int64(len(dst)), r.m.Params)
	}
	t, _ := r.headers[i].Find(residualTensor)
	return readPart(r.st, r.dir, r.m.Residuals[i].Name, r.headers[i].Data+t.Begin+4*from, dst, make([]byte, 4*min(len(dst), chunk)))
}

// Pieces is what a worker's encoders remember beside.
func (r *Residuals) Pieces(worker int) ([]Piece, error) {
	i, err := r.find(worker)
	if err != nil {
		return nil, err
	}
	f, h := r.m.Residuals[i], r.headers[i]
	var ps []Piece
	for _, t := range h.Tensors {
		from, to, ok := parseSpan(t.Name, warmPrefix)
		if !ok {
			continue
		}
		p := Piece{From: from, To: to, Warm: make([]float32, (t.End-t.Begin)/4)}
		if err := readPart(r.st, r.dir, f.Name, h.Data+t.Begin, p.Warm, make([]byte, 4*min(len(p.Warm), chunk))); err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	for key, value := range h.Metadata {
		if from, to, ok := parseSpan(key, drawnPrefix); ok {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return nil, corrupt(Join(r.dir, f.Name), 8, "a number of blocks in "+clip(key), "%q", clip(value))
			}
			ps = append(ps, Piece{From: from, To: to, Drawn: n})
		}
	}
	slices.SortFunc(ps, func(a, b Piece) int {
		if a.From != b.From {
			return compare(a.From, b.From)
		}
		return compare(a.To, b.To)
	})
	return ps, nil
}

// checkResiduals names what is wrong with the files of residuals, or is empty. names are those of the other files.
func (m *Manifest) checkResiduals(names map[string]bool) string {
	last := -1
	for _, f := range m.Residuals {
		if problem := f.File.check(); problem != "" {
			return problem
		}
		switch {
		case names[f.Name]:
			return fmt.Sprintf("file %q is listed twice", clip(f.Name))
		case f.Worker <= last:
			return fmt.Sprintf("the residual of worker %d follows that of worker %d: put them in order of rank, each once", f.Worker, last)
		case f.Version != m.Version:
			return fmt.Sprintf("the residual of worker %d is of version %d, the manifest of %d", f.Worker, f.Version, m.Version)
		case !(f.Weight > 0) || math.IsInf(f.Weight, 1):
			return fmt.Sprintf("the residual of worker %d has weight %v", f.Worker, f.Weight)
		}
		names[f.Name], last = true, f.Worker
	}
	return ""
}
