package explain

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
	"star/runlog"
)

// file is a log in memory.
type file struct{ *bytes.Buffer }

func (file) Close() error { return nil }

// A log with sampled records gives the same story as the full one: the same workers are slow from the same iterations
// to the same ones, by as much, and for the same causes.
func TestSampledStory(t *testing.T) {
	const workers = 64
	story := func(sampled bool) (*Story, string) {
		var text bytes.Buffer
		w := runlog.NewWriter(file{&text})
		if sampled {
			w.Sample(workers)
		}
		w.Write(0, runlog.Start{Format: 1, Program: "star", Config: []byte(`{"arch":"ps"}`)})
		w.Write(0, runlog.Train{Workers: workers, Shards: 1, Model: "m", Data: "d", Limit: 1 << 30, Plan: "ssgd"})
		rng := rand.New(rand.NewPCG(1, 2))
		now := time.Duration(0)
		var ranks []star.Worker
		for id := range star.Worker(workers) {
			ranks = append(ranks, id)
		}
		for step := range int64(600) {
			longest := time.Duration(0)
			took := make([]time.Duration, workers)
			records := make([]runlog.Record, workers)
			for id := range records {
				r := &records[id]
				*r = runlog.Record{Start: -1, Record: star.Record{Worker: star.Worker(id), Step: step, Basis: step, Samples: 1, CPU: 1,
					Compute: time.Duration((0.95 + 0.1*rng.Float64()) * float64(20*time.Millisecond))}}
				for m := range star.NumMetrics {
					r.Telemetry.Set(m, 0)
				}
				r.Telemetry.Set(star.ComputeCPU, 1)
				switch {
				case id == 5 && step >= 100 && step < 400: // its hypervisor gives the processor to others
					r.Compute = 2 * r.Compute
					r.CPU = 0.5
					r.Telemetry.Set(star.ComputeCPU, 0.5)
					r.Telemetry.Set(star.Steal, 0.5)
				case id == 9 && step >= 200: // its control group has a quota
					r.Compute = 3 * r.Compute
					r.CPU = 0.33
					r.Telemetry.Set(star.ComputeCPU, 0.33)
					r.Telemetry.Set(star.Throttled, 0.67)
					r.Telemetry.Set(star.Quota, 0.33)
				}
				took[id] = r.Compute
				longest = max(longest, r.Compute)
			}
			for id := range records {
				r := &records[id]
				r.At = now + r.Compute
				w.Record(r.At, r)
			}
			now += longest
			w.Write(now, runlog.Fire{Seq: step + 1, Version: step + 1, Workers: ranks, Staleness: make([]int64, workers), Samples: workers * (step + 1)})
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		log := text.String()
		teller := New()
		read, err := runlog.Read(&text, "log", teller.Add)
		if err != nil {
			t.Fatal(err)
		}
		return teller.Story(read), log
	}
	want, whole := story(false)
	got, log := story(true)
	if !strings.Contains(log, `"type":"sampled"`) || len(log) > len(whole)*3/4 {
		t.Fatalf("the log was not sampled: %d bytes of %d", len(log), len(whole))
	}
	if len(want.Episodes) != 2 || len(got.Episodes) != 2 {
		t.Fatalf("%d episodes, %d of the sampled log, want 2", len(want.Episodes), len(got.Episodes))
	}
	for i, w := range want.Episodes {
		g := got.Episodes[i]
		if g.Worker != w.Worker || g.From != w.From || g.To != w.To || g.Since != w.Since || g.Until != w.Until || g.Slowdown != w.Slowdown || g.Cause != w.Cause {
			t.Errorf("the sampled log tells %+v, the full one %+v", g, w)
		}
		t.Log(w.Worker, w.From, w.To, w.Cause, w.Slowdown)
	}
	if got.Samples != want.Samples || got.Updates != want.Updates {
		t.Errorf("%d samples and %d updates, want %d and %d", got.Samples, got.Updates, want.Samples, want.Updates)
	}
}
