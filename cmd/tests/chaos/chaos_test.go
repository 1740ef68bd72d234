package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"star/cmd/internal/chaos"

	"star/cmd/tests/jobtest"
)

// What star-chaos has defaults of its own for a file of settings may say otherwise, like a flag and the environment.
func TestChaosTakesAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("steps: 77\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(jobtest.StarChaos(t), "--config", file, "--batch", "5", "--print-config").CombinedOutput()
	for _, want := range []string{`(?m)^steps +77 +.*job\.yaml:1$`, `(?m)^batch +5 +--batch$`, `(?m)^model +softmax +star-chaos$`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("%v: want %s in\n%s", err, want, out)
		}
	}
}

// A job that is broken in every way keeps its promises.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--fault-seed", "3", "--for", "4s", "--every", "300ms", "--longest", "1s", "--steps", "1500")
	done := map[string]bool{}
	for _, f := range r.Faults {
		done[f.Kind] = done[f.Kind] || f.Done
	}
	if err != nil || len(r.Invariants) != 9 || len(done) < 5 || r.Updates < 500 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// Wall clocks that jump change nothing, also where a process with a wrong clock takes over. A shard has more copies
// than there are shards.
func TestChaosOfClocks(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	if err := chaos.CanJump(); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--coordinators", "3", "--shards", "1", "--replicas", "2", "--workers", "2", "--faults", "clock,coordinator", "--fault-seed", "1",
		"--every", "150ms", "--longest", "60s", "--for", "2s", "--slow", "0:+10ms,1:+10ms", "--steps", "250")
	kinds := map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
	}
	if err != nil || len(r.Invariants) != 9 || r.Lives != 1 || kinds["clock"] < 5 || kinds["coordinator"] != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// So does an all-reduce.
func TestChaosOfARing(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--arch", "allreduce", "--faults", "kill,pause,cut,corrupt", "--min-workers", "1", "--fault-seed", "3", "--for", "3s", "--every", "300ms", "--longest", "1s",
		"--steps", "400", "--lr", "0.01") // with a higher one it makes much of roundings
	within := false // a bit was turned over between members
	for _, f := range r.Faults {
		within = within || f.Kind == "corrupt" && f.Target > 0
	}
	if err != nil || len(r.Invariants) != 10 || r.Updates < 400 || !within {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// In a tree, too: a worker may be gone while its gradient is in its parent's report, and so may a coordinator that knew
// which workers are in a report.
func TestChaosOfATree(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--coordinators", "3", "--shards", "2", "--workers", "5", "--mode", "tree=0(1),2(3(4))", "--faults", "kill,term,pause,coordinator", "--fault-seed", "4",
		"--every", "250ms", "--for", "3s", "--longest", "1s", "--slow", "0:+5ms", "--steps", "600")
	kinds := map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
	}
	if err != nil || r.Lives != 1 || r.Updates < 600 || kinds["kill"]+kinds["term"] < 2 || kinds["coordinator"] != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// Every sample is in one update, whether a worker with samples of the queue or the coordinator that has handed them out
// is gone.
func TestChaosOfAQueue(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) { testChaosOfAQueue(t, arch) })
	}
}

func testChaosOfAQueue(t *testing.T, arch string) {
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--arch", arch, "--coordinators", "3", "--workers", "4", "--min-workers", "1", "--mode", "ssgd queue=8", "--faults", "kill,term,pause,coordinator", "--fault-seed", "3",
		"--every", "400ms", "--for", "4s", "--longest", "1s", "--slow", "0:+20ms", "--steps", "400")
	kinds := map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
	}
	if err != nil || r.Lives != 1 || r.Updates < 200 || kinds["kill"] < 1 || kinds["coordinator"] != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// The ways between the workers of a tree are cut, garbled and silent, too: a gradient that was lost there is sent
// again, or goes to the shards.
func TestChaosBetweenTheWorkersOfATree(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--workers", "4", "--coordinators", "3", "--replicas", "2", "--mode", "tree=0(1,2(3))", "--faults", "cut,corrupt", "--fault-seed", "4",
		"--every", "100ms", "--for", "3s", "--longest", "1s", "--slow", "0:+5ms", "--steps", "600")
	between := 0
	for _, f := range r.Faults {
		if f.Target > 0 {
			between++
		}
	}
	if err != nil || r.Lives != 1 || r.Updates < 600 || between < 10 {
		t.Errorf("%v: %d faults between workers, %+v\n%s", err, between, r, said)
	}
}

// Where several processes may coordinate, and each shard has two copies, one that coordinates and a server are killed,
// and nothing is lost.
func TestChaosOfCandidates(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--coordinators", "3", "--shards", "3", "--replicas", "2", "--faults", "server,coordinator", "--fault-seed", "1", "--for", "8s", "--every", "1s",
		"--mode", "asgd", "--slow", "0:+20ms,1:+20ms,2:+20ms", "--steps", "500")
	kinds := map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
	}
	if err != nil || len(r.Invariants) != 9 || r.Lives != 1 || kinds["server"] != 1 || kinds["coordinator"] != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// The mode changes and changes back while workers stand still now and then; what updates are made of is what the log
// says, to the bit.
func TestModesChange(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	dir := t.TempDir()
	r, said, err := jobtest.ChaosIn(t, dir, "--mode", "ssgd", "--faults", "mode,pause", "--fault-seed", "1", "--for", "3s", "--every", "300ms", "--longest", "500ms", "--steps", "1500", "--dead-after", "60s")
	if err != nil {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
	type plan struct{ From, Plan string }
	if changes := jobtest.RunLog[plan](t, dir, "plan"); !slices.Contains(changes, plan{"ssgd", "asgd"}) {
		t.Errorf("the changes of mode are %v\n%s", changes, said)
	}
	for _, v := range r.Invariants {
		if strings.HasPrefix(v.Name, "parameters") && !strings.Contains(v.Detail, "the same bits") {
			t.Errorf("%s: %s", v.Name, v.Detail)
		}
	}
}
