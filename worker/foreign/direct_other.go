//go:build !linux

package foreign

import (
	"errors"
	"net"
	"os"
	"time"
)

func unpolled(*net.UnixConn) (*os.File, error) {
	return nil, errors.New("a model in another process needs Linux")
}

// unpolled fails, so there is no conn that could call the other functions.

func readable(uintptr) (*os.File, error)            { panic("foreign: no link") }
func receive(uintptr, []byte) (int, error)          { panic("foreign: no link") }
func transmit(uintptr, []byte, time.Duration) error { panic("foreign: no link") }
func transmitFile(uintptr, []byte, *os.File) error  { panic("foreign: no link") }
func hungUp(uintptr)                                { panic("foreign: no link") }
func shutDown(uintptr)                              { panic("foreign: no link") }
