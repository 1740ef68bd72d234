package observe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/observe/compare"
	"star/observe/web"
	"star/runlog"
)

// compareCommand makes star compare.
func compareCommand() *cobra.Command {
	s := new(settings.Set)
	var asJSON bool
	settings.Var(s, &asJSON, "json", false, "the comparison as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "compare RUN RUN",
		Short: "Say what differs between two runs, and what is noise",
		Long: `Reads two run logs, of jobs of STAR or of star watch, also of jobs that still run, and compares settings, pace, the parts of a step, bytes, loss and accuracy after
equal samples, modes and slow workers. A difference is one that the spread within each run does not explain.

  star compare before/star-out after/star-out
  star compare a.jsonl.gz b.jsonl.gz --json
  star report a.jsonl b.jsonl > compare.html       the same as a page; star view serves it`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &settings.UsageError{Msg: "star compare needs two run logs, or folders of jobs"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := compareRuns(args)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(c)
			}
			return c.Text(cmd.OutOrStdout())
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// compareRuns compares two run logs.
func compareRuns(paths []string) (c compare.Comparison, err error) {
	var readers [2]*compare.Reader
	var read [2]runlog.Contents
	for i, path := range paths {
		f, err := cli.OpenRun(path)
		if err != nil {
			return c, err
		}
		readers[i] = compare.NewReader()
		read[i], err = runlog.Read(f, f.Name(), readers[i].Add)
		f.Close()
		if err != nil {
			return c, err
		}
	}
	return compare.Of(readers[0], readers[1], [2]string(paths), read), nil
}

// comparisonPage is the page of two runs.
func comparisonPage(paths []string) (t web.Tables, err error) {
	c, err := compareRuns(paths)
	if err != nil {
		return t, err
	}
	t = web.Tables{Title: "Two runs", Subtitle: "A  " + c.A.String() + "    B  " + c.B.String()}
	quantities := web.Table{Title: "What differs", Heads: []web.TableCol{{Name: "quantity"}, {Name: "A", Class: "n"}, {Name: "B", Class: "n"}, {Name: "B − A", Class: "n"}, {Name: "noise", Class: "n"}, {Name: ""}}, Empty: "nothing was measured"}
	differ := 0
	for _, row := range c.Rows() {
		bad := row[len(row)-1] == "differs"
		if bad {
			differ++
		}
		quantities.Rows = append(quantities.Rows, web.TableRow{Cells: row, Bad: bad})
	}
	t.Headline = fmt.Sprintf("%d of %d quantities differ by more than the noise.", differ, len(quantities.Rows))
	settings := web.Table{Title: "Settings that differ", Heads: []web.TableCol{{Name: "setting"}}, Empty: "none"}
	for _, s := range c.Settings {
		settings.Rows = append(settings.Rows, web.TableRow{Cells: []string{s.String()}})
	}
	what := web.Table{Title: "Modes and slow workers", Heads: []web.TableCol{{Name: "run"}, {Name: "", Class: "text"}}}
	for name, r := range map[string]*compare.Run{"A": &c.A, "B": &c.B} {
		for _, line := range r.Lines() {
			what.Rows = append(what.Rows, web.TableRow{Cells: []string{name, line}})
		}
	}
	slices.SortStableFunc(what.Rows, func(a, b web.TableRow) int { return cmp.Compare(a.Cells[0], b.Cells[0]) })
	t.Tables = []web.Table{quantities, settings, what}
	t.Chart = lossChart(c.Curves)
	return t, nil
}

// lossChart draws the losses of both runs over samples; nil without any.
func lossChart(curves [2]compare.Curve) *web.TableChart {
	if len(curves[0].Samples)+len(curves[1].Samples) == 0 {
		return nil
	}
	chart := &web.TableChart{Title: "Loss in training over samples", Names: []string{"A", "B"}}
	chart.X = slices.Compact(slices.Sorted(slices.Values(slices.Concat(curves[0].Samples, curves[1].Samples))))
	for _, c := range curves {
		line := make([]runlog.Number, len(chart.X))
		for i := range line {
			line[i] = runlog.Number(math.NaN())
		}
		for i, x := range c.Samples {
			k, _ := slices.BinarySearch(chart.X, x)
			line[k] = c.Loss[i]
		}
		chart.Lines = append(chart.Lines, line)
	}
	return chart
}
