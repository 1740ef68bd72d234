package settings

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"star/internal/defaults"
)

// Launch is what a launcher left in the environment of this process. A field with an empty Origin
// was not set.
type Launch struct {
	// Name is the launcher that decided the rank, or empty.
	Name string

	Rank        Found
	Size        Found // processes that were started together
	Coordinator Found // host:port

	// Notes name launchers that disagree, and half a launcher's variables.
	Notes []string
}

// Settings returns what was found as settings, for Sources.Detected. size is the name of the setting that
// counts the processes of this kind: "workers" or "servers".
func (l Launch) Settings(size string) map[string]Found {
	m := make(map[string]Found)
	for name, f := range map[string]Found{"rank": l.Rank, size: l.Size, "coordinator": l.Coordinator} {
		if f.Origin != "" {
			m[name] = f
		}
	}
	return m
}

// launcher knows one family of variables.
type launcher struct {
	name string
	find func(env map[string]string) Launch
}

// launchers are ordered from the innermost to the outermost: torchrun is run by
// mpirun or srun, those by a batch system, and all of them in pods. The
// innermost one started this very process, so it knows the rank.
var launchers = []launcher{
	{"torchrun", torchrun},
	{"Open MPI", openMPI},
	{"PMI", pmi},
	{"Slurm", slurm},
	{"PET", pet},
	{"Kubernetes", kubernetes},
}

// Detect looks for the variables of torchrun, Open MPI, PMI and PMIx, Slurm,
// Kubeflow (PET) and Kubernetes indexed jobs. Rank and size come from the
// innermost launcher that gives a rank; the coordinator's address from the innermost one
// that knows one.
func Detect(environment []string) Launch {
	env := environ(environment)
	var l Launch
	for _, from := range launchers {
		f := from.find(env)
		l.Notes = append(l.Notes, f.Notes...)
		if f.Rank.Origin != "" {
			if l.Name == "" {
				l.Name, l.Rank, l.Size = from.name, f.Rank, f.Size
			} else if l.Rank.Err == nil && f.Rank.Err == nil && l.Rank.Value != f.Rank.Value {
				l.Notes = append(l.Notes, fmt.Sprintf("%s says rank %s, %s says rank %s: taking %s, which is nearer to the process; --rank decides otherwise",
					l.Rank.Origin, l.Rank.Value, f.Rank.Origin, f.Rank.Value, l.Name))
			}
		}
		if l.Coordinator.Origin == "" {
			l.Coordinator = f.Coordinator
		}
	}
	return l
}

// number reads a variable that counts something.
func number(env map[string]string, launcher, name string) Found {
	text, ok := env[name]
	if !ok || text == "" {
		return Found{}
	}
	f := Found{Value: text, Origin: Origin(launcher + " (" + name + ")")}
	if n, err := strconv.Atoi(text); err != nil || n < 0 {
		f.Err = fmt.Errorf("%s=%s is not a whole number of at least 0", name, quote(text))
	}
	return f
}

// first returns the first of several numbers that is set.
func first(env map[string]string, launcher string, names ...string) Found {
	for _, name := range names {
		if f := number(env, launcher, name); f.Origin != "" {
			return f
		}
	}
	return Found{}
}

// torchrun sets RANK and WORLD_SIZE for each process (PyTorch documentation,
// "torchrun (Elastic Launch)", section "Environment Variables"); Kubeflow's PyTorchJob sets the
// same. Both must be there: either alone is too common a name.
//
// MASTER_PORT belongs to torchrun's own store when its agent runs it, so then
// only the host is used.
func torchrun(env map[string]string) Launch {
	const name = "torchrun"
	rank, size := number(env, name, "RANK"), number(env, name, "WORLD_SIZE")
	switch {
	case rank.Origin != "" && size.Origin == "":
		return Launch{Notes: []string{"RANK is set without WORLD_SIZE: not taken for torchrun"}}
	case rank.Origin == "" && size.Origin != "":
		return Launch{Notes: []string{"WORLD_SIZE is set without RANK: not taken for torchrun"}}
	case rank.Origin == "":
		return Launch{}
	}
	l := Launch{Rank: rank, Size: size}
	if host := env["MASTER_ADDR"]; host != "" {
		port, from := defaults.Port, "MASTER_ADDR"
		agent, _ := strconv.ParseBool(env["TORCHELASTIC_USE_AGENT_STORE"])
		if p := env["MASTER_PORT"]; p != "" && !agent {
			port, from = p, "MASTER_ADDR, MASTER_PORT"
		}
		l.Coordinator = address(name, from, host, port)
	}
	return l
}

// pet reads what Kubeflow gives to torchrun as PET_*, for containers that run
// our program without torchrun: then each node is one process.
func pet(env map[string]string) Launch {
	const name = "PET"
	rank, size := number(env, name, "PET_NODE_RANK"), number(env, name, "PET_NNODES")
	if rank.Origin == "" {
		return Launch{}
	}
	if text := env["PET_NNODES"]; size.Err != nil {
		// min:max of an elastic job; a fixed size is written 4 or 4:4.
		if low, high, ok := strings.Cut(text, ":"); ok && low == high {
			size = number(map[string]string{"PET_NNODES": low}, name, "PET_NNODES")
		} else if ok {
			size.Err = fmt.Errorf("PET_NNODES=%s is a range", quote(text))
		}
	}
	l := Launch{Rank: rank, Size: size}
	switch text := env["PET_NPROC_PER_NODE"]; text {
	case "", "1", "auto", "cpu", "gpu":
	default:
		l.Rank.Err = fmt.Errorf("PET_NPROC_PER_NODE=%s: each node must run %s processes, so the node's rank is not this process's rank",
			quote(text), text)
		l.Size.Err = l.Rank.Err
	}
	if host := env["PET_MASTER_ADDR"]; host != "" {
		port, from := defaults.Port, "PET_MASTER_ADDR"
		if p := env["PET_MASTER_PORT"]; p != "" {
			port, from = p, "PET_MASTER_ADDR, PET_MASTER_PORT"
		}
		l.Coordinator = address(name, from, host, port)
	}
	return l
}

// openMPI: mpirun of Open MPI (its FAQ, "What environment variables does Open
// MPI expose?"). It knows no address.
func openMPI(env map[string]string) Launch {
	const name = "Open MPI"
	return Launch{
		Rank: number(env, name, "OMPI_COMM_WORLD_RANK"),
		Size: number(env, name, "OMPI_COMM_WORLD_SIZE"),
	}
}

// pmi: MPICH, Intel MPI and srun --mpi=pmi2 set PMI_RANK and PMI_SIZE; PMIx has
// PMIX_RANK but leaves the size to a call of its library, so Slurm's is taken.
func pmi(env map[string]string) Launch {
	if rank := number(env, "PMI", "PMI_RANK"); rank.Origin != "" {
		return Launch{Rank: rank, Size: number(env, "PMI", "PMI_SIZE")}
	}
	rank := number(env, "PMIx", "PMIX_RANK")
	if rank.Origin == "" {
		return Launch{}
	}
	return Launch{Rank: rank, Size: first(env, "Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")}
}

// slurm: srun (its manual page, "OUTPUT ENVIRONMENT VARIABLES"). The first host
// of the step is where the coordinator is expected.
func slurm(env map[string]string) Launch {
	const name = "Slurm"
	rank := number(env, name, "SLURM_PROCID")
	if rank.Origin == "" {
		return Launch{}
	}
	l := Launch{Rank: rank, Size: first(env, name, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")}
	for _, v := range []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"} {
		text := env[v]
		if text == "" {
			continue
		}
		hosts, err := Nodelist(text)
		if err != nil {
			l.Coordinator = Found{Origin: Origin(name + " (" + v + ")"), Err: err}
		} else {
			l.Coordinator = address(name, v, hosts[0], defaults.Port)
		}
		break
	}
	return l
}

// kubernetes: an indexed job gives each pod JOB_COMPLETION_INDEX, but no size
// and no address (Kubernetes documentation, "Indexed Job"). By convention the
// servers are behind a service called star-ps: its variables are used if
// Kubernetes made them, or else the DNS name of the first pod of a StatefulSet
// star-ps with a headless service of that name.
func kubernetes(env map[string]string) Launch {
	const name = "Kubernetes"
	l := Launch{Rank: number(env, name, "JOB_COMPLETION_INDEX")}
	if host := env["STAR_PS_SERVICE_HOST"]; host != "" {
		port := env["STAR_PS_SERVICE_PORT"]
		if port == "" {
			port = defaults.Port
		}
		l.Coordinator = address(name, "STAR_PS_SERVICE_HOST", host, port)
	} else if l.Rank.Origin != "" && env["KUBERNETES_SERVICE_HOST"] != "" {
		l.Coordinator = address(name, "convention star-ps-0.star-ps", "star-ps-0.star-ps", defaults.Port)
	}
	return l
}

func address(launcher, from, host, port string) Found {
	f := Found{Value: net.JoinHostPort(host, port), Origin: Origin(launcher + " (" + from + ")")}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		f.Err = fmt.Errorf("%s is not a port", quote(port))
	} else if strings.ContainsAny(host, " \t\r\n/") {
		f.Err = fmt.Errorf("%s is not a host", quote(host))
	}
	return f
}

// maxHosts is more hosts than any cluster has; a short text can claim billions.
const maxHosts = 1 << 17

// Nodelist expands Slurm's notation for hosts, such as "gpu[01-03,07],login" or
// "r[1-2]n[0-9]" (scontrol manual page, "show hostnames"), in its order. Widths of
// numbers are kept. At least one host is returned, or an error.
func Nodelist(list string) ([]string, error) {
	var hosts []string
	fail := func(format string, a ...any) ([]string, error) {
		return nil, fmt.Errorf("node list %s: %s", quote(list), fmt.Sprintf(format, a...))
	}
	for rest := list; ; {
		// Up to the next comma outside brackets.
		depth, end := 0, len(rest)
	scan:
		for i := range len(rest) {
			switch rest[i] {
			case '[':
				depth++
			case ']':
				depth--
			case ',':
				if depth == 0 {
					end = i
					break scan
				}
			}
			if depth < 0 || depth > 1 {
				return fail("brackets do not match")
			}
		}
		if depth != 0 {
			return fail("brackets do not match")
		}
		more, err := expandHosts(rest[:end], maxHosts-len(hosts))
		if err != nil {
			return fail("%v", err)
		}
		hosts = append(hosts, more...)
		if end == len(rest) {
			return hosts, nil
		}
		rest = rest[end+1:]
	}
}

var errManyHosts = errors.New("too many hosts")

// expandHosts expands one word; its brackets match and do not nest.
func expandHosts(word string, limit int) ([]string, error) {
	if word == "" {
		return nil, errors.New("a host without a name")
	}
	hosts := []string{""}
	for word != "" {
		open := strings.IndexByte(word, '[')
		if open < 0 {
			open = len(word)
		}
		if i := strings.IndexFunc(word[:open], notHost); i >= 0 {
			return nil, fmt.Errorf("%s in a host name", quote(word[i:i+1]))
		}
		for i := range hosts {
			hosts[i] += word[:open]
		}
		if open == len(word) {
			break
		}
		end := strings.IndexByte(word, ']')
		tails, err := expandRanges(word[open+1:end], limit)
		if err != nil {
			return nil, err
		}
		if len(hosts)*len(tails) > limit {
			return nil, errManyHosts
		}
		longer := make([]string, 0, len(hosts)*len(tails))
		for _, h := range hosts {
			for _, t := range tails {
				longer = append(longer, h+t)
			}
		}
		hosts, word = longer, word[end+1:]
	}
	if len(hosts) > limit {
		return nil, errManyHosts
	}
	return hosts, nil
}

// expandRanges expands "01-03,07".
func expandRanges(text string, limit int) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		low, err1 := strconv.ParseUint(from, 10, 31)
		high, err2 := strconv.ParseUint(to, 10, 31)
		if err1 != nil || err2 != nil || len(from) > 10 || len(to) > 10 || strings.ContainsAny(part, "+_") {
			return nil, fmt.Errorf("%s is not a number or a range", quote(part))
		}
		if high < low {
			return nil, fmt.Errorf("range %s runs backwards", quote(part))
		}
		if uint64(len(out))+high-low+1 > uint64(limit) {
			return nil, errManyHosts
		}
		for n := low; n <= high; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(from), n))
		}
	}
	return out, nil
}

// notHost reports characters that no host name has.
func notHost(r rune) bool {
	return !(r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z')
}
