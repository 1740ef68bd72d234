package settings

import (
	"strings"
	"testing"
)

func TestCoordinators(t *testing.T) {
	const three = "--coordinators=a:1,b:2,c:3"
	server := []string{"--insecure", "--servers=4"}
	for _, c := range []struct {
		role  Role
		args  []string
		words string // of the error; empty: none
	}{
		{ForRun, []string{"--coordinators=3"}, ""},
		{ForRun, []string{"--coordinators=9"}, ""},
		{ForRun, []string{"--coordinators=2"}, "3 to 9"},
		{ForRun, []string{"--coordinators=10"}, "3 to 9"},
		{ForRun, []string{"--coordinators=many"}, "3 to 9"},
		{ForRun, []string{three}, "want how many"},
		{ForServer, append(server, three, "--shards=0"), ""},
		{ForServer, append(server, three, "--rank=3"), ""},
		{ForServer, append(server, three), "--shards 0"},
		{ForServer, []string{"--insecure", "--servers=3", "--shards=0", three}, "no server would hold"},
		{ForServer, append(server, "--coordinators=a:1,b:2", "--shards=0"), "2 addresses"},
		{ForServer, append(server, "--coordinators=a:1,b:2,a:1", "--shards=0"), "twice"},
		{ForServer, append(server, "--coordinators=a:1,b:2,:3", "--shards=0"), `":3"`},
		{ForServer, append(server, "--coordinators=a:1,b:2,0.0.0.0:3", "--shards=0"), "0.0.0.0:3"},
		{ForServer, append(server, "--coordinators=a:1,b:2,c:0", "--shards=0"), "c:0"},
		{ForWorker, []string{three}, ""},
		{ForWorker, []string{"--coordinators=a:1"}, "1 addresses"},
	} {
		j, _, err := load(t, c.role, "", c.args...)
		switch {
		case c.words == "" && err != nil:
			t.Errorf("%v: %v", c.args, err)
		case c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words)):
			t.Errorf("%v: %v, want it to say %q", c.args, err, c.words)
		case err == nil && c.role != ForRun && j.Coordinator != "a:1":
			t.Errorf("%v: the coordinator is %s", c.args, j.Coordinator)
		}
	}
	if j, _, err := load(t, ForRun, "", "--coordinators=5"); err != nil || j.Electors() != 5 {
		t.Errorf("%d, %v", j.Electors(), err)
	}
}
