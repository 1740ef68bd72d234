//go:build !linux

package actuate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// DefaultDir is the default folder of leases.
func DefaultDir() string { return filepath.Join(os.TempDir(), "star") }

// Store is unused here: only Linux has quotas and filters that need leases.
type Store struct{ dir string }

// OpenStore returns the store in a folder; empty: the default one.
func OpenStore(dir string) *Store {
	if dir == "" {
		dir = DefaultDir()
	}
	return &Store{dir}
}

// Dir is the folder.
func (s *Store) Dir() string { return s.dir }

// List is empty.
func (s *Store) List() ([]Entry, error) { return nil, nil }

// Undone is the result for one lease.
type Undone struct {
	Entry
	Err error
}

// Undo has no leases to undo.
func (s *Store) Undo(names ...string) ([]Undone, error) {
	if len(names) > 0 {
		return nil, fmt.Errorf("no lease %q: %w", names[0], errors.ErrUnsupported)
	}
	return nil, nil
}

type unsupported struct{ what string }

// Apply needs Linux.
func (u unsupported) Apply(l Limit, _ time.Time) error {
	if l.Zero() {
		return nil
	}
	return fmt.Errorf("%s needs Linux; use --actuator pace: %w", u.what, errors.ErrUnsupported)
}

// Undo has nothing to undo.
func (u unsupported) Undo() error { return nil }

// Cgroup needs Linux.
type Cgroup struct{ unsupported }

// NewCgroup returns an actuator that refuses limits.
func NewCgroup(*Store, string, int) *Cgroup { return &Cgroup{unsupported{"a CPU quota"}} }

// TC needs Linux.
type TC struct{ unsupported }

// NewTC returns an actuator that refuses limits.
func NewTC(*Store, string, string, string) *TC { return &TC{unsupported{"tc"}} }
