package launch

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"star/cmd/internal/console"
	"star/cmd/tests/jobtest"
)

// Commands of workers on one host share its processors, unless the user says how many threads they have.
func TestThreadsOfWorkers(t *testing.T) {
	threads := func(flags ...string) (found []string) {
		job := jobtest.Settings(t, flags...)
		r := &Launch{job: job, Options: Options{Screen: console.NewScreen(job), Command: []string{"python3", "train.py"}}, addr: "127.0.0.1:7700"}
		for _, e := range r.child("worker", 1).cmd.Env {
			if strings.HasPrefix(e, "OMP_NUM_THREADS=") {
				found = append(found, strings.TrimPrefix(e, "OMP_NUM_THREADS="))
			}
		}
		return found
	}
	t.Setenv("OMP_NUM_THREADS", "")
	if got := threads("--workers", strconv.Itoa(4*runtime.GOMAXPROCS(0))); got[len(got)-1] != "1" {
		t.Errorf("with four workers on each processor: %v", got)
	}
	if got := threads("--workers", "1"); got[len(got)-1] != strconv.Itoa(runtime.GOMAXPROCS(0)) {
		t.Errorf("one worker: %v", got)
	}
	if got := threads("--workers", "2", "--threads", "3"); got[len(got)-1] != "3" {
		t.Errorf("--threads 3: %v", got)
	}
	t.Setenv("OMP_NUM_THREADS", "7")
	if got := threads("--workers", "2"); !slices.Equal(got, []string{"7"}) {
		t.Errorf("set by the user to 7: %v", got)
	}
}
