package modes

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/internal/outer"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want Plan
		out  string // as String writes it; empty: like in
	}{
		{in: "ssgd", n: 4, want: SSGD(4)},
		{in: "asgd", n: 4, want: ASGD(4)},
		{in: "asgd", n: 1, want: SSGD(1), out: "ssgd"},
		{in: "x=3", n: 4, want: XOrder(4, 3)},
		{in: "x=1", n: 4, want: XOrder(4, 1)},
		{in: "x=4", n: 4, want: SSGD(4), out: "ssgd"},
		{in: "backup=1", n: 4, want: Backup(4, 1)},
		{in: "backup=0", n: 4, want: Backup(4, 0)},
		{in: "groups=0,1/2,3", n: 4, want: Grouped([]star.Worker{0, 1}, []star.Worker{2, 3})},
		{in: "groups=3,2/1,0", n: 4, want: Grouped([]star.Worker{2, 3}, []star.Worker{0, 1}), out: "groups=2,3/0,1"},
		{in: "groups=0-3", n: 4, want: SSGD(4), out: "ssgd"},
		{in: "groups=0-2+3", n: 4, want: Plan{Groups: []Group{{Members: ranks(3), Quorum: 3, Riders: []star.Worker{3}}}}},
		{in: "groups=0-2:2!+3,4/5", n: 6, want: Plan{Groups: []Group{
			{Members: ranks(3), Quorum: 2, Riders: []star.Worker{3, 4}, DropLate: true},
			{Members: []star.Worker{5}, Quorum: 1},
		}}},
		{in: "ring-minus=3,2", n: 4, want: Ring(4, 2, 3), out: "groups=0,1+2,3"},
		{in: "ring-minus=0-2", n: 5, want: Ring(5, 0, 1, 2), out: "groups=3,4+0-2"},
		{in: "ssp=3", n: 4, want: Plan{Groups: ASGD(4).Groups, MaxLead: 4}},
		{in: "asgd ahead=0", n: 4, want: Plan{Groups: ASGD(4).Groups, MaxLead: 1}, out: "ssp=0"},
		{in: "ssp=2", n: 1, want: Plan{Groups: SSGD(1).Groups, MaxLead: 3}, out: "ssgd ahead=2"},
		{in: "x=1 ahead=2", n: 3, want: Plan{Groups: XOrder(3, 1).Groups, MaxLead: 3}},
		{in: "groups=0,1 held=3,2", n: 4, want: Plan{Groups: SSGD(2).Groups, Excluded: []star.Worker{2, 3}}, out: "groups=0,1 held=2,3"},
		{in: "groups=0/1 ahead=1 held=2", n: 3, want: Plan{Groups: ASGD(2).Groups, MaxLead: 2, Excluded: []star.Worker{2}}},
		{in: "ssgd local=8 shares=1,2", n: 2, want: Plan{Groups: SSGD(2).Groups, Local: 8, Shares: []int{1, 2}}},
		{in: "ssgd local=8 outer=nesterov", n: 2, want: Plan{Groups: SSGD(2).Groups, Local: 8, Outer: outer.Rule{Kind: outer.Nesterov, Momentum: 0.9, Rate: 0.7}}, out: "ssgd local=8 outer=nesterov(0.9,0.7)"},
		{in: "ssgd local=2048samples outer=nesterov(0.5,1)", n: 2, want: Plan{Groups: SSGD(2).Groups, Local: 2048, LocalSamples: true, Outer: outer.Rule{Kind: outer.Nesterov, Momentum: 0.5, Rate: 1}}},
		{in: "ssgd local=64 steps=speed outer=nesterov(0.5,1) fragments=4", n: 2, want: Plan{Groups: SSGD(2).Groups, Local: 64, StepsBySpeed: true, Outer: outer.Rule{Kind: outer.Nesterov, Momentum: 0.5, Rate: 1}, Fragments: 4}},
		{in: "ssgd outer=mean local=8", n: 2, want: Plan{Groups: SSGD(2).Groups, Local: 8}, out: "ssgd local=8"},
		{in: "x=2 grace=200ms local=64 steps=speed outer=delayed(0.5,1) shares=1,2,3", n: 3, want: Plan{Groups: XOrder(3, 2).Groups, Local: 64, StepsBySpeed: true, Outer: outer.Rule{Kind: outer.Delayed, Momentum: 0.5, Rate: 1}, Grace: 200 * time.Millisecond, Shares: []int{1, 2, 3}}},
		{in: "backup=1 grace=1.5s", n: 3, want: Plan{Groups: Backup(3, 1).Groups, Grace: 1500 * time.Millisecond}},
		{in: "asgd local=4 outer=lookahead(0,2)", n: 2, want: Plan{Groups: ASGD(2).Groups, Local: 4, Outer: outer.Rule{Kind: outer.Lookahead, Rate: 2}}},
		{in: "x=2 micro=8 cap=120ms", n: 3, want: Plan{Groups: XOrder(3, 2).Groups, Micro: 8, ComputeDeadline: 120 * time.Millisecond}},
		{in: "ssgd queue=8", n: 3, want: Plan{Groups: SSGD(3).Groups, Queue: 8}},
		{in: "ssgd queue=8 shares=1,2", n: 2, want: Plan{Groups: SSGD(2).Groups, Queue: 8, Shares: []int{1, 2}}},
		{in: " x=2  shares=1,2,3 ", n: 3, want: Plan{Groups: XOrder(3, 2).Groups, Shares: []int{1, 2, 3}}, out: "x=2 shares=1,2,3"},
	} {
		p, err := Parse(c.in, c.n)
		if err != nil {
			t.Errorf("Parse(%q, %d): %v", c.in, c.n, err)
			continue
		}
		if !p.Equal(c.want) {
			t.Errorf("Parse(%q, %d) = %v, want %v", c.in, c.n, p, c.want)
		}
		out := c.out
		if out == "" {
			out = c.in
		}
		if p.String() != out {
			t.Errorf("Parse(%q, %d).String() = %q, want %q", c.in, c.n, p.String(), out)
		}
	}
}

// Local steps in samples are as many steps of a worker's mini-batch as come nearest to them.
func TestSteps(t *testing.T) {
	p, err := Parse("ssgd local=100samples outer=nesterov shares=10,32,64,201", 4)
	if err != nil {
		t.Fatal(err)
	}
	for w, want := range []int{10, 3, 2, 1} {
		if got := p.Steps(star.Worker(w), 7); got != want {
			t.Errorf("worker %d makes %d steps, want %d", w, got, want)
		}
	}
	p.Shares = nil
	if got := p.Steps(3, 8); got != 13 {
		t.Errorf("%d steps of 8 samples, want 13", got)
	}
	if p.Fragments = 4; p.Steps(3, 8) != 3 {
		t.Errorf("%d steps of 8 samples for one of four fragments, want 3", p.Steps(3, 8))
	}
	if p.LocalSamples = false; p.Steps(0, 7) != 25 {
		t.Errorf("%d steps for one of four fragments, want 25", p.Steps(0, 7))
	}
	if p.Fragments = 0; p.Steps(0, 7) != 100 {
		t.Errorf("%d steps, want 100", p.Steps(0, 7))
	}
}

// Every error names what is wrong and shows what is wanted.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		says string
	}{
		{"", 4, "it is empty"},
		{"sgd", 4, `"sgd" is not a mode`},
		{"ssgd", 0, "0 workers"},
		{"ssgd=3", 4, "takes no value"},
		{"x", 4, "x is \"\""},
		{"x=0", 4, "1..4"},
		{"x=5", 4, "1..4"},
		{"x=two", 4, `"two"`},
		{"x=99999999999999999999", 4, "1..4"},
		{"backup=4", 4, "0..3"},
		{"backup=-1", 4, "0..3"},
		{"groups=", 4, `"" is not a worker`},
		{"groups=0,1", 4, "worker 2 is in no group"},
		{"groups=0,1/1,2,3", 4, "worker 1 is a member of group 0 and of group 1"},
		{"groups=0,0,1,2,3", 4, "twice"},
		{"groups=0,1,1/2", 4, "twice"},
		{"groups=0,1/2,4", 4, "worker 4 is not in 0..3"},
		{"groups=0-9999999999", 4, "not in 0..3"},
		{"groups=3-0", 4, "not in 0..3"},
		{"groups=0-3:5", 4, "quorum 5"},
		{"groups=0-3:0", 4, "quorum 0"},
		{"groups=0-3:", 4, `quorum ""`},
		{"groups=0-3+3", 4, "member and rider"},
		{"groups=0-2+3,3", 4, "rider 3 twice"},
		{"groups=0-2+", 3, `"" is not a worker`},
		{"groups=0-2/", 3, `"" is not a worker`},
		{"ring-minus", 4, `"" is not a worker`},
		{"ring-minus=4", 4, "not in 0..3"},
		{"ring-minus=0-3", 4, "no worker is left in the ring"},
		{"ring-minus=1,1", 4, "rider 1 twice"},
		{"ssgd shares=1,2", 4, "2 shares for 4 workers"},
		{"ssgd shares=1,2,0,3", 4, "worker 2 has a share of 0"},
		{"ssgd shares=1,2,x,3", 4, `share "x"`},
		{"ssgd fast", 4, `"fast"`},
		{"ssp=-1", 4, "0..1073741823"},
		{"ssp", 4, `ssp is ""`},
		{"ssp=1 ahead=2", 4, "ahead is given twice"},
		{"x=2 ahead=1", 4, "a worker waits only for the slowest"},
		{"groups=0-2:1!/3 ahead=1", 4, "a worker waits only for the slowest"},
		{"groups=0-2:1+3 ahead=1", 4, "a worker waits only for the slowest"},
		{"ssgd held=3", 4, "held worker 3 is in a group"},
		{"groups=0,1 held=2,2,3", 4, "twice"},
		{"groups=0,1 held=2,4", 4, "not in 0..3"},
		{"groups=0,1 held=2 held=3", 4, "held is given twice"},
		{"ssgd local=0", 4, "1..1048576"},
		{"ssgd local=2048samples", 4, "local steps in samples need an outer rule: add outer=nesterov"},
		{"ssgd local=0samples outer=nesterov", 4, "1..1073741824"},
		{"ssgd local=8sample outer=nesterov", 4, `local is "8sample"`},
		{"ssgd local=8 fragments=4", 4, "fragments are of outer steps: add outer=nesterov"},
		{"ssgd fragments=4", 4, "fragments are of outer steps"},
		{"ssgd local=8 outer=delayed fragments=4", 4, "add outer=nesterov"},
		{"ssgd local=8 outer=nesterov fragments=1", 4, "2..64"},
		{"ssgd local=8 outer=nesterov fragments=65", 4, "2..64"},
		{"ssgd local=8 outer=nesterov fragments=16", 4, "fragments=16 does not divide local=8"},
		{"ssgd local=8 outer=nesterov fragments=3", 4, "fragments=3 does not divide local=8"},
		{"x=3 local=8 outer=nesterov fragments=4", 4, "fragments need one group that waits for all its members: use ssgd"},
		{"groups=0-2 held=3 local=8 outer=nesterov fragments=4", 4, "use ssgd"},
		{"ssgd outer=nesterov", 4, "outer=nesterov(0.9,0.7) needs local steps: add local=H"},
		{"ssgd steps=speed", 4, "steps=speed needs local steps"},
		{"ssgd local=2 steps=speed", 4, "steps=speed needs an outer rule"},
		{"ssgd local=2 steps=fast", 4, `steps is "fast"`},
		{"ssgd local=2 outer=adam", 4, `"adam" is not a rule of outer steps`},
		{"ssgd local=2 outer=nesterov(1,0.7)", 4, "momentum 1 is not in 0..0.9999"},
		{"ssgd local=2 outer=nesterov outer=nesterov", 4, "outer is given twice"},
		{"ssgd local=2 grace=1s", 4, "grace needs a group with a quorum"},
		{"x=2 grace=1h", 4, "up to 10m"},
		{"x=2 grace=0s", 4, "not a duration"},
		{"x=2 grace=1s grace=1s", 4, "given twice"},
		{"ssgd micro=4", 4, "micro and cap belong together"},
		{"ssgd cap=1s", 4, "micro and cap belong together"},
		{"ssgd micro=4 cap=0s", 4, "not a duration"},
		{"ssgd micro=4 cap=1s cap=1s", 4, "cap is given twice"},
		{"ssgd micro=4 cap=1s local=2", 4, "local or micro"},
		{"ssgd local=2 tree=0(1),2,3", 4, "a tree cannot be combined"},
		{"ssp=1 tree=auto", 4, "a tree cannot be combined"},
		{strings.Repeat("y", 1<<16), 4, "…"},
	} {
		_, err := Parse(c.in, c.n)
		if err == nil {
			t.Errorf("Parse(%q, %d): no error", c.in, c.n)
			continue
		}
		unknown := regexp.MustCompile(`is empty|is not a mode|is not understood`).MatchString(err.Error())
		if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), Grammar) != unknown || len(err.Error()) > 1000 {
			t.Errorf("Parse(%.99q, %d): %v\n\twant %q, and the grammar if a word is unknown", c.in, c.n, err, c.says)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		plan Plan
		n    int
		says string
	}{
		{Plan{}, 2, "no groups"},
		{SSGD(2), 0, "0 workers"},
		{SSGD(2), 3, "worker 2 is in no group"},
		{SSGD(3), 2, "worker 2 is not in 0..1"},
		{Plan{Groups: []Group{{Riders: ranks(2), Quorum: 1}}}, 2, "no members"},
		{Plan{Groups: []Group{{Members: []star.Worker{-1}, Quorum: 1}}}, 1, "worker -1"},
		{Plan{Groups: []Group{{Members: ranks(1), Riders: []star.Worker{-1}, Quorum: 1}}}, 1, "rider -1"},
		{Plan{Groups: []Group{{Members: ranks(1), Riders: []star.Worker{1}, Quorum: 1}}}, 1, "rider 1"},
		{Backup(3, 3), 3, "quorum 0"},
		{XOrder(3, 4), 3, "quorum 4"},
		{Plan{Groups: SSGD(2).Groups, Shares: []int{}}, 2, "0 shares for 2"},
	} {
		err := c.plan.Validate(c.n)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v for %d workers: %v, want %q", c.plan, c.n, err, c.says)
		}
	}
}

func TestEqual(t *testing.T) {
	a := Plan{Groups: []Group{{Members: []star.Worker{0, 1}, Quorum: 2, Riders: []star.Worker{2, 3}}}}
	b := Plan{Groups: []Group{{Members: []star.Worker{1, 0}, Quorum: 2, Riders: []star.Worker{3, 2}}}}
	if !a.Equal(b) {
		t.Error("the order of workers within a group is no difference")
	}
	for name, change := range map[string]func(p *Plan){
		"member": func(p *Plan) { p.Groups[0].Members = p.Groups[0].Members[:1]; p.Groups[0].Quorum = 1 },
		"quorum": func(p *Plan) { p.Groups[0].Quorum = 1 },
		"rider":  func(p *Plan) { p.Groups[0].Riders = p.Groups[0].Riders[:1] },
		"late":   func(p *Plan) { p.Groups[0].DropLate = true },
		"group":  func(p *Plan) { p.Groups = append(p.Groups, Group{Members: []star.Worker{4}, Quorum: 1}) },
		"shares": func(p *Plan) { p.Shares = []int{1, 1, 1, 1} },
		"ahead":  func(p *Plan) { p.MaxLead = 1 },
		"held":   func(p *Plan) { p.Excluded = []star.Worker{4} },
		"local":  func(p *Plan) { p.Local = 2 },
		"micro":  func(p *Plan) { p.Micro = 2 },
		"cap":    func(p *Plan) { p.ComputeDeadline = 2 },
		"order": func(p *Plan) {
			p.Groups[0].Members, p.Groups[0].Riders = p.Groups[0].Riders, p.Groups[0].Members
		},
	} {
		c := a.Clone()
		change(&c)
		if a.Equal(c) || c.Equal(a) {
			t.Errorf("%s: %v equals %v", name, a, c)
		}
	}
}

func TestCloneSharesNothing(t *testing.T) {
	a := Plan{Groups: []Group{{Members: ranks(2), Quorum: 2, Riders: []star.Worker{2}}}, Shares: []int{1, 2, 3}, Excluded: []star.Worker{3}}
	b := a.Clone()
	a.Excluded[0] = 7
	if b.Excluded[0] != 3 {
		t.Errorf("the clone changed with the plan: %v", b)
	}
	a.Groups[0].Members[0], a.Groups[0].Riders[0], a.Groups[0].Quorum, a.Shares[0] = 7, 7, 7, 7
	if b.Groups[0].Members[0] != 0 || b.Groups[0].Riders[0] != 2 || b.Groups[0].Quorum != 2 || b.Shares[0] != 1 {
		t.Errorf("the clone changed with the plan: %v", b)
	}
}

func TestShare(t *testing.T) {
	if got := SSGD(3).Share(1, 64); got != 64 {
		t.Errorf("without shares: %d, want 64", got)
	}
	p := Plan{Groups: SSGD(3).Groups, Shares: []int{10, 20, 30}}
	if got := p.Share(1, 64); got != 20 {
		t.Errorf("with shares: %d, want 20", got)
	}
}

func TestStringRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		p := drawPlan(t, n)
		q, err := Parse(p.String(), n)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Equal(q) || q.String() != p.String() || p.Workers() != n {
			t.Fatalf("%v came back as %v, for %d workers", p, q, p.Workers())
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ssgd", "asgd", "x=2", "backup=1", "groups=0,1/2,3", "groups=0-2:2!+3 shares=1,2,3,4", "groups=0--1", "x=-1", "groups=0+0"} {
		f.Add(s, 4)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		n %= 100
		p, err := Parse(s, n)
		if err != nil {
			return
		}
		if err := p.Validate(n); err != nil {
			t.Fatalf("Parse(%q, %d) made an invalid plan: %v", s, n, err)
		}
		if q, err := Parse(p.String(), n); err != nil || !p.Equal(q) {
			t.Fatalf("%q, %d workers: %v came back as %v, %v", s, n, p, q, err)
		}
	})
}

// A plan is printed in the words that it was given in, if these mean it; a cap that stops no worker is dropped.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		plan, given, want string
	}{
		{"groups=0-2+3", "ring-minus=3", "ring-minus=3"},
		{"groups=0-2+3", "groups=0,1,2+3", "groups=0,1,2+3"},
		{"x=3 shares=1,2,3,4", " groups=0-3:3 ", "groups=0-3:3 shares=1,2,3,4"},
		{"ssgd local=5", "ssgd", "ssgd local=5"},
		{"asgd", "ssgd", "asgd"},
		{"asgd", "", "asgd"},
		{"asgd", "nonsense", "asgd"},
		{"backup=1 micro=8 cap=none", "", "backup=1 micro=8 cap=none"},
		{"backup=1 micro=8 cap=8760h", "", "backup=1 micro=8 cap=none"}, // as older run logs have it
		{"backup=1 micro=8 cap=100ms", "", "backup=1 micro=8 cap=100ms"},
	} {
		p, err := Parse(c.plan, 4)
		if err != nil {
			t.Fatal(err)
		}
		got := p.Words(c.given)
		if q, err := Parse(got, 4); got != c.want || err != nil || !q.Equal(p) {
			t.Errorf("%s given as %q is %q (%v), want %q", c.plan, c.given, got, err, c.want)
		}
	}
}

// A queue is of one group and nothing else.
func TestQueueAlone(t *testing.T) {
	for _, s := range []string{"asgd queue=4", "x=2 queue=4", "groups=0,1+2 queue=4", "backup=1 queue=4", "groups=0,1 held=2 queue=4", "ssgd local=2 queue=4", "ssgd micro=2 cap=none queue=4", "ssgd tree=auto queue=4"} {
		if _, err := Parse(s, 3); err == nil || !strings.Contains(err.Error(), "it combines only with shares") {
			t.Errorf("Parse(%q): %v", s, err)
		}
	}
}
