package observe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/coord"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job/process"
	"star/transport"
)

func topCommand() *cobra.Command {
	var token settings.Secret
	var job, dir, addr string
	var every time.Duration
	var asJSON, all bool
	var page string
	var shows cli.Credentials
	s := new(settings.Set)
	settings.Var(s, &addr, "coordinator", defaults.Address, "address of the job's coordinator, host:port, as of star ctl; also the argument")
	settings.Var(s, &token, "token", "", "shared secret of the job (rather as STAR_TOKEN)")
	shows.Declare(s)
	settings.Var(s, &job, "job", "", "name of the job; other jobs are refused; empty: any")
	settings.Var(s, &dir, "dir", "", "folder of star sched serve, which knows address and token of its job --job ("+cli.SchedDir+", if it is one)")
	settings.Var(s, &every, "every", time.Second, "time between two looks")
	settings.Var(s, &asJSON, "json", false, "each state as a line of JSON on standard output")
	settings.Var(s, &all, "all", false, "all jobs with run logs below folders, and which hosts were slow in how many of them; arguments: the folders")
	settings.Var(s, &page, "http", "", "with --all: address of a page with the same; empty: none")
	cmd := &cobra.Command{
		Use:   "top [HOST:PORT | FOLDER | --all DIR…]",
		Short: "Show a running job as star run does",
		Long: `Shows what each worker of a running job does, until it is over or Ctrl-C: the table that star run shows. The address is that of the job's coordinator,
127.0.0.1:7070 unless it is given. Where the job goes over to another coordinator, so does star top.
From a folder, or a run log, it shows a job that star watch, or the star backend of torch.distributed, observes.

  star top                       a job on this host
  star top node-a:7070           STAR_TOKEN is that of the job
  star top star-watch            a job under star watch
  star top --json | jq .mode

With --all it reads the run logs of all jobs below some folders (star-sched, the folder of star sched serve, if it exists, else the present one), and tells the host
that is slow in many jobs from the one that was unlucky: once, or on a terminal until Ctrl-C.

  star top --all                 of star sched serve, or below the present folder
  star top --all jobs --http 127.0.0.1:7071`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && !all {
				return &settings.UsageError{Msg: fmt.Sprintf("star top shows one job: %d addresses", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 50*time.Millisecond {
				return s.Invalid("every", errors.New("want at least 50ms"))
			}
			if all {
				ctx, cancel := process.Signals(cmd.Context())
				defer cancel()
				return topAll(ctx, s, args, page, every, cmd.OutOrStdout(), asJSON)
			}
			if page != "" {
				return s.Invalid("http", errors.New("it needs --all: star-ps serves the page of one job"))
			}
			if len(args) > 0 && filed(args[0]) {
				ctx, cancel := process.Signals(cmd.Context())
				defer cancel()
				return topLog(ctx, args[0], every, cmd.OutOrStdout(), asJSON)
			}
			if len(args) > 0 {
				if s.Origin("coordinator") == "--coordinator" && addr != args[0] {
					return s.Invalid("coordinator", fmt.Errorf("the argument says %s: give one of the two", args[0]))
				}
				addr = args[0]
			}
			t, err := shows.Config(s)
			if err != nil {
				return err
			}
			ctx, cancel := process.Signals(cmd.Context())
			defer cancel()
			given := ""
			if len(args) > 0 || s.Origin("coordinator") == "--coordinator" {
				given = addr
			}
			at, secret, err := cli.ScheduledJob(ctx, s, dir, job, given, string(token), 5*time.Second)
			if err != nil {
				return err
			}
			network := transport.NewTCP(transport.Config{Token: secret, TLS: t})
			return top(ctx, func() (*console.Control, error) {
				return console.Reach(ctx, network, job, cmp.Or(at, addr), secret, 5*time.Second)
			}, every, cmd.OutOrStdout(), asJSON)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// filed reports whether an argument is a file or folder, and not an address.
func filed(arg string) bool {
	_, err := os.Stat(arg)
	_, _, address := net.SplitHostPort(arg)
	return err == nil || address != nil
}

// lasting is for how long star top looks for a coordinator that was there.
const lasting = 10 * time.Second

// top shows a job until it is over.
func top(ctx context.Context, reach func() (*console.Control, error), every time.Duration, out io.Writer, asJSON bool) error {
	c, err := reach()
	if err != nil {
		return err
	}
	defer func() { c.Conn.Close() }()
	s := console.NewScreenOn(out, "top", every)
	last, seen := coord.Status{}, time.Now()
	for {
		var st coord.Status
		switch err := c.Ask(5*time.Second, &st, "status"); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			last, seen = st, time.Now()
			if asJSON {
				if err := json.NewEncoder(out).Encode(st); err != nil {
					return err
				}
			} else {
				s.Show(st)
			}
		case last.Phase == "over" || last.Phase == "saving" || last.Phase == "evaluating":
			return nil
		default: // lost, or another one coordinates now
			c.Conn.Close()
			again, aerr := reach()
			if aerr == nil {
				c = again
				continue
			}
			if time.Since(seen) > lasting {
				return fmt.Errorf("the job is over, or its coordinator is lost: %w", aerr)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
