package placement

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// far is a job with two workers on b and one shard of 10 MB on a, which has a link of 10 MB/s; c is spare, as b is.
func far() Running {
	return Running{
		Sites:   []Site{{Name: "a", In: 10e6, Out: 10e6, CPU: 4, Memory: 1e9}, {Name: "b", In: 1e8, Out: 1e8, CPU: 4, Memory: 1e9}, {Name: "c", In: 1e8, Out: 1e8, CPU: 4, Memory: 1e9}},
		Servers: []int{0, 1, 2}, Workers: []int{1, 1},
		Shards:  []Part{{Server: 0, Gradient: 10e6, Params: 10e6, State: 20e6, CPU: 0.2}},
		Compute: time.Second, Together: true, Plan: "ssgd", Round: 5200 * time.Millisecond, Done: 100, Left: time.Hour,
	}
}

// What a round takes, by hand.
func TestReckon(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Running)
		at     []int
		want   float64 // seconds
	}{
		{"2 x 10 MB in and out at 10 MB/s, beside computing and updating", func(*Running) {}, []int{0}, 1 + 2 + 2 + 0.2},
		{"nothing crosses a link", func(*Running) {}, []int{1}, 1 + 0.02 + 0.02 + 0.2},
		{"at 100 MB/s", func(*Running) {}, []int{2}, 1 + 0.2 + 0.2 + 0.2},
		{"the link is slower than declared", func(r *Running) { r.Sites[0].Seen = 5e6 }, []int{0}, 1 + 4 + 4 + 0.2},
		{"seen faster than what it leaves now", func(r *Running) { r.Sites[0].Seen = 20e6 }, []int{0}, 1 + 2 + 2 + 0.2},
		{"a host that was not seen is as fast in parts as the best that was", func(r *Running) { r.Sites[0].Seen = 5e6 }, []int{2}, 1 + 0.4 + 0.4 + 0.2},
		{"without a known link as fast as the best", func(r *Running) { r.Sites[0].Seen, r.Sites[2].In, r.Sites[2].Out = 5e6, inf, inf }, []int{2}, 1 + 4 + 4 + 0.2},
		{"none is faster than its link", func(r *Running) { r.Sites[0].Seen, r.Sites[1].In, r.Sites[1].Out = 20e6, inf, inf }, []int{2}, 1 + 0.2 + 0.2 + 0.2},
		{"of the best only the rate is known", func(r *Running) { r.Sites[0] = Site{In: inf, Out: inf, Seen: 5e6, CPU: 4} }, []int{2}, 1 + 4 + 4 + 0.2},
		{"likewise, and the link is slower", func(r *Running) {
			r.Sites[0] = Site{In: inf, Out: inf, Seen: 5e6, CPU: 4}
			r.Sites[2].In, r.Sites[2].Out = 1e6, 2e6
		}, []int{2}, 1 + 20 + 10 + 0.2},
		{"no link is known", func(r *Running) { r.Sites[0].In, r.Sites[0].Out, r.Sites[1].In, r.Sites[1].Out = inf, inf, inf, inf }, []int{0}, 1 + 0.2},
		{"the workers' own link decides", func(r *Running) { r.Sites[1].In, r.Sites[1].Out = 1e6, 2e6 }, []int{0}, 1 + 10 + 20 + 0.2},
		{"a host has a tenth of a processor left", func(r *Running) { r.Sites[1].CPU = 0.1 }, []int{1}, 1 + 0.02 + 0.02 + 2},
		{"none: a host leaves a little", func(r *Running) { r.Sites[1].CPU = 0 }, []int{1}, 1 + 0.02 + 0.02 + 4},
		{"a shard updates on one processor", func(r *Running) { r.Sites[1].CPU = 64 }, []int{1}, 1 + 0.02 + 0.02 + 0.2},
		{"alone: the link decides", func(r *Running) { r.Together, r.Compute = false, 100*time.Millisecond }, []int{0}, 0.1 + 4.2/2},
		{"alone: whoever computes decides", func(r *Running) { r.Together = false }, []int{1}, 1 + 0.24/2},
		{"alone: a full link decides", func(r *Running) { r.Together, r.Compute, r.Shards[0].Params = false, 0, 0 }, []int{0}, 2},
		{"two shards of one host share its link", func(r *Running) { r.Shards = append(r.Shards, r.Shards[0]) }, []int{0, 0}, 1 + 4 + 4 + 0.2},
		{"of two hosts the busier one decides", func(r *Running) { r.Shards = append(r.Shards, r.Shards[0]) }, []int{0, 2}, 1 + 2 + 2 + 0.2},
	} {
		r := far()
		c.change(&r)
		if got := r.Reckon(c.at).Seconds(); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %.3f s, want %.3f", c.name, got, c.want)
		}
	}
}

// What pays, and what does not.
func TestPriceOfShift(t *testing.T) {
	type want struct {
		to   int // -1: nothing moves
		gain float64
		cost float64 // seconds
	}
	for _, c := range []struct {
		name   string
		change func(*Running)
		cfg    ShiftConfig
		want   want
	}{
		{"beside the workers", func(*Running) {}, ShiftConfig{}, want{1, (5.2 - 1.24) / 5.2, 0.5 + 2}},
		{"its own server takes none", func(r *Running) { r.Servers[1] = -1 }, ShiftConfig{}, want{2, (5.2 - 1.6) / 5.2, 0.5 + 2}},
		{"no memory there", func(r *Running) { r.Sites[1].Memory = 39e6 }, ShiftConfig{}, want{2, (5.2 - 1.6) / 5.2, 0.5 + 2}},
		{"memory for it and as much again", func(r *Running) { r.Sites[1].Memory = 40e6 }, ShiftConfig{}, want{1, (5.2 - 1.24) / 5.2, 0.5 + 2}},
		{"seen twice as slow as reckoned: only what is known of is saved", func(r *Running) { r.Round *= 2 }, ShiftConfig{}, want{1, (5.2 - 1.24) / 10.4, 0.5 + 2}},
		{"seen twice as fast as reckoned: no more than its part", func(r *Running) { r.Round /= 2 }, ShiftConfig{}, want{1, (5.2 - 1.24) / 5.2, 0.5 + 2}},
		{"the job is nearly over", func(r *Running) { r.Left = 9 * time.Second }, ShiftConfig{}, want{-1, 0, 0}},
		{"it is long enough", func(r *Running) { r.Left = 10 * time.Second }, ShiftConfig{}, want{1, (5.2 - 1.24) / 5.2, 2.5}},
		{"a job without end", func(r *Running) { r.Left = 0 }, ShiftConfig{Horizon: 9 * time.Second}, want{-1, 0, 0}},
		{"a longer one than the horizon", func(*Running) {}, ShiftConfig{Horizon: 9 * time.Second}, want{-1, 0, 0}},
		{"too little to gain", func(*Running) {}, ShiftConfig{Least: 0.8}, want{-1, 0, 0}},
		{"all hosts are alike", func(r *Running) { r.Sites[0].In, r.Sites[0].Out = 1e8, 1e8; r.Workers = []int{0, 1, 2} }, ShiftConfig{}, want{-1, 0, 0}},
		{"slow everywhere, as far as is known", func(r *Running) {
			r.Workers = []int{1}
			r.Servers[1] = -1
			r.Sites[0] = Site{Name: "a", In: inf, Out: inf, Seen: 1e6, CPU: inf, Memory: inf}
			r.Sites[2] = Site{Name: "c", In: inf, Out: inf, CPU: inf, Memory: inf}
		}, ShiftConfig{}, want{-1, 0, 0}},
		{"another job is on the host's processors", func(r *Running) {
			r.Sites[0] = r.Sites[2]
			r.Sites[0].CPU, r.Servers[1] = 0.1, -1
			r.Round = 3400 * time.Millisecond
		}, ShiftConfig{}, want{2, (3.4 - 1.6) / 3.4, 0.5 + 0.2}},
		{"of two that are as good the one that is nearer", func(r *Running) {
			r.Shards[0] = Part{State: 20e6, CPU: 0.2}
			r.Sites[0] = Site{In: 1e8, Out: 1e8, CPU: 0.1}
			r.Sites[2].In, r.Round = 1e7, 3*time.Second
		}, ShiftConfig{}, want{1, 1.8 / 3, 0.5 + 0.2}},
		{"nothing was seen", func(r *Running) { r.Round = 0 }, ShiftConfig{}, want{-1, 0, 0}},
		{"a second server of the same host", func(r *Running) { r.Servers = []int{0, 0} }, ShiftConfig{}, want{-1, 0, 0}},
	} {
		r := far()
		c.change(&r)
		m, ok := c.cfg.Price(r, nil)
		switch {
		case ok != (c.want.to >= 0):
			t.Errorf("%s: %v %+v", c.name, ok, m)
		case ok && (m.To != c.want.to || math.Abs(m.Gain-c.want.gain) > 1e-9 || math.Abs(m.Cost.Seconds()-c.want.cost) > 1e-9 || m.From != 0 || m.Shard != 0):
			t.Errorf("%s: %+v, want %+v", c.name, m, c.want)
		}
	}
	r := far()
	if m, ok := (ShiftConfig{}).Price(r, func(shard, to int) bool { return to != 1 }); !ok || m.To != 2 {
		t.Errorf("with a move forbidden: %v %+v", ok, m)
	}
	if m, _ := (ShiftConfig{}).Price(r, nil); !strings.Contains(m.Why, "shard 0 on b in place of a") || !strings.Contains(m.Why, "76 % less") {
		t.Errorf("the reason: %s", m.Why)
	}
}

// counted is Reckon by counting each flow for itself.
func counted(r Running, at []int) float64 {
	in, out := r.rates()
	type link struct{ in, out float64 } // bytes in each phase
	push, pull, near := make([]link, len(r.Sites)), make([]link, len(r.Sites)), make([]link, len(r.Sites))
	for _, w := range r.Workers {
		for i, p := range r.Shards {
			h := r.Servers[at[i]]
			if h == w {
				near[h].in += p.Gradient
				near[h].out += p.Params
				continue
			}
			push[h].in += p.Gradient
			push[w].out += p.Gradient
			pull[h].out += p.Params
			pull[w].in += p.Params
		}
	}
	var a, b, u float64
	over := func(x, y float64) float64 {
		if x == 0 {
			return 0
		}
		return x / y
	}
	for h, s := range r.Sites {
		a = max(a, over(push[h].in, in[h])+near[h].in/1e9, over(push[h].out, s.Out))
		b = max(b, over(pull[h].out, out[h])+near[h].out/1e9, over(pull[h].in, s.In))
		n, cpu := 0.0, 0.0
		for i, p := range r.Shards {
			if r.Servers[at[i]] == h {
				n, cpu = n+1, cpu+p.CPU
			}
		}
		u = max(u, over(cpu, max(0.05, min(n, s.CPU))))
	}
	c := r.Compute.Seconds()
	if r.Together {
		return min(c+a+b+u, 1e6)
	}
	return min(max(c+(a+b+u)/float64(len(r.Workers)), a, b, u), 1e6)
}

func drawRunning(t *rapid.T) Running {
	amount := func(name string, max float64) float64 { return rapid.Float64Range(0, max).Draw(t, name) }
	limit := func(name string, least, most float64) float64 {
		if rapid.Bool().Draw(t, name+" limited") {
			return least + amount(name, most-least)
		}
		return inf
	}
	r := Running{
		Compute: time.Duration(amount("compute", 2) * 1e9), Together: rapid.Bool().Draw(t, "together"), Plan: "p",
		Round: time.Duration((0.001 + amount("round", 5)) * 1e9), Done: 1000, Left: time.Duration(amount("left", 1e4) * 1e9),
	}
	n := rapid.IntRange(1, 4).Draw(t, "sites")
	for i := range n {
		s := Site{Name: fmt.Sprint(i), In: limit("in", 1e3, 1e8), Out: limit("out", 1e3, 1e8), CPU: limit("cpu", 0, 4), Memory: limit("memory", 0, 4e7)}
		if rapid.Bool().Draw(t, "seen") {
			s.Seen = 1e3 + amount("seen at", 1e8)
		}
		r.Sites = append(r.Sites, s)
	}
	site := rapid.IntRange(0, n-1)
	r.Servers = append(rapid.SliceOfN(rapid.IntRange(-1, n-1), 0, 4).Draw(t, "servers"), site.Draw(t, "last"))
	r.Workers = rapid.SliceOfN(site, 1, 5).Draw(t, "workers")
	alive := []int{}
	for i, h := range r.Servers {
		if h >= 0 {
			alive = append(alive, i)
		}
	}
	for range rapid.IntRange(1, 4).Draw(t, "shards") {
		r.Shards = append(r.Shards, Part{Server: rapid.SampledFrom(alive).Draw(t, "at"), Gradient: amount("gradient", 1e7), Params: amount("params", 1e7), State: amount("state", 2e7), CPU: amount("cpu", 0.5)})
	}
	return r
}

// The model is what counting flows gives; the move that is chosen is the best of all, allowed, and pays.
func TestShiftAgainstCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRunning(t)
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		at := r.Owners()
		now := counted(r, at)
		if got := r.Reckon(at).Seconds(); math.Abs(got-now) > 1e-6*(1+now) {
			t.Fatalf("a round is %v s, want %v", got, now)
		}
		c := ShiftConfig{}.filled()
		in, out := r.rates()
		best := 0.0
		for i, p := range r.Shards {
			for to, h := range r.Servers {
				if h < 0 || h == r.Servers[p.Server] || r.Sites[h].Memory < 2*p.State {
					continue
				}
				at[i] = to
				then := counted(r, at)
				at[i] = p.Server
				gain := (now - then) / r.Round.Seconds() * min(1, r.Round.Seconds()/now)
				cost := 0.5
				if p.State > 0 {
					cost += p.State / min(out[r.Servers[p.Server]], in[h])
				}
				left := r.Left.Seconds()
				if left == 0 || left > 3600 {
					left = 3600
				}
				if gain >= c.Least && gain*left >= 3*cost {
					best = max(best, gain*left-cost)
				}
			}
		}
		m, ok := c.Price(r, nil)
		if !ok {
			if best > 1e-3 {
				t.Fatalf("nothing moves, although something saves %v s", best)
			}
			return
		}
		left := r.Left.Seconds()
		if left == 0 || left > 3600 {
			left = 3600
		}
		if h := r.Servers[m.To]; h < 0 || h == r.Servers[m.From] || m.From != r.Shards[m.Shard].Server || r.Sites[h].Memory < 2*r.Shards[m.Shard].State {
			t.Fatalf("%+v is no move", m)
		}
		if saves := m.Gain*left - m.Cost.Seconds(); math.Abs(saves-best) > 1e-3*(1+best) || m.Gain > 1+1e-9 {
			t.Fatalf("%+v saves %v s, another one %v", m, saves, best)
		}
	})
}

// story is a job with the round times that truth returns, observed each second.
type story struct {
	s     *Shifter
	r     Running
	now   time.Duration
	truth func(at int) time.Duration // of a round with the shard at a server
	said  []string
	fail  error
}

func (y *story) run(seconds int) {
	for range seconds {
		y.now += time.Second
		y.r.Round = y.truth(y.r.Shards[0].Server)
		y.r.Done += 10
		do, m, seen := y.s.Look(y.now, y.r)
		switch do {
		case Kept:
			y.said = append(y.said, fmt.Sprintf("%v kept %.2f", y.now, seen))
		case Go, Back:
			y.said = append(y.said, fmt.Sprintf("%v %s %d→%d %.2f", y.now, map[ShiftAction]string{Go: "go", Back: "back"}[do], m.From, m.To, seen))
			if y.fail == nil {
				y.r.Shards[0].Server = m.To
			}
			y.s.Moved(y.now, y.r, y.fail)
		}
	}
}

func (y *story) want(t *testing.T, what string, want ...string) {
	t.Helper()
	if fmt.Sprint(y.said) != fmt.Sprint(want) {
		t.Errorf("%s: %q, want %q", what, y.said, want)
	}
}

// Looks come to moves when they agree, moves are looked at, and what did not pay goes back and is not tried again for a
// while.
func TestShifter(t *testing.T) {
	honest := func(r Running) func(int) time.Duration {
		return func(at int) time.Duration { return r.Reckon([]int{at}) }
	}
	r := far()
	y := &story{s: NewShifter(ShiftConfig{}), r: r, truth: honest(r)}
	y.run(300) // 3 s and 20 rounds, then three looks to see and two more that agree
	y.want(t, "it pays", "8s go 0→1 NaN", "13s kept 0.76")

	// Settle is long: 20 rounds at 10 a look are there after two looks.
	y = &story{s: NewShifter(ShiftConfig{Rounds: 100}), r: far(), truth: honest(r)}
	y.run(30)
	y.want(t, "rounds count", "15s go 0→1 NaN", "27s kept 0.76")

	// Nothing becomes faster: the shard goes back, the next best is tried after the dwell, and each again when its ban is
	// over.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: func(int) time.Duration { return 5200 * time.Millisecond }}
	y.run(1000)
	y.want(t, "it does not pay", "8s go 0→1 NaN", "13s back 1→0 0.00", "45s go 0→2 NaN", "50s back 2→0 0.00", "10m15s go 0→1 NaN", "10m20s back 1→0 0.00", "10m52s go 0→2 NaN", "10m57s back 2→0 0.00")

	// The ban of what has failed twice is twice as long.
	y.run(840)
	y.want(t, "bans grow", "8s go 0→1 NaN", "13s back 1→0 0.00", "45s go 0→2 NaN", "50s back 2→0 0.00", "10m15s go 0→1 NaN", "10m20s back 1→0 0.00", "10m52s go 0→2 NaN", "10m57s back 2→0 0.00",
		"30m22s go 0→1 NaN", "30m27s back 1→0 0.00")

	// A quarter of what was predicted is enough.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: func(at int) time.Duration {
		return map[int]time.Duration{0: 5200 * time.Millisecond, 1: 4200 * time.Millisecond, 2: 5200 * time.Millisecond}[at]
	}}
	y.run(20)
	y.want(t, "a quarter", "8s go 0→1 NaN", "13s kept 0.19")

	// A move that fails is banned, too, and is not looked at.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: honest(r), fail: errors.New("server 1 is lost")}
	y.run(600)
	y.want(t, "it fails", "8s go 0→1 NaN", "40s go 0→2 NaN")

	// With another mode there is nothing to compare with.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: honest(r)}
	y.run(8)
	y.r.Plan = "asgd"
	y.run(20)
	y.want(t, "another mode", "8s go 0→1 NaN", "14s kept NaN")

	// If the shard was moved elsewhere, or the old server was lost, there is nothing to undo.
	for what, change := range map[string]func(*Running){"moved by hand": func(r *Running) { r.Shards[0].Server = 2 }, "no way back": func(r *Running) { r.Servers[0] = -1 }} {
		y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: func(int) time.Duration { return 5200 * time.Millisecond }}
		y.run(8)
		change(&y.r)
		y.run(5)
		y.want(t, what, "8s go 0→1 NaN", "13s kept 0.00")
	}

	// A gain that appears only now and then is ignored: three looks have to agree.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: honest(r)}
	for i := range 60 {
		y.r.Servers = []int{0, 1, 2}
		if i%3 == 0 {
			y.r.Servers = []int{0, -1, -1}
		}
		y.run(1)
	}
	y.want(t, "on and off")

	// They have to agree on where to.
	y = &story{s: NewShifter(ShiftConfig{}), r: far(), truth: honest(r)}
	for i := range 60 {
		y.r.Servers = []int{0, 1, 2}
		if i%2 == 0 {
			y.r.Servers = []int{0, -1, 2}
		}
		y.run(1)
	}
	y.want(t, "to and fro")

	// Rounds vary: the mean of the looks counts.
	y = &story{s: NewShifter(ShiftConfig{}), r: far()}
	y.truth = func(at int) time.Duration {
		return r.Reckon([]int{at}) + map[int]time.Duration{0: time.Duration(y.now/time.Second%3-1) * time.Second / 2}[at]
	}
	y.run(20)
	y.want(t, "rounds vary", "8s go 0→1 NaN", "13s kept 0.76")
}

// While a move is under way no other move is wanted, and the result of a move that was not requested is ignored.
func TestShifterWaits(t *testing.T) {
	s := NewShifter(ShiftConfig{})
	r := far()
	s.Moved(time.Second, r, errors.New("of nothing"))
	var went int
	for i := range 100 {
		r.Done += 10
		if do, _, _ := s.Look(time.Duration(i)*time.Second, r); do != Stay {
			went++
		}
	}
	if went != 1 {
		t.Errorf("%d moves at once", went)
	}
}

func TestRunningBadInput(t *testing.T) {
	nan := math.NaN()
	for want, change := range map[string]func(*Running){
		"site a: ":             func(r *Running) { r.Sites[0].In = -1 },
		"site b: ":             func(r *Running) { r.Sites[1].CPU = nan },
		"infinite rate":        func(r *Running) { r.Sites[1].Seen = inf },
		"server 1 is at site":  func(r *Running) { r.Servers[1] = 3 },
		"server 2 is at site":  func(r *Running) { r.Servers[2] = -2 },
		"worker 0 is at site":  func(r *Running) { r.Workers[0] = -1 },
		"shard 0 is at server": func(r *Running) { r.Shards[0].Server = 3 },
		"or that is nowhere":   func(r *Running) { r.Servers[0] = -1 },
		"shard 0: ":            func(r *Running) { r.Shards[0].State = inf },
		"shard 0: {Server":     func(r *Running) { r.Shards[0].CPU = nan },
		"negative time":        func(r *Running) { r.Left = -1 },
	} {
		r := far()
		change(&r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r := far()
	if err := r.Validate(); err != nil {
		t.Error(err)
	}
}
