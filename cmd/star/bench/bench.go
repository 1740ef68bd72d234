package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star"
	"star/allreduce"
	"star/bench"
	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/internal/ports"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/runlog"
	"star/train"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{benchCommand(), rankCommand(), matchCommand()}
}

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure hot paths against bare ones, in turns",
		Long: `Each benchmark measures STAR and something simpler in turns in the same run and prints the ratio: machines
differ, and the same machine differs from minute to minute.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(benchPS(), benchCoord(), benchWorkers(), benchStep(), benchAllReduce(), benchDecide(), benchScale(), benchTTA(), benchMatch(), benchCheckpoint(), benchReport(), benchFidelity())
	return cmd
}

// suite is a benchmark's settings and how they are read.
type suite struct {
	set    settings.Set
	asJSON bool

	// check, if not nil, finds mistakes in the settings before anything is measured.
	check func() error

	// finish, if not nil, runs after the result is printed. Its output is not the result: where that is JSON, it goes to
	// standard error.
	finish func(w io.Writer, result any) error
}

// command makes the command of a benchmark. print writes the table of a result.
func (s *suite) command(use, short, long string, measure func(ctx context.Context) (any, error), print func(w *tabwriter.Writer, result any)) *cobra.Command {
	settings.Var(&s.set, &s.asJSON, "json", false, "the result as JSON on standard output")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.check != nil {
				if err := s.check(); err != nil {
					return err
				}
			}
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			result, err := measure(ctx)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if err != nil {
				return err
			}
			rest := cmd.OutOrStdout()
			if s.asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err, rest = enc.Encode(result), cmd.ErrOrStderr()
			} else {
				tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
				print(tw, result)
				err = tw.Flush()
			}
			if err != nil || s.finish == nil {
				return err
			}
			return s.finish(rest, result)
		},
	}
	cli.Bind(cmd, &s.set)
	return cmd
}

func benchPS() *cobra.Command {
	s := new(suite)
	var sizes []string
	var workers []int
	var cfg bench.PSConfig
	var options rowOptions
	settings.Var(&s.set, &sizes, "sizes", []string{"1MB", "16MB", "100MB"}, "bytes of the parameters, such as 64KiB,1MB")
	settings.Var(&s.set, &workers, "ranks", []int{1, 2, 4}, "numbers of workers")
	settings.Var(&s.set, &cfg.Shards, "shards", 1, "shards that share the parameters")
	settings.Var(&s.set, &cfg.Runs, "runs", 7, "turns of each side")
	settings.Var(&s.set, &cfg.Congestion, "congestion", []string{"star"}, "congestion control of both sides: star (ours), kernel")
	options.declare(&s.set)
	s.finish = func(w io.Writer, result any) error {
		var rows []bench.Row
		for _, r := range result.([]bench.PSResult) {
			rows = append(rows, r.Row)
		}
		return options.finish(w, "push and pull by workers", rows)
	}
	return s.command("ps", "Push and pull through a shard, against a bare connection",
		`Every worker pushes a gradient to a real shard over loopback TCP, the shard makes an update, every worker
receives the parameters. Beside it the same bytes over bare connections with the same socket options.`,
		func(ctx context.Context) (any, error) {
			var err error
			if cfg.Sizes, err = sizesOf(sizes); err != nil {
				return nil, s.set.Invalid("sizes", err)
			}
			if err := options.check(&s.set); err != nil {
				return nil, err
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
					console.Seconds(r.Median), console.Seconds(r.P10), console.Seconds(r.P90), r.BusBW/1e9, r.CPU, r.Allocs, r.Ratio, plain)
			}
		})
}

// benchReport writes a page of results.
func benchReport() *cobra.Command {
	return &cobra.Command{
		Use: "report DIR", Short: "The results of bench/allreduce.sh as Markdown",
		Long: `Reads the JSON files that bench/allreduce.sh has written to DIR, and prints tables of times and ratios, and where STAR is
behind what it aims at.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star bench report: name the folder that bench/allreduce.sh has filled"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := bench.Report(cmd.OutOrStdout(), args[0]); err != nil {
				return job.FileError(err, bench.ErrRows)
			}
			return nil
		},
	}
}

// rankCommand is one rank of star bench allreduce, or a process of a bare job of star
// bench step, which start it.
func rankCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench-rank", Hidden: true, Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			if text := os.Getenv(bench.BareVariable); text != "" {
				return bench.BareMain(ctx, text, cmd.OutOrStdout())
			}
			return bench.RankMain(ctx, os.Getenv(bench.RankVariable), cmd.OutOrStdout())
		},
	}
}

// allReduceSuite is star bench allreduce.
type allReduceSuite struct {
	suite
	rows rowOptions

	cfg                                            bench.AllReduceConfig
	sizes, algorithms, segments, buffers, controls []string
	tune, model, zeroCopy                          string
}

func benchAllReduce() *cobra.Command {
	s := new(allReduceSuite)
	cfg := &s.cfg
	settings.Var(&s.set, &cfg.Ranks, "ranks", []int{2, 4}, "numbers of processes")
	settings.Var(&s.set, &s.sizes, "sizes", []string{"4B", "4KiB", "64KiB", "1MiB", "16MiB", "100MB"}, "bytes of the vector")
	settings.Var(&s.set, &cfg.Transports, "transports", []string{"tcp", "shm"}, "tcp, unix or shm")
	settings.Var(&s.set, &cfg.Peers, "peers", nil, "to measure in turns: openmpi-tcp, openmpi-shm, gloo")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 5, "turns of each side")
	settings.Var(&s.set, &cfg.Python, "python", "/usr/bin/python3", "interpreter that has PyTorch, for gloo")
	settings.Var(&s.set, &s.algorithms, "algorithm", nil, "auto, ring, doubling, halving, tree, double-tree, hierarchy, hierarchy-doubling, late; several are measured in turns")
	settings.Var(&s.set, &s.segments, "segment", nil, "bytes after which a part is passed on (by the cost model)")
	settings.Var(&s.set, &s.buffers, "sndbuf", nil, "bytes of the sockets' buffers, both ways; kernel: its own choice (1MiB)")
	settings.Var(&s.set, &s.controls, "congestion", nil, "congestion control of all sides; kernel: the machine's (cubic)")
	settings.Var(&s.set, &cfg.Rank.Late, "late", time.Duration(0), "how much later than the others the last process calls each operation; times are from its call on")
	settings.Var(&s.set, &cfg.Rank.Poll, "poll", false, "wait by asking again and again: a whole processor for each rank")
	settings.Var(&s.set, &cfg.Checksums, "checksum", []string{"off"}, "CRC-32 over what our ranks send over TCP, as between hosts: on, off, or both in turns")
	settings.Var(&s.set, &s.zeroCopy, "zero-copy", "auto", "which vectors our ranks take from each other's memory, without a copy for the socket or the shared memory; auto: those of 2 MiB and more", "auto", "on", "off")
	settings.Var(&s.set, &s.model, "allreduce-model", "", "cost model that --tune has written")
	settings.Var(&s.set, &s.tune, "tune", "", "measure what is the fastest, and write the cost model to this file")
	s.rows.declare(&s.set)
	s.finish = func(w io.Writer, result any) error {
		if rows, ok := result.([]bench.AllReduceResult); ok {
			return s.rows.finish(w, "all-reduce by ranks", rows)
		}
		return nil
	}
	return s.command("allreduce", "All-reduce between processes of this machine, against other libraries",
		`Float32 sums between separate processes, from 4 bytes to 100 MB. With --peers the same in turns with Open MPI and
PyTorch's Gloo, if they are installed (Debian: libopenmpi-dev, openmpi-bin, python3-torch).

With --tune FILE it compares congestion controls and buffers of TCP sockets, then algorithms and segments for each
size, number of ranks and link, and writes the cost model that star run, star-worker and this command take with
--allreduce-model. --sizes, --algorithm, --segment, --sndbuf and --congestion narrow what is tried. What the file
says of other numbers of ranks and links it keeps. Takes a few minutes.`,
		s.measure, s.print)
}

// parse parses the texts of settings.
func (s *allReduceSuite) parse() (sizes []int64, segments, buffers []int, err error) {
	if sizes, err = sizesOf(s.sizes); err != nil {
		return nil, nil, nil, s.set.Invalid("sizes", err)
	}
	for _, n := range sizes {
		if n%4 != 0 {
			return nil, nil, nil, s.set.Invalid("sizes", fmt.Errorf("%d bytes are no whole number of float32: give a multiple of 4", n))
		}
	}
	if segments, err = intsOf(s.segments); err != nil {
		return nil, nil, nil, s.set.Invalid("segment", err)
	}
	for _, n := range segments {
		if n < 8 || n%8 != 0 {
			return nil, nil, nil, s.set.Invalid("segment", errors.New("must be a multiple of 8 bytes"))
		}
	}
	if buffers, err = intsOf(s.buffers); err != nil {
		return nil, nil, nil, s.set.Invalid("sndbuf", err)
	}
	for _, sum := range s.cfg.Checksums {
		if sum != allreduce.ChecksumAll && sum != allreduce.ChecksumOff {
			return nil, nil, nil, s.set.Invalid("checksum", fmt.Errorf("%q is not one of on, off", sum))
		}
	}
	if s.zeroCopy != job.Auto {
		s.cfg.Rank.ZeroCopy = s.zeroCopy
	}
	s.cfg.Algorithms = nil
	for _, text := range s.algorithms {
		var a allreduce.Algorithm
		if err := a.UnmarshalText([]byte(text)); err != nil {
			return nil, nil, nil, s.set.Invalid("algorithm", err)
		}
		s.cfg.Algorithms = append(s.cfg.Algorithms, a)
	}
	return sizes, segments, buffers, s.rows.check(&s.set)
}

func (s *allReduceSuite) measure(ctx context.Context) (any, error) {
	sizes, segments, buffers, err := s.parse()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := []string{self, "bench-rank"}
	if s.tune != "" {
		return s.measureModel(ctx, command, sizes, segments, buffers)
	}
	s.cfg.Sizes, s.cfg.Command = sizes, command
	one := func(name string, n int) error {
		if n > 1 {
			return s.set.Invalid(name, errors.New("one value, unless --tune compares them"))
		}
		return nil
	}
	if err := cmp.Or(one("segment", len(segments)), one("sndbuf", len(buffers)), one("congestion", len(s.controls))); err != nil {
		return nil, err
	}
	if len(segments) == 1 {
		s.cfg.Rank.Segment = segments[0]
	}
	if len(buffers) == 1 {
		s.cfg.Rank.SendBuffer, s.cfg.Rank.ReceiveBuffer = buffers[0], buffers[0]
	}
	if len(s.controls) == 1 {
		s.cfg.Congestion = s.controls[0]
	}
	if s.model != "" {
		if s.cfg.Rank.Model, err = allreduce.LoadModel(s.model); err != nil {
			return nil, job.FileError(fmt.Errorf("--allreduce-model %s: %w", s.model, err), allreduce.ErrModel)
		}
	}
	rows, err := bench.AllReduce(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// measureModel is --tune.
func (s *allReduceSuite) measureModel(ctx context.Context, command []string, sizes []int64, segments, buffers []int) (any, error) {
	for name, given := range map[string]bool{"peers": len(s.cfg.Peers) > 0, "compare": s.rows.compare != "", "plot": s.rows.plot != "", "allreduce-model": s.model != ""} {
		if given {
			return nil, s.set.Invalid(name, errors.New("--tune measures a cost model, not rows"))
		}
	}
	cfg := bench.TuneConfig{
		Command: command, Ranks: s.cfg.Ranks, Transports: s.cfg.Transports, Algorithms: s.cfg.Algorithms,
		Segments: segments, Congestion: s.controls, Buffers: buffers, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if s.set.IsSet("sizes") {
		cfg.Sizes = sizes
	}
	if s.set.IsSet("rounds") {
		cfg.Rounds = s.cfg.Rounds
	}
	base, err := allreduce.LoadModel(s.tune)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, job.FileError(fmt.Errorf("--tune %s: %w", s.tune, err), allreduce.ErrModel)
	}
	cfg.Base = base
	t, err := bench.Tune(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return t, t.Model.Save(s.tune)
}

// print writes the table of a result.
func (s *allReduceSuite) print(w *tabwriter.Writer, result any) {
	if t, ok := result.(*bench.Tuned); ok {
		if len(t.Sockets) > 1 {
			fmt.Fprint(w, "congestion\tbuffers\tslower\t\n")
			for _, k := range t.Sockets {
				fmt.Fprintf(w, "%s\t%s\t%.2f\t\n", cmp.Or(k.Congestion, "cubic"), bytesText(int64(k.SendBuffer)), k.Slower)
			}
			fmt.Fprintln(w)
			w.Flush()
		}
		fmt.Fprint(w, "ranks\tbytes\ttransport\talgorithm\tsegment\tmedian\t\n")
		for _, c := range t.Choices {
			fmt.Fprintf(w, "%d\t%d\t%s\t%v\t%s\t%s\t\n", c.Ranks, c.Bytes, c.Transport, c.Algorithm, bytesText(int64(c.Segment)), console.Seconds(c.Seconds))
		}
		return
	}
	fmt.Fprint(w, "ranks\tbytes\ttransport\talgorithm\tmedian\tp10\tp90\tbus GB/s\tcpu s/GB\tallocs/op\t\n")
	for _, r := range result.([]bench.AllReduceResult) {
		allocs := "-"
		if r.Allocs >= 0 {
			allocs = fmt.Sprintf("%.1f", r.Allocs)
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t\n", r.Ranks, r.Bytes, r.Transport, r.Algorithm,
			console.Seconds(r.Median), console.Seconds(r.P10), console.Seconds(r.P90), r.BusBW/1e9, r.CPU, allocs)
	}
}

// bytesText is a power of two for people.
func bytesText(n int64) string {
	switch {
	case n < 0:
		return "kernel"
	case n == 0:
		return "-"
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func benchCoord() *cobra.Command {
	s := new(suite)
	var cfg bench.CoordConfig
	settings.Var(&s.set, &cfg.Workers, "ranks", []int{8}, "numbers of workers")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 2000, "updates")
	settings.Var(&s.set, &cfg.Mode, "mode", "ssgd", "which arrivals make an update")
	compared(s, &measureOptions[[]bench.CoordResult]{measures: bench.CoordMeasures, title: "from the last arrival to the release", x: "workers"})
	return s.command("coord", "Arrive to release, through the coordinator",
		`Workers that compute nothing arrive over loopback TCP as soon as they are released. The times are from the last
arrival of an update to a release of it: what the control plane adds to an iteration.`,
		func(ctx context.Context) (any, error) { return bench.Coord(ctx, cfg) },
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "workers\tmode\tupdates\tmedian\tp10\tp90\tcpu/update\t\n")
			for _, r := range result.([]bench.CoordResult) {
				fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t\n", r.Ranks, r.Mode, r.Rounds, console.Seconds(r.Median), console.Seconds(r.P10), console.Seconds(r.P90), console.Seconds(r.CPU))
			}
		})
}

func benchWorkers() *cobra.Command {
	s := new(suite)
	var cfg bench.WorkersConfig
	settings.Var(&s.set, &cfg.Programs, "programs", nil, "star programs with the coordinators that are measured in turns (this one)")
	settings.Var(&s.set, &cfg.Workers, "ranks", []int{1000}, "numbers of simulated workers")
	settings.Var(&s.set, &cfg.Shards, "shards", 1, "shards, on one server beside the coordinator")
	settings.Var(&s.set, &cfg.Params, "params", 64, "parameters of the model")
	settings.Var(&s.set, &cfg.Mode, "mode", "ssgd", "which arrivals make an update")
	settings.Var(&s.set, &cfg.Pace, "pace", time.Second, "computing time of an iteration; each worker varies it by up to a tenth")
	settings.Var(&s.set, &cfg.Updates, "updates", 20, "updates of a turn that are measured")
	settings.Var(&s.set, &cfg.For, "for", 0, "how long to measure, instead of --updates")
	settings.Var(&s.set, &cfg.Turns, "turns", 1, "turns of each program")
	settings.Var(&s.set, &cfg.Telemetry, "telemetry", true, "records hold all metrics of process, host and GPU")
	settings.Var(&s.set, &cfg.Scrape, "scrape", 0, "how often the coordinator's /metrics is asked, as Prometheus does; 0: at the end only")
	settings.Var(&s.set, &cfg.LogMax, "log-max", 0, "MiB that the coordinator's run log may take, as --log-max of a job; 0: no bound")
	s.check = func() error {
		if cfg.LogMax < 0 {
			return s.set.Invalid("log-max", fmt.Errorf("%d: want at least 0", cfg.LogMax))
		}
		for name, n := range map[string]int{"shards": cfg.Shards, "params": cfg.Params, "updates": cfg.Updates, "turns": cfg.Turns} {
			if n < 1 {
				return s.set.Invalid(name, fmt.Errorf("%d: want at least 1", n))
			}
		}
		for _, n := range cfg.Workers {
			if n < 1 || n > star.MaxWorkers {
				return s.set.Invalid("ranks", fmt.Errorf("%d: want 1 to %d", n, star.MaxWorkers))
			}
		}
		return nil
	}
	return s.command("workers", "Processor time of a coordinator by number of workers",
		`A real coordinator and a real server that has the shards, each in a process of its own, and simulated workers in
this process: they join, push and report over loopback TCP as real ones do, and sleep where real ones compute.
Standard error gets ten samples of each turn: memory, goroutines, descriptors and run log of the coordinator.`,
		func(ctx context.Context) (any, error) {
			cfg.Log, cfg.Reserve = os.Stderr, ports.Reserve
			if len(cfg.Programs) == 0 {
				self, err := os.Executable()
				if err != nil {
					return nil, err
				}
				cfg.Programs = []string{self}
			}
			return bench.Workers(ctx, cfg)
		},
		func(w *tabwriter.Writer, result any) {
			fmt.Fprint(w, "program\tworkers\tshards\tmode\tupdates\twall\tjoin\tdials\tcoordinator µs/worker/update\tserver µs\tMB\tgoroutines\tdescriptors\tlog bytes\t\n")
			for _, r := range result.([]bench.WorkersResult) {
				last := r.Samples[len(r.Samples)-1]
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%d\t%s\t%s\t%d\t%.1f\t%.1f\t%.0f\t%d\t%d\t%.0f\t\n", r.Program, r.Ranks, r.Shards, r.Mode, r.Updates, console.Seconds(r.Seconds), console.Seconds(r.Join), r.Dials,
					1e6*r.CPU, 1e6*r.Server, float64(last.Memory)/1e6, last.Goroutines, last.Descriptors, r.LogBytes)
			}
		})
}

// stepReport is the result of star bench step.
type stepReport struct {
	Compute  []bench.StepResult     `json:"compute"`
	Overhead []overhead             `json:"overhead"`
	Exchange []bench.ExchangeResult `json:"exchange,omitempty"` // with --arch allreduce, and then alone
}

// overhead is the step of a real job beside the minimum: the step of a bare job of processes that compute and move the
// same bytes.
type overhead struct {
	Model    string  `json:"model"`
	Ranks    int     `json:"ranks"`
	Shards   int     `json:"shards"`
	Bytes    int64   `json:"bytes"` // of the parameters
	Steps    int     `json:"steps"`
	Step     float64 `json:"step_s"`     // median time between updates
	Bare     float64 `json:"bare_s"`     // the same of a bare job
	Overhead float64 `json:"overhead"`   // step / bare - 1
	Compute  float64 `json:"compute_s"`  // median of the slowest worker's computation, as it measures it
	Exchange float64 `json:"exchange_s"` // median of moving the same bytes over bare connections in one process
	OverSum  float64 `json:"over_sum"`   // step / (compute + exchange) - 1
}

// measures are the numbers of the report: processor time of a step alone, time of a step of a job and of a bare one, or
// of a step with its exchange.
func (r stepReport) measures() []bench.Measure {
	ms := append(bench.ComputeMeasures(r.Compute), bench.ExchangeMeasures(r.Exchange)...)
	for _, o := range r.Overhead {
		name := fmt.Sprintf("%s, %d workers, %d shards", o.Model, o.Ranks, o.Shards)
		ms = append(ms, bench.Measure{Name: name + ", job", Value: o.Step}, bench.Measure{Name: name + ", bare job", Value: o.Bare})
	}
	return ms
}

func benchStep() *cobra.Command {
	s := new(suite)
	var cfg bench.StepConfig
	var shards, steps int
	var ranks []int
	var jobs, transports []string
	var arch, congestion, model string
	var bucket float64
	settings.Var(&s.set, &arch, "arch", "ps", "ps: computation, and jobs with parameter servers; allreduce: steps that exchange gradients by all-reduce", "ps", "allreduce")
	settings.Var(&s.set, &cfg.Models, "models", bench.StepModels(), "models to compute alone; with --arch allreduce lenet, mlp25m")
	settings.Var(&s.set, &cfg.Against, "against", "", "peer to measure in turns: torch; with --arch allreduce gloo")
	settings.Var(&s.set, &cfg.Python, "python", "/usr/bin/python3", "interpreter that has PyTorch")
	settings.Var(&s.set, &cfg.Rounds, "rounds", 5, "turns of each side")
	settings.Var(&s.set, &cfg.Seconds, "seconds", 1, "seconds of one turn")
	settings.Var(&s.set, &jobs, "jobs", []string{"lenet", "mlp"}, "models to train in a real job; none: no jobs")
	settings.Var(&s.set, &ranks, "ranks", []int{4}, "workers of the jobs; with --arch allreduce processes, 2,4 if not given")
	settings.Var(&s.set, &shards, "shards", 2, "shards of the jobs")
	settings.Var(&s.set, &steps, "steps", 150, "updates of one job; with --arch allreduce of one turn, two seconds' worth if not given")
	settings.Var(&s.set, &transports, "transports", []string{"tcp", "shm"}, "allreduce: our links: tcp, unix or shm")
	settings.Var(&s.set, &bucket, "bucket", 25, "allreduce: MB of the gradient that are exchanged at once")
	settings.Var(&s.set, &congestion, "congestion", "", "allreduce: congestion control of all sides; kernel: the machine's (cubic)")
	settings.Var(&s.set, &model, "allreduce-model", "", "allreduce: cost model that star bench allreduce --tune has written")
	compared(s, &measureOptions[stepReport]{measures: stepReport.measures, title: "a training step"})
	exchanges := func(ctx context.Context) (any, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		x := bench.ExchangeConfig{
			Command: []string{self, "bench-rank"}, Transports: transports, Against: cfg.Against, Python: cfg.Python,
			Congestion: congestion, Rounds: cfg.Rounds, Bucket: bucket,
		}
		if s.set.IsSet("models") {
			x.Models = cfg.Models
		}
		if s.set.IsSet("ranks") {
			x.Ranks = ranks
		}
		if s.set.IsSet("steps") {
			x.Steps = steps
		}
		if model != "" {
			if x.Model, err = allreduce.LoadModel(model); err != nil {
				return nil, job.FileError(fmt.Errorf("--allreduce-model %s: %w", model, err), allreduce.ErrModel)
			}
		}
		var r stepReport
		r.Exchange, err = bench.Exchanges(ctx, x)
		return r, err
	}
	return s.command("step", "A training step: its computation, and what a job adds",
		`First the processor time of forward and backward on one thread, with --against torch in turns with PyTorch. Then
whole jobs of real processes in SSGD: the time between updates, beside that of a bare job, in turns: as many
processes that compute the same gradients and exchange the same bytes, and do nothing else: no update, no
checksum, no coordinator, no samples. Where processes share processors that is more than the slowest
worker's computation plus the same bytes over bare connections in one process, which are printed, too:
a worker that waits for a processor before it begins is not counted there.

With --arch allreduce: steps of LeNet and of a perceptron of 25 million parameters. Processes
exchange the gradients in buckets while they compute. With --against gloo in turns with the same program and the same memory, but the
buckets summed by PyTorch's Gloo in a process beside each rank; "asking" is what that detour costs for each bucket.`,
		func(ctx context.Context) (any, error) {
			if arch == settings.AllReduce {
				return exchanges(ctx)
			}
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
				for _, workers := range ranks {
					o, err := measureOverhead(ctx, model, workers, shards, steps, 5)
					if err != nil {
						return nil, err
					}
					r.Overhead = append(r.Overhead, o)
				}
			}
			return r, nil
		},
		func(w *tabwriter.Writer, result any) {
			r := result.(stepReport)
			if len(r.Exchange) > 0 {
				fmt.Fprint(w, "model\tranks\tbuckets\texchange\ttransport\tstep\tp10\tp90\tsamples/s\texposed\tcpu/step\tasking\tratio\t\n")
				for _, x := range r.Exchange {
					ratio := "-"
					if x.Ratio > 0 {
						ratio = fmt.Sprintf("%.2f", x.Ratio)
					}
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\t%s\t%s\t%s\t\n", x.Model, x.Ranks, x.Buckets, x.Exchange, cmp.Or(x.Transport, "-"),
						console.Seconds(x.Median), console.Seconds(x.P10), console.Seconds(x.P90), x.Rate, console.Seconds(x.Exposed), console.Seconds(x.CPU), console.Seconds(x.Doorbell), ratio)
				}
			}
			if len(r.Compute) > 0 {
				fmt.Fprint(w, "model\tbatch\tparameters\tcpu/step\tfastest\tallocs\ttorch cpu\ttorch fastest\tratio\t\n")
				for _, c := range r.Compute {
					peer, least, ratio := "-", "-", "-"
					if c.Peer != "" {
						peer, least, ratio = console.Seconds(c.PeerCPU), console.Seconds(c.PeerMin), fmt.Sprintf("%.2f", c.Ratio)
					}
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%.0f\t%s\t%s\t%s\t\n", c.Model, c.Batch, c.Params, console.Seconds(c.CPU), console.Seconds(c.Min), c.Allocs, peer, least, ratio)
				}
			}
			if len(r.Overhead) > 0 {
				fmt.Fprint(w, "\njob\tworkers\tshards\tbytes\tstep\tbare job\toverhead\tslowest compute\tbare exchange\tover their sum\t\n")
				for _, o := range r.Overhead {
					fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%+.1f %%\t%s\t%s\t%+.1f %%\t\n", o.Model, o.Ranks, o.Shards, o.Bytes,
						console.Seconds(o.Step), console.Seconds(o.Bare), 100*o.Overhead, console.Seconds(o.Compute), console.Seconds(o.Exchange), 100*o.OverSum)
				}
			}
		})
}

// measureOverhead runs real jobs in turns with bare ones and with bare exchanges of the same
// bytes. The samples lie in a file, so that no job competes with a renderer of samples.
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
	dataset, input, err := noiseImages(dir)
	if err != nil {
		return o, err
	}
	const batch = 64
	var step, bare, compute, exchange []float64
	for range rounds {
		times, err := bench.BareJob(ctx, bench.BareJobConfig{
			Command: []string{self, "bench-rank"}, Model: model, Input: input, Batch: batch, Workers: workers, Servers: shards, Steps: steps,
		})
		if err != nil {
			return o, err
		}
		bare = append(bare, times...)
		cmd := exec.CommandContext(ctx, self, "run", "--model", model, "--workers", strconv.Itoa(workers), "--shards", strconv.Itoa(shards),
			"--steps", strconv.Itoa(steps), "--slow", "none", "--mode", "ssgd", "--eval-every", "0", "--batch", strconv.Itoa(batch),
			"--dataset", dataset, "--listen", "127.0.0.1:0", "--out", dir, "--json", "--progress", "off", "--log-level", "error")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return o, fmt.Errorf("star run --model %s: %w: %s", model, err, stderr.Bytes())
		}
		s, c, params, err := stepTimes(dir)
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
	o.Steps, o.Step, o.Bare, o.Compute, o.Exchange = len(step), middle(step), middle(bare), middle(compute), middle(exchange)
	o.Overhead, o.OverSum = o.Step/o.Bare-1, o.Step/(o.Compute+o.Exchange)-1
	return o, nil
}

// noiseImages writes IDX files of 28x28 noise, and returns what --dataset calls them.
func noiseImages(dir string) (dataset string, input train.Input, err error) {
	const n, side, classes = 4096, 28, 10
	rng := rand.New(rand.NewPCG(1, 2))
	images, labels := []byte{0, 0, 8, 3}, []byte{0, 0, 8, 1}
	for _, d := range []uint32{n, side, side} {
		images = binary.BigEndian.AppendUint32(images, d)
	}
	labels = binary.BigEndian.AppendUint32(labels, n)
	for range n * side * side {
		images = append(images, byte(rng.Uint32()))
	}
	for i := range n {
		labels = append(labels, byte(i%classes))
	}
	a, b := filepath.Join(dir, "images"), filepath.Join(dir, "labels")
	if err := os.WriteFile(a, images, 0o600); err != nil {
		return "", input, err
	}
	input = train.Input{Shape: []int{1, side, side}, Classes: classes}
	return "idx:" + a + "," + b, input, os.WriteFile(b, labels, 0o600)
}

// stepTimes reads a run log of an SSGD job: the seconds between updates, the
// slowest computation of each, and the elements of the parameters. The first steps, which warm up, are left out.
func stepTimes(name string) (step, compute []float64, params int64, err error) {
	const warm = 10
	slowest := map[int64]time.Duration{}
	last, n := time.Duration(0), int64(0)
	err = cli.ReadRunLog(name, "the other updates are measured", func(l runlog.Line) {
		switch e := l.Entry.(type) {
		case runlog.Train:
			params = e.Params
		case runlog.Record:
			slowest[e.Step] = max(slowest[e.Step], e.Compute)
		case runlog.Fire:
			if n >= warm {
				step, compute = append(step, (l.T-last).Seconds()), append(compute, slowest[n].Seconds())
			}
			last, n = l.T, n+1
		}
	})
	return step, compute, params, err
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
