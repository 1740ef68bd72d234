package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/launch"
	"star/internal/build"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job/process"
	"star/train"
	"star/train/checkpoint"
	"star/train/data"
	"star/train/net"
	"star/train/optim"
)

func checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List, verify and convert checkpoints",
		Long: `Works on checkpoints in folders and, with star-bucket, on those in object stores (s3://bucket/prefix?region=REGION).
PLACE is a checkpoint, a folder of checkpoints, or the folder of a job (--out of star run).`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(checkpointLs(), checkpointVerify(), checkpointConvert())
	return cmd
}

// placeArg is the first argument, or where a job keeps its checkpoints by default.
func placeArg(args []string) string {
	if len(args) == 0 {
		return "star-out"
	}
	return args[0]
}

func atMost(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return &settings.UsageError{Msg: fmt.Sprintf("%s wants %s, and got %q", cmd.CommandPath(), what, args)}
		}
		return nil
	}
}

func checkpointLs() *cobra.Command {
	var s settings.Set
	var asJSON bool
	settings.Var(&s, &asJSON, "json", false, "the list as JSON")
	cmd := &cobra.Command{
		Use:   "ls [PLACE]",
		Short: "List checkpoints, the newest first",
		Long:  "Reads manifests only: star checkpoint verify reads every byte. Without PLACE: star-out.",
		Args:  atMost(1, "one place"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := cli.LookAt(placeArg(args), checkpoint.Describe)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), all, asJSON)
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

func checkpointVerify() *cobra.Command {
	var s settings.Set
	var asJSON bool
	settings.Var(&s, &asJSON, "json", false, "the list as JSON")
	cmd := &cobra.Command{
		Use:   "verify [PLACE]",
		Short: "Read every byte of checkpoints and compare it with what was written",
		Long: `Exit code 65 if one that looks complete is damaged, 66 if files are missing or there is no checkpoint. Folders without a manifest are
what a crash left, or being written: they are listed, and are no failure. Without PLACE: star-out.`,
		Args: atMost(1, "one place"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var bad error
			all, err := cli.LookAt(placeArg(args), func(path string) (checkpoint.Manifest, error) {
				c, err := checkpoint.Open(path)
				if err != nil {
					return checkpoint.Manifest{}, err
				}
				return c.Manifest(), nil
			})
			if err != nil {
				return err
			}
			whole := 0
			for _, c := range all {
				switch c.State {
				case "complete":
					c.State = "verified"
					whole++
				case "damaged":
					if bad == nil || errors.Is(c.Err, checkpoint.ErrCorrupt) && !errors.Is(bad, checkpoint.ErrCorrupt) {
						bad = c.Err
					}
				}
			}
			if bad == nil && whole == 0 {
				bad = &checkpoint.Error{Kind: checkpoint.ErrMissing, Path: placeArg(args), Offset: -1, Expected: "a complete checkpoint", Found: "none"}
			}
			if err := show(cmd.OutOrStdout(), all, asJSON); err != nil {
				return err
			}
			return bad
		},
	}
	cli.Bind(cmd, &s)
	return cmd
}

func show(w io.Writer, all []*cli.Saved, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(all)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	residuals := slices.ContainsFunc(all, func(s *cli.Saved) bool { return len(s.Residuals) > 0 })
	column := func(text string) string { // where jobs have codecs
		if !residuals {
			return ""
		}
		return text + "\t"
	}
	fmt.Fprintf(t, "checkpoint\tversion\tsamples\tshards\t%sparameters\tbytes\twritten\tstate\n", column("residuals"))
	for _, s := range all {
		if s.State == "incomplete" || s.State == "damaged" {
			fmt.Fprintf(t, "%s\t%d\t\t\t%s\t\t\t%s\n", base(s.Path), s.Version, column(""), s.State)
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s%d\t%d\t%s\t%s\n", base(s.Path), s.Version, s.Samples, s.Shards, column(fmt.Sprint(len(s.Residuals))), s.Params, s.Bytes, s.Created, s.State)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		if s.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", base(s.Path), s.Error)
		}
	}
	return nil
}

// base is the last part of a place.
func base(place string) string {
	path, _, _ := strings.Cut(place, "?")
	return filepath.Base(path)
}

// converting are the settings of star checkpoint convert.
type converting struct {
	set                             settings.Set
	like, model, dataset, optimizer string
	job                             string
	seed                            uint64
	asJSON                          bool
}

func checkpointConvert() *cobra.Command {
	c := new(converting)
	settings.Var(&c.set, &c.like, "like", "", "into a checkpoint: one of the same model, that says what model and optimiser it is for")
	settings.Var(&c.set, &c.model, "model", "", "into a checkpoint, without --like: the model, as of star run")
	settings.Var(&c.set, &c.dataset, "dataset", defaults.Dataset, "with --model: the data set it is for, as of star run")
	settings.Var(&c.set, &c.seed, "seed", defaults.Seed, "with --model: seed of the job that will go on with it")
	settings.Var(&c.set, &c.optimizer, "optimizer", defaults.Optimizer, "with --model: the job's update rule", "sgd", "momentum", "nesterov", "dana", "adam", "adamw", "muon")
	settings.Var(&c.set, &c.job, "job", defaults.Job, "with --model: name of the job")
	settings.Var(&c.set, &c.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "convert FROM TO",
		Short: "Make a safetensors file of named tensors of a checkpoint, or the other way round",
		Long: `star checkpoint convert star-out model.safetensors writes parameters and buffers of the newest checkpoint under the model's names, with
their shapes: safetensors.torch.load_file and numpy read it, and load_state_dict takes it.

star checkpoint convert model.safetensors FOLDER --like CHECKPOINT (or --model …) makes a checkpoint in FOLDER that star run --resume
begins with: version 1, no samples used, the optimiser new, or with the state in tensors called optim.state.PARAMETER.SLOT.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &settings.UsageError{Msg: fmt.Sprintf("star checkpoint convert wants what to convert and what to make of it, and got %q", args)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := args[0], args[1]
			if strings.HasSuffix(base(from), ".safetensors") {
				return c.load(cmd.OutOrStdout(), from, to)
			}
			return c.export(cmd.OutOrStdout(), from, to)
		},
	}
	cli.Bind(cmd, &c.set)
	return cmd
}

// newest opens a checkpoint, or the newest one of several that is whole.
func newest(place string) (*checkpoint.Checkpoint, error) {
	if checkpoint.Complete(place) {
		return checkpoint.Open(place)
	}
	if sub := filepath.Join(place, process.CheckpointsDir); cli.IsFolder(sub) {
		place = sub
	}
	c, _, err := checkpoint.Latest(place)
	return c, err
}

func (c *converting) export(w io.Writer, from, to string) error {
	ck, err := newest(from)
	if err != nil {
		return err
	}
	odd, err := ck.Export(to)
	if err != nil {
		return err
	}
	warnNotFinite(to, odd)
	m := ck.Manifest()
	if c.asJSON {
		return json.NewEncoder(w).Encode(map[string]any{"from": ck.Dir(), "to": to, "version": m.Version, "tensors": len(m.Layout) + len(m.BufferLayout), "parameters": m.Params, "not_finite": odd.Count})
	}
	fmt.Fprintf(w, "%s: %d tensors, %d parameters of version %d, from %s\n", to, len(m.Layout)+len(m.BufferLayout), m.Params, m.Version, ck.Dir())
	return nil
}

// warnNotFinite warns if a file has numbers with which no job can train.
func warnNotFinite(file string, odd checkpoint.NotFinite) {
	if odd.Count > 0 {
		fmt.Fprintf(os.Stderr, "star: warning: %s: %v\n", file, odd)
	}
}

func (c *converting) load(w io.Writer, from, to string) error {
	m, slots, err := c.blank()
	if err != nil {
		return err
	}
	// of version 0 workers would make their own from the seed
	m.Version, m.Samples, m.Cursor, m.FirstAttempt, m.Data, m.Extra = 1, 0, 0, 0, nil, checkpoint.Extra{}
	m.Created, m.Program, m.Commit = time.Now().UTC().Format(time.RFC3339), build.Program, build.Commit()
	m.Generation = 1 + launch.Generation(to)
	dir := checkpoint.Join(to, checkpoint.Name(m.Version, m.Generation))
	m, odd, err := checkpoint.Import(from, dir, m, slots)
	if err != nil {
		return err
	}
	warnNotFinite(from, odd)
	if c.asJSON {
		return json.NewEncoder(w).Encode(map[string]any{"from": from, "to": dir, "version": m.Version, "tensors": len(m.Layout) + len(m.BufferLayout), "parameters": m.Params, "not_finite": odd.Count})
	}
	fmt.Fprintf(w, "%s: %d parameters of %s, for %s\n", dir, m.Params, m.Model, m.Optimizer)
	return nil
}

// blank describes the model of a checkpoint that is to be made.
func (c *converting) blank() (m checkpoint.Manifest, slots []string, err error) {
	switch {
	case (c.like == "") == (c.model == ""):
		return m, nil, &settings.UsageError{Msg: "a file of tensors does not say how the model is built: give --like CHECKPOINT, one of the same model, or --model"}
	case c.like != "":
		ck, err := newest(c.like)
		if err != nil {
			return m, nil, err
		}
		return ck.Manifest(), ck.Slots(), nil
	}
	trainSet, _, err := data.Open(c.dataset, data.Options{})
	switch {
	case errors.Is(err, data.ErrSpec):
		return m, nil, c.set.Invalid("dataset", err)
	case err != nil:
		return m, nil, fmt.Errorf("--dataset: %w", err)
	}
	spec, err := net.Parse(c.model)
	if err != nil {
		return m, nil, c.set.Invalid("model", err)
	}
	spec.Input, spec.Seed = trainSet.Input(), c.seed
	model, err := net.Build(spec)
	if err != nil {
		return m, nil, c.set.Invalid("model", err)
	}
	defer model.Close()
	m.Job, m.Optimizer, m.Layout, m.BufferLayout = c.job, c.optimizer, named(model.Layout()), named(model.BufferLayout())
	if m.ModelHash, err = net.Hash(spec); err != nil {
		return m, nil, c.set.Invalid("model", err)
	}
	if m.Model, err = net.Describe(spec); err != nil {
		return m, nil, c.set.Invalid("model", err)
	}
	rule := optim.Config{Name: c.optimizer, LR: 1}
	if c.optimizer == optim.Momentum || c.optimizer == optim.Nesterov {
		rule.Momentum = 0.9 // any: it decides which slots there are
	}
	o, err := optim.New(rule.Shaped([]optim.Tensor{{Shape: []int{1}}}), 1)
	if err != nil {
		return m, nil, c.set.Invalid("optimizer", err)
	}
	for _, slot := range o.State().Slots {
		slots = append(slots, slot.Name)
	}
	return m, slots, nil
}

func named(layout []train.TensorSpec) []checkpoint.TensorSpec {
	out := make([]checkpoint.TensorSpec, len(layout))
	for i, t := range layout {
		out[i] = checkpoint.TensorSpec(t)
	}
	return out
}
