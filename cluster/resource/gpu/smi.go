package gpu

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"star"
)

// smiFields are the fields requested from nvidia-smi, in this order.
var smiFields = []string{
	"utilization.gpu", "memory.used", "memory.total", "power.draw", "enforced.power.limit",
	"clocks.current.sm", "clocks.max.sm", "clocks.current.memory", "temperature.gpu", "clocks_throttle_reasons.active",
	"pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
}

// smiCommand makes nvidia-smi print a line per period. It does not support MIG slices.
func smiCommand(program, device string, every time.Duration) []string {
	if strings.HasPrefix(device, "MIG-") {
		device = "0"
	}
	return []string{
		program, "--id=" + device, "--query-gpu=" + strings.Join(smiFields, ","),
		"--format=csv,noheader,nounits", "--loop-ms=" + strconv.FormatInt(max(every.Milliseconds(), 1), 10),
	}
}

// parseSMI reads one line of nvidia-smi. An unknown value ("[N/A]") is absent.
func parseSMI(line []byte) (l Line, err error) {
	parts := strings.Split(string(line), ",")
	if len(parts) != len(smiFields) {
		return l, errors.New("not the fields that were asked for")
	}
	v := map[string]float64{}
	for i, name := range smiFields {
		text := strings.TrimSpace(parts[i])
		if x, err := strconv.ParseUint(text, 0, 53); err == nil { // also accepts 0x0000000000000004
			v[name] = float64(x)
		} else if x, err := strconv.ParseFloat(text, 64); err == nil && x >= 0 {
			v[name] = x
		}
	}
	set := func(m star.Metric, name string, unit float64) {
		if x, ok := v[name]; ok {
			l.Metrics.Set(m, x*unit)
		}
	}
	share := func(m star.Metric, part, whole string) {
		p, ok := v[part]
		if w := v[whole]; ok && w > 0 {
			l.Metrics.Set(m, p/w)
		}
	}
	set(star.GPUUse, "utilization.gpu", 0.01)
	share(star.GPUMemory, "memory.used", "memory.total")
	set(star.GPUPower, "power.draw", 1)
	set(star.GPUPowerCap, "enforced.power.limit", 1)
	set(star.GPUClock, "clocks.current.sm", 1)
	set(star.GPUClockMax, "clocks.max.sm", 1)
	set(star.GPUMemClock, "clocks.current.memory", 1)
	set(star.GPUTemp, "temperature.gpu", 1)
	set(star.GPUThrottle, "clocks_throttle_reasons.active", 1)
	share(star.GPULinkShare, "pcie.link.width.current", "pcie.link.width.max")
	if l.Metrics.Seen == 0 {
		return l, errors.New("nothing was measured")
	}
	return l, nil
}
