//go:build !linux

package actuate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// DefaultDir is where leases would be.
func DefaultDir() string { return filepath.Join(os.TempDir(), "star") }

// Store would be a folder of leases. Here nothing needs one: quotas and filters need Linux.
type Store struct{ dir string }

// OpenStore is the store in a folder; empty: the default one.
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

// Undone is what became of one lease.
type Undone struct {
	Entry
	Err error
}

// Undo finds nothing to undo.
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

// Lease says that nothing is in force.
func (u unsupported) Lease() (Lease, bool) { return Lease{}, false }

// Cgroup needs Linux.
type Cgroup struct{ unsupported }

// NewCgroup makes an actuator that refuses.
func NewCgroup(*Store, string, int) *Cgroup { return &Cgroup{unsupported{"a CPU quota"}} }

// TC needs Linux.
type TC struct{ unsupported }

// NewTC makes an actuator that refuses.
func NewTC(*Store, string, string, string) *TC { return &TC{unsupported{"tc"}} }
