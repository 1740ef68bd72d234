//go:build !linux

package foreign

import "os"

func makeMemory(size int) (*os.File, []byte, error) { return nil, nil, errNoMemory }

func freeMemory([]byte) error { return nil }
