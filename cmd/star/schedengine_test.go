package main

import (
	"slices"
	"testing"
)

// What sinfo says of nodes: each once, with its processors, and why Slurm starts nothing there, if it does not.
func TestSlurmNodes(t *testing.T) {
	got := slurmNodes(`n1 8 idle none
n1 8 idle none
n2 16 mixed none
n3 8 draining new disk on Monday
n4 8 drained* none
n5 8 down Not responding
n6 8 idle* none
n7 8 idle~ none
n8 8 maint none
n9 8 completing none
half a
`)
	want := []slurmNode{
		{"n1", 8, ""}, {"n2", 16, ""}, {"n3", 8, "in Slurm it is draining: new disk on Monday"}, {"n4", 8, "in Slurm it is drained, and does not answer"}, {"n5", 8, "in Slurm it is down: Not responding"},
		{"n6", 8, "in Slurm it is idle, and does not answer"}, {"n7", 8, ""}, {"n8", 8, "in Slurm it is maint"}, {"n9", 8, ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}
