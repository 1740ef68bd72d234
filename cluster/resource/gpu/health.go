package gpu

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Health is what the driver knows of the faults of a GPU. −1 is an unknown number. Xids are not here: the driver
// writes them to the kernel's log, and NVML reports new ones only.
type Health struct {
	Index         int    `json:"index"` // in the driver's order
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	Lost          string `json:"lost,omitempty"`    // why the driver cannot read it
	Uncorrected   int64  `json:"uncorrected"`       // ECC errors since the driver was loaded
	RepairPending bool   `json:"repair_pending"`    // rows or pages of memory wait for a reset to be replaced
	RepairFailed  bool   `json:"repair_failed"`     // no spare rows are left
	Reasons       uint64 `json:"reasons"`           // clocks-event reasons; see Reasons
	Width         int    `json:"width"`             // lanes of its PCIe link; some GPUs use fewer while they are idle
	WidthMost     int    `json:"width_most"`        // that GPU and slot have
	Generation    int    `json:"generation"`        // of PCIe; lower while the GPU is idle
	GenMost       int    `json:"generation_most"`   // that GPU and slot have
	NVLinks       int    `json:"nvlinks"`           // that are up
	NVLinksDown   int    `json:"nvlinks_down"`      // that the GPU has, and that are down
	Recoveries    int64  `json:"nvlink_recoveries"` // times that an NVLink was lost and came back
}

// Examine returns the health of all GPUs of this host, whatever CUDA_VISIBLE_DEVICES says. Like List it asks the
// driver in a separate process (Config.Sampler with --health), within Config.Silence (10 s), or nvidia-smi, which
// knows neither NVLink nor its errors here. The list is empty, without an error, with neither a driver nor
// nvidia-smi.
func Examine(ctx context.Context, c Config) ([]Health, error) {
	smi, missing := c.present()
	if missing != nil && !anyFile(c.Drivers) {
		return nil, nil
	}
	err := errors.New("no process to ask NVML")
	if len(c.Sampler) > 0 {
		var hs []Health
		if hs, err = ask[Health](ctx, c, "--health"); err == nil {
			return hs, nil
		}
	}
	if missing != nil {
		return nil, err
	}
	out, second := c.child(ctx, []string{smi, "--query-gpu=" + strings.Join(healthFields, ","), "--format=csv,noheader,nounits"})
	var hs []Health
	if second == nil {
		hs, second = parseHealth(out)
	}
	if second != nil {
		return nil, fmt.Errorf("NVML: %w; nvidia-smi: %w", err, second)
	}
	return hs, nil
}

// PrintHealth prints a JSON line with the health of all GPUs, or the error: it is the body of the process that
// Examine starts.
func PrintHealth(w io.Writer) error { return printAnswer(w, healthNVML) }

// healthFields are the fields requested from nvidia-smi, in this order.
var healthFields = []string{
	"index", "uuid", "name", "ecc.errors.uncorrected.volatile.total", "retired_pages.pending", "clocks_throttle_reasons.active",
	"pcie.link.width.current", "pcie.link.width.max", "pcie.link.gen.current", "pcie.link.gen.max",
}

// parseHealth reads the output of nvidia-smi. An unknown value is "[N/A]".
func parseHealth(out []byte) (hs []Health, err error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = len(healthFields)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("not the fields that were asked for: %w", err)
	}
	number := func(text string) int64 {
		if x, err := strconv.ParseInt(text, 0, 64); err == nil {
			return x
		}
		return -1
	}
	for _, row := range rows {
		h := Health{Index: int(number(row[0])), UUID: row[1], Name: row[2], Uncorrected: number(row[3]), RepairPending: row[4] == "Yes", NVLinks: -1, Recoveries: -1}
		h.Reasons = uint64(max(0, number(row[5])))
		h.Width, h.WidthMost, h.Generation, h.GenMost = int(number(row[6])), int(number(row[7])), int(number(row[8])), int(number(row[9]))
		hs = append(hs, h)
	}
	return hs, nil
}
