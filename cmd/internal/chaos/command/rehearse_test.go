package command

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// star-chaos --simulate says what it has looked at, and that it sees: with fencing switched off promises are broken.
func TestRehearse(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		args []string
		want bool // violations
	}{
		{[]string{"--seeds", "40"}, false},
		{[]string{"--seeds", "40", "--arch", "allreduce"}, false},
		{[]string{"--seeds", "250", "--unfenced"}, true},
	} {
		out, err := exec.Command(jobtest.StarChaos(t), append([]string{"--simulate", "--json"}, c.args...)...).Output()
		var r rehearsed
		if e := json.Unmarshal(out, &r); e != nil || err != nil {
			t.Fatalf("%v: %v, %v: %s", c.args, e, err, out)
		}
		if c.want != (r.Violations > 0) || c.want != (r.FirstSeed != nil) || r.Faults == 0 || r.Updates == 0 || len(r.Invariants) != 5 {
			t.Errorf("%v: %s", c.args, out)
		}
	}
	for _, args := range [][]string{{"--seeds", "0"}, {"--unfenced", "--arch", "allreduce"}} {
		out, err := exec.Command(jobtest.StarChaos(t), append([]string{"--simulate"}, args...)...).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), args[0]) || strings.Contains(string(out), "goroutine") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}
