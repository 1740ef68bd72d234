package resource

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// cluster is a drawn state: two hosts, up to four other jobs.
type cluster struct {
	query   Query
	hosts   []Host
	tenants []Tenant
}

var hostNames = []string{"h0", "h1"}

func drawUsage(t *rapid.T, most float64, label string) Usage {
	f := rapid.SampledFrom([]float64{0, 0.125, 0.25, 0.5, 1}) // sums are exact
	return Usage{most * f.Draw(t, label+" cpu"), most * f.Draw(t, label+" in"), most * f.Draw(t, label+" out")}
}

func drawCluster(t *rapid.T) (c cluster) {
	for _, name := range hostNames {
		c.hosts = append(c.hosts, Host{Name: name, Capacity: drawUsage(t, 10, "capacity"), Use: drawUsage(t, 10, "use")})
	}
	c.query = Query{Job: "asks", Loss: time.Duration(rapid.IntRange(0, 4000).Draw(t, "loss")) * ms}
	for _, h := range hostNames[:rapid.IntRange(1, 2).Draw(t, "needs")] {
		c.query.Needs = append(c.query.Needs, Need{h, drawUsage(t, 4, "extra")})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "tenants") {
		j := Tenant{Name: fmt.Sprintf("t%d", i), SSGD: rapid.IntRange(0, 4).Draw(t, "ssgd") > 0, Step: int64(rapid.SampledFrom([]int{0, 1000, 30000}).Draw(t, "step")),
			Costs: Costs{Freed: drawUsage(t, 4, "freed"), Sensitivity: Sensitivity{rapid.Float64Range(0.5, 30).Draw(t, "s"), rapid.Float64Range(0.5, 30).Draw(t, "s net")}}}
		for range rapid.IntRange(0, 3).Draw(t, "workers") {
			j.Times = append(j.Times, time.Duration(rapid.SampledFrom([]int{0, 100, 1000, 3000}).Draw(t, "time"))*ms)
			j.On = append(j.On, rapid.SampledFrom(hostNames).Draw(t, "on"))
		}
		j.Use = map[string]Usage{}
		for _, h := range hostNames {
			if rapid.Bool().Draw(t, "known") {
				j.Use[h] = drawUsage(t, 4, "uses")
			}
		}
		j.Early = rapid.IntRange(0, 3).Draw(t, "early") == 0
		j.Delay = time.Duration(rapid.SampledFrom([]int{0, 0, 100}).Draw(t, "delayed")) * ms
		c.tenants = append(c.tenants, j)
	}
	return c
}

// frees is, written down as simply as possible, what a job frees on a host when it is delayed.
func frees(j *Tenant, host string, kind int, early bool, delay float64) float64 {
	if !j.SSGD {
		return 0
	}
	slowest, n, waits := 0.0, 0.0, 0.0
	for _, d := range j.Times {
		slowest = max(slowest, d.Seconds())
	}
	for w, d := range j.Times {
		if j.On[w] == host && d > 0 {
			n++
			waits += slowest - d.Seconds()
		}
	}
	use, known := j.Use[host]
	sum := 0.0
	if early && !j.Early {
		sum = waits * j.Costs.Freed.of(kind)
		if known {
			sum = min(sum, use.of(kind))
		}
	}
	round := slowest + j.Delay.Seconds()
	switch left := use.of(kind) - sum; {
	case round == 0:
	case !known:
		sum += n * j.Costs.Freed.of(kind) * delay
	case n == 0:
		sum += left * delay / (round + delay)
	default:
		sum += min(n*j.Costs.Freed.of(kind)*delay, left*delay/(round+delay))
	}
	return sum
}

// After a yes every host in the question is within its capacity, or no worse off than before where nothing was wanted;
// no job gives more than it can, and no job loses more than the asking job gains. After a no without a price not even
// all jobs at their limits, tried on a grid, would have been enough.
func TestAdmitFeasible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		v, err := Admit(c.query, c.hosts, c.tenants)
		if err != nil {
			t.Fatal(err)
		}
		if v.Why == "" || strings.Contains(v.Why, "\n") {
			t.Fatalf("why: %q", v.Why)
		}
		free := func(host string, kind int, d map[string]Delay) (sum float64) {
			for i := range c.tenants {
				j := &c.tenants[i]
				if x, ok := d[j.Name]; ok {
					sum += frees(j, host, kind, x.Early, x.Delay.Seconds())
				}
			}
			return sum
		}
		lacks := func(d map[string]Delay) float64 {
			worst := 0.0
			for _, n := range c.query.Needs {
				h := c.hosts[slices.Index(hostNames, n.Host)]
				for k := range kinds {
					if n.Extra.of(k) > 0 {
						worst = max(worst, h.Use.of(k)+n.Extra.of(k)-free(n.Host, k, d)-h.Capacity.of(k))
					}
				}
			}
			return worst
		}
		if v.Granted {
			given := map[string]Delay{}
			last, sum := "", time.Duration(0)
			for _, d := range v.Delays {
				if d.Job <= last || d.Delay < 0 || !d.Early && d.Delay == 0 {
					t.Fatalf("delays %+v", v.Delays)
				}
				last = d.Job
				given[d.Job] = d
				sum += d.Delay
				j := c.tenants[slices.IndexFunc(c.tenants, func(j Tenant) bool { return j.Name == d.Job })]
				if slowest := slices.Max(append(j.Times, 0)); d.Delay+j.Delay > slowest+1 && d.Delay > 0 {
					t.Fatalf("%s takes %v and is delayed by %v and %v", j.Name, slowest, j.Delay, d.Delay)
				}
				for _, f := range d.Frees {
					for k := range kinds {
						if want := frees(&j, f.Host, k, d.Early, d.Delay.Seconds()); math.Abs(want-f.Usage.of(k)) > 1e-7 {
							t.Fatalf("%s frees %v of kind %d on %s, not %v", j.Name, want, k, f.Host, f.Usage)
						}
					}
				}
			}
			if l := lacks(given); l > 1e-7 {
				t.Fatalf("granted %+v, and %v are missing", v, l)
			}
			if sum > 0 && sum >= c.query.Loss || math.Abs(float64(sum-v.Cost)) > 10 {
				t.Fatalf("others lose %v (%v), the job %v", sum, v.Cost, c.query.Loss)
			}
			return
		}
		if lacks(nil) <= 1e-9 {
			t.Fatalf("refused although there is room: %+v", v)
		}
		if v.Cost > 0 {
			if v.Cost < c.query.Loss {
				t.Fatalf("refused at a price of %v for %v", v.Cost, c.query.Loss)
			}
			return
		}
		// By brute force: each job at none, half or all of what it can be delayed by.
		var try func(i int, d map[string]Delay)
		try = func(i int, d map[string]Delay) {
			if i == len(c.tenants) {
				if l := lacks(d); l < -1e-7 || l == 0 {
					t.Fatalf("refused (%s), and %+v would do", v.Why, d)
				}
				return
			}
			j := c.tenants[i]
			most := max(slices.Max(append(j.Times, 0))-j.Delay, 0)
			for _, x := range []time.Duration{0, most / 2, most} {
				d[j.Name] = Delay{Job: j.Name, Early: true, Delay: x}
				try(i+1, d)
			}
		}
		try(0, map[string]Delay{})
	})
}

// More capacity never makes a no of a yes, nor others lose more. Nor does a larger loss.
func TestAdmitMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		v, err := Admit(c.query, c.hosts, c.tenants)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.hosts {
			c.hosts[i].Capacity = c.hosts[i].Capacity.Plus(drawUsage(t, 3, "more"))
		}
		c.query.Loss += time.Duration(rapid.IntRange(0, 1000).Draw(t, "more loss")) * ms
		w, err := Admit(c.query, c.hosts, c.tenants)
		if err != nil {
			t.Fatal(err)
		}
		if v.Granted && (!w.Granted || w.Cost > v.Cost+time.Microsecond) {
			t.Fatalf("%+v, and with more capacity %+v", v, w)
		}
	})
}

// The order of anything makes no difference, not in a bit.
func TestAdmitOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCluster(t)
		c.query.Published = rapid.Bool().Draw(t, "published")
		v, err := Admit(c.query, c.hosts, c.tenants)
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		rnd.Shuffle(len(c.tenants), func(i, j int) { c.tenants[i], c.tenants[j] = c.tenants[j], c.tenants[i] })
		slices.Reverse(c.hosts)
		slices.Reverse(c.query.Needs)
		w, err := Admit(c.query, c.hosts, c.tenants)
		if err != nil || fmt.Sprint(v) != fmt.Sprint(w) {
			t.Fatalf("%+v, in another order %+v, %v", v, w, err)
		}
	})
}

// Incoming and outgoing network are counted each for itself.
func TestAdmitDirections(t *testing.T) {
	hosts := []Host{{"h", Usage{1, 100, 100}, Usage{0, 95, 0}}}
	for _, c := range []struct {
		extra Usage
		want  bool
	}{{Usage{NetIn: 5}, true}, {Usage{NetIn: 6}, false}, {Usage{NetOut: 100}, true}, {Usage{NetOut: 101}, false}, {Usage{CPU: 1, NetIn: 5, NetOut: 100}, true}} {
		v, err := Admit(Query{Job: "a", Loss: time.Second, Needs: []Need{{"h", c.extra}}}, hosts, nil)
		if err != nil || v.Granted != c.want {
			t.Errorf("%v: %+v, %v", c.extra, v, err)
		}
	}
}

func TestAdmitBadInput(t *testing.T) {
	nan := math.NaN()
	good := Costs{Sensitivity: Sensitivity{1, 1}}
	h := Host{Name: "h", Capacity: Usage{1, 1, 1}}
	for _, c := range []struct {
		name    string
		query   Query
		hosts   []Host
		tenants []Tenant
		says    string
	}{
		{"no job", Query{}, nil, nil, "without a job"},
		{"loss", Query{Job: "a", Loss: -1}, nil, nil, `job "a" loses -1ns`},
		{"capacity", Query{Job: "a"}, []Host{{Name: "h", Capacity: Usage{CPU: nan}}}, nil, "capacity of host h: CPU of NaN"},
		{"negative capacity", Query{Job: "a"}, []Host{{Name: "h", Capacity: Usage{NetOut: -1}}}, nil, "capacity of host h: outgoing network of -1"},
		{"use", Query{Job: "a"}, []Host{{Name: "h", Use: Unlimited}}, nil, "use of host h"},
		{"host twice", Query{Job: "a"}, []Host{h, h}, nil, `host "h" occurs twice`},
		{"unknown host", Query{Job: "a", Needs: []Need{{Host: "x"}}}, []Host{h}, nil, `job "a" needs something on host "x", which is unknown`},
		{"need twice", Query{Job: "a", Needs: []Need{{Host: "h"}, {Host: "h"}}}, []Host{h}, nil, "on host h twice"},
		{"need", Query{Job: "a", Needs: []Need{{"h", Usage{NetIn: nan}}}}, []Host{h}, nil, "what job a needs on host h: incoming network of NaN"},
		{"job twice", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good}, {Name: "b", Costs: good}}, `job "b" occurs twice`},
		{"sensitivity", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b"}}, "job b: sensitivity of 0"},
		{"freed", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: Costs{Usage{CPU: -1}, good.Sensitivity}}}, "job b: freed by a delay: CPU of -1"},
		{"tenant's host", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good, Times: []time.Duration{1}, On: []string{"y"}}}, `job b: worker 0 is on host "y"`},
		{"times", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good, Times: []time.Duration{1}}}, "job b: 1 times of workers on 0 hosts"},
		{"negative time", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good, Times: []time.Duration{-1}, On: []string{"h"}}}, "worker 0 takes -1ns"},
		{"step", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good, Step: -1}}, "job b: step -1"},
		{"tenant's use", Query{Job: "a"}, []Host{h}, []Tenant{{Name: "b", Costs: good, Use: map[string]Usage{"h": {CPU: nan}}}}, "use of job b on host h: CPU of NaN"},
	} {
		if _, err := Admit(c.query, c.hosts, c.tenants); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

func TestLoss(t *testing.T) {
	for _, c := range []struct {
		times []int
		want  int
	}{{[]int{600, 600, 600, 1200}, 600}, {[]int{100, 120, 121}, 1}, {[]int{100, 120, 119}, 0}, {[]int{0, 500}, 0}, {[]int{0, 500, 601, 0}, 101}, {nil, 0}, {[]int{0}, 0}} {
		var ts []time.Duration
		for _, v := range c.times {
			ts = append(ts, time.Duration(v)*ms)
		}
		if got := Loss(ts); got != time.Duration(c.want)*ms {
			t.Errorf("%v: %v, want %d ms", c.times, got, c.want)
		}
	}
}

// Where others would lose as much as the job gains, nothing is gained.
func TestAdmitEvenLoss(t *testing.T) {
	tenants := []Tenant{{Name: "b", SSGD: true, Costs: Costs{Usage{CPU: 1}, Sensitivity{1, 1}}, Times: []time.Duration{2 * time.Second}, On: []string{"h"}}}
	for loss, want := range map[time.Duration]bool{time.Second - 1: false, time.Second: false, time.Second + 1: true} {
		v, err := Admit(Query{Job: "a", Loss: loss, Needs: []Need{{"h", Usage{CPU: 1}}}}, []Host{{"h", Usage{CPU: 4}, Usage{CPU: 4}}}, tenants)
		if err != nil || v.Granted != want || v.Cost != time.Second {
			t.Errorf("loss of %v: %+v, %v", loss, v, err)
		}
	}
}
