package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"star/cluster/resource/host"
)

// Found is what a host reports about itself: the JSON of star inventory. 0: unknown.
type Found struct {
	Name      string     `json:"name"`
	CPU       float64    `json:"cpu"`       // cores that the control group may use
	Memory    float64    `json:"memory"`    // bytes that the control group may use
	Net       float64    `json:"net"`       // bytes per second, in each direction
	Interface string     `json:"interface"` // the interface with that speed
	GPUs      []FoundGPU `json:"gpus"`
	Notes     []string   `json:"notes,omitempty"` // what could not be detected, and why
}

// FoundGPU is a GPU or a MIG slice.
type FoundGPU struct {
	UUID   string  `json:"uuid"`
	Name   string  `json:"name"`
	Slices int     `json:"slices,omitempty"` // of a MIG slice: its number of parts
	Of     int     `json:"of,omitempty"`     // number of parts of the whole GPU
	Memory float64 `json:"memory"`           // bytes; 0: unknown
}

// Device converts g for placement.
func (g FoundGPU) Device() Device {
	part := 1.0
	if g.Slices > 0 && g.Of > 0 {
		part = min(1, float64(g.Slices)/float64(g.Of))
	}
	return Device{Part: part, Memory: g.Memory, ID: g.UUID}
}

// Devices converts the GPUs of a host that was asked. Impossible values are an error.
func (f *Found) Devices() (ds []Device, err error) {
	if len(f.GPUs) > maxGPUs {
		return nil, fmt.Errorf("%d GPUs; at most %d", len(f.GPUs), maxGPUs)
	}
	for _, g := range f.GPUs {
		d := g.Device()
		if !(d.Part > 0) || !(d.Memory >= 0 && d.Memory <= 1e18) {
			return nil, fmt.Errorf("no GPU: %+v", g)
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// Detect detects the resources of this host except for GPUs, as host.Detect does.
func Detect(link string) Found {
	c := host.Detect(link)
	return Found{Name: c.Name, CPU: c.CPU, Memory: c.Memory, Net: c.Net, Interface: c.Interface, Notes: c.Notes}
}

// YAML is the host's entry for a file of hosts.
func (f *Found) YAML() string {
	var b strings.Builder
	b.WriteString("hosts:\n")
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "  # %s\n", n)
	}
	fmt.Fprintf(&b, "  - name: %s\n    cpu: %s\n", strconv.Quote(f.Name), strconv.FormatFloat(f.CPU, 'g', 6, 64))
	if f.Net > 0 {
		fmt.Fprintf(&b, "    net: %sMbit/s # %s\n", strconv.FormatFloat(f.Net*8/1e6, 'f', -1, 64), f.Interface)
	}
	if f.Memory > 0 {
		fmt.Fprintf(&b, "    memory: %.0f # %.1f GiB\n", f.Memory, f.Memory/(1<<30))
	}
	if len(f.GPUs) == 0 {
		return b.String()
	}
	b.WriteString("    gpus:\n")
	named := !slices.ContainsFunc(f.GPUs, func(g FoundGPU) bool { return g.UUID == "" })
	for _, g := range f.GPUs {
		size := "1"
		if g.Slices > 0 && g.Of > 0 {
			size = fmt.Sprintf("%d/%d", min(g.Slices, g.Of), g.Of)
		}
		text := "size: " + size
		if g.Memory > 0 {
			text += fmt.Sprintf(", memory: %.0f", g.Memory)
		}
		if named {
			text += ", device: " + strconv.Quote(g.UUID)
		}
		fmt.Fprintf(&b, "      - {%s} # %s, %.1f GiB\n", text, strings.Join(strings.Fields(g.Name), " "), g.Memory/(1<<30))
	}
	return b.String()
}
