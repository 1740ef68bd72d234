// Package jobtest starts whole jobs for tests: star run, or its processes one by one, as a user does. What a test says
// of them is in the packages beside it, by subject, so that none takes long.
//
// The program is built once for all of them: a package has a TestMain that calls Main.
package jobtest

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// built is the path of the program.
var built string

// Main runs the tests of a package with a program that is built from this checkout, and that PATH finds as star. Most
// of the time tests wait for processes, so that more of them go on at once than there are processors; those that need a
// quiet machine are not parallel ones.
func Main(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0))))
	}
	var err error
	if built, err = build("star"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("PATH", filepath.Dir(built)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	os.Exit(m.Run())
}

// Star is the path of the program.
func Star(t testing.TB) string {
	t.Helper()
	if built == "" {
		t.Fatal("the package needs a TestMain that calls jobtest.Main")
	}
	return built
}

// buildChaos builds star-chaos, which few packages need, when the first test asks for it.
var buildChaos = sync.OnceValues(func() (string, error) { return build("star-chaos") })

// StarChaos is the path of star-chaos.
func StarChaos(t testing.TB) string {
	t.Helper()
	path, err := buildChaos()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build builds a program of cmd with the race detector and the tags of the test, in the user's cache, where it is found
// again by the other packages and by the next run. Packages wait for the first one; go build leaves a program alone
// that is up to date.
func build(program string) (path string, err error) {
	root, err := module()
	if err != nil {
		return "", err
	}
	if err := depend(root); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	args := []string{"build", "-buildvcs=false"}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if (s.Key == "-race" || s.Key == "-tags") && s.Value != "" {
				args = append(args, s.Key+"="+s.Value)
			}
		}
	}
	dir := filepath.Join(cache, "star-test", fmt.Sprintf("%x", sha256.Sum256([]byte(root+"\x00"+strings.Join(args, "\x00"))))[:16])
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path = filepath.Join(dir, program)
	cmd := exec.Command("go", append(args, "-o", path, "./cmd/"+program)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/%s: %w\n%s", program, err, out)
	}
	return path, nil
}

// module is the folder of go.mod.
func module() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the tests")
		}
		dir = up
	}
	return "", err
}

// depend has go test know that the results depend on all code of the module, which the tests do not import: it keeps
// results of tests, and forgets them when folders that they have read are other ones. Folders of data and results are
// left out.
func depend(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch name := d.Name(); {
		case path != root && strings.HasPrefix(name, "."), name == "testdata", name == "docs", name == "bin", name == "star-out":
			return fs.SkipDir
		}
		return nil
	})
}
