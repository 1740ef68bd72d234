package coord

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"star/coord/advice"
	"star/modes"
	"star/runlog"
)

// clerk is an Admission that does what a test says.
type clerk struct {
	mu     sync.Mutex
	asked  []string
	yields int
	answer func(ok bool, why string) // of the last Ask
	rule   func(plan string) (ok bool, why string, now bool)
}

func (k *clerk) Ask(p modes.Plan, answer func(bool, string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, p.String())
	k.answer = answer
	if ok, why, now := k.rule(p.String()); now {
		go answer(ok, why)
	}
}

func (k *clerk) Yield() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.yields++
}

func (k *clerk) say(ok bool, why string) {
	k.mu.Lock()
	answer := k.answer
	k.mu.Unlock()
	answer(ok, why)
}

// hear records the lines on plans and admissions that the pilot got.
func (s *script) hear() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.told {
		switch e := l.Entry.(type) {
		case runlog.Plan:
			out = append(out, fmt.Sprintf("plan %s after %d forced %v", e.Plan, e.After, e.Forced))
		case runlog.Admission:
			out = append(out, fmt.Sprintf("%s %v now %s after %d: %s", e.Plan, e.Granted, e.Now, e.After, e.Why))
		}
	}
	return out
}

func wants(plan modes.Plan) advice.Remark {
	return advice.Remark{Change: &advice.Change{Plan: plan, Why: "w", Predicted: 0.5}}
}

// The plan changes after a yes and not before; a no leaves it unchanged; a withdrawn yes returns to SSGD. All of it is
// in the log, and the pilot gets the same lines.
func TestAdmission(t *testing.T) {
	for name, c := range map[string]struct {
		says map[int]advice.Remark
		rule func(plan string) (ok bool, why string, now bool)
		late func(k *clerk) // after a while
		want []string
		mode string // at the end
		gave int    // Yields
		no   string // what Status says is refused, with its reason
	}{
		"granted": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2))},
			rule: func(string) (bool, string, bool) { return true, "there is room", true },
			want: []string{"asgd true now ssgd after 10: there is room", "plan asgd after 10 forced false"},
			mode: "asgd",
		},
		"refused": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2))},
			rule: func(string) (bool, string, bool) { return false, "no room", true },
			want: []string{"asgd false now ssgd after 10: no room"},
			mode: "ssgd",
			no:   "asgd: no room",
		},
		"taken back": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2))},
			rule: func(string) (bool, string, bool) { return true, "there is room", true },
			late: func(k *clerk) { k.say(false, "the service is gone") },
			want: []string{
				"asgd true now ssgd after 10: there is room", "plan asgd after 10 forced false",
				"plan ssgd after 0 forced true", "asgd false now ssgd after 10: the service is gone",
			},
			mode: "ssgd",
			no:   "asgd: the service is gone",
		},
		"given back": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2)), 20: wants(modes.SSGD(2))},
			rule: func(string) (bool, string, bool) { return true, "there is room", true },
			want: []string{"asgd true now ssgd after 10: there is room", "plan asgd after 10 forced false", "plan ssgd after 20 forced false"},
			mode: "ssgd",
			gave: 1,
		},
		"another mind": {
			says: map[int]advice.Remark{10: wants(modes.XOrder(2, 1)), 20: wants(modes.ASGD(2))},
			rule: func(plan string) (bool, string, bool) { return true, "there is room", plan == "asgd" },
			want: []string{
				"x=1 false now ssgd after 10: the pilot has chosen another plan",
				"asgd true now ssgd after 20: there is room", "plan asgd after 20 forced false",
			},
			mode: "asgd",
		},
		"another one refused": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2)), 20: wants(modes.XOrder(2, 1))},
			rule: func(plan string) (bool, string, bool) { return plan == "asgd", "as it is", true },
			want: []string{
				"asgd true now ssgd after 10: as it is", "plan asgd after 10 forced false",
				"plan ssgd after 0 forced true", "x=1 false now ssgd after 20: as it is",
			},
			mode: "ssgd",
			no:   "x=1: as it is",
		},
		"back before the answer": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2)), 20: wants(modes.SSGD(2))},
			rule: func(string) (bool, string, bool) { return true, "too late", false },
			late: func(k *clerk) { k.say(true, "too late") },
			want: []string{"asgd false now ssgd after 10: the pilot has chosen another plan"},
			mode: "ssgd",
			gave: 1,
		},
		"refused, and not wanted any more": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2)), 20: wants(modes.SSGD(2))},
			rule: func(string) (bool, string, bool) { return false, "no room", true },
			want: []string{"asgd false now ssgd after 10: no room"},
			mode: "ssgd",
		},
		"no answer": {
			says: map[int]advice.Remark{10: wants(modes.ASGD(2))},
			rule: func(string) (bool, string, bool) { return false, "", false },
			mode: "ssgd",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pilot := &script{says: c.says}
			k := &clerk{rule: c.rule}
			play(t, Config{MaxWorkers: 2, Steps: 40, Pilot: pilot, Admission: k}, func(w *world) {
				w.server(0, 1, false)
				w.worker(0)
				w.worker(1, func(f *fakeWorker) { f.pace *= 5 })
				for pilot.count() < 30 {
					time.Sleep(100 * time.Millisecond)
				}
				if c.late != nil {
					c.late(k)
				}
				for pilot.count() < 45 {
					time.Sleep(100 * time.Millisecond)
				}
				if got := pilot.hear(); !slices.Equal(got, c.want) {
					t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
				s, no := w.status(), ""
				if s.Mode != c.mode {
					t.Errorf("the mode is %s, want %s", s.Mode, c.mode)
				}
				if r := s.Refused; r != nil && r.At > 0 && r.At <= s.Elapsed {
					no = r.Mode + ": " + r.Why
				}
				if no != c.no {
					t.Errorf("%q is refused, want %q", no, c.no)
				}
				if n := len(w.lines("admission")) + len(w.lines("plan")); n != len(c.want) {
					t.Errorf("%d lines in the log, want %d", n, len(c.want))
				}
				if k.yields != c.gave {
					t.Errorf("given back %d times, want %d", k.yields, c.gave)
				}
			})
		})
	}
}

func TestInStep(t *testing.T) {
	for spec, want := range map[string]bool{"ssgd": true, "asgd": false, "x=3": false, "x=4": true, "groups=0,1/2,3": false, "backup=1": false, "tree=0(1,2),3": true} {
		p, err := modes.Parse(spec, 4)
		if err != nil {
			t.Fatal(err)
		}
		if got := InStep(p); got != want {
			t.Errorf("%s (%v): %v, want %v", spec, p, got, want)
		}
	}
}
