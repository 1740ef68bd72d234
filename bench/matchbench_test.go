package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMatchRows(t *testing.T) {
	cfg := MatchConfig{Sizes: []int{12, 30}, Runs: 2}
	if exec.Command("/usr/bin/python3", "-c", "import networkx").Run() == nil {
		cfg.Against = []string{"networkx"}
	}
	rows, err := Match(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * len(MatchGraphs()) * (1 + len(cfg.Against)); len(rows) != want {
		t.Fatalf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if r.Runs < 2 || r.Median <= 0 || r.P10 > r.Median || r.P90 < r.Median || r.Weight <= 0 || (r.Ratio > 0) != (r.Algorithm != "star") {
			t.Errorf("%+v", r)
		}
		if r.Graph == "complete" && r.Edges != r.Vertices*(r.Vertices-1)/2 || r.Graph != "complete" && r.Edges != 5*r.Vertices {
			t.Errorf("%s: %d edges of %d vertices", r.Graph, r.Edges, r.Vertices)
		}
	}
}

func TestMatchRefuses(t *testing.T) {
	for want, cfg := range map[string]MatchConfig{
		`unknown kind of graph "round"`:           {Graphs: []string{"round"}},
		`unknown peer "gurobi"`:                   {Against: []string{"gurobi"}},
		"networkx: ":                              {Sizes: []int{4}, Against: []string{"networkx"}, Python: "/nowhere/python3"},
		`networkx printed "FILE`:                  {Sizes: []int{4}, Against: []string{"networkx"}, Python: fakePython(t, "FILE")},
		"networkx finds a matching that weighs 0": {Sizes: []int{4}, Against: []string{"networkx"}, Python: fakePython(t, `{"times_s": [1], "weight": 0}`)},
	} {
		if _, err := Match(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// fakePython is an interpreter that prints text, whatever the script.
func fakePython(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python3")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+text+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
