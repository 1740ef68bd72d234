package launch

import (
	"os/exec"
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
	for _, seats := range []int{0, 3} {
		r := &Launch{job: &settings.Job{}, Options: Options{Screen: console.NewScreen(&settings.Job{})}, ended: make(chan exit), over: make(chan struct{})}
		r.job.WorkerRestarts, r.left = 2, 1 // a worker was restarted: the processes that are left get the signal after a second
		r.seats.count = seats
		var children []*child
		for rank := range max(1, seats) + 2 {
			c := &child{name: "ps", role: "ps", rank: rank, cmd: exec.Command("sleep", "60")}
			if rank < max(1, seats) {
				c.cmd = exec.Command("true")
			}
			if err := c.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			children = append(children, c)
			go func() { r.ended <- exit{c, c.cmd.Wait()} }()
		}
		if err := r.wait(t.Context(), children, r.ended); err != nil {
			t.Errorf("%d may coordinate: %v", seats, err)
		}
	}
}
