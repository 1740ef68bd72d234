package price_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star/modes"
	"star/modes/price"
)

// If every iteration of a worker takes the same time, Over returns the cost that Of predicts.
func TestOverSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		f := price.Forecast{Batch: 32, Noise: rapid.Float64Range(0, 1e4).Draw(t, "noise"), Times: make([]time.Duration, n)}
		h := make(price.History, n)
		for w := range h {
			f.Times[w] = time.Duration(rapid.IntRange(50, 400).Draw(t, "ms")) * time.Millisecond
			for range 400 {
				h[w] = append(h[w], f.Times[w])
			}
		}
		var p modes.Plan
		switch x := rapid.IntRange(1, n).Draw(t, "x"); rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			p = modes.XOrder(n, x)
		case 1:
			p = modes.Backup(n, n-x)
		default:
			p = modes.Ring(n)
		}
		if rapid.Bool().Draw(t, "shares") {
			p.Shares = rapid.SliceOfN(rapid.IntRange(1, 64), n, n).Draw(t, "shares")
		}
		want, err := price.Of(p, f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := price.Over(p, h, f)
		if err != nil {
			t.Fatal(err)
		}
		if d := math.Abs(got.Interval.Seconds()/want.Interval.Seconds() - 1); d > 0.03 {
			t.Errorf("%v: an update every %v over a steady history, every %v by Price", p, got.Interval, want.Interval)
		}
		// With shares that do not add up to a round Price is rough: how far behind a gradient is rests on a whole one.
		if d := math.Abs(got.Cost.Seconds()/want.Cost.Seconds() - 1); d > 0.03 && p.Shares == nil {
			t.Errorf("%v: cost %v over a steady history, %v by Of", p, got.Cost, want.Cost)
		}
	})
}

// Each iteration is slow at a different worker: on average all workers are alike, so Of sees no gain, but SSGD waits in
// each round.
func TestOverTakesTurns(t *testing.T) {
	const n = 4
	h := make(price.History, n)
	for w := range h {
		for k := range 40 {
			d := 100 * time.Millisecond
			if k%n == w {
				d *= 3
			}
			h[w] = append(h[w], d)
		}
	}
	f := price.Forecast{Batch: 32, Rate: 0.02}
	ssgd, err := price.Over(modes.SSGD(n), h, f)
	if err != nil {
		t.Fatal(err)
	}
	asgd, err := price.Over(modes.ASGD(n), h, f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := asgd.Cost.Seconds()/ssgd.Cost.Seconds(), 0.5; math.Abs(got-want) > 0.03 {
		t.Errorf("ASGD costs %v of SSGD, want %v: iterations take 150 ms on average, and the slowest of four 300", got, want)
	}
}

// A worker without a history has left.
func TestOverWithoutAWorker(t *testing.T) {
	h := price.History{{100 * time.Millisecond}, nil, {200 * time.Millisecond}}
	c, err := price.Over(modes.SSGD(3), h, price.Forecast{Batch: 1})
	if err != nil || c.Interval != 200*time.Millisecond {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []price.History{{}, {nil, nil}, {{-1}}, {{0, 5}}} {
		if c, err := price.Over(modes.SSGD(max(len(bad), 1)), bad, price.Forecast{Batch: 1}); err == nil {
			t.Errorf("%v: %+v", bad, c)
		}
	}
}

// Two iterations of each worker are replayed for as long as thirty-two, so that the price does not depend on where a
// few updates begin and end. No plan applies more gradients than workers that never wait compute.
func TestOverFewIterations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		f := price.Forecast{Batch: 16, Noise: 100, Times: make([]time.Duration, n)}
		few, many := make(price.History, n), make(price.History, n)
		most := 0.0
		for w := range n {
			sum := time.Duration(0)
			for range 2 {
				d := time.Duration(rapid.IntRange(100, 400).Draw(t, "ms")) * time.Millisecond
				few[w] = append(few[w], d)
				sum += d
			}
			for range 16 {
				many[w] = append(many[w], few[w]...)
			}
			most += 2 * 16 / sum.Seconds()
		}
		for _, p := range []modes.Plan{modes.SSGD(n), modes.ASGD(n), modes.XOrder(n, (n+1)/2), modes.XOrder(n, n-1), modes.Ring(n, 0)} {
			if p.Validate(n) != nil {
				continue
			}
			a, err := price.Over(p, few, f)
			if err != nil {
				t.Fatal(err)
			}
			b, err := price.Over(p, many, f)
			if err != nil {
				t.Fatal(err)
			}
			if a.Cost != b.Cost {
				t.Errorf("%v: %v over two iterations of each, %v over the same sixteen times", p, a.Cost, b.Cost)
			}
			if a.Rate() > most*(1+1e-6) {
				t.Errorf("%v: %v samples/s, and nobody waits with %v", p, a.Rate(), most)
			}
		}
	})
}
