package recovery

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// The process that coordinates is killed, or told to leave, with servers and with a ring. Another process takes the job
// over, no promise is broken, and the parameters at the end are those of a job to which nothing happened, to the bit.
func TestCoordinatorIsReplaced(t *testing.T) {
	t.Parallel()
	for name, own := range map[string][]string{
		"ps":        nil,
		"clip":      {"--clip", "0.5"}, // each update waits for a norm that the coordinator makes
		"copies":    {"--clip", "0.5", "--replicas", "2", "--shards", "2"},
		"tree":      {"--mode", "tree=0(1),2(3)", "--workers", "4"},
		"allreduce": {"--arch", "allreduce"},
	} {
		if testing.Short() && name != "copies" && name != "allreduce" { // copies do what the others do, and more
			continue
		}
		common := append([]string{"--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--workers", "2", "--model", "softmax",
			"--mode", "ssgd", "--batch", "8", "--steps", "300", "--slow", "0:+5ms", "--eval-every", "0", "--dead-after", "1m"}, own...)
		calm := t.TempDir()
		if out, err := exec.Command(jobtest.Star(t), append([]string{"run", "--progress", "off", "--json", "--out", calm}, common...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, fault := range []string{"coordinator", "hand-over"} {
			if testing.Short() && fault == "hand-over" && name != "copies" {
				continue
			}
			t.Run(name+" "+fault, func(t *testing.T) {
				t.Parallel() // they wait most of the time
				broke := t.TempDir()
				r, said, err := jobtest.ChaosIn(t, broke, append([]string{"--coordinators", "3", "--faults", fault, "--fault-seed", "2", "--every", "300ms", "--for", "1s"}, common...)...)
				if err != nil || len(r.Takeovers) == 0 || r.Updates != 300 || r.Lives != 1 {
					t.Errorf("%v: %+v\n%s", err, r, said)
				}
				want, got := parametersOf(t, calm), parametersOf(t, broke)
				if len(want) == 0 || len(got) != len(want) {
					t.Fatalf("%d files of parameters, %d without a fault", len(got), len(want))
				}
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Errorf("shard %d is another one after another process has taken the job over", i)
					}
				}
			})
		}
	}
}

// What codecs have left out of gradients is not lost with the coordinator: the parameters at the end are those of a job
// to which nothing happened, but for roundings.
func TestResidualsOutliveTheCoordinator(t *testing.T) {
	t.Parallel()
	common := []string{"--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--workers", "2", "--shards", "1", "--model", "softmax",
		"--mode", "ssgd", "--batch", "8", "--steps", "300", "--slow", "0:+5ms", "--eval-every", "0", "--dead-after", "1m", "--optimizer", "sgd", "--lr", "0.05", "--compress", "topk=0.02"}
	calm, broke := t.TempDir(), t.TempDir()
	if out, err := exec.Command(jobtest.Star(t), append([]string{"run", "--progress", "off", "--json", "--out", calm}, common...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r, said, err := jobtest.ChaosIn(t, broke, append([]string{"--coordinators", "3", "--faults", "hand-over", "--fault-seed", "2", "--every", "300ms", "--for", "1s"}, common...)...)
	if err != nil || len(r.Takeovers) == 0 || r.Updates != 300 {
		t.Fatalf("%v: %+v\n%s", err, r, said)
	}
	want, got := floatsOf(t, calm), floatsOf(t, broke)
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > 1e-4*(1+math.Abs(float64(want[i]))) {
			t.Fatalf("parameter %d of %d is %v, and %v without a loss", i, len(want), got[i], want[i])
		}
	}
}

// floatsOf are the parameters in the checkpoint of version 300 in a job's folder.
func floatsOf(t *testing.T, dir string) []float32 {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*300-g1"))
	if len(names) != 1 {
		t.Fatalf("checkpoints %v in %s", names, dir)
	}
	c, err := checkpoint.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Shard(0, c.Manifest().Params)
	if err != nil {
		t.Fatal(err)
	}
	return s.Params
}

// parametersOf are the shards of the checkpoint of version 300 in a job's folder.
func parametersOf(t *testing.T, dir string) (texts [][]byte) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*300-g1", "shard-*.safetensors"))
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b)
	}
	return texts
}

// Of three processes that may coordinate two are killed, the second when another process has the place of the first:
// the job goes on.
func TestCoordinatorsComeBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--coordinators", "3", "--faults", "coordinator", "--fault-seed", "5", "--every", "1s", "--for", "12s",
		"--workers", "2", "--shards", "1", "--mode", "ssgd", "--steps", "2600")
	if err != nil || len(r.Takeovers) != 2 || r.Updates != 2600 || r.Lives != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}

// Servers are killed one after the other, each when another one that was started again has copies of what is left: the
// job goes on.
func TestServersComeBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	t.Parallel()
	r, said, err := jobtest.Chaos(t, "--coordinators", "3", "--faults", "server", "--fault-seed", "5", "--every", "1s", "--for", "16s",
		"--workers", "2", "--shards", "2", "--replicas", "2", "--mode", "ssgd", "--slow", "0:+5ms", "--steps", "3000")
	if err != nil || len(r.Faults) != 2 || r.Updates != 3000 || r.Lives != 1 {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}
