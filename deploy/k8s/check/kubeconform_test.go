package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/yaml"
)

// schemas are those that Kubernetes, JobSet and Trainer publish of their types, closed, so that a field that they do
// not name is an error. A folder of files for kubeconform.
func schemas(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(group, version, kind string, schema any) {
		b, err := json.Marshal(schema)
		if err == nil {
			name := version
			if first, _, _ := strings.Cut(group, "."); first != "" {
				name = first + "-" + version
			}
			err = os.WriteFile(filepath.Join(dir, strings.ToLower(kind)+"-"+name+".json"), b, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(module, name string, into any) {
		b, err := os.ReadFile(filepath.Join(source(t, module), filepath.FromSlash(name)))
		if err == nil {
			err = yaml.Unmarshal(b, into) // JSON, too
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	var published struct{ Definitions map[string]map[string]any }
	read("k8s.io/kubernetes@v1.33.4", "api/openapi-spec/swagger.json", &published)
	for _, d := range published.Definitions {
		closed(d)
	}
	published.Definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = map[string]any{"type": []string{"string", "integer"}}
	for name, d := range published.Definitions {
		of, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(of) != 1 {
			continue
		}
		about := of[0].(map[string]any)
		if key := strings.TrimPrefix(fmt.Sprintf("%s/%s %s", about["group"], about["version"], about["kind"]), "/"); kinds[key] != nil {
			write(about["group"].(string), about["version"].(string), about["kind"].(string), map[string]any{"$ref": "#/definitions/" + name, "definitions": published.Definitions})
		}
	}
	for _, crd := range [][2]string{
		{"sigs.k8s.io/jobset", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"},
		{"github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"},
		{"github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml"},
	} {
		var c struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		read(crd[0], crd[1], &c)
		for _, v := range c.Spec.Versions {
			closed(v.Schema.OpenAPIV3Schema)
			if m, ok := v.Schema.OpenAPIV3Schema["properties"].(map[string]any); ok {
				m["metadata"] = map[string]any{"type": "object"} // which the CRD leaves to the API server
			}
			write(c.Spec.Group, v.Name, c.Spec.Names.Kind, v.Schema.OpenAPIV3Schema)
		}
	}
	return dir
}

// source is the folder of a module: of the version that go.mod names, or MODULE@VERSION.
func source(t *testing.T, module string) string {
	t.Helper()
	args := []string{"list", "-m", "-f", "{{.Dir}}", module}
	if strings.Contains(module, "@") {
		args = []string{"mod", "download", "-json", module}
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	var m struct{ Dir string }
	if json.Unmarshal(out, &m) != nil {
		m.Dir = strings.TrimSpace(string(out))
	}
	return m.Dir
}

// closed lets no object have fields that its schema does not name.
func closed(schema map[string]any) {
	_, named := schema["properties"]
	if _, said := schema["additionalProperties"]; named && !said && schema["x-kubernetes-preserve-unknown-fields"] != true {
		schema["additionalProperties"] = false
	}
	for _, v := range schema {
		switch v := v.(type) {
		case map[string]any:
			closed(v)
		case []any:
			for _, w := range v {
				if m, ok := w.(map[string]any); ok {
					closed(m)
				}
			}
		}
	}
}

// kubeconform in strict mode takes the bases, and what star submit prints.
func TestKubeconform(t *testing.T) {
	dir := schemas(t)
	v, err := validator.New([]string{dir + "/{{.ResourceKind}}{{.KindSuffix}}.json"}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, text []byte) (n int) {
		for _, r := range v.Validate(name, io.NopCloser(bytes.NewReader(text))) {
			switch r.Status {
			case validator.Valid:
				n++
			case validator.Empty:
			default:
				t.Errorf("%s: %v %v", name, r.Err, r.ValidationErrors)
			}
		}
		return n
	}
	for _, kind := range []string{"job", "jobset", "trainjob"} {
		want := map[string]int{"job": 7, "jobset": 5, "trainjob": 6}[kind]
		if n := check(kind, base(t, kind)); n != want {
			t.Errorf("%s: %d objects, want %d", kind, n, want)
		}
		if n := check("star submit --kind "+kind, submitted(t, kind)); n != want {
			t.Errorf("star submit --kind %s: %d objects, want %d", kind, n, want)
		}
	}
	for _, wrong := range []string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, dada: {}}",
		"{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {template: {spec: {containers: [{name: x, imagee: y}]}}}}",
		"{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: x}, spec: {replicatedJob: []}}",
	} {
		if r := v.Validate("wrong", io.NopCloser(strings.NewReader(wrong))); r[0].Status != validator.Invalid {
			t.Errorf("%s: %v", wrong, r[0].Err)
		}
	}
}
