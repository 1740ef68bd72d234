// Package schedsim is shared by the commands that simulate schedulers: it reads traces, machines and what policies
// know, and reports the results.
package schedsim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"star/internal/settings"
	"star/job"
	"star/sched"
	"star/sched/workload"
)

// Input is the settings that name traces and machines.
type Input struct {
	Set                          settings.Set
	Format, Cluster, Throughputs string
	Estimates, Queues            string
	Left                         int // jobs of the trace that were skipped
}

// BindTrace declares the settings of the trace.
func (p *Input) BindTrace() {
	settings.Var(&p.Set, &p.Format, "format", "star", "format of the trace", "star", "elasticflow", "lucid", "muri", "allox", "helios", "philly")
	settings.Var(&p.Set, &p.Throughputs, "throughputs", "", "folder of tables of iterations/s on 1, 2, 4 … GPUs, for the format elasticflow")
}

// Rates reads the tables of --throughputs.
func (p *Input) Rates() (workload.Throughputs, error) {
	files, err := filepath.Glob(filepath.Join(p.Throughputs, "*.csv"))
	if err == nil && len(files) == 0 {
		err = job.FileError(fmt.Errorf("%s has no tables of throughputs, MODEL.csv: %w", p.Throughputs, fs.ErrNotExist), workload.ErrInput)
	}
	if err != nil {
		return nil, err
	}
	ths := workload.Throughputs{}
	for _, f := range files {
		if err := ReadInput(f, func(r io.Reader) error { return ths.Read(f, r) }); err != nil {
			return nil, err
		}
	}
	return ths, nil
}

// Trace reads the jobs.
func (p *Input) Trace(name string) (jobs []*sched.Job, err error) {
	var ths workload.Throughputs
	if p.Format == "elasticflow" {
		if p.Throughputs == "" {
			return nil, p.Set.Invalid("throughputs", errors.New("the format elasticflow needs a folder of tables, one per model"))
		}
		if ths, err = p.Rates(); err != nil {
			return nil, err
		}
	} else if Flagged(&p.Set, "throughputs") {
		return nil, p.Set.Invalid("throughputs", fmt.Errorf("only the format elasticflow uses tables, not %s: leave it out, or use --format elasticflow", p.Format))
	}
	err = ReadInput(name, func(r io.Reader) (err error) {
		switch p.Format {
		case "elasticflow":
			jobs, err = workload.ElasticFlowTrace(r, ths)
		case "lucid":
			jobs, err = workload.LucidTrace(r)
		case "muri":
			jobs, err = workload.MuriTrace(r)
		case "allox":
			jobs, err = workload.AlloXTrace(r)
		case "helios":
			jobs, p.Left, err = workload.HeliosTrace(r)
		case "philly":
			jobs, p.Left, err = workload.PhillyTrace(r)
		default:
			jobs, err = workload.StarTrace(r)
		}
		if err == nil && len(jobs) == 0 {
			err = workload.Wrong(1, "want at least one job after it that has ended, and had GPUs")
		}
		return err
	})
	if errors.Is(err, workload.ErrInput) {
		if other := formatOf(name); other != "" && other != p.Format {
			err = fmt.Errorf("%w; it looks like a trace of the format %s: give --format %[2]s", err, other)
		}
	}
	return jobs, err
}

// LeftOut reports how many jobs of the trace were skipped.
func (p *Input) LeftOut(w io.Writer, jobs []*sched.Job) {
	if p.Left > 0 {
		fmt.Fprintf(w, "left out: %d of %d jobs, which had no GPUs or have not ended\n", p.Left, p.Left+len(jobs))
	}
}

// formatOf guesses a trace's format; "" if it is unknown.
func formatOf(name string) (format string) {
	if name == "-" { // it has been consumed
		return ""
	}
	ReadInput(name, func(r io.Reader) error {
		begin, _ := io.ReadAll(io.LimitReader(r, 4096))
		format = workload.FormatOf(string(begin))
		return nil
	})
	return format
}

// Clusters reads the machines: those of each virtual cluster, or of all jobs together.
func (p *Input) Clusters(jobs []*sched.Job) (vcs map[string]sched.Cluster, err error) {
	if p.Cluster == "" {
		return nil, p.Set.Invalid("cluster", errors.New("is required: give nodes and GPUs, such as n16g8, or a file"))
	}
	if one, short := workload.Short(p.Cluster); short {
		vcs = map[string]sched.Cluster{"": one}
	} else if _, err = os.Stat(p.Cluster); errors.Is(err, fs.ErrNotExist) {
		return nil, p.Set.Invalid("cluster", errors.New("neither a file nor a short form such as n16g8 (nodes of 1 to 64 GPUs) or 5gpu+5cpu"))
	} else if err = ReadInput(p.Cluster, func(r io.Reader) (err error) {
		vcs, err = workload.Clusters(r)
		return err
	}); err != nil {
		return nil, err
	}
	if _, one := vcs[""]; one {
		for _, j := range jobs {
			j.VC = ""
		}
	}
	for _, j := range jobs {
		if _, ok := vcs[j.VC]; !ok && j.VC == "" {
			return nil, job.FileError(workload.Bad("%s has virtual clusters, and job %s is in none: give the trace a column vc, or one cluster for all jobs, such as n16g8", p.Cluster, j.ID), workload.ErrInput)
		} else if !ok {
			return nil, job.FileError(workload.Bad("%s has no virtual cluster %q, which job %s is in: add it, or give one cluster for all jobs, such as n16g8", p.Cluster, j.VC, j.ID), workload.ErrInput)
		}
	}
	return vcs, nil
}

// Profile reads what lucid needs. It returns nil if --estimates is empty.
func (p *Input) Profile() (*sched.Profile, error) {
	if p.Estimates == "" {
		return nil, nil
	}
	var of sched.Profile
	err := ReadInput(filepath.Join(p.Estimates, "colocate_info.csv"), func(r io.Reader) (err error) {
		of.Pairs, err = workload.ReadPairs(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(p.Estimates, "*throughput_pred.csv"))
	if err == nil && len(files) != 1 {
		err = p.Set.Invalid("estimates", fmt.Errorf("want one file *throughput_pred.csv there, got %d", len(files)))
	}
	if err != nil {
		return nil, err
	}
	return &of, ReadInput(files[0], func(r io.Reader) error { return workload.ReadForecasts(r, &of) })
}

// Users reads the order of the users' queues.
func (p *Input) Users(jobs []*sched.Job) (names []string, err error) {
	if p.Queues == "" {
		return nil, nil
	}
	err = ReadInput(p.Queues, func(r io.Reader) (err error) {
		names, err = workload.AlloXQueues(r)
		return err
	})
	for _, j := range jobs {
		if err == nil && j.Either != nil && !slices.Contains(names, j.User) {
			err = job.FileError(workload.Bad("%s has no queue %q, which job %s is in: add it", p.Queues, j.User, j.ID), workload.ErrInput)
		}
	}
	return names, err
}
