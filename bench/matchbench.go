package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"star/blossom"
)

//go:embed peers/networkx_match.py
var networkxMatch []byte

//go:embed peers/lemon_match.cc
var lemonMatch []byte

// MatchConfig configures Match. The zero value is complete and sparse graphs of 100 and 500 vertices.
type MatchConfig struct {
	Sizes   []int    // vertices; empty means 100, 500
	Graphs  []string // of MatchGraphs; empty means all
	Runs    int      // turns of each side; zero means 5
	Against []string // of MatchPeers
	Python  string   // interpreter that has NetworkX. Empty means /usr/bin/python3
}

// MatchResult is one row: the time of a maximum-weight matching, from a list of edges to the vertices' mates.
type MatchResult struct {
	Graph     string  `json:"graph"`
	Vertices  int     `json:"vertices"`
	Edges     int     `json:"edges"`
	Algorithm string  `json:"algorithm"` // star, or the peer
	Runs      int     `json:"runs"`
	Median    float64 `json:"median_s"`
	P10       float64 `json:"p10_s"`
	P90       float64 `json:"p90_s"`
	Weight    float64 `json:"weight"`
	Ratio     float64 `json:"ratio,omitempty"` // of a peer: its median over ours
}

// MatchGraphs are the graphs of Match: complete ones, sparse ones (five edges for each vertex) and sparse ones with
// many edges of equal weight (1 to 3). Other weights are integers up to 10⁹, so that every peer is exact.
func MatchGraphs() []string { return []string{"complete", "sparse", "ties"} }

// MatchPeers are the implementations that Match compares with: NetworkX, in
// Python, and LEMON, in C++, which is compiled for it.
func MatchPeers() []string { return []string{"networkx", "lemon"} }

// Match measures maximum-weight matchings, ours and peers' of the same graphs in turns. A peer's time begins when it
// has built its graph; ours includes that. Results with different weights are an error.
func Match(ctx context.Context, cfg MatchConfig) ([]MatchResult, error) {
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = []int{100, 500}
	}
	if len(cfg.Graphs) == 0 {
		cfg.Graphs = MatchGraphs()
	}
	if cfg.Runs == 0 {
		cfg.Runs = 5
	}
	if cfg.Python == "" {
		cfg.Python = "/usr/bin/python3"
	}
	dir, err := os.MkdirTemp("", "star-match")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	peers := map[string][]string{}
	for _, name := range cfg.Against {
		if peers[name], err = matchPeer(ctx, dir, name, cfg.Python); err != nil {
			return nil, err
		}
	}
	var out []MatchResult
	for _, kind := range cfg.Graphs {
		for _, n := range cfg.Sizes {
			edges, err := matchGraph(kind, n)
			if err != nil {
				return out, err
			}
			rows, err := matchTurns(ctx, filepath.Join(dir, "edges"), n, edges, cfg, peers)
			if err != nil {
				return out, fmt.Errorf("bench: %s graph of %d vertices: %w", kind, n, err)
			}
			for _, r := range rows {
				r.Graph, r.Vertices, r.Edges = kind, n, len(edges)
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// matchPeer is the command that runs a peer, without its arguments.
func matchPeer(ctx context.Context, dir, name, python string) ([]string, error) {
	switch name {
	case "networkx":
		script := filepath.Join(dir, "networkx_match.py")
		return []string{python, script}, os.WriteFile(script, networkxMatch, 0o600)
	case "lemon":
		source, program := filepath.Join(dir, "lemon_match.cc"), filepath.Join(dir, "lemon_match")
		if err := os.WriteFile(source, lemonMatch, 0o600); err != nil {
			return nil, err
		}
		if text, err := exec.CommandContext(ctx, "c++", "-O3", "-march=native", "-o", program, source).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("bench: compiling the peer lemon (Debian: g++, liblemon-dev): %w: %.300s", err, text)
		}
		return []string{program}, nil
	}
	return nil, fmt.Errorf("bench: unknown peer %q; there are: %v", name, MatchPeers())
}

// matchGraph draws a graph; the same for the same kind and size.
func matchGraph(kind string, n int) (edges []blossom.Edge, err error) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	switch kind {
	case "complete":
		for u := range n {
			for v := range u {
				edges = append(edges, blossom.Edge{U: u, V: v, Weight: float64(1 + r.IntN(1e9))})
			}
		}
	case "sparse", "ties":
		most := 1_000_000_000
		if kind == "ties" {
			most = 3
		}
		seen := map[[2]int]bool{}
		for want := min(5*n, n*(n-1)/2); len(edges) < want; {
			u, v := r.IntN(n), r.IntN(n)
			if key := [2]int{min(u, v), max(u, v)}; u != v && !seen[key] {
				seen[key] = true
				edges = append(edges, blossom.Edge{U: u, V: v, Weight: float64(1 + r.IntN(most))})
			}
		}
	default:
		return nil, fmt.Errorf("bench: unknown kind of graph %q; there are: %v", kind, MatchGraphs())
	}
	return edges, nil
}

// matchTurns measures one graph: first our row, then the peers'.
func matchTurns(ctx context.Context, file string, n int, edges []blossom.Edge, cfg MatchConfig, peers map[string][]string) ([]MatchResult, error) {
	if len(peers) > 0 {
		var text []byte
		for _, e := range edges {
			text = fmt.Appendf(text, "%d %d %.0f\n", e.U, e.V, e.Weight)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return nil, err
		}
	}
	rows := []MatchResult{{Algorithm: "star"}}
	for _, name := range cfg.Against {
		rows = append(rows, MatchResult{Algorithm: name})
	}
	times := make([][]float64, len(rows))
	var m *blossom.Matching
	for range cfg.Runs {
		// Several per turn where they are short, so that all rows are equally accurate.
		for begin, k := time.Now(), 0; k == 0 || k < 5 && time.Since(begin) < 100*time.Millisecond; k++ {
			start := time.Now()
			var err error
			if m, err = blossom.Solve(n, edges); err != nil {
				return nil, err
			}
			times[0] = append(times[0], time.Since(start).Seconds())
		}
		rows[0].Weight = m.Weight
		for i, name := range cfg.Against {
			each := 5 // as many as ours, unless that takes minutes
			if name == "networkx" {
				each = 1
			}
			command := append(slices.Clone(peers[name]), file, strconv.Itoa(each))
			text, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
			if err != nil {
				if x, ok := errors.AsType[*exec.ExitError](err); ok {
					err = fmt.Errorf("%w: %.300s", err, x.Stderr)
				}
				return nil, fmt.Errorf("%s: %w (Debian: python3-networkx, liblemon-dev; --python names another interpreter)", name, err)
			}
			var got struct {
				Times  []float64 `json:"times_s"`
				Weight float64   `json:"weight"`
			}
			if err := json.Unmarshal(text, &got); err != nil || len(got.Times) == 0 {
				return nil, fmt.Errorf("%s printed %.100q: %w", name, text, err)
			}
			if got.Weight != m.Weight {
				return nil, fmt.Errorf("%s finds a matching that weighs %.0f, star one that weighs %.0f", name, got.Weight, m.Weight)
			}
			times[i+1] = append(times[i+1], got.Times...)
			rows[i+1].Weight = got.Weight
		}
	}
	if err := blossom.Verify(n, edges, m); err != nil {
		return nil, err
	}
	for i := range rows {
		ts := slices.Sorted(slices.Values(times[i]))
		at := func(q float64) float64 { return ts[int(q*float64(len(ts)-1)+0.5)] }
		rows[i].Runs, rows[i].Median, rows[i].P10, rows[i].P90 = len(ts), median(ts), at(.1), at(.9)
		if i > 0 {
			rows[i].Ratio = rows[i].Median / rows[0].Median
		}
	}
	return rows, nil
}
