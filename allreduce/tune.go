package allreduce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"star/internal/durable"
	"star/internal/vector"
)

// TuneConfig says what Tune measures. The zero value works.
type TuneConfig struct {
	// Sizes are bytes of vectors. Empty means 4, 1 Ki, 4 Ki, … 64 Mi.
	Sizes []int64

	// Algorithms of AllReduce. Empty means all; the hierarchical ones only if
	// several hosts have several ranks.
	Algorithms []Algorithm

	// Segments, in bytes, to try with longer vectors. Empty means that of
	// Config or, if that is zero, 128 Ki, 256 Ki, 512 Ki, 1 Mi.
	Segments []int

	// Runs is how often a long vector is summed; short ones are more often.
	// Zero means 5.
	Runs int
}

// Tune measures the algorithms of AllReduce between the ranks of g and returns
// a Model with the results, equal on all ranks, which g uses from now on. All
// ranks must call it with the same cfg. It keeps measurements for other numbers
// of ranks and other links. It keeps only the best segment of each size and
// algorithm, and stops measuring one that is far behind in its first run.
func Tune(ctx context.Context, g *Group, cfg TuneConfig) (*Model, error) {
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = []int64{4}
		for s := int64(1 << 10); s <= 64<<20; s *= 4 {
			cfg.Sizes = append(cfg.Sizes, s)
		}
	}
	if len(cfg.Algorithms) == 0 {
		cfg.Algorithms = allReduceAlgorithms
		if g.placed != nil {
			cfg.Algorithms = append(slices.Clone(cfg.Algorithms), AlgorithmHierarchy, AlgorithmHierarchyDoubling)
		}
	}
	if len(cfg.Segments) == 0 {
		if cfg.Segments = []int{128 << 10, 256 << 10, 512 << 10, 1 << 20}; g.cfg.Segment > 0 {
			cfg.Segments = []int{g.cfg.Segment}
		}
	}
	for _, s := range cfg.Segments {
		if s < align || s%align != 0 {
			return nil, fmt.Errorf("allreduce: tune: a segment of %d bytes: it must be a positive multiple of %d", s, align)
		}
	}
	for _, s := range cfg.Sizes {
		if s < 4 || s%4 != 0 || s > 1<<40 {
			return nil, fmt.Errorf("allreduce: tune: %d bytes: a size must be a positive multiple of 4", s)
		}
	}
	n := g.Size()
	m := &Model{Alpha: g.model.Alpha, Beta: g.model.Beta, Gamma: g.model.Gamma, TCP: g.model.TCP}
	for _, s := range g.model.Samples {
		// Samples of this number of ranks and these links are replaced by the
		// new ones.
		if s.Ranks != n || s.Transport != "" && s.Transport != g.kind {
			m.Samples = append(m.Samples, s)
		}
	}
	algorithm, segment := g.cfg.Algorithm, g.cfg.Segment
	// The measurements change settings of the group.
	defer func() {
		g.cfg.Algorithm, g.cfg.Segment = algorithm, segment
		g.resegment()
	}()
	if n > 1 {
		for _, size := range cfg.Sizes {
			best := math.Inf(1)
			for _, a := range cfg.Algorithms {
				s := Sample{Ranks: n, Transport: g.kind, Bytes: size, Algorithm: a, Seconds: math.Inf(1)}
				for _, seg := range usefulSegments(cfg.Segments, size) {
					g.cfg.Algorithm, g.cfg.Segment = a, seg
					g.resegment()
					// All ranks have the same times, so they make the same
					// choices.
					t, err := g.measure(ctx, size, 1)
					if err == nil && t < hopeless*best {
						t, err = g.measure(ctx, size, cmp.Or(cfg.Runs, 5))
					}
					if err != nil {
						return nil, err
					}
					if t < s.Seconds {
						s.Seconds, s.Segment = t, seg
					}
				}
				best = min(best, s.Seconds)
				m.Samples = append(m.Samples, s)
			}
		}
		if err := m.fit(ctx, g); err != nil {
			return nil, err
		}
	}
	g.model = m
	g.over(g.kind)
	return m, nil
}

// hopeless is how many times slower than the best an algorithm must be to be
// dropped after its first run.
const hopeless = 2

// usefulSegments are those that cut a vector of size bytes into more than one
// piece; 0, the link's own, if none does.
func usefulSegments(segments []int, size int64) []int {
	var useful []int
	for _, s := range segments {
		if int64(s) < size {
			useful = append(useful, s)
		}
	}
	if useful == nil {
		return []int{0}
	}
	return useful
}

// resegment resets segments and algorithm to those of Config.
func (g *Group) resegment() {
	g.chosen, g.segment = sizedAlgorithm{}, -1
	g.cut()
}

// measure returns the median time of an all-reduce of size bytes: of each run,
// that of the slowest rank.
func (g *Group) measure(ctx context.Context, size int64, runs int) (float64, error) {
	v := vector.Make[float32](int(size / 4))
	inner := int(max(1, min(50, 256<<10/size)))
	// The first one warms up.
	times := make([]float64, 1+runs)
	for i := range times {
		if err := g.Barrier(ctx); err != nil {
			return 0, err
		}
		t := time.Now()
		for range inner {
			if err := g.AllReduce(ctx, Sum, v); err != nil {
				return 0, err
			}
		}
		times[i] = time.Since(t).Seconds() / float64(inner)
	}
	// The slowest rank's time counts, and all ranks must decide by the same
	// numbers.
	if err := AllReduce(ctx, g, Max, times); err != nil {
		return 0, err
	}
	times = times[1:]
	slices.Sort(times)
	return times[len(times)/2], nil
}

// fit derives the costs of one message, for numbers of ranks and sizes that
// were not measured: Alpha from the shortest vector, Beta from the longest,
// both with the algorithm that has the fewest terms.
func (m *Model) fit(ctx context.Context, g *Group) error {
	gamma := []float64{adding(time.Now)}
	if err := AllReduce(ctx, g, Max, gamma); err != nil {
		return err
	}
	m.Gamma = gamma[0]
	n := g.Size()
	steps := float64(RecursiveDoubling(n, 0).Steps)
	var short, long *Sample
	for i := range m.Samples {
		s := &m.Samples[i]
		if s.Ranks == n && s.Algorithm == AlgorithmDoubling && (short == nil || s.Bytes < short.Bytes) {
			short = s
		}
		if s.Ranks == n && s.Algorithm == AlgorithmRing && (long == nil || s.Bytes > long.Bytes) {
			long = s
		}
	}
	if short != nil {
		m.Alpha = short.Seconds / steps
	}
	// The ring has 2(n-1) messages, sends a share of (n-1)/n of the vector
	// twice and adds it once: what is left of its time is the cost of the
	// bytes.
	if long != nil {
		share := float64(n-1) / float64(n) * float64(long.Bytes)
		m.Beta = max(0, (long.Seconds-2*float64(n-1)*m.Alpha-share*m.Gamma)/(2*share))
	}
	return nil
}

// adding returns the seconds to add up a byte: the median of several runs,
// because another process may use the processor for longer than all of them
// take.
func adding(now func() time.Time) float64 {
	a, b := make([]float32, 1<<18), make([]float32, 1<<18)
	times := make([]float64, 17)
	for i := range times {
		t := now()
		combineInto(Float32Type, Sum, bytesOf(a), bytesOf(b))
		times[i] = now().Sub(t).Seconds()
	}
	slices.Sort(times)
	return times[len(times)/2] / (4 * float64(len(a)))
}

// Bounds of a model, which is sent in greetings and sizes buffers.
const (
	maxSamples = 4096
	maxSegment = 64 << 20
)

func (m *Model) check() error {
	good := func(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }
	if len(m.Samples) > maxSamples {
		return fmt.Errorf("%d samples: there may be %d", len(m.Samples), maxSamples)
	}
	if o := m.TCP; o != nil && (len(o.Congestion) > 15 || o.SendBuffer > maxSegment || o.ReceiveBuffer > maxSegment) {
		return fmt.Errorf("tcp: congestion %q, buffers of %d and %d bytes: a name has up to 15 characters, a buffer up to %d bytes", o.Congestion, o.SendBuffer, o.ReceiveBuffer, maxSegment)
	}
	if !good(m.Alpha) || !good(m.Beta) || !good(m.Gamma) {
		return fmt.Errorf("alpha %v, beta %v, gamma %v: they must be positive numbers of seconds", m.Alpha, m.Beta, m.Gamma)
	}
	for i, s := range m.Samples {
		if s.Segment < 0 || s.Segment%align != 0 || s.Segment > maxSegment {
			return fmt.Errorf("sample %d: segments of %d bytes: they must be multiples of %d up to %d", i, s.Segment, align, maxSegment)
		}
		if s.Ranks < 1 || s.Bytes < 1 || !(s.Seconds > 0) || !good(s.Seconds) || s.Algorithm == AlgorithmAuto {
			return fmt.Errorf("sample %d: %d ranks, %d bytes, %v, %v s: all must be positive", i, s.Ranks, s.Bytes, s.Algorithm, s.Seconds)
		}
	}
	return nil
}

// ErrModel is wrapped by errors about a file that is not a cost model.
var ErrModel = errors.New("not a cost model")

// modelFormat is the first field of a file. Another number means other fields.
const modelFormat = "star all-reduce model 1"

type modelFile struct {
	Format string `json:"format"`
	*Model
}

// LoadModel reads a model that Save has written. The error is that of
// os.ReadFile, or wraps ErrModel.
func LoadModel(path string) (*Model, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("allreduce: cost model: %w", err)
	}
	f := modelFile{Model: new(Model)}
	dec := json.NewDecoder(bytes.NewReader(text))
	// A file of another release with more fields would mean something else.
	dec.DisallowUnknownFields()
	if err = dec.Decode(&f); err == nil {
		_, err = dec.Token()
		switch {
		case err == nil:
			err = errors.New("trailing data")
		case err == io.EOF:
			err = nil
		}
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("unexpected end")
	case err == nil && f.Format != modelFormat:
		err = fmt.Errorf("format is %q, not %q", f.Format, modelFormat)
	case err == nil:
		err = f.check()
	}
	if err != nil {
		return nil, fmt.Errorf("allreduce: %s is %w: %w; write a new one with star bench allreduce --tune or Tune", path, ErrModel, err)
	}
	return f.Model, nil
}

// Save writes m as JSON, atomically: the file is the new one or the old one.
func (m *Model) Save(path string) error {
	text, err := json.MarshalIndent(modelFile{modelFormat, m}, "", "  ")
	if err != nil {
		return fmt.Errorf("allreduce: cost model: %w", err)
	}
	if err := durable.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("allreduce: cost model: %w", err)
	}
	return nil
}
