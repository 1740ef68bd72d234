package baseline

import (
	"strings"
	"testing"

	"star"
)

// What each scheme begins with, for four workers.
func TestFirstPlans(t *testing.T) {
	for text, want := range map[string]string{
		"k-sync": "backup=1 micro=8", "k-sync:blocks=1": "backup=1", "k-async": "x=3", "k-async:k=2": "x=2", "backup:b=2": "backup=2", "ssp:slack=2": "ssp=2", "k-batch-sync": "kbatch=4 micro=8", "k-batch-sync:k=9,blocks=1": "kbatch=9",
		"k-batch-async:k=3": "kbatch-async=3", "ad-psgd": "asgd", "lgc:k=3,blocks=4": "backup=1 micro=4", "local-sgd:steps=5": "ssgd local=5", "diloco": "ssgd local=500 outer=nesterov(0.9,0.7)",
		"delayed-nesterov": "asgd local=50 steps=speed outer=delayed(0.5,0.7)", "delayed-nesterov:speed=no,steps=4,outer-lr=1": "asgd local=4 outer=delayed(0.5,1)", "look-ahead:outer-momentum=0.3": "asgd local=50 outer=lookahead(0.3,0.7)",
		"easgd": "asgd local=10", "easgd:sync=yes": "ssgd local=10", "zeno++": "asgd", "dc-asgd": "asgd", "post-local-sgd": "ssgd local=1", "sync-switch": "ssgd", "lb-bsp": "ssgd shares=16,16,16,16",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Make(Job{Workers: 4, Batch: 16})
		if got := m.Plan.String(); err != nil || got != want && !strings.HasPrefix(got, want+" cap=") {
			t.Errorf("%s begins with %s, %v; want %s", text, got, err, want)
		}
		// A late worker is ordered to stop if others do not wait for it and mini-batches are in parts; DropCompute
		// waits.
		if want := m.Plan.Micro > 0; m.Cancel != want {
			t.Errorf("%s: cancelling is %v, want %v", text, m.Cancel, want)
		}
	}
}

// In an all-reduce rounds are closed, and a late worker stops without an order of its own; only the work that LGC's
// workers have done is of use then.
func TestCancelOnARing(t *testing.T) {
	for _, e := range Entries() {
		s, err := Parse(e.Name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Make(Job{Workers: 4, Batch: 16, Ring: true})
		if err == nil && e.Ring && m.Cancel != (e.Name == "lgc") {
			t.Errorf("%s: cancelling is %v", e.Name, m.Cancel)
		}
	}
}

// Schemes that change the plan once do so where their settings say, and never again.
func TestChangesOnce(t *testing.T) {
	for text, want := range map[string]struct {
		update int
		plan   string
	}{
		"post-local-sgd:steps=4,switch=0.5": {5, "ssgd local=4"},
		"lgc:k=3,warmup=3,blocks=4":         {3, "backup=1 micro=4"},
		"sync-switch:switch=0.3":            {3, "asgd"},
	} {
		s, _ := Parse(text)
		m, err := s.Make(Job{Workers: 4, Batch: 16})
		if err != nil {
			t.Fatal(err)
		}
		changes := 0
		for u := 1; u <= 10; u++ {
			d, ok := m.Scheme.Fired(Update{Samples: int64(64 * u), Limit: 640})
			if !ok {
				continue
			}
			if changes++; u != want.update || !strings.HasPrefix(d.Plan.String(), want.plan) {
				t.Errorf("%s: %v after update %d, want %s after update %d", text, d.Plan, u, want.plan, want.update)
			}
		}
		if changes != 1 {
			t.Errorf("%s: %d changes, want 1", text, changes)
		}
	}
}

// A straggler is below the mean by more than the standard deviation, not only below a part of the mean.
func TestThroughput(t *testing.T) {
	all := func(star.Worker) bool { return true }
	for _, c := range []struct {
		speeds []float64
		slow   int
	}{{[]float64{100, 100, 60, 60}, 0}, {[]float64{100, 100, 100, 40}, 1}, {[]float64{100, 100, 100, 95}, 0}} {
		d := NewThroughput(4, 1, 1, 0.9)
		for w, v := range c.speeds {
			d.Observe(star.Worker(w), v)
		}
		if got := d.Judge(all); len(got) != c.slow {
			t.Errorf("%v: %v are slow, want %d", c.speeds, got, c.slow)
		}
	}
}
