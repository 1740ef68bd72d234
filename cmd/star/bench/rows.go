package bench

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"star/bench"
	"star/cmd/internal/console"
	"star/internal/settings"
	"star/job"
)

// rowOptions are the settings of benchmarks with a list of rows as the result.
type rowOptions struct {
	compare, plot string
	old           []bench.Row
}

func (o *rowOptions) declare(s *settings.Set) {
	settings.Var(s, &o.compare, "compare", "", "an earlier result (--json), to be compared with")
	settings.Var(s, &o.plot, "plot", "", "file for a plot of time over bytes: .svg, .pdf or .png")
}

// check finds mistakes before anything is measured.
func (o *rowOptions) check(s *settings.Set) (err error) {
	if o.plot != "" {
		if _, err := bench.PlotFormat(o.plot); err != nil {
			return s.Invalid("plot", err)
		}
	}
	if o.compare != "" {
		if o.old, err = bench.ReadRows(o.compare); err != nil {
			return job.FileError(fmt.Errorf("--compare %s: %w", o.compare, err), bench.ErrRows)
		}
	}
	return nil
}

// finish compares and plots the measurements.
func (o *rowOptions) finish(w io.Writer, title string, rows []bench.Row) error {
	if o.compare != "" {
		fmt.Fprintf(w, "\nbeside %s:\n", o.compare)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(tw, "ranks\tbytes\ttransport\talgorithm\tthen\tnow\ttimes as fast\tverdict\t\n")
		for _, c := range bench.Compare(o.old, rows) {
			then, ratio, verdict, algorithm := "-", "-", "new", c.Algorithm
			if c.Old != nil {
				then, ratio, verdict = console.Seconds(c.Old.Median), fmt.Sprintf("%.2f", c.Ratio), c.Verdict
				if c.Old.Algorithm != c.Algorithm {
					algorithm = c.Old.Algorithm + " → " + c.Algorithm
				}
			}
			fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.Ranks, c.Bytes, c.Transport, algorithm, then, console.Seconds(c.Median), ratio, verdict)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	if o.plot != "" {
		return bench.Plot(o.plot, title, rows)
	}
	return nil
}

// sizesOf parses texts such as 64KiB.
func sizesOf(texts []string) ([]int64, error) {
	var sizes []int64
	for _, text := range texts {
		n, err := parseBytes(text)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// intsOf is sizesOf for segments and buffers; kernel means -1.
func intsOf(texts []string) ([]int, error) {
	var ns []int
	for _, text := range texts {
		if text == "kernel" {
			ns = append(ns, -1)
			continue
		}
		n, err := parseBytes(text)
		if err == nil && n > 64<<20 {
			err = errors.New("must be at most 64MiB")
		}
		if err != nil {
			return nil, err
		}
		ns = append(ns, int(n))
	}
	return ns, nil
}
