package resource

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naive is the simplest possible ledger: it keeps its input, and what the ledger answered and ordered, and computes
// everything else again from that each time. It does not decide which job to delay, but knows what must hold for any
// choice.
type naive struct {
	t        *rapid.T
	l        *Ledger
	cfg      LedgerConfig
	now      time.Duration
	capacity map[string]Usage
	strange  map[string]Usage
	over     map[string]time.Duration // since when; only those that are
	jobs     map[string]*naiveJob
}

type naiveJob struct {
	Job
	heard   time.Duration // last
	use     map[string]Usage
	quiet   map[string]Usage // last report in which neither grant nor delay could show
	peak    map[string]Usage // the most that was reported since then
	moved   bool             // it was delayed since then: what it would use without is only known within bounds
	changed time.Duration    // of grant or delay
	extra   map[string]Usage // granted; nil: SSGD
	number  int              // of the grant
	back    bool
	order   Order
	id      uint64
	answer  Answer
}

const far = -time.Hour

func (m *naive) sorted() []string { return slices.Sorted(maps.Keys(m.jobs)) }

// heed takes in orders.
func (m *naive) heed(orders []Order) {
	last := ""
	for _, o := range orders {
		j := m.jobs[o.Job]
		if j == nil {
			m.t.Fatalf("order %+v to nobody", o)
		}
		if o.Job <= last || o.Seq != j.order.Seq+1 || o.Delay < 0 || o.Why == "" {
			m.t.Fatalf("order %+v after %+v and %s", o, j.order, last)
		}
		if o.Early == j.order.Early && o.Delay == j.order.Delay && o.Back == j.order.Back {
			m.t.Fatalf("order %+v says what %+v said", o, j.order)
		}
		if (o.Early || o.Delay > 0) && (j.extra != nil || j.Fixed) {
			m.t.Fatalf("%+v, and the job does not run SSGD", o)
		}
		if o.Early != j.order.Early || o.Delay != j.order.Delay {
			j.changed, j.moved = m.now, true
		}
		if o.Back && j.extra == nil || !o.Back && j.back && j.changed != m.now {
			m.t.Fatalf("%+v without a reason (back before: %v)", o, j.back)
		}
		j.back = o.Back
		last, j.order = o.Job, o
	}
}

// use of a host: exact where no job is delayed; else the least and the most that it can be.
func (m *naive) uses(host string) (low, high Usage) {
	low, high = m.strange[host], m.strange[host]
	for _, name := range m.sorted() {
		j := m.jobs[name]
		a := j.quiet[host]
		b := a
		if j.moved {
			b = j.peak[host].Times(4)
		}
		switch {
		case j.extra != nil:
			a = a.Plus(j.extra[host]).Max(j.use[host])
			b = b.Plus(j.extra[host]).Max(j.use[host])
		case j.order.Early || j.order.Delay > 0:
			a = Usage{}
		}
		low, high = low.Plus(a), high.Plus(b)
	}
	return low, high
}

// check compares everything that can be seen.
func (m *naive) check() {
	hosts := m.l.Hosts()
	if len(hosts) != len(m.capacity) {
		m.t.Fatalf("hosts %+v", hosts)
	}
	for _, h := range hosts {
		if h.Capacity != m.capacity[h.Name] || h.Strangers != m.strange[h.Name] {
			m.t.Fatalf("host %+v, want capacity %v and strangers %v", h, m.capacity[h.Name], m.strange[h.Name])
		}
		low, high := m.uses(h.Name)
		for k := range kinds {
			if u := h.Use.of(k); u < low.of(k)-1e-9 || u > high.of(k)+1e-9 {
				m.t.Fatalf("host %s: use %v, want %v to %v", h.Name, h.Use, low, high)
			}
		}
	}
	jobs := m.l.Jobs()
	if len(jobs) != len(m.jobs) {
		m.t.Fatalf("jobs %+v, want %v", jobs, m.sorted())
	}
	next := time.Duration(math.MaxInt64)
	for i, name := range m.sorted() {
		j, s := m.jobs[name], jobs[i]
		if s.Name != name || fmt.Sprint(s.Use) != fmt.Sprint(j.use) || fmt.Sprint(s.Extra) != fmt.Sprint(j.extra) || s.Order != j.order || s.Expires != j.heard+m.cfg.Lease || s.Last != j.answer {
			m.t.Fatalf("job %+v, want %+v", s, j)
		}
		if o, err := m.l.Standing(name); err != nil || o != j.order {
			m.t.Fatalf("standing %+v, %v; want %+v", o, err, j.order)
		}
		next = min(next, s.Expires)
		delayed := j.order.Early || j.order.Delay > 0
		if delayed != (len(s.For) > 0) {
			m.t.Fatalf("job %+v: delayed for %v", j.order, s.For)
		}
		for _, f := range s.For { // each is alive, has a grant, and shares a host
			o := m.jobs[f]
			if o == nil || o.extra == nil || f == name || !slices.ContainsFunc(slices.Concat(o.Servers, o.Workers), (&account{Job: j.Job}).on) {
				m.t.Fatalf("%s is delayed for %s", name, f)
			}
		}
		if delayed && j.extra != nil {
			m.t.Fatalf("%s is delayed, and was granted %v", name, j.extra)
		}
	}
	if at, ok := m.l.Next(); ok != (len(jobs) > 0) || at > next {
		m.t.Fatalf("next at %v, %v; a lease ends at %v", at, ok, next)
	}
}

func (m *naive) settled(j *naiveJob) bool { return m.now-j.changed >= m.cfg.Settle }

func (m *naive) gone(name string) { delete(m.jobs, name) }

// Whatever happens, the ledger keeps account as the naive one does.
func TestLedgerModel(t *testing.T) {
	cfg := LedgerConfig{Lease: 8 * time.Second, Settle: 2 * time.Second, Patience: 3 * time.Second}
	yes, delays, backs, deaths := 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		m := &naive{t: t, l: NewLedger(cfg), cfg: cfg, capacity: map[string]Usage{}, strange: map[string]Usage{}, over: map[string]time.Duration{}, jobs: map[string]*naiveJob{}}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		host := rapid.SampledFrom(hostNames)
		small := func(t *rapid.T, label string) Usage { return drawUsage(t, 3, label) }
		grants := 0
		setHost := func(t *rapid.T) {
			h, c := host.Draw(t, "host"), drawUsage(t, 4, "capacity").Plus(Usage{3, 3, 3})
			if err := m.l.SetHost(m.now, h, c); err != nil {
				t.Fatal(err)
			}
			m.capacity[h] = c
		}
		register := func(t *rapid.T) {
			j := Job{Name: name.Draw(t, "job"), Costs: Costs{Freed: small(t, "freed"), Sensitivity: Sensitivity{1, 2}}, Fixed: rapid.IntRange(0, 5).Draw(t, "fixed") == 0,
				Incarnation: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "incarnation")}
			j.Servers = []string{host.Draw(t, "server")}
			for range rapid.IntRange(0, 3).Draw(t, "workers") {
				j.Workers = append(j.Workers, host.Draw(t, "worker"))
			}
			orders, err := m.l.Register(m.now, j)
			for _, h := range slices.Concat(j.Servers, j.Workers) {
				if _, ok := m.capacity[h]; !ok {
					if err == nil || !strings.Contains(err.Error(), h) {
						t.Fatalf("registered on an unknown host: %v", err)
					}
					return
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			old := m.jobs[j.Name]
			if old != nil && fmt.Sprint(old.Servers, old.Workers, old.Fixed, old.Incarnation) == fmt.Sprint(j.Servers, j.Workers, j.Fixed, j.Incarnation) {
				old.heard = m.now
				if orders != nil {
					t.Fatalf("orders %+v for a job that is there", orders)
				}
				return
			}
			m.gone(j.Name)
			m.heed(orders)
			m.jobs[j.Name] = &naiveJob{Job: j, heard: m.now, use: map[string]Usage{}, quiet: map[string]Usage{}, peak: map[string]Usage{}, changed: far, order: Order{Job: j.Name}}
		}
		report := func(t *rapid.T) {
			r := Report{Job: name.Draw(t, "job"), Step: int64(rapid.IntRange(0, 20000).Draw(t, "step")), Use: map[string]Usage{}}
			j := m.jobs[r.Job]
			if j != nil {
				for _, h := range slices.Concat(j.Servers, j.Workers) {
					r.Use[h] = small(t, "use")
				}
				for range j.Workers {
					r.Times = append(r.Times, time.Duration(rapid.SampledFrom([]int{0, 100, 500, 3000}).Draw(t, "time"))*ms)
				}
			}
			err := m.l.Report(m.now, r)
			if (j == nil) != errors.Is(err, ErrUnknownJob) || j != nil && err != nil {
				t.Fatal(err)
			}
			if j == nil {
				return
			}
			j.heard, j.use = m.now, r.Use
			for h, u := range r.Use {
				j.peak[h] = j.peak[h].Max(u)
			}
			if j.extra == nil && !j.order.Early && j.order.Delay == 0 && m.settled(j) {
				j.quiet, j.peak, j.moved = r.Use, maps.Clone(r.Use), false
			}
		}
		request := func(t *rapid.T) {
			q := Request{Job: name.Draw(t, "job"), Mode: "asgd", Loss: time.Duration(rapid.IntRange(0, 9000).Draw(t, "loss")) * ms}
			j := m.jobs[q.Job]
			if j == nil {
				q.ID = 1
				if _, _, err := m.l.Request(m.now, q); !errors.Is(err, ErrUnknownJob) {
					t.Fatal(err)
				}
				return
			}
			q.ID = j.id + uint64(rapid.IntRange(0, 2).Draw(t, "id")) - uint64(rapid.IntRange(0, min(1, int(j.id))).Draw(t, "less"))
			q.Needs = []Need{{j.Servers[0], drawUsage(t, 4, "extra")}}
			a, orders, err := m.l.Request(m.now, q)
			switch {
			case q.ID < j.id:
				if !errors.Is(err, ErrStaleRequest) {
					t.Fatalf("request %d after %d: %v", q.ID, j.id, err)
				}
				return
			case q.ID == 0:
				if err == nil {
					t.Fatal("a request without an ID")
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			j.heard = m.now
			if q.ID == j.id {
				if a != j.answer || orders != nil {
					t.Fatalf("request %d again: %+v, %+v; want %+v", q.ID, a, orders, j.answer)
				}
				return
			}
			if a.ID != q.ID || a.Why == "" || (j.order.Early || j.order.Delay > 0) && a.Granted {
				t.Fatalf("%+v of %+v", a, j)
			}
			j.id, j.answer = q.ID, a
			if !a.Granted {
				if orders != nil {
					t.Fatalf("refused, and %+v", orders)
				}
				return
			}
			yes++
			grants++
			j.extra, j.changed, j.number = map[string]Usage{q.Needs[0].Host: q.Needs[0].Extra}, m.now, grants
			for _, o := range orders {
				if o.Job != q.Job && m.jobs[o.Job] != nil && (o.Early || o.Delay > 0) {
					delays++
				}
			}
			m.heed(orders)
			// Within the capacity, as far as it was asked for.
			for _, h := range m.l.Hosts() {
				for _, n := range q.Needs {
					for k := range kinds {
						if n.Host == h.Name && n.Extra.of(k) > 0 && h.Use.of(k) > h.Capacity.of(k)+1e-6 && j.use[h.Name].of(k) <= j.quiet[h.Name].of(k)+n.Extra.of(k) {
							t.Fatalf("granted %+v: %v of %v is used on %s", q, h.Use, h.Capacity, h.Name)
						}
					}
				}
			}
		}
		release := func(t *rapid.T) {
			who := name.Draw(t, "job")
			orders, err := m.l.Release(m.now, who)
			j := m.jobs[who]
			if (j == nil) != errors.Is(err, ErrUnknownJob) {
				t.Fatal(err)
			}
			if j == nil {
				return
			}
			j.heard = m.now
			if j.extra != nil {
				j.extra, j.changed = nil, m.now
			}
			if j.back && !slices.ContainsFunc(orders, func(o Order) bool { return o.Job == who && !o.Back }) {
				t.Fatalf("%+v after a withdrawal", orders)
			}
			m.heed(orders)
		}
		elapse := func(t *rapid.T) {
			m.now += time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * ms
			dead, orders := m.l.Expire(m.now)
			var want []string
			for _, n := range m.sorted() {
				if m.now-m.jobs[n].heard >= cfg.Lease {
					want = append(want, n)
					m.gone(n)
				}
			}
			if !slices.Equal(dead, want) {
				t.Fatalf("at %v %v are dead, want %v", m.now, dead, want)
			}
			deaths += len(dead)
			// Withdrawn is the youngest grant on a host that was over for long enough.
			before := map[string]bool{}
			for n, j := range m.jobs {
				before[n] = j.back
			}
			fresh := 0
			for _, o := range orders {
				if o.Back && !before[o.Job] {
					fresh++
					backs++
					ok := false
					for h, since := range m.over {
						if m.now-since >= cfg.Patience && m.jobs[o.Job].extra[h] != (Usage{}) {
							ok = true
							for _, j := range m.jobs {
								if j.extra[h] != (Usage{}) && !j.back && !before[j.Name] && j.number > m.jobs[o.Job].number {
									ok = ok && slices.ContainsFunc(orders, func(p Order) bool { return p.Job == j.Name && p.Back })
								}
							}
						}
					}
					if !ok {
						t.Fatalf("%+v, and over are %v at %v", o, m.over, m.now)
					}
				}
			}
			if fresh > len(hostNames) {
				t.Fatalf("%d grants withdrawn at once", fresh)
			}
			m.heed(orders)
			for _, h := range m.l.Hosts() {
				young := slices.ContainsFunc(m.sorted(), func(n string) bool { return m.jobs[n].extra[h.Name] != (Usage{}) })
				switch {
				case !young || h.Use.Fits(h.Capacity.Times(tolerated)):
					delete(m.over, h.Name)
				default:
					if _, ok := m.over[h.Name]; !ok {
						m.over[h.Name] = m.now
					}
				}
			}
		}
		for range 6 {
			setHost(t)
		}
		for range 8 {
			register(t)
		}
		for range 12 {
			report(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"":         func(*rapid.T) { m.check() },
			"host":     setHost,
			"register": register, "register again": register,
			"report": report, "report again": report, "and again": report,
			"request": request, "request again": request, "and another": request,
			"release": release,
			"measured": func(t *rapid.T) {
				h, u := host.Draw(t, "host"), drawUsage(t, 12, "measured")
				err := m.l.Measured(m.now, h, u)
				if _, ok := m.capacity[h]; ok != (err == nil) {
					t.Fatal(err)
				}
				if err == nil {
					for _, j := range m.jobs {
						u = Usage{max(u.CPU-j.use[h].CPU, 0), max(u.NetIn-j.use[h].NetIn, 0), max(u.NetOut-j.use[h].NetOut, 0)}
					}
					m.strange[h] = u
				}
			},
			"remove": func(t *rapid.T) {
				who := name.Draw(t, "job")
				m.gone(who)
				m.heed(m.l.Remove(m.now, who))
			},
			"time": elapse, "more time": elapse, "and more": elapse,
		})
	})
	if testing.Verbose() {
		t.Logf("%d grants, %d delays, %d withdrawals, %d deaths", yes, delays, backs, deaths)
	}
	// the others are rare, and have tests of their own; in short runs all are
	if !testing.Short() && (yes == 0 || deaths == 0) {
		t.Errorf("%d grants, %d delays, %d withdrawals, %d deaths: the lives are too dull", yes, delays, backs, deaths)
	}
}
