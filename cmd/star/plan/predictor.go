package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	nouns "star"
	"star/cmd/internal/cli"
	"star/internal/durable"
	"star/internal/settings"
	"star/job"
	"star/modes"
	"star/runlog"
	"star/sim/trace"
	"star/straggler"
)

func predictorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "predictor",
		Short: "Train and judge predictors of stragglers; say which workers were slow",
		Long:  "Works on run logs (run.jsonl) and on recorded traces (step,worker,duration,slowdown,rel), plain or gzip.",
		Args:  settings.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(predictorTrain(), predictorReport(), predictorVerdicts())
	return cmd
}

// recorded is a job that is over.
type recorded struct {
	name    string
	workers int // that have records
	members int // of the job
	timer   straggler.Timer
	ring    bool
	records []nouns.Record
	plans   map[int]modes.Plan // by the number of records before it
	bare    bool               // only times are known: a trace
}

// openRecorded reads a run log or a trace.
func openRecorded(path string) (*recorded, error) {
	j := &recorded{name: strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), ".csv"), timer: nouns.Record.Busy, plans: map[int]modes.Plan{}}
	if strings.HasSuffix(strings.TrimSuffix(path, ".gz"), ".csv") {
		t, err := trace.Open(path)
		if err != nil {
			return nil, job.FileError(err, trace.ErrCorrupt)
		}
		j.workers, j.bare = t.Workers, true
		for s := range int64(t.Steps) {
			for w := range t.Workers {
				// A trace has no unit: its median iteration counts as a second.
				d := time.Duration(t.Relative(nouns.Worker(w), s) * float64(time.Second))
				j.records = append(j.records, nouns.Record{Worker: nouns.Worker(w), Step: s, Compute: d, Samples: 1})
			}
		}
		return j, nil
	}
	err := cli.ReadRunLog(path, "the other records are used", func(l runlog.Line) {
		switch e := l.Entry.(type) {
		case runlog.Start:
			var c struct{ Arch string }
			if json.Unmarshal(e.Config, &c) == nil && c.Arch == settings.AllReduce { // missing settings have their defaults
				j.ring, j.timer = true, nouns.Record.Own
			}
		case runlog.Train:
			j.plan(e.Plan, e.Workers)
		case runlog.Plan:
			j.plan(e.Plan, j.members)
		case runlog.Record:
			j.workers = max(j.workers, int(e.Worker)+1)
			j.records = append(j.records, e.Record)
		}
	})
	if err == nil && j.workers == 0 {
		err = &runlog.Error{Name: path, Line: 1, Err: errors.New("no records")}
	}
	return j, err
}

// plan adds a plan, which may be in words that this program does not know.
func (j *recorded) plan(text string, workers int) {
	p, _ := modes.Parse(text, workers)
	j.members, j.plans[len(j.records)] = workers, p
}

var errNoFile = errors.New("no file")

func openAll(paths []string) (jobs []*recorded, err error) {
	for _, p := range paths {
		j, err := openRecorded(p)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// features are those that all the jobs have.
func features(jobs []*recorded) []straggler.Feature {
	for _, j := range jobs {
		if j.bare {
			return straggler.Times
		}
	}
	return straggler.Resources
}

// training are the settings of both commands that train.
type training struct {
	set    settings.Set
	asJSON bool
	split  float64
	hidden int
	epochs int
	seed   uint64
}

func (t *training) bind(cmd *cobra.Command) {
	settings.Var(&t.set, &t.hidden, "hidden", 50, "hidden units of each LSTM layer")
	settings.Var(&t.set, &t.epochs, "epochs", 40, "passes over the data at most; it ends sooner when that does not help")
	settings.Var(&t.set, &t.seed, "seed", 1, "of the first parameters and the order")
	settings.Var(&t.set, &t.asJSON, "json", false, "the result as JSON on standard output")
	cli.Bind(cmd, &t.set)
}

// check returns an error for a setting out of its range.
func (t *training) check() error {
	switch {
	case t.hidden < 1 || t.hidden > 4096:
		return t.set.Invalid("hidden", fmt.Errorf("%d is not in 1..4096", t.hidden))
	case t.epochs < 1:
		return t.set.Invalid("epochs", fmt.Errorf("%d is not at least 1", t.epochs))
	case !(t.split > 0) || t.split >= 1:
		return t.set.Invalid("split", fmt.Errorf("%v is not between 0 and 1", t.split))
	}
	return nil
}

// train trains on the first part of each job.
func (t *training) train(jobs []*recorded, part float64) (*straggler.Model, int, error) {
	h := straggler.NewHistory(jobs[0].timer, features(jobs), 0)
	for _, j := range jobs {
		if j.ring != jobs[0].ring {
			return nil, 0, &settings.UsageError{Msg: fmt.Sprintf("%s is of an all-reduce and %s is not, or the other way round: their times mean different things; train one model for each", j.name, jobs[0].name)}
		}
		h.Begin(j.workers)
		for _, r := range j.records {
			h.Observe(r)
		}
	}
	h.Truncate(part)
	tr, err := straggler.NewTrainer(h, straggler.TrainConfig{Hidden: t.hidden, Epochs: t.epochs, Random: rand.New(rand.NewPCG(t.seed, 0))})
	if err != nil {
		return nil, 0, err
	}
	for tr.Step() {
	}
	m := tr.Best()
	if m == nil || math.IsNaN(m.Error) || math.IsInf(m.Error, 0) {
		return nil, 0, errors.New("the training has diverged: its loss is not finite; try other data or fewer --hidden")
	}
	return m, tr.Epochs(), nil
}

func needFiles(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &settings.UsageError{Msg: what + " needs a run log or a trace"}
		}
		return nil
	}
}

func predictorTrain() *cobra.Command {
	t := &training{split: 0.5}
	var out string
	settings.Var(&t.set, &out, "out", "predictor.star", "file of the model")
	cmd := &cobra.Command{
		Use:   "train RUN …",
		Short: "Train an LSTM on run logs or traces",
		Long: `Trains the LSTM of the STAR artefact (two layers, a head for resources, a perceptron for the time) on the records of jobs and writes
the model. Inputs are CPU share, bytes per second and times; from traces times only. The same files and seed give the same model.`,
		Args: needFiles("star predictor train"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.check(); err != nil {
				return err
			}
			jobs, err := openAll(args)
			if err != nil {
				return err
			}
			m, epochs, err := t.train(jobs, 1)
			if err != nil {
				return err
			}
			b, err := m.AppendTo(nil)
			if err != nil {
				return err
			}
			if err := durable.WriteFile(out, b, 0o644); err != nil {
				return err
			}
			if t.asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{
					"out": out, "rows": m.Rows, "epochs": epochs, "error": m.Error, "parameters": len(m.Params), "features": m.Features})
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d parameters, trained on %d iterations in %d passes; error %.3f of the variance\n", out, len(m.Params), m.Rows, epochs, m.Error)
			return nil
		},
	}
	t.bind(cmd)
	return cmd
}

// predictorScore is one line of the report.
type predictorScore struct {
	Job          string  `json:"job"`
	Predictor    string  `json:"predictor"`
	LogError     float64 `json:"log_error"`
	Accuracy     float64 `json:"accuracy"`
	Precision    float64 `json:"precision"`
	Recall       float64 `json:"recall"`
	FPR          float64 `json:"false_positive_rate"`
	JobAccuracy  float64 `json:"job_accuracy"`
	JobPrecision float64 `json:"job_precision"`
	JobRecall    float64 `json:"job_recall"`
	JobFPR       float64 `json:"job_false_positive_rate"`
	Onsets       int     `json:"onsets"`
	Foreseen     int     `json:"foreseen"`
	Lead         float64 `json:"lead_steps"`
}

// horizon is how far ahead forecasts are asked for, as in the artefact.
const horizon = 30

func predictorReport() *cobra.Command {
	t := new(training)
	var model string
	var ratio float64
	settings.Var(&t.set, &t.split, "split", 0.7, "part of each job, from its begin, that is trained on; the rest is predicted")
	settings.Var(&t.set, &model, "model", "", "a model of star predictor train, instead of one trained on the first part of each job")
	settings.Var(&t.set, &ratio, "ratio", 0.2, "a straggler takes longer than the fastest by more than this part")
	cmd := &cobra.Command{
		Use:   "report RUN …",
		Short: "Say how well each predictor would have done",
		Long: `Shows recorded jobs to the predictors, iteration by iteration, and counts what they predicted: which worker will be a straggler, (t - min)/min > ratio,
in the next iteration; whether there will be any, as the STAR artefact asks; and how many iterations before a worker became one it had been said.`,
		Args: needFiles("star predictor report"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.check(); err != nil {
				return err
			}
			if !(ratio > 0) || ratio > 100 {
				return t.set.Invalid("ratio", fmt.Errorf("%v is not above 0 and at most 100", ratio))
			}
			var given *straggler.Model
			if model != "" {
				b, err := os.ReadFile(model)
				if err != nil {
					return job.FileError(err, errNoFile)
				}
				if given, err = straggler.ParseModel(b); err != nil {
					return fmt.Errorf("%s: %w", model, err)
				}
			}
			jobs, err := openAll(args)
			if err != nil {
				return err
			}
			scores := []predictorScore{}
			for _, j := range jobs {
				ss, err := t.report(j, given, ratio)
				if err != nil {
					return err
				}
				for _, s := range ss {
					scores = append(scores, predictorScore{j.name, s.Name, s.LogError, s.Workers.Accuracy(), s.Workers.Precision(), s.Workers.Recall(), s.Workers.FalsePositiveRate(),
						s.Jobs.Accuracy(), s.Jobs.Precision(), s.Jobs.Recall(), s.Jobs.FalsePositiveRate(), s.Onsets, s.Foreseen, s.Lead})
				}
			}
			if t.asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(scores)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprint(w, "job\tpredictor\toff by\taccuracy\tprecision\trecall\tFPR\tjob accuracy\tjob FPR\tforeseen\tlead\t\n")
			for _, s := range scores {
				fmt.Fprintf(w, "%s\t%s\t%.1f %%\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%d of %d\t%.1f it\t\n", s.Job, s.Predictor, 100*(math.Exp(s.LogError)-1),
					s.Accuracy, s.Precision, s.Recall, s.FPR, s.JobAccuracy, s.JobFPR, s.Foreseen, s.Onsets, s.Lead)
			}
			return w.Flush()
		},
	}
	t.bind(cmd)
	return cmd
}

// report scores the predictors on the last part of one job.
func (t *training) report(j *recorded, m *straggler.Model, ratio float64) ([]straggler.Score, error) {
	steps := straggler.Aligned(j.records, j.workers, j.timer)
	if len(steps) < 2 {
		return nil, fmt.Errorf("%s: %d iterations in which every worker took part: nothing to compare", j.name, len(steps))
	}
	from := int(t.split * float64(len(steps)))
	ewma := func() straggler.Forecaster { return straggler.NewEWMA(j.workers, j.timer, 0.3) }
	entrants := []straggler.Entrant{{Name: "last", Forecaster: straggler.NewLast(j.workers, j.timer)}, {Name: "ewma", Forecaster: ewma()}}
	if m == nil {
		cut := *j
		cut.records = nil
		for _, s := range steps[:from] {
			cut.records = append(cut.records, s...)
		}
		var err error
		if m, _, err = t.train([]*recorded{&cut}, 1); err != nil {
			fmt.Fprintf(os.Stderr, "star: %s: no LSTM: %v\n", j.name, err)
		}
	} else if len(m.Features) == len(straggler.Resources) && j.bare {
		return nil, &settings.UsageError{Msg: fmt.Sprintf("the model wants %q, %s has times only: train one on traces", m.Features, j.name)}
	}
	if m != nil {
		lstm := func() straggler.Forecaster { return straggler.NewLSTM(j.workers, j.timer, m) }
		entrants = append(entrants, straggler.Entrant{Name: "lstm", Forecaster: lstm()}, straggler.Entrant{Name: "contest",
			Forecaster: straggler.NewContest(j.timer, 25*j.workers, straggler.Entrant{Name: "ewma", Forecaster: ewma()}, straggler.Entrant{Name: "lstm", Forecaster: lstm()})})
	}
	return straggler.Evaluate(steps, from, horizon, ratio, j.timer, entrants...), nil
}

// predictorVerdict is one line of verdicts --json.
type predictorVerdict struct {
	Job      string   `json:"job"`
	Event    string   `json:"event"`
	Worker   int      `json:"worker"`
	Step     int64    `json:"step"`
	Since    int64    `json:"since"`
	Slowdown float64  `json:"slowdown"`
	Cause    string   `json:"cause"`
	Text     string   `json:"text"`
	Evidence []string `json:"evidence"`
}

func predictorVerdicts() *cobra.Command {
	s := new(settings.Set)
	var asJSON bool
	var ratio float64
	settings.Var(s, &ratio, "ratio", 0.2, "a straggler takes longer than the fastest by more than this part")
	settings.Var(s, &asJSON, "json", false, "the verdicts as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "verdicts RUN …",
		Short: "Say which workers were slow, since when and why",
		Long:  "Shows the records of run logs to the detector and prints what it says of them, one line for each change.",
		Args:  needFiles("star predictor verdicts"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !(ratio > 0) || ratio > 100 {
				return s.Invalid("ratio", fmt.Errorf("%v is not above 0 and at most 100", ratio))
			}
			all := []predictorVerdict{}
			for _, path := range args {
				j, err := openRecorded(path)
				if err != nil {
					return err
				}
				d, err := straggler.New(straggler.Config{Workers: j.workers, Collective: j.ring, Ratio: ratio})
				if err != nil {
					return err
				}
				step := 0 // samples of a step of the last record
				for i, r := range j.records {
					if p, ok := j.plans[i]; ok {
						d.Plan(p.Steps(0, step), p.Queue+p.Micro > 0)
					}
					step = modes.StepSamples(&r)
					for _, e := range d.Observe(r) {
						if asJSON {
							v := predictorVerdict{Job: j.name, Event: e.Kind.String(), Worker: int(e.Worker), Step: e.Step, Since: e.Verdict.Since, Slowdown: e.Verdict.Slowdown,
								Cause: e.Verdict.Cause.String(), Text: e.String(), Evidence: []string{}}
							for _, x := range e.Verdict.Evidence {
								v.Evidence = append(v.Evidence, x.Text)
							}
							all = append(all, v)
							continue
						}
						fmt.Fprintln(cmd.OutOrStdout(), e)
					}
				}
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			}
			return nil
		},
	}
	cli.Bind(cmd, s)
	return cmd
}
