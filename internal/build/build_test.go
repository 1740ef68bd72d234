package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

const hash = "f019f70987c91489470b9867193334376a4a023b"

// TestFrom has what each way of building records.
func TestFrom(t *testing.T) {
	pseudo := "v0.0.0-20261129145815-f019f70987c9"
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: hash}, {Key: "vcs.time", Value: "2026-11-29T14:58:15Z"}, {Key: "vcs.modified", Value: modified}}
	}
	system := ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for name, c := range map[string]struct {
		info              *debug.BuildInfo
		commit, committed string
		recorded, said    string
		time              string
	}{
		"no information":                 {nil, "", "", Unknown, "commit not recorded by the build", ""},
		"-buildvcs=false":                {&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "", "", Unknown, "commit not recorded by the build", ""},
		"go build":                       {&debug.BuildInfo{Main: debug.Module{Version: pseudo}, Settings: vcs("false")}, "", "", hash, "commit f019f70987c9, module " + pseudo, "2026-11-29T14:58:15Z"},
		"go build with changes":          {&debug.BuildInfo{Main: debug.Module{Version: pseudo + "+dirty"}, Settings: vcs("true")}, "", "", hash + "+changes", "commit f019f70987c9 with changes, module " + pseudo + "+dirty", "2026-11-29T14:58:15Z"},
		"go install of a pseudo-version": {&debug.BuildInfo{Main: debug.Module{Version: pseudo}}, "", "", "f019f70987c9", "commit f019f70987c9, module " + pseudo, "2026-11-29T14:58:15Z"},
		"after a tag":                    {&debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261129145815-f019f70987c9"}}, "", "", "f019f70987c9", "commit f019f70987c9, module v0.1.1-0.20261129145815-f019f70987c9", "2026-11-29T14:58:15Z"},
		"go install of a tag":            {&debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, "", "", Unknown, "commit not recorded by the build, module v0.1.0", ""},
		"-ldflags":                       {&debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, hash, "2026-11-29T14:58:15Z", hash, "commit f019f70987c9", "2026-11-29T14:58:15Z"},
		"-ldflags before VCS":            {&debug.BuildInfo{Main: debug.Module{Version: pseudo}, Settings: vcs("false")}, "0123456789abcdef+changes", "2026-01-01T00:00:00Z", "0123456789abcdef+changes", "commit 0123456789ab with changes, module " + pseudo, "2026-01-01T00:00:00Z"},
	} {
		b := from(c.info, c.commit, c.committed)
		if b.commit() != c.recorded || b.Time != c.time {
			t.Errorf("%s: commit %q of %q, want %q of %q", name, b.commit(), b.Time, c.recorded, c.time)
		}
		if want := b.Version + " (" + c.said + system; b.String() != want {
			t.Errorf("%s: %q, want %q", name, b, want)
		}
	}
}

// TestBuilt builds a program of a repository of its own, with this package in it, in each of the ways.
func TestBuilt(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=auto", "GOWORK=off", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	source, err := os.ReadFile("build.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":                  "module star\n\ngo 1.26.0\n",
		"internal/build/build.go": string(source),
		"main.go":                 "package main\n\nimport \"star/internal/build\"\n\nfunc main() { print(build.Commit()) }\n",
		".gitignore":              "/program\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first")
	commit := run("git", "rev-parse", "HEAD")
	built := func(flags ...string) string {
		t.Helper()
		run("go", append(append([]string{"build", "-o", "program"}, flags...), ".")...)
		return run("./program")
	}
	for _, c := range []struct {
		want  string
		flags []string
	}{
		{commit, nil},
		{Unknown, []string{"-buildvcs=false"}},
		{hash + "+changes", []string{"-buildvcs=false", "-ldflags=-X star/internal/build.linkedCommit=" + hash + "+changes"}},
	} {
		if got := built(c.flags...); got != c.want {
			t.Errorf("go build %v: commit %q, want %q", c.flags, got, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "other.go"), []byte("package main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := built(); got != commit+"+changes" {
		t.Errorf("with another file: commit %q, want %q", got, commit+"+changes")
	}
}
