package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/resource/actuate"
	"star/cmd/internal/cli"
	"star/internal/exitcode"
	"star/internal/settings"
)

// leaseRow is one lease as star limits prints it in JSON.
type leaseRow struct {
	Name    string         `json:"name"`
	Kind    string         `json:"kind,omitempty"`
	State   actuate.State  `json:"state"`
	Why     string         `json:"why,omitempty"`
	Owner   string         `json:"who,omitempty"`
	PID     int            `json:"pid,omitempty"`
	Made    *time.Time     `json:"made,omitempty"`
	Expires *time.Time     `json:"expires,omitempty"`
	Set     *actuate.Terms `json:"set,omitempty"`
	Former  string         `json:"former,omitempty"`
	What    string         `json:"what,omitempty"`
	File    string         `json:"file"`
	Undone  *bool          `json:"undone,omitempty"`
	Error   string         `json:"error,omitempty"`
}

func newLeaseRow(e actuate.Entry) leaseRow {
	r := leaseRow{Name: e.Name, State: e.State, Why: e.Why, File: e.File}
	if e.State != actuate.Corrupt {
		r.Kind, r.Owner, r.PID, r.Made, r.Expires, r.Set, r.Former, r.What = e.Kind, e.Owner.Process, e.Owner.PID, &e.Made, e.Expires, &e.Set, e.Former, e.What()
	}
	return r
}

// leftError means that limits are still in force.
type leftError struct {
	lines []string
	code  int
}

func (e *leftError) Error() string { return strings.Join(e.lines, "\n") }
func (e *leftError) ExitCode() int { return e.code }

func limitsCommand() *cobra.Command {
	var dir string
	var asJSON bool
	set := new(settings.Set)
	settings.Var(set, &dir, "lease-dir", "", "folder of leases (star in XDG_RUNTIME_DIR, else star-UID among temporary files)")
	settings.Var(set, &asJSON, "json", false, "a list on standard output")
	cmd := &cobra.Command{
		Use:   "limits {ls | undo [NAME…]}",
		Short: "List and undo the limits that processes have set on this host",
		Long: `Processes note what they change outside of themselves (CPU quotas, filters of network interfaces) in leases.
Those that are killed leave both behind.

  star limits ls              every lease, and whether its owner lives
  star limits undo            undo those of owners that are gone, as every star-ps and star-worker does when it starts
  star limits undo NAME…      undo these, even if the owner lives`,
		RunE: func(cmd *cobra.Command, args []string) error {
			store := actuate.OpenStore(dir)
			switch {
			case len(args) == 1 && args[0] == "ls":
				return listLimits(cmd.OutOrStdout(), store, asJSON)
			case len(args) > 0 && args[0] == "undo":
				return undoLimits(cmd.OutOrStdout(), store, args[1:], asJSON)
			}
			return &settings.UsageError{Msg: fmt.Sprintf("star limits: %q is no command; one of: ls, undo, undo NAME…", strings.Join(args, " "))}
		},
	}
	cli.Bind(cmd, set)
	return cmd
}

func listLimits(w io.Writer, store *actuate.Store, asJSON bool) error {
	es, err := store.List()
	if err != nil {
		return err
	}
	if asJSON {
		rows := make([]leaseRow, len(es))
		for i, e := range es {
			rows[i] = newLeaseRow(e)
		}
		return json.NewEncoder(w).Encode(rows)
	}
	if len(es) == 0 {
		_, err := fmt.Fprintf(w, "no leases in %s\n", store.Dir())
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "LEASE\tSTATE\tLIMIT\tOWNER\tWHY")
	for _, e := range es {
		r := newLeaseRow(e)
		owner := "-"
		if r.PID != 0 {
			owner = fmt.Sprintf("%s (%d)", r.Owner, r.PID)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.Name, r.State, orDash(r.What), owner, orDash(r.Why))
	}
	return t.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func undoLimits(w io.Writer, store *actuate.Store, names []string, asJSON bool) error {
	done, err := store.Undo(names...)
	if err != nil {
		return err
	}
	rows := []leaseRow{}
	left := &leftError{code: exitcode.Corrupt}
	for _, u := range done {
		r, ok := newLeaseRow(u.Entry), u.Err == nil
		r.Undone = &ok
		if u.Err != nil {
			r.Error = u.Err.Error()
			left.lines = append(left.lines, r.Error)
			if u.State != actuate.Corrupt {
				left.code = exitcode.Failure
			}
		} else if !asJSON {
			if _, err := fmt.Fprintf(w, "undone %s: %s, of %s (%d)\n", r.Name, r.What, r.Owner, r.PID); err != nil {
				return err
			}
		}
		rows = append(rows, r)
	}
	if asJSON {
		if err := json.NewEncoder(w).Encode(rows); err != nil {
			return err
		}
	} else if len(done) == 0 {
		if _, err := fmt.Fprintf(w, "nothing to undo in %s\n", store.Dir()); err != nil {
			return err
		}
	}
	if len(left.lines) > 0 {
		return left
	}
	return nil
}
