package gpu

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const smiRows = "0, GPU-a, NVIDIA H100 80GB HBM3, 81559, Disabled\n1, GPU-b, NVIDIA A100-SXM4-40GB, 40960, Enabled\n2, GPU-c, NVIDIA A30, [N/A], Enabled\n3, GPU-d, Tesla T4, [N/A], [N/A]\n"

const smiSlices = `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)
  MIG 3g.20gb     Device  0: (UUID: MIG-1)
  MIG 1c.2g.10gb  Device  1: (UUID: MIG-2)
  MIG 1g.5gb+me   Device  2: (UUID: MIG-3)
GPU 2: NVIDIA A30 (UUID: GPU-c)
  MIG 2g.12gb     Device  0: (UUID: MIG-4)
GPU 3: Tesla T4 (UUID: GPU-d)
`

// nvidia-smi, where NVML does not answer: a script in its place.
func TestListSMI(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	all := []Device{
		{Index: 0, UUID: "GPU-a", Name: "NVIDIA H100 80GB HBM3", Memory: 81559 << 20},
		{Index: 1, UUID: "MIG-1", Name: "NVIDIA A100-SXM4-40GB", Slices: 3, Of: 7, Memory: 20e9},
		{Index: 1, UUID: "MIG-2", Name: "NVIDIA A100-SXM4-40GB", Slices: 2, Of: 7, Memory: 10e9},
		{Index: 1, UUID: "MIG-3", Name: "NVIDIA A100-SXM4-40GB", Slices: 1, Of: 7, Memory: 5e9},
		{Index: 2, UUID: "MIG-4", Name: "NVIDIA A30", Slices: 2, Of: 4, Memory: 12e9},
		{Index: 3, UUID: "GPU-d", Name: "Tesla T4"},
	}
	for _, c := range []struct {
		name, rows, visible string
		set                 bool
		want                []Device
		error_              string
	}{
		{name: "all", rows: smiRows, want: all},
		{name: "none", rows: ""},
		{name: "some", rows: smiRows, set: true, visible: "3, MIG-2", want: []Device{all[5], all[2]}},
		{name: "beginning of a UUID", rows: smiRows, set: true, visible: "GPU-a", want: all[:1]},
		{name: "up to one that is not there", rows: smiRows, set: true, visible: "0,9,3", want: all[:1]},
		{name: "one twice", rows: smiRows, set: true, visible: "0,0,3", want: all[:1]},
		{name: "none may be used", rows: smiRows, set: true, visible: ""},
		{name: "words", rows: "No devices were found\n", error_: "not the fields that were asked for"},
		{name: "a word", rows: "x, a, b, 1, Disabled\n", error_: `"x" is no index`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("CUDA_VISIBLE_DEVICES", c.visible)
			if !c.set {
				os.Unsetenv("CUDA_VISIBLE_DEVICES")
			}
			dir := t.TempDir()
			smi := filepath.Join(dir, "smi")
			script := "#!/bin/sh\ncase \"$1\" in\n-L) cat <<'E'\n" + smiSlices + "E\n;;\n*) cat <<'E'\n" + c.rows + "E\n;;\nesac\n"
			if err := os.WriteFile(smi, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			ds, err := List(t.Context(), Config{Program: smi, Drivers: []string{}, Sampler: []string{"no-such-program"}})
			if c.error_ != "" {
				if err == nil || !strings.Contains(err.Error(), c.error_) {
					t.Errorf("%v, %v", ds, err)
				}
			} else if err != nil || !cmp.Equal(ds, c.want) {
				t.Errorf("%v\n%s", err, cmp.Diff(c.want, ds))
			}
		})
	}
	if ds, err := List(t.Context(), Config{Program: "no-such-smi", Drivers: []string{"/no/such/driver"}}); ds != nil || err != nil {
		t.Errorf("no GPU: %v, %v", ds, err)
	}
	if ds, err := List(t.Context(), Config{Program: "no-such-smi", Drivers: []string{os.Args[0]}, Sampler: []string{"no-such-program"}}); err == nil {
		t.Errorf("a driver, and nobody to ask it: %v", ds)
	}
}
