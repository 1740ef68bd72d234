package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"star/internal/settings"
	"star/transport"
)

// leastKillWait is what a scheduler must give a job that it ends: the default of --grace (20 s), and 5 s
// (docs/recover.md).
const leastKillWait = 25 * time.Second

// engine looks at what Slurm or Kubernetes gives to the processes of a job, from within an allocation or a pod.
func engine(ctx context.Context, environment []string) []Result {
	env := map[string]string{}
	for _, v := range environment {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	found := settings.Detect(environment)
	out := []Result{judgeLaunch(found, env)}
	out = append(out, coordinator(ctx, found, env), secret(env), folder(env))
	if env["SLURM_JOB_ID"] != "" {
		out = append(out, killWait(ctx))
	}
	return out
}

// judgeLaunch reports the launcher of this process, and its role.
func judgeLaunch(l settings.Launch, env map[string]string) Result {
	r := Result{Check: "engine", Status: OK}
	var problems []error
	for _, f := range []settings.Found{l.Rank, l.Size} {
		if f.Err != nil {
			problems = append(problems, f.Err)
		}
	}
	switch {
	case len(problems) > 0:
		r.Status, r.Detail, r.Fix = Fail, errors.Join(problems...).Error(), "give --rank and --workers or --servers; docs/run.md, Launchers"
	case l.Name == "" && env["SLURM_JOB_ID"] != "":
		r.Status, r.Detail, r.Fix = Warn, "an allocation of Slurm, but no task of it: processes have no rank here", "srun star doctor --engine looks at tasks"
	case l.Name == "" && env["KUBERNETES_SERVICE_HOST"] != "":
		r.Status, r.Detail, r.Fix = Warn, "a pod of Kubernetes without an index: processes have no rank", "use an indexed Job, as deploy/k8s does, or give --rank"
	case l.Name == "":
		r.Status, r.Detail, r.Fix = Fail, "no variables of Slurm, Kubernetes, MPI or torchrun", "run it inside the job: srun star doctor --engine, or kubectl exec POD -- star doctor --engine"
	default:
		size := "an unknown number"
		if l.Size.Origin != "" {
			size = l.Size.Value
		}
		r.Detail = fmt.Sprintf("%s: rank %s of %s", l.Name, l.Rank.Value, size)
		if l.Size.Origin == "" && env["STAR_WORKERS"] == "" {
			r.Status, r.Fix = Warn, "set STAR_WORKERS: "+l.Name+" does not say how many there are"
		}
		if len(l.Notes) > 0 {
			r.Status, r.Detail, r.Fix = Warn, r.Detail+"; "+l.Notes[0], "give --rank if that is wrong"
		}
	}
	return r
}

// coordinator looks whether its name can be resolved here.
func coordinator(ctx context.Context, l settings.Launch, env map[string]string) Result {
	r := Result{Check: "coordinator", Status: OK}
	at, from := env["STAR_COORDINATOR"], "STAR_COORDINATOR"
	if at == "" {
		at, from = l.Coordinator.Value, string(l.Coordinator.Origin)
	}
	if l.Coordinator.Err != nil && env["STAR_COORDINATOR"] == "" {
		r.Status, r.Detail, r.Fix = Fail, l.Coordinator.Err.Error(), "set STAR_COORDINATOR=HOST:PORT"
		return r
	}
	if at == "" {
		r.Status, r.Detail, r.Fix = Fail, "its address is not set", "set STAR_COORDINATOR=HOST:PORT"
		return r
	}
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		r.Status, r.Detail, r.Fix = Fail, fmt.Sprintf("%s (%s): %v", at, from, err), "write HOST:PORT"
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found, err := transport.Lookup(ctx, host)
	if err != nil {
		r.Status, r.Detail = Fail, fmt.Sprintf("%s (%s): %v", at, from, err)
		r.Fix = "the name must be known here: in Kubernetes a headless Service with publishNotReadyAddresses, in Slurm the node's name; or give an address"
		return r
	}
	var addrs []string
	for _, a := range found {
		addrs = append(addrs, a.String())
	}
	r.Detail = fmt.Sprintf("%s (%s) is %s", at, from, strings.Join(addrs, ", "))
	return r
}

// secret looks whether members may listen beyond loopback. The secret itself is not shown.
func secret(env map[string]string) Result {
	switch {
	case env["STAR_TOKEN"] != "", env["STAR_TLS_CERT"] != "":
		return Result{Check: "secret", Status: OK, Detail: "there is a token or a certificate"}
	case env["STAR_INSECURE"] != "":
		return Result{Check: "secret", Status: Warn, Detail: "none (STAR_INSECURE)", Fix: "set STAR_TOKEN: any process that reaches the ports can join"}
	}
	return Result{Check: "secret", Status: Fail, Detail: "neither STAR_TOKEN nor STAR_TLS_CERT: processes refuse to listen for other hosts",
		Fix: "set STAR_TOKEN, in Kubernetes from a secret (docs/deploy.md)"}
}

// folder looks whether --out can be written.
func folder(env map[string]string) Result {
	out := cmp.Or(env["STAR_OUT"], "star-out")
	r := Result{Check: "folder", Status: OK, Detail: out + " can be written"}
	err := os.MkdirAll(out, 0o777)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(out, ".star-doctor-"); err == nil {
			f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		r.Status, r.Detail, r.Fix = Fail, err.Error(), "set STAR_OUT to a folder on a volume or file system that all servers have"
		if errors.Is(err, syscall.EROFS) {
			r.Fix = "the root of this container is read-only: mount a volume, and set STAR_OUT to it"
		}
		return r
	}
	if filepath.IsAbs(out) || env["KUBERNETES_SERVICE_HOST"] == "" {
		return r
	}
	r.Status, r.Detail, r.Fix = Warn, out+" is inside the container, and ends with it", "mount a volume, and set STAR_OUT to it"
	return r
}

var killWaitLine = regexp.MustCompile(`(?m)^KillWait\s*=\s*(\d+) sec`)

// killWait asks Slurm how long it waits between SIGTERM and SIGKILL.
func killWait(ctx context.Context) Result {
	r := Result{Check: "KillWait", Status: Warn, Fix: "look yourself: scontrol show config | grep KillWait; it must be at least " + leastKillWait.String()}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := exec.CommandContext(ctx, "scontrol", "show", "config").Output()
	if err != nil {
		r.Detail = "cannot be asked: " + err.Error()
		return r
	}
	m := killWaitLine.FindSubmatch(b)
	if m == nil {
		r.Detail = "scontrol does not say it"
		return r
	}
	n, _ := strconv.Atoi(string(m[1]))
	r.Detail = fmt.Sprintf("%d s between SIGTERM and SIGKILL", n)
	if time.Duration(n)*time.Second < leastKillWait {
		r.Fix = fmt.Sprintf("give --grace %ds, or the checkpoint may be cut short", max(1, n-5))
		return r
	}
	r.Status, r.Fix = OK, ""
	return r
}
