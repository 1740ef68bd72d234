package auto

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// A worker that took much longer than the others for the first iteration, and has by now taken longer than they for the
// second, need not be waited for.
func TestLagging(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name          string
		first, second time.Duration // of worker 2; the others take 600 ms
		others        int           // the workers that have arrived for the second time
		at            time.Duration // after the first update
		changes       bool
	}{
		{"slow twice", 1800 * ms, 0, 3, 1001 * ms, true},
		{"slow twice, but caches still warm up", 1800 * ms, 0, 3, 999 * ms, false},
		{"slow the first time", 1800 * ms, 600 * ms, 3, 1001 * ms, false},
		{"slow the second time", 600 * ms, 0, 3, 1001 * ms, false},
		{"most are not there either", 1800 * ms, 0, 1, 1001 * ms, false},
	} {
		const n, batch = 4, 64
		k, err := New(Config{Workers: n, Batch: batch}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		record := func(w star.Worker, step int64, took time.Duration) {
			k.Observe(star.Record{Worker: w, Step: step, Basis: step, Compute: took, Samples: batch})
		}
		for w := range star.Worker(n) {
			took := 600 * ms
			if w == 2 {
				took = c.first
			}
			record(w, 0, took)
		}
		k.Fired(c.first, []star.Worker{0, 1, 2, 3}, n*batch)
		for _, w := range []star.Worker{1, 2} {
			if d, ok := k.Deadline(w); !ok || d != time.Second {
				t.Errorf("%s: worker %d has a deadline of %v, %v", c.name, w, d, ok)
			}
		}
		for _, w := range []star.Worker{0, 1, 3}[:c.others] {
			record(w, 1, 600*ms)
		}
		if c.second > 0 {
			record(2, 1, c.second)
			k.Fired(c.first+c.second, []star.Worker{0, 1, 2, 3}, n*batch)
		}
		d, change := k.Decide(c.first + c.at)
		if change != c.changes {
			t.Errorf("%s: a change: %v (%s)", c.name, change, d.Why)
		}
		if change && d.Gain < 0.4 {
			t.Errorf("%s: gain %v", c.name, d.Gain)
		}
	}
}

// What a worker computed of its first iteration says how much a queue saves before its second one has ended: much of a
// slow computation, and little of a slow exchange. Where each worker has a velocity, which hides what staleness costs,
// the staler of two plans is not taken if it is hardly cheaper.
func TestLaggingSplits(t *testing.T) {
	const n, batch, ms = 4, 64, time.Millisecond
	for _, c := range []struct {
		compute, push time.Duration // of worker 2; the others take 540 and 60 ms
		velocities    float64
		want          string
	}{
		{1440 * ms, 60 * ms, 0.9, "ssgd queue=8 with shares by speed"},
		{1360 * ms, 140 * ms, 0, "asgd"},
		{540 * ms, 960 * ms, 0.9, "x=3"}, // 45.5 % sooner, and asgd 45.7 %
	} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Velocities: c.velocities}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		round := func(step int64, ws ...star.Worker) {
			for _, w := range ws {
				r := star.Record{Worker: w, Step: step, Basis: step, Compute: 540 * ms, Push: 60 * ms, Samples: batch}
				if w == 2 {
					r.Compute, r.Push = c.compute, c.push
				}
				k.Observe(r)
			}
		}
		round(0, 0, 1, 2, 3)
		k.Fired(1500*ms, []star.Worker{0, 1, 2, 3}, n*batch)
		round(1, 0, 1, 3)
		d, change := k.Decide(2501 * ms)
		if !change || !strings.HasPrefix(d.Why, c.want+":") {
			t.Errorf("%+v: %v, %v", c, change, d.Why)
		}
	}
}

// A round of SSGD that some workers hold up is left for x-order without them, or a ring in which they ride, which only
// needs the deadline to be over.
// A plan that was chosen blindly is left for a better one without a dwell.
func TestEscape(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, c := range []struct {
		name     string
		rounds   int           // of 600 ms before
		late     []star.Worker // in the next one, after which nothing is known of them
		missed   int           // deadlines
		busy     float64       // of processors
		cfg      Config
		momentum float64
		after    time.Duration // since the release
		want     string        // "": SSGD stays
	}{
		{name: "one, in the second round", rounds: 1, late: []star.Worker{2}, missed: 1, after: 1000 * ms, want: "x=7"},
		{name: "before caches are warm", rounds: 1, late: []star.Worker{2}, missed: 1, after: 999 * ms},
		{name: "one, later", rounds: 10, late: []star.Worker{2}, missed: 1, after: 900 * ms, want: "x=7"},
		{name: "two", rounds: 10, late: []star.Worker{2, 5}, missed: 1, after: 900 * ms, want: "x=6"},
		{name: "three, which is the network's slowness", rounds: 10, late: []star.Worker{2, 5, 6}, missed: 1, after: 900 * ms},
		{name: "three, for so long that all plans are compared again, by what was seen", rounds: 10, late: []star.Worker{2, 5, 6}, missed: 1, after: 1300 * ms},
		{name: "a little, with a short deadline", rounds: 10, late: []star.Worker{2}, missed: 1, after: 620 * ms, want: "x=7"},
		{name: "nobody", rounds: 10, after: 900 * ms},
		{name: "a hiccup after a long calm", rounds: 40, late: []star.Worker{2}, missed: 1, after: 900 * ms},
		{name: "more than a hiccup", rounds: 40, late: []star.Worker{2}, missed: 2, after: 1800 * ms, want: "x=7"},
		{name: "on full processors", rounds: 1, late: []star.Worker{2}, missed: 1, busy: 0.9, after: 1000 * ms},
		{name: "on idle ones", rounds: 3, late: []star.Worker{2}, missed: 1, busy: 0.3, after: 1000 * ms, want: "x=7"},
		{name: "in a ring", rounds: 10, late: []star.Worker{2}, missed: 1, cfg: Config{Ring: true}, after: 900 * ms, want: "groups=0,1,3-7+2"},
		{name: "with a decider", rounds: 10, late: []star.Worker{2}, missed: 1, cfg: Config{Decider: price.Cheapest{}}, after: 900 * ms},
		{name: "with momentum", rounds: 10, late: []star.Worker{2}, missed: 1, cfg: Config{Momentum: 0.9}, after: 900 * ms, want: "x=7"},
	} {
		c.cfg.Workers, c.cfg.Batch, c.cfg.Queue = n, batch, QueueParts
		k, err := New(c.cfg, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		at, step := time.Duration(0), int64(0)
		record := func(w star.Worker, took time.Duration) {
			r := star.Record{Worker: w, Step: step, Basis: step, Compute: took, Samples: batch}
			r.Telemetry.Set(star.HostCPU, c.busy)
			k.Observe(r)
		}
		all := []star.Worker{0, 1, 2, 3, 4, 5, 6, 7}
		for range c.rounds {
			for _, w := range all {
				record(w, 600*ms)
			}
			at += 600 * ms
			step++
			k.Fired(at, all, n*batch)
			if d, change := k.Decide(at); change {
				t.Fatalf("%s: %v before anybody is late", c.name, d)
			}
		}
		for _, w := range all {
			if !slices.Contains(c.late, w) {
				record(w, 600*ms)
			}
		}
		for _, after := range []time.Duration{605 * ms, 610 * ms} {
			if d, change := k.Decide(at + after); change {
				t.Errorf("%s: %v before the deadline", c.name, d)
			}
		}
		for range c.missed {
			for _, w := range c.late {
				k.Late(w)
			}
		}
		if f, h, ok := k.look(at + c.after); ok { // what it supposes of the late ones stays its own
			times, seen, probe := slices.Clone(f.Times), slices.Clone(h), *k
			probe.escape(at+c.after, h, f)
			if !slices.Equal(f.Times, times) || !slices.EqualFunc(h, seen, slices.Equal[[]time.Duration]) {
				t.Errorf("%s: escape has changed what is known", c.name)
			}
		}
		d, change := k.Decide(at + c.after)
		if change != (c.want != "") || change && d.Plan.String() != c.want {
			t.Errorf("%s: %v, %v, want %q", c.name, d.Plan, change, c.want)
		}
		if !change {
			continue
		}
		if !k.current.fled || k.Plan().String() != c.want || d.Gain < 0.3 {
			t.Errorf("%s: %+v", c.name, d)
		}
		k.Installed(at, modes.SSGD(n))
		if k.current.fled {
			t.Errorf("%s: a plan of somebody else's is taken for its own", c.name)
		}
	}
}

// In the first round workers that take half longer than half of all, and half a second, are not waited for.
func TestEscapeInTheFirstRound(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, c := range []struct {
		name string
		cfg  Config
		late []star.Worker
		busy float64
		want string // "": SSGD stays
	}{
		{name: "one", late: []star.Worker{2}, want: "x=7"},
		{name: "half", late: []star.Worker{2, 3, 5, 7}, want: "x=4"},
		{name: "most", late: []star.Worker{1, 2, 3, 5, 7}},
		{name: "on full processors", late: []star.Worker{2}, busy: 0.9},
		{name: "in a ring", cfg: Config{Ring: true}, late: []star.Worker{2}, want: "groups=0,1,3-7+2"},
		{name: "half of a ring", cfg: Config{Ring: true}, late: []star.Worker{2, 3, 5, 7}, want: "groups=0,1,4,6+2,3,5,7"},
	} {
		c.cfg.Workers, c.cfg.Batch = n, batch
		k, err := New(c.cfg, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		for w := range star.Worker(n) {
			if !slices.Contains(c.late, w) {
				r := star.Record{Worker: w, Compute: 600 * ms, Samples: batch}
				r.Telemetry.Set(star.HostCPU, c.busy)
				k.Observe(r)
			}
		}
		if d, change := k.Decide(1099 * ms); change {
			t.Errorf("%s: %v before the deadline", c.name, d)
		}
		d, ok := k.Deadline(c.late[0])
		if known := c.name != "most"; ok != known || known && d != 1100*ms {
			t.Errorf("%s: a deadline of %v, %v", c.name, d, ok)
		}
		for _, w := range c.late {
			if ok {
				k.Late(w)
			}
		}
		got, change := k.Decide(1100 * ms)
		if change != (c.want != "") || change && (got.Plan.String() != c.want || !k.current.fled) {
			t.Errorf("%s: %v, %v, want %q", c.name, got.Plan, change, c.want)
		}
	}
}

// Full processors stay known when a burst of load slows all workers to a new level.
func TestFullHostsStayKnown(t *testing.T) {
	const n = 4
	k, err := New(Config{Workers: n, Batch: 64}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	for step := range int64(20 + leapt) {
		for w := range star.Worker(n) {
			r := star.Record{Worker: w, Step: step, Compute: 10 * time.Millisecond, Samples: 64}
			if step >= 20 {
				r.Compute *= 3
			}
			r.Telemetry.Set(star.HostCPU, 0.95)
			k.Observe(r)
		}
	}
	if len(k.obs.workers[0].times.vals) != leapt || !k.obs.crowded(needed) {
		t.Errorf("after %d iterations of a new level: full hosts are %v", len(k.obs.workers[0].times.vals), k.obs.crowded(needed))
	}
}

// life has n workers make rounds of SSGD, in which worker w takes took(round, w), and tells k what the coordinator
// would: deadlines that are over, arrivals and updates. It ends when changed, which gets each change of the plan,
// returns false.
func life(t *testing.T, k *Controller, n, rounds int, took func(round int, w star.Worker) time.Duration, changed func(at time.Duration, d price.Decision) bool) {
	t.Helper()
	at := time.Duration(0)
	all := make([]star.Worker, n)
	for w := range all {
		all[w] = star.Worker(w)
	}
	for round := range rounds {
		type event struct {
			at   time.Duration
			w    star.Worker
			late bool
		}
		var events []event
		longest := time.Duration(0)
		for _, w := range all {
			d := took(round, w)
			longest = max(longest, d)
			events = append(events, event{at + d, w, false})
			if deadline, ok := k.Deadline(w); ok {
				for deadline = max(deadline, 250*time.Millisecond); deadline < d; deadline *= 2 { // measure.Patience
					events = append(events, event{at + deadline, w, true})
				}
			}
		}
		slices.SortStableFunc(events, func(a, b event) int { return int(a.at - b.at) })
		for _, e := range events {
			if e.late {
				k.Late(e.w)
			} else {
				k.Observe(star.Record{Worker: e.w, Step: int64(round), Basis: int64(round), Compute: took(round, e.w), Samples: 64})
			}
			if d, change := k.Decide(e.at); change && !changed(e.at, d) {
				return
			}
		}
		at += longest
		k.Fired(at, all, 64*n)
	}
}

// A worker that becomes three times slower is answered within 2.5 s of iterations of 0.6 s, whenever that is.
func TestEscapeFromAnyMoment(t *testing.T) {
	const n = 4
	for _, from := range []int{4, 10, 31, 40, 100, 300} {
		k, err := New(Config{Workers: n, Batch: 64, Queue: QueueParts}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, uint64(from)))
		known := map[[2]int]time.Duration{}
		took := func(round int, w star.Worker) time.Duration {
			key := [2]int{round, int(w)}
			if known[key] == 0 {
				d := 600 * (1 + 0.02*rng.NormFloat64())
				if w == 2 && round >= from {
					d *= 3
				}
				known[key] = time.Duration(d * float64(time.Millisecond))
			}
			return known[key]
		}
		begun := time.Duration(0)
		for round := range from {
			longest := time.Duration(0)
			for w := range star.Worker(n) {
				longest = max(longest, took(round, w))
			}
			begun += longest
		}
		after := time.Hour
		life(t, k, n, from+20, took, func(at time.Duration, d price.Decision) bool {
			after = at - begun
			return false
		})
		if after < 0 || after > 2550*time.Millisecond {
			t.Errorf("slow from round %d on: the first change comes after %v", from, after)
		}
	}
}

// In calm jobs, where one iteration in 200 takes three times as long by chance, escape changes the plan in at most
// one of 1,000 rounds once the workers are known, whatever the scatter of the other iterations.
func TestEscapeInCalm(t *testing.T) {
	if testing.Short() {
		t.Skip("15,000 rounds")
	}
	const n, rounds = 4, 5000
	for _, scatter := range []float64{0.01, 0.1, 0.2} {
		rng := rand.New(rand.NewPCG(2, 2))
		k, err := New(Config{Workers: n, Batch: 64, Queue: QueueParts}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		round, alarms := -1, 0
		of := make([]time.Duration, n)
		took := func(now int, w star.Worker) time.Duration {
			if now != round {
				round = now
				for w := range of {
					d := 0.6 * math.Exp(scatter*rng.NormFloat64())
					if rng.IntN(200) == 0 {
						d *= 3
					}
					of[w] = time.Duration(d * float64(time.Second))
				}
			}
			return of[w]
		}
		life(t, k, n, rounds, took, func(at time.Duration, d price.Decision) bool {
			if round > price.Remembered && strings.HasSuffix(d.Why, ", as it seems") {
				alarms++
			}
			k.Installed(at, modes.SSGD(n))
			return true
		})
		t.Logf("scatter %.2f: %d alarms in %d rounds", scatter, alarms, rounds)
		if alarms > rounds/1000 {
			t.Errorf("scatter %.2f: %d alarms in %d rounds", scatter, alarms, rounds)
		}
	}
}

// A plan that escape has chosen is left without a dwell, and for a queue before all workers were seen five times;
// another plan is not.
func TestEscapeIsNotForGood(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, fled := range []bool{true, false} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		all := []star.Worker{0, 1, 2, 3, 4, 5, 6, 7}
		at := time.Duration(0)
		for step := range int64(3) {
			for _, w := range all {
				took := 600 * ms
				if step > 0 && (w == 2 || w == 5) { // not from the beginning
					took *= 3
				}
				k.Observe(star.Record{Worker: w, Step: step, Basis: step, Compute: took, Samples: batch})
			}
			at += 1800 * ms
			k.Fired(at, all, n*batch)
		}
		k.current.plan, k.current.fled, k.current.since, k.current.pace = modes.XOrder(n, 7), fled, at, 1800*ms
		changed := ""
		for range 4 { // no more is seen
			at += 600 * ms
			if d, change := k.Decide(at); change {
				changed = kindOfPlan(t, d.Plan)
				break
			}
		}
		if want := map[bool]string{true: price.KindQueue}[fled]; changed != want {
			t.Errorf("fled %v: a change to %q, want %q", fled, changed, want)
		}
	}
}

// Lateness is of one iteration. If a worker was slow in the first one, too, all plans are compared instead.
func TestLateness(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	k, err := New(Config{Workers: n, Batch: batch}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	all := []star.Worker{0, 1, 2, 3, 4, 5, 6, 7}
	record := func(w star.Worker, step int64, took time.Duration) {
		k.Observe(star.Record{Worker: w, Step: step, Basis: step, Compute: took, Samples: batch})
	}
	for _, w := range all {
		took := 600 * ms
		if w == 3 || w == 5 {
			took *= 2
		}
		record(w, 0, took)
	}
	k.Late(0)
	k.Fired(1200*ms, all, n*batch)
	if k.obs.workers[0].late != 0 {
		t.Error("late before it was released")
	}
	k.Late(0)
	for _, w := range all {
		if w != 3 && w != 5 {
			record(w, 1, 600*ms)
		}
	}
	if k.obs.workers[0].late != 0 {
		t.Error("late although its gradient is there")
	}
	k.Late(3)
	k.Late(5)
	if d, change := k.Decide(2300 * ms); !change || strings.Contains(d.Why, "as it seems") { // which escape says
		t.Errorf("two that were slow twice: changed %v to %v", change, d)
	}
}

// What gradients that are not stale say of staleness can make it cheaper, and not dearer.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		bound, measured, prior, least, want float64
	}{
		{0, 0, price.PriorRate, price.MinRate, price.PriorRate},
		{0, 0.3, price.PriorRate, price.MinRate, 0.3},
		{0.05, 0, price.PriorRate, price.MinRate, 0.05},
		{0.05, 0.3, price.PriorRate, price.MinRate, 0.05},
		{0.5, 0, price.PriorRate, price.MinRate, price.PriorRate},
		{0.5, 0.3, price.PriorRate, price.MinRate, 0.3},
		{0.001, 0, price.PriorRate, price.MinRate, price.MinRate},
		{-1, 0, price.PriorRate, price.MinRate, price.PriorRate},
		{math.NaN(), 0.3, price.PriorRate, price.MinRate, 0.3},
		{math.Inf(1), 0, price.CautiousRate, price.PriorRate, price.CautiousRate},
		{0.03, 0, price.CautiousRate, price.PriorRate, price.PriorRate},
		{0.03, 0.05, price.CautiousRate, price.PriorRate, 0.05},
		{0.15, 0, price.CautiousRate, price.PriorRate, 0.15},
	} {
		k, err := New(Config{Workers: 2, Batch: 1}, modes.SSGD(2))
		if err != nil {
			t.Fatal(err)
		}
		if c.bound != 0 {
			k.Bound(c.bound, c.bound)
		}
		if got := k.worth.bounded(c.measured, c.prior, c.least); got != c.want {
			t.Errorf("bound %v, measured %v, prior %v: %v, want %v", c.bound, c.measured, c.prior, got, c.want)
		}
	}
}

// As long as little was seen, a plan for one worker is not trusted to fit the next slow worker, too: a plan that takes
// workers in order of arrival is better. The decision to leave SSGD does not depend on that.
func TestFearsTurnsEarly(t *testing.T) {
	const n, batch = 8, 64
	for _, ring := range []bool{false, true} {
		early, late := modes.Plan{}, modes.Plan{}
		for _, rounds := range []int{2, 500} {
			k, err := New(Config{Workers: n, Batch: batch, Ring: ring}, modes.SSGD(n))
			if err != nil {
				t.Fatal(err)
			}
			k.suspect.worker = 7
			f := price.Forecast{Batch: batch, Fits: make([]price.Fit, n), Ring: ring}
			var h price.History
			for w := range n {
				d := 600*time.Millisecond + time.Duration(w)*time.Millisecond
				if w == 7 {
					d = 1800 * time.Millisecond
				}
				f.Times = append(f.Times, d)
				h = append(h, []time.Duration{d})
			}
			home, err := price.Over(modes.SSGD(n), h, f)
			if err != nil {
				t.Fatal(err)
			}
			d, err := k.choose(time.Duration(rounds)*1800*time.Millisecond, h, f, home, rounds >= needed, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d.Cost > home.Cost/2 {
				t.Errorf("ring %v, after %d rounds: %v", ring, rounds, d.Why)
			}
			early, late = late, d.Plan
		}
		switch {
		case ring && (kindOfPlan(t, early) != price.KindRing || kindOfPlan(t, late) != price.KindRing):
			t.Errorf("a ring: %v, then %v", early, late)
		case !ring && kindOfPlan(t, early) != price.KindASGD && kindOfPlan(t, early) != price.KindStatic:
			t.Errorf("early: %v is for one worker", early)
		case !ring && (kindOfPlan(t, late) == price.KindASGD || kindOfPlan(t, late) == price.KindStatic):
			t.Errorf("late: %v is not for the worker that has always been the slow one", late)
		}
	}
}

// A correction is for plans of its kind and for its time; a trial of few rounds, or one that its rounds do not rule
// out, makes none, and the next trial of the kind replaces it.
func TestCorrections(t *testing.T) {
	const n, batch = 4, 64
	k, err := New(Config{Workers: n, Batch: batch}, modes.ASGD(n))
	if err != nil {
		t.Fatal(err)
	}
	f := price.Forecast{Batch: batch, Fits: make([]price.Fit, n)}
	h := price.History{{time.Second}, {time.Second}, {time.Second}, {3 * time.Second}}
	ratio := func(at time.Duration, p modes.Plan) float64 {
		was, err := price.Over(p, h, f)
		now, err2 := k.trials.over(at, p, h, f)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if a, b := now.Rate()/was.Rate(), k.worth.cautious(f, was)/k.worth.cautious(f, now); math.Abs(a-b) > 1e-6 {
			t.Errorf("of the rate %v, of the cautious cost %v", a, b)
		}
		return was.Cost.Seconds() / now.Cost.Seconds()
	}
	for _, c := range []struct {
		rate   float64
		rounds []float64
		want   float64
	}{
		{0.8, []float64{1, 1, 1, 1}, 1}, // few
		{0.8, []float64{1, 1, 1, 1, 1}, 0.8},
		{1.25, []float64{1, 1, 1, 1, 1}, 1.25},
		{0.8, []float64{0.9, 1, 1.1, 0.9, 1.1}, 0.8 * (1 + 2*0.1/math.Sqrt(5))},
		{1.25, []float64{0.9, 1, 1.1, 0.9, 1.1}, 1.25 * (1 - 2*0.1/math.Sqrt(5))},
		{0.95, []float64{0.9, 1, 1.1, 0.9, 1.1}, 1},
		{1.05, []float64{0.9, 1, 1.1, 0.9, 1.1}, 1},
	} {
		k.trials.correct(100*time.Second, k.current.plan, &trial{begun: 90 * time.Second, rounds: c.rounds}, c.rate)
		for at, want := range map[time.Duration]float64{100 * time.Second: c.want, 199 * time.Second: c.want, 200 * time.Second: 1} {
			if got := ratio(at, modes.ASGD(n)); math.Abs(got-want) > 1e-6 {
				t.Errorf("%+v: at %v %v of the rate, want %v", c, at, got, want)
			}
		}
		if got := ratio(100*time.Second, modes.XOrder(n, 2)); got != 1 {
			t.Errorf("%+v: another plan has %v of its rate", c, got)
		}
	}
	if len(k.trials.corrections) > 1 {
		t.Errorf("%d corrections of one plan", len(k.trials.corrections))
	}
}

// No plan is made for the slow workers before all workers were seen often enough and one of them was slow for a dwell,
// except riders in a ring.
func TestNoPlanForOneWorkerEarly(t *testing.T) {
	const n, batch, now = 8, 64, 900 * time.Second
	for _, c := range []struct {
		name  string
		ring  bool
		queue int
		slow  star.Worker
		since time.Duration // when it became slow
		sure  bool
		want  bool // the plan is for workers
	}{
		{"not seen often", false, 0, 7, 0, false, false},
		{"nobody is suspected", false, 0, -1, 0, true, false},
		{"not for long", false, 0, 7, now - 17*time.Second, true, false},
		{"for a dwell", false, 0, 7, now - 18*time.Second, true, true},
		{"a ring", true, 0, -1, 0, false, true},
	} {
		k, err := New(Config{Workers: n, Batch: batch, Ring: c.ring, Queue: c.queue}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		k.suspect.worker, k.suspect.since = c.slow, c.since
		f := price.Forecast{Batch: batch, Fits: make([]price.Fit, n), Ring: c.ring, Queue: c.queue}
		var h price.History
		for w := range n {
			d := 600*time.Millisecond + time.Duration(w)*time.Millisecond
			if w == 7 {
				d = 1800 * time.Millisecond
			}
			f.Times, h = append(f.Times, d), append(h, []time.Duration{d})
		}
		home, err := price.Over(modes.SSGD(n), h, f)
		if err != nil {
			t.Fatal(err)
		}
		d, err := k.choose(now, h, f, home, c.sure, nil)
		if err != nil {
			t.Fatal(err)
		}
		kind := kindOfPlan(t, d.Plan)
		if got := d.Plan.Shares != nil || kind == price.KindGroups || kind == price.KindRing; got != c.want || d.Cost >= home.Cost {
			t.Errorf("%s: %v (%s)", c.name, d.Plan, d.Why)
		}
	}
}

// With momentum the steepness begins with the prior, and stays there while the measurement allows it. Otherwise it
// follows the value that is certain, by half at each measurement, down to half of the prior; a repeated measurement
// counts once. Bounds of θ are those of (25), and drift makes nothing cheaper than the prior.
func TestSteepnessFollows(t *testing.T) {
	const mu, round = 0.9, 128
	prior := price.PriorSteepness(mu)
	theta := func(nu, noise float64) float64 { return nu * (1 - mu) * (1/(1+mu) + noise/round) } // (25)
	for _, c := range []struct {
		name        string
		least, most float64 // ν that is measured
		after       int     // measurements
		want        float64
	}{
		{"nothing is known", 0, 0, 0, prior},
		{"the prior may be", 1, 30, 500, prior},
		{"it is less", 0, 8, 500, 8},
		{"it is less, as one measurement has it", 0, 8, 1, math.Sqrt(8 * prior)},
		{"it is less than half", 0, 2, 500, prior / 2},
		{"it is more", 25, 30, 500, 25},
		{"beyond what SSGD bears", 100, 200, 500, 38},
		{"exact gradients that do not change", 0, 0, 2000, prior / 2},
	} {
		for _, noise := range []float64{0, 64, 1000} {
			k, err := New(Config{Workers: 4, Batch: round / 4, Momentum: mu}, modes.SSGD(4))
			if err != nil {
				t.Fatal(err)
			}
			k.Noise(noise)
			for i := range c.after {
				most := theta(c.most, noise) + 1e-12*float64(i%2) // each is another measurement
				k.Bound(theta(c.least, noise), most)
				k.Bound(theta(c.least, noise), most)
			}
			if math.Abs(k.worth.steep/c.want-1) > 1e-3 {
				t.Errorf("%s, noise %v: ν %.4f, want %.4f", c.name, noise, k.worth.steep, c.want)
			}
			if c.after > 0 {
				if want := max(min(c.most, 38)*(1+noise/round), price.MinRate); math.Abs(k.worth.bound/want-1) > 1e-6 {
					t.Errorf("%s, noise %v: θ is at most %.4f, want %.4f", c.name, noise, k.worth.bound, want)
				}
			}
		}
	}
	for _, mu := range []float64{0, .9} {
		k, err := New(Config{Workers: 4, Batch: 32, Momentum: mu}, modes.SSGD(4))
		if err != nil {
			t.Fatal(err)
		}
		k.Drift(0.001, 1e6)
		if want := map[float64]float64{0: price.MinRate, .9: price.PriorRate}[mu]; math.Abs(k.worth.rate-want) > 1e-3 {
			t.Errorf("momentum %v: drift makes θ %.3f, want %.3f", mu, k.worth.rate, want)
		}
	}
	if _, err := New(Config{Workers: 4, Batch: 32, Momentum: 1}, modes.SSGD(4)); err == nil {
		t.Error("a controller of a job whose updates never fade")
	}
}

// After the loss has grown in a plan, it is left alone, and staleness is held to be four times as dear, each time
// again.
func TestRecoil(t *testing.T) {
	k, err := New(Config{Workers: 4, Batch: 32, Momentum: .9}, modes.SSGD(4))
	if err != nil {
		t.Fatal(err)
	}
	for w := range k.obs.workers {
		for range needed + 1 {
			k.Observe(star.Record{Worker: star.Worker(w), Samples: 32, Compute: time.Second, Loss: 1})
		}
	}
	dear := 1.0
	for i := range 6 {
		k.current.plan, k.current.since = modes.ASGD(4), time.Minute
		d, change := k.recoil(2 * time.Minute)
		if dear = min(4*dear, 256); !change || !d.Plan.Equal(modes.SSGD(4)) || !k.trials.isBanned(3*time.Minute, modes.ASGD(4)) {
			t.Fatalf("%d: %v, %v", i, d, change)
		}
		f, _, ok := k.Forecast(2 * time.Minute)
		if !ok || f.Steepness != dear*price.PriorSteepness(.9) || f.Rate != min(dear*price.PriorRate, price.MaxRate) {
			t.Errorf("%d: steepness %v, rate %v; want %v times the priors", i, f.Steepness, f.Rate, dear)
		}
	}
}

// In SSGD there is nothing to go back from: a loss that grows there says nothing of staleness.
func TestGrowingLossInSSGD(t *testing.T) {
	k, err := New(Config{Workers: 2, Batch: 32}, modes.SSGD(2))
	if err != nil {
		t.Fatal(err)
	}
	loss := func(rounds int, loss float64) {
		for range rounds {
			for w := range 2 {
				k.Observe(star.Record{Worker: star.Worker(w), Samples: 32, Compute: time.Second, Loss: loss})
			}
			if d, change := k.Decide(time.Hour); change {
				t.Fatal(d)
			}
		}
	}
	loss(20, 1)
	k.loss.changed()
	loss(20, 5)
	if k.worth.penalty > 0 || k.last.doubt {
		t.Error("staleness is held to be dearer")
	}
}

// A controller that is sure and content looks again after eight rounds and a second, and at once when a worker's times
// change or a worker is overdue; but not in each of many short iterations, and not while workers share full processors
// and none stays slow.
func TestContentIsNotAskedAgain(t *testing.T) {
	const n = 4
	for _, c := range []struct {
		name  string
		other time.Duration // of workers 0 to 2
		last  time.Duration // of worker 3, in the rounds that count
		late  time.Duration // of the decision after the last update
		grows float64       // of all iterations, in each round
		busy  float64       // host_cpu
		least int           // looks in 32 rounds
		most  int
	}{
		{"nothing changes", 200 * time.Millisecond, 200 * time.Millisecond, 0, 0, 0.3, 3, 6},
		{"rounds are short", 50 * time.Millisecond, 50 * time.Millisecond, 0, 0, 0.3, 1, 2},
		{"it becomes slow", 200 * time.Millisecond, 380 * time.Millisecond, 0, 0, 0.3, 7, 32},
		{"it is overdue", 200 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 0, 0.3, 25, 32},
		{"all grow", 200 * time.Millisecond, 200 * time.Millisecond, 0, 0.03, 0.3, 7, 32},
		{"all grow, and rounds are short", 2 * time.Millisecond, 2 * time.Millisecond, 0, 0.03, 0.3, 1, 5},
		{"all grow on a full host", 200 * time.Millisecond, 200 * time.Millisecond, 0, 0.03, 0.9, 0, 0},
	} {
		k, err := New(Config{Workers: n, Batch: 32}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		at, looks, seen := time.Duration(0), 0, time.Duration(-1)
		for round := range 64 {
			took := time.Duration(0)
			for w := range n {
				own := c.other + time.Duration(w+round%3)*time.Microsecond
				if w == 3 && round >= 32 {
					own = c.last
				}
				own = time.Duration(math.Pow(1+c.grows, float64(round)) * float64(own))
				took = max(took, own)
				r := star.Record{Worker: star.Worker(w), Step: int64(round), Samples: 32, Compute: own}
				r.Telemetry.Set(star.HostCPU, c.busy)
				k.Observe(r)
			}
			at += took
			k.Fired(at, []star.Worker{0, 1, 2, 3}, n*32)
			k.Decide(at + c.late)
			if k.last.at != seen && round >= 32 {
				looks++
			}
			seen = k.last.at
			if at += c.late; round == 0 {
				at += 2 * settling
			}
		}
		if looks < c.least || looks > c.most {
			t.Errorf("%s: looked %d times in 32 rounds, want %d to %d", c.name, looks, c.least, c.most)
		}
	}
}

// The slow worker changes all the time: once two rounds were seen after the first, the controller takes a queue if it
// saves much, and no other plan. If no worker is slow, it takes none.
func TestQueueIsTakenEarly(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, c := range []struct {
		name   string
		slow   [4]star.Worker // of each round, -1: no worker
		queue  int
		rounds int // after which the plan changes; 0: never
	}{
		{"by turns", [4]star.Worker{1, 4, 6, 2}, QueueParts, 3},
		{"by turns, but no queue", [4]star.Worker{1, 4, 6, 2}, 0, 0},
		{"nobody", [4]star.Worker{-1, -1, -1, -1}, QueueParts, 0},
		{"in the first round", [4]star.Worker{3, -1, -1, -1}, QueueParts, 0},
	} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: c.queue}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		all := make([]star.Worker, n)
		at, changed := time.Duration(0), 0
		for r, slow := range c.slow {
			most := 0 * ms
			for w := range star.Worker(n) {
				all[w] = w
				took := time.Duration(600+w) * ms
				if w == slow {
					took *= 3
				}
				most = max(most, took)
				k.Observe(star.Record{Worker: w, Step: int64(r), Basis: int64(r), Compute: took, Samples: batch})
			}
			at += most
			k.Fired(at, all, n*batch)
			if d, change := k.Decide(at); change {
				if changed = r + 1; kindOfPlan(t, d.Plan) != price.KindQueue {
					t.Errorf("%s: %v (%s)", c.name, d.Plan, d.Why)
				}
				break
			}
		}
		if changed != c.rounds {
			t.Errorf("%s: a change after %d rounds, want %d", c.name, changed, c.rounds)
		}
	}
}

// Where exchanges are most of all iterations, local steps are taken before the first update, once half of the workers
// have ended an iteration: the update waits for the others, and the plan is in force from it on. The quarter of a
// second that connections may have cost is no exchange. Where the processors are full, pushes may only wait for one.
func TestLocalStepsAreTakenEarly(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, c := range []struct {
		name          string
		compute, push time.Duration
		local         int
		busy          float64 // processors of the host
		rounds        int     // after which the plan has changed; 0: never
		records       int     // of the round, at the change
	}{
		{"exchanges dominate", 60 * ms, 540 * ms, MostLocal, 0.4, 1, n / 2},
		{"nothing is known of the host", 60 * ms, 540 * ms, MostLocal, 0, 1, n / 2},
		{"no local steps in this job", 60 * ms, 540 * ms, 0, 0.4, 0, 0},
		{"exchanges do not dominate", 360 * ms, 240 * ms, MostLocal, 0.4, 0, 0},
		{"in one iteration connections may have been the half of it", 150 * ms, 300 * ms, MostLocal, 0.4, 2, n/2 + 1},
		{"in five short iterations, too", 20 * ms, 80 * ms, MostLocal, 0.4, 6, 1},
		{"full processors", 60 * ms, 540 * ms, MostLocal, 0.9, 0, 0},
	} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Local: c.local}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		all := make([]star.Worker, n)
		at, rounds, records := time.Duration(0), 0, 0
		for r := 1; r <= 12 && rounds == 0; r++ {
			at += c.compute + c.push
			for w := range star.Worker(n) {
				all[w] = w
				record := star.Record{Worker: w, Step: int64(r), Basis: int64(r), Compute: c.compute, Push: c.push, Samples: batch}
				if c.busy > 0 {
					record.Telemetry.Set(star.HostCPU, c.busy)
				}
				k.Observe(record)
				if d, change := k.Decide(at); change {
					if rounds, records = r, int(w)+1; d.Plan.Local != 4 || d.Gain < 0.07 || !d.Plan.SameGroups(modes.SSGD(n)) {
						t.Errorf("%s: %v (%s), which gains %.2f", c.name, d.Plan, d.Why, d.Gain)
					}
					break
				}
			}
			k.Fired(at, all, n*batch)
		}
		if rounds != c.rounds || records != c.records {
			t.Errorf("%s: a change in round %d after %d records, want %d and %d", c.name, rounds, records, c.rounds, c.records)
		}
	}
}

// On full hosts a worker that is slow for seconds is answered, and not by local steps: its pushes, and those of others,
// may only wait for a processor.
func TestFullHostsTakeNoLocalSteps(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, busy := range []float64{0.9, 0.4} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Local: MostLocal}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		all := make([]star.Worker, n)
		at, local, others := time.Duration(0), 0, 0
		for r := range int64(20) {
			at += 1200 * ms
			for w := range star.Worker(n) {
				all[w] = w
				record := star.Record{Worker: w, Step: r, Basis: r, Compute: 60 * ms, Push: 540 * ms, Samples: batch}
				if w == 2 {
					record.Compute += 600 * ms
				}
				record.Telemetry.Set(star.HostCPU, busy)
				k.Observe(record)
			}
			k.Fired(at, all, n*batch)
			if d, change := k.Decide(at); change && d.Plan.Local > 0 {
				local++
			} else if change {
				others++
			}
		}
		if (local > 0) != (busy < star.FullHost) || busy > star.FullHost && others == 0 {
			t.Errorf("%.1f of the processors busy: %d changes to local steps, %d to others", busy, local, others)
		}
	}
}

// If exchanges took that long only once, SSGD is back some rounds after the first one with local steps, without a
// dwell, and no worker counted as late meanwhile.
func TestLocalStepsTakenForNothing(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Local: MostLocal}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	all := make([]star.Worker, n)
	at, push, local := time.Duration(0), 2*time.Second, 0
	for r := range int64(12) {
		steps := max(1, k.Plan().Local)
		took := time.Duration(steps)*200*ms + push
		if d, ok := k.Deadline(0); ok && d < took {
			t.Errorf("round %d is late after %v and takes %v", r, d, took)
		}
		at += took
		if steps > 1 {
			local++
		}
		for w := range star.Worker(n) {
			all[w] = w
			k.Observe(star.Record{Worker: w, Step: r, Basis: r, Compute: time.Duration(steps) * 200 * ms, Push: push, Samples: steps * batch})
			k.Decide(at)
		}
		k.Fired(at, all, n*batch*steps)
		k.Decide(at)
		push = 20 * ms
	}
	if local < 1 || local > 4 || !k.Plan().Equal(modes.SSGD(n)) {
		t.Errorf("%d rounds with local steps, and then %v", local, k.Plan())
	}
}

// A queue that was chosen while a worker's second iteration had not ended is replaced by local steps, without a dwell,
// once that iteration has ended and shows that exchanges dominate. For a plan of stale gradients it is not.
func TestLaggingIsNotForGood(t *testing.T) {
	const n, batch, ms = 8, 64, time.Millisecond
	for _, local := range []int{MostLocal, 0} {
		k, err := New(Config{Workers: n, Batch: batch, Queue: QueueParts, Local: local}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		all := make([]star.Worker, n)
		for w := range star.Worker(n) {
			all[w] = w
		}
		round := func(step int64, ws []star.Worker) {
			for _, w := range ws {
				compute, push := 60*ms, 540*ms
				switch {
				case w == 2 && step == 0: // which shows an exchange like all others
					compute = 600 * ms
				case w == 2:
					push *= 2
				}
				k.Observe(star.Record{Worker: w, Step: step, Basis: step, Compute: compute, Push: push, Samples: batch})
			}
		}
		round(0, all)
		k.Fired(1140*ms, all, n*batch)
		round(1, []star.Worker{0, 1, 3, 4, 5, 6, 7})
		d, change := k.Decide(2141 * ms)
		if !change || d.Plan.Queue == 0 || !k.current.fled {
			t.Fatalf("changed %v to %v, blind %v", change, d.Plan, k.current.fled)
		}
		round(1, []star.Worker{2})
		k.Fired(2280*ms, all, n*batch)
		found := false
		for at := 2300 * ms; at < 4*time.Second && !found; at += 300 * ms {
			if d, found = k.Decide(at); found && (kindOfPlan(t, d.Plan) != price.KindLocal || k.current.fled) {
				t.Errorf("at %v %v, blind %v", at, d.Plan, k.current.fled)
			}
		}
		if found != (local > 0) {
			t.Errorf("at most %d local steps: changed %v", local, found)
		}
	}
}

// With Adam what is measured of the steepness is not believed.
func TestSteepnessOfAdam(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		k, err := New(Config{Workers: 2, Batch: 1, Momentum: 0.9, Adaptive: adaptive}, modes.SSGD(2))
		if err != nil {
			t.Fatal(err)
		}
		k.Bound(0.01, 0.02)
		if prior := price.PriorSteepness(0.9); (k.worth.steep == prior) != adaptive {
			t.Errorf("adaptive %v: ν %v after a measurement, before %v", adaptive, k.worth.steep, prior)
		}
	}
}

// Members of a ring send their records when a round is over: in the second round only first iterations are known.
func TestEscapeInTheSecondRoundOfARing(t *testing.T) {
	const n, batch, ms = 4, 16, time.Millisecond
	for _, c := range []struct {
		name  string
		ring  bool
		first time.Duration // of worker 3
		late  []star.Worker
		want  string
	}{
		{"late again", true, 1800 * ms, []star.Worker{3}, "groups=0-2+3"},
		{"late once", true, 620 * ms, []star.Worker{3}, "groups=0-2+3"},
		{"slow, and not late", true, 1800 * ms, nil, ""},
		{"most are late", true, 600 * ms, []star.Worker{1, 2, 3}, ""},
		{"with servers the others' records are there", false, 1800 * ms, []star.Worker{3}, ""},
	} {
		k, err := New(Config{Workers: n, Batch: batch, Ring: c.ring}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		for w := range star.Worker(n) {
			r := star.Record{Worker: w, Compute: 600 * ms, Samples: batch}
			if w == 3 {
				r.Compute = c.first
			}
			k.Observe(r)
		}
		k.Fired(c.first, []star.Worker{0, 1, 2, 3}, n*batch)
		at := c.first + 1200*ms
		for _, w := range c.late {
			k.Late(w)
		}
		d, change := k.Decide(at)
		if got := d.Plan.String(); change != (c.want != "") || change && got != c.want {
			t.Errorf("%s: %v, %v; want %q", c.name, got, change, c.want)
		}
	}
}

// On full processors SSGD is left for local or outer steps if the links explain what exchanges take, as the kernel has
// seen them, and not if a processor was waited for, or nothing is known of links.
func TestSlowLinksOfFullHosts(t *testing.T) {
	const n, ms = 4, time.Millisecond
	for _, c := range []struct {
		name string
		busy float64 // seconds in which something was on its way, of 1 MB in each direction in 400 ms
		want string
	}{
		{"a slow link", 0.2, "local"},
		{"a processor", 0.004, ""},
		{"unknown", 0, ""},
	} {
		k, err := New(Config{Workers: n, Batch: 16, Queue: QueueParts, Local: MostLocal, Outer: MostOuter}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		at, got := time.Duration(0), ""
		for step := range int64(30) {
			for w := range star.Worker(n) {
				r := star.Record{Worker: w, Step: step, Basis: step, Compute: 50 * ms, Push: ms, Transit: 199 * ms, Pull: 200 * ms, Samples: 16, NetOut: 1e6, NetIn: 1e6}
				if step == 0 { // it has the parameters, and is not measured to the end
					r.Transit, r.Pull = 0, 0
				}
				r.Telemetry.Set(star.HostCPU, 0.95)
				if c.busy > 0 {
					r.Telemetry.Set(star.LinkBusy, c.busy)
				}
				k.Observe(r)
			}
			at += 450 * ms
			k.Fired(at, []star.Worker{0, 1, 2, 3}, n*16)
			if d, change := k.Decide(at); change {
				if got = "another"; d.Plan.Local > 0 {
					got = "local"
				}
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Local steps follow without a dwell on a plan that was chosen as links fell, and others follow on them when links have
// recovered: in a few rounds of those that there are then, after many changes, too.
func TestLinksThatFallAndRecover(t *testing.T) {
	const n, ms = 4, time.Millisecond
	k, err := New(Config{Workers: n, Batch: 16, Queue: QueueParts, Local: MostLocal, Outer: MostOuter}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	at, step := time.Duration(0), int64(0)
	round := func(exchange time.Duration) (modes.Plan, bool) {
		exchange /= time.Duration(max(1, k.current.plan.Fragments))
		at += 120*ms + exchange
		for w := range star.Worker(n) {
			steps := max(1, k.current.plan.Steps(w, 16))
			r := star.Record{Worker: w, Step: step, Basis: step, Compute: 35 * ms, Push: ms, Transit: exchange / 2, Pull: exchange/2 - ms, Samples: 16 * steps, NetOut: 1e6, NetIn: 1e6}
			if w == 3 {
				r.Compute = 105 * ms
			}
			r.Compute *= time.Duration(steps)
			k.Observe(r)
		}
		step++
		k.Fired(at, []star.Worker{0, 1, 2, 3}, n*16)
		d, change := k.Decide(at)
		return d.Plan, change
	}
	changed := func(p modes.Plan) { // by the last of many changes, against a worker that seemed to take 2.8 s
		k.Installed(at, p)
		k.current.pace, k.current.recent = 2800*ms, slower
	}
	rounds := func(exchange time.Duration, local bool) int {
		for i := range 40 {
			if p, change := round(exchange); change && (p.Local > 0) == local {
				return i + 1
			}
		}
		return 0
	}
	for range 10 {
		round(10 * ms)
	}
	changed(modes.XOrder(n, 2))
	for range 20 {
		if p, change := round(10 * ms); change {
			t.Fatalf("%v on fast links, before the dwell is over", p)
		}
	}
	changed(modes.XOrder(n, 2))
	if r := rounds(2700*ms, true); r == 0 || r > 6 {
		t.Errorf("local steps after %d rounds on slow links", r)
	}
	changed(k.current.plan)
	if r := rounds(10*ms, false); r == 0 || r > 10 {
		t.Errorf("no local steps after %d rounds on fast links", r)
	}
}

// What the exchange of a fragment takes on the link counts once for each fragment, and what else it takes once.
func TestExchangeOfAFragment(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		busy float64 // seconds; negative: unknown
		want float64
	}{
		{"a slow link", 0.01, 0.03 + 8*0.02},
		{"a processor", 0.001, 0.03 + 0.02 + 7*0.002},
		{"a link that is busy for longer than an exchange", 1, 0.03 + 8*0.02},
		{"unknown", -1, 0.03 + 8*0.02},
	} {
		plan := modes.SSGD(2)
		plan.Local, plan.Outer, plan.Fragments = 8, modes.Outer{Kind: "nesterov", Momentum: 0.5, Rate: 0.7}, 8
		k, err := New(Config{Workers: 2, Batch: 16, Outer: MostOuter}, plan)
		if err != nil {
			t.Fatal(err)
		}
		for step := range int64(6) {
			for w := range star.Worker(2) {
				r := star.Record{Worker: w, Step: step, Compute: 30 * ms, Transit: 10 * ms, Pull: 10 * ms, Samples: 16, NetOut: 1000, NetIn: 1000}
				if c.busy >= 0 {
					r.Telemetry.Set(star.LinkBusy, c.busy)
				}
				k.Observe(r)
			}
			k.Fired(time.Duration(step+1)*50*ms, []star.Worker{0, 1}, 32)
		}
		if got := median(k.obs.workers[1].times.vals); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %v s as if of all parameters, want %v", c.name, got, c.want)
		}
	}
}

// In the first round with fragments a worker pulls all parameters and pushes one part. The push of all of them was part
// of its record before; by half of an exchange fewer local steps would seem to be better.
func TestFirstFragments(t *testing.T) {
	const n, batch, ms = 4, 4, time.Millisecond
	k, err := New(Config{Workers: n, Batch: batch, Local: 128, Outer: 128, LinkBytes: 5e6}, modes.SSGD(n))
	if err != nil {
		t.Fatal(err)
	}
	all, steps, computes := []star.Worker{0, 1, 2, 3}, []int{3, 4, 3, 1}, []time.Duration{140 * ms, 140 * ms, 140 * ms, 370 * ms}
	for w, compute := range computes {
		k.Observe(star.Record{Worker: star.Worker(w), Compute: compute, Push: 1950 * ms, Pull: 2140 * ms, Samples: batch, NetOut: 5e6, NetIn: 5e6})
	}
	d, change := k.Decide(6500 * ms)
	if !change || d.Plan.Fragments == 0 {
		t.Fatalf("exchanges of 4 s: %v, %v", d.Plan, d.Why)
	}
	k.Fired(6800*ms, all, n*batch)
	k.Noise(6)
	record := func(w int, step int64, r star.Record) {
		r.Worker, r.Step, r.Basis, r.Push, r.Samples = star.Worker(w), step, step, ms, batch*steps[w]
		r.Compute = computes[w] * time.Duration(steps[w])
		k.Observe(r)
	}
	for w := range all {
		record(w, 1, star.Record{Transit: 200 * ms, Pull: 2170 * ms, NetIn: 5e6})
	}
	k.Fired(9800*ms, all, 11*batch)
	for i, w := range []int{3, 0, 2, 1} {
		record(w, 2, star.Record{Transit: 256 * ms, Pull: 257 * ms, NetOut: 6.4e5, NetIn: 6.4e5})
		if d, change := k.Decide(time.Duration(10059+i) * ms); change {
			t.Fatalf("%v: %v", d.Plan, d.Why)
		}
	}
}
