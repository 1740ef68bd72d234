package takeover

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"star"
	"star/coord/engine"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// job is a model of a job with parameter servers and changing coordinators: the applied samples are those of the Fires
// that a server was given.
type job struct {
	t      *rapid.T
	e      *engine.Shards
	config engine.Config
	fires  []Fire                   // all that servers were given, from the first on
	spans  map[[2]int64]engine.Span // by worker and step: what was released
	noted  []int64                  // steps, when members were noted
}

func (j *job) does(os []engine.Ready) {
	for i := range os {
		o := &os[i]
		if o.Fire.Seq > 0 {
			if o.Fire.Seq != int64(len(j.fires))+1 {
				j.t.Fatalf("fire %d follows %d", o.Fire.Seq, len(j.fires))
			}
			j.fires = append(j.fires, Fire{o.Fire.AppendTo(nil), o.Metadata})
		}
		for _, r := range o.Releases {
			j.spans[[2]int64{int64(r.Worker), j.e.Worker(r.Worker).Step}] = engine.Span{Start: r.Start, Count: r.Count}
		}
	}
}

// applied is how often each position of the stream is applied, by the Fires.
func (j *job) applied() map[int64]int {
	n := map[int64]int{}
	for _, f := range j.fires {
		m, err := wire.ParseFire(f.Header)
		if err != nil {
			j.t.Fatal(err)
		}
		for _, g := range m.Gradients {
			s, ok := j.spans[[2]int64{int64(g.Worker), g.Step}]
			if !ok {
				j.t.Fatalf("fire %d names step %d of worker %d, which was not released", m.Seq, g.Step, g.Worker)
			}
			for q := range s.Count {
				n[s.Start+int64(q)]++
			}
		}
	}
	return n
}

// takeOver continues with another engine, from reports of servers that were each given a part of the Fires.
func (j *job) takeOver() {
	reports := make([]*Report, rapid.IntRange(1, 3).Draw(j.t, "servers")+1) // without a report of the last
	// fires that servers may have forgotten: not the last with metadata that all have
	known := max(0, len(j.fires)-3)
	for known > 0 && len(j.fires[known-1].Metadata) == 0 {
		known--
	}
	known = max(0, known-1)
	last := 0
	for i := range len(reports) - 1 {
		k := rapid.IntRange(max(0, len(j.fires)-3), len(j.fires)).Draw(j.t, "given")
		forgotten := rapid.IntRange(0, known).Draw(j.t, "forgotten")
		reports[i] = &Report{Standing: wire.Standing{Seq: int64(k)}, Fires: map[int64]Fire{}}
		for seq := min(forgotten, k) + 1; seq <= k; seq++ {
			reports[i].Fires[int64(seq)] = j.fires[seq-1]
		}
		last = max(last, k)
	}
	h := Of(reports)
	if h.Seq != int64(last) {
		j.t.Fatalf("the history ends with %d, not %d", h.Seq, last)
	}
	after, before, err := h.End(j.config.From, j.noted, j.config.Workers)
	if err != nil {
		j.t.Fatal(err)
	}
	for _, r := range reports[:len(reports)-1] {
		fs, err := h.Behind(r.Seq, "a server lacks")
		if err != nil || len(fs) != last-int(r.Seq) {
			j.t.Fatalf("%d fires behind %d, of %d: %v", len(fs), r.Seq, last, err)
		}
		for i, f := range fs {
			if !slices.Equal(f.Header, j.fires[int(r.Seq)+i].Header) {
				j.t.Fatal("another fire")
			}
		}
	}
	j.fires = j.fires[:last] // no server was given the others
	j.lines(&h)
	n := int64(0)
	for range j.applied() {
		n++
	}
	if after.Samples != n || after.Seq != int64(last) {
		j.t.Fatalf("it goes on behind %d samples and fire %d, not %d and %d", after.Samples, after.Seq, n, last)
	}
	c := j.config
	c.After = &after
	j.e = engine.NewShards(c)
	j.does(j.e.Begin(&engine.Told{Before: before}))
	j.noted = j.e.Steps()
}

// lines compares the lines for the run log with the Fires.
func (j *job) lines(h *History) {
	var want []string
	for seq := range slices.Values(j.kept(h)) {
		m, _ := wire.ParseFire(j.fires[seq-1].Header)
		if len(m.Gradients) > 0 {
			want = append(want, fmt.Sprintf("%d: v%d of %v", seq, m.Version, engine.WorkersOf(m.Gradients)))
		}
	}
	var got []string
	for _, l := range h.Lines() {
		got = append(got, fmt.Sprintf("%d: v%d of %v", l.Seq, l.Version, l.Workers))
	}
	if !slices.Equal(got, want) {
		j.t.Fatalf("the log has %v, want %v", got, want)
	}
}

func (j *job) kept(h *History) (seqs []int) {
	for seq := 1; seq <= int(h.Seq); seq++ {
		if _, ok := h.Fires[int64(seq)]; ok {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

// Whichever process coordinates, and whatever part the servers know: every sample of the stream is applied once.
func TestEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "workers")
		p, err := modes.Parse(rapid.SampledFrom([]string{"ssgd", "asgd", "x=1"}).Draw(t, "mode"), n)
		if err != nil {
			t.Fatal(err)
		}
		shards := rapid.IntRange(1, 2).Draw(t, "shards")
		j := &job{t: t, config: engine.Config{Plan: p, Workers: n, Shards: shards, Batch: 3, Limit: 60, WithMetadata: true}, spans: map[[2]int64]engine.Span{}}
		j.e = engine.NewShards(j.config)
		j.does(j.e.Begin(nil))
		j.noted = j.e.Steps()
		for i := 0; !j.e.Drained(); i++ {
			if i > 10000 {
				t.Fatal("it does not end")
			}
			if rapid.IntRange(0, 9).Draw(t, "event") == 0 && i < 200 {
				j.takeOver()
				continue
			}
			lacking := j.e.Lacking()
			w := lacking[rapid.IntRange(0, len(lacking)-1).Draw(t, "worker")]
			k := j.e.Worker(w)
			for shard := range shards {
				os, err := j.e.Stored(shard, w, k.Step, replica.Sum{})
				if err != nil {
					t.Fatal(err)
				}
				j.does(os)
			}
			_, os, err := j.e.Arrive(star.Record{Worker: w, Step: k.Step, Samples: k.Count}, false)
			if err != nil {
				t.Fatal(err)
			}
			j.does(os)
		}
		applied := j.applied()
		for q := range int64(60) {
			if applied[q] != 1 {
				t.Fatalf("sample %d is applied %d times", q, applied[q])
			}
		}
		if len(applied) != 60 {
			t.Fatalf("%d samples are applied, of 60", len(applied))
		}
	})
}

func fire(f wire.Fire, note []byte) Fire { return Fire{f.AppendTo(nil), note} }

// An error names the Fires that no server has kept.
func TestWhatIsLost(t *testing.T) {
	h := Of([]*Report{{Standing: wire.Standing{Seq: 2}, Fires: map[int64]Fire{1: fire(wire.Fire{Seq: 1}, nil)}}})
	var lost *engine.LostError
	if _, _, err := h.End(engine.Progress{}, nil, 1); !errors.As(err, &lost) || lost.Msg != "no server has kept fire 2 of 2, so the applied samples are unknown; resume from a checkpoint" {
		t.Error(err)
	}
	if _, err := h.Behind(0, "server 1 lacks"); !errors.As(err, &lost) || lost.Msg != "server 1 lacks fire 2, which no server has kept; resume from a checkpoint" {
		t.Error(err)
	}
	var mismatch *MismatchError
	h.Fires[2] = fire(wire.Fire{Seq: 2}, []byte{99})
	if _, _, err := h.End(engine.Progress{}, nil, 1); !errors.As(err, &mismatch) {
		t.Error(err)
	}
	// Fires without an update add nothing, and a job without any begins at its begin; a worker that joined since the
	// members were recorded keeps its step.
	h = Of([]*Report{nil, {Standing: wire.Standing{Seq: 1}, Fires: map[int64]Fire{1: fire(wire.Fire{Seq: 1}, nil)}}})
	after, before, err := h.End(engine.Progress{Version: 7, Cursor: 9}, []int64{3}, 2)
	if err != nil || after.Version != 7 || after.Cursor != 9 || after.Seq != 1 || !slices.Equal(after.Steps, []int64{3, -1}) || len(before) != 0 {
		t.Errorf("%+v, %v, %v", after, before, err)
	}
	if got := h.Lines(); got != nil {
		t.Errorf("lines %v of no update", got)
	}
}

// Norms without an Apply are decided again; an Apply that some servers got is passed on; old ones are left.
func TestUndecided(t *testing.T) {
	norm := func(seq int64) Fire { return fire(wire.Fire{Seq: seq, Version: seq, NormFirst: true}, nil) }
	reports := []*Report{
		{Standing: wire.Standing{Seq: 7, Applied: []wire.Apply{{Seq: 3, Norm: 3}, {Seq: 4, Norm: 4}, {Seq: 7, Norm: 7}}}, Fires: map[int64]Fire{2: norm(2), 3: norm(3), 4: norm(4), 5: norm(5), 7: norm(7)}},
		nil,
		{Standing: wire.Standing{Seq: 4, Applied: []wire.Apply{{Seq: 3, Norm: 3}}}, Fires: map[int64]Fire{3: norm(3), 4: norm(4), 8: norm(8)}},
		{Standing: wire.Standing{Seq: 2}, Fires: map[int64]Fire{2: norm(2), 1: fire(wire.Fire{Seq: 1}, nil)}},
	}
	h := Of(reports)
	again, late := h.Undecided(reports)
	if len(again) != 1 || again[0].Seq != 5 {
		t.Errorf("again: %v", again)
	}
	if len(late) != 1 || len(late[2]) != 1 || late[2][0].Seq != 4 || late[2][0].Norm != 4 {
		t.Errorf("late: %v", late)
	}
}

// With a tree the metadata names the workers and samples of an update.
func TestLinesOfATree(t *testing.T) {
	p, err := modes.Parse("tree=0(1)", 2)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.NewShards(engine.Config{Plan: p, Workers: 2, Shards: 1, Batch: 3, Limit: 60, WithMetadata: true, Reachable: []bool{true, true}})
	e.Begin(nil)
	if _, err := e.Reported(wire.Bundle{Worker: 0, Members: []wire.Share{{Worker: 0, Samples: 3}, {Worker: 1, Samples: 3}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Stored(0, 0, 0, replica.Sum{}); err != nil {
		t.Fatal(err)
	}
	var os []engine.Ready
	for w := range star.Worker(2) {
		if _, os, err = e.Arrive(star.Record{Worker: w, Samples: 3}, false); err != nil {
			t.Fatal(err)
		}
	}
	h := Of([]*Report{{Standing: wire.Standing{Seq: 1}, Fires: map[int64]Fire{1: fire(os[0].Fire, os[0].Metadata)}}})
	lines := h.Lines()
	if len(lines) != 1 || !slices.Equal(lines[0].Workers, []star.Worker{0, 1}) || !slices.Equal(lines[0].Pieces, []int64{0, 3, 3, 3}) || lines[0].Samples != 6 {
		t.Errorf("%+v", lines)
	}
	if h.Seq = 0; h.Lines() != nil { // no copy has it
		t.Error("a line of what is not in the history")
	}
}

// Newest is the metadata of the later leadership, or the later one of the same.
func TestNewest(t *testing.T) {
	ring := engine.NewRing(engine.Config{Plan: modes.SSGD(2), Workers: 2, Batch: 1, Limit: 10, Ring: new(engine.RingConfig)})
	a, b, c := ring.Metadata(1), ring.Metadata(1), ring.Metadata(2)
	var m *engine.RingMetadata
	for _, kept := range [][]byte{b, nil, a, c, b} {
		var err error
		if m, err = Newest(m, kept, 2); err != nil {
			t.Fatal(err)
		}
	}
	if m.Term != 2 {
		t.Errorf("term %d", m.Term)
	}
	if n, err := Newest(m, []byte("{"), 2); err == nil || n != m {
		t.Errorf("%v, %v", n, err)
	}
}
