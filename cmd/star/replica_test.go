package main

import (
	"syscall"
	"testing"
)

// A server is killed whose shards have copies: the job goes on, other servers get copies, every sample counts once, and the bits are those of
// a job to which nothing happened.
func TestServerWithCopiesIsKilled(t *testing.T) {
	aboutNumbers(t)
	t.Parallel()
	args := []string{"--mode", "ssgd", "--model", "mlp", "--optimizer", "adam", "--clip", "0.5", "--steps", "1200"}
	g := group(t, 3, 2, append([]string{"--replicas", "2"}, args...)...)
	g.training()
	g.version(30)
	g.all["ps2"].cmd.Process.Signal(syscall.SIGKILL)
	delete(g.all, "ps2")
	r := g.result()
	events := map[string]int{}
	for _, l := range g.lines("replica") {
		events[l["event"].(string)]++
	}
	if events["promoted"] != 1 || events["lost"] != 1 || events["copied"] == 0 {
		t.Errorf("the run log has %v", g.lines("replica"))
	}
	everySampleOnce(t, g.out, r.Samples)
	sameBits(t, "with a server that is killed and without", parameters(t, group(t, 3, 2, args...).result()), parameters(t, r))
}
