package coord

import (
	"strings"
	"testing"

	"star"
	"star/coord/architecture"
	"star/internal/exitcode"
	"star/modes"
	"star/transport/wire"
)

// A worker with a loopback address is rejected if a worker on another host must connect to it, whichever of them is
// first.
func TestWorkersThatCannotMeet(t *testing.T) {
	servers, allreduce := architecture.Of(&Config{}), architecture.Of(&Config{Ring: new(RingConfig)})
	// worker 1 sends its gradient to worker 0; worker 2 exchanges with no other
	tree := modes.Plan{Parents: []star.Worker{modes.Direct, 0, modes.Direct}}
	for _, c := range []struct {
		name          string
		arch          architecture.Architecture
		plan          modes.Plan
		first, second string // addresses of the enrolled worker, and of the new one
		elsewhere     bool   // on different hosts
		ranks         [2]int
		exit          int
		names         string
		open          bool // the second one may be a parent in a tree
	}{
		{"ring on one host", allreduce, modes.Plan{}, "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:3,127.0.0.1:4", false, [2]int{0, 1}, 0, "", true},
		{"the first is on loopback", allreduce, modes.Plan{}, "127.0.1.1:1,127.0.1.1:2", "10.0.0.2:3,10.0.0.2:4", true, [2]int{0, 1}, exitcode.Disagree, "worker 0 advertises 127.0.1.1:1", true},
		{"the second is on loopback", allreduce, modes.Plan{}, "10.0.0.2:3,10.0.0.2:4", "127.0.1.1:1,127.0.1.1:2", true, [2]int{0, 1}, exitcode.Usage, "worker 1 advertises 127.0.1.1:1", false},
		{"at the coordinator's host", allreduce, modes.Plan{}, ":1,:2", "10.0.0.2:3,10.0.0.2:4", true, [2]int{0, 1}, 0, "", true},
		{"a parent on loopback", servers, tree, "127.0.0.1:1", "10.0.0.2:3", true, [2]int{0, 1}, exitcode.Disagree, "worker 0 advertises", true},
		{"a worker that meets no other", servers, tree, "127.0.0.1:1", "10.0.0.2:3", true, [2]int{2, 0}, 0, "", true},
		{"no tree", servers, modes.Plan{}, "127.0.0.1:1", "127.0.0.1:3", true, [2]int{0, 1}, 0, "", false},
	} {
		there := make([]*peer, 3)
		for i, addr := range []string{c.first, c.second} {
			host := "a"
			if i == 1 && c.elsewhere {
				host = "b"
			}
			there[c.ranks[i]] = &peer{role: wire.RoleWorker, rank: c.ranks[i], hello: wire.Hello{Addr: addr, Host: host}}
		}
		at := peers{workers: there}
		comes := there[c.ranks[1]]
		why, exit := at.meets(c.arch.Sharded(), c.plan, comes)
		if exit != c.exit || (why == "") != (c.exit == 0) || !strings.Contains(why, c.names) || why != "" && !strings.Contains(why, "--advertise HOST:PORT") {
			t.Errorf("%s: %q, %d", c.name, why, exit)
		}
		if got := at.takesOthers(comes); got != c.open {
			t.Errorf("%s: takes others: %v", c.name, got)
		}
	}
}
