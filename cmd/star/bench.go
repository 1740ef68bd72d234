package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"star/bench"
	"star/cmd/internal/node"
	"star/cmd/internal/settings"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure hot paths against bare ones, in turns",
		Long: `Each benchmark measures STAR and something simpler in turns in the same run and prints the ratio: machines
differ, and the same machine differs from minute to minute.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchPS(), benchCoord(), benchStep(), benchAllReduce())
	return cmd
}

// suite is a benchmark's settings and how they are read.
type suite struct {
	set    settings.Set
	asJSON bool
}

// command makes the command of a benchmark. print writes the table of a result.
func (s *suite) command(use, short, long string, measure func(ctx context.Context) (any, error), print func(w *tabwriter.Writer, result any)) *cobra.Command {
	settings.Var(&s.set, &s.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.set.Resolve(settings.Sources{Environ: environ()}); err != nil {
				return err
			}
			if s.set.PrintWanted() {
				return s.set.Print(cmd.OutOrStdout())
			}
			ctx, cancel := node.Signals(context.Background())
			defer cancel()
			result, err := measure(ctx)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if err != nil {
				return err
			}
			if s.asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(result)
			}
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
			print(tw, result)
			return tw.Flush()
		},
	}
	s.set.Bind(cmd)
	return cmd
}

func benchPS() *cobra.Command {
	s := new(suite)
	var sizes []string
	var workers []int
	var cfg bench.PSConfig
	settings.Var(&s.set, &sizes, "sizes", []string{"1MB", "16MB", "100MB"}, "bytes of the parameters, such as 64KiB,1MB")
	settings.Var(&s.set, &workers, "ranks", []int{1, 2, 4}, "numbers of workers")
	settings.Var(&s.set, &cfg.Shards, "shards", 1, "shards that share the parameters")
	settings.Var(&s.set, &cfg.Runs, "runs", 7, "turns of each side")
	settings.Var(&s.set, &cfg.Congestion, "congestion", []string{"star"}, "congestion control of both sides: star (ours), kernel")
	return s.command("ps", "Push and pull through a shard, against a bare connection",
		`Every worker pushes a gradient to a real shard over loopback TCP, the shard makes an update, every worker
receives the parameters. Beside it the same bytes over bare connections with the same socket options.`,
		func(ctx context.Context) (any, error) {
			for _, text := range sizes {
				n, err := parseBytes(text)
				if err != nil {
					return nil, s.set.Invalid("sizes", err)
				}
				cfg.Sizes = append(cfg.Sizes, n)
			}
			for i, c := range cfg.Congestion {
				if c == "star" {
					cfg.Congestion[i] = ""
				}
			}
			cfg.Workers = workers
			return bench.PS(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "workers\tbytes\ttransport\talgorithm\tmedian\tp10\tp90\tGB/s\tcpu s/GB\tallocs/op\tof bare\tof plain\t\n")
			for _, r := range result.([]bench.PSResult) {
				plain := "-"
				if r.Plain > 0 {
					plain = fmt.Sprintf("%.2f", r.Plain)
				}
				fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.1f\t%.2f\t%s\t\n", r.Ranks, r.Bytes, r.Transport, r.Algorithm,
					seconds(r.Median), seconds(r.P10), seconds(r.P90), r.BusBW/1e9, r.CPU, r.Allocs, r.Ratio, plain)
			}
		})
}

// rankCommand is one rank of star bench allreduce, which starts it.
func rankCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench-rank", Hidden: true, Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := node.Signals(context.Background())
			defer cancel()
			return bench.RankMain(ctx, os.Getenv(bench.RankVariable), cmd.OutOrStdout())
		},
	}
}

func benchAllReduce() *cobra.Command {
	s := new(suite)
	var sizes []string
	var cfg bench.AllReduceConfig
	settings.Var(&s.set, &cfg.Ranks, "ranks", []int{2, 4}, "numbers of processes")
	settings.Var(&s.set, &sizes, "sizes", []string{"4B", "4KiB", "64KiB", "1MiB", "16MiB", "100MB"}, "bytes of the vector")
	settings.Var(&s.set, &cfg.Transports, "transports", []string{"tcp", "shm"}, "tcp, unix or shm")
	settings.Var(&s.set, &cfg.Peers, "peers", nil, "to measure in turns: openmpi-tcp, openmpi-shm, gloo")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 5, "turns of each side")
	settings.Var(&s.set, &cfg.Python, "python", "/usr/bin/python3", "interpreter that has PyTorch, for gloo")
	settings.Var(&s.set, &cfg.Congestion, "congestion", "", "congestion control of all sides; kernel: the machine's (cubic)")
	settings.Var(&s.set, &cfg.Rank.Poll, "poll", false, "wait by asking again and again: a whole processor for each rank")
	return s.command("allreduce", "All-reduce between processes of this machine, against other libraries",
		`Float32 sums between separate processes, from 4 bytes to 100 MB. With --peers the same in turns with Open MPI and
PyTorch's Gloo, if they are installed (Debian: libopenmpi-dev, openmpi-bin, python3-torch).`,
		func(ctx context.Context) (any, error) {
			for _, text := range sizes {
				n, err := parseBytes(text)
				if err != nil {
					return nil, s.set.Invalid("sizes", err)
				}
				cfg.Sizes = append(cfg.Sizes, n)
			}
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			cfg.Command = []string{self, "bench-rank"}
			return bench.AllReduce(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "ranks\tbytes\ttransport\talgorithm\tmedian\tp10\tp90\tbus GB/s\tcpu s/GB\tallocs/op\t\n")
			for _, r := range result.([]bench.AllReduceResult) {
				allocs := "-"
				if r.Allocs >= 0 {
					allocs = fmt.Sprintf("%.1f", r.Allocs)
				}
				fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t\n", r.Ranks, r.Bytes, r.Transport, r.Algorithm,
					seconds(r.Median), seconds(r.P10), seconds(r.P90), r.BusBW/1e9, r.CPU, allocs)
			}
		})
}

func benchCoord() *cobra.Command {
	s := new(suite)
	var cfg bench.CoordConfig
	settings.Var(&s.set, &cfg.Workers, "ranks", []int{8}, "numbers of workers")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 2000, "updates")
	settings.Var(&s.set, &cfg.Mode, "mode", "ssgd", "which arrivals make an update")
	return s.command("coord", "Arrive to release, through the coordinator",
		`Workers that compute nothing arrive over loopback TCP as soon as they are released. The times are from the last
arrival of an update to a release of it: what the control plane adds to an iteration.`,
		func(ctx context.Context) (any, error) { return bench.Coord(ctx, cfg) },
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "workers\tmode\tupdates\tmedian\tp10\tp90\tcpu/update\t\n")
			for _, r := range result.([]bench.CoordResult) {
				fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t\n", r.Ranks, r.Mode, r.Rounds, seconds(r.Median), seconds(r.P10), seconds(r.P90), seconds(r.CPU))
			}
		})
}

// stepReport is the result of star bench step.
type stepReport struct {
	Compute  []bench.StepResult `json:"compute"`
	Overhead []overhead         `json:"overhead"`
}

// overhead is the step of a real job beside what it cannot do without.
type overhead struct {
	Model    string  `json:"model"`
	Ranks    int     `json:"ranks"`
	Shards   int     `json:"shards"`
	Bytes    int64   `json:"bytes"` // of the parameters
	Steps    int     `json:"steps"`
	Step     float64 `json:"step_s"`     // median time between updates
	Compute  float64 `json:"compute_s"`  // median of the slowest worker's computation
	Exchange float64 `json:"exchange_s"` // median of moving the same bytes over bare connections
	Overhead float64 `json:"overhead"`   // step / (compute + exchange) - 1
}

func benchStep() *cobra.Command {
	s := new(suite)
	var cfg bench.StepConfig
	var workers, shards, steps int
	var jobs []string
	settings.Var(&s.set, &cfg.Models, "models", bench.StepModels(), "models to compute alone")
	settings.Var(&s.set, &cfg.Against, "against", "", "peer to measure in turns: torch")
	settings.Var(&s.set, &cfg.Python, "python", "/usr/bin/python3", "interpreter that has PyTorch")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 5, "turns of each side")
	settings.Var(&s.set, &cfg.Seconds, "seconds", 1, "seconds of one turn")
	settings.Var(&s.set, &jobs, "jobs", []string{"lenet", "mlp"}, "models to train in a real job; none: no jobs")
	settings.Var(&s.set, &workers, "ranks", 4, "workers of the jobs")
	settings.Var(&s.set, &shards, "shards", 2, "shards of the jobs")
	settings.Var(&s.set, &steps, "steps", 150, "updates of one job")
	return s.command("step", "A training step: its computation, and what a job adds",
		`First the processor time of forward and backward on one thread, with --against torch in turns with PyTorch. Then
whole jobs of real processes in SSGD: the time between updates beside the slowest worker's computation plus the
same bytes over bare connections.`,
		func(ctx context.Context) (any, error) {
			var r stepReport
			var err error
			if !slices.Equal(cfg.Models, []string{"none"}) {
				if r.Compute, err = bench.Steps(ctx, cfg); err != nil {
					return nil, err
				}
			}
			for _, model := range jobs {
				if model == "none" {
					continue
				}
				o, err := measureOverhead(ctx, model, workers, shards, steps, 3)
				if err != nil {
					return nil, err
				}
				r.Overhead = append(r.Overhead, o)
			}
			return r, nil
		},
		func(w *tabwriter.Writer, result any) {
			r := result.(stepReport)
			if len(r.Compute) > 0 {
				fmt.Fprint(w, "model\tbatch\tparameters\tcpu/step\tfastest\tallocs\ttorch cpu\ttorch fastest\tratio\t\n")
				for _, c := range r.Compute {
					peer, least, ratio := "-", "-", "-"
					if c.Peer != "" {
						peer, least, ratio = seconds(c.PeerCPU), seconds(c.PeerMin), fmt.Sprintf("%.2f", c.Ratio)
					}
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%.0f\t%s\t%s\t%s\t\n", c.Model, c.Batch, c.Params, seconds(c.CPU), seconds(c.Min), c.Allocs, peer, least, ratio)
				}
			}
			if len(r.Overhead) > 0 {
				fmt.Fprint(w, "\njob\tworkers\tshards\tbytes\tstep\tslowest compute\tbare exchange\toverhead\t\n")
				for _, o := range r.Overhead {
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%+.1f %%\t\n", o.Model, o.Ranks, o.Shards, o.Bytes, seconds(o.Step), seconds(o.Compute), seconds(o.Exchange), 100*o.Overhead)
				}
			}
		})
}

// measureOverhead runs real jobs in turns with bare exchanges of the same bytes.
func measureOverhead(ctx context.Context, model string, workers, shards, steps, rounds int) (overhead, error) {
	o := overhead{Model: model, Ranks: workers, Shards: shards}
	dir, err := os.MkdirTemp("", "star-bench")
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	var step, compute, exchange []float64
	for range rounds {
		cmd := exec.CommandContext(ctx, self, "run", "--model", model, "--workers", strconv.Itoa(workers), "--shards", strconv.Itoa(shards),
			"--steps", strconv.Itoa(steps), "--slow", "none", "--mode", "ssgd", "--eval-every", "0", "--batch", "64",
			"--listen", "127.0.0.1:0", "--out", dir, "--json", "--progress", "off", "--log-level", "error")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return o, fmt.Errorf("star run --model %s: %w: %s", model, err, stderr.Bytes())
		}
		f, err := os.Open(filepath.Join(dir, node.RunLogName))
		if err != nil {
			return o, err
		}
		s, c, params, err := stepTimes(f)
		f.Close()
		if err != nil {
			return o, err
		}
		step, compute = append(step, s...), append(compute, c...)
		o.Bytes = 4 * params
		rows, err := bench.PS(ctx, bench.PSConfig{Sizes: []int64{o.Bytes}, Workers: []int{workers}, Shards: 1, Runs: 3, Congestion: []string{""}})
		if err != nil {
			return o, err
		}
		for _, r := range rows {
			if r.Algorithm == "bare-tcp" {
				exchange = append(exchange, r.Median)
			}
		}
	}
	if len(step) == 0 || len(exchange) == 0 {
		return o, errors.New("the jobs made no updates")
	}
	o.Steps, o.Step, o.Compute, o.Exchange = len(step), middle(step), middle(compute), middle(exchange)
	o.Overhead = o.Step/(o.Compute+o.Exchange) - 1
	return o, nil
}

// stepTimes reads a run log of an SSGD job: the times between updates, and the
// slowest computation of each. The first steps, which warm up, are left out.
func stepTimes(r io.Reader) (step, compute []float64, params int64, err error) {
	const warm = 10
	dec := json.NewDecoder(r)
	slowest := map[int64]float64{}
	last, n := 0.0, int64(0)
	for {
		var l struct {
			Type    string
			T       float64
			Params  int64
			Step    int64
			Compute float64
			Workers json.RawMessage // a number in some lines, a list in others
		}
		if err := dec.Decode(&l); err == io.EOF {
			return step, compute, params, nil
		} else if err != nil {
			return nil, nil, 0, err
		}
		switch l.Type {
		case "train":
			params = l.Params
		case "record":
			slowest[l.Step] = max(slowest[l.Step], l.Compute)
		case "fire":
			if n >= warm {
				step, compute = append(step, l.T-last), append(compute, slowest[n])
			}
			last, n = l.T, n+1
		}
	}
}

func middle(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// parseBytes reads a number of bytes: 4096, 64KiB, 1MB.
func parseBytes(text string) (int64, error) {
	units := []struct {
		name string
		n    float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil || x <= 0 || x*u.n > 1<<40 {
				break
			}
			return int64(x * u.n), nil
		}
	}
	return 0, fmt.Errorf("%q is no number of bytes; write such as 65536, 64KiB or 16MB", text)
}
