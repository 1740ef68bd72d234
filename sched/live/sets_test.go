package live

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// site is a service and its jobs as they are on a machine, in virtual time: workers come after a while, and logs are
// written once a second and read four times a second.
type site struct {
	t    testing.TB
	r    *rand.Rand
	q    *Queue
	now  float64
	runs map[string]*life
	off  float64 // by what share jobs are faster than they say
}

// life is a job that runs.
type life struct {
	life    int
	made    float64         // samples
	workers map[int]*atWork // by member
	fires   float64         // when the first update was; NaN: none
	last    float64         // when the last one was
	phase   float64         // of the second in which its log is written
	written struct {        // what its log has
		samples     float64
		first, last float64
		joined      map[int]float64 // by rank
	}
	stops float64 // when it will have saved itself
	ends  float64 // when it will have ended
}

type atWork struct {
	rank        int
	joins, goes float64
}

const (
	look  = 0.25    // s between two looks of the service
	grain = 1. / 64 // s
)

// said is how fast jobs say they are, samples/s.
var said = map[int]float64{1: 159, 2: 317, 4: 632}

func (s *site) speed(n int) float64 {
	if n == 0 {
		return 0
	}
	return sched.Speed([]float64{159, 317, 632}, n) * (1 + s.off)
}

func (s *site) commit(e Event) {
	if err := s.q.Apply(e); err != nil {
		s.t.Fatal(err)
	}
	j := s.q.Job(e.Job)
	between := func(a, b float64) float64 { return a + (b-a)*s.r.Float64() }
	switch e.Kind {
	case KindBegin:
		l := &life{life: e.Life, made: float64(j.Samples), workers: map[int]*atWork{}, fires: math.NaN(), phase: s.r.Float64(), stops: math.Inf(1), ends: math.Inf(1)}
		l.written.joined = map[int]float64{}
		if s.runs[e.Job] = l; l.made >= float64(j.Spec.Samples) { // it had saved itself after its last update
			l.ends = s.now + 0.5
		}
	case KindAdd:
		l := s.runs[e.Job]
		d := between(0.15, 0.45)
		if len(l.workers) == 0 || math.IsNaN(l.fires) {
			d = between(0.35, 0.9)
		}
		l.workers[e.Member] = &atWork{rank: e.Rank, joins: s.now + d, goes: math.Inf(1)}
	case KindLeave:
		s.runs[e.Job].workers[e.Member].goes = s.now + between(0.05, 0.3)
	case KindStop:
		s.runs[e.Job].stops = s.now + between(0.2, 0.5)
	}
}

func (s *site) settle() { doAll(s.t, s.q, s.now, s.commit) }

// step lets a grain of time pass.
func (s *site) step() {
	s.now += grain
	for _, name := range slices.Sorted(maps.Keys(s.runs)) {
		l, j := s.runs[name], s.q.Job(name)
		n := 0
		for _, w := range l.workers {
			if w.joins <= s.now && s.now < w.goes {
				n++
			}
		}
		if n > 0 && s.now < l.stops && l.made < float64(j.Spec.Samples) {
			l.made = min(l.made+grain*s.speed(n), float64(j.Spec.Samples))
			if l.last = s.now; math.IsNaN(l.fires) {
				l.fires = s.now
			}
			if l.made == float64(j.Spec.Samples) {
				l.ends = s.now + 0.02 + 0.1*s.r.Float64()
			}
		}
		if math.Floor(s.now+l.phase) > math.Floor(s.now+l.phase-grain) || s.now >= min(l.stops, l.ends) {
			l.written.samples, l.written.first, l.written.last = l.made, l.fires, l.last
			for _, w := range l.workers {
				if w.joins <= s.now {
					l.written.joined[w.rank] = w.joins
				}
			}
		}
	}
	if math.Floor(s.now/look) > math.Floor((s.now-grain)/look) {
		s.look()
		s.settle()
	}
}

func (s *site) learned(e Event) {
	if e.Kind != "" {
		s.commit(e)
	}
}

// look is what a service does four times a second, but for its decisions.
func (s *site) look() {
	for _, j := range s.q.Jobs {
		l := s.runs[j.Name]
		if l == nil {
			continue
		}
		if j.State == Running || j.State == Stopping {
			for _, rank := range slices.Sorted(maps.Keys(l.written.joined)) {
				s.learned(s.q.Joined(j, rank, l.written.joined[rank], s.now))
			}
			clear(l.written.joined)
			if l.written.samples > float64(j.Samples) {
				s.learned(s.q.Started(j, l.written.first, l.written.last, s.now))
				s.learned(s.q.Seen(j, int64(l.written.samples), l.written.last, s.now))
			}
			if s.now >= min(l.ends, l.stops) {
				e := Event{At: s.now, Kind: KindEnded, Job: j.Name, Samples: j.Samples}
				if l.ends <= l.stops {
					e.State, e.Took = Done, s.q.SinceUpdate(j, s.now)
				}
				s.commit(e)
				for _, w := range l.workers {
					w.goes = s.now + 0.1*s.r.Float64()
				}
			}
		}
		for _, m := range slices.Clone(j.Members) {
			if w := l.workers[m.ID]; w.goes <= s.now {
				s.commit(Event{At: s.now, Kind: KindGone, Job: j.Name, Member: m.ID})
				delete(l.workers, m.ID)
			}
		}
	}
}

type drawn struct {
	at      float64
	samples int64
	most    int
	within  float64
}

// draw is a set of bench/schedlive.py.
func draw(r *rand.Rand) (ds []drawn) {
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	at := 0.
	for range 6 {
		most := 1 << r.IntN(3)
		seconds := between(15, 40)
		ds = append(ds, drawn{at, int64(seconds*said[most]) / 32 * 32, most, math.Round(seconds*pick(r, []float64{1.3, 2, 3}) + 10)})
		at += between(3, 15)
	}
	return ds
}

// play has jobs come, and goes on until all have ended.
func (s *site) play(ds []drawn, prefix string) (names []string) {
	begin := s.now
	for i := 0; ; {
		if i < len(ds) && s.now >= begin+ds[i].at {
			d := ds[i]
			i++
			spec := Spec{Name: fmt.Sprint(prefix, i), Samples: d.samples, Max: d.most, Workers: d.most, Deadline: d.within, Rates: said}
			e, err := s.q.Submission(spec, true, s.now)
			if err != nil {
				s.t.Fatal(err)
			}
			s.commit(e)
			s.settle()
			names = append(names, spec.Name)
		}
		if i == len(ds) && !slices.ContainsFunc(s.q.Jobs, func(j *Job) bool { return j.Active() || len(j.Members) > 0 }) {
			return names
		}
		if s.now > begin+3600 {
			s.t.Fatalf("no end")
		}
		s.step()
	}
}

// Of sets of six jobs with deadlines, as in bench/schedlive.py, the same deadlines are met as are simulated in at least
// 9 of 10, where starts scatter by half a second and logs are read up to a second late.
func TestSets(t *testing.T) {
	for _, policy := range []string{"edf", "edf-admission", "ef-admission"} {
		const sets = 50
		same := 0
		for seed := range uint64(sets) {
			r := rand.New(rand.NewPCG(seed, 7))
			s := &site{t: t, r: r, q: New([]*Host{{Name: "a", Slots: 4}}), runs: map[string]*life{}, off: 0.01 * r.NormFloat64()}
			begins := func() {
				if err := s.q.Schedule(policy, 5, s.now); err != nil {
					t.Fatal(err)
				}
			}
			begins()
			s.play([]drawn{{0, 3168, 2, 600}, {6, 6304, 4, 600}, {12, 1568, 1, 600}}, "learn")
			begins()
			start, resize := s.q.Took(tookStart)+s.q.Took(tookEnd), s.q.Took(tookResize)
			names := s.play(draw(r), "set")
			if differ := s.simulated(names, sched.Options{Policy: policy, Slot: 5, Start: start, Resize: resize}); len(differ) == 0 {
				same++
			} else {
				t.Logf("%s, seed %d: %s", policy, seed, strings.Join(differ, "; "))
			}
		}
		if t.Logf("%s: %d of %d sets", policy, same, sets); same < sets*9/10 {
			t.Errorf("%s: of %d sets %d are as simulated", policy, sets, same)
		}
	}
}

// simulated returns the jobs for which a simulation with these options disagrees on whether they are in time.
func (s *site) simulated(names []string, o sched.Options) (differ []string) {
	const unit = 10 // simulated jobs end in whole seconds: here these are tenths
	var jobs []*sched.Job
	for _, n := range names {
		j := s.q.Job(n)
		f := j.forPolicy()
		f.Submit, f.Duration, f.Rates = math.Floor(j.Submitted*unit), f.Duration*unit, nil
		f.Deadline = f.Submit + j.Deadline*unit
		for k := 1; k <= j.Max; k *= 2 {
			f.Rates = append(f.Rates, said[k]/unit)
		}
		jobs = append(jobs, f)
	}
	o.Slot, o.Start, o.Resize = o.Slot*unit, o.Start*unit, o.Resize*unit
	out, err := sched.Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 4}}, o)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, f := range out {
		if j := s.q.Job(names[i]); f.Met() != j.Met() {
			differ = append(differ, fmt.Sprintf("%s: simulated to end at %.1f %s, is %s at %.1f, due at %.1f %s", j.Name, f.End/unit, f.Why, j.State, j.Ended, j.Due, j.Why))
		}
	}
	return differ
}
