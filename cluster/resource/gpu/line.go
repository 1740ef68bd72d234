package gpu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"star"
)

// maxLine bounds a line of a child, in bytes.
const maxLine = 8 << 10

// Line is the state of a GPU at one time: a line of the process that reads it.
type Line struct {
	GPU     string         // its name
	UUID    string         // of the GPU, or of the MIG slice that was asked for
	Driver  string         // driver version
	MIG     *bool          // whether the GPU is divided into slices; nil: not supported
	Metrics star.Telemetry // only GPU metrics
	Error   string         // error of the last line of a process that gives up
	Final   bool           // a retry does not help
}

// jsonLine is the encoding of a Line.
type jsonLine struct {
	GPU     string             `json:"gpu,omitempty"`
	UUID    string             `json:"uuid,omitempty"`
	Driver  string             `json:"driver,omitempty"`
	MIG     *bool              `json:"mig,omitempty"`
	Metrics map[string]float32 `json:"metrics,omitempty"`
	Reasons []string           `json:"reasons,omitempty"` // gpu_throttle in words
	Error   string             `json:"error,omitempty"`
	Final   bool               `json:"final,omitempty"`
}

// isGPU reports whether a metric is a GPU metric.
func isGPU(m star.Metric) bool { return m >= star.GPUUse && m <= star.GPULinkShare }

// MarshalJSON writes metrics by their names in the run log, and the reasons of
// gpu_throttle in words.
func (l Line) MarshalJSON() ([]byte, error) {
	j := jsonLine{GPU: l.GPU, UUID: l.UUID, Driver: l.Driver, MIG: l.MIG, Error: l.Error, Final: l.Final}
	for m := range star.NumMetrics {
		if v, ok := l.Metrics.Get(m); ok && isGPU(m) {
			if j.Metrics == nil {
				j.Metrics = map[string]float32{}
			}
			j.Metrics[m.String()] = float32(v)
			if m == star.GPUThrottle {
				j.Reasons = Reasons(uint64(v))
			}
		}
	}
	return json.Marshal(j)
}

// ParseLine reads a line of Sample. Unknown metrics, metrics that are not of a GPU and negative ones are skipped: the
// other process may be newer.
func ParseLine(b []byte) (Line, error) {
	if len(b) > maxLine {
		return Line{}, fmt.Errorf("a line of %d bytes; at most %d", len(b), maxLine)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 || b[0] != '{' {
		return Line{}, errors.New("no JSON object")
	}
	var j jsonLine
	if err := json.Unmarshal(b, &j); err != nil {
		return Line{}, err
	}
	if j.Final && j.Error == "" {
		return Line{}, errors.New("final, without an error")
	}
	l := Line{GPU: j.GPU, UUID: j.UUID, Driver: j.Driver, MIG: j.MIG, Error: j.Error, Final: j.Final}
	for name, v := range j.Metrics {
		if m, ok := star.MetricByName(name); ok && isGPU(m) && v >= 0 {
			l.Metrics.Set(m, float64(v))
		}
	}
	return l, nil
}

// reasons are the names of NVML's clocks-event reasons (nvmlClocksEventReasons, NVML
// API Reference Guide), in the order of their bits.
var reasons = [...]string{
	"idle", "clocks chosen for applications", "power cap", "hardware slowdown", "sync boost", "too hot", "much too hot", "power brake", "clocks of the display",
}

// Reasons returns the names of the bits of star.GPUThrottle. A bit without a name has its number.
func Reasons(bits uint64) []string {
	var names []string
	for i := 0; bits>>i != 0; i++ {
		switch {
		case bits>>i&1 == 0:
		case i < len(reasons):
			names = append(names, reasons[i])
		default:
			names = append(names, fmt.Sprintf("reason %#x", uint64(1)<<i))
		}
	}
	return names
}
