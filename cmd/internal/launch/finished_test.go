package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"star/cmd/internal/console"
	"star/internal/settings"
)

// A job has ended well when the coordinating process reports it, also where a late server is ended by a signal.
func TestLateServersOfAFinishedJob(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs sleep(1)")
	}
	for _, electors := range []int{0, 3} {
		r := &Launch{job: &settings.Job{}, Options: Options{Screen: console.NewScreen(&settings.Job{})}, ended: make(chan exit), over: make(chan struct{})}
		// a worker was restarted: the processes that are left get the signal after a second
		r.job.WorkerRestarts, r.left = 2, 1
		r.electors.count = electors
		var children []*child
		for rank := range max(1, electors) + 2 {
			c := &child{name: "ps", role: "ps", rank: rank, cmd: exec.Command("sleep", "60")}
			if rank < max(1, electors) {
				c.cmd = exec.Command("true")
			}
			if err := c.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			children = append(children, c)
			go func() { r.ended <- exit{c, c.cmd.Wait()} }()
		}
		if err := r.wait(t.Context(), children, r.ended); err != nil {
			t.Errorf("%d may coordinate: %v", electors, err)
		}
	}
}

// The caller's command may do what it wants behind its loop when the job is over, and its exit code is that of star
// run. A worker that has not ended in good order is killed.
func TestCommandsGoOnBehindTheJob(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs sh(1)")
	}
	t.Parallel()
	for _, c := range []struct {
		format, says string
		code         int
		goesOn       bool
	}{
		{"text", "finished steps=20 to_shards=3824", 0, true},
		{"JSON", `{"level":"INFO","msg":"finished","role":"worker","rank":0,"steps":20}`, 3, true},
		{"neither", "epoch 3", 3, false},
	} {
		t.Run(c.format, func(t *testing.T) {
			t.Parallel()
			r := &Launch{job: &settings.Job{}, Options: Options{Screen: console.NewScreen(&settings.Job{})}, ended: make(chan exit), over: make(chan struct{})}
			r.job.WorkerRestarts, r.left = 2, 1 // a worker was restarted: idle processes get a signal after a second
			wrote := filepath.Join(t.TempDir(), "wrote")
			children := []*child{
				{name: "ps 0", role: "ps", cmd: exec.Command("true")},
				{name: "worker 0", role: "worker", own: true, cmd: exec.Command("sh", "-c", `echo "$SAYS" >&2; sleep 10; : > "$WROTE"; exit "$CODE"`)},
			}
			children[1].cmd.Env = append(os.Environ(), "SAYS="+c.says, "WROTE="+wrote, fmt.Sprint("CODE=", c.code))
			for _, c := range children {
				if err := r.start(c, r.ended); err != nil {
					t.Fatal(err)
				}
			}
			err := r.wait(t.Context(), children, r.ended)
			var failed *childError
			if errors.As(err, &failed) != (c.goesOn && c.code != 0) || failed != nil && (failed.ExitCode() != c.code || mends(t.Context(), err)) {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(wrote); (err == nil) != c.goesOn {
				t.Errorf("what is behind the loop: %v", err)
			}
		})
	}
}

// A job that fails before its first update ends with the reason of its coordinator, also where a server that the
// coordinator has ended exits first.
func TestCoordinatorSaysWhyAJobFailed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs sh(1)")
	}
	job := &settings.Job{Shards: 2}
	r := &Launch{job: job, Options: Options{Screen: console.NewScreen(job)}, ended: make(chan exit), over: make(chan struct{})}
	ready := filepath.Join(t.TempDir(), "ready") // ps 0 handles the signal from then on
	children := []*child{
		{name: "ps 0", role: "ps", cmd: exec.Command("sh", "-c",
			`trap 'echo "star: worker 1 failed" >&2; exit 2' TERM; : >"$0"; while :; do sleep 0.1; done`, ready)},
		{name: "ps 1", role: "ps", rank: 1, cmd: exec.Command("sh", "-c",
			`while [ ! -e "$0" ]; do sleep 0.02; done; echo "star: ended by the coordinator" >&2; exit 2`, ready)},
	}
	for _, c := range children {
		if err := r.start(c, r.ended); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.wait(t.Context(), children, r.ended); err == nil || err.Error() != "ps 0 ended with exit code 2: worker 1 failed" {
		t.Errorf("%v", err)
	}
}
