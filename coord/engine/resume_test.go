package engine

import (
	"fmt"
	"slices"
	"testing"

	"star"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// Another coordinator goes on from the metadata of the last Fire: what was stored since is dropped by the shards,
// batches that were out are handed out again, steps are new ones, and in the end every sample is applied once.
func TestShardsGoOn(t *testing.T) {
	const limit = 60
	c := Config{Plan: modes.XOrder(3, 2), Workers: 3, Shards: 2, Batch: 4, Limit: limit, WithMetadata: true}
	l := NewShards(c)
	applied := map[int64]int{}
	out := map[star.Worker]wire.Release{}
	steps := map[star.Worker]int64{}
	var metadata []byte
	var dropped []string
	carry := func(os []Ready) {
		for _, o := range os {
			for _, g := range o.Fire.Gradients {
				r := out[g.Worker]
				for i := range r.Count {
					applied[r.Start+int64(i)]++
				}
			}
			if o.Silent {
				dropped = append(dropped, fmt.Sprint(o.Fire.Seq, ":", o.Fire.Dropped[0].Worker, ".", o.Fire.Dropped[0].Step))
			}
			if len(o.Metadata) > 0 {
				metadata = slices.Clone(o.Metadata)
			}
			for _, r := range o.Releases {
				out[r.Worker] = r
			}
		}
	}
	push := func(l *Shards, w star.Worker) {
		for shard := range 2 {
			os, err := l.Stored(shard, w, steps[w], replica.Sum{Sum2: 1})
			if err != nil {
				t.Fatal(err)
			}
			carry(os)
		}
		_, os, err := l.Arrive(star.Record{Worker: w, Step: steps[w], Samples: out[w].Count}, false)
		if err != nil {
			t.Fatal(err)
		}
		steps[w]++
		carry(os)
	}
	carry(l.Begin(nil))
	for _, w := range []star.Worker{0, 1, 2, 0, 1} {
		push(l, w)
	}
	m, err := ParseCommitMetadata(metadata)
	if err != nil || m.Version != 2 || m.Samples != int64(len(applied)) {
		t.Fatalf("%+v, %v, after %d samples", m, err, len(applied))
	}
	// Worker 1 has stored the gradient of its next step, and worker 0 was released for one more since the last Fire that
	// anybody has.
	after := m.Snapshot
	after.Seq, after.Steps = l.seq, slices.Clone(m.Steps)
	after.Steps[0]++
	c.After, c.Absent = &after, []star.Worker{2}
	handover := NewShards(c)
	carry(handover.Begin(&Told{Before: m.Steps}))
	if got := fmt.Sprint(dropped); got != "[3:0.2 4:0.3 5:1.1 6:2.1]" {
		t.Errorf("shards drop %v", got)
	}
	for w, want := range []int64{4, 2, 1} { // a worker that is absent keeps its step: it has a new one when it comes
		if k := handover.Worker(star.Worker(w)); k.Step != want || k.Live != (w < 2) {
			t.Errorf("worker %d goes on as %+v, want step %d", w, k, want)
		}
	}
	steps = map[star.Worker]int64{0: 4, 1: 2}
	carry(handover.Join(2, false))
	if steps[2] = handover.Worker(2).Step; steps[2] != 2 {
		t.Errorf("worker 2 comes back in step %d", steps[2])
	}
	for i := 0; !handover.Drained(); i++ {
		if w := star.Worker(i % 3); !handover.Worker(w).Parked && !handover.Worker(w).Waiting {
			push(handover, w)
		}
	}
	for q := range int64(limit) {
		if applied[q] != 1 {
			t.Errorf("sample %d was applied %d times", q, applied[q])
		}
	}
}
