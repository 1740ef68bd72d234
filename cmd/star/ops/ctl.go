package ops

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cmd/internal/cli"
	"star/cmd/internal/console"
	"star/coord"
	"star/coord/advice"
	"star/internal/defaults"
	"star/internal/settings"
	"star/runlog"
	"star/transport"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{ctlCommand(), doctorCommand(), sweepAgentCommand(), certsCommand(), clusterCommand(), checkpointCommand(), evalCommand(), predictCommand(), installCommand(), versionCommand(), modelsCommand(), datasetsCommand()}
}

func ctlCommand() *cobra.Command {
	var addr, job, dir string
	var asJSON bool
	var timeout time.Duration
	set := new(settings.Set)
	settings.Var(set, &addr, "coordinator", defaults.Address, "address of the job's coordinator, host:port")
	var secret settings.Secret
	settings.Var(set, &secret, "token", "", "shared secret of the job (rather as STAR_TOKEN)")
	var shows cli.Credentials
	shows.Declare(set)
	settings.Var(set, &job, "job", "", "name of the job; other jobs are refused; empty: any")
	settings.Var(set, &dir, "dir", "", "folder of star sched serve, which knows address and token of its job --job ("+cli.SchedDir+", if it is one)")
	settings.Var(set, &timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	settings.Var(set, &asJSON, "json", false, "the answer as JSON on standard output")
	cmd := &cobra.Command{
		ValidArgs: verbs,
		Use:       "ctl {status | mode PLAN | set [NAME=VALUE …] | move SHARD SERVER | checkpoint | stop}",
		Short:     "Ask or change a running job",
		Long: `Talks to the coordinator of a running job.

  star ctl status            what each worker does
  star ctl mode x=3          change the mode: ssgd, asgd, x=K, groups=0,1/2,3, backup=B
  star ctl set               thresholds that may be changed while the job runs, and their values
  star ctl set mode-gain=0.1 change them
  star ctl move 1 2          move shard 1 to the star-ps of rank 2 (or of that host), while the job goes on
  star ctl checkpoint        save now
  star ctl stop              finish the batches that are out, evaluate, save, end

  star ctl --dir star-sched --job lenet status     the same of a job of star sched serve`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := CheckVerb(args); err != nil {
				return err
			}
			given := ""
			if set.IsSet("coordinator") {
				given = addr
			}
			at, token, err := cli.ScheduledJob(cmd.Context(), set, dir, job, given, string(secret), timeout)
			if err != nil {
				return err
			}
			addr = cmp.Or(at, addr)
			t, err := shows.Config(set)
			if err != nil {
				return err
			}
			c, err := console.Reach(cmd.Context(), transport.NewTCP(transport.Config{Token: token, TLS: t}), job, addr, token, timeout)
			if err != nil {
				return err
			}
			defer c.Conn.Close()
			var answer json.RawMessage
			if args[0] == "move" {
				timeout = max(timeout, cli.MoveWait)
			}
			if err := c.Ask(timeout, &answer, args...); err != nil {
				return err
			}
			return printAnswer(cmd.OutOrStdout(), args, answer, asJSON)
		},
	}
	cli.Bind(cmd, set)
	return cmd
}

// verbs are what star ctl can ask of a coordinator, which judges their arguments.
var verbs = []string{"status", "mode", "set", "move", "checkpoint", "stop"}

// CheckVerb checks that args begins with a verb of star ctl, and that the arguments of set are NAME=VALUE. Errors are
// *settings.UsageError.
func CheckVerb(args []string) error {
	const all = "one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop"
	switch {
	case len(args) == 0:
		return &settings.UsageError{Msg: "star ctl: no command; " + all}
	case args[0] == "set":
		for _, s := range args[1:] {
			if _, _, err := advice.ParseThreshold(s); err != nil {
				return &settings.UsageError{Msg: "star ctl set: " + err.Error()}
			}
		}
		return nil
	case slices.Contains(verbs, args[0]):
		return nil
	}
	meant := ""
	if n := settings.Nearest(args[0], verbs); n != "" {
		meant = "did you mean " + n + "? "
	}
	return &settings.UsageError{Msg: fmt.Sprintf("star ctl: unknown command %q; %s%s", args[0], meant, all)}
}

func printAnswer(w io.Writer, args []string, answer json.RawMessage, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(w, "%s\n", answer)
		return err
	}
	switch args[0] {
	case "status":
		var s coord.Status
		if err := json.Unmarshal(answer, &s); err != nil {
			return err
		}
		_, err := io.WriteString(w, strings.Join(console.Table(s, 100), "\n")+"\n")
		return err
	case "mode":
		var m struct {
			From, To string
			Version  int64
		}
		if err := json.Unmarshal(answer, &m); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "%s → %s at version %d\n", m.From, m.To, m.Version)
		return err
	case "set":
		var now []coord.ThresholdNow
		if err := json.Unmarshal(answer, &now); err != nil {
			return err
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, n := range now {
			fmt.Fprintf(t, "%s\t%s\t%s\n", n.Name, n.Text, n.What)
		}
		return t.Flush()
	case "move":
		var m runlog.Move
		if err := json.Unmarshal(answer, &m); err != nil {
			return err
		}
		ms := func(s float64) time.Duration {
			return time.Duration(s * float64(time.Second)).Round(100 * time.Microsecond)
		}
		_, err := fmt.Fprintf(w, "shard %d → server %d at version %d: %.1f MB copied in %v, an update late by %v\n",
			m.Shard, m.To, m.Version, float64(m.Bytes)/1e6, ms(float64(m.Copy)), ms(float64(m.Delay)))
		return err
	}
	_, err := fmt.Fprintf(w, "ok %s\n", answer)
	return err
}
