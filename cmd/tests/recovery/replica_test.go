package recovery

import (
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
)

// A server with copies of its shards is killed: the job goes on, other servers get copies, every sample counts once,
// and the bits are those of a job to which nothing happened.
func TestServerWithCopiesIsKilled(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--mode", "ssgd", "--model", "mlp", "--optimizer", "muon", "--clip", "0.5", "--steps", "1200"}
	g := jobtest.Start(t, 3, 2, append([]string{"--replicas", "2"}, args...)...)
	g.Training()
	g.Version(30)
	g.All["ps2"].Cmd.Process.Signal(syscall.SIGKILL)
	delete(g.All, "ps2")
	r := g.Result()
	events := map[string]int{}
	for _, l := range g.Lines("replica") {
		events[l["event"].(string)]++
	}
	if events["promoted"] != 1 || events["lost"] != 1 || events["copied"] == 0 {
		t.Errorf("the run log has %v", g.Lines("replica"))
	}
	jobtest.EverySampleOnce(t, g.Out, r.Samples)
	jobtest.SameBits(t, "with a server that is killed and without", jobtest.Parameters(t, jobtest.Start(t, 3, 2, args...).Result()), jobtest.Parameters(t, r))
}
