package modes

import (
	"fmt"
	"slices"
	"testing"

	"star"
)

// mistake runs f, which must panic with a message of this package.
func mistake(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r == nil || fmt.Sprint(r)[:7] != "modes: " {
			t.Errorf("%s: panic %v, want one of this package", what, r)
		}
	}()
	f()
}

func TestMistakesOfTheCallerPanic(t *testing.T) {
	b := NewBarrier(SSGD(3), 3, 0)
	b.Arrive(0)
	mistake(t, "second arrival", func() { b.Arrive(0) })
	b.Leave(1)
	mistake(t, "arrival of the dead", func() { b.Arrive(1) })
	mistake(t, "join of the living", func() { b.Join(0) })
	mistake(t, "plan for fewer", func() { b.Install(SSGD(2)) })
	mistake(t, "same groups with bad shares", func() { b.Install(Plan{Groups: SSGD(3).Groups, Shares: []int{1}}) })
	mistake(t, "new with an invalid plan", func() { NewBarrier(Plan{}, 3, 0) })
	// After a refused plan the barrier is as it was.
	if !slices.Equal(b.Waiting(), []star.Worker{0}) || !b.Plan().Equal(SSGD(3)) {
		t.Errorf("%v, %v waiting", b.Plan(), b.Waiting())
	}
	if f := b.Arrive(2); len(f) != 1 || f[0].Version != 1 {
		t.Errorf("after mistakes: %v", f)
	}
}

// A job that resumes counts on from the checkpoint's version.
func TestVersionGoesOn(t *testing.T) {
	b := NewBarrier(Backup(2, 1), 2, 41)
	if b.Version() != 41 || b.at[1].basis != 41 {
		t.Errorf("version %d, basis %d", b.Version(), b.at[1].basis)
	}
	if f := b.Arrive(0); len(f) != 1 || f[0].Version != 42 || b.at[0].basis != 42 || b.at[1].basis != 41 {
		t.Errorf("first update: %v, bases %d and %d", f, b.at[0].basis, b.at[1].basis)
	}
	if f := b.Arrive(1); len(f) != 1 || len(f[0].Dropped) != 1 || f[0].Version != 42 || b.at[1].basis != 42 {
		t.Errorf("late: %v", f)
	}
}

// The Barrier keeps copies: what the caller does with its plan later is its own affair.
func TestPlanIsCopied(t *testing.T) {
	p := SSGD(2)
	b := NewBarrier(p, 2, 0)
	q := Plan{Groups: XOrder(2, 2).Groups, Shares: []int{1, 2}}
	b.Install(q)
	p.Groups[0].Quorum, q.Groups[0].Members[0], q.Shares[0] = 1, 1, 9
	if got := b.Plan().String(); got != "ssgd shares=1,2" {
		t.Errorf("the plan is now %s", got)
	}
	q = ASGD(2)
	b.Install(q)
	q.Groups[0].Members[0] = 1
	if got := b.Plan().String(); got != "asgd" {
		t.Errorf("the plan is now %s", got)
	}
}

func TestArriveAllocatesNothing(t *testing.T) {
	for _, c := range benchPlans(32) {
		b := NewBarrier(c, 32, 0)
		w := 0
		next := func() {
			b.Arrive(star.Worker(w))
			w = (w + 1) % 32
		}
		for range 64 {
			next()
		}
		if n := testing.AllocsPerRun(1000, next); n != 0 {
			t.Errorf("%v: %v allocations per arrival", c, n)
		}
		// Growth that doubles is less than one allocation per arrival too.
		if cap(b.released) > 32 || cap(b.firings) > 32 {
			t.Errorf("%v: after 1000 arrivals there is room for %d workers in %d firings", c, cap(b.released), cap(b.firings))
		}
	}
}

func benchPlans(n int) []Plan {
	var pairs [][]star.Worker
	for w := 0; w < n; w += 2 {
		pairs = append(pairs, []star.Worker{star.Worker(w), star.Worker(w + 1)})
	}
	ring := Plan{Groups: []Group{{Members: ranks(n / 2), Quorum: n / 2, Riders: ranks(n)[n/2:]}}}
	return []Plan{SSGD(n), ASGD(n), XOrder(n, n/2), Backup(n, n/4), Grouped(pairs...), ring}
}

func BenchmarkArrive(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		for _, p := range benchPlans(n) {
			name := p.String()
			if len(name) > 12 {
				name = fmt.Sprintf("%d groups", len(p.Groups))
				if len(p.Groups) == 1 {
					name = "riders"
				}
			}
			b.Run(fmt.Sprintf("n=%d/%s", n, name), func(b *testing.B) {
				bar := NewBarrier(p, n, 0)
				b.ReportAllocs()
				w := 0
				for b.Loop() {
					bar.Arrive(star.Worker(w))
					if w++; w == n {
						w = 0
					}
				}
			})
		}
	}
}
