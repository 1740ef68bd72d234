package modes

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
)

// drawTree draws a tree for the valid plan p: any, within the groups.
func drawTree(t *rapid.T, p Plan, n int) Plan {
	p = p.Clone()
	p.Parents = make([]star.Worker, n)
	rides := map[star.Worker]bool{}
	for w := range p.Parents {
		p.Parents[w] = Direct
	}
	for _, g := range p.Groups {
		for _, w := range g.Riders {
			rides[w] = true
		}
	}
	for _, g := range p.Groups {
		var before []star.Worker // a worker that is chosen from here is not below us
		for _, w := range g.Members {
			if rides[w] {
				continue
			}
			if len(before) > 0 && rapid.IntRange(0, 3).Draw(t, "child") > 0 {
				p.Parents[w] = rapid.SampledFrom(before).Draw(t, "parent")
			}
			before = append(before, w)
		}
	}
	if err := p.Validate(n); err != nil {
		t.Fatalf("drew an invalid tree: %v", err)
	}
	return p
}

func TestTreeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		p := drawTree(t, bare(drawPlan(t, n)), n)
		q, err := Parse(p.String(), n)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Equal(q) || q.String() != p.String() {
			t.Fatalf("%v came back as %v", p, q)
		}
	})
}

func TestParseTree(t *testing.T) {
	const d = Direct
	for _, c := range []struct {
		in, out string
		n       int
		parents []star.Worker
	}{
		{"tree=0(1,2(3)),4(5)", "ssgd tree=0(1,2(3)),4(5)", 6, []star.Worker{d, 0, 0, 2, d, 4}},
		{"ssgd tree=4(5),0(2(3),1)", "ssgd tree=0(1,2(3)),4(5)", 6, []star.Worker{d, 0, 0, 2, d, 4}},
		{"x=2 tree=3(0-2)", "x=2 tree=3(0-2)", 5, []star.Worker{3, 3, 3, d, d}},
		{"tree=2(0,1,3,5(4),6-8)", "ssgd tree=2(0,1,3,5(4),6-8)", 9, []star.Worker{2, 2, d, 2, 5, 2, 2, 2, 2}},
		{"tree=0(1(2(3(4))))", "ssgd tree=0(1(2(3(4))))", 5, []star.Worker{d, 0, 1, 2, 3}},
		{"tree=0,1,2", "ssgd", 3, []star.Worker{d, d, d}},
		{"groups=0-2/3,4 shares=1,2,3,4,5 tree=1(0,2),4(3)", "groups=0-2/3,4 tree=1(0,2),4(3) shares=1,2,3,4,5", 5, []star.Worker{1, d, 1, 4, d}},
		{"tree=auto", "ssgd tree=auto", 3, nil},
		{"x=2 tree=auto shares=1,2,3", "x=2 tree=auto shares=1,2,3", 3, nil},
		{"backup=1 tree=0(1)", "backup=1 tree=0(1)", 3, []star.Worker{d, 0, d}},
	} {
		p, err := Parse(c.in, c.n)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if !slices.Equal(p.Parents, c.parents) || p.String() != c.out || p.AutoTree != strings.Contains(c.in, "auto") {
			t.Errorf("%s: %v, %v; want %v, %s", c.in, p.Parents, p, c.parents, c.out)
		}
	}
}

func TestParseRefusesTree(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		says string
	}{
		{"tree=", 2, "not a worker"},
		{"tree=0(1", 2, "behind worker 0 is not closed"},
		{"tree=0(1))", 2, "left over"},
		{"tree=0()", 2, "not a worker"},
		{"tree=0(1)2", 3, "left over"},
		{"tree=0(2)", 2, "not in 0..1"},
		{"tree=0(0)", 2, "worker 0 is named twice"},
		{"tree=0(1),1(2)", 3, "worker 1 is named twice"},
		{"tree=0(1(0))", 3, "worker 0 is named twice"},
		{"tree=0-1(2)", 3, "need one parent"},
		{"tree=0(1) tree=0(2)", 3, "not understood"},
		{"tree=auto tree=0(2)", 3, "not understood"},
		{"asgd tree=0(1)", 3, "different groups"},
		{"groups=0,1/2,3 tree=1(2)", 4, "worker 2 and its parent 1 are in different groups"},
		{"ring-minus=2 tree=0(2)", 3, "worker 2 rides in group 0"},
		{"ring-minus=2 tree=2(0)", 3, "worker 2 rides in group 0"},
		{"tree=" + strings.Repeat("0(", 1e5), 3, "twice"},
		{"tree=0(1;2)", 3, "not a worker"},
	} {
		_, err := Parse(c.in, c.n)
		if err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1000 {
			t.Errorf("%.60s: %v, want %q", c.in, err, c.says)
		}
	}
}

func TestValidateRefusesTree(t *testing.T) {
	for _, c := range []struct {
		parents []star.Worker
		says    string
	}{
		{[]star.Worker{1, 2, 0}, "below itself"},
		{[]star.Worker{0, -1, -1}, "its own parent"},
		{[]star.Worker{3, -1, -1}, "worker 3, which is not in 0..2"},
		{[]star.Worker{-2, -1, -1}, "worker -2, which is not in 0..2"},
		{[]star.Worker{-1, 0}, "2 workers for 3"},
	} {
		p := SSGD(3)
		p.Parents = c.parents
		if err := p.Validate(3); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %q", c.parents, err, c.says)
		}
	}
	p := SSGD(2)
	p.Parents, p.AutoTree = []star.Worker{-1, 0}, true
	if err := p.Validate(2); err == nil {
		t.Error("a tree both given and automatic is valid")
	}
}

func TestEqualTrees(t *testing.T) {
	flat := SSGD(3)
	direct := SSGD(3)
	direct.Parents = []star.Worker{Direct, Direct, Direct}
	a, _ := Parse("tree=0(1,2)", 3)
	b, _ := Parse("tree=0(1(2))", 3)
	auto, _ := Parse("tree=auto", 3)
	if !flat.Equal(direct) || !a.Equal(a.Clone()) || a.Equal(b) || a.Equal(flat) || flat.Equal(a) || auto.Equal(flat) {
		t.Error("trees are compared wrongly")
	}
	c := a.Clone()
	c.Parents[1] = Direct
	if a.Parents[1] != 0 {
		t.Error("a clone shares the tree")
	}
	if a.Reports(3) != 1 || b.Reports(3) != 1 || flat.Reports(3) != 3 {
		t.Error("reports are counted wrongly")
	}
}

func drawLoad(t *rapid.T) TreeLoad {
	n := rapid.IntRange(1, 40).Draw(t, "n")
	return TreeLoad{
		Bytes:  rapid.Int64Range(1, 1<<30).Draw(t, "bytes"),
		Cycle:  time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "cycle")),
		Spare:  rapid.SliceOfN(rapid.Float64Range(0, 1e9), n, n).Draw(t, "spare"),
		Hosts:  rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c"}), n, n).Draw(t, "hosts"),
		Able:   rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "able"),
		Others: rapid.IntRange(0, 3).Draw(t, "others"),
	}
}

func ranksUpTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// Whatever the load, the rule makes a tree that is valid, in the fan-in, within what the
// servers carry if that is possible, with no more reports than it needs; at the top are
// the workers with the most bandwidth to spare, as far as they are of different hosts.
func TestTreeRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLoad(t)
		r := TreeRule{FanIn: rapid.IntRange(0, 5).Draw(t, "fan-in")}
		r.Capacity = l.Demand() * rapid.Float64Range(0.001, 1.5).Draw(t, "capacity")
		parents := r.Build(l)
		n := len(l.Able)
		if parents == nil {
			if l.Demand() > r.Capacity && l.able() > 1 && r.Capacity > 0 && l.able() > int(l.Demand()/r.Capacity)+1 && int(r.Capacity/l.unit()) < l.able()-1 {
				t.Fatalf("no tree for a demand of %v of %v", l.Demand(), r.Capacity)
			}
			return
		}
		if l.Demand() <= r.Capacity {
			t.Fatalf("a tree for a demand of %v of %v", l.Demand(), r.Capacity)
		}
		p := SSGD(n)
		p.Parents = parents
		if err := p.Validate(n); err != nil {
			t.Fatal(err)
		}
		children, far := make([]int, n), make([]int, n)
		tops, least := 0, 2e9 // of the spare bandwidth at the top
		for w, up := range parents {
			switch {
			case up != Direct && (!l.Able[w] || !l.Able[up]):
				t.Fatalf("worker %d below %d: one of them cannot be in a tree", w, up)
			case up != Direct:
				children[up]++
				if l.Hosts[w] == "" || l.Hosts[w] != l.Hosts[up] {
					far[up]++
				}
			case l.Able[w]:
				tops++
				least = min(least, l.Spare[w])
			}
		}
		fits := int(r.Capacity / l.unit())
		for w, k := range children {
			if k > r.fanIn() || far[w] > max(fits-1, 1) {
				t.Fatalf("worker %d has %d children, at most %d, %d of them far, and %d fit", w, k, r.fanIn(), far[w], fits-1)
			}
			if parents[w] == Direct || l.Spare[w] <= least {
				continue
			}
			sameHost := func(v int) bool {
				return parents[v] == Direct && l.Able[v] && l.Hosts[v] != "" && l.Hosts[v] == l.Hosts[w]
			}
			if !slices.ContainsFunc(ranksUpTo(n), sameHost) {
				t.Fatalf("worker %d is not at the top with %v to spare, somebody is with %v, and nobody of its host is", w, l.Spare[w], least)
			}
			if least < l.Spare[w]/2 {
				t.Fatalf("worker %d is not at the top with %v to spare, somebody is with %v", w, l.Spare[w], least)
			}
		}
		if tops > 1 && tops+l.Others > fits {
			t.Fatalf("%d reports, and %d of others, where the servers carry %d", tops, l.Others, fits)
		}
		if d := l.Demand() / r.Capacity; float64(tops) >= d+1 && tops > 1 {
			t.Fatalf("%d at the top for a demand of %v times the capacity", tops, d)
		}
	})
}

func TestTreeRuleExamples(t *testing.T) {
	even := func(n int, hosts ...string) TreeLoad {
		l := TreeLoad{Bytes: 50e6, Cycle: time.Second, Spare: make([]float64, n), Hosts: make([]string, n), Able: make([]bool, n)}
		copy(l.Hosts, hosts)
		for w := range l.Able {
			l.Able[w] = true
		}
		return l // each worker: 100 MB/s
	}
	for _, c := range []struct {
		name string
		load TreeLoad
		rule TreeRule
		want string
	}{
		{"enough", even(8), TreeRule{Capacity: 800e6}, ""},
		{"two halves", even(8), TreeRule{Capacity: 500e6}, "0(2,4,6),1(3,5,7)"},
		{"three", even(8), TreeRule{Capacity: 300e6}, "0(3,6),1(4,7),2(5)"},
		{"hosts", even(8, "a", "a", "a", "a", "b", "b", "b", "b"), TreeRule{Capacity: 500e6}, "0(1-3),4(5-7)"},
		{"fan-in of two", even(7), TreeRule{Capacity: 699e6, FanIn: 2}, "0(2(6),4),1(3,5)"},
		{"near children cost no link", even(5, "a", "a", "a", "b", "b"), TreeRule{Capacity: 150e6}, "0(1,2,3(4))"},
		{"one of each host leaves it", even(6, "a", "a", "b", "b", "c", "c"), TreeRule{Capacity: 300e6}, "0(1,4(5)),2(3)"},
		{"deeper by capacity", even(7), TreeRule{Capacity: 150e6, FanIn: 9}, "0(1(2(3(4(5(6))))))"},
		{"deeper by what servers carry", even(8), TreeRule{Capacity: 250e6}, "0(2(4(6))),1(3(5(7)))"},
	} {
		got := ""
		if parents := c.rule.Build(c.load); parents != nil {
			p := SSGD(len(parents))
			p.Parents = parents
			got = strings.TrimPrefix(p.String(), "ssgd tree=")
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	l := even(4)
	l.Spare[2] = 1
	if got := (TreeRule{Capacity: 390e6}).Build(l); !slices.Equal(got, []star.Worker{Direct, 2, Direct, 0}) {
		t.Errorf("the worker with the most to spare is not the first at the top: %v", got)
	}
}

// A host is at the top before a second worker of another one, unless it is far busier.
func TestTopsAreOfDifferentHosts(t *testing.T) {
	l := TreeLoad{Bytes: 50e6, Cycle: time.Second, Hosts: []string{"a", "b", "a", "b"}, Able: []bool{true, true, true, true}}
	for _, c := range []struct {
		spare []float64
		want  []star.Worker
	}{
		{[]float64{100, 60, 90, 70}, []star.Worker{Direct, 3, 0, Direct}},
		{[]float64{100, 30, 90, 40}, []star.Worker{Direct, 2, Direct, 1}},
	} {
		l.Spare = c.spare
		got := TreeRule{Capacity: 390e6}.Build(l)
		if !slices.Equal(got[:1], c.want[:1]) || (c.want[3] == Direct) != (got[3] == Direct) {
			t.Errorf("with %v to spare: %v", c.spare, got)
		}
	}
}

// The tree stays while the demand wanders within the band.
func TestTreeKeeper(t *testing.T) {
	l := TreeLoad{Bytes: 50e6, Spare: make([]float64, 8), Hosts: make([]string, 8), Able: []bool{true, true, true, true, true, true, true, true}}
	k := TreeKeeper{Rule: TreeRule{Capacity: 400e6, Band: 0.25}}
	for i, c := range []struct {
		demand  float64 // MB/s
		reports int
		changed bool
	}{
		{300, 8, false},
		{399, 8, false},
		{410, 2, true},
		{390, 2, false}, // below the capacity, within the band
		{310, 2, false},
		{500, 2, false},
		{290, 8, true}, // beyond the band
		{390, 8, false},
		{700, 2, true},
		{860, 2, false}, // three would be due, but the demand is still near
		{880, 3, true},
		{800, 3, false},
		{760, 3, false},
		{650, 2, true},
	} {
		l.Cycle = time.Duration(8 * 2 * 50 / c.demand * 1e9)
		parents, why := k.Update(l)
		if got := (Plan{Parents: parents}).Reports(8); got != c.reports || (why != "") != c.changed {
			t.Errorf("step %d, %v MB/s: %d reports (%q), want %d, changed: %v", i, c.demand, got, why, c.reports, c.changed)
		}
	}
	// A worker is gone: the tree is built without it, also in the band.
	l.Able = slices.Clone(l.Able)
	l.Able[0] = false
	l.Cycle = 1795 * time.Millisecond // 7·2·50 MB for 390 MB/s
	parents, why := k.Update(l)
	if parents == nil || why == "" || parents[0] != Direct || slices.Contains(parents, 0) {
		t.Errorf("after the loss of worker 0: %v, %q", parents, why)
	}
	if again, why := k.Update(l); why != "" || !slices.Equal(again, parents) {
		t.Errorf("then: %v, %q", again, why)
	}
}

// Noise smaller than the band never changes a tree twice.
func TestTreeKeeperIsSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLoad(t)
		k := TreeKeeper{Rule: TreeRule{Capacity: l.Demand() * rapid.Float64Range(0.05, 2).Draw(t, "capacity")}}
		cycle, changes := l.Cycle, 0
		for range 30 {
			l.Cycle = time.Duration(float64(cycle) * rapid.Float64Range(0.95, 1.05).Draw(t, "noise"))
			if _, why := k.Update(l); why != "" {
				changes++
			}
		}
		if changes > 1 {
			t.Fatalf("%d changes under 5 %% of noise", changes)
		}
	})
}
