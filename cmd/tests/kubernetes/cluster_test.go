package kubernetes

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// nodes of the cluster.
const nodes = 3

// inside is the folder of the cluster, in a process that is in namespaces of its own.
const inside = "STAR_TEST_NAMESPACES"

// isolate runs a test again, in network, mount and process namespaces of its own: nothing of the cluster outlives it,
// and this host sees none of its addresses and mounts. It returns true there.
func isolate(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	if os.Getenv("TEST_KUBERNETES") == "" {
		lacks(t, "needs Kubernetes, which make e2e-k8s builds: TEST_KUBERNETES is not set")
	}
	if os.Getuid() != 0 {
		lacks(t, "nodes need root")
	}
	for _, name := range []string{"containerd", "runc", "ip", "unshare", "/usr/lib/cni/bridge"} {
		if _, err := exec.LookPath(name); err != nil {
			lacks(t, "needs containerd, runc and CNI's plugins (Debian: containerd containernetworking-plugins iproute2): %v", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "k8s") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir) // empty: what is mounted there is gone with the namespaces
	only := "^" + t.Name() + "$"
	if told := flag.Lookup("test.run").Value.String(); strings.Contains(told, "/") { // some parts
		only = told
	}
	args := []string{"--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", `"$@"; exit $?`, "sh", self, "-test.run", only, "-test.count", "1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command("unshare", args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), inside+"="+dir), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("in namespaces of its own: %v", err)
	}
	return false
}

// cluster is a Kubernetes of its own on this host: etcd, the control plane, CoreDNS, the controller of JobSet, and for
// each node a containerd and a kubelet.
type cluster struct {
	dir, programs    string
	certificate, key string // of the webhooks
	hasTorch         bool   // node-1 has PyTorch's image
}

// start starts a cluster, which ends with the test.
func start(t *testing.T) *cluster {
	t.Helper()
	dir := os.Getenv(inside)
	c := &cluster{dir: dir, programs: os.Getenv("TEST_KUBERNETES")}
	// All of it in memory: etcd and containerd wait for a disk very often.
	c.sh(t, `mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs `+dir+`
for d in /run /var/log /var/lib/cni /var/lib/kubelet; do mkdir -p $d; mount -t tmpfs tmpfs $d; done
ip link set lo up
ip link add pods type bridge
ip addr add 10.89.0.1/16 dev pods
ip link set pods up`)
	c.tunables(t)
	certs := jobtest.Certificates(t) // --tls-cert FILE --tls-key FILE …
	c.certificate, c.key = string(must(os.ReadFile(certs[1]))(t)), string(must(os.ReadFile(certs[3]))(t))
	for name, text := range map[string]string{
		"tls.crt": c.certificate, "tls.key": c.key, "tokens": "secret,admin,admin,system:masters\n",
		"kubeconfig": `{apiVersion: v1, kind: Config, current-context: e2e, contexts: [{name: e2e, context: {cluster: e2e, user: admin}}],
 clusters: [{name: e2e, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}], users: [{name: admin, user: {token: secret}}]}`,
		"Corefile": ".:53 {\n bind 10.89.0.1\n errors\n cache 30\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  kubeconfig " + dir + "/kubeconfig\n  pods insecure\n }\n}\n",
		// Not in braces, which would be read as JSON.
		"jobset.yaml": `apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
featureGates: {ElasticJobSet: true}
webhook: {port: 9443, host: 127.0.0.1, certDir: ` + dir + `}
metrics: {bindAddress: "0", certDir: ` + dir + `}
health: {healthProbeBindAddress: "127.0.0.1:9081"}
`,
	} {
		c.write(t, name, text)
	}
	c.write(t, "kubectl", "#!/bin/sh\nexec "+c.programs+"/kubernetes kubectl \"$@\"\n")
	if err := os.Chmod(filepath.Join(dir, "kubectl"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", dir+"/kubeconfig")

	c.daemon(t, "etcd", "kubernetes", "etcd", "--data-dir", dir+"/etcd", "--unsafe-no-fsync", "--log-level", "warn")
	c.daemon(t, "apiserver", "kubernetes", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--advertise-address=10.89.0.1", "--cert-dir="+dir+"/certs",
		"--token-auth-file="+dir+"/tokens", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+dir+"/tls.key", "--service-account-signing-key-file="+dir+"/tls.key", "--kubelet-preferred-address-types=InternalIP")
	c.until(t, "the API server is ready", func() bool { out, _ := c.kubectl("get", "--raw", "/readyz"); return out == "ok" })
	c.daemon(t, "controllers", "kubernetes", "kube-controller-manager", "--kubeconfig="+dir+"/kubeconfig", "--service-account-private-key-file="+dir+"/tls.key", "--leader-elect=false",
		"--bind-address=127.0.0.1", "--cert-dir="+dir+"/certs-c")
	c.daemon(t, "scheduler", "kubernetes", "kube-scheduler", "--kubeconfig="+dir+"/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir="+dir+"/certs-s")
	c.daemon(t, "dns", "coredns", "-conf", dir+"/Corefile")
	c.jobset(t)
	star, pause := c.images(t)
	for i := range nodes {
		c.node(t, i+1, star, pause)
	}
	c.until(t, "nodes are ready", func() bool {
		out, _ := c.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}")
		return out == strings.TrimSpace(strings.Repeat("True ", nodes))
	})
	c.until(t, "pods may be made", func() bool { _, err := c.kubectl("get", "serviceaccount", "default"); return err == nil })
	return c
}

// jobset starts the controller of JobSet. Its webhooks are called where it runs: on this host, not in a pod.
func (c *cluster) jobset(t *testing.T) {
	t.Helper()
	c.run(t, "apply", "--server-side", "-f", c.programs+"/jobset-config/components/crd/bases")
	c.daemon(t, "jobset", "jobset", "--config", c.dir+"/jobset.yaml", "--zap-log-level=info")
	c.answers(t, "http://127.0.0.1:9081/readyz")
	c.run(t, "apply", "-f", c.webhooks(t, "jobset-webhooks.yaml", c.programs+"/jobset-config/components/webhook/manifests.yaml", 9443))
}

// webhooks are those of a controller, asked at a port of this host in place of a service.
func (c *cluster) webhooks(t *testing.T, name, path string, port int) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const service = "    service:\n      name: webhook-service\n      namespace: system\n      path: "
	text := strings.ReplaceAll(string(b), service, fmt.Sprintf("    caBundle: %s\n    url: https://127.0.0.1:%d", base64.StdEncoding.EncodeToString([]byte(c.certificate)), port))
	for _, kind := range []string{"mutating", "validating"} { // controllers have the same names for theirs
		text = strings.ReplaceAll(text, "name: "+kind+"-webhook-configuration", "name: "+kind+"-"+strings.TrimSuffix(name, ".yaml"))
	}
	if strings.Contains(text, "service:") || text == string(b) {
		t.Fatalf("the webhooks of %s look otherwise:\n%s", path, b)
	}
	return c.write(t, name, text)
}

func (c *cluster) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// daemon starts a process that ends with the test. A program of the cluster is named without a path.
func (c *cluster) daemon(t *testing.T, name, program string, args ...string) {
	t.Helper()
	if !filepath.IsAbs(program) {
		program = filepath.Join(c.programs, program)
	}
	jobtest.Daemon(t, exec.Command(program, args...), filepath.Join(c.dir, name+".out"))
}

// try runs a command, and returns what it printed.
func (c *cluster) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out, jobtest.Stderr(err))
	}
	return strings.TrimSpace(string(out)), err
}

func (c *cluster) kubectl(args ...string) (string, error) { return c.try("kubectl", args...) }

func (c *cluster) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.kubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) sh(t *testing.T, script string) {
	t.Helper()
	if _, err := c.try("sh", "-ec", script); err != nil {
		t.Fatal(err)
	}
}

// until waits for something to become true.
func (c *cluster) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 5 minutes: %s\n%s", what, c.said())
		}
	}
}

// said is the end of what daemons and pods have said.
func (c *cluster) said() string {
	var said strings.Builder
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*.out"))
	pods, _ := filepath.Glob(filepath.Join(c.dir, "node-*", "logs", "*", "star", "*.log"))
	for _, name := range append(logs, pods...) {
		b, _ := os.ReadFile(name)
		fmt.Fprintf(&said, "%s:\n%s\n", strings.TrimPrefix(name, c.dir), b[max(0, len(b)-3000):])
	}
	for _, what := range []string{"nodes", "pods", "jobs", "pvc"} {
		out, _ := c.kubectl("get", what, "-o", "wide")
		said.WriteString(out + "\n")
	}
	events, _ := c.kubectl("get", "events")
	said.WriteString(events[max(0, len(events)-4000):])
	return said.String()
}

// lacks skips a test for what it needs, or fails it where make e2e-… has asked for it: a target that has run nothing
// has not passed.
func lacks(t *testing.T, format string, a ...any) {
	t.Helper()
	if os.Getenv("TEST_MUST_RUN") != "" {
		t.Fatalf(format, a...)
	}
	t.Skipf(format, a...)
}
