package runlog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star"
)

const (
	startLine = `{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{}}` + "\n"
	trainLine = `{"type":"train","t":0.5,"workers":3,"shards":1,"limit":100,"version":0,"plan":"ssgd"}` + "\n"
)

// readAll is what Read passes on.
func readAll(text string) (lines []Line, s Contents, err error) {
	s, err = Read(strings.NewReader(text), "run.jsonl", func(l Line) error { lines = append(lines, l); return nil })
	return lines, s, err
}

// keep is a file that is kept.
type keep struct{ bytes.Buffer }

func (*keep) Close() error { return nil }

// of is x, for a line that has a number or not.
func of(x float64) Number { return Number(x) }

// entries has a line of each type, with every field.
func entries() []Line {
	rec := star.Record{Worker: 2, Step: 1, Basis: 1, At: time.Second, Compute: time.Millisecond, Samples: 8, Loss: 0.25, Norm2: math.NaN(), CPU: math.NaN()}
	rec.Telemetry.Set(star.Steal, 0.5)
	before := rec
	before.At = -time.Second
	s := time.Second
	return []Line{
		{T: 0, Entry: Start{1, "star 1", "", time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), "j", []string{"n"}, []byte(`{"arch":"ps"}`)}},
		{T: s / 4, Entry: Join{2, "p"}},
		{T: s / 2, Entry: Train{3, 2, "m", "h", 9, "d", 10, 30, 4, "ssgd", []star.Worker{1}}},
		{T: s / 2, Entry: Memory{[]star.Record{before}}},
		{T: s, Entry: Record{rec, -1, nil}},
		{T: s, Entry: Record{star.Record{Worker: 1, Loss: math.NaN(), Norm2: 2, CPU: 0.5, NetIn: 1, NetOut: 2}, 8, []int64{24, 4, 32, 2}}},
		{T: s, Entry: Sampled{4, 1600}},
		{T: 2 * s, Entry: Fire{1, 5, []star.Worker{0, 2}, []int64{0, 1}, []star.Worker{2}, []star.Worker{1}, []int64{0, 8, 8, 8}, []int64{0, 40, 2}, 16, 24}},
		{T: 2 * s, Entry: Fire{2, 5, nil, nil, nil, []star.Worker{1}, nil, nil, 16, 0}},
		{T: 2 * s, Entry: Noise{5, of(math.NaN()), 2, true, 3, 0.5, 4}},
		{T: 3 * s, Entry: Plan{"x=2", "ssgd", "star ctl", of(math.NaN()), 0, false}},
		{T: 3 * s, Entry: Plan{"x=2", "ssgd", "w", 0.375, 12, true}},
		{T: 3 * s, Entry: Unheeded{"asgd", "w", "b", 9}},
		{T: 3 * s, Entry: Heard{10}},
		{T: 3 * s, Entry: Predictor{1200, 1190, 40, 0.375, 12.5, 3000}},
		{T: 3 * s, Entry: Late{1, 1.5, 1.25}},
		{T: 3 * s, Entry: Admission{"asgd", true, "ssgd", "w", 3}},
		{T: 3 * s, Entry: Verdict{2, "slow", 9, 5, 0, 2.5, "steal", []Evidence{{"steal", 0.5, 0.125, "CPU steal 50 %"}}}},
		{T: 3 * s, Entry: Verdict{2, "recovered", 19, 5, 16, of(math.NaN()), "steal", nil}},
		{T: 3 * s, Entry: Slowdown{"slow", 1, 0, 4, []string{"a", "b"}, 1.9, "compute", []Grown{{"compute", 0.2, 0.1}}, "quota", []Evidence{{"throttled", 0.5, 0, "CPU quota"}}, "the job is slow"}},
		{T: 4 * s, Entry: Hang{"begun", 2, "all_reduce", 12, "float32[4]", "g", []star.Worker{0, 2}, []star.Worker{1}, []HangRank{{1, "own code", "a.py:1 in f", "", "is in a.py:1 in f", []string{"a.py:1 in f"}}}, "", "t"}},
		{T: 4 * s, Entry: Gain{"x=2", 0.375, -0.125, true}},
		{T: 4 * s, Entry: Set{"mode-gain", 0.25, 0.125, "star ctl"}},
		{T: 4 * s, Entry: Compression{1, 3, "fp16", "w"}},
		{T: 4 * s, Entry: Poison{1, 3, "exploding", 1e6, "w", true, "skip"}},
		{T: 4 * s, Entry: Pace{true, "w"}},
		{T: 4 * s, Entry: Move{1, 0, 2, 7, 4096, 0.5, 0.25, 0.125, "e"}},
		{T: 4 * s, Entry: Replica{1, "copied", 2, 3, 0, []int{2}, 2, 0.5, "w"}},
		{T: 4 * s, Entry: Shift{"back", 1, 0, 2, 0.25, of(math.NaN()), "w"}},
		{T: 4 * s, Entry: Validation{3, 4, 5, "w"}},
		{T: 4 * s, Entry: Judgement{3, 4, 0.5, 0.25, true, 1, 2}},
		{T: 5 * s, Entry: Eval{1, 4, 5, 16, 0.5, 0.75, 100, true, 3}},
		{T: 6 * s, Entry: Checkpoint{"c", 5, 0.5, "e"}},
		{T: 6 * s, Entry: Stop{20, "star ctl"}},
		{T: 7 * s, Entry: Leave{2, "p", "eof", 8, 4}},
		{T: 7 * s, Entry: Aside{8, 4, [2]star.Worker{0, 2}, "eof"}},
		{T: 7 * s, Entry: Short{1, 2}},
		{T: 15 * s / 2, Entry: Enough{2, 2}},
		{T: 8 * s, Entry: Term{2, true, 5, 6, 7, 0.5}},
		{T: 8 * s, Entry: Recall{3, 6, []star.Worker{0}, []star.Worker{1}, 24, []int64{16, 8}}},
		{T: 8 * s, Entry: Gap{8.5, 4, 3, 2, 6, 24}},
		{T: 0, Entry: Summary{Result{Arch: "ps", Samples: 16, Updates: 1, Wall: 6.5, TestAccuracy: 0.75, TrainLoss: of(math.NaN()), TestLoss: 1}}},
	}
}

// Every line is read as what was written, and what newer programs add is passed over.
func TestReadsBack(t *testing.T) {
	var file keep
	w := NewWriter(&file)
	want := entries()
	seen := map[string]bool{}
	for i, l := range want {
		want[i].Number = i + 1
		seen[l.Entry.kind()] = true
		w.Write(l.T, l.Entry)
	}
	for _, e := range kinds {
		if !seen[e.kind()] {
			t.Errorf("no line of type %q", e.kind())
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(file.String(), `{"type":"plan",`, `{"type":"news","t":"tomorrow"}`+"\n"+`{"type":"plan","more":1,`)
	for i, more := 0, 0; i < len(want); i++ {
		if _, ok := want[i].Entry.(Plan); ok {
			more++
		}
		want[i].Number += more
	}
	got, c, err := readAll(text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmp.Comparer(func(a, b Number) bool { return a == b || a.IsZero() && b.IsZero() })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(Contents{Lines: len(want) + 2, Missing: Missing{8, 8.5, 4, 3}, Unknown: map[string]int{"news": 2}}, c); d != "" {
		t.Errorf("contents: -want +got:\n%s", d)
	}
	if _, err := Read(strings.NewReader(text), "", func(Line) error { return io.EOF }); err != io.EOF {
		t.Errorf("the caller's error becomes %v", err)
	}
}

// Logs that an earlier version has written are read, and written again byte for byte.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var file keep
		w := NewWriter(&file)
		c, err := Read(bytes.NewReader(want), name, func(l Line) error {
			seen[l.Entry.kind()] = true
			w.Write(l.T, l.Entry)
			return nil
		})
		if err != nil || c.Cut || len(c.Unknown) > 0 {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if err := w.Flush(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := strings.SplitAfter(file.String(), "\n")
		for i, line := range strings.SplitAfter(string(want), "\n") {
			if i >= len(got) || got[i] != line {
				t.Fatalf("%s:%d: %q is written as %q", name, i+1, line, got[min(i, len(got)-1)])
			}
		}
	}
	for _, e := range kinds {
		if !seen[e.kind()] {
			t.Errorf("testdata has no line of type %q", e.kind())
		}
	}
}

// A log that ends anywhere behind its first line is read up to there, and said to be cut
// if that is in the middle of a line. Compressed ones are too.
func TestCutAnywhere(t *testing.T) {
	text := startLine + trainLine + `{"type":"plan","t":1,"plan":"asgd","from":"ssgd"}` + "\n"
	for n := len(startLine); n <= len(text); n++ {
		lines, s, err := readAll(text[:n])
		whole := strings.Count(text[:n], "\n")
		rest := n - strings.LastIndex(text[:n], "\n") - 1
		if rest > 0 && text[n] == '\n' { // only the newline is missing
			whole, rest = whole+1, 0
		}
		if err != nil || s.Cut != (rest > 0) || len(lines) != whole || s.Lines != whole {
			t.Fatalf("%q: %d lines (%d), cut %v, %v; want %d", text[:n], len(lines), s.Lines, s.Cut, err, whole)
		}
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	fmt.Fprint(w, text)
	w.Flush()
	cut := z.String()
	w.Close()
	if lines, s, err := readAll(z.String()); err != nil || s.Cut || len(lines) != 3 {
		t.Errorf("gzip: %d lines, %+v, %v", len(lines), s, err)
	}
	if lines, s, err := readAll(cut); err != nil || !s.Cut || len(lines) != 3 {
		t.Errorf("cut gzip: %d lines, %+v, %v", len(lines), s, err)
	}
	damaged := bytes.Clone(z.Bytes())
	damaged[len(damaged)-6]++ // its checksum
	if _, _, err := readAll(string(damaged)); !errors.Is(err, gzip.ErrChecksum) {
		t.Errorf("damaged gzip: %v", err)
	}
}

// records are lines of that type, each of a worker and its step.
func records(of ...int) (text string) {
	for i := 0; i < len(of); i += 2 {
		text += fmt.Sprintf(`{"type":"record","t":1,"worker":%d,"step":%d}`+"\n", of[i], of[i+1])
	}
	return text
}

// fires are lines of that type.
func fires(seqs ...int) (text string) {
	for _, s := range seqs {
		text += fmt.Sprintf(`{"type":"fire","t":1,"seq":%d,"version":%d,"samples":1}`+"\n", s, s)
	}
	return text
}

// Workers that leave and come back count on, and some firings have no line.
func TestPassesOverGaps(t *testing.T) {
	if lines, _, err := readAll(startLine + trainLine + records(0, 0, 1, 7, 0, 5, 1, 8) + fires(1, 2, 4)); err != nil || len(lines) != 9 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

func TestRefuses(t *testing.T) {
	const head = startLine + trainLine
	for _, c := range []struct{ log, want string }{
		{"", "run.jsonl:1: empty"},
		{"\n\n", "run.jsonl:1: empty"},
		{"{", "run.jsonl:1: not a line"},
		{"\x1f\x8b\x00", "run.jsonl:1: gzip"},
		{`{"type":"start"}`, "run.jsonl:1: start: it has no format"},
		{`{"type":"start","format":2,"program":"star 9"}`, "run.jsonl:1: start: format is 2, and this program reads 1: use that which wrote the log, \"star 9\""},
		{trainLine, `run.jsonl:1: begins with a line of type "train"`},
		{startLine + startLine, "run.jsonl:2: a second line of type start"},
		{startLine + "{broken\n", "run.jsonl:2: not a line"},
		{startLine + "[]\n", "run.jsonl:2: not a line"},
		{startLine + "{}\n", "run.jsonl:2: not a line of a run log: it has no type"},
		{startLine + `{"type":"train","t":1}`, "run.jsonl:2: train: it has no workers"},
		{startLine + `{"type":"train","workers":1,"version":0,"limit":1}`, "run.jsonl:2: train: it has no t"},
		{startLine + `{"type":"train","t":1,"workers":5000,"version":0,"limit":1}`, "5000 workers, at most"},
		{head + trainLine, "run.jsonl:3: train: a second one"},
		{startLine + `{"type":"record","t":1,"worker":0,"step":0}`, "run.jsonl:2: record: it comes before the line of type train"},
		{startLine + `{"type":"fire","t":1,"seq":1,"version":1,"samples":1}`, "fire: it comes before the line of type train"},
		{startLine + `{"type":"plan","t":1,"plan":"asgd","from":"ssgd"}`, "plan: it comes before the line of type train"},
		{head + `{"type":"record","t":1,"worker":3,"step":0}`, "run.jsonl:3: record: worker is 3, want 0 to 2"},
		{head + `{"type":"record","t":1,"step":0}`, "record: worker -1"},
		{head + `{"type":"record","worker":0,"step":0}`, "record: it has no t"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"compute":"long"}`, "run.jsonl:3: record: json"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"compute":-1}`, "run.jsonl:3: record: compute is -1 s, want 0 to 1e+09"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"at":-1}`, "record: at is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"load":-1}`, "record: load is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"injected":-1}`, "record: injected is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"push":-1}`, "record: push is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"wait":-1}`, "record: wait is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"pull":-1}`, "record: pull is -1 s"},
		{head + `{"type":"record","t":1,"worker":0,"step":0,"transit":-1}`, "record: transit is -1 s"},
		{head + records(0, 0, 1, 4, 0, 1, 1, 4), "run.jsonl:6: record: step 4 of worker 1 after its step 4 in line 4: want each step once, in order"},
		{head + records(1, 4, 1, 5, 1, 3), "run.jsonl:5: record: step 3 of worker 1 after its step 5 in line 4: want each step once, in order"},
		{head + fires(1, 3, 3), "run.jsonl:5: fire: seq is 3, after 3 in line 4: want each firing once, in order"},
		{head + fires(2, 1), "run.jsonl:4: fire: seq is 1, after 2 in line 3"},
		{head + `{"type":"fire","t":1,"seq":1,"version":1}`, "run.jsonl:3: fire: it has no samples"},
		{head + `{"type":"fire","t":1,"seq":0,"version":1,"samples":1}`, "fire: seq is 0, want at least 1"},
		{head + `{"type":"fire","t":-1,"seq":1,"version":1,"samples":1}`, "fire: t is -1 s"},
		{head + `{"type":"fire","t":1e300,"seq":1,"version":1,"samples":1}`, "fire: t is 1e+300 s"},
		{head + `{"type":"fire","t":1,"seq":1,"version":1,"samples":1,"workers":[0]}`, "1 workers and 0 values"},
		{head + `{"type":"fire","t":1,"seq":1,"version":1,"samples":1,"workers":[7],"staleness":[0]}`, "workers is 7, want 0 to 2"},
		{head + `{"type":"plan","t":1,"from":"ssgd"}`, "run.jsonl:3: plan: it has no plan"},
		{head + `{"type":"plan","t":1,"plan":"asgd","from":"ssgd","predicted_gain":2}`, "predicted_gain is 2, want at most 1"},
		{head + `{"type":"admission","t":1,"plan":"asgd","now":"ssgd"}`, "it has no after"},
		{head + `{"type":"admission","t":1,"plan":"asgd","now":"ssgd","after":0}`, "after is 0, want at least 1"},
		{head + `{"type":"admission","t":1,"now":"ssgd","after":4}`, "it has no plan"},
		{head + `{"type":"admission","t":1,"plan":"asgd","after":4}`, "it has no now"},
		{head + `{"type":"predictor","t":1,"trained_on":0,"after":4}`, "trained_on is 0, want at least 1"},
		{head + `{"type":"predictor","t":1,"trained_on":9,"rows":9,"epochs":1,"took":1}`, "it has no after"},
		{head + `{"type":"predictor","t":1,"trained_on":9,"after":4,"rows":-1}`, "rows is -1, want at least 0"},
		{head + `{"type":"predictor","t":1,"trained_on":9,"after":4,"rows":9,"epochs":1,"took":-1}`, "took is -1 s"},
		{startLine + `{"type":"predictor","t":1,"trained_on":9,"rows":9,"epochs":1,"took":1,"after":4}`, "before the line of type train"},
		{head + `{"type":"verdict","t":1,"worker":0}`, "verdict: it has no event"},
		{head + `{"type":"leave","t":1,"worker":3}`, "leave: worker is 3"},
		{startLine + `{"type":"leave","t":1,"worker":0}`, "leave: it comes before"},
		{head + `{"type":"summary","samples":1,"updates":1}`, "summary: it has no wall_s"},
	} {
		_, _, err := readAll(c.log)
		var re *Error
		if !errors.As(err, &re) || !strings.Contains(err.Error(), c.want) || re.ExitCode() != 65 {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
}

// A line that never ends does not take all memory.
func TestBoundsLines(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(startLine+`{"type":"`), io.LimitReader(zeros{}, MaxLine+10))
	_, err := Read(endless, "run.jsonl", func(Line) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "run.jsonl:2: a line of more than 16 MiB") {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(startLine + trainLine + `{"type":"fire","t":1,"seq":1,"version":1,"samples":1,"workers":[0],"staleness":[0]}`))
	f.Add([]byte(startLine + trainLine + `{"type":"record","t":1,"worker":1,"step":0,"telemetry":{"steal":0.5}}` + "\n" + `{"type":"gain","t":1,"plan":"x=2","seen_gain":null}`))
	f.Add([]byte(startLine + trainLine + `{"type":"verdict","t":1,"worker":1,"event":"slow","step":3,"since":1,"evidence":[{"what":"x","other":null}]}`))
	f.Add([]byte(startLine + trainLine + `{"type":"summary","wall_s":1,"samples":1,"updates":1,"staleness":{"histogram":{"0":1}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		workers, last := -1, 0
		s, err := Read(bytes.NewReader(b), "f", func(l Line) error {
			if l.Number <= last || l.T < 0 {
				t.Fatalf("line %d after %d, at %v", l.Number, last, l.T)
			}
			last = l.Number
			in := func(w star.Worker) {
				if w < 0 || int(w) >= workers {
					t.Fatalf("worker %d of %d", w, workers)
				}
			}
			switch e := l.Entry.(type) {
			case Train:
				workers = e.Workers
			case Record:
				in(e.Worker)
			case Verdict:
				in(e.Worker)
			case Fire:
				if len(e.Workers) != len(e.Staleness) {
					t.Fatalf("%+v", e)
				}
				for _, w := range append(e.Workers, e.Dropped...) {
					in(w)
				}
			}
			return nil
		})
		var re *Error
		if err != nil && !errors.As(err, &re) || err == nil && s.Lines < last {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}

// What several goroutines read in blocks is what a Tail reads line by line, wherever a block or a line ends.
func TestBlocks(t *testing.T) {
	var file keep
	w := NewWriter(&file)
	w.Write(0, Start{Format: 1, Program: "star", Config: []byte(`{"more":"` + strings.Repeat("x", 3*blockSize) + `"}`)})
	w.Write(0, Train{Workers: 4, Shards: 1, Limit: 1})
	for i := range int64(2000) {
		at := time.Duration(i) * time.Millisecond
		w.Record(at, &Record{Record: star.Record{Worker: star.Worker(i % 4), Step: i, At: at, Loss: 1 / float64(i+1)}, Start: i})
		if i%100 == 0 {
			w.Write(at, Eval{Eval: i, Loss: 1})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{0, 1, 100, 2 * blockSize} {
		text := file.Bytes()[:file.Len()-cut]
		var want []Line
		if err := NewTail(bytes.NewReader(text), "log").Next(func(l Line) error { want = append(want, l); return nil }); err != nil {
			t.Fatal(err)
		}
		if cut == 1 { // only the newline is missing, which Tail waits for
			want = append(want, Line{2022, 1999 * time.Millisecond, Record{Record: star.Record{Worker: 3, Step: 1999, At: 1999 * time.Millisecond, Loss: 1. / 2000}, Start: 1999}})
		}
		var got []Line
		c, err := Read(iotest.HalfReader(bytes.NewReader(text)), "log", func(l Line) error { got = append(got, l); return nil })
		if err != nil || c.Lines != len(want) || c.Cut != (cut > 1) {
			t.Errorf("without %d bytes: %+v, %v; want %d lines", cut, c, err, len(want))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("without %d bytes: -want +got:\n%s", cut, d)
		}
	}
	stop, n := errors.New("stop"), 0
	if _, err := Read(bytes.NewReader(file.Bytes()), "log", func(Line) error {
		if n++; n == 700 {
			return stop
		}
		return nil
	}); err != stop || n != 700 {
		t.Errorf("%v after %d lines", err, n)
	}
}
