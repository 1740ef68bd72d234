package ops

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/internal/dtype"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/train"
	"star/train/checkpoint"
	"star/train/data"
	"star/train/net"
	"star/transport"
	"star/worker/foreign"
)

// judging are the settings of star eval and star predict.
type judging struct {
	set            settings.Set
	model, dataset string
	part           string
	out, format    string
	all, asJSON    bool
}

func (j *judging) declare() {
	settings.Var(&j.set, &j.dataset, "dataset", "", "data set, as of star run; empty: the one that the checkpoint was trained on")
	settings.Var(&j.set, &j.model, "model", "", "model, as of star run; empty: as the checkpoint says")
	settings.Var(&j.set, &j.part, "part", "test", "which part of the data set", "test", "train")
}

const ofPlace = `PLACE is a checkpoint, a folder of checkpoints, or the folder of a job (--out of star run): of several the newest one that is whole.
Without PLACE: star-out. Exit code 65: damaged; 66: missing; 78: the model or the data are not those of the checkpoint.`

func evalCommand() *cobra.Command {
	j := new(judging)
	j.declare()
	settings.Var(&j.set, &j.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "eval [PLACE] [-- COMMAND]",
		Short: "Evaluate a checkpoint on a data set",
		Long: `Says what loss and accuracy the parameters of a checkpoint have on a data set, by default the test set of its job.

With a command, such as that of star run, what it starts (a script with star.evaluate, docs/python.md) has the model and the test set: star eval star-out -- python train.py.

` + ofPlace,
		Args: func(cmd *cobra.Command, args []string) error {
			places, _ := apart(cmd, args)
			return atMost(1, "one place")(cmd, places)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args, command := apart(cmd, args)
			if len(command) > 0 {
				return j.ofProgram(placeArg(args), command, cmd.OutOrStdout())
			}
			return j.run(placeArg(args), func(ctx context.Context, c *checkpoint.Checkpoint, model train.Model, set data.Dataset) error {
				return j.eval(ctx, cmd.OutOrStdout(), c, model, set)
			})
		},
	}
	cli.Bind(cmd, &j.set)
	return cmd
}

// apart are the arguments before and after --.
func apart(cmd *cobra.Command, args []string) (before, after []string) {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		return args[:n], args[n:]
	}
	return args, nil
}

func predictCommand() *cobra.Command {
	j := new(judging)
	j.declare()
	settings.Var(&j.set, &j.format, "format", "csv", "form of the output", "csv", "jsonl")
	settings.Var(&j.set, &j.out, "out", "", "file to write to; empty: standard output")
	settings.Var(&j.set, &j.all, "all", false, "with the probability of every class")
	cmd := &cobra.Command{
		Use:   "predict [PLACE]",
		Short: "Write what a checkpoint predicts for each sample of a data set",
		Long: `Writes a line for each prediction, in the order of the data set: the sample, the position in it (data sets of text only, where each position has
one), its label, the predicted class, and the probability of that. With --all the probability of every class as well.

  --format csv    sample,label,predicted,probability[,p0,p1,…] below a line of these names
  --format jsonl  {"sample":0,"label":7,"predicted":7,"probability":0.998[,"probabilities":[…]]}, one for each line

` + ofPlace,
		Args: atMost(1, "one place"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return j.run(placeArg(args), func(ctx context.Context, _ *checkpoint.Checkpoint, model train.Model, set data.Dataset) error {
				if j.out == "" {
					return j.predict(ctx, cmd.OutOrStdout(), model, set)
				}
				f, err := os.Create(j.out)
				if err != nil {
					return j.set.Invalid("out", err)
				}
				err = j.predict(ctx, f, model, set)
				if e := f.Close(); err == nil {
					err = e
				}
				return err
			})
		},
	}
	cli.Bind(cmd, &j.set)
	return cmd
}

// run has f work with the model of a checkpoint, and a data set.
func (j *judging) run(place string, f func(context.Context, *checkpoint.Checkpoint, train.Model, data.Dataset) error) error {
	ctx, cancel := process.Signals(context.Background())
	defer cancel()
	c, err := newest(place)
	if err != nil {
		return err
	}
	m := c.Manifest()
	var was struct {
		Model   string `json:"model"`
		Dataset string `json:"dataset"`
		Seed    uint64 `json:"seed"`
	}
	if len(m.Config) > 0 {
		if err := json.Unmarshal(m.Config, &was); err != nil {
			return fmt.Errorf("%s: the settings in its manifest: %w", c.Dir(), err)
		}
	}
	for _, s := range []struct {
		name string
		set  *string
		was  string
	}{{"model", &j.model, was.Model}, {"dataset", &j.dataset, was.Dataset}} {
		if *s.set == "" {
			*s.set = s.was
		}
		if *s.set == "" {
			return j.set.Invalid(s.name, fmt.Errorf("%s does not say which one it was trained with: give --%s", c.Dir(), s.name))
		}
	}
	trainSet, testSet, err := data.Open(j.dataset, data.Options{})
	switch {
	case errors.Is(err, data.ErrSpec):
		return j.set.Invalid("dataset", err)
	case err != nil:
		return fmt.Errorf("--dataset %s: %w", j.dataset, err)
	}
	set := testSet
	if j.part == "train" {
		set = trainSet
	}
	spec, err := net.Parse(j.model)
	if err != nil {
		return j.set.Invalid("model", err)
	}
	spec.Input, spec.Seed = set.Input(), was.Seed
	model, err := net.Build(spec)
	if err != nil {
		return &job.DisagreeError{Err: fmt.Errorf("--model %s for --dataset %s: %w", j.model, j.dataset, err)}
	}
	defer model.Close()
	here, _ := net.Describe(spec)
	if err := restore(c, model, here); err != nil {
		return err
	}
	err = f(ctx, c, model, set)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// ofProgram evaluates a checkpoint by a program that has the model and the test set.
func (j *judging) ofProgram(place string, command []string, w io.Writer) error {
	for name, v := range map[string]string{"model": j.model, "dataset": j.dataset} {
		if v != "" {
			return j.set.Invalid(name, errors.New("the command has its own: leave one of them away"))
		}
	}
	if j.part != "test" {
		return j.set.Invalid("part", errors.New("a command evaluates its test set alone"))
	}
	ctx, cancel := process.Signals(context.Background())
	defer cancel()
	c, err := newest(place)
	if err != nil {
		return err
	}
	return daemon.WithProgram(ctx, command, slog.New(slog.NewTextHandler(os.Stderr, nil)), func(m *foreign.Model) error {
		a := m.About()
		if a.Tests == 0 {
			return &settings.UsageError{Msg: strings.Join(command, " ") + " has no test set: it has to call star.evaluate(f, testset) before its first batch"}
		}
		if err := restore(c, m, m.Describe()); err != nil {
			return err
		}
		j.model, j.dataset = a.Name, a.Data
		return j.eval(ctx, w, c, m, m.Test())
	})
}

// restore has a model, here in words, take the tensors of a checkpoint.
func restore(c *checkpoint.Checkpoint, model train.Model, here string) error {
	m := c.Manifest()
	if !alike(&m, model) {
		return &job.DisagreeError{Err: fmt.Errorf("%s has other tensors than this model on this data set: there %s; here %s", c.Dir(), m.Model, here)}
	}
	if err := c.Params(model.Params()); err != nil {
		return err
	}
	if c.BufferLen() == 0 {
		return nil
	}
	buffers := make([]float32, c.BufferLen())
	if err := c.Buffers(buffers); err != nil {
		return err
	}
	if len(m.BufferLayout) == 0 {
		copy(model.Buffers(), buffers)
		return nil
	}
	from, to := transport.Floats(buffers), transport.Floats(model.Buffers())
	for i, t := range m.BufferLayout {
		own := model.BufferLayout()[i]
		if !dtype.Convert(to[own.Offset*dtype.WordSize:], own.DType, from[t.Offset*dtype.WordSize:], t.DType, own.Len()) {
			return &job.DisagreeError{Err: fmt.Errorf("%s has %s as %s, this model as %s", c.Dir(), t.Name, t.DType, own.DType)}
		}
	}
	return nil
}

// alike reports whether the tensors of a checkpoint are those of a model, with any types, and with names that wrappers
// of PyTorch add. Complex buffers, which programs have last, may be missing: earlier versions did not save them.
func alike(m *checkpoint.Manifest, model train.Model) bool {
	layout, buffers := checkpoint.PlainLayout(m.Layout, m.BufferLayout)
	own, ownBuffers := checkpoint.PlainLayout(named(model.Layout()), named(model.BufferLayout()))
	for n := len(ownBuffers); n > len(buffers) && dtype.IsComplex(ownBuffers[n-1].DType); n-- {
		ownBuffers = ownBuffers[:n-1]
	}
	same := func(x, y checkpoint.TensorSpec) bool { return x.Name == y.Name && slices.Equal(x.Shape, y.Shape) }
	return slices.EqualFunc(layout, own, same) && slices.EqualFunc(buffers, ownBuffers, same)
}

// evalAtOnce is how many samples are looked at together.
const evalAtOnce = 256

// batches calls f with one batch after the other, and the number of its first sample.
func batches(ctx context.Context, set data.Dataset, f func(from int, b train.Batch) error) error {
	var b train.Batch
	indices := make([]int, 0, evalAtOnce)
	for from := 0; from < set.Len(); from += evalAtOnce {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		indices = indices[:0]
		for i := from; i < min(from+evalAtOnce, set.Len()); i++ {
			indices = append(indices, i)
		}
		if err := set.Fill(&b, indices); err != nil {
			return err
		}
		if err := f(from, b); err != nil {
			return err
		}
	}
	return nil
}

// judged is the result of star eval.
type judged struct {
	Checkpoint  string  `json:"checkpoint"`
	Version     int64   `json:"version"`
	Samples     int64   `json:"samples"` // that it was trained with
	Model       string  `json:"model"`
	Dataset     string  `json:"dataset"`
	Part        string  `json:"part"`
	Loss        float64 `json:"loss"` // mean cross-entropy, in nats
	Accuracy    float64 `json:"accuracy"`
	Predictions int     `json:"predictions"`
}

func (j *judging) eval(ctx context.Context, w io.Writer, c *checkpoint.Checkpoint, model train.Model, set data.Dataset) error {
	var sum train.Result
	err := batches(ctx, set, func(_ int, b train.Batch) error {
		r, err := model.Eval(ctx, b)
		sum.LossSum, sum.Correct, sum.Count = sum.LossSum+r.LossSum, sum.Correct+r.Correct, sum.Count+r.Count
		return err
	})
	if err != nil {
		return err
	}
	m := c.Manifest()
	r := judged{c.Dir(), m.Version, m.Samples, j.model, j.dataset, j.part, sum.LossSum / float64(sum.Count), float64(sum.Correct) / float64(sum.Count), sum.Count}
	if math.IsNaN(r.Loss) || math.IsInf(r.Loss, 0) {
		return fmt.Errorf("%s: the loss is %v: its parameters are of no use", c.Dir(), r.Loss)
	}
	if j.asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err = fmt.Fprintf(w, "checkpoint %s: version %d, of %d samples\nmodel      %s\ndata       %s, %s set, %d predictions\nloss       %.4f\naccuracy   %.2f %%\n",
		r.Checkpoint, r.Version, r.Samples, r.Model, r.Dataset, r.Part, r.Predictions, r.Loss, 100*r.Accuracy)
	return err
}

// prediction is a line of star predict.
type prediction struct {
	Sample        int       `json:"sample"`
	Position      *int      `json:"position,omitempty"`
	Label         int32     `json:"label"`
	Predicted     int       `json:"predicted"`
	Probability   float64   `json:"probability"`
	Probabilities []float64 `json:"probabilities,omitempty"`
}

func (j *judging) predict(ctx context.Context, to io.Writer, model train.Model, set data.Dataset) error {
	scorer, ok := model.(train.Scorer)
	if !ok {
		return fmt.Errorf("--model %s does not say what it makes of samples", j.model)
	}
	w := bufio.NewWriter(to)
	in := set.Input()
	if j.format == "csv" {
		head := "sample"
		if in.Tokens {
			head += ",position"
		}
		head += ",label,predicted,probability"
		for k := 0; j.all && k < in.Classes; k++ {
			head += ",p" + strconv.Itoa(k)
		}
		fmt.Fprintln(w, head)
	}
	lines := json.NewEncoder(w)
	var ps []float64
	err := batches(ctx, set, func(from int, b train.Batch) error {
		rows := len(b.Y) / b.Samples
		var failed error
		err := scorer.Scores(ctx, b, func(i int, scores []float32) {
			ps = softmax(ps, scores)
			p := prediction{Sample: from + i/rows, Label: b.Y[i]}
			for k, v := range ps {
				if v > ps[p.Predicted] {
					p.Predicted = k
				}
			}
			if p.Probability = ps[p.Predicted]; math.IsNaN(p.Probability) && failed == nil {
				failed = fmt.Errorf("the scores of sample %d are not finite: the checkpoint's parameters are of no use", p.Sample)
			}
			if at := i % rows; in.Tokens {
				p.Position = &at
			}
			if j.all {
				p.Probabilities = ps
			}
			if failed == nil {
				failed = p.write(w, lines, j.format)
			}
		})
		return cmp.Or(err, failed)
	})
	return cmp.Or(err, w.Flush())
}

func (p *prediction) write(w *bufio.Writer, lines *json.Encoder, format string) error {
	if format != "csv" {
		return lines.Encode(p)
	}
	b := strconv.AppendInt(nil, int64(p.Sample), 10)
	if p.Position != nil {
		b = strconv.AppendInt(append(b, ','), int64(*p.Position), 10)
	}
	b = strconv.AppendInt(append(b, ','), int64(p.Label), 10)
	b = strconv.AppendInt(append(b, ','), int64(p.Predicted), 10)
	for _, v := range append([]float64{p.Probability}, p.Probabilities...) {
		b = strconv.AppendFloat(append(b, ','), v, 'g', 6, 64)
	}
	_, err := w.Write(append(b, '\n'))
	return err
}

// softmax makes probabilities of scores, in ps if that is large enough.
func softmax(ps []float64, scores []float32) []float64 {
	ps = ps[:0]
	most, sum := slices.Max(scores), 0.
	for _, s := range scores {
		e := math.Exp(float64(s) - float64(most))
		ps, sum = append(ps, e), sum+e
	}
	for i := range ps {
		ps[i] /= sum
	}
	return ps
}
