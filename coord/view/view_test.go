package view

import (
	"math"
	"testing"
	"time"

	"star"
	"star/coord/measure"
)

// A worker's line has its present state; numbers that it has not measured are 0, and none is negative or not finite.
func TestWorker(t *testing.T) {
	for _, c := range []struct {
		t    Training
		want string
	}{
		{Training{}, "computing"},
		{Training{Waiting: true}, "waiting"},
		{Training{Waiting: true, Parked: true}, "parked"},
		{Training{Parked: true}, "parked"},
		{Training{Stopped: true, Parked: true}, "waiting"},
	} {
		c.t.Measured, c.t.Last = new(measure.Worker), &star.Record{CPU: math.NaN()}
		c.t.Version, c.t.Basis = 3, 4
		var w WorkerStatus
		w.Trains(&c.t)
		if w.State != c.want || w.Rate != 0 || w.CPU != 0 || w.Stale != 0 || w.Telemetry != nil {
			t.Errorf("%+v: %+v", c.t, w)
		}
	}
	m, r := new(measure.Worker), &star.Record{Samples: 10, CPU: 0.5, Compute: time.Second, NetIn: 7, NetOut: 8}
	m.Recent.Add(2) // seconds
	var w WorkerStatus
	w.Trains(&Training{Step: 5, Version: 9, Basis: 7, Measured: m, Last: r, PushDelay: time.Second, Poison: map[string]int64{"nan": 1}})
	if w.Step != 5 || w.Stale != 2 || w.Rate != 5 || w.CPU != 0.5 || w.Compute != 1 || w.PushDelay != 1 || w.Poison["nan"] != 1 || w.Site != "" {
		t.Errorf("%+v", w)
	}
	w.Located("a", &Training{Measured: m, Last: r})
	if w.Site != "a" || w.NetIn != 7 || w.NetOut != 8 {
		t.Errorf("%+v", w)
	}
}

// The last evaluation comes before the last checkpoint.
func TestPhase(t *testing.T) {
	for _, c := range []struct {
		over, final, saving bool
		want                string
	}{
		{false, false, false, "training"}, {false, false, true, "training"},
		{false, true, false, "evaluating"}, {false, true, true, "saving"}, {true, true, true, "over"},
	} {
		if got := Phase(c.over, c.final, c.saving); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Times are those of present workers.
func TestTimes(t *testing.T) {
	s := Status{Workers: []WorkerStatus{{State: "computing", Busy: 0.5}, {State: "gone", Busy: 2}, {State: "absent"}, {State: "joining"}}}
	if ts := s.Times(); len(ts) != 4 || ts[0] != time.Second/2 || ts[1]+ts[2]+ts[3] != 0 {
		t.Error(ts)
	}
}
