package main

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The test binary is star itself when it is called by that name: by scripts, by
// tests that need a process, and by star run, which starts itself.
func TestMain(m *testing.M) {
	testscript.Main(waiting{m}, map[string]func(){"star": main})
}

// waiting runs tests that wait for processes most of the time, so that more go on at once than there are processors. Those that need a quiet machine
// are not parallel ones.
type waiting struct{ *testing.M }

func (w waiting) Run() int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0))))
	}
	return w.M.Run()
}

// Transcripts: what a user types and sees.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("NO_COLOR", "1")
			dir, err := filepath.Abs("testdata")
			e.Setenv("TESTDATA", dir)
			return err
		},
	})
}

// star is the path of a program that behaves as star.
func star(t testing.TB) string {
	t.Helper()
	path, err := lookStar()
	if err != nil {
		t.Fatalf("the test binary is not on the path as star: %v", err)
	}
	return path
}

func lookStar() (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "star")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", os.ErrNotExist
}
