package auto_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
)

// wish is a Decider that wants the plan that the test sets, at a part of the cost of SSGD. A plan without groups means
// the current plan, and changes nothing.
type wish struct {
	plan modes.Plan
	part float64
}

func (w *wish) Decide(f price.Forecast) (price.Decision, error) {
	d, err := price.Of(modes.SSGD(len(f.Times)), f)
	return price.Decision{Plan: w.plan, Cost: time.Duration(w.part * float64(d.Cost)), Why: "a wish"}, err
}

// life drives a controller by hand: in each round all workers take their preset times, and the installed plan reports
// as many applied samples as the test wants.
type life struct {
	*testing.T
	c    *auto.Controller
	want *wish
	now  time.Duration
	step int64
	own  []time.Duration
	all  []star.Worker

	// applied is the part of an equal share of all workers that each round reports as applied. With four equally fast
	// workers it is what any plan without dropping applies.
	applied float64
}

// begin makes a life of four workers that take 200 ms each. Ten rounds of SSGD are over, and no other plan is wanted
// yet.
func begin(t *testing.T, plan modes.Plan) *life {
	t.Helper()
	l := &life{T: t, want: &wish{plan, 1}, applied: 1}
	for w := range star.Worker(4) {
		l.own, l.all = append(l.own, 200*time.Millisecond), append(l.all, w)
	}
	var err error
	if l.c, err = auto.New(auto.Config{Workers: 4, Batch: batch, Decider: l.want}, plan); err != nil {
		t.Fatal(err)
	}
	if plan.Equal(modes.SSGD(4)) {
		l.stays(10)
	}
	return l
}

// round is one, which takes 200 ms, and what the controller changes at its end: "" if nothing.
func (l *life) round() string {
	l.now += 200 * time.Millisecond
	for w, d := range l.own {
		l.c.Observe(star.Record{Worker: star.Worker(w), Step: l.step, Compute: d, Samples: batch})
	}
	l.step++
	l.c.Fired(l.now, l.all, int(l.applied*4*batch))
	d, change := l.c.Decide(l.now)
	if !change {
		return ""
	}
	if !l.c.Plan().Equal(d.Plan) {
		l.Errorf("decided %v, and believes in %v", d.Plan, l.c.Plan())
	}
	return d.Plan.String() + " " + d.Why
}

// stays plays the given number of rounds, and fails if one of them changes the plan.
func (l *life) stays(rounds int) {
	l.Helper()
	for range rounds {
		if s := l.round(); s != "" {
			l.Fatalf("at %v: %s", l.now, s)
		}
	}
}

// until is the time until a change, and what it was; at most 2000 rounds.
func (l *life) until() (time.Duration, string) {
	l.Helper()
	from := l.now
	for range 2000 {
		if s := l.round(); s != "" {
			return l.now - from, s
		}
	}
	l.Fatalf("no change within %v", l.now-from)
	return 0, ""
}

// wants has the decider want p, at a part of SSGD's cost.
func (l *life) wants(p modes.Plan, part float64) { l.want.plan, l.want.part = p, part }

// goes is to p at the next decision.
func (l *life) goes(p modes.Plan) {
	l.Helper()
	l.wants(p, 0.5)
	if d, s := l.until(); d > 2*time.Second || !strings.HasPrefix(s, p.String()+" ") {
		l.Fatalf("after %v: %s, want %v", d, s, p)
	}
}

// home waits until SSGD has come back while the decider still wants the current plan, and returns how long that took.
func (l *life) home() time.Duration {
	l.Helper()
	d, s := l.until()
	if !strings.HasPrefix(s, "ssgd ssgd: no worker is slow any more") {
		l.Fatalf("after %v: %s", d, s)
	}
	return d
}

// waits is how long the current plan stays although SSGD is the cheapest: until it has cost as much as three rounds of
// SSGD would lose, each losing the given part, since the controller needs three rounds to see that a worker is slow.
func (l *life) waits(lost float64) time.Duration {
	l.Helper()
	f, h, ok := l.c.Forecast(l.now)
	f.Rate = price.CautiousRate
	home, err := price.Over(modes.SSGD(4), h, f)
	present, err2 := price.Over(l.c.Plan(), h, f)
	if !ok || err != nil || err2 != nil {
		l.Fatal(err, err2)
	}
	return time.Duration(3 * lost * 0.2 / (1 - home.Cost.Seconds()/present.Cost.Seconds()) * float64(time.Second))
}

// SSGD comes back when staying away has cost what coming back too soon would.
func TestWayHomeIsAfterTheToll(t *testing.T) {
	for _, c := range []struct {
		plan modes.Plan
		part float64 // of SSGD's cost that it was to have
	}{{modes.ASGD(4), 0.9}, {modes.ASGD(4), 0.5}, {modes.ASGD(4), 0.05}, {modes.XOrder(4, 2), 0.05}} {
		l := begin(t, modes.SSGD(4))
		l.wants(c.plan, c.part)
		if _, s := l.until(); !strings.HasPrefix(s, c.plan.String()+" ") {
			t.Fatal(s)
		}
		want := max(l.waits(1-c.part), 2*time.Second) // ten rounds in any case
		if got := l.home(); got < want || got > want+time.Second {
			t.Errorf("%v at %v of SSGD's cost: SSGD is back after %v, want %v", c.plan, c.part, got, want)
		}
	}
	// So it does where the decider itself wants it, however much cheaper; and what staying has cost before it was not the
	// cheapest for a while does not count.
	l := begin(t, modes.SSGD(4))
	l.goes(modes.ASGD(4))
	want := l.waits(0.5)
	l.wants(modes.SSGD(4), 0.1)
	l.stays(int(want/(200*time.Millisecond)) - 1)
	l.own[3] *= 4
	l.wants(modes.ASGD(4), 0.1)
	l.stays(8)
	l.own[3] /= 4
	l.stays(6)
	l.wants(modes.SSGD(4), 0.1)
	if got, s := l.until(); got < want-600*time.Millisecond || !strings.HasPrefix(s, "ssgd a wish") {
		t.Errorf("%s after %v, want %v", s, got, want)
	}
	// A plan that costs the same as SSGD is given up, too.
	l = begin(t, modes.SSGD(4))
	l.c.Noise(1e9)
	l.goes(modes.ASGD(4))
	// 3 rounds that each lost a half, at a hundredth
	if got, want := l.home(), 30*time.Second; got < want || got > want+time.Second {
		t.Errorf("from a plan that costs the same after %v, want %v", got, want)
	}
}

// If SSGD was left again after it had come back, it must be the cheapest for the dwell, twice, four times, … without a
// break. A time in which it is not the cheapest, another wanted plan, and a plan installed from outside each restart
// that wait.
func TestWayHomeBeginsAnew(t *testing.T) {
	const dwell = 2 * time.Second // ten rounds
	asgd, x2 := modes.ASGD(4), modes.XOrder(4, 2)
	for name, breaks := range map[string]func(*life){
		"no break": nil,
		"another plan is wanted": func(l *life) {
			l.wants(x2, 0.8) // one decision is not enough to get it
			l.stays(1)
			l.wants(asgd, 0.8)
		},
		"SSGD is not the cheapest": func(l *life) {
			l.own[3] *= 4
			l.stays(8)
			l.own[3] /= 4
			l.stays(6) // until that is a new level
		},
		"somebody installs a plan": func(l *life) { l.c.Installed(l.now, x2); l.wants(x2, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, modes.SSGD(4))
			goes := func() {
				l.wants(asgd, 0.8) // the cost of the change is small
				l.until()
			}
			goes()
			if d := l.home(); d > 2*dwell {
				t.Errorf("the first time after %v", d)
			}
			goes()
			l.stays(15) // three seconds of the four
			if breaks == nil {
				if d := l.home(); d < 800*time.Millisecond || d > 2*time.Second {
					t.Errorf("%v after three seconds", d)
				}
				return
			}
			breaks(l)
			if d := l.home(); d < 2*dwell-600*time.Millisecond || d > 2*dwell+time.Second {
				t.Errorf("back %v after a break, want twice the dwell", d)
			}
		})
	}
}

// What a trial says: it is given up where less is seen than was priced and the plan before would be cheaper, and for
// neither of these alone. The round that was begun under the plan before does not count.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name     string
		slow     time.Duration // of worker 3
		applied  float64       // of what the plan is priced to apply
		first    float64       // the same, in the first round of the slowest
		gain     float64       // seen, at least
		less     float64       // and at most
		reverted bool
	}{
		{"as priced, and it pays", 600 * time.Millisecond, 1, 1, 0.575, 0.59, false},
		{"as priced, but for the round before", 600 * time.Millisecond, 1, 0, 0.575, 0.59, false},
		{"less than priced, and it pays", 600 * time.Millisecond, 0.8, 0.8, 0.35, 0.5, false},
		{"much less than priced", 600 * time.Millisecond, 0.3, 0.3, -0.7, -0.3, true},
		{"as priced, and it does not pay", 200 * time.Millisecond, 1, 1, -0.2, -0.001, false},
	} {
		l := begin(t, modes.SSGD(4))
		l.own[3] = c.slow
		l.stays(10)
		l.wants(modes.ASGD(4), 0.4)
		if s := l.round(); !strings.HasPrefix(s, "asgd") {
			t.Fatalf("%s: %q", c.name, s)
		}
		priced := l.priced(modes.ASGD(4))
		begun := l.now
		var v *modes.Verdict
		var why string
		for v == nil && l.now < begun+time.Minute {
			l.applied = priced * c.applied
			if l.now-begun < c.slow {
				l.applied = priced * c.first
			}
			why = l.round()
			v = l.c.Verdict()
		}
		if v == nil {
			t.Errorf("%s: no verdict", c.name)
			continue
		}
		if v.Reverted != c.reverted || v.Seen < c.gain || v.Seen > c.less || math.Abs(v.Predicted-0.6) > 0.02 || !v.Plan.Equal(modes.ASGD(4)) {
			t.Errorf("%s: %+v, want a gain of %v to %v", c.name, *v, c.gain, c.less)
		}
		if back := strings.Contains(why, "back to ssgd: asgd was predicted to gain 60 %"); back != c.reverted {
			t.Errorf("%s: %q", c.name, why)
		}
		if l.c.Verdict() != nil {
			t.Errorf("%s: told twice", c.name)
		}
		if took := l.now - begun; took < c.slow+max(10*c.slow, time.Second) {
			t.Errorf("%s: judged after %v", c.name, took)
		}
	}
}

// A plan is judged over its own iterations: it is not blamed if all workers have become slower since it was chosen.
func TestVerdictOfItsTime(t *testing.T) {
	l := begin(t, modes.SSGD(4))
	l.own[3] = 220 * time.Millisecond
	l.stays(25)
	l.goes(modes.ASGD(4))
	l.applied = 0
	for w := range l.own {
		l.own[w] = l.own[w] * 23 / 20
		l.applied += 0.25 * 200 / float64(l.own[w].Milliseconds())
	}
	for range 20 {
		l.round()
		if v := l.c.Verdict(); v != nil {
			if v.Reverted || v.Seen < -0.05 {
				t.Errorf("%+v", *v)
			}
			return
		}
	}
	t.Error("no verdict")
}

// priced is the part of an equal share of all workers that p is priced to apply in 200 ms.
func (l *life) priced(p modes.Plan) float64 {
	l.Helper()
	f, h, ok := l.c.Forecast(l.now)
	if !ok {
		l.Fatal("nothing is known")
	}
	k, err := price.Over(p, h, f)
	if err != nil {
		l.Fatal(err)
	}
	return k.Rate() * 0.2 / (4 * batch)
}

// Each change that disappoints doubles the time before the next, each that holds halves it again.
func TestDisappointmentsMakePatient(t *testing.T) {
	l := begin(t, modes.SSGD(4))
	next := func(p modes.Plan, part float64, dwell time.Duration) {
		t.Helper()
		l.wants(p, part)
		if d, s := l.until(); d < dwell || d > dwell+400*time.Millisecond || !strings.HasPrefix(s, p.String()+" ") {
			t.Errorf("%s after %v, want %v", s, d, dwell)
		}
	}
	l.own[3] = 600 * time.Millisecond
	l.stays(10)
	for k, p := range []modes.Plan{modes.ASGD(4), modes.XOrder(4, 2), modes.XOrder(4, 3)} {
		dwell := 6 * time.Second << k // ten rounds
		if k == 0 {
			dwell = 0 // the first plan need not stand
		}
		next(p, 0.4, dwell)
		l.applied = 0.3 * l.priced(p)
		if _, s := l.until(); !strings.HasPrefix(s, "ssgd back to ssgd") {
			t.Fatalf("%s", s)
		}
	}
	l.c.Verdict()
	for k, p := range []modes.Plan{modes.Ring(4, 3), modes.Grouped([]star.Worker{0, 1, 2}, []star.Worker{3}), modes.Ring(4, 3), modes.Ring(4, 3), modes.Ring(4, 3)} {
		next(p, 0.4, 6*time.Second<<max(3-k, 0))
		l.applied = l.priced(p)
		for v := (*modes.Verdict)(nil); v == nil; v = l.c.Verdict() {
			l.stays(1)
		}
		l.c.Installed(l.now, modes.SSGD(4))
	}
}

// A plan that is as dear as it was priced is no disappointment, but it is left for SSGD once it has stood for its dwell
// and has cost its toll, twelve rounds where SSGD was left again and again: however often changes have disappointed.
func TestWayHomeIsNotPutOff(t *testing.T) {
	const rounds = 200 * time.Millisecond
	dear := modes.Backup(4, 3) // of four gradients it throws three away
	for name, before := range map[string]func(*life){
		"at first": func(*life) {},
		"after disappointments": func(l *life) {
			for _, p := range []modes.Plan{modes.ASGD(4), modes.XOrder(4, 2), modes.XOrder(4, 3)} {
				l.wants(p, 0.4)
				l.until()
				l.applied = 0.3
				l.own[3] = 3 * rounds // SSGD would be cheaper than a plan that shows so little
				if _, s := l.until(); !strings.HasPrefix(s, "ssgd back to ssgd") {
					t.Fatalf("%s", s)
				}
				l.applied = 1
				l.own[3] = rounds
				l.wants(modes.SSGD(4), 1)
				l.stays(40)
			}
		},
		"after relapses": func(l *life) {
			for range 4 {
				l.wants(modes.ASGD(4), 0.8)
				l.until()
				l.home()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, modes.SSGD(4))
			l.T = t
			before(l)
			l.wants(dear, 0.5)
			if _, s := l.until(); !strings.HasPrefix(s, dear.String()+" ") {
				t.Fatal(s)
			}
			l.applied = l.priced(dear)
			if d := l.home(); d > 32*rounds { // ten, twelve at three quarters, and what it takes to notice
				t.Errorf("back after %v", d)
			}
		})
	}
}

// A plan that is refused is left alone for half a minute, and longer each time; another one is not.
func TestRefused(t *testing.T) {
	l := begin(t, modes.SSGD(4))
	asgd, x2 := modes.ASGD(4), modes.XOrder(4, 2)
	l.goes(asgd)
	for k := range 3 {
		l.c.Refused(l.now, asgd, modes.SSGD(4))
		if !l.c.Plan().Equal(modes.SSGD(4)) {
			t.Fatalf("refused, and it believes in %v", l.c.Plan())
		}
		if d, s := l.until(); d < 30*time.Second<<k || d > 30*time.Second<<k+time.Second {
			t.Errorf("refused %d times, and asked for again after %v: %s", k+1, d, s)
		}
	}
	l.c.Refused(l.now, asgd, modes.SSGD(4))
	l.wants(x2, 0.5)
	if d, s := l.until(); d > 3*time.Second {
		t.Errorf("another one is asked for after %v: %s", d, s)
	}
}

// Invalid records are not used. Three in a row are too many, and a valid one restarts the count.
func TestInvalidInARow(t *testing.T) {
	l := begin(t, modes.ASGD(4))
	l.own[3] *= 5 // ASGD is right
	l.stays(10)
	for _, good := range []bool{false, false, true, false, false, true, false, false} {
		l.own[1] = -time.Second
		if good {
			l.own[1] = 200 * time.Millisecond
		}
		l.stays(1)
	}
	l.own[1] = -time.Second
	if s := l.round(); !strings.Contains(s, "ssgd, to be safe: worker 1 sends invalid records") {
		t.Errorf("three in a row: %q", s)
	}
}

// What the present iteration of a worker has taken already counts if it is more than all that was seen, and only while
// it computes.
func TestOverdue(t *testing.T) {
	l := begin(t, modes.SSGD(4))
	after := func(d time.Duration, w star.Worker) time.Duration {
		f, _, ok := l.c.Forecast(l.now + d)
		if !ok {
			t.Fatal("nothing is known")
		}
		return f.Times[w]
	}
	if got := after(150*time.Millisecond, 2); got != 200*time.Millisecond {
		t.Errorf("in time: %v", got)
	}
	if got := after(10*time.Second, 2); got < time.Second {
		t.Errorf("10 s late, and expected to take %v", got)
	}
	l.c.Observe(star.Record{Worker: 2, Step: l.step, Compute: 200 * time.Millisecond, Samples: batch})
	if got := after(10*time.Second, 2); got > 201*time.Millisecond {
		t.Errorf("it has arrived, and waits: %v", got)
	}
	if got := after(10*time.Second, 1); got < time.Second {
		t.Errorf("worker 1 is late, and expected to take %v", got)
	}
}

// What a trial has shown of a plan's price counts afterwards. A plan that applied less than its price said, and still
// paid, is left once it does not pay any more by the observed price. A plan with rounds that scatter too much for that
// is not left.
func TestPricesAreCorrected(t *testing.T) {
	for _, c := range []struct {
		name    string
		applied float64 // of what is priced
		scatter float64 // of it, from round to round
		home    bool
	}{{"as priced", 1, 0, false}, {"less than priced", 0.65, 0, true}, {"perhaps less than priced", 0.65, 0.9, false}} {
		l := begin(t, modes.SSGD(4))
		l.own[3] = 600 * time.Millisecond
		l.stays(10)
		l.goes(modes.ASGD(4))
		priced, round := l.priced(modes.ASGD(4)), 0
		for v := (*modes.Verdict)(nil); v == nil; v = l.c.Verdict() {
			round++
			l.applied = priced * c.applied * (1 + c.scatter*float64(round%3-1))
			l.stays(1)
		}
		l.own[3] = 300 * time.Millisecond // where ASGD is priced 0.8 of SSGD
		home := false
		for range 100 {
			s := l.round()
			home = home || strings.HasPrefix(s, "ssgd ssgd: no worker is slow any more")
		}
		if home != c.home {
			t.Errorf("%s: SSGD is back: %v", c.name, home)
		}
	}
}

// A plan that follows other plans stays longer, up to eight times. It does not after a plan that stayed for twice that
// time, nor after a plan installed from outside.
func TestChangesBecomeSeldom(t *testing.T) {
	const dwell = 6 * time.Second // ten rounds
	l := begin(t, modes.SSGD(4))
	l.own[3] = 600 * time.Millisecond
	l.stays(10)
	plans := []modes.Plan{modes.ASGD(4), modes.XOrder(4, 2), modes.XOrder(4, 3)}
	changes := func(name string, waits ...time.Duration) {
		t.Helper()
		for k, want := range waits {
			p := plans[k%3]
			l.wants(p, 0.2)
			if got, s := l.until(); got < want || got > want+time.Second || !strings.HasPrefix(s, p.String()+" ") {
				t.Errorf("%s: change %d after %v, want %v: %s", name, k+1, got, want, s)
			}
			l.applied = l.priced(p)
		}
	}
	changes("at first", 0, 2*dwell, 4*dwell, 8*dwell, 8*dwell)
	l.stays(16 * 30)
	changes("after a plan that stood", 0, 2*dwell, 4*dwell)
	l.c.Installed(l.now, modes.SSGD(4))
	changes("after somebody else's", dwell, 2*dwell, 4*dwell)
}

// A plan stays for its dwell, twenty rounds after a change, as long as rounds were when it was chosen. A slowdown of
// all workers meanwhile does not delay a better plan.
func TestDwellIsOfItsTime(t *testing.T) {
	l := begin(t, modes.SSGD(4))
	l.goes(modes.ASGD(4))
	for w := range l.own {
		l.own[w] *= 3
	}
	l.applied = 1. / 3
	l.wants(modes.XOrder(4, 2), 0.1)
	if got, s := l.until(); got < 4*time.Second || got > 4400*time.Millisecond || !strings.HasPrefix(s, "x=2 ") {
		t.Errorf("after %v: %s", got, s)
	}
}
