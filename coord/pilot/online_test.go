package pilot

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
	"star/coord/advice"
	"star/modes"
	"star/runlog"
	"star/straggler"
)

// seeded is the randomness of trainings, by a seed.
func seeded(seed uint64) func(int) straggler.Source {
	return func(lesson int) straggler.Source { return rand.New(rand.NewPCG(seed, uint64(lesson))) }
}

// class plays a job to a pilot and does the studies that it wants. The pilot gets the result of a study "delay" lines
// after it asked for it.
type class struct {
	t     *testing.T
	pilot *Pilot
	delay int

	log   []runlog.Line
	said  map[int][]string // by the number of lines told
	study advice.Study
	after int // lines told when it was wanted
	asked []int

	// The champion, and of how many records it has been that.
	champion string
	streak   int
}

func newPilot(t *testing.T, workers int, random func(int) straggler.Source) *Pilot {
	t.Helper()
	p, err := New(Config{Workers: workers, Batch: 8, Plan: modes.SSGD(workers), Online: random})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tell tells a line, and does what the pilot says.
func (c *class) tell(l runlog.Line) {
	c.log = append(c.log, l)
	n := len(c.log)
	var change *advice.Change
	for _, s := range c.pilot.Tell(l) {
		switch {
		case s.Study != nil:
			if c.study != nil {
				c.t.Fatalf("after %d lines a second study, the first of which is not finished", n)
			}
			c.study, c.after, c.asked = s.Study, n, append(c.asked, n)
		case s.Change != nil:
			change = s.Change
			fallthrough
		default:
			c.said[n] = append(c.said[n], show(s))
		}
	}
	c.check(l)
	if change != nil {
		c.tell(runlog.Line{T: l.T, Entry: runlog.Plan{Plan: change.Plan.String(), From: "ssgd", Why: change.Why, After: int64(n)}})
	}
	if c.study != nil && n >= c.after+c.delay {
		for c.study.Step() {
		}
		r := c.study.Result()
		r.After, c.study = int64(c.after), nil
		c.tell(runlog.Line{T: l.T, Entry: r})
	}
}

// check looks at the contest after a line.
func (c *class) check(l runlog.Line) {
	p := c.pilot
	switch e := l.Entry.(type) {
	case runlog.Record:
		if now := p.contest.Champion().Name; now != c.champion {
			c.champion, c.streak = now, 0
		}
		c.streak++
		for _, s := range c.said[len(c.log)] {
			if strings.HasPrefix(s, "predictor ") && c.streak < lasting*p.cfg.Workers {
				c.t.Errorf("%q after %d records", s, c.streak)
			}
		}
	case runlog.Predictor:
		if e.Error.IsZero() {
			break
		}
		if now := p.contest.Champion().Name; now != "ewma" {
			c.t.Errorf("%s is the champion, and has only now been trained", now)
		}
		for w := range p.cfg.Workers {
			if p.online.lstm.Next(star.Worker(w)) <= 0 {
				c.t.Errorf("the new predictor predicts nothing of worker %d", w)
			}
		}
	}
}

func show(r advice.Remark) string {
	switch {
	case r.Verdict != nil:
		return fmt.Sprintf("%+v", *r.Verdict)
	case r.Gain != nil:
		return fmt.Sprintf("%+v", *r.Gain)
	case r.Change != nil:
		return fmt.Sprintf("%s %s %v", r.Change.Plan, r.Change.Why, r.Change.Predicted)
	}
	return r.Text
}

// rhythm tells of a job with a last worker that is slow in every tenth iteration.
func (c *class) rhythm(workers, iterations int) {
	rnd := rand.New(rand.NewPCG(3, 3))
	at := time.Duration(0)
	c.tell(runlog.Line{Entry: runlog.Train{Workers: workers, Params: 1000, Limit: int64(8 * workers * iterations), Plan: "ssgd"}})
	var all []star.Worker
	for w := range workers {
		all = append(all, star.Worker(w))
	}
	for i := range iterations {
		longest := time.Duration(0)
		for w := range workers {
			d := time.Duration(1e8 * (1 + 0.05*rnd.NormFloat64()))
			if w == workers-1 && i%10 == 9 {
				d *= 3
			}
			longest = max(longest, d)
			c.tell(runlog.Line{T: at + d, Entry: runlog.Record{Record: star.Record{
				Worker: star.Worker(w), Step: int64(i), Basis: int64(i), At: at + d, Compute: d, Samples: 8, CPU: 0.9, NetIn: 1e5, NetOut: 1e5}}})
		}
		at += longest
		c.tell(runlog.Line{T: at, Entry: runlog.Fire{Seq: int64(i), Version: int64(i) + 1, Workers: all,
			Staleness: make([]int64, workers), Samples: int64(8 * workers * (i + 1))}})
	}
}

// replay tells a fresh pilot the log and nothing else.
func replay(p *Pilot, log []runlog.Line) map[int][]string {
	said := map[int][]string{}
	for i, l := range log {
		for _, s := range p.Tell(l) {
			if s.Study == nil {
				said[i+1] = append(said[i+1], show(s))
			}
		}
	}
	return said
}

// soon is for how many iterations tests wait before the first training, which then is a short one.
const soon = 75

// A job with a rhythm teaches a predictor that beats the moving average. However long the trainings take, the log
// replays to the same words in the same places.
func TestOnline(t *testing.T) {
	first := math.NaN() // error of the first training: when it is done makes no difference
	for _, delay := range []int{0, 500} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			c := &class{t: t, pilot: newPilot(t, 4, seeded(1)), delay: delay, said: map[int][]string{}}
			c.pilot.online.due = 4 * soon
			c.rhythm(4, 260)
			lessons, crowned := 0, false
			for i, l := range c.log {
				if p, ok := l.Entry.(runlog.Predictor); ok {
					if lessons++; lessons == 1 && math.IsNaN(first) {
						first = float64(p.Error)
					} else if lessons == 1 && float64(p.Error) != first {
						t.Errorf("%d lines later the same training has an error of %v, not %v", delay, p.Error, first)
					}
				}
				for _, s := range c.said[i+1] {
					if strings.HasPrefix(s, "predictor lstm, ") {
						crowned = true
						if lessons == 0 {
							t.Errorf("line %d: %s, and none was trained", i+1, s)
						}
					}
				}
			}
			if !crowned || c.pilot.champion != "lstm" {
				t.Errorf("the champion is %s: %v", c.pilot.champion, c.pilot.contest)
			}
			// After "soon" iterations of 4 workers, and of twice as many, or when the one before is finished.
			for i, n := range c.asked {
				records := 0
				for _, l := range c.log[:n] {
					if _, ok := l.Entry.(runlog.Record); ok {
						records++
					}
				}
				if want := 4 * soon << i; records < want || delay < 2 && records != want {
					t.Errorf("training %d began after %d records, want %d", i, records, want)
				}
			}
			if want := map[int]int{0: 2, 500: 1}[delay]; lessons != want {
				t.Errorf("%d trainings, want %d", lessons, want)
			}
			again := newPilot(t, 4, seeded(1))
			again.online.due = 4 * soon
			if d := differ(c.said, replay(again, c.log)); d != "" {
				t.Error(d)
			}
		})
	}
}

func differ(a, b map[int][]string) string {
	for n, s := range a {
		if fmt.Sprint(s) != fmt.Sprint(b[n]) {
			return fmt.Sprintf("after %d lines the job said %q, the replay %q", n, s, b[n])
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("remarks after %d lines of the job, %d of the replay", len(a), len(b))
	}
	return ""
}

// What does not fit the log is said.
func TestOnlineOddLines(t *testing.T) {
	c := &class{t: t, pilot: newPilot(t, 2, seeded(1)), said: map[int][]string{}}
	c.rhythm(2, 160)
	at, records := 0, 0
	for i, l := range c.log {
		switch l.Entry.(type) {
		case runlog.Predictor:
			at = i
		case runlog.Record:
			if at == 0 {
				records++
			}
		}
	}
	if records != 2*150 {
		t.Errorf("the first training was after %d records", records)
	}
	if at == 0 {
		t.Fatal("nothing was trained")
	}
	last := func(p *Pilot, change func(*runlog.Predictor)) string {
		line := c.log[at].Entry.(runlog.Predictor)
		change(&line)
		replay(p, c.log[:at])
		return fmt.Sprint(replay(p, []runlog.Line{{T: c.log[at].T, Entry: line}})[1])
	}
	same := func(*runlog.Predictor) {}
	if s := last(newPilot(t, 2, seeded(1)), same); s != "[]" {
		t.Error(s)
	}
	if s := last(newPilot(t, 2, seeded(2)), same); !strings.Contains(s, "another build or processor") {
		t.Error(s)
	}
	if s := last(newPilot(t, 2, seeded(1)), func(r *runlog.Predictor) { r.Records++ }); !strings.Contains(s, "was not asked for") {
		t.Error(s)
	}
	if s := last(newPilot(t, 2, nil), same); s != "[]" {
		t.Errorf("without training: %s", s)
	}
	p := newPilot(t, 2, seeded(1))
	if s := fmt.Sprint(replay(p, []runlog.Line{c.log[0], c.log[at]})); !strings.Contains(s, "was not asked for") {
		t.Error(s)
	}
}

// Records that nothing can be learned from make no predictor, and the job goes on with the moving average.
func TestOnlineUnusable(t *testing.T) {
	c := &class{t: t, pilot: newPilot(t, 1, seeded(1)), said: map[int][]string{}}
	c.tell(runlog.Line{Entry: runlog.Train{Workers: 1, Params: 10, Limit: 1e6, Plan: "ssgd"}})
	for i := range 400 {
		r := star.Record{Step: int64(i), Samples: 8, Compute: -time.Second}
		c.tell(runlog.Line{T: time.Duration(i) * time.Second, Entry: runlog.Record{Record: r}})
	}
	said := fmt.Sprint(c.said)
	if n := strings.Count(said, "no predictor was trained on "); n != 2 || !strings.Contains(said, "0 rows are too few") {
		t.Errorf("%d failures: %s", n, said)
	}
	if d := differ(c.said, replay(newPilot(t, 1, seeded(1)), c.log)); d != "" {
		t.Error(d)
	}
}

func never() bool { return false }

// On full processors no training begins. It begins when they are free, with what was recorded meanwhile.
func TestOnlineWaitsForAProcessor(t *testing.T) {
	p := newPilot(t, 2, seeded(1))
	c := &class{t: t, pilot: p, said: map[int][]string{}, champion: "ewma"}
	c.tell(runlog.Line{Entry: runlog.Train{Workers: 2, Params: 10, Limit: 1e6, Plan: "ssgd"}})
	for i := range 600 {
		for w := range star.Worker(2) {
			r := star.Record{Worker: w, Step: int64(i), Basis: int64(i), Samples: 8, Compute: time.Second}
			busy := 0.95
			if i >= 400 {
				busy = 0.3
			}
			r.Telemetry.Set(star.HostCPU, busy)
			c.tell(runlog.Line{T: time.Duration(i) * time.Second, Entry: runlog.Record{Record: r}})
		}
		if i < 400 && len(c.asked) > 0 {
			t.Fatalf("a training began in iteration %d on full processors", i)
		}
	}
	if len(c.asked) != 1 {
		t.Errorf("%d trainings, want 1", len(c.asked))
	}
}

// A new predictor has been shown the last iterations of all workers when it begins, in their order.
func TestOnlineWarm(t *testing.T) {
	o := newOnline(3, star.Record.Busy, seeded(1))
	for i := range 1000 {
		o.observe(star.Record{Worker: star.Worker(i % 3), Step: int64(i), Compute: time.Second, Samples: 1}, never)
	}
	if n := len(o.recent); n != 3*warmUp {
		t.Fatalf("%d records are kept, want %d", n, 3*warmUp)
	}
	for i := range o.recent {
		if got, want := o.recent[(o.next+i)%len(o.recent)].Step, int64(1000-3*warmUp+i); got != want {
			t.Fatalf("record %d is of step %d, want %d", i, got, want)
		}
	}
}

// What is kept is bounded, whatever the number of workers and however long the job.
func TestOnlineBounded(t *testing.T) {
	for workers, iterations := range map[int]int{1: 9000, 33: 600, 500: 600} {
		o := newOnline(workers, star.Record.Busy, seeded(1))
		for i := range iterations {
			for w := range workers {
				o.observe(star.Record{Worker: star.Worker(w), Step: int64(i), Compute: time.Second, Samples: 1}, never)
				if o.study != nil {
					o.study = nil // as if it had been told of
				}
			}
			if o.history.Rows() > lessonRows*11/10 {
				t.Fatalf("%d workers: %d rows after %d iterations", workers, o.history.Rows(), i+1)
			}
		}
		if rows := o.history.Rows(); rows < lessonRows*9/10 {
			t.Errorf("%d workers: %d rows after %d iterations", workers, rows, iterations)
		}
		if o.lessons > 14 {
			t.Errorf("%d workers: %d trainings", workers, o.lessons)
		}
	}
}

// What an iteration of 8 workers costs the pilot: eight records and an update; with a predictor that was trained
// online, and without.
func BenchmarkTell(b *testing.B) {
	for _, test := range []struct {
		name   string
		random func(int) straggler.Source
	}{{"none", nil}, {"online", seeded(1)}} {
		b.Run(test.name, func(b *testing.B) {
			p, err := New(Config{Workers: 8, Batch: 8, Plan: modes.SSGD(8), Online: test.random})
			if err != nil {
				b.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(1, 1))
			step, at := int64(0), time.Duration(0)
			iteration := func() {
				for w := range star.Worker(8) {
					d := time.Duration(1e8 * (1 + 0.05*rnd.NormFloat64()))
					for _, s := range p.Tell(runlog.Line{T: at + d, Entry: runlog.Record{Record: star.Record{
						Worker: w, Step: step, Basis: step, At: at + d, Compute: d, Samples: 8, CPU: 0.9}}}) {
						if s.Study != nil {
							for s.Study.Step() {
							}
							defer p.Tell(runlog.Line{T: at + d, Entry: s.Study.Result()})
						}
					}
				}
				at += 130 * time.Millisecond
				step++
				p.Tell(runlog.Line{T: at, Entry: runlog.Fire{Seq: step, Version: step, Workers: []star.Worker{0, 1, 2, 3, 4, 5, 6, 7}, Samples: 64 * step}})
			}
			for range 160 {
				iteration()
			}
			if p.online != nil {
				p.online.due = 1 << 30
			}
			b.ReportAllocs()
			for b.Loop() {
				iteration()
			}
		})
	}
}
