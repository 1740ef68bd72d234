package actuate

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// governed is a Governor of this process on fake control groups, and what it logs.
func governed(t *testing.T, c Config) (*Governor, fakeGroups, *bytes.Buffer) {
	t.Helper()
	f := newFakeGroups(t)
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	s.sys = f.system(os.Getpid())
	log := new(bytes.Buffer)
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	g, err := start(c, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if es, err := s.List(); err != nil || len(es) > 0 {
			t.Errorf("left %v, %v", es, err)
		}
		if at := f.groupOf(strconv.Itoa(os.Getpid())); filepath.Base(at) != "main" {
			t.Errorf("left in %s", at)
		}
	})
	return g, f, log
}

// quotaOf is the cpu.max of this process's group; none: it is at home.
func (f fakeGroups) quotaOf() string {
	dir := f.groupOf(strconv.Itoa(os.Getpid()))
	if filepath.Base(dir) == "main" {
		return "none"
	}
	b, _ := os.ReadFile(filepath.Join(dir, "cpu.max"))
	return string(b)
}

func order(t *testing.T, g *Governor, d, lasts time.Duration) {
	t.Helper()
	if err := g.Delay(d, lasts); err != nil {
		t.Fatal(err)
	}
}

// pauses checks how long the next pause is.
func pauses(t *testing.T, g *Governor, want time.Duration) {
	t.Helper()
	if d, err := g.Pause(t.Context()); d != want || err != nil {
		t.Errorf("paused %v, %v; want %v", d, err, want)
	}
}

// An order is a pause from the next iteration on, on top of the limit from the start. It lapses when it is not renewed.
func TestGovernorPaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _, log := governed(t, Config{Base: Limit{Delay: 10 * ms}})
		pauses(t, g, 10*ms)
		order(t, g, 50*ms, 0)
		pauses(t, g, 60*ms)
		order(t, g, 20*ms, time.Second)
		pauses(t, g, 30*ms)
		if s := g.status(); s.Order != 20*ms || s.Until.IsZero() || s.Limit.Delay != 30*ms || s.Kind != Pace {
			t.Errorf("%+v", s)
		}
		time.Sleep(900 * ms)
		order(t, g, 20*ms, time.Second) // renewed
		time.Sleep(900 * ms)
		pauses(t, g, 30*ms)
		time.Sleep(101 * ms)
		pauses(t, g, 10*ms)
		if !strings.Contains(log.String(), "the delay has expired") {
			t.Errorf("%s", log)
		}
		order(t, g, 20*ms, time.Second)
		order(t, g, 0, 0)
		pauses(t, g, 10*ms)
		order(t, g, 40*ms, 0)
		time.Sleep(time.Hour)
		pauses(t, g, 50*ms) // without an end it stays

		// An invalid order is rejected.
		for _, d := range []time.Duration{-ms, time.Hour} {
			if err := g.Delay(d, 0); err == nil || !strings.Contains(err.Error(), "delay:") {
				t.Errorf("%v: %v", d, err)
			}
		}
		pauses(t, g, 50*ms)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		pauses(t, g, 0)
		if err := g.Delay(ms, 0); err == nil {
			t.Error("an order after the end")
		}
	})
}

// By cgroup, an order is a pause until an iteration has been seen, then a quota; what iterations take
// under the quota does not count.
func TestGovernorByCgroup(t *testing.T) {
	g, f, log := governed(t, Config{Kind: ByCgroup})
	order(t, g, 20*ms, 0)
	if q := f.quotaOf(); q != "none" || g.status().Limit != (Limit{Delay: 20 * ms}) {
		t.Errorf("quota %s, %+v", q, g.status())
	}
	if !strings.Contains(log.String(), "not known yet how many processors") {
		t.Errorf("%s", log)
	}
	g.Observe(Work{Busy: 100 * ms, Cores: 1.5})
	check := func(quota string, l Limit) {
		t.Helper()
		s := g.status()
		if q := f.quotaOf(); q != quota || s.Limit != l || len(s.Leases) != min(1, len(strings.Fields(quota))-1) {
			t.Errorf("quota %q, %+v; want %q, %v", q, s, quota, l)
		}
	}
	check("25000 20000", Limit{Cores: 1.25})
	g.Observe(Work{Busy: 120 * ms, Cores: 1.25})
	order(t, g, 50*ms, time.Hour)
	check("20000 20000", Limit{Cores: 1})
	if l := g.status().Leases[0]; l.Expires == nil {
		t.Errorf("a lease without the order's end: %+v", l)
	}
	order(t, g, 0, 0)
	check("none", Limit{})
	g.Observe(Work{Busy: 300 * ms, Cores: 0.5}) // the mean of both: 200 ms, 1
	order(t, g, 200*ms, 0)
	check("10000 20000", Limit{Cores: 0.5})
}

// Where the means fails, the delay is a pause, and the limit from the start holds.
func TestGovernorFallsBack(t *testing.T) {
	g, f, log := governed(t, Config{Kind: ByCgroup, Base: Limit{Cores: 2}})
	if q := f.quotaOf(); q != "40000 20000" {
		t.Errorf("quota %s", q)
	}
	g.Observe(Work{Busy: 100 * ms, Cores: 1})
	order(t, g, 100*ms, 0)
	if q := f.quotaOf(); q != "10000 20000" {
		t.Errorf("quota %s", q)
	}
	order(t, g, 0, 0)
	if q := f.quotaOf(); q != "40000 20000" {
		t.Errorf("quota %s", q)
	}
	g.store.sys.groups = &failing{fakeGroups: f, at: "cpu.max"}
	order(t, g, 100*ms, 0)
	if q := f.quotaOf(); q != "40000 20000" || g.status().Limit != (Limit{Cores: 2, Delay: 100 * ms}) {
		t.Errorf("quota %s, %+v", q, g.status())
	}
	if !strings.Contains(log.String(), "planted") || !strings.Contains(log.String(), "by a pause instead") {
		t.Errorf("%s", log)
	}
}

// By tc on this machine's loopback an order is refused by the interface, and a pause.
func TestGovernorByTC(t *testing.T) {
	g, _, log := governed(t, Config{Kind: ByTC, Peer: "127.0.0.1:9"})
	g.Observe(Work{Send: 20 * ms, Out: 1e6})
	order(t, g, 30*ms, 0)
	if g.status().Limit != (Limit{Delay: 30 * ms}) || !strings.Contains(log.String(), "on this machine") {
		t.Errorf("%+v\n%s", g.status(), log)
	}
}

func TestStartRefuses(t *testing.T) {
	for want, c := range map[string]Config{
		"is to have none":         {Kind: None, Base: Limit{Delay: ms}},
		`no actuator "magic"`:     {Kind: "magic"},
		"delay: 2m0s":             {Base: Limit{Delay: 2 * time.Minute}},
		"--limit-interface does":  {Base: Limit{NetOut: 1e6}},
		"--limit-interface names": {Base: Limit{NetOut: 1e6}, Peer: "127.0.0.1:9"},
		"no-such-dev":             {Base: Limit{NetOut: 1e6}, Dev: "no-such-dev"},
	} {
		c.LeaseDir = filepath.Join(t.TempDir(), "leases")
		c.Log = slog.New(slog.DiscardHandler)
		if _, err := Start(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
		if es, err := OpenStore(c.LeaseDir).List(); len(es) > 0 || err != nil {
			t.Errorf("%+v: left %v, %v", c, es, err)
		}
	}
}

// A limit of two parts leaves nothing of the first part if the second fails.
func TestStartThatFailsHalfway(t *testing.T) {
	f := newFakeGroups(t)
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	s.sys = f.system(os.Getpid())
	_, err := start(Config{Base: Limit{Cores: 1, NetOut: 1e6}, Dev: "no-such-dev", Log: slog.New(slog.DiscardHandler)}, s)
	if err == nil || f.quotaOf() != "none" {
		t.Errorf("%v, quota %s", err, f.quotaOf())
	}
	if es, err := s.List(); len(es) > 0 || err != nil {
		t.Errorf("left %v, %v", es, err)
	}
}

// Without an actuator orders are refused, and nothing on the host is looked at.
func TestNone(t *testing.T) {
	f := newFakeGroups(t)
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	s.sys = f.system(os.Getpid())
	unlock, _ := s.lock()
	l := s.lease(kindCgroup, "")
	l.Owner.Started--
	l.Set, l.Cgroup = Terms{Cores: 1}, &Group{PID: 9, Version: 2, Dir: filepath.Join(f.root(), "star-9"), Home: f.root()}
	if err := s.write(l); err != nil {
		t.Fatal(err)
	}
	unlock()
	none, err := start(Config{Kind: None}, s)
	if err != nil {
		t.Fatal(err)
	}
	if es, _ := s.List(); len(es) != 1 {
		t.Error("undid a lease")
	}
	for _, g := range []*Governor{none, nil} {
		if err := g.Delay(ms, 0); err == nil || !strings.Contains(err.Error(), "--actuator none") {
			t.Error(err)
		}
		g.Observe(Work{Busy: ms})
		if d, err := g.Pause(context.Background()); d != 0 || err != nil {
			t.Error(d, err)
		}
		if s := g.status(); s.Kind != None || s.Order != 0 || len(s.Leases) > 0 {
			t.Errorf("%+v", s)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// status is what a Governor has in force.
type status struct {
	Kind   Kind
	Order  time.Duration
	Until  time.Time
	Limit  Limit
	Leases []Lease
}

func (g *Governor) status() status {
	if g == nil {
		return status{Kind: None}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := status{Kind: g.cfg.Kind, Order: g.order, Until: g.until, Limit: g.inForce}
	if g.cgroup != nil && g.cgroup.held != nil {
		s.Leases = append(s.Leases, *g.cgroup.held)
	}
	if g.tc != nil && g.tc.held != nil {
		s.Leases = append(s.Leases, *g.tc.held)
	}
	return s
}
