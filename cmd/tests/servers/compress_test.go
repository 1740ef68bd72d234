package servers

import (
	"testing"

	"star/cmd/tests/jobtest"
)

// A job learns the digits with a hundredth of its gradients, and sends no more than
// the codec says.
func TestCompressedJobsLearn(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	const params = 61706
	for _, c := range []struct {
		codec       string
		least, most float64 // bytes of a push, as a share of float32
	}{
		{"int8", 0.254, 0.257},
		{"topk=0.01", 0.0125, 0.0145},
		{"powersgd=4", 0.05, 0.15},
	} {
		r, dir := jobtest.Run(t, "--compress", c.codec, "--dataset", "digits", "--model", "lenet", "--workers", "3", "--shards", "2",
			"--steps", "350", "--eval-every", "0")
		if r.TestAccuracy < 0.9 {
			t.Errorf("%s: accuracy %v after %d updates, want at least 0.9", c.codec, r.TestAccuracy, r.Updates)
		}
		if share := jobtest.Pushed(t, dir) / (4 * params); share < c.least || share > c.most {
			t.Errorf("%s: a push takes %.4f of a gradient's bytes, want %v to %v", c.codec, share, c.least, c.most)
		}
	}
}

// Gradients that the plan drops go back to what the codec left out; auto on one host
// changes no bit.
func TestCompressWithModes(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	r, _ := jobtest.Run(t, "--compress", "topk=0.1", "--mode", "backup=1", "--workers", "3", "--model", "mlp", "--steps", "30", "--slow", "2:+20ms")
	if r.Updates == 0 || r.Samples == 0 {
		t.Errorf("result %+v", r)
	}
	plain, _ := jobtest.Run(t, "--model", "mlp", "--workers", "2", "--steps", "10")
	auto, dir := jobtest.Run(t, "--model", "mlp", "--workers", "2", "--steps", "10", "--compress", "auto")
	a, b := jobtest.Parameters(t, plain), jobtest.Parameters(t, auto)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("parameter %d is %v with --compress auto, %v without", i, b[i], a[i])
		}
	}
	if got := jobtest.Pushed(t, dir) / float64(4*len(a)); got < 1 || got > 1.01 {
		t.Errorf("with auto on one host a push takes %.4f of a gradient's bytes, want 1", got)
	}
}
