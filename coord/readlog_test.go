package coord

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"star"
)

const (
	startLine = `{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{}}` + "\n"
	trainLine = `{"type":"train","t":0.5,"workers":3,"shards":1,"limit":100,"version":0,"plan":"ssgd"}` + "\n"
)

// readAll is what ReadRun passes on.
func readAll(text string) (lines []RunLine, s RunSummary, err error) {
	s, err = ReadRun(strings.NewReader(text), "run.jsonl", func(l RunLine) error { lines = append(lines, l); return nil })
	return lines, s, err
}

// What RunLog writes is what ReadRun reads, and what newer programs add is passed over.
func TestRunReadsBack(t *testing.T) {
	var w keep
	l := NewRunLog(&w)
	began := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	rec := star.Record{Worker: 2, Step: 1, Basis: 1, At: time.Second, Compute: time.Millisecond, Samples: 8, Norm2: math.NaN()}
	rec.Telemetry.Set(star.Steal, 0.5)
	l.write(logStart{Type: "start", Format: 1, Program: "star 1", Time: began, Job: "j", Notes: []string{"n"}, Config: []byte(`{"arch":"ps"}`)})
	l.write(logMember{Type: "join", T: 0.25, Worker: 2, Peer: "p"})
	l.write(logTrain{Type: "train", T: 0.5, Workers: 3, Shards: 2, Model: "m", Hash: "h", Params: 9, Data: "d", Samples: 10, Limit: 30, Version: 4, Plan: "ssgd", Absent: []int{1}})
	l.record(time.Second, rec, -1, nil)
	l.write(logFire{Type: "fire", T: 2, Seq: 1, Version: 5, Workers: []int{0, 2}, Stale: []int64{0, 1}, Dropped: []int{1}, Samples: 16})
	l.write(logNoise{Type: "noise", T: 2, Version: 5, Grad2: Number(math.NaN()), Var: 2, Mixed: true, Scale: 3, Drift: 0.5, Strength: 4})
	l.write(logPlan{Type: "plan", T: 3, Plan: "x=2", From: "ssgd", Why: "star ctl"})
	l.write(map[string]any{"type": "plan", "t": 3, "plan": "x=2", "from": "ssgd", "why": "w", "predicted_gain": 0.375, "after": 12, "more": 1})
	l.write(logPredictor{Type: "predictor", T: 3, Records: 1200, Rows: 1190, Epochs: 40, Error: 0.375, Took: 12.5, After: 3000})
	l.write(map[string]any{"type": "news", "t": "tomorrow"})
	l.write(logLate{Type: "late", T: 3, Worker: 1, Waited: 1.5, Deadline: 1.25})
	l.write(map[string]any{"type": "verdict", "t": 3, "worker": 2, "event": "slow", "step": 9, "since": 5, "slowdown": 2.5, "cause": "steal",
		"evidence": []map[string]any{{"what": "steal", "value": 0.5, "other": 0.125, "text": "CPU steal 50 %"}}})
	l.write(map[string]any{"type": "gain", "t": 4, "plan": "x=2", "predicted_gain": 0.375, "seen_gain": -0.125, "reverted": true})
	l.write(map[string]any{"type": "compression", "t": 4, "worker": 1, "version": 3, "codec": "fp16", "why": "w"})
	l.write(logEval{Type: "eval", T: 5, Eval: 1, From: 4, To: 5, Samples: 16, Loss: 0.5, Accuracy: 0.75, Count: 100, Final: true})
	l.write(logSave{Type: "checkpoint", T: 6, ID: "c", Version: 5, Took: 0.5, Err: "e"})
	l.write(logStop{Type: "stop", T: 6, Limit: 20, Why: "star ctl"})
	l.write(logMember{Type: "leave", T: 7, Worker: 2, Peer: "p", Why: "eof", Start: 8, Count: 4})
	l.write(logSize{Type: "short", T: 7, Workers: 1, Least: 2})
	l.write(logSize{Type: "enough", T: 7.5, Workers: 2, Least: 2})
	l.write(logUnheeded{Type: "unheeded", T: 7, Plan: "asgd", Why: "w", Because: "b", After: 9})
	l.write(logHeard{Type: "heard", T: 7, After: 10})
	l.write(logPoison{Type: "poison", T: 7, Worker: 1, Step: 3, Cause: "exploding", Value: 1e6, Where: "w", Policy: "skip"})
	l.write(logEnd{"summary", Result{Arch: "ps", Samples: 16, Updates: 1, Wall: 6.5, TestAccuracy: 0.75}})
	if err := l.flush(); err != nil {
		t.Fatal(err)
	}
	want := []RunLine{
		{1, 0, RunStart{"star 1", began, "j", []string{"n"}, []byte(`{"arch":"ps"}`)}},
		{2, 250 * time.Millisecond, RunMember{true, 2, "p", "", 0, 0}},
		{3, 500 * time.Millisecond, RunTrain{3, 2, "m", "h", 9, "d", 10, 30, 4, "ssgd", []int{1}}},
		{4, time.Second, RunRecord{rec}},
		{5, 2 * time.Second, RunFire{1, 5, []star.Worker{0, 2}, []int64{0, 1}, []star.Worker{1}, 16}},
		{6, 2 * time.Second, RunNoise{5, math.NaN(), 2, 3, true, 0.5, 4}},
		{7, 3 * time.Second, RunPlan{"x=2", "ssgd", "star ctl", math.NaN(), 0, false}},
		{8, 3 * time.Second, RunPlan{"x=2", "ssgd", "w", 0.375, 12, false}},
		{9, 3 * time.Second, RunPredictor{1200, 1190, 40, 0.375, 12500 * time.Millisecond, 3000}},
		{11, 3 * time.Second, RunLate{1, 1500 * time.Millisecond, 1250 * time.Millisecond}},
		{12, 3 * time.Second, RunVerdict{2, "slow", 9, 5, 0, 2.5, "steal", []RunEvidence{{"steal", 0.5, 0.125, "CPU steal 50 %"}}}},
		{13, 4 * time.Second, RunGain{"x=2", 0.375, -0.125, true}},
		{14, 4 * time.Second, RunCodec{1, 3, "fp16", "w"}},
		{15, 5 * time.Second, RunEval{4, 5, 16, 0.5, 0.75, 100, true}},
		{16, 6 * time.Second, RunSave{"c", 5, 500 * time.Millisecond, "e"}},
		{17, 6 * time.Second, RunStop{20, "star ctl"}},
		{18, 7 * time.Second, RunMember{false, 2, "p", "eof", 8, 4}},
		{19, 7 * time.Second, RunSize{false, 1, 2}},
		{20, 7500 * time.Millisecond, RunSize{true, 2, 2}},
		{21, 7 * time.Second, RunUnheeded{"asgd", "w", "b", 9}},
		{22, 7 * time.Second, RunHeard{10}},
		{23, 7 * time.Second, RunPoison{1, 3, "exploding", 1e6, "w", false, "skip"}},
		{24, 0, RunEnd{Result{Arch: "ps", Samples: 16, Updates: 1, Wall: 6.5, TestAccuracy: 0.75}}},
	}
	got, s, err := readAll(w.String())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(RunSummary{Lines: 24, Unknown: map[string]int{"news": 1}}, s); d != "" {
		t.Errorf("summary: -want +got:\n%s", d)
	}
	if _, err := ReadRun(strings.NewReader(w.String()), "", func(RunLine) error { return io.EOF }); err != io.EOF {
		t.Errorf("the caller's error becomes %v", err)
	}
}

// A log that ends anywhere behind its first line is read up to there, and said to be cut
// if that is in the middle of a line. Compressed ones are too.
func TestRunCutAnywhere(t *testing.T) {
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
func TestReadRunPassesOverGaps(t *testing.T) {
	if lines, _, err := readAll(startLine + trainLine + records(0, 0, 1, 7, 0, 5, 1, 8) + fires(1, 2, 4)); err != nil || len(lines) != 9 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

func TestReadRunRefuses(t *testing.T) {
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
		{head + `{"type":"predictor","t":1,"trained_on":9}`, "it has no after"},
		{head + `{"type":"predictor","t":1,"trained_on":9,"after":4,"rows":-1}`, "rows is -1, want at least 0"},
		{head + `{"type":"predictor","t":1,"trained_on":9,"after":4,"took":-1}`, "took is -1 s"},
		{startLine + `{"type":"predictor","t":1,"trained_on":9,"after":4}`, "before the line of type train"},
		{head + `{"type":"verdict","t":1,"worker":0}`, "verdict: it has no event"},
		{head + `{"type":"leave","t":1,"worker":3}`, "leave: worker is 3"},
		{startLine + `{"type":"leave","t":1,"worker":0}`, "leave: it comes before"},
		{head + `{"type":"summary","samples":1,"updates":1}`, "summary: it has no wall_s"},
	} {
		_, _, err := readAll(c.log)
		var re *RunError
		if !errors.As(err, &re) || !strings.Contains(err.Error(), c.want) || re.ExitCode() != 65 {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
}

// A line that never ends does not take all memory.
func TestReadRunBoundsLines(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(startLine+`{"type":"`), io.LimitReader(zeros{}, MaxRunLine+10))
	_, err := ReadRun(endless, "run.jsonl", func(RunLine) error { return nil })
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

func FuzzReadRun(f *testing.F) {
	f.Add([]byte(startLine + trainLine + `{"type":"fire","t":1,"seq":1,"version":1,"samples":1,"workers":[0],"staleness":[0]}`))
	f.Add([]byte(startLine + trainLine + `{"type":"record","t":1,"worker":1,"step":0,"telemetry":{"steal":0.5}}` + "\n" + `{"type":"gain","t":1,"plan":"x=2","seen_gain":null}`))
	f.Add([]byte(startLine + trainLine + `{"type":"verdict","t":1,"worker":1,"event":"slow","step":3,"since":1,"evidence":[{"what":"x","other":null}]}`))
	f.Add([]byte(startLine + trainLine + `{"type":"summary","wall_s":1,"samples":1,"updates":1,"staleness":{"histogram":{"0":1}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		workers, last := -1, 0
		s, err := ReadRun(bytes.NewReader(b), "f", func(l RunLine) error {
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
			case RunTrain:
				workers = e.Workers
			case RunRecord:
				in(e.Worker)
			case RunVerdict:
				in(e.Worker)
			case RunFire:
				if len(e.Workers) != len(e.Staleness) {
					t.Fatalf("%+v", e)
				}
				for _, w := range append(e.Workers, e.Dropped...) {
					in(w)
				}
			}
			return nil
		})
		var re *RunError
		if err != nil && !errors.As(err, &re) || err == nil && s.Lines < last {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}
