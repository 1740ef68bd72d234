package optim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Parameters in groups move as if each group had an optimiser of its own, however the step is cut and whichever part of
// the vector it is for.
func TestGroups(t *testing.T) {
	const n = 40
	groups := []Group{{3, 11, 0.5, 0.1}, {11, 12, 2, 0}, {20, 40, 0, 0.3}}
	bounds := []Group{{0, 3, 1, 0.01}, groups[0], groups[1], {12, 20, 1, 0.01}, groups[2]} // with what lies between them
	r := rand.New(rand.NewPCG(1, 2))
	vector := func() []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		return v
	}
	for _, name := range []string{SGD, Momentum, Nesterov, Adam, AdamW} {
		c := Config{Name: name, LR: 0.05, WeightDecay: 0.01, Groups: groups}
		start := vector()
		want, got, parts := slices.Clone(start), slices.Clone(start), slices.Clone(start)
		var own []*Optimizer
		for _, g := range bounds {
			o, err := New(Config{Name: name, LR: 0.05, WeightDecay: g.WeightDecay}, g.To-g.From)
			if err != nil {
				t.Fatal(err)
			}
			own = append(own, o)
		}
		whole, err := New(c, n)
		if err != nil {
			t.Fatal(err)
		}
		const cut = 9
		var shards [2]*Optimizer
		for i, s := range [2][2]int{{0, cut}, {cut, n}} {
			if shards[i], err = New(c.Cut(s[0], s[1]), s[1]-s[0]); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			g := vector()
			for i, b := range bounds {
				own[i].Step(want[b.From:b.To], g[b.From:b.To], 0.05*b.Factor)
			}
			whole.Begin()
			for _, p := range [3][2]int{{25, 40}, {0, 13}, {13, 25}} {
				whole.StepRange(got[p[0]:p[1]], g[p[0]:p[1]], p[0], 0.05)
			}
			shards[0].Step(parts[:cut], g[:cut], 0.05)
			shards[1].Step(parts[cut:], g[cut:], 0.05)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: in groups %v, each by itself %v", name, got, want)
		}
		if !slices.Equal(parts, want) {
			t.Errorf("%s: in groups on two shards %v, each by itself %v", name, parts, want)
		}
		if slices.Equal(got, start) || c.Strides() {
			t.Errorf("%s: nothing moved, or workers may make steps of their own", name)
		}
	}
}

func TestBadGroups(t *testing.T) {
	for _, c := range []struct {
		name   string
		groups []Group
		want   string
	}{
		{SGD, []Group{{5, 5, 1, 0}}, "group 0"},
		{SGD, []Group{{0, 5, 1, 0}, {4, 8, 1, 0}}, "group 1"},
		{SGD, []Group{{-1, 5, 1, 0}}, "group 0"},
		{SGD, []Group{{0, 5, -1, 0}}, "group 0"},
		{SGD, []Group{{0, 5, 1, -0.1}}, "group 0"},
		{DANA, []Group{{0, 5, 1, 0}}, "no groups"},
	} {
		if err := (Config{Name: c.name, Groups: c.groups}).Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.groups, err, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	s, err := ParseSchedule("table=0:0.1,100:1,250:0.25,251:0", 2)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, at := range []int64{-5, 0, 99, 100, 249, 250, 251, 1 << 40} {
		got = append(got, fmt.Sprint(s.At(at)))
	}
	if text := strings.Join(got, " "); text != "0.2 0.2 0.2 2 2 0.5 0 0" {
		t.Error(text)
	}
	if s, err = ParseSchedule("table=100:0.5,warmup=50:0", 2); err != nil || s.At(25) != 1 || s.At(50) != 2 || s.At(100) != 1 {
		t.Error(s.At(25), s.At(50), s.At(100), err)
	}
	for _, bad := range []string{"table=5", "table=5:1,5:2", "table=-1:1", "table=1:1,cosine=9", "step=0:1", "table=1:2,step=3:1", "table=1:1,min=0.5"} {
		if _, err := ParseSchedule(bad, 1); err == nil {
			t.Errorf("%s passes", bad)
		}
	}
}
