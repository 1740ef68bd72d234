package engine_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"star"
	"star/coord/engine"
	"star/coord/engine/rehearsal"
	"star/modes/baseline"
	"star/transport/wire"
)

// schemeOf draws one of the schemes of other papers, for 1 to 9 workers.
func schemeOf(t *rapid.T, texts []string, n, batch int, ring bool) (string, baseline.Made) {
	text := rapid.SampledFrom(texts).Draw(t, "scheme")
	spec, err := baseline.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := spec.Make(baseline.Job{Workers: n, Batch: batch, Ring: ring})
	if err != nil {
		t.Skip(err)
	}
	return text, m
}

// In an all-reduce every scheme of another paper makes progress for 1 to 9 workers, in whatever order messages are
// delivered and rounds end: the job ends, and every member has applied the same.
func TestSchemesOnARing(t *testing.T) {
	texts := []string{"lb-bsp:predictor=last,change=0", "lb-bsp:device=gpu,window=1", "sync-switch:switch=0.5", "sync-switch:online=greedy,window=1,hits=1,switch=0.8",
		"sync-switch:online=elastic,window=1,hits=1,switch=0.8", "dropcompute:after=2,micro=4", "diloco:steps=3", "local-sgd:steps=2", "post-local-sgd:steps=3", "lgc:k=1", "lgc:warmup=2", "easgd:sync=yes,steps=2"}
	for _, e := range baseline.Entries() {
		if e.Ring {
			texts = append(texts, e.Name)
		}
	}
	const batch = 8
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		text, m := schemeOf(t, texts, n, batch, true)
		limit := int64(rapid.IntRange(1, 8).Draw(t, "rounds") * n * batch)
		s := rehearsal.NewRing(rehearsal.Config{
			Config: engine.Config{Plan: m.Plan, Workers: n, Batch: batch, Limit: limit, Cancel: m.Cancel, Ring: new(engine.RingConfig), MaxParams: 1 << 30},
			Draw:   func(low, high int, what string) int { return rapid.IntRange(low, high).Draw(t, what) },
			Broken: t.Fatalf,
		})
		slow := star.Worker(rapid.IntRange(0, n-1).Draw(t, "slow"))
		version := int64(0)
		for steps := 0; ; steps++ {
			can := s.Acts()
			if len(can) == 0 {
				break
			}
			if steps > 20_000 {
				t.Fatalf("%s: the job never ends", text)
			}
			rapid.SampledFrom(can).Draw(t, "what").Do()
			now := s.Engine.View()
			if m.Scheme == nil || now.Version == version {
				continue
			}
			for ; version < now.Version; version++ {
				for w := range star.Worker(n) {
					r := star.Record{Worker: w, Step: version, Compute: 100 * time.Millisecond, Samples: max(1, m.Plan.Share(w, batch))}
					if w == slow && version%6 < 3 {
						r.Compute *= 4
					}
					m.Scheme.Observe(r)
				}
			}
			if d, ok := m.Scheme.Fired(baseline.Update{Samples: now.Used, Limit: limit}); ok {
				m.Plan = d.Plan
				s.Install(d.Plan)
			}
		}
		if s.Engine.View().Version == 0 {
			t.Fatalf("%s: the job ends without an update", text)
		}
		s.Check()
	})
}

// The workers that compute for an update that is made without them must stop, once, and no other worker must: by LGC,
// K-sync and K-batch-sync, for 1 to 9 workers in any order of arrival. What they had done is in no update.
func TestCancels(t *testing.T) {
	texts := []string{"lgc", "lgc:k=1", "k-sync", "k-sync:k=1", "k-batch-sync", "k-batch-sync:k=2", "k-batch-sync:k=13", "k-sync:blocks=1"}
	const batch = 8
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		text, m := schemeOf(t, texts, n, batch, false)
		limit := int64(rapid.IntRange(1, 12).Draw(t, "rounds") * n * batch)
		l := engine.NewShards(engine.Config{Plan: m.Plan, Workers: n, Batch: batch, Limit: limit, Cancel: m.Cancel})
		out, stopped := map[star.Worker]wire.Release{}, map[star.Worker]bool{}
		step := make([]int64, n)
		version, part := int64(0), map[[2]int64]bool{}
		carry := func(os []engine.Ready) {
			for _, o := range os {
				for _, g := range o.Members {
					if part[[2]int64{int64(g.Worker), g.Step}] {
						t.Fatalf("%s: version %d has a part of step %d of worker %d", text, o.Fire.Version, g.Step, g.Worker)
					}
				}
				var want []star.Worker
				if len(o.Members) > 0 {
					version++
					for w := range star.Worker(n) {
						if r, ok := out[w]; ok && r.Version == version-1 && m.Cancel {
							want = append(want, w)
						}
					}
				}
				var told []star.Worker
				for _, c := range o.Cancels {
					if told = append(told, c.Worker); c.Step != step[c.Worker] || stopped[c.Worker] {
						t.Fatalf("%s: worker %d, at step %d, is told to stop step %d, or again", text, c.Worker, step[c.Worker], c.Step)
					}
					stopped[c.Worker] = true
				}
				if !slices.Equal(told, want) {
					t.Fatalf("%s: version %d is made, %v are told to stop, want %v", text, version, told, want)
				}
				for _, r := range o.Releases {
					out[r.Worker] = r
					delete(stopped, r.Worker)
				}
			}
		}
		carry(l.Begin(nil))
		for len(out) > 0 {
			var ws []star.Worker
			for w := range star.Worker(n) {
				if _, ok := out[w]; ok {
					ws = append(ws, w)
				}
			}
			w := rapid.SampledFrom(ws).Draw(t, "w")
			samples := out[w].Count
			if stopped[w] && samples > 1 {
				samples = rapid.IntRange(1, samples).Draw(t, "parts")
			}
			part[[2]int64{int64(w), step[w]}] = stopped[w]
			delete(out, w)
			k := step[w]
			step[w]++
			_, os, err := l.Arrive(star.Record{Worker: w, Step: k, Samples: samples}, false)
			if err != nil {
				t.Fatal(err)
			}
			carry(os)
		}
		if st := l.View(); !l.Drained() || st.Used+st.Waste != limit || version == 0 {
			t.Fatalf("%s: %d updates, %d samples used and %d not, of %d", text, version, st.Used, st.Waste, limit)
		}
	})
}
