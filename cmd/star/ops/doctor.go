package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/internal/defaults"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/observe/doctor"
	"star/transport"
)

// illError ends star doctor when a check failed; the report is printed already.
type illError struct{ failures int }

func (e *illError) Error() string { return doctor.Plural(e.failures, "check") + " failed" }
func (e *illError) ExitCode() int { return exitcode.Failure }

func doctorCommand() *cobra.Command {
	s := new(settings.Set)
	cfg := doctor.Config{Version: job.Program}
	var serve string
	var shows cli.Credentials
	var token settings.Secret
	var insecure, asJSON, engine, sweep bool
	sweeps := &sweeping{set: s, cfg: &cfg}
	settings.Var(s, &cfg.Listen, "listen", doctor.Ports, "addresses that must be free; with --sweep: the address at which this host collects the others'")
	settings.Var(s, &cfg.Advertise, "advertise", "", "address under which others will look for this host, host:port")
	settings.Var(s, &cfg.Job, "job", defaults.Job, "name of the job")
	settings.Var(s, &token, "token", "", "shared secret of the job (rather as STAR_TOKEN)")
	shows.Declare(s)
	settings.Var(s, &cfg.Members, "members", 64, "connections that the busiest process will have; with --sweep --listen: hosts to wait for, with this one")
	settings.Var(s, &cfg.Congestion, "congestion", "", "TCP congestion control (the host's)")
	settings.Var(s, &cfg.Timeout, "timeout", cfg.Timeout, "how long to examine one peer; 0: 20 s. With --sweep: how long to wait for other hosts; 0: 1 min")
	settings.Var(s, &serve, "serve", "", "answer the doctors of other hosts at this address, host:port, until interrupted")
	settings.Var(s, &insecure, "insecure", false, "with --serve: allow listening beyond loopback without a token")
	settings.Var(s, &engine, "engine", false, "also look at what Slurm or Kubernetes gives to a job; to be run inside of it")
	settings.Var(s, &sweep, "sweep", false, "measure hosts before a job, and name those that are worse than the others or than the last time")
	sweeps.declare(s)
	settings.Var(s, &asJSON, "json", false, "the report as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "doctor [HOST:PORT …]",
		Short: "Find what would stop a job here, and what to do about it",
		Long: `Looks at this host: ports, addresses, file limits, processors, memory, congestion control. With addresses of
other hosts also at clocks, versions, latency and bandwidth between them and this one; a running star-ps answers,
or star doctor --serve :7070 over there. Exits with 1 if a check failed.

With --sweep it measures hosts before a job, at once and within 20 s: processors, memory, disk, links, clocks, GPUs and the kernel's log. A host
that is worse than the others, or than it was the last time, is named with the number, and the exit code is 1.

  star doctor --sweep --hosts hosts.yaml               start it on the hosts of a file, as star run --hosts does
  srun --ntasks-per-node=1 star doctor --sweep         in a job of Slurm, torchrun or MPI; STAR_TOKEN on all; each exits by its own host
  star doctor --sweep --listen :7072 --members 4       on the first of several hosts; star doctor --sweep --to first:7072 on the others
  star doctor --sweep                                  this host alone: compared with its last time`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			tcp := transport.NewTCP(transport.Config{Token: string(token), Insecure: insecure, CongestionControl: cfg.Congestion})
			var err error
			if tcp.TLS, err = shows.Config(s); err != nil {
				return err
			}
			if sweep {
				sweeps.tcp, sweeps.asJSON = tcp, asJSON
				return sweeps.run(ctx, cmd, args)
			}
			for _, name := range []string{"hosts", "to", "dir", "state"} {
				if sweeps.given(name) {
					return s.Invalid(name, errors.New("it is for --sweep: add that, or leave it away"))
				}
			}
			if serve != "" {
				l, err := tcp.Listen(serve)
				if err != nil {
					return s.Invalid("serve", err)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "answering doctors at %s\n", l.Addr())
				if err := doctor.Serve(ctx, l, tcp.Config, job.Program); err != nil {
					return err
				}
				return context.Cause(ctx)
			}
			if engine {
				cfg.Environment = cli.Environ()
			}
			cfg.Peers, cfg.Token, cfg.Network = args, string(token), tcp
			report := doctor.Run(ctx, cfg)
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			print := report.Print
			if asJSON {
				print = report.WriteJSON
			}
			if err := print(cmd.OutOrStdout()); err != nil {
				return err
			}
			if report.ExitCode() == 0 {
				return nil
			}
			n := 0
			for _, r := range report.Results {
				if r.Status == doctor.Fail {
					n++
				}
			}
			return &illError{n}
		},
	}
	cli.Bind(cmd, s)
	return cmd
}
