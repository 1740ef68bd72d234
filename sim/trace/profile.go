package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"star/internal/unpack"
)

// Profile is what one rank's trace of PyTorch's profiler says of its steps.
type Profile struct {
	Rank  int // −1: it does not say
	World int // 0: it does not say
	GPU   bool
	Steps []ProfiledStep // in order; the first and the last one may have been cut, and are left out
}

// ProfiledStep is one step. Times are in seconds.
type ProfiledStep struct {
	Took float64
	Load float64 // in the DataLoader
	Wait float64 // in which a collective ran and nothing else: waiting for others, and the exchange itself
}

// maxEvents are of one profile: 16 bytes each are kept.
const maxEvents = 50_000_000

// IsProfile says whether a file begins like a trace of the profiler: Chrome's trace format, an object with
// traceEvents or an array of events.
func IsProfile(head []byte) bool {
	text := strings.TrimSpace(string(head))
	switch {
	case strings.HasPrefix(text, "["):
		return strings.Contains(text, `"ph"`)
	case strings.HasPrefix(text, "{"):
		return strings.Contains(text, `"traceEvents"`) || strings.Contains(text, `"schemaVersion"`) || strings.Contains(text, `"deviceProperties"`)
	}
	return false
}

// span is from one time to another, in µs.
type span struct{ from, to float64 }

// event is one of Chrome's trace format.
type event struct {
	Ph   string  `json:"ph"`
	Cat  string  `json:"cat"`
	Name string  `json:"name"`
	Ts   float64 `json:"ts"`
	Dur  float64 `json:"dur"`
}

// profiler collects spans of one trace.
type profiler struct {
	steps, ends                      []span // by the profiler's own marks; by those of the optimizer
	load                             []span
	kernels, exchange, work, onHosts []span // of GPUs: what computes, collectives; of processors: operators, collectives
	events                           int
}

// collective says whether an operator or a kernel is one.
func collective(name string) bool {
	for _, p := range []string{"nccl", "gloo:", "mpi:", "ucc:", "rccl"} {
		if len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}

func (p *profiler) take(e *event) error {
	if e.Ph != "X" {
		return nil
	}
	if p.events++; p.events > maxEvents {
		return fmt.Errorf("more than %d events", maxEvents)
	}
	if !(e.Dur >= 0 && e.Ts > -1e18 && e.Ts < 1e18 && e.Dur < 1e15) {
		return fmt.Errorf("%q is at %v µs and takes %v", e.Name, e.Ts, e.Dur)
	}
	s := span{e.Ts, e.Ts + e.Dur}
	onGPU := e.Cat == "kernel" || e.Cat == "gpu_memcpy" || e.Cat == "gpu_memset"
	switch {
	case strings.HasPrefix(e.Cat, "gpu_user"): // the same annotation again
	case strings.HasPrefix(e.Name, "ProfilerStep#"):
		p.steps = append(p.steps, s)
	case strings.HasPrefix(e.Name, "Optimizer.step#"):
		p.ends = append(p.ends, s)
	case strings.HasPrefix(e.Name, "enumerate(DataLoader)#"):
		p.load = append(p.load, s)
	case onGPU && collective(e.Name):
		p.exchange = append(p.exchange, s)
	case onGPU:
		p.kernels = append(p.kernels, s)
	case collective(e.Name):
		p.onHosts = append(p.onHosts, s)
	case e.Cat == "cpu_op" || e.Cat == "" || e.Cat == "Operator":
		if !strings.HasPrefix(e.Name, "c10d::") && !strings.HasPrefix(e.Name, "DistributedDataParallel.") {
			p.work = append(p.work, s)
		}
	}
	return nil
}

// ReadProfile reads a trace that torch.profiler has exported, plain or gzip. Errors begin with its name.
func ReadProfile(r io.Reader, name string) (*Profile, error) {
	fail := func(err error) error {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is cut off")
		}
		return corrupt{fmt.Sprintf("%s: %v", name, err)}
	}
	br, err := unpack.Reader(r)
	if err != nil {
		return nil, fail(err)
	}
	out, p := &Profile{Rank: -1}, new(profiler)
	d := json.NewDecoder(bufio.NewReaderSize(br, 1<<20))
	events := func() error {
		for d.More() {
			e := event{}
			if err := d.Decode(&e); err != nil {
				if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) { // metadata has what it likes
					continue
				}
				return err
			}
			if err := p.take(&e); err != nil {
				return err
			}
		}
		_, err := d.Token()
		return err
	}
	switch t, err := d.Token(); {
	case err != nil:
		return nil, fail(err)
	case t == json.Delim('['):
		if err := events(); err != nil {
			return nil, fail(err)
		}
	case t == json.Delim('{'):
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, fail(err)
			}
			switch key {
			case "traceEvents":
				if t, err := d.Token(); err != nil || t != json.Delim('[') {
					return nil, fail(errors.New("traceEvents is no array"))
				}
				if err := events(); err != nil {
					return nil, fail(err)
				}
			case "distributedInfo":
				var of struct {
					Rank  *int `json:"rank"`
					World int  `json:"world_size"`
				}
				if err := d.Decode(&of); err != nil {
					return nil, fail(err)
				}
				if of.Rank != nil {
					out.Rank, out.World = *of.Rank, of.World
				}
			default:
				var skip json.RawMessage
				if err := d.Decode(&skip); err != nil {
					return nil, fail(err)
				}
			}
		}
	default:
		return nil, fail(errors.New("it is no trace of a profiler"))
	}
	steps := p.between()
	if len(steps) == 0 {
		return nil, corrupt{fmt.Sprintf("%s: no steps: neither two events Optimizer.step#…, nor ProfilerStep#… (profile with a schedule, and call step() after each step)", name)}
	}
	out.GPU = len(p.kernels) > 0
	work, waits := p.work, p.onHosts
	if out.GPU {
		work, waits = p.kernels, p.exchange
	}
	waits, load := without(union(waits), union(work)), union(p.load)
	for _, s := range steps {
		took := (s.to - s.from) / 1e6
		l := min(within(load, s), took)
		out.Steps = append(out.Steps, ProfiledStep{Took: took, Load: l, Wait: min(within(without(waits, load), s), took-l)})
	}
	return out, nil
}

// between are the steps: the profiler's own marks, or what is between two ends of an optimizer's step.
func (p *profiler) between() []span {
	if len(p.steps) > 0 {
		slices.SortFunc(p.steps, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		return p.steps
	}
	ends := union(p.ends)
	var out []span
	for i := 1; i < len(ends); i++ {
		out = append(out, span{ends[i-1].to, ends[i].to})
	}
	return out
}

// union is the same time in spans that do not meet, in order.
func union(spans []span) []span {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// without is what is in a and not in b, both unions.
func without(a, b []span) []span {
	var out []span
	for _, s := range a {
		for len(b) > 0 && b[0].to <= s.from {
			b = b[1:]
		}
		for _, c := range b {
			if c.from >= s.to {
				break
			}
			if c.from > s.from {
				out = append(out, span{s.from, c.from})
			}
			s.from = max(s.from, c.to)
		}
		if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

// within is how much of a union is in a span, in seconds.
func within(of []span, in span) float64 {
	i, _ := slices.BinarySearchFunc(of, in.from, func(s span, t float64) int {
		if s.to <= t {
			return -1
		}
		return 1
	})
	sum := 0.0
	for ; i < len(of) && of[i].from < in.to; i++ {
		sum += min(of[i].to, in.to) - max(of[i].from, in.from)
	}
	return sum / 1e6
}
