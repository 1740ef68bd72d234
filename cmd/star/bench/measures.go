package bench

import (
	"fmt"
	"io"
	"text/tabwriter"

	"star/bench"
	"star/cmd/internal/console"
	"star/internal/settings"
	"star/job"
)

// measureOptions are --compare and --plot of benchmarks with a result of named numbers. R is the result.
type measureOptions[R any] struct {
	measures func(result R) []bench.Measure
	title, x string                            // of the plot, and what its numbers lie over
	draw     func(path string, result R) error // another plot; nil: of the numbers

	compare, plot string
	old           []bench.Measure
}

func (o *measureOptions[R]) declare(s *settings.Set) {
	settings.Var(s, &o.compare, "compare", "", "an earlier result (--json), to be compared with")
	settings.Var(s, &o.plot, "plot", "", "file for a plot: .svg, .pdf or .png")
}

// check finds mistakes before anything is measured.
func (o *measureOptions[R]) check(s *settings.Set) (err error) {
	if o.plot != "" {
		if _, err := bench.PlotFormat(o.plot); err != nil {
			return s.Invalid("plot", err)
		}
	}
	if o.compare != "" {
		var old R
		if o.old, err = bench.ReadMeasures(o.compare, &old, func() []bench.Measure { return o.measures(old) }); err != nil {
			return job.FileError(fmt.Errorf("--compare %s: %w", o.compare, err), bench.ErrResult)
		}
	}
	return nil
}

// finish compares and plots the measurements.
func (o *measureOptions[R]) finish(w io.Writer, result any) error {
	now := o.measures(result.(R))
	if o.compare != "" {
		fmt.Fprintf(w, "\nbeside %s:\n", o.compare)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(tw, "what\tthen\tnow\ttimes as fast\tverdict\t\n")
		for _, c := range bench.CompareMeasures(o.old, now) {
			then, ratio := "-", "-"
			if c.Old != nil {
				then, ratio = console.Seconds(c.Old.Value), fmt.Sprintf("%.2f", c.Ratio)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t\n", c.Name, then, console.Seconds(c.Value), ratio, c.Verdict)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	switch {
	case o.plot == "":
		return nil
	case o.draw != nil:
		return o.draw(o.plot, result.(R))
	}
	return bench.PlotMeasures(o.plot, o.title, o.x, now, o.old)
}

// compared gives a benchmark --compare and --plot.
func compared[R any](s *suite, o *measureOptions[R]) {
	o.declare(&s.set)
	s.check = func() error { return o.check(&s.set) }
	s.finish = o.finish
}
