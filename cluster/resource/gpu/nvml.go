//go:build linux && cgo && !nonvml

package gpu

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"star"
)

// library is the used part of nvml.Interface.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	Extensions() nvml.ExtendedInterface
	SystemGetDriverVersion() (string, nvml.Return)
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return)
	DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return)
}

// device is the used part of nvml.Device.
type device interface {
	GetName() (string, nvml.Return)
	GetUUID() (string, nvml.Return)
	GetMigMode() (current, pending int, ret nvml.Return)
	GetUtilizationRates() (nvml.Utilization, nvml.Return)
	GetMemoryInfo() (nvml.Memory, nvml.Return)
	GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return)
	GetPowerUsage() (milliwatts uint32, ret nvml.Return)
	GetEnforcedPowerLimit() (milliwatts uint32, ret nvml.Return)
	GetClockInfo(nvml.ClockType) (megahertz uint32, ret nvml.Return)
	GetMaxClockInfo(nvml.ClockType) (megahertz uint32, ret nvml.Return)
	GetTemperature(nvml.TemperatureSensors) (celsius uint32, ret nvml.Return)
	GetCurrentClocksEventReasons() (bits uint64, ret nvml.Return)
	GetCurrentClocksThrottleReasons() (bits uint64, ret nvml.Return)
	GetPcieThroughput(nvml.PcieUtilCounter) (kilobytesPerSecond uint32, ret nvml.Return)
	GetCurrPcieLinkWidth() (lanes int, ret nvml.Return)
	GetMaxPcieLinkWidth() (lanes int, ret nvml.Return)
	GetCurrPcieLinkGeneration() (generation int, ret nvml.Return)
	GetMaxPcieLinkGeneration() (generation int, ret nvml.Return)
	GetTotalEccErrors(nvml.MemoryErrorType, nvml.EccCounterType) (count uint64, ret nvml.Return)
	GetRemappedRows() (corrected, uncorrected int, pending, failed bool, ret nvml.Return)
	GetRetiredPagesPendingStatus() (pending nvml.EnableState, ret nvml.Return)
	GetNvLinkState(link int) (up nvml.EnableState, ret nvml.Return)
	GetNvLinkErrorCounter(link int, counter nvml.NvLinkErrorCounter) (count uint64, ret nvml.Return)
}

var (
	_ library = nvml.Interface(nil)
	_ device  = nvml.Device(nil)
)

// openNVML opens a GPU through the library of this host.
func openNVML(name string) (prober, error) { return open(nvml.New(), name) }

// open opens a GPU. After a failed Init no other function may be called, not even Shutdown: they are not loaded, and
// the process would end.
func open(lib library, name string) (prober, error) {
	if err := begin(lib); err != nil {
		return nil, err
	}
	g := &probe{lib: lib}
	if err := g.find(name); err != nil {
		lib.Shutdown()
		return nil, err
	}
	return g, nil
}

func begin(lib library) error {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND:
		return &FinalError{"no NVML here: libnvidia-ml.so.1, which comes with the driver, cannot be loaded"}
	default:
		return fmt.Errorf("NVML does not start: %v", ret)
	}
}

// listNVML asks the library of this host for all devices.
func listNVML() ([]Device, error) { return list(nvml.New()) }

// list lists all devices: GPUs, and the slices of divided ones. A lost device is skipped, unless no device is left.
func list(lib library) (ds []Device, err error) {
	if err := begin(lib); err != nil {
		return nil, err
	}
	defer lib.Shutdown()
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not count the GPUs: %v", ret)
	}
	g := &probe{lib: lib}
	for i := range count {
		dev, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			err = fmt.Errorf("GPU %d: %v", i, ret)
			continue
		}
		d := Device{Index: i}
		if d.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
			err = fmt.Errorf("the UUID of GPU %d: %v", i, ret)
			continue
		}
		if name, ret := dev.GetName(); ret == nvml.SUCCESS {
			d.Name = name
		}
		d.Memory = g.total(dev)
		if g.has("nvmlDeviceGetMigMode") {
			if mode, _, ret := dev.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
				slices, e := g.slices(dev, d)
				if e != nil {
					err = e
				}
				ds = append(ds, slices...)
				continue
			}
		}
		ds = append(ds, d)
	}
	if len(ds) > 0 {
		err = nil
	}
	return ds, err
}

// healthNVML asks the library of this host for the health of all GPUs.
func healthNVML() ([]Health, error) { return examineAll(nvml.New()) }

// examineAll examines all GPUs. One that is lost is listed with the reason.
func examineAll(lib library) (hs []Health, err error) {
	if err := begin(lib); err != nil {
		return nil, err
	}
	defer lib.Shutdown()
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not count the GPUs: %v", ret)
	}
	g := &probe{lib: lib}
	for i := range count {
		h := Health{Index: i}
		dev, ret := lib.DeviceGetHandleByIndex(i)
		if ret == nvml.SUCCESS {
			ret = g.examine(dev, &h)
		}
		if ret != nvml.SUCCESS {
			h.Lost = fmt.Sprint(ret)
		}
		hs = append(hs, h)
	}
	return hs, nil
}

// examine reads what is known of a GPU's faults. The result is not SUCCESS if the GPU is lost.
func (g *probe) examine(dev device, h *Health) (lost nvml.Return) {
	lost = nvml.SUCCESS
	ok := func(ret nvml.Return) bool {
		if gone(ret) {
			lost = ret
		}
		return ret == nvml.SUCCESS
	}
	number := func(x int, ret nvml.Return) int {
		if !ok(ret) {
			return -1
		}
		return x
	}
	h.Name, _ = dev.GetName()
	h.UUID, _ = dev.GetUUID()
	h.Uncorrected, h.Recoveries = -1, -1
	// Without ECC it is not supported.
	if n, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ok(ret) {
		h.Uncorrected = int64(n)
	}
	if g.has("nvmlDeviceGetRemappedRows") { // Ampere and later
		if _, _, pending, failed, ret := dev.GetRemappedRows(); ok(ret) {
			h.RepairPending, h.RepairFailed = pending, failed
		}
	}
	if pending, ret := dev.GetRetiredPagesPendingStatus(); ok(ret) && pending == nvml.FEATURE_ENABLED {
		h.RepairPending = true
	}
	reasons := dev.GetCurrentClocksEventReasons
	if !g.has("nvmlDeviceGetCurrentClocksEventReasons") { // before driver 535
		// Deprecated, but the only one of such a driver.
		reasons = dev.GetCurrentClocksThrottleReasons
	}
	if bits, ret := reasons(); ok(ret) {
		h.Reasons = bits
	}
	h.Width, h.WidthMost = number(dev.GetCurrPcieLinkWidth()), number(dev.GetMaxPcieLinkWidth())
	h.Generation, h.GenMost = number(dev.GetCurrPcieLinkGeneration()), number(dev.GetMaxPcieLinkGeneration())
	for link := range nvml.NVLINK_MAX_LINKS {
		up, ret := dev.GetNvLinkState(link)
		if !ok(ret) {
			continue // the GPU does not have this one
		}
		if up != nvml.FEATURE_ENABLED {
			h.NVLinksDown++
			continue
		}
		h.NVLinks++
		if n, ret := dev.GetNvLinkErrorCounter(link, nvml.NVLINK_ERROR_DL_RECOVERY); ok(ret) {
			h.Recoveries = max(0, h.Recoveries) + int64(n)
		}
	}
	return lost
}

// total is a device's memory in bytes, without the driver's part; 0: unknown.
func (g *probe) total(dev device) float64 {
	if g.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := dev.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Reserved <= m.Total {
			return float64(m.Total - m.Reserved)
		}
	}
	if m, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		return float64(m.Total)
	}
	return 0
}

// slices are the slices of a GPU in MIG mode; none if it is not divided yet.
func (g *probe) slices(dev nvml.Device, whole Device) (ds []Device, err error) {
	most, ret := dev.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("the slices of GPU %d: %v", whole.Index, ret)
	}
	of := 7
	for _, p := range []int{nvml.GPU_INSTANCE_PROFILE_8_SLICE, nvml.GPU_INSTANCE_PROFILE_7_SLICE, nvml.GPU_INSTANCE_PROFILE_6_SLICE, nvml.GPU_INSTANCE_PROFILE_4_SLICE} {
		if info, ret := dev.GetGpuInstanceProfileInfo(p); ret == nvml.SUCCESS && info.SliceCount > 0 {
			of = int(info.SliceCount)
			break
		}
	}
	for i := range most {
		part, ret := dev.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue // an unused slot for a slice
		}
		d := Device{Index: whole.Index, Name: whole.Name, Of: of}
		if ret == nvml.SUCCESS {
			d.UUID, ret = part.GetUUID()
		}
		var a nvml.DeviceAttributes
		if ret == nvml.SUCCESS {
			a, ret = part.GetAttributes()
		}
		if ret != nvml.SUCCESS || a.GpuInstanceSliceCount == 0 {
			err = fmt.Errorf("slice %d of GPU %d: %v", i, whole.Index, ret)
			continue
		}
		d.Slices = min(int(a.GpuInstanceSliceCount), of)
		if d.Memory = g.total(part); d.Memory == 0 {
			d.Memory = float64(a.MemorySizeMB) * (1 << 20)
		}
		ds = append(ds, d)
	}
	return ds, err
}

// probe reads one GPU, or one MIG slice and its GPU.
type probe struct {
	lib   library
	whole device // the GPU
	part  device // the MIG slice, or the same GPU
	id    Line   // the constant part
}

// has reports whether the driver's library has a function. A call of a missing function ends the process.
func (g *probe) has(function string) bool { return g.lib.Extensions().LookupSymbol(function) == nil }

// find looks a GPU up by index, by UUID, or by a prefix of a UUID, as allowed in CUDA_VISIBLE_DEVICES.
func (g *probe) find(name string) error {
	var dev nvml.Device
	var ret nvml.Return
	index, err := strconv.Atoi(name)
	if err == nil {
		dev, ret = g.lib.DeviceGetHandleByIndex(index)
	} else {
		dev, ret = g.lib.DeviceGetHandleByUUID(name)
	}
	if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
		count, countRet := g.lib.DeviceGetCount()
		if countRet != nvml.SUCCESS {
			return fmt.Errorf("NVML does not count the GPUs: %v", countRet)
		}
		if dev = nil; err != nil {
			if dev, ret = g.begins(name, count); ret == nvml.ERROR_INSUFFICIENT_SIZE {
				return &FinalError{fmt.Sprintf("more than one GPU's UUID begins with %q: name more of it", name)}
			}
		}
		if dev == nil {
			return &FinalError{fmt.Sprintf("no GPU %q among the %d of this host (CUDA_VISIBLE_DEVICES)", name, count)}
		}
	}
	if ret != nvml.SUCCESS {
		return fmt.Errorf("GPU %s: %v", name, ret)
	}
	g.whole, g.part = dev, dev
	if strings.HasPrefix(name, "MIG-") && g.has("nvmlDeviceGetDeviceHandleFromMigDeviceHandle") {
		whole, ret := dev.GetDeviceHandleFromMigDeviceHandle()
		if ret != nvml.SUCCESS {
			return fmt.Errorf("the GPU of slice %s: %v", name, ret)
		}
		g.whole = whole
	}
	if s, ret := g.whole.GetName(); ret == nvml.SUCCESS {
		g.id.GPU = s
	}
	if s, ret := g.part.GetUUID(); ret == nvml.SUCCESS {
		g.id.UUID = s
	}
	if s, ret := g.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		g.id.Driver = s
	}
	return nil
}

// begins finds the only GPU with that prefix of its UUID. It returns nil if there is no such GPU, and
// ERROR_INSUFFICIENT_SIZE if there are several.
func (g *probe) begins(uuid string, count int) (found nvml.Device, ret nvml.Return) {
	for i := range count {
		dev, ret := g.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a lost GPU is not ours
		}
		if s, ret := dev.GetUUID(); ret == nvml.SUCCESS && strings.HasPrefix(s, uuid) {
			if found != nil {
				return nil, nvml.ERROR_INSUFFICIENT_SIZE
			}
			found = dev
		}
	}
	return found, nvml.SUCCESS
}

// gone reports whether NVML must be restarted before anything can be read.
func gone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return true
	}
	return false
}

// read reads all metrics. A metric that the GPU does not support, or that is not permitted, is absent; a lost GPU is an
// error.
func (g *probe) read() (Line, error) {
	l := g.id
	var lost error
	ok := func(what string, ret nvml.Return) bool {
		if gone(ret) && lost == nil {
			lost = fmt.Errorf("the %s of GPU %s: %v", what, g.id.UUID, ret)
		}
		return ret == nvml.SUCCESS
	}
	// Some drivers return all ones for an unknown value.
	number := func(m star.Metric, unit float64, v uint32, ret nvml.Return) {
		if ok(m.String(), ret) && v != 1<<32-1 {
			l.Metrics.Set(m, float64(v)*unit)
		}
	}
	if g.has("nvmlDeviceGetMigMode") {
		if mode, _, ret := g.whole.GetMigMode(); ok("MIG mode", ret) {
			on := mode == nvml.DEVICE_MIG_ENABLE
			l.MIG = &on
		}
	}
	if u, ret := g.part.GetUtilizationRates(); ok("use", ret) && u.Gpu <= 100 {
		l.Metrics.Set(star.GPUUse, float64(u.Gpu)/100)
	}
	g.memory(&l, ok)
	watts, ret := g.whole.GetPowerUsage()
	number(star.GPUPower, 1e-3, watts, ret)
	watts, ret = g.whole.GetEnforcedPowerLimit()
	number(star.GPUPowerCap, 1e-3, watts, ret)
	mhz, ret := g.whole.GetClockInfo(nvml.CLOCK_SM)
	number(star.GPUClock, 1, mhz, ret)
	mhz, ret = g.whole.GetMaxClockInfo(nvml.CLOCK_SM)
	number(star.GPUClockMax, 1, mhz, ret)
	mhz, ret = g.whole.GetClockInfo(nvml.CLOCK_MEM)
	number(star.GPUMemClock, 1, mhz, ret)
	// Deprecated, but drivers before 575 lack its successor.
	celsius, ret := g.whole.GetTemperature(nvml.TEMPERATURE_GPU)
	number(star.GPUTemp, 1, celsius, ret)

	reasons := g.whole.GetCurrentClocksEventReasons
	if !g.has("nvmlDeviceGetCurrentClocksEventReasons") { // before driver 535
		// Deprecated, but the only one of such a driver.
		reasons = g.whole.GetCurrentClocksThrottleReasons
	}
	if bits, ret := reasons(); ok("clocks-event reasons", ret) {
		l.Metrics.Set(star.GPUThrottle, float64(bits))
	}
	// Each call takes 20 ms, the time for which the driver counts.
	kB, ret := g.whole.GetPcieThroughput(nvml.PCIE_UTIL_RX_BYTES)
	number(star.GPULinkIn, 1000, kB, ret)
	kB, ret = g.whole.GetPcieThroughput(nvml.PCIE_UTIL_TX_BYTES)
	number(star.GPULinkOut, 1000, kB, ret)
	if now, ret := g.whole.GetCurrPcieLinkWidth(); ok("width of the link", ret) {
		if most, ret := g.whole.GetMaxPcieLinkWidth(); ok("greatest width of the link", ret) && now > 0 && most > 0 {
			l.Metrics.Set(star.GPULinkShare, float64(now)/float64(most))
		}
	}
	if lost != nil {
		return Line{}, lost
	}
	if l.Metrics.Seen == 0 {
		return Line{}, errors.New("NVML measures nothing of GPU " + g.id.UUID)
	}
	return l, nil
}

// memory prefers the call that does not count the driver's own memory as used, as nvidia-smi does.
func (g *probe) memory(l *Line, ok func(string, nvml.Return) bool) {
	var used, total uint64
	have := false
	if g.has("nvmlDeviceGetMemoryInfo_v2") {
		m, ret := g.part.GetMemoryInfo_v2()
		used, total, have = m.Used, m.Total, ok("memory", ret)
	}
	if !have {
		m, ret := g.part.GetMemoryInfo()
		used, total, have = m.Used, m.Total, ok("memory", ret)
	}
	if have && total > 0 && used <= total {
		l.Metrics.Set(star.GPUMemory, float64(used)/float64(total))
	}
}

func (g *probe) close() { g.lib.Shutdown() }
