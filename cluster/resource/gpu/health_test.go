package gpu

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nvidia-smi, where NVML does not answer: a script in its place.
func TestExamineSMI(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	for _, c := range []struct {
		name, rows string
		want       []Health
		error_     string
	}{
		{"two", "0, GPU-a, NVIDIA H100, 2, No, 0x0000000000000008, 8, 16, 5, 5\n1, GPU-b, Tesla T4, [N/A], Yes, 0x0000000000000001, 16, 16, 1, 3\n", []Health{
			{UUID: "GPU-a", Name: "NVIDIA H100", Uncorrected: 2, Reasons: 8, Width: 8, WidthMost: 16, Generation: 5, GenMost: 5, NVLinks: -1, Recoveries: -1},
			{Index: 1, UUID: "GPU-b", Name: "Tesla T4", Uncorrected: -1, RepairPending: true, Reasons: 1, Width: 16, WidthMost: 16, Generation: 1, GenMost: 3, NVLinks: -1, Recoveries: -1},
		}, ""},
		{"none", "", nil, ""},
		{"words", "No devices were found\n", nil, "nvidia-smi: not the fields that were asked for"},
	} {
		smi := filepath.Join(t.TempDir(), "smi")
		if err := os.WriteFile(smi, []byte("#!/bin/sh\ncat <<'E'\n"+c.rows+"E\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		hs, err := Examine(t.Context(), Config{Program: smi, Drivers: []string{}, Sampler: []string{"no-such-program"}})
		if c.error_ != "" {
			if err == nil || !strings.Contains(err.Error(), c.error_) {
				t.Errorf("%s: %v, %v", c.name, hs, err)
			}
		} else if err != nil || !cmp.Equal(hs, c.want) {
			t.Errorf("%s: %v\n%s", c.name, err, cmp.Diff(c.want, hs))
		}
	}
	if hs, err := Examine(t.Context(), Config{Program: "no-such-smi", Drivers: []string{"/no/such/driver"}}); hs != nil || err != nil {
		t.Errorf("no GPU: %v, %v", hs, err)
	}
	if hs, err := Examine(t.Context(), Config{Program: "no-such-smi", Drivers: []string{os.Args[0]}, Sampler: []string{"no-such-program"}}); err == nil {
		t.Errorf("a driver, and no process to ask it: %v", hs)
	}
}
