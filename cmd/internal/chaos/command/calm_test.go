package command

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"star/cmd/internal/chaos"
	"star/cmd/internal/node"
	"star/cmd/tests/jobtest"
)

// A calm job makes the updates of a job again, to the same bits; and if the account of them is not what was done, that
// is found.
func TestCalmJob(t *testing.T) {
	if testing.Short() {
		t.Skip("four jobs, made again six times each")
	}
	t.Parallel()
	for name, own := range map[string][]string{
		"ring":  {"--arch", "allreduce", "--shards", "0", "--lr", "0.01"},
		"asgd":  {"--mode", "asgd", "--slow", "0:+2ms"},
		"dana":  {"--mode", "x=2", "--optimizer", "dana", "--slow", "0:+2ms"},
		"ssgd":  {"--mode", "ssgd", "--clip", "0.5", "--optimizer", "adam", "--lr", "0.01"},
		"queue": {"--mode", "ssgd queue=4", "--slow", "0:+2ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			args := append([]string{"--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--workers", "3", "--shards", "2", "--model", "softmax",
				"--batch", "8", "--steps", "60", "--eval-every", "0", "--out", dir}, own...)
			if out, err := exec.Command(jobtest.Star(t), append([]string{"run", "--progress", "off", "--json"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			job := jobtest.Settings(t, args...)
			for _, c := range []struct {
				what string
				do   func(us []chaos.Update)
				want string // in the detail of an invariant that is broken; empty: it is kept
			}{
				{"nothing", func([]chaos.Update) {}, ""},
				{"another loss", func(us []chaos.Update) { us[20].Members[0].Loss = 0.125 }, "is of other parameters than version"},
				{"other samples", func(us []chaos.Update) { us[20].Members[0].Start += 8 }, "is of other parameters than version"},
				{"no weight", func(us []chaos.Update) { us[20].Members[0].Out = true }, "in a calm job"},
				{"another round", func(us []chaos.Update) { us[20].Live = us[20].Live[:2] }, "in a calm job"},
				{"another plan at the end", func(us []chaos.Update) { us[len(us)-1].Live = us[20].Live[:2] }, "differ in"},
			} {
				kept := "the same bits"
				// members add up in another order, log no gradient with its samples, and say of how many a round is
				if name == "ring" {
					if kept = "of the way apart, 0.001 allowed"; strings.HasPrefix(c.what, "another ") {
						continue
					} else if c.want != "" {
						c.want = "apart from those of a calm job"
					}
				}
				lives, err := chaos.ReadAll(runLogs(dir), os.ReadFile)
				if err != nil {
					t.Fatal(err)
				}
				c.do(lives[0].Updates)
				got := (&breaker{job: job}).calm(t.Context(), lives, time.Minute)
				if c.want == "" && (!got.OK || !strings.Contains(got.Detail, kept)) || c.want != "" && (got.OK || !strings.Contains(got.Detail, c.want)) {
					t.Errorf("%s: %+v, want %q", c.what, got, c.want)
				}
			}
		})
	}
}

// A ring does not fail because its training amplifies rounding: the check reports that there is nothing to compare.
func TestCalmJobOfUnstableTraining(t *testing.T) {
	t.Parallel()
	args := []string{"--arch", "allreduce", "--dataset", "digits:n=400,test=100", "--workers", "3", "--model", "mlp", "--batch", "4", "--steps", "400", "--lr", "0.2", "--clip", "1"}
	_, dir := jobtest.Run(t, append(args, "--slow", "none", "--mode", "ssgd")...)
	job := jobtest.Settings(t, append(args, "--out", dir)...)
	lives, err := chaos.ReadAll(runLogs(dir), os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	if got := (&breaker{job: job}).calm(t.Context(), lives, time.Minute); !got.OK || !strings.Contains(got.Detail, "training is not stable") {
		t.Errorf("%+v", got)
	}
}

// Parameters that a worker was sent by one shard later than by another are found, however many updates lie between;
// those of no version that it can have been sent are not.
func TestTorn(t *testing.T) {
	job := jobtest.Settings(t, "--dataset", "digits:n=40,test=10", "--model", "softmax", "--batch", "8")
	c, err := node.NewCalm(job)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k := &calmJob{Calm: c, job: job, begin: slices.Clone(c.Params()), shards: 3, past: map[int64][]float32{}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for v := range int64(26) {
		k.past[v] = make([]float32, len(k.begin))
		for i := range k.past[v] {
			k.past[v][i] = 0.01 * rnd.Float32()
		}
	}
	for _, x := range []struct {
		sent  [3]int64
		found bool
	}{
		{[3]int64{10, 10, 11}, true},
		{[3]int64{10, 25, 10}, true}, // a connection has ended, and others have made updates
		{[3]int64{25, 25, 10}, true},
		{[3]int64{20, 19, 19}, true}, // it has come while updates went on
		{[3]int64{10, 9, 10}, false}, // before its basis
		{[3]int64{10, 11, 12}, false},
	} {
		params, n := slices.Clone(k.begin), len(k.begin)
		for s, v := range x.sent {
			copy(params[n*s/3:n*(s+1)/3], k.past[v][n*s/3:n*(s+1)/3])
		}
		m := &wanted{Member: chaos.Member{Basis: 10, Samples: 8, Said: true}, use: 26}
		want, err := gradient(t.Context(), k.Calm, params, m)
		if err != nil {
			t.Fatal(err)
		}
		m.Loss, m.Norm2 = want.Loss, want.Norm2
		if m.g, err = gradient(t.Context(), k.Calm, k.past[10], m); err != nil {
			t.Fatal(err)
		}
		var u *unlike
		if err := k.torn(t.Context(), m); m.right != x.found || x.found && !slices.Equal(m.g.Vec, want.Vec) || errors.As(err, &u) == x.found {
			t.Errorf("sent versions %v: found %v, %v", x.sent, m.right, err)
		}
	}
}

// A ring with a queue of samples makes the updates of one process that has the union of its members' samples, whether
// gradients go in one piece or in buckets. Softmax has no ReLU, which a rounding may turn on or off.
func TestRingQueueIsOneProcess(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	apart := regexp.MustCompile(`1 checkpoints: at most (\S+) of the way apart`)
	for name, own := range map[string][]string{
		"whole, dana":             nil,
		"buckets, heavy ball":     {"--bucket", "0.01", "--optimizer", "momentum", "--clip", "0.5", "--weight-decay", "1e-4"},
		"buckets, shares, no own": {"--bucket", "0.01", "--optimizer", "sgd", "--mode", "ssgd queue=4 shares=20,16,16,12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--arch", "allreduce", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "4", "--batch", "16", "--steps", "25", "--lr", "0.01",
				"--eval-every", "0", "--mode", "ssgd queue=8", "--slow", "3:+5ms"}, own...)
			_, dir := jobtest.Run(t, args...)
			job := jobtest.Settings(t, append(args, "--out", dir)...)
			for _, c := range []struct {
				what string
				do   func(g *chaos.Member)
				near bool
			}{
				{"nothing", func(*chaos.Member) {}, true},
				{"a member counts for nothing", func(g *chaos.Member) { g.Out = true }, false},
				{"a member counts for two samples more", func(g *chaos.Member) { g.Samples += 2 }, false},
			} {
				lives, err := chaos.ReadAll(runLogs(dir), os.ReadFile)
				if err != nil {
					t.Fatal(err)
				}
				c.do(&lives[0].Updates[len(lives[0].Updates)/2].Members[1])
				got := (&breaker{job: job}).calm(t.Context(), lives, time.Minute)
				near := false
				if m := apart.FindStringSubmatch(got.Detail); m != nil {
					d, err := strconv.ParseFloat(m[1], 64)
					near = err == nil && d <= 1e-5
				}
				if got.OK != c.near || near != c.near {
					t.Errorf("%s: %+v", c.what, got)
				}
			}
		})
	}
}

// A checkpoint that no attempt has logged belongs to the last attempt that reached its version, where attempts started
// again from the beginning.
func TestCheckpointsOfAttempts(t *testing.T) {
	attempt := func(from, version int64, saved ...string) *chaos.Attempt {
		return &chaos.Attempt{From: from, Version: version, SavedAs: saved, Updates: make([]chaos.Update, version-from)}
	}
	restarted := []*chaos.Attempt{attempt(0, 200), attempt(0, 79, "ckpt-79"), attempt(79, 300)}
	for _, c := range []struct {
		name     string
		attempts []*chaos.Attempt
		version  int64
		want     []bool // of each attempt
	}{
		{"the second starts from the beginning", restarted, 79, []bool{false, true, false}},
		{"no attempt starts at the version", restarted, 78, []bool{false, false, false}},
		{"an attempt without updates lies between", []*chaos.Attempt{attempt(0, 50), attempt(0, 0), attempt(40, 90)}, 40, []bool{true, false, false}},
		{"two attempts start at the version", []*chaos.Attempt{attempt(0, 50), attempt(40, 45), attempt(40, 90)}, 40, []bool{true, false, false}},
	} {
		for i, want := range c.want {
			if got := lastBefore(c.attempts, i, c.version); got != want {
				t.Errorf("%s: attempt %d: %v, want %v", c.name, i, got, want)
			}
		}
	}
	if unclaimed(restarted, "ckpt-79") || !unclaimed(restarted, "ckpt-78") {
		t.Error("ckpt-79 is logged by the second attempt, and ckpt-78 by none")
	}
}
