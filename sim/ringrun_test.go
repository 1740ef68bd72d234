package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"star"
	"star/modes"
)

// swimmers is a Learner and a Pilot of a ring that notes what becomes of it.
type swimmers struct {
	t       *testing.T
	version int64
	samples int
	plans   map[int64]modes.Plan
	now     int64
	of      []string // of each update, the workers that its gradients come from
}

func (r *swimmers) Begin(int, int)                                          {}
func (r *swimmers) Release(star.Worker, int)                                {}
func (r *swimmers) Observe(star.Record)                                     {}
func (r *swimmers) Fired(_ time.Duration, v int64, _ []Gradient, _ Outcome) { r.now = v }

func (r *swimmers) Update(v int64, gs []Gradient) Outcome {
	if v != r.version+1 {
		r.t.Fatalf("version %d follows on %d", v, r.version)
	}
	r.version = v
	var ws []star.Worker
	for _, g := range gs {
		if g.Samples < 1 || g.Basis > v-1 {
			r.t.Fatalf("version %d of %+v", v, g)
		}
		ws = append(ws, g.Worker)
		r.samples += g.Samples
	}
	slices.Sort(ws)
	r.of = append(r.of, fmt.Sprint(ws))
	return Outcome{Progress: float64(r.samples)}
}

func (r *swimmers) Decide(time.Duration) (modes.Plan, string, bool) {
	p, ok := r.plans[r.now]
	r.now = -1
	return p, "it is time", ok
}

// byRank workers take as long as their rank says.
type byRank struct{ n int }

func (s byRank) Workers() int { return s.n }
func (s byRank) Spend(w star.Worker, _ int64, _ time.Duration, share float64) Spent {
	return Spent{Compute: time.Duration(share * float64(100+10*w) * 1e6)}
}

func ringOf(t *testing.T, c Config, r *swimmers) Result {
	t.Helper()
	r.t = t
	c.Times, c.Learner, c.Batch, c.Bytes = byRank{4}, r, 8, 1<<20
	if c.Pilot == nil {
		c.Pilot = r
	}
	got, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	if got.Samples != int64(r.samples) || got.Updates != r.version || got.Updates < 5 {
		t.Fatalf("%+v, of %d samples in %d updates", got, r.samples, r.version)
	}
	return got
}

func planOf(t *testing.T, text string) modes.Plan {
	t.Helper()
	p, err := modes.Parse(text, 4)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Rounds that the first workers close contain only their gradients, and the last worker, which has two of four parts by
// then, is late.
func TestClosedRounds(t *testing.T) {
	r := &swimmers{}
	got := ringOf(t, Config{Plan: planOf(t, "backup=1 micro=4 cap=1h"), Ring: new(Ring), Limit: 2 * time.Second}, r)
	if slices.ContainsFunc(r.of, func(s string) bool { return s != "[0 1 2]" }) || got.Dropped != got.Updates {
		t.Errorf("updates of %v, %d gradients dropped", r.of, got.Dropped)
	}
	// worker 2 closes rounds after 0.12 s; the last one ends its part
	if each := got.Time.Seconds() / float64(got.Updates); each < 0.12 || each > 0.14 {
		t.Errorf("a round took %.3f s", each)
	}
}

// A ring that loses a member is formed by the others, and takes in a member that comes back.
func TestRingsThatLoseMembers(t *testing.T) {
	for _, plan := range []string{"ssgd", "ring-minus=3", "ssgd queue=4"} {
		r := &swimmers{plans: map[int64]modes.Plan{12: planOf(t, "ring-minus=0")}}
		ringOf(t, Config{Plan: planOf(t, plan), Ring: new(Ring), Engine: true, Limit: 6 * time.Second, Latency: time.Millisecond,
			Failures: []Failure{{Worker: 1, At: 450 * time.Millisecond, Back: 1900 * time.Millisecond}, {Worker: 3, At: 700 * time.Millisecond, Back: 3 * time.Second}}}, r)
		for _, want := range []string{"[0 1 2", "[0 2]", "[0 2 3", "[0 1 2 3]"} {
			if plan == "ring-minus=3" && want != "[0 2]" {
				continue
			}
			if !slices.ContainsFunc(r.of, func(s string) bool { return s == want || len(s) > len(want) && s[:len(want)] == want }) {
				t.Errorf("%s: no update is of %s: %v", plan, want, r.of)
			}
		}
	}
}

// What closed rounds cannot have yet is said.
func TestClosedRoundsThatCannotBe(t *testing.T) {
	_, err := Run(Config{Times: byRank{4}, Learner: &swimmers{}, Batch: 8, Bytes: 1, Plan: planOf(t, "backup=1 micro=4 cap=1h"), Limit: time.Second,
		Ring: new(Ring), Network: &Network{Hosts: []Host{{}, {}, {}, {}}}})
	if err == nil {
		t.Error("closed rounds over a network: no error")
	}
	if _, err := Run(Config{Times: byRank{4}, Learner: &swimmers{}, Batch: 8, Bytes: 1, Plan: planOf(t, "asgd"), Limit: time.Second, Ring: new(Ring)}); err == nil {
		t.Error("a ring that nobody waits in: no error")
	}
}
