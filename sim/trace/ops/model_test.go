package ops

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"pgregory.net/rapid"
)

// executed plays a job of workers that never pause: every operation starts as soon as its inputs exist. It is dumb on
// purpose: all start times are raised until no rule is broken. took says how long an operation takes once it can run.
func executed(m Meta, micros int, took func(d, s int, t Type, k int) float64) []Op {
	type key struct {
		d, s int
		t    Type
		k    int
	}
	last := m.Stages*m.Chunks - 1
	start, launch := map[key]float64{}, map[key]float64{}
	var keys []key
	chunk := map[key]int{}
	need := map[key][]key{} // what must have ended
	with := map[key][]key{} // what must have been launched
	order := func(ks ...key) {
		for i := 1; i < len(ks); i++ {
			need[ks[i]] = append(need[ks[i]], ks[i-1])
		}
	}
	for d := range m.Data {
		for s := range m.Stages {
			var forward, backward []key
			fs, fr, bs, br := 0, 0, 0, 0
			one := func(t Type, k, c int) key {
				x := key{d, s, t, k}
				keys, chunk[x] = append(keys, x), c
				return x
			}
			link := func(a, b key) { need[b] = append(need[b], a) }
			meet := func(x, y key) { with[x] = append(with[x], y) }
			for c := range m.Chunks {
				g := c*m.Stages + s
				for range micros {
					f := one(Forward, len(forward), g)
					forward = append(forward, f)
					if g > 0 {
						x := one(ForwardRecv, fr, -1)
						meet(x, key{d, (s + m.Stages - 1) % m.Stages, ForwardSend, fr})
						link(x, f)
						fr++
					}
					if g < last {
						x := one(ForwardSend, fs, -1)
						meet(x, key{d, (s + 1) % m.Stages, ForwardRecv, fs})
						link(f, x)
						fs++
					}
				}
			}
			for c := m.Chunks - 1; c >= 0; c-- {
				g := c*m.Stages + s
				for range micros {
					b := one(Backward, len(backward), g)
					backward = append(backward, b)
					if g < last {
						x := one(BackwardRecv, br, -1)
						meet(x, key{d, (s + 1) % m.Stages, BackwardSend, br})
						link(x, b)
						br++
					}
					if g > 0 {
						x := one(BackwardSend, bs, -1)
						meet(x, key{d, (s + m.Stages - 1) % m.Stages, BackwardRecv, bs})
						link(b, x)
						bs++
					}
				}
			}
			for t, n := range map[Type]int{ForwardSend: fs, ForwardRecv: fr, BackwardSend: bs, BackwardRecv: br} {
				for k := 1; k < n; k++ {
					order(key{d, s, t, k - 1}, key{d, s, t, k})
				}
			}
			gather := one(ParamsGather, 0, -1)
			line := append([]key{gather}, forward...)
			line = append(line, backward...)
			line = append(line, one(LayernormReduce, 0, -1))
			if s == 0 || s == m.Stages-1 {
				line = append(line, one(EmbeddingReduce, 0, -1))
			}
			line = append(line, one(GradsScatter, 0, -1), one(ClipGrads, 0, -1), one(Optimizer, 0, -1))
			order(line...)
			for e := range m.Data {
				meet(gather, key{e, s, ParamsGather, 0})
				meet(key{d, s, GradsScatter, 0}, key{e, s, GradsScatter, 0})
				for f := range m.Stages {
					meet(key{d, s, ClipGrads, 0}, key{e, f, ClipGrads, 0})
				}
			}
			for _, f := range []int{0, m.Stages - 1} {
				meet(key{d, s, EmbeddingReduce, 0}, key{d, f, EmbeddingReduce, 0})
			}
		}
	}
	end := func(k key) float64 { return start[k] + took(k.d, k.s, k.t, k.k) }
	for changed := true; changed; {
		changed = false
		for _, k := range keys {
			l := launch[k]
			for _, n := range need[k] {
				l = max(l, end(n))
			}
			s := max(l, start[k])
			for _, o := range with[k] {
				s = max(s, launch[o])
			}
			if l > launch[k] || s > start[k] {
				launch[k], start[k], changed = l, s, true
			}
		}
	}
	var all []Op
	for _, k := range keys {
		all = append(all, Op{Data: k.d, Stage: k.s, Type: k.t, Chunk: chunk[k], Start: launch[k], Took: end(k) - launch[k]})
	}
	return all
}

// A job that never pauses takes, without the pauses that it has not, the time that it took; and what it sent, it sent
// in the time that it took to send.
func TestGraphAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Meta{Data: rapid.IntRange(1, 3).Draw(t, "data"), Stages: rapid.IntRange(1, 4).Draw(t, "stages"), Chunks: 1}
		if m.Stages > 1 {
			m.Chunks = rapid.IntRange(1, 2).Draw(t, "chunks")
		}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		times := map[string]float64{}
		took := func(d, s int, ty Type, k int) float64 {
			name := fmt.Sprint(d, s, ty, k)
			// a transfer ends for all its members at once
			if ty.pipe() || ty.data() || ty == EmbeddingReduce || ty == ClipGrads {
				name = fmt.Sprint(ty.category(), k)
			}
			if _, ok := times[name]; !ok {
				times[name] = 1 + rnd.Float64()
			}
			return times[name]
		}
		all := executed(m, rapid.IntRange(1, 4).Draw(t, "micros"), took)
		rnd.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		j, err := New(m, all)
		if err != nil {
			t.Fatal(err)
		}
		r := j.Attribute()
		if math.Abs(r.Launch-1) > 1e-9 {
			t.Fatalf("recorded %v, without gaps %v", r.Recorded, r.Launched)
		}
		if again, err := New(Meta{}, all); err != nil || again.Meta != m || again.Attribute().Ideal != r.Ideal {
			t.Fatalf("sizes found %+v, want %+v; %v", again, m, err)
		}
		// Repairing all workers is the ideal; a job of one worker has all the damage in it.
		if p := j.times(func(Op) bool { return true }); p[0] != r.Ideal {
			t.Fatalf("all repaired: %v, ideal %v", p[0], r.Ideal)
		}
		if m.Data*m.Stages == 1 && math.Abs(r.Workers[0]-r.Slowdown) > 1e-9 {
			t.Fatalf("one worker has %v of the slowdown %v", r.Workers[0], r.Slowdown)
		}
		// The unit of time cancels.
		for i := range all {
			all[i].Start, all[i].Took = 1000*all[i].Start, 1000*all[i].Took
		}
		if k, err := New(m, all); err != nil || math.Abs(k.Attribute().Slowdown/r.Slowdown-1) > 1e-9 {
			t.Fatalf("another unit, another slowdown; %v", err)
		}
	})
}

// even is a job in which all operations take 1, except the computing operations of worker slow (data rank, stage).
func even(slow [2]int, factor float64) []Op {
	return executed(Meta{Data: 2, Stages: 2, Chunks: 1}, 4, func(d, s int, t Type, _ int) float64 {
		if (t == Forward || t == Backward) && [2]int{d, s} == slow {
			return factor
		}
		return 1
	})
}

func TestNoStragglers(t *testing.T) {
	j, err := New(Meta{}, even([2]int{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	r := j.Attribute()
	for name, s := range r.Types {
		if s != 1 {
			t.Errorf("%s: %v, want 1", name, s)
		}
	}
	for _, s := range slices.Concat(r.Data, r.Stages, r.Workers, []float64{r.Slowdown, r.Launch}) {
		if s != 1 {
			t.Errorf("a slowdown of %v, want 1", s)
		}
	}
	if !math.IsNaN(r.Worst.Removed) || !math.IsNaN(r.Last.Added) {
		t.Errorf("parts of no damage: %+v, %+v", r.Worst, r.Last)
	}
	// Two stages, four micro-batches, by hand: the gather 1; the first forward of stage 1 at 3 and the last one until 7;
	// its backwards until 11, the last gradient at stage 0 at 12, its backward until 13; then layernorm, embedding,
	// scatter, clip, step.
	if r.Ideal != 18 {
		t.Errorf("the step takes %v, want 18", r.Ideal)
	}
}

func TestOneSlowWorker(t *testing.T) {
	for _, w := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
		j, err := New(Meta{}, even(w, 5))
		if err != nil {
			t.Fatal(err)
		}
		r := j.Attribute()
		if got := r.Worst.Workers; len(got) != 1 || got[0] != w[0]*2+w[1] {
			t.Errorf("slowest is %v, want %v", got, w)
		}
		// Others are faster than the mean; with them as they were, nothing gets slower.
		if r.Data[1-w[0]] > 1 || r.Stages[1-w[1]] > 1 || r.Data[w[0]] < 1.5 || r.Stages[w[1]] < 1.5 || r.Slowdown < 1.5 {
			t.Errorf("%v slow: %+v", w, r)
		}
		if r.Worst.Removed < 0.95 || r.Worst.Added < 0.95 {
			t.Errorf("%v slow: it has done %v, %v of the damage", w, r.Worst.Removed, r.Worst.Added)
		}
		if last := r.Last.Removed > 0.9; last != (w[1] == 1) {
			t.Errorf("%v slow: the last stage has done %v of the damage", w, r.Last.Removed)
		}
		if c := j.Compute(0); c[w[0]*2+w[1]] != 40 || c[(1-w[0])*2+w[1]] != 8 {
			t.Errorf("%v slow: computing times %v", w, c)
		}
	}
}

// What is sent has a median as its ideal, what is computed a mean, and both are of the transfer, not of the waiting.
func TestUsual(t *testing.T) {
	j, err := New(Meta{}, even([2]int{0, 0}, 5))
	if err != nil {
		t.Fatal(err)
	}
	if j.ideal[Forward] != 2 || j.ideal[ForwardRecv] != 1 || j.ideal[GradsScatter] != 1 || j.ideal[ClipGrads] != 1 {
		t.Errorf("ideals %v", j.ideal)
	}
	if got := usual(GradsScatter, []float64{9, 1, 2, 4}); got != 3 {
		t.Errorf("median of an even number: %v, want 3", got)
	}
	if got := usual(GradsScatter, []float64{9, 1, 2}); got != 2 {
		t.Errorf("median %v, want 2", got)
	}
	if got := usual(Optimizer, []float64{9, 1, 2}); got != 4 {
		t.Errorf("mean %v, want 4", got)
	}
}

func TestJobRejects(t *testing.T) {
	job := func() []Op { return even([2]int{}, 1) }
	find := func(all []Op, d, s int, t Type) int {
		return slices.IndexFunc(all, func(o Op) bool { return o.Data == d && o.Stage == s && o.Type == t })
	}
	for _, x := range []struct {
		name string
		meta Meta
		make func() []Op
		want string
	}{
		{"nothing", Meta{}, func() []Op { return nil }, "no operations"},
		{"NaN", Meta{}, func() []Op { a := job(); a[3].Took = math.NaN(); return a }, "duration is NaN"},
		{"negative", Meta{}, func() []Op { a := job(); a[3].Took = -1; return a }, "duration is -1"},
		{"infinite", Meta{}, func() []Op { a := job(); a[3].Start = math.Inf(1); return a }, "start_ts is +Inf"},
		{"rank", Meta{Data: 1}, job, "there is a dp_rank 1, but dp_size is 1"},
		{"stage", Meta{Stages: 1}, job, "there is a stage 1, but pp_size is 1"},
		{"chunk", Meta{}, func() []Op { a := job(); a[find(a, 0, 0, Forward)].Chunk = 7; return a }, "forward-recv"},
		{"chunks", Meta{Chunks: 1, Stages: 2}, func() []Op { a := job(); a[find(a, 0, 0, Forward)].Chunk = 7; return a }, "there is a gmc 7, but pp_size × vpp_size is 2"},
		{"worker", Meta{Data: 3}, job, "dp_rank 2, stage 0 has no forward-compute"},
		{"pass", Meta{}, func() []Op { a := job(); return slices.Delete(a, find(a, 1, 0, Forward), find(a, 1, 0, Forward)+1) }, "dp_rank 1, stage 0: 4 × forward-send, want 3"},
		{"transfer", Meta{}, func() []Op {
			a := job()
			return slices.Delete(a, find(a, 1, 1, ForwardRecv), find(a, 1, 1, ForwardRecv)+1)
		}, "dp_rank 1, stage 1: 3 × forward-recv, want 4"},
		{"twice", Meta{}, func() []Op { a := job(); return append(a, a[find(a, 0, 0, GradsScatter)]) }, "dp_rank 1, stage 0 has 1 × grads-reduce-scatter, want 2"},
		{"peer", Meta{}, func() []Op { a := job(); return slices.Delete(a, find(a, 1, 0, ClipGrads), find(a, 1, 0, ClipGrads)+1) }, "dp_rank 1, stage 0 has 0 × optimizer-clip-main-grad"},
		{"circle", Meta{}, func() []Op { // stage 1 scatters its gradients before it computes, stage 0 waits for them
			a := job()
			a[find(a, 0, 1, ClipGrads)].Start = 0
			return a
		}, "in a circle"},
		{"no time", Meta{}, func() []Op {
			a := job()
			for i := range a {
				a[i].Took = 0
			}
			return a
		}, "take no time"},
	} {
		if j, err := New(x.meta, x.make()); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, %v; want %q", x.name, j, err, x.want)
		}
	}
	// A step that is not complete is left out, and said so.
	all := job()
	for _, o := range job() {
		if o.Step = 7; o.Data != 1 {
			all = append(all, o)
		}
	}
	j, err := New(Meta{}, all)
	if err != nil || !slices.Equal(j.Steps, []int64{0}) || len(j.Skipped) != 1 || !strings.HasPrefix(j.Skipped[0], "step 7: dp_rank 1, stage 0 has no") {
		t.Errorf("%+v, %v", j, err)
	}
}

// row is one of a file as it is published.
type row struct {
	Data  *int32   `parquet:"dp_rank,optional"`
	Stage *int32   `parquet:"stage,optional"`
	Rank  *int32   `parquet:"rank,optional"`
	Step  *int64   `parquet:"step,optional"`
	Type  *string  `parquet:"optype,optional,dict,snappy"`
	Start *float32 `parquet:"start_ts,optional,snappy"`
	Took  *float32 `parquet:"duration,optional"`
	Chunk *int32   `parquet:"gmc,optional"`
}

func rows(all []Op) []row {
	var out []row
	for _, o := range all {
		d, s, c, t, a, b := int32(o.Data), int32(o.Stage), int32(o.Chunk), o.Type.String(), float32(o.Start), float32(o.Took)
		out = append(out, row{&d, &s, &d, &o.Step, &t, &a, &b, &c})
	}
	return out
}

func written[R any](t testing.TB, of []R) []byte {
	var b bytes.Buffer
	if err := parquet.Write(&b, of); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A small file with columns that are large when unpacked is refused before they are unpacked.
func TestParquetThatUnpacksToMuch(t *testing.T) {
	type padded struct {
		row
		Pad string `parquet:"pad,zstd"`
	}
	var all []padded
	for len(all) < 5000 {
		for _, r := range rows(even([2]int{1, 0}, 3)) {
			all = append(all, padded{r, strings.Repeat("a", 16<<10)})
		}
	}
	var file bytes.Buffer
	if err := parquet.Write(&file, all, parquet.SkipPageBounds("pad"), parquet.PageBufferSize(64<<20)); err != nil {
		t.Fatal(err)
	}
	b := file.Bytes()
	if _, err := Read(bytes.NewReader(b), int64(len(b)), "a.parquet"); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), "100 times its size") {
		t.Errorf("%d operations in %d bytes: %v", len(all), len(b), err)
	}
}

func TestReadParquet(t *testing.T) {
	want := even([2]int{1, 0}, 3)
	b := written(t, rows(want))
	got, err := Read(bytes.NewReader(b), int64(len(b)), "a.parquet")
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d operations of %d, %v", len(got), len(want), err)
	}
	// Other widths, and nothing optional.
	type wide struct {
		Type  string  `parquet:"optype"`
		Took  float64 `parquet:"duration"`
		Start float64 `parquet:"start_ts"`
		Step  int32   `parquet:"step"`
		Data  int64   `parquet:"dp_rank"`
		Stage int64   `parquet:"stage"`
	}
	b = written(t, []wide{{"gc", 0.25, -1.5, 3, 2, 1}})
	got, err = Read(bytes.NewReader(b), int64(len(b)), "a.parquet")
	if err != nil || !slices.Equal(got, []Op{{Data: 2, Stage: 1, Step: 3, Type: GC, Chunk: -1, Start: -1.5, Took: 0.25}}) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestReadParquetRejects(t *testing.T) {
	good := rows(even([2]int{}, 1))
	with := func(change func(r *row)) []byte {
		rs := slices.Clone(good)
		change(&rs[4])
		return written(t, rs)
	}
	nan, text, minus, big, far := float32(math.NaN()), "matmul", float32(-1), int32(1<<30), int32(-2)
	whole := written(t, good)
	damaged := slices.Clone(whole)
	for i := 8; i < 60; i++ {
		damaged[i] ^= 0x5a
	}
	for _, x := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "a: want a Parquet file"},
		{"text", []byte("rank,step,seconds\n0,0,1\n"), "a: want a Parquet file"},
		{"cut", whole[:len(whole)/2], "a: want a Parquet file"},
		{"damaged", damaged, "a: damaged Parquet: column dp_rank: page at byte 4: its header: "},
		{"no rows", written(t, []row{}), "a: 0 rows"},
		{"no column", written(t, []struct {
			Step int64 `parquet:"step"`
		}{{1}}), "a: there is no column dp_rank, want dp_rank, stage,"},
		{"kind", written(t, []struct {
			Data string `parquet:"dp_rank"`
		}{{"x"}}), "a: column dp_rank is STRING, want whole numbers"},
		{"NaN", with(func(r *row) { r.Took = &nan }), "a: row 5: duration is NaN"},
		{"negative", with(func(r *row) { r.Took = &minus }), "a: row 5: duration is -1"},
		{"no step", with(func(r *row) { r.Step = nil }), "a: row 5: it has no step"},
		{"type", with(func(r *row) { r.Type = &text }), `a: row 5: optype is "matmul", want one of forward-compute,`},
		{"rank", with(func(r *row) { r.Data = &big }), "a: row 5: dp_rank is 1073741824"},
		{"chunk", with(func(r *row) { r.Chunk = &far }), "a: row 5: gmc is -2"},
	} {
		if all, err := Read(bytes.NewReader(x.b), int64(len(x.b)), "a"); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %d operations, %v; want %q", x.name, len(all), err, x.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(written(f, rows(even([2]int{}, 1))[:6]))
	f.Add(written(f, []row{}))
	f.Add(written(f, packedRows()[:8]))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Read(bytes.NewReader(b), int64(len(b)), "a")
		if err != nil {
			if !errors.Is(err, ErrTrace) {
				t.Fatal(err)
			}
			return
		}
		if j, err := New(Meta{}, all); err == nil && !(j.Attribute().Slowdown > 0) {
			t.Fatalf("slowdown %v", j.Attribute().Slowdown)
		}
	})
}

func TestMeta(t *testing.T) {
	m, err := ParseMeta("m.yaml", []byte("trial_name: AR\nrun_id: 0\ndp_size: 4\ndsp_size: 1\npp_size: 3\ntp_size: 4\nvpp_size: 2\nworld_size: 48\n"))
	if want := (Meta{Name: "AR", Data: 4, Stages: 3, Chunks: 2, Tensor: 4, Sequence: 1, World: 48}); err != nil || m != want {
		t.Errorf("%+v, %v", m, err)
	}
	for text, want := range map[string]string{"dp_size: -1": "m.yaml: dp_size is -1", "dp_size: many": "line 1", "dp: 4": "line 1: field dp is unknown", "pp_size: 1000000": "at most 16384"} {
		if m, err := ParseMeta("m.yaml", []byte(text)); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", text, m, err, want)
		}
	}
}

func TestCompare(t *testing.T) {
	r := Result{Slowdown: 2, Types: map[string]float64{"gc": 1}, Data: []float64{1.5}, Stages: []float64{3}, Steps: []Times{{7, 10, 9, 4}},
		Launched: 9, Ideal: 4, Worst: Part{Repaired: 5, Alone: 8, Removed: 0.8, Added: 0.9}, Last: Part{Removed: 0.01}}
	got, err := Compare(r, "r.json", []byte(`{"job_meta":{}, "blocking_slowdown":1.6, "blocking_decompose_by_optype":{"gc":1}, "blocking_decompose_by_dp_rank":{"0":1},
		"blocking_decompose_by_stage":{"0":2}, "step_t_base":{"7":20}, "step_t_noblk":{"7":4}, "launch_decompose_by_dp_rank":null}`))
	want := []Line{{"S", 2, 1.6, false}, {"S of dp_rank 0", 1.5, 1, false}, {"S of stage 0", 3, 2, false}, {"S of gc", 1, 1, false},
		{"step 7 recorded", 10, 20, false}, {"step 7 without stragglers", 4, 4, false}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if e := got[0].Error(); math.Abs(e-0.25) > 1e-12 {
		t.Errorf("2 for 1.6 is %v off", e)
	}
	got, err = Compare(r, "mw.json", []byte(`{"trem":4, "tadd":8, "tori":9, "tideal":4, "rem":1, "add":0.8, "Mw":1}`))
	if err != nil || len(got) != 7 || got[6] != (Line{"M_W", 0.8, 1, true}) || got[2].Ours != 5 || math.Abs(got[6].Error()-0.2) > 1e-12 {
		t.Errorf("%v, %v", got, err)
	}
	got, err = Compare(r, "ms.json", []byte(`{"Ms":0}`))
	if err != nil || !slices.Equal(got, []Line{{"M_S", 0.01, 0, true}}) {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		`{}`: "r.json: none of the numbers", `{`: "r.json: not a published result", `{"blocking_decompose_by_stage":{"4":1}}`: "r.json: it has a number for stage 4",
		`{"blocking_decompose_by_optype":{"matmul":1}}`: "for matmul", `{"step_t_base":{"8":1}}`: "for 1 of its 1 steps",
	} {
		if _, err := Compare(r, "r.json", []byte(text)); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
