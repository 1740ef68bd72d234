package allreduce

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// TuneConfig says what Tune measures. The zero value works.
type TuneConfig struct {
	// Sizes is the bytes of vectors. Empty means 4, 1 Ki, 4 Ki, … 64 Mi.
	Sizes []int64

	// Algorithms of AllReduce. Empty means all.
	Algorithms []Algorithm

	// Runs is how often a long vector is summed; short ones are more often. Zero
	// means 5.
	Runs int
}

// Tune measures the algorithms of AllReduce between the ranks of g, all of which
// must call it with the same cfg, and returns a Model with the results, the same
// on all ranks, which g uses from now on. Measurements for other numbers of
// ranks are kept.
func Tune(ctx context.Context, g *Group, cfg TuneConfig) (*Model, error) {
	if len(cfg.Sizes) == 0 {
		cfg.Sizes = []int64{4}
		for s := int64(1 << 10); s <= 64<<20; s *= 4 {
			cfg.Sizes = append(cfg.Sizes, s)
		}
	}
	if len(cfg.Algorithms) == 0 {
		cfg.Algorithms = allReduceAlgorithms
	}
	for _, s := range cfg.Sizes {
		if s < 4 || s%4 != 0 || s > 1<<40 {
			return nil, fmt.Errorf("allreduce: tune: %d bytes: a size must be a positive multiple of 4", s)
		}
	}
	n := g.Size()
	m := &Model{Alpha: g.model.Alpha, Beta: g.model.Beta, Gamma: g.model.Gamma}
	for _, s := range g.model.Samples {
		if s.Ranks != n {
			m.Samples = append(m.Samples, s)
		}
	}
	configured := g.cfg.Algorithm
	defer func() { g.cfg.Algorithm = configured }()
	if n > 1 {
		for _, size := range cfg.Sizes {
			for _, a := range cfg.Algorithms {
				g.cfg.Algorithm = a
				t, err := g.measure(ctx, size, cmp.Or(cfg.Runs, 5))
				if err != nil {
					return nil, err
				}
				m.Samples = append(m.Samples, Sample{n, size, a, t})
			}
		}
		if err := m.fit(ctx, g); err != nil {
			return nil, err
		}
	}
	g.model, g.chosen = m, sizedAlgorithm{}
	return m, nil
}

// measure is the median time of an all-reduce of size bytes: of each run, that of
// the slowest rank.
func (g *Group) measure(ctx context.Context, size int64, runs int) (float64, error) {
	v := make([]float32, size/4)
	inner := int(max(1, min(50, 256<<10/size)))
	times := make([]float64, 1+runs) // the first one warms up
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
	if err := AllReduce(ctx, g, Max, times); err != nil {
		return 0, err
	}
	times = times[1:]
	slices.Sort(times)
	return times[len(times)/2], nil
}

// fit derives the prices of one message, for numbers of ranks and sizes that have
// not been measured: Alpha from the shortest vector, Beta from the longest, both by
// the algorithm whose price has the fewest terms.
func (m *Model) fit(ctx context.Context, g *Group) error {
	a, b := make([]float32, 1<<18), make([]float32, 1<<18)
	t := time.Now()
	for range 16 {
		combineInto(Float32Type, Sum, bytesOf(a), bytesOf(b))
	}
	gamma := []float64{time.Since(t).Seconds() / (16 * 4 * float64(len(a)))}
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
	if long != nil {
		share := float64(n-1) / float64(n) * float64(long.Bytes)
		m.Beta = max(0, (long.Seconds-2*float64(n-1)*m.Alpha-share*m.Gamma)/(2*share))
	}
	return nil
}

func (m *Model) check() error {
	good := func(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }
	if !good(m.Alpha) || !good(m.Beta) || !good(m.Gamma) {
		return fmt.Errorf("alpha %v, beta %v, gamma %v: they must be positive numbers of seconds", m.Alpha, m.Beta, m.Gamma)
	}
	for i, s := range m.Samples {
		if s.Ranks < 1 || s.Bytes < 1 || !(s.Seconds > 0) || !good(s.Seconds) || s.Algorithm == AlgorithmAuto {
			return fmt.Errorf("sample %d: %d ranks, %d bytes, %v, %v s: all must be positive", i, s.Ranks, s.Bytes, s.Algorithm, s.Seconds)
		}
	}
	return nil
}

// LoadModel reads a model that Save has written.
func LoadModel(path string) (*Model, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("allreduce: cost model: %w", err)
	}
	m := new(Model)
	if err = json.Unmarshal(text, m); err == nil {
		err = m.check()
	}
	if err != nil {
		return nil, fmt.Errorf("allreduce: cost model %s: %w; make a new one with Tune", path, err)
	}
	return m, nil
}

// Save writes m as JSON. The file is complete or the old one.
func (m *Model) Save(path string) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("allreduce: cost model: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("allreduce: cost model: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if e := f.Chmod(0o644); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("allreduce: cost model: %w", err)
	}
	return nil
}
