package sched

import (
	"slices"
	"testing"
)

// What sinfo says of nodes: each once, with its processors, and why Slurm starts nothing there, if it does not.
func TestSlurmNodes(t *testing.T) {
	got := slurmNodes(`n1 8 host idle none
n1 8 host idle none
n2 16 host mixed none
n3 8 host draining new disk on Monday
n4 8 host drained* none
n5 8 host down Not responding
n6 8 host idle* none
n7 8 host idle~ none
n8 8 host maint none
n9 8 host completing none
half a line
`)
	want := []slurmNode{
		{"n1", "host", 8, ""}, {"n2", "host", 16, ""}, {"n3", "host", 8, "in Slurm it is draining: new disk on Monday"}, {"n4", "host", 8, "in Slurm it is drained, and does not answer"}, {"n5", "host", 8, "in Slurm it is down: Not responding"},
		{"n6", "host", 8, "in Slurm it is idle, and does not answer"}, {"n7", "host", 8, ""}, {"n8", "host", 8, "in Slurm it is maint"}, {"n9", "host", 8, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}
