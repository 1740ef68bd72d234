package sched

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"star/deploy"
	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
)

// submit runs star submit in this process.
func submit(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := submitCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// documents of a text, without what says nothing of them.
func documents(t *testing.T, text string) (docs []map[string]any) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var v map[string]any
		if err := d.Decode(&v); err == io.EOF {
			return docs
		} else if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		docs = append(docs, v)
	}
}

// Without flags it is what lies in deploy.
func TestSubmitPlain(t *testing.T) {
	for kind, files := range map[string][]string{"job": {"job/job"}, "jobset": {"jobset/jobset"}, "trainjob": {"trainjob/runtime", "trainjob/trainjob"}} {
		var want []map[string]any
		for _, name := range append([]string{"common/common"}, files...) {
			b, err := deploy.Files.ReadFile("k8s/" + name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, documents(t, string(b))...)
		}
		out, err := submit(t, "--engine", "k8s", "--kind", kind)
		if err != nil {
			t.Fatal(err)
		}
		got := documents(t, out)
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("%s: document %d is not that of deploy/k8s\n%s", kind, i, out)
				break
			}
		}
	}
	b, err := deploy.Files.ReadFile("slurm/star.sbatch")
	if err != nil {
		t.Fatal(err)
	}
	out, err := submit(t, "--engine", "slurm", "--nodes", "1")
	if want := strings.Replace(string(b), "\nservers=", "\nexport STAR_SERVERS=1\n\nservers=", 1); err != nil || out != want {
		t.Errorf("%v: the script is not that of deploy/slurm:\n%s", err, out)
	}
}

// A name that is given leaves nothing of the name that files have, so that two jobs are strangers.
func TestSubmitName(t *testing.T) {
	for _, kind := range []string{"job", "jobset", "trainjob"} {
		out, err := submit(t, "--kind", kind, "--name", "digits", "--namespace", "team", "--image", "registry.example/of-star:1")
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range documents(t, out) {
			about := doc["metadata"].(map[string]any)
			if name := about["name"]; name != "digits" && name != "digits-ps" && name != "digits-worker" {
				t.Errorf("%s: a %s is called %v", kind, doc["kind"], name)
			}
			if (about["namespace"] == "team") == (doc["kind"] == "ClusterTrainingRuntime") {
				t.Errorf("%s: a %s is in namespace %v", kind, doc["kind"], about["namespace"])
			}
		}
		for _, old := range []string{"instance: star", "claimName: star", "secretName: star", "Ref: {name: star}", "star-ps", "image: star"} {
			if strings.Contains(out, old) {
				t.Errorf("%s: there is still %q\n%s", kind, old, out)
			}
		}
	}
}

// Numbers of processes, resources, settings and a command come where they belong.
func TestSubmitFilled(t *testing.T) {
	for _, kind := range []string{"job", "jobset", "trainjob"} {
		out, err := submit(t, "--kind", kind, "--workers", "7", "--servers", "3", "--cpus", "5", "--gpus", "2", "--worker-image", "torch:2", "replicas=2", "mode=groups=0,1/2", "--", "python", "-u", "train.py")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{"parallelism: 7": 1, "completions: 7": 1, "parallelism: 3": 1, "completions: 3": 1, "nvidia.com/gpu: 2": 1, `cpu: "5"`: 2, "minAvailable: 2": 1,
			`STAR_WORKERS: "7"`: 1, `STAR_SERVERS: "3"`: 1, `STAR_REPLICAS: "2"`: 1, "STAR_MODE: groups=0,1/2": 1, "STAR_MODEL": 0, "image: torch:2": 1, "- install": 1, "- train.py": 1}
		if kind == "trainjob" {
			want["numNodes: 7"] = 2
		}
		for text, n := range want {
			if got := strings.Count(out, text); got != n {
				t.Errorf("%s: %q is there %d times, want %d\n%s", kind, text, got, n, out)
			}
		}
	}
	out, err := submit(t, "--engine", "slurm", "--name", "digits", "--workers", "7", "--servers", "3", "--nodes", "2", "--cpus", "5", "--gpus", "2", "--time", "2-0", "mode=groups=0,1/2", "--", "python", "it's $HOME")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"#SBATCH --job-name=digits", "#SBATCH --nodes=2", "#SBATCH --ntasks=7", "#SBATCH --cpus-per-task=5", "#SBATCH --gpus-per-task=2", "#SBATCH --time=2-0",
		"export STAR_SERVERS=3", "export STAR_MODE='groups=0,1/2'", `set -- 'python' 'it'\''s $HOME'`} {
		if strings.Count(out, "\n"+line+"\n") != 1 {
			t.Errorf("not once: %s\n%s", line, out)
		}
	}
	options := strings.LastIndex(out, "#SBATCH")
	if first := strings.Index(out, "\nexport"); first < options {
		t.Error("an option stands behind a command, where Slurm does not look")
	}
}

func TestSubmitRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"modle=lenet"}, "modle=lenet: there is no setting STAR_MODLE; did you mean STAR_MODEL?"},
		{[]string{"zzzzzzzz=1"}, "there is no setting STAR_ZZZZZZZZ; docs/configure.md"},
		{[]string{"lr=quick"}, "STAR_LR"},
		{[]string{"train.py"}, "SETTING=VALUE"},
		{[]string{"workers=3"}, "--workers"[2:]},
		{[]string{"--workers", "0"}, "at least 1"},
		{[]string{"--name", "Digits"}, "lower-case"},
		{[]string{"--engine", "nomad"}, "k8s"},
		{[]string{"--", "python"}, "--worker-image"},
		{[]string{"--worker-image", "torch:2"}, "command"},
	} {
		out, err := submit(t, c.args...)
		if err == nil || job.ExitCode(err) != exitcode.Usage || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want a usage error with %q\n%s", c.args, err, c.says, out)
		}
	}
}

// --apply gives the same text to the engine's own program.
func TestSubmitApply(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"kubectl", "sbatch"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho \"$@\"; cat\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for engine, first := range map[string]string{"k8s": "apply -f -\n", "slurm": "\n"} {
		shown, err := submit(t, "--engine", engine)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := submit(t, "--engine", engine, "--apply"); err != nil || got != first+shown {
			t.Errorf("%s: %v: %s", engine, err, got)
		}
	}
	t.Setenv("PATH", t.TempDir())
	for engine, program := range map[string]string{"k8s": "kubectl", "slurm": "sbatch"} {
		if _, err := submit(t, "--engine", engine, "--apply"); job.ExitCode(err) != exitcode.Lost || !strings.Contains(err.Error(), program) {
			t.Errorf("without %s: %v", program, err)
		}
	}
}

// Variables in the files are settings, and exit codes that end a job there are those that happen again.
func TestDeployFiles(t *testing.T) {
	j := new(settings.Job)
	j.Bind(&cobra.Command{}, settings.ForServer)
	var known []string
	for _, name := range j.Config.Names() {
		known = append(known, "STAR_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
	}
	known = append(known, "STAR_CONFIG", "STAR_LAUNCH") // no settings
	err := fs.WalkDir(deploy.Files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := deploy.Files.ReadFile(path)
		for _, name := range regexp.MustCompile(`STAR_[A-Z_]*[A-Z]`).FindAllString(string(text), -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s: there is no setting %s", path, name)
			}
		}
		for _, list := range regexp.MustCompile(`values: \[(.*)\]`).FindAllStringSubmatch(string(text), -1) {
			var codes []int
			for word := range strings.SplitSeq(list[1], ", ") {
				n, err := strconv.Atoi(word)
				if err != nil {
					t.Error(err)
				}
				codes = append(codes, n)
			}
			if want := []int{exitcode.Usage, exitcode.Corrupt, exitcode.Missing, exitcode.Refused, exitcode.Disagree}; !slices.Equal(codes, want) {
				t.Errorf("%s: exit codes %v end the job, want %v", path, codes, want)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		script, err := submit(t, "--engine", "slurm", "--", "a b")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bash, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
