package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/sched/workload"
)

func schedGenCommand() *cobra.Command {
	p := new(schedSim)
	s := &p.Set
	var g workload.GenerateOptions
	var every time.Duration
	settings.Var(s, &g.Like, "like", "elasticflow", "which trace the jobs resemble", workload.Likes()...)
	settings.Var(s, &g.Jobs, "jobs", 1000, "how many jobs")
	settings.Var(s, &every, "every", 0, "mean time between two submissions; 0: 15m like elasticflow, 10s like helios, 70s like philly, 8s like allox")
	settings.Var(s, &g.Slack, "slack", 1, "mean time from submission to deadline, in durations")
	settings.Var(s, &g.Spread, "spread", .5, "share of --slack by which deadlines are at most earlier or later")
	settings.Var(s, &g.BestEffort, "best-effort", 0, "share of jobs that have no deadline")
	settings.Var(s, &g.Seed, "seed", 1, "the same seed gives the same jobs")
	settings.Var(s, &p.compat, "compat", "", "make the jobs that the original generator makes of the seed", "", "elasticflow")
	settings.Var(s, &p.Throughputs, "throughputs", "", "folder of tables of iterations/s on 1, 2, 4 … GPUs: jobs are models of these, in ElasticFlow's format")
	cmd := &cobra.Command{
		Use:   "gen",
		Short: "Make a trace of jobs from a seed",
		Long: `Writes a trace of jobs to standard output: as ElasticFlow's generator makes them, or with the durations, GPUs and rate that studies of SenseTime's
Helios and Microsoft's Philly report, or like those of AlloX, in its format.

  star sched gen --jobs 1000 --every 15m --seed 7 > jobs.csv
  star sched gen --like philly --jobs 100000 > jobs.csv
  star sched gen --throughputs throughputs_A100 > trace.csv
  star sched gen --throughputs throughputs_A100 --compat elasticflow --jobs 1000 --every 25m --seed 0 > trace.csv`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case g.Jobs < 1:
				return s.Invalid("jobs", errors.New("want one or more"))
			case every < 0:
				return s.Invalid("every", errors.New("want more than 0"))
			case g.Like == "allox" && p.Throughputs != "":
				return s.Invalid("throughputs", errors.New("not with --like allox: its jobs run on one machine"))
			case !(g.Slack > 0 && g.Slack <= 1e6):
				return s.Invalid("slack", errors.New("want more than 0, and at most a million"))
			case !(g.Spread >= 0 && g.Spread <= 1):
				return s.Invalid("spread", errors.New("want a share from 0 to 1"))
			case p.compat != "" && (g.Like != p.compat || p.Throughputs == ""):
				return s.Invalid("compat", errors.New("want --like elasticflow, and --throughputs with its tables for A100"))
			case !(g.BestEffort >= 0 && g.BestEffort <= 1):
				return s.Invalid("best-effort", errors.New("want a share from 0 to 1"))
			}
			for _, name := range []string{"slack", "spread", "best-effort"} {
				if g.Like == "allox" && s.IsSet(name) {
					return s.Invalid(name, errors.New("not with --like allox: its jobs have no deadlines"))
				}
			}
			var err error
			if p.Throughputs != "" {
				if g.Rates, err = p.Rates(); err != nil {
					return err
				}
			}
			g.Every, g.Compat, g.Random = every.Seconds(), p.compat != "", rand.New(rand.NewPCG(g.Seed, 0)).Float64
			jobs, err := workload.Generate(g)
			if err != nil {
				return job.FileError(fmt.Errorf("%s: %w", p.Throughputs, err), workload.ErrInput)
			}
			if g.Like == "allox" {
				return job.WriteError(workload.WriteAlloX(cmd.OutOrStdout(), jobs))
			} else if g.Rates != nil {
				return job.WriteError(workload.WriteElasticFlow(cmd.OutOrStdout(), jobs))
			} else {
				return job.WriteError(workload.Write(cmd.OutOrStdout(), jobs))
			}
		},
	}
	cli.Bind(cmd, s)
	return cmd
}
