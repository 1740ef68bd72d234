package jobtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"star/internal/durable"
	"strings"
	"testing"
)

// olderRelease is the release before this one: its tag, or its commit where the checkout has no tags.
var olderRelease = []string{"landed-37", "194c95e6"}

// Older is the path of the program of the previous release, built from the checkout's history and kept in the user's
// cache. The test is skipped with -short, and if the checkout lacks the commit, as in a shallow clone.
func Older(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds an older program: not with -short")
	}
	root, err := module()
	if err != nil {
		t.Fatal(err)
	}
	commit := ""
	for _, name := range olderRelease {
		out, err := exec.Command("git", "-C", root, "rev-parse", "--verify", "--quiet", name+"^{commit}").Output()
		if err == nil {
			commit = strings.TrimSpace(string(out))
			break
		}
	}
	if commit == "" {
		t.Skipf("this checkout has neither of %s to build the older program from", strings.Join(olderRelease, ", "))
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "star-test", "older-"+commit[:16])
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	source := t.TempDir()
	archive := filepath.Join(source, "source.tar")
	made := filepath.Join(source, "star-older")
	for _, args := range [][]string{
		{"git", "-C", root, "archive", "-o", archive, commit},
		{"tar", "-x", "-C", source, "-f", archive},
		{"go", "build", "-buildvcs=false", "-o", made, "./cmd/star"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	// It has another name until it is complete, because other tests use it, too.
	text, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
