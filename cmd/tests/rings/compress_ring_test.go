package rings

import (
	"os"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
)

// A ring learns the digits with every codec, and sends no more than the codec says. That all
// members have the same bits the coordinator checks itself.
func TestCompressedRingsLearn(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	const params = 61706
	for _, c := range []struct {
		codec       string
		least, most float64 // bytes of a round, as a share of a ring's of float32
	}{
		{"fp16", 0.5, 0.501},
		{"int8", 0.253, 0.257},
		{"topk=0.01", 0.018, 0.021}, // of three members: two messages, in place of 4/3 of a gradient
		{"powersgd=4", 0.05, 0.15},
	} {
		r, dir := jobtest.Run(t, "--arch", "allreduce", "--compress", c.codec, "--dataset", "digits", "--model", "lenet", "--workers", "3",
			"--steps", "300", "--eval-every", "1")
		if r.TestAccuracy < 0.9 {
			t.Errorf("%s: accuracy %v after %d updates, want at least 0.9", c.codec, r.TestAccuracy, r.Updates)
		}
		type choice struct{ Codec string }
		if said := jobtest.RunLog[choice](t, dir, "compression"); len(said) != 1 || said[0].Codec != c.codec {
			t.Errorf("%s: the run log has %+v", c.codec, said)
		}
		if share := jobtest.Pushed(t, dir) / (4 * params * 4 / 3); share < c.least || share > c.most {
			t.Errorf("%s: a round takes %.4f of float32's bytes, want %v to %v", c.codec, share, c.least, c.most)
		}
	}
}

// Buckets that are exchanged while the rest is computed make the same as those that are
// exchanged after it; a job repeats; on one host auto changes no bit.
func TestCompressedRingRepeats(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "mlp", "--workers", "3", "--steps", "20", "--batch", "8", "--lr", "0.05", "--arch", "allreduce", "--bucket", "0.1"}
	for _, codec := range []string{"int8", "topk=0.05", "powersgd=2"} {
		overlap, _ := jobtest.Run(t, append(args, "--compress", codec)...)
		after, _ := jobtest.Run(t, append(args, "--compress", codec, "--slow", "1:+1ms")...)
		jobtest.SameBits(t, codec+", with and without overlap", jobtest.Parameters(t, overlap), jobtest.Parameters(t, after))
	}
	plain, _ := jobtest.Run(t, args...)
	auto, _ := jobtest.Run(t, append(args, "--compress", "auto")...)
	jobtest.SameBits(t, "auto and none", jobtest.Parameters(t, plain), jobtest.Parameters(t, auto))
}

// Members are killed, become riders and return while gradients are compressed.
func TestCompressedRingChanges(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	codecs := []string{"topk=0.05", "int8", "powersgd=2"}
	if testing.Short() {
		codecs = codecs[:1]
	}
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) {
			cmd, addr, dir, out, errs := ringJob(t, "--workers", "5",
				"--mode", "ring-minus=4", "--slow", "4:2x", "--compress", codec)
			jobtest.AtVersion(t, addr, 20, errs)
			jobtest.KillWorker(t, cmd, 2, syscall.SIGKILL)
			v := jobtest.AtVersion(t, addr, 60, errs).Version
			jobtest.Ctl(t, addr, "mode", "ring-minus=1,4")
			v = jobtest.AtVersion(t, addr, v+30, errs).Version
			jobtest.Ctl(t, addr, "mode", "ssgd")
			v = jobtest.AtVersion(t, addr, v+30, errs).Version
			jobtest.KillWorker(t, cmd, 0, syscall.SIGKILL)
			jobtest.AtVersion(t, addr, v+40, errs)
			if r := jobtest.Stopped(t, cmd, addr, dir, out, errs); r.TestAccuracy < 0.5 {
				t.Errorf("accuracy %v after %d updates, want at least 0.5", r.TestAccuracy, r.Updates)
			}
		})
	}
}
