package coord

import (
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star/coord/advice"
	"star/coord/advisor"
	"star/coord/journal"
	"star/modes"
	"star/ps/rule"
	"star/runlog"
)

// script is a Pilot that returns given remarks after given numbers of lines, and records the lines.
type script struct {
	says map[int]advice.Remark
	mu   sync.Mutex
	told []runlog.Line
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

func (s *script) Tell(l runlog.Line) []advice.Remark {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, l)
	if r, ok := s.says[len(s.told)]; ok {
		return []advice.Remark{r}
	}
	return nil
}

// Outer steps of the pilot for which a worker needs more than an epoch are installed with fewer local steps, and
// without fragments if a shard has too few parameters. The log line, by which the pilot learns of it, has the plan in
// force.
func TestPilotsOuterStepsFitTheEpoch(t *testing.T) {
	for fragments, want := range map[int]string{
		0:  "ssgd local=8 steps=speed outer=nesterov(0.5,0.7)",
		2:  "ssgd local=16 steps=speed outer=nesterov(0.5,0.7) fragments=2",
		64: "ssgd local=8 steps=speed outer=nesterov(0.5,0.7)", // a shard has 50 parameters
	} {
		plan := modes.SSGD(2)
		plan.Local, plan.Outer, plan.StepsBySpeed, plan.Fragments = 64, rule.Outer{Kind: rule.OuterNesterov, Momentum: 0.5, Rate: 0.7}, true, fragments
		pilot := &script{says: map[int]advice.Remark{10: {Change: &advice.Change{Plan: plan, Why: "slow links"}}}}
		play(t, Config{MaxWorkers: 2, Servers: 2, Steps: 200, Outward: true, Pilot: pilot}, func(w *world) { // a batch has 4 of 40 samples
			w.server(0, 1, false)
			w.server(1, 1, false)
			w.worker(0)
			w.worker(1)
			w.finished(10 * time.Minute)
			synctest.Wait()
			plans := w.lines("plan")
			if w.err != nil || len(plans) != 1 || plans[0]["plan"] != want || plans[0]["after"] != 10.0 {
				t.Errorf("%d fragments: %v, %v", fragments, plans, w.err)
			}
		})
	}
}

// The pilot gets the lines of the log in order, and its remarks are carried out and logged.
func TestPilot(t *testing.T) {
	pilot := &script{says: map[int]advice.Remark{
		10: {Verdict: &runlog.Verdict{Worker: 1, Event: "slow", Step: 4, Since: 2, Slowdown: 5, Cause: "compute"}, Text: "w1 5x slow"},
		11: {Verdict: &runlog.Verdict{Worker: 1, Event: "changed", Step: 5, Since: 2, Slowdown: 8, Cause: "compute"}, Text: "w1 8x slow"},
		12: {Change: &advice.Change{Plan: modes.ASGD(2), Why: "w1 is slow", Predicted: 0.25}},
		20: {Gain: &runlog.Gain{Plan: "asgd", Predicted: 0.25, Seen: 0.2}},
		22: {Change: &advice.Change{Plan: modes.SSGD(7)}}, // no plan
		30: {Change: &advice.Change{Plan: modes.SSGD(2), Why: "not heeded"}},
	}}
	play(t, Config{MaxWorkers: 2, Steps: 40, Pilot: pilot}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		w.worker(1, func(f *fakeWorker) { f.pace *= 5 })
		for pilot.count() < 24 {
			time.Sleep(100 * time.Millisecond)
		}
		if s := w.status(); s.Mode != "asgd" || len(s.Stragglers) != 1 || s.Stragglers[0] != "w1 8x slow" || s.Workers[1].Slowdown != 6.5 || !s.Auto {
			t.Errorf("%+v", s)
		}
		if _, no := w.ask("mode", "x=2"); no != "" {
			t.Error(no)
		}
		if s := w.status(); s.Auto {
			t.Error("the pilot is still heeded after star ctl mode")
		}
		for pilot.count() < 34 {
			time.Sleep(100 * time.Millisecond)
		}
		if _, no := w.ask("mode", "auto"); no != "" {
			t.Error(no)
		}
		if s := w.status(); !s.Auto || s.Mode != "ssgd" {
			t.Errorf("%+v", s)
		}
		w.finished(10 * time.Minute)
		synctest.Wait()
		if w.err != nil {
			t.Fatal(w.err)
		}
		plans := w.lines("plan")
		if len(plans) != 3 || plans[0]["after"] != 12.0 || plans[0]["predicted_gain"] != 0.25 || plans[0]["plan"] != "asgd" ||
			plans[1]["why"] != "star ctl" || plans[1]["after"] != nil {
			t.Errorf("%v", plans)
		}
		lost := w.lines("unheeded")
		if len(lost) != 2 || lost[0]["after"] != 22.0 || lost[1]["after"] != 30.0 || lost[1]["plan"] != "ssgd" || lost[1]["why"] != "not heeded" || lost[1]["because"] != "star ctl mode has set another plan" {
			t.Errorf("%v", lost)
		}
		if v := w.lines("verdict"); len(v) != 2 || v[0]["cause"] != "compute" {
			t.Errorf("%v", v)
		}
		if g := w.lines("gain"); len(g) != 1 || g[0]["seen_gain"] != 0.2 {
			t.Errorf("%v", g)
		}

		// A reader of the log sees the same lines as the pilot, which need not have read the last ones.
		var read []runlog.Line
		if _, err := runlog.Read(strings.NewReader(w.run.String()), "run.jsonl", func(l runlog.Line) error {
			switch l.Entry.(type) {
			case runlog.Train, runlog.Record, runlog.Fire, runlog.Noise, runlog.Plan, runlog.Leave:
				read = append(read, l)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		pilot.count()
		heard := w.lines("heard")
		if len(heard) != 1 || len(pilot.told) > len(read) || float64(len(pilot.told)) < heard[0]["after"].(float64) {
			t.Fatalf("%d lines in the log, %d were told, heard were %v", len(read), len(pilot.told), heard)
		}
		for i := range pilot.told {
			read[i].Number = 0
			if a, b := show(read[i]), show(pilot.told[i]); a != b {
				t.Errorf("line %d of the log is\n%s, told was\n%s", i, a, b)
			}
		}
	})
}

// show makes lines comparable: NaN is not equal to itself.
func show(l runlog.Line) string {
	return fmt.Sprintf("%v %v %+v", l.T, reflect.TypeOf(l.Entry), l.Entry)
}

// restless is a slow Pilot that wants another plan after each line that is not about plans.
type restless struct {
	lag  time.Duration
	want []modes.Plan // in turn
	told int64
	mu   sync.Mutex
	said map[int64]string // plans by the number of lines it had read
}

func (p *restless) Tell(l runlog.Line) []advice.Remark {
	time.Sleep(p.lag)
	c := &advice.Change{Plan: p.want[p.told%int64(len(p.want))], Why: "w", Predicted: 0.5}
	p.told++
	switch l.Entry.(type) {
	case runlog.Plan, runlog.Admission: // it would have no end
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said[p.told] = c.Plan.String()
	return []advice.Remark{{Change: c}}
}

// Every decision of a pilot is in the log, carried out or not; the log says from where on decisions came after the end
// of the job.
func TestEveryDecisionIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		lag   time.Duration
		clerk *clerk
	}{
		"in time":          {},
		"behind":           {lag: time.Second},
		"standing still":   {lag: 9 * time.Hour},
		"granted":          {clerk: &clerk{rule: func(string) (bool, string, bool) { return true, "there is room", true }}},
		"refused":          {clerk: &clerk{rule: func(string) (bool, string, bool) { return false, "no room", true }}},
		"answered late":    {clerk: &clerk{rule: func(string) (bool, string, bool) { return false, "", false }}},
		"behind, answered": {time.Second, &clerk{rule: func(string) (bool, string, bool) { return true, "there is room", true }}},
	} {
		t.Run(name, func(t *testing.T) {
			pilot := &restless{lag: c.lag, said: map[int64]string{}, want: []modes.Plan{modes.ASGD(2), modes.SSGD(2), modes.SSGD(2), modes.XOrder(2, 1)}}
			late := name == "answered late"
			if late {
				pilot.want = pilot.want[:1]
			}
			cfg := Config{MaxWorkers: 2, Steps: 40, Pilot: pilot}
			if c.clerk != nil {
				cfg.Admission = c.clerk
			}
			play(t, cfg, func(w *world) {
				w.server(0, 1, false)
				w.worker(0)
				w.worker(1, func(f *fakeWorker) { f.pace *= 5 })
				time.Sleep(15 * time.Second)
				_, no := w.ask("mode", "x=1")
				if late {
					c.clerk.say(true, "there is room now")
				}
				time.Sleep(15 * time.Second)
				if _, never := w.ask("mode", "auto"); no != "" || never != "" {
					t.Fatal(no, never)
				}
				w.finished(10 * time.Minute)
				time.Sleep(5000 * time.Hour) // until the pilot has ended, too
				if w.err != nil {
					t.Fatal(w.err)
				}
				heard := w.lines("heard")
				if len(heard) != 1 {
					t.Fatalf("%v", heard)
				}
				logged := map[int64]string{}
				for _, kind := range []string{"admission", "plan", "unheeded"} {
					for _, l := range w.lines(kind) {
						if after, ok := l["after"].(float64); ok {
							logged[int64(after)] = l["plan"].(string)
						}
					}
				}
				pilot.mu.Lock()
				defer pilot.mu.Unlock()
				up := int64(heard[0]["after"].(float64))
				for after, plan := range pilot.said {
					if got, ok := logged[after]; ok && got != plan || !ok && after <= up {
						t.Errorf("the pilot wanted %s after %d lines, of %d heard, and the log says %q", plan, after, up, got)
					}
					delete(logged, after)
				}
				if len(logged) > 0 {
					t.Errorf("the log has what was not wanted: %v", logged)
				}
				if report := c.lag > time.Hour; up == 0 != report {
					t.Errorf("the pilot was heard on %d lines", up)
				}
			})
		})
	}
}

// The pilot's decisions that are still open when the job ends are in the log, too.
func TestLastWords(t *testing.T) {
	var text syncBuffer
	c := &Coordinator{journal: journal.New(runlog.NewWriter(&text), slog.New(slog.DiscardHandler)), in: inbox{events: make(chan event, 2), done: make(chan struct{})}}
	defer close(c.in.done)
	c.journal.Begin(time.Now())
	c.journal.Follow(advisor.Start(&script{}, c.in.done, func(advisor.Word) bool { return true }))
	for range 7 {
		c.journal.Tell(0, runlog.Record{})
	}
	for end := time.Now().Add(time.Minute); c.journal.Heard() < 7; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d of 7 lines were heard", c.journal.Heard())
		}
	}
	remark := &pilotAction{Remark: advice.Remark{Text: "all is well"}, after: 3}
	c.in.events <- inside(kindPilotAction, internal{action: remark})
	c.in.events <- inside(kindPilotAction, internal{action: &pilotAction{Remark: wants(modes.ASGD(2)), after: 5}})
	c.lastWords()
	c.journal.Flush()
	var got []any
	if _, err := runlog.Read(strings.NewReader(`{"type":"start","format":1}`+"\n"+`{"type":"train","t":0,"workers":2,"version":0,"limit":1}`+"\n"+text.String()), "run.jsonl", func(l runlog.Line) error { got = append(got, l.Entry); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []any{runlog.Unheeded{Plan: "asgd", Why: "w", Because: "the job is over", After: 5}, runlog.Heard{After: 7}}; !reflect.DeepEqual(got[2:], want) {
		t.Errorf("%+v, want %+v", got[2:], want)
	}
}

func TestNoPilot(t *testing.T) {
	play(t, Config{MaxWorkers: 1, Steps: 30}, func(w *world) {
		w.server(0, 1, false)
		w.worker(0)
		synctest.Wait()
		if _, no := w.ask("mode", "auto"); !strings.Contains(no, "not started with --mode auto") {
			t.Error(no)
		}
		w.finished(10 * time.Minute)
	})
}
