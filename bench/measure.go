package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Measure is one number of a result, in a common form for comparisons and plots of all benchmarks. Less is better.
type Measure struct {
	Name      string // the same in every run of the benchmark
	Value     float64
	Low, High float64 // its usual range: p10 to p90, or a 95 % confidence interval. Both zero: unknown

	// Series and X place it in a plot: a line over X. X zero: in a plot of names.
	Series string
	X      float64
}

// unknownNoise is the ratio from which a difference counts if the scatter is unknown.
const unknownNoise = 1.2

// Verdict returns whether now is significantly faster or slower than old: each must lie outside of the other's usual
// range.
func Verdict(old, now Measure) string {
	spread := func(m Measure) (low, high float64) {
		if m.Low == 0 && m.High == 0 {
			return m.Value / unknownNoise, m.Value * unknownNoise
		}
		return m.Low, m.High
	}
	oldLow, oldHigh := spread(old)
	low, high := spread(now)
	switch {
	case now.Value < oldLow && old.Value > high:
		return "faster"
	case now.Value > oldHigh && old.Value < low:
		return "slower"
	}
	return "within noise"
}

// Compared is a number with that of an earlier result.
type Compared struct {
	Measure
	Old     *Measure // nil: no earlier result
	Ratio   float64  // Old over this one: above 1 is faster
	Verdict string
}

// CompareMeasures pairs numbers with those of the same name.
func CompareMeasures(old, now []Measure) []Compared {
	var out []Compared
	for _, m := range now {
		c := Compared{Measure: m, Verdict: "new"}
		if i := slices.IndexFunc(old, func(o Measure) bool { return o.Name == m.Name }); i >= 0 && m.Value > 0 {
			c.Old, c.Ratio, c.Verdict = &old[i], old[i].Value/m.Value, Verdict(old[i], m)
		}
		out = append(out, c)
	}
	return out
}

// ErrResult is wrapped by errors about a file without a result of a benchmark.
var ErrResult = errors.New("no result of this benchmark")

// ReadMeasures reads the --json output of a benchmark into result, a pointer, and returns its numbers. The error is of
// os.ReadFile, or wraps ErrResult.
func ReadMeasures(path string, result any, measures func() []Measure) ([]Measure, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(result); err == nil {
		if _, err = d.Token(); err == io.EOF {
			err = nil
		} else if err == nil {
			err = errors.New("something follows its end")
		}
	}
	var ms []Measure
	if err == nil {
		if ms = measures(); len(ms) == 0 {
			err = errors.New("there is no number in it")
		}
	}
	for _, m := range ms {
		if err == nil && !(m.Value > 0) {
			err = fmt.Errorf("%s is %v", m.Name, m.Value)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bench: %s is %w: %w", path, ErrResult, err)
	}
	return ms, nil
}

// DecideMeasures are the numbers of Decide. The usual range is as far below the median as the p90 is above, as a
// factor.
func DecideMeasures(rs []DecideResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%d workers, median", r.Workers), Value: r.Median, High: r.P90, Low: r.Median * r.Median / max(r.P90, r.Median), Series: "median", X: float64(r.Workers)},
			Measure{Name: fmt.Sprintf("%d workers, p90", r.Workers), Value: r.P90, Low: r.Median, High: max(r.Max, r.P90), Series: "p90", X: float64(r.Workers)})
	}
	return ms
}

// ScaleMeasures are the numbers of Scale.
func ScaleMeasures(rs []ScaleResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%s, %d workers: a gradient", r.Mode, r.Workers), Value: r.Gradient, Series: r.Mode, X: float64(r.Workers)})
	}
	return ms
}

// MatchMeasures are the numbers of Match.
func MatchMeasures(rs []MatchResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%s, %d vertices, %s", r.Graph, r.Vertices, r.Algorithm), Value: r.Median, Low: r.P10, High: r.P90,
			Series: r.Graph + ", " + r.Algorithm, X: float64(r.Vertices)})
	}
	return ms
}

// CoordMeasures are the numbers of Coord.
func CoordMeasures(rs []CoordResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%s, %d workers", r.Mode, r.Ranks), Value: r.Median, Low: r.P10, High: r.P90, Series: r.Mode, X: float64(r.Ranks)})
	}
	return ms
}

// ComputeMeasures are the numbers of Steps.
func ComputeMeasures(rs []StepResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%s, batch %d", r.Model, r.Batch), Value: r.CPU})
		if r.Peer != "" {
			ms = append(ms, Measure{Name: fmt.Sprintf("%s, batch %d, %s", r.Model, r.Batch, r.Peer), Value: r.PeerCPU})
		}
	}
	return ms
}

// ExchangeMeasures are the numbers of Exchanges.
func ExchangeMeasures(rs []ExchangeResult) (ms []Measure) {
	for _, r := range rs {
		ms = append(ms, Measure{Name: fmt.Sprintf("%s, %d ranks, %s %s", r.Model, r.Ranks, r.Exchange, cmp.Or(r.Transport, "-")), Value: r.Median, Low: r.P10, High: r.P90})
	}
	return ms
}

// measure returns the row as a number with its scatter.
func (r Row) measure() Measure {
	return Measure{Name: fmt.Sprintf("%d ranks, %d bytes, %s %s", r.Ranks, r.Bytes, r.Transport, r.Algorithm), Value: r.Median, Low: r.P10, High: r.P90}
}
