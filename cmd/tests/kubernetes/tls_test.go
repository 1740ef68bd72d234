package kubernetes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// Jobs with one certificate for all pods, and a token: two servers with a tree of workers, and a ring. A worker without
// the certificate is refused, and pods that have it reach each other by addresses that were unknown when it was made.
func (c *cluster) testTLS(t *testing.T) {
	certs := []string{"tls-cert=/tls/tls.crt", "tls-key=/tls/tls.key", "tls-ca=/tls/ca.crt"}
	j := c.secured(t, "secured", append(append([]string{"--servers", "2", "--workers", "3"}, small...), certs...)...)
	at := j.submit(t, forever, "mode=tree=0(1(2))")
	j.comes(t, at, "fire", -1, 20)
	j.run(t, "apply", "-f", j.write(t, "stranger.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  restartPolicy: Never
  containers:
    - name: star
      image: star:test
      args: [worker, --rank, "0"]
      env:
        - {name: STAR_COORDINATOR, value: "%[1]s-ps-0.%[1]s-ps:7070"}
        - {name: STAR_MODEL, value: softmax}
        - {name: STAR_DATASET, value: "digits:n=2000,test=100"}
        - {name: STAR_JOIN_TIMEOUT, value: 10m}
      envFrom: [{secretRef: {name: %[1]s}}]
`, j.name)))
	j.exited(t, "stranger", "77")
	if said := j.run(t, "logs", "stranger"); !strings.Contains(said, "the server wants TLS") {
		t.Errorf("a worker without a certificate hears something else:\n%s", said)
	}
	pod, _ := j.pod(t, "secured-ps-0")
	j.run(t, "exec", pod, "--", "star", "ctl", "stop")
	j.condition(t, "job/secured-ps", "Complete")
	j.condition(t, "job/secured-worker", "Complete")
	j.trained(t, 0)

	j = c.secured(t, "circle", append(append([]string{"--workers", "3"}, small...), certs...)...)
	j.submit(t, "arch=allreduce", "samples=2000")
	j.condition(t, "job/circle-ps", "Complete")
	j.condition(t, "job/circle-worker", "Complete")
	j.trained(t, 2000)
}

// secured is a job with certificates of its name, as docs/deploy.md makes them.
func (c *cluster) secured(t *testing.T, name string, args ...string) *job {
	t.Helper()
	dir := filepath.Join(c.dir, "certs")
	if out, err := exec.Command(jobtest.Star(t), "certs", dir, name).CombinedOutput(); err != nil {
		t.Fatalf("star certs: %v\n%s", err, out)
	}
	c.run(t, "create", "secret", "generic", name+"-tls", "--from-file=tls.crt="+filepath.Join(dir, name+".pem"), "--from-file=tls.key="+filepath.Join(dir, name+".key"), "--from-file=ca.crt="+filepath.Join(dir, "ca.pem"))
	return c.job(t, name, args...)
}
