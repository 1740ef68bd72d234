package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star/sched"
)

// world is jobs that run as a queue says, in virtual time: a coordinator takes a second to come, a worker another one,
// two to leave, and half a second for the last checkpoint.
type world struct {
	t      testing.TB
	hosts  []*Host
	policy string
	slot   float64
	q      *Queue
	now    float64
	log    [][]byte // what is on disk
	saved  []byte   // what the first of these come to; nil: of none
	folded int      // how many these are
	do     []due
	learns bool    // what starts take
	linger float64 // s between the end of a job and the end of its workers

	done  map[string]int64 // samples that checkpoints have, by job
	trail strings.Builder
}

type due struct {
	at   float64
	what func()
}

func newWorld(t testing.TB, policy string, slot float64, hosts ...Host) *world {
	w := &world{t: t, policy: policy, slot: slot, done: map[string]int64{}}
	for _, h := range hosts {
		w.hosts = append(w.hosts, &h)
	}
	w.restart()
	return w
}

// restart is what a killed service does: it has its log and nothing else, and finds out which processes still run.
func (w *world) restart() {
	old := w.q
	w.q, _ = w.replay(w.saved, w.log[w.folded:])
	if old != nil {
		for i, j := range w.q.Jobs { // the log of the job says it
			j.Samples = old.Jobs[i].Samples
			for k, m := range j.Members {
				m.Joined = old.Jobs[i].Members[k].Joined
			}
		}
	}
	if err := w.q.Schedule(w.policy, w.slot, w.now); err != nil {
		w.t.Fatal(err)
	}
}

// replay makes a queue of what was saved, nil: of nothing, and lines of the log.
func (w *world) replay(saved []byte, log [][]byte) (*Queue, *History) {
	q, h := New(w.fresh()), NewHistory()
	if saved != nil {
		var err error
		if q, h, err = Load(saved, w.fresh()); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, e := range w.events(log) {
		if err := q.Apply(e); err != nil {
			w.t.Fatal(err)
		}
		h.Add(e)
	}
	return q, h
}

func (w *world) fresh() (hosts []*Host) {
	for _, h := range w.hosts {
		hosts = append(hosts, &Host{Name: h.Name, Slots: h.Slots, Closed: h.Closed})
	}
	return hosts
}

// close has nothing be started on a host any more; why is empty: it may be.
func (w *world) close(host, why string) {
	for _, hosts := range [][]*Host{w.hosts, w.q.Hosts} {
		for _, h := range hosts {
			if h.Name == host {
				h.Closed = why
			}
		}
	}
}

func (w *world) events(log [][]byte) []Event {
	es := make([]Event, len(log))
	for i, line := range log {
		if err := json.Unmarshal(line, &es[i]); err != nil {
			w.t.Fatal(err)
		}
	}
	return es
}

// fold replaces the log by its folded state, after it has checked that the previous folded state with the events since
// then gives the same queue as all events.
func (w *world) fold() {
	q, h := w.replay(nil, w.log)
	sq, sh := w.replay(w.saved, w.log[w.folded:])
	if diff := cmp.Diff(q, sq, cmp.AllowUnexported(Queue{}, Job{}, Job{}.stable, Member{}, Host{}), cmpopts.IgnoreFields(Queue{}, "cache"), cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); diff != "" {
		w.t.Fatalf("%.2f: what was saved and %d events more are another queue than all %d events:\n%s", w.now, len(w.log)-w.folded, len(w.log), diff)
	}
	for _, h := range []*History{h, sh} { // places behind the last one that is taken need not be known
		for host, taken := range h.taken {
			for len(taken) > 0 && !taken[len(taken)-1] {
				taken = taken[:len(taken)-1]
			}
			if h.taken[host] = taken; len(taken) == 0 {
				delete(h.taken, host)
			}
		}
	}
	if diff := cmp.Diff(h, sh, cmp.AllowUnexported(History{}, Stay{}), cmpopts.EquateEmpty()); diff != "" {
		w.t.Fatalf("%.2f: what was saved has another history:\n%s", w.now, diff)
	}
	var err error
	if w.saved, err = Fold(w.saved, w.fresh(), w.events(w.log[w.folded:])); err != nil {
		w.t.Fatal(err)
	}
	w.folded = len(w.log)
}

func (w *world) later(after float64, what func()) { w.do = append(w.do, due{w.now + after, what}) }

// commit writes an event down, and has it happen.
func (w *world) commit(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		w.t.Fatal(err)
	}
	w.log = append(w.log, line)
	if j := w.q.Job(e.Job); e.Kind == KindBegin && len(j.Members) > 0 {
		w.t.Fatalf("%.2f: %s begins, and has %d workers of the life before", e.At, e.Job, len(j.Members))
	} else if e.Kind == KindAdd && j.State != Running {
		w.t.Fatalf("%.2f: %s gets a worker, and is %s", e.At, e.Job, j.State)
	} else if e.Kind == KindLeave && strings.Contains(e.Why, "has taken its place") && !slices.ContainsFunc(j.Members, func(m *Member) bool { return m.Replaces == e.Member && m.Joined }) {
		w.t.Fatalf("%.2f: worker %d of %s is to leave, and nobody has its place", e.At, e.Member, e.Job)
	}
	if err := w.q.Apply(e); err != nil {
		w.t.Fatal(err)
	}
	where := ""
	switch e.Kind {
	case KindAdd:
		where = fmt.Sprintf(" worker %d, rank %d, on %s", e.Member, e.Rank, e.Host)
		if why := w.q.host(e.Host).Closed; why != "" {
			w.t.Fatalf("%.2f: a worker is started on %s, which is closed: %s", e.At, e.Host, why)
		}
	case KindLeave, KindGone:
		where = fmt.Sprintf(" worker %d", e.Member)
	case KindSlow, KindWell:
		where = " " + e.Host
	case KindEnded:
		where = " " + string(e.State)
	}
	fmt.Fprintf(&w.trail, "%5.1f %s %s%s", e.At, e.Kind, e.Job, where)
	if e.Why != "" {
		fmt.Fprintf(&w.trail, ": %s", e.Why)
	}
	w.trail.WriteByte('\n')
	w.effect(e)
}

func (w *world) effect(e Event) {
	life := 0
	if j := w.q.Job(e.Job); j != nil {
		life = j.Life
	}
	this := func() *Job { // if it is still the same life
		if j := w.q.Job(e.Job); j != nil && j.Life == life && (j.State == Running || j.State == Stopping) {
			return j
		}
		return nil
	}
	switch e.Kind {
	case KindAdd:
		w.later(2, func() {
			if j := this(); j != nil {
				w.learned(w.q.Joined(j, e.Rank, w.now, w.now))
			}
		})
	case KindLeave:
		w.later(2, func() { w.gone(e.Job, e.Member) })
	case KindStop:
		if w.q.Job(e.Job).State == Stopping {
			w.later(0.5, func() { w.over(e.Job, "") })
		}
	}
}

// learned commits what was learned, if anything was.
func (w *world) learned(e Event) {
	if w.learns && e.Kind != "" {
		w.commit(e)
	}
}

func (w *world) gone(job string, member int) {
	j := w.q.Job(job)
	if slices.ContainsFunc(j.Members, func(m *Member) bool { return m.ID == member }) {
		w.commit(Event{At: w.now, Kind: KindGone, Job: job, Member: member})
	}
}

// over ends a coordinator, and its workers with it.
func (w *world) over(job string, s State) {
	j := w.q.Job(job)
	if j.State != Running && j.State != Stopping {
		return
	}
	w.commit(Event{At: w.now, Kind: KindEnded, Job: job, State: s, Samples: j.Samples})
	for _, m := range slices.Clone(j.Members) {
		if w.linger > 0 {
			w.later(w.linger, func() { w.gone(job, m.ID) })
		} else {
			w.gone(job, m.ID)
		}
	}
	w.done[job] = j.Samples
}

// step lets a quarter of a second pass. Speed says how fast a worker on a host is, in parts of what it should be.
func (w *world) step(speed func(host string) float64) {
	const d = 0.25
	w.now += d
	for _, j := range w.q.Jobs {
		if j.State != Running && j.State != Stopping {
			continue
		}
		n, slowest := 0, 1.
		for _, m := range j.Members {
			if m.Joined {
				n++
				slowest = min(slowest, speed(m.Host))
			}
		}
		if n > 0 && !j.finishing() {
			samples := min(j.Samples+int64(d*slowest*100*float64(n)), j.Spec.Samples)
			w.learned(w.q.Started(j, w.now, w.now, w.now))
			if e := w.q.Seen(j, samples, w.now, w.now); e.Kind != "" {
				w.commit(e)
			}
			if j.finishing() {
				w.later(0.5, func() { w.over(j.Name, Done) })
			}
		}
	}
	todo := w.do
	w.do = nil
	for _, x := range todo {
		if x.at <= w.now {
			x.what()
		} else {
			w.do = append(w.do, x)
		}
	}
	w.settle()
}

// applies has events happen that may not be refused.
func applies(t testing.TB, q *Queue) func(Event) {
	return func(e Event) {
		t.Helper()
		if err := q.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
}

// doAll does what there is to be done now.
func doAll(t testing.TB, q *Queue, now float64, commit func(Event)) {
	t.Helper()
	for i := 0; ; i++ {
		e, ok := q.Next(now)
		if !ok {
			return
		}
		if i > 1000 {
			t.Fatalf("no end of things to do: %+v", e)
		}
		commit(e)
	}
}

// settle does what there is to be done now, and looks whether that may be.
func (w *world) settle() {
	doAll(w.t, w.q, w.now, w.commit)
	used := map[string]int{}
	for _, j := range w.q.Jobs {
		ranks := map[int]bool{}
		for _, m := range j.Members {
			used[m.Host]++
			if ranks[m.Rank] || m.Rank >= j.Ranks() {
				w.t.Fatalf("%.2f: rank %d of %s is not one that is free", w.now, m.Rank, j.Name)
			}
			ranks[m.Rank] = true
		}
	}
	for _, h := range w.hosts {
		if used[h.Name] > h.Slots {
			w.t.Fatalf("%.2f: %d workers on %s, which has %d places", w.now, used[h.Name], h.Name, h.Slots)
		}
	}
}

func (w *world) submit(s Spec) error {
	e, err := w.q.Submission(s, true, w.now)
	if err == nil {
		w.commit(e)
		w.settle()
	}
	return err
}

// idle says whether no job is left.
func (w *world) idle() bool {
	return !slices.ContainsFunc(w.q.Jobs, (*Job).Active)
}

// Random lives: jobs come, are cancelled, hosts are slow, workers and coordinators die, and the service is killed again
// and again, and begins with another policy or without a host. Every job ends, and uses each sample once. A saved queue
// with the later events is the same queue as all events make.
func TestRandomLives(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		policy := []string{"fifo", "edf", "ef", "ef-admission", "tiresias", "srtf"}[seed%6]
		w := newWorld(t, policy, 5, Host{Name: "a", Slots: 2}, Host{Name: "b", Slots: 2}, Host{Name: "c", Slots: 4})
		w.learns, w.linger = seed%2 == 1, float64(seed%4)/2
		all := w.hosts
		cancelled, killed := map[string]bool{}, 0
		ended := func(j *Job) {
			if ok := j.State == Done || j.State == Declined && j.Life == 0 || j.State == Cancelled && cancelled[j.Name]; !ok {
				t.Errorf("seed %d, %s: %s is %s: %s", seed, policy, j.Name, j.State, j.Why)
			}
			if j.State == Done && w.done[j.Name] != j.Spec.Samples {
				t.Errorf("seed %d, %s: %s used %d of %d samples", seed, policy, j.Name, w.done[j.Name], j.Spec.Samples)
			}
		}
		slow := ""
		jobs := 0
		for steps := 0; jobs < 12 || !w.idle(); steps++ {
			if steps > 40_000 {
				var left []string
				for _, j := range w.q.Jobs {
					if j.Active() {
						left = append(left, fmt.Sprintf("%s %s want %d has %d", j.Name, j.State, j.Want, len(j.Members)))
					}
				}
				t.Fatalf("seed %d, %s: no end: %v", seed, policy, left)
			}
			if jobs < 12 && r.IntN(20) == 0 {
				s := Spec{Name: fmt.Sprintf("j%d", jobs), Samples: int64(1000 + r.IntN(9000)), Max: 1 << r.IntN(4), Rates: map[int]float64{1: 100}}
				if r.IntN(3) == 0 {
					s.Min = s.Max
				}
				if r.IntN(2) == 0 {
					s.Deadline = 20 + float64(r.IntN(200))
				}
				if err := w.submit(s); err != nil {
					t.Fatal(err)
				}
				jobs++
			}
			if j := pick(r, w.q.Jobs); j != nil && r.IntN(300) == 0 && j.Active() {
				e, err := w.q.Cancellation(j.Name, w.now)
				if err != nil {
					t.Fatal(err)
				}
				cancelled[j.Name] = true
				w.commit(e)
			}
			if r.IntN(100) == 0 {
				slow = pick(r, []string{"", "a", "b", "c"})
				for _, j := range w.q.Jobs {
					for _, m := range j.Members {
						why := ""
						if m.Host == slow {
							why = "slow"
						}
						if e := w.q.Verdict(j, m.Rank, 2, why, w.now, w.now); e.Kind != "" {
							w.commit(e)
						}
					}
				}
			}
			if e, ok := w.q.Archival(w.now-20, 2, w.now); ok && seed%3 == 2 { // what has ended leaves the queue
				for _, name := range e.Jobs {
					ended(w.q.Job(name))
				}
				w.commit(e)
			}
			if r.IntN(100) == 0 {
				w.close(pick(r, w.hosts).Name, pick(r, []string{"", "", "drained"}))
			}
			if steps%10_000 == 5000 { // jobs end, also if all are closed
				for _, h := range all {
					h.Closed = ""
					w.close(h.Name, "")
				}
			}
			if j := pick(r, w.q.Jobs); j != nil && j.State == Running && killed < 3 && r.IntN(100) == 0 {
				killed++
				w.over(j.Name, "")
			}
			if j := pick(r, w.q.Jobs); j != nil && j.State == Running && len(j.Members) > 1 && r.IntN(50) == 0 {
				w.gone(j.Name, pick(r, j.Members).ID)
			}
			if r.IntN(20) == 0 {
				if seed%3 == 0 && r.IntN(10) == 0 { // under another policy, and without a host
					w.policy = pick(r, sched.LivePolicies())
					out := r.IntN(2 * len(all))
					w.hosts = slices.Clone(all)
					if out < len(all) {
						w.hosts = slices.Delete(w.hosts, out, out+1)
					}
				}
				w.restart()
				if r.IntN(10) == 0 && seed%3 != 0 { // what is known of a host that is out is not saved
					w.fold()
				}
			}
			if jobs == 12 && len(w.hosts) < len(all) {
				w.hosts = all
				w.restart()
			}
			w.step(func(string) float64 { return 1 })
		}
		for _, j := range w.q.Jobs {
			ended(j)
		}
	}
}

func pick[T any](r *rand.Rand, of []T) (x T) {
	if len(of) > 0 {
		x = of[r.IntN(len(of))]
	}
	return x
}

// Scripts: cluster, jobs, and what is done with them.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		speed := map[string]float64{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			str := func(key, def string) string {
				d.MaybeScanArgs(t, key, &def)
				return def
			}
			num := func(key string, def float64) float64 {
				var text string
				if d.MaybeScanArgs(t, key, &text); text != "" {
					if _, err := fmt.Sscan(text, &def); err != nil {
						d.Fatalf(t, "%s: %v", key, err)
					}
				}
				return def
			}
			if w != nil {
				w.trail.Reset()
			}
			switch d.Cmd {
			case "cluster":
				var hosts []Host
				for i, text := range strings.Split(str("slots", "4"), "+") {
					h := Host{Name: string(rune('a' + i))}
					fmt.Sscan(text, &h.Slots)
					hosts = append(hosts, h)
				}
				w = newWorld(t, str("policy", "fifo"), num("slot", 5), hosts...)
				return ""
			case "submit":
				s := Spec{Name: str("name", ""), Samples: int64(num("samples", 1000)), Workers: int(num("workers", 0)), Max: int(num("max", 0)), Deadline: num("deadline", 0), Rates: map[int]float64{1: 100}}
				if err := w.submit(s); err != nil {
					return "error: " + err.Error() + "\n"
				}
			case "cancel":
				e, err := w.q.Cancellation(str("name", ""), w.now)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				w.commit(e)
				w.settle()
			case "kill":
				for _, j := range w.q.Jobs {
					if j.Name == str("coordinator", "") {
						w.over(j.Name, "")
					}
				}
				if name := str("worker", ""); name != "" {
					w.gone(name, int(num("id", 0)))
				}
				w.settle()
			case "slow":
				host := str("host", "")
				speed[host] = num("speed", 0.5)
				for _, j := range w.q.Jobs {
					for _, m := range j.Members {
						if m.Host == host {
							if e := w.q.Verdict(j, m.Rank, 2, "2.0x slow", w.now, w.now); e.Kind != "" {
								w.commit(e)
							}
						}
					}
				}
				w.settle()
			case "close", "open":
				why := ""
				if d.Cmd == "close" {
					why = "drained"
				}
				w.close(str("host", ""), why)
				w.settle()
				for _, j := range w.q.Jobs {
					if why := w.q.Waits(j, w.now); why != "" {
						fmt.Fprintf(&w.trail, "%s waits: %s\n", j.Name, why)
					}
				}
			case "restart":
				w.restart()
				w.settle()
			case "run":
				for until := w.now + num("for", 1); w.now < until; {
					w.step(func(h string) float64 {
						if s := speed[h]; s > 0 {
							return s
						}
						return 1
					})
				}
			default:
				d.Fatalf(t, "no command %s", d.Cmd)
			}
			return w.trail.String()
		})
	})
}

// A job that waits, and about which nothing was decided, has a sentence, too.
func TestWaits(t *testing.T) {
	w := newWorld(t, "tiresias", 5, Host{Name: "a", Slots: 2})
	for _, name := range []string{"first", "second"} {
		if err := w.submit(Spec{Name: name, Samples: 100_000, Workers: 2, Rates: map[int]float64{1: 100}}); err != nil {
			t.Fatal(err)
		}
		w.step(func(string) float64 { return 1 })
		if got := w.q.Waits(w.q.Job(name), w.now); name == "second" && got != "0 of 2 places are free, first has 2; the policy decides in 50 s" {
			t.Errorf("%s: %q", name, got)
		}
		for range 70 * 4 { // it decides at full minutes
			w.step(func(string) float64 { return 1 })
		}
	}
	if got := w.q.Waits(w.q.Job("first"), w.now); w.q.Job("first").State != Running || got != "" {
		t.Errorf("first is %s, and waits: %q", w.q.Job("first").State, got)
	}
	if got := w.q.Waits(w.q.Job("second"), w.now); !strings.HasPrefix(got, "0 of 2 places are free, first has 2") {
		t.Errorf("second: %q", got)
	}
}

func TestSpec(t *testing.T) {
	for text, s := range map[string]Spec{
		"name":    {Name: "A b", Samples: 1},
		"samples": {Name: "a"},
		"powers":  {Name: "a", Samples: 1, Max: 3},
		"more":    {Name: "a", Samples: 1, Min: 4, Max: 2},
		"workers": {Name: "a", Samples: 1, Workers: 65},
		"rates":   {Name: "a", Samples: 1, Rates: map[int]float64{1: math.NaN()}},
		"3 work":  {Name: "a", Samples: 1, Rates: map[int]float64{3: 1}},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, c := range []struct{ is, want Spec }{
		{Spec{Max: 4}, Spec{Workers: 4, Min: 1, Max: 4}},
		{Spec{}, Spec{Workers: 1, Min: 1, Max: 1}},
		{Spec{Workers: 3}, Spec{Workers: 3, Min: 1, Max: 2}}, // no power of two, and policies that do not plan give it 3
		{Spec{Workers: 3, Min: 4}, Spec{Workers: 3, Min: 4, Max: 4}},
		{Spec{Workers: 64}, Spec{Workers: 64, Min: 1, Max: 64}},
	} {
		s := c.is
		s.Name, s.Samples = "a", 1
		if err := s.Check(); err != nil || s.Workers != c.want.Workers || s.Min != c.want.Min || s.Max != c.want.Max {
			t.Errorf("%+v: %+v, %v; want %+v", c.is, s, err, c.want)
		}
	}
}

// What was measured corrects what was said, also on numbers of workers on which nothing was measured.
func TestCurve(t *testing.T) {
	for _, c := range []struct {
		rates, measured map[int]float64
		want            []float64
	}{
		{nil, nil, nil},
		{map[int]float64{1: 10}, nil, []float64{10, 20, 40}},
		{map[int]float64{1: 10, 2: 18, 4: 30}, nil, []float64{10, 18, 30}},
		{map[int]float64{1: 10, 2: 18, 4: 30}, map[int]float64{2: 9}, []float64{5, 9, 15}},
		{map[int]float64{1: 10, 2: 18, 4: 30}, map[int]float64{2: 9, 4: 30}, []float64{5, 9, 30}},
		{nil, map[int]float64{2: 9}, []float64{4.5, 9, 18}},
	} {
		j := Job{Spec: Spec{Max: 4, Workers: 4, Rates: c.rates}, Measured: c.measured}
		if got := j.Curve(); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v: %v, want %v", c.rates, c.measured, got, c.want)
		}
	}
}

// A host is avoided for as long as a worker is slow there, and slowFor longer. Verdicts about a rank's previous worker
// do not count for its present one.
func TestAvoided(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 2}})
	if err := q.Schedule("fifo", 1, 0); err != nil {
		t.Fatal(err)
	}
	apply := applies(t, q)
	hosts := func(now float64) (said string) {
		t.Helper()
		for e, ok := q.Next(now); ok && e.Host != "" && e.Job == ""; e, ok = q.Next(now) {
			said += e.Kind + " "
			apply(e)
		}
		return said
	}
	for _, e := range []Event{{Kind: KindSubmit, Job: "a", Spec: &Spec{Name: "a", Samples: 10, Workers: 1, Min: 1, Max: 1}}, {Kind: KindBegin, Job: "a", Life: 1}, {At: 5, Kind: KindAdd, Job: "a", Member: 1, Host: "h"}, {At: 5, Kind: KindAdd, Job: "a", Member: 2, Host: "h", Rank: 1}} {
		apply(e)
	}
	j := q.Job("a")
	for i, c := range []struct {
		at, now float64
		why     string
		do      Event
		want    string
	}{
		{at: 4, now: 6, why: "3x slow", want: ""},
		{at: 7, now: 8, why: "3x slow", want: "slow "},
		{at: 7, now: 8 + slowFor - 1, why: "3x slow", want: ""},
		{at: 7, now: 8 + slowFor, why: "3x slow", want: "slow "},
		{now: 8 + 1.5*slowFor, do: Event{At: 8 + 1.5*slowFor, Kind: KindGone, Job: "a", Member: 1}, want: ""},
		{now: 8 + 2*slowFor - 1, want: ""},
		{now: 8 + 2*slowFor, want: "well "},
	} {
		if c.do.Kind != "" {
			apply(c.do)
			if e := q.Verdict(j, 1, 2, "", c.now, c.now); e.Kind != "" { // a worker without any verdict before
				t.Errorf("%d: %+v", i, e)
			}
		}
		if c.why != "" {
			if e := q.Verdict(j, 0, 2, c.why, c.at, c.now); e.Kind != "" {
				t.Errorf("%d: %+v", i, e)
			}
		}
		if got := hosts(c.now); got != c.want {
			t.Errorf("%d: at %v: %q, want %q", i, c.now, got, c.want)
		}
	}
}

// A job without rates has those of the last job like it that has run: what that was said to be, which nothing has to
// correct, as well as what was measured.
func TestRatesOfAJobLikeIt(t *testing.T) {
	q := New([]*Host{{Name: "h", Slots: 2}})
	like := Spec{Name: "b", Samples: 10, Settings: map[string]string{"model": "lenet"}}
	for i, c := range []struct {
		samples  int64
		measured map[int]float64
		want     map[int]float64
	}{{0, nil, nil}, {1, nil, map[int]float64{1: 10, 2: 18}}, {1, map[int]float64{1: 5}, map[int]float64{1: 5, 2: 9}}} {
		if i == 0 {
			s := like
			s.Name, s.Rates = "a", map[int]float64{1: 10, 2: 18}
			e, err := q.Submission(s, true, 0)
			if err == nil {
				err = q.Apply(e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		q.Job("a").Samples, q.Job("a").Measured = c.samples, c.measured
		e, err := q.Submission(like, true, 1)
		if (err == nil) != (c.want != nil) || err == nil && !maps.Equal(e.Spec.Rates, c.want) {
			t.Errorf("%d: %v, %+v, want %v", i, err, e.Spec, c.want)
		}
		other := like
		other.Settings = map[string]string{"model": "softmax"}
		if _, err := q.Submission(other, true, 1); err == nil {
			t.Errorf("%d: a job with other settings has rates", i)
		}
	}
}

// A job loses its worker on a slow host to a host that is less slow, where none is well; not to one that is about as
// slow. A host that becomes slower is known to be.
func TestLessSlow(t *testing.T) {
	for _, c := range []struct {
		good, bad float64 // how many times as long workers there take
		job, to   string  // which of them has its worker moved, and where to
	}{{1.3, 2.3, "b", "good"}, {1.3, 1.4, "", ""}, {2.3, 1.3, "a", "bad"}, {1.3, 1.3, "", ""}} {
		q := New([]*Host{{Name: "bad", Slots: 2}, {Name: "good", Slots: 3}})
		if err := q.Schedule("fifo", 1, 0); err != nil {
			t.Fatal(err)
		}
		apply := applies(t, q)
		for i, name := range []string{"a", "b", "c"} {
			apply(Event{Kind: KindSubmit, Job: name, Spec: &Spec{Name: name, Samples: 10, Workers: 1, Min: 1, Max: 1}})
			e, ok := q.Next(1)
			for ; ok && e.Kind != KindAdd; e, ok = q.Next(1) {
				apply(e)
			}
			e.Host = []string{"good", "bad", "good"}[i]
			apply(e)
			q.Joined(q.Job(name), e.Rank, 1, 1)
		}
		q.Verdict(q.Job("a"), 0, c.good, "slow", 2, 2)
		q.Verdict(q.Job("b"), 0, 1.2, "slow", 2, 2)
		q.Verdict(q.Job("c"), 0, 1.2, "slow", 2, 2) // which says less of its host than the other one there
		for e, ok := q.Next(3); ok && e.Kind == KindSlow; e, ok = q.Next(3) {
			apply(e)
		}
		q.Verdict(q.Job("b"), 0, c.bad, "slow", 4, 4)
		var said []string
		e, ok := q.Next(5)
		for ; ok && e.Kind == KindSlow; e, ok = q.Next(5) {
			said = append(said, fmt.Sprint(e.Host, " ", e.Times))
			apply(e)
		}
		if want := fmt.Sprint("bad ", c.bad); c.bad > 1.2*sched.Notably && !slices.Equal(said, []string{want}) || c.bad <= 1.2*sched.Notably && len(said) > 0 {
			t.Errorf("%+v: %q", c, said)
		}
		if ok != (c.job != "") || ok && (e.Kind != KindAdd || e.Job != c.job || e.Host != c.to || e.Replaces != 1 || !strings.HasSuffix(e.Why, c.to+" has room, which is less slow")) {
			t.Errorf("%+v: %+v", c, e)
		}
	}
}

// A job that gives up a worker gives up the one on the slowest host.
func TestSlowestLeaves(t *testing.T) {
	for _, c := range []struct {
		times [2]float64
		want  int
	}{{[2]float64{2.3, 1.3}, 1}, {[2]float64{1.3, 2.3}, 2}, {[2]float64{2, 2}, 2}} {
		q := New([]*Host{{Name: "h1", Slots: 1, Slow: "slow", Times: c.times[0], Until: 9}, {Name: "h2", Slots: 1, Slow: "slow", Times: c.times[1], Until: 9}})
		if err := q.Schedule("fifo", 1, 0); err != nil {
			t.Fatal(err)
		}
		for _, e := range []Event{{Kind: KindSubmit, Job: "a", Spec: &Spec{Name: "a", Samples: 10, Workers: 2, Min: 1, Max: 2}}, {Kind: KindDecide, Job: "a", Workers: 2}, {Kind: KindBegin, Job: "a", Life: 1},
			{Kind: KindAdd, Job: "a", Member: 1, Host: "h1"}, {Kind: KindAdd, Job: "a", Member: 2, Host: "h2", Rank: 1}} {
			if err := q.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		j := q.Job("a")
		j.Want = 1
		if e, ok := q.take(j, 1); !ok || e.Kind != KindLeave || e.Member != c.want {
			t.Errorf("%v: %+v, want worker %d to leave", c.times, e, c.want)
		}
	}
}

// With what a worker has ended is said until another one takes part in its place, then again what was decided; also of
// a queue that was saved.
func TestWhyAWorkerIsGone(t *testing.T) {
	hosts := func() []*Host { return []*Host{{Name: "h", Slots: 2}} }
	q, now := New(hosts()), 0.
	says := func(want string) {
		t.Helper()
		if got := q.Why(q.Job("a"), now); got != want {
			t.Errorf("at %v %q, want %q", now, got, want)
		}
	}
	apply := func(e Event) {
		t.Helper()
		now++
		if e.At, e.Job = now, "a"; q.Apply(e) != nil {
			t.Fatal(e)
		}
	}
	for _, e := range []Event{{Kind: KindSubmit, Spec: &Spec{Name: "a", Samples: 10, Workers: 2, Min: 1, Max: 2}}, {Kind: KindDecide, Workers: 1, Why: "first come"}, {Kind: KindBegin, Life: 1}, {Kind: KindAdd, Member: 1, Host: "h"}} {
		apply(e)
	}
	says("first come")
	const gone = "worker 1 on h has ended: node lost"
	apply(Event{Kind: KindGone, Member: 1, Why: "node lost"})
	says(gone)
	text, err := Save(q, NewHistory())
	if err == nil {
		q, _, err = Load(text, hosts())
	}
	if err != nil {
		t.Fatal(err)
	}
	says(gone)
	apply(Event{Kind: KindAdd, Member: 2, Host: "h"})
	says(gone)
	q.Joined(q.Job("a"), 0, now, now)
	says("first come")
	apply(Event{Kind: KindGone, Member: 2, Why: "again"})
	says("worker 2 on h has ended: again")
	apply(Event{Kind: KindDecide, Workers: 2, Why: "more"})
	says("more")
	for life := 2; life <= 1+mostFails; life++ {
		apply(Event{Kind: KindEnded, Why: "killed"})
		if life > mostFails {
			says("4 lives in a row ended without progress; the last one: killed")
			break
		}
		says("restarts: killed")
		apply(Event{Kind: KindBegin, Life: life})
		says("restarts: killed")
	}
}
