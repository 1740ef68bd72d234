package kubernetes

import (
	"path/filepath"
	"testing"

	"star/cmd/tests/jobtest"
)

// testManifests has the API server take the bases, and what star submit prints, strictly, without making anything of
// them.
func (c *cluster) testManifests(t *testing.T) {
	c.types(t)
	for _, kind := range []string{"job", "jobset", "trainjob"} {
		base := c.run(t, "kustomize", "../../../deploy/k8s/"+kind)
		filled, err := c.try(jobtest.Star(t), "submit", "--engine", "k8s", "--kind", kind, "--name", "mine", "--servers", "3", "--workers", "8", "--image", "registry.example/star:1",
			"--worker-image", "registry.example/torch:2", "--gpus", "1", "replicas=2", "--", "python", "train.py")
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{kind: base, "submitted-" + kind: filled} {
			c.run(t, "apply", "--dry-run=server", "--validate=strict", "-f", c.write(t, filepath.Join("manifests", name+".yaml"), text))
		}
	}
}

// types has the API server know those of Kubeflow Trainer.
func (c *cluster) types(t *testing.T) {
	t.Helper()
	c.run(t, "apply", "--server-side", "-k", c.programs+"/trainer-manifests/crds")
	c.until(t, "the types of Trainer are there", func() bool { // wait fails where there is no status yet
		_, err := c.kubectl("wait", "--for=condition=Established", "crd/trainjobs.trainer.kubeflow.org", "crd/clustertrainingruntimes.trainer.kubeflow.org")
		return err == nil
	})
}
