//go:build !linux

package inject

import (
	"errors"
	"fmt"
)

// Quota needs Linux.
func Quota(int, float64) (func() error, error) {
	return nil, fmt.Errorf("straggler by quota: needs Linux; use --straggler-by sleep: %w", errors.ErrUnsupported)
}

// Shape needs Linux.
func Shape(string, string, int64) (func() error, error) {
	return nil, fmt.Errorf("straggler by tc: needs Linux; use --straggler-by sleep: %w", errors.ErrUnsupported)
}
