package servers

import (
	"testing"

	"star/cmd/tests/jobtest"
)

// A job with updates of one gradient measures noise by what workers say of consecutive ones, exact or compressed: from
// the second step of each worker on.
func TestNoiseOfASGD(t *testing.T) {
	jobtest.AboutNumbers(t)
	for name, args := range map[string][]string{
		"exact":      {"--workers", "2", "--mode", "asgd"},
		"compressed": {"--workers", "2", "--mode", "asgd", "--compress", "int8"},
		"ring of 1":  {"--workers", "1", "--arch", "allreduce"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, dir := jobtest.Run(t, append(args, "--model", "softmax", "--steps", "40", "--batch", "8")...)
			records := jobtest.RunLog[struct {
				Telemetry struct {
					Change *float64 `json:"grad_change"`
				}
			}](t, dir, "record")
			told := 0
			for _, r := range records {
				if r.Telemetry.Change != nil {
					told++
				}
			}
			noise := jobtest.RunLog[struct {
				Var, Scale float64
				Mixed      bool
			}](t, dir, "noise")
			if workers := map[bool]int{true: 1, false: 2}[name == "ring of 1"]; told != len(records)-workers || len(noise) < told*3/4 || len(noise) > told {
				t.Fatalf("%d of %d records tell how the gradient changed, %d lines of noise", told, len(records), len(noise))
			}
			for i, n := range noise {
				if !n.Mixed || !(n.Scale > 0) {
					t.Fatalf("line %d: %+v", i, n)
				}
			}
		})
	}
}
