package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// images makes STAR's image, which deploy/image has built, and that of the container that holds the namespaces of a
// pod, files for containerd.
func (c *cluster) images(t *testing.T) (star, pause string) {
	t.Helper()
	star = filepath.Join(c.dir, "star.tar")
	c.sh(t, "tar -C "+c.programs+"/image/oci -cf "+star+" .")

	program, err := os.ReadFile(filepath.Join(c.programs, "pause"))
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(t, file{"pause", program})
	config := must(json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	}))(t)
	manifest := must(json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{"docker.io/library/pause:test"}, "Layers": []string{"layer.tar"}}}))(t)
	return star, c.write(t, "pause.tar", string(archive(t, file{"layer.tar", layer}, file{"config.json", config}, file{"manifest.json", manifest})))
}

type file struct {
	name string
	data []byte
}

func archive(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// node starts a node: containerd, with the images, and a kubelet. All nodes have one network, a bridge.
func (c *cluster) node(t *testing.T, i int, star, pause string) {
	t.Helper()
	name := fmt.Sprintf("node-%d", i)
	dir, address, socket := filepath.Join(c.dir, name), fmt.Sprintf("10.88.0.%d", i), fmt.Sprintf("/run/containerd-%d/containerd.sock", i)
	c.write(t, name+"/cni/pods.conflist", `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": "/run/addresses", "ranges": [[{"subnet": "10.89.0.0/16", "gateway": "10.89.0.1"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	c.daemon(t, name+"-containerd", must(exec.LookPath("containerd"))(t), "--config", c.write(t, name+"/containerd.toml", fmt.Sprintf(`version = 2
root = %[1]q
state = "/run/containerd-%[2]d"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pause:test"
  restrict_oom_score_adj = true # root may be without CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %[4]q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`, dir+"/containerd", i, socket, dir+"/cni")))
	ctr := func(args ...string) error {
		_, err := c.try("ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
		return err
	}
	c.until(t, name+"'s containerd is ready", func() bool { return ctr("version") == nil })
	if err := ctr("images", "import", "--index-name", "docker.io/library/star:test", star); err != nil {
		t.Fatal(err)
	}
	if err := ctr("images", "import", pause); err != nil {
		t.Fatal(err)
	}
	c.sh(t, "ip addr add "+address+"/32 dev lo")
	c.daemon(t, name+"-kubelet", "kubernetes", "kubelet", "--kubeconfig="+c.dir+"/kubeconfig", "--hostname-override="+name, "--node-ip="+address, "--root-dir="+dir+"/kubelet",
		"--cert-dir="+dir+"/certs", "--config="+c.write(t, name+"/kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
protectKernelDefaults: true
clusterDNS: [10.89.0.1]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://%[2]s
podLogsDir: %[3]s/logs
evictionHard: {memory.available: 50Mi, nodefs.available: "0%%", imagefs.available: "0%%", nodefs.inodesFree: "0%%"}
imageGCHighThresholdPercent: 100
`, address, socket, dir)))
}

// tunables has a kubelet find the settings of the kernel as it wants them, in place of changing those of this host.
func (c *cluster) tunables(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		c.sh(t, "mount --bind "+c.write(t, filepath.Join("kernel", name), value+"\n")+" /proc/sys/"+name)
	}
}
