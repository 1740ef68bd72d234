package sim

import (
	"math"
	"strings"
	"testing"
	"time"

	"star/modes"
	"star/train/optim"
)

// flown is a run of --mode auto in virtual time with 4 equally fast workers. An iteration takes 100 ms. Whatever its
// samples, 90 % of it is the exchange if fixed is above 0.5, and else 20 %.
func flown(t *testing.T, method string, fixed float64, own optim.Config, limit time.Duration) (*Trained, Result) {
	t.Helper()
	s, err := ParseScenario("links", []byte("workers: 4\njitter: 0.02\niteration: 100ms\nfixed: "+map[bool]string{true: "0.9", false: "0.2"}[fixed > 0.5]+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Config(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	l := &Trained{Task: line{}}
	c.Learner, c.Batch, c.Limit, c.Target = l, 8, limit, 2
	if err := c.Use(method, own); err != nil {
		t.Fatal(err)
	}
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

// In a cluster in which pushes dominate, the controller takes local steps with every optimiser that workers can step
// locally, stays with them, and applies several times as many samples. If computing dominates, or with Adam, it takes
// none.
func TestAutoTakesLocalSteps(t *testing.T) {
	for _, c := range []optim.Config{{LR: 0.01}, {Name: optim.Momentum, LR: 0.001}, {Name: optim.Nesterov, LR: 0.001}, {Name: optim.DANA, LR: 0.001}, {Name: optim.Adam, LR: 0.001}} {
		name := c.WithDefaults().Name
		l, r := flown(t, "auto", 0.9, c, 40*time.Second)
		base, _ := flown(t, "ssgd", 0.9, c, 40*time.Second)
		local := 0
		for _, s := range r.Switches {
			if s.Plan.Local > 0 {
				local++
			}
		}
		switch {
		case name == optim.Adam:
			if local > 0 {
				t.Errorf("%s: %v", name, r.Switches)
			}
		case local != 1 || len(r.Switches) != 1 || !strings.Contains(r.Switches[0].Why, "exchange"):
			t.Errorf("%s: the plan changes to %v", name, r.Switches)
		case l.used < 2*base.used:
			t.Errorf("%s: %d samples, %d with SSGD", name, l.used, base.used)
		}
		if _, r := flown(t, "auto", 0.2, c, 40*time.Second); len(r.Switches) > 0 {
			t.Errorf("%s: where computing dominates: %v", name, r.Switches)
		}
	}
}

// Into local steps and out of them while a job runs, also to ASGD, where updates have some that bring gradients and
// some that have made steps: parameters are about where those of SSGD are after as many samples.
func TestIntoLocalStepsAndBack(t *testing.T) {
	for _, own := range []optim.Config{{LR: 0.01}, {Name: optim.Momentum, LR: 0.001}, {Name: optim.DANA, LR: 0.001}} {
		c := Config{Times: steady(100*ms, 100*ms, 100*ms, 130*ms), Batch: 8, Limit: 60 * time.Second, Target: 2}
		l := &Trained{Task: line{}}
		c.Learner = l
		if err := c.Use("ssgd", own); err != nil {
			t.Fatal(err)
		}
		local := modes.SSGD(4)
		local.Local = 4
		c.Pilot = &flips{at: []time.Duration{5 * time.Second, 15 * time.Second, 25 * time.Second, 35 * time.Second}, plans: []modes.Plan{modes.SSGD(4), local, modes.ASGD(4), local}}
		r, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Switches) != 4 {
			t.Fatalf("%v", r.Switches)
		}
		ssgd := &Trained{Task: line{}}
		c.Learner, c.Pilot, c.Plan, c.Limit = ssgd, nil, modes.SSGD(4), time.Duration(l.used/32)*130*ms+ms
		if err := c.Use("ssgd", own); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
		for i, w := range ssgd.Params() {
			if v := l.Params()[i]; math.Abs(float64(v-w)) > 0.05*(1+math.Abs(float64(w))) {
				t.Errorf("%v: parameter %d is %v, with SSGD %v", own, i, v, w)
			}
		}
	}
}
