package main

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"star/cmd/tests/jobtest"
)

// Whole jobs are tested in cmd/tests, by subject; here is what the commands themselves do.
func TestMain(m *testing.M) { jobtest.Main(m) }

// Transcripts: what a user types and sees.
func TestScripts(t *testing.T) {
	var files []string   // all of the folder
	if testing.Short() { // those of programs with many goroutines: the others are about what is printed
		for _, name := range []string{"run", "cluster", "schedserve"} {
			files = append(files, filepath.Join("testdata/script", name+".txt"))
		}
	}
	testscript.Run(t, testscript.Params{
		Dir:                 map[bool]string{false: "testdata/script"}[testing.Short()],
		Files:               files,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("NO_COLOR", "1")
			dir, err := filepath.Abs("testdata")
			e.Setenv("TESTDATA", dir)
			return err
		},
	})
}
