package kubernetes

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// torch is the image of a user of PyTorch: Python and PyTorch as Debian packs them, star_train as make wheel does, and
// scripts of examples/pytorch. One node gets it, and is the only one for pods until the test ends: it is large.
func (c *cluster) torch(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("/usr/bin/python3", "-c", "import torch, numpy").CombinedOutput(); err != nil {
		t.Skipf("needs PyTorch (Debian: python3-torch): %v\n%s", err, out)
	}
	c.run(t, "cordon", "node-2", "node-3")
	t.Cleanup(func() { c.kubectl("uncordon", "node-2", "node-3") })
	if c.hasTorch {
		return
	}
	root := must(filepath.Abs("../../.."))(t)
	c.sh(t, `
packages=/usr/lib/python3/dist-packages
libraries=$(find /usr/lib/python3*/lib-dynload $packages/torch $packages/numpy -name '*.so' -exec ldd /usr/bin/python3 {} + 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | grep -v ^$packages | sort -u)
mkdir `+c.dir+`/torch
cd `+c.dir+`/torch
tar -chf layer.tar --exclude=__pycache__ --exclude=$packages/torch/include --exclude=$packages/torch/test --exclude='libcaffe2_*.so' \
	/usr/bin/python3 /usr/lib/python3.* $packages/torch $packages/numpy $packages/typing_extensions.py $packages/astunparse $packages/six.py /lib64/ld-* $libraries
tar -rhf layer.tar -C `+root+`/python --transform 's,^,usr/lib/python3/dist-packages/,' star_train
tar -rhf layer.tar -C `+root+`/examples/pytorch --transform 's,^,app/,' mnist.py resnet.py
printf '{"architecture": "%s", "os": "linux", "config": {"WorkingDir": "/app", "Env": ["PATH=/usr/bin"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
	$(dpkg --print-architecture) $(sha256sum layer.tar | cut -d ' ' -f 1) > config.json
printf '[{"Config": "config.json", "RepoTags": ["docker.io/library/torch:test"], "Layers": ["layer.tar"]}]' > manifest.json
tar -c layer.tar config.json manifest.json | ctr --address /run/containerd-1/containerd.sock --namespace k8s.io images import -
rm -r `+c.dir+`/torch`)
	c.hasTorch = true
}

// Two Jobs with a script of PyTorch as their workers, in an image that knows nothing of STAR but star_train: a ring.
func (c *cluster) testTorch(t *testing.T) {
	c.torch(t)
	j := c.job(t, "torch", "--workers", "2", "--worker-image", "torch:test", "arch=allreduce", "--", "python3", "mnist.py", "--count", "640", "--epochs", "2", "--batch-size", "32")
	j.submit(t)
	j.condition(t, "job/torch-ps", "Complete")
	j.condition(t, "job/torch-worker", "Complete")
	j.trained(t, 2*640)
	said := j.run(t, "logs", "--selector=batch.kubernetes.io/job-completion-index=0,app.kubernetes.io/component=worker,app.kubernetes.io/instance=torch", "--container=star", "--tail=-1")
	if !strings.Contains(said, "\naccuracy ") {
		t.Errorf("worker 0 has not said how good its model is:\n%s", said)
	}
}

// Two Jobs with a script that fails after its loop, when the servers have ended: it is started again, finds that the
// job is over, and is done.
func (c *cluster) testLate(t *testing.T) {
	c.torch(t)
	j := c.job(t, "late", "--workers", "2", "--worker-image", "torch:test", "arch=allreduce", "--", "python3", "-c",
		`import runpy, sys; sys.argv = ["mnist.py", "--count=128", "--epochs=1"]; runpy.run_path("mnist.py", run_name="__main__"); sys.exit("this model cannot be written")`)
	j.submit(t)
	j.condition(t, "job/late-ps", "Complete")
	j.condition(t, "job/late-worker", "Complete")
	j.trained(t, 128)
	if failed := j.run(t, "get", "job", "late-worker", "-o", "jsonpath={.status.failed}"); failed == "" || failed == "0" {
		t.Error("no worker has failed")
	}
}

// The controller of Kubeflow Trainer makes a JobSet of a TrainJob: a server, and a script of PyTorch as the trainer's
// nodes.
func (c *cluster) testTrainer(t *testing.T) {
	c.torch(t)
	c.trainer(t)
	j := c.job(t, "trained", "--kind", "trainjob", "--workers", "2", "--worker-image", "torch:test", "--", "python3", "resnet.py", "--count", "320", "--epochs", "2", "--blocks", "1", "--width", "4")
	j.submit(t)
	j.condition(t, "trainjob/trained", "Complete")
	j.trained(t, 2*320)
	if owner := j.run(t, "get", "jobset", "trained", "-o", "jsonpath={.metadata.ownerReferences[0].kind}"); owner != "TrainJob" {
		t.Errorf("the JobSet is one of %q", owner)
	}
	j.run(t, "delete", "trainjob", "trained")
}

// trainer starts the controller of Kubeflow Trainer, which ends with the test. Its webhooks are asked where it is, as
// those of JobSet.
func (c *cluster) trainer(t *testing.T) {
	t.Helper()
	c.types(t)
	for name, text := range map[string]string{
		"trainer/k8s-webhook-server/serving-certs/tls.crt": c.certificate, "trainer/k8s-webhook-server/serving-certs/tls.key": c.key,
		"trainer.yaml": `apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
certManagement: {enable: false}
webhook: {port: 9444, host: 127.0.0.1}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: "127.0.0.1:9082"}
`,
	} {
		c.write(t, name, text)
	}
	c.daemon(t, "trainer", "/usr/bin/env", "TMPDIR="+c.dir+"/trainer", c.programs+"/trainer-controller-manager", "--config", c.dir+"/trainer.yaml")
	c.answers(t, "http://127.0.0.1:9082/readyz")
	c.run(t, "apply", "-f", c.webhooks(t, "trainer-webhooks.yaml", c.programs+"/trainer-manifests/webhook/manifests.yaml", 9444))
}

// answers waits until a page can be read.
func (c *cluster) answers(t *testing.T, url string) {
	t.Helper()
	c.until(t, url+" answers", func() bool {
		r, err := http.Get(url)
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}
