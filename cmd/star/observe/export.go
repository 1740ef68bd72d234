package observe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip" // in about half of compress/gzip's time, and a tenth smaller
	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/durable"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/observe/export"
	"star/observe/sink"
	"star/runlog"
)

func exportCommand() *cobra.Command {
	s := new(settings.Set)
	var o exports
	settings.Var(s, &o.perfetto, "perfetto", "", "file for a trace that Perfetto and Chrome's trace viewer open; gzipped if it ends in .gz")
	settings.Var(s, &o.tensorboard, "tensorboard", "", "folder for an event file of TensorBoard")
	settings.Var(s, &o.every, "tensorboard-every", time.Duration(0), "minimum time between points of a scalar, except evaluations; 0: write all points")
	settings.Var(s, &o.parquet, "parquet", "", "folder for tables in Parquet: record, update, verdict, plan, evaluation")
	settings.Var(s, &o.csv, "csv", "", "folder for the same tables in CSV")
	settings.Var(s, &o.to, "to", []string(nil), "send the run to a tool of others: otlp[=URL], wandb[=PROJECT], mlflow[=EXPERIMENT], trainjob or webhook=URL; several: give it again")
	settings.Var(s, &o.follow, "follow", false, "with --to: send what the job writes until it ends")
	cmd := &cobra.Command{
		Use:   "export RUNLOG",
		Short: "Write a run log in the files of other tools",
		Long: `Reads the run log of a job, also of one that was killed or still runs, and writes it for other tools.

  star export star-out --perfetto run.json.gz      open it at ui.perfetto.dev or chrome://tracing
  star export star-out --tensorboard runs/job1     tensorboard --logdir runs
  star export star-out --parquet tables            pandas.read_parquet("tables/record.parquet")
  star export old.jsonl.gz --csv tables
  star export star-out --follow --to wandb         Weights & Biases, while the job runs; docs/monitoring.md has the other tools`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &settings.UsageError{Msg: "star export needs one run log, or the folder of a job"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// exports are what a log is to be written as.
type exports struct {
	perfetto, tensorboard, parquet, csv string
	every                               time.Duration
	to                                  []string
	follow                              bool
}

// run writes files, and sends what sinks are to have.
func (o *exports) run(ctx context.Context, out, log io.Writer, path string) error {
	if len(o.to) == 0 {
		if o.follow {
			return &settings.UsageError{Msg: "--follow needs --to, such as --to otlp; files hold the log as it is now"}
		}
		return o.write(out, path)
	}
	targets := make([]sink.Target, len(o.to))
	for i, t := range o.to {
		var err error
		if targets[i], err = sink.ParseTarget(t); err != nil {
			return &settings.UsageError{Msg: "--to: " + err.Error()}
		}
	}
	if len(o.names()) > 0 {
		if err := o.write(out, path); err != nil {
			return err
		}
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() || err != nil && o.follow && filepath.Ext(path) != ".jsonl" {
		path = filepath.Join(path, process.RunLogName)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	logger := slog.New(slog.NewTextHandler(log, nil))
	var all sync.WaitGroup
	var mu sync.Mutex
	errs := make([]error, len(targets))
	for i, t := range targets {
		all.Go(func() {
			f := sink.Follower{Path: path, Follow: o.follow, To: t, Log: logger, Patience: sink.DefaultPatience}
			done, err := f.Run(ctx)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "%s: %v\n", t.Name, done)
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// write reads the log at path, or of the job in that folder, and reports the written files.
func (o *exports) write(out io.Writer, path string) (err error) {
	if o.perfetto == "" && o.tensorboard == "" && o.parquet == "" && o.csv == "" {
		return &settings.UsageError{Msg: "star export needs at least one of --perfetto FILE, --tensorboard DIR, --parquet DIR, --csv DIR, --to TOOL"}
	}
	in, err := cli.OpenRun(path)
	if err != nil {
		return err
	}
	defer in.Close()
	var files files
	defer func() { err = errors.Join(err, files.discard()) }()
	sinks, err := o.open(&files)
	if err != nil {
		return err
	}
	var all fan
	for _, k := range sinks {
		all.add(k)
	}
	records := 0
	read, err := runlog.Read(in, in.Name(), func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Start:
			if o.tensorboard != "" {
				f, err := files.create(filepath.Join(o.tensorboard, export.EventFile(e.Time)))
				if err != nil {
					return err
				}
				all.add(export.NewEvents(f, o.every))
			}
		case runlog.Record:
			records++
		}
		return all.Line(l)
	})
	if e := all.Close(); err == nil || errors.Is(err, errSink) {
		err = e
	}
	if err != nil {
		return err
	}
	if err := files.keep(); err != nil {
		return err
	}
	if read.Cut {
		fmt.Fprintf(out, "%s ends in the middle of a line: the job was killed there, or still runs\n", in.Name())
	}
	if lacks := read.Missing.Means("the files do not have them either"); lacks != "" {
		fmt.Fprintln(out, lacks)
	}
	fmt.Fprintf(out, "%d records of %s in %s\n", records, in.Name(), strings.Join(o.names(), ", "))
	return nil
}

// names are the requested outputs.
func (o *exports) names() (names []string) {
	for _, n := range []struct{ path, what string }{{o.perfetto, ""}, {o.tensorboard, " (TensorBoard)"}, {o.parquet, " (Parquet)"}, {o.csv, " (CSV)"}} {
		if n.path != "" {
			names = append(names, n.path+n.what)
		}
	}
	return names
}

// open makes the sinks that need not know when the job began.
func (o *exports) open(files *files) (sinks []export.Sink, err error) {
	if o.perfetto != "" {
		w, err := files.create(o.perfetto)
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, export.NewTrace(w))
	}
	for _, t := range []struct {
		dir    string
		format export.Format
	}{{o.parquet, export.Parquet}, {o.csv, export.CSV}} {
		if t.dir == "" {
			continue
		}
		k, err := export.NewTables(t.format, func(name string) (io.Writer, error) {
			return files.create(filepath.Join(t.dir, name+t.format.Ext()))
		})
		if err != nil {
			return nil, err
		}
		sinks = append(sinks, k)
	}
	return sinks, nil
}

// files are files that are written whole or not at all.
type files struct {
	names []string
	open  []*durable.File
	ends  []func() error // writes the rest in front of the file
}

// create makes a file, and its folder; its bytes are packed where its name ends in .gz.
func (fs *files) create(path string) (io.Writer, error) {
	dir := filepath.Dir(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, job.WriteError(fmt.Errorf("%s is a folder: give a file, such as %s", path, filepath.Join(path, "run.json.gz")))
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, job.WriteError(fmt.Errorf("%s is a file, and %s is to be written in a folder of that name: give another folder", dir, filepath.Base(path)))
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, job.WriteError(err)
	}
	f, err := durable.Create(path)
	if err != nil {
		return nil, job.WriteError(err)
	}
	b := bufio.NewWriterSize(f, 256<<10)
	fs.names, fs.open, fs.ends = append(fs.names, path), append(fs.open, f), append(fs.ends, b.Flush)
	if !strings.HasSuffix(path, ".gz") {
		return b, nil
	}
	z, err := gzip.NewWriterLevel(b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	fs.ends[len(fs.ends)-1] = func() error { return errors.Join(z.Close(), b.Flush()) }
	return z, nil
}

// keep gives all files their names.
func (fs *files) keep() error {
	for i, f := range fs.open {
		err := fs.ends[i]()
		if err == nil {
			fs.open[i] = nil
			err = f.Commit(0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", fs.names[i], err)
		}
	}
	return nil
}

// discard removes the unfinished files.
func (fs *files) discard() (err error) {
	for _, f := range fs.open {
		if f != nil {
			err = errors.Join(err, f.Discard())
		}
	}
	return err
}
