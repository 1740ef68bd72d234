package jobtest

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"star/cmd/internal/chaos"
	"star/internal/settings"
)

// Broken is what star-chaos --json says of a job that tests look at.
type Broken struct {
	Faults     []Fault
	Invariants []chaos.Invariant
	Takeovers  []float64 `json:"takeovers_s"`
	Updates    int64
	Lives      int
}

// Fault is one of a Broken job.
type Fault struct {
	Kind   string
	Target int
	Done   bool
}

// Chaos runs star-chaos in a folder of its own: what it says of the job, what it logged, and its exit.
func Chaos(t *testing.T, args ...string) (r Broken, said string, err error) {
	t.Helper()
	return ChaosIn(t, t.TempDir(), args...)
}

// ChaosIn is Chaos in a folder that the caller looks into.
func ChaosIn(t *testing.T, dir string, args ...string) (r Broken, said string, err error) {
	t.Helper()
	cmd := exec.Command(StarChaos(t), append([]string{"--out", dir, "--progress", "off", "--json"}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if e := json.Unmarshal(out, &r); e != nil {
		t.Fatalf("%v, %v: %s\n%s", err, e, out, errs.String())
	}
	return r, errs.String(), err
}

// Settings is the job of star run with some flags.
func Settings(t testing.TB, args ...string) *settings.Job {
	t.Helper()
	job, cmd := new(settings.Job), new(cobra.Command)
	job.Bind(cmd, settings.ForRun)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	if _, err := job.Load(nil); err != nil {
		t.Fatal(err)
	}
	return job
}
