package sched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"star/cmd/internal/cli"
	"star/internal/settings"
	"star/sched/live"
	"star/sched/service"
)

// schedEngine starts the workers of star sched serve.
type schedEngine struct {
	name            string
	cpus, gpus      int
	partition, time string

	namespace, image, workerImage string
}

// engineTime is how long a command of an engine may take to answer.
const engineTime = 30 * time.Second

// valid returns an error for settings that exclude each other.
func (e *schedEngine) valid(s *settings.Set, hosts, address string, places int) error {
	for _, c := range []struct{ engines, settings []string }{
		{[]string{"slurm", "k8s"}, []string{"cpus", "gpus"}}, {[]string{"slurm"}, []string{"partition", "time"}}, {[]string{"k8s"}, []string{"namespace", "image", "worker-image"}},
	} {
		if slices.Contains(c.engines, e.name) {
			continue
		}
		if err := refuse(s, "is for --engine "+strings.Join(c.engines, " or ")+"; hosts say themselves what they have (--hosts)", c.settings...); err != nil {
			return err
		}
	}
	switch {
	case e.name == "hosts":
		return nil
	case e.name == "k8s" && hosts != "":
		return s.Invalid("hosts", errors.New("with --engine k8s Kubernetes finds the nodes: leave it out"))
	case e.name == "k8s" && places < 1:
		return s.Invalid("places", errors.New("with --engine k8s, how many workers at a time? want 1 or more"))
	case e.name == "k8s" && settings.Loopback(net.JoinHostPort(address, "0")):
		return s.Invalid("address", errors.New("with --engine k8s workers are pods, for which that is themselves: give an address of this machine that pods reach"))
	case e.name == "slurm" && hosts != "":
		return s.Invalid("hosts", errors.New("with --engine slurm the nodes are those of Slurm: leave it out, or choose them by --partition"))
	case e.name == "slurm" && places > 0:
		return s.Invalid("places", errors.New("with --engine slurm each node has its processors, --cpus for each worker"))
	case e.cpus < 1:
		return s.Invalid("cpus", errors.New("want 1 or more"))
	case e.gpus < 0:
		return s.Invalid("gpus", errors.New("want 0 or more"))
	}
	return nil
}

// use sets how workers are started, and the hosts with their number of places.
func (e *schedEngine) use(s *settings.Set, o *service.Options, hosts string, places int) error {
	switch e.name {
	case "slurm":
		return e.slurm(s, o)
	case "k8s":
		return e.kubernetes(o, places)
	}
	return schedHosts(s, o, hosts, places)
}

// slurmNode is a node in sinfo's output.
type slurmNode struct {
	name, host string // host: its machine's name
	cpus       int
	closed     string // why Slurm starts nothing there; empty: it does
}

// slurmStates matches nodes on which Slurm starts nothing until an administrator resumes them, or they answer (man
// sinfo, NODE STATE CODES).
var slurmStates = regexp.MustCompile(`^(drain|down|fail|maint|unknown)|\*`)

// slurmNodes parses sinfo's output, in the format that nodes requests.
func slurmNodes(text string) (nodes []slurmNode) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		// once for each partition
		if len(f) < 4 || slices.ContainsFunc(nodes, func(n slurmNode) bool { return n.name == f[0] }) {
			continue
		}
		n := slurmNode{name: f[0], host: f[2]}
		n.cpus, _ = strconv.Atoi(f[1])
		if state, why := f[3], strings.Join(f[4:], " "); slurmStates.MatchString(state) {
			if n.closed = "in Slurm it is " + strings.TrimRight(state, "*"); strings.HasSuffix(state, "*") {
				n.closed += ", and does not answer"
			}
			if why != "" && why != "none" {
				n.closed += ": " + why
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// nodes asks Slurm for those of the partition, and returns its answer, too.
func (e *schedEngine) nodes() ([]slurmNode, string, error) {
	args := []string{"--noheader", "--Node", "--format=%N %c %n %T %E"}
	if e.partition != "" {
		args = append(args, "--partition="+e.partition)
	}
	text, err := askSlurm("sinfo", args...)
	return slurmNodes(text), text, err
}

// askSlurm runs a command of Slurm.
func askSlurm(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	path, err := exec.LookPath(program)
	if err != nil {
		return "", cli.Unavailable{Err: fmt.Errorf("--engine slurm: %w: start the service where Slurm's commands are", err)}
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", cli.Unavailable{Err: fmt.Errorf("--engine slurm: %s: %w: %s", program, err, strings.TrimSpace(said.String()))}
	}
	return string(out), nil
}

// here reports whether a name of a machine is this one's.
func here(name string) bool {
	own, _ := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	own, _, _ = strings.Cut(own, ".")
	return strings.EqualFold(name, own)
}

// slurm has workers be steps of their own of Slurm: srun is a process of the service, which passes signals on and ends
// as the worker does. A node is a host, with room for as many workers as it has processors for.
func (e *schedEngine) slurm(s *settings.Set, o *service.Options) error {
	nodes, said, err := e.nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.cpus < e.cpus {
			continue
		}
		loopback := func(host string) bool { return settings.Loopback(net.JoinHostPort(host, "0")) }
		if loopback(o.Address) && !loopback(n.host) && !here(n.host) {
			return s.Invalid("address", fmt.Errorf("with --engine slurm workers run on %s, for which that is itself: give an address of this machine that nodes reach", n.name))
		}
		o.Hosts = append(o.Hosts, &live.Host{Name: n.name, Slots: n.cpus / e.cpus, Closed: n.closed})
	}
	if e.partition != "" && strings.TrimSpace(said) == "" {
		return s.Invalid("partition", errors.New("no node of Slurm is in it: sinfo lists partitions"))
	}
	if len(o.Hosts) == 0 {
		return cli.Unavailable{Err: fmt.Errorf("--engine slurm: there is no node that has %d processors: sinfo says %q (--partition, --cpus)", e.cpus, strings.TrimSpace(said))}
	}
	o.Closed = func() (map[string]string, error) {
		nodes, _, err := e.nodes()
		closed := map[string]string{}
		for _, h := range o.Hosts {
			if i := slices.IndexFunc(nodes, func(n slurmNode) bool { return n.name == h.Name }); i < 0 {
				closed[h.Name] = "Slurm has no such node any more"
			} else {
				closed[h.Name] = nodes[i].closed
			}
		}
		return closed, err
	}
	if _, err := exec.LookPath("srun"); err != nil {
		return cli.Unavailable{Err: fmt.Errorf("--engine slurm: %w: start the service where Slurm's commands are", err)}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	o.Environ = schedEnviron()
	o.Command = func(name, host string, _ int, env, own []string) (*exec.Cmd, []byte, error) {
		args := []string{"--job-name=" + name, "--nodelist=" + host, "--nodes=1", "--ntasks=1", "--cpus-per-task=" + strconv.Itoa(e.cpus), "--time=" + e.time, "--immediate=60", "--export=ALL", "--quiet", "--input=none"}
		if e.gpus > 0 {
			args = append(args, "--gpus-per-task="+strconv.Itoa(e.gpus))
		}
		if e.partition != "" {
			args = append(args, "--partition="+e.partition)
		}
		if len(own) == 0 {
			own = []string{self, "worker"}
		}
		cmd := exec.Command("srun", append(args, own...)...)
		cmd.Env = env
		return cmd, nil, nil
	}
	o.Kill = func(name string) error { // srun would end, and its worker would continue
		_, err := askSlurm("scancel", "--user="+me.Username, "--name="+name)
		return err
	}
	return nil
}
