package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/internal/settings"
	"star/sched/estimate"
)

func schedEstimateCommand() *cobra.Command {
	var s settings.Set
	epochs, first, truth := 0, .5, 0.
	method, train, to := "", "", ""
	settings.Var(&s, &train, "train", "", "trace of jobs whose durations are known, of which is learned")
	settings.Var(&s, &to, "predict", "", "trace of jobs whose durations are to be predicted: it is written to standard output with them")
	settings.Var(&s, &method, "method", "ebm", "how: explainable boosting, gradient boosting, a pruned tree, or the user's earlier jobs", predictMethods...)
	settings.Var(&s, &epochs, "epochs", 0, "how many epochs the whole job has")
	settings.Var(&s, &first, "first", .5, "share of the measured epochs after which linear looks for the first time: a/b for a measurement of the shares a and b of the job")
	settings.Var(&s, &truth, "truth", 0, "how long the job really takes, s: says how far the estimates are off")
	cmd := &cobra.Command{
		Use:   "estimate LOG...",
		Short: "How long a job will take, from the times of its first epochs",
		Long: `Reads the output of jobs that ran for a few epochs with AlloX's time writer, and says how long the whole job will take by two methods: detailed knows
the time of each epoch, and what comes before and after them; linear draws a line through two points.

With --predict it learns of a trace how long jobs take, and writes another one with what it expects of these, in the columns by which lucid and qssf order jobs. Every column
that both traces have is used, numbers and categories, and hour and weekday. Where durations are known it says on standard error how well they are predicted.

  star sched estimate alexnet.log --epochs 500
  star sched estimate --train august.csv --predict september.csv > jobs.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := resolved(cmd, &s); done || err != nil {
				return err
			}
			if train != "" || to != "" {
				if err := predicting(&s, args, train, to); err != nil {
					return err
				}
				return predict(cmd.OutOrStdout(), cmd.ErrOrStderr(), method, train, to)
			}
			switch {
			case len(args) == 0:
				return &settings.UsageError{Msg: cmd.CommandPath() + ": want one log or more"}
			case epochs < 1:
				return s.Invalid("epochs", errors.New("how many epochs has the whole job? want one or more"))
			case !(first > 0 && first < 1):
				return s.Invalid("first", errors.New("want a share between 0 and 1"))
			case !(truth >= 0) || math.IsInf(truth, 0):
				return s.Invalid("truth", errors.New("want seconds of at least 0"))
			}
			return estimateLogs(cmd.OutOrStdout(), &s, args, epochs, first, truth)
		},
	}
	s.Bind(cmd)
	return cmd
}

func estimateLogs(w io.Writer, s *settings.Set, logs []string, epochs int, first, truth float64) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "log\tmeasured epochs\tdetailed s\tlinear s\t")
	var detailed, linear []float64
	for _, name := range logs {
		var all []estimate.Times
		if err := readInput(name, func(r io.Reader) (err error) { all, err = estimate.Read(r); return err }); err != nil {
			return err
		}
		for _, t := range all {
			if len(t.Epochs) > epochs {
				return s.Invalid("epochs", fmt.Errorf("%s has %d: want those of the whole job", name, len(t.Epochs)))
			}
			detailed = append(detailed, t.Detailed(epochs))
			line := "-" // one epoch has no two points
			if n := int(math.Round(first * float64(len(t.Epochs)))); n > 0 && n < len(t.Epochs) {
				linear = append(linear, t.Linear(epochs, n))
				line = fmt.Sprintf("%.1f", linear[len(linear)-1])
			}
			fmt.Fprintf(tw, "%s\t%d\t%.1f\t%s\t\n", name, len(t.Epochs), detailed[len(detailed)-1], line)
		}
	}
	if truth > 0 {
		fmt.Fprintln(tw, "\nmethod\tmean off by\tstandard deviation\t")
		for _, m := range []struct {
			name string
			of   []float64
		}{{"detailed", detailed}, {"linear", linear}} {
			if len(m.of) > 0 {
				bias, sigma := estimate.Noise(m.of, truth)
				scatter := "-" // one estimate does not scatter
				if len(m.of) > 1 {
					scatter = fmt.Sprintf("%.2f %%", 100*sigma)
				}
				fmt.Fprintf(tw, "%s\t%+.2f %%\t%s\t\n", m.name, 100*bias, scatter)
			}
		}
	}
	return tw.Flush()
}
