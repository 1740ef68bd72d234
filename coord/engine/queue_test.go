package engine

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/modes"
	"star/transport/wire"
)

// queuer is a worker that takes parts, for tests of the scheduler alone.
type queuer struct {
	spans []Span // its lease
	part  int
	done  int
	step  int64
	basis int64
	told  bool
}

func (q *queuer) whole() (n int) {
	for _, s := range q.spans {
		n += s.Count
	}
	return n
}

// first are the first n samples of its lease.
func (q *queuer) first(n int) (out []Span) {
	for _, s := range q.spans {
		if k := min(n, s.Count); k > 0 {
			out = append(out, Span{s.Start, k})
			n -= k
		}
	}
	return out
}

// Whichever worker computes, stops, leaves and comes back, in whatever order, and whatever the plan becomes meanwhile:
// every sample of the stream is in one update, and in one gradient of it.
func TestQueueOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "n")
		const batch = 6
		var plans []modes.Plan
		for _, s := range []string{"ssgd queue=1", "ssgd queue=3", "ssgd queue=6", "ssgd", "asgd"} {
			p, err := modes.Parse(s, n)
			if err != nil {
				t.Fatal(err)
			}
			plans = append(plans, p)
		}
		limit := int64(rapid.IntRange(1, 400).Draw(t, "limit"))
		l := newShards(rapid.SampledFrom(plans[:3]).Draw(t, "plan"), n, 0, batch, limit)
		l.metadata = true
		var note CommitMetadata // of the last update
		out := map[star.Worker]*queuer{}
		steps := make([]int64, n)
		sent := map[star.Worker][]Span{}
		seen := make([]int, limit)
		carry := func(os []Ready) {
			for _, o := range os {
				if o.Fire.Seq > 0 {
					var err error
					if note, err = ParseCommitMetadata(o.Metadata); err != nil {
						t.Fatal(err)
					}
				}
				for _, g := range o.Fire.Gradients {
					for _, s := range sent[g.Worker] {
						for k := range s.Count {
							seen[s.Start+int64(k)]++
						}
					}
					delete(sent, g.Worker)
				}
				if len(o.Fire.Dropped) > 0 {
					t.Fatalf("dropped: %v", o.Fire.Dropped)
				}
				for _, c := range o.Cancels {
					if q := out[c.Worker]; q != nil && q.step == c.Step {
						q.told = true
					}
				}
				for _, r := range o.Releases {
					if out[r.Worker] != nil {
						t.Fatalf("worker %d released twice", r.Worker)
					}
					q := &queuer{spans: []Span{{r.Start, r.Count}}, part: r.Part, step: l.states[r.Worker].step, basis: r.Version}
					for _, p := range r.More {
						q.spans = append(q.spans, Span(p))
					}
					if most := math.Ceil(leased * float64(n*batch)); q.part > 0 && float64(q.whole()) >= most+float64(q.part) {
						t.Fatalf("a lease of %d samples", q.whole())
					}
					steps[r.Worker], out[r.Worker] = q.step, q
				}
			}
		}
		carry(l.Begin(nil))
		for turn := 0; !l.Drained(); turn++ {
			if turn > 20_000 {
				t.Fatalf("%v: still not at the end", l.plan)
			}
			var busy []star.Worker
			for w := range out {
				busy = append(busy, w)
			}
			if slices.Sort(busy); len(busy) == 0 {
				t.Fatalf("%v: nobody computes, and it is not the end", l.plan)
			}
			w := rapid.SampledFrom(busy).Draw(t, "w")
			switch q := out[w]; rapid.IntRange(0, 29).Draw(t, "what") {
			case 0:
				carry(l.Install(rapid.SampledFrom(plans).Draw(t, "plan")))
			case 1:
				if l.live() > 1 {
					delete(out, w)
					carry(l.Leave(w))
				}
			case 2:
				for v := range star.Worker(n) {
					if !l.states[v].live {
						delete(sent, v)
						carry(l.Join(v, true))
					}
				}
			case 3: // another process coordinates: it knows what went with the last update
				next := newShards(l.plan, n, 0, batch, limit)
				next.metadata = true
				next.resume(note.Progress)
				next.seq, next.waste = l.seq, note.Waste
				for v := range next.states {
					next.states[v].live, next.states[v].counted = l.states[v].live, l.states[v].live
					if next.states[v].live {
						continue
					}
					next.barrier.Leave(star.Worker(v))
				}
				l = next
				clear(out)
				clear(sent)
				carry(l.Begin(nil))
			default:
				if q.part > 0 {
					q.done = min(q.done+q.part, q.whole())
				} else {
					q.done = q.whole()
				}
				if q.done < q.whole() && !q.told {
					os, err := l.Computed(wire.Computed{Worker: w, Version: q.basis, Samples: q.done})
					if err != nil {
						t.Fatal(err)
					}
					carry(os)
					continue
				}
				delete(out, w)
				sent[w] = q.first(q.done)
				os, err := l.arrive(w, q.step, q.done)
				if err != nil {
					t.Fatal(err)
				}
				carry(os)
			}
			p := l.progress()
			left := p.Samples
			for _, s := range p.Redo {
				left += int64(s.Count)
			}
			if left != p.Cursor {
				t.Fatalf("a checkpoint at %d samples would do %v again, and then %d to the end", p.Samples, p.Redo, p.Cursor)
			}
		}
		for i, k := range seen {
			if k != 1 {
				t.Fatalf("sample %d of %d is in %d updates", i, limit, k)
			}
		}
		if l.waste != 0 || l.used != limit {
			t.Fatalf("%d samples applied, %d wasted, of %d", l.used, l.waste, limit)
		}
	})
}

// Three workers with shares of 8 in four parts of 2: the one that is through first takes most, but no more than 12.
// When the samples done and begun are 24, the engine tells all workers to stop, once.
func TestQueueStops(t *testing.T) {
	plan, err := modes.Parse("ssgd queue=4", 3)
	if err != nil {
		t.Fatal(err)
	}
	l := newShards(plan, 3, 0, 8, 1000)
	l.Begin(nil)
	told := 0
	for k := 1; k <= 10; k++ { // 6 samples are begun, and each part of worker 0, then of worker 1, begins 2 more
		m := wire.Computed{Worker: 0, Samples: 2 * k}
		if k > 5 {
			m = wire.Computed{Worker: 1, Samples: 2 * (k - 5)}
		}
		os, err := l.Computed(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range os {
			told += len(o.Cancels)
		}
		if want := map[bool]int{true: 3}[k >= 9]; told != want {
			t.Fatalf("after %d parts %d are told to stop, want %d", k, told, want)
		}
	}
	for _, bad := range []wire.Computed{{Worker: 1, Samples: 10}, {Worker: 0, Samples: 13}, {Worker: 2, Samples: 0}, {Worker: 2, Version: 1, Samples: 2}} {
		if _, err := l.Computed(bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	if _, err := l.arrive(0, 0, 8); err == nil {
		t.Error("fewer samples than were told of are taken")
	}
	var weights []float32
	for w, k := range []int{12, 12, 2} {
		os, err := l.arrive(star.Worker(w), 0, k)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range os {
			for _, g := range o.Fire.Gradients {
				weights = append(weights, g.Weight)
			}
		}
	}
	if want := []float32{12. / 24, 12. / 24, 2. / 24}; !slices.Equal(weights, want) {
		t.Errorf("weights %v, want %v", weights, want)
	}
	told = 0
	for _, o := range l.Install(modes.SSGD(3)) {
		told += len(o.Cancels)
	}
	if told != 3 {
		t.Errorf("without a queue %d workers that take from it are told to stop, want 3", told)
	}
	if got := l.progress(); got.Samples != 26 || l.waste != 0 {
		t.Errorf("%d samples applied, %d wasted", got.Samples, l.waste)
	}
}

// What is begun while words are on their way is allowed for: rounds have the samples of a round on average, however
// long words take beside a part.
func TestQueueAllowsForWords(t *testing.T) {
	const n, batch, rounds = 4, 32, 60
	plan, err := modes.Parse("ssgd queue=8", n)
	if err != nil {
		t.Fatal(err)
	}
	part := plan.Part(0, batch)
	takes := [n]int{2, 2, 3, 9} // a part, in ticks; a word takes 5
	const word = 5
	// round is the samples that members have in one round. computed hears of parts and says whether the engine tells
	// all members to stop. No member has more than its lease.
	round := func(lease [n]int, computed func(w star.Worker, samples int) bool) (had [n]int) {
		for tick := word + 1; ; tick++ {
			for w := range star.Worker(n) {
				if k := (tick - word) / takes[w]; k*takes[w] == tick-word && k*part < lease[w] && computed(w, k*part) {
					for w := range n { // they hear of it a word later, and finish the part that they are at
						had[w] = min(((tick+word)/takes[w]+1)*part, lease[w])
					}
					return had
				}
			}
		}
	}
	for _, arch := range []string{"ps", "allreduce"} {
		l := newShards(plan, n, 0, batch, 1<<40)
		var r *Ring
		if arch == "allreduce" {
			r = newRing(l, wire.Ring{})
		}
		if r == nil {
			l.Begin(nil)
		} else {
			r.Begin(nil)
		}
		sum, longest := 0, 0
		for k := range rounds {
			var lease [n]int
			for w := range n {
				if r == nil {
					lease[w] = l.states[w].whole()
				} else {
					lease[w] = r.rounds[0].whole(w)
				}
				longest = max(longest, lease[w])
			}
			had := round(lease, func(w star.Worker, samples int) bool {
				m := wire.Computed{Worker: w, Version: int64(k), Samples: samples}
				var os []Ready
				var err error
				if r == nil {
					os, err = l.Computed(m)
				} else {
					m.Generation = r.rounds[0].generation
					os, err = r.Computed(m)
				}
				if err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(os, func(o Ready) bool { return len(o.Cancels)+len(o.Closes) > 0 })
			})
			for w := range star.Worker(n) {
				if r == nil {
					_, err = l.arrive(w, int64(k), had[w])
				} else {
					_, err = r.Tally(wire.Tally{Worker: w, Generation: r.rounds[0].generation, Version: int64(k) + 1, Samples: had[:]})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range had {
				sum += k
			}
		}
		if longest <= 3*batch/2 || longest > n*batch*6/10 { // 1.5 times what it has had
			t.Errorf("%s: leases of up to %d samples", arch, longest)
		}
		if mean := float64(sum) / rounds / (n * batch); mean < 0.97 || mean > 1.06 {
			t.Errorf("%s: a round has %.2f of its samples", arch, mean)
		}
	}
}
