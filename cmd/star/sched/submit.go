package sched

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"star/cmd/internal/cli"
	"star/deploy"
	"star/internal/defaults"
	"star/internal/settings"
)

// submission has the settings of star submit.
type submission struct {
	engine, kind, name, namespace, image, workerImage, time string
	workers, servers, nodes, cpus, gpus                     int

	variables []variable // of the job's settings
	command   []string   // the worker; nil: STAR's own
}

type variable struct{ name, value string }

// isJobFile reports whether an argument is a file of a job for star sched serve, and not a setting.
func isJobFile(arg string) bool {
	return !strings.Contains(arg, "=") && (strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".yml"))
}

func submitCommand() *cobra.Command {
	s := new(settings.Set)
	var b submission
	var apply, show bool
	var dir string
	var deadline time.Duration
	settings.Var(s, &b.engine, "engine", "k8s", "what starts the processes; a file JOB.yaml is for star", "k8s", "slurm", "star")
	settings.Var(s, &b.kind, "kind", "job", "k8s: what the job is made of", "job", "jobset", "trainjob")
	settings.Var(s, &b.name, "name", defaults.Job, "name of the job")
	settings.Var(s, &b.namespace, "namespace", "", "k8s: namespace (that of kubectl)")
	settings.Var(s, &b.image, "image", "star", "k8s: STAR's image (make image)")
	settings.Var(s, &b.workerImage, "worker-image", "", "k8s: image of a worker's command, which gets the program star")
	settings.Var(s, &b.workers, "workers", 4, "number of workers")
	settings.Var(s, &b.servers, "servers", 1, "number of servers")
	settings.Var(s, &b.nodes, "nodes", 0, "slurm: number of nodes; 0: as many as Slurm chooses")
	settings.Var(s, &b.cpus, "cpus", 1, "processors of each process")
	settings.Var(s, &b.gpus, "gpus", 0, "GPUs of each worker")
	settings.Var(s, &b.time, "time", "01:00:00", "slurm: limit of time")
	settings.Var(s, &dir, "dir", cli.SchedDir, "star: folder of star sched serve")
	settings.Var(s, &deadline, "deadline", 0, "star: from now on; 0: that in the file, or none")
	settings.Var(s, &show, "print", true, "print what would be submitted, where it is not submitted")
	settings.Var(s, &apply, "apply", false, "submit it: by kubectl apply, or sbatch")
	cmd := &cobra.Command{
		Use:   "submit [SETTING=VALUE …] [-- COMMAND [ARGUMENT …]]",
		Short: "Hand a job to Slurm, Kubernetes or star sched serve",
		Long: `Prints the batch script or the manifests of a job, or submits them with --apply. They are those of deploy/slurm and deploy/k8s, filled in.
Settings of the job follow as SETTING=VALUE; a command behind -- is the worker.

  star submit --engine slurm --workers 16 --nodes 4 model=resnet20 dataset=cifar10:/data/cifar --apply
  star submit job.yaml --deadline 2h                            to star sched serve: the same as star sched submit
  star submit --engine k8s --kind jobset --image registry.example/star:1 --worker-image registry.example/torch:2 -- python train.py`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !s.IsSet("engine") && cmd.ArgsLenAtDash() < 0 && slices.ContainsFunc(args, isJobFile) {
				b.engine = "star"
			}
			if b.engine == "star" {
				if len(args) != 1 {
					return &settings.UsageError{Msg: fmt.Sprintf("star submit --engine star: want one file of a job, got %d arguments", len(args))}
				}
				for _, other := range []string{"kind", "namespace", "image", "worker-image", "workers", "servers", "nodes", "cpus", "gpus", "time", "print", "apply"} {
					if s.Origin(other) == settings.Origin("--"+other) {
						return s.Invalid(other, errors.New("is for --engine k8s or slurm: with --engine star the job's file says what it wants, and star sched serve where it runs"))
					}
				}
				name := ""
				if s.IsSet("name") {
					name = b.name
				}
				return submitTo(cmd, s, dir, args[0], name, deadline)
			}
			if !show && !apply {
				return &settings.UsageError{Msg: "star submit: --print=false without --apply does nothing"}
			}
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args, b.command = args[:at], args[at:]
			}
			if err := b.check(s, args); err != nil {
				return err
			}
			text, err := b.render()
			if err != nil {
				return err
			}
			if !apply {
				_, err := io.WriteString(cmd.OutOrStdout(), text)
				return err
			}
			return b.apply(text, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.Bind(cmd, s)
	return cmd
}

// label is what Kubernetes takes for the name of a Service, shorter, because -ps is appended.
var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,48}[a-z0-9])?$`)

// check takes the settings of the job, and refuses what the engine would refuse later.
func (b *submission) check(s *settings.Set, args []string) error {
	for _, n := range []struct {
		name         string
		value, least int
	}{{"workers", b.workers, 1}, {"servers", b.servers, 1}, {"cpus", b.cpus, 1}, {"nodes", b.nodes, 0}, {"gpus", b.gpus, 0}} {
		if n.value < n.least {
			return s.Invalid(n.name, fmt.Errorf("must be at least %d", n.least))
		}
	}
	switch {
	case !label.MatchString(b.name):
		return s.Invalid("name", errors.New("must be lower-case letters, digits and hyphens, at most 50, and begin with a letter"))
	case b.engine == "k8s" && b.command != nil && b.workerImage == "":
		return s.Invalid("worker-image", fmt.Errorf("is missing: STAR's image does not have %s", b.command[0]))
	case b.engine == "k8s" && b.command == nil && b.workerImage != "":
		return &settings.UsageError{Msg: "star submit: --worker-image without a command: say behind -- what runs there"}
	}
	j := new(settings.Job)
	j.Bind(&cobra.Command{Use: "star submit"}, settings.ForServer)
	known := []string{settings.Variable("config")}
	for _, name := range j.Config.Names() {
		known = append(known, settings.Variable(name))
	}
	var environment []string
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return &settings.UsageError{Msg: fmt.Sprintf("star submit: %q is no setting: write SETTING=VALUE, such as lr=0.1, and a command behind --", arg)}
		}
		switch name {
		case "workers", "servers", "rank", "coordinator", "token", "job":
			return &settings.UsageError{Msg: fmt.Sprintf("star submit: %s is set by star submit and its flags, not as %s", name, arg)}
		}
		v := variable{settings.Variable(name), value}
		if !slices.Contains(known, v.name) {
			meant := "docs/configure.md lists them"
			if near := settings.Nearest(v.name, known); near != "" {
				meant = "did you mean " + near + "?"
			}
			return &settings.UsageError{Msg: fmt.Sprintf("star submit: %s: there is no setting %s; %s", arg, v.name, meant)}
		}
		b.variables, environment = append(b.variables, v), append(environment, v.name+"="+v.value)
	}
	_, err := j.Load(environment)
	return err
}

func (b *submission) render() (string, error) {
	if b.engine == "slurm" {
		return b.script()
	}
	return b.manifests()
}

func (b *submission) apply(text string, out, errs io.Writer) error {
	program := []string{"kubectl", "apply", "-f", "-"}
	if b.engine == "slurm" {
		program = []string{"sbatch"}
	}
	path, err := exec.LookPath(program[0])
	if err != nil {
		return cli.Unavailable{Err: fmt.Errorf("star submit: %w: install it, or give what star submit prints to a host that has it", err)}
	}
	cmd := exec.Command(path, program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), out, errs
	if err := cmd.Run(); err != nil {
		return cli.Unavailable{Err: fmt.Errorf("star submit: %s: %w", program[0], err)}
	}
	return nil
}

// script is the batch script, with its #SBATCH lines and the settings below them.
func (b *submission) script() (string, error) {
	text, err := deploy.Files.ReadFile("slurm/star.sbatch")
	if err != nil {
		return "", err
	}
	options := map[string]string{"job-name": b.name, "ntasks": strconv.Itoa(b.workers), "cpus-per-task": strconv.Itoa(b.cpus), "time": b.time, "nodes": ""}
	if b.nodes > 0 {
		options["nodes"] = strconv.Itoa(b.nodes)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "#SBATCH --")
		if !ok && out.Len() > 0 && line == "\n" && options != nil { // behind the options
			if b.gpus > 0 {
				fmt.Fprintf(&out, "#SBATCH --gpus-per-task=%d\n", b.gpus)
			}
			options = nil
			fmt.Fprintf(&out, "\nexport STAR_SERVERS=%d\n", b.servers)
			for _, v := range b.variables {
				fmt.Fprintf(&out, "export %s=%s\n", v.name, shellWord(v.value))
			}
			if b.command != nil {
				out.WriteString("set --")
				for _, word := range b.command {
					out.WriteString(" " + shellWord(word))
				}
				out.WriteString("\n")
			}
		}
		if name, _, found := strings.Cut(rest, "="); ok && found {
			if v, told := options[name]; told {
				if v == "" {
					continue
				}
				line = fmt.Sprintf("#SBATCH --%s=%s\n", name, v)
			}
		}
		out.WriteString(line)
	}
	return out.String(), nil
}

// shellWord quotes a word for a shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// manifests are those of a base of deploy/k8s.
func (b *submission) manifests() (string, error) {
	files := map[string][]string{"job": {"job/job"}, "jobset": {"jobset/jobset"}, "trainjob": {"trainjob/runtime", "trainjob/trainjob"}}[b.kind]
	var out strings.Builder
	for _, name := range append([]string{"common/common"}, files...) {
		text, err := deploy.Files.ReadFile("k8s/" + name + ".yaml")
		if err != nil {
			return "", err
		}
		d := yaml.NewDecoder(strings.NewReader(string(text)))
		for {
			var doc yaml.Node
			if err := d.Decode(&doc); err == io.EOF {
				break
			} else if err != nil {
				return "", fmt.Errorf("deploy/k8s/%s.yaml: %w", name, err)
			}
			b.fill(doc.Content[0])
			if out.Len() > 0 {
				out.WriteString("---\n")
			}
			e := yaml.NewEncoder(&out)
			e.SetIndent(2)
			if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
				return "", err
			}
		}
	}
	return out.String(), nil
}

// at is a field of a mapping; nil: it is not there.
func at(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		i := 0
		for ; i < len(n.Content) && n.Content[i].Value != key; i += 2 {
		}
		if i >= len(n.Content) {
			return nil
		}
		n = n.Content[i+1]
	}
	return n
}

// put sets a field of a mapping.
func put(n *yaml.Node, key string, value any) {
	v := new(yaml.Node)
	if err := v.Encode(value); err != nil {
		panic(err) // our own value
	}
	if text, ok := value.(string); ok { // a number would be another type
		v.SetString(text)
		if _, err := strconv.ParseFloat(text, 64); err == nil || slices.Contains([]string{"true", "false", "null", ""}, text) {
			v.Style = yaml.DoubleQuotedStyle
		}
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content[i+1] = v
			return
		}
	}
	k := new(yaml.Node)
	k.SetString(key)
	n.Content = append(n.Content, k, v)
}

// fill fills a document in.
func (b *submission) fill(doc *yaml.Node) {
	kind := at(doc, "kind").Value
	if b.namespace != "" && kind != "ClusterTrainingRuntime" {
		put(at(doc, "metadata"), "namespace", b.namespace)
	}
	switch kind {
	case "ConfigMap":
		data := at(doc, "data")
		put(data, "STAR_WORKERS", strconv.Itoa(b.workers))
		put(data, "STAR_SERVERS", strconv.Itoa(b.servers))
		if b.command != nil { // it brings its own
			drop(data, "STAR_MODEL")
			drop(data, "STAR_DATASET")
		}
		for _, v := range b.variables {
			put(data, v.name, v.value)
		}
	case "PodDisruptionBudget":
		least := b.servers
		if slices.ContainsFunc(b.variables, func(v variable) bool { return v.name == "STAR_REPLICAS" && v.value > "1" }) {
			least = max(1, b.servers-1)
		}
		put(at(doc, "spec"), "minAvailable", least)
	case "TrainJob":
		put(at(doc, "spec", "trainer"), "numNodes", b.workers)
	case "ClusterTrainingRuntime":
		put(at(doc, "spec", "mlPolicy"), "numNodes", b.workers)
	}
	b.walk(doc, "", "")
}

func drop(n *yaml.Node, key string) {
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content = slices.Delete(n.Content, i, i+2)
			return
		}
	}
}

// walk replaces names and images, and numbers of pods, everywhere in a document. key is the key of n, above that of its
// parent.
func (b *submission) walk(n *yaml.Node, above, key string) {
	switch {
	case n.Kind == yaml.ScalarNode:
		named := key == "name" && slices.Contains([]string{"metadata", "configMapRef", "secretRef", "runtimeRef"}, above)
		switch {
		case key == "image" && n.Value == "star":
			n.Value = b.image
		case key == "app.kubernetes.io/instance", key == "claimName", named && n.Value == "star":
			n.Value = b.name
		case (named || key == "subdomain" || key == "secretName") && strings.HasPrefix(n.Value, "star-"):
			n.Value = b.name + strings.TrimPrefix(n.Value, "star")
		case key == "value" && strings.HasPrefix(n.Value, "star-ps-0.star-ps:"):
			n.Value = strings.ReplaceAll(n.Value, "star-ps", b.name+"-ps")
		}
	case n.Kind == yaml.MappingNode:
		if pod := at(n, "template", "spec"); at(n, "completions") != nil {
			pods := b.servers
			if at(n, "template", "metadata", "labels", "app.kubernetes.io/component").Value == "worker" {
				pods = b.workers
				b.worker(pod)
			}
			put(n, "completions", pods)
			put(n, "parallelism", pods)
		}
		if key == "requests" && at(n, "cpu") != nil {
			put(n, "cpu", strconv.Itoa(b.cpus))
		}
		for i := 0; i < len(n.Content); i += 2 {
			b.walk(n.Content[i+1], key, n.Content[i].Value)
		}
	case n.Kind == yaml.SequenceNode:
		for _, c := range n.Content {
			b.walk(c, above, key)
		}
	}
}

// worker makes the pod of a worker that of a command, with an image of its own, into which an init container puts the
// program star.
func (b *submission) worker(pod *yaml.Node) {
	c := at(pod, "containers").Content[0]
	if b.gpus > 0 {
		put(at(c, "resources"), "limits", map[string]int{"nvidia.com/gpu": b.gpus})
	}
	if b.command == nil {
		return
	}
	mount := map[string]string{"name": "programs", "mountPath": "/programs"}
	put(pod, "initContainers", []map[string]any{{
		"name": "install", "image": b.image, "args": []string{"install", "/programs"}, "volumeMounts": []any{mount},
		"securityContext": map[string]any{"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": map[string]any{"drop": []string{"ALL"}}},
	}})
	put(c, "image", b.workerImage)
	put(c, "command", []string{"/programs/star"})
	put(c, "args", append([]string{"worker", "--"}, b.command...))
	add := func(list *yaml.Node, v any) {
		var n yaml.Node
		if err := n.Encode(v); err != nil {
			panic(err)
		}
		list.Content = append(list.Content, &n)
	}
	add(at(c, "volumeMounts"), mount)
	add(at(pod, "volumes"), map[string]any{"name": "programs", "emptyDir": map[string]any{}})
}
