package daemon

import (
	"os"
	"strings"
	"testing"

	"star/job"
)

// A limit that leaves too few threads is an error that names it, the fix, and a code.
func TestThreads(t *testing.T) {
	for _, c := range []struct {
		limit, used, need int
		ok                bool
	}{{20, 0, 70, false}, {80, 0, 70, true}, {80, 11, 70, false}, {70, 0, 70, true}} {
		err := threads(c.limit, c.used, c.need)
		if (err == nil) != c.ok {
			t.Errorf("limit %d, %d used, %d needed: %v", c.limit, c.used, c.need, err)
		}
		if err != nil && (job.ExitCode(err) != 69 || !strings.Contains(err.Error(), "ulimit -u")) {
			t.Errorf("%v ends with %d", err, job.ExitCode(err))
		}
	}
}

// This process counts as one of its user's, with its threads.
func TestThreadsOf(t *testing.T) {
	if n := threadsOf(os.Getuid()); n < 2 {
		t.Errorf("%d threads of this user", n)
	}
	if n := threadsOf(1<<31 - 7); n != 0 {
		t.Errorf("%d threads of a user that does not exist", n)
	}
	text := "Name:\tstar\nUid:\t1000\t0\t0\t0\nThreads:\t14\nCapEff:\t0000000001200000\n"
	for key, want := range map[string]string{"Uid": "1000", "Threads": "14", "CapEff": "0000000001200000", "Groups": ""} {
		if got := status(text, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}
