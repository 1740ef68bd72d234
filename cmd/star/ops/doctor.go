package ops

import (
	"context"
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
	var insecure, asJSON, engine bool
	settings.Var(s, &cfg.Listen, "listen", doctor.Ports, "addresses that must be free")
	settings.Var(s, &cfg.Advertise, "advertise", "", "address under which others will look for this host, host:port")
	settings.Var(s, &cfg.Job, "job", defaults.Job, "name of the job")
	settings.Var(s, &token, "token", "", "shared secret of the job (rather as STAR_TOKEN)")
	shows.Declare(s)
	settings.Var(s, &cfg.Members, "members", 64, "connections that the busiest process will have")
	settings.Var(s, &cfg.Congestion, "congestion", "", "TCP congestion control (the host's)")
	settings.Var(s, &cfg.Timeout, "timeout", cfg.Timeout, "how long to examine one peer; 0: 20 s")
	settings.Var(s, &serve, "serve", "", "answer the doctors of other hosts at this address, host:port, until interrupted")
	settings.Var(s, &insecure, "insecure", false, "with --serve: allow listening beyond loopback without a token")
	settings.Var(s, &engine, "engine", false, "also look at what Slurm or Kubernetes gives to a job; to be run inside of it")
	settings.Var(s, &asJSON, "json", false, "the report as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "doctor [HOST:PORT …]",
		Short: "Find what would stop a job here, and what to do about it",
		Long: `Looks at this host: ports, addresses, file limits, processors, memory, congestion control. With addresses of
other hosts also at clocks, versions, latency and bandwidth between them and this one; a running star-ps answers,
or star doctor --serve :7070 over there. Exits with 1 if a check failed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			tcp := transport.NewTCP(transport.Config{Token: string(token), Insecure: insecure, CongestionControl: cfg.Congestion})
			var err error
			if tcp.TLS, err = shows.Config(s); err != nil {
				return err
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
