package auto

import (
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// The detector follows the slow worker as it changes: a move is from one worker that is clearly slow to another one,
// whatever lies between.
func TestSuspect(t *testing.T) {
	const none = -1
	for _, c := range []struct {
		turns []int // the worker that takes twice as long
		moves int
		since int // the turn since which the last one is suspected
	}{
		{[]int{none, none}, 0, 0},
		{[]int{3, 3, 3}, 0, 0},
		{[]int{3, none, 3}, 0, 2},
		{[]int{none, 3, none, 2, 2}, 1, 3},
		{[]int{3, 2, 3, 0}, 3, 3},
	} {
		k, err := New(Config{Workers: 4, Batch: 1}, modes.SSGD(4))
		if err != nil {
			t.Fatal(err)
		}
		last := none
		for i, who := range c.turns {
			times := []time.Duration{100, 119, 100, 100} // 119 is not clearly slow
			if who >= 0 {
				times[who] = 200
			}
			k.suspect.follow(time.Duration(i)*time.Second, times)
			last = who
		}
		if k.suspect.moves != c.moves || k.suspect.worker != star.Worker(last) || k.suspect.since != time.Duration(c.since)*time.Second {
			t.Errorf("%v: %d moves, worker %d since %v; want %d, %d, %ds", c.turns, k.suspect.moves, k.suspect.worker, k.suspect.since, c.moves, last, c.since)
		}
	}
}

// Which of several slow workers is the slowest is chance, and not a turn: that is over when the last one is no longer
// slow.
func TestSuspectsAlike(t *testing.T) {
	for _, c := range []struct {
		name  string
		turns [][]time.Duration
		slow  star.Worker
		moves int
	}{
		{"two that overtake each other", [][]time.Duration{{300, 310, 100, 100, 100}, {310, 300, 100, 100, 100}, {300, 310, 100, 100, 100}}, 1, 0},
		{"another one joins, and is slower", [][]time.Duration{{300, 100, 100, 100, 100}, {300, 400, 100, 100, 100}}, 0, 0},
		{"the first of two is slow no more", [][]time.Duration{{300, 200, 100, 100, 100}, {100, 200, 100, 100, 100}}, 1, 1},
		{"nobody for a while, then both", [][]time.Duration{{300, 100, 100, 100, 100}, {100, 100, 100, 100, 100}, {300, 400, 100, 100, 100}}, 1, 0},
		{"nobody for a while, then the other", [][]time.Duration{{300, 100, 100, 100, 100}, {100, 100, 100, 100, 100}, {100, 400, 100, 100, 100}}, 1, 1},
		{"the last one is gone", [][]time.Duration{{300, 100, 100, 100, 100}, {0, 400, 100, 100, 100}}, 1, 1},
	} {
		k, err := New(Config{Workers: 5, Batch: 1}, modes.SSGD(5))
		if err != nil {
			t.Fatal(err)
		}
		for i, times := range c.turns {
			k.suspect.follow(time.Duration(i)*time.Second, times)
		}
		if k.suspect.worker != c.slow || k.suspect.moves != c.moves {
			t.Errorf("%s: worker %d after %d moves; want %d, %d", c.name, k.suspect.worker, k.suspect.moves, c.slow, c.moves)
		}
	}
}

// A plan made for one worker costs what it costs when another worker is slow, as often as that may happen before the
// plan has run for its dwell. A plan that takes workers in order of arrival keeps its price.
func TestPriceMoving(t *testing.T) {
	const n = 4
	f := price.Forecast{Batch: 16, Noise: 100, Fits: make([]price.Fit, n)}
	var h, swapped price.History
	for w := range n {
		d := time.Duration(100+w) * time.Millisecond // the first is the fastest
		if w == 2 {
			d = 300 * time.Millisecond
		}
		f.Times = append(f.Times, d)
		h = append(h, []time.Duration{d, d + 1, d + 2})
		f.Fits[w] = price.Fit{Fixed: d.Seconds() / 4, PerSample: d.Seconds() * 3 / 4 / 16}
	}
	swapped = append(swapped, h[2], h[1], h[0], h[3])
	g := f
	g.Fits = []price.Fit{f.Fits[2], f.Fits[1], f.Fits[0], f.Fits[3]}
	shares := modes.SSGD(n)
	shares.Shares = []int{19, 19, 7, 19}
	for _, c := range []struct {
		plan  modes.Plan
		fixed bool // for one worker
	}{{modes.Ring(n, 2), true}, {modes.Grouped([]star.Worker{0, 1, 3}, []star.Worker{2}), true}, {shares, true}, {modes.XOrder(n, 3), false}, {modes.ASGD(n), false}, {modes.SSGD(n), false}} {
		for _, moves := range []int{0, 1, 3, 1000} {
			k, err := New(Config{Workers: n, Batch: 16}, modes.SSGD(n))
			if err != nil {
				t.Fatal(err)
			}
			k.suspect.moves, k.suspect.worker = moves, 2
			const at = 60 * time.Second // twenty dwells of ten rounds of 300 ms
			got, feared, err := k.priceMoving(at, c.plan, h, f)
			if err != nil {
				t.Fatal(err)
			}
			now, err := price.Over(c.plan, h, f)
			if err != nil {
				t.Fatal(err)
			}
			then, err := price.Over(c.plan, swapped, g)
			if err != nil {
				t.Fatal(err)
			}
			if c.fixed && then.Cost < now.Cost*5/4 {
				t.Fatalf("%v costs %v, and %v when it is another one's turn: this tests nothing", c.plan, now.Cost, then.Cost)
			}
			for half, got := range []price.Candidate{got, feared} { // half a turn more is feared than was seen
				chance := min((float64(moves)+float64(half)/2)/20, 1)
				if !c.fixed {
					chance = 0
				}
				if want := now.Cost.Seconds() + chance*(then.Cost-now.Cost).Seconds(); got.Cost.Seconds() < 0.9999*want || got.Cost.Seconds() > 1.0001*want {
					t.Errorf("%v after %d moves: %v, want %.4fs (feared: %v)", c.plan, moves, got.Cost, want, half == 1)
				}
			}
		}
	}
}
