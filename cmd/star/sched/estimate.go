package sched

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/sched/estimate"
)

func schedEstimateCommand() *cobra.Command {
	var s settings.Set
	epochs, first, truth := 0, .5, 0.
	method, train, to, what, asJSON, times := "", "", "", "", false, false
	settings.Var(&s, &train, "train", "", "trace of jobs with known durations, to learn from")
	settings.Var(&s, &to, "predict", "", "trace of jobs to predict: it is written to standard output with the predictions")
	settings.Var(&s, &what, "what", "duration", "what is predicted: durations; score, how much another job on the same GPUs slows a job (0 to 2), for lucid, by a pruned tree; submissions, how many jobs and GPUs are submitted in ten minutes, for lucid", "duration", "score", "submissions")
	settings.Var(&s, &method, "method", "ebm", "how: explainable boosting, gradient boosting, a pruned tree, or the user's earlier jobs", predictMethods...)
	settings.Var(&s, &epochs, "epochs", 0, "how many epochs the whole job has")
	settings.Var(&s, &first, "first", .5, "share of the measured epochs after which linear looks for the first time: a/b for a measurement of the shares a and b of the job")
	settings.Var(&s, &truth, "truth", 0, "real duration of the job, s: print the errors of the estimates")
	settings.Var(&s, &times, "times", false, "write the measured times as AlloX's time writer does, a line for each log, without an estimate")
	settings.Var(&s, &asJSON, "json", false, "the estimates as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "estimate LOG...",
		Short: "How long a job will take, from the times of its first epochs",
		Long: `Reads run logs of STAR (the folder of a job, or a file .jsonl), or the output of jobs that ran for a few epochs with AlloX's time writer, and predicts the
duration of the whole job by two methods: detailed takes the mean epoch, and the time before and after; linear a line through two points.

With --predict it learns durations from a trace, and writes another one with predictions in the columns by which lucid and qssf order jobs. It uses every column
that both traces have, numbers and categories, and hour and weekday. If durations are known, their errors are on standard error.

  star sched estimate star-out --epochs 90
  star sched estimate alexnet.log --epochs 500
  star sched estimate --train august.csv --predict september.csv > jobs.csv
  star sched estimate --train single_data.csv --predict trace.csv --what score > scored.csv
  star sched estimate --train august.csv --predict september.csv --what submissions > throughput_pred.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if train != "" || to != "" {
				if err := validPredict(&s, args, train, to, what, method); err != nil {
					return err
				}
				switch what {
				case "score":
					return predictScores(cmd.OutOrStdout(), cmd.ErrOrStderr(), train, to)
				case "submissions":
					return predictSubmissions(cmd.OutOrStdout(), cmd.ErrOrStderr(), train, to)
				}
				return predict(cmd.OutOrStdout(), cmd.ErrOrStderr(), method, train, to)
			}
			if err := refuse(&s, "is for --train and --predict: logs of one job have two methods, detailed and linear", "method", "what"); err != nil {
				return err
			}
			if times {
				if err := refuse(&s, "is for estimates: --times makes none", "epochs", "first", "truth", "json"); err != nil {
					return err
				}
			}
			switch {
			case len(args) == 0:
				return &settings.UsageError{Msg: cmd.CommandPath() + ": want one log or more"}
			case times:
				return writeTimes(cmd.OutOrStdout(), args)
			case epochs < 1:
				return s.Invalid("epochs", errors.New("how many epochs has the whole job? want one or more"))
			case !(first > 0 && first < 1):
				return s.Invalid("first", errors.New("want a share between 0 and 1"))
			case !(truth >= 0) || math.IsInf(truth, 0):
				return s.Invalid("truth", errors.New("want seconds of at least 0"))
			}
			e, err := estimateLogs(&s, args, epochs, first, truth)
			if err == nil && asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(e)
			} else if err == nil {
				return e.table(cmd.OutOrStdout())
			}
			return err
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

// epochEstimates are the estimates of star sched estimate from logs, as --json prints them. Times are in s.
type epochEstimates struct {
	Logs    []epochEstimate `json:"logs"`
	Methods []epochMethod   `json:"methods,omitempty"` // with --truth
}

type epochEstimate struct {
	Log      string   `json:"log"`
	Epochs   int      `json:"measured_epochs"`
	Detailed float64  `json:"detailed_s"`
	Linear   *float64 `json:"linear_s"` // null: one epoch has no two points
}

type epochMethod struct {
	Method  string   `json:"method"`
	Bias    float64  `json:"mean_off_by"`        // as a share of the truth
	Scatter *float64 `json:"standard_deviation"` // as a share of the mean; null: one estimate does not scatter
}

// writeTimes writes what logs measure as AlloX's time writer does.
func writeTimes(w io.Writer, logs []string) error {
	for _, name := range logs {
		all, err := epochTimes(name)
		if err != nil {
			return err
		}
		for _, t := range all {
			if _, err := fmt.Fprintln(w, t); err != nil {
				return job.WriteError(err)
			}
		}
	}
	return nil
}

// estimateLogs reads logs, and estimates by both methods.
func estimateLogs(s *settings.Set, logs []string, epochs int, first, truth float64) (e epochEstimates, err error) {
	var detailed, linear []float64
	for _, name := range logs {
		all, err := epochTimes(name)
		if err != nil {
			return e, err
		}
		for _, t := range all {
			if len(t.Epochs) > epochs {
				return e, s.Invalid("epochs", fmt.Errorf("%s has %d: want those of the whole job", name, len(t.Epochs)))
			}
			one := epochEstimate{Log: name, Epochs: len(t.Epochs), Detailed: t.Detailed(epochs)}
			detailed = append(detailed, one.Detailed)
			if n := int(math.Round(first * float64(len(t.Epochs)))); n > 0 && n < len(t.Epochs) {
				line := t.Linear(epochs, n)
				one.Linear, linear = &line, append(linear, line)
			}
			e.Logs = append(e.Logs, one)
		}
	}
	for _, m := range []struct {
		name string
		of   []float64
	}{{"detailed", detailed}, {"linear", linear}} {
		if truth > 0 && len(m.of) > 0 {
			bias, sigma := estimate.Noise(m.of, truth)
			one := epochMethod{Method: m.name, Bias: bias}
			if len(m.of) > 1 {
				one.Scatter = &sigma
			}
			e.Methods = append(e.Methods, one)
		}
	}
	return e, nil
}

// table writes estimates for people.
func (e epochEstimates) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	known := func(format string, v *float64, times float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf(format, times**v)
	}
	fmt.Fprintln(tw, "log\tmeasured epochs\tdetailed s\tlinear s\t")
	for _, l := range e.Logs {
		fmt.Fprintf(tw, "%s\t%d\t%.1f\t%s\t\n", l.Log, l.Epochs, l.Detailed, known("%.1f", l.Linear, 1))
	}
	if len(e.Methods) > 0 {
		fmt.Fprintln(tw, "\nmethod\tmean off by\tstandard deviation\t")
	}
	for _, m := range e.Methods {
		fmt.Fprintf(tw, "%s\t%+.2f %%\t%s\t\n", m.Method, 100*m.Bias, known("%.2f %%", m.Scatter, 100))
	}
	return tw.Flush()
}
