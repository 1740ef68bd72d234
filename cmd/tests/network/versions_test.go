package network

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A worker of the release before this one takes part in a job of today's programs until its end, and the reverse, with
// servers and in an all-reduce.
func TestMixedReleases(t *testing.T) {
	older := jobtest.Older(t)
	star := jobtest.Star(t)
	for _, c := range []struct {
		name, coordinator, other string
		says                     string // the coordinator's log, of the other program
	}{
		{"an older worker", star, older, `"msg":"a member was built from another commit"`},
		{"an older coordinator", older, star, ""},
	} {
		for _, arch := range []string{"ps", "allreduce"} {
			t.Run(c.name+" "+arch, func(t *testing.T) {
				g := &jobtest.Job{T: t, Addr: jobtest.FreeAddr(t), Out: t.TempDir(), All: map[string]*jobtest.Process{}}
				common := []string{"--arch", arch, "--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--lr", "0.01",
					"--log-format", "json", "--join-timeout", "3m", "--dead-after", "1m"}
				g.StartCmd("ps0", exec.Command(c.coordinator, append([]string{"ps", "--rank", "0", "--listen", g.Addr, "--http", "off", "--out", g.Out,
					"--mode", "ssgd", "--steps", "60"}, common...)...))
				for rank, program := range []string{c.coordinator, c.other} {
					g.StartCmd("w"+strconv.Itoa(rank), exec.Command(program, append([]string{"worker", "--rank", strconv.Itoa(rank), "--coordinator", g.Addr}, common...)...))
				}
				for _, name := range []string{"w0", "w1", "ps0"} {
					g.Ends(name, 0)
				}
				summary := g.Lines("summary")[0]
				jobtest.EverySampleOnce(t, g.Out, int64(summary["samples"].(float64)))
				if n := summary["samples"].(float64); n != 60*2*8 {
					t.Errorf("%v samples, want 960", n)
				}
				if said := g.Said("ps0"); !strings.Contains(said, c.says) {
					t.Errorf("the coordinator does not say %s:\n%s", c.says, said)
				}
			})
		}
	}
}
