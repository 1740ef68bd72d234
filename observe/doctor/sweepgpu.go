package doctor

import (
	"fmt"
	"strings"

	"star/cluster/resource/gpu"
)

// Clocks-event reasons that mean a fault of the host, in NVML's bits: hardware slowdown, much too hot, power brake.
// Others, such as the power cap, are how GPUs work.
const sickReasons = 0x8 | 0x40 | 0x80

// hot is the reason that a GPU is too hot.
const hot = 0x20

// judgeGPUs judges the health of GPUs, and compares those of hosts.
func judgeGPUs(hosts []*swept) (found []Finding) {
	width, generation, links := map[string]int{}, map[string]int{}, map[string]int{}
	var counts []float64
	for _, h := range hosts {
		if h.about == nil || h.lost != nil {
			continue
		}
		counts = append(counts, float64(len(h.gpus.GPUs)))
		for _, g := range h.gpus.GPUs {
			width[g.Name], generation[g.Name], links[g.Name] = max(width[g.Name], g.Width), max(generation[g.Name], g.GenMost), max(links[g.Name], g.NVLinks)
		}
	}
	for _, h := range hosts {
		if h.about == nil || h.lost != nil {
			continue
		}
		if n, usual := float64(len(h.gpus.GPUs)), median(counts); n < usual {
			found = append(found, Finding{Host: h.name, Check: "GPUs", Status: Fail, Value: n, Unit: "GPUs", Others: usual, Worse: 0,
				Detail: fmt.Sprintf("%.0f GPUs, others %.3g", n, usual), Fix: "one may be off the bus: look at dmesg for Xid 79, and at nvidia-smi; reboot the host"})
		}
		for i := range h.gpus.GPUs {
			g := &h.gpus.GPUs[i]
			found = append(found, judgeGPU(h.name, g, width[g.Name], generation[g.Name], links[g.Name])...)
		}
	}
	return found
}

// judgeGPU judges one GPU. width, generation and links are the largest ones among GPUs of its name.
func judgeGPU(host string, g *gpu.Health, width, generation, links int) (found []Finding) {
	add := func(status Status, value, others int64, unit, fix, format string, args ...any) {
		f := Finding{Host: host, Check: fmt.Sprintf("GPU %d", g.Index), Status: status, Value: float64(value), Others: float64(others), Unit: unit, Fix: fix}
		f.Detail = fmt.Sprintf(format, args...)
		found = append(found, f)
	}
	if g.Lost != "" {
		add(Fail, 1, 0, "GPUs", "reboot the host; if it comes again, have the GPU replaced", "the driver cannot read it: %s", g.Lost)
		return found
	}
	if g.Uncorrected > 0 {
		add(Fail, g.Uncorrected, 0, "errors", "reset it (nvidia-smi -r); if more come, have it replaced", "%d uncorrected ECC errors since the driver was loaded", g.Uncorrected)
	}
	if g.RepairFailed {
		add(Fail, 1, 0, "faults", "have it replaced", "its memory has no spare rows left")
	} else if g.RepairPending {
		add(Fail, 1, 0, "faults", "reset it (nvidia-smi -r), which replaces the faulty rows of its memory", "a fault of its memory waits for a reset to be repaired")
	}
	if bad := g.Reasons & sickReasons; bad != 0 {
		add(Fail, int64(bad), 0, "reasons", "look at its power supply, power cables and air", "its clock is lowered: %s", strings.Join(gpu.Reasons(bad), ", "))
	} else if g.Reasons&hot != 0 {
		add(Warn, hot, 0, "reasons", "look at fans and air", "its clock is lowered: %s", strings.Join(gpu.Reasons(hot), ", "))
	}
	switch {
	case g.Width > 0 && g.Width < width:
		add(Fail, int64(g.Width), int64(width), "lanes", "reseat the card or its riser", "%d PCIe lanes, others %d", g.Width, width)
	case g.Width > 0 && g.Width < g.WidthMost:
		add(Warn, int64(g.Width), int64(g.WidthMost), "lanes", "look again while it works (nvidia-smi -q -d PCIE); if it stays, reseat the card or its riser", "%d of %d PCIe lanes; some GPUs use fewer while they are idle", g.Width, g.WidthMost)
	}
	if g.GenMost > 0 && g.GenMost < generation {
		add(Fail, int64(g.GenMost), int64(generation), "generation", "look at the BIOS's setting of the slot, and at the riser", "its slot has PCIe generation %d, others %d", g.GenMost, generation)
	}
	switch {
	case g.NVLinks >= 0 && g.NVLinks < links:
		add(Fail, int64(g.NVLinks), int64(links), "links", "look at nvidia-smi nvlink -s, at the fabric manager and at the bridges", "%d NVLinks are up, others %d", g.NVLinks, links)
	case g.NVLinksDown > 0 && g.NVLinks > 0:
		add(Warn, int64(g.NVLinksDown), 0, "links", "look at nvidia-smi nvlink -s, and at the fabric manager", "%d of its NVLinks are down", g.NVLinksDown)
	}
	if g.Recoveries > 0 {
		add(Warn, g.Recoveries, 0, "recoveries", "look at nvidia-smi nvlink -e; reseat bridges or cables if it grows", "its NVLinks were lost and came back %d times", g.Recoveries)
	}
	return found
}
