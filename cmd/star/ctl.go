package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/coord"
	"star/coord/advice"
	"star/internal/defaults"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/runlog"
	"star/transport"
)

// control is a connection of a tool to a coordinator.
type control struct {
	conn transport.Conn
	addr string
}

// reach says Hello to the coordinator as a tool.
func reach(ctx context.Context, network transport.Network, name, addr, token string, timeout time.Duration) (*control, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var conn transport.Conn
	var err error
	for range 3 { // it may be told of somebody else who coordinates
		if host, _, e := net.SplitHostPort(addr); e == nil && host != "" { // the caller reports an invalid address
			if _, err := transport.Lookup(ctx, host); err != nil {
				return nil, &nobodyError{addr, err}
			}
		}
		conn, _, _, err = transport.Open(ctx, network, addr, transport.Hello{
			Service: transport.ServiceCoord, Role: transport.RoleTool, Job: name, Token: token, Version: job.Program, Rank: -1,
		}, nil)
		var elsewhere *transport.ElsewhereError
		if !errors.As(err, &elsewhere) || elsewhere.Addr == "" {
			break
		}
		addr = elsewhere.Addr
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return nil, &nobodyError{addr, dial.Err}
	}
	if silent := errors.Is(err, context.DeadlineExceeded); silent || errors.Is(err, transport.ErrNotSTAR) && job.ExitCode(err) == exitcode.Failure { // TLS on one side only has a code of its own
		return nil, &nobodyError{addr, err}
	}
	if err != nil {
		return nil, err
	}
	return &control{conn, addr}, nil
}

// nobodyError says that no coordinator could be reached.
type nobodyError struct {
	addr string
	err  error
}

func (e *nobodyError) Error() string {
	return fmt.Sprintf("no coordinator at %s: %v; is the job running? The address is that of its star-ps of rank 0 (--listen, not --http)", e.addr, e.err)
}

func (e *nobodyError) Unwrap() error { return e.err }

// ExitCode is that of a coordinator that is not there.
func (e *nobodyError) ExitCode() int { return exitcode.Lost }

// ask sends one command and decodes the answer into v.
func (c *control) ask(timeout time.Duration, v any, args ...string) error {
	deadline := time.Now().Add(timeout)
	c.conn.SetWriteDeadline(deadline)
	c.conn.SetReadDeadline(deadline)
	if err := transport.Send(c.conn, transport.Control{Args: args}, nil); err != nil {
		return err
	}
	f, err := c.conn.Recv()
	if err != nil {
		return err
	}
	if f.Kind != transport.KindReply {
		return fmt.Errorf("the coordinator at %s answered with %v instead of a reply", c.addr, f.Kind)
	}
	m, err := transport.ParseReply(f.Header)
	if err != nil {
		return err
	}
	body, err := transport.ReadAll(c.conn, f)
	if err != nil {
		return err
	}
	if m.Err != "" {
		return errors.New(m.Err)
	}
	return json.Unmarshal(body, v)
}

func ctlCommand() *cobra.Command {
	var addr, job, dir string
	var asJSON bool
	var timeout time.Duration
	set := new(settings.Set)
	settings.Var(set, &addr, "coordinator", defaults.Address, "address of the job's coordinator, host:port")
	var secret settings.Secret
	settings.Var(set, &secret, "token", "", "shared secret of the job (rather as STAR_TOKEN)")
	var shows credentials
	shows.declare(set)
	settings.Var(set, &job, "job", "", "name of the job; another one is refused; empty: whichever is there")
	settings.Var(set, &dir, "dir", "", "folder of star sched serve, which knows address and token of its job --job ("+schedDir+", if it is one)")
	settings.Var(set, &timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	settings.Var(set, &asJSON, "json", false, "the answer as JSON on standard output")
	cmd := &cobra.Command{
		ValidArgs: verbs,
		Use:       "ctl {status | mode PLAN | set [NAME=VALUE …] | move SHARD SERVER | checkpoint | stop}",
		Short:     "Ask or change a running job",
		Long: `Talks to the coordinator of a running job.

  star ctl status            who does what
  star ctl mode x=3          change the mode: ssgd, asgd, x=K, groups=0,1/2,3, backup=B
  star ctl set               thresholds that may be changed while the job runs, and their values
  star ctl set mode-gain=0.1 change them
  star ctl move 1 2          move shard 1 to the star-ps of rank 2 (or of that host), while the job goes on
  star ctl checkpoint        save now
  star ctl stop              finish the batches that are out, evaluate, save, end

  star ctl --dir star-sched --job lenet status     the same of a job of star sched serve`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := resolved(cmd, set); done || err != nil {
				return err
			}
			if err := checkVerb(args); err != nil {
				return err
			}
			given := ""
			if set.IsSet("coordinator") {
				given = addr
			}
			at, token, err := scheduledJob(cmd.Context(), set, dir, job, given, string(secret), timeout)
			if err != nil {
				return err
			}
			addr = cmp.Or(at, addr)
			t, err := shows.config(set)
			if err != nil {
				return err
			}
			c, err := reach(cmd.Context(), transport.NewTCP(transport.Config{Token: token, TLS: t}), job, addr, token, timeout)
			if err != nil {
				return err
			}
			defer c.conn.Close()
			var answer json.RawMessage
			if args[0] == "move" {
				timeout = max(timeout, moveWait)
			}
			if err := c.ask(timeout, &answer, args...); err != nil {
				return err
			}
			return printAnswer(cmd.OutOrStdout(), args, answer, asJSON)
		},
	}
	set.Bind(cmd)
	return cmd
}

// verbs are what star ctl can ask of a coordinator, which judges their arguments.
var verbs = []string{"status", "mode", "set", "move", "checkpoint", "stop"}

func checkVerb(args []string) error {
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

// moveWait is how long star ctl waits at least for a shard to move. The coordinator gives up sooner,
// unless the shard is large.
const moveWait = 5 * time.Minute

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
		_, err := io.WriteString(w, strings.Join(table(s, 100), "\n")+"\n")
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
