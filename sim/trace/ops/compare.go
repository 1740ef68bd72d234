package ops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OpenMeta reads how a job was cut from a YAML file with the keys trial_name, run_id, dp_size, pp_size, vpp_size,
// tp_size, dsp_size and world_size. All may be left out; a key of another name is an error.
func OpenMeta(path string) (Meta, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Meta{}, fmt.Errorf("meta of a trace: %w", err)
	}
	return ParseMeta(path, b)
}

// ParseMeta is OpenMeta for the text of the file of that name.
func ParseMeta(name string, text []byte) (m Meta, err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		text := strings.NewReplacer("yaml: unmarshal errors:\n  ", "", "\n  ", "; ", " not found in type ops.Meta", " is unknown", "yaml: ", "").Replace(err.Error())
		return m, corrupt{name + ": " + text}
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"dp_size", m.Data}, {"pp_size", m.Stages}, {"vpp_size", m.Chunks}, {"tp_size", m.Tensor}, {"dsp_size", m.Sequence}, {"world_size", m.World}} {
		if f.v < 0 || f.v > maxOps {
			return m, corrupt{fmt.Sprintf("%s: %s is %d, want 1 to %d", name, f.name, f.v, maxOps)}
		}
	}
	if m.Data > maxRank || m.Stages > maxRank || m.Chunks > maxRank {
		return m, corrupt{fmt.Sprintf("%s: dp_size %d, pp_size %d, vpp_size %d: at most %d of each", name, m.Data, m.Stages, m.Chunks, maxRank)}
	}
	return m, nil
}

// Line is a number beside the published one.
type Line struct {
	Name            string
	Ours, Published float64

	// Share says that they are parts of the damage, which may be near 0 or negative: Error is then their difference.
	Share bool
}

// Error is how far ours is from the published one, as a part of it, or of the damage.
func (l Line) Error() float64 {
	if l.Share {
		return math.Abs(l.Ours - l.Published)
	}
	return math.Abs(l.Ours/l.Published - 1)
}

// published is what the files of StragglerAnalysis say: result-*.json, mw-*.json and ms-*.json.
type published struct {
	Slowdown *float64           `json:"blocking_slowdown"`
	Base     map[string]float64 `json:"step_t_base"`
	NoDelay  map[string]float64 `json:"step_t_nodelay"`
	Ideal    map[string]float64 `json:"step_t_noblk"`
	Types    map[string]float64 `json:"blocking_decompose_by_optype"`
	Data     map[string]float64 `json:"blocking_decompose_by_dp_rank"`
	Stages   map[string]float64 `json:"blocking_decompose_by_stage"`

	Repaired *float64 `json:"trem"`
	Alone    *float64 `json:"tadd"`
	Original *float64 `json:"tori"`
	Perfect  *float64 `json:"tideal"`
	Removed  *float64 `json:"rem"`
	Added    *float64 `json:"add"`
	Mw       *float64 `json:"Mw"`
	Ms       *float64 `json:"Ms"`
}

// Compare puts a result beside the published one in a file of that name: an attribution, or the part of the
// slowest workers or of the last stage. What it says of ranks, stages, types or steps that the job does not have
// is an error, with ErrTrace.
func Compare(r Result, name string, text []byte) ([]Line, error) {
	var p published
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, corrupt{fmt.Sprintf("%s: not a published result: %v", name, err)}
	}
	var out []Line
	var missing error
	add := func(name string, ours float64, of *float64, share bool) {
		if of != nil {
			out = append(out, Line{name, ours, *of, share})
		}
	}
	lack := func(what string) {
		if missing == nil {
			missing = corrupt{fmt.Sprintf("%s: it has a number for %s, which the trace has not", name, what)}
		}
	}
	add("S", r.Slowdown, p.Slowdown, false)
	for _, x := range []struct {
		name string
		of   map[string]float64
		ours []float64
	}{{"dp_rank", p.Data, r.Data}, {"stage", p.Stages, r.Stages}} {
		for _, key := range slices.Sorted(maps.Keys(x.of)) {
			if k, err := strconv.Atoi(key); err == nil && k >= 0 && k < len(x.ours) {
				v := x.of[key]
				add(fmt.Sprintf("S of %s %d", x.name, k), x.ours[k], &v, false)
				continue
			}
			lack(x.name + " " + key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.Types)) {
		v := p.Types[key]
		if ours, ok := r.Types[key]; ok {
			add("S of "+key, ours, &v, false)
			continue
		}
		lack(key)
	}
	for _, x := range []struct {
		name string
		of   map[string]float64
		ours func(Times) float64
	}{{"recorded", p.Base, func(t Times) float64 { return t.Recorded }}, {"without gaps", p.NoDelay, func(t Times) float64 { return t.Launched }},
		{"without stragglers", p.Ideal, func(t Times) float64 { return t.Ideal }}} {
		seen := 0
		for _, t := range r.Steps {
			if v, ok := x.of[strconv.FormatInt(t.Step, 10)]; ok {
				seen++
				add(fmt.Sprintf("step %d %s", t.Step, x.name), x.ours(t), &v, false)
			}
		}
		if seen < len(x.of) {
			lack(fmt.Sprintf("%d of its %d steps", len(x.of)-seen, len(x.of)))
		}
	}
	part, of := r.Worst, "slowest workers"
	if p.Ms != nil {
		part, of = r.Last, "last stage"
	}
	add("T", r.Launched, p.Original, false)
	add("T without stragglers", r.Ideal, p.Perfect, false)
	add("T, "+of+" repaired", part.Repaired, p.Repaired, false)
	add("T, "+of+" alone slow", part.Alone, p.Alone, false)
	add("damage gone with the "+of, part.Removed, p.Removed, true)
	add("damage there with the "+of+" alone", part.Added, p.Added, true)
	add("M_W", part.Removed, p.Mw, true)
	add("M_S", part.Removed, p.Ms, true)
	if missing == nil && len(out) == 0 {
		missing = corrupt{name + ": none of the numbers that a published result has: blocking_slowdown, blocking_decompose_by_dp_rank, Mw, Ms …"}
	}
	return out, missing
}
