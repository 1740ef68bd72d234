package sim

import (
	"fmt"
	"testing"
	"time"

	"star/internal/outer"
	"star/train/optim"
)

// linked is a run of --mode auto of four workers, each behind its own link of 10 Gbit/s, with gradients of 4 MB, with
// servers or in a ring. The links have 20 Mbit/s between from and to; never if to is zero.
func linked(t *testing.T, ring bool, own optim.Config, from, to time.Duration) (Result, map[time.Duration]int) {
	t.Helper()
	text := "workers: 4\niteration: 100ms\njitter: 0.05\nbytes: 4e6\nhosts:\n"
	if ring {
		text = "arch: allreduce\n" + text
	} else {
		text += "  - {servers: 1}\n"
	}
	for w := range 4 {
		text += fmt.Sprintf("  - {name: h%d, workers: %d, bandwidth: 1.25e9}\n", w, w)
	}
	if to > 0 {
		text += "squeeze:\n"
		for w := range 4 {
			text += fmt.Sprintf("  - {host: h%d, from: %v, to: %v, factor: 500}\n", w, from, to)
		}
	}
	s, err := ParseScenario("links", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Config(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := &Trained{Task: line{}}
	c.Learner, c.Batch, c.Limit, c.Target = l, 8, 600*time.Second, 2
	if err := c.Use("auto", own); err != nil {
		t.Fatal(err)
	}
	count := &counted{Pilot: c.Pilot, at: map[time.Duration]int{}}
	c.Pilot = count
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r, count.at
}

// counted counts the updates up to each time.
type counted struct {
	Pilot
	n  int
	at map[time.Duration]int
}

func (c *counted) Fired(at time.Duration, version int64, gs []Gradient, o Outcome) {
	c.n++
	c.at[at] = c.n
	c.Pilot.Fired(at, version, gs, o)
}

// Next implements Watcher.
func (c *counted) Next(at time.Duration) time.Duration { return c.Pilot.(Watcher).Next(at) }

// between is the number of updates after from, up to and with to.
func between(at map[time.Duration]int, from, to time.Duration) (n int) {
	for when := range at {
		if when > from && when <= to {
			n++
		}
	}
	return n
}

// Where links are slow the controller takes outer steps, with every optimizer, in fragments; on fast ones none. When
// links fall to 20 Mbit/s and recover, it changes within ten updates each way, and stays between.
func TestAutoTakesOuterSteps(t *testing.T) {
	for _, ring := range []bool{false, true} {
		for _, own := range []optim.Config{{LR: 0.01}, {Name: optim.Momentum, LR: 0.001}, {Name: optim.Adam, LR: 0.001}} {
			if ring && own.Name == optim.Adam { // the same decisions as with momentum
				continue
			}
			name := fmt.Sprintf("%s, ring %v", own.WithDefaults().Name, ring)
			if r, _ := linked(t, ring, own, 0, 0); len(r.Switches) > 0 {
				t.Errorf("%s: on fast links: %v", name, r.Switches)
			}
			fell, rose := 60*time.Second, 300*time.Second
			r, at := linked(t, ring, own, fell, rose)
			into, back := time.Duration(0), time.Duration(0)
			for _, s := range r.Switches {
				t.Logf("%s: %v %v: %s", name, s.At, s.Plan, s.Why)
				moves := s.Plan.Outer.Kind != outer.Mean
				if moves && s.Plan.Fragments == 0 {
					t.Errorf("%s: no fragments, at %v", name, s.At)
				}
				switch {
				case moves && (s.At < fell || s.At > rose):
					t.Errorf("%s: outer steps on fast links, at %v", name, s.At)
				case moves && into == 0:
					into = s.At
				case !moves && s.At > rose && back == 0:
					back = s.At
				case !moves && s.At > fell && s.At < rose && into > 0:
					t.Errorf("%s: no outer steps on slow links, from %v on", name, s.At)
				}
			}
			if n := between(at, fell, into); into == 0 || n > 10 {
				t.Errorf("%s: outer steps from %v on, %d updates after the links fell at %v", name, into, n, fell)
			}
			if n := between(at, rose, back); back == 0 || n > 10 {
				t.Errorf("%s: no outer steps from %v on, %d updates after the links recovered at %v", name, back, n, rose)
			}
		}
	}
}
