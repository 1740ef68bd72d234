package main

import (
	"compress/gzip"
	"encoding/json"
	"flag"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// whole has the image run that users get, with star-bucket, which takes a minute to build and pack.
var whole = flag.Bool("whole", false, "run the image as users get it: with star-bucket, and packed")

// any Go program will do where what is in the image does not matter.
func fake(t *testing.T) program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program{"amd64", []string{self}}
}

// TestImage makes an image twice, and of another commit: to pack takes long, so that all is asked of the first one.
func TestImage(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	index := must(assemble([]program{fake(t)}, "0123", a, gzip.BestSpeed))(t)
	digest := must(index.Digest())(t)
	must(assemble([]program{fake(t)}, "0123", b, gzip.BestSpeed))(t)
	if out, err := exec.Command("diff", "-r", a, b).CombinedOutput(); err != nil {
		t.Errorf("two images differ: %v\n%s", err, out)
	}
	if other := must(must(assemble([]program{fake(t)}, "0124", t.TempDir(), gzip.BestSpeed))(t).Digest())(t); other == digest {
		t.Error("images of two commits are the same")
	}
	if err := validate.Index(must(layout.ImageIndexFromPath(filepath.Join(a, "oci")))(t)); err != nil {
		t.Error(err)
	}
	lists(t, a, digest.Hex)

	server := httptest.NewServer(registry.New())
	defer server.Close()
	tag := must(name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/star:1"))(t)
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	if got := must(must(remote.Index(tag))(t).Digest())(t); got != digest {
		t.Errorf("the registry has %s, want %s", got, digest)
	}
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

// lists looks at the lists beside an image: what it is made of, and how it came to be.
func lists(t *testing.T, dir, digest string) {
	t.Helper()
	var bill spdx
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(dir, "sbom-amd64.spdx.json")))(t), &bill); err != nil {
		t.Fatal(err)
	}
	found := false
	ids := map[string]bool{bill.ID: true}
	for _, p := range bill.Packages {
		if ids[p.ID] {
			t.Errorf("%s twice", p.ID)
		}
		ids[p.ID] = true
		found = found || p.Name == "github.com/google/go-containerregistry" && strings.HasPrefix(p.Version, "v0.")
	}
	if !found {
		t.Error("a module that is linked in is not listed")
	}
	for _, r := range bill.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("a relationship of %s and %s, which are not there", r.From, r.To)
		}
	}
	if p := string(must(os.ReadFile(filepath.Join(dir, "provenance.json")))(t)); !strings.Contains(p, digest) || !strings.Contains(p, `"gitCommit": "0123"`) {
		t.Errorf("the provenance names neither image nor commit: %s", p)
	}
}

// The image runs with a read-only root, as a user without rights, without capabilities and network.
func TestRun(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil || os.Getuid() != 0 {
		t.Skipf("needs root and runc (Debian: runc): %v", err)
	}
	dir := t.TempDir()
	index := star(t, dir)
	img := must(index.Image(must(index.IndexManifest())(t).Manifests[0].Digest))(t)
	root, outside := filepath.Join(dir, "rootfs"), filepath.Join(dir, "work")
	unpack(t, img, root)
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(outside, user, user); err != nil {
		t.Fatal(err)
	}
	type says struct {
		args string
		code int
		says string
	}
	cases := []says{
		{"star version", 0, "star"},
		{"star install /shared/bin", 0, "/shared/bin/star"},
		{"/shared/bin/star run --workers 2 --model softmax --dataset digits:n=400,test=100 --epochs 1 --out /shared/out", 0, "trained"},
		{"star install /usr/local/bin", 73, "read-only file system"},
	}
	if *whole {
		cases = append(cases, says{"/shared/bin/star checkpoint ls file:///shared/none", 66, "none"}) // star-bucket answers
	}
	for _, c := range cases {
		specify(t, dir, root, outside, strings.Fields(c.args))
		cmd := exec.Command(runc, "run", "--bundle", dir, "star-image-test")
		b, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(b), c.says) {
			t.Errorf("%s: exit code %d (%v), want %d and %q\n%s", c.args, got, err, c.code, c.says, b)
		}
	}
}

// star is the image of this checkout, for one processor.
func star(t *testing.T, dir string) v1.ImageIndex {
	t.Helper()
	if !*whole {
		p := must(compile("../..", filepath.Join(dir, "programs"), runtime.GOARCH, "star"))(t)
		return must(assemble([]program{p}, "0123", filepath.Join(dir, "image"), gzip.NoCompression))(t)
	}
	var out strings.Builder
	if err := run([]string{"--output", filepath.Join(dir, "image"), "--arch", runtime.GOARCH}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(out.String())
	index := must(layout.ImageIndexFromPath(filepath.Join(dir, "image", "oci")))(t)
	if d := must(index.Digest())(t).String(); lines[len(lines)-1] != d {
		t.Errorf("the last line is %q, want %s", lines[len(lines)-1], d)
	}
	return index
}

func unpack(t *testing.T, img v1.Image, root string) {
	t.Helper()
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(img)
	defer files.Close()
	tar := exec.Command("tar", "-x", "-C", root)
	tar.Stdin = files
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// specify writes runc's config.json.
func specify(t *testing.T, dir, root, outside string, args []string) {
	t.Helper()
	mount := func(to, kind, from string, options ...string) map[string]any {
		return map[string]any{"destination": to, "type": kind, "source": from, "options": options}
	}
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": user, "gid": user}, "args": args, "cwd": "/tmp", "env": []string{"PATH=/usr/local/bin", "HOME=/tmp"},
			"noNewPrivileges": true, "capabilities": map[string]any{},
		},
		"root": map[string]any{"path": root, "readonly": true},
		"mounts": []any{
			mount("/proc", "proc", "proc"), mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"), mount("/dev/shm", "tmpfs", "shm", "nosuid", "mode=1777"),
			mount("/tmp", "tmpfs", "tmpfs", "nosuid", "mode=1777"), mount("/shared", "bind", outside, "bind", "rw"),
		},
		"linux": map[string]any{"namespaces": []any{map[string]any{"type": "mount"}, map[string]any{"type": "pid"}, map[string]any{"type": "network"}, map[string]any{"type": "ipc"}}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o666); err != nil {
		t.Fatal(err)
	}
}
