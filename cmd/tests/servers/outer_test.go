package servers

import (
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/runlog"
)

// outerRun are the settings of a small job with local steps.
func outerRun(more ...string) []string {
	return append([]string{"--workers", "3", "--model", "softmax", "--dataset", "digits:n=96,test=16", "--batch", "4", "--steps", "24", "--lr", "0.05", "--eval-every", "0"}, more...)
}

// An outer step with rate 1 and no momentum takes the mean of the workers' parameters, whatever their optimiser; so
// does local SGD. Momentum and look-ahead make no difference where no distance is late, and servers and rings make
// the same.
func TestOuterSteps(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			for _, optimizer := range []string{"dana", "adam"} {
				run := outerRun("--arch", arch, "--optimizer", optimizer)
				a, _ := jobtest.Run(t, append([]string{"--mode", "ssgd local=4 outer=nesterov(0,1)"}, run...)...)
				b, _ := jobtest.Run(t, append([]string{"--baseline", "local-sgd:steps=4"}, run...)...)
				if a.Updates != 6 || a.Samples != 3*24*4 {
					t.Fatalf("%d updates of %d samples", a.Updates, a.Samples)
				}
				if d := apart(t, b, a); !(d < 1e-5) {
					t.Errorf("%s: %.2g apart from local SGD", optimizer, d)
				}
			}
		})
	}
	t.Run("rules", func(t *testing.T) {
		t.Parallel()
		base, _ := jobtest.Run(t, outerRun("--arch", "ps", "--shards", "2", "--mode", "ssgd local=4 outer=nesterov(0.8,0.5)", "--clip", "0.5")...)
		for _, args := range [][]string{
			{"--arch", "ps", "--mode", "ssgd local=4 outer=delayed(0.8,0.5)"}, {"--arch", "ps", "--mode", "ssgd local=4 outer=lookahead(0.8,0.5)"},
			{"--arch", "allreduce", "--mode", "ssgd local=4 outer=nesterov(0.8,0.5)"}, {"--arch", "ps", "--baseline", "diloco:steps=4,outer-lr=0.5,outer-momentum=0.8"},
		} {
			other, _ := jobtest.Run(t, outerRun(append(args, "--clip", "0.5")...)...)
			if d := apart(t, base, other); !(d < 1e-5) {
				t.Errorf("%v: %.2g apart", args, d)
			}
		}
	})
	t.Run("leftovers", func(t *testing.T) { // the last update is of one or two workers, which are not the mean of all
		t.Parallel()
		for _, steps := range []string{"25", "26"} {
			run := outerRun("--mode", "ssgd local=4 outer=nesterov(0.5,0.7)", "--steps", steps)
			base, _ := jobtest.Run(t, append(run, "--arch", "ps")...)
			ring, _ := jobtest.Run(t, append(run, "--arch", "allreduce")...)
			if d := apart(t, base, ring); base.Updates != 7 || !(d < 1e-5) {
				t.Errorf("%s steps: a ring is %.2g apart from servers after %d updates", steps, d, base.Updates)
			}
		}
	})
	t.Run("codecs", func(t *testing.T) {
		t.Parallel()
		base, _ := jobtest.Run(t, outerRun("--mode", "ssgd local=4 outer=nesterov(0.5,0.7)", "--optimizer", "sgd")...)
		for _, codec := range []string{"int2", "topk=0.1"} {
			r, _ := jobtest.Run(t, outerRun("--mode", "ssgd local=4 outer=nesterov(0.5,0.7)", "--optimizer", "sgd", "--compress", codec)...)
			if d := apart(t, base, r); !(d < 0.5) {
				t.Errorf("%s: %.2g apart", codec, d)
			}
			r, _ = jobtest.Run(t, outerRun("--mode", "x=2 grace=20ms local=4 steps=speed outer=delayed(0.5,0.7)", "--optimizer", "sgd", "--compress", codec)...)
			if r.Samples != 3*24*4 {
				t.Errorf("%s: %d samples", codec, r.Samples)
			}
		}
	})
}

// A job that resumes has the velocity of its outer steps: with an inner optimiser that remembers nothing it has the
// bits of one that was never stopped. Another rule is refused, with exit code 78.
func TestOuterStepsResume(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, arch := range []string{"ps", "allreduce"} {
		args := []string{"--arch", arch, "--workers", "2", "--model", "softmax", "--dataset", "digits:n=96,test=16", "--batch", "4", "--optimizer", "sgd", "--lr", "0.05", "--eval-every", "0"}
		mode := []string{"--mode", "ssgd local=4 outer=nesterov"}
		whole, _ := jobtest.Run(t, append(append(args, mode...), "--steps", "24")...)
		half, _ := jobtest.Run(t, append(append(args, mode...), "--steps", "12")...)
		rest, _ := jobtest.Run(t, append(append(args, mode...), "--steps", "24", "--resume", half.Checkpoint)...)
		if d := apart(t, whole, rest); d != 0 {
			t.Errorf("%s: %.2g apart after a resume", arch, d)
		}
		other := append(append([]string{"run"}, args...), "--steps", "36", "--resume", half.Checkpoint, "--mode", "ssgd local=4 outer=nesterov(0.5,0.7)", "--out", t.TempDir(), "--listen", "127.0.0.1:0")
		out, err := exec.Command(jobtest.Star(t), other...).CombinedOutput()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 78 || !strings.Contains(string(out), "outer=nesterov(0.9,0.7)") {
			t.Errorf("%s: resuming with another rule ends with %v\n%s", arch, err, out)
		}
	}
}

// What is wrong with a plan of outer steps is a usage error that names it.
func TestOuterStepsRefused(t *testing.T) {
	for _, c := range []struct {
		mode, says string
		more       []string
	}{
		{"ssgd outer=nesterov", "needs local steps: add local=H", nil},
		{"ssgd local=4 outer=nesterov(1,0.7)", "momentum 1 is not in 0..0.9999", nil},
		{"ssgd local=4 steps=speed", "steps=speed needs", nil},
		{"ssgd local=64 outer=nesterov", "more than the epoch of 96: use local=24 or less", nil},
		{"ssgd local=4", "add outer=nesterov to the mode", []string{"--compress", "int2"}},
		{"ssgd local=4 outer=nesterov fragments=8", "fragments=8 does not divide local=4", nil},
		{"x=2 grace=1s", "grace needs a group with a quorum", nil},
		{"x=1 local=4 outer=nesterov", "all-reduce needs one ring in which all members wait", []string{"--arch", "allreduce"}},
	} {
		args := append([]string{"run", "--workers", "2", "--model", "softmax", "--dataset", "digits:n=96,test=16", "--batch", "4", "--steps", "4", "--out", t.TempDir(), "--listen", "127.0.0.1:0", "--mode", c.mode}, c.more...)
		out, err := exec.Command(jobtest.Star(t), args...).CombinedOutput()
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 2 || !strings.Contains(string(out), c.says) {
			t.Errorf("%s %v: ends with %v, want exit code 2 and %q\n%s", c.mode, c.more, err, c.says, out)
		}
	}
}

// Exchanges in fragments use every sample once, through any codec, with workers that leave and come, after a resume and
// beside another mode. Copies of shards make the same bits as single ones.
func TestFragments(t *testing.T) {
	jobtest.AboutNumbers(t)
	mode := []string{"--mode", "ssgd local=4 outer=nesterov(0.5,0.7) fragments=2", "--shards", "2"}
	run := func(t *testing.T, more ...string) runlog.Result {
		t.Helper()
		r, _ := jobtest.Run(t, outerRun(append(mode, more...)...)...)
		return r
	}
	base := run(t)
	if base.Updates != 12 || base.Samples != 3*24*4 {
		t.Fatalf("%d updates of %d samples, want 12 of 288", base.Updates, base.Samples)
	}
	t.Run("codecs", func(t *testing.T) {
		t.Parallel()
		for _, codec := range []string{"int2", "topk=0.1", "powersgd=2"} {
			if r := run(t, "--compress", codec); r.Samples != base.Samples || !(apart(t, base, r) < 0.5) {
				t.Errorf("%s: %d samples, %.2g apart", codec, r.Samples, apart(t, base, r))
			}
		}
	})
	t.Run("resume", func(t *testing.T) {
		t.Parallel()
		half := run(t, "--steps", "12")
		rest := run(t, "--resume", half.Checkpoint)
		if half.Samples+rest.Samples != base.Samples || half.Updates+rest.Updates != base.Updates {
			t.Errorf("%d and %d updates of %d and %d samples", half.Updates, rest.Updates, half.Samples, rest.Samples)
		}
		for _, next := range []string{"ssgd local=4 outer=nesterov(0.5,0.7)", "ssgd"} {
			if r, _ := jobtest.Run(t, outerRun("--mode", next, "--shards", "2", "--resume", half.Checkpoint)...); half.Samples+r.Samples != base.Samples {
				t.Errorf("%s after fragments: %d samples", next, r.Samples)
			}
		}
	})
	t.Run("rings", func(t *testing.T) {
		t.Parallel()
		ring := func(more ...string) runlog.Result {
			r, _ := jobtest.Run(t, outerRun(append([]string{"--arch", "allreduce"}, append(mode[:2:2], more...)...)...)...)
			return r
		}
		half := ring("--steps", "12")
		for what, first := range map[string]runlog.Result{"a ring": half, "servers": run(t, "--steps", "12")} {
			if rest := ring("--resume", first.Checkpoint); first.Samples+rest.Samples != base.Samples || first.Updates+rest.Updates != base.Updates {
				t.Errorf("a ring after %s: %d and %d updates of %d and %d samples", what, first.Updates, rest.Updates, first.Samples, rest.Samples)
			}
		}
		if rest := run(t, "--resume", half.Checkpoint); half.Samples+rest.Samples != base.Samples {
			t.Errorf("servers after a ring: %d and %d samples", half.Samples, rest.Samples)
		}
	})
	t.Run("copies", func(t *testing.T) {
		t.Parallel()
		if r := run(t, "--servers", "2", "--replicas", "2"); r.Samples != base.Samples || apart(t, base, r) != 0 {
			t.Errorf("with copies: %d samples, %.2g apart", r.Samples, apart(t, base, r))
		}
	})
}
