package sched

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	ossignal "os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"star/cmd/internal/cli"
	"star/deploy"
	"star/internal/exitcode"
	"star/sched/live"
	"star/sched/service"
)

// A worker of star sched serve in Kubernetes is a pod, with the template of deploy/k8s/job, and a process of the
// service that applies it, waits for its end, and ends as it does: so the service, which knows processes, needs to know
// nothing of pods.

// podVariable has this program be the process of a pod: its value is what to apply, as JSON.
const podVariable = "STAR_SCHED_POD"

// podEvery is how often a pod is looked at.
var podEvery = time.Second

// podBegins is how long a pod may wait for a node, or for its image, before the service gets an error and retries
// later. A cluster that adds nodes for waiting pods does so within some seconds, and keeps the node for the next one.
var podBegins = 2 * time.Minute

// kubernetes has workers be pods. There is one host, with as many places as are given: Kubernetes finds the nodes.
func (e *schedEngine) kubernetes(o *service.Options, places int) error {
	if _, err := exec.LookPath("kubectl"); err != nil {
		return cli.Unavailable{Err: fmt.Errorf("--engine k8s: %w: start the service where kubectl is", err)}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Hosts = []*live.Host{{Name: "kubernetes", Slots: places}}
	o.Environ = schedEnviron()
	o.Command = func(name, _ string, _ int, env, own []string) (*exec.Cmd, []byte, error) {
		text, err := e.pod(name, env, own)
		if err != nil {
			return nil, nil, err
		}
		cmd := exec.Command(self)
		cmd.Env = append(slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "STAR_") }), podVariable+"="+text)
		return cmd, nil, nil
	}
	o.Kill = func(name string) error {
		_, err := kubectl(e.namespace, nil, "delete", "pod/"+name, "secret/"+name, "--grace-period=0", "--force", "--ignore-not-found", "--wait=false")
		return err
	}
	return nil
}

// pod is what to apply for a worker: its settings, as a Secret, because the token is one, and the pod. Its labels are
// those of the job: a pod's name may be longer than a label.
func (e *schedEngine) pod(name string, env, own []string) (string, error) {
	job := name
	if i := strings.LastIndex(name, "-worker-"); i >= 0 {
		job = name[:i]
	}
	b := submission{engine: "k8s", kind: "job", name: job, image: e.image, workerImage: cmp.Or(e.workerImage, e.image), workers: 1, servers: 1, cpus: e.cpus, gpus: e.gpus, command: own}
	text, err := deploy.Files.ReadFile("k8s/job/job.yaml")
	if err != nil {
		return "", err
	}
	var template *yaml.Node
	for d := yaml.NewDecoder(bytes.NewReader(text)); template == nil; {
		var doc yaml.Node
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return "", errors.New("deploy/k8s/job/job.yaml: no template of a worker")
		} else if err != nil {
			return "", err
		}
		n := at(doc.Content[0], "spec", "template")
		if c := at(n, "metadata", "labels", "app.kubernetes.io/component"); c != nil && c.Value == "worker" {
			b.fill(doc.Content[0])
			template = n
		}
	}
	settings := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, "STAR_") {
			settings[name] = value
		}
	}
	// of the service's machine
	for _, name := range []string{"STAR_HOST_ID", "STAR_CHECKPOINT", "STAR_RESUME", "STAR_DATA", cli.AgentVariable} {
		delete(settings, name)
	}
	settings["STAR_OUT"], settings["STAR_HTTP"], settings["STAR_LISTEN"] = "/out", ":7071", ":7070"
	pod := at(template, "spec")
	c := at(pod, "containers").Content[0]
	drop(c, "env")
	put(c, "envFrom", []any{map[string]any{"secretRef": map[string]string{"name": name}}})
	for _, v := range at(pod, "volumes").Content {
		if at(v, "name").Value == "out" {
			drop(v, "persistentVolumeClaim")
			put(v, "emptyDir", map[string]any{})
		}
	}
	var meta, spec map[string]any
	if err := errors.Join(at(template, "metadata").Decode(&meta), pod.Decode(&spec)); err != nil {
		return "", err
	}
	meta["name"] = name
	secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "labels": meta["labels"]}, "stringData": settings}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{secret, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}}}
	out, err := json.Marshal(map[string]any{"name": name, "namespace": e.namespace, "apply": list})
	return string(out), err
}

// kubectl runs a command of it.
func kubectl(namespace string, input []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTime)
	defer cancel()
	if namespace != "" {
		args = append([]string{"--namespace=" + namespace}, args...)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return out, err
}

// KeepPod is what the process of a pod does. It does not return in one; elsewhere at once.
func KeepPod() {
	text := os.Getenv(podVariable)
	if text == "" {
		return
	}
	var p struct {
		Name, Namespace string
		Apply           json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitcode.Usage)
	}
	told := make(chan os.Signal, 1)
	ossignal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	os.Exit(followPod(p.Name, p.Namespace, p.Apply, told, os.Stderr))
}

// podStatus has the used fields of kubectl's description of a pod.
type podStatus struct {
	Status struct {
		Phase, Reason, Message string
		Conditions             []struct{ Type, Status, Reason, Message string }
		ContainerStatuses      []container
		InitContainerStatuses  []container
	}
}

type container struct {
	State struct {
		Waiting    *struct{ Reason, Message string }
		Terminated *struct{ ExitCode int }
	}
}

// waits is what a pod waits for that may never become available: a node, an image; empty: nothing of that kind.
func (p *podStatus) waits() string {
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			return strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return ""
}

// followPod applies a pod, deletes it on a signal from told, and returns the exit code of its container when that has
// ended; 143 and 137 if it is gone, with and without a signal, 69 if it does not begin.
func followPod(name, namespace string, apply []byte, told <-chan os.Signal, says io.Writer) int {
	if _, err := kubectl(namespace, apply, "apply", "-f", "-"); err != nil {
		fmt.Fprintln(says, err)
		return exitcode.Failure
	}
	defer kubectl(namespace, nil, "delete", "pod/"+name, "secret/"+name, "--ignore-not-found", "--wait=false")
	gone, last := 128+int(syscall.SIGKILL), ""
	say := func(what string) { // once
		if what != last {
			last = what
			fmt.Fprintln(says, what)
		}
	}
	began := time.Now()
	tick := time.NewTicker(podEvery)
	defer tick.Stop()
	for {
		select {
		case <-told: // Kubernetes tells it to end, and waits for its grace
			gone = 128 + int(syscall.SIGTERM)
			if _, err := kubectl(namespace, nil, "delete", "pod/"+name, "--ignore-not-found", "--wait=false"); err != nil {
				fmt.Fprintln(says, err)
			}
			continue
		case <-tick.C:
		}
		out, err := kubectl(namespace, nil, "get", "pod", name, "--ignore-not-found", "-o", "json")
		if err != nil { // the pod continues without it
			say(err.Error())
			continue
		}
		if len(bytes.TrimSpace(out)) == 0 {
			return gone
		}
		var p podStatus
		if err := json.Unmarshal(out, &p); err != nil {
			fmt.Fprintln(says, err)
			continue
		}
		if p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			if why := p.waits(); why == "" {
				began = time.Now()
			} else if say(why); time.Since(began) > podBegins {
				say("the pod has not begun for " + podBegins.String() + ": " + why)
				return exitcode.Lost
			}
			continue
		}
		if log, err := kubectl(namespace, nil, "logs", name, "--tail=50"); err == nil {
			says.Write(log)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Terminated != nil {
				return c.State.Terminated.ExitCode
			}
		}
		fmt.Fprintln(says, p.Status.Reason, p.Status.Message)
		return gone
	}
}
