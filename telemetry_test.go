package star_test

import (
	"math"
	"testing"

	"star"
)

func TestTelemetry(t *testing.T) {
	var a, b star.Telemetry
	if _, ok := a.Get(star.Steal); ok {
		t.Error("the zero Telemetry has a measurement")
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300} {
		if a.Set(star.Steal, v); a.Seen != 0 {
			t.Errorf("%v counts as measured", v)
		}
	}
	a.Set(star.Steal, 0.5)
	a.Set(star.Quota, 2)
	b.Set(star.Steal, 0)
	b.Set(star.GPULinkShare, 1)
	a.Merge(&b)
	for m, want := range map[star.Metric]float64{star.Steal: 0, star.Quota: 2, star.GPULinkShare: 1} {
		if v, ok := a.Get(m); !ok || v != want {
			t.Errorf("%v = %v, %v; want %v", m, v, ok, want)
		}
	}
	if a.Seen != 1<<star.Steal|1<<star.Quota|1<<star.GPULinkShare {
		t.Errorf("seen %b", a.Seen)
	}
}

// The names are what run logs and programs that read them rely on.
func TestMetricNames(t *testing.T) {
	seen := map[string]bool{}
	for m := range star.NumMetrics {
		got, ok := star.MetricByName(m.String())
		if m.String() == "" || seen[m.String()] || !ok || got != m {
			t.Errorf("metric %d is %q, which is metric %d, %v", m, m, got, ok)
		}
		seen[m.String()] = true
	}
	if _, ok := star.MetricByName("unknown metric"); ok || star.NumMetrics.String() != "unknown metric" {
		t.Error("a metric that does not exist has a name")
	}
}
