package workload

import (
	"strings"
	"testing"

	"star/sched"
)

// TestReadSlow says what is wrong in a file, and where.
func TestReadSlow(t *testing.T) {
	vcs := map[string]sched.Cluster{"": {Nodes: 2, GPUs: 8}}
	got, err := ReadSlow(strings.NewReader("node,from,to,factor\n1,0,3600,2.5\n"), vcs)
	if err != nil || len(got[""]) != 1 || got[""][0] != (sched.Spell{Node: 1, To: 3600, Factor: 2.5}) {
		t.Error(got, err)
	}
	for text, want := range map[string]string{
		"node,from,to\n":                          `column "factor" is missing`,
		"node,from,to,factor\n2,0,1,2\n":          "line 2: node is 2: the cluster has 2",
		"node,from,to,factor\n0,5,5,2\n":          "line 2: to is 5: want a time after from",
		"node,from,to,factor\n0,0,5,0.5\n":        `line 2: factor is "0.5": want a number of at least 1`,
		"node,from,to,factor,vc\n0,0,5,2,other":   `line 2: unknown virtual cluster "other"`,
		"node,from,to,factor\n0,0,5,2\n0,x,5,2":   `line 3: from is "x"`,
		"node,from,to,factor\n0,0,5,2\n0,1,NaN,2": `line 3: to is "NaN"`,
	} {
		if _, err := ReadSlow(strings.NewReader(text), vcs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
