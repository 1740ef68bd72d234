package launch

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"star/cmd/internal/console"
	"star/cmd/tests/jobtest"
)

// The restart of a process that fails by itself soon after its start waits twice as long each time. A process that was
// killed, or that ran for some time, is restarted without that wait.
func TestBackOff(t *testing.T) {
	exits := func(code int) error { return exec.Command("sh", "-c", fmt.Sprintf("exit %d", code)).Run() }
	killed := exec.Command("sh", "-c", "kill -9 $$").Run()
	failures := 0
	for i, c := range []struct {
		err   error
		lived time.Duration
		want  time.Duration
	}{
		{exits(255), time.Second, 0}, {exits(255), time.Second, time.Second}, {exits(1), time.Second, 2 * time.Second}, {exits(255), time.Second, 4 * time.Second},
		{killed, time.Second, 0}, {exits(69), time.Second, 0}, {exits(69), time.Second, time.Second},
		{exits(69), time.Minute, 0}, {exits(69), time.Second, 0}, {exits(69), time.Second, time.Second}, {exits(137), time.Second, 0},
	} {
		failures = exit{&child{failures: failures}, c.err}.again(c.lived)
		if got := backOff(failures); got != c.want {
			t.Errorf("%d: after %v and %v it waits for %v, want %v", i, c.err, c.lived, got, c.want)
		}
	}
	if got := backOff(1000); got != longestBackOff {
		t.Errorf("after 1000 failures it waits for %v", got)
	}
}

// A process that is started again gets the same settings as the one before: as many servers, including those that only
// hold copies.
func TestStartedAgainIsToldTheSame(t *testing.T) {
	job := jobtest.Settings(t, "--coordinators", "3", "--shards", "1", "--replicas", "2", "--worker-restarts", "1")
	r := &Launch{job: job, Options: Options{Screen: console.NewScreen(job)}, electors: electors{count: 3, addrs: make([]string, 3)}, left: 1, again: make(chan *child, 1), addr: "127.0.0.1:7700"}
	first := r.child("ps", 1)
	children := []*child{first}
	r.restart(exit{child: first}, children, "")
	second := children[0]
	if diff := cmp.Diff(first.cmd.Env, second.cmd.Env); diff != "" {
		t.Errorf("the settings of a process and of the one in its place (-, +):\n%s", diff)
	}
	if !slices.Contains(second.cmd.Env, "STAR_SERVERS=5") {
		t.Errorf("the process is not told of three that may coordinate, one with a shard, and one with its copy: %v", second.cmd.Env)
	}
}
