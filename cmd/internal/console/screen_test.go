package console

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"star/coord"
)

func TestTableFitsTheTerminal(t *testing.T) {
	all := []string{"head", "0", "1", "2", "3"}
	for height, want := range map[int][]string{
		0:  all, // not known
		9:  all,
		7:  all,
		6:  {"head", "0", "1", "  … 2 more"},
		4:  {"head", "  … 4 more"},
		1:  {"head", "  … 4 more"},
		-1: all,
	} {
		if got := fit(slices.Clone(all), height); !slices.Equal(got, want) {
			t.Errorf("height %d: %q, want %q", height, got, want)
		}
	}
}

// A refusal is a line of the table, and a part of the plain line.
func TestRefusalShows(t *testing.T) {
	st := coord.Status{Phase: "training", Mode: "ssgd", Elapsed: 75, Workers: make([]coord.WorkerStatus, 2),
		Refused: &coord.Refusal{Mode: "x=1", Why: "0.52 cores of CPU on node7 are missing, and others can give only 0.1 cores", At: 71}}
	if lines := Table(st, 60); len(lines) != 6 || lines[2] != "  x=1 refused 4s ago: 0.52 cores of CPU on node7 are missin…" {
		t.Errorf("%q", lines)
	}
	var b bytes.Buffer
	s := &Screen{w: &b, plain: true}
	s.Show(st)
	if want := "  x=1 refused 4s ago: 0.52 cores of CPU on node7 are missing,…\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("%q does not end with %q", b.String(), want)
	}
	st.Refused = nil
	if lines := Table(st, 60); len(lines) != 5 {
		t.Errorf("without a refusal: %q", lines)
	}
}

// Compute times are shown where they tell which worker is slow, which they do not in a queue of samples.
func TestExtremesShow(t *testing.T) {
	st := coord.Status{Phase: "training", Workers: []coord.WorkerStatus{{Worker: 0, Compute: 0.02}, {Worker: 1, Compute: 0.01}, {Worker: 2, Compute: 0.015}}}
	for mode, want := range map[string]string{"ssgd": "  compute 10.0ms (worker 1) to 20.0ms (worker 0)\n", "ssgd queue=8": "\n", "ssgd queue=8 shares=32,36,48": "\n", "ssgd shares=32,36,48": "(worker 0)\n"} {
		var b bytes.Buffer
		st.Mode = mode
		(&Screen{w: &b, plain: true}).Show(st)
		if !strings.HasSuffix(b.String(), want) || strings.Contains(b.String(), "compute") != (want != "\n") {
			t.Errorf("%s: %q does not end with %q", mode, b.String(), want)
		}
	}
}

// What holds up all workers has a line of the table, and a part of the plain line; a hang is not called slow.
func TestSlownessOfAllShows(t *testing.T) {
	for slowdown, want := range map[string]string{"all workers 2.0x slow": "  SLOW all workers 2.0x slow", "hang: 1 of 2 ranks waits": "  HANG 1 of 2 ranks waits"} {
		st := coord.Status{Phase: "training", Mode: "ssgd", Workers: make([]coord.WorkerStatus, 2), Slowdown: slowdown}
		if lines := Table(st, 60); len(lines) < 3 || lines[2] != want {
			t.Errorf("%q", lines)
		}
		var b bytes.Buffer
		(&Screen{w: &b, plain: true}).Show(st)
		if !strings.HasSuffix(b.String(), want+"\n") {
			t.Errorf("%q does not end with %q", b.String(), want)
		}
	}
}

// A job that waits for workers says so, in place of when it would end; workers that are gone compute nothing.
func TestWaitingJobHasNoEnd(t *testing.T) {
	st := coord.Status{Phase: "training", Mode: "ssgd", Samples: 10, Limit: 1e6, Rate: 2, Workers: []coord.WorkerStatus{{State: "absent"}, {State: "absent"}}}
	for short, want := range map[int]bool{0: true, 1: false} {
		var b bytes.Buffer
		st.Short = short
		(&Screen{w: &b, plain: true}).Show(st)
		if got := b.String(); strings.Contains(got, " left ") != want || strings.Contains(got, "waits for workers") == want || strings.Contains(got, "compute") {
			t.Errorf("with %d workers missing: %q", short, got)
		}
	}
}

// What peers choose cannot pass for lines of others, or move the cursor.
func TestLinesAreOneLineEach(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var b bytes.Buffer
		s := &Screen{w: &b, json: asJSON}
		s.Say("ps 0", `{"msg":"a"}`)
		s.Say("ps 0", "star: b")
		if got := strings.Count(b.String(), "\n"); got != 2 {
			t.Errorf("two lines became %d: %q", got, b.String())
		}
		if asJSON != strings.HasPrefix(b.String(), `{"msg":"a"}`) {
			t.Errorf("json %v: %q", asJSON, b.String())
		}
	}
}

// A slow worker is marked with the cause; how far the job is, when it ends, and its accuracy are there at 80 columns,
// however long the mode's name is.
func TestTableAt80Columns(t *testing.T) {
	st := coord.Status{Phase: "training", Mode: "ssgd queue=8 shares=" + strings.Repeat("32,", 40) + "32", Version: 123456, Samples: 635000, Limit: 1000000, EpochSize: 100000,
		Rate: 15211, Loss: 0.0013, TestAcc: 0.9975, Noise: coord.NoiseStatus{Scale: 31}}
	for i := range 4 {
		st.Workers = append(st.Workers, coord.WorkerStatus{Worker: i, State: "computing", Step: 123456, Iteration: 0.1234, Compute: 0.1234, Wait: 0.1234, Rate: 12345, Stale: 3})
	}
	st.Workers[2].Slowdown, st.Workers[2].Cause = 2.13, "contention"
	lines := Table(st, 80)
	for _, w := range []string{"24s left", "test 99.75 %"} {
		if !strings.Contains(lines[0], w) {
			t.Errorf("%q is not in %q", w, lines[0])
		}
	}
	for i, l := range lines[3:] {
		if slow := strings.Contains(l, "SLOW 2.1x"); slow != (i == 2) {
			t.Errorf("worker %d: %q", i, l)
		}
	}
	for _, colour := range []bool{false, true} {
		var b bytes.Buffer
		s := &Screen{w: &b, live: true, color: colour}
		s.Show(st)
		if strings.Contains(b.String(), "\x1b[31") != colour {
			t.Errorf("colour %v: %q", colour, b.String())
		}
	}
}

// The reason that ends one process after the other is printed in full once, beside the traceback of the program; what
// programs print otherwise stays as it is.
func TestReasonsOnce(t *testing.T) {
	why := "the settings of the optimizer were changed after the first batch, from [{'lr': 0.1}] to [{'lr': 0.025}]"
	var out bytes.Buffer
	s := &Screen{w: &out}
	s.Relay("ps 0", []string{"training workers=2"})
	s.Relay("worker 0", []string{"Traceback (most recent call last):", "  File", "StarError: " + why})
	s.Relay("ps 0", []string{`WARN a worker is gone worker=0 reason="left: the program failed: ` + why + `"`})
	s.Relay("worker 0", []string{"star: the program failed: " + why})
	s.Relay("worker 1", []string{"Traceback (most recent call last):", "  File", "StarError: " + why})
	s.Relay("worker 1", []string{"my log: " + why})
	want := `ps 0     | training workers=2
worker 0 | Traceback (most recent call last):
worker 0 |   File
worker 0 | StarError: ` + why + `
ps 0     | WARN a worker is gone worker=0 reason="left: the program failed: … (as above)
worker 0 | star: the program failed: … (as above)
worker 1 | StarError: … (as above) (the traceback is that of worker 0)
worker 1 | my log: ` + why + "\n"
	if out.String() != want {
		t.Errorf("%s, want\n%s", &out, want)
	}
}

// In JSON, too, and each line is still JSON. A line of a script stays as it is, whatever it looks like.
func TestReasonsOnceInJSON(t *testing.T) {
	why := "the settings of the optimizer were changed after the first batch, from [{'lr': 0.1}] to [{'lr': \"0.025\"}]"
	quoted, _ := json.Marshal(why)
	inner := strings.Trim(string(quoted), `"`)
	var out bytes.Buffer
	s := &Screen{w: &out, json: true}
	s.Relay("worker 0", []string{"Traceback (most recent call last):", "  File", "StarError: " + why})
	out.Reset()
	s.Relay("ps 0", []string{`{"msg":"a worker is gone","worker":0,"reason":"left: the program failed: ` + inner + `","step":3}`})
	s.Relay("worker 0", []string{`{"level":"ERROR","msg":"star: the program failed: ` + inner + `","exit":2}`})
	s.Relay("worker 1", []string{`{"msg":"mine","reason":"it: ` + inner + `"}`})
	want := `{"msg":"a worker is gone","worker":0,"reason":"left: the program failed: … (as above)","step":3}
{"level":"ERROR","msg":"star: the program failed: … (as above)","exit":2}
{"msg":"mine","reason":"it: ` + inner + `"}
`
	if out.String() != want {
		t.Errorf("%s, want\n%s", &out, want)
	}
}
