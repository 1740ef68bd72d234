package sched

import (
	"math"
	"testing"

	"star/sched/market"
)

// A study of three configurations, by hand: two runs on demand, one of them without an end, four times as fast for half
// the money, and one without a price.
func TestReportMarket(t *testing.T) {
	run := func(seconds, cost float64, revoked int) *market.Run {
		return &market.Run{Seconds: seconds, Accuracy: .9, Logged: !math.IsNaN(seconds), Cost: cost, Study: math.NaN(), Revoked: revoked}
	}
	r := reportMarket(&market.Study{
		Configs: []*market.Config{
			{Name: marketBase, Runs: []*market.Run{run(7200, 4, 0), run(math.NaN(), math.NaN(), 0)}},
			{Name: "four", Runs: []*market.Run{run(1200, 1, 0), run(2400, 3, 1)}},
			{Name: "unknown", Runs: []*market.Run{run(3600, math.NaN(), 0)}},
		},
		Lifetimes: []market.Lifetime{{Machine: market.K80, Hours: []float64{.5, 3, 24.5}}},
	})
	base, four, unknown := r.Configs[0], r.Configs[1], r.Configs[2]
	if base.Runs != 2 || base.Ended != 1 || base.Hours != 2 || base.Speedup != 1 || *base.Saving != 0 || base.Study != nil {
		t.Errorf("on demand: %+v", base)
	}
	if four.Hours != .5 || four.Speedup != 4 || *four.Saving != .5 || four.Rate != market.Steps/1800. || unknown.Cost != nil || unknown.Saving != nil || unknown.Speedup != 2 {
		t.Errorf("%+v, %+v", four, unknown)
	}
	if l := r.Losses; len(l) != 2 || l[0] != (marketLoss{"four", 0, 1, 1. / 3, 1}) || l[1] != (marketLoss{"four", 1, 1, 2. / 3, 3}) {
		t.Errorf("revocations: %+v", l)
	}
	if l := r.Lives[0]; math.Abs(l.Mean-28./3) > 1e-12 || l.Within[0] != 1./3 || l.Within[2] != 1./3 || l.Within[3] != 2./3 || l.Within[23] != 2./3 || l.Within[24] != 1 {
		t.Errorf("lifetimes: %+v", l)
	}
}

// The middle 80 % of 0 to 100 are 10 to 90; what does not end has no number.
func TestSpanOf(t *testing.T) {
	var v []float64
	for i := range 101 {
		v = append(v, float64(i))
	}
	if s := spanOf(v, .8); *s.Median != 50 || math.Abs(*s.Low-10) > 1e-9 || math.Abs(*s.High-90) > 1e-9 {
		t.Errorf("%v, %v to %v", *s.Median, *s.Low, *s.High)
	}
	v[99], v[100] = math.Inf(1), math.Inf(1)
	if s := spanOf(v, .99); s.High != nil || s.Low == nil {
		t.Errorf("%+v, want no upper end", s)
	}
}
