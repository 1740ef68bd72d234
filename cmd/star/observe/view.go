package observe

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/internal/defaults"
	"star/internal/settings"
	"star/job/process"
	"star/observe/web"
	"star/runlog"
	"star/runlog/parts"
	"star/transport"
)

// logs wants one argument, or two.
func logs(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < 1 || len(args) > 2 {
			return &settings.UsageError{Msg: "star " + name + " needs one run log, or the folder of a job, or two to compare them"}
		}
		return nil
	}
}

func viewCommand() *cobra.Command {
	s := new(settings.Set)
	var listen string
	settings.Var(s, &listen, "listen", "127.0.0.1:"+defaults.Metrics, "address of the page")
	cmd := &cobra.Command{
		Use:   "view RUNLOG [RUNLOG]",
		Short: "Show a run, or a schedule, in a browser",
		Long: `Serves the page of a job: which workers were slow, when, why and what it cost, the modes, the loss, the workers. The log may be that of a job that still runs: the
page follows it. A running star-ps serves the same page at the address of --http.
From the events of star sched sim --events, or a folder of star sched serve, it serves a page that shows which job had which GPUs, and when.

  star view star-out                    then open http://127.0.0.1:7071/
  star view old.jsonl.gz --listen 127.0.0.1:0
  star view events.csv
  star view before after                what differs between two runs, as star compare`,
		Args: logs("view"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			l, err := net.Listen(transport.ListenNetwork(listen), listen)
			if err != nil {
				return s.Invalid("listen", fmt.Errorf("%w: choose another one, as %s", err, net.JoinHostPort(settings.Home(), "0")))
			}
			if err := serveView(ctx, l, listen, args, cmd.OutOrStdout()); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// serveView serves the page of a log, or of two, until ctx is over.
func serveView(ctx context.Context, l net.Listener, address string, paths []string, out io.Writer) error {
	defer l.Close()
	if web.Exposed(l) {
		fmt.Fprintln(os.Stderr, cli.Exposed)
	}
	path := paths[0]
	if len(paths) > 1 {
		t, err := comparisonPage(paths)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "http://%s/ compares %s and %s; Ctrl-C ends it\n", l.Addr(), paths[0], paths[1])
		return cli.ServePage(ctx, l, address, web.NewTables(t).Handler())
	}
	if s, err := readSchedule(path); !errors.Is(err, errNoSchedule) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "http://%s/ shows %s; Ctrl-C ends it\n", l.Addr(), path)
		return cli.ServePage(ctx, l, address, web.NewSchedules(s).Handler(nil))
	}
	f, err := cli.OpenLog(path, parts.Follow)
	if err != nil {
		return err
	}
	defer f.Close()
	live := web.NewLive()
	if f.Packed() {
		if _, err := runlog.Read(f, f.Name(), live.Line); err != nil {
			return err
		}
		live.Wake()
	} else {
		go live.Follow(ctx, f, f.Name(), nil) // the page shows its errors
		live.AwaitRead(ctx)
	}
	fmt.Fprintf(out, "http://%s/ shows %s; Ctrl-C ends it\n", l.Addr(), f.Name())
	return cli.ServePage(ctx, l, address, live.Handler(daemon.Downloads(f.Name())))
}

func reportCommand() *cobra.Command {
	s := new(settings.Set)
	cmd := &cobra.Command{
		Use:   "report RUNLOG [RUNLOG]",
		Short: "Write the page of a run, or of a schedule, as one file",
		Long: `Writes what star view shows as one HTML file to standard output. It needs no server and no network: attach it to a ticket.

  star report star-out > run.html
  star report before after > compare.html       what differs between two runs, as star compare`,
		Args: logs("report"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				t, err := comparisonPage(args)
				if err != nil {
					return err
				}
				b := bufio.NewWriter(cmd.OutOrStdout())
				return cmp.Or(web.ReportTables(b, t), b.Flush())
			}
			if s, err := readSchedule(args[0]); !errors.Is(err, errNoSchedule) {
				if err != nil {
					return err
				}
				b := bufio.NewWriter(cmd.OutOrStdout())
				return cmp.Or(web.ReportSchedules(b, s), b.Flush())
			}
			f, err := cli.OpenRun(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			state := web.NewState()
			if _, err := runlog.Read(f, f.Name(), state.Line); err != nil {
				return err
			}
			b := bufio.NewWriter(cmd.OutOrStdout())
			if err := web.Report(b, state); err != nil {
				return err
			}
			return b.Flush()
		},
	}
	cli.Bind(cmd, s)
	return cmd
}
