//go:build linux && cgo && !nonvml

package gpu

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"
)

// divide makes a GPU of dgx one in MIG mode, with these slices; a nil one could be made.
func divide(d *server.Device, parts ...*mock.Device) {
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return len(parts), nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if parts[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return parts[i], nvml.SUCCESS
	}
}

func slice(uuid string, parts uint32, total uint64) *mock.Device {
	d := new(mock.Device)
	d.GetUUIDFunc = func() (string, nvml.Return) { return uuid, nvml.SUCCESS }
	d.GetAttributesFunc = func() (nvml.DeviceAttributes, nvml.Return) {
		return nvml.DeviceAttributes{GpuInstanceSliceCount: parts, MemorySizeMB: 19968}, nvml.SUCCESS
	}
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		if total == 0 {
			return nvml.Memory_v2{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.Memory_v2{Total: total, Reserved: 1000}, nvml.SUCCESS
	}
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	return d
}

func init() {
	children["list"] = func() { printAnswer(os.Stdout, func() ([]Device, error) { return list(dgx()) }) }
	children["list fails"] = func() {
		printAnswer(os.Stdout, func() ([]Device, error) {
			return list(&server.Server{Interface: mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }}})
		})
	}
	children["list hangs"] = func() { time.Sleep(time.Hour) }
}

// Whole GPUs, slices of divided ones, and what is said of those that are lost.
func TestListNVML(t *testing.T) {
	const name = "Mock NVIDIA A100-SXM4-40GB"
	for _, c := range []struct {
		name   string
		set    func(*server.Server)
		want   []Device
		error_ string
	}{
		{name: "whole", want: []Device{{0, "u0", name, 0, 0, 40 << 30 / 16 * 15}, {1, "u1", name, 0, 0, 40 << 30 / 16 * 15}}},
		{name: "an old driver", set: func(s *server.Server) {
			for _, d := range s.Devices[:2] {
				d.(*server.Device).GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_FUNCTION_NOT_FOUND }
			}
		}, want: []Device{{0, "u0", name, 0, 0, 40 << 30}, {1, "u1", name, 0, 0, 40 << 30}}},
		{name: "divided", set: func(s *server.Server) {
			divide(gpu0(s), slice("m0", 3, 20<<30), nil, slice("m1", 1, 0))
		}, want: []Device{{0, "m0", name, 3, 7, 20<<30 - 1000}, {0, "m1", name, 1, 7, 19968 << 20}, {1, "u1", name, 0, 0, 40 << 30 / 16 * 15}}},
		{name: "divided into four", set: func(s *server.Server) {
			divide(gpu0(s), slice("m0", 2, 2000))
			gpu0(s).GetGpuInstanceProfileInfoFunc = func(p int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
				if p == nvml.GPU_INSTANCE_PROFILE_4_SLICE {
					return nvml.GpuInstanceProfileInfo{SliceCount: 4}, nvml.SUCCESS
				}
				return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
			}
		}, want: []Device{{0, "m0", name, 2, 4, 1000}, {1, "u1", name, 0, 0, 40 << 30 / 16 * 15}}},
		{name: "in MIG mode, not divided", set: func(s *server.Server) { divide(gpu0(s), nil, nil) }, want: []Device{{1, "u1", name, 0, 0, 40 << 30 / 16 * 15}}},
		{name: "one lost", set: func(s *server.Server) {
			gpu0(s).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
		}, want: []Device{{1, "u1", name, 0, 0, 40 << 30 / 16 * 15}}},
		{name: "all lost", set: func(s *server.Server) {
			s.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
		}, error_: "GPU 1: "},
		{name: "no library", set: func(s *server.Server) {
			*s = server.Server{} // every call but Init panics
			s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
		}, error_: "no NVML here"},
	} {
		s := dgx()
		for i, d := range s.Devices[:2] {
			d.(*server.Device).UUID = []string{"u0", "u1"}[i]
		}
		s.DeviceGetCountFunc = func() (int, nvml.Return) { return 2, nvml.SUCCESS }
		if c.set != nil {
			c.set(s)
		}
		shutdowns, begun := 0, s.ShutdownFunc != nil
		s.ShutdownFunc = func() nvml.Return { shutdowns++; return nvml.SUCCESS }
		ds, err := list(s)
		if c.error_ != "" {
			if err == nil || !strings.Contains(err.Error(), c.error_) || len(ds) > 0 {
				t.Errorf("%s: %v, %v; want %s", c.name, ds, err, c.error_)
			}
		} else if err != nil || !cmp.Equal(ds, c.want) {
			t.Errorf("%s: %v\n%s", c.name, err, cmp.Diff(c.want, ds))
		}
		if begun && shutdowns != 1 {
			t.Errorf("%s: %d shutdowns", c.name, shutdowns)
		}
	}
}

// Through the process that asks, and what is done when it fails or hangs.
func TestListThroughTheProcess(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "3,1")
	c := child(t, "list")
	if ds, err := List(t.Context(), c); err != nil || len(ds) != 2 || ds[0].Index != 3 || ds[1].Index != 1 {
		t.Errorf("%+v, %v", ds, err)
	}
	if ds, err := List(t.Context(), child(t, "list fails")); err == nil || !strings.Contains(err.Error(), "NVML does not start") {
		t.Errorf("%+v, %v", ds, err)
	}
	c = child(t, "list hangs")
	c.Silence = 300 * time.Millisecond
	if ds, err := List(t.Context(), c); err == nil || !strings.Contains(err.Error(), "did not end in 300ms") {
		t.Errorf("%+v, %v", ds, err)
	}
}
