package sched

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster/inventory"
	"star/cmd/internal/cli"
	"star/cmd/internal/launch"
	"star/internal/exitcode"
	"star/internal/ports"
	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/observe/web"
	"star/sched"
	"star/sched/live"
	"star/sched/service"
	"star/transport"
	"star/transport/wire"
)

// answerTime is how long star sched submit, status and cancel wait for the service.
const answerTime = 30 * time.Second

func schedServeCommand() *cobra.Command {
	s := new(settings.Set)
	var dir, policy, hosts, address, listen, page, logLevel, logFormat string
	var engine schedEngine
	var slot, keep time.Duration
	var places int
	var insecure bool // of earlier releases
	var peers service.Peers
	var secret settings.Secret
	var shows cli.Credentials
	var jobs string
	settings.Var(s, &dir, "dir", cli.SchedDir, "folder of the queue and its jobs")
	settings.Var(s, &policy, "policy", "elasticflow", "one of "+strings.Join(sched.LivePolicies(), ", ")+"; elasticflow is ef-admission")
	settings.Var(s, &slot, "slot", 240*time.Second, "least time between two rounds of a policy that plans")
	settings.Var(s, &places, "places", 0, "workers that run on this machine at a time, without --hosts; 0: one for each processor")
	settings.Var(s, &hosts, "hosts", "", "file of hosts, as for star run: one worker at a time on each GPU, or on each processor (cpu) of a host without GPUs")
	settings.Var(s, &engine.name, "engine", "hosts", "what starts workers: hosts, this machine or --hosts; slurm, srun on the nodes of its cluster; k8s, pods by kubectl", "hosts", "slurm", "k8s")
	settings.Var(s, &engine.cpus, "cpus", 1, "with --engine: processors of each worker")
	settings.Var(s, &engine.gpus, "gpus", 0, "with --engine: GPUs of each worker")
	settings.Var(s, &engine.partition, "partition", "", "slurm: of these nodes (all)")
	settings.Var(s, &engine.time, "time", "1-00:00:00", "slurm: limit of a worker's time, after which another one is started")
	settings.Var(s, &engine.namespace, "namespace", "", "k8s: namespace (that of kubectl)")
	settings.Var(s, &engine.image, "image", "star", "k8s: STAR's image (make image)")
	settings.Var(s, &engine.workerImage, "worker-image", "", "k8s: image of jobs with a command, which get the program star")
	settings.Var(s, &address, "address", "127.0.0.1", "address of this machine on which coordinators of jobs listen, for workers of other hosts")
	settings.Var(s, &listen, "listen", "127.0.0.1:0", "loopback address on which the service answers")
	settings.Var(s, &keep, "keep", 24*time.Hour, "how long an ended job stays in the queue; then only star sched status --all lists it; 0: for ever")
	settings.Var(s, &peers.Members, "peers", nil, "addresses of 3 to 9 services that share one queue, by rank, host:port; one of them decides at a time")
	settings.Var(s, &peers.Rank, "rank", 0, "with --peers: index of this one")
	settings.Var(s, &jobs, "jobs", "", "with --peers: folder of the jobs, which all services see")
	settings.Var(s, &secret, "token", "", "with --peers: secret of the services, which jobs do not get (rather as STAR_TOKEN); empty: a file in --jobs, made by the first one")
	shows.Declare(s)
	settings.Var(s, &insecure, "insecure", false, "ignored: services and jobs always have secrets")
	settings.Var(s, &peers.Wait, "wait", 2*time.Minute, "with --peers: time in which all services must find each other at the first start")
	settings.Var(s, &page, "http", "", "address of a page of the schedule, such as 127.0.0.1:7071; none: no page")
	settings.Var(s, &logLevel, "log-level", "info", "minimum level of log lines", "debug", "info", "warn", "error")
	settings.Var(s, &logFormat, "log-format", "auto", "auto: text on a terminal, JSON otherwise", "auto", "text", "json")
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run jobs under a policy: a queue that starts, resizes, stops and resumes them",
		Long: `Runs until it is stopped, and jobs go on without it: the queue is on disk, and a service that is started again finds what still runs.

  star sched serve --policy elasticflow --places 4 --slot 30s --http 127.0.0.1:7071
  star sched submit job.yaml --deadline 2h
  star sched status

docs/scheduling.md has the file of a job, and what happens when something is gone.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if policy == "elasticflow" {
				policy = "ef-admission"
			}
			switch {
			case !slices.Contains(sched.LivePolicies(), policy):
				return s.Invalid("policy", fmt.Errorf("%q decides about no jobs that run: want elasticflow or one of %s", policy, strings.Join(sched.LivePolicies(), ", ")))
			case slot < time.Second:
				return s.Invalid("slot", errors.New("want a second or more"))
			case keep < 0:
				return s.Invalid("keep", errors.New("want 0 or more"))
			case places < 0:
				return s.Invalid("places", errors.New("want 0 or more"))
			case places > 0 && hosts != "":
				return s.Invalid("places", errors.New("with --hosts the file says how many"))
			case !settings.Loopback(listen):
				return s.Invalid("listen", errors.New("want a loopback address: reach the service from elsewhere by ssh"))
			}
			o := service.Options{Dir: dir, Policy: policy, Slot: slot, Keep: keep, Address: address,
				Log: options.Logger(&settings.Job{LogLevel: logLevel, LogFormat: logFormat}, os.Stderr, "role", "sched")}
			if err := engine.valid(s, hosts, address, places); err != nil {
				return err
			}
			if err := engine.use(s, &o, hosts, places); err != nil {
				return err
			}
			if len(peers.Members) > 0 {
				t, err := shows.Config(s)
				if err != nil {
					return err
				}
				peers.Token, peers.TLS = string(secret), t
			}
			if err := schedPeers(s, &o, &peers, jobs, engine.name, hosts); err != nil {
				return err
			}
			if err := schedAddress(s, address); err != nil {
				return err
			}
			l, err := net.Listen(transport.ListenNetwork(listen), listen)
			if err != nil {
				return s.Invalid("listen", err)
			}
			defer l.Close()
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			return serveSched(ctx, s, o, l, page)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// schedAddress looks whether coordinators can listen on an address, and workers of other hosts dial it.
func schedAddress(s *settings.Set, address string) error {
	if ip := net.ParseIP(address); ip != nil && ip.IsUnspecified() {
		return s.Invalid("address", errors.New("workers dial it, and would find themselves: give one address of this machine"))
	}
	if _, err := ports.Listens(net.JoinHostPort(address, "0")); err != nil {
		return s.Invalid("address", fmt.Errorf("%w: give an address of this machine", err))
	}
	return nil
}

// schedPeers checks whether several services with these settings can share a queue.
func schedPeers(s *settings.Set, o *service.Options, p *service.Peers, jobs, engine, hosts string) error {
	if len(p.Members) == 0 {
		return refuse(s, "is for several services: give --peers, the addresses of all of them, or leave this out", "rank", "jobs", "wait", "token", "tls-cert", "tls-key", "tls-ca")
	}
	beyond := false
	for i, at := range p.Members {
		host, port, err := net.SplitHostPort(at)
		n, e := strconv.Atoi(port)
		switch {
		case err != nil || host == "" || e != nil || n < 1 || n > 65535:
			return s.Invalid("peers", fmt.Errorf("%q, that of rank %d, is no host:port", at, i))
		case slices.Index(p.Members, at) != i:
			return s.Invalid("peers", fmt.Errorf("%s is that of rank %d and of rank %d: each service has its own", at, slices.Index(p.Members, at), i))
		}
		beyond = beyond || !settings.Loopback(at)
	}
	switch n := len(p.Members); {
	case n < 3 || n > wire.MaxCandidates:
		return s.Invalid("peers", fmt.Errorf("%d services: want 3 to %d, and a majority must run; a single service needs no --peers", n, wire.MaxCandidates))
	case !s.IsSet("rank"):
		return s.Invalid("rank", fmt.Errorf("which of the --peers is this one? want 0 to %d", n-1))
	case p.Rank < 0 || p.Rank >= n:
		return s.Invalid("rank", fmt.Errorf("the --peers are %d: want 0 to %d", n, n-1))
	case jobs == "":
		return s.Invalid("jobs", errors.New("with --peers, give a folder that all services see: the next leader continues with the jobs there"))
	case p.Wait <= 0:
		return s.Invalid("wait", errors.New("want more than 0"))
	case beyond && engine == "hosts" && hosts == "":
		return s.Invalid("hosts", errors.New("services on several machines need --hosts, the same file: without it each would have jobs on its own machine"))
	}
	if beyond && engine == "hosts" {
		all, err := inventory.Hosts(hosts)
		if err != nil {
			return err
		}
		for _, h := range all {
			if len(h.Launch) == 0 {
				return s.Invalid("hosts", fmt.Errorf("host %s has no launch: with services on several machines it would be whichever of them decides", h.Name))
			}
		}
	}
	o.Peers, o.Jobs = p, jobs
	return nil
}

// serveSched runs the service and its page until ctx is over.
func serveSched(ctx context.Context, s *settings.Set, o service.Options, l net.Listener, page string) error {
	if page != "" {
		pl, err := net.Listen(transport.ListenNetwork(page), page)
		if err != nil {
			return s.Invalid("http", fmt.Errorf("%w: choose another one, as %s", err, net.JoinHostPort(settings.Home(), "0")))
		}
		defer pl.Close()
		if web.Exposed(pl) {
			o.Log.Warn(cli.Exposed, "at", pl.Addr().String())
		}
		o.Page = web.NewSchedules(web.Schedules{})
		o.Log.Info("page", "at", "http://"+pl.Addr().String()+"/")
		go cli.ServePage(ctx, pl, page, o.Page.Handler(nil)) // the queue is worth more than its page
	}
	if o.Peers != nil {
		return service.ServePeers(ctx, o, l)
	}
	svc, err := service.Start(o)
	if err != nil {
		return err
	}
	if o.Page != nil {
		o.Page.Show(svc.View())
	}
	return svc.Serve(ctx, l)
}

// schedHosts sets the hosts with their number of workers, and how they are started there.
func schedHosts(s *settings.Set, o *service.Options, file string, places int) error {
	known := map[string]inventory.Host{}
	if file == "" {
		name, err := os.Hostname()
		if err != nil || name == "" {
			name = "localhost"
		}
		if places == 0 {
			places = runtime.NumCPU()
		}
		o.Hosts = []*live.Host{{Name: name, Slots: places}}
		known[name] = inventory.Host{}
	} else {
		hosts, err := inventory.Hosts(file)
		if err != nil {
			return job.FileError(fmt.Errorf("--hosts: %w", err), inventory.ErrFile)
		}
		if err := cli.DetectGPUs(context.Background(), hosts); err != nil {
			return err
		}
		for _, h := range hosts {
			n := len(h.GPUs)
			if n == 0 && !math.IsInf(h.Capacity.CPU, 1) {
				n = int(h.Capacity.CPU)
			}
			if n < 1 {
				return job.FileError(fmt.Errorf("--hosts: %s: %w: host %s: how many workers can it run? give cpu, 1 or more, or gpus", file, inventory.ErrFile, h.Name), inventory.ErrFile)
			}
			o.Hosts, known[h.Name] = append(o.Hosts, &live.Host{Name: h.Name, Slots: n}), h
		}
	}
	if far := slices.DeleteFunc(slices.Collect(maps.Values(known)), func(h inventory.Host) bool { return len(h.Launch) == 0 }); len(far) > 0 && settings.Loopback(net.JoinHostPort(o.Address, "0")) {
		name := slices.MinFunc(far, func(a, b inventory.Host) int { return cmp.Compare(a.Name, b.Name) }).Name
		o.Log.Warn("coordinators listen on loopback, which workers reach only on this machine: unless all hosts with launch are this one, give --address, that of this machine for them", "address", o.Address, "host", name)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Environ = append(schedEnviron(), cli.AgentVariable+"="+self)
	o.Command = func(_, host string, place int, env, own []string) (*exec.Cmd, []byte, error) {
		at := launch.Site{Host: known[host], GPU: place}
		if len(at.Launch) > 0 {
			cmd, orders := at.Command(self, "worker", env, own)
			line, err := json.Marshal(orders.Env)
			cmd.Env = env
			return cmd, line, err
		}
		cmd := exec.Command(self, "worker")
		if len(own) > 0 {
			cmd = exec.Command(own[0], own[1:]...)
		}
		cmd.Env = append(env, at.Sees()...)
		return cmd, nil, nil
	}
	return nil
}

// schedEnviron is the environment of processes of jobs, without settings.
func schedEnviron() (env []string) {
	for _, e := range cli.Environ() {
		if !strings.HasPrefix(e, "STAR_") || strings.HasPrefix(e, "STAR_DATA=") {
			env = append(env, e)
		}
	}
	return env
}

func schedSubmitCommand() *cobra.Command {
	s := new(settings.Set)
	var dir, name string
	var deadline time.Duration
	settings.Var(s, &dir, "dir", cli.SchedDir, "folder of the service")
	settings.Var(s, &name, "name", "", "name of the job (that in the file)")
	settings.Var(s, &deadline, "deadline", 0, "from now on; 0: that in the file, or none")
	cmd := &cobra.Command{
		Use:   "submit JOB.yaml",
		Short: "Hand a job to star sched serve",
		Long: `Reads a job and gives it to the service. Exit code 1 if it is declined at once; a deadline is judged in the service's next round.

  name: lenet
  settings: {model: lenet, dataset: digits, lr: 0.02}
  samples: 600000                      # of the whole job, as often as each is used
  max-workers: 4
  rates: {1: 2500, 2: 4800, 4: 9000}   # samples/s by number of workers

docs/scheduling.md has all keys.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantArgs(cmd, args, 1, 1, "one file of a job"); err != nil {
				return err
			}
			return submitTo(cmd, s, dir, args[0], name, deadline)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// submitTo gives a job to a service.
func submitTo(cmd *cobra.Command, s *settings.Set, dir, file, name string, deadline time.Duration) error {
	if deadline < 0 {
		return s.Invalid("deadline", errors.New("want more than 0"))
	}
	spec, err := readJob(file)
	if err != nil {
		return err
	}
	if name != "" {
		spec.Name = name
	}
	if deadline > 0 {
		spec.Deadline = deadline.Seconds()
	}
	if err := spec.Check(); err != nil {
		return job.FileError(fmt.Errorf("%s: %w: %w", file, errJob, err), errJob)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), answerTime)
	defer cancel()
	j, err := service.Submit(ctx, dir, spec)
	if job.ExitCode(err) == exitcode.Corrupt {
		return fmt.Errorf("%s: %w", file, err)
	} else if err != nil {
		return err
	}
	if j.Job != spec.Name {
		fmt.Fprintf(cmd.OutOrStdout(), "%s is over, and keeps its name and folder: this one is %s\n", spec.Name, j.Job)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s", j.Job, j.State)
	if j.Why != "" {
		fmt.Fprintf(cmd.OutOrStdout(), ": %s", options.Printable(j.Why))
	}
	fmt.Fprintln(cmd.OutOrStdout())
	if j.State == live.Declined {
		return fmt.Errorf("job %s is declined", j.Job)
	}
	return nil
}

func schedCancelCommand() *cobra.Command {
	s := new(settings.Set)
	var dir string
	settings.Var(s, &dir, "dir", cli.SchedDir, "folder of the service")
	cmd := &cobra.Command{
		Use:   "cancel JOB",
		Short: "End a job of star sched serve: it saves a checkpoint, and does not go on",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wantArgs(cmd, args, 1, 1, "the name of one job"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), answerTime)
			defer cancel()
			return service.Cancel(ctx, dir, args[0])
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

func schedStatusCommand() *cobra.Command {
	s := new(settings.Set)
	var dir string
	var asJSON, all bool
	settings.Var(s, &dir, "dir", cli.SchedDir, "folder of the service")
	settings.Var(s, &all, "all", false, "also jobs that have left the queue (--keep of the service)")
	settings.Var(s, &asJSON, "json", false, "the answer as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Hosts and jobs of star sched serve, and why each has the workers that it has",
		Args:  settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), answerTime)
			defer cancel()
			st, err := service.Ask(ctx, dir)
			if err != nil {
				return err
			}
			if all {
				jobs, torn, err := service.ReadArchive(st.Archive)
				if err != nil {
					return err
				}
				if torn > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d lines are not whole, and left out\n", st.Archive, torn)
				}
				st.Jobs = append(append([]service.JobStatus{}, jobs...), st.Jobs...)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(st)
			}
			return printSched(cmd.OutOrStdout(), st, time.Now())
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// printSched prints the tables of star sched status. Some of their words are those of jobs' programs.
func printSched(to io.Writer, st service.Status, now time.Time) error {
	out := new(bytes.Buffer)
	if err := tables(out, st, now); err != nil {
		return err
	}
	_, err := io.WriteString(to, options.Printable(out.String()))
	return err
}

// tables are those of star sched status.
func tables(out io.Writer, st service.Status, now time.Time) error {
	cell := strings.NewReplacer("\n", " ", "\t", " ").Replace
	fmt.Fprintf(out, "%s under %s, since %s\n", st.Dir, st.Policy, st.Since.Local().Format("2006-01-02 15:04:05"))
	if st.Error != "" {
		fmt.Fprintln(out, st.Error)
	}
	for _, p := range st.Peers {
		switch {
		case p.Decides:
			fmt.Fprintf(out, "service %d of %d decides, at %s\n", p.Rank, len(st.Peers), p.Addr)
		case p.Missing:
			fmt.Fprintf(out, "service %d is not there, at %s\n", p.Rank, p.Addr)
		}
	}
	if st.Took["start"] > 0 {
		fmt.Fprintf(out, "here a start takes %.1f s, a resume %.1f s, a worker more %.1f s, an end %.1f s\n", st.Took["start"], st.Took["resume"], st.Took["resize"], st.Took["end"])
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "\nHOST\tWORKERS\tAVOIDED")
	for _, h := range st.Hosts {
		fmt.Fprintf(w, "%s\t%d of %d\t%s\n", h.Host, h.Workers, h.Places, cli.Dash(cell(cmp.Or(h.Closed, h.Slow))))
	}
	if len(st.Jobs) == 0 {
		fmt.Fprintln(w, "\nno jobs")
		return w.Flush()
	}
	fmt.Fprintln(w, "\nJOB\tSTATE\tWORKERS\tDONE\tDEADLINE\tCOORDINATOR\tWHY")
	age := now.Sub(st.Since).Seconds()
	for _, j := range st.Jobs {
		deadline := "–"
		if j.Deadline != nil {
			in := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Second) }
			switch left := *j.Deadline - age; {
			case j.Met != nil && *j.Met:
				deadline = fmt.Sprintf("met, %v before", in(*j.Deadline-*j.Ended))
			case j.State == live.Done:
				deadline = fmt.Sprintf("missed by %v", in(*j.Ended-*j.Deadline))
			case j.Met != nil:
			case left >= 0:
				deadline = "in " + in(left).String()
			default:
				deadline = fmt.Sprintf("%v ago", in(-left))
			}
		}
		workers := fmt.Sprint(j.Workers)
		if j.Workers != j.Want {
			workers += fmt.Sprintf(" → %d", j.Want)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d %%\t%s\t%s\t%s\n", j.Job, j.State, workers, 100*j.Samples/j.Of, deadline, cli.Dash(j.Addr), cli.Dash(cell(j.Why)))
	}
	return w.Flush()
}
