//go:build unix

package daemon

import (
	"math"
	"strings"
	"testing"

	"star/internal/exitcode"
	"star/job"
)

func TestRoom(t *testing.T) {
	for limit, fits := range map[uint64]bool{math.MaxUint64: true, needed: true, needed - 1: false, 900_000 << 10: false} {
		if err := room(limit); (err == nil) != fits {
			t.Errorf("%d bytes: %v", limit, err)
		}
	}
	err := room(900_000 << 10)
	if job.ExitCode(err) != exitcode.Lost || !strings.Contains(err.Error(), "921 MB") || !strings.Contains(err.Error(), "ulimit -v") {
		t.Error(job.ExitCode(err), err)
	}
}
