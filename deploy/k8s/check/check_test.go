// Package check builds the kustomize bases of deploy/k8s and decodes what comes out into the types of the APIs,
// strictly: a field that is not theirs, or twice there, is an error. It is a module of its own, because programs of
// jobs need none of what it imports.
package check

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kinds are the types that manifests are of.
var kinds = map[string]func() any{
	"v1 ConfigMap":                                         func() any { return new(core.ConfigMap) },
	"v1 PersistentVolumeClaim":                             func() any { return new(core.PersistentVolumeClaim) },
	"v1 Service":                                           func() any { return new(core.Service) },
	"batch/v1 Job":                                         func() any { return new(batch.Job) },
	"networking.k8s.io/v1 NetworkPolicy":                   func() any { return new(networking.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":                        func() any { return new(policy.PodDisruptionBudget) },
	"jobset.x-k8s.io/v1alpha2 JobSet":                      func() any { return new(jobset.JobSet) },
	"trainer.kubeflow.org/v1alpha1 TrainJob":               func() any { return new(trainer.TrainJob) },
	"trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime": func() any { return new(trainer.ClusterTrainingRuntime) },
}

// decode is strict, and returns the pods that documents make, by their owner.
func decode(t *testing.T, text []byte) map[string]core.PodSpec {
	t.Helper()
	pods := map[string]core.PodSpec{}
	add := func(owner string, jobs []jobset.ReplicatedJob) {
		for _, j := range jobs {
			pods[owner+"/"+j.Name] = j.Template.Spec.Template.Spec
		}
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var about meta.TypeMeta
		if err := yaml.Unmarshal(doc, &about); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		kind := kinds[about.APIVersion+" "+about.Kind]
		if kind == nil {
			t.Errorf("what is %s %s?", about.APIVersion, about.Kind)
			continue
		}
		v := kind()
		asJSON, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			t.Errorf("%s: %v", about.Kind, err)
		}
		if strict, err := json.UnmarshalStrict(asJSON, v); err != nil || len(strict) > 0 { // as the API server does it
			t.Errorf("%s: %v %v", about.Kind, err, strict)
		}
		switch v := v.(type) {
		case *batch.Job:
			pods["job/"+v.Name] = v.Spec.Template.Spec
		case *jobset.JobSet:
			add("jobset", v.Spec.ReplicatedJobs)
		case *trainer.ClusterTrainingRuntime:
			add("runtime", v.Spec.Template.Spec.ReplicatedJobs)
		}
	}
	return pods
}

// sound looks at what types cannot say.
func sound(t *testing.T, pods map[string]core.PodSpec) {
	t.Helper()
	if len(pods) != 2 {
		t.Errorf("%d kinds of pods, want servers and workers", len(pods))
	}
	for name, p := range pods {
		c := p.Containers[0]
		volumes := map[string]bool{}
		for _, v := range p.Volumes {
			volumes[v.Name] = true
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which is not there", name, m.Name)
			}
		}
		ports := map[string]bool{}
		for _, o := range c.Ports {
			ports[o.Name] = true
		}
		for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && !ports[probe.HTTPGet.Port.StrVal] {
				t.Errorf("%s is probed at a port that it does not have: %v", name, probe.HTTPGet.Port)
			}
		}
		if !*p.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation {
			t.Errorf("%s may do more than it needs", name)
		}
		if *p.TerminationGracePeriodSeconds < 25 {
			t.Errorf("%s has %d s to save a checkpoint", name, *p.TerminationGracePeriodSeconds)
		}
	}
}

// base is what kustomize builds of one of them.
func base(t *testing.T, name string) []byte {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestBases(t *testing.T) {
	for _, name := range []string{"job", "jobset", "trainjob"} {
		t.Run(name, func(t *testing.T) { sound(t, decode(t, base(t, name))) })
	}
}

// deploy/k8s/sweep adds its init container to the pods of both jobs; workers are measured by server 0.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	overlay := fmt.Sprintf("resources: [%[1]s/job]\ncomponents: [%[1]s/sweep]\n", rel)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	pods := decode(t, text)
	sound(t, pods)
	for name, p := range pods {
		if len(p.InitContainers) != 1 {
			t.Fatalf("%s has %d init containers", name, len(p.InitContainers))
		}
		c := p.InitContainers[0]
		want := "[doctor --sweep --dir /tmp --state /out/sweep/$(NODE)]"
		if name == "job/star-worker" {
			want = "[doctor --sweep --dir /tmp --state /out/sweep/$(NODE) --to star-ps-0.star-ps:7070]"
		}
		if got := fmt.Sprint(c.Args); got != want || c.Image != p.Containers[0].Image {
			t.Errorf("%s: %s %s, want %s", name, c.Image, got, want)
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(p.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s mounts %s, which is not there", name, m.Name)
			}
		}
	}
}

// made is the folder that program has made.
var made string

// program builds star, once, where STAR does not name it.
var program = sync.OnceValues(func() (string, error) {
	if star := os.Getenv("STAR"); star != "" {
		return star, nil
	}
	var err error
	if made, err = os.MkdirTemp("", "check"); err != nil {
		return "", err
	}
	star := filepath.Join(made, "star")
	if out, err := exec.Command("go", "-C", "../../..", "build", "-o", star, "./cmd/star").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/star: %w\n%s", err, out)
	}
	return star, nil
})

// submitted is what star submit prints of a job with an image of its own.
func submitted(t *testing.T, kind string) []byte {
	t.Helper()
	star, err := program()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(star, "submit", "--engine", "k8s", "--kind", kind, "--name", "digits", "--namespace", "team", "--image", "registry.example/star:1",
		"--workers", "7", "--servers", "2", "--worker-image", "registry.example/torch:2", "lr=0.1", "--", "python", "train.py").Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(made)
	os.Exit(code)
}

// What star submit prints is of the same types. STAR is the program.
func TestSubmit(t *testing.T) {
	for _, kind := range []string{"job", "jobset"} {
		t.Run(kind, func(t *testing.T) {
			out := submitted(t, kind)
			pods := decode(t, out)
			sound(t, pods)
			for name, p := range pods {
				worker := strings.HasSuffix(name, "worker")
				image, init := "registry.example/star:1", 0
				if worker {
					image, init = "registry.example/torch:2", 1
				}
				if c := p.Containers[0]; c.Image != image || len(p.InitContainers) != init {
					t.Errorf("%s: image %s and %d init containers", name, c.Image, len(p.InitContainers))
				}
				if command := fmt.Sprint(p.Containers[0].Command, p.Containers[0].Args); worker && command != "[/programs/star] [worker -- python train.py]" {
					t.Errorf("%s: command %s", name, command)
				}
				if !slices.ContainsFunc(p.Containers[0].EnvFrom, func(e core.EnvFromSource) bool { return e.ConfigMapRef != nil && e.ConfigMapRef.Name == "digits" }) {
					t.Errorf("%s does not have the settings of digits", name)
				}
			}
			if !strings.Contains(string(out), `STAR_LR: "0.1"`) || !strings.Contains(string(out), `STAR_WORKERS: "7"`) {
				t.Errorf("settings are missing:\n%s", out)
			}
		})
	}
}
