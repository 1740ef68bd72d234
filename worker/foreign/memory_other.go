//go:build !linux

package foreign

import (
	"errors"
	"os"
)

func makeMemory(int) (*os.File, []byte, error) {
	return nil, nil, errors.New("foreign: models in other processes need Linux (memfd_create and seals)")
}

func freeMemory([]byte) error { return nil }
