package ops

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/observe/doctor"
	"star/transport"
)

// sweepAgent is the hidden command that star doctor --sweep --hosts starts on each host.
const sweepAgent = "sweep-agent"

// sweeping is star doctor --sweep.
type sweeping struct {
	hosts, to, dir, state string
	set                   *settings.Set
	cfg                   *doctor.Config
	tcp                   *transport.TCP
	asJSON                bool
}

func (w *sweeping) declare(s *settings.Set) {
	settings.Var(s, &w.hosts, "hosts", "", "with --sweep: file of the hosts to sweep, as of star run --hosts")
	settings.Var(s, &w.to, "to", "", "with --sweep: address of the host that collects, where another one does (its --listen)")
	settings.Var(s, &w.dir, "dir", ".", "with --sweep: a folder of the disk to measure; it gets some 65 MiB for some seconds")
	settings.Var(s, &w.state, "state", "", "with --sweep: folder with the numbers of the host's last clean sweep, sweep-HOST.json (star in the user's cache folder); off: none")
}

// given reports whether a flag is on the command line. A variable of the job, such as STAR_LISTEN, is not meant for a
// sweep.
func (w *sweeping) given(name string) bool { return w.set.Origin(name) == settings.Origin("--"+name) }

// sickError ends a sweep that has named a host; the report is printed already.
type sickError struct{ text string }

func (e *sickError) Error() string { return e.text }
func (e *sickError) ExitCode() int { return exitcode.Failure }

func (w *sweeping) run(ctx context.Context, cmd *cobra.Command, args []string) error {
	s := w.set
	switch {
	case len(args) > 0:
		return &settings.UsageError{Msg: fmt.Sprintf("star doctor: --sweep takes no addresses, but %s was given: name hosts in a file (--hosts), or give --listen and --to", args[0])}
	case w.given("hosts") && (w.to != "" || w.given("listen")):
		return s.Invalid("hosts", errors.New("star starts the sweep on these hosts by itself: leave --to and --listen away"))
	case w.to != "" && w.given("listen"):
		return s.Invalid("to", errors.New("the host that collects has none: give --listen or --to"))
	case w.given("listen") && len(w.cfg.Listen) != 1:
		return s.Invalid("listen", errors.New("give one address with --sweep"))
	case w.given("listen") && !w.given("members"):
		return s.Invalid("listen", errors.New("for how many hosts shall it wait, with this one? give --members"))
	}
	head := &doctor.Sweep{Dir: w.dir, State: w.state, Timeout: w.cfg.Timeout, Version: job.Program, Say: func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "sweep | "+text) }}
	if w.given("hosts") {
		return w.overHosts(ctx, cmd, head)
	}
	agent := &doctor.SweepAgent{Dir: w.dir, State: w.state, Version: job.Program, Network: transport.NewTCP(w.tcp.Config), GPUs: daemon.GPUHealth}
	var name string
	var failed bool
	var report *doctor.SweepReport
	agent.Verdict = func(host string, r *doctor.SweepReport, sick bool) { name, report, failed = host, r, sick }
	listen, to, rank, members, err := w.place()
	if err != nil {
		return err
	}
	switch {
	case to != "":
		err := doctor.SweepTo(ctx, to, rank, w.cfg.Timeout, agent)
		if err != nil && !errors.Is(err, doctor.ErrNoHead) {
			return err
		}
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "sweep | %v; this host is compared with its last time only\n", err)
			alone := &doctor.SweepAgent{Dir: w.dir, State: w.state, Version: job.Program, GPUs: daemon.GPUHealth, Verdict: agent.Verdict}
			report = head.RunHere(ctx, alone)
			break
		}
		report = report.Of(name) // the host that collects prints everything
	case listen != "":
		l, err := w.tcp.Listen(listen)
		if err != nil {
			return s.Invalid("listen", err)
		}
		report = head.RunListening(ctx, l, w.tcp.Config, members, rank, agent)
	default:
		report = head.RunHere(ctx, agent)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := w.print(cmd, report); err != nil {
		return err
	}
	if failed {
		return &sickError{"this host, " + name + ", is an outlier"}
	}
	return nil
}

func (w *sweeping) print(cmd *cobra.Command, r *doctor.SweepReport) error {
	if w.asJSON {
		return r.WriteJSON(cmd.OutOrStdout())
	}
	return r.Print(cmd.OutOrStdout())
}

// place says what this process is: alone, the one that collects (listen), or one that is measured by it (to). Flags
// decide, else the variables of a launcher.
func (w *sweeping) place() (listen, to string, rank, members int, err error) {
	members, rank = w.cfg.Members, 0
	switch {
	case w.given("listen"):
		listen = w.cfg.Listen[0]
	case w.to != "":
		to, rank = w.to, -1
		if _, _, err := net.SplitHostPort(to); err != nil {
			return "", "", 0, 0, w.set.Invalid("to", fmt.Errorf("%w: want host:port", err))
		}
	}
	found := settings.Detect(cli.Environ())
	if found.Rank.Origin == "" || listen != "" {
		return listen, to, rank, members, nil
	}
	if found.Rank.Err != nil {
		return "", "", 0, 0, &settings.UsageError{Msg: fmt.Sprintf("star doctor --sweep: %v; give --listen or --to", found.Rank.Err)}
	}
	rank, _ = strconv.Atoi(found.Rank.Value)
	if to != "" {
		return "", to, rank, members, nil
	}
	if !w.given("members") {
		if members = size(found); members == 0 {
			return "", "", 0, 0, &settings.UsageError{Msg: "star doctor --sweep: " + found.Name + " gives this process a rank, but does not say how many there are: give --members"}
		}
	}
	at := found.Coordinator
	switch {
	case members == 1:
		return "", "", 0, 1, nil
	case os.Getenv("STAR_COORDINATOR") != "":
		at.Value, at.Err = os.Getenv("STAR_COORDINATOR"), nil
	case at.Origin == "" || at.Err != nil:
		return "", "", 0, 0, &settings.UsageError{Msg: fmt.Sprintf("star doctor --sweep: %s does not say where rank 0 is (%v): give --listen there and --to elsewhere, or STAR_COORDINATOR", found.Name, at.Err)}
	}
	_, port, err := net.SplitHostPort(at.Value)
	if err != nil {
		return "", "", 0, 0, &settings.UsageError{Msg: fmt.Sprintf("star doctor --sweep: %s: %v; want host:port", at.Value, err)}
	}
	if rank == 0 {
		return ":" + port, "", 0, members, nil
	}
	return "", at.Value, rank, members, nil
}

// size is the number of processes that a launcher has started; 0: unknown. An indexed job of Kubernetes has the
// settings of deploy/k8s.
func size(l settings.Launch) int {
	if n, err := strconv.Atoi(l.Size.Value); err == nil && l.Size.Err == nil {
		return n
	}
	servers, e1 := strconv.Atoi(os.Getenv("STAR_SERVERS"))
	workers, e2 := strconv.Atoi(os.Getenv("STAR_WORKERS"))
	if e1 != nil || e2 != nil {
		return 0
	}
	return servers + workers
}

// overHosts starts an agent on each host of the file.
func (w *sweeping) overHosts(ctx context.Context, cmd *cobra.Command, head *doctor.Sweep) error {
	hosts, err := inventory.Hosts(w.hosts)
	if err != nil {
		return job.FileError(err, inventory.ErrFile)
	}
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	var starts []doctor.Start
	for _, h := range hosts {
		program, address := h.Program, h.Address
		if program == "" {
			program = self
		}
		if address == "" {
			address = h.Name
		}
		starts = append(starts, doctor.Start{Name: h.Name, Address: address, Command: append(append([]string{}, h.Launch...), program, sweepAgent)})
	}
	token := w.tcp.Token
	if token == "" {
		token = rand.Text()
	}
	r := head.RunHosts(ctx, starts, token)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := w.print(cmd, r); err != nil {
		return err
	}
	if sick := r.Sick(); len(sick) > 0 {
		return &sickError{doctor.Plural(len(sick), "host") + " should not take part"}
	}
	return nil
}

// sweepAgentCommand obeys the orders of star doctor --sweep --hosts on its standard input.
func sweepAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use: sweepAgent, Short: "A host of star doctor --sweep --hosts", Hidden: true, Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.SweepOver(context.Background(), cmd.InOrStdin(), cmd.OutOrStdout(), &doctor.SweepAgent{Version: job.Program, GPUs: daemon.GPUHealth})
		},
	}
}
