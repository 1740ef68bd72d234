package sched

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"star/sched"
)

// Of machines of two kinds those without a GPU are the last nodes, and are taken away as well; the clock of a trace
// begins with the first submission.
func TestRevokedNodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(file, []byte("time,worker,replaced\n10,1,\n20,0,50\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vcs := map[string]sched.Cluster{"": {Nodes: 1, GPUs: 1, Plain: 1}}
	p := schedSim{revoke: "trace:" + file}
	if err := p.revoked(vcs, []*sched.Job{{Submit: 200}, {Submit: 100}}); err != nil {
		t.Fatal(err)
	}
	want, err := sched.NewAway([]sched.Absence{{Node: 1, From: 110, To: math.Inf(1)}, {Node: 0, From: 120, To: 150}})
	if got := vcs[""].Away; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
