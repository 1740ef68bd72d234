package servers

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"star/job/process"
	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// leftOut is the sum over the workers of weight times what their codecs had left out by the newest checkpoint of a job,
// and of how many.
func leftOut(t *testing.T, dir string) (sum []float64, workers int) {
	t.Helper()
	c, _, err := checkpoint.Latest(filepath.Join(dir, process.CheckpointsDir))
	if err != nil {
		t.Fatal(err)
	}
	sum = make([]float64, c.Manifest().Params)
	part := make([]float32, len(sum))
	for _, f := range c.Residuals().Files() {
		if err := c.Residuals().Range(f.Worker, 0, part); err != nil {
			t.Fatal(err)
		}
		for i, v := range part {
			sum[i] += f.Weight * float64(v)
		}
	}
	return sum, len(c.Residuals().Files())
}

// A job with top-k that stops and goes on has the parameters, and leaves out, to the bit, what one has and leaves out
// that never stopped. One that goes on with fewer workers and the other architecture loses nothing of what was left
// out.
func TestResidualsGoOn(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) {
			flags := func(arch, steps string, more ...string) []string {
				return append([]string{"--arch", arch, "--mode", "ssgd", "--compress", "topk=0.01", "--model", "mlp:hidden=32",
					"--poison", "off", "--eval-every", "0", "--steps", steps}, more...)
			}
			whole, dir := jobtest.Run(t, flags(arch, "12", "--workers", "3")...)
			half, first := jobtest.Run(t, flags(arch, "6", "--workers", "3")...)
			second, last := jobtest.Run(t, flags(arch, "12", "--workers", "3", "--resume", half.Checkpoint)...)
			if a, b := jobtest.Parameters(t, whole), jobtest.Parameters(t, second); !equalBits(a, b) {
				t.Error("other parameters than without a stop")
			}
			a, n := leftOut(t, dir)
			b, m := leftOut(t, last)
			if n != 3 || m != 3 || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("%d and %d workers have left out something else than without a stop", n, m)
			}
			other := map[string]string{"ps": "allreduce", "allreduce": "ps"}[arch]
			// which has nothing left to do
			_, fewer := jobtest.Run(t, flags(other, "1", "--workers", "2", "--resume", half.Checkpoint)...)
			a, _ = leftOut(t, first)
			b, n = leftOut(t, fewer)
			var off, size float64
			for i := range a {
				off, size = math.Hypot(off, a[i]-b[i]), math.Hypot(size, a[i])
			}
			if n != 2 || size == 0 || off > 1e-6*size {
				t.Errorf("with %s, %d workers have left out a sum that differs by %v from one of length %v", other, n, off, size)
			}
		})
	}
}

func equalBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b) && len(a) > 0
}
