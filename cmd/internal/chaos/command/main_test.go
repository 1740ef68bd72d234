package command

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"star/cmd/tests/jobtest"
)

// Whole jobs are tested in cmd/tests/chaos; here is what the command itself does.
func TestMain(m *testing.M) { jobtest.Main(m) }

// Transcripts: what a user types and sees.
func TestScripts(t *testing.T) {
	jobtest.StarChaos(t) // beside star, which is in PATH
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true})
}
