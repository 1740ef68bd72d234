package traffic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/transport/wire"
)

// pushing describes workers that are all released or not, and all push over the link or not.
type pushing struct{ released, far bool }

func (p pushing) Pushing(star.Worker) bool { return p.released && p.far }
func (p pushing) Next(star.Worker) bool    { return p.far }

// Of three workers that are released at once the second and the third wait if their times are steady, unless all
// workers wait for the last one.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		mode   string
		jitter time.Duration
		beside bool
		want   string
	}{
		{"x=1", 0, false, "[0s 100ms 200ms]"},
		{"ssgd", 0, false, "[0s 100ms 0s]"}, // the last one does not wait
		{"x=1", 400 * time.Millisecond, false, "[0s 0s 0s]"},
		{"x=1", 0, true, "[0s 0s 0s]"},
		{"tree=0(1)", 0, false, "[0s 0s 0s]"},
	} {
		plan, err := modes.Parse(c.mode, 3)
		if err != nil {
			t.Fatal(err)
		}
		p := NewPacer(3)
		p.took = 100 * time.Millisecond
		var rs []wire.Release
		for w := range 3 {
			for i := range 10 {
				p.Observe(&star.Record{Worker: star.Worker(w), Compute: time.Second + time.Duration(i%2)*c.jitter})
			}
			rs = append(rs, wire.Release{Worker: star.Worker(w), Count: 1})
		}
		p.Pace(0, rs, plan, pushing{far: !c.beside})
		var got []time.Duration
		for w, r := range rs {
			got = append(got, r.Delay)
			if p.Delay(w) != r.Delay {
				t.Errorf("%s: worker %d was told %v, and the status says %v", c.mode, w, r.Delay, p.Delay(w))
			}
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s, jitter %v, beside the shards %v: %v, want %s", c.mode, c.jitter, c.beside, got, c.want)
		}
	}
}

// Pushes are paced if all of them together take longer than the workers compute, or if updates do not wait for all
// workers; never in a tree, or if pushes are too short.
func TestLook(t *testing.T) {
	for _, c := range []struct {
		mode string
		far  []int
		rate float64 // bytes per second, for pushes of 1 MB
		on   bool
		why  string
	}{
		{"ssgd", []int{0, 1, 2}, 0, false, "not measured yet"},
		{"ssgd", []int{0}, 1e6, false, "not measured yet"},
		{"ssgd", []int{0, 1, 2}, 1e6, true, "all 3 of them longer than computing, which takes 1s"},
		{"ssgd", []int{0, 1, 2}, 1e7, false, "all 3 of them less than computing"},
		{"x=1", []int{0, 1, 2}, 1e7, true, "a push takes the link 100ms"},
		{"x=1", []int{0, 1, 2}, 2e9, false, "less"},
		{"tree=0(1)", []int{0, 1, 2}, 1e6, false, "longer"},
	} {
		plan, err := modes.Parse(c.mode, 3)
		if err != nil {
			t.Fatal(err)
		}
		p := NewPacer(3)
		for w := range 3 {
			p.Observe(&star.Record{Worker: star.Worker(w), Compute: time.Second})
		}
		on, changed, why := p.Look(c.far, c.rate, 1e6, plan)
		if on != c.on || changed != c.on || p.Paces() != c.on || !strings.Contains(why, c.why) {
			t.Errorf("%s, %v at %g: paced %v (changed %v): %s; want %v", c.mode, c.far, c.rate, on, changed, why, c.on)
		}
		if _, changed, _ := p.Look(c.far, c.rate, 1e6, plan); changed {
			t.Errorf("%s: the same load changes it again", c.mode)
		}
	}
}

// The zero value accepts everything and delays nothing.
func TestNoPacer(t *testing.T) {
	var p Pacer
	p.Observe(&star.Record{Worker: 3})
	rs := []wire.Release{{Worker: 1, Count: 1}}
	p.Pace(0, rs, modes.SSGD(3), pushing{far: true})
	if p.Enabled() || p.Paces() || p.Delay(3) != 0 || rs[0].Delay != 0 {
		t.Errorf("%+v, %v", p, rs)
	}
}
