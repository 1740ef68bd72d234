//go:build !linux

package doctor

import (
	"errors"
	"math"
	"os"
	"runtime"
	"time"
)

func allowed() (cpus []int) {
	for i := range runtime.NumCPU() {
		cpus = append(cpus, i)
	}
	return cpus
}

func pin(int) {}

func threadTime() time.Duration { return 0 }

func openDirect(path string, flags int) (*os.File, bool, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	return f, false, err
}

func uncache(*os.File) {}

func spaceFor(string) (int64, error) { return math.MaxInt64, nil }

func kernelName() string { return "" }

func placeName() string { return "" }

func processor() string { return runtime.GOARCH }

func kernelLog() ([]string, time.Duration, error) {
	return nil, 0, errors.New("the kernel's log is read on Linux only")
}

func clockLimit(string) (float64, int) { return 0, 0 }
