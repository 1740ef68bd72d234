package coord

import (
	"testing"

	"star/coord/architecture"
	"star/coord/choice"
	"star/coord/traffic"
	"star/modes"
)

// A job that waits for a tree logs its mode as it was set, before it has a tree and after the tree is gone.
func TestWordsOfAutomaticTrees(t *testing.T) {
	for given, want := range map[string][2]string{
		"tree=auto":      {"tree=auto", "ssgd tree=0(1-3)"},
		"ssgd tree=auto": {"ssgd tree=auto", "ssgd tree=0(1-3)"},
		"":               {"ssgd", "ssgd tree=0(1-3)"}, // a pilot's
		"ssgd":           {"ssgd", "ssgd tree=0(1-3)"}, // as the answer to star ctl mode says it, before the tree is given up
		"tree=0(1,2,3)":  {"ssgd", "tree=0(1,2,3)"},
	} {
		c := &Coordinator{arch: architecture.Of(&Config{}), cfg: Config{MaxWorkers: 4}, choice: chosen{mode: choice.New(given)}, flow: flow{auto: traffic.NewTree(modes.TreeRule{}, 4, nil)}}
		tree, err := modes.Parse("tree=0(1,2,3)", 4)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{c.words(modes.SSGD(4)), c.words(tree)}; got != want {
			t.Errorf("given %q: %q, want %q", given, got, want)
		}
	}
}
