package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/bench"
	"star/blossom"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/internal/settings"
	"star/job"
)

// matchResult is what star match --json prints.
type matchResult struct {
	Weight json.Number `json:"weight"`
	Pairs  [][2]int    `json:"pairs"`
	Gap    float64     `json:"gap,omitempty"`
}

func matchCommand() *cobra.Command {
	s := new(settings.Set)
	var most, perfect, least, asJSON bool
	settings.Var(s, &most, "max-cardinality", false, "the heaviest of the matchings with the most edges")
	settings.Var(s, &perfect, "perfect", false, "the heaviest of the matchings that leave no vertex out; exit 65 if none exists")
	settings.Var(s, &least, "min-weight", false, "the lightest instead of the heaviest: by itself edges of negative weight only")
	settings.Var(s, &asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "match [FILE]",
		Short: "Find the pairs that weigh the most: maximum-weight matching",
		Long: `Reads edges, a line "u v weight" each, from standard input or a file, and prints those of a maximum-weight matching: no two
share a vertex, and no other such set weighs more. Vertices are whole numbers from 0; # begins a comment.

  printf '0 1 9\n1 2 10\n2 3 9\n' | star match

Integers up to 2^52 are exact (docs/matching.md); the result has been checked against the dual prices that prove it.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &settings.UsageError{Msg: fmt.Sprintf("star match reads one file of edges, or standard input; there are %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var options blossom.Option
			if most {
				options |= blossom.MaxCardinality
			}
			if perfect {
				options |= blossom.Perfect
			}
			if least {
				options |= blossom.Minimum
			}
			return match(cmd.InOrStdin(), cmd.OutOrStdout(), args, options, asJSON)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// match matches the graph in the file, or in the input.
func match(in io.Reader, out io.Writer, files []string, options blossom.Option, asJSON bool) error {
	var text []byte
	var err error
	name := "standard input"
	if len(files) > 0 {
		name = files[0]
		text, err = os.ReadFile(name)
	} else {
		text, err = io.ReadAll(in)
	}
	if err != nil {
		return job.FileError(err, blossom.ErrEdges)
	}
	names, edges, err := blossom.Parse(text)
	if err != nil {
		return job.FileError(fmt.Errorf("%s: %w", name, err), blossom.ErrEdges)
	}
	m, err := blossom.Solve(len(names), edges, options)
	if err == nil {
		err = blossom.Verify(len(names), edges, m, options)
	}
	if errors.Is(err, blossom.ErrNotPerfect) {
		return job.FileError(fmt.Errorf("%s: %w; without --perfect they are left out", name, err), blossom.ErrNotPerfect)
	}
	if err != nil {
		return err
	}
	weights := map[[2]int]float64{}
	for _, e := range edges {
		weights[[2]int{min(e.U, e.V), max(e.U, e.V)}] = e.Weight
	}
	pairs := m.Pairs()
	weight := sumText(func(yield func(float64) bool) {
		for _, p := range pairs {
			if !yield(weights[p]) {
				return
			}
		}
	})
	if asJSON {
		r := matchResult{Weight: json.Number(weight), Pairs: [][2]int{}, Gap: m.Gap}
		for _, p := range pairs {
			r.Pairs = append(r.Pairs, [2]int{names[p[0]], names[p[1]]})
		}
		return json.NewEncoder(out).Encode(r)
	}
	var lines []byte
	for _, p := range pairs {
		lines = blossom.Edge{U: p[0], V: p[1], Weight: weights[p]}.AppendTo(lines, names)
	}
	lines = fmt.Appendf(lines, "# weight %s, pairs %d, alone %d\n", weight, len(pairs), len(names)-2*len(pairs))
	_, err = out.Write(lines)
	return err
}

// wholeDigits is the magnitude from which a float64 is printed with an exponent.
const wholeDigits = 1e21

// sumText formats a sum of finite numbers: an integer below wholeDigits with all its digits (a float64 has 15 to 17),
// others as the nearest float64.
func sumText(numbers iter.Seq[float64]) string {
	// From 2^-1074 to a sum of 2^30 numbers below 2^1024 there are fewer bits: nothing is rounded.
	sum := new(big.Float).SetPrec(2200)
	for x := range numbers {
		sum.Add(sum, big.NewFloat(x))
	}
	nearest, _ := sum.Float64()
	switch {
	case sum.IsInt() && math.Abs(nearest) < wholeDigits:
		return sum.Text('f', 0)
	case math.IsInf(nearest, 0):
		return sum.Text('g', 17)
	}
	return strconv.FormatFloat(nearest, 'g', -1, 64)
}

func benchMatch() *cobra.Command {
	s := new(suite)
	var cfg bench.MatchConfig
	settings.Var(&s.set, &cfg.Sizes, "sizes", []int{100, 500}, "numbers of vertices")
	settings.Var(&s.set, &cfg.Graphs, "graphs", bench.MatchGraphs(), "kinds of graphs: complete, sparse (5 edges for each vertex), ties (sparse, weights 1 to 3)")
	settings.Var(&s.set, &cfg.Runs, "runs", 5, "turns of each side")
	settings.Var(&s.set, &cfg.Against, "against", []string{}, "peers to measure in turns: networkx (Debian: python3-networkx; slow), lemon (g++, liblemon-dev)")
	settings.Var(&s.set, &cfg.Python, "python", "/usr/bin/python3", "interpreter that has NetworkX")
	compared(s, &measureOptions[[]bench.MatchResult]{measures: bench.MatchMeasures, title: "maximum-weight matching", x: "vertices"})
	return s.command("match", "Maximum-weight matchings, against NetworkX and LEMON",
		`Matches random graphs, from the list of edges to the mates. With --against the same graphs are matched by peers in turns: their
times begin when they have built their graph; all must find the same weight. The ratio is the peer's median over ours.`,
		func(ctx context.Context) (any, error) {
			for _, n := range cfg.Sizes {
				if n < 2 || n > 1_000_000 {
					return nil, s.set.Invalid("sizes", fmt.Errorf("%d vertices; want 2 to 1000000", n))
				}
			}
			for name, list := range map[string][2][]string{"graphs": {cfg.Graphs, bench.MatchGraphs()}, "against": {cfg.Against, bench.MatchPeers()}} {
				for _, word := range list[0] {
					if !slices.Contains(list[1], word) {
						return nil, s.set.Invalid(name, fmt.Errorf("there are %s", strings.Join(list[1], ", ")))
					}
				}
			}
			if cfg.Runs < 1 {
				return nil, s.set.Invalid("runs", fmt.Errorf("want at least 1"))
			}
			return bench.Match(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "graph\tvertices\tedges\talgorithm\truns\tmedian\tp10\tp90\tof ours\t\n")
			for _, r := range result.([]bench.MatchResult) {
				ratio := "-"
				if r.Ratio > 0 {
					ratio = fmt.Sprintf("%.1f", r.Ratio)
				}
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t\n", r.Graph, r.Vertices, r.Edges, r.Algorithm, r.Runs, console.Seconds(r.Median), console.Seconds(r.P10), console.Seconds(r.P90), ratio)
			}
		})
}
