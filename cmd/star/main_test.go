package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The test binary is star itself when it is called by that name: by scripts, by
// tests that need a process, and by star run, which starts itself.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"star": main})
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
