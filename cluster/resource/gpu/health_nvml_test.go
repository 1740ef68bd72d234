//go:build linux && cgo && !nonvml

package gpu

import (
	"os"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

// well makes a GPU of dgx answer that it has no faults, and as many NVLinks as given.
func well(d *mock.Device, links int) {
	d.GetTotalEccErrorsFunc = func(e nvml.MemoryErrorType, c nvml.EccCounterType) (uint64, nvml.Return) {
		if e != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || c != nvml.VOLATILE_ECC {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return 0, nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS }
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetCurrPcieLinkGenerationFunc = func() (int, nvml.Return) { return 4, nvml.SUCCESS }
	d.GetMaxPcieLinkGenerationFunc = func() (int, nvml.Return) { return 4, nvml.SUCCESS }
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link < links {
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	d.GetNvLinkErrorCounterFunc = func(link int, c nvml.NvLinkErrorCounter) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
}

func TestExamineNVML(t *testing.T) {
	sound := Health{UUID: "x", Name: "x", Reasons: 0x24, Width: 8, WidthMost: 16, Generation: 4, GenMost: 4, NVLinks: 12}
	for _, c := range []struct {
		name string
		set  func(*mock.Device)
		want func(*Health)
	}{
		{"well", func(*mock.Device) {}, func(*Health) {}},
		{"errors of memory", func(d *mock.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 7, nvml.SUCCESS }
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, true, nvml.SUCCESS }
		}, func(h *Health) { h.Uncorrected, h.RepairPending, h.RepairFailed = 7, true, true }},
		{"retired pages", func(d *mock.Device) {
			d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
		}, func(h *Health) { h.RepairPending = true }},
		{"NVLinks", func(d *mock.Device) {
			up := d.GetNvLinkStateFunc
			d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
				if link == 3 {
					return nvml.FEATURE_DISABLED, nvml.SUCCESS
				}
				return up(link)
			}
			d.GetNvLinkErrorCounterFunc = func(link int, c nvml.NvLinkErrorCounter) (uint64, nvml.Return) { return uint64(link % 2), nvml.SUCCESS }
		}, func(h *Health) { h.NVLinks, h.NVLinksDown, h.Recoveries = 11, 1, 5 }},
		{"not supported", func(d *mock.Device) {
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
				return 0, nvml.ERROR_NOT_SUPPORTED
			}
			d.GetMaxPcieLinkGenerationFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
			d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}, func(h *Health) { h.Uncorrected, h.GenMost, h.NVLinks, h.Recoveries = -1, -1, 0, -1 }},
		{"lost", func(d *mock.Device) {
			d.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
		}, func(h *Health) { h.Width, h.Lost = -1, nvml.ERROR_GPU_IS_LOST.Error() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dgx()
			d := gpu0(s)
			well(&d.Device, 12)
			c.set(&d.Device)
			s.DeviceGetCountFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
			hs, err := examineAll(s)
			if err != nil || len(hs) != 1 {
				t.Fatalf("%v %v", hs, err)
			}
			want := sound
			want.UUID, want.Name = hs[0].UUID, hs[0].Name
			c.want(&want)
			if !cmp.Equal(hs[0], want) || hs[0].UUID == "" {
				t.Error(cmp.Diff(want, hs[0]))
			}
		})
	}
}

func init() {
	children["health"] = func() {
		printAnswer(os.Stdout, func() ([]Health, error) {
			s := dgx()
			well(&gpu0(s).Device, 2)
			s.DeviceGetCountFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
			return examineAll(s)
		})
	}
}

// The process prints what Examine reads.
func TestExamineChild(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "7") // does not count
	hs, err := Examine(t.Context(), child(t, "health"))
	if err != nil || len(hs) != 1 || hs[0].NVLinks != 2 || hs[0].GenMost != 4 {
		t.Errorf("%+v, %v", hs, err)
	}
}
