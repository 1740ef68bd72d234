package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"star/cluster"
	"star/cluster/inventory"
	"star/cluster/resource"
	"star/cluster/resource/actuate"
	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/job"
	"star/job/options"
	"star/job/process"
	"star/job/tenant"
	"star/transport"
)

func clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster {serve | status}",
		Short: "The resource service of jobs that share hosts",
		Long: `Decides which jobs of a cluster may leave SSGD, and delays others for that where it pays (docs/cluster.md).
Jobs join with --cluster NAME@host:port.

  star cluster serve --cluster rack1 --listen 10.0.0.2:7072
  star cluster status --cluster rack1@10.0.0.2`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(clusterServe(), clusterStatus())
	return cmd
}

// clusterFlags are what both commands have.
type clusterFlags struct {
	name, key string
	join      []string
	token     settings.Secret
	cert, tls string
	ca        string
	insecure  bool
	asJSON    bool
}

func (f *clusterFlags) declare(s *settings.Set, place string) {
	settings.Var(s, &f.name, "cluster", "", place)
	settings.Var(s, &f.join, "cluster-join", nil, "members of the cluster's gossip, host:port")
	settings.Var(s, &f.key, "cluster-key", "", "file with the key of the gossip: 16, 24 or 32 bytes in base64")
	settings.Var(s, &f.token, "token", "", "shared secret of the cluster (rather as STAR_TOKEN)")
	settings.Var(s, &f.cert, "tls-cert", "", "certificate of this process, PEM")
	settings.Var(s, &f.tls, "tls-key", "", "key of the certificate, PEM")
	settings.Var(s, &f.ca, "tls-ca", "", "certificates that sign the others' certificates, PEM")
}

func (f *clusterFlags) network(s *settings.Set, cfg transport.Config) (*transport.TCP, error) {
	cfg.Token, cfg.Insecure = string(f.token), f.insecure
	if f.cert != "" || f.tls != "" || f.ca != "" {
		t, err := transport.TLSConfig(f.cert, f.tls, f.ca)
		if err != nil {
			return nil, s.Invalid("tls-cert", err)
		}
		cfg.TLS = t
	}
	return transport.NewTCP(cfg), nil
}

func clusterServe() *cobra.Command {
	var f clusterFlags
	var listen, advertise, gossip, hosts, logLevel, logFormat string
	var lease time.Duration
	s := new(settings.Set)
	f.declare(s, "name of the cluster")
	settings.Var(s, &listen, "listen", "127.0.0.1:"+cluster.DefaultPort, "address to listen on, host:port")
	settings.Var(s, &advertise, "advertise", "", "address under which jobs reach this process (that of --listen)")
	settings.Var(s, &gossip, "gossip", "127.0.0.1:"+cluster.DefaultGossipPort, "address of the gossip, for TCP and UDP, or off")
	settings.Var(s, &hosts, "hosts", "", "file of hosts with their capacities, as for star place (default: what processes on a host report)")
	settings.Var(s, &lease, "lease", 10*time.Second, "how long a silent job counts, and a grant or delay without the service")
	settings.Var(s, &f.insecure, "insecure", false, "allow listening beyond loopback without TLS or token, and a gossip without key")
	settings.Var(s, &logLevel, "log-level", "info", "minimum level of log lines", "debug", "info", "warn", "error")
	settings.Var(s, &logFormat, "log-format", "auto", "auto: text on a terminal, JSON otherwise", "auto", "text", "json")
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the resource service of a cluster",
		Long: `Runs until it is stopped. A second service under the same name refuses to start, or steps down when the two hear of each
other (exit code 78). Nothing is lost when it stops: jobs go back to SSGD, and enter again when it is back.`,
		Args: settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lease < time.Second {
				return s.Invalid("lease", fmt.Errorf("must be at least 1s"))
			}
			if !settings.Loopback(listen) && f.token == "" && f.cert == "" && !f.insecure {
				return s.Invalid("listen", fmt.Errorf("any process that reaches this address could slow jobs down; give STAR_TOKEN or certificates (--tls-cert …), listen on %s, or allow it with --insecure", settings.Home()))
			}
			key, err := tenant.Key(f.key)
			if err != nil {
				return s.Invalid("cluster-key", err)
			}
			if gossip != settings.Off && !settings.Loopback(gossip) && key == nil && !f.insecure {
				return s.Invalid("gossip", fmt.Errorf("any process that reaches this address could claim to be the service; give --cluster-key, use %s or off, or allow it with --insecure", settings.Home()))
			}
			capacities, err := readHosts(hosts)
			if err != nil {
				return err
			}
			log := options.Logger(&settings.Job{LogLevel: logLevel, LogFormat: logFormat}, os.Stderr, "cluster", f.name)
			ctx, cancel := process.Signals(context.Background())
			defer cancel()
			network, err := f.network(s, transport.Config{Log: log})
			if err != nil {
				return err
			}
			l, err := network.Listen(listen)
			if err != nil {
				return s.Invalid("listen", err)
			}
			defer l.Close()
			if advertise == "" {
				advertise = l.Addr()
			}
			svc, err := cluster.New(cluster.Config{Cluster: f.name, Addr: advertise, Program: job.Program, Hosts: capacities, Lease: lease, Log: log})
			if err != nil {
				return err
			}
			var members *cluster.Gossip
			if gossip != settings.Off {
				members, err = cluster.Claim(ctx, cluster.GossipConfig{Cluster: f.name, Bind: gossip, Seeds: f.join, Key: key, Place: svc.Place(), Log: log}, network, string(f.token))
				if err != nil {
					return err
				}
				defer members.Close()
				log.Info("gossip", "addr", members.Addr())
			}
			log.Info("resource service listening", "addr", l.Addr(), "advertise", advertise, "hosts", len(capacities))
			return svc.Serve(ctx, l, network, string(f.token), members)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// readHosts reads the capacities of hosts from a file that star place reads, too.
func readHosts(path string) (map[string]resource.Usage, error) {
	if path == "" {
		return nil, nil
	}
	hosts, err := inventory.Hosts(path)
	if err != nil {
		return nil, job.FileError(fmt.Errorf("--hosts: %w", err), inventory.ErrFile)
	}
	out := map[string]resource.Usage{}
	for _, h := range hosts {
		out[h.Name] = resource.Usage{CPU: h.Capacity.CPU, NetIn: h.Capacity.NetIn, NetOut: h.Capacity.NetOut}
	}
	return out, nil
}

func clusterStatus() *cobra.Command {
	var f clusterFlags
	var timeout time.Duration
	s := new(settings.Set)
	f.declare(s, "the cluster: NAME@host:port, or NAME with --cluster-join")
	settings.Var(s, &f.insecure, "insecure", false, "allow a gossip beyond loopback without key")
	settings.Var(s, &timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	settings.Var(s, &f.asJSON, "json", false, "the answer as JSON on standard output")
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Hosts, jobs, grants and delays of a cluster",
		Args:  settings.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := options.Logger(&settings.Job{LogLevel: "error", LogFormat: "text"}, os.Stderr)
			name, find, err := tenant.Locate(f.name, f.join, f.key, f.insecure, log)
			if err != nil {
				return s.Invalid("cluster", err)
			}
			network, err := f.network(s, transport.Config{})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			addr, err := find(ctx)
			if err != nil {
				return err
			}
			st, err := cluster.Ask(ctx, network, addr, name, string(f.token), job.Program)
			if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
				return cli.Unavailable{Err: fmt.Errorf("the resource service of %s does not answer at %s: %w; start it, star cluster serve --cluster %s --listen %s", name, addr, dial.Err, name, addr)}
			} else if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if f.asJSON {
				return json.NewEncoder(out).Encode(st)
			}
			return printCluster(out, st)
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// printCluster prints the tables of star cluster status.
func printCluster(out io.Writer, st cluster.Status) error {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %s at %s, since %s, lease %gs\n\n", st.Cluster, st.Addr, st.Since.Local().Format("2006-01-02 15:04:05"), st.Lease)
	of := func(use, capacity *float64, scale float64) string {
		if capacity == nil {
			return fmt.Sprintf("%.2f", *use/scale)
		}
		return fmt.Sprintf("%.2f of %g", *use/scale, *capacity/scale)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "HOST\tCPU (cores)\tIN (MB/s)\tOUT (MB/s)\tOTHERS (cores)")
	for _, h := range st.Hosts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f\n", h.Host, of(h.Use.CPU, h.Capacity.CPU, 1), of(h.Use.NetIn, h.Capacity.NetIn, 1e6), of(h.Use.NetOut, h.Capacity.NetOut, 1e6), *h.Others.CPU)
	}
	w.Flush()
	printLeases(&b, st.Hosts)
	if len(st.Jobs) == 0 {
		b.WriteString("\nno jobs\n")
	} else {
		b.WriteByte('\n')
		fmt.Fprintln(w, "JOB\tSTATE\tMODE\tSTEP\tLEASE\tDELAY\tFOR\tLAST ANSWER")
		for _, j := range st.Jobs {
			delay := "–"
			if j.Delay > 0 || j.Early {
				delay = (time.Duration(j.Delay * float64(time.Second))).Round(time.Microsecond).String()
				if j.Early {
					delay += " + early"
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.0fs\t%s\t%s\t%s\n", j.Job, j.State, cli.Dash(j.Mode), j.Step, j.Lease, delay, cli.Dash(strings.Join(j.For, ",")), cli.Dash(j.Why))
		}
		w.Flush()
		b.WriteByte('\n')
		fmt.Fprintln(w, "JOB\tPROCESS\tHOST\tPEER\tACTUATOR\tORDERED\tIN FORCE")
		for _, j := range st.Jobs {
			for _, m := range j.Members {
				force := fmt.Sprintf("%gs", m.Delay)
				if m.Err != "" {
					force += " (" + m.Err + ")"
				}
				fmt.Fprintf(w, "%s\t%s %d\t%s\t%s\t%s\t%gs\t%s\n", j.Job, m.Role, m.Rank, m.Host, m.Peer, cli.Dash(m.Actuator), m.Ordered, force)
			}
		}
		w.Flush()
	}
	text := b.String()
	var clean []string
	for line := range strings.Lines(text) {
		clean = append(clean, strings.TrimRight(line, " \n"))
	}
	_, err := io.WriteString(out, strings.Join(clean, "\n")+"\n")
	return err
}

// printLeases prints the limits that processes have set on their hosts, and how to remove those without a live owner.
func printLeases(b *strings.Builder, hosts []cluster.HostStatus) {
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	var left []string
	head := "\nHOST\tLEASE\tSTATE\tLIMIT\tOWNER\tWHY\n"
	for _, h := range hosts {
		for _, l := range h.Leases {
			fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\t%s\n", head, h.Host, l.Lease, l.State, cli.Dash(l.What), cli.Dash(l.Owner), cli.Dash(l.Why))
			head = ""
			if l.State == string(actuate.Stale) && !slices.Contains(left, h.Host) {
				left = append(left, h.Host)
			}
		}
	}
	w.Flush()
	if len(left) > 0 {
		fmt.Fprintf(b, "\nstale: `star limits undo` lifts them, run on %s; so does every star-ps and star-worker when it starts there\n", strings.Join(left, ", "))
	}
}
