package cluster

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"star/cluster/resource"
	"star/transport"
	"star/transport/wire"
)

// works makes a job behave like a real one: rounds of one second plus its delay, each of them using 8 processor
// seconds.
func works(server *process, worker *process) {
	last, done := time.Now(), 0.0
	server.live = func(u *wire.Usage) {
		worker.mu.Lock()
		round := time.Second
		if n := len(worker.delays); n > 0 {
			round += worker.delays[n-1]
		}
		worker.mu.Unlock()
		done += time.Since(last).Seconds() / round.Seconds()
		last = time.Now()
		u.Step, u.Own.CPU = int64(done), 8/round.Seconds()
	}
}

// What a delay frees and costs is learned when one comes and when it goes, is shown, and counts when the next one is
// computed.
func TestDelaysAreLearnedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, ten())
		server, workers := b.pair("a", 8, time.Second, time.Second)
		server.do(func() { works(server, workers[0]) })
		asker, _ := b.pair("b", 1, time.Second, time.Second)
		rest(12 * time.Second)
		if l := b.job("a").Learned; l != nil {
			t.Fatalf("learned %+v from no delay", l)
		}
		var got answers
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(8 * time.Second)
		if l := b.job("a").Learned; l != nil { // five rounds of two seconds, and what is passed over
			t.Fatalf("learned %+v too soon", l)
		}
		rest(8 * time.Second)
		wantDelays(t, "worker 0 of a", workers[0], time.Second)
		// Seen: 4 cores for 2 workers and 1 s, against a prior of 1 that counts 3 times; half the use at half the speed, e =
		// 1, against 0.
		check := func(delays int, freed, sensitivity float64) {
			t.Helper()
			l := b.job("a").Learned
			if l == nil || l.Delays != delays || math.Abs(*l.Freed.CPU-freed) > 0.05 || math.Abs(math.Log(l.Sensitivity/sensitivity)) > 0.2 || l.ToNetwork != 1 {
				t.Fatalf("learned %+v, want %.3g cores and a sensitivity of %.3g from %d delays", l, freed, sensitivity, delays)
			}
		}
		check(1, 1.25, math.Pow(32, 0.25))
		asker.Yield()
		rest(15 * time.Second)
		check(2, 1.4, math.Pow(32, 0.4))
		// The same question costs a less: 2 cores of 2 workers that free 1.4.
		asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
		rest(time.Second)
		got.want(t, "true", "true")
		workers[0].mu.Lock()
		d := workers[0].delays[len(workers[0].delays)-1]
		workers[0].mu.Unlock()
		if d < 690*time.Millisecond || d > 740*time.Millisecond {
			t.Errorf("the second delay is %v, want 2/(2·1.4) s", d)
		}
	})
}

// Nothing is learned without a valid comparison: with workers that cannot obey, in a mode without waiting, from changes
// that come too fast.
func TestNothingIsLearned(t *testing.T) {
	for name, spoil := range map[string]func(server, asker *process, workers []*process){
		"a worker that cannot": func(_, _ *process, ws []*process) {
			ws[1].do(func() { ws[1].fail = transport.ErrTooLarge })
		},
		"another mode": func(s, _ *process, _ []*process) { s.do(func() { s.usage.Sync = false }) },
		"a worker gone": func(_, _ *process, ws []*process) {
			time.Sleep(time.Second)
			ws[1].kill()
		},
		"too short": func(_, asker *process, _ []*process) {
			time.Sleep(5 * time.Second)
			asker.Yield()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := begin(t, ten())
				server, workers := b.pair("a", 8, time.Second, time.Second)
				server.do(func() { works(server, workers[0]) })
				asker, _ := b.pair("b", 1, time.Second, time.Second)
				rest(12 * time.Second)
				var got answers
				asker.Ask("x=1", wire.Amounts{CPU: 3}, 1500*time.Millisecond, got.add)
				spoil(server, asker, workers)
				rest(20 * time.Second)
				got.want(t, "true")
				if l := b.job("a").Learned; l != nil {
					t.Errorf("learned %+v", l)
				}
			})
		})
	}
}

// Rounds and use of several hosts are compared host by host.
func TestGivingOfTwoHosts(t *testing.T) {
	var g giving
	at, step := time.Unix(0, 0), int64(0)
	prior := func() resource.Costs { return resource.Costs{Sensitivity: resource.Sensitivity{CPU: 1, Net: 1}} }
	on := map[string]int{"h": 1, "i": 4}
	for range 40 {
		delay, use := time.Duration(0), 3.0
		if step >= 60 { // at 20 s
			delay, use = 2*time.Second, 1
		}
		at, step = at.Add(time.Second), step+3
		if delay > 0 {
			step -= 2 // rounds of a third of a second, and then of one
		}
		learned, err := g.observe(look{at, step, map[string]resource.Usage{"h": {CPU: use}, "i": {CPU: 8 * use, NetIn: 2 * use}, "j": {CPU: 1}}}, delay, on, prior)
		if err != nil || learned != (g.seen == 1 && len(g.now) == rounds+1 && g.former == nil && delay > 0) {
			t.Fatalf("step %d: %v, %v", step, learned, err)
		}
	}
	c := g.learned.Costs()
	// h: 2 cores by 1 worker in 2 s, so 1; i: 16 by 4, so 2. Median 1.5 of 2 values, against a prior of 0 that counts 3
	// times.
	if g.seen != 1 || math.Abs(c.Freed.CPU-1.5*2/5) > 1e-9 || math.Abs(c.Freed.NetIn-0.25*2/5) > 1e-9 || c.Freed.NetOut != 0 {
		t.Errorf("learned %+v from %d delays", c, g.seen)
	}
	// Three times slower with a third of the use: e = 1.
	if want := math.Pow(32, 2.0/5); math.Abs(c.Sensitivity.CPU-want) > 1e-6 {
		t.Errorf("a sensitivity of %v, want %v", c.Sensitivity.CPU, want)
	}
}

// What is reported right behind a change is of the change, and is passed over.
func TestReportsBehindAChange(t *testing.T) {
	var g giving
	at, step := time.Unix(0, 0), int64(0)
	prior := func() resource.Costs { return resource.Costs{Sensitivity: resource.Sensitivity{CPU: 1, Net: 1}} }
	for i := range 2 * looks {
		delay, use := time.Duration(0), 4.0
		if i >= looks {
			delay, use = time.Second, 2
			if i < looks+skip+1 { // and the round in which the next one falls
				use = 1000
			}
		}
		at, step = at.Add(2*time.Second), step+2
		if delay > 0 {
			step--
		}
		if _, err := g.observe(look{at, step, map[string]resource.Usage{"h": {CPU: use}}}, delay, map[string]int{"h": 1}, prior); err != nil {
			t.Fatal(err)
		}
	}
	// 2 cores by 1 worker in 1 s, against a prior of 0 that counts 3 times.
	if g.seen != 1 || math.Abs(g.learned.Costs().Freed.CPU-2*1/4.) > 1e-9 {
		t.Errorf("learned %+v from %d delays", g.learned, g.seen)
	}
}
