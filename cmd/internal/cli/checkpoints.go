package cli

import (
	"os"
	"path/filepath"

	"star/job/process"
	"star/train/checkpoint"
)

// Saved is a checkpoint as ls and verify show it.
type Saved struct {
	Path       string `json:"path"`
	Version    int64  `json:"version"`
	Generation int64  `json:"generation"`
	State      string `json:"state"` // complete, incomplete or damaged; of verify: verified
	Created    string `json:"created,omitempty"`
	Job        string `json:"job,omitempty"`
	Model      string `json:"model,omitempty"`
	Samples    int64  `json:"samples"`
	Params     int64  `json:"params"`
	Shards     int    `json:"shards"`
	Bytes      int64  `json:"bytes"` // of its files, without the manifest
	Optimizer  string `json:"optimizer,omitempty"`
	Residuals  []int  `json:"residuals,omitempty"` // workers with codec residuals in it
	Error      string `json:"error,omitempty"`

	Err error `json:"-"`
}

func (s *Saved) describe(m checkpoint.Manifest) {
	s.Version, s.Generation, s.Created, s.Job, s.Model = m.Version, m.Generation, m.Created, m.Job, m.Model
	s.Samples, s.Params, s.Shards, s.Optimizer = m.Samples, m.Params, len(m.Shards), m.Optimizer
	for _, f := range m.Shards {
		s.Bytes += f.Size
	}
	if m.Buffers != nil {
		s.Bytes += m.Buffers.Size
	}
	for _, f := range m.Residuals {
		s.Bytes += f.Size
		s.Residuals = append(s.Residuals, f.Worker)
	}
}

// LookAt lists the checkpoints of a place, newest first; look describes each that is complete.
func LookAt(place string, look func(path string) (checkpoint.Manifest, error)) ([]*Saved, error) {
	one := func(path string) *Saved {
		s := &Saved{Path: path, State: "complete"}
		m, err := look(path)
		if err != nil {
			s.State, s.Error, s.Err = "damaged", err.Error(), err
			return s
		}
		s.describe(m)
		return s
	}
	if checkpoint.Complete(place) {
		return []*Saved{one(place)}, nil
	}
	if sub := filepath.Join(place, process.CheckpointsDir); IsFolder(sub) {
		place = sub
	}
	found, err := checkpoint.List(place)
	if err != nil {
		return nil, err
	}
	var all []*Saved
	for _, f := range found {
		path := checkpoint.Join(place, f.Name)
		if !f.Complete {
			all = append(all, &Saved{Path: path, Version: f.Version, Generation: f.Generation, State: "incomplete"})
			continue
		}
		s := one(path)
		s.Version, s.Generation = f.Version, f.Generation
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, &checkpoint.Error{Kind: checkpoint.ErrMissing, Path: place, Offset: -1, Expected: "checkpoints", Found: "none"}
	}
	return all, nil
}

// IsFolder reports whether path is a folder that can be read.
func IsFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
