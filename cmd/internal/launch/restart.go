package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"star/internal/exitcode"
	"star/internal/settings"
	"star/job/options"
	"star/job/process"
	"star/runlog"
	"star/runlog/parts"
	"star/train/checkpoint"
)

// reached is a job's progress.
type reached struct {
	version, samples int64
}

func (r *reached) at(version, samples int64) {
	if version > r.version {
		*r = reached{version, samples}
	}
}

// Attempts runs the job, and restarts it from its last checkpoint when it fails, up to --restarts times.
func (r *Launch) Attempts(ctx context.Context) error {
	r.job.Resume = options.ResumeFrom(r.job)
	r.resume = r.job.Resume
	before := Generation(Checkpoints(r.job))
	begun := false // training has begun, in any attempt
	for again := 1; ; again++ {
		r.since = time.Now()
		err := r.run(ctx)
		begun = begun || r.training()
		if err == nil || again > r.job.Restarts || !begun || !mends(ctx, err) {
			return r.report(err)
		}
		r.Screen.Reopen()
		from, news, unseen := r.last(before)
		if unseen != nil {
			return r.report(fmt.Errorf("%w; it is not restarted, because its checkpoints cannot be listed: %v", err, unseen))
		}
		r.Screen.Say("run", fmt.Sprintf("%v: restart %d of %d, %s", err, again, r.job.Restarts, news))
		r.resume = from
		r.result.Reset()
	}
}

// training reports whether the training has begun in this attempt. The screen asks only now and then; the run log tells
// it, too.
func (r *Launch) training() bool {
	if r.Screen.Training() {
		return true
	}
	name := filepath.Join(r.job.Out, process.RunLogName)
	info, err := os.Stat(name)
	return err == nil && info.ModTime().After(r.since) && Began(name)
}

// Began reports whether a run log shows that the training has begun.
func Began(name string) (begun bool) {
	f, err := parts.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	runlog.Read(f, name, func(l runlog.Line) error { // a truncated log counts as far as it goes
		if _, begun = l.Entry.(runlog.Train); begun {
			return errBegun
		}
		return nil
	})
	return begun
}

// errBegun stops the reading of a log.
var errBegun = errors.New("the training has begun")

// Checkpoints returns the place of a job's checkpoints.
func Checkpoints(job *settings.Job) string {
	if job.Checkpoint != "" {
		return job.Checkpoint
	}
	return filepath.Join(job.Out, process.CheckpointsDir)
}

// mends reports whether a restart of the job may help: not after an error of settings, data or members, which is found
// before training, nor a numerical error, nor a request of the user.
func mends(ctx context.Context, err error) bool {
	var child *childError
	if ctx.Err() != nil || !errors.As(err, &child) || child.complete {
		return false
	}
	switch child.code {
	case exitcode.Corrupt, exitcode.Missing, exitcode.Diverged, exitcode.Refused, exitcode.Disagree,
		128 + int(syscall.SIGINT), 128 + int(syscall.SIGTERM):
		return false
	}
	return true
}

// Generation returns the highest attempt that has left a checkpoint.
func Generation(place string) (g int64) {
	found, _ := checkpoint.List(place) // without checkpoints there was no attempt
	for _, f := range found {
		g = max(g, f.Generation)
	}
	return g
}

// last returns the checkpoint that the job resumes from: its newest complete one, or the one it started with. news
// describes it and the lost progress. Generations up to before belong to other jobs. unseen is an object store's error.
func (r *Launch) last(before int64) (from, news string, unseen error) {
	end := r.far
	if r.Spread == nil {
		end.read(filepath.Join(r.job.Out, process.RunLogName))
	}
	passed := 0
	c, skipped, err := checkpoint.Latest(Checkpoints(r.job))
	if errors.Is(err, checkpoint.ErrRefused) || errors.Is(err, checkpoint.ErrUnreachable) {
		return "", "", err
	}
	if err == nil && c.Manifest().Generation > before {
		m := c.Manifest()
		for range skipped {
			passed++
		}
		news = fmt.Sprintf("from %s of version %d and %d samples", c.Dir(), m.Version, m.Samples)
		if passed > 0 {
			news += fmt.Sprintf(" (%d newer ones are damaged)", passed)
		}
		return c.Dir(), news + lostSince(end, m.Version, m.Samples), nil
	}
	start := reached{}
	news = "from the beginning, because it had no checkpoint yet"
	if r.job.Resume != "" {
		news = "from --resume " + r.job.Resume + ", because it had no checkpoint of its own yet"
		if m, ok := resumed(r.job.Resume); ok {
			start = reached{m.Version, m.Samples}
		}
	}
	return r.job.Resume, news + lostSince(end, start.version, start.samples), nil
}

func lostSince(end reached, version, samples int64) string {
	return fmt.Sprintf("; lost: %d updates, %d samples", max(0, end.version-version), max(0, end.samples-samples))
}

// resumed returns the checkpoint that --resume means.
func resumed(place string) (checkpoint.Manifest, bool) {
	if checkpoint.Complete(place) {
		m, err := checkpoint.Describe(place)
		return m, err == nil
	}
	sub := filepath.Join(place, process.CheckpointsDir)
	if info, err := os.Stat(sub); err == nil && info.IsDir() {
		place = sub
	}
	c, _, err := checkpoint.Latest(place)
	if err != nil {
		return checkpoint.Manifest{}, false
	}
	return c.Manifest(), true
}

// read adds the progress in a run log, which is written about once a second.
func (r *reached) read(path string) {
	f, err := parts.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	runlog.Read(f, path, func(l runlog.Line) error { // a truncated one counts as far as it goes
		switch e := l.Entry.(type) {
		case runlog.Fire:
			r.at(e.Version, e.Samples)
		case runlog.Gap:
			r.at(e.Version, e.Samples)
		}
		return nil
	})
}
