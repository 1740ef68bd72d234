package engine_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/coord/engine"
	"star/coord/engine/rehearsal"
	"star/internal/outer"
	"star/modes"
)

// plans draws what a ring can be told to do.
func plans(t *rapid.T, n int, closes, queues bool) modes.Plan {
	switch {
	case closes && rapid.Bool().Draw(t, "closes"):
		p := modes.XOrder(n, rapid.IntRange(1, n).Draw(t, "quorum"))
		p.Groups[0].DropLate = rapid.Bool().Draw(t, "drops")
		p.Micro, p.ComputeDeadline = 3, time.Hour
		return p
	case queues && rapid.Bool().Draw(t, "queues"):
		p := modes.SSGD(n)
		p.Queue = rapid.IntRange(1, 3).Draw(t, "parts")
		return p
	case rapid.Bool().Draw(t, "fragments"):
		p := modes.SSGD(n)
		p.Local, p.Outer, p.Fragments = 4, outer.Rule{Kind: outer.Nesterov, Momentum: 0.9, Rate: 0.7}, 2
		p.StepsBySpeed = rapid.Bool().Draw(t, "by speed")
		return p
	}
	var riders []star.Worker
	for w := range star.Worker(n) {
		if rapid.Bool().Draw(t, "rides") && len(riders) < n-1 {
			riders = append(riders, w)
		}
	}
	return modes.Ring(n, riders...)
}

// Whatever happens in whatever order: no sample is lost or applied twice, all
// members have applied the same, and the coordinator knows it.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(t, what) }
		n := draw(1, 5, "workers")
		closes, queues := rapid.Bool().Draw(t, "closed rounds"), rapid.Bool().Draw(t, "queues")
		queues = queues && !closes
		turns := 1
		if !closes && !queues {
			turns = draw(1, 3, "turns")
		}
		plan := func() modes.Plan {
			if turns > 1 {
				return modes.SSGD(n)
			}
			return plans(t, n, closes, queues)
		}
		c := engine.Config{Plan: plan(), Workers: n, Turns: turns, Batch: 3, Limit: int64(draw(0, 150, "limit")), Ring: new(engine.RingConfig), MaxParams: 1 << 30}
		for w := range star.Worker(n) {
			if len(c.Absent) < n-1 && draw(0, 3, "comes later") == 0 {
				c.Absent = append(c.Absent, w)
			}
		}
		alive := n - len(c.Absent)
		deaths := false
		s := rehearsal.NewRing(rehearsal.Config{Config: c, Draw: draw, Broken: t.Fatalf, Lost: func(why string) {
			if !deaths {
				t.Fatal(why)
			}
			t.Skip(why)
		}})
		joins, kills, changes, faults, takes := draw(0, 4, "joins"), draw(0, n-1, "kills"), draw(0, 4, "changes"), draw(0, 2, "faults"), 0
		deaths = kills > 0
		s.Deadly = rapid.Bool().Draw(t, "deadly")
		// the coordinator that put something aside is the only one to know it; a job with closed rounds has one
		// coordinator
		if !closes && !s.Deadly {
			takes = draw(0, 3, "takes")
		}
		for steps := 0; ; steps++ {
			if steps > 20_000 {
				t.Fatal("the job never ends")
			}
			who := func() star.Worker { return star.Worker(draw(0, n-1, "who")) }
			switch x := draw(0, 30, "event"); {
			case x == 0 && kills > 0:
				if w := who(); s.Alive(w) && alive > 1 {
					kills, alive = kills-1, alive-1
					s.Kill(w)
				}
			case x == 3 && joins > 0:
				for w := range star.Worker(n) {
					if s.Come(w) {
						joins, alive = joins-1, alive+1
						break
					}
				}
			case x == 4 && takes > 0:
				takes--
				s.TakeOver()
			case x == 1 && changes > 0:
				changes--
				s.Install(plan())
			case x == 2 && faults > 0:
				if w := who(); s.Busy(w) {
					faults--
					s.Fail(w, -1)
				}
			case x == 5:
				s.Late(who())
			default:
				can := s.Acts()
				if len(can) == 0 {
					s.Check()
					return
				}
				rapid.SampledFrom(can).Draw(t, "what").Do()
			}
		}
	})
}

// Whichever worker dies when a plan changes, at whatever moment, another one has the parameters: one member alone never
// has them while others of its ring are to get them. Acts come in two orders, and deaths up to 90 acts after the
// change: the first worker that can act goes on for as long as it can, or all act in turn.
func TestOneDeathInAChangeOfRings(t *testing.T) {
	inAChangeOfRings(t, "dies", func(s *rehearsal.Ring, victim star.Worker) { s.Kill(victim) })
}

// Whichever worker is late when a plan changes, at whatever moment: a plan without it loses neither the parameters nor
// a sample.
func TestOneLateMemberInAChangeOfRings(t *testing.T) {
	inAChangeOfRings(t, "is late and left behind", func(s *rehearsal.Ring, late star.Worker) {
		s.Late(late)
		s.Install(modes.Ring(s.Workers, late))
	})
}

// inAChangeOfRings runs jobs that change their plan, in which something happens to each worker in turn, at each moment.
func inAChangeOfRings(t *testing.T, what string, happens func(*rehearsal.Ring, star.Worker)) {
	changes := []struct {
		n        int
		from, to []star.Worker // riders
	}{
		{3, []star.Worker{2}, []star.Worker{0}}, {3, []star.Worker{2}, []star.Worker{1}}, {3, []star.Worker{2}, []star.Worker{}},
		{4, []star.Worker{2, 3}, []star.Worker{0}}, {4, []star.Worker{2, 3}, []star.Worker{0, 1}}, {4, []star.Worker{3}, []star.Worker{0, 1}}, {4, []star.Worker{}, []star.Worker{1, 2}},
	}
	for _, c := range changes {
		for victim := range star.Worker(c.n) {
			for order := range 2 {
				for moment, done := 0, true; done && moment < 90; moment++ {
					about := fmt.Sprintf("%d workers, riders %v, then %v: worker %d %s at moment %d, order %d", c.n, c.from, c.to, victim, what, moment, order)
					done = change(t, c.n, c.from, c.to, moment, order, about, func(s *rehearsal.Ring) { happens(s, victim) })
				}
			}
		}
	}
}

// Whichever worker fails to exchange once, when a plan changes at the end of the samples, at whatever moment: some
// worker in the ring that forms then has the parameters.
func TestOneFaultInAChangeOfRings(t *testing.T) {
	for n := 3; n <= 4; n++ {
		for limit := int64(1); limit <= 4; limit++ {
			for who := range star.Worker(n) {
				for moment, failed := 0, true; failed && moment < 60; moment++ {
					failed = fails(t, n, limit, who, moment)
				}
			}
		}
	}
}

// fails runs a job in which the last worker rides, and then all others do, and in which the ring of one worker fails
// "moment" acts after that. False: nothing was left to do by then.
func fails(t *testing.T, n int, limit int64, who star.Worker, moment int) (failed bool) {
	about := fmt.Sprintf("%d workers, %d samples, worker %d at moment %d", n, limit, who, moment)
	cfg := engine.Config{Plan: modes.Ring(n, star.Worker(n-1)), Workers: n, Batch: 3, Limit: limit, Ring: new(engine.RingConfig), MaxParams: 1 << 30}
	s := rehearsal.NewRing(rehearsal.Config{Config: cfg, Draw: func(low, _ int, _ string) int { return low },
		Broken: func(format string, a ...any) { t.Fatalf("%s: "+format, append([]any{about}, a...)...) },
		Lost:   func(why string) { t.Fatalf("%s: %s", about, why) }})
	for step := 0; step < 5000; step++ {
		if step == 2 {
			var others []star.Worker
			for w := range star.Worker(n - 1) {
				others = append(others, w)
			}
			s.Install(modes.Ring(n, others...))
		}
		if step >= 2+moment && !failed && s.Busy(who) {
			s.Fail(who, -1)
			failed = true
		}
		can := s.Acts()
		if len(can) == 0 {
			s.Check()
			return failed
		}
		can[step%len(can)].Do()
	}
	t.Fatalf("%s: the job never ends", about)
	return false
}

// change runs a job of 30 samples that changes its plan after six acts, and in which something happens "moment" acts
// later. False: nothing was left to do by then.
func change(t *testing.T, n int, from, to []star.Worker, moment, order int, about string, happens func(*rehearsal.Ring)) (done bool) {
	cfg := engine.Config{Plan: modes.Ring(n, from...), Workers: n, Batch: 3, Limit: 30, Ring: new(engine.RingConfig), MaxParams: 1 << 30}
	s := rehearsal.NewRing(rehearsal.Config{Config: cfg, Draw: func(low, _ int, _ string) int { return low },
		Broken: func(format string, a ...any) { t.Fatalf("%s: "+format, append([]any{about}, a...)...) },
		Lost:   func(why string) { t.Fatalf("%s: %s", about, why) }})
	for step := 0; step < 5000; step++ {
		if step == 6 {
			s.Install(modes.Ring(n, to...))
		}
		if step == 6+moment {
			happens(s)
			done = true
		}
		can := s.Acts()
		if len(can) == 0 {
			s.Check()
			return done
		}
		can[order*step%len(can)].Do()
	}
	t.Fatalf("%s: the job never ends", about)
	return false
}
