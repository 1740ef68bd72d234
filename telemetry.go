package star

// Metric is one of the quantities that a worker measures beside its times. The
// numbers are the protocol: they never change, new ones are added at the end.
type Metric uint8

// Shares are of 1. What concerns the worker's process comes first, then its host,
// then the GPU that it uses.
const (
	ComputeCPU   Metric = iota // processor time of the process while it computed, per second of Compute
	MajorFaults                // pages read from disk during the iteration
	Preempted                  // involuntary context switches during the iteration
	RunDelay                   // time that threads of the process waited for a processor, per second
	Throttled                  // time that the control group was held back by its quota, per second
	Quota                      // processors that the control group may use; absent: no quota
	Stalled                    // share of time in which a heartbeat inside the process was overdue
	Steal                      // share of the host's processor time that its hypervisor gave to others
	HostCPU                    // share of the host's processor time in use
	HostLoad                   // runnable threads of the host, per processor (mean of 1 min)
	IOWait                     // share of the host's processor time that was idle for disks
	CPUPressure                // share of time in which some thread of the host waited for a processor
	MemAvailable               // share of the host's memory that is available
	HostNetIn                  // bytes per second into the host, without loopback
	HostNetOut                 // bytes per second out of the host, without loopback
	GPUUse                     // share of time in which a kernel ran on the GPU
	GPUMemory                  // share of the GPU's memory that is taken
	GPUPower                   // watts
	GPUPowerCap                // watts at which the GPU holds back
	GPUClock                   // MHz of the multiprocessors
	GPUClockMax                // MHz
	GPUMemClock                // MHz of the GPU's memory
	GPUTemp                    // degrees Celsius
	GPUThrottle                // bits of NVML's clocks-event reasons
	GPULinkIn                  // bytes per second into the GPU over PCIe
	GPULinkOut                 // bytes per second out of the GPU over PCIe
	GPULinkShare               // width of the PCIe link now, as a share of what GPU and slot can do
	Paused                     // seconds of Wait in which the worker paused as ordered
	GradChange                 // |g − g′|², g′ the worker's gradient before: of a sample of coordinates (pgns.Change)
	FarIn                      // bytes from other hosts since the worker's last record; of a ring in a cluster
	FarOut                     // bytes to other hosts, likewise
	// bytes per second at which the way to the shards carries what is sent, as the kernel saw it last
	LinkRate
	Parts // into which the worker cut the samples of this gradient, and computed each by itself
	// of a worker that is several processes (star.attach(group=…))
	Processes       // their number
	SlowProcess     // the number of the one that took the longest for this gradient, without its waits for the others
	SlowProcessTime // seconds that it took
	OtherProcesses  // seconds that the others took, their median
	// seconds since the worker's last record in which something was on its way to the shards, and they had room for it
	LinkBusy
	NumMetrics
)

// FullHost is the HostCPU from which on the processors of a host count as full: the rest goes to context switches and
// to more updates. Four workers on two processors have 0.85 in SSGD, and no mode makes them faster.
const FullHost = 0.75

var metricNames = [NumMetrics]string{
	"compute_cpu", "major_faults", "preempted", "run_delay", "throttled", "quota", "stalled",
	"steal", "host_cpu", "host_load", "iowait", "cpu_pressure", "mem_available", "host_net_in", "host_net_out",
	"gpu_use", "gpu_memory", "gpu_power", "gpu_power_cap", "gpu_clock", "gpu_clock_max", "gpu_mem_clock", "gpu_temp",
	"gpu_throttle", "gpu_link_in", "gpu_link_out", "gpu_link_share",
	"paused", "grad_change", "far_in", "far_out", "link_rate", "parts",
	"processes", "slow_process", "slow_process_time", "other_processes", "link_busy",
}

// String is the metric's name in the run log.
func (m Metric) String() string {
	if m < NumMetrics {
		return metricNames[m]
	}
	return "unknown metric"
}

// MetricByName is the inverse of String.
func MetricByName(name string) (Metric, bool) {
	for m, s := range metricNames {
		if s == name {
			return Metric(m), true
		}
	}
	return 0, false
}

// Telemetry is a set of measurements. Hosts differ in what they show, so each may be absent; the zero Telemetry has
// none. float32 is as precise as any of them.
type Telemetry struct {
	Seen   uint64 // bit m: Value[m] was measured
	Values [NumMetrics]float32
}

// Get returns a measurement, and whether there is one.
func (t *Telemetry) Get(m Metric) (v float64, ok bool) {
	if t.Seen>>m&1 == 0 {
		return 0, false
	}
	return float64(t.Values[m]), true
}

// Set stores a measurement. A value that is not finite is ignored.
func (t *Telemetry) Set(m Metric, v float64) {
	if f := float32(v); f-f == 0 {
		t.Seen |= 1 << m
		t.Values[m] = f
	}
}

// Merge copies what o has into t.
func (t *Telemetry) Merge(o *Telemetry) {
	for m := range NumMetrics {
		if o.Seen>>m&1 != 0 {
			t.Seen |= 1 << m
			t.Values[m] = o.Values[m]
		}
	}
}
