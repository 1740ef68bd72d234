package gpu

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Device is a usable GPU or slice.
type Device struct {
	Index  int     `json:"index"`            // of the GPU, in the driver's order
	UUID   string  `json:"uuid"`             // of the GPU, or of the slice
	Name   string  `json:"name"`             // of the GPU
	Slices int     `json:"slices,omitempty"` // of a MIG slice: its number of parts; 0: a whole GPU
	Of     int     `json:"of,omitempty"`     // number of parts of the GPU
	Memory float64 `json:"memory"`           // bytes; 0: unknown
}

// answer is the output of the process that asks NVML: a list, not null, or an error.
type answer[T Device | Health] struct {
	List  []T    `json:"list"`
	Error string `json:"error,omitempty"`
}

// maxListing bounds the output of a child, in bytes.
const maxListing = 1 << 20

// List returns the GPUs and MIG slices that this process could use: those of CUDA_VISIBLE_DEVICES, if set. A GPU in MIG
// mode is replaced by its slices. The list is empty, without an error, with neither a driver nor nvidia-smi. A separate
// process asks the driver (Config.Sampler with --list), within Config.Silence (10 s); if that fails, nvidia-smi is
// used.
func List(ctx context.Context, c Config) ([]Device, error) {
	smi, missing := c.present()
	if missing != nil && !anyFile(c.Drivers) {
		return nil, nil
	}
	var ds []Device
	err := errors.New("no process to ask NVML")
	if len(c.Sampler) > 0 {
		ds, err = listed(ctx, c)
	}
	if err != nil && missing == nil {
		var second error
		if ds, second = listSMI(ctx, c, smi); second != nil {
			return nil, fmt.Errorf("NVML: %w; nvidia-smi: %w", err, second)
		}
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if list, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		ds = shown(ds, list)
	}
	return ds, nil
}

// present sets what was left out of a Config, and returns the path of nvidia-smi.
func (c *Config) present() (smi string, missing error) {
	if c.Program == "" {
		c.Program = "nvidia-smi"
	}
	if c.Drivers == nil {
		c.Drivers = []string{"/dev/nvidiactl", "/dev/dxg"}
	}
	if c.Silence == 0 {
		c.Silence = 10 * time.Second
	}
	return exec.LookPath(c.Program)
}

// child runs a command within the time limit of a child, and returns its output.
func (c Config) child(ctx context.Context, command []string) ([]byte, error) {
	ctx, end := context.WithTimeoutCause(ctx, c.Silence, fmt.Errorf("%s did not end in %v", command[0], c.Silence))
	defer end()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = grace
	out := &head{most: maxListing}
	said := new(tail)
	cmd.Stdout, cmd.Stderr = out, said
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(2 * grace): // it hangs in the driver and cannot be ended
			return nil, context.Cause(ctx)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case out.over:
		return nil, fmt.Errorf("%s printed more than %d bytes", command[0], maxListing)
	case err != nil && said.String() != "":
		return out.b, fmt.Errorf("%w: %s", err, said)
	}
	return out.b, err
}

// head keeps the beginning of a child's output.
type head struct {
	b    []byte
	most int
	over bool
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.most-len(h.b))
	h.b = append(h.b, p[:n]...)
	h.over = h.over || n < len(p)
	return len(p), nil
}

// ask asks NVML in a separate process, which Config.Sampler and a flag start.
func ask[T Device | Health](ctx context.Context, c Config, flag string) ([]T, error) {
	out, err := c.child(ctx, append(slices.Clone(c.Sampler), flag))
	for line := range bytes.Lines(out) { // libraries print, too
		var a answer[T]
		switch {
		case json.Unmarshal(line, &a) != nil || a.List == nil && a.Error == "":
		case a.Error != "":
			return nil, errors.New(a.Error)
		default:
			return a.List, nil
		}
	}
	if err == nil {
		err = errors.New("it printed nothing")
	}
	return nil, err
}

func printAnswer[T Device | Health](w io.Writer, list func() ([]T, error)) error {
	l, err := list()
	a := answer[T]{List: append([]T{}, l...)}
	if err != nil {
		a = answer[T]{Error: err.Error()}
	}
	return errors.Join(err, json.NewEncoder(w).Encode(a))
}

func listed(ctx context.Context, c Config) ([]Device, error) {
	ds, err := ask[Device](ctx, c, "--list")
	for _, d := range ds {
		if !(d.Memory >= 0) || math.IsInf(d.Memory, 1) || d.Slices < 0 || d.Of < d.Slices {
			return nil, fmt.Errorf("it says of a GPU: %+v", d)
		}
	}
	return ds, err
}

// PrintDevices prints a JSON line with the devices that NVML reports, or the error: it is the body of the process that
// List starts.
func PrintDevices(w io.Writer) error { return printAnswer(w, listNVML) }

// sliceLine matches a MIG slice in the output of nvidia-smi -L: its name begins with its number of parts of the GPU
// (or, for compute instances, with their number of parts of that slice).
var sliceLine = regexp.MustCompile(`^\s+MIG (?:\d+c\.)?(\d+)g\.(\d+)gb\S*\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)`)

// listSMI asks nvidia-smi.
func listSMI(ctx context.Context, c Config, program string) ([]Device, error) {
	out, err := c.child(ctx, []string{program, "--query-gpu=index,uuid,name,memory.total,mig.mode.current", "--format=csv,noheader,nounits"})
	if err != nil {
		return nil, err
	}
	whole, divided, err := parseGPUs(out)
	if err != nil || len(divided) == 0 {
		return whole, err
	}
	if out, err = c.child(ctx, []string{program, "-L"}); err != nil {
		return nil, err
	}
	ds := append(whole, parseSlices(out, divided)...)
	slices.SortStableFunc(ds, func(a, b Device) int { return a.Index - b.Index })
	return ds, nil
}

// parseGPUs reads GPUs: whole ones, and divided ones.
func parseGPUs(out []byte) (whole, divided []Device, err error) {
	r := csv.NewReader(bytes.NewReader(out))
	r.TrimLeadingSpace = true
	r.FieldsPerRecord = 5
	rows, err := r.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("not the fields that were asked for: %w", err)
	}
	for _, row := range rows {
		index, err := strconv.ParseUint(row[0], 10, 16)
		if err != nil {
			return nil, nil, fmt.Errorf("%q is no index of a GPU", row[0])
		}
		d := Device{Index: int(index), UUID: row[1], Name: row[2]}
		if mib, err := strconv.ParseUint(row[3], 10, 32); err == nil {
			d.Memory = float64(mib) * (1 << 20)
		}
		if row[4] == "Enabled" {
			divided = append(divided, d)
		} else {
			whole = append(whole, d)
		}
	}
	return whole, divided, nil
}

// parseSlices reads the slices of divided GPUs from nvidia-smi -L.
func parseSlices(out []byte, divided []Device) (ds []Device) {
	var of *Device
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\r\n")
		if rest, isGPU := strings.CutPrefix(line, "GPU "); isGPU {
			of = nil
			number, _, _ := strings.Cut(rest, ":")
			for i := range divided {
				if number == strconv.Itoa(divided[i].Index) {
					of = &divided[i]
				}
			}
			continue
		}
		m := sliceLine.FindStringSubmatch(line)
		if m == nil || of == nil {
			continue
		}
		parts, err1 := strconv.Atoi(m[1])
		gb, err2 := strconv.Atoi(m[2])
		if err1 != nil || err2 != nil || parts < 1 {
			continue
		}
		total := 7
		// four parts (NVIDIA, Multi-Instance GPU User Guide, supported profiles)
		if strings.Contains(of.Name, "A30") || strings.Contains(of.Name, "RTX") {
			total = 4
		}
		ds = append(ds, Device{Index: of.Index, UUID: m[3], Name: of.Name, Slices: min(parts, total), Of: total, Memory: float64(gb) * 1e9})
	}
	return ds
}

// shown are the devices of CUDA_VISIBLE_DEVICES, in its order: indexes, UUIDs or prefixes of them. As in CUDA, the list
// ends at a missing device. (An index of a divided GPU is its first slice, according to the MIG guide.)
func shown(ds []Device, list string) (out []Device) {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		index, err := strconv.Atoi(name)
		at := slices.IndexFunc(ds, func(d Device) bool {
			if err == nil {
				return d.Index == index
			}
			return name != "" && (strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-")) && strings.HasPrefix(d.UUID, name)
		})
		if at < 0 || slices.ContainsFunc(out, func(d Device) bool { return d.UUID == ds[at].UUID }) {
			return out
		}
		out = append(out, ds[at])
	}
	return out
}
