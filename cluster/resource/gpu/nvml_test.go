//go:build linux && cgo && !nonvml

package gpu

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"star"
)

// dgx is go-nvml's mock of a DGX A100 with what it does not play: GPUs at work.
func dgx() *server.Server {
	s := dgxa100.New()
	for _, d := range s.Devices {
		d := d.(*server.Device)
		d.MemoryInfo.Used = 10 << 30
		work(&d.Device, d.MemoryInfo.Total)
	}
	return s
}

func work(d *mock.Device, total uint64) {
	is := func(v uint32) func() (uint32, nvml.Return) {
		return func() (uint32, nvml.Return) { return v, nvml.SUCCESS }
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 37, Memory: 12}, nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: total, Reserved: total / 16, Used: total / 8}, nvml.SUCCESS
	}
	d.GetPowerUsageFunc, d.GetEnforcedPowerLimitFunc = is(118500), is(400000)
	clock := func(sm, mem uint32) func(nvml.ClockType) (uint32, nvml.Return) {
		return func(c nvml.ClockType) (uint32, nvml.Return) {
			switch c {
			case nvml.CLOCK_SM:
				return sm, nvml.SUCCESS
			case nvml.CLOCK_MEM:
				return mem, nvml.SUCCESS
			}
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
	}
	d.GetClockInfoFunc, d.GetMaxClockInfoFunc = clock(1005, 1215), clock(1410, 1593)
	d.GetTemperatureFunc = func(s nvml.TemperatureSensors) (uint32, nvml.Return) {
		if s != nvml.TEMPERATURE_GPU {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return 84, nvml.SUCCESS
	}
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) {
		return nvml.ClocksEventReasonSwPowerCap | nvml.ClocksEventReasonSwThermalSlowdown, nvml.SUCCESS
	}
	d.GetPcieThroughputFunc = func(c nvml.PcieUtilCounter) (uint32, nvml.Return) {
		return map[nvml.PcieUtilCounter]uint32{nvml.PCIE_UTIL_RX_BYTES: 3000, nvml.PCIE_UTIL_TX_BYTES: 7}[c], nvml.SUCCESS
	}
	d.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 8, nvml.SUCCESS }
	d.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
}

func gpu0(s *server.Server) *server.Device { return s.Devices[0].(*server.Device) }

// atWork is what a GPU of dgx shows.
func atWork() map[star.Metric]float64 {
	return map[star.Metric]float64{
		star.GPUUse: 0.37, star.GPUMemory: 0.125, star.GPUPower: 118.5, star.GPUPowerCap: 400, star.GPUClock: 1005, star.GPUClockMax: 1410,
		star.GPUMemClock: 1215, star.GPUTemp: 84, star.GPUThrottle: 0x24, star.GPULinkIn: 3e6, star.GPULinkOut: 7e3, star.GPULinkShare: 0.5,
	}
}

func init() {
	children["mock"] = func() {
		sample(context.Background(), os.Stdout, time.Millisecond, func() (prober, error) { return open(dgx(), "3") })
	}
	children["lost"] = func() { // after a few lines
		s := dgx()
		var n atomic.Int32
		gpu0(s).GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) {
			if n.Add(1) > 3 {
				return 0, nvml.ERROR_GPU_IS_LOST
			}
			return 80, nvml.SUCCESS
		}
		sample(context.Background(), os.Stdout, time.Millisecond, func() (prober, error) { return open(s, "0") })
	}
	children["fault"] = func() { // of the driver, in the middle
		s := dgx()
		var n atomic.Int32
		gpu0(s).GetPowerUsageFunc = func() (uint32, nvml.Return) {
			if n.Add(1) > 3 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return 1000, nvml.SUCCESS
		}
		sample(context.Background(), os.Stdout, time.Millisecond, func() (prober, error) { return open(s, "0") })
	}
	children["hang"] = func() { // inside the driver
		s := dgx()
		gpu0(s).GetPowerUsageFunc = func() (uint32, nvml.Return) { select {} }
		go func() { time.Sleep(time.Hour) }() // what sleeps here is no deadlock to Go
		sample(context.Background(), os.Stdout, time.Millisecond, func() (prober, error) { return open(s, "0") })
	}
}

// What a GPU shows, case by case.
func TestProbe(t *testing.T) {
	no := func() (uint32, nvml.Return) { return 7, nvml.ERROR_NOT_SUPPORTED }
	on, off := true, false
	for _, c := range []struct {
		name   string
		set    func(*server.Server, *server.Device)
		lacks  []star.Metric
		shows  map[star.Metric]float64
		mig    *bool
		error_ string
	}{
		{name: "at work", mig: &off},
		{name: "not supported is absent", mig: &off, lacks: []star.Metric{star.GPUPower, star.GPUPowerCap, star.GPULinkIn, star.GPULinkOut, star.GPULinkShare, star.GPUMemClock},
			set: func(_ *server.Server, d *server.Device) {
				d.GetPowerUsageFunc, d.GetEnforcedPowerLimitFunc = no, func() (uint32, nvml.Return) { return 7, nvml.ERROR_NO_PERMISSION }
				d.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 7, nvml.ERROR_NOT_SUPPORTED }
				d.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.ERROR_NOT_SUPPORTED }
				was := d.GetClockInfoFunc
				d.GetClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
					if c == nvml.CLOCK_MEM {
						return 7, nvml.ERROR_UNKNOWN
					}
					return was(c)
				}
			}},
		{name: "cannot be what it says", mig: &off, lacks: []star.Metric{star.GPUUse, star.GPUMemory, star.GPUPower, star.GPULinkShare},
			set: func(_ *server.Server, d *server.Device) {
				d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 101}, nvml.SUCCESS }
				d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{Total: 1, Used: 2}, nvml.SUCCESS }
				d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 1<<32 - 1, nvml.SUCCESS }
				d.GetMaxPcieLinkWidthFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
			}},
		{name: "in slices", mig: &on, lacks: []star.Metric{star.GPUUse}, set: func(_ *server.Server, d *server.Device) {
			d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
		}},
		{name: "cannot be sliced", set: func(_ *server.Server, d *server.Device) {
			d.GetMigModeFunc = func() (int, int, nvml.Return) { return 1, 1, nvml.ERROR_NOT_SUPPORTED }
		}},
		{name: "an old driver", shows: map[star.Metric]float64{star.GPUThrottle: 0x80, star.GPUMemory: 0.25}, set: func(s *server.Server, d *server.Device) {
			newer := []string{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"}
			s.LookupSymbolFunc = func(f string) error {
				if slices.Contains(newer, f) {
					return errors.New("undefined symbol")
				}
				return nil
			}
			d.GetCurrentClocksEventReasonsFunc, d.GetMemoryInfo_v2Func, d.GetMigModeFunc = nil, nil, nil // a call panics
			d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, nvml.SUCCESS }
		}},
		{name: "memory of old", mig: &off, shows: map[star.Metric]float64{star.GPUMemory: 0.25}, set: func(_ *server.Server, d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_FUNCTION_NOT_FOUND }
		}},
		{name: "lost", error_: "the gpu_temp of GPU GPU-", set: func(_ *server.Server, d *server.Device) {
			d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
		}},
		{name: "to be reset", error_: "the clocks-event reasons of GPU GPU-", set: func(_ *server.Server, d *server.Device) {
			d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_RESET_REQUIRED }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dgx()
			if c.set != nil {
				c.set(s, gpu0(s))
			}
			p, err := open(s, "0")
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			l, err := p.read()
			if c.error_ != "" {
				if err == nil || !strings.Contains(err.Error(), c.error_) {
					t.Fatalf("error %v, want %s", err, c.error_)
				}
				if _, final := errors.AsType[*FinalError](err); final {
					t.Error("a GPU may come back")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := atWork()
			for _, m := range c.lacks {
				delete(want, m)
			}
			for m, v := range c.shows {
				want[m] = v
			}
			wants(t, &l.Metrics, want)
			if (l.MIG == nil) != (c.mig == nil) || l.MIG != nil && *l.MIG != *c.mig {
				t.Errorf("MIG %v, want %v", l.MIG, c.mig)
			}
			if l.GPU != "Mock NVIDIA A100-SXM4-40GB" || l.UUID != gpu0(s).UUID || l.Driver != "550.54.15" {
				t.Errorf("%+v", l)
			}
		})
	}
}

// Nothing of a GPU is an error, so that the process that is of no use ends.
func TestProbeNothing(t *testing.T) {
	d := new(mock.Device)
	for _, f := range []func(){
		func() {
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, 3 }
		},
		func() { d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, 3 } },
		func() { d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, 3 } },
		func() { d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, 3 } },
		func() { d.GetEnforcedPowerLimitFunc = d.GetPowerUsageFunc },
		func() { d.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 0, 3 } },
		func() { d.GetMaxClockInfoFunc = d.GetClockInfoFunc },
		func() { d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, 3 } },
		func() { d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, 3 } },
		func() { d.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 0, 3 } },
		func() { d.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 0, 3 } },
		func() { d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, 3 } },
	} {
		f()
	}
	p := &probe{lib: dgxa100.New(), whole: d, part: d}
	if l, err := p.read(); err == nil {
		t.Errorf("%+v", l)
	}
}

// The names that select a GPU, and the error when no GPU has the name. Whatever was started is shut down, and nothing
// is called that was not started.
func TestOpen(t *testing.T) {
	for _, c := range []struct {
		name, device string
		set          func(*server.Server)
		index        int // of the GPU that is found
		error_       string
		final        bool
		shutdowns    int
	}{
		{name: "index", device: "5", index: 5, shutdowns: 1},
		{name: "UUID", device: "GPU-aa02", index: 2, shutdowns: 1},
		{name: "beginning of a UUID", device: "GPU-aa", index: 2, shutdowns: 1},
		{name: "of several", device: "GPU-", error_: "more than one GPU", final: true, shutdowns: 1},
		{name: "of one, and a lost one", device: "GPU-bb", index: 3, shutdowns: 1, set: func(s *server.Server) {
			was := s.DeviceGetHandleByIndexFunc
			s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
				if i == 0 {
					return nil, nvml.ERROR_GPU_IS_LOST
				}
				return was(i)
			}
		}},
		{name: "no such index", device: "8", error_: `no GPU "8" among the 8`, final: true, shutdowns: 1},
		{name: "no such UUID", device: "GPU-ff", error_: `no GPU "GPU-ff" among the 8`, final: true, shutdowns: 1},
		{name: "lost", device: "0", error_: "GPU 0: ", shutdowns: 1, set: func(s *server.Server) {
			s.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
		}},
		{name: "no library", device: "0", error_: "no NVML here", final: true, set: func(s *server.Server) {
			*s = server.Server{} // every call but Init panics
			s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
		}},
		{name: "no driver yet", device: "0", error_: "NVML does not start", set: func(s *server.Server) {
			*s = server.Server{}
			s.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := dgx()
			for i, uuid := range []string{"GPU-b0", "GPU-cc", "GPU-aa02", "GPU-bb1", "GPU-d0", "GPU-d1", "GPU-d2", "GPU-d3"} {
				s.Devices[i].(*server.Device).UUID = uuid
			}
			if c.set != nil {
				c.set(s)
			}
			shutdowns := 0
			if c.shutdowns > 0 {
				s.ShutdownFunc = func() nvml.Return { shutdowns++; return nvml.SUCCESS }
			}
			p, err := open(s, c.device)
			_, final := errors.AsType[*FinalError](err)
			switch {
			case c.error_ != "":
				if err == nil || !strings.Contains(err.Error(), c.error_) || final != c.final {
					t.Errorf("error %v (final: %v), want %s", err, final, c.error_)
				}
			case err != nil:
				t.Fatal(err)
			default:
				if got := p.(*probe).id.UUID; got != s.Devices[c.index].(*server.Device).UUID {
					t.Errorf("found %s", got)
				}
				p.close()
			}
			if shutdowns != c.shutdowns {
				t.Errorf("%d shutdowns, want %d", shutdowns, c.shutdowns)
			}
		})
	}
}

// A slice has its own memory; the rest is of the GPU that it is a slice of.
func TestSlice(t *testing.T) {
	s := dgx()
	slice := new(mock.Device)
	slice.GetUUIDFunc = func() (string, nvml.Return) { return "MIG-7", nvml.SUCCESS }
	slice.GetDeviceHandleFromMigDeviceHandleFunc = func() (nvml.Device, nvml.Return) { return s.Devices[0], nvml.SUCCESS }
	slice.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
	slice.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{Total: 10, Used: 9}, nvml.SUCCESS }
	s.DeviceGetHandleByUUIDFunc = func(string) (nvml.Device, nvml.Return) { return slice, nvml.SUCCESS }
	gpu0(s).MigMode = nvml.DEVICE_MIG_ENABLE
	p, err := open(s, "MIG-7")
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	want := atWork()
	delete(want, star.GPUUse)
	want[star.GPUMemory] = 0.9
	wants(t, &l.Metrics, want)
	if l.UUID != "MIG-7" || l.GPU != gpu0(s).Config.Name || l.MIG == nil || !*l.MIG {
		t.Errorf("%+v", l)
	}
}

// From NVML to the worker, through the process.
func TestThroughTheProcess(t *testing.T) {
	r := Start(child(t, "mock"))
	defer r.Close()
	var tel star.Telemetry
	waitFor(t, "a measurement", func() bool { r.AddTo(&tel); return tel.Seen != 0 })
	wants(t, &tel, atWork())
}

// Whatever happens in the driver, training sees that nothing is known, then measurements again.
func TestDriverFaults(t *testing.T) {
	for name, says := range map[string]string{"lost": "the gpu_temp of GPU GPU-", "fault": "signal: killed", "hang": "it said nothing for"} {
		t.Run(name, func(t *testing.T) {
			c := child(t, name)
			var j journal
			c.Log, c.Silence = j.log(), 500*time.Millisecond
			r := Start(c)
			defer r.Close()
			waitFor(t, "what happened", func() bool { return j.count(says) > 0 })
			if name != "hang" {
				was := r.last.Load()
				waitFor(t, "measurements of another process", func() bool { return r.last.Load() != was })
			}
		})
	}
}

// The library that is not there ends in nothing worse than a word.
func TestLibraryMissing(t *testing.T) {
	p, err := open(nvml.New(nvml.WithLibraryPath("/no/such/libnvidia-ml.so")), "0")
	if final, ok := errors.AsType[*FinalError](err); !ok || p != nil || !strings.Contains(final.Because, "no NVML here") {
		t.Errorf("%v, %v", p, err)
	}
}
