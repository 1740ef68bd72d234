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
