package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/cmd/internal/launch"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job/process"
	"star/runlog"
	"star/runlog/parts"
	"star/train/checkpoint"
)

// checkpointCost is what checkpoints cost a job.
type checkpointCost struct {
	Arch     string  `json:"arch"`
	Model    string  `json:"model"`
	Params   int64   `json:"params"`
	Bytes    int64   `json:"bytes"` // of a checkpoint
	Window   float64 `json:"window_s"`
	Pairs    int     `json:"pairs"`     // of windows
	Without  float64 `json:"without_s"` // median time between updates
	With     float64 `json:"with_s"`
	Slowdown float64 `json:"slowdown"` // median over pairs of 1 - rate with / rate without
	P10      float64 `json:"p10"`
	P90      float64 `json:"p90"`
	Took     float64 `json:"took_s"` // from asking for a checkpoint to its manifest
	Extra    float64 `json:"extra_s"`
}

func benchCheckpoint() *cobra.Command {
	s := new(suite)
	var model, arch, optimizer, out string
	var workers, shards, batch, pairs int
	var window time.Duration
	settings.Var(&s.set, &model, "model", "mlp:hidden=2048-1024", "model")
	settings.Var(&s.set, &arch, "arch", "ps", "ps or allreduce", "ps", settings.AllReduce)
	settings.Var(&s.set, &optimizer, "optimizer", "adam", "update rule: adam has most to save", "sgd", "momentum", "nesterov", "dana", "adam", "adamw")
	settings.Var(&s.set, &workers, "workers", 2, "workers")
	settings.Var(&s.set, &shards, "shards", 2, "shards")
	settings.Var(&s.set, &batch, "batch", defaults.Batch, "samples in one worker's mini-batch")
	settings.Var(&s.set, &window, "window", 3*time.Second, "a window with a checkpoint at its beginning, then one without, …")
	settings.Var(&s.set, &pairs, "pairs", 8, "pairs of windows")
	settings.Var(&s.set, &out, "out", "", "folder on the disk to measure (a temporary one)")
	return s.command("checkpoint", "What a checkpoint costs a job that trains on",
		`Runs a job of real processes on this machine, which writes a checkpoint every other window, and compares the rate of updates of the windows with
one to that of the windows between them, pair by pair. The slowdown is that of a job that writes one every --window: with one every ten minutes it is
so much smaller.`,
		func(ctx context.Context) (any, error) {
			switch {
			case window < 500*time.Millisecond || window > time.Hour:
				return nil, s.set.Invalid("window", errors.New("must be 500ms to 1h"))
			case pairs < 1 || pairs > 10000:
				return nil, s.set.Invalid("pairs", errors.New("must be 1 to 10000"))
			}
			dir, err := os.MkdirTemp(out, "star-checkpoint-")
			if err != nil {
				return nil, s.set.Invalid("out", err)
			}
			defer os.RemoveAll(dir)
			args := []string{"run", "--listen", "127.0.0.1:0", "--out", dir, "--progress", "off", "--log-level", "warn", "--slow", "none", "--mode", "ssgd",
				"--model", model, "--arch", arch, "--optimizer", optimizer, "--lr", "1e-5", "--workers", strconv.Itoa(workers), "--batch", strconv.Itoa(batch),
				"--steps", "1000000000", "--eval-every", "0", "--keep", "1", "--checkpoint-every", (2 * window).String()}
			if arch == "ps" {
				args = append(args, "--shards", strconv.Itoa(shards))
			}
			saves, fires, err := lifeOf(ctx, args, dir, pairs+1)
			if err != nil {
				return nil, err
			}
			return costOf(dir, arch, window, saves, fires)
		},
		func(w *tabwriter.Writer, result any) {
			r := result.(*checkpointCost)
			fmt.Fprint(w, "arch\tparameters\tcheckpoint\tevery\tpairs\twithout\twith\tslowdown\tp10\tp90\ttook\tcosts\t\n")
			fmt.Fprintf(w, "%s\t%d\t%.1f MB\t%s\t%d\t%s\t%s\t%.2f %%\t%.2f %%\t%.2f %%\t%s\t%s\t\n", r.Arch, r.Params, float64(r.Bytes)/1e6, console.Seconds(r.Window), r.Pairs,
				console.Seconds(r.Without), console.Seconds(r.With), 100*r.Slowdown, 100*r.P10, 100*r.P90, console.Seconds(r.Took), console.Seconds(r.Extra))
		})
}

// lifeOf runs a job until it has written n checkpoints, and returns the times of checkpoints and updates, in seconds
// since its start.
func lifeOf(ctx context.Context, args []string, dir string, n int) (saves []runlog.Line, fires []float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * launch.Grace
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(2 * launch.Grace):
			cmd.Process.Kill()
		}
	}()
	for {
		select {
		case err := <-ended:
			ended <- err
			return nil, nil, fmt.Errorf("the job to measure has ended: %v: %s", err, bytes.TrimSpace(errs.Bytes()))
		case <-time.After(time.Second):
		}
		saves, fires = saves[:0], fires[:0]
		f, err := parts.Open(filepath.Join(dir, process.RunLogName))
		if err != nil {
			continue // it has just begun
		}
		_, err = runlog.Read(f, f.Name(), func(l runlog.Line) error {
			switch l.Entry.(type) {
			case runlog.Checkpoint:
				saves = append(saves, l)
			case runlog.Fire:
				fires = append(fires, l.T.Seconds())
			}
			return nil
		})
		f.Close()
		if err == nil && len(saves) > n { // the last one ends the window before it
			return saves, fires, nil
		}
	}
}

// costOf compares the windows behind the beginnings of checkpoints with those behind them. The first one warms up.
func costOf(dir, arch string, window time.Duration, saves []runlog.Line, fires []float64) (*checkpointCost, error) {
	r := &checkpointCost{Arch: arch, Window: window.Seconds()}
	all, err := cli.LookAt(dir, checkpoint.Describe)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s *cli.Saved) bool { return s.State == "complete" })
	if i < 0 {
		return nil, errors.New("the job to measure has written no checkpoint")
	}
	r.Model, r.Params, r.Bytes = all[i].Model, all[i].Params, all[i].Bytes
	// every is the mean time between updates from one time to another.
	every := func(from, to float64) float64 {
		a, _ := slices.BinarySearch(fires, from)
		b, _ := slices.BinarySearch(fires, to)
		if b-a < 3 {
			return 0
		}
		return (fires[b-1] - fires[a]) / float64(b-1-a)
	}
	var with, without, slowdown, took []float64
	for _, l := range saves[1 : len(saves)-1] {
		save := l.Entry.(runlog.Checkpoint)
		if save.Err != "" {
			return nil, fmt.Errorf("a checkpoint failed: %s", save.Err)
		}
		begin := (l.T - save.Took.Duration()).Seconds()
		a, b := every(begin, begin+r.Window), every(begin+r.Window, begin+2*r.Window)
		if a == 0 || b == 0 {
			return nil, errors.New("too few updates in a window: choose a larger --window or a smaller --model")
		}
		with, without, slowdown, took = append(with, a), append(without, b), append(slowdown, 1-b/a), append(took, float64(save.Took))
	}
	quantile := func(v []float64, q float64) float64 {
		v = slices.Sorted(slices.Values(v))
		at := q * float64(len(v)-1)
		k := min(int(at), len(v)-1)
		return v[k] + (at-float64(k))*(v[min(k+1, len(v)-1)]-v[k])
	}
	r.Pairs = len(slowdown)
	r.With, r.Without, r.Took = quantile(with, 0.5), quantile(without, 0.5), quantile(took, 0.5)
	r.Slowdown, r.P10, r.P90 = quantile(slowdown, 0.5), quantile(slowdown, 0.1), quantile(slowdown, 0.9)
	r.Extra = r.Slowdown * r.Window
	return r, nil
}
