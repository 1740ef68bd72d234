package resource

import (
	"math"
	"strings"
	"testing"
	"time"
)

// The printed sensitivities of the artefact (res_dist_managing.py), and what its tables have in common.
func TestPublishedTables(t *testing.T) {
	for name, want := range map[string]Sensitivity{
		"resnet20": {4.888889, 0.933333}, "resnet56": {3.742911, 0.982987}, "alexnet": {6.435986, 7.058824}, "mobilenet": {6.229167, 2.625},
		"googlenet": {3.75, 2.527778}, "densenet121": {3.839286, 3.872449}, "vgg13": {5.25, 28}, "vgg16": {2.285714, 10.469388},
		"lstm": {4.047337, 33.869822}, "transformer": {4.412071, 32.988554},
	} {
		p, ok := PublishedModel(name)
		if !ok {
			t.Errorf("no %s", name)
			continue
		}
		if math.Abs(p.Sensitivity.CPU-want.CPU) > 1e-6 || math.Abs(p.Sensitivity.Net-want.Net) > 1e-6 {
			t.Errorf("%s: %+v, want %+v", name, p.Sensitivity, want)
		}
	}
	if _, ok := PublishedModel("resnet50"); ok || strings.Count(PublishedNames(), ", ") != 9 {
		t.Error(PublishedNames())
	}
}

// The measured bandwidths are gradients times parameters, within what measuring costs: that is why a model that was
// never measured has a prior, and why bytes go with gradients and not with updates.
func TestBandwidthIsArithmetic(t *testing.T) {
	for _, p := range published {
		ssgd, asgd := p.Loads()
		d := Bytes{Gradient: 4 * p.Params, Params: 4 * p.Params}.Demand()
		got := d.At(ssgd)
		for _, m := range []struct{ got, want float64 }{{got.NetIn, p.In * mib}, {got.NetOut, p.Out * mib}} {
			if r := m.got / m.want; r < 0.85 || r > 1.2 {
				t.Errorf("%s in ssgd: %.1f MiB/s, measured %.1f", p.Name, m.got/mib, m.want/mib)
			}
		}
		extra := d.Extra(asgd, ssgd)
		if r := extra.NetIn / (p.In * mib); math.Abs(r-p.ExtraNet/p.In) > 0.17 {
			t.Errorf("%s: asgd takes %.0f %% more bandwidth, measured %.0f %%", p.Name, 100*r, 100*p.ExtraNet/p.In)
		}
	}
}

// The demand of a published model is what was measured, in SSGD and in ASGD.
func TestPublishedDemand(t *testing.T) {
	for _, p := range published {
		ssgd, asgd := p.Loads()
		d := p.Demand(4)
		for _, c := range []struct {
			what      string
			got, want float64
		}{
			{"cpu in ssgd", d.At(ssgd).CPU, p.CPU * 0.04},
			{"in in ssgd", d.At(ssgd).NetIn, p.In * mib},
			{"cpu in asgd", d.Extra(asgd, ssgd).CPU, p.ExtraCPU * 0.04},
			{"out in asgd", d.Extra(asgd, ssgd).NetOut, p.ExtraNet * mib},
		} {
			if math.Abs(c.got-c.want) > 1e-9*c.want {
				t.Errorf("%s: %s: %v, want %v", p.Name, c.what, c.got, c.want)
			}
		}
		for _, f := range []float64{0.5, 1, 2, 5, 10} {
			u := ssgd.Updates * f
			a, b := scaled(p.Extra(4), u, ssgd.Updates, asgd.Updates), d.Extra(Load{Updates: u}, ssgd)
			if math.Abs(a.CPU-b.CPU) > 1e-9 || math.Abs(a.NetIn-b.NetIn) > 1e-3 {
				t.Errorf("%s at %v updates/s: %v and %v", p.Name, u, a, b)
			}
		}
	}
}

// The oracles: a server of 100 % and 100 MB/s; resnet20 asks; vgg13 with 8 workers, where worker 3 takes 1.2 s and the
// others 0.6 s, at step 1000; alexnet with 0.3 and 0.31 s, at step 5000. Published answers are outputs of
// res_dist_managing.py's decision, run with other jobs' messages as written here; the others are its algebra with
// units.
func TestPublishedDecisions(t *testing.T) {
	const cores = 1 // so 1 % is 0.01 cores
	model := func(name string) Published {
		p, ok := PublishedModel(name)
		if !ok {
			t.Fatal(name)
		}
		return p
	}
	rank := func(d ...int) (ts []time.Duration) {
		for _, v := range d {
			ts = append(ts, time.Duration(v)*ms)
		}
		return ts
	}
	job := func(name string, step int64, times []time.Duration, there ...int) Tenant {
		tn := Tenant{Name: name, SSGD: true, Step: step, Costs: model(map[string]string{"job1": "vgg13", "job2": "alexnet"}[name]).Costs(cores), Times: times}
		for range times {
			tn.On = append(tn.On, "elsewhere")
		}
		for _, w := range there {
			tn.On[w] = "s"
		}
		return tn
	}
	vgg := rank(600, 600, 600, 1200, 600, 600, 600, 600)
	both := []Tenant{job("job1", 1000, vgg, 0, 1), job("job2", 5000, rank(300, 310), 0)}
	d1, d2 := 1.8589581075303037, 4.314513657561627
	for _, c := range []struct {
		name       string
		cpu        float64
		loss       time.Duration
		tenants    []Tenant
		published  bool // the published answer
		correct    bool
		early      []string // delayed without loss, if granted
		delays     []float64
		cost       float64
		whyCorrect string
	}{
		{name: "room", cpu: 10, loss: 600 * ms, tenants: both, published: true, correct: true, whyCorrect: "there is room"},
		{name: "free delays", cpu: 81.5, loss: 600 * ms, tenants: []Tenant{job("job1", 1000, vgg, 0, 1, 2, 4)}, published: true, correct: true,
			early: []string{"job1"}, delays: []float64{0}, whyCorrect: "early workers of job1 make room for 0.0036 cores of CPU on s"},
		{name: "600 ms are not 6.17 s", cpu: 90, loss: 600 * ms, tenants: both, published: true, correct: false,
			early: []string{"job1", "job2"}, delays: []float64{d1, d2}, cost: d1 + d2, whyCorrect: "others would lose 6.17s in each iteration, ssgd loses 600ms"},
		{name: "5 ms", cpu: 90, loss: 5 * ms, tenants: both, published: false, correct: false, cost: d1 + d2, whyCorrect: "ssgd loses 5ms"},
		{name: "nobody", cpu: 95, loss: 600 * ms, published: true, correct: false, whyCorrect: "0.139 cores of CPU on s are missing, and others can give only 0 cores"},
	} {
		hosts := []Host{{Name: "elsewhere", Capacity: Unlimited}, {Name: "s", Capacity: Usage{1, 100 * mib, 100 * mib}, Use: Usage{c.cpu / 100, 5 * mib, 5 * mib}}}
		q := Query{Job: "job0", Loss: c.loss, Needs: []Need{{"s", model("resnet20").Extra(cores)}}}
		for _, q.Published = range []bool{true, false} {
			v, err := Admit(q, hosts, c.tenants)
			if err != nil {
				t.Fatal(err)
			}
			want := c.correct
			if q.Published {
				want = c.published
			}
			if v.Granted != want {
				t.Errorf("%s, published %v: %+v, want %v", c.name, q.Published, v, want)
			}
			if !q.Published && !strings.Contains(v.Why, c.whyCorrect) {
				t.Errorf("%s: %q, want %q", c.name, v.Why, c.whyCorrect)
			}
			if c.cost > 0 && math.Abs(v.Cost.Seconds()-c.cost) > 1e-8 {
				t.Errorf("%s: %v, want %v s", c.name, v.Cost, c.cost)
			}
			if !v.Granted {
				continue
			}
			for i, d := range v.Delays {
				if d.Job != c.early[i] || !d.Early || math.Abs(d.Delay.Seconds()-c.delays[i]) > 1e-8 {
					t.Errorf("%s: %+v", c.name, d)
				}
			}
			if len(v.Delays) != len(c.early) {
				t.Errorf("%s: %d delays, want %d", c.name, len(v.Delays), len(c.early))
			}
		}
	}
	// With the second case, as published: 4·0.6 s·1.206 % free, 0.36 % needed.
	v, err := Admit(Query{Job: "job0", Needs: []Need{{"s", model("resnet20").Extra(cores)}}},
		[]Host{{Name: "elsewhere", Capacity: Unlimited}, {Name: "s", Capacity: Usage{1, 100 * mib, 100 * mib}, Use: Usage{0.815, 5 * mib, 5 * mib}}},
		[]Tenant{job("job1", 1000, vgg, 0, 1, 2, 4)})
	if err != nil || len(v.Delays) != 1 || math.Abs(v.Delays[0].Frees[0].Usage.CPU-0.028944) > 1e-9 || !strings.Contains(v.Why, "0.0036 cores") {
		t.Errorf("%+v, %v", v, err)
	}
}
