package modes

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/internal/outer"
)

// naive is the Barrier without counters and queues: after every event it derives what has to happen from the waiting
// and the departed workers.
type naive struct {
	plan    Plan
	version int64
	waiting []star.Worker // in order of arrival
	gone    map[star.Worker]bool
	basis   map[star.Worker]int64
	report  map[star.Worker]star.Worker // of each waiting worker: the first worker of its report
	last    []int64                     // by group
	grace   []bool                      // by group: its quorum was complete, and it waits for the others
	over    []bool                      // by group: its grace has passed
	clock   map[star.Worker]int
	stopped map[star.Worker]bool
}

func newNaive(p Plan) *naive {
	m := &naive{gone: map[star.Worker]bool{}, basis: map[star.Worker]int64{}, report: map[star.Worker]star.Worker{},
		clock: map[star.Worker]int{}, stopped: map[star.Worker]bool{}}
	m.set(p)
	return m
}

func (m *naive) set(p Plan) {
	m.plan = p
	m.last, m.grace, m.over = make([]int64, len(p.Groups)), make([]bool, len(p.Groups)), make([]bool, len(p.Groups))
}

func (m *naive) arrive(ws ...star.Worker) []Firing {
	for i, g := range m.plan.Groups {
		for _, w := range ws {
			if g.DropLate && slices.Contains(g.Members, w) && m.basis[w] < m.last[i] {
				for _, w := range ws {
					m.basis[w] = m.version
				}
				return []Firing{{Version: m.version, Dropped: ws}}
			}
		}
	}
	for _, w := range ws {
		m.report[w] = ws[0]
	}
	m.waiting = append(m.waiting, ws...)
	return m.settle(true)
}

// together lists the workers that wait in the report of w.
func (m *naive) together(w star.Worker) (ws []star.Worker) {
	for _, v := range m.waiting {
		if m.report[v] == m.report[w] {
			ws = append(ws, v)
		}
	}
	return ws
}

// whole says whether the report in which w waits has only members of one group, and no riders of any group.
func (m *naive) whole(w star.Worker) bool {
	ws := m.together(w)
	for _, g := range m.plan.Groups {
		in := 0
		for _, v := range ws {
			if slices.Contains(g.Members, v) {
				in++
			}
			if len(ws) > 1 && slices.Contains(g.Riders, v) {
				return false
			}
		}
		if in == len(ws) {
			in = 0
		}
		if in > 0 {
			return false
		}
	}
	for _, v := range ws {
		home := slices.ContainsFunc(m.plan.Groups, func(g Group) bool { return slices.Contains(g.Members, v) })
		if !home && len(ws) > 1 {
			return false
		}
	}
	return true
}

// lead is how many iterations w is ahead of the slowest worker that counts.
func (m *naive) lead(w star.Worker) int {
	lead := 0
	for v := range star.Worker(m.plan.Workers()) {
		if !m.gone[v] && !slices.Contains(m.plan.Excluded, v) {
			lead = max(lead, m.clock[w]-m.clock[v])
		}
	}
	return lead
}

// start is where the clock of w begins when it comes back: at the slowest worker, or at the fastest if no worker
// counts.
func (m *naive) start(w star.Worker) int {
	if m.deserted() {
		most := 0
		for _, c := range m.clock {
			most = max(most, c)
		}
		return most
	}
	m.clock[w] = 1 << 30
	return m.clock[w] - m.lead(w)
}

// drop releases held workers that wait, without their gradients.
func (m *naive) drop(which func(w star.Worker) bool) (fs []Firing) {
	for w := range star.Worker(m.plan.Workers()) {
		if slices.Contains(m.plan.Excluded, w) && slices.Contains(m.waiting, w) && which(w) {
			m.waiting = slices.DeleteFunc(m.waiting, func(v star.Worker) bool { return v == w })
			m.basis[w] = m.version
			fs = append(fs, Firing{Version: m.version, Dropped: []star.Worker{w}})
		}
	}
	return fs
}

// deserted says whether no worker lives except the held ones.
func (m *naive) deserted() bool {
	for v := range star.Worker(m.plan.Workers()) {
		if !m.gone[v] && !slices.Contains(m.plan.Excluded, v) {
			return false
		}
	}
	return true
}

func (m *naive) leave(w star.Worker) []Firing {
	m.gone[w], m.stopped[w] = true, false
	lives := func(v star.Worker) bool { return !m.gone[v] }
	if slices.Contains(m.waiting, w) && !slices.ContainsFunc(m.together(w), lives) {
		with := m.together(w)
		m.waiting = slices.DeleteFunc(m.waiting, func(v star.Worker) bool { return slices.Contains(with, v) })
	}
	return m.settle(false)
}

func (m *naive) join(w star.Worker) []Firing {
	m.clock[w] = m.start(w)
	delete(m.gone, w)
	m.basis[w] = m.version
	return m.settle(false)
}

func (m *naive) install(p Plan) []Firing {
	if p.SameGroups(m.plan) && p.MaxLead == m.plan.MaxLead && p.Grace == m.plan.Grace && sameSet(p.Excluded, m.plan.Excluded) {
		return nil
	}
	back := func(w star.Worker) bool { return !slices.Contains(p.Excluded, w) }
	for _, w := range m.plan.Excluded {
		if back(w) {
			m.clock[w] = m.start(w)
		}
	}
	fs := m.drop(back)
	if m.plan.MaxLead == 0 {
		clear(m.clock)
	}
	m.set(p)
	return append(fs, m.settle(false)...)
}

func (m *naive) lapse(group int) []Firing {
	m.over[group] = true
	return m.settle(false)
}

func (m *naive) settle(arrival bool) (fs []Firing) {
	fire := func(pick func(w star.Worker) bool) {
		var f Firing
		m.version++
		f.Version = m.version
		var rest []star.Worker
		for _, w := range m.waiting {
			if pick(w) {
				f.Workers = append(f.Workers, w)
				m.basis[w] = m.version
			} else {
				rest = append(rest, w)
			}
		}
		m.waiting = rest
		for _, w := range f.Workers {
			m.clock[w]++
		}
		for _, w := range f.Workers {
			if !m.gone[w] && m.plan.MaxLead > 0 && m.lead(w) >= m.plan.MaxLead {
				m.stopped[w] = true
				f.Stopped = append(f.Stopped, w)
			}
		}
		fs = append(fs, f)
	}
	for i, g := range m.plan.Groups {
		living, there := 0, 0
		for _, w := range g.Members {
			if !m.gone[w] {
				living++
			}
			if slices.Contains(m.waiting, w) && !m.gone[w] && m.whole(w) {
				there++
			}
		}
		if there == 0 || there < min(living, g.Quorum) {
			continue
		}
		m.grace[i] = m.plan.Grace > 0 && !m.over[i] && there < living || m.grace[i]
		if m.plan.Grace == 0 || there == living || m.over[i] {
			m.grace[i], m.over[i] = false, false
			fire(func(w star.Worker) bool {
				return m.whole(w) && (slices.Contains(g.Members, w) || slices.Contains(g.Riders, w))
			})
			m.last[i] = m.version
		}
	}
	for _, w := range slices.Clone(m.waiting) {
		if slices.Contains(m.waiting, w) && !m.whole(w) {
			with := m.together(w)
			fire(func(v star.Worker) bool { return slices.Contains(with, v) })
		}
	}
	for _, w := range slices.Clone(m.waiting) {
		hope := slices.Contains(m.plan.Excluded, w) && (!m.deserted() || !arrival)
		for _, g := range m.plan.Groups {
			for _, v := range g.Members {
				hope = hope || v == w || !m.gone[v] && slices.Contains(g.Riders, w)
			}
		}
		if !hope {
			fire(func(v star.Worker) bool { return v == w })
		}
	}
	if !arrival && m.deserted() {
		fs = append(fs, m.drop(func(star.Worker) bool { return true })...)
	}
	free := Firing{Version: m.version}
	for w := range star.Worker(m.plan.Workers()) {
		if m.stopped[w] && (m.plan.MaxLead == 0 || m.lead(w) < m.plan.MaxLead) {
			m.stopped[w] = false
			m.basis[w] = m.version
			free.Freed = append(free.Freed, w)
		}
	}
	if free.Freed != nil {
		fs = append(fs, free)
	}
	return fs
}

// drawPlan draws any valid plan for n workers.
func drawPlan(t *rapid.T, n int) Plan {
	order := rapid.Permutation(ranks(n)).Draw(t, "order")
	k := rapid.IntRange(1, n).Draw(t, "groups")
	p := Plan{Groups: make([]Group, k)}
	for i, w := range order {
		g := &p.Groups[i%k]
		// Each group needs a member; a later worker may be only a rider.
		if i < k || rapid.IntRange(0, 3).Draw(t, "member") > 0 {
			g.Members = append(g.Members, w)
		} else {
			g.Riders = append(g.Riders, w)
		}
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		g.Quorum = len(g.Members)
		if rapid.Bool().Draw(t, "partial") {
			g.Quorum = rapid.IntRange(1, len(g.Members)).Draw(t, "quorum")
		}
		g.DropLate = rapid.IntRange(0, 2).Draw(t, "drop") == 0
		for range rapid.IntRange(0, 2).Draw(t, "guests") {
			w := star.Worker(rapid.IntRange(0, n-1).Draw(t, "guest"))
			if !slices.Contains(g.Members, w) && !slices.Contains(g.Riders, w) {
				g.Riders = append(g.Riders, w)
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "held") == 0 {
		for _, w := range ranks(n) {
			nowhere := !slices.ContainsFunc(p.Groups, func(g Group) bool { return slices.Contains(g.Members, w) })
			if nowhere && rapid.Bool().Draw(t, "is held") {
				for i := range p.Groups {
					g := &p.Groups[i]
					g.Riders = slices.DeleteFunc(g.Riders, func(v star.Worker) bool { return v == w })
				}
				p.Excluded = append(p.Excluded, w)
			}
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "bounded") == 0 {
		p.MaxLead = rapid.IntRange(1, 4).Draw(t, "ahead")
		for i := range p.Groups {
			g := &p.Groups[i]
			g.Quorum, g.DropLate = 1, false
			for _, w := range g.Riders {
				if !slices.ContainsFunc(p.Groups, func(g Group) bool { return slices.Contains(g.Members, w) }) {
					g.Members = append(g.Members, w)
				}
			}
			g.Riders = nil
		}
	}
	if slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Quorum < len(g.Members) }) && rapid.Bool().Draw(t, "grace") {
		p.Grace = time.Duration(rapid.IntRange(1, 1e9).Draw(t, "grace time"))
	}
	switch rapid.IntRange(0, 5).Draw(t, "steps") {
	case 0:
		p.Local = rapid.IntRange(1, 20).Draw(t, "local")
		if kind := rapid.SampledFrom([]outer.Kind{"", outer.Nesterov, outer.Delayed, outer.Lookahead}).Draw(t, "outer"); kind != "" {
			p.StepsBySpeed = rapid.Bool().Draw(t, "by speed")
			p.Outer = outer.Rule{Kind: kind, Momentum: rapid.Float64Range(0, 0.9999).Draw(t, "momentum"), Rate: rapid.Float64Range(1e-9, 100).Draw(t, "rate")}
		}
	case 1:
		p.Micro, p.ComputeDeadline = rapid.IntRange(1, 9).Draw(t, "micro"), time.Duration(rapid.IntRange(1, 1e9).Draw(t, "cap"))
	}
	if rapid.IntRange(0, 4).Draw(t, "shares") == 0 {
		p.Shares = rapid.SliceOfN(rapid.IntRange(1, 99), n, n).Draw(t, "samples")
	}
	if err := p.Validate(n); err != nil {
		t.Fatalf("drew an invalid plan: %v", err)
	}
	return p
}

// bare is p without the settings that no tree and no idle rider allows; held workers ride.
func bare(p Plan) Plan {
	p = p.Clone()
	p.Groups[0].Riders = append(p.Groups[0].Riders, p.Excluded...)
	p.Excluded, p.MaxLead, p.Local, p.Micro, p.ComputeDeadline = nil, 0, 0, 0, 0
	p.Outer, p.StepsBySpeed, p.Grace = outer.Rule{}, false, 0
	return p
}

// The Barrier fires what the naive machine fires, when it does, and never before.
func TestBarrierAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "n")
		p := drawPlan(t, n)
		b, m := NewBarrier(p, n, 0), newNaive(p)
		pick := func(what string, ok func(w star.Worker) bool) star.Worker {
			ws := slices.DeleteFunc(ranks(n), func(w star.Worker) bool { return !ok(w) })
			if len(ws) == 0 {
				t.Skip("nobody to", what)
			}
			return rapid.SampledFrom(ws).Draw(t, what)
		}
		arrive := func(t *rapid.T) {
			w := pick("arrive", func(w star.Worker) bool { return !m.gone[w] && !m.stopped[w] && !slices.Contains(m.waiting, w) })
			check(t, "arrive", b.Arrive(w), m.arrive(w))
		}
		report := func(t *rapid.T) {
			first := pick("first", func(w star.Worker) bool { return !m.gone[w] && !m.stopped[w] && !slices.Contains(m.waiting, w) })
			ws := []star.Worker{first}
			for _, w := range ranks(n) {
				// The report may include a worker that has left: its gradient was added before.
				if w != first && !m.stopped[w] && !slices.Contains(m.waiting, w) && rapid.IntRange(0, 2).Draw(t, "with") == 0 {
					ws = append(ws, w)
				}
			}
			check(t, "report", b.Report(ws), m.arrive(ws...))
		}
		install := func(t *rapid.T) {
			p := drawPlan(t, n)
			got := b.Install(p)
			check(t, "install "+p.String(), got, m.install(p))
		}
		t.Repeat(map[string]func(*rapid.T){
			// Most of what happens is arrivals.
			"arrive0": arrive, "arrive1": arrive, "arrive2": arrive, "arrive3": arrive,
			"report0": report, "report1": report,
			"install": install,
			"lapse": func(t *rapid.T) {
				i := rapid.IntRange(0, len(b.groups)-1).Draw(t, "group")
				if b.groups[i].grace == 0 || b.groups[i].over {
					t.Skip("no grace")
				}
				check(t, "lapse", b.Lapse(b.groups[i].grace), m.lapse(i))
			},
			"leave": func(t *rapid.T) {
				w := pick("leave", func(w star.Worker) bool { return !m.gone[w] })
				check(t, "leave", b.Leave(w), m.leave(w))
			},
			"join": func(t *rapid.T) {
				w := pick("join", func(w star.Worker) bool { return m.gone[w] && !slices.Contains(m.waiting, w) })
				b.Join(w)
				check(t, "join", nil, m.join(w))
			},
			"": func(t *rapid.T) {
				if b.Version() != m.version || !slices.Equal(b.Waiting(), m.waiting) {
					t.Fatalf("v%d, %v wait; the model is at v%d, %v wait", b.Version(), b.Waiting(), m.version, m.waiting)
				}
				for i := range b.groups {
					if (b.groups[i].grace > 0) != m.grace[i] {
						t.Fatalf("group %d: grace %v; the model: %v", i, b.groups[i].grace, m.grace[i])
					}
				}
				for _, w := range ranks(n) {
					if b.at[w].stopped != m.stopped[w] {
						t.Fatalf("worker %d: stopped %v; the model: %v", w, b.at[w].stopped, m.stopped[w])
					}
					if b.Live(w) == m.gone[w] || b.Live(w) && b.at[w].basis != m.basis[w] {
						t.Fatalf("worker %d: live %v on v%d; the model: %v, v%d", w, b.Live(w), b.at[w].basis, !m.gone[w], m.basis[w])
					}
				}
			},
		})
	})
}

func check(t *rapid.T, what string, got, want []Firing) {
	t.Helper()
	same := slices.EqualFunc(got, want, func(a, b Firing) bool {
		return a.Version == b.Version && slices.Equal(a.Workers, b.Workers) && slices.Equal(a.Dropped, b.Dropped) &&
			slices.Equal(a.Stopped, b.Stopped) && slices.Equal(a.Freed, b.Freed)
	})
	if !same {
		t.Fatalf("%s: %v, the model says %v", what, got, want)
	}
}

// A waiting worker waits for one that lives and computes: when all workers have arrived, no worker waits.
func TestNobodyIsStranded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		b := NewBarrier(drawPlan(t, n), n, 0)
		for _, w := range ranks(n) {
			if rapid.IntRange(0, 3).Draw(t, "dead") == 0 {
				b.Leave(w)
			}
		}
		for range 3 {
			for _, w := range rapid.Permutation(ranks(n)).Draw(t, "order") {
				if b.Live(w) && !b.at[w].stopped && !slices.Contains(b.Waiting(), w) {
					b.Arrive(w)
				}
			}
			if rapid.Bool().Draw(t, "change") {
				b.Install(drawPlan(t, n))
			}
			stopped := func() bool { return slices.ContainsFunc(ranks(n), func(w star.Worker) bool { return b.at[w].stopped }) }
			held := func(w star.Worker) bool { return slices.Contains(b.Plan().Excluded, w) }
			for stopped() || slices.ContainsFunc(b.Waiting(), func(w star.Worker) bool { return !held(w) }) {
				// Those that computed on arrive too, until all that live wait at once.
				missing := b.Missing()
				if len(missing) == 0 {
					t.Fatalf("%v: %v wait for nobody", b.Plan(), b.Waiting())
				}
				for _, w := range missing {
					if b.Live(w) && !b.at[w].stopped && !slices.Contains(b.Waiting(), w) {
						b.Arrive(w)
					}
				}
				if rapid.Bool().Draw(t, "enough") {
					break
				}
			}
		}
	})
}

// sameLives feeds the same arrivals and deaths of n workers to two barriers and
// wants the same firings.
func sameLives(t *rapid.T, n int, a, b *Barrier) {
	for range 60 {
		free := slices.DeleteFunc(ranks(n), func(w star.Worker) bool { return slices.Contains(a.Waiting(), w) || a.at[w].stopped || !a.Live(w) })
		if len(free) == 0 {
			return // all have left
		}
		w := rapid.SampledFrom(free).Draw(t, "w")
		if rapid.IntRange(0, 19).Draw(t, "leave") == 0 {
			check(t, "leave", a.Leave(w), b.Leave(w))
			continue
		}
		check(t, "arrive", a.Arrive(w), b.Arrive(w))
	}
}

// x = n is SSGD; x = 1, groups of one and quorum one are all ASGD; backup 0 is SSGD.
func TestPlansThatAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		singles := make([][]star.Worker, n)
		for i := range singles {
			singles[i] = []star.Worker{star.Worker(i)}
		}
		pair := rapid.SampledFrom([][2]Plan{
			{XOrder(n, n), SSGD(n)},
			{Grouped(ranks(n)), SSGD(n)},
			{Backup(n, 0), SSGD(n)},
			{Grouped(singles...), ASGD(n)},
			{XOrder(n, 1), ASGD(n)},
		}).Draw(t, "pair")
		sameLives(t, n, NewBarrier(pair[0], n, 0), NewBarrier(pair[1], n, 0))
	})
}

// Renaming the workers renames what happens.
func TestPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		p := drawPlan(t, n)
		names := rapid.Permutation(ranks(n)).Draw(t, "names")
		rename := func(ws []star.Worker) []star.Worker {
			var r []star.Worker
			for _, w := range ws {
				r = append(r, names[w])
			}
			return r
		}
		q := p.Clone()
		q.Excluded = rename(q.Excluded)
		for i := range q.Groups {
			q.Groups[i].Members = rename(q.Groups[i].Members)
			q.Groups[i].Riders = rename(q.Groups[i].Riders)
		}
		a, b := NewBarrier(p, n, 0), NewBarrier(q, n, 0)
		for range 60 {
			free := slices.DeleteFunc(ranks(n), func(w star.Worker) bool { return slices.Contains(a.Waiting(), w) || a.at[w].stopped })
			w := rapid.SampledFrom(free).Draw(t, "w")
			want := a.Arrive(w)
			for i := range want {
				want[i].Workers = rename(want[i].Workers)
				want[i].Dropped = rename(want[i].Dropped)
				want[i].Stopped = rename(want[i].Stopped)
				want[i].Freed = rename(want[i].Freed)
			}
			got := b.Arrive(names[w])
			for _, fs := range [][]Firing{got, want} { // freed by rank, which is not their own
				for i := range fs {
					slices.Sort(fs[i].Freed)
				}
			}
			check(t, "arrive", got, want)
		}
	})
}

// A rider that never comes changes nothing for the others.
func TestIdleRider(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "n")
		p := drawPlan(t, n)
		p = bare(p)
		q := p.Clone()
		g := &q.Groups[rapid.IntRange(0, len(q.Groups)-1).Draw(t, "group")]
		g.Riders = append(g.Riders, star.Worker(n))
		q.Shares = nil
		sameLives(t, n, NewBarrier(p, n, 0), NewBarrier(q, n+1, 0))
	})
}
